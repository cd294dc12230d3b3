/* SPDX-License-Identifier: Apache-2.0
 *
 * The structural check of one plan: after it, an executor can index, loop and nest without looking. It knows
 * nothing of what the plan is for; that is the verifier's business. It must hold for any bytes in the struct (it is
 * fuzzed), as long as the arrays are as long as their counts say.
 */
#include "plan/plan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANKS  (1u << 24)
#define MAX_CHUNKS (1u << 30)
#define MAX_TURNS  (1u << 24)
#define MAX_INSNS  (1u << 20)
#define MAX_MANY   256u
#define NO_LANE    0xffffffffu

enum { /* what an opcode has and needs */
       TX = 1,
       RX = 2,
       DST = 4,
       SRC = 8,
       TX_MAY = 16,
       SRC_MAY = 32,
       EVENT = 64,
       DST_PASS = 128, /* dst may be NONE and then still has n and shape */
       FINAL_MAY = 256
};

static const uint16_t needs[KOLO_OP_COUNT] = {
    [KOLO_OP_SEND] = TX | SRC,
    [KOLO_OP_RECV] = RX | DST,
    [KOLO_OP_RECV_REDUCE] = RX | DST | SRC | FINAL_MAY,
    [KOLO_OP_RECV_SEND] = RX | TX | DST | DST_PASS,
    [KOLO_OP_RECV_REDUCE_SEND] = RX | TX | SRC,
    [KOLO_OP_RECV_REDUCE_COPY_SEND] = RX | TX | DST | SRC | FINAL_MAY,
    [KOLO_OP_REDUCE_MANY] = DST | TX_MAY | SRC_MAY | FINAL_MAY,
    [KOLO_OP_COPY] = DST | SRC | FINAL_MAY,
    [KOLO_OP_REDUCE] = DST | SRC | FINAL_MAY,
    [KOLO_OP_EXPOSE] = TX | SRC,
    [KOLO_OP_GET] = RX | DST,
    [KOLO_OP_GET_REDUCE] = RX | DST | SRC | FINAL_MAY,
    [KOLO_OP_PUT] = RX | SRC,
    [KOLO_OP_RELEASE] = TX,
    [KOLO_OP_SIGNAL] = EVENT,
    [KOLO_OP_WAIT] = EVENT,
};

typedef struct {
    const kolo_plan_t *plan;
    uint32_t at;          /* instruction under check, or NO_LANE */
    uint32_t lane;        /* lane under check */
    uint32_t turns[2];    /* of the innermost and the outer loop */
    uint32_t *conn_lane;  /* which lane uses a connection */
    uint32_t *event_lane; /* which lane signals an event */
    uint32_t *seen;       /* REDUCE_MANY that listed a connection last, plus one */
} check_t;

static kolo_status_t bad(const check_t *c, const char *fmt, ...) KOLO_PRINTF(2, 3);
static kolo_status_t bad(const check_t *c, const char *fmt, ...)
{
    char what[256], where[96] = "";
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    if (c->at != NO_LANE)
        snprintf(where, sizeof(where), ", lane %" PRIu32 ", instruction %" PRIu32 " (%s)", c->lane, c->at,
                 kolo_plan_opcode_name((kolo_opcode_t)c->plan->insns[c->at].op));
    return kolo_fail(KOLO_ERR_INTERNAL, "the %s plan for %s of rank %" PRIu32 " of %" PRIu32 " is malformed%s: %s",
                     kolo_plan_algo_name(c->plan->algo), kolo_coll_name(c->plan->coll), c->plan->rank,
                     c->plan->nranks, where, what);
}

static uint64_t buf_chunks(const kolo_plan_t *p, unsigned buf)
{
    if (buf == KOLO_BUF_SRC) return (uint64_t)p->src_parts * p->nsubs;
    if (buf == KOLO_BUF_DST) return (uint64_t)p->dst_parts * p->nsubs;
    return p->nscratch;
}

