/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker has two threads. The control thread (worker.c) obeys the monitor, makes and aborts communicators and
 * sends heartbeats, whatever the other one is stuck in. The serving thread (serve.c) executes batches.
 */
#ifndef ELASTIC_WORKER_H
#define ELASTIC_WORKER_H

#include "elastic.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct { /* a communicator that this worker has a rank in */
    epoch_t epoch;
    kolo_comm_t comm; /* NULL: none */
    bool finalizing;
    uint64_t deadline_ns; /* of the finalize */
} seat_t;

#define MOST_OLD 8

typedef struct {
    int index, batch_ms, init_ms, beat_ms;
    int kick; /* an eventfd that wakes the thread which waits for a batch */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock */
    seat_t current, next;
    bool next_told; /* the monitor knows how `next` came out */
    bool serving;   /* `current` takes batches */
    bool leave;     /* end when nothing old is left */
    seat_t old[MOST_OLD];
    int old_count;
    /* what heartbeats tell */
    _Atomic uint64_t batches, latency_us, term_ps;
} worker_t;

/* The options of every communicator here. */
kolo_config_t worker_config(const worker_t *w);
/* Lets the control thread finalize and destroy a communicator that is no longer used. Under the lock. */
void worker_retire(worker_t *w, seat_t *seat);
void worker_tell(const worker_t *w, note_kind_t kind, epoch_t epoch, uint64_t batch, kolo_status_t status,
                 const char *text);
/* The serving thread. */
void *worker_serve(void *arg);

#endif
