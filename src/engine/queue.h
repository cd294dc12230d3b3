/* SPDX-License-Identifier: Apache-2.0
 *
 * The tensors of this rank that are outstanding: entries (entry.c), and the queue that keeps them by name and hands
 * new ones to the loop (queue.c).
 */
#ifndef KOLO_ENGINE_QUEUE_H
#define KOLO_ENGINE_QUEUE_H

#include "base/wait.h"
#include "engine/request.h"

#include <kolo/engine.h>
#include <pthread.h>

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
    bool traced_now; /* this operation on it is one of those that are recorded (KOLO_TIMELINE_EVERY) */
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
/* Can this rank, `rank` of its set, read the input and write the output? Else request.refusal says what not. Only
 * the CPU's memory, and only what has its size before the ranks have agreed. */
void kolo_entry_examine(kolo_entry_t *entry, int rank);
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

#endif
