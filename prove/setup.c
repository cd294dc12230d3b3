/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds the verifier's machine from the plans of all ranks: which buffers a rank has, how SRC and DST lie in
 * place, lanes, events, memory, clocks; for groups of sends and receives, which send goes to which receive.
 */
#include "prove/model.h"

#include <stdlib.h>
#include <string.h>

static kolo_status_t no_memory(void)
{
    return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the verifier's machine");
}

/* Tells whether SRC is one rank's part of what DST has for all. */
static bool one_part_src(kolo_coll_t coll)
{
    return kolo_coll_by_rank(coll) && !kolo_coll_traits(coll)->src_by_rank;
}

static bool one_part_dst(kolo_coll_t coll)
{
    return kolo_coll_by_rank(coll) && !kolo_coll_traits(coll)->dst_by_rank;
}

/* Lays out where SRC and DST lie among the rank's user chunks. */
static void lay_out(kolo_vrank_t *r, uint32_t set, bool in_place)
{
    const kolo_plan_t *p = r->plans[set];
    uint32_t src = p->src_parts * p->nsubs, dst = p->dst_parts * p->nsubs;
    bool root = p->rank == p->root;
    r->has_src[set] = root || !kolo_coll_traits(p->coll)->src_at_root;
    r->has_dst[set] = root || !kolo_coll_traits(p->coll)->dst_at_root;
    bool alias = in_place && r->has_src[set] && r->has_dst[set] && kolo_coll_traits(p->coll)->in_place;
    r->src_at[set] = alias && one_part_src(p->coll) ? p->rank * p->nsubs : 0;
    r->dst_at[set] = alias ? (one_part_dst(p->coll) ? p->rank * p->nsubs : 0) : src;
    uint32_t src_end = r->src_at[set] + src, dst_end = r->dst_at[set] + dst;
    r->user_chunks[set] = src_end > dst_end ? src_end : dst_end;
}

static uint32_t max32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static bool uses_clock(const kolo_plan_t *p)
{
    if (p->nlanes > 1 || p->coll == KOLO_COLL_BARRIER) return true;
    for (uint32_t i = 0; i < p->ninsns; i++)
        if (p->insns[i].op >= KOLO_OP_EXPOSE && p->insns[i].op <= KOLO_OP_RELEASE) return true;
    return false;
}

static kolo_status_t init_rank(kolo_model_t *m, kolo_vrank_t *r)
{
    uint32_t events = 0, scratch = 0;
    for (uint32_t set = 0; set < 2; set++) {
        lay_out(r, set, m->options->in_place);
        events = max32(events, r->plans[set]->nevents);
        scratch = max32(scratch, r->plans[set]->nscratch);
    }
    r->nuser = (uint64_t)max32(r->user_chunks[0], r->user_chunks[1]) * m->tiles * m->max_slices;
    r->nscratch = (uint64_t)scratch * m->max_slices;
    r->user = calloc(r->nuser + 1, sizeof(*r->user));
    r->scratch = calloc(r->nscratch + 1, sizeof(*r->scratch));
    r->events = calloc(events + 1, sizeof(*r->events));
    return r->user && r->scratch && r->events ? KOLO_OK : no_memory();
}

static kolo_status_t init_lanes(kolo_model_t *m)
{
    uint32_t lanes = 0;
    size_t waits = 0;
    bool clock = false;
    for (uint32_t q = 0; q < m->nranks; q++) {
        kolo_vrank_t *r = &m->ranks[q];
        uint32_t n = max32(max32(r->plans[0]->nlanes, r->plans[1]->nlanes), 1);
        r->first_lane = r->first_thread = lanes;
        lanes += n;
        waits += (size_t)n * max32(r->plans[0]->nevents, r->plans[1]->nevents);
        clock = clock || uses_clock(r->plans[0]) || uses_clock(r->plans[1]);
    }
    m->nlanes = lanes;
    m->lanes = calloc(lanes, sizeof(*m->lanes));
    m->ready = calloc(lanes, sizeof(*m->ready));
    m->waits = calloc(waits + 1, sizeof(*m->waits));
    if (!m->lanes || !m->ready || !m->waits) return no_memory();
    uint32_t *w = m->waits;
    for (uint32_t q = 0; q < m->nranks; q++) {
        kolo_vrank_t *r = &m->ranks[q];
        uint32_t end = q + 1 < m->nranks ? m->ranks[q + 1].first_lane : lanes;
        for (uint32_t l = r->first_lane; l < end; l++) {
            m->lanes[l] = (kolo_vlane_t){.rank = q, .lane = l - r->first_lane, .thread = l, .waits = w};
            w += max32(r->plans[0]->nevents, r->plans[1]->nevents);
        }
    }
    if (m->options->skip_races && m->coll[0] != KOLO_COLL_BARRIER && m->coll[1] != KOLO_COLL_BARRIER) clock = false;
    return kolo_clock_init(&m->clocks, clock ? lanes : 0);
}

