/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine. The walk of a tensor: submit.c checks it and makes an entry; queue.c keeps entries by name and passes
 * new ones to the loop; loop.c runs cycles. If all ranks have agreed on this tensor before (cache.c), one bit is
 * enough. New tensors go in messages (message.c) to controller.c on rank 0, which counts them, checks them
 * (check.c), reports ranks that are missing (stall.c), and answers. fuse.c joins answers into batches; perform.c
 * runs them on a communicator of the engine and completes the entries. wake.c wakes ranks that sleep when another
 * has work.
 *
 * Threads: entries belong to the queue under its lock until the loop has taken them, then to the loop until they
 * are complete. Everything but the queue and the counters is the loop's alone.
 */
#ifndef KOLO_ENGINE_ENGINE_H
#define KOLO_ENGINE_ENGINE_H

#include "base/clock.h"
#include "base/params.h"
#include "base/slots.h"
#include "base/wait.h"
#include "engine/batch/fuse.h"
#include "engine/controller/codec.h"
#include "engine/controller/negotiate.h"
#include "engine/controller/set_request.h"
#include "engine/loop/loop.h"
#include "engine/sets/sets.h"

#include <kolo/engine.h>
#include <pthread.h>

/* The settings that neither the config nor a parameter has fixed. */
typedef struct {
    bool threshold, cycle, cache;
} kolo_tunable_t;
kolo_tunable_t kolo_engine_tunable(const kolo_engine_config_t *given);
/* Fills in the fields that the caller left open, and checks all. */
kolo_status_t kolo_engine_config_fill(const kolo_engine_config_t *given, kolo_engine_config_t *config);
/* Fills in the core if the caller left it open. KOLO_ENGINE_CORE may list one per rank of a host. */
kolo_status_t kolo_engine_core_fill(const kolo_engine_place_t *place, kolo_engine_config_t *config);

/* cores.c: returns how many cores a text like "0,2,8-11" lists, and the core of this local rank: a single core is
 * for all ranks, -1 if the list is too short. Returns 0 for the text "-1", -1 for a malformed text. */
#define KOLO_CORE_MAX 1023
int kolo_cores_pick(const char *text, int local_rank, int *core);

/* ---- the engine ---- */

typedef struct {
    _Atomic uint64_t cycles, slow_cycles, sleeps, tensors, operations, hits, misses, invalid, reduced_bytes,
        packed_bytes, negotiate_ns, pack_ns, operate_ns, complete_ns;
} kolo_tally_t;
/* Called by the loop's thread only. */
#define KOLO_TALLY(field, n)                                                                                       \
    atomic_store_explicit(&(field), atomic_load_explicit(&(field), memory_order_relaxed) + (n),                    \
                          memory_order_relaxed)

struct kolo_tensor_engine {
    kolo_slot_t slot;
    uint32_t forks; /* kolo_process_forks() where it was made */
    int rank, size;
    kolo_engine_place_t place;
    kolo_engine_config_t config;
    kolo_set_t *all;   /* set 0 */
    kolo_set_t **sets; /* by id, also removed ones; under the queue's lock, except that the loop reads without */
    int nsets, nlive;
    /* The loop sleeps on it: the gate of set 0's communicator, which also opens when that fails. */
    kolo_gate_t *gate;
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
    _Atomic bool has_late; /* GPUs have done what the timeline has not heard of yet (batch/finish.c) */
    kolo_order_t order;
    struct kolo_devices *devices;   /* device.h */
    _Atomic int device;             /* the rank's GPU: that of its first tensor on a GPU; -1: none yet */
    struct kolo_native *native;     /* native.h: operations running on it now; the loop's */
    struct kolo_backends *backends; /* backend.h */
    int *mpi_ranks;                 /* use_mpi.h: MPI's ranks by rank of the job, NULL: not asked yet */
    const struct kolo_talk *talk;   /* talk.h */
    int backend_ran;                /* number of the last backend used; the loop's */
    bool backend_failed;            /* the last operation failed in the backend's own function; the loop's */
    bool foreign_failure;           /* ... and not because of the set's communicator; the loop's */
    kolo_tuned_t tuned;             /* present values; the loop's, equal on all ranks in each cycle */
    kolo_tunable_t tunable;
    struct kolo_autotune *autotune; /* autotune.h */
    bool cache_off;

    /* the loop's, shared by all sets, whose cycles do not overlap */
    uint64_t cycle_began_ns;
    uint64_t patience_ns;                /* how long a cached tensor waits before the coordinator gets it */
    char stalled[KOLO_ERROR_TEXT_BYTES]; /* not "": a stall ends the engine; its description */
    struct kolo_timeline *timeline;      /* NULL: none */
    int64_t clock_offset_ns;             /* add it to this clock for rank 0's time; measured at clock_ns */
    uint64_t clock_ns, clock_error_ns;
    kolo_bytes_t out, in;
    uint64_t *bits, *agreed, *invalid, *erased; /* bit vectors: a word of flags, then a bit per slot */
    const kolo_tensor_request_t **requests;
    kolo_response_t **ordered;
    size_t ordered_room;
    kolo_response_t *from_cache; /* by slot: cached responses */
    kolo_entry_t **hits;         /* by slot: this rank's tensor that hit it */
    kolo_batches_t batches;
    kolo_entry_t **entries;
    size_t entries_room;
    size_t *counts; /* four tables of `size` */
    int64_t *splits;
};

/* Refuses NULL, and what is no engine (handle.c). */
kolo_status_t kolo_engine_check(kolo_tensor_engine_t e, const char *what);
bool kolo_engine_is_inside(const struct kolo_tensor_engine *e); /* is this a thread of the engine? */
void kolo_engine_enter(struct kolo_tensor_engine *e);           /* marks this thread as one */
void kolo_engine_kick(struct kolo_tensor_engine *e);            /* wakes the loop; any thread */
/* Returns KOLO_OK, or the failure that has ended this rank's engine. */
kolo_status_t kolo_engine_status(const struct kolo_tensor_engine *e);
void kolo_finisher_wake(struct kolo_tensor_engine *e); /* wakes the thread that polls devices (batch/finish.c) */

#endif
