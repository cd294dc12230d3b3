/* SPDX-License-Identifier: Apache-2.0
 *
 * The way without stages, for long operations of ranks that reach each other's buffers: the kernels exchange the
 * addresses when they meet, each as the other sees them. Whether it is taken travels with the addresses: if one
 * rank's buffers cannot be reached, or do not begin equally far from a multiple of 16 (of one-step operations: at
 * one), all go by stages: elements that cross a link one by one take five times as long.
 *
 * Blocks of the same number meet at the begin, so the buffers are ready, and at the end, so they are the caller's
 * again. What is copied is stored by who has it. What is reduced is loaded by the owner of a part from all others,
 * and the result stored to all: only the owner of a part reads and writes it, so in place is safe. Where no rank
 * works in place, an all_reduce does without loads from other GPUs, which cost the links more than stores do
 * (between two H200 stores alone carry 364 GB/s, loads 335, both 340): what a rank gives to a part is stored in the
 * owner's destination, which is not needed yet. The same block works on a vector at each step and on each rank, so
 * blocks of the same number meet each other alone.
 */
#ifndef KOLO_GPU_CUDA_DIRECT_CUH
#define KOLO_GPU_CUDA_DIRECT_CUH

#include "gpu/cuda/chain.cuh"

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
    kolo_step(c.rank, kolo_bid(), 1, 0, p, (const char *)(b->src[c.rank] + p * c.src_stride), at, bytes,
              at + bytes);
    kolo_step(p, kolo_bid(), 0, 0, c.rank, (const char *)(b->dst[p] + c.rank * c.dst_stride), at, bytes,
              at + bytes);
}
#define KOLO_STEP_LOADS(...)  kolo_step_loads(__VA_ARGS__)
#define KOLO_STEP_STORES(...) kolo_step_stores(__VA_ARGS__)
#endif

/* One vector of each of R ranks, in their order. What is asked for first differs from rank to rank, so that no link
 * has all readers at the same time, and all is asked for before anything is waited for. */
template <typename T, int R>
KOLO_DEV void kolo_direct_load(const kolo_cuda_args_t &c, const kolo_buffers_t *b, uint64_t at, uint64_t left,
                               kolo_vec_t x[R])
{
    uint32_t first = c.rank + 1 < R ? c.rank + 1 : 0;
#pragma unroll
    for (uint32_t j = 0; j < R; j++)
        x[j] = kolo_user_load<T>((const char *)b->src[first + j < R ? first + j : first + j - R] + at, left, true);
#pragma unroll
    for (uint32_t bit = 1; bit < R; bit *= 2) { /* x[j] is of rank first + j: turned, so that x[r] is of rank r */
        kolo_vec_t y[R];
#pragma unroll
        for (uint32_t j = 0; j < R; j++) y[j] = x[j];
#pragma unroll
        for (uint32_t j = 0; j < R; j++)
            if (first & bit) x[(j + bit) % R] = y[j];
    }
}

/* The sum of vector `v`, stored to those that receive it. */
template <typename T>
KOLO_DEV void kolo_direct_result(const kolo_cuda_args_t &c, const kolo_buffers_t *b, kolo_vec_t x, uint64_t to,
                                 uint64_t at, uint64_t bytes, bool to_all)
{
    for (uint32_t j = 1; j <= c.layout.nranks; j++) {
        uint32_t p = c.rank + j < c.layout.nranks ? c.rank + j : c.rank + j - c.layout.nranks;
        if (!kolo_takes_part(c.receivers, p) || (p != c.rank && !to_all)) continue;
        kolo_user_store<T>((char *)b->dst[p] + to + at, x, bytes - at, true);
    }
}

KOLO_DEV void kolo_direct_tell(const kolo_cuda_args_t &c, const kolo_buffers_t *b, uint64_t to, uint64_t bytes,
                               bool to_all)
{
    const char *kept = kolo_takes_part(c.receivers, c.rank) ? (const char *)b->dst[c.rank] + to : NULL;
    for (uint32_t r = 0; r < c.layout.nranks; r++) KOLO_STEP(c.rank, 0, 0, 0, r, kept, 0, bytes, bytes);
    for (uint32_t p = 0; p < c.layout.nranks && to_all; p++) {
        if (p == c.rank || !kolo_takes_part(c.receivers, p)) continue;
        KOLO_STEP(c.rank, 0, 1, 1, p, kept, 0, bytes, bytes);
        KOLO_STEP(p, 0, 0, 1, c.rank, (const char *)b->dst[p] + to, 0, bytes, bytes);
    }
    (void)kept;
}

