/* SPDX-License-Identifier: Apache-2.0
 *
 * Adasum's arithmetic on parts of two vectors, with the rules of the CPU (engine/batch/adasum.c): products and
 * coefficients in double, elements combined in double and rounded. Products are summed up chunk by chunk in one order,
 * so they do not depend on how many blocks there are. Nothing waits for the host: the coefficients come from memory.
 */
#ifndef KOLO_GPU_CUDA_BLEND_CUH
#define KOLO_GPU_CUDA_BLEND_CUH

#include "gpu/cuda/device.cuh"
#include "gpu/cuda/numeric.cuh"

enum { KOLO_BLEND_WARPS = KOLO_CUDA_THREADS / 32 };

/* Adds up what the threads of a block have; the first one gets it. */
KOLO_DEV void kolo_blend_fold(double *p)
{
#ifdef __CUDACC__
    __shared__ double parts[KOLO_CUDA_BLEND_SUMS][KOLO_BLEND_WARPS];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int k = 0; k < KOLO_CUDA_BLEND_SUMS; k++) {
        for (int off = 16; off > 0; off /= 2) p[k] += __shfl_down_sync(~0u, p[k], off);
        if (lane == 0) parts[k][warp] = p[k];
    }
    __syncthreads();
    for (int k = 0; warp == 0 && k < KOLO_CUDA_BLEND_SUMS; k++) {
        p[k] = lane < KOLO_BLEND_WARPS ? parts[k][lane] : 0;
        for (int off = KOLO_BLEND_WARPS / 2; off > 0; off /= 2) p[k] += __shfl_down_sync(~0u, p[k], off);
    }
    __syncthreads();
#else
    (void)p;
#endif
}

template <typename T> union kolo_blend_vec {
    kolo_vec_t v;
    T e[16 / sizeof(T)];
};

template <typename T> KOLO_DEV void kolo_blend_products(const char *a, const char *b, uint64_t bytes, double *p)
{
    bool aligned = kolo_aligned((uint64_t)a, (uint64_t)b);
    for (uint64_t at = 16 * (uint64_t)kolo_tid(); at < bytes; at += 16 * (uint64_t)kolo_nthreads()) {
        kolo_blend_vec<T> x, y;
        x.v = kolo_user_load<T>(a + at, bytes - at, aligned);
        y.v = kolo_user_load<T>(b + at, bytes - at, aligned);
#pragma unroll
        for (uint32_t i = 0; i < 16 / sizeof(T); i++) {
            double u = (double)kolo_widen(x.e[i]), v = (double)kolo_widen(y.e[i]);
            p[KOLO_CUDA_BLEND_AB] += u * v;
            p[KOLO_CUDA_BLEND_AA] += u * u;
            p[KOLO_CUDA_BLEND_BB] += v * v;
        }
    }
}

KOLO_DEV void kolo_blend_one(kolo_half *x, double v) { kolo_narrow(x, (float)v); }
KOLO_DEV void kolo_blend_one(kolo_bfloat *x, double v) { kolo_narrow(x, (float)v); }
KOLO_DEV void kolo_blend_one(float *x, double v) { kolo_narrow(x, (float)v); }
KOLO_DEV void kolo_blend_one(double *x, double v) { kolo_narrow(x, v); }

template <typename T>
KOLO_DEV void kolo_blend_chunk(const kolo_cuda_blend_item_t &it, uint64_t from, uint64_t bytes, const double *c)
{
    const char *a = (const char *)it.a + from, *b = (const char *)it.b + from;
    char *to = (char *)it.to + from;
    bool aligned = kolo_aligned((uint64_t)a, (uint64_t)b), there = kolo_aligned((uint64_t)to, 0);
    for (uint64_t at = 16 * (uint64_t)kolo_tid(); at < bytes; at += 16 * (uint64_t)kolo_nthreads()) {
        kolo_blend_vec<T> x, y;
        x.v = kolo_user_load<T>(a + at, bytes - at, aligned);
        y.v = kolo_user_load<T>(b + at, bytes - at, aligned);
#pragma unroll
        for (uint32_t i = 0; i < 16 / sizeof(T); i++)
            kolo_blend_one(&x.e[i], kolo_add(kolo_mul(c[0], (double)kolo_widen(x.e[i])),
                                             kolo_mul(c[1], (double)kolo_widen(y.e[i]))));
        kolo_user_store<T>(to + at, x.v, bytes - at, there);
    }
}

