/* SPDX-License-Identifier: Apache-2.0
 *
 * Tuning of an engine while it works. Rank 0 measures: bytes that tensors of set 0 carry per second, over some
 * steps, a step being the time until the same tensor is reduced again. Its tuner (tuner.h) says what to try next;
 * that goes to all ranks with the coordinator's answers of set 0's next cycle, and all begin with it after that
 * cycle.
 */
#ifndef KOLO_ENGINE_TUNER_AUTOTUNE_H
#define KOLO_ENGINE_TUNER_AUTOTUNE_H

#include "engine/engine.h"

#include <stdio.h>

/* Parameters (params.c). */
extern const char *kolo_autotune_log_path;
extern int64_t kolo_autotune_warm_up, kolo_autotune_steps, kolo_autotune_samples, kolo_autotune_settings;

#define KOLO_AUTOTUNE_STEPS_MAX 10000

/* What each rank writes down, one line per setting. */
typedef struct {
    FILE *file;          /* NULL: nothing is written */
    uint64_t from_cycle; /* of set 0, that the setting in force is of */
} kolo_autotune_log_t;

/* Opens KOLO_AUTOTUNE_LOG of this rank, if it is to write one; if that fails, warns and goes on without. */
void kolo_autotune_log_open(kolo_autotune_log_t *log, int rank);
/* Writes that the setting was in force up to, not including, the cycle. score: bytes per second, < 0: not known on
 * this rank. */
void kolo_autotune_log_write(kolo_autotune_log_t *log, const kolo_tuned_t *tuned, uint64_t to_cycle, double score);
void kolo_autotune_log_close(kolo_autotune_log_t *log);

/* Of an engine; NULL when it is not tuned, or no longer. */
typedef struct kolo_autotune {
    kolo_autotune_log_t log;
    /* on rank 0: */
    kolo_tuner_t *tuner;
    bool news;       /* the tuner has something new that ranks do not know of */
    int settling;    /* steps until the clock starts: the first ones after a change are not like the others */
    int steps;       /* of this sample */
    uint64_t cycles; /* since the last step */
    char mark[KOLO_TENSOR_NAME_MAX + 1]; /* the tensor whose return makes a step; "": the next one */
    uint64_t began_ns, bytes;
} kolo_autotune_t;

/* Begins tuning. Collective. */
kolo_status_t kolo_autotune_begin(struct kolo_tensor_engine *e);
void kolo_autotune_end(struct kolo_tensor_engine *e);
/* Tells whether the coordinator has something to say to the ranks of this set. */
bool kolo_autotune_has_news(const kolo_set_t *s);
/* Puts it into the answers. */
void kolo_autotune_tell(kolo_set_t *s, kolo_responses_t *answers);
/* Counts a cycle of the set that is over, in which this was done. */
kolo_status_t kolo_autotune_cycle(kolo_set_t *s, kolo_response_t *const *done, size_t count,
                                  const kolo_responses_t *fresh);

#endif
