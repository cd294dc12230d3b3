/* SPDX-License-Identifier: Apache-2.0
 *
 * The host executor. A task is one operation of one rank in flight: a bound plan, or a flat loop. Tasks are
 * resumable: kolo_task_step() does what can be done now and returns KOLO_IN_PROGRESS instead of waiting, so that
 * one thread can drive several communicators (groups). The caller owns the waiting (kolo_task_run,
 * comm/call/group.c).
 */
#ifndef KOLO_EXEC_HOST_EXEC_H
#define KOLO_EXEC_HOST_EXEC_H

#include "exec/host/reduce.h"
#include "plan/plan.h"
#include "plan/trace.h"
#include "wire/wire.h"

/* Where a part lies. */
typedef struct {
    void *base;     /* first byte */
    uint64_t count; /* elements */
} kolo_part_t;

typedef struct {
    kolo_trace_step_t *steps;
    size_t count, capacity; /* steps beyond the capacity are counted, not stored */
} kolo_exec_trace_t;

struct kolo_task;
/* One attempt. KOLO_OK: complete. KOLO_IN_PROGRESS: call again (*moved is set if anything was done). Else
 * failed. */
typedef kolo_status_t (*kolo_task_step_fn_t)(struct kolo_task *task, bool *moved);

/* Payload of the slots of EXPOSE, GET, GET_REDUCE and PUT: one slot per chunk piece. */
typedef struct {
    kolo_ref_t ref;
    double pre_float; /* the pre-scale of the writer's raw input */
    int64_t pre_int;
} kolo_exposed_t;
_Static_assert(sizeof(kolo_exposed_t) <= 64, "fits any slot");

/* Where a lane stands; private to interp.c and cursor.c. */
typedef struct kolo_lane_state {
    uint32_t pc, tile;
    uint32_t depth, loop_pc[2], loop_i[2]; /* loop_i[depth - 1] is the innermost counter */
    bool begun;                            /* the instruction at pc has begun; the fields below are its own */
    bool expected;                         /* the next slot was announced to the wire (rx_expect) */
    bool done;
    uint32_t announced; /* slots from the next one on that were (KOLO_CAP_AHEAD) */
    uint32_t i, j;      /* loop counters of its segments */
    uint32_t chunk;     /* number of the chunk in the segment */
    uint32_t list_at;   /* REDUCE_MANY: slots before this one are there */
    uint64_t at;        /* bytes of that chunk's piece done */
    uint64_t left;      /* bytes of all pieces left */
    uint32_t *waits;    /* by event */
    /* GET, GET_REDUCE, PUT of what a slot has shown, in pieces (references.c) */
    bool shown, copying; /* the slot has been read; a copy has been started */
    uint32_t copied;     /* bytes that are done, but for those of the copy */
    kolo_exposed_t exposed;
    kolo_ref_copy_t copy;
} kolo_lane_state_t;

/* A plan that is interpreted (interp.c). The caller fills what stands before the line. */
typedef struct {
    const kolo_plan_t *plan;
    kolo_tx_t **tx; /* by index in plan->conns; NULL where dir is rx */
    kolo_rx_t **rx;
    /* plan->src_parts, plan->dst_parts of them. Counts are set also where this rank has no such buffer (base NULL:
     * DST of a reduce off the root), for plans take lengths from them. */
    const kolo_part_t *src_parts, *dst_parts;
    void *scratch;        /* plan->nscratch * tile_bytes and kolo_task_bounce_bytes(), or NULL where that is 0 */
    uint32_t piece_bytes; /* slot payload that all ranks use for this operation; <= every connection's slot_bytes */
    uint64_t tile_bytes;  /* plan->slices * piece_bytes at most, a multiple of the element size; for messages
                             KOLO_P2P_TILE, and where only references travel as long as one likes */
    bool stream_out;      /* user output is larger than the cache: bypass it */
    /* ---- */
    bool src_stays;                    /* nothing of SRC is written by this operation */
    uint32_t ntiles;                   /* over the longest chunk of any rank */
    uint32_t idle;                     /* steps in a row in which nothing moved */
    bool late;                         /* somebody is: lanes may run ahead, until the slowest ends its tile */
    kolo_lane_state_t *lanes;          /* plan->nlanes */
    uint32_t *events;                  /* plan->nevents */
    char *bounce;                      /* where GET_REDUCE reads to, behind the scratch chunks */
    const kolo_lane_state_t *bouncing; /* whose copy goes there; NULL: nobody's */
    bool in_pieces;                    /* a lane has more to copy: who steps the task looks at the rest between */
} kolo_interp_t;

/* A loop over lines (flat_*.c). */
typedef struct {
    const void *src;
    void *dst;
    uint64_t count; /* elements, as in the call */
    uint32_t nranks, root;
    kolo_tx_t *ll_tx;  /* NODE or PAIR, KOLO_PROTO_LL; NULL if I only receive */
    kolo_rx_t **ll_rx; /* by rank, NULL at my own place; for recv: [0] */
    kolo_rx_t *ll_one; /* storage for the ll_rx of a receive */
    uint8_t *ll_temp;  /* nranks * KOLO_FLAT_MAX bytes for operands */
    /* ---- */
    uint32_t state, at;
    uint32_t polls;   /* for results, in vain */
    uint64_t help_ns; /* when who waits for a result makes it itself */
    size_t done;
} kolo_flat_t;

