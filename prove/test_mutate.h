/* SPDX-License-Identifier: Apache-2.0
 *
 * Damage for the verifier's own test: each function changes one thing in the plan of one rank (or, for queues, of
 * all), and says whether it found something to change. Included by mutate_test.c only.
 */
#ifndef KOLO_PROVE_TEST_MUTATE_H
#define KOLO_PROVE_TEST_MUTATE_H

#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mutate_state = 88172645463325252u;
static inline uint32_t mutate_random(uint32_t below)
{
    mutate_state ^= mutate_state << 13;
    mutate_state ^= mutate_state >> 7;
    mutate_state ^= mutate_state << 17;
    return below ? (uint32_t)((mutate_state >> 16) % below) : 0;
}

/* Copies a plan, with room for one more instruction, so that one can be doubled. */
static inline kolo_plan_t *mutate_copy(const kolo_plan_t *p)
{
    kolo_plan_t *q = malloc(sizeof(*q));
    *q = *p;
    q->insns = calloc(p->ninsns + 1, sizeof(*q->insns));
    q->conns = calloc(p->nconns + 1, sizeof(*q->conns));
    q->lanes = calloc(p->nlanes + 1, sizeof(*q->lanes));
    q->list = calloc(p->nlist + 1, sizeof(*q->list));
    if (p->ninsns) memcpy(q->insns, p->insns, p->ninsns * sizeof(*q->insns));
    if (p->nconns) memcpy(q->conns, p->conns, p->nconns * sizeof(*q->conns));
    if (p->nlanes) memcpy(q->lanes, p->lanes, p->nlanes * sizeof(*q->lanes));
    if (p->nlist) memcpy(q->list, p->list, p->nlist * sizeof(*q->list));
    return q;
}

static inline bool is_control(const kolo_insn_t *in)
{
    return in->op == KOLO_OP_LOOP || in->op == KOLO_OP_END;
}

/* Returns a random instruction that is no LOOP or END; NULL if there is none. */
static inline kolo_insn_t *any_insn(kolo_plan_t *p)
{
    for (int tries = 0; p->ninsns && tries < 50; tries++) {
        kolo_insn_t *in = &p->insns[mutate_random(p->ninsns)];
        if (!is_control(in)) return in;
    }
    return NULL;
}

static inline kolo_insn_t *any_op(kolo_plan_t *p, unsigned low, unsigned high)
{
    for (int tries = 0; p->ninsns && tries < 50; tries++) {
        kolo_insn_t *in = &p->insns[mutate_random(p->ninsns)];
        if (in->op >= low && in->op <= high) return in;
    }
    return NULL;
}

static inline kolo_segment_t *any_segment(kolo_plan_t *p)
{
    kolo_insn_t *in = any_op(p, KOLO_OP_SEND, KOLO_OP_PUT);
    if (!in) return NULL;
    if (in->dst.n == 0 || (in->src.n && mutate_random(2))) return &in->src;
    return &in->dst;
}

static inline uint32_t chunks_of(const kolo_plan_t *p, unsigned buf)
{
    uint32_t parts = buf == KOLO_BUF_SRC ? p->src_parts : p->dst_parts;
    return buf == KOLO_BUF_SCRATCH ? p->nscratch : parts * p->nsubs;
}

/* ---- damages ---- */

static inline bool wrong_peer(kolo_plan_t *p)
{
    if (!p->nconns) return false;
    kolo_plan_conn_t *c = &p->conns[mutate_random(p->nconns)];
    if (c->peer < 0) return false;
    c->peer = (int32_t)mutate_random(p->nranks);
    return true;
}

static inline bool wrong_conn_lane(kolo_plan_t *p)
{
    if (!p->nconns) return false;
    p->conns[mutate_random(p->nconns)].lane ^= 1;
    return true;
}

