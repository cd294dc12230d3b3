/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of the reductions, one per type and operator, written for the compiler to vectorise. The build compiles
 * this file once per instruction set with KOLO_REDUCE_TABLE naming the table and KOLO_REDUCE_ISA its text. Every
 * build does the same operations in the same order and makes NaN results canonical, so all give the same bits.
 *
 * A loop runs in blocks of a fixed number of elements: that unrolls well, and leaves a place to prefetch one
 * kilobyte ahead, which gains about a tenth once the data come from beyond the second-level cache.
 */
#include "exec/host/reduce_table.h"
#include "exec/host/reduce_types.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define BLOCK_BYTES 256
#define BLOCK(T)    (sizeof(T) >= 4 ? BLOCK_BYTES / sizeof(T) : 64)
#define AHEAD_BYTES 1024

KOLO_INLINE void prefetch(const void *p, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char *)p + AHEAD_BYTES + at, 0, 3);
}

#define FOLD2(LOAD, OP) OP(LOAD(s0[i]), LOAD(s1[i]))
#define FOLD3(LOAD, OP) OP(FOLD2(LOAD, OP), LOAD(s2[i]))
#define FOLD4(LOAD, OP) OP(FOLD3(LOAD, OP), LOAD(s3[i]))
#define FOLD5(LOAD, OP) OP(FOLD4(LOAD, OP), LOAD(s4[i]))
#define FOLD6(LOAD, OP) OP(FOLD5(LOAD, OP), LOAD(s5[i]))
#define FOLD7(LOAD, OP) OP(FOLD6(LOAD, OP), LOAD(s6[i]))
#define FOLD8(LOAD, OP) OP(FOLD7(LOAD, OP), LOAD(s7[i]))

/* The first `n` elements that fill whole blocks, then the rest. */
#define RUN(N, T, VALUE)                                                                                           \
    for (; n - at >= BLOCK(T); at += BLOCK(T)) {                                                                   \
        if ((n - at) * sizeof(T) >= AHEAD_BYTES + BLOCK_BYTES)                                                     \
            for (int k = 0; k < (N); k++) prefetch((const T *)srcs[k] + at, BLOCK(T) * sizeof(T));                 \
        INDEPENDENT for (size_t i = at; i < at + BLOCK(T); i++) d[i] = (VALUE);                                    \
    }                                                                                                              \
    INDEPENDENT for (size_t i = at; i < n; i++) d[i] = (VALUE)

#define KERNEL(name, T, ACC, LOAD, OP, STORE)                                                                      \
    static void name(void *dst, const void *const *srcs, int nsrcs, size_t n)                                      \
    {                                                                                                              \
        T *d = dst;                                                                                                \
        const T *s0 = srcs[0], *s1 = srcs[1];                                                                      \
        size_t at = 0;                                                                                             \
        if (nsrcs == 2) {                                                                                          \
            RUN(2, T, STORE(FOLD2(LOAD, OP)));                                                                     \
        } else if (nsrcs == 3) {                                                                                   \
            const T *s2 = srcs[2];                                                                                 \
            RUN(3, T, STORE(FOLD3(LOAD, OP)));                                                                     \
        } else if (nsrcs == 4) {                                                                                   \
            const T *s2 = srcs[2], *s3 = srcs[3];                                                                  \
            RUN(4, T, STORE(FOLD4(LOAD, OP)));                                                                     \
        } else if (nsrcs == 8) {                                                                                   \
            const T *s2 = srcs[2], *s3 = srcs[3], *s4 = srcs[4], *s5 = srcs[5], *s6 = srcs[6], *s7 = srcs[7];      \
            RUN(8, T, STORE(FOLD8(LOAD, OP)));                                                                     \
        } else {                                                                                                   \
            ACC acc[BLOCK(T)];                                                                                     \
            for (size_t m = BLOCK(T); at < n; at += m) {                                                           \
                if (m > n - at) m = n - at;                                                                        \
                for (size_t i = 0; i < m; i++) acc[i] = LOAD(s0[at + i]);                                          \
                for (int k = 1; k < nsrcs; k++) {                                                                  \
                    const T *s = (const T *)srcs[k] + at;                                                          \
                    prefetch(s, BLOCK(T) * sizeof(T));                                                             \
                    for (size_t i = 0; i < m; i++) acc[i] = OP(acc[i], LOAD(s[i]));                                \
                }                                                                                                  \
                for (size_t i = 0; i < m; i++) d[at + i] = STORE(acc[i]);                                          \
            }                                                                                                      \
        }                                                                                                          \
    }

