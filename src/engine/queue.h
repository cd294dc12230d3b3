/* SPDX-License-Identifier: Apache-2.0
 *
 * The outstanding tensors of this rank: entries (entry.c), and the queue that keeps them by name and passes new
 * ones to the loop (queue.c).
 */
#ifndef KOLO_ENGINE_QUEUE_H
#define KOLO_ENGINE_QUEUE_H

#include "base/wait.h"
#include "engine/request.h"
#include "mem/queue.h"

#include <kolo/engine.h>
#include <pthread.h>

typedef struct kolo_lane kolo_tensors_t;

typedef struct kolo_entry {
    kolo_tensor_request_t request; /* its first member is the name; the queue finds entries with it */
    struct kolo_entry *next;
    const void *input;
    void *output;
    int64_t *splits; /* nranks, or NULL */
    kolo_submission_t how;
    int index;
    int64_t handle; /* -1: none */
    bool reported;  /* the coordinator has it, or the cache has answered */
    kolo_tensors_t *lane;
    struct kolo_use *use;            /* the device of its memory (device.h); NULL: the CPU */
    void *ready;                     /* an event that has not passed; until then the finisher has the entry */
    void *after;                     /* an event that the device's queue waits for */
    kolo_queue_note_t note;          /* another, which is the queue's; event NULL: none */
    void *stream;                    /* the program's stream, which waits for the result */
    void *event;                     /* passes when the result is ready; NULL: it is ready */
    bool late;                       /* its end is written to the timeline when the device reaches it */
    struct kolo_flight *stage;       /* host copies of its input and output, if they are on a device */
    uint64_t submitted_ns, taken_ns; /* submitted: only for a timeline; taken: by the loop */
    struct kolo_traced *traced;      /* its row in the timeline of this round */
    uint32_t traced_round;
    bool traced_now; /* this operation is recorded (KOLO_TIMELINE_EVERY) */
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

/* Allocates an entry in one block with the name's text and the splits. */
kolo_status_t kolo_entry_new(const char *name, uint32_t length, const int64_t *splits, int nsplits,
                             kolo_entry_t **entry);
void kolo_entry_free(kolo_entry_t *entry); /* NULL is fine */
/* Checks that this rank (`rank` of its set) can read the input and write the output, else sets request.refusal.
 * Only for memory of the CPU, and only for outputs whose size is known before the ranks agree. */
void kolo_entry_examine(kolo_entry_t *entry, int rank);
void kolo_entry_fail(kolo_entry_t *entry, kolo_status_t status, const char *text);
/* Returns the memory for an entry's result: the caller's output, or allocated. NULL: none, and entry->status says
 * why, unless the result has 0 bytes. */
void *kolo_output_memory(kolo_entry_t *entry, const int64_t *shape, int ndims);
size_t kolo_output_bytes(const kolo_entry_t *entry, const int64_t *shape, int ndims);

/* ---- queue.c ---- */

typedef struct {
    kolo_entry_t *entry;
    uint32_t generation;
} kolo_handle_slot_t;

typedef struct {
    pthread_mutex_t lock;  /* of the lanes, too */
    _Atomic bool stamping; /* submissions are timed, for a timeline */
    kolo_status_t closed;
    char closed_text[KOLO_ERROR_TEXT_BYTES];
    kolo_handle_slot_t *slots;
    size_t nslots, *unused, nunused;
    kolo_entry_t *held, **held_tail; /* new entries of all lanes whose events had not passed */
    kolo_entry_t *waited;            /* completions that waiters may still read */
    /* Told before functions of the user are called, and when they have returned; NULL: nobody. */
    void (*calls)(void *arg, bool begins);
    void *calls_arg;
    kolo_gate_t complete; /* opened when entries with handles are complete */
} kolo_queue_t;

/* The part of the queue for one process set. Each set has its own names. */
struct kolo_lane {
    kolo_queue_t *queue;
    int set;
    kolo_names_t names; /* all that are outstanding */
    kolo_entry_t *fresh, **fresh_tail;
    _Atomic size_t nfresh;
    bool joining;              /* this rank has called join; it may submit nothing more */
    bool closing;              /* this rank has called remove_set; it may submit nothing more */
    _Atomic size_t nelsewhere; /* outstanding entries that the loop does not have: held, or finishing on a device */
};

kolo_status_t kolo_queue_init(kolo_queue_t *queue);
void kolo_queue_fini(kolo_queue_t *queue); /* when it is closed and drained, and its lanes have ended */
void kolo_tensors_init(kolo_tensors_t *lane, kolo_queue_t *queue, int set);
void kolo_tensors_fini(kolo_tensors_t *lane); /* drained */
/* Adds all entries or none. Owns them on success only. handles: `count` of them, or NULL. */
kolo_status_t kolo_tensors_push(kolo_tensors_t *lane, kolo_entry_t *const *entries, int count, int64_t *handles);
/* Takes the new entries, in order; the loop owns them then. */
kolo_entry_t *kolo_tensors_take(kolo_tensors_t *lane);
/* Takes the entries that were held. kolo_tensors_release() passes each to the loop. */
kolo_entry_t *kolo_queue_take_held(kolo_queue_t *queue);
void kolo_tensors_release(kolo_entry_t *entry);
/* Returns the outstanding entry with this name, NULL: none. */
kolo_entry_t *kolo_tensors_find(kolo_tensors_t *lane, const kolo_name_t *name);
/* Returns how many are outstanding. */
size_t kolo_tensors_count(kolo_tensors_t *lane);
typedef struct {
    size_t count;      /* of entries that wait for other ranks, as far as the loop has them */
    uint64_t taken_ns; /* the oldest of them: when the loop took it, and what it is */
    char title[KOLO_TENSOR_NAME_MAX + 16];
} kolo_tensors_oldest_t;
/* Finds the oldest entry that waits for other ranks. Called by the loop. */
void kolo_tensors_oldest(kolo_tensors_t *lane, kolo_tensors_oldest_t *oldest);
/* Completes entries whose results are filled in: frees their names, calls back, wakes waiters. */
void kolo_tensors_finish(kolo_tensors_t *lane, kolo_entry_t *const *entries, size_t count);
/* Takes out any one that is outstanding, new ones too; NULL: none is left. After kolo_queue_close(). */
kolo_entry_t *kolo_tensors_drain(kolo_tensors_t *lane);
/* Makes later pushes into any lane fail with this. */
void kolo_queue_close(kolo_queue_t *queue, kolo_status_t status, const char *text);
void kolo_queue_calls(const kolo_queue_t *queue, bool begins);
/* Returns the process set of the tensor with this handle; -1: there is none. */
int kolo_queue_set_of(kolo_queue_t *queue, int64_t handle);
kolo_status_t kolo_queue_poll(kolo_queue_t *queue, int64_t handle, int *complete);
kolo_status_t kolo_queue_wait(kolo_queue_t *queue, int64_t handle, int timeout_ms, kolo_completion_t *completion);

#endif
