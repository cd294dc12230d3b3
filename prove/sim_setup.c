/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulation from its beginning to its end: ranks, lanes and queues are made for the plans of all ranks, or for
 * one rank that represents all, whose connections then lead back to itself; then it runs (sim.c).
 */
#include "prove/sim.h"

#include <stdlib.h>

static kolo_status_t allocate(kolo_sim_t *s, uint32_t nranks)
{
    kolo_model_t *m = &s->model;
    uint32_t events = 0;
    for (uint32_t q = 0; q < nranks; q++) {
        s->nlanes += m->ranks[q].plans[0]->nlanes;
        if (m->ranks[q].plans[0]->nevents > events) events = m->ranks[q].plans[0]->nevents;
    }
    size_t slots = (size_t)m->nchannels * s->depth + 1, arrivals = (size_t)m->nreaders * s->depth + 1;
    s->lanes = calloc((size_t)s->nlanes + 1, sizeof(*s->lanes));
    s->heap = calloc((size_t)s->nlanes + 1, sizeof(*s->heap));
    s->waits = calloc(((size_t)s->nlanes + 2 * nranks) * events + 1, sizeof(*s->waits));
    s->arrive = calloc(arrivals + (size_t)nranks * events, sizeof(*s->arrive));
    s->freed = calloc(slots, sizeof(*s->freed));
    s->left = calloc(slots, sizeof(*s->left));
    s->uplink = calloc(nranks, sizeof(*s->uplink));
    s->uplink_bytes = calloc(nranks, sizeof(*s->uplink_bytes));
    if (!s->lanes || !s->heap || !s->waits || !s->arrive || !s->freed || !s->left || !s->uplink || !s->uplink_bytes)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to simulate %u ranks", nranks);
    uint32_t lane = 0, *w = s->waits;
    for (uint32_t q = 0; q < nranks; q++) {
        s->ranks[q].first_lane = lane;
        s->ranks[q].signals = w;
        s->ranks[q].signal_time = s->arrive + arrivals + (size_t)q * events;
        w += events;
        for (uint32_t l = 0; l < m->ranks[q].plans[0]->nlanes; l++, lane++, w += events)
            s->lanes[lane] = (kolo_sim_lane_t){.rank = q, .lane = l, .waits = w};
    }
    return KOLO_OK;
}

/* Nodes are numbered 0..nranks-1 at most. */
static kolo_status_t place_ranks(kolo_sim_t *s, uint32_t nranks, const int *node_of)
{
    uint32_t *mates = calloc(nranks, sizeof(*mates));
    if (!mates) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to simulate %u ranks", nranks);
    for (uint32_t q = 0; q < nranks; q++) {
        s->ranks[q].node = node_of ? (uint32_t)node_of[q] % nranks : 0;
        s->ranks[q].local = mates[s->ranks[q].node]++;
    }
    for (uint32_t q = 0; q < nranks; q++) {
        uint32_t here = mates[s->ranks[q].node], cores = s->machine->cores ? s->machine->cores : here;
        s->ranks[q].factor = here > cores ? (double)here / cores : 1;
    }
    free(mates);
    return KOLO_OK;
}

static void finish(kolo_sim_t *s)
{
    kolo_model_unpair(&s->model);
    free(s->model.ranks);
    free(s->ranks);
    free(s->lanes);
    free(s->heap);
    free(s->waits);
    free(s->arrive);
    free(s->freed);
    free(s->left);
    free(s->uplink);
    free(s->uplink_bytes);
    kolo_fabric_fini(&s->fabric);
}

static kolo_status_t start(kolo_sim_t *s, const kolo_plan_t *const *plans, uint32_t nranks)
{
    const kolo_sim_machine_t *m = s->machine;
    uint64_t longest = 0;
    if (nranks == 0 || m->slot_bytes == 0 || !(m->local.gbps > 0) || !(m->remote.gbps > 0) || !(m->copy_gbps > 0))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "a simulated machine needs slots and bandwidths above zero");
    s->model.nranks = nranks;
    s->model.ranks = calloc(nranks, sizeof(*s->model.ranks));
    s->ranks = calloc(nranks, sizeof(*s->ranks));
    if (!s->model.ranks || !s->ranks)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to simulate %u ranks", nranks);
    for (uint32_t q = 0; q < nranks; q++) {
        KOLO_TRY(kolo_plan_check(plans[q]));
        s->model.ranks[q].plans[0] = s->model.ranks[q].plans[1] = plans[q];
        uint64_t bytes = kolo_prove_chunk_bytes(s, plans[q], 0);
        if (bytes > longest) longest = bytes;
    }
    s->depth = s->model.depth[0] = s->model.depth[1] = plans[0]->depth;
    s->tile_bytes = (uint64_t)plans[0]->slices * m->slot_bytes;
    s->tiles = (uint32_t)(KOLO_DIV_UP(longest, s->tile_bytes));
    return KOLO_OK;
}

