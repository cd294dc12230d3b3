/* SPDX-License-Identifier: Apache-2.0
 *
 * What the monitor and the workers of the elastic service have in common: the frames they exchange, each one
 * message of fixed size on a Unix socket, and the work itself.
 */
#ifndef ELASTIC_H
#define ELASTIC_H

#include <kolo/kolo.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOST_WORKERS  16 /* ranks of one communicator */
#define MOST_REQUESTS 64 /* requests of one batch */
#define CONTROL_FD    3  /* where a worker finds its two sockets */
#define FRONT_FD      4

/* An epoch is one communicator. Numbers only rise; what belongs to an earlier one is refused. */
typedef uint64_t epoch_t;

/* ---- batches: front <-> rank 0, and by kolo_broadcast to all ---- */

typedef struct {
    uint64_t number, value;
} item_t;

/* What every rank does after the batch that carries it, so all do it at the same place. */
typedef enum {
    ORDER_NONE,
    ORDER_SHRINK, /* make the communicator order_epoch without the excluded ranks; go on with the old one */
    ORDER_SWITCH, /* go on with the communicator order_epoch; who is not in it leaves */
    ORDER_STOP    /* all leave */
} order_t;

typedef struct {
    uint32_t magic, count;
    epoch_t epoch;
    uint64_t number;
    uint32_t order, excluded_count;
    epoch_t order_epoch;
    int32_t excluded[MOST_WORKERS];
    item_t requests[MOST_REQUESTS];
} batch_t;

typedef struct {
    uint32_t magic, count;
    epoch_t epoch;
    uint64_t batch;
    item_t results[MOST_REQUESTS];
} answers_t;

/* ---- notes: monitor <-> control thread of a worker ---- */

typedef enum {
    /* to the worker */
    NOTE_MAKE_ID = 1, /* answer with NOTE_ID */
    NOTE_JOIN,   /* join the communicator `epoch` of `id` as `rank` of `nranks`; -1: leave when it takes over */
    NOTE_RESCUE, /* make `epoch` of the current communicator by a shrink in abort mode, without `list` */
    NOTE_DROP,   /* give up the communicator `epoch` that is being made */
    NOTE_ABORT,  /* abort every communicator up to `epoch` */
    NOTE_SERVE,  /* the communicator `epoch` serves from now on */
    NOTE_LEAVE,  /* you are not needed, or were replaced: abort and exit */
    /* to the monitor */
    NOTE_HELLO,
    NOTE_BEAT, /* `status`: the async error of `epoch` */
    NOTE_ID,
    NOTE_READY, /* the communicator `epoch` came out as `status` */
    NOTE_ERROR, /* `batch` of `epoch` ended with `status` */
    NOTE_SAY    /* `text` for the reader */
} note_kind_t;

typedef struct {
    uint32_t magic, kind;
    epoch_t epoch;
    uint64_t batch;
    int32_t status, rank, nranks, count;
    int32_t list[MOST_WORKERS];
    uint64_t batches, latency_us, term_ps; /* beats: batches done, time of a batch, CPU time of a term */
    kolo_unique_id_t id;
    char text[400];
} note_t;

/* Sends one frame without waiting. */
bool frame_send(int fd, void *frame, size_t bytes);
/* 1: a frame of the right size is there; 0: nothing now; -1: the other end is gone or sent nonsense. */
int frame_receive(int fd, void *frame, size_t bytes);
bool batch_is_sound(const batch_t *b);

/* ---- the work ---- */

/* The answer to a request is the sum of WORK_TERMS terms; each rank adds up its share of them. */
#define WORK_TERMS 2048
uint64_t work_share(uint64_t value, int rank, int nranks);
static inline uint64_t work_answer(uint64_t value)
{
    return work_share(value, 0, 1);
}

uint64_t now_ns(void);
#define MS UINT64_C(1000000)

int worker_main(int index, int batch_ms, int init_ms, int beat_ms);

#endif