#define SAME(x)   (x)
#define ADD(a, b) ((a) + (b))
#define MUL(a, b) ((a) * (b))
/* 16 bits would be multiplied as int, which may overflow. */
#define MUL_WIDE(a, b) ((uint32_t)(a) * (uint32_t)(b))
#define LESS(a, b)     ((a) < (b) ? (a) : (b))
#define MORE(a, b)     ((a) > (b) ? (a) : (b))
/* Operands that are expressions are evaluated once. */
#define PICKER(name, T, PICK)                                                                                      \
    KOLO_INLINE T name(T a, T b)                                                                                   \
    {                                                                                                              \
        return PICK(a, b);                                                                                         \
    }
PICKER(min_of_i8, int8_t, LESS)
PICKER(max_of_i8, int8_t, MORE)
PICKER(min_of_u8, uint8_t, LESS)
PICKER(max_of_u8, uint8_t, MORE)
PICKER(min_of_i16, int16_t, LESS)
PICKER(max_of_i16, int16_t, MORE)
PICKER(min_of_u16, uint16_t, LESS)
PICKER(max_of_u16, uint16_t, MORE)
PICKER(min_of_i32, int32_t, LESS)
PICKER(max_of_i32, int32_t, MORE)
PICKER(min_of_u32, uint32_t, LESS)
PICKER(max_of_u32, uint32_t, MORE)
PICKER(min_of_i64, int64_t, LESS)
PICKER(max_of_i64, int64_t, MORE)
PICKER(min_of_u64, uint64_t, LESS)
PICKER(max_of_u64, uint64_t, MORE)

/* Integers: unsigned arithmetic wraps, and its low bits are those of the signed. */
#define NARROW8(x) ((uint8_t)(x))
KERNEL(sum_8, u8_t, uint8_t, SAME, ADD, NARROW8)
KERNEL(prod_8, u8_t, uint8_t, SAME, MUL, NARROW8)
KERNEL(min_i8, i8_t, int8_t, SAME, min_of_i8, SAME)
KERNEL(max_i8, i8_t, int8_t, SAME, max_of_i8, SAME)
KERNEL(min_u8, u8_t, uint8_t, SAME, min_of_u8, SAME)
KERNEL(max_u8, u8_t, uint8_t, SAME, max_of_u8, SAME)
#define NARROW16(x) ((uint16_t)(x))
KERNEL(sum_16, u16_t, uint16_t, SAME, ADD, NARROW16)
KERNEL(prod_16, u16_t, uint32_t, SAME, MUL_WIDE, NARROW16)
KERNEL(min_i16, i16_t, int16_t, SAME, min_of_i16, SAME)
KERNEL(max_i16, i16_t, int16_t, SAME, max_of_i16, SAME)
KERNEL(min_u16, u16_t, uint16_t, SAME, min_of_u16, SAME)
KERNEL(max_u16, u16_t, uint16_t, SAME, max_of_u16, SAME)
KERNEL(sum_32, u32_t, uint32_t, SAME, ADD, SAME)
KERNEL(prod_32, u32_t, uint32_t, SAME, MUL, SAME)
KERNEL(min_i32, i32_t, int32_t, SAME, min_of_i32, SAME)
KERNEL(max_i32, i32_t, int32_t, SAME, max_of_i32, SAME)
KERNEL(min_u32, u32_t, uint32_t, SAME, min_of_u32, SAME)
KERNEL(max_u32, u32_t, uint32_t, SAME, max_of_u32, SAME)
KERNEL(sum_64, u64_t, uint64_t, SAME, ADD, SAME)
KERNEL(prod_64, u64_t, uint64_t, SAME, MUL, SAME)
KERNEL(min_i64, i64_t, int64_t, SAME, min_of_i64, SAME)
KERNEL(max_i64, i64_t, int64_t, SAME, max_of_i64, SAME)
KERNEL(min_u64, u64_t, uint64_t, SAME, min_of_u64, SAME)
KERNEL(max_u64, u64_t, uint64_t, SAME, max_of_u64, SAME)

