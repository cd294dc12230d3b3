/* SPDX-License-Identifier: Apache-2.0
 *
 * Pairs the connections of all ranks' plans: every tx end must have its rx end at every reader and the other way
 * round, as the wires will set them up. Builds the queues between them, which live through all calls.
 */
#include "prove/model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t key[2]; /* writer and lane; reader (node: all ones) */
    uint32_t channel;
} entry_t;

typedef struct {
    entry_t *at;
    uint32_t mask;
} table_t;

static entry_t *lookup(const table_t *t, uint32_t writer, bool node, uint16_t lane, int32_t reader)
{
    uint64_t a = (uint64_t)writer << 32 | (uint32_t)node << 16 | lane;
    uint64_t b = node ? ~(uint64_t)0 : (uint64_t)(uint32_t)reader;
    uint64_t h = (a * 0x9e3779b97f4a7c15u ^ b * 0xc2b2ae3d27d4eb4fu);
    h ^= h >> 31;
    uint32_t i = (uint32_t)h & t->mask;
    while (t->at[i].channel && (t->at[i].key[0] != a || t->at[i].key[1] != b)) i = (i + 1) & t->mask;
    t->at[i].key[0] = a;
    t->at[i].key[1] = b;
    return &t->at[i];
}

static bool same_node(const kolo_model_t *m, uint32_t a, uint32_t b)
{
    return !m->options->node_of || m->options->node_of[a] == m->options->node_of[b];
}

/* Finds which lane of a plan uses each of its connections. */
static void find_lanes(const kolo_plan_t *p, uint32_t *lane_of)
{
    for (uint32_t l = 0; l < p->nlanes; l++) {
        uint32_t turns[3] = {1}, depth = 0;
        for (uint32_t k = 0; k < p->lanes[l].count; k++) {
            const kolo_insn_t *in = &p->insns[p->lanes[l].first + k];
            if (in->op == KOLO_OP_LOOP) turns[++depth] = in->count;
            if (in->op == KOLO_OP_END) depth--;
            for (uint32_t t = 0; in->tx != KOLO_NO_CONN && t < (in->tx_stride ? turns[depth] : 1); t++)
                lane_of[(int64_t)in->tx + (int64_t)in->tx_stride * t] = l;
            for (uint32_t t = 0; in->rx != KOLO_NO_CONN && t < (in->rx_stride ? turns[depth] : 1); t++)
                lane_of[(int64_t)in->rx + (int64_t)in->rx_stride * t] = l;
            if (in->op == KOLO_OP_REDUCE_MANY)
                for (uint32_t e = 0; e < in->list_count; e++) lane_of[p->list[in->list_first + e]] = l;
        }
    }
}

static void note_releases(kolo_model_t *m, const kolo_vrank_t *r, uint32_t set)
{
    const kolo_plan_t *p = r->plans[set];
    for (uint32_t i = 0; i < p->ninsns; i++) {
        if (p->insns[i].op != KOLO_OP_RELEASE) continue;
        if (p->insns[i].tx_stride) /* whichever it is in which turn */
            for (uint32_t c = 0; c < p->nconns; c++) {
                if (p->conns[c].dir == KOLO_DIR_TX) m->channels[r->ends[set][c].channel].releases = true;
            }
        else
            m->channels[r->ends[set][p->insns[i].tx].channel].releases = true;
    }
}

/* Finds or makes the channel of a tx connection. */
static kolo_status_t add_tx(kolo_model_t *m, table_t *t, kolo_vrank_t *r, uint32_t set, uint32_t conn,
                            uint32_t lane)
{
    const kolo_plan_conn_t *k = &r->plans[set]->conns[conn];
    uint32_t rank = r->plans[set]->rank;
    entry_t *e = lookup(t, rank, k->node, k->lane, k->peer);
    if (!e->channel) {
        kolo_prove_channel_t *c = &m->channels[m->nchannels];
        *c = (kolo_prove_channel_t){.writer = rank, .lane = k->lane, .node = k->node, .first_reader = m->nreaders};
        c->writer_lane[0] = c->writer_lane[1] = KOLO_NO_LANE;
        for (uint32_t q = 0; q < m->nranks; q++) {
            if (k->node ? q == rank || !same_node(m, rank, q) : q != (uint32_t)k->peer) continue;
            c->nreaders++;
            m->readers[m->nreaders++] = (kolo_reader_t){.rank = q, .lane = {KOLO_NO_LANE, KOLO_NO_LANE}};
        }
        if (c->nreaders == 0)
            return kolo_fail(KOLO_ERR_INTERNAL, "rank %" PRIu32 " has a node connection but is alone on its node",
                             rank);
        e->channel = ++m->nchannels;
    }
    r->ends[set][conn].channel = e->channel - 1;
    m->channels[e->channel - 1].writer_lane[set] = lane;
    return KOLO_OK;
}

static kolo_status_t add_rx(kolo_model_t *m, table_t *t, kolo_vrank_t *r, uint32_t set, uint32_t conn,
                            uint32_t lane)
{
    const kolo_plan_conn_t *k = &r->plans[set]->conns[conn];
    uint32_t rank = r->plans[set]->rank;
    entry_t *e = lookup(t, (uint32_t)k->peer, k->node, k->lane, (int32_t)rank);
    kolo_prove_channel_t *c = e->channel ? &m->channels[e->channel - 1] : NULL;
    if (!c || c->writer_lane[set] == KOLO_NO_LANE)
        return kolo_fail(KOLO_ERR_INTERNAL,
                         "%s by %s: rank %" PRIu32 " reads from %s connection %u of rank %" PRId32
                         ", which that rank's plan does not have",
                         kolo_coll_name(r->plans[set]->coll), kolo_plan_algo_name(r->plans[set]->algo), rank,
                         k->node ? "node" : "pair", k->lane, k->peer);
    for (uint32_t i = 0; i < c->nreaders; i++) {
        kolo_reader_t *reader = &m->readers[c->first_reader + i];
        if (reader->rank != rank) continue;
        reader->lane[set] = lane;
        r->ends[set][conn] = (kolo_end_t){.channel = e->channel - 1, .reader = c->first_reader + i};
        return KOLO_OK;
    }
    return kolo_fail(KOLO_ERR_INTERNAL,
                     "rank %" PRIu32 " reads from the node connection of rank %" PRId32 " on another host", rank,
                     k->peer);
}

