/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations of a communicator that does not block, without a stream. One that finds its connections runs in the
 * caller. The first of its kind has to make them, for which its peers must come: it goes on in the background, the
 * asynchronous error says so until it is complete, and other operations are refused meanwhile.
 */
#include "base/failpoint.h"
#include "comm/call/call.h"

#include <stdlib.h>

typedef struct {
    kolo_call_t call;
    uint64_t ticket;
} kolo_first_use_t;

bool kolo_first_use_needed(kolo_comm_t comm, uint64_t ticket, const kolo_call_t *calls, size_t count)
{
    bool connected = true;
    if (comm->blocking || atomic_load(&comm->state) != KOLO_COMM_READY) return false;
    /* what is connected may only be looked at in one's turn; what is queued before may take for ever */
    if (atomic_load_explicit(&comm->done, memory_order_acquire) != ticket) return true;
    for (size_t i = 0; i < count && connected; i++) connected = kolo_call_connected(&calls[i]);
    return !connected;
}

kolo_status_t kolo_first_use_begin(kolo_comm_t comm)
{
    int ready = KOLO_COMM_READY;
    if (!atomic_compare_exchange_strong(&comm->state, &ready, KOLO_COMM_CONNECTING))
        return kolo_handle_refuse(comm, ready);
    atomic_store(&comm->in_background, true);
    return KOLO_OK;
}

void kolo_first_use_over(kolo_comm_t comm)
{
    int connecting = KOLO_COMM_CONNECTING;
    KOLO_FAIL_POINT("comm.first_use.over");
    atomic_store(&comm->in_background, false);
    if (!atomic_compare_exchange_strong(&comm->state, &connecting, KOLO_COMM_READY)) return; /* it has failed */
    kolo_lost_started(comm->body);
    kolo_gate_open(&comm->gate);
}

static void *run_in_background(void *arg)
{
    kolo_first_use_t *f = arg;
    kolo_comm_t comm = f->call.comm;
    kolo_call_turn(&f->call, f->ticket);
    kolo_ticket_end(comm, f->ticket);
    kolo_first_use_over(comm);
    kolo_call_disown(&f->call);
    free(f);
    kolo_handle_leave(comm);
    return NULL;
}

static kolo_status_t start(kolo_first_use_t *f)
{
    kolo_comm_t comm = f->call.comm;
    KOLO_TRY(kolo_call_own(&f->call));
    kolo_status_t status = kolo_first_use_begin(comm);
    if (status == KOLO_OK) {
        kolo_record_queued(comm->body, &f->call);
        status = kolo_body_background(comm->body, run_in_background, f);
        if (status == KOLO_OK) return KOLO_IN_PROGRESS;
        kolo_record_drop(comm->body, &f->call, status);
        kolo_first_use_over(comm);
    }
    kolo_call_disown(&f->call);
    return status;
}

kolo_status_t kolo_first_use_submit(const kolo_call_t *call, uint64_t ticket)
{
    kolo_comm_t comm = call->comm;
    kolo_status_t status;
    if (kolo_first_use_needed(comm, ticket, call, 1)) {
        kolo_first_use_t *f = malloc(sizeof *f);
        if (f) *f = (kolo_first_use_t){*call, ticket};
        status = f ? start(f) : kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a call in the background");
        if (status == KOLO_IN_PROGRESS) return status;
        free(f);
        kolo_ticket_wait(comm, ticket);
    } else {
        status = kolo_call_turn(call, ticket);
    }
    kolo_ticket_end(comm, ticket);
    return status;
}
