/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of this room share. The walk of a tensor: submit.c checks it and makes an entry; queue.c keeps the
 * entries by name and hands new ones to the loop; loop.c runs cycles: cache.c tells whether all ranks have agreed
 * on this very tensor before, so that a bit is enough; what is new goes by message.c to controller.c on rank 0,
 * which counts and checks (check.c) and answers, and tells who keeps the others waiting (stall.c); fuse.c joins
 * answers into batches; perform.c runs them on a communicator of the engine's own and completes the entries. wake.c
 * is how ranks that sleep learn that another has work.
 *
 * Threads: entries belong to the queue under its lock until the loop has taken them, then to the loop until they
 * are complete. Everything but the queue and the counters is the loop's alone.
 */
#ifndef KOLO_ENGINE_ENGINE_H
#define KOLO_ENGINE_ENGINE_H

#include "base/clock.h"
#include "base/params.h"
#include "base/wait.h"
#include "engine/controller/controller.h"

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

/* ---- entries: tensors of this rank that are outstanding ---- */

typedef struct kolo_lane kolo_lane_t;

typedef struct kolo_entry {
    kolo_request_t request; /* its first member is its name, which is how the queue finds it */
    struct kolo_entry *next;
    const void *input;
    void *output;
    int64_t *splits; /* nranks, or NULL */
    kolo_submission_t how;
    int index;
    int64_t handle; /* -1: nobody waits */
    bool reported;  /* the coordinator knows, or the cache has answered */
    kolo_lane_t *lane;
    struct kolo_use *use;      /* of the device that its memory is of (device.h); NULL: of the CPU */
    void *ready;               /* an event that has not passed: until then it is the finisher's */
    void *after, *note;        /* events that the device's queue waits for; the second is of the queue's own */
    void *stream;              /* the program's: it is to wait for the result */
    void *event;               /* behind the result; NULL: it is there */
    bool late;                 /* its end goes into the timeline when the device has come to it */
    struct kolo_flight *stage; /* what holds its input and output in host memory, if they are not */
    uint64_t submitted_ns, taken_ns; /* the first only for a timeline; when the loop has learnt of it */
    struct kolo_traced *traced;      /* its row in the timeline of this round */
    uint32_t traced_round;
    /* once it is complete */
    bool complete;
    kolo_status_t status;
    char *text;
    int out_ndims;
    int64_t out_shape[KOLO_TENSOR_DIMS_MAX];
    int64_t *part_rows;
    int parts, last_joined;
    pthread_t waiter;
} kolo_entry_t;

/* One piece of memory with the name's text and the splits behind it. */
kolo_status_t kolo_entry_new(const char *name, uint32_t length, const int64_t *splits, int nsplits,
                             kolo_entry_t **entry);
void kolo_entry_free(kolo_entry_t *entry); /* NULL is fine */
void kolo_entry_fail(kolo_entry_t *entry, kolo_status_t status, const char *text);
/* Where the result of an entry goes: the caller's output, or allocated. NULL: nowhere, and entry->status says why,
 * unless it has no bytes. */
void *kolo_output_memory(kolo_entry_t *entry, const int64_t *shape, int ndims);
size_t kolo_output_bytes(const kolo_entry_t *entry, const int64_t *shape, int ndims);

/* ---- queue.c ---- */

typedef struct {
    kolo_entry_t *entry;
    uint32_t generation;
} kolo_handle_slot_t;

typedef struct {
    pthread_mutex_t lock;  /* of the lanes, too */
    _Atomic bool stamping; /* submissions get the time: there is a timeline */
    kolo_status_t closed;
    char closed_text[KOLO_ERROR_TEXT_BYTES];
    kolo_handle_slot_t *slots;
    size_t nslots, *unused, nunused;
    kolo_entry_t *held, **held_tail; /* new ones whose events had not passed, of all lanes */
    kolo_entry_t *waited;            /* completions that waiters may still look at */
    kolo_gate_t complete;            /* opened when entries with handles are complete */
} kolo_queue_t;

/* The part of it that belongs to one process set: names are those of the set. */
struct kolo_lane {
    kolo_queue_t *queue;
    int set;
    kolo_names_t names; /* all that are outstanding */
    kolo_entry_t *fresh, **fresh_tail;
    _Atomic size_t nfresh;
    bool joining;              /* this rank has said that it joins; nothing may follow */
    bool closing;              /* this rank has said that it removes the set; nothing may follow, either */
    _Atomic size_t nelsewhere; /* outstanding, and not the loop's: held, or finishing on a device */
};

