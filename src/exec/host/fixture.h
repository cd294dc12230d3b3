/* SPDX-License-Identifier: Apache-2.0
 *
 * For the executor's tests and benchmarks: ranks as threads over real queues in plain memory, without set-up, wires
 * or communicators. The posting variant stands for a wire that moves payloads outside the slots
 * (KOLO_CAP_POST_FROM): the writer stores straight into the memory that the reader announced.
 */
#ifndef KOLO_EXEC_HOST_FIXTURE_H
#define KOLO_EXEC_HOST_FIXTURE_H

#include "exec/host/exec.h"

#include <pthread.h>

#define FIXTURE_MAX_RANKS 20

typedef struct fixture_end { /* one end of a queue */
    struct fixture_end *next;
    struct fixture_queue *queue;
    bool is_tx;
    int rank;
    kolo_tx_t tx;
    kolo_rx_t rx;
} fixture_end_t;

typedef struct fixture_queue {
    struct fixture_queue *next;
    kolo_conn_spec_t spec;
    void *memory;
    pthread_mutex_t lock; /* of the announcement below */
    kolo_rx_t *expecting;
    void *expected_at;
    uint64_t expected_slot;
    uint32_t expected_bytes;
    _Atomic uint32_t placed; /* payloads that went straight to their place */
} fixture_queue_t;

typedef struct {
    uint32_t nranks;
    uint32_t depth, slot_bytes; /* of SIMPLE queues */
    uint32_t ll_slot_bytes;     /* of queues of lines */
    uint64_t start;             /* number of every first slot */
    bool posting;
    int pumped;     /* rank whose wires seem to need pumping; -1: none */
    int interprets; /* rank that interprets every plan; -1: none */
    _Atomic uint32_t abort;
    _Atomic bool endless; /* single copies never end */
    pthread_mutex_t lock;
    fixture_queue_t *queues;
    fixture_end_t *ends;
    _Atomic bool dead[FIXTURE_MAX_RANKS]; /* what the ends' check functions report */
} fixture_t;

void fixture_init(fixture_t *f, uint32_t nranks, uint32_t depth, uint32_t slot_bytes, uint64_t start, bool posting);
void fixture_fini(fixture_t *f);
uint32_t fixture_placed(fixture_t *f);
/* The end of `rank`; the same arguments give the same end. reader -1: a NODE queue. */
kolo_tx_t *fixture_tx(fixture_t *f, int rank, int reader, uint32_t lane, kolo_proto_t proto);
kolo_rx_t *fixture_rx(fixture_t *f, int rank, int writer, bool node, uint32_t lane, kolo_proto_t proto);

/* A task over this fixture's queues and the memory it needs. */
typedef struct {
    kolo_task_t task;
    kolo_reducer_t reducer; /* of the task */
    kolo_plan_t *plan;
    void *state;
    kolo_part_t *src_parts, *dst_parts;
    kolo_tx_t **tx;
    kolo_rx_t **rx;
    void *scratch;
    bool exchanged; /* without the interpreter (pair.c) */
} fixture_task_t;
/* What a call would fill in. Counts as in kolo.h; parts of equal size. */
typedef struct {
    kolo_coll_t coll;
    const void *src;
    void *dst;
    uint64_t count;
    kolo_type_t type;
    kolo_op_t op;
    uint32_t root;
    uint64_t operation;
} fixture_call_t;
/* Binds `plan` (owned from now on). */
kolo_status_t fixture_bind_plan(fixture_t *f, fixture_task_t *t, kolo_plan_t *plan, const fixture_call_t *call,
                                uint32_t piece_bytes);
kolo_status_t fixture_bind_flat(fixture_t *f, fixture_task_t *t, uint32_t rank, kolo_algo_t algo,
                                const fixture_call_t *call);
void fixture_release(fixture_task_t *t);
/* Runs it to its end, at most `seconds`. */
kolo_status_t fixture_run(fixture_t *f, fixture_task_t *t, int seconds);

/* fn(arg, rank) on a thread per rank. */
void fixture_ranks(uint32_t nranks, void (*fn)(void *arg, uint32_t rank), void *arg);

#endif
