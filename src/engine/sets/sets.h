/* SPDX-License-Identifier: Apache-2.0
 *
 * Process sets: the state of one, the list of all, and the order of their cycles.
 */
#ifndef KOLO_ENGINE_SETS_SETS_H
#define KOLO_ENGINE_SETS_SETS_H

#include "engine/controller/cache.h"
#include "engine/controller/controller.h"
#include "engine/queue.h"

struct kolo_tensor_engine;

#define KOLO_BACKENDS_MAX 8

/* A process set: ranks with their own communicator, cache, coordinator and tensor names. Set 0 is all ranks. Ranks
 * outside a set know it, too. */
typedef struct kolo_set {
    struct kolo_tensor_engine *engine;
    int id, rank, size; /* rank within the set; -1: not in it, and the rest is unused */
    int *ranks;         /* of the job, ascending */
    kolo_comm_t comm;   /* its own; the loop uses its handle alone, for another thread may abort it at any time */
    kolo_member_t members; /* who its ranks are: a copy, for the same reason */
    kolo_note_t note;      /* for kolo-top, in its record */
    _Atomic bool comm_ended;
    /* native.c: a communicator of the ranks' GPUs, made at first need. Who takes it out of here ends it. */
    _Atomic(kolo_comm_t) gpu;
    bool gpu_asked, gpu_missing; /* the loop's: making it was tried; it failed on some rank */
    bool ran_native;             /* the loop's: an operation ran on GPUs, so all ranks have one */
    int stream;                  /* the loop's: which one its operations on GPUs are on, from 1 on; 0: not chosen */
    bool removed;                /* under the queue's lock */
    kolo_op_t and_op, or_op;
    kolo_tensors_t lane;

    /* the loop's */
    uint64_t cycle, called;                /* the next cycle's number; the latest that this rank has asked for */
    kolo_entry_t *pending, **pending_tail; /* not agreed on yet, in the order of submission */
    size_t npending, nreported, nhits;
    kolo_entry_t *join;     /* held back until everything before it is complete */
    bool all_here;          /* nothing was elsewhere when this cycle began */
    bool join_sent, joined; /* sent in this cycle; this rank has joined */
    int njoined;
    uint64_t operations; /* operations so far; equal on all ranks, so it numbers them */
    /* batch/failed.c: failures whose status and text all ranks must agree on. */
    struct kolo_failed *failed, **failed_tail;
    kolo_cache_t cache;
    kolo_controller_t controller;

    _Atomic(void *) talk_here; /* talk.h: its state for this set */
    _Atomic bool talk_left;
    /* backend.c: by number of the backend */
    uint32_t backends_met;                           /* bits; the loop's */
    _Atomic(void *) backend_here[KOLO_BACKENDS_MAX]; /* its state for this set */
    _Atomic bool backend_left[KOLO_BACKENDS_MAX];
} kolo_set_t;

typedef struct {
    int set;
    uint64_t cycle;
} kolo_turn_t;

typedef struct {
    uint64_t asked;   /* the latest cycle that a rank below this one in the tree has asked for */
    bool mine;        /* this rank may belong to it */
    uint8_t branches; /* bits: branches that may have ranks of it */
} kolo_order_set_t;

typedef struct {
    pthread_mutex_t lock;
    kolo_order_set_t *sets; /* by id */
    size_t nsets;
    kolo_turn_t *turns; /* turns of this rank that it has not taken yet: [begin, end) */
    size_t begin, end, room;
    _Atomic size_t waiting;
    bool broken; /* out of memory: the order is lost */
} kolo_order_t;

