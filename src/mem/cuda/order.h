/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of what a communicator queues on a program's streams: one piece behind the other, on whatever streams,
 * in and out of graphs. An event stands behind the last piece, so that no stream need be asked about that the
 * program may have destroyed since. A graph in which pieces are captured waits for that event where its first piece
 * is, and records it behind its last one: so replays and calls follow each other in the order in which the program
 * queues them, too. Pieces of one graph, on whatever branches, hang together by edges.
 *
 * One thread at a time; the device's context is current.
 */
#ifndef KOLO_MEM_CUDA_ORDER_H
#define KOLO_MEM_CUDA_ORDER_H

#include "mem/cuda/cuda.h"

#include <stdatomic.h>

#define KOLO_CUDA_TAILS 16 /* nodes at the end of a stream that is being captured */

typedef struct kolo_cuda_order {
    const kolo_cuda_device_t *device;
    kolo_cu_stream_t checked; /* the last stream, which is one of the device's */
    kolo_cu_event_t event;    /* behind the last piece */
    unsigned long long last;  /* the number of its stream; 0: not known, or there is none */
    unsigned long long now;   /* that of the piece that is being queued */
    bool any;
    bool capturing, alone; /* the stream of the piece that is being queued; alone: no kernel is right ahead of it */
    bool captured;         /* pieces ever were: then replays may have come, too */
    unsigned long long graph; /* the capture of the last captured piece, by its number; 0: none */
    kolo_cu_node_t record;    /* there: the node that records the event, and what it comes behind */
    kolo_cu_node_t tails[KOLO_CUDA_TAILS];
    size_t ntails;
    _Atomic uint32_t graphs;           /* with pieces of it, which may be replayed */
    struct kolo_cuda_order *next_left; /* graphs.c */
    void (*end)(void *arg);
    void *arg;
} kolo_cuda_order_t;

kolo_status_t kolo_cuda_order_open(kolo_cuda_order_t *order, const kolo_cuda_device_t *device);
void kolo_cuda_order_close(kolo_cuda_order_t *order);
/* Tells whether something can be queued on this stream. KOLO_ERR_INVALID_ARGUMENT: it is one of another GPU.
 * KOLO_ERR_INVALID_USAGE: a capture keeps it from that. */
kolo_status_t kolo_cuda_order_look(kolo_cuda_order_t *order, kolo_cu_stream_t stream);
/* Puts what is queued on this stream from now on behind all pieces. Refuses as kolo_cuda_order_look() does, and
 * then nothing is changed. */
kolo_status_t kolo_cuda_order_before(kolo_cuda_order_t *order, kolo_cu_stream_t stream);
/* Notes that a piece was queued on the stream that before() was told. */
kolo_status_t kolo_cuda_order_behind(kolo_cuda_order_t *order, kolo_cu_stream_t stream);
/* Returns KOLO_OK when all pieces that the program has queued are complete, or KOLO_IN_PROGRESS. */
kolo_status_t kolo_cuda_order_poll(kolo_cuda_order_t *order);

/* ---- graphs.c ---- */

/* Notes that this graph, which is being captured, has pieces. Where the driver does not tell when it is gone,
 * nothing is noted. */
void kolo_cuda_graphs_hold(kolo_cuda_order_t *order, kolo_cu_graph_t graph);
bool kolo_cuda_graphs_any(const kolo_cuda_order_t *order);
/* Calls end(arg), which frees what pieces use and the order itself: now, or in a later _sweep(), when no graph with
 * pieces is left. */
void kolo_cuda_graphs_leave(kolo_cuda_order_t *order, void (*end)(void *arg), void *arg);
/* Ends what graphs have let go of since. Any thread. */
void kolo_cuda_graphs_sweep(void);

/* ---- streams of a group ---- */

/* Tells whether both streams are being captured, or none. Refuses one whose capture has failed. */
kolo_status_t kolo_cuda_streams_alike(const kolo_cuda_device_t *device, void *one, void *other, bool *alike);
/* What is queued from now on, on all streams but the first, comes behind what the first one has. */
#define KOLO_CUDA_STREAMS_MEET 16
kolo_status_t kolo_cuda_streams_follow(const kolo_cuda_device_t *device, void *const *streams, size_t n);

#endif
