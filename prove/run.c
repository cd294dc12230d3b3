/* SPDX-License-Identifier: Apache-2.0
 *
 * Schedules of the verifier: which lane steps next, what happens when a rank has completed a call, and what is
 * wrong when nothing can step any more.
 */
#include "prove/model.h"

#include <inttypes.h>
#include <string.h>

void kolo_model_wake(kolo_model_t *m, uint32_t lane)
{
    kolo_vlane_t *l = &m->lanes[lane];
    if (l->queued || l->done) return;
    l->queued = true;
    m->ready[m->nready++ % m->nlanes] = lane;
}

void kolo_model_wake_rank_lane(kolo_model_t *m, uint32_t rank, const uint32_t lane[2])
{
    const kolo_vrank_t *r = &m->ranks[rank];
    uint32_t l = lane[r->call & 1];
    if (r->call < m->ncalls && l != KOLO_NO_LANE) kolo_model_wake(m, r->first_lane + l);
}

/* Has a rank enter its next call: its lanes start after everything its main thread knows. */
static kolo_status_t start_call(kolo_model_t *m, kolo_vrank_t *r)
{
    const kolo_plan_t *p = r->plans[r->call & 1];
    kolo_stamp_t stamp = kolo_clock_stamp(&m->clocks, r->first_thread);
    kolo_status_t status = KOLO_OK;
    r->started = stamp.epoch.time;
    r->lanes_left = p->nlanes;
    for (uint32_t k = 0; k < p->nlanes && status == KOLO_OK; k++) {
        kolo_vlane_t *l = &m->lanes[r->first_lane + k];
        l->at = (kolo_cursor_t){0};
        l->tile = l->chunk = l->piece = 0;
        l->done = false;
        memset(l->waits, 0, p->nevents * sizeof(*l->waits));
        status = kolo_clock_join(&m->clocks, l->thread, &stamp);
        kolo_model_wake(m, r->first_lane + k);
    }
    kolo_clock_drop_stamp(&m->clocks, &stamp);
    return status;
}

static kolo_status_t end_call(kolo_model_t *m, kolo_vrank_t *r)
{
    kolo_vlane_t *first = &m->lanes[r->first_lane];
    kolo_actor_t a = {.m = m, .r = r, .l = first, .set = r->call & 1};
    const kolo_plan_t *p = r->plans[a.set];
    for (uint32_t k = 1; k < p->nlanes; k++) {
        kolo_stamp_t stamp = kolo_clock_stamp(&m->clocks, r->first_thread + k);
        kolo_status_t status = kolo_clock_join(&m->clocks, r->first_thread, &stamp);
        kolo_clock_drop_stamp(&m->clocks, &stamp);
        KOLO_TRY(status);
    }
    for (uint32_t e = 0; e < p->nevents; e++) {
        for (uint32_t i = 0; i < r->events[e].count; i++)
            kolo_clock_drop_stamp(&m->clocks, &r->events[e].stamps[i]);
        r->events[e].count = 0;
    }
    KOLO_TRY(kolo_model_outputs(&a));
    r->call++;
    if (r->call == m->ncalls) m->ranks_left--;
    return KOLO_OK;
}

/* Calls follow each other; a plan without lanes is complete at once. */
static kolo_status_t next_calls(kolo_model_t *m, kolo_vrank_t *r)
{
    while (r->call < m->ncalls) {
        KOLO_TRY(start_call(m, r));
        if (r->lanes_left) return KOLO_OK;
        KOLO_TRY(end_call(m, r));
    }
    return KOLO_OK;
}

static uint64_t next_random(kolo_model_t *m)
{
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return m->random;
}

/* Takes a lane out of the ready list (a ring: taken from `head`, added at `nready`). */
static uint32_t pick(kolo_model_t *m, kolo_order_t order, uint32_t *head)
{
    uint32_t count = m->nready - *head, at = *head;
    if (order == KOLO_ORDER_DEPTH) at = m->nready - 1;
    if (order == KOLO_ORDER_RANDOM) at = *head + (uint32_t)(next_random(m) % count);
    uint32_t *slot = &m->ready[at % m->nlanes], lane = *slot;
    if (order == KOLO_ORDER_BREADTH || order == KOLO_ORDER_REVERSE) {
        ++*head;
    } else {
        *slot = m->ready[(m->nready - 1) % m->nlanes];
        m->nready--;
    }
    m->lanes[lane].queued = false;
    return lane;
}

