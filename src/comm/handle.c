/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicator handles. They come from blocks that are never given back, and a dropped handle goes to the end of
 * the free list, so that a stale one keeps being recognised for as long as possible.
 */
#include "comm/life/life.h"

#include "base/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_HANDLES 64
#define QUARANTINE    64 /* handles kept unused before one is given out again */

#define BACKGROUND_STACK_BYTES (512u * 1024) /* thousands of ranks may start in one process */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kolo_comm *free_head, *free_tail;
static size_t free_count;
static struct block {
    struct block *next;
    struct kolo_comm handles[BLOCK_HANDLES];
} * blocks;

static void push_free(struct kolo_comm *h)
{
    h->next_free = NULL;
    if (free_tail)
        free_tail->next_free = h;
    else
        free_head = h;
    free_tail = h;
    free_count++;
}

static bool add_block(void)
{
    struct block *b = calloc(1, sizeof *b);
    if (!b) return false;
    b->next = blocks;
    blocks = b;
    for (int i = 0; i < BLOCK_HANDLES; i++) {
        pthread_mutex_init(&b->handles[i].error_lock, NULL);
        pthread_mutex_init(&b->handles[i].queuing, NULL);
        push_free(&b->handles[i]);
    }
    return true;
}

/* Marks all handles in a child of fork(), which has its parent's memory but neither its threads nor its place in
 * the job: what it did to a communicator would reach the peers in its parent's name. */
static void disown_all(void)
{
    pthread_mutex_init(&lock, NULL); /* another thread of the parent may have held it */
    kolo_comm_failure_forget();
    for (struct block *b = blocks; b; b = b->next)
        for (int i = 0; i < BLOCK_HANDLES; i++)
            if (atomic_load(&b->handles[i].magic) == KOLO_COMM_MAGIC)
                atomic_store(&b->handles[i].magic, KOLO_COMM_FOREIGN);
}

/* Says that this process exits without ending its communicators, so the others do not take it for killed. */
static void say_exit(void)
{
    pthread_mutex_lock(&lock);
    struct block *first = blocks;
    pthread_mutex_unlock(&lock);
    for (struct block *b = first; b; b = b->next)
        for (int i = 0; i < BLOCK_HANDLES; i++) {
            kolo_comm_t h = &b->handles[i];
            kolo_body_t *body =
                atomic_load(&h->magic) == KOLO_COMM_MAGIC ? kolo_handle_visit(h, "comm_destroy") : NULL;
            if (!body) continue;
            kolo_device_let_go(body);           /* the driver's end may wait for kernels */
            int state = atomic_load(&h->state); /* while it starts, what it has may be taken back (0096) */
            if (state == KOLO_COMM_READY || state == KOLO_COMM_CONNECTING || state == KOLO_COMM_FAILED) {
                kolo_oob_give_reason(body->oob, "its process exited without kolo_comm_destroy()");
                kolo_oob_give_notice(body->oob);
            }
            kolo_handle_leave(h);
        }
}

static void watch_ends(void)
{
    pthread_atfork(NULL, NULL, disown_all);
    if (kolo_comm_options.quiet) atexit(say_exit);
}

kolo_status_t kolo_handle_new(kolo_body_t *body, kolo_comm_t *comm)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_ends);
    pthread_mutex_lock(&lock);
    while (free_count <= QUARANTINE && add_block()) {
    }
    struct kolo_comm *h = free_head;
    if (h) {
        free_head = h->next_free;
        if (!free_head) free_tail = NULL;
        free_count--;
    }
    pthread_mutex_unlock(&lock);
    if (!h) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a communicator handle");
    static _Atomic uint64_t numbers;
    atomic_store(&h->number, atomic_fetch_add(&numbers, 1) + 1);
    h->body = body;
    h->error = KOLO_OK;
    h->making = NULL;
    atomic_store(&h->aside, NULL);
    h->aside_last = NULL;
    h->own_stream = NULL;
    h->revoked_here = false;
    h->quiet = false;
    h->error_is_news = false;
    h->inside = false;
    h->error_text[0] = '\0';
    atomic_store(&h->tickets, 0);
    atomic_store(&h->done, 0);
    atomic_store(&h->last_ticket, 0);
    atomic_store(&h->turns, 0);
    atomic_store(&h->state, KOLO_COMM_STARTING);
    h->rank = body->rank;
    h->nranks = body->nranks;
    h->blocking = body->life.blocking;
    body->handle = h;
    body->name = h->name;
    atomic_store_explicit(&h->magic, KOLO_COMM_MAGIC, memory_order_release);
    *comm = h;
    return KOLO_OK;
}

void kolo_handle_set_blocking(kolo_comm_t comm, bool blocking)
{
    comm->blocking = comm->body->life.blocking = blocking;
}

void kolo_handle_drop(kolo_comm_t comm)
{
    atomic_store_explicit(&comm->magic, 0, memory_order_release);
    comm->body = NULL;
    pthread_mutex_lock(&lock);
    push_free(comm);
    pthread_mutex_unlock(&lock);
}

