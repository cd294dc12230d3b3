/* SPDX-License-Identifier: Apache-2.0
 *
 * How a communicator ends: finalize, destroy, abort.
 */
#include "base/failpoint.h"
#include "base/log.h"
#include "comm/call/call.h"
#include "comm/life/life.h"
#include "comm/window/window.h"

#include <stdlib.h>

void kolo_body_unset(kolo_body_t *body)
{
    if (body->oob) kolo_oob_set_news(body->oob, NULL, NULL);
    if (body->oob) kolo_oob_set_who(body->oob, NULL, NULL);
    kolo_device_close(body);
    kolo_windows_close(body);
    kolo_p2p_forget(body);
    kolo_body_disconnect(body);
    kolo_record_close(body);
    if (body->ctx_open) {
        kolo_wire_ctx_close(&body->ctx);
        kolo_wire_ctx_fini(&body->ctx);
    }
    body->ctx_open = false;
    kolo_member_fini(&body->member);
    free(body->ring);
    free(body->ll_rx);
    free(body->conns);
    body->ring = NULL;
    body->ll_rx = NULL;
    body->conns = NULL;
}

void kolo_body_free(kolo_body_t *body)
{
    KOLO_FAIL_POINT("comm.free.start");
    kolo_body_unset(body);
    KOLO_FAIL_POINT("comm.free.wires_closed");
    if (body->oob) {
        kolo_oob_close(body->oob);
        kolo_oob_fini(body->oob);
    }
    KOLO_FAIL_POINT("comm.free.oob_closed");
    free(body->ids);
    kolo_body_borrow_end(body);
    free(body->ll_temp);
    free(body->pairs);
    kolo_device_pairs_free(body);
    free(body->agreed_lost);
    free(body->owner_ranks);
    free(body->scratch);
    free(body->src_parts);
    free(body->dst_parts);
    kolo_registrations_free(body);
    kolo_handle_drop(body->handle);
    free(body);
}

/* To the other ranks the end is one more operation, which waits for all as a barrier does: who calls something else
 * is told. The operator sets it apart from a barrier. */
static void show_end(kolo_body_t *body)
{
    uint64_t word = kolo_signature(KOLO_COLL_BARRIER, 0, KOLO_SIGNATURE_V, 0, 0);
    kolo_device_show_end(body, word);
    kolo_board_publish(&body->board, body->operation++, word);
}

static kolo_status_t finalize(kolo_body_t *body)
{
    kolo_comm_t h = body->handle;
    int finalizing = KOLO_COMM_FINALIZING;
    KOLO_FAIL_POINT("comm.finalize.start");
    KOLO_TRY(kolo_handle_quiet(h, &body->abort, false));
    int state = atomic_load(&h->state);
    if (state != KOLO_COMM_FINALIZING) return kolo_handle_refuse(h, state); /* a queued operation failed */
    kolo_status_t status = kolo_device_drain(body);
    if (status == KOLO_OK) {
        show_end(body);
        status = kolo_oob_barrier(body->oob);
        if (status != KOLO_OK) kolo_fail_prefix(status, "comm_finalize: ");
    }
    KOLO_FAIL_POINT("comm.finalize.met");
    if (status == KOLO_OK) kolo_oob_take_leave(body->oob); /* a program may end now, as after MPI_Finalize */
    if (status == KOLO_OK)
        atomic_compare_exchange_strong(&h->state, &finalizing, KOLO_COMM_FINALIZED);
    else
        kolo_body_fail(body, status);
    return status;
}

static void *finalize_in_background(void *arg)
{
    kolo_body_t *body = arg;
    kolo_comm_t h = body->handle;
    finalize(body);
    kolo_handle_leave(h);
    return NULL;
}

/* The caller is a visitor: an abort on another thread ends the wait here and frees nothing before we have left. */
static kolo_status_t visit_finalize(kolo_body_t *body)
{
    kolo_comm_t h = body->handle;
    int state = atomic_load(&h->state);
    /* what was queued before still runs; only this thread draws tickets */
    if (state == KOLO_COMM_READY) atomic_store(&h->last_ticket, atomic_load(&h->tickets));
    if (state != KOLO_COMM_READY || !atomic_compare_exchange_strong(&h->state, &state, KOLO_COMM_FINALIZING))
        return kolo_fail_prefix(kolo_handle_refuse(h, state), "comm_finalize: ");
    if (body->blocking) return finalize(body);
    kolo_status_t status = kolo_body_background(body, finalize_in_background, body);
    return status == KOLO_OK ? KOLO_IN_PROGRESS : kolo_body_fail(body, status);
}

kolo_status_t kolo_comm_finalize(kolo_comm_t comm)
{
    if (!comm) return KOLO_OK;
    if (kolo_group_open())
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "comm_finalize: not allowed between group_start and group_end");
    KOLO_TRY(kolo_handle_check(comm, "comm_finalize"));
    if (comm->aside)
        return kolo_fail(
            KOLO_ERR_INVALID_USAGE,
            "comm_finalize: %s rank %d has messages that nobody has waited for: kolo_pending_wait() comes "
            "first",
            comm->name, comm->rank);
    kolo_body_t *body = kolo_handle_visit(comm, "comm_finalize");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    kolo_status_t status = visit_finalize(body);
    kolo_handle_leave(comm);
    return status;
}

kolo_status_t kolo_comm_destroy(kolo_comm_t comm)
{
    if (!comm) return KOLO_OK;
    if (kolo_group_open())
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "comm_destroy: not allowed between group_start and group_end");
    /* a start or first use that nobody wants any more must not run to its time limit */
    KOLO_TRY(kolo_handle_check(comm, "comm_destroy"));
    int state = atomic_load(&comm->state);
    bool unwanted = state == KOLO_COMM_STARTING || state == KOLO_COMM_CONNECTING;
    KOLO_TRY(kolo_handle_retire(comm, "comm_destroy", unwanted));
    kolo_requests_drop(comm);
    kolo_body_free(comm->body);
    return KOLO_OK;
}

kolo_status_t kolo_comm_abort(kolo_comm_t comm)
{
    if (!comm) return KOLO_OK;
    KOLO_FAIL_POINT("comm.abort");
    KOLO_TRY(kolo_handle_retire(comm, "comm_abort", true));
    kolo_requests_drop(comm);
    kolo_body_free(comm->body);
    return KOLO_OK;
}