/* Bits, and truth values: those of an operand are made where it is loaded. */
#define AND(a, b)  ((a) & (b))
#define OR(a, b)   ((a) | (b))
#define XOR(a, b)  ((a) ^ (b))
#define TRUTH8(x)  ((uint8_t)((x) != 0))
#define TRUTH16(x) ((uint16_t)((x) != 0))
#define TRUTH32(x) ((uint32_t)((x) != 0))
#define TRUTH64(x) ((uint64_t)((x) != 0))
KERNEL(band_8, u8_t, uint8_t, SAME, AND, NARROW8)
KERNEL(bor_8, u8_t, uint8_t, SAME, OR, NARROW8)
KERNEL(bxor_8, u8_t, uint8_t, SAME, XOR, NARROW8)
/* Bits do not know how wide their element is. */
#define AS_BYTES(name, kernel, bytes)                                                                              \
    static void name(void *dst, const void *const *srcs, int nsrcs, size_t n)                                      \
    {                                                                                                              \
        kernel(dst, srcs, nsrcs, n *(bytes));                                                                      \
    }
AS_BYTES(band_16, band_8, 2)
AS_BYTES(band_32, band_8, 4)
AS_BYTES(band_64, band_8, 8)
AS_BYTES(bor_16, bor_8, 2)
AS_BYTES(bor_32, bor_8, 4)
AS_BYTES(bor_64, bor_8, 8)
AS_BYTES(bxor_16, bxor_8, 2)
AS_BYTES(bxor_32, bxor_8, 4)
AS_BYTES(bxor_64, bxor_8, 8)
KERNEL(land_8, u8_t, uint8_t, TRUTH8, AND, NARROW8)
KERNEL(lor_8, u8_t, uint8_t, TRUTH8, OR, NARROW8)
KERNEL(lxor_8, u8_t, uint8_t, TRUTH8, XOR, NARROW8)
KERNEL(land_16, u16_t, uint16_t, TRUTH16, AND, NARROW16)
KERNEL(lor_16, u16_t, uint16_t, TRUTH16, OR, NARROW16)
KERNEL(lxor_16, u16_t, uint16_t, TRUTH16, XOR, NARROW16)
KERNEL(land_32, u32_t, uint32_t, TRUTH32, AND, SAME)
KERNEL(lor_32, u32_t, uint32_t, TRUTH32, OR, SAME)
KERNEL(lxor_32, u32_t, uint32_t, TRUTH32, XOR, SAME)
KERNEL(land_64, u64_t, uint64_t, TRUTH64, AND, SAME)
KERNEL(lor_64, u64_t, uint64_t, TRUTH64, OR, SAME)
KERNEL(lxor_64, u64_t, uint64_t, TRUTH64, XOR, SAME)

/* Floats: sums and products. */
KERNEL(sum_f32, u32_t, float, load_f32, ADD, store_f32)
KERNEL(prod_f32, u32_t, float, load_f32, MUL, store_f32)
KERNEL(sum_f64, u64_t, double, load_f64, ADD, store_f64)
KERNEL(prod_f64, u64_t, double, load_f64, MUL, store_f64)
KERNEL(sum_bf16, u16_t, float, load_bf16, ADD, store_bf16)
KERNEL(prod_bf16, u16_t, float, load_bf16, MUL, store_bf16)
KERNEL(sum_e4m3, u8_t, float, load_e4m3, ADD, store_e4m3)
KERNEL(prod_e4m3, u8_t, float, load_e4m3, MUL, store_e4m3)
KERNEL(sum_e5m2, u8_t, float, load_e5m2, ADD, store_e5m2)
KERNEL(prod_e5m2, u8_t, float, load_e5m2, MUL, store_e5m2)