static kolo_status_t check_numbers(const check_t *c)
{
    const kolo_plan_t *p = c->plan;
    if ((unsigned)p->coll >= KOLO_COLL_COUNT || (unsigned)p->algo >= KOLO_ALGO_COUNT)
        return bad(c, "unknown collective %u or algorithm %u", (unsigned)p->coll, (unsigned)p->algo);
    if (p->nranks == 0 || p->nranks > MAX_RANKS || p->rank >= p->nranks || p->root >= p->nranks)
        return bad(c, "rank or root %" PRIu32 " is out of range", p->root);
    if (p->nparts == 0 || p->nsubs == 0 || (uint64_t)p->nparts * p->nsubs > MAX_CHUNKS ||
        p->nscratch > MAX_CHUNKS || p->src_parts > p->nparts || p->dst_parts > p->nparts)
        return bad(c, "its grid of %" PRIu32 " parts of %" PRIu32 " does not fit its buffers", p->nparts, p->nsubs);
    if (p->slices != 1 && p->slices != 2 && p->slices != 4)
        return bad(c, "%" PRIu32 " slices per chunk (1, 2 or 4 are allowed)", p->slices);
    if (p->depth == 0 || p->depth > 65536) return bad(c, "queue depth %" PRIu32, p->depth);
    if (p->ninsns > MAX_INSNS || p->nconns > KOLO_NO_CONN || p->nlanes > 65536 || p->nlist > 65536 ||
        p->nevents > 65536)
        return bad(c, "too many instructions, connections, lanes, list entries or events");
    if ((p->ninsns && !p->insns) || (p->nconns && !p->conns) || (p->nlanes && !p->lanes) || (p->nlist && !p->list))
        return bad(c, "an array is missing");
    return KOLO_OK;
}

static int conn_order(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(uint64_t) * 2);
}

static kolo_status_t check_conns(const check_t *c)
{
    const kolo_plan_t *p = c->plan;
    uint64_t(*keys)[2] = malloc((p->nconns + 1) * sizeof(*keys));
    if (!keys) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to check a plan");
    kolo_status_t status = KOLO_OK;
    for (uint32_t i = 0; i < p->nconns && status == KOLO_OK; i++) {
        const kolo_plan_conn_t *k = &p->conns[i];
        bool node_tx = k->node && k->dir == KOLO_DIR_TX;
        if (k->dir > KOLO_DIR_RX || (node_tx ? k->peer != -1 : k->peer < 0 || (uint32_t)k->peer >= p->nranks) ||
            k->peer == (int32_t)p->rank)
            status = bad(c, "connection %" PRIu32 " goes to rank %" PRId32, i, k->peer);
        keys[i][0] = (uint64_t)k->dir << 32 | (uint64_t)k->node << 16 | k->lane;
        keys[i][1] = (uint64_t)(int64_t)k->peer;
    }
    qsort(keys, p->nconns, sizeof(*keys), conn_order);
    for (uint32_t i = 1; i < p->nconns && status == KOLO_OK; i++)
        if (memcmp(keys[i - 1], keys[i], sizeof(*keys)) == 0)
            status = bad(c, "two connections with rank %" PRId64 " are the same", (int64_t)keys[i][1]);
    free(keys);
    return status;
}

/* Checks that every chunk that the segment can name, in every turn, exists. */
static kolo_status_t check_segment(const check_t *c, const kolo_segment_t *s, const char *name, bool pass)
{
    if (s->buf > KOLO_BUF_SCRATCH) return bad(c, "%s names buffer %u", name, s->buf);
    uint64_t total = (uint64_t)c->plan->nparts * c->plan->nsubs;
    if (s->n == 0 || s->n > MAX_CHUNKS) return bad(c, "%s has %" PRIu32 " chunks", name, s->n);
    if (s->buf == KOLO_BUF_NONE) {
        if (!pass) return bad(c, "%s is missing", name);
        return s->n <= total ? KOLO_OK : bad(c, "%s has %" PRIu32 " chunks", name, s->n);
    }
    uint64_t chunks = buf_chunks(c->plan, s->buf);
    if (s->n > chunks || s->mod > chunks || (s->mod && s->n > s->mod))
        return bad(c, "%s has %" PRIu32 " chunks modulo %" PRIu32 " of a buffer of %" PRIu64, name, s->n, s->mod,
                   chunks);
    if (s->mod) return KOLO_OK;
    int64_t low = s->base, high = (int64_t)s->base + s->n - 1;
    for (int k = 0; k < 2; k++) {
        int64_t step = (int64_t)s->stride[k] * (int64_t)(c->turns[k] - 1);
        if (step < 0) low += step;
        if (step > 0) high += step;
    }
    if (low < 0 || (uint64_t)high >= chunks)
        return bad(c, "%s reaches chunks %" PRId64 " to %" PRId64 " of a buffer of %" PRIu64, name, low, high,
                   chunks);
    return KOLO_OK;
}

