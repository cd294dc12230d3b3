/* SPDX-License-Identifier: Apache-2.0
 *
 * The serving thread of a worker: batch after batch. Rank 0 takes the batch from the front, all get it by a
 * broadcast, each computes its share, an all_reduce joins the shares, rank 0 answers. Orders of the monitor travel
 * in the batch, so every rank carries them out at the same place. An error ends serving until the monitor says how
 * to go on; nothing is repaired here.
 */
#include "worker.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SLOW_FACTOR 30

static _Atomic int slowed; /* by SIGUSR1: as if this machine had become slow */

static void become_slow(int sig)
{
    (void)sig;
    atomic_store(&slowed, 1);
}

static bool has_seat(worker_t *w, const seat_t *seat)
{
    pthread_mutex_lock(&w->lock);
    bool mine = w->serving && !w->leave && w->current.comm == seat->comm && w->current.epoch == seat->epoch;
    pthread_mutex_unlock(&w->lock);
    return mine;
}

/* Rank 0 waits for the front. Frames that were meant for an earlier epoch are dropped. */
static kolo_status_t take_batch(worker_t *w, const seat_t *seat, batch_t *b)
{
    while (has_seat(w, seat)) {
        int got = frame_receive(FRONT_FD, b, sizeof *b);
        if (got < 0) return KOLO_ERR_SYSTEM;
        if (got > 0 && batch_is_sound(b) && b->epoch == seat->epoch) return KOLO_OK;
        if (got > 0) continue;
        struct pollfd fds[] = {{FRONT_FD, POLLIN, 0}, {w->kick, POLLIN, 0}};
        uint64_t count;
        if (poll(fds, 2, w->batch_ms) > 0 && fds[1].revents && read(w->kick, &count, sizeof count) < 0)
            return KOLO_ERR_SYSTEM;
    }
    return KOLO_ERR_ABORTED;
}

/* A communicator with blocking = 0 may also connect in the background: the call is complete when the async error
 * says so. */