/* Means of all operands of a fold: divided before they are rounded. */
#define MEAN_F32(x)  store_f32((x) / (float)nsrcs)
#define MEAN_F64(x)  store_f64((x) / (double)nsrcs)
#define MEAN_BF16(x) store_bf16((x) / (float)nsrcs)
#define MEAN_E4M3(x) store_e4m3((x) / (float)nsrcs)
#define MEAN_E5M2(x) store_e5m2((x) / (float)nsrcs)
KERNEL(mean_f32, u32_t, float, load_f32, ADD, MEAN_F32)
KERNEL(mean_f64, u64_t, double, load_f64, ADD, MEAN_F64)
KERNEL(mean_bf16, u16_t, float, load_bf16, ADD, MEAN_BF16)
KERNEL(mean_e4m3, u8_t, float, load_e4m3, ADD, MEAN_E4M3)
KERNEL(mean_e5m2, u8_t, float, load_e5m2, ADD, MEAN_E5M2)

/* Floats: minimum and maximum on keys (reduce_types.h). */
#define MIN_KEY_F64(x)  key_f64((x), INT64_MIN)
#define MAX_KEY_F64(x)  key_f64((x), INT64_MAX)
#define MIN_KEY_F32(x)  key_f32((x), INT32_MIN)
#define MAX_KEY_F32(x)  key_f32((x), INT32_MAX)
#define MIN_KEY_F16(x)  key_f16((x), KOLO_F16_INF, INT16_MIN)
#define MAX_KEY_F16(x)  key_f16((x), KOLO_F16_INF, INT16_MAX)
#define MIN_KEY_BF16(x) key_f16((x), KOLO_BF16_INF, INT16_MIN)
#define MAX_KEY_BF16(x) key_f16((x), KOLO_BF16_INF, INT16_MAX)
#define MIN_KEY_E4M3(x) key_f8((x), KOLO_E4M3_NAN - 1, INT8_MIN)
#define MAX_KEY_E4M3(x) key_f8((x), KOLO_E4M3_NAN - 1, INT8_MAX)
#define MIN_KEY_E5M2(x) key_f8((x), KOLO_E5M2_INF, INT8_MIN)
#define MAX_KEY_E5M2(x) key_f8((x), KOLO_E5M2_INF, INT8_MAX)
#define UNKEY(name, BITS, KEY, NAN_KEY, NAN_BITS, key)                                                             \
    KOLO_INLINE BITS name(KEY k)                                                                                   \
    {                                                                                                              \
        return k == (NAN_KEY) ? (BITS)(NAN_BITS) : (BITS)key(k);                                                   \
    }
