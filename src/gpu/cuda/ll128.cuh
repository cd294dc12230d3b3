/* SPDX-License-Identifier: Apache-2.0
 *
 * The family for operations of middle length, by lines of 128 bytes (line128.cuh): one step, or an all_reduce in
 * two (ll128_two.cuh). As with the short lines (ll.cuh) two halves are used in turn, and every rank waits for one
 * line of every other at least. Ranks that share a GPU do without this family.
 */
#ifndef KOLO_GPU_CUDA_LL128_CUH
#define KOLO_GPU_CUDA_LL128_CUH

#include "gpu/cuda/ll128_two.cuh"

template <typename T> KOLO_DEV void kolo_ll128_send(const kolo_cuda_args_t &c, const kolo_ll_share_t &s)
{
    const uint64_t flag = kolo_line128_flag(c, s.flag);
    for (uint32_t j = 1; j < c.layout.nranks; j++) {
        uint32_t p = c.rank + j < c.layout.nranks ? c.rank + j : c.rank + j - c.layout.nranks;
        char *lines = kolo_lines128(&c.layout, kolo_region(c.regions, p), s.flag & 1, c.rank, s.block);
        const char *src = (const char *)(c.src + p * c.src_stride);
        bool pays = kolo_ll_pays(c, s.n, c.rank, p), aligned = ((uint64_t)src & 7) == 0;
        uint32_t lines_to_send = pays ? s.n : 1;
        if (pays) KOLO_STEP(c.rank, s.block, 1, 0, p, src, s.first * 120, s.n * 120ull, c.bytes);
        uint32_t n;
        for (uint32_t at = kolo_group(); (n = kolo_batch<KOLO_LINE_BATCH>(at, lines_to_send));
             at += n * kolo_groups()) {
            kolo_line_t x[KOLO_LINE_BATCH];
#pragma unroll
            for (uint32_t u = 0; u < KOLO_LINE_BATCH; u++) {
                uint32_t line = at + u * kolo_groups();
                if (u < n)
                    kolo_words_load<T>(&x[u], src, s.first + line, pays && line < s.n ? c.bytes : 0, aligned, &c);
            }
#pragma unroll
            for (uint32_t u = 0; u < KOLO_LINE_BATCH; u++) {
                uint32_t line = at + u * kolo_groups();
                if (u < n) kolo_line128_store(lines + (uint64_t)line * 128, &x[u], flag, line < lines_to_send);
            }
        }
    }
}

