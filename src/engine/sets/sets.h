/* SPDX-License-Identifier: Apache-2.0
 *
 * Process sets: what one has, which there are, and whose turn it is.
 */
#ifndef KOLO_ENGINE_SETS_SETS_H
#define KOLO_ENGINE_SETS_SETS_H

#include "engine/controller/cache.h"
#include "engine/controller/controller.h"
#include "engine/queue.h"

struct kolo_tensor_engine;

#define KOLO_BACKENDS_MAX 8

/* A process set: ranks with a communicator, a cache and a coordinator of their own, whose tensors have names of
 * their own. Set 0 is all ranks. Ranks that do not belong to a set know of it all the same. */
typedef struct kolo_set {
    struct kolo_tensor_engine *engine;
    int id, rank, size; /* rank within the set, -1: not in it, and then nothing below */
    int *ranks;         /* of the job, ascending */
    kolo_comm_t comm;   /* its own */
    _Atomic bool comm_ended;
    /* native.c: a communicator of the ranks' GPUs, made at first need */
    _Atomic(kolo_comm_t) gpu;
    _Atomic bool gpu_ended;
    bool gpu_asked, gpu_missing; /* the loop's: it was tried to make it; in vain, on some rank */
    bool removed;                /* under the queue's lock */
    kolo_op_t and_op, or_op;
    kolo_lane_t lane;

    /* the loop's */
    uint64_t cycle, called;                /* number of the next one; of the latest that this rank has asked for */
    kolo_entry_t *pending, **pending_tail; /* not agreed yet, in the order of submission */
    size_t npending, nreported, nhits;
    kolo_entry_t *join;     /* held back until everything before it is complete */
    bool all_here;          /* nothing was elsewhere when this cycle began */
    bool join_sent, joined; /* in this cycle; this rank is one of those who have joined */
    int njoined;
    uint64_t operations;                       /* run so far, by which all ranks number them */
    struct kolo_failed *failed, **failed_tail; /* batch/failed.c: what all ranks have to agree on the words of */
    kolo_cache_t cache;
    kolo_controller_t controller;

    _Atomic(void *) talk_here; /* talk.h: what it has made for this set */
    _Atomic bool talk_left;
    /* backend.c: by number of the backend */
    uint32_t backends_met;                           /* bits; the loop's */
    _Atomic(void *) backend_here[KOLO_BACKENDS_MAX]; /* what it has made for this set */
    _Atomic bool backend_left[KOLO_BACKENDS_MAX];
} kolo_set_t;

typedef struct {
    int set;
    uint64_t cycle;
} kolo_turn_t;

typedef struct {
    uint64_t asked;   /* latest cycle that somebody below this rank has asked for */
    bool mine;        /* this rank may belong to it */
    uint8_t branches; /* in which there may be ranks that belong to it */
} kolo_order_set_t;

typedef struct {
    pthread_mutex_t lock;
    kolo_order_set_t *sets; /* by id */
    size_t nsets;
    kolo_turn_t *turns; /* that this rank has not taken yet: [begin, end) */
    size_t begin, end, room;
    _Atomic size_t waiting;
    bool broken; /* memory was short */
} kolo_order_t;

/* set.c */
kolo_status_t kolo_set_new(struct kolo_tensor_engine *e, int id, const int *ranks, int count, kolo_set_t **out);
/* The communicator, which it takes, and what depends on it. */
kolo_status_t kolo_set_open(kolo_set_t *s, kolo_comm_t comm);
/* Gives the communicators up, once. */
void kolo_set_leave(kolo_set_t *s, bool abort);
void kolo_set_leave_gpu(kolo_set_t *s, bool abort);
/* Waits for what its GPUs have to do, in order with the other ranks. */
void kolo_set_finalize_gpu(kolo_set_t *s);
/* Gives up what depends on the communicator; who asks is told that it was removed. */
void kolo_set_close(kolo_set_t *s);
void kolo_set_free(kolo_set_t *s); /* NULL is fine */
/* KOLO_AVG where all ranks contribute; else the sum, and what it is to be multiplied by. */
kolo_op_t kolo_reduction_of(const kolo_set_t *s, kolo_op_t op, double *factor);
/* This rank wants to join, and nothing that the loop has keeps it. */
static inline bool kolo_set_may_join(const kolo_set_t *s)
{
    return s->join && !s->joined && s->npending == 0 && s->nreported == 0 && !s->failed;
}

/* batch/failed.c: all ranks of the set agree on what failed, and why, and complete it. Collective. */
kolo_status_t kolo_failed_agree(kolo_set_t *s);
void kolo_failed_free(kolo_set_t *s);

/* sets.c */
#define KOLO_SETS_MAX (1 << 20) /* ids that an engine can give */
/* NULL: no such set, ever. What is returned stays until the end of the engine. Any thread. */
kolo_set_t *kolo_sets_find(struct kolo_tensor_engine *e, int id);
/* The set of a submission, if this rank may submit to it. */
kolo_status_t kolo_sets_pick(struct kolo_tensor_engine *e, const kolo_submission_t *how, const char *what,
                             kolo_set_t **set);
kolo_status_t kolo_sets_find_live(struct kolo_tensor_engine *e, int id, const char *what, kolo_set_t **set);
/* Set 0, with a communicator that it takes. */
kolo_status_t kolo_sets_make_all(struct kolo_tensor_engine *e, kolo_comm_t comm);
/* Those of the config. Collective. */
kolo_status_t kolo_sets_make_first(struct kolo_tensor_engine *e);
/* A sorted copy of a list that makes sense. */
kolo_status_t kolo_sets_sort(const struct kolo_tensor_engine *e, const kolo_rank_list_t *list, const char *what,
                             int **out);
/* KOLO_ERR_INVALID_USAGE, on all ranks alike: there is such a set. Collective. */
kolo_status_t kolo_sets_add(struct kolo_tensor_engine *e, const int *sorted, int count, const char *what);
uint64_t kolo_sets_hash(const kolo_rank_list_t *sets, int count);
/* Gives all communicators up, each once. */
void kolo_sets_leave(struct kolo_tensor_engine *e, bool abort);
void kolo_sets_fini(struct kolo_tensor_engine *e);

/* set_change.c: what all ranks have agreed to do; the entry is completed by the caller. */
kolo_status_t kolo_sets_change(struct kolo_tensor_engine *e, const kolo_response_t *response);

/* order.c */
typedef enum { KOLO_NOTIFY_CYCLE, KOLO_NOTIFY_CALL, KOLO_NOTIFY_TURN } kolo_notify_kind_t;
kolo_notify_kind_t kolo_order_kind(uint64_t number);
kolo_status_t kolo_order_init(kolo_order_t *o);
void kolo_order_fini(kolo_order_t *o);
/* A call or a turn has come. */
void kolo_order_heard(struct kolo_tensor_engine *e, int from, uint64_t number);
/* This rank knows now who belongs to a set. */
kolo_status_t kolo_order_meet(struct kolo_tensor_engine *e, const kolo_set_t *set);
/* Asks for a turn of the set's next cycle, unless this rank has. */
kolo_status_t kolo_order_call(kolo_set_t *s);
/* Takes the next turn of this rank out. */
kolo_status_t kolo_order_next(kolo_order_t *o, kolo_turn_t *turn, bool *found);

#endif
