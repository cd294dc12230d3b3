/* SPDX-License-Identifier: Apache-2.0
 *
 * The abstract machine of the verifier (private to this room): values are expression trees, memory is cells of one
 * (chunk, tile, piece) each, connections are queues of slots, time is vector clocks.
 *
 * Why one schedule would do: a lane never tests, it only waits, and no step of one lane can disable a step of
 * another (queues have one writer and one place per reader, events only grow). So whether a run completes and what
 * it computes do not depend on the schedule, as long as there is no race; and races are found by clocks, not by
 * luck. Further schedules are run as a test of the verifier itself.
 *
 * Clocks follow edges that hold in every execution with a queue at least as deep as the plan's: slot posted to slot
 * read, reader done to RELEASE, signal to wait, end of a call to the start of the next on the same rank. That a
 * full queue holds back a writer is no edge: a deeper queue would not.
 */
#ifndef KOLO_PROVE_MODEL_H
#define KOLO_PROVE_MODEL_H

#include "prove/verify.h"
#include "prove/walk.h"

/* ---- values (value.c) ---- */

#define KOLO_VALUE_NONE    0u /* never written */
#define KOLO_VALUE_INITIAL 1u /* a cell's input of this call; becomes a leaf when read */

typedef struct {
    uint8_t kind;
    bool final;    /* the post-scale was applied */
    bool ordered;  /* leaves are consecutive ranks from low to high */
    uint32_t a, b; /* leaf: rank, chunk of its SRC; else operands */
    uint32_t key;  /* chunk that this is (part of) the reduction of */
    uint32_t when; /* number of (call, tile, piece) */
    uint32_t leaves, low, high;
    uint32_t next; /* hash chain */
} kolo_value_t;

typedef struct {
    kolo_value_t *at;
    uint64_t *bits; /* which ranks' inputs are in it: `words` words each */
    uint32_t count, cap, words, nranks;
    uint32_t *table, mask;
} kolo_values_t;

kolo_status_t kolo_values_init(kolo_values_t *v, uint32_t nranks);
void kolo_values_fini(kolo_values_t *v);
/* Makes a value, or finds an equal one: each returns its number, or 0 and the reason in *why. */
uint32_t kolo_values_leaf(kolo_values_t *v, uint32_t rank, uint32_t chunk, uint32_t when, const char **why);
uint32_t kolo_values_op(kolo_values_t *v, uint32_t a, uint32_t b, const char **why);
uint32_t kolo_values_list(kolo_values_t *v, uint32_t list, uint32_t value, const char **why); /* list 0: begin */
uint32_t kolo_values_many(kolo_values_t *v, uint32_t list, const char **why);
bool kolo_values_one_fold(const kolo_values_t *v, uint32_t a); /* one step over all ranks' leaves, in their order */
uint32_t kolo_values_final(kolo_values_t *v, uint32_t a, const char **why);

/* ---- clocks (clock.c) ---- */

typedef struct {
    uint32_t thread, time;
} kolo_epoch_t;

#define KOLO_CLOCK_FANOUT 16
typedef struct { /* of a tree of known times, shared by all clocks that know this */
    uint32_t refs;
    uint32_t
        at[KOLO_CLOCK_FANOUT]; /* leaf: by thread, the latest time of it that is known; else children, 0: none */
} kolo_clock_node_t;

typedef struct { /* what a thread knew when it posted, signalled or released */
    uint32_t root;
    kolo_epoch_t epoch; /* time 0: no stamp */
} kolo_stamp_t;

typedef struct {
    uint32_t nthreads; /* 0: off, everything is a no-op and ordered */
    uint32_t top;      /* level of roots; leaves are level 0 */
    uint32_t *root, *time;
    kolo_clock_node_t *nodes; /* the first is of those who know nothing */
    uint32_t count, cap, free;
    bool failed; /* no memory */
} kolo_clocks_t;

