/* SPDX-License-Identifier: Apache-2.0
 *
 * One step of one lane: one piece of one chunk of one instruction, all or nothing, as an executor with a queue of
 * slots does it.
 */
#include "prove/model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static kolo_reader_t *rx_reader(const kolo_actor_t *a, uint32_t conn)
{
    return &a->m->readers[a->r->ends[a->set][conn].reader];
}

static bool rx_ready(const kolo_actor_t *a, uint32_t conn)
{
    return kolo_model_tx(a, conn)->posted > rx_reader(a, conn)->taken;
}

static bool tx_room(const kolo_actor_t *a, uint32_t conn)
{
    const kolo_prove_channel_t *c = kolo_model_tx(a, conn);
    return c->posted - c->freed < a->m->depth[a->set];
}

static uint32_t tx_conn(const kolo_actor_t *a)
{
    return (uint32_t)(a->in->tx + a->in->tx_stride * (int)kolo_cursor_i(&a->l->at));
}

static uint32_t rx_conn(const kolo_actor_t *a)
{
    return (uint32_t)(a->in->rx + a->in->rx_stride * (int)kolo_cursor_i(&a->l->at));
}

/* Checks that the next slot of a connection is the one that this instruction is about. */
static kolo_status_t expect_slot(const kolo_actor_t *a, uint32_t conn, uint64_t shape, bool ref,
                                 kolo_vslot_t **slot)
{
    kolo_prove_channel_t *c = kolo_model_tx(a, conn);
    kolo_vslot_t *s = &c->slots[rx_reader(a, conn)->taken % c->cap];
    if (s->call != a->r->call)
        return kolo_model_fail(a, "the slot from rank %" PRIu32 " is of call %" PRIu32, c->writer, s->call);
    if (s->tile != a->l->tile || s->piece != a->l->piece || s->shape != shape)
        return kolo_model_fail(a,
                               "the slot from rank %" PRIu32 " is as long as grid chunk %" PRIu64 " (tile %" PRIu32
                               ", piece %" PRIu32 "), expected is %" PRIu64,
                               c->writer, s->shape, s->tile, s->piece, shape);
    /* Executors cut the chunks of an instruction into slots as one row of bytes. */
    uint32_t row = kolo_insn_payload(a->in)->n;
    if (s->row != row || s->at != a->l->chunk)
        return kolo_model_fail(a,
                               "the slot from rank %" PRIu32 " is chunk %" PRIu32 " of an instruction with %" PRIu32
                               " chunks, expected is %" PRIu32 " of %" PRIu32,
                               c->writer, s->at, s->row, a->l->chunk, row);
    if (s->ref != ref)
        return kolo_model_fail(a,
                               ref ? "the slot from rank %" PRIu32 " is no reference"
                                   : "the slot from rank %" PRIu32 " is a reference",
                               c->writer);
    *slot = s;
    return kolo_clock_join(&a->m->clocks, a->l->thread, &s->stamp);
}

static void take_slot(const kolo_actor_t *a, uint32_t conn)
{
    kolo_model_t *m = a->m;
    kolo_prove_channel_t *c = kolo_model_tx(a, conn);
    kolo_reader_t *r = rx_reader(a, conn);
    kolo_vslot_t *s = &c->slots[r->taken++ % c->cap];
    if (c->releases) {
        kolo_clock_drop_stamp(&m->clocks, &r->stamp);
        r->stamp = kolo_clock_stamp(&m->clocks, a->l->thread);
    }
    if (--s->left) return;
    c->freed++;
    kolo_model_wake_rank_lane(m, c->writer, c->writer_lane);
}

static kolo_vslot_t *post(const kolo_actor_t *a, uint32_t conn, uint64_t shape, uint32_t value)
{
    kolo_model_t *m = a->m;
    kolo_prove_channel_t *c = kolo_model_tx(a, conn);
    kolo_vslot_t *s = &c->slots[c->posted++ % c->cap];
    kolo_clock_drop_stamp(&m->clocks, &s->stamp);
    *s = (kolo_vslot_t){.shape = shape,
                        .value = value,
                        .call = a->r->call,
                        .tile = a->l->tile,
                        .piece = a->l->piece,
                        .row = kolo_insn_payload(a->in)->n,
                        .at = a->l->chunk,
                        .left = c->nreaders,
                        .stamp = kolo_clock_stamp(&m->clocks, a->l->thread)};
    for (uint32_t i = 0; i < c->nreaders; i++) {
        const kolo_reader_t *r = &m->readers[c->first_reader + i];
        kolo_model_wake_rank_lane(m, r->rank, r->lane);
    }
    return s;
}

