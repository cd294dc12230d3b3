/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between this process and the writer's. A process id may be used again after its process has died, so every
 * copy asks first whether the process that was met at set-up is still alive.
 */
#include "base/failpoint.h"
#include "wire/cma/cma.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Tells whether the first byte is memory of this process; a copy that fails has come to the first that is none. */
static bool is_ours(const char *at)
{
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)at, 1};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

/* Says whose buffer is not (or not all) memory: the system does not. Where it was there before, that rank has
 * failed ahead of us, and its caller has freed it. */
static kolo_status_t say_no_memory(const kolo_wire_ctx_t *ctx, const kolo_control_peer_t *peer,
                                   const kolo_ref_copy_t *copy)
{
    if (!is_ours(copy->mine))
        return kolo_fail(
            KOLO_ERR_SYSTEM,
            "%zu bytes at %p of the buffer that rank %d gave to this call are no memory of its process: "
            "the buffer is shorter than the count says, or was freed too early",
            copy->left, (void *)copy->mine, ctx->member->rank);
    return kolo_fail(
        KOLO_ERR_REMOTE,
        "%zu bytes at %#llx of the buffer that rank %d (pid %d) gave to its call cannot be %s: the buffer "
        "is shorter than the count says, or was freed too early, or its call has failed",
        copy->left, (unsigned long long)copy->theirs, peer->rank, peer->pid, copy->write ? "written" : "read");
}

/* Fails for a copy that the system refused. ESRCH of a process that was met at set-up means that it was killed: its
 * memory goes long before the system says that it has ended. */
static kolo_status_t say_refused(kolo_wire_ctx_t *ctx, kolo_control_peer_t *peer, const kolo_ref_copy_t *copy,
                                 int err)
{
    (void)kolo_control_look(peer);
    KOLO_TRY(kolo_control_check(ctx, peer));
    if (err == ESRCH) {
        kolo_news_report_lost(ctx->oob, peer->rank, KOLO_LOSS_PROCESS);
        return kolo_fail(KOLO_ERR_REMOTE, "rank %d (host %.32s, pid %d) has died: its memory is gone", peer->rank,
                         ctx->member->peers[peer->rank].host_name, peer->pid);
    }
    if (err == EFAULT) return say_no_memory(ctx, peer, copy);
    return kolo_fail_errno(KOLO_ERR_SYSTEM, err,
                           "rank %d cannot %s %zu bytes %s rank %d's memory (pid %d); KOLO_CMA_DISABLE=1 goes "
                           "without",
                           ctx->member->rank, copy->write ? "write" : "read", copy->left,
                           copy->write ? "to" : "from", peer->rank, peer->pid);
}

/* Makes one call, maybe for less than was asked for; never for so much that a rank that fails waits for long. */
static kolo_status_t copy_some(kolo_wire_ctx_t *ctx, kolo_control_peer_t *peer, kolo_ref_copy_t *copy)
{
    struct iovec here = {copy->mine, KOLO_MIN(copy->left, KOLO_REF_PIECE)};
    struct iovec there = {(void *)(uintptr_t)copy->theirs, here.iov_len};
    KOLO_TRY(kolo_control_begin_copy(ctx, peer));
    ssize_t n = copy->write ? process_vm_writev(peer->pid, &here, 1, &there, 1, 0)
                            : process_vm_readv(peer->pid, &here, 1, &there, 1, 0);
    int err = n < 0 ? errno : EFAULT;
    KOLO_TRY(kolo_control_end_copy(ctx, peer));
    if (n <= 0 && err != EINTR) return say_refused(ctx, peer, copy, err);
    return kolo_mapped_ref_copied(copy, n > 0 ? (size_t)n : 0);
}

kolo_status_t kolo_cma_put(kolo_wire_ctx_t *ctx, kolo_control_peer_t *peer, uint64_t theirs, const void *mine,
                           size_t bytes)
{
    kolo_ref_copy_t copy = {theirs, (char *)(uintptr_t)mine, bytes, true};
    kolo_status_t status = KOLO_OK;
    while (copy.left) {
        if (kolo_control_gone(peer)) KOLO_TRY(kolo_control_check(ctx, peer));
        status = copy_some(ctx, peer, &copy);
        if (status != KOLO_OK && status != KOLO_IN_PROGRESS) return status;
    }
    return KOLO_OK;
}

kolo_status_t kolo_cma_ref_done(kolo_rx_t *rx, kolo_ref_copy_t *copy)
{
    const kolo_mapped_t *end = kolo_mapped_of_rx(rx);
    KOLO_FAIL_POINT_TRY("wire.cma.copy");
    if (!copy->left) return KOLO_OK;
    if (kolo_control_gone(end->peers[0])) KOLO_TRY(kolo_control_check(end->ctx, end->peers[0]));
    return copy_some(end->ctx, end->peers[0], copy);
}
