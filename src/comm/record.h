/* SPDX-License-Identifier: Apache-2.0
 *
 * What a communicator writes into its flight record (base/recorder.h): each operation when it is queued, when its
 * turn has come, and when it ends. The thread whose turn it is writes; entries are claimed by the thread that
 * calls, so an operation that runs on another thread while the caller goes on is claimed before it is handed over.
 */
#ifndef KOLO_COMM_RECORD_H
#define KOLO_COMM_RECORD_H

#include "base/clock.h"
#include "base/recorder.h"

#define KOLO_RECORD_TIMED_BYTES                                                                                    \
    (64u << 10)                   /* from here on an operation's time is worth two readings of the clock */
#define KOLO_RECORD_TIMED_EACH 32 /* of the shorter ones, so many have the time of their beginning */
#define KOLO_RECORD_NO_ALGO    255u
#define KOLO_RECORD_UNSEEN     UINT64_MAX /* of a queued call that found no room */

typedef struct {
    kolo_record_t *at;        /* NULL: nothing is recorded */
    uint64_t next;            /* index of the next entry */
    kolo_record_entry_t *now; /* the operation that runs; NULL: none, or one that is not recorded */
    bool timed;               /* it is long: its end gets a time */
} kolo_recording_t;

struct kolo_body;
struct kolo_call;

/* Opens the flight record. Call it when the members are known. */
void kolo_record_open(struct kolo_body *body);
void kolo_record_close(struct kolo_body *body);
/* Notes that the communicator has failed. The handle's error is set and its lock held. */
void kolo_record_failed(struct kolo_body *body);
/* Claims the entry of a call that will run on another thread. The caller has a ticket. */
void kolo_record_queued(struct kolo_body *body, struct kolo_call *call);
/* Begins the call whose entry was claimed before. */
void kolo_record_resume(kolo_recording_t *r, const struct kolo_call *call, uint64_t number, uint64_t word,
                        kolo_record_state_t state, uint32_t algo);
/* Ends the entry of a queued call that will not run. */
void kolo_record_drop(struct kolo_body *body, const struct kolo_call *call, kolo_status_t status);
/* Begins a call of all ranks that no plan runs, by its number and word. kolo_record_end() ends it. */
void kolo_record_begin_whole(struct kolo_body *body, uint64_t number, uint64_t word);
/* Notes that the operation has waited longer than one spins. */
void kolo_record_waits_slow(kolo_recording_t *r);
/* Notes that a call was given to a device. */
void kolo_record_launched(struct kolo_body *body, const struct kolo_call *call, uint64_t number, uint64_t word,
                          uint32_t algo);
/* Notes what the device waits for now. */
void kolo_record_device_waits(struct kolo_body *body, const kolo_record_waits_t *waits);
/* Sends and receives of a group run together. */
void kolo_record_begin_pairs(struct kolo_body *body, struct kolo_call *calls, size_t count);
void kolo_record_end_pairs(struct kolo_body *body, const struct kolo_call *calls, size_t count,
                           kolo_status_t status);

typedef struct { /* what an entry begins with */
    uint64_t number, word, count, begun_ns;
    uint32_t root, what; /* what: kolo_record_what() */
    kolo_record_state_t state;
} kolo_record_first_t;

static inline void kolo_record_fill(kolo_record_entry_t *e, kolo_record_first_t first)
{
    atomic_store_explicit(&e->number, first.number, memory_order_relaxed);
    atomic_store_explicit(&e->word, first.word, memory_order_relaxed);
    atomic_store_explicit(&e->count, first.count, memory_order_relaxed);
    atomic_store_explicit(&e->begun_ns, first.begun_ns, memory_order_relaxed);
    atomic_store_explicit(&e->ended_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&e->root, first.root, memory_order_relaxed);
    atomic_store_explicit(&e->queued_us, 0, memory_order_relaxed);
    atomic_store_explicit(&e->what, first.what, memory_order_relaxed);
    atomic_store_explicit(&e->state, (uint32_t)first.state, memory_order_relaxed);
}

static inline uint32_t kolo_record_what(kolo_record_kind_t kind, size_t elem, uint32_t algo)
{
    return (uint32_t)kind | (uint32_t)elem << 8 | algo << 16;
}

static inline void kolo_record_state(kolo_recording_t *r, kolo_record_state_t state, uint32_t algo)
{
    if (!r->now) return;
    uint32_t what = atomic_load_explicit(&r->now->what, memory_order_relaxed);
    atomic_store_explicit(&r->now->what, (what & 0xffff) | algo << 16, memory_order_relaxed);
    atomic_store_explicit(&r->now->state, (uint32_t)state, memory_order_release);
}

/* Notes that the operation waits for another rank than before, or for something else, which has another word. */
static inline void kolo_record_awaits(kolo_recording_t *r, uint32_t rank, uint64_t word)
{
    if (!r->now) return;
    atomic_store_explicit(&r->now->root, rank, memory_order_relaxed);
    atomic_store_explicit(&r->now->word, word, memory_order_relaxed);
}

/* Notes a wait that has outlasted its spinning. May be called often. */
static inline void kolo_record_waits(kolo_recording_t *r)
{
    if (r->now && !r->timed) kolo_record_waits_slow(r);
}

static inline uint32_t kolo_record_end_state(kolo_status_t status)
{
    return status == KOLO_OK ? (uint32_t)KOLO_RECORD_DONE : (uint32_t)KOLO_RECORD_FAILED | (uint32_t)status << 8;
}

static inline void kolo_record_end(kolo_recording_t *r, kolo_status_t status)
{
    kolo_record_entry_t *e = r->now;
    if (!e) return;
    if (KOLO_UNLIKELY(r->timed)) atomic_store_explicit(&e->ended_ns, kolo_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&e->state, kolo_record_end_state(status), memory_order_release);
    r->now = NULL;
}

#endif