kolo_status_t kolo_handle_check_slow(kolo_comm_t comm, const char *what)
{
    if (!comm) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the communicator is NULL", what);
    if (atomic_load(&comm->magic) == KOLO_COMM_FOREIGN)
        return kolo_fail(
            KOLO_ERR_INVALID_USAGE,
            "%s: %s rank %d belongs to the process that this one was forked from; only there can it be "
            "used, or destroyed",
            what, comm->name, comm->rank);
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                     "%s: %p is not a communicator, or one that was destroyed or aborted", what, (void *)comm);
}

bool kolo_handle_was_aborted(kolo_comm_t comm)
{
    return comm && atomic_load_explicit(&comm->magic, memory_order_acquire) == 0 &&
           atomic_load(&comm->state) == KOLO_COMM_ABORTED;
}

kolo_body_t *kolo_handle_visit(kolo_comm_t comm, const char *what)
{
    if (kolo_handle_check(comm, what) != KOLO_OK) return NULL;
    atomic_fetch_add(&comm->visitors, 1);
    if (kolo_handle_check(comm, what) == KOLO_OK) return comm->body;
    kolo_handle_leave(comm);
    return NULL;
}

void kolo_handle_leave(kolo_comm_t comm)
{
    atomic_fetch_sub(&comm->visitors, 1);
    kolo_gate_open(&comm->gate);
}

/* For programs that take every status but KOLO_OK for an error: with KOLO_BLOCKING=0 theirs is KOLO_IN_PROGRESS. */
static const char in_background[] = "goes on in the background until kolo_comm_get_async_error() reports KOLO_OK";

kolo_status_t kolo_body_background(kolo_body_t *body, void *(*fn)(void *), void *arg)
{
    atomic_fetch_add(&body->handle->visitors, 1);
    int err = kolo_thread_start(NULL, BACKGROUND_STACK_BYTES, fn, arg);
    if (err == 0 && !body->life.blocking)
        kolo_fail(KOLO_IN_PROGRESS, "blocking is 0 for %s: the call %s", body->name, in_background);
    if (err == 0) return KOLO_OK;
    kolo_handle_leave(body->handle);
    return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "cannot start a thread for %s rank %d", body->name, body->rank);
}

kolo_status_t kolo_handle_overlaps(kolo_comm_t comm)
{
    return kolo_fail(
        KOLO_ERR_INVALID_USAGE,
        "%s rank %d: another thread is in a call on this communicator, or this call was made by a "
        "function that such a call runs; nothing was done. Use a communicator from one thread at a time, "
        "give the other thread one of its own (kolo_comm_dup()), or pass a stream",
        comm->name, comm->rank);
}

kolo_status_t kolo_handle_error(kolo_comm_t comm, char *text, size_t bytes)
{
    pthread_mutex_lock(&comm->error_lock); /* news of a loss may come at any time */
    kolo_status_t status = comm->error;
    if (text) snprintf(text, bytes, "%s", comm->error_text);
    pthread_mutex_unlock(&comm->error_lock);
    return status;
}

kolo_status_t kolo_handle_refuse(kolo_comm_t comm, int state)
{
    if (state == KOLO_COMM_STARTING)
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "%s is not ready yet; wait until kolo_comm_get_async_error reports KOLO_OK",
                         comm->name); /* its rank may not be known yet */
    if (state == KOLO_COMM_CONNECTING)
        return kolo_fail(
            KOLO_ERR_INVALID_USAGE,
            "%s rank %d is not ready: an operation that was called before still makes its connections; "
            "wait until kolo_comm_get_async_error reports KOLO_OK",
            comm->name, comm->rank);
    if (state == KOLO_COMM_FINALIZING || state == KOLO_COMM_FINALIZED)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "%s rank %d was finalized, or has left: no more operations",
                         comm->name, comm->rank);
    char text[KOLO_ERROR_TEXT_BYTES];
    if (atomic_load(&comm->quiet)) kolo_lost_tell(comm->body);
    kolo_status_t status = kolo_handle_error(comm, text, sizeof text);
    kolo_device_let_go(comm->body);
    return kolo_fail(status, "%s rank %d cannot be used after an earlier failure: %.900s", comm->name, comm->rank,
                     text);
}

static void describe_quiet(void *arg, char *buf, size_t bytes)
{
    const struct kolo_comm *h = arg;
    snprintf(buf, bytes, "the operations of %s rank %d that are queued or running (%llu called, %llu ended)",
             h->name, h->rank, (unsigned long long)atomic_load(&h->tickets),
             (unsigned long long)atomic_load(&h->done));
}

static void describe_start(void *arg, char *buf, size_t bytes)
{
    const struct kolo_comm *h = arg;
    snprintf(buf, bytes, "the start of %s rank %d", h->name, h->rank);
}

