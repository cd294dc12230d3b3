/* SPDX-License-Identifier: Apache-2.0
 *
 * The way without stages, for long operations of ranks that reach each other's buffers: the kernels exchange the
 * addresses when they meet, each as the other sees them. Whether it is taken travels with the addresses: if one
 * rank's buffers cannot be reached, all go by stages.
 *
 * Blocks of the same number meet at the begin, so the buffers are ready, and at the end, so they are the caller's
 * again. What is copied is stored by who has it. What is reduced is loaded by the owner of a part from all others, and
 * the result stored to all: only the owner of a part reads and writes it, so in place is safe. Where no rank works in
 * place, an all_reduce does without loads from other GPUs, which cost the links more than stores do (between two H200
 * stores alone carry 364 GB/s, loads 335, both 340): what a rank gives to a part is stored in the owner's
 * destination, which is not needed yet. The same block works on a vector at each step and on each rank, so blocks of
 * the same number meet each other alone.
 */
#ifndef KOLO_GPU_CUDA_DIRECT_CUH
#define KOLO_GPU_CUDA_DIRECT_CUH

#include "gpu/cuda/staged.cuh"

/* What the kernel of one rank tells that of another; one for each pair and block. */
typedef struct {
    uint64_t src, dst;
    uint64_t word; /* of the operation: those of others never meet */
    uint32_t reachable, pad;
    uint32_t begin, given, summed, end; /* flags: numbers of operations */
} kolo_meeting_t;

typedef struct {
    uint64_t src[KOLO_CUDA_RANKS], dst[KOLO_CUDA_RANKS];
    uint32_t reachable, ended;
} kolo_buffers_t;

/* Two in turn: a block that needs nothing from its peer may come to its next operation before the peer has looked. */
KOLO_DEV kolo_meeting_t *kolo_meeting(const kolo_cuda_layout_t *l, char *region, uint32_t from, uint32_t block,
                                      uint32_t number)
{
    uint64_t at = (uint64_t)(from * KOLO_CUDA_GRID + block) * KOLO_CUDA_FLAG + number % 2 * (KOLO_CUDA_FLAG / 2);
    return (kolo_meeting_t *)(region + l->meetings + at);
}

