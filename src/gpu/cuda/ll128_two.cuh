/* SPDX-License-Identifier: Apache-2.0
 *
 * An all_reduce or a reduce of middle length among more than two ranks: two steps by lines of 128 bytes
 * (line128.cuh), so that no link carries the vector of an all_reduce more than 2 (n - 1) / n times, that of a
 * reduce more than once, and neither a flag nor a fence lies between the steps. The lines of a part go to its
 * owner, into the first half of the room that a block has there for each other rank; the owner sums in rank order
 * and stores lines of the result into the second half of all others' rooms. In the first step every rank waits for
 * one line of every other at least, so nobody is more than one operation ahead.
 *
 * Of a reduce (ROOTED) all ranks but the root own a part. The root takes nothing in the first step, so each step
 * has the whole of the rooms; it waits for one sum of every owner at least.
 */
#ifndef KOLO_GPU_CUDA_LL128_TWO_CUH
#define KOLO_GPU_CUDA_LL128_TWO_CUH

#include "gpu/cuda/line128.cuh"

typedef struct {
    char *own;
    uint32_t block, n;         /* n: ranks */
    uint64_t flag;             /* of each line */
    uint32_t half;             /* 0 or 1, in turn */
    uint32_t root;             /* of a reduce */
    uint64_t all, part, first; /* lines: of the vector, of a part, before this block's in each part */
    uint32_t each;             /* of a block in a part, at most */
} kolo_ll128_two_t;

/* Where this block's lines of the part of `p` begin, and how many they are. */
template <bool ROOTED> KOLO_DEV uint64_t kolo_ll128_two_from(const kolo_ll128_two_t &w, uint32_t p)
{
    return (ROOTED && p > w.root ? p - 1 : p) * w.part + w.first;
}
template <bool ROOTED> KOLO_DEV uint32_t kolo_ll128_two_lines(const kolo_ll128_two_t &w, uint32_t p)
{
    uint64_t from = kolo_ll128_two_from<ROOTED>(w, p), end = from - w.first + w.part;
    if (end > w.all) end = w.all;
    if (ROOTED && p == w.root) return 0;
    return (uint32_t)(from >= end ? 0 : end - from < w.each ? end - from : w.each);
}
template <bool ROOTED>
KOLO_DEV char *kolo_ll128_two_room(const kolo_cuda_args_t &c, const kolo_ll128_two_t &w, uint32_t at, uint32_t from,
                                   uint32_t step)
{
    return kolo_lines128(&c.layout, kolo_region(c.regions, at), w.half, from, w.block) +
           (ROOTED ? 0 : step) * (c.layout.ll128_bytes / 256 * 128);
}

/* To the owners of parts. */
template <typename T> KOLO_DEV void kolo_ll128_two_give(const kolo_cuda_args_t &c, const kolo_ll128_two_t &w)
{
    const char *src = (const char *)c.src;
    bool aligned = ((uint64_t)src & 7) == 0;
    for (uint32_t j = 1; j < w.n; j++) {
        uint32_t p = c.rank + j < w.n ? c.rank + j : c.rank + j - w.n, lines = kolo_ll128_two_lines<false>(w, p), n;
        char *room = kolo_ll128_two_room<false>(c, w, p, c.rank, 0);
        uint64_t from = p * w.part + w.first;
        KOLO_STEP(c.rank, w.block, 1, 0, p, src, from * 120, lines * 120ull, c.bytes);
        for (uint32_t at = kolo_group(); (n = kolo_batch<KOLO_LINE_BATCH>(at, lines ? lines : 1));
             at += n * kolo_groups()) {
            kolo_line_t x[KOLO_LINE_BATCH];
#pragma unroll
            for (uint32_t u = 0; u < KOLO_LINE_BATCH; u++) {
                uint32_t line = at + u * kolo_groups();
                if (u < n) kolo_words_load<T>(&x[u], src, from + line, line < lines ? c.bytes : 0, aligned, &c);
            }
#pragma unroll
            for (uint32_t u = 0; u < KOLO_LINE_BATCH; u++) {
                uint32_t line = at + u * kolo_groups();
                if (u < n)
                    kolo_line128_store(room + (uint64_t)line * 128, &x[u], w.flag, line < (lines ? lines : 1));
            }
        }
    }
}

