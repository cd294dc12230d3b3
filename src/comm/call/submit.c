/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a checked call goes: into the open group, to its device, with messages that were put aside, to its stream,
 * into the background, or, mostly, here and now (launch.c).
 */
#include "comm/call/call.h"

static kolo_status_t add_to_group(kolo_call_t *call)
{
    if (kolo_comm_has_aside(call->comm)) KOLO_TRY(kolo_requests_join_group(call->comm, call->stream));
    return kolo_group_add(call);
}

static kolo_status_t take_turn(const kolo_call_t *call, uint64_t ticket)
{
    kolo_status_t status = kolo_call_turn(call, ticket);
    kolo_ticket_end(call->comm, ticket);
    return status;
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
    if (KOLO_UNLIKELY(kolo_group_open())) return add_to_group(call);
    if (KOLO_UNLIKELY(comm->on_device)) return kolo_device_submit(call);
    if (KOLO_UNLIKELY(kolo_comm_has_aside(comm))) return kolo_requests_join(call);
    if (KOLO_UNLIKELY(call->stream != NULL)) return kolo_call_queue(call);
    KOLO_TRY(kolo_handle_enter(comm));
    kolo_status_t status = run_here(call);
    kolo_handle_exit(comm);
    return status;
}
