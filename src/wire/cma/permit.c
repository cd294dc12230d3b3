/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether one process may copy from and to the memory of another. What decides is spread over the kernel (Yama's
 * ptrace_scope, dumpability, capabilities, user namespaces, seccomp), so it is found out by doing it: each process
 * announces on its card where a word lies whose value the others know (docs/decisions/0023).
 */
#include "base/failpoint.h"
#include "base/log.h"
#include "mem/admit.h"
#include "wire/cma/cma.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static _Atomic uint64_t probe_word;

kolo_status_t kolo_cma_fill_card(kolo_peer_card_t *card)
{
    atomic_store(&probe_word, card->process_hash);
    card->probe_address = (uint64_t)(uintptr_t)&probe_word;
    kolo_mem_admit_siblings();
    return KOLO_OK;
}

/* Writes nothing: an empty list is refused by a filter of system calls like any other, and the permission to write
 * is otherwise that to read. */
static const char *try_write(int pid)
{
    return process_vm_writev(pid, NULL, 0, NULL, 0, 0) == 0 ? NULL : strerror(errno);
}

bool kolo_cma_permitted(int pid, const kolo_peer_card_t *card, const char **why)
{
    uint64_t value = ~card->process_hash;
    struct iovec here = {&value, sizeof value};
    struct iovec there = {(void *)(uintptr_t)card->probe_address, sizeof value};
    KOLO_FAIL_POINT("wire.cma.probe");
    if (pid <= 0) {
        *why = "its process is not visible from here (another pid namespace)";
        return false;
    }
    ssize_t n = process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (n != (ssize_t)sizeof value)
        *why = n < 0 ? strerror(errno) : "a short read";
    else if (value != card->process_hash)
        *why = "another value was found where a known one should be";
    else
        *why = try_write(pid);
    return *why == NULL;
}

bool kolo_cma_may_copy(const kolo_wire_ctx_t *ctx, const kolo_peer_card_t *peer)
{
    const char *why = NULL;
    if (kolo_cma_permitted(peer->pid, peer, &why)) return true;
    kolo_info("wire",
              "rank %d may not read the memory of rank %d (pid %d): %s; the communicator uses no single copies "
              "(KOLO_CMA_PTRACER and PR_SET_DUMPABLE decide what a process permits)",
              ctx->member->rank, peer->rank, peer->pid, why);
    return false;
}
