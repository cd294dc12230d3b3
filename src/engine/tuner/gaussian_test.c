/* SPDX-License-Identifier: Apache-2.0
 *
 * The regression gives what tests/engine/gaussian_reference.py computes by other means; the fit recovers the kernel
 * that values were drawn with; a proposal is where the expected improvement is largest on a fine grid.
 */
#include "engine/tuner/gaussian.h"

#include "base/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLOSE(want, got, eps) assert_true(fabs((want) - (got)) <= (eps)*fmax(1, fabs(want)))

static kolo_numeric_t *numeric;

static kolo_gaussian_t *make(int dims)
{
    kolo_gaussian_t *g = malloc(sizeof *g);
    assert_non_null(g);
    kolo_gaussian_init(g, numeric, dims, 0);
    return g;
}

static void predictions_are_those_of_the_reference(void **state)
{
    static const double x[][2] = {{0.1, 0.2}, {0.5, 0.9}, {0.8, 0.4}, {0.3, 0.6}, {0.95, 0.05}};
    static const double y[] = {3.0, -1.0, 4.0, 1.5, -2.0};
    static const struct {
        double x[2], mean, deviation;
    } want[] = {{{0.1, 0.2}, 2.92829382281579, 0.337099324141528},
                {{0.5, 0.5}, 1.3202361323006, 1.04375168105058},
                {{0, 1}, 1.23436398612411, 1.857062068379},
                {{0.9, 0.2}, 0.439061935501706, 0.551676512916017}};
    kolo_gaussian_t *g = make(2);
    (void)state;
    for (int i = 0; i < 5; i++) assert_int_equal(kolo_gaussian_add(g, x[i], y[i]), KOLO_OK);
    g->length[0] = 0.3;
    g->length[1] = 0.7;
    g->height = 1.2;
    g->noise = 0.15;
    assert_int_equal(kolo_gaussian_solve(g), KOLO_OK);
    CLOSE(-12.3834773166522, g->likelihood, 1e-12);
    for (int i = 0; i < 4; i++) {
        double mean, deviation;
        assert_int_equal(kolo_gaussian_predict(g, want[i].x, &mean, &deviation), KOLO_OK);
        CLOSE(want[i].mean, mean, 1e-12);
        CLOSE(want[i].deviation, deviation, 1e-12);
    }
    free(g);
}

/* Two values a and -a, one length apart: the weights are +-a / (h^2 + n^2 - h^2 e^-1/2), by hand. */
static void two_observations_are_as_by_hand(void **state)
{
    kolo_gaussian_t *g = make(1);
    double zero = 0, one = 0.5, at = 0.25, mean, deviation;
    (void)state;
    g->length[0] = 0.5;
    g->height = 2;
    g->noise = 0.5;
    kolo_gaussian_add(g, &zero, 10);
    kolo_gaussian_add(g, &one, 30);
    assert_int_equal(kolo_gaussian_solve(g), KOLO_OK);
    CLOSE(20.0, g->mean, 1e-14);
    CLOSE(10.0, g->scale, 1e-14);
    double near = 2 * (1 + (1 + sqrt(3)) * exp(-sqrt(3))), weight = 1 / (4 + 0.25 - near);
    assert_int_equal(kolo_gaussian_predict(g, &one, &mean, &deviation), KOLO_OK);
    CLOSE(20 + 10 * weight * (4 - near), mean, 1e-13);
    assert_int_equal(kolo_gaussian_predict(g, &at, &mean, &deviation), KOLO_OK);
    CLOSE(20.0, mean, 1e-13); /* half way, nothing speaks for either */
    double half = 2 * (1 + (1 + sqrt(0.75)) * exp(-sqrt(0.75)));
    CLOSE(10 * sqrt(4 - 2 * half * half / (4.25 + near)), deviation, 1e-13);
    free(g);
}

static void expected_improvement_is_the_integral(void **state)
{
    static const struct {
        double mean, deviation, best, want; /* by integration: gaussian_reference.py */
    } cases[] = {{0, 1, 0, 0.398942280401}, /* 1 / sqrt(2 pi) */
                 {1, 2, 1.5, 0.572689396447},
                 {-1, 0.5, 0, 0.00424535130841},
                 {5, 0.1, 4, 1},
                 {3, 1.5, 7, 0.00177245676534}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CLOSE(cases[i].want, kolo_gaussian_expected_improvement(cases[i].mean, cases[i].deviation, cases[i].best),
              1e-11);
    CLOSE(0.5, kolo_gaussian_expected_improvement(2, 0, 1.5), 0.0);
    CLOSE(0.0, kolo_gaussian_expected_improvement(1, 0, 1.5), 0.0);
    assert_true(kolo_gaussian_expected_improvement(-100, 1, 100) >= 0);
}

static double unit(uint64_t *s)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(*s >> 11) * 0x1p-53;
}

