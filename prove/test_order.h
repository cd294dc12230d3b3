/* SPDX-License-Identifier: Apache-2.0
 *
 * When do two plans of a rank execute the same? A step (one chunk of one instruction) is ordered after an earlier
 * one of its lane if
 *   - both use the same connection end, or the same event;
 *   - both touch the same chunk and one of them writes it (RELEASE writes what its connection exposed);
 *   - one of them is SIGNAL or WAIT;
 *   - one uses a connection and the other touches memory that another lane or another rank may touch too, because
 *     messages may be what orders those accesses.
 * Two plans are equal when these partial orders are: a step's level is one more than the highest level of the steps
 * it comes after, and the sets of steps on each level are compared, by hashes. If lanes share no memory and no
 * event, the lane a step is in adds no order, and all lanes of the rank are compared together. Left out are steps
 * that do nothing: a COPY of what was just copied there, a RELEASE with nothing posted since the last one, in place
 * a COPY onto itself; what a barrier's messages hold; and, where operands may come in any order, their order.
 */
#ifndef KOLO_PROVE_TEST_ORDER_H
#define KOLO_PROVE_TEST_ORDER_H

#include "prove/walk.h"

#include <string.h>

#define ORDER_KEYS  1024 /* of each kind; numbers beyond share one, which only orders more */
#define ORDER_LISTS 32

enum { ORDER_SRC, ORDER_DST, ORDER_SCRATCH, ORDER_CONN, ORDER_EVENT, ORDER_KINDS };

typedef struct {
    const kolo_plan_t *p;
    bool any_order, in_place;
    /* by chunk: who touches it; for COPY: which chunk it holds a copy of, plus one */
    uint32_t lanes[ORDER_KINDS * ORDER_KEYS]; /* bit set of lanes, bit 31: other ranks */
    uint32_t copy_of[ORDER_KINDS * ORDER_KEYS];
    bool written[ORDER_KINDS * ORDER_KEYS];
    /* by resource: highest level of a step that wrote, that read it */
    uint32_t wrote[ORDER_KINDS * ORDER_KEYS], read[ORDER_KINDS * ORDER_KEYS];
    uint32_t fence, top, conn_top, shared_top;
    uint32_t copy_sync[ORDER_KINDS * ORDER_KEYS], sync; /* steps that order lanes, counted */
    bool posted[ORDER_KEYS];
} order_t;

typedef struct {
    uint64_t hash;
    uint32_t keys[ORDER_LISTS * 3];
    bool writes[ORDER_LISTS * 3];
    uint32_t nkeys;
    bool conn, shared, fence, nothing;
} order_step_t;

static inline uint64_t order_mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static inline uint32_t order_key(unsigned kind, uint32_t number)
{
    return kind * ORDER_KEYS + number % ORDER_KEYS;
}

/* Gives SRC and DST chunks that lie in the same memory (in place) one number. */
static inline uint32_t order_chunk(const order_t *o, unsigned buf, uint32_t chunk)
{
    const kolo_plan_t *p = o->p;
    if (buf == KOLO_BUF_SCRATCH) return order_key(ORDER_SCRATCH, chunk);
    if (!o->in_place) return order_key(buf == KOLO_BUF_SRC ? ORDER_SRC : ORDER_DST, chunk);
    bool one = (buf == KOLO_BUF_SRC ? p->src_parts : p->dst_parts) < p->nparts;
    return order_key(ORDER_DST, one ? p->rank * p->nsubs + chunk : chunk);
}

static inline void order_add(order_step_t *s, uint32_t key, bool write)
{
    if (s->nkeys == ORDER_LISTS * 3) return;
    s->keys[s->nkeys] = key;
    s->writes[s->nkeys++] = write;
}

static inline uint64_t order_conn_hash(const kolo_plan_t *p, uint32_t conn)
{
    const kolo_plan_conn_t *c = &p->conns[conn];
    return order_mix(order_mix(order_mix(c->dir, c->node), c->lane), (uint64_t)(int64_t)c->peer);
}

static inline void order_add_conn(const order_t *o, order_step_t *s, uint32_t conn)
{
    s->hash = order_mix(s->hash, order_conn_hash(o->p, conn));
    s->conn = true;
    order_add(s, order_key(ORDER_CONN, conn), true);
}

static inline bool order_has_dst(const kolo_insn_t *in)
{
    return in->op != KOLO_OP_SEND && in->op != KOLO_OP_RECV_REDUCE_SEND && in->op != KOLO_OP_EXPOSE &&
           in->op != KOLO_OP_PUT && kolo_insn_has_chunks(in);
}

static inline bool order_has_src(const kolo_insn_t *in)
{
    return in->op != KOLO_OP_RECV && in->op != KOLO_OP_RECV_SEND && in->op != KOLO_OP_GET &&
           !(in->op == KOLO_OP_REDUCE_MANY && in->own_place == 0xffff) && kolo_insn_has_chunks(in);
}

