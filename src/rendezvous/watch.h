/* SPDX-License-Identifier: Apache-2.0
 *
 * What a task waits for and what it has sent, in memory that other processes of the same user can read while this
 * one lives: the flight record of keyed tensors. kolo-top finds it among the descriptors of a process by its name.
 *
 * Receives are not written down when they begin, which would cost each of them; the adapter's thread looks now and
 * then, and writes down those that have waited for long. How these have ended is kept, as are receives that failed.
 * Of each edge and destination the last step sent is kept. A task that waits for long asks the sender for that, so
 * that it can be told on another host, too.
 * Readers (watch_read.c) believe nothing they read.
 */
#ifndef KOLO_RENDEZVOUS_WATCH_H
#define KOLO_RENDEZVOUS_WATCH_H

#include "rendezvous/internal.h"

#define KOLO_WATCH_NAME    "kolo-tensors"
#define KOLO_WATCH_MAGIC   0x33766e7365746b6bull
#define KOLO_WATCH_WAITS   128
#define KOLO_WATCH_EDGES   512
#define KOLO_WATCH_ENDED   128
#define KOLO_WATCH_LOOK_MS 200 /* from then on a receive counts as waiting */
#define KOLO_WATCH_CALLS   64  /* callbacks that are seen at a time */

typedef enum { KOLO_SENT_UNKNOWN, KOLO_SENT_NEVER, KOLO_SENT_UP_TO } kolo_sent_t;

typedef struct {
    uint64_t since_ns, step; /* CLOCK_MONOTONIC */
    uint64_t sent_step;      /* that the sender says it has sent last, ... */
    uint64_t callback_ns;    /* ... since when it has been in a callback of its own (0: it is not), ... */
    uint32_t sent, reserved; /* ... a kolo_sent_t */
    char from[KOLO_TASK_NAME_MAX + 1], edge[KOLO_EDGE_NAME_MAX + 1];
} kolo_watch_wait_t;

typedef struct {
    _Atomic uint64_t hash; /* of edge and destination; 0: free */
    _Atomic uint64_t step; /* the last one sent */
    _Atomic uint32_t named, reserved;
    char to[KOLO_TASK_NAME_MAX + 1], edge[KOLO_EDGE_NAME_MAX + 1];
} kolo_watch_edge_t;

typedef struct {             /* a receive that has ended */
    _Atomic uint64_t number; /* counted from 1; 0 while it is written */
    uint64_t since_ns, end_ns, step;
    int32_t status;
    uint32_t reserved;
    char from[KOLO_TASK_NAME_MAX + 1], edge[KOLO_EDGE_NAME_MAX + 1];
} kolo_watch_ended_t;

typedef struct kolo_rendezvous_watch {
    uint64_t magic, incarnation;
    int32_t pid;
    _Atomic uint32_t left_out; /* 1: an edge found no place below: what is not there may have been sent */
    char task[KOLO_TASK_NAME_MAX + 1];
    _Atomic uint64_t seq;          /* odd while the waits are written */
    _Atomic uint32_t nwaits, more; /* more: that had no room */
    kolo_watch_wait_t waits[KOLO_WATCH_WAITS];
    kolo_watch_edge_t edges[KOLO_WATCH_EDGES];
    _Atomic uint64_t nended; /* so far; the last ones are kept */
    kolo_watch_ended_t ended[KOLO_WATCH_ENDED];
    _Atomic uint64_t calls[KOLO_WATCH_CALLS]; /* since when a callback runs; 0: a free place */
} kolo_rendezvous_watch_t;

/* ---- writing (watch.c) ---- */

/* Makes the record that others may watch. NULL: the system gives no memory; nothing is written down then. */
kolo_rendezvous_watch_t *kolo_watch_create(const char *task, uint64_t incarnation, int *fd);
/* Takes the record away from this process; its descriptor is closed apart. Nobody writes into it any more: not
 * before the last who holds its manager has gone. NULL is fine. */
void kolo_watch_unmap(kolo_rendezvous_watch_t *watch);
/* Notes that this edge was sent in this step. Any thread. */
void kolo_watch_sent(kolo_rendezvous_watch_t *watch, const kolo_tensor_key_t *key, uint64_t step);
/* Says whether the edge of this key was sent to its destination, as far as is known, and (KOLO_SENT_UP_TO) the last
 * step in which it was. NULL is fine. Any thread. */
kolo_sent_t kolo_watch_last_sent(kolo_rendezvous_watch_t *watch, const kolo_tensor_key_t *key, uint64_t *step);
/* Notes that a receive has ended. It is kept if it waited for long or failed. Any thread; NULL is fine. */
void kolo_watch_ended(kolo_rendezvous_watch_t *watch, const kolo_receive_t receive, kolo_status_t status);
/* Any thread: a callback of the user's is about to be called, and has returned (what the first gave). NULL is fine.
 */
_Atomic uint64_t *kolo_watch_call(kolo_rendezvous_watch_t *watch);
void kolo_watch_call_over(_Atomic uint64_t *call);
/* Returns how long the one that has lasted longest has lasted; 0: none has for long. */
uint64_t kolo_watch_callback_ns(const kolo_rendezvous_watch_t *watch, uint64_t now_ns);
/* Fills in what a receive waits for, as far as its sender has said. */
void kolo_watch_describe(const kolo_receive_t receive, kolo_watch_wait_t *wait);
/* Writes down what has waited for long. One thread at a time. */
void kolo_watch_look(kolo_rendezvous_watch_t *watch, kolo_rendezvous_manager_t manager);

/* ---- reading (watch_read.c): pure, over bytes of unknown origin ---- */

typedef struct {
    int pid;
    char task[KOLO_TASK_NAME_MAX + 1];
    size_t nwaits, more;
    kolo_watch_wait_t waits[KOLO_WATCH_WAITS];
    uint64_t call_ns; /* since when the callback has run that runs longest; 0: none runs */
    bool left_out;    /* edges were sent that are not in the next */
    size_t nsent;
    struct {
        uint64_t step;
        char to[KOLO_TASK_NAME_MAX + 1], edge[KOLO_EDGE_NAME_MAX + 1];
    } sent[KOLO_WATCH_EDGES];
    size_t nended;
    struct {
        uint64_t since_ns, end_ns, step;
        kolo_status_t status;
        char from[KOLO_TASK_NAME_MAX + 1], edge[KOLO_EDGE_NAME_MAX + 1];
    } ended[KOLO_WATCH_ENDED]; /* the last one first */
} kolo_watch_view_t;
/* Reads a record; false if it is none, or is being written. All names are terminated and printable. */
bool kolo_watch_view(const void *bytes, size_t size, kolo_watch_view_t *view);
/* Writes "task worker:1 waits 31 s for edge grad_3 of ps:0, which has sent steps up to 41". sender: its record;
 * NULL: it is not on this host, or gone. */
void kolo_watch_words(const kolo_watch_view_t *task, const kolo_watch_wait_t *wait, uint64_t now_ns,
                      const kolo_watch_view_t *sender, char *text, size_t bytes);
/* Says the same of what the sender has said: the step, what it has sent and its callback are those of the wait. */
void kolo_watch_wait_words(const char *task, const kolo_watch_wait_t *wait, uint64_t now_ns, char *text,
                           size_t bytes);
/* Writes "task worker:1 got edge grad_3 of ps:0, step 42, 3 s ago, after 31 s"; i: of view->ended. */
void kolo_watch_ended_words(const kolo_watch_view_t *task, size_t i, uint64_t now_ns, char *text, size_t bytes);

#endif