/* A batch of this rank's own part: summed in rank order, kept and handed out. */
template <typename T, int B>
KOLO_DEV bool kolo_ll128_two_sum(const kolo_cuda_args_t &c, const kolo_ll128_two_t &w, uint32_t at, uint32_t n,
                                 uint32_t lines)
{
    const int N = 16 / sizeof(T);
    const char *src = (const char *)c.src;
    char *dst = (char *)c.dst;
    bool src_aligned = ((uint64_t)src & 7) == 0, dst_aligned = ((uint64_t)dst & 7) == 0;
    uint64_t from = c.rank * w.part + w.first;
    kolo_line_t x[B] = {};
    kolo_sum<T, N> acc[B][KOLO_LANES];
    for (uint32_t r = 0; r < w.n; r++) {
        if (r == c.rank) {
#pragma unroll
            for (uint32_t u = 0; u < B; u++)
                if (u < n)
                    kolo_words_load<T>(&x[u], src, from + at + u * kolo_groups(),
                                       at + u * kolo_groups() < lines ? c.bytes : 0, src_aligned, &c);
        } else if (!kolo_batch_wait<B>(c, w.flag, kolo_ll128_two_room<false>(c, w, c.rank, r, 0), at, lines, x,
                                       r)) {
            return false;
        }
#pragma unroll
        for (uint32_t u = 0; u < B; u++) {
#pragma unroll
            for (uint32_t k = 0; k < KOLO_LANES; k++) {
                if (u >= n) continue;
                if (r == 0)
                    kolo_sum_begin(&acc[u][k], kolo_vec_of(x[u].w[k]), c);
                else
                    kolo_sum_add(&acc[u][k], kolo_vec_of(x[u].w[k]), c);
            }
        }
    }
#pragma unroll
    for (uint32_t u = 0; u < B; u++) {
        if (u >= n) continue;
#pragma unroll
        for (uint32_t k = 0; k < KOLO_LANES; k++) kolo_words_of(x[u].w[k], kolo_sum_end(&acc[u][k], c));
        uint32_t line = at + u * kolo_groups();
        for (uint32_t j = 1; j < w.n; j++) {
            uint32_t p = c.rank + j < w.n ? c.rank + j : c.rank + j - w.n;
            kolo_line128_store(kolo_ll128_two_room<false>(c, w, p, c.rank, 1) + (uint64_t)line * 128, &x[u], w.flag,
                               line < lines);
        }
        kolo_words_store<T>(&x[u], dst, from + line, line < lines ? c.bytes : 0, dst_aligned);
    }
    return true;
}

template <typename T> KOLO_DEV bool kolo_ll128_two_own(const kolo_cuda_args_t &c, const kolo_ll128_two_t &w)
{
    const int B = kolo_reduce_batch<T>::value;
    uint32_t lines = kolo_ll128_two_lines<false>(w, c.rank), n;
    uint64_t from = c.rank * w.part + w.first;
    bool ok = true;
    for (uint32_t r = 0; r < w.n; r++)
        KOLO_STEP(c.rank, w.block, 0, 0, r, (const char *)c.dst, from * 120, lines * 120ull, c.bytes);
    for (uint32_t p = 0; p < w.n; p++)
        if (p != c.rank)
            KOLO_STEP(c.rank, w.block, 1, 1, p, (const char *)c.dst, from * 120, lines * 120ull, c.bytes);
    (void)from;
    for (uint32_t at = kolo_group(); ok && (n = kolo_batch<B>(at, lines)); at += n * kolo_groups())
        ok = kolo_ll128_two_sum<T, B>(c, w, at, n, lines);
    for (uint32_t r = 0; ok && !lines && r < w.n; r++) {
        kolo_line_t none = {};
        if (r != c.rank && kolo_first_of_warp(kolo_group()) == 0)
            ok = kolo_batch_wait<1>(c, w.flag, kolo_ll128_two_room<false>(c, w, c.rank, r, 0), kolo_group(), 1,
                                    &none, r);
    }
    return ok;
}

