/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of this rank's buffers the GPUs of other ranks reach, and at which address: ranks of one process at the
 * same one. Long operations use that (direct.cuh); what is found here goes to the others with the kernel.
 */
#include "exec/cuda/cuda.h"

/* From here on an all_reduce without loads from other GPUs wins, though its blocks meet once more. */
#define GIVE_LEAST (16u << 20)

uint64_t kolo_cuda_seen_here(const kolo_cuda_state_t *s, const void *p, bool legacy)
{
    const kolo_cuda_device_t *peer;
    uint64_t seen = 0;
    for (int r = 0; r < s->regions.nranks; r++)
        if (s->regions.here >> r & 1 && kolo_cuda_device(s->regions.ordinal[r], &peer) == KOLO_OK &&
            kolo_cuda_reaches(peer->device, p, legacy))
            seen |= UINT64_C(1) << r;
    return seen;
}

uint64_t kolo_cuda_seen_by(const kolo_cuda_state_t *s, const void *p, int peer)
{
    uintptr_t at = (uintptr_t)p;
    for (int i = 0; i < KOLO_CUDA_KNOWN; i++)
        if (at - s->known[i].base < s->known[i].bytes) return s->known[i].seen >> peer & 1 ? at : 0;
    return 0;
}

static bool apart(uint64_t a, uint64_t b, uint64_t bytes)
{
    return a + bytes <= b || b + bytes <= a;
}

void kolo_cuda_expose(kolo_cuda_state_t *s, const kolo_exec_call_t *call)
{
    kolo_cuda_long_args_t *a = &s->args;
    uint64_t n = (uint64_t)s->regions.nranks, whole = (n - 1) * a->c.part_bytes;
    uint64_t least = kolo_cuda_options.give_bytes ? (uint64_t)kolo_cuda_options.give_bytes : GIVE_LEAST;
    bool all = a->c.scale != KOLO_CUDA_SCALE_OWN; /* others must not see the input as it is */
    for (int r = 0; r < s->regions.nranks; r++) {
        a->src[r] = call->src ? kolo_cuda_seen_by(s, call->src, r) : 0;
        a->dst[r] = call->dst ? kolo_cuda_seen_by(s, call->dst, r) : 0;
        all = all && (a->src[r] || !call->src) && (a->dst[r] || !call->dst);
    }
    a->c.reachable = all ? KOLO_CUDA_REACHABLE : 0;
    if (all && call->coll == KOLO_COLL_ALL_REDUCE && a->c.bytes >= least && a->c.bytes >= whole &&
        apart(a->c.src, a->c.dst, a->c.bytes))
        a->c.reachable |= KOLO_CUDA_APART;
}
