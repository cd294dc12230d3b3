/* SPDX-License-Identifier: Apache-2.0
 *
 * The public calls on windows: registering them takes a turn of its own, puts, signals and waits are checked here
 * and go the way of all calls (launch.c, share.c) to window/run.c.
 */
#include "comm/call/call.h"

#include <stdlib.h>
#include <string.h>

/* ---- coming and going ---- */

typedef struct {
    kolo_comm_t comm;
    uint64_t ticket;
    void *buf;
    size_t bytes;
    kolo_window_t *made; /* NULL: unmakes `handle` */
    uint64_t handle;
} job_t;

static uint64_t number_of(kolo_window_t window)
{
    return (uint64_t)(uintptr_t)window;
}

static kolo_status_t make(job_t *job)
{
    kolo_body_t *body = job->comm->body;
    bool agreed = false, begun;
    kolo_whole_t whole;
    uint64_t handle = 0;
    kolo_status_t status = body->gpu.device >= 0 ? kolo_window_device_able(body) : KOLO_OK;
    begun = status == KOLO_OK;
    if (begun) (void)kolo_whole_begin(&whole, body, KOLO_CALL_WORD_REGISTER);
    if (begun)
        status = kolo_window_make(body, job->buf, job->bytes, &handle, &agreed);
    else
        agreed = true; /* the same on all ranks */
    if (begun) kolo_whole_end(&whole, status);
    if (status == KOLO_OK) {
        *job->made = (kolo_window_t)(uintptr_t)handle; /* NOLINT: a number, which nobody follows */
        return KOLO_OK;
    }
    kolo_fail_prefix(status, "window_register: %s rank %d: ", body->name, body->rank);
    return agreed && body->life.blocking ? status : kolo_body_fail(body, status);
}

static kolo_status_t unmake(const job_t *job)
{
    kolo_body_t *body = job->comm->body;
    if (!kolo_window_find(body->windows, job->handle))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "window_deregister: this is not a window of %s rank %d, or one that was deregistered",
                         body->name, body->rank);
    kolo_whole_t whole;
    (void)kolo_whole_begin(&whole, body, KOLO_CALL_WORD_DEREGISTER);
    kolo_status_t status = kolo_window_unmake(body, job->handle);
    kolo_whole_end(&whole, status);
    if (status == KOLO_OK) return KOLO_OK;
    kolo_fail_prefix(status, "window_deregister: %s rank %d: ", body->name, body->rank);
    return kolo_body_fail(body, status);
}

static kolo_status_t take_turn(job_t *job)
{
    kolo_status_t status = kolo_ticket_wait(job->comm, job->ticket);
    if (status == KOLO_OK) status = job->made ? make(job) : unmake(job);
    kolo_ticket_end(job->comm, job->ticket);
    return status;
}

static void *run_in_background(void *arg)
{
    job_t *job = arg;
    kolo_comm_t comm = job->comm;
    (void)take_turn(job);
    free(job);
    kolo_first_use_over(comm);
    kolo_handle_leave(comm);
    return NULL;
}

static kolo_status_t start(const job_t *job)
{
    job_t *own = malloc(sizeof *own);
    if (!own) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a window");
    *own = *job;
    kolo_status_t status = kolo_first_use_begin(job->comm);
    if (status == KOLO_OK) {
        status = kolo_body_background(job->comm->body, run_in_background, own);
        if (status == KOLO_OK) return KOLO_IN_PROGRESS;
        kolo_first_use_over(job->comm);
    }
    free(own);
    return status;
}

static kolo_status_t in_turn(job_t *job, const char *what)
{
    KOLO_TRY(kolo_handle_check(job->comm, what));
    if (kolo_group_open())
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "%s: not allowed between group_start and group_end", what);
    KOLO_TRY(kolo_comm_begin_aside(job->comm, what));
    KOLO_TRY(kolo_ticket_draw(job->comm, &job->ticket));
    if (job->comm->blocking) return take_turn(job);
    kolo_status_t status = start(job);
    if (status == KOLO_IN_PROGRESS) return status;
    (void)kolo_ticket_wait(job->comm, job->ticket);
    kolo_ticket_end(job->comm, job->ticket);
    return status;
}