/* Computes x op y, then FINAL if the instruction says so. */
static kolo_status_t reduce(const kolo_actor_t *a, uint32_t x, uint32_t y, bool swap, uint32_t *out)
{
    const char *why = NULL;
    if (!a->m->reduces[a->set]) return kolo_model_fail(a, "a collective that does not reduce");
    uint32_t v = swap ? kolo_values_op(&a->m->values, y, x, &why) : kolo_values_op(&a->m->values, x, y, &why);
    if (v && a->in->flags & KOLO_FLAG_FINAL) v = kolo_values_final(&a->m->values, v, &why);
    if (!v) return kolo_model_fail(a, "%s", why);
    *out = v;
    return KOLO_OK;
}

static kolo_status_t finish(const kolo_actor_t *a, uint32_t *v)
{
    const char *why = NULL;
    if (!(a->in->flags & KOLO_FLAG_FINAL)) return KOLO_OK;
    *v = kolo_values_final(&a->m->values, *v, &why);
    return *v ? KOLO_OK : kolo_model_fail(a, "%s", why);
}

/* ---- groups of instructions ---- */

/* Does SEND, RECV and everything that receives, reduces, forwards. Availability was checked. */
static kolo_status_t do_move(const kolo_actor_t *a, uint64_t shape)
{
    const kolo_insn_t *in = a->in;
    bool reduces = in->op == KOLO_OP_RECV_REDUCE || in->op == KOLO_OP_RECV_REDUCE_SEND ||
                   in->op == KOLO_OP_RECV_REDUCE_COPY_SEND;
    uint32_t v = 0, mine = 0;
    kolo_vslot_t *slot;
    if (in->rx != KOLO_NO_CONN) {
        KOLO_TRY(expect_slot(a, rx_conn(a), shape, false, &slot));
        v = slot->value;
    }
    if (reduces || in->op == KOLO_OP_SEND) KOLO_TRY(kolo_model_read(a, &in->src, &mine));
    if (reduces)
        KOLO_TRY(reduce(a, mine, v, in->flags & KOLO_FLAG_RX_FIRST, &v));
    else if (in->op == KOLO_OP_SEND)
        v = mine;
    if (in->op != KOLO_OP_SEND && in->op != KOLO_OP_RECV_REDUCE_SEND && in->dst.buf != KOLO_BUF_NONE)
        KOLO_TRY(kolo_model_write(a, &in->dst, v));
    if (in->tx != KOLO_NO_CONN) post(a, tx_conn(a), shape, v);
    if (in->rx != KOLO_NO_CONN) take_slot(a, rx_conn(a));
    return KOLO_OK;
}

static kolo_status_t do_many(const kolo_actor_t *a, uint64_t shape)
{
    kolo_model_t *m = a->m;
    const kolo_insn_t *in = a->in;
    const uint16_t *list = a->r->plans[a->set]->list + in->list_first;
    const char *why = NULL;
    uint32_t acc = 0;
    if (!m->reduces[a->set]) return kolo_model_fail(a, "a collective that does not reduce");
    for (uint32_t k = 0; k <= in->list_count; k++) {
        if (in->own_place == k) {
            uint32_t mine;
            KOLO_TRY(kolo_model_read(a, &in->src, &mine));
            acc = kolo_values_list(&m->values, acc, mine, &why);
            if (!acc) return kolo_model_fail(a, "%s", why);
        }
        if (k == in->list_count) break;
        kolo_vslot_t *slot;
        KOLO_TRY(expect_slot(a, list[k], shape, false, &slot));
        acc = kolo_values_list(&m->values, acc, slot->value, &why);
        if (!acc) return kolo_model_fail(a, "%s", why);
    }
    acc = kolo_values_many(&m->values, acc, &why);
    if (!acc) return kolo_model_fail(a, "%s", why);
    KOLO_TRY(finish(a, &acc));
    KOLO_TRY(kolo_model_write(a, &in->dst, acc));
    if (in->tx != KOLO_NO_CONN) post(a, tx_conn(a), shape, acc);
    for (uint32_t k = 0; k < in->list_count; k++) take_slot(a, list[k]);
    return KOLO_OK;
}

