/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator: runs plans slot by slot with times instead of values. A rank is one core that does one slot at a
 * time; a slot arrives a latency after it was posted, between nodes behind everything else on the node's uplink;
 * where a node has more ranks than cores, work takes that much longer and every wait costs a switch.
 */
#include "plan/verify/fabric.h"
#include "plan/verify/model.h"

#include <stdlib.h>

typedef struct {
    kolo_cursor_t at;
    uint32_t rank, lane, tile;
    uint64_t left; /* bytes of the row that are not done */
    bool begun, done, parked;
    double time;
    uint32_t *waits;
} sim_lane_t;

typedef struct {
    double busy;                      /* until when the core works */
    double factor;                    /* ranks per core of its node, at least 1 */
    uint32_t node, local, first_lane; /* local: its number on its node */
    uint32_t *signals;
    double *signal_time;
} sim_rank_t;

typedef struct {
    double time;
    uint32_t lane;
} sim_due_t;

typedef struct {
    kolo_model_t model; /* plans and channels only */
    const kolo_sim_machine_t *machine;
    uint64_t count;
    uint32_t type_bytes, tiles, depth;
    bool apart; /* one rank stands for many, each alone on its node */
    uint64_t tile_bytes;
    sim_lane_t *lanes;
    uint32_t nlanes;
    sim_rank_t *ranks;
    double *arrive; /* by reader and slot */
    double *freed;  /* by channel and slot */
    uint32_t *left; /* by channel and slot: readers that have not taken it */
    double *uplink;
    uint64_t *uplink_bytes;
    kolo_fabric_t fabric;
    sim_due_t *heap;
    uint32_t nheap;
    uint32_t *waits;
    kolo_sim_result_t *result;
} sim_t;

/* ---- lanes that can go on, by time ---- */

static void push(sim_t *s, uint32_t lane, double time)
{
    uint32_t i = s->nheap++;
    s->lanes[lane].parked = false;
    while (i && s->heap[(i - 1) / 2].time > time) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = (sim_due_t){time, lane};
}

static sim_due_t pop(sim_t *s)
{
    sim_due_t top = s->heap[0], last = s->heap[--s->nheap];
    uint32_t i = 0;
    for (uint32_t c; (c = 2 * i + 1) < s->nheap; i = c) {
        if (c + 1 < s->nheap && s->heap[c + 1].time < s->heap[c].time) c++;
        if (s->heap[c].time >= last.time) break;
        s->heap[i] = s->heap[c];
    }
    s->heap[i] = last;
    return top;
}

static void wake(sim_t *s, uint32_t rank, uint32_t lane, double time)
{
    if (lane == KOLO_NO_LANE) return;
    uint32_t l = s->ranks[rank].first_lane + lane;
    if (!s->lanes[l].parked || s->lanes[l].done) return;
    push(s, l, time > s->lanes[l].time ? time : s->lanes[l].time);
}

/* ---- lengths ---- */

static uint64_t chunk_bytes(const sim_t *s, const kolo_plan_t *p, uint32_t chunk)
{
    bool equal_parts = kolo_coll_traits(p->coll)->whole;
    if (p->coll == KOLO_COLL_BARRIER) return s->type_bytes;
    uint64_t part = equal_parts ? kolo_part_count(s->count, p->nparts, chunk / p->nsubs) : s->count;
    return kolo_part_count(part, p->nsubs, chunk % p->nsubs) * s->type_bytes;
}

static uint64_t row_bytes(const sim_t *s, const kolo_plan_t *p, const kolo_insn_t *in, const sim_lane_t *l)
{
    const kolo_segment_t *g = kolo_insn_payload(in);
    uint32_t i = kolo_cursor_i(&l->at), j = kolo_cursor_j(&l->at);
    uint64_t sum = 0, from = (uint64_t)l->tile * s->tile_bytes;
    bool grid = g->buf == KOLO_BUF_SCRATCH || g->buf == KOLO_BUF_NONE;
    for (uint32_t k = 0; k < g->n; k++) {
        uint32_t c = grid ? kolo_segment_shape(g, i, j, k, p->nparts * p->nsubs) : kolo_segment_chunk(g, i, j, k);
        uint64_t bytes = chunk_bytes(s, p, c);
        if (bytes > from) sum += bytes - from < s->tile_bytes ? bytes - from : s->tile_bytes;
    }
    return sum;
}

/* ---- one slot ---- */