static inline bool swapped_peers(kolo_plan_t *p)
{
    if (p->nconns < 2) return false;
    kolo_plan_conn_t *a = &p->conns[mutate_random(p->nconns)], *b = &p->conns[mutate_random(p->nconns)];
    int32_t t = a->peer;
    a->peer = b->peer;
    b->peer = t;
    return a != b;
}

static inline bool wrong_conn(kolo_plan_t *p)
{
    kolo_insn_t *in = any_insn(p);
    if (!in || !p->nconns) return false;
    uint16_t *c = in->tx != KOLO_NO_CONN && (in->rx == KOLO_NO_CONN || mutate_random(2)) ? &in->tx : &in->rx;
    if (*c == KOLO_NO_CONN) return false;
    *c = (uint16_t)mutate_random(p->nconns);
    return true;
}

static inline bool wrong_chunk(kolo_plan_t *p)
{
    kolo_segment_t *s = any_segment(p);
    if (!s || s->buf == KOLO_BUF_NONE) return false;
    s->base = (int32_t)mutate_random(chunks_of(p, s->buf));
    return true;
}

static inline bool wrong_buffer(kolo_plan_t *p)
{
    kolo_segment_t *s = any_segment(p);
    if (!s) return false;
    s->buf = (uint8_t)mutate_random(4);
    return true;
}

static inline bool wrong_stride(kolo_plan_t *p)
{
    kolo_insn_t *in = any_insn(p);
    if (!in) return false;
    int32_t d = mutate_random(2) ? 1 : -1;
    switch (mutate_random(5)) {
    case 0:
        in->dst.stride[0] += d;
        break;
    case 1:
        in->src.stride[0] += d;
        break;
    case 2:
        in->dst.stride[1] += d;
        break;
    case 3:
        in->tx_stride = (int16_t)(in->tx_stride + d);
        break;
    default:
        in->rx_stride = (int16_t)(in->rx_stride + d);
    }
    return true;
}

static inline bool wrong_modulus(kolo_plan_t *p)
{
    kolo_segment_t *s = any_segment(p);
    if (!s) return false;
    s->mod = mutate_random(2) ? 0 : 1 + mutate_random(chunks_of(p, s->buf) + 1);
    return true;
}

static inline bool wrong_shape(kolo_plan_t *p)
{
    kolo_segment_t *s = any_segment(p);
    if (!s || s->buf == KOLO_BUF_SRC || s->buf == KOLO_BUF_DST) return false;
    s->shape += 1 + (int32_t)mutate_random(p->nparts * p->nsubs);
    return true;
}

static inline bool wrong_length(kolo_plan_t *p)
{
    kolo_insn_t *in = any_op(p, KOLO_OP_SEND, KOLO_OP_PUT);
    if (!in) return false;
    uint32_t d = mutate_random(2) ? 1u : (uint32_t)-1;
    if (in->src.n) in->src.n += d;
    if (in->dst.n) in->dst.n += d;
    return true;
}

static inline bool wrong_loop_count(kolo_plan_t *p)
{
    kolo_insn_t *in = any_op(p, KOLO_OP_LOOP, KOLO_OP_LOOP);
    if (!in) return false;
    in->count += mutate_random(2) ? 1u : (uint32_t)-1;
    return true;
}

