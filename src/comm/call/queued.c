/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that run later, on a stream or in the background: they take what the caller may free meanwhile with them.
 */
#include "comm/call/call.h"
#include "comm/window/window.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    kolo_call_t call;
    uint64_t ticket;
} kolo_queued_t;

static void run_queued(void *arg)
{
    kolo_queued_t *q = arg;
    kolo_status_t status = kolo_call_turn(&q->call, q->ticket);
    kolo_ticket_end(q->call.comm, q->ticket);
    if (status != KOLO_OK) kolo_stream_note(q->call.stream, status);
    kolo_call_disown(&q->call);
}

static kolo_status_t own_tables(kolo_call_t *call)
{
    const size_t **tables[] = {&call->send_counts, &call->send_displs, &call->recv_counts, &call->recv_displs};
    size_t n = (size_t)call->comm->nranks;
    if (call->owned || (!call->send_counts && !call->recv_counts)) return KOLO_OK;
    size_t *all = call->owned = malloc(4 * n * sizeof(size_t));
    if (!call->owned) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for the counts of %zu ranks", n);
    for (size_t i = 0; i < KOLO_COUNTOF(tables); i++) {
        if (!*tables[i]) continue;
        memcpy(all + i * n, *tables[i], n * sizeof(size_t));
        *tables[i] = all + i * n;
    }
    return KOLO_OK;
}

static kolo_status_t own_window(kolo_call_t *call)
{
    const kolo_window_call_t *from = call->window;
    if (call->owned || !from) return KOLO_OK;
    kolo_window_call_t *to = malloc(sizeof *to + from->nwaits * sizeof *from->waits);
    if (!to) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a queued call");
    *to = *from;
    if (from->nwaits) to->waits = memcpy(to + 1, from->waits, from->nwaits * sizeof *from->waits);
    call->window = call->owned = to;
    return KOLO_OK;
}

/* Copies the operator, which may be destroyed, and its place taken by another, before the call runs. */
static kolo_status_t own_operator(kolo_call_t *call)
{
    if (call->reducer || call->op < KOLO_OP_BUILTIN_COUNT || !kolo_coll_reduces(call->coll)) return KOLO_OK;
    kolo_body_t *body = kolo_handle_visit(call->comm, "a queued call");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    call->reducer = malloc(sizeof *call->reducer);
    if (call->reducer) *call->reducer = kolo_call_user_op(body, (int)call->op)->reducer;
    kolo_handle_leave(call->comm);
    return call->reducer ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a queued call's operator");
}

kolo_status_t kolo_call_own(kolo_call_t *call)
{
    kolo_status_t status = own_tables(call);
    if (status == KOLO_OK) status = own_window(call);
    if (status == KOLO_OK) status = own_operator(call);
    if (status != KOLO_OK) kolo_call_disown(call);
    return status;
}

void kolo_call_disown(kolo_call_t *call)
{
    free(call->owned);
    free(call->reducer);
    call->owned = NULL;
    call->reducer = NULL;
}

_Static_assert(sizeof(kolo_queued_t) <= KOLO_STREAM_ROOM, "a queued call lies in its place of the stream's queue");

kolo_status_t kolo_call_queue(kolo_call_t *call)
{
    kolo_queued_t q = {.call = *call};
    kolo_comm_t comm = call->comm;
    if (KOLO_UNLIKELY(atomic_load_explicit(&comm->inside, memory_order_relaxed))) return kolo_handle_overlaps(comm);
    kolo_status_t status = kolo_call_own(&q.call);
    pthread_mutex_lock(&comm->queuing);
    if (status == KOLO_OK) status = kolo_ticket_draw(comm, &q.ticket);
    if (status != KOLO_OK) {
        pthread_mutex_unlock(&comm->queuing);
    } else {
        kolo_record_queued(comm->body, &q.call);
        status = kolo_stream_push_copy(call->stream, run_queued, &q, sizeof q);
        pthread_mutex_unlock(&comm->queuing);
        if (status == KOLO_OK) return KOLO_OK;
        kolo_record_drop(call->comm->body, &q.call, status);
        kolo_ticket_wait(call->comm, q.ticket);
        kolo_ticket_end(call->comm, q.ticket);
    }
    kolo_call_disown(&q.call);
    return status;
}
