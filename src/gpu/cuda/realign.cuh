/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between buffers that begin differently far behind a multiple of 16: all of the destination but its ends is
 * stored by 16 bytes, a warp's in whole lines of 128, each put together from the two aligned 16 bytes of the source
 * that it lies in. Nothing outside of the source is read.
 */
// clang-format off
#ifndef KOLO_GPU_CUDA_REALIGN_CUH
#define KOLO_GPU_CUDA_REALIGN_CUH

#include "gpu/cuda/device.cuh"

KOLO_DEV uint32_t kolo_shifted(uint32_t low, uint32_t high, uint32_t bits)
{
#ifdef __CUDACC__
    return __funnelshift_r(low, high, bits);
#else
    return (uint32_t)((low | (uint64_t)high << 32) >> bits);
#endif
}

/* The 16 bytes that begin `off` bytes (below 16) behind a. */
KOLO_DEV kolo_vec_t kolo_realigned(kolo_vec_t a, kolo_vec_t b, uint32_t off)
{
    uint32_t w[8] = {a.w[0], a.w[1], a.w[2], a.w[3], b.w[0], b.w[1], b.w[2], b.w[3]}, bits = off % 4 * 8;
    kolo_vec_t v;
#pragma unroll
    for (int i = 0; i < 6; i++) w[i] = off & 8 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; i++) w[i] = off & 4 ? w[i + 1] : w[i];
#pragma unroll
    for (int i = 0; i < 4; i++) v.w[i] = kolo_shifted(w[i], w[i + 1], bits);
    return v;
}

/* A thread's part of a copy, of those that have `at` 0, 1, ... below `step`: every step-th vector, and of the ends
 * what is left. */
template <typename T>
KOLO_DEV void kolo_copy_across(char *dst, const char *src, uint64_t bytes, uint64_t at, uint64_t step)
{
    const int U = 2;
    uint64_t head = (0 - (uint64_t)dst) & 127, first, end, v;
    if (head > bytes) head = bytes;
    uint64_t whole = (bytes - head) / 16;
    uint32_t off = (uint32_t)((uint64_t)(src + head) & 15);
    const char *from = src + head;
    const kolo_vec_t *words = (const kolo_vec_t *)(from - off);
    kolo_vec_t *to = (kolo_vec_t *)(dst + head);
    first = head < off; /* the others' words are whole within the source */
    end = !off ? whole : bytes - head + off < 32 ? 0 : (bytes - head + off) / 16 - 1;
    if (end > whole) end = whole;
    if (end < first) end = first = 0;
    for (v = first + at; v + (U - 1) * step < end; v += U * step) {
        kolo_vec_t a[U], b[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            a[u] = words[v + u * step];
            b[u] = words[v + u * step + (off != 0)];
        }
#pragma unroll
        for (int u = 0; u < U; u++) to[v + u * step] = kolo_realigned(a[u], b[u], off);
    }
    for (; v < end; v += step) to[v] = kolo_realigned(words[v], words[v + (off != 0)], off);
    for (uint64_t i = at * sizeof(T); i < head; i += step * sizeof(T)) *(T *)(dst + i) = *(const T *)(src + i);
    if (at == 0 && first) to[0] = kolo_elems_load<T>(from, 16);
    for (v = end + at; v <= whole; v += step) {
        uint64_t left = bytes - head - 16 * v;
        uint32_t n = left < 16 ? (uint32_t)left : 16;
        if (n) kolo_elems_store<T>((char *)(to + v), kolo_elems_load<T>(from + 16 * v, n), n);
    }
}

#endif
