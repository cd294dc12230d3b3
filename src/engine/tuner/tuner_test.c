/* SPDX-License-Identifier: Apache-2.0
 *
 * The tuner on a model of an engine that is given what a real one was (tests/data/workload.csv, recorded by
 * bench/workload.c): for several machines, with and without noise, the setting it stays with is within 5 % of the
 * best of a full grid. And on models that are made at random.
 */
#include "engine/tuner/tuner.h"

#include "base/test.h"
#include "engine/tuner/tuner_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const machine_t machines[] = {
    {"as recorded", 80, 4, 30, 1500, 300, 4e6, 0.6, 1, 1.1},
    {"slow network", 400, 30, 500, 500, 250, 8e6, 0.1, 4, 0.9},
    {"fast computation", 60, 20, 25, 8000, 200, 4e6, 0.2, 30, 1.3},
    {"agreeing is dear", 3000, 10, 60, 2500, 250, 2e6, 1.0, 5, 0.8},
    {"operations are dear", 400, 30, 2500, 500, 250, 8e6, 0.1, 4, 0.9},
};

static double noisy(double score, double noise, uint64_t *seed)
{
    return score * (1 + noise * model_normal(seed));
}

/* Tunes, and returns what the setting that stays is worth without noise. */
static double tune(const workload_t *w, const machine_t *m, double noise, uint64_t seed, kolo_tuning_t *end,
                   int *used, kolo_batches_t *batches)
{
    const kolo_tuner_rules_t rules = {.threshold = true,
                                      .cycle = true,
                                      .choices = 1u << KOLO_CHOOSE_CACHE | 1u << KOLO_CHOOSE_HIER_ALL_REDUCE,
                                      .warm_up = 3,
                                      .samples = noise > 0 ? 3 : 1,
                                      .settings = 46};
    const kolo_tuning_t start = {128 << 20, 0, rules.choices};
    kolo_tuner_t *t = malloc(sizeof *t);
    bool changed;
    assert_non_null(t);
    assert_int_equal(kolo_tuner_init(t, &rules, &start), KOLO_OK);
    for (*used = 0; t->phase != KOLO_TUNE_OVER; ++*used) {
        assert_true(*used < kolo_tuner_samples_max(&rules));
        double score = t->phase == KOLO_TUNE_WARM_UP ? 1e15 : model_bytes_per_s(w, m, &t->now, batches);
        assert_int_equal(kolo_tuner_sample(t, noisy(score, noise, &seed), &changed), KOLO_OK);
    }
    *end = t->now;
    kolo_tuner_fini(t);
    free(t);
    return model_bytes_per_s(w, m, end, batches);
}

static void the_setting_found_is_nearly_the_best_of_a_grid(void **state)
{
    static const double noises[] = {0, 0.02, 0.05};
    workload_t *w = malloc(sizeof *w);
    kolo_batches_t batches = {NULL, NULL, 0, 0};
    (void)state;
    assert_non_null(w);
    model_load(w, getenv("KOLO_TEST_WORKLOAD")); /* set by the build, see meson.build */
    for (size_t i = 0; i < KOLO_COUNTOF(machines); i++) {
        const machine_t *m = &machines[i];
        kolo_tuning_t best = {0, 0, 0}, start = {128 << 20, 0, 1u << KOLO_CHOOSE_CACHE}, end;
        double most = model_best_of_grid(w, m, &best, &batches);
        printf(
            "%s: best of the grid %.0f MB/s (threshold %lld, cycle %lld us, choices %u), defaults %.1f %% of it\n",
            m->name, most * 1e-6, (long long)best.fusion_threshold, (long long)best.cycle_time_us, best.choices,
            100 * model_bytes_per_s(w, m, &start, &batches) / most);
        for (size_t k = 0; k < KOLO_COUNTOF(noises); k++) {
            int used;
            double found = tune(w, m, noises[k], 11 + k, &end, &used, &batches);
            printf("    noise %.0f %%: %.1f %% (threshold %lld, cycle %lld us, choices %u) after %d samples\n",
                   100 * noises[k], 100 * found / most, (long long)end.fusion_threshold,
                   (long long)end.cycle_time_us, end.choices, used);
            fflush(stdout);
            assert_true(found >= 0.95 * most);
        }
    }
    kolo_fusion_batches_fini(&batches);
    free(w);
}

/* ---- many models that nobody chose ---- */