kolo_status_t kolo_clock_init(kolo_clocks_t *c, uint32_t nthreads);
void kolo_clock_fini(kolo_clocks_t *c);
kolo_epoch_t kolo_clock_now(const kolo_clocks_t *c, uint32_t thread);
kolo_stamp_t kolo_clock_stamp(kolo_clocks_t *c, uint32_t thread);
void kolo_clock_drop_stamp(kolo_clocks_t *c, kolo_stamp_t *stamp);
kolo_status_t kolo_clock_join(kolo_clocks_t *c, uint32_t thread, const kolo_stamp_t *stamp);
/* Tells whether what e stands for is known to have happened before what the thread does now. */
bool kolo_clock_after(const kolo_clocks_t *c, uint32_t thread, kolo_epoch_t e);

/* ---- memory ---- */

typedef struct {
    uint32_t value;
    uint32_t tag;       /* SCRATCH: call and tile that wrote it; else: 1 = written in this call */
    kolo_epoch_t write; /* time 0: none */
    kolo_epoch_t read;
    uint32_t more; /* further readers: index into model->reads plus one */
} kolo_cell_t;

typedef struct {
    kolo_epoch_t read;
    uint32_t next;
} kolo_read_t;

/* ---- queues ---- */

typedef struct {
    uint64_t shape;
    uint32_t value, call, tile, piece;
    uint32_t row, at; /* chunks of the instruction that posted it, and which of them this is */
    uint32_t left;    /* readers that have not taken it */
    bool ref;
    uint8_t ref_buf;
    uint64_t ref_cell;
    kolo_stamp_t stamp;
} kolo_vslot_t;

typedef struct {
    uint32_t rank;
    uint32_t lane[2]; /* of its plans; KOLO_NO_LANE when a plan does not use it */
    uint64_t taken;
    kolo_stamp_t stamp; /* of the last slot it took, where the writer RELEASEs */
} kolo_reader_t;

#define KOLO_NO_LANE 0xffffffffu

typedef struct {
    uint32_t writer;
    uint16_t lane;
    bool node, releases;
    uint32_t writer_lane[2];
    uint32_t first_reader, nreaders;
    uint32_t cap;
    uint32_t unreleased; /* references since the last RELEASE */
    uint64_t posted, freed;
    kolo_vslot_t *slots;
} kolo_prove_channel_t;

typedef struct {              /* a connection of a plan */
    uint32_t channel, reader; /* reader: index into model->readers; unused for tx */
} kolo_end_t;

/* ---- machine ---- */

typedef struct {
    uint32_t rank, lane, thread;
    kolo_cursor_t at;
    uint32_t tile, chunk, piece;
    bool done, queued;
    uint32_t *waits; /* by event */
} kolo_vlane_t;

typedef struct {
    uint32_t count, cap;
    kolo_stamp_t *stamps; /* of every signal */
} kolo_vevent_t;

typedef struct {
    const kolo_plan_t *plans[2];
    kolo_end_t *ends[2]; /* by connection index */
    uint32_t first_thread;
    uint32_t first_lane; /* model->lanes */
    uint32_t call, lanes_left;
    uint32_t started; /* clock time at the start of this call, for barriers */
    kolo_cell_t *user;
    kolo_cell_t *scratch;
    uint64_t nuser, nscratch;                      /* cells */
    uint32_t user_chunks[2], src_at[2], dst_at[2]; /* chunks, by plan */
    bool has_src[2], has_dst[2];
    kolo_vevent_t *events;
    const uint64_t *src_shape[2], *dst_shape[2]; /* P2P: part -> number of the send */
} kolo_vrank_t;

typedef struct {
    uint32_t rank, part;
} kolo_vsend_t;

typedef struct {
    uint32_t nranks, ncalls, tiles, slices[2], max_slices;
    const kolo_verify_options_t *options;
    const kolo_group_t *options_group[2];
    uint32_t depth[2];
    kolo_coll_t coll[2];
    uint32_t root[2], nsubs[2], grid_chunks[2];
    bool reduces[2], equal_only[2];
    kolo_vsend_t *sends[2]; /* P2P */
    uint64_t *send_numbers[2];
    kolo_values_t values;
    kolo_clocks_t clocks;
    kolo_vrank_t *ranks;
    kolo_vlane_t *lanes;
    uint32_t nlanes;
    uint32_t *waits;
    kolo_prove_channel_t *channels;
    kolo_reader_t *readers;
    kolo_end_t *ends;
    uint32_t nchannels, nreaders;
    kolo_vslot_t *slots;
    kolo_read_t *reads;
    uint32_t nreads, reads_cap, reads_free;
    uint32_t *result[2]; /* reduced values that all ranks must share: grid chunk, tile, piece */
    uint32_t *ready, nready;
    uint32_t ranks_left;
    uint64_t random;
    uint64_t steps;
} kolo_model_t;