static inline void order_add_segment(const order_t *o, order_step_t *s, const kolo_segment_t *g,
                                     const kolo_cursor_t *at, uint32_t k, bool write)
{
    uint32_t i = kolo_cursor_i(at), j = kolo_cursor_j(at);
    if (o->p->coll == KOLO_COLL_BARRIER) return;
    s->hash = order_mix(s->hash, g->buf);
    if (g->buf == KOLO_BUF_NONE || g->buf == KOLO_BUF_SCRATCH)
        s->hash = order_mix(s->hash, kolo_segment_shape(g, i, j, k, o->p->nparts * o->p->nsubs));
    if (g->buf == KOLO_BUF_NONE) return;
    uint32_t c = kolo_segment_chunk(g, i, j, k), key = order_chunk(o, g->buf, c), lanes = o->lanes[key];
    s->hash = order_mix(s->hash, c);
    order_add(s, key, write);
    /* Touched by others as well, and not only read by all lanes. */
    if ((lanes & (lanes - 1)) && (o->written[key] || lanes >> 31)) s->shared = true;
}

static inline void order_add_list(const order_t *o, order_step_t *s, const kolo_insn_t *in)
{
    uint64_t sum = 0;
    for (uint32_t e = 0; e < in->list_count; e++) {
        uint16_t conn = o->p->list[in->list_first + e];
        uint64_t h = order_conn_hash(o->p, conn);
        sum = o->any_order ? sum + order_mix(1, h) : order_mix(sum, h);
        order_add(s, order_key(ORDER_CONN, conn), true);
    }
    s->conn = true;
    s->hash = order_mix(order_mix(s->hash, sum), o->any_order ? in->own_place != 0xffff : in->own_place);
}

/* Adds what an earlier EXPOSE on this connection showed: it may be touched again after its RELEASE. */
static inline void order_add_exposed(const order_t *o, order_step_t *s)
{
    for (uint32_t key = 0; key < order_key(ORDER_SCRATCH, 0); key++)
        if (o->lanes[key] >> 31) order_add(s, key, true);
}

static inline void order_copies(order_t *o, order_step_t *s, const kolo_insn_t *in)
{
    for (uint32_t k = 0; k < s->nkeys; k++) {
        if (!s->writes[k] || s->keys[k] >= order_key(ORDER_CONN, 0)) continue;
        uint32_t key = s->keys[k];
        bool copy = in->op == KOLO_OP_COPY && s->nkeys == 2;
        uint32_t from = copy ? s->keys[1] + 1 : 0;
        if (copy && key == s->keys[1] && !kolo_coll_reduces(o->p->coll)) s->nothing = true;
        bool again = copy && o->copy_of[key] == (from | (uint32_t)in->flags << 24);
        if (again && (!s->shared || o->copy_sync[key] == o->sync)) s->nothing = true;
        if (s->nothing) return;
        for (uint32_t c = 0; c < ORDER_KINDS * ORDER_KEYS; c++)
            if ((o->copy_of[c] & 0xffffff) == key + 1) o->copy_of[c] = 0;
        o->copy_sync[key] = o->sync;
        o->copy_of[key] = copy ? from | (uint32_t)in->flags << 24 : 0;
    }
}

static inline order_step_t order_make(order_t *o, const kolo_insn_t *in, const kolo_cursor_t *at, uint32_t k)
{
    order_step_t s = {.hash = in->op, .fence = in->op == KOLO_OP_SIGNAL || in->op == KOLO_OP_WAIT};
    int i = (int)kolo_cursor_i(at);
    unsigned order = KOLO_FLAG_RX_FIRST | KOLO_FLAG_DST_FIRST;
    s.hash = order_mix(s.hash, o->any_order ? in->flags & ~order : in->flags);
    if (s.fence) s.hash = order_mix(s.hash, in->event);
    if (order_has_dst(in)) order_add_segment(o, &s, &in->dst, at, k, true);
    if (order_has_src(in)) order_add_segment(o, &s, &in->src, at, k, false);
    order_copies(o, &s, in);
    if (in->rx != KOLO_NO_CONN) order_add_conn(o, &s, (uint32_t)(in->rx + in->rx_stride * i));
    if (in->tx != KOLO_NO_CONN) {
        uint32_t tx = (uint32_t)(in->tx + in->tx_stride * i) % ORDER_KEYS;
        order_add_conn(o, &s, tx);
        if (in->op == KOLO_OP_RELEASE) {
            s.nothing = !o->posted[tx];
            order_add_exposed(o, &s);
        }
        o->posted[tx] = in->op != KOLO_OP_RELEASE;
    }
    if (in->op == KOLO_OP_REDUCE_MANY) order_add_list(o, &s, in);
    if (in->op == KOLO_OP_EXPOSE || in->op == KOLO_OP_RELEASE) s.shared = false; /* ordered by chunk */
    return s;
}