kolo_status_t kolo_window_register(kolo_comm_t comm, void *buf, size_t bytes, kolo_window_t *window)
{
    job_t job = {.comm = comm, .buf = buf, .bytes = bytes, .made = window};
    if (!window) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "window_register: the output is NULL");
    return in_turn(&job, "window_register");
}

kolo_status_t kolo_window_deregister(kolo_comm_t comm, kolo_window_t window)
{
    job_t job = {.comm = comm, .handle = number_of(window)};
    if (!window) return KOLO_OK;
    return in_turn(&job, "window_deregister");
}

/* Looks a window up for a call whose turn has not come. */
static kolo_status_t look_up(kolo_comm_t comm, kolo_window_t window, int peer, const char *what, void **base,
                             uint64_t *bytes)
{
    if (!window) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the window is NULL", what);
    kolo_body_t *body = kolo_handle_visit(comm, what);
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    kolo_windows_t *w = atomic_load_explicit(&body->windows, memory_order_acquire);
    kolo_window_peers_t *found = NULL;
    if (w) {
        pthread_mutex_lock(&w->lock);
        found = kolo_window_find(w, number_of(window));
        if (found) *bytes = found->peers[peer].bytes;
        if (found) *base = found->base;
        pthread_mutex_unlock(&w->lock);
    }
    kolo_handle_leave(comm);
    if (found) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                     "%s: %p is not a window of %s rank %d, or one that was deregistered", what, (void *)window,
                     comm->name, comm->rank);
}

kolo_status_t kolo_window_memory(kolo_comm_t comm, kolo_window_t window, void **buf, size_t *bytes)
{
    void *base = NULL;
    uint64_t length = 0;
    KOLO_TRY(kolo_handle_check(comm, "window_memory"));
    KOLO_TRY(look_up(comm, window, comm->rank, "window_memory", &base, &length));
    if (buf) *buf = base;
    if (bytes) *bytes = length;
    return KOLO_OK;
}

/* ---- puts, signals, waits ---- */

static kolo_status_t check_peer(const kolo_call_t *call, int peer, int signal, bool has_signal, const char *what)
{
    if (peer < 0 || peer >= call->comm->nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: peer %d is out of range, the communicator has %d ranks",
                         what, peer, call->comm->nranks);
    if (has_signal && (signal < 0 || signal >= KOLO_SIGNALS))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: signal %d is out of range, numbers go from 0 to %d", what,
                         signal, KOLO_SIGNALS - 1);
    return KOLO_OK;
}

static kolo_status_t submit_put(kolo_call_t *call, kolo_window_call_t *more, kolo_window_t window, int peer,
                                const char *what)
{
    void *base;
    uint64_t room = 0;
    call->kind = KOLO_CALL_PUT;
    call->coll = KOLO_COLL_P2P;
    call->root = (uint32_t)peer;
    call->window = more;
    KOLO_CALL_TRY(kolo_check_call(call, what));
    KOLO_CALL_TRY(check_peer(call, peer, more->signal, more->signal != -1, what));
    KOLO_CALL_TRY(look_up(call->comm, window, peer, what, &base, &room));
    uint64_t bytes = call->count * call->elem;
    if (more->offset > room || bytes > room - more->offset)
        return kolo_call_refused(
            kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                      "%s: %llu bytes at offset %llu%s do not fit into the window of rank %d, which has %llu", what,
                      (unsigned long long)bytes, (unsigned long long)more->offset,
                      more->offset > INT64_MAX ? " (a negative number?)" : "", peer, (unsigned long long)room));
    KOLO_CALL_TRY(kolo_check_buffer(call->src, bytes, call->comm->on_device, "the source", what));
    if (kolo_deep() && !call->comm->on_device) KOLO_CALL_TRY(kolo_deep_check(call, bytes, 0, what));
    return kolo_call_submit(call);
}

