/* SPDX-License-Identifier: Apache-2.0
 *
 * See gaussian.h. Values are standardised first, so that the same bounds of the kernel suit bytes per second of any
 * machine.
 */
#include "engine/tuner/gaussian.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LENGTH_MIN 0.04
#define LENGTH_MAX 2.0
#define HEIGHT_MIN 0.3
#define HEIGHT_MAX 4.0
#define NOISE_MIN  0.05
#define NOISE_MAX  0.7
#define GRID       33 /* points a side where the search for a proposal begins */
#define STARTS     3
#define CALLS      120

void kolo_gaussian_init(kolo_gaussian_t *g, kolo_numeric_t *numeric, int dims, int switches)
{
    memset(g, 0, sizeof *g);
    g->numeric = numeric;
    g->dims = dims;
    g->switches = switches;
    for (int d = 0; d < dims; d++) g->length[d] = 0.3;
    g->height = 1.0;
    g->noise = 0.1;
}

kolo_status_t kolo_gaussian_add(kolo_gaussian_t *g, const double *x, double y)
{
    if (g->n == KOLO_GAUSSIAN_POINTS || !isfinite(y))
        return kolo_fail(KOLO_ERR_INTERNAL, "autotune: no room for observation %d, or %g is none", g->n, y);
    for (int d = 0; d < g->dims; d++) g->x[g->n][d] = x[d];
    g->y[g->n++] = y;
    return KOLO_OK;
}

/* Returns Matern's of order 3/2: functions that bend where they like. */
static double alike(double apart)
{
    double r = sqrt(3) * fabs(apart);
    return (1 + r) * exp(-r);
}

static double kernel(const kolo_gaussian_t *g, const double *a, const double *b)
{
    double product = g->height * g->height;
    for (int d = 0; d < g->dims; d++)
        if (a[d] != b[d]) product *= 0.5 * (1 + alike((a[d] - b[d]) / g->length[d]));
    return product;
}

static void standardize(kolo_gaussian_t *g)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < g->n; i++) sum += g->y[i];
    g->mean = g->n ? sum / g->n : 0;
    for (int i = 0; i < g->n; i++) squares += (g->y[i] - g->mean) * (g->y[i] - g->mean);
    g->scale = g->n ? sqrt(squares / g->n) : 1;
    if (!(g->scale > 0)) g->scale = 1;
}

kolo_status_t kolo_gaussian_solve(kolo_gaussian_t *g)
{
    int n = g->n;
    double fits = 0, logs = 0;
    standardize(g);
    if (n == 0) return kolo_fail(KOLO_ERR_INTERNAL, "autotune: nothing is observed");
    for (int i = 0; i < n; i++) {
        for (int k = 0; k <= i; k++) g->factor[i * n + k] = kernel(g, g->x[i], g->x[k]);
        g->factor[i * n + i] += g->noise * g->noise;
        g->weights[i] = (g->y[i] - g->mean) / g->scale;
    }
    if (kolo_numeric_cholesky(g->numeric, n, g->factor) != KOLO_OK)
        return kolo_fail(KOLO_ERR_INTERNAL, "autotune: the covariance of %d observations has no Cholesky factor",
                         n);
    if (kolo_numeric_solve(g->numeric, n, g->factor, g->weights) != KOLO_OK)
        return kolo_fail(KOLO_ERR_INTERNAL, "autotune: LAPACK refuses %d observations", n);
    for (int i = 0; i < n; i++) {
        fits += (g->y[i] - g->mean) / g->scale * g->weights[i];
        logs += log(g->factor[i * n + i]);
    }
    g->likelihood = -0.5 * fits - logs - 0.5 * n * log(2 * M_PI);
    return KOLO_OK;
}

/* ---- the likeliest kernel: lengths, height and noise by their logarithms ---- */

static void set_kernel(kolo_gaussian_t *g, const double *logs)
{
    for (int d = 0; d < g->dims; d++) g->length[d] = exp(logs[d]);
    g->height = exp(logs[g->dims]);
    g->noise = exp(logs[g->dims + 1]);
}

static double likelihood_of(unsigned dims, const double *logs, double *gradient, void *arg)
{
    kolo_gaussian_t *g = arg;
    (void)dims, (void)gradient;
    set_kernel(g, logs);
    return kolo_gaussian_solve(g) == KOLO_OK ? g->likelihood : -1e30;
}

kolo_status_t kolo_gaussian_fit(kolo_gaussian_t *g)
{
    enum { LOGS = KOLO_GAUSSIAN_DIMS + 2 };
    static const double starts[] = {0.15, 0.7};
    double lower[LOGS], upper[LOGS], logs[LOGS], best[LOGS], likeliest = -INFINITY;
    int n = g->dims + 2;
    for (int d = 0; d < g->dims; d++) {
        lower[d] = log(LENGTH_MIN);
        upper[d] = log(LENGTH_MAX);
    }
    lower[g->dims] = log(HEIGHT_MIN);
    upper[g->dims] = log(HEIGHT_MAX);
    lower[g->dims + 1] = log(NOISE_MIN);
    upper[g->dims + 1] = log(NOISE_MAX);
    for (size_t s = 0; s < sizeof starts / sizeof starts[0]; s++) {
        for (int d = 0; d < g->dims; d++) logs[d] = log(starts[s]);
        logs[g->dims] = 0;
        logs[g->dims + 1] = log(0.1);
        KOLO_TRY(kolo_numeric_maximize(g->numeric,
                                       &(kolo_numeric_search_t){n, likelihood_of, g, lower, upper, CALLS}, logs));
        double likelihood = likelihood_of((unsigned)n, logs, NULL, g);
        if (likelihood <= likeliest && s > 0) continue;
        likeliest = likelihood;
        memcpy(best, logs, sizeof best);
    }
    set_kernel(g, best);
    return kolo_gaussian_solve(g);
}

