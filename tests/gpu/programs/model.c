/* SPDX-License-Identifier: Apache-2.0
 *
 * What cells hold: a program's calls, one behind the other, for all ranks. See programs.h.
 */
#include "programs.h"

#include <stdlib.h>
#include <string.h>

bool model_open(model_t *m, int nranks, uint32_t room)
{
    *m = (model_t){.room = room, .nranks = nranks};
    m->at = malloc((size_t)nranks * COMMS * CELLS * room * sizeof *m->at);
    m->scratch = malloc((size_t)nranks * room * sizeof *m->scratch);
    return m->at && m->scratch;
}

void model_close(model_t *m)
{
    free(m->at);
    free(m->scratch);
}

uint32_t *model_cell(const model_t *m, int world, int comm, int cell)
{
    return m->at + ((size_t)(world * COMMS + comm) * CELLS + (size_t)cell) * m->room;
}

void model_fill(model_t *m, const program_t *p)
{
    for (int w = 0; w < m->nranks; w++)
        for (int c = 0; c < COMMS * CELLS; c++) {
            uint32_t *at = model_cell(m, w, c / CELLS, c % CELLS);
            uint32_t x = (uint32_t)p->seed * 31 + (uint32_t)p->number * 977 + (uint32_t)(w * 64 + c) * 0x9e3779b9u;
            for (uint32_t k = 0; k < p->room; k++) at[k] = x + k * 2654435761u;
        }
}

static int world_of(const program_t *p, int comm, int rank)
{
    int w = 0;
    while (program_rank(p, comm, w) != rank) w++;
    return w;
}

static void add(model_t *m, const program_t *p, const program_call_t *c, uint32_t from, uint32_t *sum)
{
    memset(sum, 0, c->count * sizeof *sum);
    for (int w = 0; w < p->nranks; w++) {
        const uint32_t *at = model_cell(m, w, c->comm, c->from) + from;
        for (uint32_t k = 0; k < c->count; k++) sum[k] += at[k];
    }
}

static void move(model_t *m, const program_t *p, const program_call_t *c)
{
    for (int i = c->first; i < c->first + c->n; i++) {
        const program_message_t *g = &p->messages[i];
        memcpy(model_cell(m, world_of(p, c->comm, g->to), c->comm, c->to) + g->at,
               model_cell(m, world_of(p, c->comm, g->from), c->comm, c->from) + g->at, g->count * sizeof(uint32_t));
    }
}

/* Where there is one, the result of all ranks is in the first rank's scratch. */
static void run_call(model_t *m, const program_t *p, const program_call_t *c)
{
    size_t bytes = c->count * sizeof(uint32_t);
    if (c->kind == SEND) {
        move(m, p, c);
        return;
    }
    if (c->kind == SUM || c->kind == REDUCE) add(m, p, c, 0, m->scratch);
    if (c->kind == BROADCAST)
        memcpy(m->scratch, model_cell(m, world_of(p, c->comm, c->root), c->comm, c->from), bytes);
    for (int w = 0; w < p->nranks; w++) {
        uint32_t *to = model_cell(m, w, c->comm, c->to);
        uint32_t mine = (uint32_t)program_rank(p, c->comm, w);
        if (c->kind == SUM || c->kind == BROADCAST || (c->kind == REDUCE && (int)mine == c->root))
            memcpy(to, m->scratch, bytes);
        if (c->kind == SCATTER_SUM) {
            add(m, p, c, mine * c->count, m->scratch);
            memcpy(to, m->scratch, bytes);
        }
        for (int r = 0; r < p->nranks && (c->kind == GATHER || c->kind == EXCHANGE); r++)
            memcpy(to + (size_t)r * c->count,
                   model_cell(m, world_of(p, c->comm, r), c->comm, c->from) +
                       (c->kind == EXCHANGE ? (size_t)mine * c->count : 0),
                   bytes);
    }
}

void model_run(model_t *m, const program_t *p)
{
    const program_step_t *graphs[GRAPHS] = {NULL};
    for (int i = 0; i < p->nsteps; i++) {
        const program_step_t *s = &p->steps[i];
        if (s->kind == CALL) run_call(m, p, &p->calls[s->first]);
        if (s->kind == CAPTURE) graphs[s->graph] = s;
        if (s->kind == CAPTURE && s->beside) run_call(m, p, &p->calls[s->first + s->n - 1]);
        if (s->kind != REPLAY) continue;
        const program_step_t *g = graphs[s->graph];
        for (int k = 0; k < g->n - g->beside; k++) run_call(m, p, &p->calls[g->first + k]);
    }
}