kolo_status_t kolo_queue_init(kolo_queue_t *queue);
void kolo_queue_fini(kolo_queue_t *queue); /* closed and drained, its lanes ended */
void kolo_lane_init(kolo_lane_t *lane, kolo_queue_t *queue, int set);
void kolo_lane_fini(kolo_lane_t *lane); /* drained */
/* All or none. Takes the entries on success only. handles: count of them, or NULL. */
kolo_status_t kolo_lane_push(kolo_lane_t *lane, kolo_entry_t *const *entries, int count, int64_t *handles);
/* What came since, in order; the loop's now. */
kolo_entry_t *kolo_lane_take(kolo_lane_t *lane);
/* What was held since. Each is released to the loop by itself. */
kolo_entry_t *kolo_queue_take_held(kolo_queue_t *queue);
void kolo_lane_release(kolo_entry_t *entry);
/* The outstanding entry of this name, NULL: none. */
kolo_entry_t *kolo_lane_find(kolo_lane_t *lane, const kolo_name_t *name);
/* They are complete (their results filled in): frees their names, calls back, tells who waits. */
void kolo_lane_finish(kolo_lane_t *lane, kolo_entry_t *const *entries, size_t count);
/* Takes out any one that is outstanding, new ones too; NULL: none is left. After kolo_queue_close(). */
kolo_entry_t *kolo_lane_drain(kolo_lane_t *lane);
/* Later pushes into any lane fail with this. */
void kolo_queue_close(kolo_queue_t *queue, kolo_status_t status, const char *text);
kolo_status_t kolo_queue_poll(kolo_queue_t *queue, int64_t handle, int *complete);
kolo_status_t kolo_queue_wait(kolo_queue_t *queue, int64_t handle, int timeout_ms, kolo_completion_t *completion);

/* ---- cache.c ---- */

typedef struct {
    bool used;
    kolo_request_t request; /* as this rank sent it */
    char *name;
    int64_t *rows; /* of the response */
    bool device;   /* of the response */
    struct kolo_cache_group *group;
    int older, newer;
} kolo_cache_slot_t;

typedef struct {
    int capacity, nranks;
    bool off; /* nothing is kept */
    int top;  /* slots from here on have never been used */
    int count, oldest, newest;
    kolo_cache_slot_t *slots;
    kolo_names_t names, groups;
    uint64_t version; /* changes when a slot has other contents than before */
} kolo_cache_t;

typedef enum { KOLO_CACHE_MISS, KOLO_CACHE_HIT, KOLO_CACHE_INVALID } kolo_cache_found_t;
kolo_status_t kolo_cache_init(kolo_cache_t *cache, int capacity, int nranks);
void kolo_cache_fini(kolo_cache_t *cache);
/* Off: forgets all, and keeps nothing. */
void kolo_cache_switch(kolo_cache_t *cache, bool on);
/* A group counts as cached when all of it is. *slot is set unless it is a miss. */
kolo_cache_found_t kolo_cache_find(const kolo_cache_t *cache, const kolo_request_t *request, int *slot);
/* Remembers an agreement; pushes the one out that was used longest ago if there is no room. Called in the same
 * order on all ranks, so that all have the same slots. */
kolo_status_t kolo_cache_put(kolo_cache_t *cache, const kolo_request_t *request, const int64_t *rows, bool device);
void kolo_cache_touch(kolo_cache_t *cache, int slot);
void kolo_cache_erase(kolo_cache_t *cache, int slot);
/* Takes those slots out of `bits` whose group is not in it as a whole. */
void kolo_cache_keep_whole(kolo_cache_t *cache, uint64_t *bits);

/* ---- message.c ---- */

#define KOLO_ENGINE_MESSAGE_MAX  (64u << 20)
#define KOLO_ENGINE_REQUESTS_MAX 8192 /* of one rank in one cycle; the rest waits for the next */

typedef struct {
    uint8_t *bytes;
    size_t length, room;
} kolo_bytes_t;
kolo_status_t kolo_bytes_room(kolo_bytes_t *bytes, size_t room);
/* `out` keeps its memory from call to call. */
kolo_status_t kolo_requests_encode(const kolo_request_t *const *requests, size_t count, kolo_bytes_t *out);
kolo_status_t kolo_responses_encode(const kolo_responses_t *list, int nranks, int njoined, kolo_bytes_t *out);
/* Calls fn for each request, in order; text and request only live as long as the call. Bytes that make no sense are
 * KOLO_ERR_PROTOCOL, before the first call. */
