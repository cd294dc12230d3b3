/* SPDX-License-Identifier: Apache-2.0
 *
 * An all_reduce in levels is a reduce_scatter inside each host, an all_reduce of the pieces across hosts, side by
 * side for all local ranks, and an all_gather inside each host; an all_gather gathers columns across hosts and then
 * the columns inside. The flat plans of Kolo know several hosts; this is for networks where all ranks of a host
 * together carry more than what these plans make of it, so it runs only where it is asked for.
 *
 * Local ranks that have a partner on every host hold a piece; others have an empty one. So hosts need not have
 * equally many ranks for an all_reduce, but for averages, whose average per host would weigh wrong, and all_gather.
 * Integers are averaged by the flat backend, which truncates once. A broadcast crosses in the root's lane and goes
 * round inside each host then.
 */
#include "engine/backends/levels.h"

#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const kolo_backend_levels_t *levels;
    const kolo_group_ops_t *inside, *across; /* of the levels */
    void *local, *cross;                     /* cross NULL: this rank holds no piece */
    int pieces;                              /* local ranks that hold one: the smallest number of ranks on a host */
    int local_rank, local_size;
    size_t *counts, *displs; /* room for any of the groups */
    void *scratch;           /* where input and output must not overlap */
    size_t scratch_bytes;
} moves_t;

static int fewest_ranks(const kolo_member_t *m)
{
    int fewest = m->node_size[0];
    for (int n = 1; n < m->nnodes; n++) fewest = KOLO_MIN(fewest, m->node_size[n]);
    return fewest;
}

static bool is_even(const kolo_member_t *m)
{
    return fewest_ranks(m) * m->nnodes == m->nranks;
}

static bool is_integer(kolo_type_t type)
{
    return !kolo_type_is_float(type);
}

bool kolo_backend_levels_have_some(const kolo_set_t *s)
{
    const kolo_member_t *m = &s->members;
    return m->nnodes > 1 && m->nnodes < m->nranks;
}

bool kolo_backend_levels_fit(const kolo_set_t *s, const kolo_backend_levels_t *levels, const kolo_need_t *need)
{
    const kolo_member_t *m = &s->members;
    if (m->nnodes < 2) return false;
    bool broadcasts = levels->inside->broadcasts && levels->across->broadcasts;
    if (need->work == KOLO_WORK_ALL_GATHER || (need->work == KOLO_WORK_BROADCAST && broadcasts)) return is_even(m);
    if (need->work != KOLO_WORK_ALL_REDUCE) return false;
    return need->op != KOLO_AVG || (is_even(m) && !is_integer(need->type));
}

/* ---- groups ---- */

void kolo_backend_levels_leave(void *here, bool abort)
{
    moves_t *l = here;
    if (l->cross) l->across->leave(l->cross, abort);
    if (l->local) l->inside->leave(l->local, abort);
}

kolo_status_t kolo_backend_levels_status(void *here)
{
    const moves_t *l = here;
    if (l->cross && l->across->status) KOLO_TRY(l->across->status(l->cross));
    return l->local && l->inside->status ? l->inside->status(l->local) : KOLO_OK;
}

void kolo_backend_levels_free(void *here)
{
    moves_t *l = here;
    if (l->cross && l->across->free) l->across->free(l->cross);
    if (l->local && l->inside->free) l->inside->free(l->local);
    free(l->counts);
    free(l->scratch);
    free(l);
}

static kolo_status_t meet_levels(kolo_set_t *s, void *state, moves_t *l, int *partners)
{
    const kolo_member_t *m = &s->members;
    bool holds = l->local_rank < l->pieces;
    kolo_level_t local = {.name = "local",
                          .purpose = KOLO_LEVEL_LOCAL,
                          .color = m->my_node,
                          .key = l->local_rank,
                          .ranks = m->node_ranks + m->node_first[m->my_node],
                          .nranks = l->local_size,
                          .rank = l->local_rank,
                          .on_gpus = l->levels->on_gpus};
    kolo_level_t cross = {.name = "cross",
                          .purpose = KOLO_LEVEL_CROSS,
                          .color = holds ? l->local_rank : KOLO_SPLIT_NOCOLOR,
                          .key = m->my_node,
                          .ranks = partners,
                          .nranks = m->nnodes,
                          .rank = m->my_node,
                          .on_gpus = l->levels->on_gpus};
    for (int n = 0; n < m->nnodes && holds; n++) partners[n] = m->node_ranks[m->node_first[n] + l->local_rank];
    KOLO_TRY(l->inside->meet(s, state, &local, &l->local));
    return l->across->meet(s, state, &cross, &l->cross);
}

