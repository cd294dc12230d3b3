/* SPDX-License-Identifier: Apache-2.0
 *
 * The control thread of a worker: obeys the monitor's notes, makes communicators without blocking and polls them,
 * aborts what the serving thread is stuck in, buries what is no longer used, and beats.
 */
#include "worker.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

kolo_config_t worker_config(const worker_t *w)
{
    kolo_config_t c = KOLO_CONFIG_INITIALIZER;
    c.blocking = 0;
    c.init_timeout_ms = w->init_ms;
    c.op_timeout_ms = w->batch_ms;
    c.name = "elastic";
    return c;
}

void worker_tell(const worker_t *w, note_kind_t kind, epoch_t epoch, uint64_t batch, kolo_status_t status,
                 const char *text)
{
    note_t note = {.kind = kind, .epoch = epoch, .batch = batch, .status = (int32_t)status};
    note.batches = atomic_load(&w->batches);
    note.latency_us = atomic_load(&w->latency_us);
    note.term_ps = atomic_load(&w->term_ps);
    snprintf(note.text, sizeof note.text, "%s", text ? text : "");
    frame_send(CONTROL_FD, &note, sizeof note); /* if it cannot be sent, the monitor finds us silent */
}

static void wake_serving(worker_t *w)
{
    const uint64_t one = 1;
    pthread_cond_broadcast(&w->changed);
    if (write(w->kick, &one, sizeof one) < 0) return; /* full: it is awake anyway */
}

/* ---- the end of communicators ---- */

void worker_retire(worker_t *w, seat_t *seat)
{
    if (seat->comm && w->old_count < MOST_OLD) w->old[w->old_count++] = *seat;
    *seat = (seat_t){0};
}

/* Takes it away from the serving thread, whose call ends with KOLO_ERR_ABORTED. Afterwards the handle is dead. */
static void abort_seat(worker_t *w, seat_t *seat, bool say)
{
    kolo_status_t state = KOLO_OK, status;
    char text[300];
    pthread_mutex_lock(&w->lock);
    seat_t mine = *seat;
    *seat = (seat_t){0};
    if (seat == &w->current) w->serving = false;
    wake_serving(w);
    pthread_mutex_unlock(&w->lock);
    if (!mine.comm) return;
    status = kolo_comm_abort(mine.comm);
    if (!say) return;
    kolo_status_t asked = kolo_comm_get_async_error(mine.comm, &state);
    snprintf(text, sizeof text, "abort: %s; asked for the async error afterwards: %s", kolo_status_string(status),
             kolo_status_string(asked == KOLO_OK ? state : asked));
    worker_tell(w, NOTE_SAY, mine.epoch, 0, KOLO_OK, text);
}

static void abort_up_to(worker_t *w, epoch_t epoch)
{
    /* the parent first: a communicator that is being made by a shrink waits on its parent's connections */
    if (w->current.epoch <= epoch) abort_seat(w, &w->current, true);
    if (w->next.epoch <= epoch) abort_seat(w, &w->next, false);
    pthread_mutex_lock(&w->lock);
    seat_t old[MOST_OLD];
    int count = w->old_count;
    memcpy(old, w->old, sizeof old);
    w->old_count = 0;
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < count; i++) kolo_comm_abort(old[i].comm);
}

/* Finalize tells the others that this rank is through with it, so that nobody takes its end for a loss. */
static bool bury(const worker_t *w, seat_t *s)
{
    kolo_status_t state = KOLO_OK;
    if (!s->finalizing) {
        state = kolo_comm_finalize(s->comm);
        s->finalizing = true;
        s->deadline_ns = now_ns() + 2 * (uint64_t)w->batch_ms * MS;
    } else if (kolo_comm_get_async_error(s->comm, &state) != KOLO_OK) {
        return true;
    }
    if (state == KOLO_IN_PROGRESS && now_ns() < s->deadline_ns) return false;
    if (state == KOLO_IN_PROGRESS)
        kolo_comm_abort(s->comm);
    else
        kolo_comm_destroy(s->comm);
    return true;
}

static void tend_old(worker_t *w)
{
    pthread_mutex_lock(&w->lock);
    seat_t old[MOST_OLD];
    int count = w->old_count, left = 0;
    memcpy(old, w->old, sizeof old);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < count; i++)
        if (!bury(w, &old[i])) old[left++] = old[i];
    pthread_mutex_lock(&w->lock); /* the serving thread may have added some behind those */
    int added = w->old_count - count;
    memmove(old + left, w->old + count, (size_t)added * sizeof old[0]);
    memcpy(w->old, old, sizeof old);
    w->old_count = left + added;
    pthread_mutex_unlock(&w->lock);
}

/* ---- the beginning of communicators ---- */

static void set_next(worker_t *w, epoch_t epoch, kolo_comm_t comm)
{
    pthread_mutex_lock(&w->lock);
    w->next = (seat_t){.epoch = epoch, .comm = comm};
    w->next_told = false;
    pthread_mutex_unlock(&w->lock);
}

static void make_id(worker_t *w, const note_t *order)
{
    note_t note = {.kind = NOTE_ID, .epoch = order->epoch};
    note.status = (int32_t)kolo_get_unique_id(&note.id);
    snprintf(note.text, sizeof note.text, "%s", note.status ? kolo_get_last_error(NULL) : "");
    frame_send(CONTROL_FD, &note, sizeof note);
    (void)w;
}

/* A second communicator; the current one serves meanwhile. */
static void join(worker_t *w, const note_t *order)
{
    kolo_config_t config = worker_config(w);
    kolo_comm_t comm = NULL;
    abort_seat(w, &w->next, false);
    if (order->rank < 0) return; /* not in it: ORDER_SWITCH finds no communicator of that epoch and we leave */
    kolo_status_t status = kolo_comm_init_rank(&comm, order->nranks, order->id, order->rank, &config);
    if (status == KOLO_OK || status == KOLO_IN_PROGRESS)
        set_next(w, order->epoch, comm);
    else
        worker_tell(w, NOTE_READY, order->epoch, 0, status, kolo_get_last_error(NULL));
}

