/* SPDX-License-Identifier: Apache-2.0
 *
 * What the monitor and the workers have in common: the options, and the notes they exchange, each one message of
 * fixed size on a Unix socket.
 */
#ifndef DIGITS_H
#define DIGITS_H

#include <kolo/kolo.h>

#include <stdbool.h>
#include <stdint.h>

#define MOST_WORKERS 12
#define WORKER_FD    3 /* where a worker finds its socket */

#define MOST_FAULTS    8
#define FAULT_HALF_WAY UINT64_MAX

typedef struct {
    int worker;
    bool stop;   /* for two seconds; else killed */
    uint64_t at; /* after so many steps */
    bool done;
    uint64_t over_ns; /* when a stopped one goes on; 0: none is stopped */
} fault_t;

typedef struct {
    int worker;
    char *text; /* NAME=VALUE, for the environment of that worker in the disturbed run */
} setting_t;

typedef struct {
    int workers, epochs;
    int least; /* accuracy that must be reached, in thousandths */
    fault_t fault[MOST_FAULTS];
    int faults;
    setting_t setting[MOST_FAULTS];
    int settings;
    uint64_t seed;
    const char *data, *out;
    bool no_timeline;
    bool gpu;             /* tensors are on GPUs while they are summed up */
    const char *timeline; /* a worker's: the folder for its timelines, NULL: none */
} options_t;

typedef enum {
    /* to a worker */
    NOTE_MAKE_ID = 1, /* answer with NOTE_ID */
    NOTE_START,       /* `rank` of the first `nranks` ranks, by `id` */
    NOTE_JOIN,        /* the new last one of `nranks`, by `id` */
    NOTE_NEWCOMER,    /* worker `index` waits to be taken in */
    /* from a worker */
    NOTE_HELLO, /* started, data read */
    NOTE_ID,    /* `id`: for `nranks` ranks */
    NOTE_STEP,  /* `step` steps are committed; the last one's loss, samples and ranks; hash of the state */
    NOTE_RANKS, /* the ranks are others; the state stands at `step`; `us`: how long that took */
    NOTE_DONE,  /* `right` of `samples` test images */
    NOTE_FAILED /* `text` */
} note_kind_t;

typedef struct {
    uint32_t magic, kind;
    int32_t index, rank, nranks, samples, right, was;
    uint64_t step, hash, us;
    double loss;
    kolo_unique_id_t id;
    char text[480];
} note_t;

/* Sends a note; waits while the other end has many unread ones. False: the other end is gone. */
bool note_send(int fd, note_t *note);
/* 1: a note; 0: nothing now; -1: the other end is gone or sent nonsense. */
int note_receive(int fd, note_t *note, bool wait);
uint64_t now_ns(void);

int worker_main(const options_t *options, int index);

#endif