static kolo_status_t add_ends(kolo_model_t *m, table_t *t, kolo_dir_t dir)
{
    uint32_t cap = 0, *lane_of = NULL;
    kolo_status_t status = KOLO_OK;
    for (uint32_t i = 0; i < 2 * m->nranks && status == KOLO_OK; i++) {
        kolo_vrank_t *r = &m->ranks[i / 2];
        uint32_t set = i % 2;
        const kolo_plan_t *p = r->plans[set];
        if (p->nconns > cap || !lane_of) {
            free(lane_of);
            cap = p->nconns + 16;
            lane_of = malloc(cap * sizeof(*lane_of));
            if (!lane_of) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the verifier's queues");
        }
        memset(lane_of, 0xff, p->nconns * sizeof(*lane_of));
        find_lanes(p, lane_of);
        for (uint32_t c = 0; c < p->nconns && status == KOLO_OK; c++) {
            if (p->conns[c].dir != dir) continue;
            status = dir == KOLO_DIR_TX ? add_tx(m, t, r, set, c, lane_of[c]) : add_rx(m, t, r, set, c, lane_of[c]);
        }
        if (status == KOLO_OK && dir == KOLO_DIR_TX) note_releases(m, r, set);
    }
    free(lane_of);
    return status;
}

static kolo_status_t all_have_readers(const kolo_model_t *m)
{
    for (uint32_t i = 0; i < m->nchannels; i++) {
        const kolo_prove_channel_t *c = &m->channels[i];
        for (uint32_t set = 0; set < 2; set++)
            for (uint32_t k = 0; k < c->nreaders && c->writer_lane[set] != KOLO_NO_LANE; k++) {
                const kolo_reader_t *r = &m->readers[c->first_reader + k];
                if (r->lane[set] == KOLO_NO_LANE)
                    return kolo_fail(KOLO_ERR_INTERNAL,
                                     "rank %" PRIu32 " writes to %s connection %u, but the plan of rank %" PRIu32
                                     " does not read it",
                                     c->writer, c->node ? "node" : "pair", c->lane, r->rank);
            }
    }
    return KOLO_OK;
}

static kolo_status_t make_slots(kolo_model_t *m)
{
    size_t total = 0;
    uint32_t cap = m->depth[0] > m->depth[1] ? m->depth[0] : m->depth[1];
    total = (size_t)cap * m->nchannels;
    m->slots = calloc(total + 1, sizeof(*m->slots));
    if (!m->slots) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the verifier's queues");
    for (uint32_t i = 0; i < m->nchannels; i++) {
        m->channels[i].cap = cap;
        m->channels[i].slots = m->slots + (size_t)i * cap;
    }
    return KOLO_OK;
}

kolo_status_t kolo_model_pair(kolo_model_t *m)
{
    size_t ends = 0, tx = 0, readers = 0;
    for (uint32_t q = 0; q < m->nranks; q++)
        for (uint32_t set = 0; set < 2; set++) {
            const kolo_plan_t *p = m->ranks[q].plans[set];
            ends += p->nconns;
            for (uint32_t c = 0; c < p->nconns; c++) {
                if (p->conns[c].dir != KOLO_DIR_TX) continue;
                tx++;
                readers += p->conns[c].node ? m->nranks - 1 : 1;
            }
        }
    table_t t = {.mask = 15};
    while (t.mask < 4 * ends) t.mask = t.mask * 2 + 1;
    t.at = calloc((size_t)t.mask + 1, sizeof(*t.at));
    m->channels = calloc(tx + 1, sizeof(*m->channels));
    m->readers = calloc(readers + 1, sizeof(*m->readers));
    m->ends = calloc(ends + 1, sizeof(*m->ends));
    kolo_status_t status = KOLO_OK;
    if (!t.at || !m->channels || !m->readers || !m->ends)
        status = kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the verifier's queues");
    kolo_end_t *at = m->ends;
    for (uint32_t q = 0; status == KOLO_OK && q < m->nranks; q++)
        for (uint32_t set = 0; set < 2; set++) {
            m->ranks[q].ends[set] = at;
            at += m->ranks[q].plans[set]->nconns;
        }
    if (status == KOLO_OK) status = add_ends(m, &t, KOLO_DIR_TX);
    if (status == KOLO_OK) status = add_ends(m, &t, KOLO_DIR_RX);
    if (status == KOLO_OK) status = all_have_readers(m);
    if (status == KOLO_OK) status = make_slots(m);
    free(t.at);
    return status;
}

void kolo_model_unpair(kolo_model_t *m)
{
    for (uint32_t i = 0; m->slots && i < m->nchannels; i++)
        for (uint32_t s = 0; s < m->channels[i].cap; s++)
            kolo_clock_drop_stamp(&m->clocks, &m->channels[i].slots[s].stamp);
    for (uint32_t i = 0; m->readers && i < m->nreaders; i++)
        kolo_clock_drop_stamp(&m->clocks, &m->readers[i].stamp);
    free(m->slots);
    free(m->channels);
    free(m->readers);
    free(m->ends);
}
