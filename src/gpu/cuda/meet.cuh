/* SPDX-License-Identifier: Apache-2.0
 *
 * Where blocks of the same number of all ranks meet in a long operation, and what they tell each other there: where
 * the buffers are.
 */
#ifndef KOLO_GPU_CUDA_MEET_CUH
#define KOLO_GPU_CUDA_MEET_CUH

#include "gpu/cuda/staged.cuh"

/* head: so many bytes are before the first multiple of 128 (else of 16) in all buffers; src and dst are behind them. */
typedef struct {
    uint64_t src[KOLO_CUDA_RANKS], dst[KOLO_CUDA_RANKS];
    uint32_t reachable, ended, head;
} kolo_buffers_t;

/* Two in turn: a block that needs nothing from its peer may come to its next operation before the peer has looked.
 */
KOLO_DEV kolo_cuda_meeting_t *kolo_meeting(const kolo_cuda_layout_t *l, char *region, uint32_t from, uint32_t block,
                                      uint32_t number)
{
    uint64_t at = (uint64_t)(from * KOLO_CUDA_GRID + block) * KOLO_CUDA_FLAG + number % 2 * (KOLO_CUDA_FLAG / 2);
    return (kolo_cuda_meeting_t *)(region + l->meetings + at);
}

/* A block that was ended where it waited for others to begin meets nobody any more: two operations on it would write
 * where a peer may still read what it told of this one. It notes that in its meeting with itself, which has no other
 * use. */
KOLO_DEV kolo_cuda_meeting_t *kolo_meeting_own(const kolo_cuda_args_t &c)
{
    return kolo_meeting(&c.layout, kolo_region(c.regions, c.rank), c.rank, kolo_bid(), 0);
}
KOLO_DEV bool kolo_meetings_ended(const kolo_cuda_args_t &c)
{
    const kolo_cuda_meeting_t *m = kolo_meeting_own(c);
    return m->begin != m->end; /* both begin at what all counters begin at */
}
KOLO_DEV void kolo_meetings_end(const kolo_cuda_args_t &c)
{
    kolo_cuda_meeting_t *m = kolo_meeting_own(c);
    if (kolo_tid() == 0) m->begin = m->end + 1;
}

typedef enum { KOLO_BEGIN, KOLO_GIVEN, KOLO_SUMMED, KOLO_END } kolo_stop_t;
KOLO_DEV uint32_t *kolo_meeting_flag(kolo_cuda_meeting_t *m, kolo_stop_t stop)
{
    return stop == KOLO_BEGIN    ? &m->begin
           : stop == KOLO_GIVEN  ? &m->given
           : stop == KOLO_SUMMED ? &m->summed
                                 : &m->end;
}

/* Waits for a flag of each other rank's block; the same answer for the whole block. */
KOLO_DEV bool kolo_meet_wait(const kolo_cuda_args_t &c, kolo_buffers_t *b, kolo_stop_t stop, uint32_t number)
{
    char *own = kolo_region(c.regions, c.rank);
    for (uint32_t r = kolo_tid(); r < c.layout.nranks; r += kolo_nthreads()) {
        kolo_cuda_meeting_t *m = kolo_meeting(&c.layout, own, r, kolo_bid(), number);
        uint32_t spins = 0;
        if (r == c.rank) continue;
        while ((int32_t)(kolo_flag_load(kolo_meeting_flag(m, stop)) - number) < 0 ||
               (stop == KOLO_BEGIN && m->word != c.word)) {
            if (!kolo_give_up(&spins, c, KOLO_CUDA_WAITS_TILE, r, number)) continue;
            b->ended = 1;
            break;
        }
        if (stop != KOLO_BEGIN || b->ended) continue;
        b->src[r] = m->src;
        b->dst[r] = m->dst;
        kolo_bits_keep(&b->reachable, m->reachable);
    }
    kolo_sync();
    return !b->ended;
}

