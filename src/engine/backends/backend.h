/* SPDX-License-Identifier: Apache-2.0
 *
 * Who moves the data. What all ranks have agreed to do (a move) is given to the first backend, in an order per
 * operation, that takes it. Kolo's own collectives are one of them (backend_kolo.c): they take everything in host
 * memory and always stand last. Another library is one file with one kolo_backend_t, and a row in backend.c;
 * docs/backends.md shows it.
 *
 * All ranks of a set must choose alike, or they wait for each other for ever. So the order is a text that must be
 * equal on all ranks, a backend is only there if it is there on all of them, and what it takes depends on nothing
 * but kolo_need_t, which holds what all have agreed on.
 */
#ifndef KOLO_ENGINE_BACKENDS_BACKEND_H
#define KOLO_ENGINE_BACKENDS_BACKEND_H

#include "engine/engine.h"

#define KOLO_MOVES (KOLO_WORK_REDUCE_SCATTER + 1) /* works that move data are the first ones */

typedef enum { KOLO_MEMORY_HOST, KOLO_MEMORY_DEVICE } kolo_memory_t;

/* What a backend may decide on: equal on all ranks of the set. */
typedef struct {
    kolo_work_t work; /* less than KOLO_MOVES */
    kolo_type_t type;
    kolo_op_t op; /* of all_reduce and reduce_scatter; never KOLO_ADASUM, which is made of other moves */
    kolo_memory_t memory;
    size_t bytes; /* of this rank's input; of all_gather and all_to_all of all ranks' together */
} kolo_need_t;

typedef struct {
    kolo_need_t need;
    const void *in;
    void *out;                     /* of all_reduce and broadcast it may be `in` */
    size_t count;                  /* all_reduce, broadcast: elements */
    int root;                      /* broadcast; only there `in` is set */
    const size_t *counts, *displs; /* in elements, per rank. all_gather: of the parts of `out`; reduce_scatter:
                                      counts alone, of the results; all_to_all: of the parts of `in` */
    const size_t *recv_counts, *recv_displs; /* all_to_all: of the parts of `out` */
    void *stream; /* of device memory: the move is queued there and not waited for. NULL: done on return */
} kolo_move_t;

typedef struct kolo_backend {
    const char *name; /* as KOLO_ENGINE_BACKENDS has it; upper case in the timeline */
    /* Can this process use it? At the start of an engine that may choose it, on all ranks, in the same order. May
     * be collective over the job in the library's own way. *state: the engine's, or left NULL. A failure says in
     * one sentence what is missing. NULL: it is always there. */
    kolo_status_t (*open)(struct kolo_tensor_engine *e, void **state);
    /* e->failure tells whether the engine has ended by a failure: other ranks may be gone. */
    void (*close)(struct kolo_tensor_engine *e, void *state);
    /* Makes what it needs within a process set (communicators), before its first move there. Collective over the
     * set, in the order of the set's moves; a barrier follows. NULL: nothing. */
    kolo_status_t (*meet)(kolo_set_t *s, void *state, void **here);
    /* Gives up what meet made, but not the memory. In order and collective over the set; or, abort: from any
     * thread, while a move may be under way, which is to end by it. Once. */
    void (*leave)(void *here, bool abort);
    void (*free)(void *here); /* no move is under way, and none will be */
    bool (*takes)(const kolo_set_t *s, const kolo_need_t *need);
    kolo_status_t (*run)(kolo_set_t *s, void *here, const kolo_move_t *move);
    /* Tells whether work that was queued on a stream, and is over, ended well. Any thread. NULL: it did, or the
     * engine has failed by then. */
    kolo_status_t (*status)(void *here);
} kolo_backend_t;

extern const kolo_backend_t kolo_backend_hierarchical, kolo_backend_kolo, kolo_backend_mpi, kolo_backend_mpi_levels,
    kolo_backend_nccl, kolo_backend_nccl_levels, kolo_backend_nccl_mpi;

typedef struct {
    void *state;
    bool wanted, open;
    _Atomic bool there;              /* on all ranks */
    char why[KOLO_ERROR_TEXT_BYTES]; /* it is not */
    _Atomic uint64_t moves, bytes;
} kolo_backend_slot_t;

typedef struct {
    int number; /* in the table of backend.c */
    bool on;
} kolo_backend_choice_t;

/* Of an engine. Choices are the loop's. */
typedef struct kolo_backends {
    kolo_backend_slot_t slots[KOLO_BACKENDS_MAX];
    kolo_backend_choice_t order[KOLO_MOVES][KOLO_BACKENDS_MAX];
    int norder[KOLO_MOVES];
} kolo_backends_t;

/* Tells whether parts are equal, one behind the other (NULL: they are), which all ranks see alike where they have
 * the same tables. */
static inline bool kolo_backend_is_even(const size_t *counts, const size_t *displs, int n)
{
    for (int r = 1; r < n; r++)
        if (counts[r] != counts[0] || (displs && displs[r] != displs[0] + (size_t)r * counts[0])) return false;
    return true;
}

/* Reads an order such as "hierarchical,mpi;broadcast=kolo": lists for all operations and for single ones. */
kolo_status_t kolo_backends_parse(kolo_backends_t *b, const char *text);
/* Does the same for KOLO_ENGINE_BACKENDS, when the parameters are loaded. */
kolo_status_t kolo_backends_check_param(const kolo_param_t *row, const char *text);
const kolo_backend_t *kolo_backend_at(int number); /* NULL: beyond the last */

/* Makes e->backends and opens those of config.backends. Collective over the job; what is missing on one rank is
 * KOLO_ERR_UNSUPPORTED on all. */
kolo_status_t kolo_backends_open(struct kolo_tensor_engine *e);
void kolo_backends_close(struct kolo_tensor_engine *e);
/* Takes a backend that is there into the choice for this operation, or out; the loop, at the same place on all
 * ranks. false: it is not there. */
bool kolo_backend_switch(struct kolo_tensor_engine *e, kolo_work_t work, const char *name, bool on);

/* Returns the number of the one that would run it. */
int kolo_backend_choose(const kolo_set_t *s, const kolo_need_t *need);
/* Tells whether one would run it on device memory. The first in the order that takes it at all decides: who takes
 * host memory alone gets it there. need->memory is not looked at. */
bool kolo_backend_takes_device(const kolo_set_t *s, const kolo_need_t *need);
/* Tells whether Kolo would run it. */
bool kolo_backend_is_kolo(const kolo_set_t *s, const kolo_need_t *need);
/* Runs it by the one that is chosen, whose number is in e->backend_ran then. */
kolo_status_t kolo_backend_run(kolo_set_t *s, const kolo_move_t *move);
/* Has everything that backends queued for this set on a stream and that has ended done so well? Any thread. */
kolo_status_t kolo_backends_status(const kolo_set_t *s);
void kolo_backends_leave(kolo_set_t *s, bool abort);
void kolo_backends_free(kolo_set_t *s);

#endif