UNKEY(of_min_f64, uint64_t, int64_t, INT64_MIN, 0x7ff8000000000000ull, key64)
UNKEY(of_max_f64, uint64_t, int64_t, INT64_MAX, 0x7ff8000000000000ull, key64)
UNKEY(of_min_f32, uint32_t, int32_t, INT32_MIN, 0x7fc00000u, key32)
UNKEY(of_max_f32, uint32_t, int32_t, INT32_MAX, 0x7fc00000u, key32)
UNKEY(of_min_f16, uint16_t, int16_t, INT16_MIN, KOLO_F16_NAN, key16)
UNKEY(of_max_f16, uint16_t, int16_t, INT16_MAX, KOLO_F16_NAN, key16)
UNKEY(of_min_bf16, uint16_t, int16_t, INT16_MIN, KOLO_BF16_NAN, key16)
UNKEY(of_max_bf16, uint16_t, int16_t, INT16_MAX, KOLO_BF16_NAN, key16)
UNKEY(of_min_e4m3, uint8_t, int8_t, INT8_MIN, KOLO_E4M3_NAN, key8)
UNKEY(of_max_e4m3, uint8_t, int8_t, INT8_MAX, KOLO_E4M3_NAN, key8)
UNKEY(of_min_e5m2, uint8_t, int8_t, INT8_MIN, KOLO_E5M2_NAN, key8)
UNKEY(of_max_e5m2, uint8_t, int8_t, INT8_MAX, KOLO_E5M2_NAN, key8)
KERNEL(min_f64, u64_t, int64_t, MIN_KEY_F64, min_of_i64, of_min_f64)
KERNEL(max_f64, u64_t, int64_t, MAX_KEY_F64, max_of_i64, of_max_f64)
KERNEL(min_f32, u32_t, int32_t, MIN_KEY_F32, min_of_i32, of_min_f32)
KERNEL(max_f32, u32_t, int32_t, MAX_KEY_F32, max_of_i32, of_max_f32)
KERNEL(min_f16, u16_t, int16_t, MIN_KEY_F16, min_of_i16, of_min_f16)
KERNEL(max_f16, u16_t, int16_t, MAX_KEY_F16, max_of_i16, of_max_f16)
KERNEL(min_bf16, u16_t, int16_t, MIN_KEY_BF16, min_of_i16, of_min_bf16)
KERNEL(max_bf16, u16_t, int16_t, MAX_KEY_BF16, max_of_i16, of_max_bf16)
KERNEL(min_e4m3, u8_t, int8_t, MIN_KEY_E4M3, min_of_i8, of_min_e4m3)
KERNEL(max_e4m3, u8_t, int8_t, MAX_KEY_E4M3, max_of_i8, of_max_e4m3)
KERNEL(min_e5m2, u8_t, int8_t, MIN_KEY_E5M2, min_of_i8, of_min_e5m2)
KERNEL(max_e5m2, u8_t, int8_t, MAX_KEY_E5M2, max_of_i8, of_max_e5m2)

/* ---- float16: the conversion instructions where there are any; compilers do not find them by themselves ---- */

#if defined(__AVX512F__)
#define HALF_LANES 16
typedef __m512 half_acc_t;
KOLO_INLINE __m512 half_load(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
KOLO_INLINE void half_store(void *p, __m512 v)
{
    v = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), v, _mm512_set1_ps(__builtin_nanf("")));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#define HALF_ADD     _mm512_add_ps
