/* SPDX-License-Identifier: Apache-2.0
 *
 * Which setting of the engine to try next, from how fast it was under those tried so far: nothing here knows an
 * engine, so it can be tried on a model of one (tuner_model.h). First some samples are thrown away, then fusion
 * threshold, cycle time and choices are searched together (gaussian.h), then those that may be the best are
 * measured again. After a bounded number of samples it is over, and the best setting stays.
 */
#ifndef KOLO_ENGINE_TUNER_TUNER_H
#define KOLO_ENGINE_TUNER_TUNER_H

#include "base/status.h"
#include "engine/tuner/gaussian.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t fusion_threshold, cycle_time_us;
    uint32_t choices; /* bits of kolo_choice_t */
} kolo_tuning_t;

typedef enum {
    KOLO_CHOOSE_HIER_ALL_REDUCE,
    KOLO_CHOOSE_HIER_ALL_GATHER,
    KOLO_CHOOSE_CACHE,
    KOLO_CHOICES
} kolo_choice_t;
const char *kolo_autotune_choice_name(kolo_choice_t choice);

#define KOLO_TUNE_THRESHOLD_MIN (INT64_C(1) << 16)
#define KOLO_TUNE_THRESHOLD_MAX (INT64_C(1) << 28)
#define KOLO_TUNE_CYCLE_MAX_US  20000

typedef struct {
    bool threshold, cycle; /* are they to be tuned? */
    uint32_t choices;      /* which are */
    int warm_up;           /* samples that are thrown away at the beginning */
    int samples;           /* of each setting; their median is its score */
    int settings;          /* that are tried at most, the finalists' second and third times not counted */
} kolo_tuner_rules_t;

typedef enum {
    KOLO_TUNE_WARM_UP,
    KOLO_TUNE_SEARCH,
    KOLO_TUNE_FINAL,
    KOLO_TUNE_OVER,
    KOLO_TUNE_PHASES
} kolo_tune_phase_t;
const char *kolo_engine_tune_phase_name(kolo_tune_phase_t phase);

#define KOLO_TUNE_SAMPLES_MAX  100
#define KOLO_TUNE_SETTINGS_MAX 100
#define KOLO_TUNE_FINALS       4

typedef struct {
    kolo_tuner_rules_t rules;
    kolo_tune_phase_t phase;
    kolo_tuning_t start, now, best; /* what is in force or is to be; the best so far */
    double score, best_score;       /* of the setting that was in force before `now`; of the best */
    int nsamples, tried;
    int fitted; /* settings whose scores the kernel was fitted to */
    double samples[KOLO_TUNE_SAMPLES_MAX];
    kolo_tuning_t settings[KOLO_GAUSSIAN_POINTS];
    kolo_gaussian_t gaussian;
    kolo_numeric_t *numeric;
} kolo_tuner_t;

/* Begins with this setting. KOLO_ERR_UNSUPPORTED: without the libraries of numeric.h. */
kolo_status_t kolo_tuner_init(kolo_tuner_t *t, const kolo_tuner_rules_t *rules, const kolo_tuning_t *start);
void kolo_tuner_fini(kolo_tuner_t *t);
/* Takes so many bytes per second under t->now. *changed: the setting is over, t->score is its score, t->now is the
 * next one, or the phase is another. */
kolo_status_t kolo_tuner_sample(kolo_tuner_t *t, double score, bool *changed);
/* Samples until it is over, at most. */
int kolo_tuner_samples_max(const kolo_tuner_rules_t *rules);

/* Settings as points of the unit cube, and back: the threshold by its logarithm, the cycle time nearly so, and each
 * choice as 0 or 1. */
void kolo_autotune_to_point(const kolo_tuner_rules_t *rules, const kolo_tuning_t *tuning, double *x);
void kolo_autotune_from_point(const kolo_tuner_rules_t *rules, const double *x, kolo_tuning_t *tuning);

#endif
