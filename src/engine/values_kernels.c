/* SPDX-License-Identifier: Apache-2.0
 *
 * See values_kernels.h. Written for the compiler to vectorise: no branches, selects instead. The build compiles
 * this file once per instruction set, KOLO_VALUES_TABLE names the table.
 */
#include "engine/values_kernels.h"
#include "exec/host/reduce_types.h"

/* ---- integers ---- */

/* Not a number becomes 0. */
KOLO_INLINE double clamp(double v, double least, double most)
{
    double low = v > least ? v : least, in = low < most ? low : most;
    return v != v ? 0.0 : in;
}

/* MIN and MAX are doubles without loss. VIA: an integer type that has conversion instructions. */
#define SCALE_NARROW(name, T, VIA, MIN, MAX)                                                                       \
    static void name(void *dst, const void *src, size_t n, double factor)                                          \
    {                                                                                                              \
        T *d = dst;                                                                                                \
        const T *s = src;                                                                                          \
        INDEPENDENT for (size_t i = 0; i < n; i++) d[i] =                                                          \
            (T)(VIA)clamp((double)(VIA)s[i] * factor, (double)(MIN), (double)(MAX));                               \
    }
/* MAX is not: a value from the next double on becomes MAX. */
#define SCALE_WIDE(name, T, MIN, MAX)                                                                              \
    static void name(void *dst, const void *src, size_t n, double factor)                                          \
    {                                                                                                              \
        T *d = dst;                                                                                                \
        const T *s = src;                                                                                          \
        INDEPENDENT for (size_t i = 0; i < n; i++)                                                                 \
        {                                                                                                          \
            double v = (double)s[i] * factor;                                                                      \
            d[i] = v != v ? 0 : v <= (double)(MIN) ? (T)(MIN) : v >= (double)(MAX) ? (T)(MAX) : (T)v;              \
        }                                                                                                          \
    }
SCALE_NARROW(scale_i8, i8_t, int32_t, INT8_MIN, INT8_MAX)
SCALE_NARROW(scale_u8, u8_t, int32_t, 0, UINT8_MAX)
SCALE_NARROW(scale_i16, i16_t, int32_t, INT16_MIN, INT16_MAX)
SCALE_NARROW(scale_u16, u16_t, int32_t, 0, UINT16_MAX)
SCALE_NARROW(scale_i32, i32_t, int32_t, INT32_MIN, INT32_MAX)
SCALE_WIDE(scale_u32, u32_t, 0, UINT32_MAX)
SCALE_WIDE(scale_i64, i64_t, INT64_MIN, INT64_MAX)
SCALE_WIDE(scale_u64, u64_t, 0, UINT64_MAX)

/* ---- 16-bit floats ---- */

#define CONVERT(name, OUT, D, IN, S, VALUE)                                                                        \
    static void name(OUT *dst, const IN *src, size_t n)                                                            \
    {                                                                                                              \
        D *d = dst;                                                                                                \
        const S *s = src;                                                                                          \
        INDEPENDENT for (size_t i = 0; i < n; i++) d[i] = VALUE(s[i]);                                             \
    }
CONVERT(widen_f16, float, f32_t, void, u16_t, load_f16)
CONVERT(widen_bf16, float, f32_t, void, u16_t, load_bf16)
CONVERT(narrow_f16, void, u16_t, float, f32_t, store_f16)
CONVERT(narrow_bf16, void, u16_t, float, f32_t, store_bf16)

/* ---- products and combinations ---- */

#define PRODUCTS(name, ELEM, T)                                                                                    \
    static void name(kolo_products_t *sums, const ELEM *a, const ELEM *b, size_t n)                                \
    {                                                                                                              \
        kolo_products_t p = *sums;                                                                                 \
        const T *x = a, *y = b;                                                                                    \
        size_t at = 0;                                                                                             \
        for (; at + KOLO_LANES <= n; at += KOLO_LANES) {                                                           \
            for (size_t k = 0; k < KOLO_LANES; k++) {                                                              \
                double u = (double)x[at + k], v = (double)y[at + k];                                               \
                p.ab[k] += u * v;                                                                                  \
                p.aa[k] += u * u;                                                                                  \
                p.bb[k] += v * v;                                                                                  \
            }                                                                                                      \
        }                                                                                                          \
        for (size_t k = 0; at + k < n; k++) {                                                                      \
            double u = (double)x[at + k], v = (double)y[at + k];                                                   \
            p.ab[k] += u * v;                                                                                      \
            p.aa[k] += u * u;                                                                                      \
            p.bb[k] += v * v;                                                                                      \
        }                                                                                                          \
        *sums = p;                                                                                                 \
    }
PRODUCTS(products_f32, float, f32_t)
PRODUCTS(products_f64, double, f64_t)

static void combine_f32(float *dst, const float *a, const float *b, size_t n, double ca, double cb)
{
    const f32_t *x = a, *y = b;
    f32_t *d = dst;
    INDEPENDENT for (size_t i = 0; i < n; i++) d[i] = (float)(ca * (double)x[i] + cb * (double)y[i]);
}

static void combine_f64(double *dst, const double *a, const double *b, size_t n, double ca, double cb)
{
    const f64_t *x = a, *y = b;
    f64_t *d = dst;
    INDEPENDENT for (size_t i = 0; i < n; i++) d[i] = ca * x[i] + cb * y[i];
}

const kolo_values_table_t KOLO_VALUES_TABLE = {
    .name = KOLO_VALUES_ISA,
    .scale = {[KOLO_INT8] = scale_i8,
              [KOLO_UINT8] = scale_u8,
              [KOLO_INT32] = scale_i32,
              [KOLO_UINT32] = scale_u32,
              [KOLO_INT64] = scale_i64,
              [KOLO_UINT64] = scale_u64,
              [KOLO_INT16] = scale_i16,
              [KOLO_UINT16] = scale_u16},
    .widen_f16 = widen_f16,
    .widen_bf16 = widen_bf16,
    .narrow_f16 = narrow_f16,
    .narrow_bf16 = narrow_bf16,
    .products_f32 = products_f32,
    .products_f64 = products_f64,
    .combine_f32 = combine_f32,
    .combine_f64 = combine_f64,
};