kolo_status_t kolo_prove_simulate(const kolo_sim_case_t *c, kolo_sim_result_t *result)
{
    kolo_sim_result_t out = {0};
    kolo_verify_options_t options = {.node_of = c->node_of};
    kolo_sim_t s = {.machine = c->machine, .count = c->count, .type_bytes = c->type_bytes, .result = &out};
    s.model.options = &options;
    kolo_status_t status = start(&s, c->plans, c->nranks);
    if (status == KOLO_OK) status = kolo_model_pair(&s.model);
    if (status == KOLO_OK) status = allocate(&s, c->nranks);
    if (status == KOLO_OK) status = place_ranks(&s, c->nranks, c->node_of);
    uint32_t nnodes = 1;
    for (uint32_t q = 0; status == KOLO_OK && q < c->nranks; q++)
        if (s.ranks[q].node >= nnodes) nnodes = s.ranks[q].node + 1;
    if (status == KOLO_OK && c->machine->fabric) status = kolo_fabric_init(&s.fabric, c->machine->fabric, nnodes);
    if (status == KOLO_OK) status = kolo_prove_run_sim(&s, c->nranks);
    finish(&s);
    if (status == KOLO_OK) *result = out;
    return status;
}

/* ---- one rank for all ---- */

/* Pairs connections: what the rank posts on its k-th tx of a lane is what arrives on its k-th rx of that lane. */
static kolo_status_t pair_with_itself(kolo_model_t *m, const kolo_plan_t *p)
{
    kolo_vrank_t *r = &m->ranks[0];
    m->channels = calloc((size_t)p->nconns + 1, sizeof(*m->channels));
    m->readers = calloc((size_t)p->nconns + 1, sizeof(*m->readers));
    m->ends = r->ends[0] = calloc((size_t)p->nconns + 1, sizeof(*m->ends));
    if (!m->channels || !m->readers || !m->ends)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to simulate a rank");
    for (uint32_t c = 0; c < p->nconns; c++) {
        if (p->conns[c].dir != KOLO_DIR_TX) continue;
        uint32_t nth = 0, x;
        for (x = 0; x < c; x++) nth += p->conns[x].dir == KOLO_DIR_TX && p->conns[x].lane == p->conns[c].lane;
        for (x = 0; x < p->nconns; x++)
            if (p->conns[x].dir == KOLO_DIR_RX && p->conns[x].lane == p->conns[c].lane && nth-- == 0) break;
        if (x == p->nconns || p->conns[c].node)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                             "one rank cannot represent all: its connections do not come in pairs");
        uint32_t i = m->nchannels++;
        m->channels[i] = (kolo_prove_channel_t){.nreaders = 1, .first_reader = i};
        m->nreaders++;
        r->ends[0][c] = r->ends[0][x] = (kolo_end_t){.channel = i, .reader = i};
    }
    return p->nlanes == 1
               ? KOLO_OK
               : kolo_fail(KOLO_ERR_UNSUPPORTED, "one rank can represent all only with a plan of one lane");
}

kolo_status_t kolo_prove_simulate_alike(const kolo_plan_t *plan, uint64_t count, uint32_t type_bytes,
                                        const kolo_sim_machine_t *machine, kolo_sim_result_t *result)
{
    kolo_sim_result_t out = {0};
    kolo_sim_t s = {.machine = machine, .count = count, .type_bytes = type_bytes, .result = &out, .apart = true};
    kolo_status_t status = start(&s, &plan, 1);
    if (status == KOLO_OK) status = pair_with_itself(&s.model, plan);
    if (status == KOLO_OK) status = allocate(&s, 1);
    if (status == KOLO_OK) {
        s.ranks[0].factor = 1;
        status = kolo_prove_run_sim(&s, 1);
    }
    finish(&s);
    if (status != KOLO_OK) return status;
    out.remote_bytes *= plan->nranks;
    *result = out;
    return KOLO_OK;
}
