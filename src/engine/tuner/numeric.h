/* SPDX-License-Identifier: Apache-2.0
 *
 * Two libraries for what is not to be written by hand: LAPACK (through LAPACKE) and NLopt. They are loaded by the
 * one process of a job that tunes, while it tunes, and by no other: some builds of BLAS start a thread per core
 * when they are loaded.
 */
#ifndef KOLO_ENGINE_TUNER_NUMERIC_H
#define KOLO_ENGINE_TUNER_NUMERIC_H

#include "base/status.h"

typedef struct kolo_numeric kolo_numeric_t;

/* Loads them. KOLO_ERR_UNSUPPORTED: this build does not know them, or they cannot be loaded here. */
kolo_status_t kolo_numeric_open(kolo_numeric_t **numeric);
void kolo_numeric_close(kolo_numeric_t *numeric); /* NULL is fine */

/* Turns a (n x n, rows of n; only the lower half is looked at) into its lower Cholesky factor. KOLO_ERR_INTERNAL
 * without words: it is not positive definite. */
kolo_status_t kolo_numeric_cholesky(kolo_numeric_t *numeric, int n, double *a);
/* Turns b into the solution of (factor factor^T) x = b, or of factor x = b. */
kolo_status_t kolo_numeric_solve(kolo_numeric_t *numeric, int n, const double *factor, double *b);
kolo_status_t kolo_numeric_solve_half(kolo_numeric_t *numeric, int n, const double *factor, double *b);

typedef double (*kolo_numeric_fn_t)(unsigned dims, const double *x, double *gradient, void *arg);
typedef struct {
    int dims;
    kolo_numeric_fn_t fn; /* has no gradient */
    void *arg;
    const double *lower, *upper;
    int calls; /* at most */
} kolo_numeric_search_t;
/* Moves x to where fn is largest near by, inside the bounds. The same every time. */
kolo_status_t kolo_numeric_maximize(kolo_numeric_t *numeric, const kolo_numeric_search_t *s, double *x);

#endif