#define HALF_MUL     _mm512_mul_ps
#define HALF_DIV     _mm512_div_ps
#define HALF_SAME(x) _mm512_set1_ps(x)
#elif defined(__F16C__) && defined(__AVX2__)
#define HALF_LANES   8
typedef __m256 half_acc_t;
KOLO_INLINE __m256 half_load(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
KOLO_INLINE void half_store(void *p, __m256 v)
{
    v = _mm256_blendv_ps(v, _mm256_set1_ps(__builtin_nanf("")), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#define HALF_ADD     _mm256_add_ps
#define HALF_MUL     _mm256_mul_ps
#define HALF_DIV     _mm256_div_ps
#define HALF_SAME(x) _mm256_set1_ps(x)
#endif

#if defined(HALF_LANES)
typedef enum { HALF_SUM, HALF_PROD, HALF_MEAN } half_kind_t;

KOLO_INLINE half_acc_t half_combine(half_acc_t a, half_acc_t b, half_kind_t kind)
{
    return kind == HALF_PROD ? HALF_MUL(a, b) : HALF_ADD(a, b);
}
KOLO_INLINE half_acc_t half_end(half_acc_t a, int nsrcs, half_kind_t kind)
{
    return kind == HALF_MEAN ? HALF_DIV(a, HALF_SAME((float)nsrcs)) : a;
}

/* `kind` is a constant where this is called, so each caller is a loop without a choice. */
KOLO_INLINE void half_fold(u16_t *d, const u16_t *const *srcs, int nsrcs, size_t n, half_kind_t kind)
{
    uint16_t rest[HALF_LANES] = {0};
    size_t at = 0;
    half_acc_t a, b;
    for (; n - at >= 2 * HALF_LANES; at += 2 * HALF_LANES) {
        a = half_load(srcs[0] + at);
        b = half_load(srcs[0] + at + HALF_LANES);
        for (int k = 1; k < nsrcs; k++) {
            const u16_t *s = srcs[k] + at;
            __builtin_prefetch((const char *)s + AHEAD_BYTES, 0, 3);
            a = half_combine(a, half_load(s), kind);
            b = half_combine(b, half_load(s + HALF_LANES), kind);
        }
        half_store(d + at, half_end(a, nsrcs, kind));
        half_store(d + at + HALF_LANES, half_end(b, nsrcs, kind));
    }
    for (size_t m = HALF_LANES; at < n; at += m) {
        if (m > n - at) m = n - at;
        memcpy(rest, srcs[0] + at, m * 2);
        a = half_load(rest);
        for (int k = 1; k < nsrcs; k++) {
            memcpy(rest, srcs[k] + at, m * 2);
            a = half_combine(a, half_load(rest), kind);
        }
        half_store(rest, half_end(a, nsrcs, kind));
        memcpy(d + at, rest, m * 2);
    }
}

static void sum_f16(void *dst, const void *const *srcs, int nsrcs, size_t n)
{
    half_fold(dst, (const u16_t *const *)srcs, nsrcs, n, HALF_SUM);
}

static void prod_f16(void *dst, const void *const *srcs, int nsrcs, size_t n)
{
    half_fold(dst, (const u16_t *const *)srcs, nsrcs, n, HALF_PROD);
}

static void mean_f16(void *dst, const void *const *srcs, int nsrcs, size_t n)
{
    half_fold(dst, (const u16_t *const *)srcs, nsrcs, n, HALF_MEAN);
}
#else
KERNEL(sum_f16, u16_t, float, load_f16, ADD, store_f16)
KERNEL(prod_f16, u16_t, float, load_f16, MUL, store_f16)
#define MEAN_F16(x) store_f16((x) / (float)nsrcs)
KERNEL(mean_f16, u16_t, float, load_f16, ADD, MEAN_F16)
#endif

/* ---- scaling ---- */

#define SCALE(name, T, LOAD, STORE, FACTOR)                                                                        \
    static void name(void *dst, const void *src, size_t n, double by_float, int64_t by_int)                        \
    {                                                                                                              \
        T *d = dst;                                                                                                \
        const T *s = src;                                                                                          \
        const __typeof__(FACTOR) factor = (FACTOR);                                                                \
        (void)by_float, (void)by_int;                                                                              \
        INDEPENDENT for (size_t i = 0; i < n; i++) d[i] = STORE(LOAD(s[i]) * factor);                              \
    }
SCALE(scale_8, u8_t, SAME, NARROW8, (uint8_t)by_int)
SCALE(scale_16, u16_t, SAME, NARROW16, (uint16_t)by_int)
SCALE(scale_32, u32_t, SAME, SAME, (uint32_t)by_int)
SCALE(scale_64, u64_t, SAME, SAME, (uint64_t)by_int)
SCALE(scale_f32, u32_t, load_f32, store_f32, (float)by_float)
SCALE(scale_f64, u64_t, load_f64, store_f64, by_float)
SCALE(scale_f16, u16_t, load_f16, store_f16, (float)by_float)
SCALE(scale_bf16, u16_t, load_bf16, store_bf16, (float)by_float)
SCALE(scale_e4m3, u8_t, load_e4m3, store_e4m3, (float)by_float)
SCALE(scale_e5m2, u8_t, load_e5m2, store_e5m2, (float)by_float)

/* ---- copies past the cache ---- */

#if defined(__x86_64__)
static void stream_copy(void *dst, const void *src, size_t bytes)
{
    char *d = dst;
    const char *s = src;
    size_t head = (64 - ((uintptr_t)d & 63)) & 63;
    if (bytes < 512) {
        memcpy(d, s, bytes);
        return;
    }
    memcpy(d, s, head);
    d += head, s += head, bytes -= head;
    for (; bytes >= 64; bytes -= 64, d += 64, s += 64) {
        __builtin_prefetch(s + AHEAD_BYTES, 0, 3);
#if defined(__AVX512F__)
        _mm512_stream_si512((__m512i *)(void *)d, _mm512_loadu_si512(s));
#elif defined(__AVX2__)
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)s);
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(s + 32));
        _mm256_stream_si256((__m256i *)(void *)d, a);
        _mm256_stream_si256((__m256i *)(void *)(d + 32), b);
#else
        for (int k = 0; k < 64; k += 16)
            _mm_stream_si128((__m128i *)(void *)(d + k), _mm_loadu_si128((const __m128i *)(const void *)(s + k)));
#endif
    }
    memcpy(d, s, bytes);
    _mm_sfence();
}
#else
static void stream_copy(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}
#endif

