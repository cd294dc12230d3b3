/* SPDX-License-Identifier: Apache-2.0
 *
 * The drawing of programs. See programs.h.
 */
#include "programs.h"

#include <stdio.h>
#include <string.h>

static uint32_t below(uint64_t *state, uint32_t n)
{
    return n ? (uint32_t)(kit_random(state) % n) : 0;
}

int program_rank(const program_t *p, int comm, int world)
{
    int turn = p->turned[comm], n = p->nranks;
    return turn >= 0 ? (world + turn) % n : n - 1 - (world - turn) % n;
}

/* Messages have places of their own at both ends, so that all may be under way at once. */
static void draw_messages(program_t *p, program_call_t *c, uint64_t *state, uint32_t room)
{
    bool many = below(state, 8) == 0 && room >= MESSAGES;
    int n = many ? 100 + (int)below(state, MESSAGES - 100) : 1 + (int)below(state, 12);
    uint32_t each = room / (uint32_t)n;
    if (p->nmessages + n > (int)(sizeof p->messages / sizeof p->messages[0])) n = 0;
    c->first = p->nmessages;
    c->n = n;
    for (int i = 0; i < n; i++)
        p->messages[p->nmessages++] = (program_message_t){.from = (int)below(state, (uint32_t)p->nranks),
                                                          .to = (int)below(state, (uint32_t)p->nranks),
                                                          .at = (uint32_t)i * each,
                                                          .count = below(state, each + 1)};
}

static void draw_call(program_t *p, uint64_t *state, int comm, uint32_t most)
{
    program_call_t *c = &p->calls[p->ncalls++];
    uint32_t n = (uint32_t)p->nranks, room = comm == COMMS - 1 && most > 1000 ? 1000 : most;
    *c = (program_call_t){.kind = (call_kind_t)below(state, KINDS), .comm = comm};
    if (below(state, 3) == 0) c->kind = SEND;
    c->root = (int)below(state, n);
    c->from = (int)below(state, CELLS);
    c->to = (c->from + 1 + (int)below(state, CELLS - 1)) % CELLS;
    c->in_place = below(state, 3) == 0 && c->kind <= REDUCE;
    if (c->in_place) c->to = c->from;
    bool parts = c->kind == GATHER || c->kind == SCATTER_SUM || c->kind == EXCHANGE;
    uint32_t bits = 1 + below(state, 20);
    c->count = below(state, (parts ? room / n : room) + 1) & ((1u << bits) - 1);
    if (c->kind == SEND) draw_messages(p, c, state, room);
}

static int draw_comm(program_t *p, uint64_t *state, int graph_only)
{
    int comm;
    do comm = (int)below(state, COMMS);
    while (graph_only && comm == p->aborted);
    return comm;
}

static void draw_step(program_t *p, uint64_t *state, int *graphs)
{
    program_step_t *s = &p->steps[p->nsteps++];
    uint32_t what = below(state, 16);
    int room = CALLS - p->ncalls;
    *s = (program_step_t){.kind = CALL, .first = p->ncalls, .n = 1};
    if (what < 2 && *graphs < GRAPHS && room > IN_A_GRAPH + 1) {
        int comm = draw_comm(p, state, 1), calls = 1 + (int)below(state, IN_A_GRAPH);
        s->kind = CAPTURE;
        s->graph = (*graphs)++;
        for (int i = 0; i < calls; i++)
            draw_call(p, state, below(state, 4) ? comm : draw_comm(p, state, 1), p->room);
        s->beside = below(state, 2);
        if (s->beside) draw_call(p, state, draw_comm(p, state, 1), p->room);
        s->n = p->ncalls - s->first;
        return;
    }
    if (what < 6 && *graphs) {
        s->kind = REPLAY;
        s->n = 0;
        s->graph = (int)below(state, (uint32_t)*graphs);
        return;
    }
    if (what == 6) {
        s->kind = DESTROY_STREAM;
        s->n = 0;
        return;
    }
    draw_call(p, state, draw_comm(p, state, 0), p->room);
}

void program_draw(program_t *p, uint64_t seed, int number, int nranks, bool quick)
{
    static const uint32_t rooms[] = {700, 4000, 40000, 1u << 17};
    uint64_t state = seed * 1000003 + (uint64_t)number;
    int turned[COMMS], graphs = 0;
    memcpy(turned, p->turned, sizeof turned);
    bool before = p->nranks != 0, lost[COMMS] = {0};
    if (before && p->aborted > 0) lost[p->aborted] = true;
    memset(p, 0, sizeof *p);
    p->seed = seed;
    p->number = number;
    p->nranks = nranks;
    memcpy(p->turned, turned, sizeof turned);
    uint32_t size = below(&state, 10);
    p->room = rooms[quick ? size > 6 : size < 5 ? 0 : size < 7 ? 1 : size < 9 ? 2 : 3];
    for (int c = 1; c < COMMS; c++) {
        p->made[c] = !before || lost[c] || below(&state, 3) == 0;
        if (!p->made[c]) continue;
        p->turned[c] = (int)below(&state, (uint32_t)nranks);
        if (below(&state, 2)) p->turned[c] = -1 - p->turned[c];
    }
    p->aborted = below(&state, 6) ? -1 : 1 + (int)below(&state, COMMS - 1);
    int steps = 4 + (int)below(&state, STEPS - 5);
    int fall = p->aborted > 0 ? (int)below(&state, (uint32_t)steps) : -1;
    for (int i = 0; i < steps; i++) {
        if (i == fall)
            p->steps[p->nsteps++] =
                (program_step_t){.kind = ABORT, .comm = p->aborted, .rank = (int)below(&state, (uint32_t)nranks)};
        draw_step(p, &state, &graphs);
    }
}

static void print_call(const program_t *p, const program_call_t *c)
{
    static const char *const names[] = {"all_reduce",     "broadcast",  "reduce",  "all_gather",
                                        "reduce_scatter", "all_to_all", "messages"};
    fprintf(stderr, " [%s of communicator %d, %u from cell %d to %d, root %d", names[c->kind], c->comm, c->count,
            c->from, c->to, c->root);
    for (int i = c->first; i < c->first + c->n && c->kind == SEND; i++)
        fprintf(stderr, ", %d>%d: %u", p->messages[i].from, p->messages[i].to, p->messages[i].count);
    fprintf(stderr, "]");
}

void program_print(const program_t *p)
{
    static const char *const names[] = {"call", "capture", "replay", "a stream goes", "abort"};
    fprintf(stderr, "program %d of seed %llu, cells of %u", p->number, (unsigned long long)p->seed, p->room);
    for (int c = 1; c < COMMS; c++)
        if (p->made[c]) fprintf(stderr, ", communicator %d is made", c);
    fprintf(stderr, ":\n");
    for (int i = 0; i < p->nsteps; i++) {
        const program_step_t *s = &p->steps[i];
        fprintf(stderr, "  %s", names[s->kind]);
        if (s->kind == CAPTURE || s->kind == REPLAY) fprintf(stderr, " graph %d", s->graph);
        if (s->kind == ABORT) fprintf(stderr, " of communicator %d by rank %d", s->comm, s->rank);
        for (int k = 0; k < s->n; k++) print_call(p, &p->calls[s->first + k]);
        fprintf(stderr, "%s\n", s->beside ? ", the last one beside it" : "");
    }
}
