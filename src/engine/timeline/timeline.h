/* SPDX-License-Identifier: Apache-2.0
 *
 * The timeline: what the engine does with each tensor, and when, as a file that Chrome's viewer and Perfetto open.
 * The loop puts records of 32 bytes into a ring without ever waiting (timeline.c); a thread of its own turns them
 * into JSON (timeline_write.c), compressed if asked (timeline_gzip.c); both ends of the ring are in
 * timeline_ring.c. timeline_clock.c finds out how far the clocks of ranks are apart, so that kolo-trace can lay the
 * files of several ranks over each other.
 *
 * Where there is no timeline the loop's pointer to it is NULL, and each place where it would say something costs a
 * branch.
 */
#ifndef KOLO_ENGINE_TIMELINE_TIMELINE_H
#define KOLO_ENGINE_TIMELINE_TIMELINE_H

#include "engine/engine.h"

extern const char *kolo_timeline_path; /* parameters */
extern bool kolo_timeline_marks;
extern int64_t kolo_timeline_queue, kolo_timeline_every;

/* ---- records ---- */

/* A name that has appeared in this timeline: a row of the viewer. */
typedef struct kolo_traced {
    kolo_name_t name;
    uint32_t number;  /* from 1 */
    uint64_t times;   /* the loop's: operations that were negotiated, or are */
    bool negotiating; /* the loop's, and whether what is negotiated is recorded */
    bool recorded;
    bool known; /* the writer's: the file has its name */
    char text[];
} kolo_traced_t;

typedef enum {
    KOLO_TRACE_NEGOTIATE, /* begins; detail: the work */
    KOLO_TRACE_READY,     /* detail: the work; value: the rank that has it */
    KOLO_TRACE_AGREED,    /* negotiation ends; the operation begins if value is not 0; detail: the work */
    KOLO_TRACE_DO,        /* from ns to value; detail: the activity */
    KOLO_TRACE_DONE,      /* detail: the work; value: type, dimensions and status; the dimensions follow */
    KOLO_TRACE_CYCLE,     /* begins */
    KOLO_TRACE_CLOCK      /* value: the offset; extra: its uncertainty, both in ns */
} kolo_trace_kind_t;

/* What is done with a batch of tensors; from KOLO_DO_COUNT on the moves, of each backend the works. */
enum {
    KOLO_DO_QUEUE,
    KOLO_DO_COPY_IN,
    KOLO_DO_COPY_OUT,
    KOLO_DO_INPUT,
    KOLO_DO_OUTPUT,
    KOLO_DO_ADASUM,
    KOLO_DO_WAIT,
    KOLO_DO_COUNT
};
#define KOLO_DO_MOVE(backend, work) ((int)KOLO_DO_COUNT + (backend) * (int)KOLO_WORK_COUNT + (int)(work))
#define KOLO_TRACE_ADASUM           KOLO_WORK_COUNT /* a work of its own here */

typedef struct {
    uint64_t ns;
    uint64_t value;
    kolo_traced_t *tensor;
    uint32_t extra;
    uint16_t kind, detail;
} kolo_trace_record_t;

/* ---- timeline_ring.c: one puts, one takes ---- */

typedef struct {
    kolo_trace_record_t *slots;
    uint64_t capacity; /* a power of two */
    _Alignas(KOLO_CACHE_LINE) _Atomic uint64_t head;
    uint64_t tail_seen;        /* by who puts */
    _Atomic uint64_t lost;     /* records that found no room */
    _Atomic uint64_t left_out; /* tensors that were not begun because there was little room */
    _Alignas(KOLO_CACHE_LINE) _Atomic uint64_t tail;
} kolo_trace_ring_t;

kolo_status_t kolo_trace_ring_init(kolo_trace_ring_t *ring, uint64_t records);
void kolo_trace_ring_fini(kolo_trace_ring_t *ring);
/* Reserves room for so many records in a row; kolo_trace_slot() returns the i-th. False: there is none, and they
 * are counted as lost. */
bool kolo_trace_reserve(kolo_trace_ring_t *ring, uint64_t count);
static inline kolo_trace_record_t *kolo_trace_slot(const kolo_trace_ring_t *ring, uint64_t at)
{
    return &ring->slots[at & (ring->capacity - 1)];
}
/* Tells whether the ring has room to begin something that will put more. */
bool kolo_trace_has_room(kolo_trace_ring_t *ring);
bool kolo_trace_is_filling(kolo_trace_ring_t *ring);

/* ---- timeline_gzip.c: a gzip file that is whole after each block ---- */

typedef struct kolo_gzip kolo_gzip_t;
#define KOLO_GZIP_TAIL_BYTES 16
/* Opens the compressor. KOLO_ERR_UNSUPPORTED: built without zlib, or it cannot be loaded. */
kolo_status_t kolo_gzip_open(kolo_gzip_t **gzip);
/* Compresses what is to follow in the file: *block bytes, which the next block continues, and behind them a tail
 * that ends the file for now with three bytes of text; the next block is written over the tail. NULL: zlib has
 * failed. The memory is the gzip's, until the next call. */
