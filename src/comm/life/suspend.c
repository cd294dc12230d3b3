/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU communicator gives its device memory back for a while. Peers' kernels write there: so all ranks first wait
 * for their own, then for each other.
 */
#include "base/clock.h"
#include "comm/call/call.h"
#include "mem/cuda/cuda.h"

static kolo_status_t suspend(kolo_body_t *body, size_t *bytes)
{
    if (!body->gpu.exec || !body->gpu.exec->suspend)
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "comm_suspend: %s rank %d has no device memory of its own to give",
                         body->name, body->rank);
    if (body->gpu.suspended)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "comm_suspend: %s rank %d is suspended", body->name, body->rank);
    void *state = atomic_load(&body->gpu.state);
    kolo_status_t status = kolo_lost_ends(body, kolo_device_drain(body));
    if (status == KOLO_OK) status = kolo_oob_barrier(body->oob);
    if (status != KOLO_OK) return kolo_body_fail(body, status);
    kolo_device_watch_alone(body);
    kolo_device_watch_stop(body);
    if (bytes) *bytes = body->gpu.exec->memory(state);
    int mode = kolo_cuda_uncaptured();
    body->gpu.exec->suspend(state);
    kolo_cuda_captured(mode);
    body->gpu.suspended = true;
    return KOLO_OK;
}

static kolo_status_t resume(kolo_body_t *body)
{
    if (!body->gpu.suspended)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "comm_resume: %s rank %d is not suspended", body->name,
                         body->rank);
    body->ctx.deadline_ns = kolo_deadline_ms(body->init_timeout_ms);
    int mode = kolo_cuda_uncaptured();
    kolo_status_t status = body->gpu.exec->resume(atomic_load(&body->gpu.state), &body->ctx);
    kolo_cuda_captured(mode);
    body->ctx.deadline_ns = 0;
    if (status == KOLO_OK) status = kolo_device_watch_start(body);
    if (status != KOLO_OK) {
        kolo_fail_prefix(status, "comm_resume: %s rank %d: ", body->name, body->rank);
        return kolo_body_fail(body, status);
    }
    body->gpu.suspended = false;
    return KOLO_OK;
}

static kolo_status_t in_turn(kolo_comm_t comm, const char *what, bool resumes, size_t *bytes)
{
    uint64_t ticket;
    KOLO_TRY(kolo_handle_check(comm, what));
    if (kolo_group_open())
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "%s: not allowed between group_start and group_end", what);
    KOLO_TRY(kolo_comm_begin_aside(comm, what));
    KOLO_TRY(kolo_ticket_draw(comm, &ticket));
    kolo_status_t status = kolo_ticket_wait(comm, ticket);
    if (status == KOLO_OK) status = resumes ? resume(comm->body) : suspend(comm->body, bytes);
    kolo_ticket_end(comm, ticket);
    return status;
}

kolo_status_t kolo_comm_suspend(kolo_comm_t comm, size_t *bytes)
{
    return in_turn(comm, "comm_suspend", false, bytes);
}

kolo_status_t kolo_comm_resume(kolo_comm_t comm)
{
    return in_turn(comm, "comm_resume", true, NULL);
}