static int by_share(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void try_models(int count, uint64_t first, double *shares, bool tell)
{
    static const double noises[] = {0.02, 0.035, 0.05};
    workload_t *w = malloc(sizeof *w);
    kolo_batches_t batches = {NULL, NULL, 0, 0};
    assert_non_null(w);
    for (int i = 0; i < count; i++) {
        uint64_t seed = (first + (uint64_t)i) * 0x9e3779b97f4a7c15ull;
        machine_t m;
        kolo_tuning_t best = {0, 0, 0}, start = {128 << 20, 0, 1u << KOLO_CHOOSE_CACHE}, end;
        int used;
        model_unit(&seed);
        model_random_workload(w, &seed);
        model_random_machine(&m, &seed);
        double most = model_best_of_grid(w, &m, &best, &batches);
        double noise = noises[i % 3], found = tune(w, &m, noise, seed, &end, &used, &batches);
        shares[i] = found / most;
        if (tell)
            printf("%3llu: %3d tensors, %6.1f MB, start %4.0f us: %5.1f %% (noise %.1f %%, threshold %lld, cycle "
                   "%lld us, choices %u; grid %lld, %lld us, %u), defaults %.1f %%\n",
                   (unsigned long long)first + (unsigned)i, w->count, w->bytes * 1e-6, m.start_us, 100 * shares[i],
                   100 * noise, (long long)end.fusion_threshold, (long long)end.cycle_time_us, end.choices,
                   (long long)best.fusion_threshold, (long long)best.cycle_time_us, best.choices,
                   100 * model_bytes_per_s(w, &m, &start, &batches) / most);
    }
    qsort(shares, (size_t)count, sizeof *shares, by_share);
    printf("%d random models: of the best of the grid, median %.1f %%, 5th percentile %.1f %%, worst %.1f %%\n",
           count, 100 * shares[count / 2], 100 * shares[count / 20], 100 * shares[0]);
    kolo_fusion_batches_fini(&batches);
    free(w);
}

static void points_and_settings_are_inverse(void **state)
{
    const kolo_tuner_rules_t rules = {.threshold = true, .cycle = true};
    (void)state;
    for (int64_t threshold = KOLO_TUNE_THRESHOLD_MIN; threshold <= KOLO_TUNE_THRESHOLD_MAX; threshold *= 2) {
        for (int64_t us = 0; us <= KOLO_TUNE_CYCLE_MAX_US; us += 500) {
            kolo_tuning_t in = {threshold, us, 5}, out = {0, 0, 5};
            double x[2];
            kolo_autotune_to_point(&rules, &in, x);
            assert_true(x[0] >= 0 && x[0] <= 1 && x[1] >= 0 && x[1] <= 1);
            kolo_autotune_from_point(&rules, x, &out);
            assert_true(out.fusion_threshold == threshold && out.cycle_time_us == us && out.choices == 5);
        }
    }
}

static void a_bound_holds_and_samples_are_medians(void **state)
{
    const kolo_tuner_rules_t rules = {.threshold = true, .warm_up = 2, .samples = 3, .settings = 1};
    const kolo_tuning_t start = {1 << 20, 700, 0};
    kolo_tuner_t *t = malloc(sizeof *t);
    static const double scores[] = {9e9, 9e9, 5, 1e9, 7};
    (void)state;
    assert_non_null(t);
    assert_int_equal(kolo_tuner_init(t, &rules, &start), KOLO_OK);
    assert_int_equal(kolo_tuner_samples_max(&rules), 5);
    for (int i = 0; i < 5; i++) {
        bool changed;
        assert_int_equal(t->phase, i < 2 ? KOLO_TUNE_WARM_UP : KOLO_TUNE_SEARCH);
        assert_int_equal(kolo_tuner_sample(t, scores[i], &changed), KOLO_OK);
        assert_int_equal(changed, i == 1 || i == 4);
    }
    assert_int_equal(t->phase, KOLO_TUNE_OVER);
    assert_true(t->score == 7 && t->best_score > 6.999 && t->best_score < 7.001);
    assert_true(t->now.fusion_threshold == 1 << 20 && t->now.cycle_time_us == 700);
    kolo_tuner_fini(t);
    free(t);
}

/* Which of the choices a score is for decides it alone. */
static void choices_alone_are_all_tried(void **state)
{
    const kolo_tuner_rules_t rules = {.choices = 7, .samples = 1, .settings = 20};
    const kolo_tuning_t start = {1 << 20, 0, 4};
    kolo_tuner_t *t = malloc(sizeof *t);
    uint32_t seen = 0;
    bool changed;
    (void)state;
    assert_non_null(t);
    assert_int_equal(kolo_tuner_init(t, &rules, &start), KOLO_OK);
    for (int i = 0; t->phase != KOLO_TUNE_OVER; i++) {
        assert_true(i < kolo_tuner_samples_max(&rules));
        assert_true(t->now.fusion_threshold == 1 << 20 && t->now.cycle_time_us == 0);
        if (i == 0) assert_int_equal(t->now.choices, 4);
        seen |= 1u << t->now.choices;
        assert_int_equal(kolo_tuner_sample(t, t->now.choices == 1 ? 130 : 100 + t->now.choices, &changed), KOLO_OK);
    }
    assert_int_equal(seen, 255);
    assert_int_equal(t->now.choices, 1);
    kolo_tuner_fini(t);
    free(t);
}

/* Many, so that no method suits them by chance. */
static void random_models_are_tuned_nearly_as_well(void **state)
{
    enum { MODELS = 8 };
    double shares[MODELS];
    (void)state;
    try_models(MODELS, 1, shares, false); /* ascending */
    assert_true(shares[0] >= 0.9);
    assert_true(shares[MODELS / 2] >= 0.97);
}

/* Without arguments the tests; or so many random models, from a seed on, each with a line. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(points_and_settings_are_inverse),
        cmocka_unit_test(a_bound_holds_and_samples_are_medians),
        cmocka_unit_test(choices_alone_are_all_tried),
        cmocka_unit_test(the_setting_found_is_nearly_the_best_of_a_grid),
        cmocka_unit_test(random_models_are_tuned_nearly_as_well),
    };
    kolo_numeric_t *numeric;
    if (kolo_numeric_open(&numeric) != KOLO_OK) {
        fprintf(stderr, "skipped: %s\n", kolo_error_text());
        return 77;
    }
    kolo_numeric_close(numeric);
    if (argc > 1) {
        int count = KOLO_MAX(1, atoi(argv[1]));
        double *shares = calloc((size_t)count, sizeof *shares);
        assert_non_null(shares);
        try_models(count, argc > 2 ? strtoull(argv[2], NULL, 10) : 1, shares, true);
        free(shares);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
