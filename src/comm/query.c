/* SPDX-License-Identifier: Apache-2.0
 *
 * What a program may ask of a communicator in every state: its error, its place, its memory; and the limit that it
 * may change.
 */
#include "comm/identity.h"
#include "comm/tagged/tagged.h"
#include "comm/window/window.h"

#include <string.h>

/* Lets held kernels go: whoever hears of the failure knows that what its streams computed is nothing. */
static void tell(kolo_comm_t comm)
{
    kolo_body_t *body = kolo_comm_options.hold_ms ? kolo_handle_visit(comm, "comm_get_async_error") : NULL;
    if (!body) return;
    kolo_device_let_go(body);
    kolo_handle_leave(comm);
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
        if (atomic_load(&comm->quiet)) break;
        tell(comm);
        /* fall through */
    case KOLO_COMM_ABORTED:
        status = kolo_handle_error(comm, NULL, 0);
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
    static _Thread_local char text[KOLO_ERROR_TEXT_BYTES]; /* each reader has its own */
    const bool live = comm && atomic_load_explicit(&comm->magic, memory_order_acquire) == KOLO_COMM_MAGIC;
    if (!live && comm && !kolo_error_text()[0]) kolo_handle_check(comm, "get_last_error");
    if (!live) return kolo_error_text(); /* mostly of the call that was refused because of this very handle */
    (void)kolo_handle_error(comm, text, sizeof text);
    return text[0] ? text : kolo_error_text(); /* a call that was refused has done nothing to the communicator */
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
    kolo_body_t *body = kolo_handle_visit(comm, "comm_device");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    *device = body->gpu.device;
    kolo_handle_leave(comm);
    return KOLO_OK;
}

kolo_status_t kolo_comm_identity(kolo_comm_t comm, uint64_t *id, int *nhosts)
{
    KOLO_TRY(query(comm, id, "comm_identity"));
    kolo_body_t *body = kolo_handle_visit(comm, "comm_identity");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    *id = body->oob ? kolo_oob_job(body->oob) : 0;
    *nhosts = body->member.nnodes;
    kolo_handle_leave(comm);
    return KOLO_OK;
}

/* Queues take memory as they are used for the first time. Whoever runs an operation owns the connections, so then
 * what was last seen has to do. */
static size_t conn_memory(kolo_body_t *body)
{
    kolo_comm_t h = body->handle;
    if (atomic_load(&h->done) == atomic_load(&h->tickets)) body->conns.bytes = kolo_body_conn_memory(body);
    return body->conns.bytes;
}

kolo_status_t kolo_comm_memory(kolo_comm_t comm, size_t *bytes)
{
    KOLO_TRY(query(comm, bytes, "comm_memory"));
    kolo_body_t *body = kolo_handle_visit(comm, "comm_memory");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    *bytes = sizeof *body + (body->oob ? kolo_oob_memory(body->oob) : 0) + conn_memory(body) +
             body->plans.scratch_bytes + body->plans.parts_capacity * 2 * sizeof(kolo_part_t) +
             (size_t)body->nranks * sizeof(kolo_peer_card_t) +
             (body->conns.ll_temp ? (size_t)body->nranks * KOLO_FLAT_MAX : 0) +
             (body->track.record.at ? sizeof(kolo_record_t) : 0) + kolo_windows_memory(body) +
             kolo_tagged_memory(body);
    kolo_handle_leave(comm);
    return KOLO_OK;
}

kolo_status_t kolo_comm_set_op_timeout(kolo_comm_t comm, int timeout_ms, int *before)
{
    if (timeout_ms < 0)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "comm_set_op_timeout: %d ms is negative; 0 is no limit",
                         timeout_ms);
    KOLO_TRY(query(comm, comm, "comm_set_op_timeout")); /* until then its parts come and go */
    kolo_body_t *body = kolo_handle_visit(comm, "comm_set_op_timeout");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    if (before) *before = body->op_timeout_ms;
    kolo_body_t *all[] = {body, body->levels.inside, body->levels.across};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) atomic_store(&all[i]->op_timeout_ms, timeout_ms);
    kolo_handle_leave(comm);
    return KOLO_OK;
}