typedef enum { KOLO_BEGIN, KOLO_GIVEN, KOLO_SUMMED, KOLO_END } kolo_stop_t;
KOLO_DEV uint32_t *kolo_meeting_flag(kolo_meeting_t *m, kolo_stop_t stop)
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
        kolo_meeting_t *m = kolo_meeting(&c.layout, own, r, kolo_bid(), number);
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
        b->reachable = c.reachable;
        b->src[c.rank] = c.src;
        b->dst[c.rank] = c.dst;
    }
    kolo_sync();
    for (uint32_t r = kolo_tid(); r < c.layout.nranks; r += kolo_nthreads()) {
        kolo_meeting_t *m = kolo_meeting(&c.layout, kolo_region(c.regions, r), c.rank, kolo_bid(), number);
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
        kolo_meeting_t *m = kolo_meeting(&c.layout, kolo_region(c.regions, r), c.rank, kolo_bid(), number);
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

/* Who stores into a peer's buffer, or loads from it, tells that peer's step, too (steps.h): nothing runs there. */
#ifdef __CUDACC__
#define KOLO_STEP_LOADS(...)  ((void)0)
#define KOLO_STEP_STORES(...) ((void)0)
#else
KOLO_DEV void kolo_step_loads(const kolo_cuda_args_t &c, const kolo_buffers_t *b, uint64_t from, uint64_t bytes)
{
    for (uint32_t r = 0; r < c.layout.nranks; r++)
        if (r != c.rank) kolo_step(r, kolo_bid(), 1, 0, c.rank, (const char *)b->src[r], from, bytes, from + bytes);
}
/* `bytes` at `at` of what this rank has for `p`. */
KOLO_DEV void kolo_step_stores(const kolo_cuda_args_t &c, const kolo_buffers_t *b, uint32_t p, uint64_t at,
                               uint64_t bytes)
{
    kolo_step(c.rank, kolo_bid(), 1, 0, p, (const char *)(c.src + p * c.src_stride), at, bytes, at + bytes);
    kolo_step(p, kolo_bid(), 0, 0, c.rank, (const char *)(b->dst[p] + c.rank * c.dst_stride), at, bytes,
              at + bytes);
}
#define KOLO_STEP_LOADS(...)  kolo_step_loads(__VA_ARGS__)
#define KOLO_STEP_STORES(...) kolo_step_stores(__VA_ARGS__)
#endif

/* The reduction of `bytes` at `from` in all ranks' sources, to `to` in the destinations: of all receivers, or, without
 * to_all, of this rank if it is one. */
template <typename T, int U>
KOLO_DEV void kolo_direct_reduce(const kolo_cuda_args_t &c, const kolo_buffers_t *b, uint64_t from, uint64_t to,
                                 uint64_t bytes, bool to_all)
{
    const int N = 16 / sizeof(T);
    bool aligned = kolo_buffers_aligned(c, b);
    uint64_t nv = (bytes + 15) / 16, step = (uint64_t)kolo_nblocks() * kolo_nthreads();
    for (uint64_t v = (uint64_t)kolo_bid() * kolo_nthreads() + kolo_tid(); v < nv; v += U * step) {
        kolo_sum<T, N> sum[U];
        for (uint32_t r = 0; r < c.layout.nranks; r++) {
            kolo_vec_t x[U];
            const char *src = (const char *)b->src[r] + from;
            if (v == kolo_tid())
                KOLO_STEP(c.rank, 0, 0, 0, r,
                          kolo_takes_part(c.receivers, c.rank) ? (const char *)b->dst[c.rank] + to : NULL, 0, bytes,
                          bytes);
#pragma unroll
            for (int u = 0; u < U; u++) {
                uint64_t at = 16 * (v + u * step);
                if (at < bytes) x[u] = kolo_user_load<T>(src + at, bytes - at, aligned);
            }
#pragma unroll
            for (int u = 0; u < U; u++) {
                if (v + u * step >= nv) break;
                if (r == 0)
                    kolo_sum_begin(&sum[u], x[u], c);
                else
                    kolo_sum_add(&sum[u], x[u], c);
            }
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            uint64_t at = 16 * (v + u * step);
            if (at >= bytes) break;
            kolo_vec_t x = kolo_sum_end(&sum[u], c);
            for (uint32_t j = 0; j < c.layout.nranks; j++) {
                uint32_t p = c.rank + j < c.layout.nranks ? c.rank + j : c.rank + j - c.layout.nranks;
                if (!kolo_takes_part(c.receivers, p) || (p != c.rank && !to_all)) continue;
                if (p != c.rank && at == 16ull * kolo_tid()) {
                    KOLO_STEP(c.rank, 0, 1, 1, p,
                              kolo_takes_part(c.receivers, c.rank) ? (const char *)b->dst[c.rank] + to : NULL, 0,
                              bytes, bytes);
                    KOLO_STEP(p, 0, 0, 1, c.rank, (const char *)b->dst[p] + to, 0, bytes, bytes);
                }
                kolo_user_store<T>((char *)b->dst[p] + to + at, x, bytes - at, aligned);
            }
        }
    }
}

/* The share of block `block` of `blocks` in a copy of `bytes`: the same vectors as in kolo_direct_reduce(). */
template <typename T>
KOLO_DEV void kolo_direct_copy(char *dst, const char *src, uint64_t bytes, uint32_t block, uint32_t blocks)
{
    bool aligned = kolo_aligned((uint64_t)dst, (uint64_t)src);
    uint64_t whole = aligned ? bytes / 16 : 0, nv = (bytes + 15) / 16;
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
        kolo_user_store<T>(dst + 16 * v, kolo_user_load<T>(src + 16 * v, bytes - 16 * v, aligned), bytes - 16 * v,
                           aligned);
}
template <typename T>
KOLO_DEV void kolo_direct_share(uint64_t dst, uint64_t src, uint64_t bytes)
{
    kolo_direct_copy<T>((char *)dst, (const char *)src, bytes, kolo_bid(), kolo_nblocks());
}

/* This rank's share of `bytes` at `src`, to `at` in the destinations of all receivers but `skip`: each byte is
 * loaded once, and its own destination comes last, so that it is written while the links are busy. */
template <typename T>
KOLO_DEV void kolo_direct_hand(const kolo_cuda_args_t &c, const kolo_buffers_t *b, const char *src, uint64_t at,
                               uint64_t bytes, uint32_t skip)
{
    uint32_t n = c.layout.nranks;
    uint64_t bits = (uint64_t)src | at;
    for (uint32_t r = 0; r < n; r++)
        if (kolo_takes_part(c.receivers, r)) bits |= b->dst[r];
    bool aligned = (bits & 15) == 0;
    uint64_t whole = aligned ? bytes / 16 : 0, nv = (bytes + 15) / 16;
    uint64_t step = (uint64_t)kolo_nblocks() * kolo_nthreads(),
             v = (uint64_t)kolo_bid() * kolo_nthreads() + kolo_tid();
    for (; v + (KOLO_UNROLL - 1) * step < whole; v += KOLO_UNROLL * step) {
        kolo_vec_t x[KOLO_UNROLL];
#pragma unroll
        for (int u = 0; u < KOLO_UNROLL; u++) x[u] = ((const kolo_vec_t *)src)[v + u * step];
        for (uint32_t j = 1; j <= n; j++) {
            uint32_t p = c.rank + j < n ? c.rank + j : c.rank + j - n;
            char *to = (char *)b->dst[p] + at;
            if (p == skip || to == src || !kolo_takes_part(c.receivers, p)) continue;
#pragma unroll
            for (int u = 0; u < KOLO_UNROLL; u++) ((kolo_vec_t *)to)[v + u * step] = x[u];
        }
    }
    for (; v < nv; v += step) {
        kolo_vec_t x = kolo_user_load<T>(src + 16 * v, bytes - 16 * v, aligned);
        for (uint32_t j = 1; j <= n; j++) {
            uint32_t p = c.rank + j < n ? c.rank + j : c.rank + j - n;
            char *to = (char *)b->dst[p] + at;
            if (p == skip || to == src || !kolo_takes_part(c.receivers, p)) continue;
            kolo_user_store<T>(to + 16 * v, x, bytes - 16 * v, aligned);
        }
    }
}

/* One step: what is reduced is loaded, what is copied is stored. */
template <typename T> KOLO_DEV void kolo_direct_one(const kolo_cuda_args_t &c, const kolo_buffers_t *b)
{
    if (c.reduce) {
        KOLO_STEP_LOADS(c, b, c.rank * c.src_stride, c.bytes);
        kolo_direct_reduce<T, kolo_reduce_unroll<T>::value>(c, b, c.rank * c.src_stride, 0, c.bytes, false);
        return;
    }
    if (!kolo_takes_part(c.senders, c.rank)) return;
    if (c.src_stride == 0) { /* the same to all */
        for (uint32_t p = 0; p < c.layout.nranks; p++)
            if (kolo_takes_part(c.receivers, p)) KOLO_STEP_STORES(c, b, p, 0, c.bytes);
        kolo_direct_hand<T>(c, b, (const char *)c.src, c.rank * c.dst_stride, c.bytes, KOLO_CUDA_RANKS);
        return;
    }
    /* To all receivers by turns, so that this rank's own part is copied while the links are busy with the others'.
     */
    uint64_t turn = (uint64_t)kolo_nblocks() * kolo_nthreads() * 16 * KOLO_UNROLL;
    for (uint64_t at = 0; at < c.bytes; at += turn) {
        uint64_t len = kolo_tile_length(at, c.bytes, turn);
        for (uint32_t j = 0; j < c.layout.nranks; j++) {
            uint32_t p = c.rank + j < c.layout.nranks ? c.rank + j : c.rank + j - c.layout.nranks;
            if (!kolo_takes_part(c.receivers, p)) continue;
            KOLO_STEP_STORES(c, b, p, at, len);
            kolo_direct_share<T>(b->dst[p] + c.rank * c.dst_stride + at, c.src + p * c.src_stride + at, len);
        }
    }
}

/* ---- two steps ---- */

KOLO_DEV uint64_t kolo_part_length(const kolo_cuda_args_t &c, uint32_t p)
{
    return kolo_tile_length(p * c.part_bytes, c.bytes, c.part_bytes);
}
/* Where a rank leaves what it gives to the part of `to`: a part of `to`'s destination. The last part may be too
 * short for it. Between two ranks it is the part itself, which its owner alone writes later. */
KOLO_DEV uint64_t kolo_given_at(const kolo_cuda_args_t &c, uint32_t from, uint32_t to)
{
    return c.part_bytes * (c.layout.nranks == 2 || from == c.layout.nranks - 1 ? to : from);
}

/* An all_reduce by stores alone. */
template <typename T> KOLO_DEV bool kolo_direct_give(const kolo_cuda_args_t &c, kolo_buffers_t *b, uint32_t number)
{
    uint32_t n = c.layout.nranks;
    uint64_t from = c.rank * c.part_bytes, len = kolo_part_length(c, c.rank);
    for (uint32_t j = 1; j < n; j++) {
        uint32_t p = c.rank + j < n ? c.rank + j : c.rank + j - n;
        KOLO_STEP(c.rank, kolo_bid(), 1, 0, p, (const char *)c.src, p * c.part_bytes, kolo_part_length(c, p),
                  c.bytes);
        kolo_direct_share<T>(b->dst[p] + kolo_given_at(c, c.rank, p), c.src + p * c.part_bytes,
                             kolo_part_length(c, p));
    }
    if (!kolo_meet_again(c, b, KOLO_GIVEN, number)) return false;
    for (uint32_t r = kolo_tid(); r < n; r += kolo_nthreads()) /* the sources are what the others have left here */
        if (r != c.rank) b->src[r] = c.dst + kolo_given_at(c, r, c.rank) - from;
    kolo_sync();
    kolo_direct_reduce<T, kolo_reduce_unroll<T>::value>(c, b, from, from, len, n == 2);
    if (n == 2) return true;
    if (!kolo_meet_again(c, b, KOLO_SUMMED, number)) return false; /* all have read what the results are put upon */
    for (uint32_t j = 1; j < n; j++) {
        uint32_t p = c.rank + j < n ? c.rank + j : c.rank + j - n;
        KOLO_STEP(c.rank, kolo_bid(), 1, 1, p, (const char *)c.dst, from, len, c.bytes);
        KOLO_STEP(p, kolo_bid(), 0, 1, c.rank, (const char *)b->dst[p], from, len, c.bytes);
        kolo_direct_share<T>(b->dst[p] + from, c.dst + from, len);
    }
    return true;
}

/* A broadcast to more than one: each receiver owns a part, which it loads from the root and stores to all
 * receivers. So each byte leaves the root once, and no link carries more than the vector. */
template <typename T> KOLO_DEV void kolo_direct_spread(const kolo_cuda_args_t &c, const kolo_buffers_t *b)
{
    uint32_t n = c.layout.nranks, root = (uint32_t)c.senders;
    if (c.rank == root) {
        kolo_direct_share<T>(c.dst, c.src, c.bytes);
        return;
    }
    uint64_t part = ((c.bytes + n - 2) / (n - 1) + 127) / 128 * 128;
    uint64_t from = (c.rank > root ? c.rank - 1 : c.rank) * part, len = kolo_tile_length(from, c.bytes, part);
    KOLO_STEP(root, kolo_bid(), 1, 0, c.rank, (const char *)b->src[root], from, len, c.bytes);
    KOLO_STEP(c.rank, kolo_bid(), 0, 0, root, (const char *)c.dst, from, len, c.bytes);
    for (uint32_t p = 0; p < n; p++) {
        if (p == c.rank || p == root) continue;
        KOLO_STEP(c.rank, kolo_bid(), 1, 1, p, (const char *)c.dst, from, len, c.bytes);
        KOLO_STEP(p, kolo_bid(), 0, 1, c.rank, (const char *)b->dst[p], from, len, c.bytes);
    }
    kolo_direct_hand<T>(c, b, (const char *)b->src[root] + from, from, len, root);
}

/* Two steps in one: the owner of a part loads it and stores the result to the receivers. */
template <typename T> KOLO_DEV bool kolo_direct_two(const kolo_cuda_args_t &c, kolo_buffers_t *b, uint32_t number)
{
    uint64_t from = c.rank * c.part_bytes, len = kolo_part_length(c, c.rank);
    if (c.reduce && b->reachable & KOLO_CUDA_APART) return kolo_direct_give<T>(c, b, number);
    if (c.reduce) {
        KOLO_STEP_LOADS(c, b, from, len);
        kolo_direct_reduce<T, kolo_reduce_unroll<T>::value>(c, b, from, from, len, true);
    } else if (c.layout.nranks == 2) { /* the root stores all of it: loads carry less */
        kolo_direct_one<T>(c, b);
    } else {
        kolo_direct_spread<T>(c, b);
    }
    return true;
}

/* The long operations, by stages or without. */
template <typename T, bool two_steps> KOLO_DEV void kolo_long(const kolo_cuda_long_args_t &l)
{
    kolo_begin(false);
    KOLO_SHARED kolo_buffers_t buffers;
    const kolo_cuda_args_t &c = l.c;
    uint32_t *counter =
        kolo_counter(&c.layout, kolo_region(c.regions, c.rank), KOLO_CUDA_COUNT_MEETINGS, kolo_bid());
    uint32_t number = *counter + 1;
    bool ok = kolo_meet(l, &buffers, number);
    kolo_sync();
    if (kolo_tid() == 0) *counter = number;
    if (!ok) return;
    if (!(buffers.reachable & KOLO_CUDA_REACHABLE)) {
        two_steps ? kolo_two_step<T>(c) : kolo_staged<T>(c);
        return;
    }
    if (two_steps)
        ok = kolo_direct_two<T>(c, &buffers, number);
    else
        kolo_direct_one<T>(c, &buffers);
    if (ok) kolo_meet_again(c, &buffers, KOLO_END, number);
}

#endif
