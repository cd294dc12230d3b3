/* SPDX-License-Identifier: Apache-2.0
 *
 * What one build of reduce_kernels.c exports: a table of kernels by type and operator. reduce.c picks a table once;
 * tests and benchmarks go through all that this machine can run.
 */
#ifndef KOLO_EXEC_HOST_REDUCE_TABLE_H
#define KOLO_EXEC_HOST_REDUCE_TABLE_H

#include "exec/host/reduce.h"

#define KOLO_REDUCE_OPS KOLO_OP_BUILTIN_COUNT /* without AVG, which is a sum */

/* dst[i] = srcs[0][i] op srcs[1][i] op ... op srcs[nsrcs - 1][i]; nsrcs >= 2; dst may be one of the sources. */
typedef void (*kolo_fold_fn_t)(void *dst, const void *const *srcs, int nsrcs, size_t n);
/* dst[i] = src[i] times the scalar of the type's class; dst may be src. */
typedef void (*kolo_scale_fn_t)(void *dst, const void *src, size_t n, double by_float, int64_t by_int);

typedef struct {
    const char *name;
    kolo_fold_fn_t fold[KOLO_TYPE_COUNT][KOLO_REDUCE_OPS]; /* NULL: the operator is not for the type */
    kolo_scale_fn_t scale[KOLO_TYPE_COUNT];
    /* Copy past the cache; ordered before later stores when it returns. */
    void (*stream)(void *dst, const void *src, size_t bytes);
} kolo_reduce_table_t;

extern const kolo_reduce_table_t kolo_reduce_table_baseline;
#if defined(__x86_64__)
extern const kolo_reduce_table_t kolo_reduce_table_avx2, kolo_reduce_table_avx512;
#endif

/* Returns table `i`, slowest first; NULL: no more that this machine can run. */
const kolo_reduce_table_t *kolo_reduce_table(int i);
/* Uses this table from now on, for tests and benchmarks; NULL picks again by parameter and machine. */
void kolo_reduce_use(const kolo_reduce_table_t *table);

#endif