static kolo_status_t use_conn(check_t *c, int64_t index, kolo_dir_t dir)
{
    if (index < 0 || index >= c->plan->nconns) return bad(c, "connection %" PRId64 " does not exist", index);
    if (c->plan->conns[index].dir != dir)
        return bad(c, "connection %" PRId64 " is used in the wrong direction", index);
    uint32_t *lane = &c->conn_lane[index];
    if (*lane != NO_LANE && *lane != c->lane)
        return bad(c, "connection %" PRId64 " is used by lane %" PRIu32 " too", index, *lane);
    *lane = c->lane;
    return KOLO_OK;
}

static kolo_status_t check_conn(check_t *c, uint16_t conn, int stride, kolo_dir_t dir, bool need, bool may)
{
    const char *name = dir == KOLO_DIR_TX ? "tx" : "rx";
    if (conn == KOLO_NO_CONN) return need ? bad(c, "%s is missing", name) : KOLO_OK;
    if (!need && !may) return bad(c, "it has no use for %s", name);
    KOLO_TRY(use_conn(c, conn, dir));
    if (!stride) return KOLO_OK;
    for (uint32_t t = 1; t < c->turns[0]; t++) KOLO_TRY(use_conn(c, conn + (int64_t)stride * t, dir));
    return KOLO_OK;
}

static kolo_status_t check_many(check_t *c, const kolo_insn_t *in)
{
    bool own = in->own_place != 0xffff;
    if ((uint32_t)in->list_first + in->list_count > c->plan->nlist)
        return bad(c, "its list ends outside the plan's");
    if (own != (in->src.buf != KOLO_BUF_NONE)) return bad(c, "src and its place do not go together");
    if (own && in->own_place > in->list_count)
        return bad(c, "src is at place %u among %u", in->own_place, in->list_count);
    if (in->list_count + (uint32_t)own == 0 || in->list_count + (uint32_t)own > MAX_MANY)
        return bad(c, "%u operands (1 to %u are allowed)", in->list_count + (unsigned)own, MAX_MANY);
    for (uint32_t k = 0; k < in->list_count; k++) {
        uint16_t conn = c->plan->list[in->list_first + k];
        KOLO_TRY(use_conn(c, conn, KOLO_DIR_RX));
        if (c->seen[conn] == c->at + 1) return bad(c, "connection %u is listed twice", conn);
        c->seen[conn] = c->at + 1;
    }
    return KOLO_OK;
}

static kolo_status_t check_flags(const check_t *c, const kolo_insn_t *in, unsigned need)
{
    unsigned known = KOLO_FLAG_FINAL | KOLO_FLAG_DST_FIRST | KOLO_FLAG_RX_FIRST | KOLO_FLAG_RAW;
    bool reduces = kolo_coll_reduces(c->plan->coll);
    bool gets = in->op == KOLO_OP_GET || in->op == KOLO_OP_GET_REDUCE;
    bool rx_reduce = in->op == KOLO_OP_RECV_REDUCE || in->op == KOLO_OP_RECV_REDUCE_SEND ||
                     in->op == KOLO_OP_RECV_REDUCE_COPY_SEND || in->op == KOLO_OP_GET_REDUCE;
    if (in->flags & ~known) return bad(c, "unknown flags 0x%x", in->flags);
    if ((in->flags & KOLO_FLAG_FINAL) && (!(need & FINAL_MAY) || !reduces))
        return bad(c, "FINAL has no place here");
    if ((in->flags & KOLO_FLAG_RAW) && (!gets || !reduces)) return bad(c, "RAW has no place here");
    if ((in->flags & KOLO_FLAG_RX_FIRST) && !rx_reduce) return bad(c, "RX_FIRST has no place here");
    if ((in->flags & KOLO_FLAG_DST_FIRST) && in->op != KOLO_OP_REDUCE) return bad(c, "DST_FIRST has no place here");
    return KOLO_OK;
}

