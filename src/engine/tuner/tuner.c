/* SPDX-License-Identifier: Apache-2.0
 *
 * See tuner.h.
 */
#include "engine/tuner/tuner.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIXED_POINTS   20
#define CYCLE_SCALE_US 50.0 /* cycle times much below are about evenly spaced, those above by their logarithm */

const char *kolo_autotune_choice_name(kolo_choice_t choice)
{
    static const char *const names[] = {[KOLO_CHOOSE_HIER_ALL_REDUCE] = "hierarchical_all_reduce",
                                        [KOLO_CHOOSE_HIER_ALL_GATHER] = "hierarchical_all_gather",
                                        [KOLO_CHOOSE_CACHE] = "cache"};
    return names[choice];
}

const char *kolo_engine_tune_phase_name(kolo_tune_phase_t phase)
{
    static const char *const names[] = {"warm_up", "search", "final", "over"};
    return names[phase];
}

/* ---- points ---- */

static double clamp(double x)
{
    return fmin(fmax(x, 0), 1);
}

static double threshold_to_unit(int64_t threshold)
{
    double low = log2((double)KOLO_TUNE_THRESHOLD_MIN), high = log2((double)KOLO_TUNE_THRESHOLD_MAX);
    return clamp((log2((double)KOLO_MAX(threshold, KOLO_TUNE_THRESHOLD_MIN)) - low) / (high - low));
}

static double cycle_to_unit(int64_t us)
{
    return clamp(log1p((double)us / CYCLE_SCALE_US) / log1p(KOLO_TUNE_CYCLE_MAX_US / CYCLE_SCALE_US));
}

void kolo_autotune_to_point(const kolo_tuner_rules_t *rules, const kolo_tuning_t *tuning, double *x)
{
    int d = 0;
    if (rules->threshold) x[d++] = threshold_to_unit(tuning->fusion_threshold);
    if (rules->cycle) x[d++] = cycle_to_unit(tuning->cycle_time_us);
    for (int c = 0; c < KOLO_CHOICES; c++)
        if (rules->choices >> c & 1) x[d++] = tuning->choices >> c & 1;
}

void kolo_autotune_from_point(const kolo_tuner_rules_t *rules, const double *x, kolo_tuning_t *tuning)
{
    double low = log2((double)KOLO_TUNE_THRESHOLD_MIN), high = log2((double)KOLO_TUNE_THRESHOLD_MAX);
    int d = 0;
    if (rules->threshold)
        tuning->fusion_threshold = llround(exp2(low + clamp(x[d++]) * (high - low)) / 4096) * 4096;
    if (rules->cycle)
        tuning->cycle_time_us =
            llround(CYCLE_SCALE_US * expm1(clamp(x[d++]) * log1p(KOLO_TUNE_CYCLE_MAX_US / CYCLE_SCALE_US)) / 10) *
            10;
    for (int c = 0; c < KOLO_CHOICES; c++) {
        if (!(rules->choices >> c & 1)) continue;
        uint32_t bit = UINT32_C(1) << c;
        tuning->choices = x[d++] < 0.5 ? tuning->choices & ~bit : tuning->choices | bit;
    }
}

/* ---- life ---- */

static int smooth_of(const kolo_tuner_rules_t *rules)
{
    return (rules->threshold ? 1 : 0) + (rules->cycle ? 1 : 0);
}

/* Counts the settings: of choices alone there are few. */
static int settings_of(const kolo_tuner_rules_t *rules)
{
    int choices = __builtin_popcount(rules->choices);
    int all = smooth_of(rules) > 0 ? KOLO_TUNE_SETTINGS_MAX : choices > 0 ? 1 << choices : 0;
    return KOLO_MIN(rules->settings, all);
}

static int finals_of(const kolo_tuner_rules_t *rules)
{
    return KOLO_MAX(KOLO_MIN(KOLO_TUNE_FINALS, settings_of(rules) - 1), 0);
}

int kolo_tuner_samples_max(const kolo_tuner_rules_t *rules)
{
    return rules->warm_up + rules->samples * (settings_of(rules) + finals_of(rules));
}

/* Enters a phase; where there is nothing to do in it, the next. */
static void enter(kolo_tuner_t *t, kolo_tune_phase_t phase)
{
    if (phase == KOLO_TUNE_SEARCH && settings_of(&t->rules) == 0) phase = KOLO_TUNE_OVER;
    t->phase = phase;
    if (phase == KOLO_TUNE_OVER) t->now = t->best;
}

kolo_status_t kolo_tuner_init(kolo_tuner_t *t, const kolo_tuner_rules_t *rules, const kolo_tuning_t *start)
{
    int choices = __builtin_popcount(rules->choices);
    memset(t, 0, sizeof *t);
    t->rules = *rules;
    t->rules.samples = KOLO_MIN(rules->samples, KOLO_TUNE_SAMPLES_MAX);
    t->now = t->best = t->start = *start;
    KOLO_TRY(kolo_numeric_open(&t->numeric));
    kolo_gaussian_init(&t->gaussian, t->numeric, smooth_of(rules) + choices, choices);
    enter(t, rules->warm_up > 0 ? KOLO_TUNE_WARM_UP : KOLO_TUNE_SEARCH);
    return KOLO_OK;
}

void kolo_tuner_fini(kolo_tuner_t *t)
{
    kolo_numeric_close(t->numeric);
    t->numeric = NULL;
}

