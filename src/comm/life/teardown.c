/* SPDX-License-Identifier: Apache-2.0
 *
 * How a communicator ends: errors that stick, finalize, destroy, abort, and the queries that work in every state.
 */
#include "base/failpoint.h"
#include "base/log.h"
#include "comm/call/call.h"
#include "comm/life/life.h"
#include "comm/window/window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kolo_body_unset(kolo_body_t *body)
{
    if (body->oob) kolo_oob_set_news(body->oob, NULL, NULL);
    if (body->oob) kolo_oob_set_who(body->oob, NULL, NULL);
    kolo_device_close(body);
    kolo_windows_close(body);
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
    free(body->scratch);
    free(body->src_parts);
    free(body->dst_parts);
    kolo_registrations_free(body);
    kolo_handle_drop(body->handle);
    free(body);
}

/* A child that is aborted while it is being set up mostly is so because its program has seen the parent fail. */
static void give_reason(kolo_oob_t *oob, const char *last_error)
{
    char words[512], word[400];
    bool told = kolo_oob_inherited_failure(oob, 0, word, sizeof word);
    if (!told) snprintf(word, sizeof word, "%s", last_error);
    snprintf(words, sizeof words, "its program aborted the communicator%s%s",
             told    ? "; before that, "
             : *word ? "; its last error was: "
                     : "",
             word);
    kolo_oob_give_reason(oob, words);
}

void kolo_body_interrupt(kolo_body_t *body, const char *last_error)
{
    if (body->ctx_open) kolo_waker_wake(&body->ctx.waker);
    if (body->oob && last_error) {
        give_reason(body->oob, last_error);
        kolo_oob_give_notice(body->oob);
    }
    if (body->oob) kolo_oob_close(body->oob);
    kolo_gate_open(&body->handle->gate);
}

kolo_status_t kolo_body_fail(kolo_body_t *body, kolo_status_t status)
{
    kolo_comm_t h = body->handle;
    pthread_mutex_lock(&h->error_lock);
    if (h->error == KOLO_OK || (h->error_is_news && h->error == status)) {
        h->error = status;
        h->error_is_news = false;
        snprintf(h->error_text, sizeof h->error_text, "%s", kolo_error_text());
        kolo_record_failed(body);
    }
    pthread_mutex_unlock(&h->error_lock);
    /* while init runs it alone ends STARTING, so that nobody frees what it still uses */
    if (atomic_load(&h->state) != KOLO_COMM_STARTING)
        atomic_store(&h->state, atomic_load(&body->abort) ? KOLO_COMM_ABORTED : KOLO_COMM_FAILED);
    if (body->oob) kolo_oob_give_up(body->oob);
    kolo_device_cancel(body);
    if (body->ctx_open) kolo_control_fail(&body->ctx); /* before the caller has its buffers back */
    kolo_gate_open(&h->gate);
    return status;
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
    if (status == KOLO_OK) status = kolo_oob_barrier(body->oob);
    KOLO_FAIL_POINT("comm.finalize.met");
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

kolo_status_t kolo_comm_get_async_error(kolo_comm_t comm, kolo_status_t *async_error)
{
    /* Buffers are the caller's again when this says that it is over, also by a failure: not before. */
    if (async_error && comm && atomic_load(&comm->in_background)) {
        *async_error = KOLO_IN_PROGRESS;
        return KOLO_OK;
    }
    /* whoever polls a communicator that another thread has aborted is told that, not that the handle is bad */
    if (async_error && kolo_handle_was_aborted(comm)) {
        *async_error = KOLO_ERR_ABORTED;
        return KOLO_OK;
    }
    KOLO_TRY(kolo_handle_check(comm, "comm_get_async_error"));
    if (!async_error) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "comm_get_async_error: the output is NULL");
    kolo_status_t status = KOLO_OK;
    switch (atomic_load(&comm->state)) {
    case KOLO_COMM_STARTING:
    case KOLO_COMM_CONNECTING:
    case KOLO_COMM_FINALIZING:
        status = KOLO_IN_PROGRESS;
        break;
    case KOLO_COMM_FAILED:
    case KOLO_COMM_ABORTED:
        pthread_mutex_lock(&comm->error_lock);
        status = comm->error;
        pthread_mutex_unlock(&comm->error_lock);
        break;
    default:
        if (atomic_load(&comm->turns)) status = KOLO_IN_PROGRESS;
        break;
    }
    *async_error = status;
    return KOLO_OK;
}

const char *kolo_get_last_error(kolo_comm_t comm)
{
    if (!comm || kolo_handle_check(comm, "get_last_error") != KOLO_OK) return kolo_error_text();
    pthread_mutex_lock(&comm->error_lock);
    memcpy(comm->last_text, comm->error_text, sizeof comm->last_text);
    pthread_mutex_unlock(&comm->error_lock);
    return comm->last_text;
}

/* Queries need a communicator that is ready or was. */
static kolo_status_t query(kolo_comm_t comm, const void *out, const char *what)
{
    KOLO_TRY(kolo_handle_check(comm, what));
    if (!out) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the output is NULL", what);
    if (atomic_load(&comm->state) == KOLO_COMM_STARTING)
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "%s: %s is not ready yet; wait until kolo_comm_get_async_error reports KOLO_OK", what,
                         comm->name);
    return KOLO_OK;
}

kolo_status_t kolo_comm_count(kolo_comm_t comm, int *nranks)
{
    KOLO_TRY(query(comm, nranks, "comm_count"));
    *nranks = comm->nranks;
    return KOLO_OK;
}

kolo_status_t kolo_comm_user_rank(kolo_comm_t comm, int *rank)
{
    KOLO_TRY(query(comm, rank, "comm_user_rank"));
    *rank = comm->rank;
    return KOLO_OK;
}

kolo_status_t kolo_comm_device(kolo_comm_t comm, int *device)
{
    KOLO_TRY(query(comm, device, "comm_device"));
    *device = comm->body->device;
    return KOLO_OK;
}

/* Queues take memory as they are used for the first time. Whoever runs an operation owns the connections, so then
 * what was last seen has to do. */
static size_t conn_memory(kolo_body_t *body)
{
    kolo_comm_t h = body->handle;
    if (atomic_load(&h->done) == atomic_load(&h->tickets)) body->conn_bytes = kolo_body_conn_memory(body);
    return body->conn_bytes;
}

kolo_status_t kolo_comm_memory(kolo_comm_t comm, size_t *bytes)
{
    KOLO_TRY(query(comm, bytes, "comm_memory"));
    kolo_body_t *body = kolo_handle_visit(comm, "comm_memory");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    *bytes = sizeof *body + (body->oob ? kolo_oob_memory(body->oob) : 0) + conn_memory(body) + body->scratch_bytes +
             body->parts_capacity * 2 * sizeof(kolo_part_t) + (size_t)body->nranks * sizeof(kolo_peer_card_t) +
             (body->ll_temp ? (size_t)body->nranks * KOLO_FLAT_MAX : 0) +
             (body->record.at ? sizeof(kolo_record_t) : 0) + kolo_windows_memory(body);
    kolo_handle_leave(comm);
    return KOLO_OK;
}