/* Shrink in abort mode, on this thread, because the other one may be stuck in an operation that will never end. */
static void rescue(worker_t *w, const note_t *order)
{
    kolo_config_t config = worker_config(w);
    kolo_comm_t comm = NULL;
    int excluded[MOST_WORKERS];
    char text[400];
    abort_seat(w, &w->next, false);
    pthread_mutex_lock(&w->lock);
    seat_t parent = w->current;
    w->serving = false;
    wake_serving(w);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < order->count; i++) excluded[i] = order->list[i];
    kolo_status_t status = KOLO_ERR_INVALID_USAGE;
    snprintf(text, sizeof text, "the current epoch is %llu", (unsigned long long)parent.epoch);
    if (parent.comm && parent.epoch == order->batch) {
        status = kolo_comm_shrink(parent.comm, excluded, order->count, KOLO_SHRINK_ABORT, &comm, &config);
        snprintf(text, sizeof text, "%s", kolo_get_last_error(NULL));
    }
    if (status == KOLO_OK || status == KOLO_IN_PROGRESS)
        set_next(w, order->epoch, comm);
    else
        worker_tell(w, NOTE_READY, order->epoch, 0, status, text);
}

static void serve_epoch(worker_t *w, epoch_t epoch)
{
    pthread_mutex_lock(&w->lock);
    bool mine = w->next.comm && w->next.epoch == epoch;
    pthread_mutex_unlock(&w->lock);
    if (!mine) return;
    abort_seat(w, &w->current, false); /* a parent that was shrunk in abort mode; else there is none */
    pthread_mutex_lock(&w->lock);
    w->current = w->next;
    w->next = (seat_t){0};
    w->serving = true;
    wake_serving(w);
    pthread_mutex_unlock(&w->lock);
}

static void look_at_next(worker_t *w)
{
    kolo_status_t state;
    pthread_mutex_lock(&w->lock);
    seat_t next = w->next;
    bool told = w->next_told;
    pthread_mutex_unlock(&w->lock);
    if (!next.comm || told) return;
    if (kolo_comm_get_async_error(next.comm, &state) != KOLO_OK || state == KOLO_IN_PROGRESS) return;
    pthread_mutex_lock(&w->lock);
    w->next_told = true;
    pthread_mutex_unlock(&w->lock);
    worker_tell(w, NOTE_READY, next.epoch, 0, state, state == KOLO_OK ? "" : kolo_get_last_error(next.comm));
}

/* ---- the thread ---- */

static void beat(worker_t *w)
{
    kolo_status_t state = KOLO_OK;
    pthread_mutex_lock(&w->lock);
    seat_t seat = w->current;
    pthread_mutex_unlock(&w->lock);
    if (seat.comm && kolo_comm_get_async_error(seat.comm, &state) != KOLO_OK) state = KOLO_OK; /* just retired */
    worker_tell(w, NOTE_BEAT, seat.epoch, 0, state,
                state != KOLO_OK && seat.comm ? kolo_get_last_error(seat.comm) : "");
}

static bool obey(worker_t *w, const note_t *n)
{
    bool sound = n->count >= 0 && n->count <= MOST_WORKERS && n->nranks <= MOST_WORKERS;
    if (!sound) return false;
    if (n->kind == NOTE_MAKE_ID) make_id(w, n);
    if (n->kind == NOTE_JOIN) join(w, n);
    if (n->kind == NOTE_RESCUE) rescue(w, n);
    if (n->kind == NOTE_DROP && w->next.epoch == n->epoch) abort_seat(w, &w->next, false);
    if (n->kind == NOTE_ABORT) abort_up_to(w, n->epoch);
    if (n->kind == NOTE_SERVE) serve_epoch(w, n->epoch);
    return n->kind != NOTE_LEAVE;
}

static void control(worker_t *w)
{
    uint64_t next_beat = now_ns();
    note_t note;
    for (bool through = false; !through;) {
        pthread_mutex_lock(&w->lock);
        bool busy = w->old_count || (w->next.comm && !w->next_told);
        through = w->leave && !w->old_count;
        pthread_mutex_unlock(&w->lock);
        struct pollfd fd = {CONTROL_FD, POLLIN, 0};
        if (!through) poll(&fd, 1, busy ? 1 : w->beat_ms / 4 + 1);
        int got;
        while (!through && (got = frame_receive(CONTROL_FD, &note, sizeof note)) != 0)
            through = got < 0 || !obey(w, &note); /* without a monitor there is nobody to work for */
        look_at_next(w);
        tend_old(w);
        if (now_ns() < next_beat) continue;
        beat(w);
        next_beat = now_ns() + (uint64_t)w->beat_ms * MS;
    }
}

int worker_main(int index, int batch_ms, int init_ms, int beat_ms)
{
    static worker_t w;
    pthread_t thread;
    w = (worker_t){.index = index, .batch_ms = batch_ms, .init_ms = init_ms, .beat_ms = beat_ms};
    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.changed, NULL);
    w.kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w.kick < 0 || pthread_create(&thread, NULL, worker_serve, &w)) return 1;
    worker_tell(&w, NOTE_HELLO, 0, 0, KOLO_OK, NULL);
    control(&w);
    pthread_mutex_lock(&w.lock);
    w.leave = true;
    pthread_mutex_unlock(&w.lock);
    abort_up_to(&w, UINT64_MAX);
    pthread_join(thread, NULL);
    close(w.kick);
    return 0;
}