/* ---- the search ---- */

/* Returns, for i = 1, 2, ...: 1/2, 1/4, 3/4, 1/8, ... */
static double halves(int i)
{
    double x = 0;
    for (double part = 0.5; i > 0; i /= 2, part /= 2) x += part * (i % 2);
    return x;
}

/* Finds what is tried first, whatever comes of it: where it starts, and points of which no two have a coordinate in
 * common. A cycle time that just fits a step is a narrow peak: with few of them it is not seen at all. */
static bool fixed_point(const kolo_tuner_t *t, double *x)
{
    int i = t->tried, d = 0;
    if (smooth_of(&t->rules) == 0) { /* all there are */
        kolo_autotune_to_point(&t->rules, &t->start, x);
        for (; d < t->gaussian.dims; d++) x[d] = (x[d] > 0.5) ^ (i >> d & 1);
        return true;
    }
    if (i > KOLO_MIN(FIXED_POINTS, t->rules.settings / 2)) return false;
    if (t->rules.threshold) x[d++] = 0.1 + 0.9 * fmod(i * 0.6180339887, 1.0);
    if (t->rules.cycle) x[d++] = halves(i);
    for (int c = 0; c < KOLO_CHOICES; c++)
        if (t->rules.choices >> c & 1) x[d++] = (t->start.choices >> c & 1) ^ (i % 4 == c + 1);
    return true;
}

/* Picks, of the settings tried, that of which the most is to be expected: a lucky sample does not count for all. */
static kolo_status_t pick_best(kolo_tuner_t *t, double *largest)
{
    *largest = -INFINITY;
    for (int i = 0; i < t->gaussian.n; i++) {
        double mean, deviation;
        KOLO_TRY(kolo_gaussian_predict(&t->gaussian, t->gaussian.x[i], &mean, &deviation));
        if (mean <= *largest) continue;
        *largest = mean;
        t->best = t->settings[i];
        t->best_score = exp(mean);
    }
    return KOLO_OK;
}

static bool same(const kolo_tuning_t *a, const kolo_tuning_t *b)
{
    return a->fusion_threshold == b->fusion_threshold && a->cycle_time_us == b->cycle_time_us &&
           a->choices == b->choices;
}

/* Picks what is to be measured again: what may well be the best and was not measured often. */
static kolo_status_t pick_finalist(kolo_tuner_t *t)
{
    double largest = -INFINITY;
    for (int i = 0; i < t->gaussian.n; i++) {
        double mean, deviation;
        int times = 0;
        for (int k = 0; k < t->gaussian.n; k++) times += same(&t->settings[i], &t->settings[k]);
        KOLO_TRY(kolo_gaussian_predict(&t->gaussian, t->gaussian.x[i], &mean, &deviation));
        if (times > 3 || mean + deviation <= largest) continue;
        largest = mean + deviation;
        t->now = t->settings[i];
    }
    return KOLO_OK;
}

/* Learns from the scores; the kernel's lengths and the like change little with each. */
static kolo_status_t learn(kolo_tuner_t *t)
{
    if (t->gaussian.n <= 1.15 * t->fitted && t->tried < settings_of(&t->rules))
        return kolo_gaussian_solve(&t->gaussian);
    t->fitted = t->gaussian.n;
    return kolo_gaussian_fit(&t->gaussian);
}

static kolo_status_t search(kolo_tuner_t *t, double score)
{
    double x[KOLO_GAUSSIAN_DIMS] = {0}, best, improvement;
    int settings = settings_of(&t->rules);
    kolo_autotune_to_point(&t->rules, &t->now, x);
    t->settings[t->gaussian.n] = t->now;
    /* by logarithms: what costs a part of the speed does so anywhere, and noise is a part of it, too */
    KOLO_TRY(kolo_gaussian_add(&t->gaussian, x, log(fmax(score, 1e-3))));
    t->tried++;
    if (t->tried < settings && fixed_point(t, x)) {
        kolo_autotune_from_point(&t->rules, x, &t->now);
        return KOLO_OK;
    }
    KOLO_TRY(learn(t));
    KOLO_TRY(pick_best(t, &best));
    if (t->tried < settings) {
        KOLO_TRY(kolo_gaussian_propose(&t->gaussian, best, x, &improvement));
        kolo_autotune_from_point(&t->rules, x, &t->now);
        return KOLO_OK;
    }
    t->phase = KOLO_TUNE_FINAL;
    if (t->tried < settings + finals_of(&t->rules)) return pick_finalist(t);
    enter(t, KOLO_TUNE_OVER);
    return KOLO_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

kolo_status_t kolo_tuner_sample(kolo_tuner_t *t, double score, bool *changed)
{
    bool warm = t->phase == KOLO_TUNE_WARM_UP;
    *changed = false;
    if (t->phase == KOLO_TUNE_OVER) return KOLO_OK;
    t->samples[t->nsamples % KOLO_TUNE_SAMPLES_MAX] = score;
    if (++t->nsamples < (warm ? t->rules.warm_up : t->rules.samples)) return KOLO_OK;
    t->score = median(t->samples, KOLO_MIN(t->nsamples, KOLO_TUNE_SAMPLES_MAX));
    t->nsamples = 0;
    *changed = true;
    if (warm)
        enter(t, KOLO_TUNE_SEARCH);
    else
        return search(t, t->score);
    return KOLO_OK;
}
