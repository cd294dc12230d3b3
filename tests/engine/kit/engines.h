/* SPDX-License-Identifier: Apache-2.0
 *
 * What the engine's tests share: ranks as threads, each with an engine on a communicator of its own.
 */
#ifndef KOLO_TESTS_ENGINE_KIT_ENGINES_H
#define KOLO_TESTS_ENGINE_KIT_ENGINES_H

#include "kit/ranks.h"

#include <kolo/engine.h>

typedef struct erank {
    int rank, size;
    kolo_comm_t comm;
    kolo_tensor_engine_t engine; /* fn may end it and set NULL */
    void *arg;
} erank_t;

/* Runs fn on n threads with engines made from config (NULL: defaults). Returns the number of failures. */
int run_engines(int n, const kolo_engine_config_t *config, void (*fn)(erank_t *), void *arg);

/* A tensor of floats over `data`, in place. */
kolo_tensor_t float_tensor(const char *name, float *data, const int64_t *count);
/* Submits and waits. */
kolo_status_t reduce_now(erank_t *r, const char *name, float *data, int64_t count, kolo_op_t op);
kolo_status_t barrier_now(erank_t *r);
/* How long waits of tests may last. */
#define WAIT_MS 30000

#endif
