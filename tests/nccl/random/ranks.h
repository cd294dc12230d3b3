/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs of several ranks. All ranks draw the same numbers and so know which communicators there are and
 * who is in them; what each does on its own, as the order in which it ends them, it draws for itself.
 */
#ifndef TESTS_NCCL_RANDOM_RANKS_H
#define TESTS_NCCL_RANDOM_RANKS_H

#include "kit.h"

#define ROOMS 10 /* the first is the world, which lives to the end */

typedef struct {
    ncclComm_t comm;         /* NULL: this rank is not in it */
    int n, ranks[RANKS_MAX]; /* n is 0: there is none here */
    int at;                  /* this rank's place, or -1 */
    bool blocks, stopped;    /* stopped: it can only be ended */
} room_t;

typedef struct {
    const me_t *me;
    uint64_t shared, own; /* states of the two sources of numbers */
    room_t rooms[ROOMS];
    char *in, *out; /* arenas of buffers */
    size_t used;
    int step; /* for messages */
} play_t;

unsigned drawn(uint64_t *state, unsigned n);
unsigned for_all(play_t *p, unsigned n); /* below n, the same on all ranks */
unsigned alone(play_t *p, unsigned n);
/* A room that is alive and not stopped, with that many ranks or more. */
room_t *some_room(play_t *p, int least);
room_t *empty_room(play_t *p);
void set_ranks(play_t *p, room_t *room, const int *ranks, int n);
/* What a call of the room's communicator comes to; its calls may go on in the background. */
ncclResult_t comes_to(const room_t *room, ncclResult_t r);
void end_room(play_t *p, room_t *room, int way);

/* One or several operations that all ranks agree on, and what they have to come to. */
void operate(play_t *p);
/* Something that one rank does otherwise; afterwards the communicator is ended. */
void spoil(play_t *p);

#endif
