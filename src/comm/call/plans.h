/* SPDX-License-Identifier: Apache-2.0
 *
 * How a communicator chooses a plan for a call, keeps it with its connections, and finds it again; and what its
 * user has made with it: operators and registrations.
 */
#ifndef KOLO_COMM_CALL_PLANS_H
#define KOLO_COMM_CALL_PLANS_H

#include "algo/algo.h"
#include "comm/connect.h"
#include "exec/host/exec.h"
#include "tune/tune.h"

/* A plan with its connections: made once per (collective, algorithm, root), found by the memo. */
typedef struct kolo_bound {
    kolo_plan_t *plan;
    kolo_tx_t **tx;
    kolo_rx_t **rx;
    void *state;
    bool exchange;     /* kolo_pair_is() */
    uint64_t ref_tile; /* tiles of this length; 0: as slots allow */
    size_t bounce;     /* kolo_task_bounce_bytes() */
    struct kolo_bound *next;
} kolo_bound_t;
/* Tiles of references: nearly any length; shorter where data is also reduced and passed on, so that it stays in
 * cache. */
#define KOLO_REF_TILE (1u << 26)
/* A message is one tile of any length: messages of a group follow each other whole, because the other end may have
 * grouped them differently. */
#define KOLO_P2P_TILE        ((uint64_t)1 << 62)
#define KOLO_REF_REDUCE_TILE (256u << 10)

#define KOLO_MEMO_BITS  5 /* of the number of a set of two entries */
#define KOLO_MEMO_SLOTS (2 << KOLO_MEMO_BITS)
typedef struct { /* how to run calls of one signature; the signature has root and count only modulo something, so
                    both are here, too */
    uint64_t signature, count;
    uint32_t root;
    bool v, reduces;
    uint8_t way; /* kolo_way_number() */
    uint32_t piece_bytes;
    kolo_bound_t *bound;      /* the plan; NULL: by lines */
    kolo_task_step_fn_t loop; /* over lines; NULL: by the plan */
    kolo_reducer_t reducer;   /* unless the operator is a user's: words have no number for those */
} kolo_memo_t;

#define KOLO_USER_OPS 64
typedef struct {
    bool used;
    kolo_type_t type;
    kolo_reducer_t reducer;
} kolo_user_op_t;

typedef struct kolo_user_ops { /* stays until the communicator is freed */
    kolo_user_op_t ops[KOLO_USER_OPS];
    _Atomic(struct kolo_user_ops *) more; /* NULL: there were never so many at a time */
} kolo_user_ops_t;

typedef struct {
    kolo_tune_env_t tune;
    kolo_tune_sizes_t sizes;
    kolo_emit_env_t emit;
    int *ring;
    int order; /* KOLO_ORDER_FREE, KOLO_ORDER_RANKS */
} kolo_body_choice_t;

typedef struct {
    kolo_memo_t memo[KOLO_MEMO_SLOTS]; /* sets: launch.c */
    kolo_bound_t *bounds;
    void *scratch;
    size_t scratch_bytes;
    kolo_part_t *src_parts, *dst_parts;
    size_t parts_capacity;
} kolo_body_plans_t;

typedef struct {
    kolo_user_ops_t ops;
    kolo_reducer_t reducer; /* of the collective that runs; its operator may be destroyed meanwhile */
    struct kolo_registration *registrations;
} kolo_body_user_t;

#endif