/* ---- predictions ---- */

kolo_status_t kolo_gaussian_predict(const kolo_gaussian_t *g, const double *x, double *mean, double *deviation)
{
    double k[KOLO_GAUSSIAN_POINTS], sum = 0, explained = 0;
    for (int i = 0; i < g->n; i++) {
        k[i] = kernel(g, x, g->x[i]);
        sum += k[i] * g->weights[i];
    }
    if (kolo_numeric_solve_half(g->numeric, g->n, g->factor, k) != KOLO_OK)
        return kolo_fail(KOLO_ERR_INTERNAL, "autotune: LAPACK refuses a prediction from %d observations", g->n);
    for (int i = 0; i < g->n; i++) explained += k[i] * k[i];
    *mean = g->mean + g->scale * sum;
    *deviation = g->scale * sqrt(fmax(g->height * g->height - explained, 0));
    return KOLO_OK;
}

double kolo_gaussian_expected_improvement(double mean, double deviation, double best)
{
    double more = mean - best;
    if (!(deviation > 0)) return fmax(more, 0);
    double z = more / deviation;
    double below = 0.5 * erfc(-z * M_SQRT1_2), density = exp(-0.5 * z * z) / sqrt(2 * M_PI);
    return fmax(more * below + deviation * density, 0);
}

/* ---- where to look next ---- */

typedef struct {
    const kolo_gaussian_t *g;
    double best;
    double at[KOLO_GAUSSIAN_DIMS]; /* the switches of what is looked at */
} search_t;

/* Returns the expected improvement. x: without the switches. */
static double improvement_at(unsigned dims, const double *x, double *gradient, void *arg)
{
    search_t *s = arg;
    double mean, deviation;
    (void)gradient;
    memcpy(s->at, x, dims * sizeof *x);
    if (kolo_gaussian_predict(s->g, s->at, &mean, &deviation) != KOLO_OK) return 0;
    return kolo_gaussian_expected_improvement(mean, deviation, s->best);
}

static void set_switches(search_t *s, int corner)
{
    int smooth = s->g->dims - s->g->switches;
    for (int d = 0; d < s->g->switches; d++) s->at[smooth + d] = corner >> d & 1;
}

/* Finds the best points of a grid, best first. */
static void scan(search_t *s, double starts[STARTS][KOLO_GAUSSIAN_DIMS], double *values)
{
    int smooth = s->g->dims - s->g->switches, corners = 1 << s->g->switches, total = corners;
    double x[KOLO_GAUSSIAN_DIMS] = {0};
    for (int d = 0; d < smooth; d++) total *= GRID;
    for (int k = 0; k < STARTS; k++) values[k] = -1;
    for (int i = 0; i < total; i++) {
        set_switches(s, i % corners);
        for (int d = 0, at = i / corners; d < smooth; d++, at /= GRID) x[d] = (double)(at % GRID) / (GRID - 1);
        double value = improvement_at((unsigned)smooth, x, NULL, s);
        int k = 0;
        while (k < STARTS && value <= values[k]) k++;
        if (k == STARTS) continue;
        memmove(&values[k + 1], &values[k], (size_t)(STARTS - 1 - k) * sizeof *values);
        memmove(starts[k + 1], starts[k], (size_t)(STARTS - 1 - k) * sizeof starts[k]);
        values[k] = value;
        memcpy(starts[k], s->at, sizeof s->at);
    }
}

kolo_status_t kolo_gaussian_propose(const kolo_gaussian_t *g, double best, double *x, double *improvement)
{
    static const double zeros[KOLO_GAUSSIAN_DIMS] = {0}, ones[KOLO_GAUSSIAN_DIMS] = {1, 1, 1, 1, 1};
    search_t search = {g, best, {0}};
    double starts[STARTS][KOLO_GAUSSIAN_DIMS], values[STARTS], largest = -1;
    int smooth = g->dims - g->switches;
    memset(starts, 0, sizeof starts);
    scan(&search, starts, values);
    for (int k = 0; k < STARTS; k++) {
        memcpy(search.at, starts[k], sizeof search.at);
        if (smooth > 0)
            KOLO_TRY(kolo_numeric_maximize(
                g->numeric, &(kolo_numeric_search_t){smooth, improvement_at, &search, zeros, ones, CALLS},
                starts[k]));
        double value = improvement_at((unsigned)smooth, starts[k], NULL, &search);
        if (value <= largest) continue;
        largest = value;
        memcpy(x, starts[k], (size_t)g->dims * sizeof *x);
    }
    *improvement = largest;
    return KOLO_OK;
}
