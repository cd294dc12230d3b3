/* SPDX-License-Identifier: Apache-2.0
 *
 * Algorithms. Each file has one emit function per collective it covers; all are listed in one table. An emit
 * function computes peers and segments from the numbers in the environment; it sends nothing and knows no device.
 */
#ifndef KOLO_ALGO_ALGO_H
#define KOLO_ALGO_ALGO_H

#include "plan/builder.h"

typedef struct {
    kolo_coll_t coll;
    kolo_algo_t algo;
    kolo_status_t (*emit)(const kolo_emit_env_t *env, kolo_plan_t **plan); /* call it by kolo_algo_emit() */
    /* Can it run in this environment? (power of two, fan-out, one node, ...) Never NULL. */
    bool (*usable)(const kolo_emit_env_t *env);
    bool in_place;      /* SRC == DST allowed */
    bool commutative;   /* reduces in another order than the ranks': callback operators must be commutative */
    const char *source; /* paper, spec or system it comes from */
} kolo_algo_row_t;

/* Connections of sends and receives: this lane and the next one. They may be busy while a collective runs, so they
 * are no collective's. */
#define KOLO_P2P_LANE 0x4000u

extern const kolo_algo_row_t kolo_algos[];
extern const size_t kolo_algo_rows;
/* NULL if there is none. */
const kolo_algo_row_t *kolo_algo_find(kolo_coll_t coll, kolo_algo_t algo);
/* Emits this rank's plan. KOLO_ERR_UNSUPPORTED when it is not usable here. With one rank every algorithm is a copy.
 * Plans of one node need queues of 2 slots, plans of several nodes of 4 (plan->depth tells). */
kolo_status_t kolo_algo_emit(kolo_coll_t coll, kolo_algo_t algo, const kolo_emit_env_t *env, kolo_plan_t **plan);

#endif