const kolo_reduce_table_t KOLO_REDUCE_TABLE =
    {
        .name = KOLO_REDUCE_ISA,
        .fold =
            {
                [KOLO_INT8] = {sum_8, prod_8, min_i8, max_i8, [KOLO_BAND] = band_8, bor_8, bxor_8, land_8, lor_8,
                               lxor_8},
                [KOLO_UINT8] = {sum_8, prod_8, min_u8, max_u8, [KOLO_BAND] = band_8, bor_8, bxor_8, land_8, lor_8,
                                lxor_8},
                [KOLO_INT32] = {sum_32, prod_32, min_i32, max_i32, [KOLO_BAND] = band_32, bor_32, bxor_32, land_32,
                                lor_32, lxor_32},
                [KOLO_UINT32] = {sum_32, prod_32, min_u32, max_u32, [KOLO_BAND] = band_32, bor_32, bxor_32, land_32,
                                 lor_32, lxor_32},
                [KOLO_INT64] = {sum_64, prod_64, min_i64, max_i64, [KOLO_BAND] = band_64, bor_64, bxor_64, land_64,
                                lor_64, lxor_64},
                [KOLO_UINT64] = {sum_64, prod_64, min_u64, max_u64, [KOLO_BAND] = band_64, bor_64, bxor_64, land_64,
                                 lor_64, lxor_64},
                [KOLO_FLOAT16] = {sum_f16, prod_f16, min_f16, max_f16, mean_f16},
                [KOLO_BFLOAT16] = {sum_bf16, prod_bf16, min_bf16, max_bf16, mean_bf16},
                [KOLO_FLOAT32] = {sum_f32, prod_f32, min_f32, max_f32, mean_f32},
                [KOLO_FLOAT64] = {sum_f64, prod_f64, min_f64, max_f64, mean_f64},
                [KOLO_FLOAT8_E4M3] = {sum_e4m3, prod_e4m3, min_e4m3, max_e4m3, mean_e4m3},
                [KOLO_FLOAT8_E5M2] = {sum_e5m2, prod_e5m2, min_e5m2, max_e5m2, mean_e5m2},
                [KOLO_INT16] = {sum_16, prod_16, min_i16, max_i16, [KOLO_BAND] = band_16, bor_16, bxor_16, land_16,
                                lor_16, lxor_16},
                [KOLO_UINT16] = {sum_16, prod_16, min_u16, max_u16, [KOLO_BAND] = band_16, bor_16, bxor_16, land_16,
                                 lor_16, lxor_16},
                [KOLO_BOOL] = {lor_8, land_8, land_8, lor_8, [KOLO_BAND] = land_8, lor_8,
                               lxor_8, land_8, lor_8, lxor_8},
            },
        .scale =
            {
                [KOLO_INT8] = scale_8,
                [KOLO_UINT8] = scale_8,
                [KOLO_INT32] = scale_32,
                [KOLO_UINT32] = scale_32,
                [KOLO_INT64] = scale_64,
                [KOLO_UINT64] = scale_64,
                [KOLO_FLOAT16] = scale_f16,
                [KOLO_BFLOAT16] = scale_bf16,
                [KOLO_FLOAT32] = scale_f32,
                [KOLO_FLOAT64] = scale_f64,
                [KOLO_FLOAT8_E4M3] = scale_e4m3,
                [KOLO_FLOAT8_E5M2] = scale_e5m2,
                [KOLO_INT16] = scale_16,
                [KOLO_UINT16] = scale_16,
            },
        .stream = stream_copy,
};
