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
    bool lines;         /* short calls can follow its plans by loops over lines (kolo_way_t) */
    bool commutative;   /* reduces in another order than the ranks': callback operators must be commutative */
    bool fold_of_two;   /* so it is among two ranks */
    bool one_fold;      /* each result is one step over all ranks' inputs, in rank order (config.order) */
    const char *source; /* paper, spec or system it comes from */
} kolo_algo_row_t;

/* Connections of sends and receives: this lane and the next one. They may be busy while a collective runs, so they
 * are no collective's. */
#define KOLO_P2P_LANE 0x4000u
/* Connections on which a root hands out the parts of a long broadcast to many ranks of its host: queues that hold
 * more than others (kolo_tune_pair_depth()). */
#define KOLO_SCATTER_LANE 0x3000u

extern const kolo_algo_row_t kolo_algos[];
extern const size_t kolo_algo_rows;
/* Tells whether it can run in this environment, with the order of operands that is asked for there. */
bool kolo_algo_usable(const kolo_algo_row_t *row, const kolo_emit_env_t *env);
/* Returns NULL if there is none. */
const kolo_algo_row_t *kolo_algo_find(kolo_coll_t coll, kolo_algo_t algo);
/* What a collective is run by: an algorithm, and what its connections carry. Slots, which an interpreter of the
 * plan fills and empties; or lines of a few bytes with their own arrival flags (wire/ll.h), for which hand-written
 * loops follow the same plan in one pass (exec/host/flat_*.c). Lines need a fan-out to all ranks, on one host. */
typedef struct {
    kolo_algo_t algo; /* KOLO_ALGO_COUNT: none */
    bool lines;
} kolo_way_t;
#define KOLO_WAY_NONE ((kolo_way_t){.algo = KOLO_ALGO_COUNT})
static inline bool kolo_way_is(kolo_way_t a, kolo_way_t b)
{
    return a.algo == b.algo && a.lines == b.lines;
}
/* Tells whether the collective has this way (way.c). */
bool kolo_way_exists(kolo_coll_t coll, kolo_way_t way);
/* All that there are; returns how many. */
#define KOLO_WAYS_MAX 16
size_t kolo_way_all(kolo_coll_t coll, kolo_way_t list[KOLO_WAYS_MAX]);
/* Returns its name in KOLO_ALGO and in tables: by slots the algorithm's; by lines "flat", and "flat_two_step" of an
 * all_reduce whose parts are reduced first. KOLO_COLL_COUNT: of any collective. */
const char *kolo_way_name(kolo_coll_t coll, kolo_way_t way);
bool kolo_way_parse(kolo_coll_t coll, const char *name, kolo_way_t *way);
/* As a number below 255, for flight records: that of the algorithm, and this; and back. */
#define KOLO_WAY_LINES 0x80u
uint32_t kolo_way_number(kolo_way_t way);
kolo_way_t kolo_way_of_number(uint32_t number);

/* Emits this rank's plan. KOLO_ERR_UNSUPPORTED when it is not usable here. With one rank every algorithm is a copy.
 * Plans of one node need queues of 2 slots, plans of several nodes of 4 (plan->depth tells). */
kolo_status_t kolo_algo_emit(kolo_coll_t coll, kolo_algo_t algo, const kolo_emit_env_t *env, kolo_plan_t **plan);

#endif