static void describe(const kolo_actor_t *a, kolo_status_t *status)
{
    const kolo_insn_t *in = a->in;
    const kolo_plan_t *p = a->r->plans[a->set];
    int i = (int)kolo_cursor_i(&a->l->at);
    int rx = in->rx == KOLO_NO_CONN ? -1 : in->rx + in->rx_stride * i;
    int tx = in->tx == KOLO_NO_CONN ? -1 : in->tx + in->tx_stride * i;
    *status = kolo_model_fail(a, "nothing can move any more: it waits (rx from rank %d, tx to rank %d, event %u)",
                              rx < 0 ? -1 : p->conns[rx].peer, tx < 0 ? -1 : p->conns[tx].peer, in->event);
}

static kolo_status_t deadlock(kolo_model_t *m)
{
    kolo_status_t status = KOLO_ERR_INTERNAL;
    for (uint32_t q = 0; q < m->nranks; q++) {
        kolo_vrank_t *r = &m->ranks[q];
        if (r->call == m->ncalls) continue;
        kolo_actor_t a = {.m = m, .r = r, .set = r->call & 1};
        for (uint32_t k = 0; k < r->plans[a.set]->nlanes; k++) {
            a.l = &m->lanes[r->first_lane + k];
            if (a.l->done) continue;
            a.in = kolo_cursor_at(&a.l->at, r->plans[a.set], k);
            if (!a.in) continue;
            describe(&a, &status);
            return status;
        }
    }
    return kolo_fail(KOLO_ERR_INTERNAL, "nothing can move any more, and no lane says why");
}

/* Checks that every slot that was posted has been read. */
static kolo_status_t check_empty(const kolo_model_t *m)
{
    for (uint32_t i = 0; i < m->nchannels; i++) {
        const kolo_prove_channel_t *c = &m->channels[i];
        if (c->posted == c->freed) continue;
        const kolo_plan_t *p = m->ranks[c->writer].plans[0];
        return kolo_fail(KOLO_ERR_INTERNAL,
                         "%s by %s, %" PRIu32 " ranks: %" PRIu64 " slots that rank %" PRIu32
                         " posted on connection lane %u (first reader rank %" PRIu32 ") are never read",
                         kolo_coll_name(p->coll), kolo_plan_algo_name(p->algo), m->nranks, c->posted - c->freed,
                         c->writer, c->lane, m->readers[c->first_reader].rank);
    }
    return KOLO_OK;
}

static kolo_status_t run_lane(kolo_model_t *m, kolo_vlane_t *l, kolo_order_t order)
{
    /* Depth: as far as it goes. Random: a random stretch. Else one step. */
    uint64_t budget = order == KOLO_ORDER_DEPTH    ? UINT64_MAX
                      : order == KOLO_ORDER_RANDOM ? 1 + next_random(m) % 16
                                                   : 1;
    kolo_step_t step = KOLO_STEP_MOVED;
    while (budget-- && step == KOLO_STEP_MOVED) {
        KOLO_TRY(kolo_model_step(m, l, &step));
        m->steps++;
    }
    if (step == KOLO_STEP_MOVED) kolo_model_wake(m, (uint32_t)(l - m->lanes));
    if (step != KOLO_STEP_DONE) return KOLO_OK;
    l->done = true;
    kolo_vrank_t *r = &m->ranks[l->rank];
    if (--r->lanes_left) return KOLO_OK;
    KOLO_TRY(end_call(m, r));
    return next_calls(m, r);
}

/* Fills SRC as the user does before the first call. */
static void fill_inputs(kolo_model_t *m, kolo_vrank_t *r)
{
    uint64_t per_chunk = (uint64_t)m->tiles * m->max_slices;
    uint64_t src = (uint64_t)r->plans[0]->src_parts * r->plans[0]->nsubs;
    for (uint64_t i = 0; r->has_src[0] && i < src * per_chunk; i++)
        r->user[r->src_at[0] * per_chunk + i].value = KOLO_VALUE_INITIAL;
}

kolo_status_t kolo_model_run(kolo_model_t *m, kolo_order_t order, uint64_t seed)
{
    uint32_t head = 0;
    m->random = seed * 2 + 0x9e3779b97f4a7c15u;
    m->ranks_left = m->nranks;
    for (uint32_t l = 0; l < m->nlanes; l++) m->lanes[l].done = true;
    for (uint32_t k = 0; k < m->nranks; k++) {
        kolo_vrank_t *r = &m->ranks[order == KOLO_ORDER_REVERSE ? m->nranks - 1 - k : k];
        fill_inputs(m, r);
        KOLO_TRY(next_calls(m, r));
    }
    while (m->nready != head) {
        uint32_t lane = pick(m, order, &head);
        if (!m->lanes[lane].done) KOLO_TRY(run_lane(m, &m->lanes[lane], order)); /* woken by itself, then done */
    }
    return m->ranks_left ? deadlock(m) : check_empty(m);
}