static double normal(uint64_t *s)
{
    double u = unit(s) + 1e-300, v = unit(s);
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

/* Values drawn from the process itself, y = L e: their likeliest lengths are near those they were drawn with. */
static void a_fit_recovers_the_kernel(void **state)
{
    enum { N = 60 };
    kolo_gaussian_t *from = make(2), *g = make(2);
    uint64_t seed = 20;
    double e[N], x[N][2];
    (void)state;
    from->length[0] = 0.2;
    from->length[1] = 0.9;
    from->noise = 0.05;
    for (int i = 0; i < N; i++) {
        x[i][0] = unit(&seed);
        x[i][1] = unit(&seed);
        e[i] = normal(&seed);
        kolo_gaussian_add(from, x[i], i % 2 ? 1 : -1);
    }
    assert_int_equal(kolo_gaussian_solve(from), KOLO_OK);
    for (int i = 0; i < N; i++) {
        double y = 0;
        for (int k = 0; k <= i; k++) y += from->factor[i * N + k] * e[k];
        kolo_gaussian_add(g, x[i], 500 + 3 * y);
    }
    assert_int_equal(kolo_gaussian_fit(g), KOLO_OK);
    double fitted = g->likelihood;
    printf("lengths %.3f %.3f (0.2 0.9), noise %.3f (0.05), likelihood %.2f", g->length[0], g->length[1], g->noise,
           fitted);
    assert_true(g->length[0] > 0.1 && g->length[0] < 0.4);
    assert_true(g->length[1] > 0.45 && g->length[1] < 1.8);
    assert_true(g->noise * g->scale / 3 > 0.02 && g->noise * g->scale / 3 < 0.12);
    memcpy(g->length, from->length, sizeof g->length);
    g->height = 3 / g->scale;
    g->noise = 0.05 * 3 / g->scale;
    assert_int_equal(kolo_gaussian_solve(g), KOLO_OK);
    printf(", of the true kernel %.2f\n", g->likelihood);
    assert_true(fitted >= g->likelihood); /* it is the likeliest, so at least as likely as the true one */
    free(from);
    free(g);
}

static void a_proposal_is_the_best_of_a_fine_grid(void **state)
{
    enum { FINE = 200 };
    kolo_gaussian_t *g = make(2);
    uint64_t seed = 3;
    double x[2], improvement, mean, deviation, best = -INFINITY, largest = 0;
    (void)state;
    for (int i = 0; i < 12; i++) {
        x[0] = unit(&seed);
        x[1] = unit(&seed);
        double y = -(x[0] - 0.63) * (x[0] - 0.63) - 0.3 * (x[1] - 0.2) * (x[1] - 0.2);
        best = fmax(best, y);
        kolo_gaussian_add(g, x, y);
    }
    assert_int_equal(kolo_gaussian_fit(g), KOLO_OK);
    assert_int_equal(kolo_gaussian_propose(g, best, x, &improvement), KOLO_OK);
    assert_true(x[0] >= 0 && x[0] <= 1 && x[1] >= 0 && x[1] <= 1);
    for (int i = 0; i <= FINE; i++) {
        for (int k = 0; k <= FINE; k++) {
            double at[2] = {(double)i / FINE, (double)k / FINE};
            assert_int_equal(kolo_gaussian_predict(g, at, &mean, &deviation), KOLO_OK);
            largest = fmax(largest, kolo_gaussian_expected_improvement(mean, deviation, best));
        }
    }
    printf("proposed (%.3f, %.3f): %.6g, the grid has %.6g\n", x[0], x[1], improvement, largest);
    assert_true(improvement >= 0.999 * largest);
    free(g);
}

static void too_many_observations_are_refused(void **state)
{
    kolo_gaussian_t *g = make(1);
    double x = 0.5;
    (void)state;
    for (int i = 0; i < KOLO_GAUSSIAN_POINTS; i++) assert_int_equal(kolo_gaussian_add(g, &x, i), KOLO_OK);
    assert_int_equal(kolo_gaussian_add(g, &x, 1), KOLO_ERR_INTERNAL);
    assert_int_equal(kolo_gaussian_solve(g), KOLO_OK); /* all at one point: the noise keeps it definite */
    g->n = 1;
    assert_int_equal(kolo_gaussian_add(g, &x, NAN), KOLO_ERR_INTERNAL);
    free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predictions_are_those_of_the_reference),
        cmocka_unit_test(two_observations_are_as_by_hand),
        cmocka_unit_test(expected_improvement_is_the_integral),
        cmocka_unit_test(a_fit_recovers_the_kernel),
        cmocka_unit_test(a_proposal_is_the_best_of_a_fine_grid),
        cmocka_unit_test(too_many_observations_are_refused),
    };
    if (kolo_numeric_open(&numeric) != KOLO_OK) {
        fprintf(stderr, "skipped: %s\n", kolo_error_text());
        return 77;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kolo_numeric_close(numeric);
    return failed;
}
