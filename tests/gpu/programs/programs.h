/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs on GPUs: what all ranks draw alike (draw.c), what the buffers of all of them hold behind it
 * (model.c), and how a rank runs its share (run.c). Cells of memory belong to communicators, of which the calls on
 * one are in their order on whatever streams; between two there is none.
 */
#ifndef KOLO_TESTS_GPU_PROGRAMS_H
#define KOLO_TESTS_GPU_PROGRAMS_H

#include "gpu/conform.h"

enum {
    COMMS = 3, /* the first is that of all programs; the last has short calls alone: two may fill two GPUs */
    CELLS = 4, /* of each */
    STEPS = 24,
    CALLS = 160, /* of a program, with those of its graphs */
    MESSAGES = 130,
    GRAPHS = 3,
    IN_A_GRAPH = 4
};

typedef enum { SUM, BROADCAST, REDUCE, GATHER, SCATTER_SUM, EXCHANGE, SEND, KINDS } call_kind_t;

typedef struct {
    int from, to;       /* ranks of the communicator */
    uint32_t at, count; /* elements: where it begins at both ends */
} program_message_t;

typedef struct {
    call_kind_t kind;
    int comm, from, to; /* cells */
    int root;
    uint32_t count;
    int first, n; /* messages */
    bool in_place;
} program_call_t;

typedef enum { CALL, CAPTURE, REPLAY, DESTROY_STREAM, ABORT } step_kind_t;
typedef struct {
    step_kind_t kind;
    int first, n; /* calls; of a capture, too, where the last one may be beside it */
    int graph;
    bool beside;    /* the last call of a capture is none of it: on another stream, of another communicator */
    int comm, rank; /* who aborts which */
} program_step_t;

typedef struct {
    uint64_t seed;
    int nranks, number;
    uint32_t room;     /* elements that a cell has here */
    bool made[COMMS];  /* this communicator is made new, */
    int turned[COMMS]; /* where rank r has the number (r + turned) % nranks, or so from behind, if < 0 */
    int aborted;       /* which is, at last; -1: none */
    int nsteps, ncalls, nmessages;
    program_step_t steps[STEPS];
    program_call_t calls[CALLS];
    program_message_t messages[MESSAGES * 8];
} program_t;

/* state: of the communicators, from program to program. */
void program_draw(program_t *p, uint64_t seed, int number, int nranks, bool quick);
int program_rank(const program_t *p, int comm, int world);
void program_print(const program_t *p); /* in words, for who looks for what went wrong */

/* Cells of all ranks, as elements. */
typedef struct {
    uint32_t *at, *scratch;
    uint32_t room; /* of a cell */
    int nranks;
} model_t;
bool model_open(model_t *m, int nranks, uint32_t room);
void model_close(model_t *m);
uint32_t *model_cell(const model_t *m, int world, int comm, int cell);
void model_fill(model_t *m, const program_t *p);
void model_run(model_t *m, const program_t *p);

#endif