void kolo_handle_started(kolo_comm_t comm)
{
    kolo_wait_t wait; /* the start itself has a deadline and the abort flag */
    kolo_wait_init(&wait, NULL, 0, describe_start, comm, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&comm->gate);
        if (atomic_load(&comm->state) != KOLO_COMM_STARTING) return;
        kolo_gate_wait(&comm->gate, ticket, &wait);
    }
}

kolo_status_t kolo_handle_quiet(kolo_comm_t comm, const _Atomic uint32_t *abort, bool visitors)
{
    kolo_wait_t wait;
    kolo_wait_init(&wait, abort, 0, describe_quiet, comm, 1);
    kolo_status_t status = KOLO_OK;
    kolo_gate_join(&comm->gate);
    while (status == KOLO_OK) {
        uint32_t ticket = kolo_gate_ticket(&comm->gate);
        if (atomic_load(&comm->done) == atomic_load(&comm->tickets) &&
            (!visitors || atomic_load(&comm->visitors) == 0) && atomic_load(&comm->state) != KOLO_COMM_STARTING)
            break;
        status = kolo_gate_wait(&comm->gate, ticket, &wait);
    }
    kolo_gate_quit(&comm->gate);
    return status;
}

/* Tells the communicator's own waits and its peers. While it is being made, all but its flags belongs to the thread
 * that makes it, which may take back what there is; so they are told when that has seen the flags. */
static void tell_abort(kolo_body_t *body, int state, const char *last_error)
{
    char words[96]; /* not this thread's error */
    snprintf(words, sizeof words, "%s rank %d was aborted", body->name, body->rank);
    kolo_body_fail_as(body, KOLO_ERR_ABORTED, words);
    /* why it failed, each finds for itself */
    kolo_body_interrupt(body, state != KOLO_COMM_FAILED ? last_error : NULL);
}

kolo_status_t kolo_handle_retire(kolo_comm_t comm, const char *what, bool abort)
{
    uint64_t live = KOLO_COMM_MAGIC;
    KOLO_TRY(kolo_handle_check(comm, what));
    if (!atomic_compare_exchange_strong(&comm->magic, &live, 0))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: another thread is destroying this communicator", what);
    kolo_body_t *body = comm->body;
    int state = atomic_load(&comm->state);
    if (state == KOLO_COMM_FINALIZED) abort = false; /* it has left in order */
    char last_error[400] = "";                       /* of this thread: mostly why its program aborts */
    bool told = false;
    if (abort) {
        if (!strstr(kolo_error_text(), in_background)) /* an abort that was asked for is no error */
            snprintf(last_error, sizeof last_error, "%s", kolo_error_text());
        atomic_store(&body->stop.abort, 1);
        atomic_store(&body->stop.reason, KOLO_STOP_ABORT);
        kolo_start_abort_all(comm);
        kolo_gate_open(&comm->gate);
        told = atomic_load(&comm->state) != KOLO_COMM_STARTING;
        if (told) tell_abort(body, state, last_error);
    }
    kolo_fence_cores(); /* a caller either sees that the handle is dead, or we see its ticket */
    kolo_status_t status = kolo_handle_quiet(comm, NULL, true);
    if (abort && !told) tell_abort(body, state, last_error);
    return status;
}

/* ---- turns ---- */

kolo_status_t kolo_ticket_refuse(kolo_comm_t comm, uint64_t ticket)
{
    kolo_ticket_wait(comm, ticket);
    kolo_ticket_end(comm, ticket);
    return kolo_fail(KOLO_ERR_ABORTED, "%s rank %d was aborted", comm->name, comm->rank);
}

static void describe_turn(void *arg, char *buf, size_t bytes)
{
    const struct kolo_comm *h = arg;
    snprintf(buf, bytes, "the operations called before this one on %s rank %d", h->name, h->rank);
}

kolo_status_t kolo_ticket_wait_slow(kolo_comm_t comm, uint64_t ticket)
{
    if (KOLO_UNLIKELY(atomic_load_explicit(&comm->done, memory_order_acquire) != ticket)) {
        /* no abort flag: an abort ends the calls before this one, and turns must end in order */
        kolo_wait_t wait;
        kolo_wait_init(&wait, NULL, 0, describe_turn, comm, 1);
        kolo_gate_join(&comm->gate);
        for (;;) { /* without abort and deadline the wait itself cannot fail */
            uint32_t gate = kolo_gate_ticket(&comm->gate);
            if (atomic_load(&comm->done) == ticket) break;
            kolo_gate_wait(&comm->gate, gate, &wait);
        }
        kolo_gate_quit(&comm->gate);
    }
    int state = atomic_load_explicit(&comm->state, memory_order_acquire);
    if (KOLO_LIKELY(state == KOLO_COMM_READY)) return KOLO_OK;
    if (state == KOLO_COMM_CONNECTING) return KOLO_OK; /* it is the one that connects, or was called before */
    if (state == KOLO_COMM_FINALIZING && ticket < atomic_load(&comm->last_ticket)) return KOLO_OK;
    return kolo_handle_refuse(comm, state);
}