typedef struct {
    sim_t *s;
    sim_lane_t *l;
    sim_rank_t *r;
    const kolo_plan_t *p;
    const kolo_insn_t *in;
} sim_step_t;

static uint32_t conn_at(const sim_step_t *x, uint16_t conn, int16_t stride)
{
    return (uint32_t)(conn + stride * (int)kolo_cursor_i(&x->l->at));
}

static kolo_channel_t *channel_of(const sim_step_t *x, uint32_t conn)
{
    return &x->s->model.channels[x->s->model.ranks[x->l->rank].ends[0][conn].channel];
}

static uint32_t reader_of(const sim_step_t *x, uint32_t conn)
{
    return x->s->model.ranks[x->l->rank].ends[0][conn].reader;
}

/* Can it be read? Then *time is not before its arrival. */
static bool rx_due(const sim_step_t *x, uint32_t conn, double *time)
{
    const kolo_channel_t *c = channel_of(x, conn);
    uint32_t reader = reader_of(x, conn);
    uint64_t taken = x->s->model.readers[reader].taken;
    if (c->posted <= taken) return false;
    double t = x->s->arrive[(size_t)reader * x->s->depth + taken % x->s->depth];
    if (t > *time) *time = t + (x->r->factor > 1 ? x->s->machine->switch_us : 0);
    return true;
}

static bool tx_free(const sim_step_t *x, uint32_t conn, double *time)
{
    const kolo_channel_t *c = channel_of(x, conn);
    if (c->posted - c->freed >= x->s->depth) return false;
    double t = x->s->freed[(size_t)(c - x->s->model.channels) * x->s->depth + c->posted % x->s->depth];
    if (t > *time) *time = t;
    return true;
}

static void post(const sim_step_t *x, uint32_t conn, uint64_t bytes, double now)
{
    sim_t *s = x->s;
    kolo_channel_t *c = channel_of(x, conn);
    uint64_t slot = c->posted++ % s->depth;
    s->left[(size_t)(c - s->model.channels) * s->depth + slot] = c->nreaders;
    for (uint32_t k = 0; k < c->nreaders; k++) {
        kolo_reader_t *reader = &s->model.readers[c->first_reader + k];
        uint32_t from = x->r->node, to = s->ranks[reader->rank].node;
        double arrive = now + s->machine->local.latency_us;
        if (from == to && !s->apart) {
            s->result->local_bytes += bytes;
        } else if (s->fabric.of) {
            uint32_t lane = x->p->conns[conn].lane;
            s->result->remote_bytes += bytes;
            arrive =
                s->machine->remote.latency_us +
                kolo_fabric_send(&s->fabric, from, x->r->local, to, s->ranks[reader->rank].local, lane, bytes, now);
        } else {
            double start = s->uplink[from] > now ? s->uplink[from] : now;
            s->uplink[from] = start + (double)bytes / s->machine->remote.gbps / 1000;
            s->uplink_bytes[from] += bytes;
            s->result->remote_bytes += bytes;
            arrive = s->uplink[from] + s->machine->remote.latency_us;
        }
        s->arrive[(size_t)(c->first_reader + k) * s->depth + slot] = arrive;
        wake(s, reader->rank, reader->lane[0], arrive);
    }
}

static void take(const sim_step_t *x, uint32_t conn, double now)
{
    sim_t *s = x->s;
    kolo_channel_t *c = channel_of(x, conn);
    uint64_t slot = s->model.readers[reader_of(x, conn)].taken++ % s->depth;
    size_t at = (size_t)(c - s->model.channels) * s->depth + slot;
    if (now > s->freed[at]) s->freed[at] = now;
    if (--s->left[at]) return;
    c->freed++;
    wake(s, c->writer, c->writer_lane[0], now);
}

/* Microseconds of the core for one slot of the instruction. */
static double cost(const sim_step_t *x, uint64_t bytes)
{
    const kolo_sim_machine_t *m = x->s->machine;
    double copy = (double)bytes / m->copy_gbps / 1000, local = (double)bytes / m->local.gbps / 1000, work = copy;
    switch (x->in->op) {
    case KOLO_OP_REDUCE_MANY:
        work = copy * (x->in->list_count + (x->in->own_place != 0xffff)) / 2;
        work += m->insn_us * x->in->list_count;
        break;
    case KOLO_OP_SEND:
    case KOLO_OP_GET:
    case KOLO_OP_PUT:
        work = local;
        break;
    case KOLO_OP_GET_REDUCE:
        work = local + copy;
        break;
    case KOLO_OP_EXPOSE:
        work = 0;
        break;
    case KOLO_OP_RECV_SEND:
    case KOLO_OP_RECV_REDUCE_COPY_SEND:
        work = copy + local;
        break;
    default:
        break;
    }
    if (x->in->op == KOLO_OP_REDUCE_MANY && x->in->tx != KOLO_NO_CONN) work += local;
    return (m->insn_us + work) * x->r->factor;
}

