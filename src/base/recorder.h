/* SPDX-License-Identifier: Apache-2.0
 *
 * The flight recorder: what each communicator rank of this process did last, in memory that other processes of the
 * same user can read while this one lives, and that goes with it. One memory file per process, named
 * "kolo-recorder", is found among the descriptors of a process (/proc/PID/fd); it holds a table of records, one per
 * communicator rank, each a head and a ring of its last operations. The same bytes, written to a file, are a dump.
 *
 * Writing costs a cache line per operation: no system call, no lock. An entry has one writer at a time; a reader
 * tells by its sequence number whether it is whole. Readers (recorder_read.c) believe nothing they read.
 *
 * Times are CLOCK_MONOTONIC, the same for all processes of a host. Reading the clock would cost more than the rest,
 * so a short operation has none: `begun_ns` is there for operations that are large, that had to wait longer than
 * one spins (then it may be some milliseconds late), and for every 32nd; `ended_ns` for the first two kinds. A
 * short operation lies between its neighbours.
 */
#ifndef KOLO_BASE_RECORDER_H
#define KOLO_BASE_RECORDER_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdbool.h>

#define KOLO_RECORDER_NAME    "kolo-recorder"
#define KOLO_RECORDER_VERSION 3u
#define KOLO_RECORD_ENTRIES   1024 /* operations that a rank remembers */
#define KOLO_RECORD_HEAD      4096 /* bytes before the entries */
#define KOLO_RECORD_PEERS     256  /* ranks whose process a record names */
#define KOLO_RECORDER_SLOTS   1024 /* communicator ranks of a process; more are not recorded */

typedef enum {
    KOLO_RECORD_NONE,
    KOLO_RECORD_QUEUED,     /* called, waits for its turn on a stream */
    KOLO_RECORD_CONNECTING, /* first use: makes its connections */
    KOLO_RECORD_RUNNING,
    KOLO_RECORD_LAUNCHED, /* given to a device, which does not report its start and end */
    KOLO_RECORD_DONE,
    KOLO_RECORD_FAILED
} kolo_record_state_t;

typedef enum {
    KOLO_RECORD_COLL,
    KOLO_RECORD_SEND,
    KOLO_RECORD_RECV,
    KOLO_RECORD_PUT,
    KOLO_RECORD_SIGNAL,
    KOLO_RECORD_WAIT, /* for signals; root is the rank that it waits for now */
    KOLO_RECORD_KINDS
} kolo_record_kind_t;

/* What the operation that a device runs waits for, if it has waited for longer than some milliseconds. Operations
 * launched before it are complete, those launched after it have not begun. */
#define KOLO_RECORD_WAITS 8
typedef struct {
    uint64_t number, word, since_ns; /* of the operation; since when it has been seen to wait */
    uint32_t count;                  /* 0: nothing waits */
    uint32_t spare;
    struct {
        int32_t rank;
        uint32_t block, step; /* of the kernel that waits */
        uint32_t room;        /* 1: for room at that rank, 0: for data from it */
    } on[KOLO_RECORD_WAITS];
} kolo_record_waits_t;

/* What named tensors do that use this communicator: its own operations do not tell who has not submitted one. */
#define KOLO_RECORD_NOTE_TEXT 400
#define KOLO_RECORD_NOTE_LAST 120
typedef struct {
    uint64_t since_ns; /* when the wait began, CLOCK_MONOTONIC; 0: nothing is waited for */
    uint32_t blames;   /* 1: `text` is a sentence that says who is missing; 0: it is what this rank waits for */
    uint32_t spare;
    char text[KOLO_RECORD_NOTE_TEXT];
    char last[KOLO_RECORD_NOTE_LAST]; /* the tensor that was agreed on last; "": none yet */
} kolo_record_note_t;

/* Functions of the user that run on behalf of a communicator: one that does not return keeps the other ranks
 * waiting, and the operations do not tell. */