kolo_status_t kolo_put(const void *src, size_t count, kolo_type_t type, int peer, kolo_window_t window,
                       size_t offset, kolo_comm_t comm, void *stream)
{
    kolo_window_call_t more = {.handle = number_of(window), .offset = offset, .signal = -1};
    kolo_call_t call = {.type = type, .src = src, .count = count, .comm = comm, .stream = stream};
    return submit_put(&call, &more, window, peer, "put");
}

kolo_status_t kolo_put_signal(const void *src, size_t count, kolo_type_t type, int peer, kolo_window_t window,
                              size_t offset, int signal, kolo_comm_t comm, void *stream)
{
    /* -1 would be none */
    kolo_window_call_t more = {
        .handle = number_of(window), .offset = offset, .signal = signal == -1 ? KOLO_SIGNALS : signal};
    kolo_call_t call = {.type = type, .src = src, .count = count, .comm = comm, .stream = stream};
    return submit_put(&call, &more, window, peer, "put_signal");
}

static kolo_status_t check_windows(kolo_comm_t comm, const char *what)
{
    kolo_body_t *body = kolo_handle_visit(comm, what);
    if (!body) return kolo_call_refused(KOLO_ERR_INVALID_ARGUMENT);
    bool any = atomic_load_explicit(&body->windows, memory_order_acquire) != NULL;
    kolo_handle_leave(comm);
    if (any) return KOLO_OK;
    return kolo_call_refused(kolo_fail(KOLO_ERR_INVALID_USAGE,
                                       "%s: %s rank %d has never had a window: register one first", what,
                                       comm->name, comm->rank));
}

kolo_status_t kolo_signal(int peer, int signal, kolo_comm_t comm, void *stream)
{
    kolo_window_call_t more = {.signal = signal};
    kolo_call_t call = {.kind = KOLO_CALL_SIGNAL,
                        .coll = KOLO_COLL_P2P,
                        .type = KOLO_UINT8,
                        .root = (uint32_t)peer,
                        .window = &more,
                        .comm = comm,
                        .stream = stream};
    KOLO_CALL_TRY(kolo_check_call(&call, "signal"));
    KOLO_CALL_TRY(check_peer(&call, peer, signal, true, "signal"));
    KOLO_CALL_TRY(check_windows(comm, "signal"));
    return kolo_call_submit(&call);
}

kolo_status_t kolo_wait_signal(const kolo_signal_wait_t *waits, int nwaits, kolo_comm_t comm, void *stream)
{
    kolo_window_call_t more = {.signal = -1, .nwaits = (uint32_t)nwaits, .waits = waits};
    kolo_call_t call = {.kind = KOLO_CALL_WAIT,
                        .coll = KOLO_COLL_P2P,
                        .type = KOLO_UINT8,
                        .window = &more,
                        .comm = comm,
                        .stream = stream};
    KOLO_CALL_TRY(kolo_check_call(&call, "wait_signal"));
    if (nwaits < 0 || (nwaits > 0 && !waits))
        return kolo_call_refused(kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "wait_signal: %s",
                                           waits ? "the length of the list is negative" : "the list is NULL"));
    for (int i = 0; i < nwaits; i++) {
        KOLO_CALL_TRY(check_peer(&call, waits[i].peer, waits[i].signal, true, "wait_signal"));
        if (waits[i].count > KOLO_SIGNALS_MOST)
            return kolo_call_refused(
                kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                          "wait_signal: %u signals of rank %d are more than can be waited for at once, %u",
                          waits[i].count, waits[i].peer, KOLO_SIGNALS_MOST));
    }
    KOLO_CALL_TRY(check_windows(comm, "wait_signal"));
    if (nwaits == 0) return KOLO_OK;
    call.root = (uint32_t)waits[0].peer;
    call.count = waits[0].count;
    return kolo_call_submit(&call);
}