/* The other parts, from their owners. */
template <typename T> KOLO_DEV bool kolo_ll128_two_take(const kolo_cuda_args_t &c, const kolo_ll128_two_t &w)
{
    char *dst = (char *)c.dst;
    bool aligned = ((uint64_t)dst & 7) == 0;
    for (uint32_t j = 1; j < w.n; j++) {
        uint32_t p = c.rank + j < w.n ? c.rank + j : c.rank + j - w.n, lines = kolo_ll128_two_lines<false>(w, p), n;
        const char *room = kolo_ll128_two_room<false>(c, w, c.rank, p, 1);
        uint64_t from = p * w.part + w.first;
        KOLO_STEP(c.rank, w.block, 0, 1, p, dst, from * 120, lines * 120ull, c.bytes);
        for (uint32_t at = kolo_group(); (n = kolo_batch<KOLO_LINE_BATCH>(at, lines)); at += n * kolo_groups()) {
            kolo_line_t x[KOLO_LINE_BATCH] = {};
            if (!kolo_batch_wait<KOLO_LINE_BATCH>(c, w.flag, room, at, lines, x, p)) return false;
#pragma unroll
            for (uint32_t u = 0; u < KOLO_LINE_BATCH; u++) {
                uint32_t line = at + u * kolo_groups();
                if (u < n) kolo_words_store<T>(&x[u], dst, from + line, line < lines ? c.bytes : 0, aligned);
            }
        }
    }
    return true;
}

/* ---- among at most R ranks: a thread has lines to or from all of them under way at once ---- */

/* The j-th rank after this one. */
KOLO_DEV uint32_t kolo_ll128_two_peer(const kolo_cuda_args_t &c, const kolo_ll128_two_t &w, uint32_t j)
{
    return c.rank + j + 1 < w.n ? c.rank + j + 1 : c.rank + j + 1 - w.n;
}

template <typename T, int R, bool ROOTED>
KOLO_DEV void kolo_ll128_two_give_of(const kolo_cuda_args_t &c, const kolo_ll128_two_t &w)
{
    const char *src = (const char *)c.src;
    bool aligned = ((uint64_t)src & 7) == 0;
    for (uint32_t at = kolo_group(); kolo_first_of_warp(at) < w.each; at += kolo_groups()) {
        kolo_line_t x[R - 1];
#pragma unroll
        for (uint32_t j = 0; j < R - 1; j++) {
            uint32_t p = kolo_ll128_two_peer(c, w, j);
            if (j + 1 >= w.n || (ROOTED && p == w.root)) continue;
            uint64_t from = kolo_ll128_two_from<ROOTED>(w, p);
            kolo_words_load<T>(&x[j], src, from + at, at < kolo_ll128_two_lines<ROOTED>(w, p) ? c.bytes : 0,
                               aligned, &c);
        }
#pragma unroll
        for (uint32_t j = 0; j < R - 1; j++) {
            uint32_t p = kolo_ll128_two_peer(c, w, j), lines = kolo_ll128_two_lines<ROOTED>(w, p);
            if (j + 1 >= w.n || (ROOTED && p == w.root)) continue;
            kolo_line128_store(kolo_ll128_two_room<ROOTED>(c, w, p, c.rank, 0) + (uint64_t)at * 128, &x[j], w.flag,
                               at < (lines ? lines : 1));
        }
    }
}

/* How many lines come from the owner `p` in the second step; of a reduce one at least. */
template <bool ROOTED> KOLO_DEV uint32_t kolo_ll128_two_sums(const kolo_ll128_two_t &w, uint32_t p)
{
    uint32_t lines = kolo_ll128_two_lines<ROOTED>(w, p);
    return ROOTED && !lines ? 1 : lines;
}

/* A line of each other rank, for a whole warp: of the first step, of which there are `lines`; or of the second, of
 * which each has its own number. */