typedef enum { KOLO_CALLBACK_OPERATOR, KOLO_CALLBACK_TENSOR, KOLO_CALLBACKS } kolo_callback_t;
typedef struct {
    uint64_t since_ns; /* by the coarse clock; 0: the rank is in none */
    kolo_callback_t which;
} kolo_record_callback_t;

/* ---- the layout ---- */

typedef struct {          /* one cache line */
    _Atomic uint64_t seq; /* 2 * (index of the operation + 1); one less while the rest is written; 0: never used */
    _Atomic uint64_t number;             /* that all ranks share; of a send or receive: the next collective's */
    _Atomic uint64_t word;               /* what it is, as the ranks compare it (plan/plan.h: kolo_signature) */
    _Atomic uint64_t count;              /* elements */
    _Atomic uint64_t begun_ns, ended_ns; /* 0: not known */
    _Atomic uint32_t root, queued_us;    /* root or peer; how long it stood in its stream's queue */
    _Atomic uint32_t what;               /* kind | bytes per element << 8 | algorithm << 16 (255: not chosen yet) */
    _Atomic uint32_t state;              /* kolo_record_state_t | status << 8 */
} kolo_record_entry_t;
_Static_assert(sizeof(kolo_record_entry_t) == 64, "an entry is one cache line");

typedef struct {
    int32_t pid;        /* 0: not known */
    uint32_t same_host; /* as the rank whose record this is */
} kolo_record_peer_t;

typedef struct {
    _Atomic uint32_t seq;  /* odd while the head is written */
    _Atomic uint32_t live; /* 0: a free slot */
    uint64_t job;          /* and epoch: equal on all ranks of one communicator (kolo_oob_job) */
    int32_t rank, nranks;
    int32_t status; /* of the communicator: the error that ended its use, else 0 */
    uint32_t npeers;
    uint64_t since_ns; /* when it was ready */
    uint32_t stopped;  /* in a dump: its process was stopped when that was taken */
    kolo_record_waits_t waits;
    char name[64], host[64];
    char error[1024]; /* the message of `status` */
    kolo_record_peer_t peers[KOLO_RECORD_PEERS];
    _Atomic uint32_t note_seq; /* odd while the note is written, whose writer is another thread than the head's */
    uint32_t spare;
    kolo_record_note_t note;
    _Atomic uint64_t callbacks[KOLO_CALLBACKS]; /* since when it is in one; 0: it is not. Each has its own writer */
} kolo_record_head_t;
_Static_assert(sizeof(kolo_record_head_t) <= KOLO_RECORD_HEAD, "the head has its place before the entries");

typedef struct kolo_record {
    union {
        kolo_record_head_t head;
        uint8_t bytes[KOLO_RECORD_HEAD];
    };
    kolo_record_entry_t entries[KOLO_RECORD_ENTRIES];
} kolo_record_t;

#define KOLO_RECORDER_MAGIC 0x726f6365726f6c6bull /* "klorecor" */
typedef struct {
    uint64_t magic;
    uint32_t version, slots, slot_bytes, entry_bytes;
    int32_t pid;
    uint32_t uid;
    uint64_t wall_ns, mono_ns; /* one moment, by both clocks */
    uint64_t taken_ns;         /* of a dump: when, CLOCK_MONOTONIC; 0 in a living process */
    char host[64];
} kolo_recorder_info_t;

typedef struct { /* all of it: the memory file, or a dump with fewer slots */
    union {
        kolo_recorder_info_t info;
        uint8_t bytes[KOLO_RECORD_HEAD];
    };
    kolo_record_t records[];
} kolo_recorder_t;

static inline size_t kolo_recorder_bytes(uint32_t slots)
{
    return sizeof(kolo_recorder_t) + (size_t)slots * sizeof(kolo_record_t);
}

/* ---- writing (recorder.c) ---- */

/* A record for a communicator rank, empty; NULL when there is no more room or the system gives none (a communicator
 * does not fail for that). Any thread. */
