/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a checked call goes: into the open group, to its device, with messages that were put aside, to its stream,
 * into the background, or, mostly, here and now (launch.c).
 */
#include "comm/call/call.h"

static kolo_status_t take_turn(const kolo_call_t *call, uint64_t ticket)
{
    kolo_status_t status = kolo_call_turn(call, ticket);
    kolo_ticket_end(call->comm, ticket);
    return status;
}

kolo_status_t kolo_call_overlaps(kolo_comm_t comm)
{
    return kolo_fail(
        KOLO_ERR_INVALID_USAGE,
        "%s rank %d: another thread is in a call on this communicator, or this call was made by a "
        "function that such a call runs; nothing was done. Use a communicator from one thread at a time, "
        "give the other thread one of its own (kolo_comm_dup()), or pass a stream",
        comm->name, comm->rank);
}

static kolo_status_t run_here(kolo_call_t *call)
{
    uint64_t ticket;
    KOLO_TRY(kolo_ticket_draw(call->comm, &ticket));
    if (KOLO_UNLIKELY(!call->comm->blocking)) return kolo_first_use_submit(call, ticket);
    return take_turn(call, ticket);
}

kolo_status_t kolo_call_submit(kolo_call_t *call)
{
    kolo_comm_t comm = call->comm;
    if (KOLO_UNLIKELY(kolo_group_open())) return kolo_group_add(call);
    if (KOLO_UNLIKELY(comm->on_device)) return kolo_device_submit(call);
    if (KOLO_UNLIKELY(comm->aside != NULL)) return kolo_requests_join(call);
    if (KOLO_UNLIKELY(call->stream != NULL)) return kolo_call_queue(call);
    KOLO_TRY(kolo_call_enter(comm));
    kolo_status_t status = run_here(call);
    kolo_call_exit(comm);
    return status;
}