/* Builds the machine; `next` may be equal to `plans` (setup.c). */
kolo_status_t kolo_model_init(kolo_model_t *m, const kolo_plan_t *const *plans, const kolo_plan_t *const *next,
                              uint32_t nranks, const kolo_verify_options_t *options);
void kolo_model_fini(kolo_model_t *m);
/* Pairs the connections of all plans (queue.c). */
kolo_status_t kolo_model_pair(kolo_model_t *m);
void kolo_model_unpair(kolo_model_t *m);

/* memory.c. Messages of these name no place; kolo_model_fail() at the caller puts it in front. */
typedef struct { /* who does something */
    kolo_model_t *m;
    kolo_vrank_t *r;
    kolo_vlane_t *l;
    const kolo_insn_t *in;
    uint32_t set; /* which plan: call & 1 */
} kolo_actor_t;

kolo_status_t kolo_model_fail(const kolo_actor_t *a, const char *fmt, ...) KOLO_PRINTF(2, 3);
uint64_t kolo_model_shape(const kolo_actor_t *a, const kolo_segment_t *s, uint32_t k);
/* Returns how many pieces of a chunk this tile has. */
uint32_t kolo_model_pieces(const kolo_model_t *m, uint32_t set, uint64_t shape, uint32_t tile);
kolo_status_t kolo_model_read(const kolo_actor_t *a, const kolo_segment_t *s, uint32_t *value);
kolo_status_t kolo_model_write(const kolo_actor_t *a, const kolo_segment_t *s, uint32_t value);
/* Finds the cell behind a reference to chunk `k` of the segment (index into the rank's user cells). */
kolo_status_t kolo_model_locate(const kolo_actor_t *a, const kolo_segment_t *s, uint64_t *cell);
kolo_status_t kolo_model_get(const kolo_actor_t *a, const kolo_vslot_t *slot, uint32_t owner, uint32_t *value);
kolo_status_t kolo_model_put(const kolo_actor_t *a, const kolo_vslot_t *slot, uint32_t owner, uint32_t value);
/* Orders an access of the actor's thread after all earlier conflicting ones, or fails; what (and number, if there
 * is one) only tell of it. */
#define KOLO_NO_NUMBER 0xffffffffu
kolo_status_t kolo_model_touch(const kolo_actor_t *a, kolo_cell_t *cell, bool write, const char *what,
                               uint32_t number);

/* Checks the outputs of a rank that has completed its call (rules.c). */
kolo_status_t kolo_model_outputs(const kolo_actor_t *a);

/* step.c: one piece of one instruction. */
typedef enum { KOLO_STEP_MOVED, KOLO_STEP_BLOCKED, KOLO_STEP_DONE } kolo_step_t;
kolo_status_t kolo_model_step(kolo_model_t *m, kolo_vlane_t *l, kolo_step_t *step);

/* run.c */
typedef enum { KOLO_ORDER_DEPTH, KOLO_ORDER_BREADTH, KOLO_ORDER_REVERSE, KOLO_ORDER_RANDOM } kolo_order_t;
kolo_status_t kolo_model_run(kolo_model_t *m, kolo_order_t order, uint64_t seed);
void kolo_model_wake(kolo_model_t *m, uint32_t lane);
void kolo_model_wake_rank_lane(kolo_model_t *m, uint32_t rank, const uint32_t lane[2]);

static inline kolo_prove_channel_t *kolo_model_tx(const kolo_actor_t *a, uint32_t conn)
{
    return &a->m->channels[a->r->ends[a->set][conn].channel];
}

#endif