/* ---- groups of sends and receives ---- */

/* Numbers the sends in rank order and finds each receive its send: the k-th send to a peer is its k-th receive. */
static kolo_status_t match_group(kolo_model_t *m, uint32_t set, const kolo_group_t *groups)
{
    if (!groups)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "verifying p2p plans needs the groups (options->groups)");
    uint64_t nsends = 0, nrecvs = 0;
    for (uint32_t q = 0; q < m->nranks; q++) {
        nsends += groups[q].nsends;
        nrecvs += groups[q].nrecvs;
    }
    uint64_t *send = calloc(nsends + nrecvs + 1, sizeof(*send)), *recv = send + nsends;
    m->send_numbers[set] = send;
    m->sends[set] = calloc(nsends + 1, sizeof(*m->sends[set]));
    uint64_t *next = calloc((size_t)m->nranks + 1, sizeof(*next));
    if (!send || !m->sends[set] || !next) {
        free(next);
        return no_memory();
    }
    uint64_t number = 0;
    for (uint32_t q = 0; q < m->nranks; q++) {
        next[q] = number;
        for (uint32_t i = 0; i < groups[q].nsends; i++) {
            send[number] = number;
            m->sends[set][number++] = (kolo_vsend_t){.rank = q, .part = i};
        }
    }
    bool matched = nsends == nrecvs;
    uint64_t at = 0;
    for (uint32_t q = 0; q < m->nranks && matched; q++) {
        m->ranks[q].src_shape[set] = send + next[q];
        m->ranks[q].dst_shape[set] = recv + at;
        for (uint32_t i = 0; i < groups[q].nrecvs && matched; i++, at++) {
            uint32_t from = (uint32_t)groups[q].recv_peers[i], earlier = 0, part;
            for (uint32_t e = 0; e < i; e++) earlier += groups[q].recv_peers[e] == groups[q].recv_peers[i];
            matched = from < m->nranks;
            for (part = 0; matched && part < groups[from].nsends; part++)
                if (groups[from].send_peers[part] == (int)q && earlier-- == 0) break;
            matched = matched && part < groups[from].nsends;
            if (matched) recv[at] = next[from] + part;
        }
    }
    free(next);
    return matched ? KOLO_OK
                   : kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "the sends and receives of the group do not match");
}

/* ---- all ---- */

static kolo_status_t check_set(kolo_model_t *m, uint32_t set)
{
    const kolo_plan_t *first = m->ranks[0].plans[set];
    for (uint32_t q = 0; q < m->nranks; q++) {
        const kolo_plan_t *p = m->ranks[q].plans[set];
        KOLO_TRY(kolo_plan_check(p));
        bool p2p = p->coll == KOLO_COLL_P2P;
        if (p->rank != q || p->nranks != m->nranks || p->coll != first->coll || p->root != first->root ||
            p->nsubs != first->nsubs || p->slices != first->slices || p->depth != first->depth ||
            (!p2p && p->nparts != first->nparts))
            return kolo_fail(KOLO_ERR_INTERNAL,
                             "the plans of ranks 0 and %u (%s by %s) do not go together: collective, root, grid, "
                             "slices or depth differ",
                             q, kolo_coll_name(p->coll), kolo_plan_algo_name(p->algo));
        bool by_rank = kolo_coll_by_rank(p->coll);
        uint32_t src = one_part_src(p->coll) ? 1 : p->nparts, dst = one_part_dst(p->coll) ? 1 : p->nparts;
        if ((by_rank && p->nparts != m->nranks) ||
            (!p2p && p->coll != KOLO_COLL_BARRIER && (p->src_parts != src || p->dst_parts != dst)))
            return kolo_fail(KOLO_ERR_INTERNAL, "the %s plan of rank %u has %u parts (SRC %u, DST %u)",
                             kolo_coll_name(p->coll), q, p->nparts, p->src_parts, p->dst_parts);
        m->equal_only[set] = m->equal_only[set] || kolo_plan_equal_only(p);
        if (p2p &&
            (p->src_parts < m->options_group[set][q].nsends || p->dst_parts < m->options_group[set][q].nrecvs))
            return kolo_fail(KOLO_ERR_INTERNAL, "the p2p plan of rank %u has fewer parts than the group", q);
    }
    m->coll[set] = first->coll;
    m->root[set] = first->root;
    m->nsubs[set] = first->nsubs;
    m->grid_chunks[set] = first->nparts * first->nsubs;
    m->slices[set] = first->coll == KOLO_COLL_BARRIER ? 1 : first->slices;
    m->depth[set] = first->depth;
    m->reduces[set] = kolo_coll_reduces(first->coll);
    return KOLO_OK;
}