/* Meets the blocks of the same number. false: the host wants the kernel to end. */
KOLO_DEV bool kolo_meet(const kolo_cuda_long_args_t &l, kolo_buffers_t *b, uint32_t number)
{
    const kolo_cuda_args_t &c = l.c;
    if (kolo_tid() == 0) {
        b->ended = 0;
        b->head = 0;
        b->reachable = c.reachable;
        b->src[c.rank] = c.src;
        b->dst[c.rank] = c.dst;
    }
    kolo_sync();
    for (uint32_t r = kolo_tid(); r < c.layout.nranks; r += kolo_nthreads()) {
        kolo_cuda_meeting_t *m = kolo_meeting(&c.layout, kolo_region(c.regions, r), c.rank, kolo_bid(), number);
        if (r == c.rank) continue;
        m->src = l.src[r];
        m->dst = l.dst[r];
        m->word = c.word;
        m->reachable = c.reachable;
        kolo_flag_store(&m->begin, number);
    }
    return kolo_meet_wait(c, b, KOLO_BEGIN, number);
}

/* All blocks of this number have come here, and what they have read and written before is behind them. */
KOLO_DEV bool kolo_meet_again(const kolo_cuda_args_t &c, kolo_buffers_t *b, kolo_stop_t stop, uint32_t number)
{
    kolo_sync();
    for (uint32_t r = kolo_tid(); r < c.layout.nranks; r += kolo_nthreads()) {
        kolo_cuda_meeting_t *m = kolo_meeting(&c.layout, kolo_region(c.regions, r), c.rank, kolo_bid(), number);
        if (r != c.rank) kolo_flag_store(kolo_meeting_flag(m, stop), number);
    }
    return kolo_meet_wait(c, b, stop, number);
}

KOLO_DEV bool kolo_buffers_aligned(const kolo_cuda_args_t &c, const kolo_buffers_t *b)
{
    uint64_t bits = c.src_stride | c.dst_stride;
    for (uint32_t r = 0; r < c.layout.nranks; r++) bits |= b->src[r] | b->dst[r];
    return (bits & 15) == 0;
}

/* Do all buffers of an operation on vectors begin equally far behind a multiple of 16? Then all but a head goes as if
 * they began there: b->src and b->dst are moved. Better, behind one of 128: what crosses a link in lines that are not
 * whole takes a tenth longer. The same answer for the whole block. */
KOLO_DEV bool kolo_buffers_alike(const kolo_cuda_args_t &c, kolo_buffers_t *b)
{
    uint64_t first = c.senders == KOLO_CUDA_ALL ? b->src[0] : b->src[c.senders], bits = 0;
    for (uint32_t r = 0; r < c.layout.nranks; r++) {
        if (c.senders == KOLO_CUDA_ALL || (uint32_t)c.senders == r) bits |= b->src[r] ^ first;
        if (c.receivers == KOLO_CUDA_ALL || (uint32_t)c.receivers == r) bits |= b->dst[r] ^ first;
    }
    uint32_t head = (uint32_t)(0 - first) & (bits & 127 ? 15 : 127);
    if (bits & 15 || head >= c.bytes) return false;
    if (!head) return true;
    kolo_sync();
    for (uint32_t r = kolo_tid(); r < c.layout.nranks; r += kolo_nthreads()) {
        b->src[r] += head;
        b->dst[r] += head;
    }
    if (kolo_tid() == 0) b->head = head;
    kolo_sync();
    return true;
}

/* The share of block `block` of `blocks` in a copy of `bytes`: the same vectors as in kolo_direct_reduce(). */
template <typename T>
KOLO_DEV void kolo_direct_copy(char *dst, const char *src, uint64_t bytes, uint32_t block, uint32_t blocks)
{
    bool src_aligned = ((uint64_t)src & 15) == 0, dst_aligned = ((uint64_t)dst & 15) == 0;
    uint64_t whole = src_aligned && dst_aligned ? bytes / 16 : 0, nv = (bytes + 15) / 16;
    uint64_t step = (uint64_t)blocks * kolo_nthreads(), v = (uint64_t)block * kolo_nthreads() + kolo_tid();
    if (dst == src) return;
    for (; v + (KOLO_UNROLL - 1) * step < whole; v += KOLO_UNROLL * step) {
        kolo_vec_t x[KOLO_UNROLL];
#pragma unroll
        for (int u = 0; u < KOLO_UNROLL; u++) x[u] = ((const kolo_vec_t *)src)[v + u * step];
#pragma unroll
        for (int u = 0; u < KOLO_UNROLL; u++) ((kolo_vec_t *)dst)[v + u * step] = x[u];
    }
    for (; v < nv; v += step)
        kolo_user_store<T>(dst + 16 * v, kolo_user_load<T>(src + 16 * v, bytes - 16 * v, src_aligned),
                           bytes - 16 * v, dst_aligned);
}
#endif