template <int R, bool ROOTED>
KOLO_DEV bool kolo_ll128_two_wait(const kolo_cuda_args_t &c, const kolo_ll128_two_t &w, uint32_t step, uint32_t at,
                                  uint32_t lines, kolo_line_t *x)
{
    uint32_t spins = 0;
    for (;;) {
        bool all = true;
        uint32_t late = c.rank;
#pragma unroll
        for (uint32_t j = 0; j < R - 1; j++) {
            uint32_t p = kolo_ll128_two_peer(c, w, j);
            if (j + 1 < w.n && at < (step ? kolo_ll128_two_sums<ROOTED>(w, p) : lines))
                kolo_line128_load(kolo_ll128_two_room<ROOTED>(c, w, c.rank, p, step) + (uint64_t)at * 128, &x[j]);
        }
#pragma unroll
        for (uint32_t j = 0; j < R - 1; j++) {
            uint32_t p = kolo_ll128_two_peer(c, w, j);
            if (j + 1 >= w.n) continue;
            bool came =
                kolo_line128_came(&x[j], w.flag) || at >= (step ? kolo_ll128_two_sums<ROOTED>(w, p) : lines);
            if (!came && late == c.rank) late = p;
            all = all && came;
        }
        if (kolo_all_lanes(all)) return true;
        if (kolo_any_lane(late != c.rank && kolo_give_up(&spins, c, KOLO_CUDA_WAITS_LINES, late, (uint32_t)w.flag)))
            return false;
    }
}

/* x[j] is of the j-th rank after this one; in the order of ranks, this rank's own in its place. */
template <typename T, int R>
KOLO_DEV void kolo_ll128_two_add(const kolo_cuda_args_t &c, const kolo_ll128_two_t &w, const kolo_line_t *x,
                                 const kolo_line_t *own, kolo_line_t *sum)
{
    const int N = 16 / sizeof(T);
#pragma unroll
    for (uint32_t k = 0; k < KOLO_LANES; k++) {
        kolo_sum<T, N> acc;
        for (uint32_t r = 0; r < w.n; r++) {
            kolo_vec_t v = kolo_vec_of(own->w[k]);
#pragma unroll
            for (uint32_t j = 0; j < R - 1; j++)
                if (j + 1 < w.n && r == kolo_ll128_two_peer(c, w, j)) v = kolo_vec_of(x[j].w[k]);
            if (r == 0)
                kolo_sum_begin(&acc, v, c);
            else
                kolo_sum_add(&acc, v, c);
        }
        kolo_words_of(sum->w[k], kolo_sum_end(&acc, c));
    }
}

template <typename T, int R, bool ROOTED>
KOLO_DEV bool kolo_ll128_two_own_of(const kolo_cuda_args_t &c, const kolo_ll128_two_t &w, uint32_t lines)
{
    const char *src = (const char *)c.src;
    char *dst = (char *)c.dst;
    bool src_aligned = ((uint64_t)src & 7) == 0, dst_aligned = ((uint64_t)dst & 7) == 0;
    uint64_t from = kolo_ll128_two_from<ROOTED>(w, c.rank);
    uint32_t most = lines ? lines : 1;
    for (uint32_t at = kolo_group(); kolo_first_of_warp(at) < most; at += kolo_groups()) {
        kolo_line_t x[R - 1] = {}, own, sum;
        kolo_words_load<T>(&own, src, from + at, at < lines ? c.bytes : 0, src_aligned, &c);
        if (!kolo_ll128_two_wait<R, ROOTED>(c, w, 0, at, most, x)) return false;
        kolo_ll128_two_add<T, R>(c, w, x, &own, &sum);
        if constexpr (ROOTED) {
            kolo_line128_store(kolo_ll128_two_room<ROOTED>(c, w, w.root, c.rank, 1) + (uint64_t)at * 128, &sum,
                               w.flag, at < most);
        } else {
#pragma unroll
            for (uint32_t j = 0; j < R - 1; j++)
                if (j + 1 < w.n)
                    kolo_line128_store(kolo_ll128_two_room<ROOTED>(c, w, kolo_ll128_two_peer(c, w, j), c.rank, 1) +
                                           (uint64_t)at * 128,
                                       &sum, w.flag, at < lines);
            kolo_words_store<T>(&sum, dst, from + at, at < lines ? c.bytes : 0, dst_aligned);
        }
    }
    return true;
}