static kolo_status_t check_insn(check_t *c, const kolo_insn_t *in)
{
    unsigned need = needs[in->op];
    KOLO_TRY(check_flags(c, in, need));
    KOLO_TRY(check_conn(c, in->tx, in->tx_stride, KOLO_DIR_TX, need & TX, need & TX_MAY));
    KOLO_TRY(check_conn(c, in->rx, in->rx_stride, KOLO_DIR_RX, need & RX, false));
    bool src = need & SRC || (need & SRC_MAY && in->src.buf != KOLO_BUF_NONE);
    if (need & DST) KOLO_TRY(check_segment(c, &in->dst, "dst", need & DST_PASS));
    if (src) KOLO_TRY(check_segment(c, &in->src, "src", false));
    if (need & DST && src && in->dst.n != in->src.n)
        return bad(c, "dst has %" PRIu32 " chunks and src %" PRIu32, in->dst.n, in->src.n);
    if (in->op == KOLO_OP_EXPOSE && in->src.buf == KOLO_BUF_SCRATCH) return bad(c, "SCRATCH cannot be exposed");
    if (in->op == KOLO_OP_REDUCE_MANY) KOLO_TRY(check_many(c, in));
    if (need & EVENT && in->event >= c->plan->nevents) return bad(c, "event %u does not exist", in->event);
    if (in->op == KOLO_OP_SIGNAL) {
        uint32_t *lane = &c->event_lane[in->event];
        if (*lane != NO_LANE && *lane != c->lane)
            return bad(c, "event %u is signalled by lane %" PRIu32 " too", in->event, *lane);
        *lane = c->lane;
    }
    return KOLO_OK;
}

static kolo_status_t check_lane(check_t *c, const kolo_plan_lane_t *lane)
{
    const kolo_plan_t *p = c->plan;
    uint32_t open[2], nopen = 0;
    c->turns[0] = c->turns[1] = 1;
    for (uint32_t k = 0; k < lane->count; k++) {
        c->at = lane->first + k;
        const kolo_insn_t *in = &p->insns[c->at];
        if (in->op >= KOLO_OP_COUNT) return bad(c, "unknown opcode %u", in->op);
        if (in->op == KOLO_OP_LOOP) {
            if (nopen == 2) return bad(c, "loops nested deeper than two");
            if (in->count == 0 || in->count > MAX_TURNS) return bad(c, "%" PRIu32 " turns", in->count);
            open[nopen++] = c->at;
            c->turns[1] = c->turns[0];
            c->turns[0] = in->count;
        } else if (in->op == KOLO_OP_END) {
            if (nopen == 0 || in->count != open[nopen - 1]) return bad(c, "it ends no loop");
            nopen--;
            c->turns[0] = nopen ? p->insns[open[0]].count : 1;
            c->turns[1] = 1;
        } else {
            KOLO_TRY(check_insn(c, in));
        }
    }
    return nopen ? bad(c, "the lane ends inside a loop") : KOLO_OK;
}

static kolo_status_t check_lanes(check_t *c)
{
    const kolo_plan_t *p = c->plan;
    uint64_t end = 0;
    for (c->lane = 0; c->lane < p->nlanes; c->lane++) {
        const kolo_plan_lane_t *lane = &p->lanes[c->lane];
        c->at = NO_LANE;
        if (lane->first < end || (uint64_t)lane->first + lane->count > p->ninsns)
            return bad(c, "lane %" PRIu32 " has instructions %" PRIu32 " + %" PRIu32 " of %" PRIu32, c->lane,
                       lane->first, lane->count, p->ninsns);
        end = (uint64_t)lane->first + lane->count;
        KOLO_TRY(check_lane(c, lane));
    }
    return KOLO_OK;
}

kolo_status_t kolo_plan_check(const kolo_plan_t *plan)
{
    check_t c = {.plan = plan, .at = NO_LANE};
    KOLO_TRY(check_numbers(&c));
    KOLO_TRY(check_conns(&c));
    size_t words = 2 * (size_t)plan->nconns + plan->nevents;
    c.conn_lane = malloc((words + 1) * sizeof(uint32_t));
    if (!c.conn_lane) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to check a plan");
    c.event_lane = c.conn_lane + plan->nconns;
    c.seen = c.event_lane + plan->nevents;
    memset(c.conn_lane, 0xff, ((size_t)plan->nconns + plan->nevents) * sizeof(uint32_t));
    memset(c.seen, 0, plan->nconns * sizeof(uint32_t));
    kolo_status_t status = check_lanes(&c);
    free(c.conn_lane);
    return status;
}