extern bool kolo_recorder_wanted; /* KOLO_RECORDER; false: nothing is recorded */
kolo_record_t *kolo_recorder_take(void);
/* Frees its memory. NULL is fine. */
void kolo_recorder_release(kolo_record_t *record);
/* Begins or ends a change of the head. One thread at a time. */
void kolo_record_head_begin(kolo_record_t *record);
void kolo_record_head_end(kolo_record_t *record);

/* Writes the note, or one part of it. One thread at a time, whoever writes the head. NULL as record is fine. */
void kolo_record_note_wait(kolo_record_t *record, uint64_t since_ns, bool blames, const char *text);
void kolo_record_note_last(kolo_record_t *record, const char *last); /* ends the wait, too */

/* Notes that a function of the user will be called (the time), or has returned (0). NULL as record is fine. */
static inline void kolo_record_callback(kolo_record_t *record, kolo_callback_t which, uint64_t since_ns)
{
    if (record) atomic_store_explicit(&record->head.callbacks[which], since_ns, memory_order_relaxed);
}

/* Starts to write entry `index`, whatever was there; the caller fills it and ends. */
static inline kolo_record_entry_t *kolo_record_entry_begin(kolo_record_t *record, uint64_t index)
{
    kolo_record_entry_t *e = &record->entries[index % KOLO_RECORD_ENTRIES];
    atomic_store_explicit(&e->seq, 2 * index + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    return e;
}
static inline void kolo_record_entry_end(kolo_record_entry_t *e, uint64_t index)
{
    atomic_store_explicit(&e->seq, 2 * index + 2, memory_order_release);
}

/* ---- reading (recorder_read.c): pure, over bytes of unknown origin ---- */

typedef struct { /* one operation */
    uint64_t index, number, word, count, begun_ns, ended_ns;
    uint32_t root, queued_us;
    kolo_record_kind_t kind;
    uint32_t elem, algo;
    kolo_record_state_t state;
    kolo_status_t status;
} kolo_record_op_t;

typedef struct {
    uint64_t job;
    int rank, nranks;
    kolo_status_t status;
    uint64_t since_ns;
    bool stopped;
    kolo_record_waits_t waits;
    kolo_record_callback_t callback;
    char name[64], host[64], error[1024]; /* terminated, printable */
    uint32_t npeers;
    kolo_record_peer_t peers[KOLO_RECORD_PEERS];
    kolo_record_note_t note; /* likewise; nothing if it was being written */
} kolo_record_view_t;

/* Returns NULL and the head, its numbers in range and its strings printable; else what is wrong. */
const char *kolo_recorder_check(const void *bytes, size_t size, kolo_recorder_info_t *info);
/* Reads the head of a slot of bytes that passed the check. false: free, being written, or makes no sense. */
bool kolo_recorder_view(const void *bytes, const kolo_recorder_info_t *info, uint32_t slot,
                        kolo_record_view_t *view);
/* Returns the newest operations, at most `most`, the oldest of them first. Torn entries are left out. Of those that
 * a device has got, what waits is running, and what came before it done. */
size_t kolo_recorder_ops(const void *bytes, const kolo_recorder_info_t *info, uint32_t slot, kolo_record_op_t *ops,
                         size_t most);
/* Returns the same for a record of our own process. */
size_t kolo_record_ops(const kolo_record_t *record, kolo_record_op_t *ops, size_t most);
/* Reads what a device waits for, if it is whole; count is 0 else. For a record of our own process. */
void kolo_record_waits_read(const kolo_record_t *record, kolo_record_waits_t *waits);
/* Returns the function of the user in which the rank has been for longest. Likewise. */
kolo_record_callback_t kolo_record_callback_read(const kolo_record_t *record);
/* Reads the note, as text that can be shown; nothing if it was being written. Likewise. */
void kolo_record_note_read(const kolo_record_t *record, kolo_record_note_t *note);
/* Copies a record for a dump; torn entries become empty. false: there is none, or its head is being written. */
bool kolo_recorder_copy(const void *bytes, const kolo_recorder_info_t *info, uint32_t slot, kolo_record_t *to);

#endif