/* The reduction of `bytes` at `from` in all ranks' sources, to `to` in the destinations: of all receivers, or,
 * without to_all, of this rank if it is one. Of R ranks; 0: of however many there are. */
template <typename T, int R, int U>
KOLO_DEV void kolo_direct_reduce_of(const kolo_cuda_args_t &c, const kolo_buffers_t *b, uint64_t from, uint64_t to,
                                    uint64_t bytes, bool to_all)
{
    const int N = 16 / sizeof(T);
    uint64_t nv = (bytes + 15) / 16, step = (uint64_t)kolo_nblocks() * kolo_nthreads();
    for (uint64_t v = (uint64_t)kolo_bid() * kolo_nthreads() + kolo_tid(); v < nv; v += U * step) {
        kolo_vec_t x[U][R];
#pragma unroll
        for (int u = 0; u < U; u++) {
            uint64_t at = 16 * (v + u * step);
            if (at < bytes) kolo_direct_load<T, R>(c, b, from + at, bytes - at, x[u]);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            uint64_t at = 16 * (v + u * step);
            kolo_sum<T, N> sum;
            if (at >= bytes) break;
            kolo_sum_begin(&sum, x[u][0], c);
#pragma unroll
            for (int r = 1; r < R; r++) kolo_sum_add(&sum, x[u][r], c);
            kolo_direct_result<T>(c, b, kolo_sum_end(&sum, c), to, at, bytes, to_all);
        }
    }
}
/* However many ranks there are: one behind the other. */
template <typename T>
KOLO_DEV void kolo_direct_reduce_any(const kolo_cuda_args_t &c, const kolo_buffers_t *b, uint64_t from, uint64_t to,
                                     uint64_t bytes, bool to_all)
{
    const int N = 16 / sizeof(T), U = kolo_reduce_unroll<T>::value;
    uint64_t nv = (bytes + 15) / 16, step = (uint64_t)kolo_nblocks() * kolo_nthreads();
    for (uint64_t v = (uint64_t)kolo_bid() * kolo_nthreads() + kolo_tid(); v < nv; v += U * step) {
        kolo_sum<T, N> sum[U];
        for (uint32_t r = 0; r < c.layout.nranks; r++) {
            kolo_vec_t x[U];
            const char *src = (const char *)b->src[r] + from;
#pragma unroll
            for (int u = 0; u < U; u++) {
                uint64_t at = 16 * (v + u * step);
                if (at < bytes) x[u] = kolo_user_load<T>(src + at, bytes - at, true);
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
            kolo_direct_result<T>(c, b, kolo_sum_end(&sum[u], c), to, at, bytes, to_all);
        }
    }
}
template <typename T>
KOLO_DEV void kolo_direct_reduce(const kolo_cuda_args_t &c, const kolo_buffers_t *b, uint64_t from, uint64_t to,
                                 uint64_t bytes, bool to_all)
{
    if (kolo_bid() == 0) kolo_direct_tell(c, b, to, bytes, to_all);
    const int pair = sizeof(T) == 1 ? 1 : 2;
    switch (c.layout.nranks) {
    case 2:
        return kolo_direct_reduce_of<T, 2, pair>(c, b, from, to, bytes, to_all);
    case 3:
        return kolo_direct_reduce_of<T, 3, 1>(c, b, from, to, bytes, to_all);
    case 4:
        return kolo_direct_reduce_of<T, 4, 1>(c, b, from, to, bytes, to_all);
    default:
        return kolo_direct_reduce_any<T>(c, b, from, to, bytes, to_all);
    }
}

template <typename T> KOLO_DEV void kolo_direct_share(uint64_t dst, uint64_t src, uint64_t bytes)
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
    uint64_t whole = bytes / 16, nv = (bytes + 15) / 16;
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
        kolo_vec_t x = kolo_user_load<T>(src + 16 * v, bytes - 16 * v, true);
        for (uint32_t j = 1; j <= n; j++) {
            uint32_t p = c.rank + j < n ? c.rank + j : c.rank + j - n;
            char *to = (char *)b->dst[p] + at;
            if (p == skip || to == src || !kolo_takes_part(c.receivers, p)) continue;
            kolo_user_store<T>(to + 16 * v, x, bytes - 16 * v, true);
        }
    }
}