/* Returns 1 for a vector that is as good as zero: its square is below the root of the least normal double. */
KOLO_DEV double kolo_blend_coefficient(double ab, double norm)
{
    return norm < 1.4916681462400413e-154 ? 1.0 : 1.0 - ab / (2.0 * norm);
}

/* Sums up the products of a chunk, or blends it. */
template <typename T>
KOLO_DEV void kolo_blend_do(const kolo_cuda_blend_args_t &c, const kolo_cuda_blend_item_t &it, uint32_t chunk, bool blend)
{
    uint64_t from = (uint64_t)(chunk - it.first) * c.chunk_bytes, left = it.bytes - from;
    uint64_t bytes = left < c.chunk_bytes ? left : c.chunk_bytes;
    if (blend) {
        const double *s = (const double *)it.sums;
        double factors[2] = {1, 1};
        if (s) factors[0] = kolo_blend_coefficient(s[KOLO_CUDA_BLEND_AB], s[KOLO_CUDA_BLEND_AA]);
        if (s) factors[1] = kolo_blend_coefficient(s[KOLO_CUDA_BLEND_AB], s[KOLO_CUDA_BLEND_BB]);
        kolo_blend_chunk<T>(it, from, bytes, factors);
        return;
    }
    double p[KOLO_CUDA_BLEND_SUMS] = {0, 0, 0}, *out = (double *)c.room + (uint64_t)KOLO_CUDA_BLEND_SUMS * chunk;
    kolo_blend_products<T>((const char *)it.a + from, (const char *)it.b + from, bytes, p);
    kolo_blend_fold(p);
    for (int k = 0; kolo_tid() == 0 && k < KOLO_CUDA_BLEND_SUMS; k++) out[k] = p[k];
}

KOLO_DEV void kolo_blend_run(const kolo_cuda_blend_args_t &c, bool blend)
{
    uint32_t item = 0;
    for (uint32_t chunk = kolo_bid(); chunk < c.chunks; chunk += kolo_nblocks()) {
        while (item + 1 < c.n && c.items[item + 1].first <= chunk) item++;
        const kolo_cuda_blend_item_t &it = c.items[item];
        switch (c.type) {
        case KOLO_CUDA_BLEND_FLOAT16: kolo_blend_do<kolo_half>(c, it, chunk, blend); break;
        case KOLO_CUDA_BLEND_BFLOAT16: kolo_blend_do<kolo_bfloat>(c, it, chunk, blend); break;
        case KOLO_CUDA_BLEND_FLOAT32: kolo_blend_do<float>(c, it, chunk, blend); break;
        default: kolo_blend_do<double>(c, it, chunk, blend);
        }
    }
}

/* Adds up the chunks of each part, a block for each. */
KOLO_DEV void kolo_blend_sums(const kolo_cuda_blend_args_t &c)
{
    for (uint32_t i = kolo_bid(); i < c.n; i += kolo_nblocks()) {
        const double *from = (const double *)c.room;
        uint32_t end = i + 1 < c.n ? c.items[i + 1].first : c.chunks;
        double p[KOLO_CUDA_BLEND_SUMS] = {0, 0, 0};
        for (uint32_t chunk = c.items[i].first + kolo_tid(); chunk < end; chunk += kolo_nthreads())
            for (int k = 0; k < KOLO_CUDA_BLEND_SUMS; k++) p[k] += from[(uint64_t)KOLO_CUDA_BLEND_SUMS * chunk + k];
        kolo_blend_fold(p);
        for (int k = 0; kolo_tid() == 0 && k < KOLO_CUDA_BLEND_SUMS; k++) ((double *)c.items[i].sums)[k] = p[k];
    }
}

#endif