/* Makes a set (set.c). */
kolo_status_t kolo_set_new(struct kolo_tensor_engine *e, int id, const int *ranks, int count, kolo_set_t **out);
/* Takes over the communicator and makes what depends on it. */
kolo_status_t kolo_set_open(kolo_set_t *s, kolo_comm_t comm);
/* Ends the communicators, once. */
void kolo_set_leave(kolo_set_t *s, bool abort);
void kolo_set_leave_gpu(kolo_set_t *s, bool abort);
/* Waits for the work of its GPUs, in order with the other ranks. */
void kolo_set_finalize_gpu(kolo_set_t *s);
/* Frees what depends on the communicator; later calls are told that the set was removed. */
void kolo_set_close(kolo_set_t *s);
void kolo_set_free(kolo_set_t *s); /* NULL is fine */
/* Returns KOLO_AVG if all ranks contribute; else KOLO_SUM, and the factor for its result. */
kolo_op_t kolo_set_reduction(const kolo_set_t *s, kolo_op_t op, double *factor);
/* Tells whether this rank wants to join and nothing in the loop prevents it. */
static inline bool kolo_set_may_join(const kolo_set_t *s)
{
    return s->join && !s->joined && s->npending == 0 && s->nreported == 0 && !s->failed;
}

/* Agrees, with all ranks of the set, on the failed operations and their errors, and completes them
 * (batch/failed.c). Collective. */
kolo_status_t kolo_failed_agree(kolo_set_t *s);
void kolo_failed_free(kolo_set_t *s);

/* sets.c */
#define KOLO_SETS_MAX (1 << 20) /* the most ids of one engine */
/* Returns a set, NULL for an id that was never used. The set stays until the end of the engine. Any thread. */
kolo_set_t *kolo_sets_find(struct kolo_tensor_engine *e, int id);
/* Finds the set of a submission, if this rank may submit to it. */
kolo_status_t kolo_sets_pick(struct kolo_tensor_engine *e, const kolo_submission_t *how, const char *what,
                             kolo_set_t **set);
kolo_status_t kolo_sets_find_live(struct kolo_tensor_engine *e, int id, const char *what, kolo_set_t **set);
/* Makes set 0; takes over comm. */
kolo_status_t kolo_sets_make_all(struct kolo_tensor_engine *e, kolo_comm_t comm);
/* Makes the sets of the config. Collective. */
kolo_status_t kolo_sets_make_first(struct kolo_tensor_engine *e);
/* Checks a list and returns a sorted copy. */
kolo_status_t kolo_sets_sort(const struct kolo_tensor_engine *e, const kolo_rank_list_t *list, const char *what,
                             int **out);
/* Adds a set; KOLO_ERR_INVALID_USAGE on all ranks if it exists. Collective. */
kolo_status_t kolo_sets_add(struct kolo_tensor_engine *e, const int *sorted, int count, const char *what);
uint64_t kolo_sets_hash(const kolo_rank_list_t *sets, int count);
/* Ends all communicators, each once. */
void kolo_sets_leave(struct kolo_tensor_engine *e, bool abort);
void kolo_sets_fini(struct kolo_tensor_engine *e);

/* Adds or removes a set as all ranks have agreed (set_change.c). The caller completes the entry. */
kolo_status_t kolo_sets_change(struct kolo_tensor_engine *e, const kolo_response_t *response);

/* order.c */
typedef enum { KOLO_NOTIFY_CYCLE, KOLO_NOTIFY_CALL, KOLO_NOTIFY_TURN } kolo_notify_kind_t;
kolo_notify_kind_t kolo_order_kind(uint64_t number);
kolo_status_t kolo_order_init(kolo_order_t *o);
void kolo_order_fini(kolo_order_t *o);
/* Handles a call or a turn from another rank. */
void kolo_order_heard(struct kolo_tensor_engine *e, int from, uint64_t number);
/* Records the members of a new set. */
kolo_status_t kolo_order_meet(struct kolo_tensor_engine *e, const kolo_set_t *set);
/* Asks for a turn of the set's next cycle, unless this rank has. */
kolo_status_t kolo_order_call(kolo_set_t *s);
/* Takes this rank's next turn. */
kolo_status_t kolo_order_next(kolo_order_t *o, kolo_turn_t *turn, bool *found);

#endif