/* One step: what is reduced is loaded, what is copied is stored. */
template <typename T> KOLO_DEV void kolo_direct_one(const kolo_cuda_args_t &c, const kolo_buffers_t *b)
{
    uint64_t src = b->src[c.rank], bytes = c.bytes - b->head;
    if (c.reduce) {
        KOLO_STEP_LOADS(c, b, c.rank * c.src_stride, bytes);
        kolo_direct_reduce<T>(c, b, c.rank * c.src_stride, 0, bytes, false);
        return;
    }
    if (!kolo_takes_part(c.senders, c.rank)) return;
    if (c.src_stride == 0) { /* the same to all */
        for (uint32_t p = 0; p < c.layout.nranks; p++)
            if (kolo_takes_part(c.receivers, p)) KOLO_STEP_STORES(c, b, p, 0, bytes);
        kolo_direct_hand<T>(c, b, (const char *)src, c.rank * c.dst_stride, bytes, KOLO_CUDA_RANKS);
        return;
    }
    /* To all receivers by turns, so that this rank's own part is copied while the links are busy with the others'.
     */
    uint64_t turn = (uint64_t)kolo_nblocks() * kolo_nthreads() * 16 * KOLO_UNROLL;
    for (uint64_t at = 0; at < bytes; at += turn) {
        uint64_t len = kolo_tile_length(at, bytes, turn);
        for (uint32_t j = 0; j < c.layout.nranks; j++) {
            uint32_t p = c.rank + j < c.layout.nranks ? c.rank + j : c.rank + j - c.layout.nranks;
            if (!kolo_takes_part(c.receivers, p)) continue;
            KOLO_STEP_STORES(c, b, p, at, len);
            kolo_direct_share<T>(b->dst[p] + c.rank * c.dst_stride + at, src + p * c.src_stride + at, len);
        }
    }
}

/* ---- two steps ---- */

KOLO_DEV uint64_t kolo_part_length(const kolo_cuda_args_t &c, const kolo_buffers_t *b, uint32_t p)
{
    return kolo_tile_length(p * c.part_bytes, c.bytes - b->head, c.part_bytes);
}
/* Tells which part of a vector from a root, or to it, this rank owns: all ranks but the root own one, so that no
 * link carries more than the vector. */
KOLO_DEV uint64_t kolo_part_beside(const kolo_cuda_args_t &c, const kolo_buffers_t *b, uint32_t root, uint64_t *len)
{
    uint64_t bytes = c.bytes - b->head,
             part = ((bytes + c.layout.nranks - 2) / (c.layout.nranks - 1) + 127) / 128 * 128;
    uint64_t from = (c.rank > root ? c.rank - 1 : c.rank) * part;
    *len = c.rank == root ? 0 : kolo_tile_length(from, bytes, part);
    return from;
}
/* Where a rank leaves what it gives to the part of `to`: a part of `to`'s destination. The last part may be too
 * short for it. Between two ranks it is the part itself, which its owner alone writes later. */
KOLO_DEV uint64_t kolo_given_at(const kolo_cuda_args_t &c, uint32_t from, uint32_t to)
{
    return c.part_bytes * (c.layout.nranks == 2 || from == c.layout.nranks - 1 ? to : from);
}