/* One slot of a row; false when it has to wait. */
static bool do_slot(const sim_step_t *x)
{
    sim_t *s = x->s;
    const kolo_insn_t *in = x->in;
    double start = x->l->time;
    uint32_t rx = in->rx == KOLO_NO_CONN ? 0 : conn_at(x, in->rx, in->rx_stride);
    uint32_t tx = in->tx == KOLO_NO_CONN ? 0 : conn_at(x, in->tx, in->tx_stride);
    const uint16_t *list = x->p->list + in->list_first;
    uint32_t nlist = in->op == KOLO_OP_REDUCE_MANY ? in->list_count : 0;
    if (in->rx != KOLO_NO_CONN && !rx_due(x, rx, &start)) return false;
    if (in->tx != KOLO_NO_CONN && !tx_free(x, tx, &start)) return false;
    for (uint32_t k = 0; k < nlist; k++)
        if (!rx_due(x, list[k], &start)) return false;
    if (start > x->l->time) { /* until then the core is another lane's */
        x->l->time = start;
        return true;
    }
    uint64_t bytes = x->l->left < s->machine->slot_bytes ? x->l->left : s->machine->slot_bytes;
    if (x->r->busy > start) start = x->r->busy;
    double end = start + cost(x, bytes);
    x->r->busy = x->l->time = end;
    x->l->left -= bytes;
    if (in->tx != KOLO_NO_CONN) post(x, tx, in->op == KOLO_OP_EXPOSE ? 16 : bytes, end);
    if (in->rx != KOLO_NO_CONN) take(x, rx, end);
    for (uint32_t k = 0; k < nlist; k++) take(x, list[k], end);
    return true;
}

static bool do_order(const sim_step_t *x)
{
    sim_t *s = x->s;
    const kolo_insn_t *in = x->in;
    if (in->op == KOLO_OP_SIGNAL) {
        x->r->signals[in->event]++;
        x->r->signal_time[in->event] = x->l->time;
        for (uint32_t l = 0; l < x->p->nlanes; l++) wake(s, x->l->rank, l, x->l->time);
    } else if (in->op == KOLO_OP_WAIT) {
        if (x->r->signals[in->event] <= x->l->waits[in->event]) return false;
        x->l->waits[in->event]++;
        if (x->r->signal_time[in->event] > x->l->time) x->l->time = x->r->signal_time[in->event];
    } else {
        const kolo_channel_t *c = channel_of(x, conn_at(x, in->tx, in->tx_stride));
        if (c->freed != c->posted) return false;
        double t =
            c->posted ? s->freed[(size_t)(c - s->model.channels) * s->depth + (c->posted - 1) % s->depth] : 0;
        if (t > x->l->time) x->l->time = t;
    }
    return true;
}

/* As far as the lane can go with what is there; one slot at most, so that lanes of a rank take turns. */
static bool step(sim_t *s, sim_lane_t *l)
{
    sim_step_t x = {.s = s, .l = l, .r = &s->ranks[l->rank], .p = s->model.ranks[l->rank].plans[0]};
    while (l->tile < s->tiles) {
        x.in = kolo_cursor_at(&l->at, x.p, l->lane);
        if (!x.in) {
            l->tile++;
            kolo_cursor_start(&l->at);
            continue;
        }
        if (kolo_insn_has_chunks(x.in)) {
            if (!l->begun) l->left = row_bytes(s, x.p, x.in, l);
            l->begun = true;
            if (l->left) return do_slot(&x);
            l->begun = false;
        } else if (!do_order(&x)) {
            return false;
        }
        kolo_cursor_next(&l->at);
    }
    l->done = true;
    return true;
}

/* ---- set-up ---- */

static kolo_status_t allocate(sim_t *s, uint32_t nranks)
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
            s->lanes[lane] = (sim_lane_t){.rank = q, .lane = l, .waits = w};
    }
    return KOLO_OK;
}

/* Nodes are numbered 0..nranks-1 at most. */
static kolo_status_t place_ranks(sim_t *s, uint32_t nranks, const int *node_of)
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