/* Notes which lanes touch which chunks, and what is exposed. */
static inline void order_touch(order_t *o, uint32_t lane)
{
    kolo_cursor_t at;
    kolo_cursor_start(&at);
    for (const kolo_insn_t *in; (in = kolo_cursor_at(&at, o->p, lane)); kolo_cursor_next(&at)) {
        for (uint32_t k = 0; kolo_insn_has_chunks(in) && k < kolo_insn_payload(in)->n; k++) {
            uint32_t i = kolo_cursor_i(&at), j = kolo_cursor_j(&at);
            uint32_t bits = 1u << (lane < 30 ? lane : 30);
            if (in->op == KOLO_OP_EXPOSE) bits |= 1u << 31;
            if (order_has_src(in))
                o->lanes[order_chunk(o, in->src.buf, kolo_segment_chunk(&in->src, i, j, k))] |= bits;
            if (!order_has_dst(in) || in->dst.buf == KOLO_BUF_NONE) continue;
            uint32_t key = order_chunk(o, in->dst.buf, kolo_segment_chunk(&in->dst, i, j, k));
            o->lanes[key] |= bits;
            o->written[key] = true;
        }
    }
}

static inline uint64_t order_lane(order_t *o, uint32_t lane)
{
    kolo_cursor_t at;
    uint64_t sum = 0;
    memset(o->wrote, 0, sizeof(o->wrote));
    memset(o->read, 0, sizeof(o->read));
    memset(o->copy_of, 0, sizeof(o->copy_of));
    memset(o->posted, 0, sizeof(o->posted));
    o->fence = o->top = o->conn_top = o->shared_top = 0;
    kolo_cursor_start(&at);
    for (const kolo_insn_t *in; (in = kolo_cursor_at(&at, o->p, lane)); kolo_cursor_next(&at)) {
        uint32_t n = kolo_insn_has_chunks(in) ? kolo_insn_payload(in)->n : 1;
        for (uint32_t k = 0; k < n; k++) {
            order_step_t s = order_make(o, in, &at, k);
            if (s.nothing) continue;
            o->sync += s.conn || s.fence;
            uint32_t level = s.fence ? o->top : o->fence;
            if (s.conn && o->shared_top > level) level = o->shared_top;
            if (s.shared && o->conn_top > level) level = o->conn_top;
            for (uint32_t e = 0; e < s.nkeys; e++) {
                if (o->wrote[s.keys[e]] > level) level = o->wrote[s.keys[e]];
                if (s.writes[e] && o->read[s.keys[e]] > level) level = o->read[s.keys[e]];
            }
            level++;
            for (uint32_t e = 0; e < s.nkeys; e++) {
                uint32_t *l = s.writes[e] ? &o->wrote[s.keys[e]] : &o->read[s.keys[e]];
                if (level > *l) *l = level;
            }
            if (level > o->top) o->top = level;
            if (s.fence) o->fence = level;
            if (s.conn && level > o->conn_top) o->conn_top = level;
            if (s.shared && level > o->shared_top) o->shared_top = level;
            sum += order_mix(s.hash, level);
        }
    }
    return sum;
}

static inline bool order_start(order_t *o, const kolo_plan_t *p, bool any_order, bool in_place)
{
    memset(o, 0, sizeof(*o));
    o->p = p;
    o->any_order = any_order;
    o->in_place = in_place;
    for (uint32_t l = 0; l < p->nlanes; l++) order_touch(o, l);
    bool apart = p->nevents == 0;
    for (uint32_t key = 0; key < ORDER_KINDS * ORDER_KEYS; key++) {
        uint32_t lanes = o->lanes[key] & 0x7fffffff;
        if ((lanes & (lanes - 1)) && o->written[key]) apart = false;
    }
    return apart && p->nlanes < 30;
}

static inline bool order_equal_at(const kolo_plan_t *a, const kolo_plan_t *b, bool any_order, bool in_place)
{
    static order_t x, y;
    bool apart = order_start(&x, a, any_order, in_place);
    apart = order_start(&y, b, any_order, in_place) && apart;
    uint64_t sum = 0;
    if (!apart && a->nlanes != b->nlanes) return false;
    for (uint32_t l = 0; l < a->nlanes || l < b->nlanes; l++) {
        uint64_t h = l < a->nlanes ? order_lane(&x, l) : 0, g = l < b->nlanes ? order_lane(&y, l) : 0;
        if (!apart && h != g) return false;
        sum += h - g;
    }
    return sum == 0;
}

static inline bool order_equal(const kolo_plan_t *a, const kolo_plan_t *b, bool any_order, bool in_place)
{
    if (a->coll != b->coll || a->rank != b->rank || a->root != b->root || a->nsubs != b->nsubs ||
        a->slices != b->slices || a->depth != b->depth)
        return false;
    return order_equal_at(a, b, any_order, false) && (!in_place || order_equal_at(a, b, any_order, true));
}

#endif