template <typename T> KOLO_DEV bool kolo_ll128_reduce(const kolo_cuda_args_t &c, const kolo_ll_share_t &s)
{
    const uint64_t flag = kolo_line128_flag(c, s.flag);
    const int N = 16 / sizeof(T), B = kolo_reduce_batch<T>::value;
    const char *src = (const char *)(c.src + c.rank * c.src_stride);
    char *dst = (char *)c.dst;
    bool src_aligned = ((uint64_t)src & 7) == 0, dst_aligned = ((uint64_t)dst & 7) == 0;
    uint32_t n;
    for (uint32_t at = kolo_group(); (n = kolo_batch<B>(at, s.n)); at += n * kolo_groups()) {
        kolo_line_t x[B] = {};
        kolo_sum<T, N> acc[B][KOLO_LANES];
        for (uint32_t r = 0; r < c.layout.nranks; r++) {
            if (at == kolo_group()) KOLO_STEP(c.rank, s.block, 0, 0, r, dst, s.first * 120, s.n * 120ull, c.bytes);
            if (r == c.rank) {
#pragma unroll
                for (uint32_t u = 0; u < B; u++)
                    if (u < n)
                        kolo_words_load<T>(&x[u], src, s.first + at + u * kolo_groups(),
                                           at + u * kolo_groups() < s.n ? c.bytes : 0, src_aligned, &c);
            } else if (!kolo_batch_wait<B>(c, flag, kolo_lines128(&c.layout, s.own, s.flag & 1, r, s.block), at,
                                           s.n, x, r)) {
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
            kolo_words_store<T>(&x[u], dst, s.first + at + u * kolo_groups(),
                                at + u * kolo_groups() < s.n ? c.bytes : 0, dst_aligned);
        }
    }
    return true;
}

template <typename T> KOLO_DEV bool kolo_ll128_copy(const kolo_cuda_args_t &c, const kolo_ll_share_t &s, uint32_t r)
{
    const uint64_t flag = kolo_line128_flag(c, s.flag);
    char *dst = (char *)(c.dst + r * c.dst_stride);
    const char *src = (const char *)(c.src + r * c.src_stride);
    const char *lines = kolo_lines128(&c.layout, s.own, s.flag & 1, r, s.block);
    bool aligned = (((uint64_t)dst | (r == c.rank ? (uint64_t)src : 0)) & 7) == 0;
    if (r == c.rank && src == dst) return true;
    KOLO_STEP(c.rank, s.block, 0, 0, r, dst, s.first * 120, s.n * 120ull, c.bytes);
    uint32_t n;
    for (uint32_t at = kolo_group(); (n = kolo_batch<KOLO_LINE_BATCH>(at, s.n)); at += n * kolo_groups()) {
        kolo_line_t x[KOLO_LINE_BATCH] = {};
        if (r != c.rank && !kolo_batch_wait<KOLO_LINE_BATCH>(c, flag, lines, at, s.n, x, r)) return false;
#pragma unroll
        for (uint32_t u = 0; u < KOLO_LINE_BATCH; u++) {
            uint64_t line = s.first + at + u * kolo_groups(), bytes = at + u * kolo_groups() < s.n ? c.bytes : 0;
            if (u >= n) continue;
            if (r == c.rank) kolo_words_load<T>(&x[u], src, line, bytes, aligned, &c);
            kolo_words_store<T>(&x[u], dst, line, bytes, aligned);
        }
    }
    return true;
}

template <typename T> KOLO_DEV void kolo_ll128(const kolo_cuda_args_t &c)
{
    if (c.part_bytes) {
        kolo_begin(true);
        kolo_ll128_two<T>(c);
        return;
    }
    kolo_ll_share_t s;
    uint64_t all = ((c.bytes + 7) / 8 + KOLO_LINE_WORDS - 1) / KOLO_LINE_WORDS;
    uint64_t each = (all + kolo_nblocks() - 1) / kolo_nblocks();
    bool ok = true;
    s.block = kolo_bid();
    s.own = kolo_region(c.regions, c.rank);
    uint32_t *counter = kolo_counter(&c.layout, s.own, KOLO_CUDA_COUNT_LINES_128, s.block);
    s.first = each * s.block;
    s.n = (uint32_t)(s.first >= all ? 0 : all - s.first < each ? all - s.first : each);
    kolo_begin(true); /* what comes of the arguments alone is ready by then */
    s.flag = kolo_line_number(*counter);
    const uint64_t flag = kolo_line128_flag(c, s.flag);
    kolo_ll128_send<T>(c, s);
    bool reduces = c.reduce && kolo_ll_pays(c, s.n, c.rank, c.rank);
    if (reduces) ok = kolo_ll128_reduce<T>(c, s);
    for (uint32_t j = 0; ok && !reduces && j < c.layout.nranks; j++) {
        uint32_t r = c.rank + j < c.layout.nranks ? c.rank + j : c.rank + j - c.layout.nranks;
        kolo_line_t none = {};
        if (kolo_ll_pays(c, s.n, r, c.rank) && !c.reduce)
            ok = kolo_ll128_copy<T>(c, s, r);
        else if (r != c.rank && kolo_first_of_warp(kolo_group()) == 0)
            ok = kolo_batch_wait<1>(c, flag, kolo_lines128(&c.layout, s.own, s.flag & 1, r, s.block), kolo_group(),
                                    1, &none, r);
    }
    kolo_sync();
    if (kolo_tid() == 0) *counter = s.flag;
}

#endif
