/* SPDX-License-Identifier: Apache-2.0
 *
 * Types and operators of the kernels, with the rules of the host's (exec/host/reduce.h): floats of 8 and 16 bits
 * are reduced in float32 over all ranks and rounded once; MIN and MAX pass a NaN on; a scale is applied to each
 * input before, integers are divided after. Vectors of 16 bytes.
 */
// clang-format off
#ifndef KOLO_GPU_CUDA_NUMERIC_CUH
#define KOLO_GPU_CUDA_NUMERIC_CUH

#include "gpu/cuda/device.cuh"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#else
#include "exec/host/reduce_types.h"
#endif

/* Types that have no arithmetic of their own. */
struct kolo_half {
    uint16_t bits;
};
struct kolo_bfloat {
    uint16_t bits;
};
struct kolo_e4m3 {
    uint8_t bits;
};
struct kolo_e5m2 {
    uint8_t bits;
};

#ifdef __CUDACC__
KOLO_DEV float kolo_widen(kolo_half x) { return __half2float(__ushort_as_half(x.bits)); }
KOLO_DEV float kolo_widen(kolo_bfloat x) { return __bfloat162float(__ushort_as_bfloat16(x.bits)); }
KOLO_DEV float kolo_widen(kolo_e4m3 x) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3))); }
KOLO_DEV float kolo_widen(kolo_e5m2 x) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E5M2))); }
/* A NaN is the one that CPUs give (exec/host/reduce_types.h), so that all have the same bits. */
KOLO_DEV void kolo_narrow(kolo_half *x, float f) { x->bits = f != f ? 0x7e00 : __half_as_ushort(__float2half_rn(f)); }
KOLO_DEV void kolo_narrow(kolo_bfloat *x, float f)
{
    x->bits = f != f ? 0x7fc0 : __bfloat16_as_ushort(__float2bfloat16_rn(f));
}
KOLO_DEV void kolo_narrow(kolo_e4m3 *x, float f) /* what is too large is NaN, too */
{
    uint8_t bits = __nv_cvt_float_to_fp8(f, __NV_NOSAT, __NV_E4M3);
    x->bits = (bits & 0x7f) == 0x7f ? 0x7f : bits;
}
KOLO_DEV void kolo_narrow(kolo_e5m2 *x, float f)
{
    x->bits = f != f ? 0x7f : __nv_cvt_float_to_fp8(f, __NV_NOSAT, __NV_E5M2);
}
KOLO_DEV void kolo_narrow(float *x, float f) { *x = f != f ? __int_as_float(0x7fc00000) : f; }
KOLO_DEV void kolo_narrow(double *x, double f) { *x = f != f ? __longlong_as_double(0x7ff8000000000000ll) : f; }
KOLO_DEV double kolo_double_of(uint64_t bits) { return __longlong_as_double((long long)bits); }
#else
KOLO_DEV float kolo_widen(kolo_half x) { return load_f16(x.bits); }
KOLO_DEV float kolo_widen(kolo_bfloat x) { return load_bf16(x.bits); }
KOLO_DEV float kolo_widen(kolo_e4m3 x) { return load_e4m3(x.bits); }
KOLO_DEV float kolo_widen(kolo_e5m2 x) { return load_e5m2(x.bits); }
KOLO_DEV void kolo_narrow(kolo_half *x, float f) { x->bits = store_f16(f); }
KOLO_DEV void kolo_narrow(kolo_bfloat *x, float f) { x->bits = store_bf16(f); }
KOLO_DEV void kolo_narrow(kolo_e4m3 *x, float f) { x->bits = store_e4m3(f); }
KOLO_DEV void kolo_narrow(kolo_e5m2 *x, float f) { x->bits = store_e5m2(f); }
KOLO_DEV void kolo_narrow(float *x, float f) { *x = f != f ? __builtin_nanf("") : f; }
KOLO_DEV void kolo_narrow(double *x, double f) { *x = f != f ? __builtin_nan("") : f; }
KOLO_DEV double kolo_double_of(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}
#endif

/* What a type is reduced in. */
template <typename T> struct kolo_acc {
    typedef T type;
    static const bool is_float = false;
};
template <> struct kolo_acc<float> {
    typedef float type;
    static const bool is_float = true;
};
template <> struct kolo_acc<double> {
    typedef double type;
    static const bool is_float = true;
};
template <> struct kolo_acc<kolo_half> : kolo_acc<float> {};
template <> struct kolo_acc<kolo_bfloat> : kolo_acc<float> {};
template <> struct kolo_acc<kolo_e4m3> : kolo_acc<float> {};
template <> struct kolo_acc<kolo_e5m2> : kolo_acc<float> {};

