/* SPDX-License-Identifier: Apache-2.0
 *
 * The definitions of the collectives, as the verifier sees them: what every chunk of a rank's DST must hold when
 * the rank has completed the call. Also what completion means: all lanes done, nothing still exposed, and from then
 * on the user may read, overwrite or free the buffers.
 */
#include "prove/model.h"

#include <inttypes.h>
#include <stdio.h>

/* Checks an output that must be one rank's input as it was. */
static kolo_status_t expect_leaf(const kolo_actor_t *a, uint32_t dst, uint32_t value, uint32_t rank, uint32_t chunk,
                                 uint32_t when)
{
    const char *why = NULL;
    uint32_t want = kolo_values_leaf(&a->m->values, rank, chunk, when, &why);
    if (!want) return kolo_fail(KOLO_ERR_NO_MEMORY, "%s", why);
    if (value == want) return KOLO_OK;
    const kolo_value_t *v = &a->m->values.at[value];
    return kolo_model_fail(a,
                           "DST chunk %" PRIu32 " holds SRC chunk %" PRIu32 " of rank %" PRIu32
                           " (of tile and call %" PRIu32 "), it should hold chunk %" PRIu32 " of rank %" PRIu32
                           " (%" PRIu32 ")",
                           dst, v->b, v->a, v->when, chunk, rank, when);
}

/* Checks an output that must be the finished reduction of all ranks' chunk. */
static kolo_status_t expect_reduced(const kolo_actor_t *a, uint32_t dst, uint32_t value, uint32_t chunk,
                                    uint32_t when)
{
    kolo_model_t *m = a->m;
    const kolo_value_t *v = &m->values.at[value];
    if (v->leaves != m->nranks)
        return kolo_model_fail(a, "DST chunk %" PRIu32 " holds the inputs of %" PRIu32 " of %" PRIu32 " ranks", dst,
                               v->leaves, m->nranks);
    if (v->key != chunk || v->when != when)
        return kolo_model_fail(a,
                               "DST chunk %" PRIu32 " holds the reduction of chunk %" PRIu32
                               " (tile and call %" PRIu32 "), not of %" PRIu32 " (%" PRIu32 ")",
                               dst, v->key, v->when, chunk, when);
    if (!v->final) return kolo_model_fail(a, "DST chunk %" PRIu32 " is complete but was not written as FINAL", dst);
    if (m->options->rank_order && !v->ordered)
        return kolo_model_fail(a, "DST chunk %" PRIu32 " was not reduced in rank order", dst);
    if (m->options->one_fold && !kolo_values_one_fold(&m->values, value))
        return kolo_model_fail(a, "DST chunk %" PRIu32 " is not one fold of all ranks' inputs in their order", dst);
    if (m->coll[a->set] != KOLO_COLL_ALL_REDUCE) return KOLO_OK;
    uint32_t number = when % (m->tiles * m->max_slices);
    uint32_t *shared = &m->result[a->set][(size_t)chunk * m->tiles * m->max_slices + number];
    if (*shared == 0) *shared = value;
    if (*shared != value)
        return kolo_model_fail(a, "DST chunk %" PRIu32 " was reduced in another order than on another rank", dst);
    return KOLO_OK;
}

static kolo_status_t expect(const kolo_actor_t *a, uint32_t chunk, uint32_t value, uint32_t when)
{
    const kolo_model_t *m = a->m;
    uint32_t rank = a->r->plans[a->set]->rank, nsubs = m->nsubs[a->set], part = chunk / nsubs, sub = chunk % nsubs;
    switch (m->coll[a->set]) {
    case KOLO_COLL_ALL_REDUCE:
    case KOLO_COLL_REDUCE:
        return expect_reduced(a, chunk, value, chunk, when);
    case KOLO_COLL_REDUCE_SCATTER:
        return expect_reduced(a, chunk, value, rank * nsubs + chunk, when);
    case KOLO_COLL_BROADCAST:
        return expect_leaf(a, chunk, value, m->root[a->set], chunk, when);
    case KOLO_COLL_ALL_GATHER:
    case KOLO_COLL_GATHER:
        return expect_leaf(a, chunk, value, part, sub, when);
    case KOLO_COLL_SCATTER:
        return expect_leaf(a, chunk, value, m->root[a->set], rank * nsubs + chunk, when);
    case KOLO_COLL_ALL_TO_ALL:
        return expect_leaf(a, chunk, value, part, rank * nsubs + sub, when);
    case KOLO_COLL_P2P: {
        const kolo_vsend_t *s = &m->sends[a->set][a->r->dst_shape[a->set][part]];
        return expect_leaf(a, chunk, value, s->rank, s->part * nsubs + sub, when);
    }
    default:
        return KOLO_OK;
    }
}