/* The exchange of two ranks by a slot each, or a message that is one slot (pair.c). */
typedef struct {
    const kolo_plan_t *plan;
    kolo_tx_t *tx;
    kolo_rx_t *rx;
    kolo_part_t out, own;         /* of SRC: what the peer gets, and what is for me */
    kolo_part_t in, kept;         /* of DST: what comes of the peer's message, and of my own data */
    uint32_t out_bytes, in_bytes; /* 0: there is no message */
    bool posted, taken;
} kolo_pair_t;

/* Who is asked about a task that does not go on; which of the three it is, is settled by its start. */
struct kolo_task_way;

typedef struct kolo_task {
    /* filled by the caller */
    kolo_wire_ctx_t *ctx;
    uint64_t signature, operation;
    const kolo_reducer_t *reducer; /* of all collectives: its elem is theirs. Must stay while the task runs */
    uint32_t rank;
    bool reducing;            /* SRC is raw input */
    kolo_exec_trace_t *trace; /* NULL: none */

    /* by its start */
    kolo_task_step_fn_t step;
    const struct kolo_task_way *way;

    /* after KOLO_ERR_MISMATCH of a step: whose slot it was, and of what; valid if met */
    bool met;
    int met_rank;
    uint64_t met_signature, met_operation;

    union {
        kolo_interp_t interp;
        kolo_flat_t flat;
        kolo_pair_t pair;
    };
} kolo_task_t;

/* ---- plan tasks (interp.c) ---- */

/* Bytes for GET_REDUCE that scratch has behind its chunks. */
#define KOLO_BOUNCE_BYTES (64u << 10)
size_t kolo_task_bounce_bytes(const kolo_plan_t *plan);
/* Returns the memory for lanes and events of a plan, which is reused from call to call. */
size_t kolo_task_plan_state_bytes(const kolo_plan_t *plan);
/* Starts a plan: task->interp is filled; `state` is memory of the size above. */
kolo_status_t kolo_task_start_plan(kolo_task_t *task, void *state);

/* Tells whether a task in progress is done but for its wires, which may still read the caller's memory. */
bool kolo_task_is_posted(const kolo_task_t *task);
/* Receives from one peer in a row, over a wire that wants to know where payloads will go (KOLO_CAP_AHEAD). How many
 * slots this one still awaits, if all of them are announced; *depth: slots of the queue, 0: nothing to announce
 * now. */
uint32_t kolo_task_awaited_slots(const kolo_task_t *task, uint32_t *depth);
/* Announces a later message of the row, which has slots of piece_bytes, from slot *ahead on, as far as the queue
 * goes; moves *ahead behind it. */
void kolo_task_announce(const kolo_task_t *task, uint32_t *ahead, void *data, uint64_t bytes, uint32_t piece_bytes);

/* Below this the copy into the slot is cheaper than a separate piece in the wire's message. */
#define KOLO_POST_FROM_LEAST 4096u

/* ---- the exchange of two ranks (pair.c) ---- */

/* Tells whether the plan needs no interpreter. Asked once, when it is bound. */
bool kolo_pair_is(const kolo_plan_t *plan);
/* Starts such a plan, if the parts fit a slot each; false: they do not, and it has to be interpreted. The caller
 * has filled task->interp: plan, tx, rx, the parts and piece_bytes. */
bool kolo_pair_start(kolo_task_t *task);
/* Does the same for a message from or to one peer, whose plan has one connection; task->reducer->elem is 1. */
bool kolo_pair_start_message(kolo_task_t *task, const kolo_plan_t *plan, kolo_tx_t *tx, kolo_rx_t *rx,
                             const kolo_part_t *part, uint32_t piece_bytes);

/* ---- flat tasks (flat_*.c) ---- */

#define KOLO_FLAT_MAX 8192 /* most data bytes of one LL slot */
/* Finds the loop that runs `coll`. algo: whose plan it follows, of a row with `lines` (algo/table.c). */
kolo_status_t kolo_flat_loop(kolo_algo_t algo, kolo_coll_t coll, kolo_task_step_fn_t *loop);
/* Starts a loop: task->flat is filled. What one rank puts must fit a slot: wire/ll.h lays parts out,
 * kolo_tune_fits() checks. */
void kolo_flat_start(kolo_task_t *task, kolo_task_step_fn_t loop);
kolo_status_t kolo_flat_start_send(kolo_task_t *task);
kolo_status_t kolo_flat_start_recv(kolo_task_t *task);

/* ---- waiting ---- */

/* Steps the task until it is complete, pumping its context's wires, checking peers, abort and deadline. On failure
 * the message names operation, peer and what was awaited. */
kolo_status_t kolo_task_run(kolo_task_t *task, kolo_wait_t *wait);
/* Writes what a task waits for now, for messages. */
void kolo_task_describe(void *task, char *buf, size_t bytes);
/* Lists the ranks that it waits for, at most `most` of them; returns how many. */
size_t kolo_task_awaited(kolo_task_t *task, int *ranks, size_t most);
/* Asks the wires of every connection the task waits on whether its peer lives. */
kolo_status_t kolo_task_check_peers(kolo_task_t *task);
/* Gives a task up before it is complete (abort, deadline, failure): afterwards no wire writes to its memory.
 * kolo_task_run() does this itself; whoever steps tasks by hand calls it. Any task, any number of times. */
void kolo_task_cancel(kolo_task_t *task);

#endif
