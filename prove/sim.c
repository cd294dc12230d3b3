/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator: runs plans slot by slot with times instead of values. A rank is one core that does one slot at a
 * time; a slot arrives a latency after it was posted, between nodes behind everything else on the node's uplink;
 * where a node has more ranks than cores, work takes that much longer and every wait costs a switch. (sim_setup.c:
 * what is made before, for all ranks or for one that represents them.)
 */
#include "prove/sim.h"

/* ---- lanes that can go on, by time ---- */

static void push(kolo_sim_t *s, uint32_t lane, double time)
{
    uint32_t i = s->nheap++;
    s->lanes[lane].parked = false;
    while (i && s->heap[(i - 1) / 2].time > time) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = (kolo_sim_due_t){time, lane};
}

static kolo_sim_due_t pop(kolo_sim_t *s)
{
    kolo_sim_due_t top = s->heap[0], last = s->heap[--s->nheap];
    uint32_t i = 0;
    for (uint32_t c; (c = 2 * i + 1) < s->nheap; i = c) {
        if (c + 1 < s->nheap && s->heap[c + 1].time < s->heap[c].time) c++;
        if (s->heap[c].time >= last.time) break;
        s->heap[i] = s->heap[c];
    }
    s->heap[i] = last;
    return top;
}

static void wake(kolo_sim_t *s, uint32_t rank, uint32_t lane, double time)
{
    if (lane == KOLO_NO_LANE) return;
    uint32_t l = s->ranks[rank].first_lane + lane;
    if (!s->lanes[l].parked || s->lanes[l].done) return;
    push(s, l, time > s->lanes[l].time ? time : s->lanes[l].time);
}

/* ---- lengths ---- */

uint64_t kolo_prove_chunk_bytes(const kolo_sim_t *s, const kolo_plan_t *p, uint32_t chunk)
{
    bool equal_parts = kolo_coll_traits(p->coll)->whole;
    if (p->coll == KOLO_COLL_BARRIER) return s->type_bytes;
    uint64_t part = equal_parts ? kolo_part_count(s->count, p->nparts, chunk / p->nsubs) : s->count;
    return kolo_part_count(part, p->nsubs, chunk % p->nsubs) * s->type_bytes;
}

static uint64_t row_bytes(const kolo_sim_t *s, const kolo_plan_t *p, const kolo_insn_t *in,
                          const kolo_sim_lane_t *l)
{
    const kolo_segment_t *g = kolo_insn_payload(in);
    uint32_t i = kolo_cursor_i(&l->at), j = kolo_cursor_j(&l->at);
    uint64_t sum = 0, from = (uint64_t)l->tile * s->tile_bytes;
    bool grid = g->buf == KOLO_BUF_SCRATCH || g->buf == KOLO_BUF_NONE;
    for (uint32_t k = 0; k < g->n; k++) {
        uint32_t c = grid ? kolo_segment_shape(g, i, j, k, p->nparts * p->nsubs) : kolo_segment_chunk(g, i, j, k);
        uint64_t bytes = kolo_prove_chunk_bytes(s, p, c);
        if (bytes > from) sum += bytes - from < s->tile_bytes ? bytes - from : s->tile_bytes;
    }
    return sum;
}

/* ---- one slot ---- */

typedef struct {
    kolo_sim_t *s;
    kolo_sim_lane_t *l;
    kolo_sim_rank_t *r;
    const kolo_plan_t *p;
    const kolo_insn_t *in;
} sim_step_t;

static uint32_t conn_at(const sim_step_t *x, uint16_t conn, int16_t stride)
{
    return (uint32_t)(conn + stride * (int)kolo_cursor_i(&x->l->at));
}

static kolo_prove_channel_t *channel_of(const sim_step_t *x, uint32_t conn)
{
    return &x->s->model.channels[x->s->model.ranks[x->l->rank].ends[0][conn].channel];
}

static uint32_t reader_of(const sim_step_t *x, uint32_t conn)
{
    return x->s->model.ranks[x->l->rank].ends[0][conn].reader;
}

/* Tells whether it can be read. Then *time is not before its arrival. */
static bool rx_due(const sim_step_t *x, uint32_t conn, double *time)
{
    const kolo_prove_channel_t *c = channel_of(x, conn);
    uint32_t reader = reader_of(x, conn);
    uint64_t taken = x->s->model.readers[reader].taken;
    if (c->posted <= taken) return false;
    double t = x->s->arrive[(size_t)reader * x->s->depth + taken % x->s->depth];
    if (t > *time) *time = t + (x->r->factor > 1 ? x->s->machine->switch_us : 0);
    return true;
}

static bool tx_free(const sim_step_t *x, uint32_t conn, double *time)
{
    const kolo_prove_channel_t *c = channel_of(x, conn);
    if (c->posted - c->freed >= x->s->depth) return false;
    double t = x->s->freed[(size_t)(c - x->s->model.channels) * x->s->depth + c->posted % x->s->depth];
    if (t > *time) *time = t;
    return true;
}

static void post(const sim_step_t *x, uint32_t conn, uint64_t bytes, double now)
{
    kolo_sim_t *s = x->s;
    kolo_prove_channel_t *c = channel_of(x, conn);
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
            kolo_fabric_place_t here = {from, x->r->local}, there = {to, s->ranks[reader->rank].local};
            arrive = s->machine->remote.latency_us + kolo_fabric_send(&s->fabric, here, there, lane, bytes, now);
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
    kolo_sim_t *s = x->s;
    kolo_prove_channel_t *c = channel_of(x, conn);
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

/* Does one slot of a row; false when it has to wait. */
static bool do_slot(const sim_step_t *x)
{
    kolo_sim_t *s = x->s;
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
    kolo_sim_t *s = x->s;
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
        const kolo_prove_channel_t *c = channel_of(x, conn_at(x, in->tx, in->tx_stride));
        if (c->freed != c->posted) return false;
        double t =
            c->posted ? s->freed[(size_t)(c - s->model.channels) * s->depth + (c->posted - 1) % s->depth] : 0;
        if (t > x->l->time) x->l->time = t;
    }
    return true;
}

/* Moves a lane as far as it can go with what is there; one slot at most, so that lanes of a rank take turns. */
static bool step(kolo_sim_t *s, kolo_sim_lane_t *l)
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

/* ---- all of it ---- */

kolo_status_t kolo_prove_run_sim(kolo_sim_t *s, uint32_t nranks)
{
    double end = 0;
    for (uint32_t l = 0; l < s->nlanes; l++) push(s, l, 0);
    while (s->nheap) {
        kolo_sim_due_t due = pop(s);
        kolo_sim_lane_t *l = &s->lanes[due.lane];
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