static kolo_status_t do_local(const kolo_actor_t *a)
{
    const kolo_insn_t *in = a->in;
    uint32_t v, old;
    uint64_t from, to;
    if (in->op == KOLO_OP_COPY && !a->m->reduces[a->set] && in->src.buf != KOLO_BUF_SCRATCH &&
        in->dst.buf != KOLO_BUF_SCRATCH) { /* in place, onto itself: nothing is done */
        KOLO_TRY(kolo_model_locate(a, &in->src, &from));
        KOLO_TRY(kolo_model_locate(a, &in->dst, &to));
        if (from == to) return KOLO_OK;
    }
    KOLO_TRY(kolo_model_read(a, &in->src, &v));
    if (in->op == KOLO_OP_REDUCE) {
        KOLO_TRY(kolo_model_read(a, &in->dst, &old));
        KOLO_TRY(reduce(a, v, old, in->flags & KOLO_FLAG_DST_FIRST, &v));
    } else {
        KOLO_TRY(finish(a, &v));
    }
    return kolo_model_write(a, &in->dst, v);
}

static kolo_status_t do_reference(const kolo_actor_t *a, uint64_t shape)
{
    const kolo_insn_t *in = a->in;
    kolo_vslot_t *slot;
    uint32_t v;
    if (in->op == KOLO_OP_EXPOSE) {
        uint64_t cell;
        KOLO_TRY(kolo_model_locate(a, &in->src, &cell));
        slot = post(a, tx_conn(a), shape, 0);
        slot->ref = true;
        slot->ref_buf = in->src.buf;
        slot->ref_cell = cell;
        kolo_model_tx(a, tx_conn(a))->unreleased++;
        return KOLO_OK;
    }
    KOLO_TRY(expect_slot(a, rx_conn(a), shape, true, &slot));
    uint32_t owner = kolo_model_tx(a, rx_conn(a))->writer;
    if (in->op == KOLO_OP_GET || in->op == KOLO_OP_GET_REDUCE) {
        uint32_t mine = 0;
        if (in->op == KOLO_OP_GET_REDUCE) KOLO_TRY(kolo_model_read(a, &in->src, &mine));
        KOLO_TRY(kolo_model_get(a, slot, owner, &v));
        if (in->op == KOLO_OP_GET_REDUCE) KOLO_TRY(reduce(a, mine, v, in->flags & KOLO_FLAG_RX_FIRST, &v));
        KOLO_TRY(kolo_model_write(a, &in->dst, v));
    } else {
        KOLO_TRY(kolo_model_read(a, &in->src, &v));
        KOLO_TRY(kolo_model_put(a, slot, owner, v));
    }
    take_slot(a, rx_conn(a));
    return KOLO_OK;
}

static kolo_status_t do_chunk(const kolo_actor_t *a, uint64_t shape, kolo_step_t *step)
{
    const kolo_insn_t *in = a->in;
    *step = KOLO_STEP_BLOCKED;
    if (in->rx != KOLO_NO_CONN && !rx_ready(a, rx_conn(a))) return KOLO_OK;
    if (in->tx != KOLO_NO_CONN && !tx_room(a, tx_conn(a))) return KOLO_OK;
    if (in->op == KOLO_OP_REDUCE_MANY)
        for (uint32_t k = 0; k < in->list_count; k++)
            if (!rx_ready(a, a->r->plans[a->set]->list[in->list_first + k])) return KOLO_OK;
    *step = KOLO_STEP_MOVED;
    switch (in->op) {
    case KOLO_OP_REDUCE_MANY:
        return do_many(a, shape);
    case KOLO_OP_COPY:
    case KOLO_OP_REDUCE:
        return do_local(a);
    case KOLO_OP_EXPOSE:
    case KOLO_OP_GET:
    case KOLO_OP_GET_REDUCE:
    case KOLO_OP_PUT:
        return do_reference(a, shape);
    default:
        return do_move(a, shape);
    }
}

/* ---- order ---- */