static kolo_status_t check_cell(const kolo_actor_t *a, uint32_t chunk, uint32_t tile, uint32_t piece)
{
    kolo_model_t *m = a->m;
    kolo_vrank_t *r = a->r;
    uint64_t u = chunk + r->dst_at[a->set];
    kolo_cell_t *cell = &r->user[(u * m->tiles + tile) * m->max_slices + piece];
    KOLO_TRY(kolo_model_touch(a, cell, false, "the call is complete, but the user reads DST", KOLO_NO_NUMBER));
    uint32_t value = cell->value, when = (r->call * m->tiles + tile) * m->max_slices + piece;
    if (value == KOLO_VALUE_NONE)
        return kolo_model_fail(a, "DST chunk %" PRIu32 ", tile %" PRIu32 ", piece %" PRIu32 " was never written",
                               chunk, tile, piece);
    if (value == KOLO_VALUE_INITIAL) {
        const char *why = NULL;
        if (m->reduces[a->set])
            return kolo_model_fail(a, "DST chunk %" PRIu32 " still holds the input (in place)", chunk);
        value = kolo_values_leaf(&m->values, r->plans[a->set]->rank, (uint32_t)u - r->src_at[a->set], when, &why);
        if (!value) return kolo_fail(KOLO_ERR_NO_MEMORY, "%s", why);
    }
    return expect(a, chunk, value, when);
}

static kolo_status_t check_outputs(const kolo_actor_t *a)
{
    kolo_model_t *m = a->m;
    const kolo_plan_t *p = a->r->plans[a->set];
    if (!a->r->has_dst[a->set] || p->coll == KOLO_COLL_BARRIER) return KOLO_OK;
    uint32_t parts = p->coll == KOLO_COLL_P2P ? m->options_group[a->set][p->rank].nrecvs : p->dst_parts;
    kolo_actor_t b = *a;
    for (uint32_t c = 0; c < parts * p->nsubs; c++) {
        kolo_segment_t s = {.buf = KOLO_BUF_DST, .base = (int32_t)c, .n = 1};
        kolo_vlane_t still = *a->l;
        still.at = (kolo_cursor_t){0};
        b.l = &still;
        uint64_t shape = kolo_model_shape(&b, &s, 0);
        for (uint32_t t = 0; t < m->tiles; t++) {
            uint32_t pieces = kolo_model_pieces(m, a->set, shape, t);
            for (uint32_t k = 0; k < pieces; k++) KOLO_TRY(check_cell(a, c, t, k));
        }
    }
    return KOLO_OK;
}

/* Accesses all buffers by the main thread: after completion the user may do anything with them. */
static kolo_status_t user_takes_over(const kolo_actor_t *a)
{
    kolo_model_t *m = a->m;
    kolo_vrank_t *r = a->r;
    uint32_t next = (r->call + 1) & 1, per_chunk = m->tiles * m->max_slices;
    uint32_t src = r->plans[next]->src_parts * r->plans[next]->nsubs;
    for (uint64_t i = 0; i < r->nuser; i++) {
        kolo_cell_t *cell = &r->user[i];
        KOLO_TRY(kolo_model_touch(a, cell, true, "the call is complete, but the user writes SRC and DST",
                                  KOLO_NO_NUMBER));
        uint64_t u = i / per_chunk;
        bool input = r->has_src[next] && u >= r->src_at[next] && u < (uint64_t)r->src_at[next] + src;
        cell->value = input ? KOLO_VALUE_INITIAL : KOLO_VALUE_NONE;
    }
    for (uint64_t i = 0; i < r->nscratch; i++) r->scratch[i].value = KOLO_VALUE_NONE;
    return KOLO_OK;
}

static kolo_status_t check_barrier(const kolo_actor_t *a)
{
    const kolo_model_t *m = a->m;
    for (uint32_t q = 0; q < m->nranks; q++) {
        const kolo_vrank_t *o = &m->ranks[q];
        /* A rank that is a call ahead has started this one as well. */
        if (o->call < a->r->call ||
            (o->call == a->r->call &&
             !kolo_clock_after(&m->clocks, a->l->thread, (kolo_epoch_t){o->first_thread, o->started})))
            return kolo_model_fail(a, "it leaves barrier %" PRIu32 " before rank %" PRIu32 " has surely entered it",
                                   a->r->call, q);
    }
    return KOLO_OK;
}

kolo_status_t kolo_model_outputs(const kolo_actor_t *a)
{
    const kolo_vrank_t *r = a->r;
    const kolo_plan_t *p = r->plans[a->set];
    for (uint32_t c = 0; c < p->nconns; c++) {
        const kolo_prove_channel_t *ch = &a->m->channels[r->ends[a->set][c].channel];
        if (p->conns[c].dir == KOLO_DIR_TX && ch->unreleased)
            return kolo_model_fail(a,
                                   "the call completes, but %" PRIu32
                                   " references on connection %u to rank %" PRId32 " were not RELEASEd",
                                   ch->unreleased, c, p->conns[c].peer);
    }
    KOLO_TRY(check_outputs(a));
    if (p->coll == KOLO_COLL_BARRIER) KOLO_TRY(check_barrier(a));
    return user_takes_over(a);
}
