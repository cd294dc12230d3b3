/* SPDX-License-Identifier: Apache-2.0
 *
 * Loops over tensors that the reductions of exec/host do not have: scaling of integers, conversions of 16-bit
 * floats and the arithmetic of Adasum. One source, built for each instruction set that exec/host is built for; all
 * builds give the same bits (no contraction, the same order of additions).
 */
#ifndef KOLO_ENGINE_VALUES_KERNELS_H
#define KOLO_ENGINE_VALUES_KERNELS_H

#include <kolo/kolo.h>
#include <stddef.h>

/* Products of two vectors are summed up side by side, element i in lane i % KOLO_LANES. */
#define KOLO_LANES 8
typedef struct {
    double ab[KOLO_LANES], aa[KOLO_LANES], bb[KOLO_LANES];
} kolo_products_t;

typedef struct {
    const char *name; /* as in kolo_reduce_table_t */
    /* dst[i] = src[i] * factor in double, towards zero; what does not fit becomes the nearest that does, NaN 0.
     * Integers only; NULL: the type has no scale. dst may be src. */
    void (*scale[KOLO_TYPE_COUNT])(void *dst, const void *src, size_t n, double factor);
    /* 16-bit floats to float32 and back, rounded to the nearest even; dst and src do not overlap. */
    void (*widen_f16)(float *dst, const void *src, size_t n);
    void (*widen_bf16)(float *dst, const void *src, size_t n);
    void (*narrow_f16)(void *dst, const float *src, size_t n);
    void (*narrow_bf16)(void *dst, const float *src, size_t n);
    /* Adds to the sums; n is a multiple of KOLO_LANES in all calls for a vector but the last. */
    void (*products_f32)(kolo_products_t *sums, const float *a, const float *b, size_t n);
    void (*products_f64)(kolo_products_t *sums, const double *a, const double *b, size_t n);
    /* dst = ca a + cb b, in double; dst may be a or b. */
    void (*combine_f32)(float *dst, const float *a, const float *b, size_t n, double ca, double cb);
    void (*combine_f64)(double *dst, const double *a, const double *b, size_t n, double ca, double cb);
} kolo_values_table_t;

extern const kolo_values_table_t kolo_values_table_baseline, kolo_values_table_avx2, kolo_values_table_avx512;

/* Returns the i-th, from 0 on; NULL: this machine has not got it, or there are no more. */
const kolo_values_table_t *kolo_values_table(int i);
/* Returns the table of the same instruction set as the reductions. */
const kolo_values_table_t *kolo_values(void);

#endif