const char *kolo_gzip_block(kolo_gzip_t *gzip, const char *text, size_t bytes, const char end[3], size_t *block);
/* Drops the last block, which could not be written, and returns the tail for what was there before it. */
void kolo_gzip_forget(kolo_gzip_t *gzip, const char end[3], char tail[KOLO_GZIP_TAIL_BYTES]);
void kolo_gzip_close(kolo_gzip_t *gzip); /* NULL is fine */

/* ---- a timeline ---- */

typedef struct kolo_timeline {
    kolo_trace_ring_t ring;
    uint32_t round; /* of the engine's timelines: entries of an earlier one are not this one's */
    bool marks;
    uint64_t every, cycles; /* of each tensor's operations and of cycles one in so many is recorded */
    _Atomic int holders;    /* who started it, until it is closed; the loop, until it takes over another */
    kolo_names_t names;     /* the loop's */
    uint32_t nnames;
    uint64_t agreed_ns;
    /* the writer's */
    uint64_t start_ns;
    int rank, fd;
    char path[4096];
    kolo_gzip_t *gzip; /* NULL: plain text */
    uint64_t end;      /* of what is written, without the closing bracket */
    bool broken;
    char *text;
    size_t length;
    pthread_t writer;
    kolo_gate_t gate;
    _Atomic bool parked, closed;
} kolo_timeline_t;

/* Begins the file and its thread (timeline_write.c). On success the timeline owns both. */
kolo_status_t kolo_timeline_open(kolo_timeline_t *t, const kolo_engine_place_t *place, const char *host);
/* Writes all that was put before and closes the file; the memory stays. Once. */
void kolo_timeline_close(kolo_timeline_t *t);

/* Begins the timeline of an engine (timeline.c). */
void kolo_timeline_begin(struct kolo_tensor_engine *e); /* if the parameters say so; before the loop begins */
void kolo_timeline_end(struct kolo_tensor_engine *e);   /* the loop has ended */
void kolo_timeline_free(kolo_timeline_t *t);            /* closed, or never opened */

/* ---- what the loop says, where there is a timeline ---- */

/* Takes over what start and stop have left; whenever e->timeline_changed is set. */
void kolo_timeline_adopt(struct kolo_tensor_engine *e);
void kolo_trace_cycle(struct kolo_tensor_engine *e); /* begins */
void kolo_trace_cycle_over(struct kolo_tensor_engine *e);
void kolo_trace_taken(kolo_set_t *s, kolo_entry_t *entry);
/* Notes, on the coordinator, that another rank has sent a request. */
void kolo_trace_ready(kolo_set_t *s, const kolo_tensor_request_t *request, int rank);
void kolo_trace_agreed(kolo_set_t *s, kolo_response_t *const *responses, size_t count);
void kolo_trace_do(kolo_set_t *s, kolo_response_t *const *batch, size_t count, int what, uint64_t from,
                   uint64_t to);
/* Notes that the operation begins now (begin), or that its results are there (end). */
void kolo_trace_begin(kolo_set_t *s, kolo_response_t *const *batch, size_t count);
void kolo_trace_done(kolo_set_t *s, kolo_response_t *const *batch, size_t count);
/* Puts a record, for the files of this room. */
void kolo_trace_put(kolo_timeline_t *t, const kolo_trace_record_t *record);
void kolo_trace_put_done(kolo_timeline_t *t, const kolo_trace_record_t *record, const int64_t *shape, int ndims);
kolo_traced_t *kolo_trace_find(const kolo_timeline_t *t, const kolo_entry_t *entry);
uint16_t kolo_trace_work(const kolo_tensor_request_t *q);

/* timeline_late.c: what a GPU does, and when its tensors were there, is known only when it has come to the end. The
 * loop notes what there is to say, the finisher fills in when, the loop puts it. */
#define KOLO_LATE_STEPS 8
typedef struct {
    kolo_traced_t *tensor;
    kolo_type_t type;
    uint16_t work;
    bool ends; /* its operation ends here */
    kolo_status_t status;
    int ndims;
    int64_t shape[KOLO_TENSOR_DIMS_MAX];
} kolo_late_tensor_t;
typedef struct kolo_late {
    struct kolo_late *next;
    uint32_t round;
    int nsteps, what[KOLO_LATE_STEPS]; /* what ended at ns; of the first nothing, it is the begin */
    uint64_t ns[KOLO_LATE_STEPS];
    size_t count;
    kolo_late_tensor_t tensors[];
} kolo_late_t;
/* Begins to note who is late. NULL: none of them is in the timeline, or memory is short. */
kolo_late_t *kolo_late_new(kolo_set_t *s, kolo_response_t *const *batch, size_t count);
void kolo_late_free(kolo_late_t *late); /* NULL is fine */
void kolo_late_ended(kolo_late_t *late, kolo_status_t status);
void kolo_late_put(struct kolo_tensor_engine *e, const kolo_late_t *late);

/* Measures how far this clock is from rank 0's (timeline_clock.c). Collective over all ranks. */
kolo_status_t kolo_clock_compare(struct kolo_tensor_engine *e);
void kolo_trace_clock(struct kolo_tensor_engine *e);

#endif