static kolo_status_t complete(const worker_t *w, kolo_comm_t comm, kolo_status_t status)
{
    uint64_t deadline = now_ns() + (uint64_t)w->init_ms * MS;
    while (status == KOLO_IN_PROGRESS) {
        kolo_status_t state;
        status = kolo_comm_get_async_error(comm, &state);
        if (status != KOLO_OK) return status;
        status = state;
        if (status != KOLO_IN_PROGRESS) break;
        if (now_ns() > deadline) return KOLO_ERR_TIMEOUT;
        poll(NULL, 0, 1);
    }
    return status;
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void compute(worker_t *w, const batch_t *b, int rank, int nranks, uint64_t *sums)
{
    if (!b->count) return;
    uint64_t start = cpu_ns();
    for (int again = atomic_load(&slowed) ? SLOW_FACTOR : 1; again > 0; again--)
        for (uint32_t i = 0; i < b->count; i++) sums[i] = work_share(b->requests[i].value, rank, nranks);
    uint64_t terms = (uint64_t)b->count * WORK_TERMS / (uint64_t)nranks;
    uint64_t term_ps = (cpu_ns() - start) * 1000 / terms;
    uint64_t before = atomic_load(&w->term_ps);
    atomic_store(&w->term_ps, before ? (before * 7 + term_ps) / 8 : term_ps);
}

static kolo_status_t run_batch(worker_t *w, const seat_t *seat, batch_t *b)
{
    answers_t a = {0};
    uint64_t sums[MOST_REQUESTS] = {0};
    int rank, nranks;
    kolo_status_t status = kolo_comm_user_rank(seat->comm, &rank);
    if (status == KOLO_OK) status = kolo_comm_count(seat->comm, &nranks);
    if (status == KOLO_OK && rank == 0) status = take_batch(w, seat, b);
    if (status != KOLO_OK) return status;
    uint64_t start = now_ns();
    status = kolo_broadcast(b, b, sizeof *b, KOLO_UINT8, 0, seat->comm, NULL);
    status = complete(w, seat->comm, status);
    if (status != KOLO_OK) return status;
    if (!batch_is_sound(b) || b->epoch != seat->epoch) return KOLO_ERR_PROTOCOL;
    compute(w, b, rank, nranks, sums);
    status = kolo_all_reduce(sums, sums, b->count, KOLO_UINT64, KOLO_SUM, seat->comm, NULL);
    status = complete(w, seat->comm, status);
    if (status != KOLO_OK) return status;
    atomic_store(&w->latency_us, (now_ns() - start) / 1000);
    atomic_fetch_add(&w->batches, 1);
    if (rank != 0) return KOLO_OK;
    a.count = b->count;
    a.epoch = b->epoch;
    a.batch = b->number;
    for (uint32_t i = 0; i < b->count; i++) a.results[i] = (item_t){b->requests[i].number, sums[i]};
    return frame_send(FRONT_FD, &a, sizeof a) ? KOLO_OK : KOLO_ERR_SYSTEM;
}

/* Planned scale-down. The excluded ranks do not call; the old communicator serves until the order to switch. */
static kolo_status_t start_shrink(worker_t *w, const seat_t *seat, const batch_t *b)
{
    kolo_config_t config = worker_config(w);
    seat_t child = {.epoch = b->order_epoch};
    int excluded[MOST_WORKERS], rank;
    kolo_status_t status = kolo_comm_user_rank(seat->comm, &rank);
    if (status != KOLO_OK) return status;
    for (uint32_t i = 0; i < b->excluded_count; i++) {
        if (b->excluded[i] == rank) return KOLO_OK;
        excluded[i] = b->excluded[i];
    }
    status =
        kolo_comm_shrink(seat->comm, excluded, (int)b->excluded_count, KOLO_SHRINK_DEFAULT, &child.comm, &config);
    if (status != KOLO_OK && status != KOLO_IN_PROGRESS) return status;
    pthread_mutex_lock(&w->lock);
    w->next = child;
    w->next_told = false;
    pthread_mutex_unlock(&w->lock);
    return KOLO_OK;
}

static void switch_over(worker_t *w, seat_t *seat, const batch_t *b)
{
    pthread_mutex_lock(&w->lock);
    if (w->current.comm == seat->comm) {
        worker_retire(w, &w->current);
        if (b->order == ORDER_SWITCH && w->next.comm && w->next.epoch == b->order_epoch) {
            *seat = w->current = w->next;
            w->next = (seat_t){0};
        } else {
            w->leave = true;
        }
    }
    pthread_mutex_unlock(&w->lock);
}

static void serve(worker_t *w, seat_t *seat)
{
    batch_t b = {0};
    kolo_status_t status = KOLO_OK;
    while (status == KOLO_OK && has_seat(w, seat)) {
        status = run_batch(w, seat, &b);
        if (status == KOLO_OK && b.order == ORDER_SHRINK) status = start_shrink(w, seat, &b);
        if (status == KOLO_OK && (b.order == ORDER_SWITCH || b.order == ORDER_STOP)) switch_over(w, seat, &b);
    }
    if (status == KOLO_OK || !has_seat(w, seat)) return; /* the control thread has ended it, and knows */
    worker_tell(w, NOTE_ERROR, seat->epoch, b.number, status, kolo_get_last_error(seat->comm));
    pthread_mutex_lock(&w->lock);
    if (w->current.epoch == seat->epoch) w->serving = false;
    pthread_mutex_unlock(&w->lock);
}

void *worker_serve(void *arg)
{
    worker_t *w = arg;
    struct sigaction action = {.sa_handler = become_slow, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    pthread_mutex_lock(&w->lock);
    while (!w->leave) {
        if (w->serving && w->current.comm) {
            seat_t seat = w->current;
            pthread_mutex_unlock(&w->lock);
            serve(w, &seat);
            pthread_mutex_lock(&w->lock);
        } else {
            pthread_cond_wait(&w->changed, &w->lock);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}
