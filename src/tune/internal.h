/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tuner's files share.
 */
#ifndef KOLO_TUNE_INTERNAL_H
#define KOLO_TUNE_INTERNAL_H

#include "tune/table.h"

typedef struct {
    const char *algo, *file;
    int64_t flat_max, slot_bytes, net_slot_bytes, budget, ref_min, halves_min;
} kolo_tune_config_t;
extern kolo_tune_config_t kolo_tune_config;

/* Predicts microseconds of one algorithm (cost model; see model.c). */
double kolo_tune_model(const kolo_tune_ask_t *ask, kolo_algo_t algo);
/* Asks the rules from measurement (rules.c): the way, or none when they have nothing to say. */
kolo_way_t kolo_tune_rule(const kolo_tune_ask_t *ask);
/* Writes that rule in words. */
void kolo_tune_rule_words(const kolo_tune_ask_t *ask, char *text, size_t bytes);
/* Returns the row of the table file for this call, or NULL (loaded.c); and the hash of its bytes, 0 without one. */
const kolo_tune_row_t *kolo_tune_loaded_row(const kolo_tune_env_t *env, kolo_coll_t coll, uint64_t bytes);
uint64_t kolo_tune_loaded_hash(void);
/* Tells whether this call fits the slots of lines, by the loops that follow this algorithm. */
bool kolo_tune_fits(const kolo_tune_ask_t *ask, kolo_algo_t algo);

/* Refuses names in KOLO_ALGO that are not known. */
kolo_status_t kolo_tune_check_param(const kolo_param_t *row, const char *text);

#endif
