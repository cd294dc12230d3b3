/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the tuner: a model of an engine that is given tensors at certain times, and how fast it is under a
 * setting. It fuses with kolo_fusion_batches() itself; what agreeing, packing and reducing cost, and how much they
 * slow the computation down, is a number each. The tensors are those of a recording, or made up.
 */
#ifndef KOLO_ENGINE_TUNER_TUNER_MODEL_H
#define KOLO_ENGINE_TUNER_TUNER_MODEL_H

#include "engine/engine.h"
#include "engine/tuner/tuner.h"

#define MODEL_TENSORS 512
#define MODEL_STEPS   3

typedef struct {
    double ready_us[MODEL_STEPS][MODEL_TENSORS]; /* when the last rank has submitted it */
    kolo_response_t responses[MODEL_TENSORS];
    char names[MODEL_TENSORS][16];
    int count;
    double bytes;
} workload_t;

typedef struct {
    const char *name;
    double agree_us, uncached_us;  /* a cycle; what each tensor costs more that no cache knows */
    double start_us, bytes_per_us; /* an operation */
    double pack_us, cache_bytes;   /* a megabyte packed and unpacked, and up to which size at that price */
    double steal;                  /* the part of the engine's time that the computation loses */
    double faster;                 /* the computation is, than it was when it was recorded */
    double hier;                   /* how many times faster operations are when they are hierarchical */
} machine_t;

/* Draws from 0 to 1; the other about normal with deviation 1. */
double model_unit(uint64_t *seed);
double model_normal(uint64_t *seed);

/* Loads a file like tests/data/workload.csv. */
void model_load(workload_t *w, const char *path);
/* Gradients like those of a convolutional network, of a transformer, or many small ones; a machine within a factor
 * of about a hundred of others. */
void model_random_workload(workload_t *w, uint64_t *seed);
void model_random_machine(machine_t *m, uint64_t *seed);

double model_bytes_per_s(const workload_t *w, const machine_t *m, const kolo_tuning_t *t, kolo_batches_t *batches);
/* Finds the best of a full grid of thresholds and cycle times, with all choices. */
double model_best_of_grid(const workload_t *w, const machine_t *m, kolo_tuning_t *best, kolo_batches_t *batches);

#endif
