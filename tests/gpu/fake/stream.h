/* SPDX-License-Identifier: Apache-2.0
 *
 * What the fake driver's streams, events and graphs share. Lock held in all of it.
 */
#ifndef KOLO_TESTS_GPU_FAKE_STREAM_H
#define KOLO_TESTS_GPU_FAKE_STREAM_H

#include "fake.h"

#define FAKE_NODES 64 /* that a stream's next one comes behind */
typedef struct {
    kolo_cu_graph_t graph; /* NULL: no capture */
    kolo_cu_node_t nodes[FAKE_NODES];
    size_t n;
    bool origin; /* the capture began on this stream */
} fake_capture_t;

typedef struct {
    int refs;
    bool done;
    uint64_t ns;
    pthread_cond_t
        over; /* of its own: a graph that is replayed again and again has hundreds of threads that wait */
} mark_t;

typedef enum { WAIT, RECORD, SET, COPY, LAUNCH, AWAIT_WORD, WRITE_WORD, CALL, GET } work_kind_t;
typedef struct work {
    struct work *next;
    mark_t *mark;
    work_kind_t kind;
    mark_t *awaited;
    uintptr_t to, from;
    size_t bytes;
    unsigned char value;
    uint32_t word;
    unsigned how; /* AWAIT_WORD: KOLO_CU_WAIT_* */
    void (*fn)(void *arg);
    void *arg;
    fake_launch_t *launch;
} work_t;

struct CUstream_st {
    struct CUstream_st *next;
    struct CUctx_st *ctx;
    kolo_cu_stream_t handle; /* that the program has; given out again when the stream is destroyed */
    unsigned long long id;
    bool blocking, destroyed;
    fake_capture_t capture; /* graph NULL: none */
    work_t *head, **tail;
    mark_t *last;
    pthread_cond_t more;
};

struct CUevent_st {
    struct CUevent_st *next;
    struct CUctx_st *ctx;
    bool timing;
    mark_t *mark;
    fake_capture_t capture; /* graph: it was last recorded in a capture, behind these nodes */
};

mark_t *fake_hold(mark_t *m);
void fake_drop(mark_t *m);
void fake_await(mark_t *m); /* and lets go of it; NULL is done */
struct CUstream_st *fake_stream_locked(kolo_cu_stream_t handle, struct CUctx_st *ctx, const char *what,
                                       kolo_cu_result_t *why);
struct CUstream_st *fake_taker_locked(kolo_cu_stream_t handle, struct CUctx_st *ctx, const char *what,
                                      kolo_cu_result_t *why);
struct CUevent_st *fake_event_locked(kolo_cu_event_t handle, const char *what);
struct CUstream_st *fake_new_stream_locked(struct CUctx_st *ctx, bool blocking);
/* Queues work behind what the default streams have; NULL: it was captured. */
mark_t *fake_push(struct CUstream_st *s, work_t work);
/* Without a look at the default streams. */
mark_t *fake_push_one(struct CUstream_st *s, work_t work);
void fake_push_wait(struct CUstream_st *s, mark_t *m);
struct CUstream_st *fake_streams_locked(void); /* the first of all */

/* object.c: a graph that held these is gone; `behind`: its last replay, NULL: none. Takes all three. */
void fake_objects_end_locked(kolo_cu_object_t *objects, size_t n, mark_t *behind);

/* graph.c: work for a stream that is being captured becomes a node. */
void fake_capture_work(struct CUstream_st *s, const work_t *work);
/* Something that a capture forbids was called in it: nothing more can be queued there. */
bool fake_capture_is_broken(const struct CUstream_st *s);
/* Ends the captures of a context; false: there are none. */
bool fake_capture_break_locked(const struct CUctx_st *ctx);
/* A stream that is captured, or is from now on, waits for an event that was recorded in the capture; or another
 * one, which is an error. */
kolo_cu_result_t fake_capture_wait(struct CUstream_st *s, struct CUevent_st *e, bool external);

#endif