/* An all_reduce by stores alone: what this rank gives to the parts of others. */
template <typename T> KOLO_DEV bool kolo_direct_give(const kolo_cuda_args_t &c, kolo_buffers_t *b, uint32_t number)
{
    uint32_t n = c.layout.nranks;
    for (uint32_t j = 1; j < n; j++) {
        uint32_t p = c.rank + j < n ? c.rank + j : c.rank + j - n;
        KOLO_STEP(c.rank, kolo_bid(), 1, 0, p, (const char *)b->src[c.rank], p * c.part_bytes,
                  kolo_part_length(c, b, p), c.bytes);
        kolo_direct_share<T>(b->dst[p] + kolo_given_at(c, c.rank, p), b->src[c.rank] + p * c.part_bytes,
                             kolo_part_length(c, b, p));
    }
    if (!kolo_meet_again(c, b, KOLO_GIVEN, number)) return false;
    for (uint32_t r = kolo_tid(); r < n; r += kolo_nthreads()) /* the sources are what the others have left here */
        if (r != c.rank) b->src[r] = b->dst[c.rank] + kolo_given_at(c, r, c.rank) - c.rank * c.part_bytes;
    kolo_sync();
    return true;
}
/* When all have read what the results are put upon: this rank's sum to the others. */
template <typename T>
KOLO_DEV bool kolo_direct_hand_out(const kolo_cuda_args_t &c, kolo_buffers_t *b, uint32_t number)
{
    uint32_t n = c.layout.nranks;
    uint64_t from = c.rank * c.part_bytes, len = kolo_part_length(c, b, c.rank);
    if (!kolo_meet_again(c, b, KOLO_SUMMED, number)) return false;
    for (uint32_t j = 1; j < n; j++) {
        uint32_t p = c.rank + j < n ? c.rank + j : c.rank + j - n;
        KOLO_STEP(c.rank, kolo_bid(), 1, 1, p, (const char *)b->dst[c.rank], from, len, c.bytes);
        KOLO_STEP(p, kolo_bid(), 0, 1, c.rank, (const char *)b->dst[p], from, len, c.bytes);
        kolo_direct_share<T>(b->dst[p] + from, b->dst[c.rank] + from, len);
    }
    return true;
}

/* A broadcast to more than one: each receiver owns a part, which it loads from the root and stores to all
 * receivers. So each byte leaves the root once, and no link carries more than the vector. */
template <typename T> KOLO_DEV void kolo_direct_spread(const kolo_cuda_args_t &c, const kolo_buffers_t *b)
{
    uint32_t n = c.layout.nranks, root = (uint32_t)c.senders;
    uint64_t len, from = kolo_part_beside(c, b, root, &len);
    if (c.rank == root) {
        kolo_direct_share<T>(b->dst[root], b->src[root], c.bytes - b->head);
        return;
    }
    KOLO_STEP(root, kolo_bid(), 1, 0, c.rank, (const char *)b->src[root], from, len, c.bytes);
    KOLO_STEP(c.rank, kolo_bid(), 0, 0, root, (const char *)b->dst[c.rank], from, len, c.bytes);
    for (uint32_t p = 0; p < n; p++) {
        if (p == c.rank || p == root) continue;
        KOLO_STEP(c.rank, kolo_bid(), 1, 1, p, (const char *)b->dst[c.rank], from, len, c.bytes);
        KOLO_STEP(p, kolo_bid(), 0, 1, c.rank, (const char *)b->dst[p], from, len, c.bytes);
    }
    kolo_direct_hand<T>(c, b, (const char *)b->src[root] + from, from, len, root);
}

/* Reduces to one of more than two: the owners of parts load them and store the sums to the root. */
template <typename T> KOLO_DEV void kolo_direct_gather(const kolo_cuda_args_t &c, const kolo_buffers_t *b)
{
    uint64_t len, from = kolo_part_beside(c, b, (uint32_t)c.receivers, &len);
    if (!len) return;
    KOLO_STEP_LOADS(c, b, from, len);
    kolo_direct_reduce<T>(c, b, from, from, len, true);
}

