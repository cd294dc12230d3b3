/* SPDX-License-Identifier: Apache-2.0
 *
 * What goes into collectives and what must come out. Element i of rank r is a function of a seed, so every rank can
 * tell what every other has sent.
 */
#ifndef KOLO_TESTS_GPU_VALUES_H
#define KOLO_TESTS_GPU_VALUES_H

#include <kolo/kolo.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VALUES_PREMUL (KOLO_AVG + 1)         /* stands for an operator that the test makes */
#define VALUES_TYPES  (KOLO_FLOAT8_E5M2 + 1) /* what GPUs reduce */

typedef enum {
    VALUES_EXACT,  /* floats that are small integers or powers of two: the result is exact in any order */
    VALUES_ROUGH,  /* floats in general: right within rounding */
    VALUES_SPECIAL /* NaN, infinities, both zeros */
} values_kind_t;

typedef struct {
    kolo_type_t type;
    int op; /* kolo_op_t or VALUES_PREMUL */
    values_kind_t kind;
    uint64_t seed;
} values_t;

extern const char *const values_type_names[VALUES_TYPES], *const values_op_names[VALUES_PREMUL + 1];

/* Elements [first, first + count) of a rank. */
void values_fill(const values_t *v, void *buf, size_t count, int rank, size_t first);
/* Their reduction over all ranks. Where the kind or the operator (an average over 3 ranks) leaves room, `got` is
 * looked at and taken over if it is right. */
void values_reduce(const values_t *v, void *want, const void *got, size_t count, int nranks, size_t first);
/* The scalar of a rank for VALUES_PREMUL. */
void values_scalar(kolo_type_t type, int rank, void *scalar);

#endif