static kolo_status_t init_sizes(kolo_model_t *m)
{
    for (uint32_t set = 0; set < 2; set++) {
        if (m->ranks[0].plans[set]->coll == KOLO_COLL_P2P) KOLO_TRY(match_group(m, set, m->options_group[set]));
        KOLO_TRY(check_set(m, set));
    }
    m->max_slices = max32(m->slices[0], m->slices[1]);
    bool barrier = m->coll[0] == KOLO_COLL_BARRIER && m->coll[1] == KOLO_COLL_BARRIER;
    uint32_t depth = max32(m->depth[0], m->depth[1]);
    m->tiles = barrier ? 1 : m->options->tiles ? m->options->tiles : depth + 3;
    m->ncalls = barrier && depth < 6 ? depth + 2 : barrier ? 8 : 2;
    for (uint32_t set = 0; set < 2; set++) {
        size_t n = (size_t)m->grid_chunks[set] * m->tiles * m->max_slices;
        if (m->coll[set] == KOLO_COLL_ALL_REDUCE && !(m->result[set] = calloc(n, sizeof(uint32_t))))
            return no_memory();
    }
    return KOLO_OK;
}

kolo_status_t kolo_model_init(kolo_model_t *m, const kolo_plan_t *const *plans, const kolo_plan_t *const *next,
                              uint32_t nranks, const kolo_verify_options_t *options)
{
    *m = (kolo_model_t){.nranks = nranks, .options = options, .reads_free = 0};
    m->options_group[0] = options->groups;
    m->options_group[1] = next == plans ? options->groups : options->next_groups;
    m->ranks = calloc(nranks, sizeof(*m->ranks));
    if (!m->ranks) return no_memory();
    for (uint32_t q = 0; q < nranks; q++) {
        m->ranks[q].plans[0] = plans[q];
        m->ranks[q].plans[1] = next[q];
    }
    kolo_status_t status = init_sizes(m);
    for (uint32_t q = 0; q < nranks && status == KOLO_OK; q++) status = init_rank(m, &m->ranks[q]);
    if (status == KOLO_OK) status = kolo_values_init(&m->values, nranks);
    if (status == KOLO_OK) status = init_lanes(m);
    if (status == KOLO_OK) status = kolo_model_pair(m);
    if (status != KOLO_OK) kolo_model_fini(m);
    return status;
}

void kolo_model_fini(kolo_model_t *m)
{
    kolo_model_unpair(m);
    for (uint32_t q = 0; m->ranks && q < m->nranks; q++) {
        kolo_vrank_t *r = &m->ranks[q];
        for (uint32_t e = 0; r->events && e < max32(r->plans[0]->nevents, r->plans[1]->nevents); e++) {
            for (uint32_t i = 0; i < r->events[e].count; i++)
                kolo_clock_drop_stamp(&m->clocks, &r->events[e].stamps[i]);
            free(r->events[e].stamps);
        }
        free(r->user);
        free(r->scratch);
        free(r->events);
    }
    for (uint32_t set = 0; set < 2; set++) {
        free(m->send_numbers[set]);
        free(m->sends[set]);
        free(m->result[set]);
    }
    kolo_values_fini(&m->values);
    kolo_clock_fini(&m->clocks);
    free(m->ranks);
    free(m->lanes);
    free(m->ready);
    free(m->waits);
    free(m->reads);
    *m = (kolo_model_t){0};
}