template <typename T> KOLO_DEV T kolo_widen(T x) { return x; }
template <typename T> KOLO_DEV void kolo_narrow(T *x, T f) { *x = f; }

/* N elements while they are reduced. */
template <typename T, int N> struct kolo_sum {
    typename kolo_acc<T>::type a[N];
};

template <typename A> KOLO_DEV A kolo_least(A a, A b) { return b < a ? b : a; }
template <typename A> KOLO_DEV A kolo_most(A a, A b) { return a < b ? b : a; }
/* A NaN wins, and -0 is less than +0. */
KOLO_DEV bool kolo_negative(float f) { return 1.0f / f < 0; }
KOLO_DEV bool kolo_negative(double f) { return 1.0 / f < 0; }
template <typename A> KOLO_DEV A kolo_least_float(A a, A b)
{
    if (a != a) return a;
    if (b != b) return b;
    if (a == b) return kolo_negative(a) ? a : b;
    return b < a ? b : a;
}
template <typename A> KOLO_DEV A kolo_most_float(A a, A b)
{
    if (a != a) return a;
    if (b != b) return b;
    if (a == b) return kolo_negative(a) ? b : a;
    return a < b ? b : a;
}
KOLO_DEV float kolo_min(float a, float b) { return kolo_least_float(a, b); }
KOLO_DEV float kolo_max(float a, float b) { return kolo_most_float(a, b); }
KOLO_DEV double kolo_min(double a, double b) { return kolo_least_float(a, b); }
KOLO_DEV double kolo_max(double a, double b) { return kolo_most_float(a, b); }
template <typename A> KOLO_DEV A kolo_min(A a, A b) { return kolo_least(a, b); }
template <typename A> KOLO_DEV A kolo_max(A a, A b) { return kolo_most(a, b); }

/* Products and sums of integers wrap, also those of narrow ones. */
template <typename A> KOLO_DEV A kolo_mul(A a, A b) { return (A)((uint64_t)a * (uint64_t)b); }
#ifdef __CUDACC__ /* rounded before it is added: nvcc would make one step of the two, with other bits than a CPU's */
KOLO_DEV float kolo_mul(float a, float b) { return __fmul_rn(a, b); }
KOLO_DEV double kolo_mul(double a, double b) { return __dmul_rn(a, b); }
#else
KOLO_DEV float kolo_mul(float a, float b) { return a * b; }
KOLO_DEV double kolo_mul(double a, double b) { return a * b; }
#endif
template <typename A> KOLO_DEV A kolo_add(A a, A b) { return (A)((uint64_t)a + (uint64_t)b); }
KOLO_DEV float kolo_add(float a, float b) { return a + b; }
KOLO_DEV double kolo_add(double a, double b) { return a + b; }

template <typename A> KOLO_DEV void kolo_factor(A *f, const kolo_cuda_args_t &c) { *f = (A)c.factor; }
KOLO_DEV void kolo_factor(float *f, const kolo_cuda_args_t &c) { *f = (float)kolo_double_of(c.factor); }
KOLO_DEV void kolo_factor(double *f, const kolo_cuda_args_t &c) { *f = kolo_double_of(c.factor); }

/* The first N elements of a vector, scaled. */
template <typename T, int N>
KOLO_DEV void kolo_sum_scaled(kolo_sum<T, N> *s, kolo_vec_t v, const kolo_cuda_args_t &c, bool scale)
{
    typedef typename kolo_acc<T>::type A;
    union {
        kolo_vec_t v;
        T e[16 / sizeof(T)];
    } u;
    u.v = v;
#pragma unroll
    for (int i = 0; i < N; i++) s->a[i] = kolo_widen(u.e[i]);
    if (scale) {
        A f;
        if (c.factor_at)
            f = kolo_widen(*(const T *)c.factor_at);
        else
            kolo_factor(&f, c);
#pragma unroll
        for (int i = 0; i < N; i++) s->a[i] = kolo_mul(s->a[i], f);
    }
}
/* Bitwise and logical operators, which floats do not have. */
template <typename A> KOLO_DEV A kolo_bits(A a, A b, uint32_t op)
{
    switch (op) {
    case KOLO_CUDA_BAND:
        return a & b;
    case KOLO_CUDA_BOR:
        return a | b;
    case KOLO_CUDA_BXOR:
        return a ^ b;
    case KOLO_CUDA_LAND:
        return a && b;
    case KOLO_CUDA_LOR:
        return a || b;
    default:
        return !a != !b;
    }
}
KOLO_DEV float kolo_bits(float a, float, uint32_t) { return a; }
KOLO_DEV double kolo_bits(double a, double, uint32_t) { return a; }