static inline bool wrong_opcode(kolo_plan_t *p)
{
    kolo_insn_t *in = any_insn(p);
    if (!in) return false;
    uint8_t was = in->op;
    switch (was) {
    case KOLO_OP_SEND:
        in->op = KOLO_OP_EXPOSE;
        break;
    case KOLO_OP_EXPOSE:
        in->op = KOLO_OP_SEND;
        break;
    case KOLO_OP_RECV:
    case KOLO_OP_PUT:
        in->op = KOLO_OP_GET;
        break;
    case KOLO_OP_GET:
        in->op = KOLO_OP_RECV;
        break;
    case KOLO_OP_GET_REDUCE:
        in->op = KOLO_OP_GET;
        in->flags &= KOLO_FLAG_RAW;
        break;
    case KOLO_OP_RECV_SEND:
        in->op = KOLO_OP_RECV;
        in->tx = KOLO_NO_CONN;
        break;
    case KOLO_OP_RECV_REDUCE:
        in->op = KOLO_OP_RECV;
        break;
    case KOLO_OP_RECV_REDUCE_SEND:
        in->op = KOLO_OP_RECV_SEND;
        in->dst = (kolo_segment_t){.n = in->src.n, .shape = in->src.base, .shape_stride = {in->src.stride[0], 0}};
        in->flags = 0;
        break;
    case KOLO_OP_RECV_REDUCE_COPY_SEND:
        in->op = mutate_random(2) ? KOLO_OP_RECV_SEND : KOLO_OP_RECV_REDUCE_SEND;
        in->flags &= (uint8_t)~KOLO_FLAG_FINAL;
        break;
    case KOLO_OP_COPY:
        in->op = KOLO_OP_REDUCE;
        break;
    case KOLO_OP_REDUCE:
        in->op = KOLO_OP_COPY;
        in->flags &= KOLO_FLAG_FINAL;
        break;
    case KOLO_OP_SIGNAL:
        in->op = KOLO_OP_WAIT;
        break;
    case KOLO_OP_WAIT:
        in->op = KOLO_OP_SIGNAL;
        break;
    default:
        return false;
    }
    return true;
}

static inline bool wrong_event(kolo_plan_t *p)
{
    kolo_insn_t *in = any_op(p, KOLO_OP_SIGNAL, KOLO_OP_WAIT);
    if (!in) return false;
    in->event = (uint16_t)mutate_random(p->nevents);
    return true;
}

static inline bool wrong_list(kolo_plan_t *p)
{
    kolo_insn_t *in = any_op(p, KOLO_OP_REDUCE_MANY, KOLO_OP_REDUCE_MANY);
    if (!in || in->list_count == 0) return false;
    uint16_t *l = p->list + in->list_first, t = l[0];
    uint32_t k = mutate_random(in->list_count);
    switch (mutate_random(4)) {
    case 0:
        l[0] = l[k];
        l[k] = t;
        break;
    case 1:
        l[k] = (uint16_t)mutate_random(p->nconns);
        break;
    case 2:
        in->own_place = (uint16_t)mutate_random(in->list_count + 1u);
        break;
    default:
        in->list_count--;
    }
    return true;
}

static inline bool wrong_flag(kolo_plan_t *p)
{
    static const uint8_t flags[] = {KOLO_FLAG_FINAL, KOLO_FLAG_FINAL, KOLO_FLAG_RX_FIRST, KOLO_FLAG_DST_FIRST,
                                    KOLO_FLAG_RAW};
    kolo_insn_t *in = any_op(p, KOLO_OP_SEND, KOLO_OP_PUT);
    if (!in) return false;
    in->flags ^= flags[mutate_random(5)];
    return true;
}

/* Inserts (delta 1) or takes out (delta -1) one place at `at`; keeps lanes and loops. */
static inline void shift(kolo_plan_t *p, uint32_t at, int delta)
{
    if (delta > 0)
        memmove(p->insns + at + 1, p->insns + at, (p->ninsns - at) * sizeof(*p->insns));
    else
        memmove(p->insns + at, p->insns + at + 1, (p->ninsns - at - 1) * sizeof(*p->insns));
    p->ninsns += (uint32_t)delta;
    for (uint32_t i = 0; i < p->ninsns; i++)
        if (p->insns[i].op == KOLO_OP_END && p->insns[i].count >= at) p->insns[i].count += (uint32_t)delta;
    for (uint32_t l = 0; l < p->nlanes; l++) {
        if (p->lanes[l].first > at)
            p->lanes[l].first += (uint32_t)delta;
        else if (at < p->lanes[l].first + p->lanes[l].count)
            p->lanes[l].count += (uint32_t)delta;
    }
}