kolo_status_t kolo_backend_levels_meet(kolo_set_t *s, void *state, const kolo_backend_levels_t *levels, void **here)
{
    const kolo_member_t *m = &s->members;
    size_t room = (size_t)KOLO_MAX(m->nnodes, m->nranks);
    moves_t *l = calloc(1, sizeof *l);
    int *partners = malloc((size_t)m->nnodes * sizeof *partners);
    if (l) l->counts = calloc(2 * room, sizeof *l->counts);
    if (!l || !l->counts || !partners) {
        free(partners);
        free(l ? l->counts : NULL);
        free(l);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %d ranks", s->size);
    }
    l->levels = levels;
    l->inside = levels->inside;
    l->across = levels->across;
    l->displs = l->counts + room;
    l->pieces = fewest_ranks(m);
    l->local_rank = m->local_of[s->rank];
    l->local_size = m->node_size[m->my_node];
    kolo_status_t status = meet_levels(s, state, l, partners);
    free(partners);
    if (status == KOLO_OK) {
        *here = l;
        return KOLO_OK;
    }
    char text[KOLO_ERROR_TEXT_BYTES]; /* leaving has words of its own */
    snprintf(text, sizeof text, "%s", kolo_error_text());
    kolo_backend_levels_leave(l, true);
    kolo_backend_levels_free(l);
    return kolo_fail(status, "%s", text);
}

/* ---- moves ---- */

static kolo_status_t need_scratch(moves_t *l, size_t bytes)
{
    if (bytes <= l->scratch_bytes) return KOLO_OK;
    void *more = realloc(l->scratch, bytes);
    if (!more) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %zu bytes of a piece", bytes);
    l->scratch = more;
    l->scratch_bytes = bytes;
    return KOLO_OK;
}

/* Runs the move as `work`, inside or across. */
static kolo_status_t run_inside(const moves_t *l, kolo_work_t work, kolo_move_t *move)
{
    move->need.work = work;
    return l->inside->run(l->local, move);
}

static kolo_status_t run_across(const moves_t *l, kolo_work_t work, kolo_move_t *move)
{
    move->need.work = work;
    return l->across->run(l->cross, move);
}

static kolo_status_t all_reduce(moves_t *l, const kolo_move_t *m, int ranks)
{
    kolo_move_t step = *m;
    size_t at = 0, pieces = (size_t)l->pieces, elem = kolo_type_size(m->need.type);
    if (m->count == 0) return KOLO_OK;
    for (size_t r = 0; r < (size_t)l->local_size; r++) {
        l->counts[r] = r < pieces ? m->count / pieces + (r < m->count % pieces) : 0;
        l->displs[r] = at;
        at += l->counts[r];
    }
    step.counts = l->counts;
    step.displs = l->displs;
    step.count = l->counts[l->local_rank];
    step.out = (char *)m->out + l->displs[l->local_rank] * elem;
    if (l->levels->apart) {
        KOLO_TRY(need_scratch(l, step.count * elem));
        step.out = l->scratch;
    }
    if (m->need.op == KOLO_AVG && l->levels->no_average) {
        kolo_values_scale(m->out, m->in, m->count, m->need.type, 1.0 / ranks);
        step.in = m->out;
        step.need.op = KOLO_SUM;
    }
    KOLO_TRY(run_inside(l, KOLO_WORK_REDUCE_SCATTER, &step));
    step.in = step.out;
    if (step.count > 0) KOLO_TRY(run_across(l, KOLO_WORK_ALL_REDUCE, &step));
    step.out = m->out;
    return run_inside(l, KOLO_WORK_ALL_GATHER, &step);
}

/* Parts go where they belong in `out` at once: this rank's column comes from across, then each host's row of parts
 * goes round inside. */
static kolo_status_t all_gather(const kolo_set_t *s, moves_t *l, const kolo_move_t *m)
{
    const kolo_member_t *members = &s->members;
    kolo_move_t step = *m;
    size_t elem = kolo_type_size(m->need.type), all = 0;
    step.counts = l->counts;
    step.displs = l->displs;
    for (int n = 0; n < members->nnodes; n++) {
        int rank = members->node_ranks[members->node_first[n] + l->local_rank];
        l->counts[n] = m->counts[rank];
        l->displs[n] = m->displs[rank];
    }
    KOLO_TRY(run_across(l, KOLO_WORK_ALL_GATHER, &step));
    for (int n = 0; n < members->nnodes; n++, all = 0) {
        const int *ranks = members->node_ranks + members->node_first[n];
        for (int r = 0; r < l->local_size; r++) {
            l->counts[r] = m->counts[ranks[r]];
            l->displs[r] = m->displs[ranks[r]];
            all += l->counts[r];
        }
        step.in = (const char *)m->out + l->displs[l->local_rank] * elem;
        if (all > 0) KOLO_TRY(run_inside(l, KOLO_WORK_ALL_GATHER, &step));
    }
    return KOLO_OK;
}

/* Hosts have equally many ranks, so there is a rank with the root's place on each. */
static kolo_status_t broadcast(const kolo_set_t *s, const moves_t *l, const kolo_move_t *m)
{
    const kolo_member_t *members = &s->members;
    kolo_move_t step = *m;
    int place = members->local_of[m->root];
    if (m->count == 0) return KOLO_OK;
    step.root = members->node_of[m->root];
    if (l->local_rank == place) KOLO_TRY(run_across(l, KOLO_WORK_BROADCAST, &step));
    step.root = place;
    step.in = m->out;
    return run_inside(l, KOLO_WORK_BROADCAST, &step);
}

kolo_status_t kolo_backend_levels_run(kolo_set_t *s, void *here, const kolo_move_t *move)
{
    switch (move->need.work) {
    case KOLO_WORK_ALL_REDUCE:
        return all_reduce(here, move, s->size);
    case KOLO_WORK_BROADCAST:
        return broadcast(s, here, move);
    default:
        return all_gather(s, here, move);
    }
}
