/* SPDX-License-Identifier: Apache-2.0
 *
 * Regression by a Gaussian process: from values observed at some points of the unit cube, with noise, what to
 * expect elsewhere and how surely; and where to look next for a larger one (expected improvement). The kernel is
 * height^2 times, for each dimension, (1 + k) / 2 with a Matern kernel k of order 3/2: a function of each dimension
 * alone, one of each pair, and so on, added up, so that what was seen at any place tells of all places that have a
 * coordinate in common with it. Its lengths, height and noise are those under which the observations are likeliest.
 * Linear algebra is LAPACK's, searches are NLopt's: both are loaded when the first process is made (numeric.h).
 */
#ifndef KOLO_ENGINE_TUNER_GAUSSIAN_H
#define KOLO_ENGINE_TUNER_GAUSSIAN_H

#include "base/status.h"
#include "engine/tuner/numeric.h"

#define KOLO_GAUSSIAN_DIMS   5
#define KOLO_GAUSSIAN_POINTS 128

typedef struct {
    kolo_numeric_t *numeric;
    int dims, n;
    int switches; /* of the dims, the last so many are 0 or 1, and nothing between is proposed */
    double x[KOLO_GAUSSIAN_POINTS][KOLO_GAUSSIAN_DIMS], y[KOLO_GAUSSIAN_POINTS];
    /* of the kernel; height and noise are deviations, as parts of that of the values */
    double length[KOLO_GAUSSIAN_DIMS], height, noise;
    /* made by kolo_gaussian_solve() */
    double mean, scale; /* of the values; what follows is of (y - mean) / scale */
    double factor[KOLO_GAUSSIAN_POINTS * KOLO_GAUSSIAN_POINTS], weights[KOLO_GAUSSIAN_POINTS], likelihood;
} kolo_gaussian_t;

/* Sets up a process; numeric is open, and stays so. Lengths 0.3, height 1, noise 0.1. */
void kolo_gaussian_init(kolo_gaussian_t *g, kolo_numeric_t *numeric, int dims, int switches);
kolo_status_t kolo_gaussian_add(kolo_gaussian_t *g, const double *x, double y);
/* Makes ready to predict, with the kernel as it is; likelihood is then the logarithm of how likely the values
 * are. */
kolo_status_t kolo_gaussian_solve(kolo_gaussian_t *g);
/* Does the same with the likeliest kernel. */
kolo_status_t kolo_gaussian_fit(kolo_gaussian_t *g);
/* Predicts values, without the noise. */
kolo_status_t kolo_gaussian_predict(const kolo_gaussian_t *g, const double *x, double *mean, double *deviation);
/* Computes by how much a value of this distribution is larger than `best` on average, where less counts as 0. */
double kolo_gaussian_expected_improvement(double mean, double deviation, double best);
/* Finds the point with the largest expected improvement over `best`, and how large that is. */
kolo_status_t kolo_gaussian_propose(const kolo_gaussian_t *g, double best, double *x, double *improvement);

#endif
