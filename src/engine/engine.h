/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine itself, with what its rooms have told of themselves in headers of their own. The walk of a tensor:
 * submit.c checks it and makes an entry; queue.c keeps the entries by name and hands new ones to the loop; loop.c
 * runs cycles: cache.c tells whether all ranks have agreed on this very tensor before, so that a bit is enough;
 * what is new goes by message.c to controller.c on rank 0, which counts and checks (check.c) and answers, and tells
 * who keeps the others waiting (stall.c); fuse.c joins answers into batches; perform.c runs them on a communicator
 * of the engine's own and completes the entries. wake.c is how ranks that sleep learn that another has work.
 *
 * Threads: entries belong to the queue under its lock until the loop has taken them, then to the loop until they
 * are complete. Everything but the queue and the counters is the loop's alone.
 */
#ifndef KOLO_ENGINE_ENGINE_H
#define KOLO_ENGINE_ENGINE_H

#include "base/clock.h"
#include "base/params.h"
#include "base/wait.h"
#include "engine/batch/fuse.h"
#include "engine/controller/codec.h"
#include "engine/controller/negotiate.h"
#include "engine/controller/set_request.h"
#include "engine/loop/loop.h"
#include "engine/sets/sets.h"

#include <kolo/engine.h>
#include <pthread.h>

/* What nobody has fixed, by the config or by a parameter. */
typedef struct {
    bool threshold, cycle, cache;
} kolo_tunable_t;
kolo_tunable_t kolo_engine_tunable(const kolo_engine_config_t *given);
/* Fills in what the caller left open, and checks. */
kolo_status_t kolo_engine_config_fill(const kolo_engine_config_t *given, kolo_engine_config_t *config);
/* The core, if the caller left it open: KOLO_ENGINE_CORE may have one for each rank of a host. */
kolo_status_t kolo_engine_core_fill(const kolo_engine_place_t *place, kolo_engine_config_t *config);

/* cores.c: how many cores a text like "0,2,8-11" lists, and the one of this local rank: a single one is
 * everybody's, -1 is beyond the list. 0: the text is "-1". -1: it makes no sense. */
#define KOLO_CORE_MAX 1023
int kolo_cores_pick(const char *text, int local_rank, int *core);

/* ---- the engine ---- */

typedef struct {
    _Atomic uint64_t cycles, slow_cycles, sleeps, tensors, operations, hits, misses, invalid, reduced_bytes,
        packed_bytes, negotiate_ns, pack_ns, operate_ns, complete_ns;
} kolo_tally_t;
/* Only the loop counts. */
#define KOLO_TALLY(field, n)                                                                                       \
    atomic_store_explicit(&(field), atomic_load_explicit(&(field), memory_order_relaxed) + (n),                    \
                          memory_order_relaxed)

#define KOLO_ENGINE_MAGIC 0x6b6f6c6f656e6769ull

struct kolo_tensor_engine {
    uint64_t magic;
    int rank, size;
    kolo_engine_place_t place;
    kolo_engine_config_t config;
    kolo_set_t *all;   /* set 0 */
    kolo_set_t **sets; /* by id, those that were removed, too; under the queue's lock, but for the loop's reading */
    int nsets, nlive;
    kolo_gate_t *gate; /* what the loop sleeps on: that of set 0's communicator, opened when it fails, too */
    pthread_t thread;
    _Atomic bool stop, aborting;
    _Atomic bool has_failed;
    kolo_status_t failure; /* the first; read after the thread has ended, or has_failed is set */
    char failure_text[KOLO_ERROR_TEXT_BYTES];
    kolo_queue_t queue;
    kolo_tally_t tally;
    kolo_wake_t wake;
    pthread_mutex_t timeline_lock; /* of the next three */
    struct kolo_timeline *timeline_next;
    uint32_t timeline_round;
    _Atomic bool timeline_changed, clocks_wanted;
    kolo_order_t order;
    struct kolo_devices *devices; /* device.h */
    _Atomic int device;         /* the GPU that this rank works on, that of its first tensor on one; -1: none yet */
    struct kolo_native *native; /* native.h: what runs on it just now; the loop's */
    struct kolo_backends *backends; /* backend.h */
    int *mpi_ranks;                 /* use_mpi.h: of the job's ranks, NULL: nobody has asked */
    const struct kolo_talk *talk;   /* talk.h */
    int backend_ran;                /* the last one: its number; the loop's */
    bool backend_failed;            /* it was the last operation's own function that failed; the loop's */
    bool foreign_failure;           /* what it failed by is not the communicator of the set; the loop's */
    kolo_tuned_t tuned;             /* in force; the loop's, equal on all ranks at each cycle */
    kolo_tunable_t tunable;
    struct kolo_autotune *autotune; /* autotune.h */
    bool cache_off;

    /* the loop's, shared by all sets, whose cycles do not overlap */
    uint64_t cycle_began_ns;
    uint64_t patience_ns;                /* that a cached tensor waits until its coordinator is told of it */
    char stalled[KOLO_ERROR_TEXT_BYTES]; /* not "": a stall ends the engine, and this says which */
    struct kolo_timeline *timeline;      /* NULL: none */
    int64_t clock_offset_ns;             /* what makes rank 0's time of this clock's, found out at clock_ns */
    uint64_t clock_ns, clock_error_ns;
    kolo_bytes_t out, in;
    uint64_t *bits, *agreed, *invalid, *erased; /* bit vectors: a word of flags, then a bit per slot */
    const kolo_request_t **requests;
    kolo_response_t **ordered;
    size_t ordered_room;
    kolo_response_t *from_cache; /* by slot: what was agreed before */
    kolo_entry_t **hits;         /* by slot: this rank's tensor that hit it */
    kolo_batches_t batches;
    kolo_entry_t **entries;
    size_t entries_room;
    size_t *counts; /* four tables of `size` */
    int64_t *splits;
};

/* handle.c */
kolo_status_t kolo_engine_check(kolo_tensor_engine_t e, const char *what);
bool kolo_engine_is_inside(const struct kolo_tensor_engine *e); /* the caller is a thread of the engine's */
void kolo_engine_enter(struct kolo_tensor_engine *e);           /* it is from here on */
void kolo_engine_kick(struct kolo_tensor_engine *e);            /* there is something new: any thread */
/* Has anything ended this rank's engine? */
kolo_status_t kolo_engine_status(const struct kolo_tensor_engine *e);
void kolo_finisher_wake(struct kolo_tensor_engine *e); /* the thread that looks at devices (batch/finish.c) */

#endif