static kolo_status_t do_release(const kolo_actor_t *a, kolo_step_t *step)
{
    kolo_prove_channel_t *c = kolo_model_tx(a, tx_conn(a));
    if (c->freed != c->posted) return KOLO_OK;
    for (uint32_t i = 0; i < c->nreaders; i++)
        KOLO_TRY(kolo_clock_join(&a->m->clocks, a->l->thread, &a->m->readers[c->first_reader + i].stamp));
    c->unreleased = 0;
    *step = KOLO_STEP_MOVED;
    return KOLO_OK;
}

static kolo_status_t do_signal(const kolo_actor_t *a, kolo_step_t *step)
{
    kolo_vevent_t *e = &a->r->events[a->in->event];
    if (e->count == e->cap) {
        uint32_t cap = e->cap ? e->cap * 2 : 8;
        kolo_stamp_t *p = realloc(e->stamps, cap * sizeof(*p));
        if (!p) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the verifier's events");
        e->stamps = p;
        e->cap = cap;
    }
    e->stamps[e->count++] = kolo_clock_stamp(&a->m->clocks, a->l->thread);
    for (uint32_t l = 0; l < a->r->plans[a->set]->nlanes; l++) kolo_model_wake(a->m, a->r->first_lane + l);
    *step = KOLO_STEP_MOVED;
    return KOLO_OK;
}

static kolo_status_t do_wait(const kolo_actor_t *a, kolo_step_t *step)
{
    const kolo_vevent_t *e = &a->r->events[a->in->event];
    uint32_t *waits = &a->l->waits[a->in->event];
    if (e->count <= *waits) return KOLO_OK;
    *step = KOLO_STEP_MOVED;
    return kolo_clock_join(&a->m->clocks, a->l->thread, &e->stamps[(*waits)++]);
}

static kolo_status_t shape_of(const kolo_actor_t *a, uint64_t *shape)
{
    const kolo_insn_t *in = a->in;
    *shape = kolo_model_shape(a, kolo_insn_payload(in), a->l->chunk);
    bool both = in->op == KOLO_OP_RECV_REDUCE || in->op == KOLO_OP_RECV_REDUCE_COPY_SEND ||
                in->op == KOLO_OP_COPY || in->op == KOLO_OP_REDUCE || in->op == KOLO_OP_GET_REDUCE ||
                (in->op == KOLO_OP_REDUCE_MANY && in->own_place != 0xffff);
    if (!both) return KOLO_OK;
    uint64_t other = kolo_model_shape(a, &in->src, a->l->chunk);
    if (other == *shape) return KOLO_OK;
    return kolo_model_fail(a, "dst is as long as grid chunk %" PRIu64 ", src as chunk %" PRIu64, *shape, other);
}

kolo_status_t kolo_model_step(kolo_model_t *m, kolo_vlane_t *l, kolo_step_t *step)
{
    kolo_vrank_t *r = &m->ranks[l->rank];
    kolo_actor_t a = {.m = m, .r = r, .l = l, .set = r->call & 1};
    const kolo_plan_t *p = r->plans[a.set];
    *step = KOLO_STEP_DONE;
    while (l->tile < m->tiles) {
        a.in = kolo_cursor_at(&l->at, p, l->lane);
        if (!a.in) {
            l->tile++;
            kolo_cursor_start(&l->at);
            continue;
        }
        *step = KOLO_STEP_BLOCKED;
        if (!kolo_insn_has_chunks(a.in)) {
            if (a.in->op == KOLO_OP_RELEASE) KOLO_TRY(do_release(&a, step));
            if (a.in->op == KOLO_OP_SIGNAL) KOLO_TRY(do_signal(&a, step));
            if (a.in->op == KOLO_OP_WAIT) KOLO_TRY(do_wait(&a, step));
            if (*step == KOLO_STEP_MOVED) kolo_cursor_next(&l->at);
            return KOLO_OK;
        }
        if (l->chunk == kolo_insn_payload(a.in)->n) {
            l->chunk = 0;
            kolo_cursor_next(&l->at);
            *step = KOLO_STEP_DONE;
            continue;
        }
        uint64_t shape;
        KOLO_TRY(shape_of(&a, &shape));
        if (l->piece >= kolo_model_pieces(m, a.set, shape, l->tile)) {
            l->chunk++;
            l->piece = 0;
            continue;
        }
        KOLO_TRY(do_chunk(&a, shape, step));
        if (*step == KOLO_STEP_MOVED) l->piece++;
        return KOLO_OK;
    }
    *step = KOLO_STEP_DONE;
    return KOLO_OK;
}