static inline bool dropped_step(kolo_plan_t *p)
{
    kolo_insn_t *in = any_insn(p);
    if (!in) return false;
    shift(p, (uint32_t)(in - p->insns), -1);
    return true;
}

static inline bool missing_order(kolo_plan_t *p)
{
    kolo_insn_t *in = any_op(p, KOLO_OP_RELEASE, KOLO_OP_WAIT);
    if (!in) return false;
    shift(p, (uint32_t)(in - p->insns), -1);
    return true;
}

static inline bool doubled_step(kolo_plan_t *p)
{
    kolo_insn_t *in = any_insn(p);
    if (!in) return false;
    shift(p, (uint32_t)(in - p->insns), 1);
    return true;
}

static inline bool swapped_steps(kolo_plan_t *p)
{
    kolo_insn_t *in = any_insn(p);
    if (!in || in + 1 == p->insns + p->ninsns || is_control(in + 1)) return false;
    kolo_insn_t t = in[0];
    in[0] = in[1];
    in[1] = t;
    return true;
}

/* Makes something wait, receive or order later than it should: what comes after it reads early. */
static inline bool early_read(kolo_plan_t *p)
{
    kolo_insn_t *in = any_insn(p);
    uint32_t steps = 1 + mutate_random(4);
    bool moved = false;
    for (; in && steps && in + 1 < p->insns + p->ninsns && !is_control(in + 1); steps--, in++, moved = true) {
        kolo_insn_t t = in[0];
        in[0] = in[1];
        in[1] = t;
    }
    return moved;
}

/* Moves the first step of a lane to another lane, or the other way round. */
static inline bool wrong_lane(kolo_plan_t *p)
{
    if (p->nlanes < 2) return false;
    uint32_t l = mutate_random(p->nlanes - 1);
    kolo_plan_lane_t *a = &p->lanes[l], *b = &p->lanes[l + 1];
    if (mutate_random(2)) {
        a->count++;
        b->first++;
        b->count--;
    } else {
        a->count--;
        b->first--;
        b->count++;
    }
    return true;
}

static inline bool wrong_numbers(kolo_plan_t *p)
{
    switch (mutate_random(5)) {
    case 0:
        p->slices = p->slices == 1 ? 2 : 1;
        break;
    case 1:
        p->depth++;
        break;
    case 2:
        p->nsubs++;
        break;
    case 3:
        p->root = (p->root + 1) % p->nranks;
        break;
    default:
        p->rank = (p->rank + 1) % p->nranks;
    }
    return true;
}

typedef struct {
    const char *name;
    bool (*change)(kolo_plan_t *p);
} damage_kind_t;

static const damage_kind_t damage_kinds[] = {
    {"wrong peer", wrong_peer},
    {"wrong connection lane", wrong_conn_lane},
    {"swapped peers", swapped_peers},
    {"wrong connection", wrong_conn},
    {"wrong chunk", wrong_chunk},
    {"wrong buffer", wrong_buffer},
    {"wrong stride", wrong_stride},
    {"wrong modulus", wrong_modulus},
    {"wrong shape", wrong_shape},
    {"wrong length", wrong_length},
    {"wrong loop count", wrong_loop_count},
    {"wrong opcode", wrong_opcode},
    {"wrong event", wrong_event},
    {"wrong list", wrong_list},
    {"wrong flag", wrong_flag},
    {"dropped step", dropped_step},
    {"missing order", missing_order},
    {"doubled step", doubled_step},
    {"swapped steps", swapped_steps},
    {"early read", early_read},
    {"wrong lane", wrong_lane},
    {"wrong numbers", wrong_numbers},
    {"shorter queue", NULL}, /* on all ranks: mutate_test.c */
};
#define DAMAGE_KINDS (sizeof(damage_kinds) / sizeof(damage_kinds[0]))

#endif
