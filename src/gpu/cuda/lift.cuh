/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing and unpacking of an engine's tensors within the memory of one GPU: each item is copied, or multiplied by a
 * factor by the same rules as on the CPU (engine/values.c), or filled. Blocks take chunks of all items in turn.
 */
#ifndef KOLO_GPU_CUDA_LIFT_CUH
#define KOLO_GPU_CUDA_LIFT_CUH

#include "gpu/cuda/device.cuh"
#include "gpu/cuda/numeric.cuh"

/* Integers are multiplied in double, truncated, and kept in range. The largest double below the end of a 64-bit
 * type is less than its largest value, so what reaches the double beyond becomes the limit. */
template <typename T> KOLO_DEV T kolo_scaled(T x, double factor)
{
    const bool is_signed = (T)-1 < (T)0;
    const T most = is_signed ? (T)(((uint64_t)1 << (8 * sizeof(T) - 1)) - 1) : (T)-1;
    const T least = is_signed ? (T)(-(int64_t)most - 1) : (T)0;
    double v = (double)x * factor;
    if (v != v) return 0;
    if (v <= (double)least) return least;
    if (v >= (double)most) return most;
    return (T)v;
}
KOLO_DEV float kolo_scaled(float x, double factor) { return x * (float)factor; }
KOLO_DEV double kolo_scaled(double x, double factor) { return x * factor; }
template <typename T> KOLO_DEV void kolo_scale_one(T *to, const T *from, double factor)
{
    kolo_narrow(to, kolo_scaled(kolo_widen(*from), factor));
}

template <typename T> KOLO_DEV void kolo_lift_scaled(char *to, const char *from, uint64_t bytes, double factor)
{
    for (uint64_t i = kolo_tid(); i < bytes / sizeof(T); i += kolo_nthreads())
        kolo_scale_one((T *)to + i, (const T *)from + i, factor);
}

/* The begins of items are aligned to their elements at both ends, so a word of that length never straddles. */
template <typename W> KOLO_DEV void kolo_lift_words(char *to, const char *from, uint64_t bytes)
{
    for (uint64_t i = kolo_tid(); i < bytes / sizeof(W); i += kolo_nthreads()) ((W *)to)[i] = ((const W *)from)[i];
}
KOLO_DEV void kolo_lift_plain(char *to, const char *from, uint64_t bytes)
{
    uint64_t both = (uint64_t)to | (uint64_t)from, whole = bytes;
    if ((both & 15) == 0) {
        whole = bytes & ~(uint64_t)15;
        kolo_lift_words<kolo_vec_t>(to, from, whole);
    } else if ((both & 3) == 0) {
        whole = bytes & ~(uint64_t)3;
        kolo_lift_words<uint32_t>(to, from, whole);
    } else {
        whole = 0;
    }
    kolo_lift_words<uint8_t>(to + whole, from + whole, bytes - whole);
}

/* Chunks begin at multiples of the word. */
KOLO_DEV void kolo_lift_fill(char *to, uint64_t bytes, uint64_t word)
{
    uint64_t whole = ((uint64_t)to & 7) == 0 ? bytes & ~(uint64_t)7 : 0;
    for (uint64_t i = kolo_tid(); i < whole / 8; i += kolo_nthreads()) ((uint64_t *)to)[i] = word;
    for (uint64_t i = whole + kolo_tid(); i < bytes; i += kolo_nthreads()) to[i] = (char)(word >> 8 * (i & 7));
}

KOLO_DEV void kolo_lift_chunk(const kolo_cuda_lift_item_t &it, uint64_t at, uint64_t bytes)
{
    char *to = (char *)it.to + at;
    const char *from = (const char *)it.from + at;
    double factor = kolo_double_of(it.factor);
    switch (it.what) {
    case KOLO_CUDA_LIFT_COPY: kolo_lift_plain(to, from, bytes); break;
    case KOLO_CUDA_LIFT_INT8: kolo_lift_scaled<int8_t>(to, from, bytes, factor); break;
    case KOLO_CUDA_LIFT_UINT8: kolo_lift_scaled<uint8_t>(to, from, bytes, factor); break;
    case KOLO_CUDA_LIFT_INT32: kolo_lift_scaled<int32_t>(to, from, bytes, factor); break;
    case KOLO_CUDA_LIFT_UINT32: kolo_lift_scaled<uint32_t>(to, from, bytes, factor); break;
    case KOLO_CUDA_LIFT_INT64: kolo_lift_scaled<int64_t>(to, from, bytes, factor); break;
    case KOLO_CUDA_LIFT_UINT64: kolo_lift_scaled<uint64_t>(to, from, bytes, factor); break;
    case KOLO_CUDA_LIFT_FLOAT16: kolo_lift_scaled<kolo_half>(to, from, bytes, factor); break;
    case KOLO_CUDA_LIFT_BFLOAT16: kolo_lift_scaled<kolo_bfloat>(to, from, bytes, factor); break;
    case KOLO_CUDA_LIFT_FLOAT32: kolo_lift_scaled<float>(to, from, bytes, factor); break;
    case KOLO_CUDA_LIFT_FLOAT64: kolo_lift_scaled<double>(to, from, bytes, factor); break;
    case KOLO_CUDA_LIFT_FILL: kolo_lift_fill(to, bytes, it.factor); break;
    case KOLO_CUDA_LIFT_E4M3: kolo_lift_scaled<kolo_e4m3>(to, from, bytes, factor); break;
    default: kolo_lift_scaled<kolo_e5m2>(to, from, bytes, factor);
    }
}

KOLO_DEV void kolo_lift(const kolo_cuda_lift_args_t &c)
{
    uint32_t item = 0;
    for (uint32_t chunk = kolo_bid(); chunk < c.chunks; chunk += kolo_nblocks()) {
        while (item + 1 < c.n && c.items[item + 1].first <= chunk) item++;
        const kolo_cuda_lift_item_t &it = c.items[item];
        uint64_t at = (uint64_t)(chunk - it.first) * KOLO_CUDA_LIFT_CHUNK, left = it.bytes - at;
        kolo_lift_chunk(it, at, left < KOLO_CUDA_LIFT_CHUNK ? left : KOLO_CUDA_LIFT_CHUNK);
    }
}

#endif