/* Does the head, on one rank: a thread for each element. */
template <typename T> KOLO_DEV void kolo_direct_head(const kolo_cuda_args_t &c, const kolo_buffers_t *b)
{
    uint32_t rank = c.senders != KOLO_CUDA_ALL     ? (uint32_t)c.senders
                    : c.receivers != KOLO_CUDA_ALL ? (uint32_t)c.receivers
                                                   : 0;
    if (!b->head || c.rank != rank || kolo_bid() != kolo_nblocks() - 1) return;
    for (uint64_t at = kolo_tid() * sizeof(T); at < b->head; at += kolo_nthreads() * sizeof(T)) {
        kolo_vec_t x = kolo_elems_load<T>((const char *)b->src[rank] - b->head + at, sizeof(T));
        kolo_sum<T, 1> sum;
        for (uint32_t r = 0; c.reduce && r < c.layout.nranks; r++) {
            x = kolo_elems_load<T>((const char *)b->src[r] - b->head + at, sizeof(T));
            if (r == 0)
                kolo_sum_begin(&sum, x, c);
            else
                kolo_sum_add(&sum, x, c);
        }
        if (c.reduce) x = kolo_sum_end(&sum, c);
        for (uint32_t p = 0; p < c.layout.nranks; p++)
            if (kolo_takes_part(c.receivers, p))
                kolo_elems_store<T>((char *)b->dst[p] - b->head + at, x, sizeof(T));
    }
}

/* Two steps in one: the owner of a part loads it and stores the result to the receivers. */
template <typename T> KOLO_DEV bool kolo_direct_two(const kolo_cuda_args_t &c, kolo_buffers_t *b, uint32_t number)
{
    uint64_t from = c.rank * c.part_bytes, len = kolo_part_length(c, b, c.rank);
    bool gives = b->reachable & KOLO_CUDA_APART;
    kolo_direct_head<T>(c, b);
    if (c.piped && !gives) return kolo_piped<T>(c, b);
    if (c.reduce && c.receivers != KOLO_CUDA_ALL && c.layout.nranks > 2) {
        kolo_direct_gather<T>(c, b);
        return true;
    }
    if (c.reduce) {
        bool at_once = !gives || c.layout.nranks == 2;
        if (gives) {
            if (!kolo_direct_give<T>(c, b, number)) return false;
        } else {
            KOLO_STEP_LOADS(c, b, from, len);
        }
        kolo_direct_reduce<T>(c, b, from, from, len, at_once);
        return at_once || kolo_direct_hand_out<T>(c, b, number);
    }
    if (c.layout.nranks == 2) /* the root stores all of it: loads carry less */
        kolo_direct_one<T>(c, b);
    else
        kolo_direct_spread<T>(c, b);
    return true;
}

/* The long operations, by stages or without. A chain has a kernel of its own: one that holds all ways has too few
 * registers for each of them. */
enum { KOLO_LONG_ONE_STEP, KOLO_LONG_TWO_STEPS, KOLO_LONG_CHAIN };
template <typename T, int way> KOLO_DEV void kolo_long(const kolo_cuda_long_args_t &l)
{
    const bool two_steps = way != KOLO_LONG_ONE_STEP;
    kolo_begin(false);
    KOLO_SHARED kolo_buffers_t buffers;
    const kolo_cuda_args_t &c = l.c;
    uint32_t *counter =
        kolo_counter(&c.layout, kolo_region(c.regions, c.rank), KOLO_CUDA_COUNT_MEETINGS, kolo_bid());
    uint32_t number = *counter + 1;
    if (kolo_meetings_ended(c)) return;
    bool ok = kolo_meet(l, &buffers, number);
    kolo_sync();
    if (kolo_tid() == 0) *counter = number;
    if (!ok) {
        kolo_meetings_end(c);
        return;
    }
    if (!(buffers.reachable & KOLO_CUDA_REACHABLE) ||
        !(two_steps ? kolo_buffers_alike(c, &buffers) : kolo_buffers_aligned(c, &buffers))) {
        two_steps ? kolo_two_step<T>(c) : kolo_staged<T>(c);
        return;
    }
    if constexpr (way == KOLO_LONG_CHAIN) {
        kolo_direct_head<T>(c, &buffers);
        ok = kolo_chain<T>(c, &buffers);
    } else if (two_steps) {
        ok = kolo_direct_two<T>(c, &buffers, number);
    } else {
        kolo_direct_one<T>(c, &buffers);
    }
    if (ok) kolo_meet_again(c, &buffers, KOLO_END, number);
}

#endif