typedef kolo_status_t (*kolo_request_fn_t)(void *arg, const kolo_request_t *request);
kolo_status_t kolo_requests_decode(const uint8_t *bytes, size_t length, int nranks, kolo_request_fn_t fn,
                                   void *arg);
/* Adds to the list. */
kolo_status_t kolo_responses_decode(const uint8_t *bytes, size_t length, int nranks, kolo_responses_t *list,
                                    int *njoined);

/* ---- set_request.c ---- */

/* "0, 4, 5 and 7 more" */
void kolo_sets_list(const int *ranks, int shown, int count, char *buf, size_t bytes);
void kolo_sets_show(const kolo_request_t *request, char *buf, size_t bytes); /* "ranks 0, 4, 5", "set 3" */
bool kolo_sets_request_is_good(const kolo_request_t *request, int nranks);
/* Its rank has tensors outstanding in the set that is to be removed. */
bool kolo_sets_is_busy(const kolo_request_t *request);

/* ---- fuse.c ---- */

typedef struct {
    int64_t threshold, tensor_max;
} kolo_fuse_rules_t;
typedef struct {
    kolo_response_t **responses; /* in the order of their batches */
    size_t *ends;                /* of each batch, as an index into responses */
    size_t nbatches, room;
} kolo_batches_t;
void kolo_batches_fini(kolo_batches_t *batches);
/* Puts `count` responses into batches; the same on all ranks, for it looks only at what all have agreed on. */
kolo_status_t kolo_fuse(const kolo_fuse_rules_t *rules, kolo_response_t *const *responses, size_t count,
                        kolo_batches_t *batches);

/* ---- values.c ---- */

/* dst[i] = src[i] * factor; floats in the type's own rules, integers in double, truncated and kept in range. */
void kolo_scale(void *dst, const void *src, size_t count, kolo_type_t type, double factor);
/* Fills dst with what changes nothing under op. */
void kolo_fill_identity(void *dst, size_t count, kolo_type_t type, kolo_op_t op);

/* ---- the engine ---- */

typedef struct {
    _Atomic uint64_t cycles, slow_cycles, sleeps, tensors, operations, hits, misses, invalid, reduced_bytes,
        packed_bytes, negotiate_ns, pack_ns, operate_ns, complete_ns;
} kolo_tally_t;
/* Only the loop counts. */
#define KOLO_TALLY(field, n)                                                                                       \
    atomic_store_explicit(&(field), atomic_load_explicit(&(field), memory_order_relaxed) + (n),                    \
                          memory_order_relaxed)

typedef struct {
    int *neighbours; /* who is told by this rank */
    int count;
    bool direct;             /* all ranks are neighbours: nobody passes on */
    _Atomic uint64_t called; /* number of the latest cycle that somebody asked for */
} kolo_wake_t;

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

/* wake.c */
#define KOLO_WAKE_FAN_OUT 8
kolo_status_t kolo_wake_init(struct kolo_tensor_engine *e); /* collective */
void kolo_wake_fini(struct kolo_tensor_engine *e);
/* Asks all ranks to begin this cycle, unless somebody has. */
kolo_status_t kolo_wake_call(struct kolo_tensor_engine *e, uint64_t cycle);
bool kolo_wake_called(const struct kolo_tensor_engine *e, uint64_t cycle);

/* loop.c */
void *kolo_engine_loop(void *engine);

/* sleep.c */
/* Until there is something to do, and for which set. */
kolo_status_t kolo_engine_sleep(struct kolo_tensor_engine *e, kolo_set_t **set);
void kolo_engine_look_for_stalls(struct kolo_tensor_engine *e);

/* negotiate.c: one agreement. What is to be done stands in engine->ordered[0..count), in the same order on all
 * ranks; the new ones of it are in `fresh`. */
typedef struct {
    size_t count;
    bool news;  /* something has moved and something is left, so more may: the next cycle follows at once */
    bool stop;  /* some rank shuts the engine down */
    bool yield; /* some rank has a turn of another set waiting */
} kolo_outcome_t;
kolo_status_t kolo_negotiate(kolo_set_t *s, kolo_responses_t *fresh, kolo_outcome_t *outcome);
/* slow.c: the requests in engine->requests go to the coordinator, what it has to say is appended to `fresh`. */
kolo_status_t kolo_negotiate_slow(kolo_set_t *s, size_t nrequests, kolo_responses_t *fresh);

#endif
