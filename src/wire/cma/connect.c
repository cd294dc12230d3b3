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

#define ONE_CALL_BYTES ((size_t)4 << 20)

/* A process that was killed has no memory any more long before the system says that it has ended. */
static kolo_status_t say_refused(kolo_wire_ctx_t *ctx, kolo_control_peer_t *peer, size_t bytes, bool write, int err)
{
    kolo_process_end_t fate = kolo_control_look(peer);
    KOLO_TRY(kolo_control_check(ctx, peer));
    if (err == ESRCH && !(peer->visible && fate == KOLO_PROCESS_LIVES)) {
        kolo_oob_report_lost(ctx->oob, peer->rank, KOLO_LOSS_PROCESS);
        return kolo_fail(KOLO_ERR_REMOTE, "rank %d (host %.32s, pid %d) has died: its memory is gone", peer->rank,
                         ctx->member->peers[peer->rank].host_name, peer->pid);
    }
    /* Not there any more: that rank has failed before us, and its caller has freed the buffer already. */
    return kolo_fail_errno(err == EFAULT ? KOLO_ERR_REMOTE : KOLO_ERR_SYSTEM, err,
                           "rank %d cannot %s %zu bytes %s rank %d's memory (pid %d); KOLO_CMA_DISABLE=1 goes "
                           "without",
                           ctx->member->rank, write ? "write" : "read", bytes, write ? "to" : "from", peer->rank,
                           peer->pid);
}

/* One call, maybe for less than was asked for; never more than keeps a rank that fails waiting for long. */
static kolo_status_t copy_some(kolo_wire_ctx_t *ctx, kolo_control_peer_t *peer, uint64_t theirs, char *mine,
                               size_t bytes, bool write, size_t *done)
{
    struct iovec here = {mine, KOLO_MIN(bytes, ONE_CALL_BYTES)};
    struct iovec there = {(void *)(uintptr_t)theirs, here.iov_len};
    KOLO_TRY(kolo_control_begin_copy(ctx, peer));
    ssize_t n = write ? process_vm_writev(peer->pid, &here, 1, &there, 1, 0)
                      : process_vm_readv(peer->pid, &here, 1, &there, 1, 0);
    int err = n < 0 ? errno : EFAULT;
    KOLO_TRY(kolo_control_end_copy(ctx, peer));
    if (n <= 0 && err != EINTR) return say_refused(ctx, peer, bytes, write, err);
    *done += n > 0 ? (size_t)n : 0;
    return KOLO_OK;
}

static kolo_status_t copy_all(kolo_wire_ctx_t *ctx, kolo_control_peer_t *peer, uint64_t theirs, void *mine,
                              size_t bytes, bool write)
{
    if (kolo_control_gone(peer)) KOLO_TRY(kolo_control_check(ctx, peer));
    for (size_t done = 0; done < bytes;)
        KOLO_TRY(copy_some(ctx, peer, theirs + done, (char *)mine + done, bytes - done, write, &done));
    return KOLO_OK;
}

static kolo_status_t copy(kolo_rx_t *rx, const kolo_ref_t *ref, uint64_t offset, void *mine, size_t bytes,
                          bool write)
{
    const kolo_mapped_t *end = kolo_mapped_of_rx(rx);
    KOLO_FAIL_POINT_TRY("wire.cma.copy");
    KOLO_TRY(kolo_mapped_check_ref(rx, ref, offset, bytes));
    return copy_all(end->ctx, end->peers[0], ref->address + offset, mine, bytes, write);
}

kolo_status_t kolo_cma_put(kolo_wire_ctx_t *ctx, kolo_control_peer_t *peer, uint64_t theirs, const void *mine,
                           size_t bytes)
{
    return copy_all(ctx, peer, theirs, (void *)(uintptr_t)mine, bytes, true);
}

kolo_status_t kolo_cma_ref_read(kolo_rx_t *rx, const kolo_ref_t *ref, uint64_t offset, void *dst, size_t bytes)
{
    return copy(rx, ref, offset, dst, bytes, false);
}

kolo_status_t kolo_cma_ref_write(kolo_rx_t *rx, const kolo_ref_t *ref, uint64_t offset, const void *src,
                                 size_t bytes)
{
    return copy(rx, ref, offset, (void *)(uintptr_t)src, bytes, true);
}