template <typename T, int R, bool ROOTED>
KOLO_DEV bool kolo_ll128_two_take_of(const kolo_cuda_args_t &c, const kolo_ll128_two_t &w)
{
    char *dst = (char *)c.dst;
    bool aligned = ((uint64_t)dst & 7) == 0;
    for (uint32_t at = kolo_group(); kolo_first_of_warp(at) < w.each; at += kolo_groups()) {
        kolo_line_t x[R - 1] = {};
        if (!kolo_ll128_two_wait<R, ROOTED>(c, w, 1, at, 0, x)) return false;
#pragma unroll
        for (uint32_t j = 0; j < R - 1; j++) {
            if (j + 1 >= w.n) continue;
            uint32_t p = kolo_ll128_two_peer(c, w, j);
            kolo_words_store<T>(&x[j], dst, kolo_ll128_two_from<ROOTED>(w, p) + at,
                                at < kolo_ll128_two_lines<ROOTED>(w, p) ? c.bytes : 0, aligned);
        }
    }
    return true;
}

template <bool ROOTED> KOLO_DEV void kolo_ll128_two_tell(const kolo_cuda_args_t &c, const kolo_ll128_two_t &w)
{
    uint32_t lines = kolo_ll128_two_lines<ROOTED>(w, c.rank);
    uint64_t from = kolo_ll128_two_from<ROOTED>(w, c.rank);
    const char *dst = (const char *)c.dst, *kept = ROOTED ? NULL : dst;
    for (uint32_t j = 0; j + 1 < w.n; j++) {
        uint32_t p = kolo_ll128_two_peer(c, w, j);
        uint64_t theirs = kolo_ll128_two_from<ROOTED>(w, p), n = kolo_ll128_two_lines<ROOTED>(w, p);
        KOLO_STEP(c.rank, w.block, 1, 0, p, (const char *)c.src, theirs * 120, n * 120, c.bytes);
        if (!ROOTED || p == w.root) KOLO_STEP(c.rank, w.block, 1, 1, p, kept, from * 120, lines * 120ull, c.bytes);
        if (!ROOTED || c.rank == w.root) KOLO_STEP(c.rank, w.block, 0, 1, p, dst, theirs * 120, n * 120, c.bytes);
        (void)theirs;
        (void)n;
    }
    for (uint32_t r = 0; r < w.n; r++)
        KOLO_STEP(c.rank, w.block, 0, 0, r, kept, from * 120, lines * 120ull, c.bytes);
    (void)lines;
    (void)from;
    (void)kept;
}

template <typename T, int R, bool ROOTED>
KOLO_DEV void kolo_ll128_two_of(const kolo_cuda_args_t &c, const kolo_ll128_two_t &w)
{
    kolo_ll128_two_tell<ROOTED>(c, w);
    kolo_ll128_two_give_of<T, R, ROOTED>(c, w);
    if (ROOTED && c.rank == w.root)
        kolo_ll128_two_take_of<T, R, ROOTED>(c, w);
    else if (kolo_ll128_two_own_of<T, R, ROOTED>(c, w, kolo_ll128_two_lines<ROOTED>(w, c.rank)) && !ROOTED)
        kolo_ll128_two_take_of<T, R, ROOTED>(c, w);
}

template <typename T> KOLO_DEV void kolo_ll128_two(const kolo_cuda_args_t &c)
{
    kolo_ll128_two_t w;
    w.block = kolo_bid();
    w.n = c.layout.nranks;
    w.root = (uint32_t)c.receivers;
    w.own = kolo_region(c.regions, c.rank);
    w.all = ((c.bytes + 7) / 8 + KOLO_LINE_WORDS - 1) / KOLO_LINE_WORDS;
    w.part = c.part_bytes / 120;
    w.each = (uint32_t)((w.part + kolo_nblocks() - 1) / kolo_nblocks());
    w.first = (uint64_t)w.each * w.block;
    uint32_t *counter = kolo_counter(&c.layout, w.own, KOLO_CUDA_COUNT_LINES_128, w.block);
    uint32_t number = kolo_line_number(*counter);
    w.flag = kolo_line128_flag(c, number);
    w.half = number & 1;
    if (c.receivers != KOLO_CUDA_ALL) { /* a reduce, among few (choose.c) */
        kolo_ll128_two_of<T, 4, true>(c, w);
    } else if (w.n <= 4) {
        kolo_ll128_two_of<T, 4, false>(c, w);
    } else {
        kolo_ll128_two_give<T>(c, w);
        if (kolo_ll128_two_own<T>(c, w)) kolo_ll128_two_take<T>(c, w);
    }
    kolo_sync();
    if (kolo_tid() == 0) *counter = number;
}

#endif