template <typename T, int N> KOLO_DEV void kolo_sum_begin(kolo_sum<T, N> *s, kolo_vec_t v, const kolo_cuda_args_t &c)
{
    kolo_sum_scaled(s, v, c, c.scale == KOLO_CUDA_SCALE_COMMON);
}
template <typename T, int N>
KOLO_DEV void kolo_sum_join(kolo_sum<T, N> *s, const kolo_sum<T, N> &o, const kolo_cuda_args_t &c)
{
    if (c.op == KOLO_CUDA_SUM) { /* asked first: it is most of them */
#pragma unroll
        for (int i = 0; i < N; i++) s->a[i] = kolo_add(s->a[i], o.a[i]);
        return;
    }
    switch (c.op) {
    case KOLO_CUDA_PROD:
#pragma unroll
        for (int i = 0; i < N; i++) s->a[i] = kolo_mul(s->a[i], o.a[i]);
        break;
    case KOLO_CUDA_MIN:
#pragma unroll
        for (int i = 0; i < N; i++) s->a[i] = kolo_min(s->a[i], o.a[i]);
        break;
    case KOLO_CUDA_MAX:
#pragma unroll
        for (int i = 0; i < N; i++) s->a[i] = kolo_max(s->a[i], o.a[i]);
        break;
    default:
#pragma unroll
        for (int i = 0; i < N; i++) s->a[i] = kolo_bits(s->a[i], o.a[i], c.op);
    }
}
template <typename T, int N> KOLO_DEV void kolo_sum_add(kolo_sum<T, N> *s, kolo_vec_t v, const kolo_cuda_args_t &c)
{
    kolo_sum<T, N> o;
    kolo_sum_begin(&o, v, c);
    kolo_sum_join(s, o, c);
}
template <typename T> KOLO_DEV T kolo_divided(T a, uint32_t n)
{
    if ((T)-1 < (T)0) return (T)((int64_t)a / (int64_t)n);
    return (T)((uint64_t)a / n);
}
#ifdef __CUDACC__
KOLO_DEV float kolo_divided(float a, uint32_t n) { return __fdiv_rn(a, (float)n); }
KOLO_DEV double kolo_divided(double a, uint32_t n) { return __ddiv_rn(a, (double)n); }
#else
KOLO_DEV float kolo_divided(float a, uint32_t n) { return a / (float)n; }
KOLO_DEV double kolo_divided(double a, uint32_t n) { return a / (double)n; }
#endif
template <typename A> KOLO_DEV A kolo_finished(A a, const kolo_cuda_args_t &c, uint32_t finish)
{
    return finish == KOLO_CUDA_TRUTH ? (A)(a != 0) : kolo_divided(a, c.layout.nranks);
}
template <typename T, int N>
KOLO_DEV kolo_vec_t kolo_sum_rounded(kolo_sum<T, N> *s, const kolo_cuda_args_t &c, uint32_t finish)
{
    union {
        kolo_vec_t v;
        T e[16 / sizeof(T)];
    } u;
    u.v.w[0] = u.v.w[1] = u.v.w[2] = u.v.w[3] = 0;
#pragma unroll
    for (int i = 0; i < N; i++) kolo_narrow(&u.e[i], finish ? kolo_finished(s->a[i], c, finish) : s->a[i]);
    return u.v;
}
template <typename T, int N> KOLO_DEV kolo_vec_t kolo_sum_end(kolo_sum<T, N> *s, const kolo_cuda_args_t &c)
{
    return kolo_sum_rounded(s, c, c.finish);
}
/* This rank's input as the others see it. */
template <typename T, int N> KOLO_DEV kolo_vec_t kolo_own_input(kolo_vec_t v, const kolo_cuda_args_t &c)
{
    if (c.scale != KOLO_CUDA_SCALE_OWN) return v;
    kolo_sum<T, N> s;
    kolo_sum_scaled(&s, v, c, true);
    return kolo_sum_rounded(&s, c, KOLO_CUDA_AS_IT_IS);
}

#endif
