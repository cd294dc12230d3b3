/* SPDX-License-Identifier: Apache-2.0
 *
 * A random program: events that all ranks draw alike, and what one rank keeps while it runs them. programs.c draws
 * and runs, calls.c makes the calls and looks at their results, requests.c has the messages with requests.
 */
#ifndef KOLO_TESTS_PROGRAMS_PROGRAMS_H
#define KOLO_TESTS_PROGRAMS_PROGRAMS_H

#include "kit/ranks.h"

#include <kolo/message.h>

enum {
    EVENTS = 48,
    FLUSH = 12, /* events after which all streams are waited for */
    COMMS = 4,  /* all; all again; halves; without one rank */
    STREAMS = 2,
    GUARD = 64
};

enum {
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    BARRIER,
    KINDS,
    MESSAGE,
    TAGGED
};

typedef struct {
    int kind, comm, root, to; /* root: of a message the sender, both by their rank in all */
    kolo_type_t type;
    kolo_op_t op;
    size_t count;
    uint64_t seed, tag;
    bool any; /* a tagged message whose receive does not say from whom: its tag is its own */
} event_t;

typedef struct { /* a rank's call of an event, until it is checked */
    const event_t *e;
    char *src, *dst;
    size_t src_count, dst_count;
    bool sends, receives;
    kolo_pending_t pending;
    kolo_request_t request;
} held_t;

typedef struct {
    rank_t *r;
    uint64_t own; /* what this rank draws for itself */
    kolo_comm_t comms[COMMS];
    int ranks[COMMS], sizes[COMMS];
    kolo_stream_t streams[STREAMS];
    held_t held[FLUSH * 2];
    size_t nheld;
    int cut_left;         /* events left of the open group, 0: none is open */
    held_t *aside[COMMS]; /* put aside and not begun: the last one */
    bool later;           /* tagged messages are received at the flush */
} run_t;

uint64_t program_draw(uint64_t *seed);
/* The members of communicator c as the rank numbers of all; halves: those of `rank`. */
int program_members(int c, int rank, int nranks, int *list);
int program_place(const int *list, int n, int rank);

/* ---- calls.c ---- */
held_t *program_hold(run_t *run, const event_t *e, size_t src_count, size_t dst_count);
void program_call_collective(run_t *run, const event_t *e, void *stream);
/* from, to: ranks of the communicator. */
void program_call_message(run_t *run, const event_t *e, int from, int to, void *stream);
/* Looks at all results, which are complete, and frees their buffers. first: of the list of events, for what it
 * prints. */
void program_check(run_t *run, const event_t *first);

/* ---- requests.c ---- */
/* The message with a request that may be left aside, asked about or waited for, at once or later. No group is open.
 */
void program_put_aside(run_t *run, const event_t *e, int from, int to);
/* Before a call on communicator c, -1: before a wait for all. What is aside on others must begin, or peers that
 * wait for it would never come to this call; on c it is taken along. */
void program_begin_aside(run_t *run, int c);
void program_call_tagged(run_t *run, const event_t *e, int from, int to);
/* Waits for all requests. */
void program_wait_requests(run_t *run);

#endif