static kolo_status_t run(sim_t *s, uint32_t nranks)
{
    double end = 0;
    for (uint32_t l = 0; l < s->nlanes; l++) push(s, l, 0);
    while (s->nheap) {
        sim_due_t due = pop(s);
        sim_lane_t *l = &s->lanes[due.lane];
        if (due.time > l->time) l->time = due.time;
        if (!step(s, l))
            l->parked = true;
        else if (!l->done)
            push(s, due.lane, l->time);
        if (l->done && l->time > end) end = l->time;
    }
    for (uint32_t l = 0; l < s->nlanes; l++)
        if (!s->lanes[l].done)
            return kolo_fail(KOLO_ERR_INTERNAL,
                             "the simulated plans do not complete: rank %u, lane %u waits for ever",
                             s->lanes[l].rank, s->lanes[l].lane);
    s->result->time_us = end;
    for (uint32_t v = 0; v < nranks; v++)
        if (s->uplink_bytes[v] > s->result->max_link_bytes) s->result->max_link_bytes = s->uplink_bytes[v];
    if (s->fabric.of) kolo_fabric_count(&s->fabric, &s->result->max_link_bytes, &s->result->spine_bytes);
    return KOLO_OK;
}

static void finish(sim_t *s)
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

static kolo_status_t start(sim_t *s, const kolo_plan_t *const *plans, uint32_t nranks)
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
        uint64_t bytes = chunk_bytes(s, plans[q], 0);
        if (bytes > longest) longest = bytes;
    }
    s->depth = s->model.depth[0] = s->model.depth[1] = plans[0]->depth;
    s->tile_bytes = (uint64_t)plans[0]->slices * m->slot_bytes;
    s->tiles = (uint32_t)((longest + s->tile_bytes - 1) / s->tile_bytes);
    return KOLO_OK;
}

kolo_status_t kolo_plan_simulate(const kolo_plan_t *const *plans, uint32_t nranks, const int *node_of,
                                 uint64_t count, uint32_t type_bytes, const kolo_sim_machine_t *machine,
                                 kolo_sim_result_t *result)
{
    kolo_sim_result_t out = {0};
    kolo_verify_options_t options = {.node_of = node_of};
    sim_t s = {.machine = machine, .count = count, .type_bytes = type_bytes, .result = &out};
    s.model.options = &options;
    kolo_status_t status = start(&s, plans, nranks);
    if (status == KOLO_OK) status = kolo_model_pair(&s.model);
    if (status == KOLO_OK) status = allocate(&s, nranks);
    if (status == KOLO_OK) status = place_ranks(&s, nranks, node_of);
    uint32_t nnodes = 1;
    for (uint32_t q = 0; status == KOLO_OK && q < nranks; q++)
        if (s.ranks[q].node >= nnodes) nnodes = s.ranks[q].node + 1;
    if (status == KOLO_OK && machine->fabric) status = kolo_fabric_init(&s.fabric, machine->fabric, nnodes);
    if (status == KOLO_OK) status = run(&s, nranks);
    finish(&s);
    if (status == KOLO_OK) *result = out;
    return status;
}

/* ---- one rank for all ---- */

/* What the rank posts on its k-th tx of a connection lane is what arrives on its k-th rx of that lane. */
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
        m->channels[i] = (kolo_channel_t){.nreaders = 1, .first_reader = i};
        m->nreaders++;
        r->ends[0][c] = r->ends[0][x] = (kolo_end_t){.channel = i, .reader = i};
    }
    return p->nlanes == 1
               ? KOLO_OK
               : kolo_fail(KOLO_ERR_UNSUPPORTED, "one rank can represent all only with a plan of one lane");
}

kolo_status_t kolo_plan_simulate_alike(const kolo_plan_t *plan, uint64_t count, uint32_t type_bytes,
                                       const kolo_sim_machine_t *machine, kolo_sim_result_t *result)
{
    kolo_sim_result_t out = {0};
    sim_t s = {.machine = machine, .count = count, .type_bytes = type_bytes, .result = &out, .apart = true};
    kolo_status_t status = start(&s, &plan, 1);
    if (status == KOLO_OK) status = pair_with_itself(&s.model, plan);
    if (status == KOLO_OK) status = allocate(&s, 1);
    if (status == KOLO_OK) {
        s.ranks[0].factor = 1;
        status = run(&s, 1);
    }
    finish(&s);
    if (status != KOLO_OK) return status;
    out.remote_bytes *= plan->nranks;
    *result = out;
    return KOLO_OK;
}
