/* SPDX-License-Identifier: Apache-2.0
 *
 * The builder behind every algorithm: grows the arrays of a plan, keeps the first error, gives equal connections
 * one index, fills in LOOP and END. kolo_builder_finish() hands over a plan that kolo_plan_check() has accepted.
 */
#include "plan/builder.h"

#include <stdlib.h>
#include <string.h>

#define MAX_INSNS   (1u << 20)
#define MAX_CONNS   0xfffeu
#define MAX_LANES   4096u
#define MAX_LIST    0xffffu
#define MAX_NESTING 2

struct kolo_builder {
    kolo_plan_t *plan;
    uint32_t cap_insns, cap_conns, cap_lanes, cap_list;
    uint32_t open[MAX_NESTING]; /* instruction index of the loops that are open */
    uint32_t nopen;
    kolo_status_t status; /* first error; its text is the thread's last error */
    kolo_insn_t dummy;    /* where instructions go after an error */
};

static void fail(kolo_builder_t *b, kolo_status_t status, const char *what)
{
    if (b->status != KOLO_OK) return;
    b->status =
        kolo_fail(status, "building the %s plan for %s, rank %u of %u: %s", kolo_plan_algo_name(b->plan->algo),
                  kolo_coll_name(b->plan->coll), b->plan->rank, b->plan->nranks, what);
}

/* An array of the plan. */
typedef struct {
    void **array;
    uint32_t *cap, used, max;
    size_t size; /* of an element */
    const char *too_many;
} growing_t;

/* Makes room for `more` elements; NULL (and a sticky error) when there is none. */
static void *grow(kolo_builder_t *b, const growing_t *g, uint32_t more)
{
    if (b->status != KOLO_OK) return NULL;
    if (more > g->max - g->used) {
        fail(b, KOLO_ERR_INTERNAL, g->too_many);
        return NULL;
    }
    if (g->used + more > *g->cap) {
        uint32_t next = *g->cap ? *g->cap * 2 : 16;
        while (next < g->used + more) next *= 2;
        void *p = realloc(*g->array, next * g->size);
        if (!p) {
            fail(b, KOLO_ERR_NO_MEMORY, "no memory for its instructions");
            return NULL;
        }
        *g->array = p;
        *g->cap = next;
    }
    return (char *)*g->array + g->used * g->size;
}

kolo_builder_t *kolo_builder_open(kolo_coll_t coll, kolo_algo_t algo, const kolo_emit_env_t *env)
{
    kolo_builder_t *b = calloc(1, sizeof(*b));
    kolo_plan_t *plan = calloc(1, sizeof(*plan));
    if (!b || !plan) {
        free(b);
        free(plan);
        return NULL;
    }
    *plan = (kolo_plan_t){.coll = coll,
                          .algo = algo,
                          .nranks = env->nranks,
                          .rank = env->rank,
                          .root = env->root,
                          .nparts = 1,
                          .nsubs = 1,
                          .src_parts = 1,
                          .dst_parts = 1,
                          .slices = 1,
                          .depth = 2};
    b->plan = plan;
    return b;
}

void kolo_builder_grid(kolo_builder_t *b, uint32_t nparts, uint32_t nsubs, uint32_t src_parts, uint32_t dst_parts)
{
    b->plan->nparts = nparts;
    b->plan->nsubs = nsubs;
    b->plan->src_parts = src_parts;
    b->plan->dst_parts = dst_parts;
}

void kolo_builder_scratch(kolo_builder_t *b, uint32_t chunks)
{
    b->plan->nscratch = chunks;
}

void kolo_builder_queue(kolo_builder_t *b, uint32_t slices, uint32_t depth)
{
    b->plan->slices = slices;
    b->plan->depth = depth;
}

uint16_t kolo_builder_event(kolo_builder_t *b)
{
    if (b->plan->nevents == 0xffff) {
        fail(b, KOLO_ERR_INTERNAL, "more than 65535 events");
        return 0;
    }
    return (uint16_t)b->plan->nevents++;
}

static uint16_t add_conn(kolo_builder_t *b, kolo_dir_t dir, bool node, int32_t peer, uint32_t lane)
{
    kolo_plan_t *plan = b->plan;
    if (lane > 0xffff) {
        fail(b, KOLO_ERR_INTERNAL, "a connection lane above 65535");
        return 0;
    }
    /* Backwards: algorithms mostly ask for what they asked for last. */
    for (uint32_t i = plan->nconns; i-- > 0;) {
        const kolo_plan_conn_t *c = &plan->conns[i];
        if (c->dir == dir && c->node == node && c->peer == peer && c->lane == lane) return (uint16_t)i;
    }
    const growing_t g = {
        (void **)&plan->conns,        &b->cap_conns, plan->nconns, MAX_CONNS, sizeof(kolo_plan_conn_t),
        "more than 65534 connections"};
    kolo_plan_conn_t *c = grow(b, &g, 1);
    if (!c) return 0;
    *c = (kolo_plan_conn_t){.dir = (uint8_t)dir, .node = node, .lane = (uint16_t)lane, .peer = peer};
    return (uint16_t)plan->nconns++;
}

uint16_t kolo_builder_tx(kolo_builder_t *b, uint32_t peer, uint32_t lane)
{
    return add_conn(b, KOLO_DIR_TX, false, (int32_t)peer, lane);
}

uint16_t kolo_builder_rx(kolo_builder_t *b, uint32_t peer, uint32_t lane)
{
    return add_conn(b, KOLO_DIR_RX, false, (int32_t)peer, lane);
}

uint16_t kolo_builder_node_tx(kolo_builder_t *b, uint32_t lane)
{
    return add_conn(b, KOLO_DIR_TX, true, -1, lane);
}

uint16_t kolo_builder_node_rx(kolo_builder_t *b, uint32_t writer, uint32_t lane)
{
    return add_conn(b, KOLO_DIR_RX, true, (int32_t)writer, lane);
}

void kolo_builder_lane(kolo_builder_t *b)
{
    kolo_plan_t *plan = b->plan;
    if (b->nopen) fail(b, KOLO_ERR_INTERNAL, "a lane ends inside a loop");
    if (plan->nlanes && plan->lanes[plan->nlanes - 1].count == 0) return; /* an empty lane is no lane */
    const growing_t g = {(void **)&plan->lanes,    &b->cap_lanes,         plan->nlanes, MAX_LANES,
                         sizeof(kolo_plan_lane_t), "more than 4096 lanes"};
    kolo_plan_lane_t *l = grow(b, &g, 1);
    if (!l) return;
    *l = (kolo_plan_lane_t){.first = plan->ninsns};
    plan->nlanes++;
}

kolo_insn_t *kolo_builder_insn(kolo_builder_t *b, kolo_opcode_t op)
{
    kolo_plan_t *plan = b->plan;
    if (plan->nlanes == 0) kolo_builder_lane(b);
    const growing_t g = {(void **)&plan->insns, &b->cap_insns,
                         plan->ninsns,          MAX_INSNS,
                         sizeof(kolo_insn_t),   "more than a million instructions"};
    kolo_insn_t *in = grow(b, &g, 1);
    if (!in) in = &b->dummy;
    *in = (kolo_insn_t){.op = (uint8_t)op, .tx = KOLO_NO_CONN, .rx = KOLO_NO_CONN, .own_place = 0xffff};
    if (in != &b->dummy) {
        plan->ninsns++;
        plan->lanes[plan->nlanes - 1].count++;
    }
    return in;
}

void kolo_builder_send(kolo_builder_t *b, uint16_t tx, kolo_segment_t src)
{
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_SEND);
    in->tx = tx;
    in->src = src;
}

void kolo_builder_recv(kolo_builder_t *b, uint16_t rx, kolo_segment_t dst)
{
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_RECV);
    in->rx = rx;
    in->dst = dst;
}

void kolo_builder_copy(kolo_builder_t *b, kolo_segment_t dst, kolo_segment_t src)
{
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_COPY);
    in->dst = dst;
    in->src = src;
}

void kolo_builder_loop(kolo_builder_t *b, uint32_t count)
{
    if (b->nopen == MAX_NESTING) {
        fail(b, KOLO_ERR_INTERNAL, "loops nested deeper than two");
        return;
    }
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_LOOP);
    in->count = count;
    b->open[b->nopen++] = b->plan->ninsns - (in != &b->dummy);
}

void kolo_builder_end(kolo_builder_t *b)
{
    kolo_plan_t *plan = b->plan;
    if (b->nopen == 0) {
        fail(b, KOLO_ERR_INTERNAL, "a loop ends that was not begun");
        return;
    }
    uint32_t first = b->open[--b->nopen];
    if (b->status != KOLO_OK) return;
    if (plan->insns[first].count == 0 || first + 1 == plan->ninsns) { /* never run, or nothing to run */
        plan->lanes[plan->nlanes - 1].count -= plan->ninsns - first;
        plan->ninsns = first;
        return;
    }
    kolo_builder_insn(b, KOLO_OP_END)->count = first;
}

uint16_t kolo_builder_list(kolo_builder_t *b, const uint16_t *rx, uint32_t count)
{
    kolo_plan_t *plan = b->plan;
    const growing_t g = {(void **)&plan->list,          &b->cap_list, plan->nlist, MAX_LIST, sizeof(uint16_t),
                         "more than 65535 list entries"};
    uint16_t *at = grow(b, &g, count);
    if (!at) return 0;
    if (count) memcpy(at, rx, count * sizeof(*at));
    plan->nlist += count;
    return (uint16_t)(plan->nlist - count);
}

/* ---- finish ---- */

/* Returns how often the innermost loop around instruction `at` runs; 1 outside loops. */
static uint32_t turns_at(const kolo_plan_t *plan, uint32_t at)
{
    uint32_t inside = 0;
    for (uint32_t i = at; i-- > 0;) {
        if (plan->insns[i].op == KOLO_OP_END) inside++;
        if (plan->insns[i].op == KOLO_OP_LOOP && inside-- == 0) return plan->insns[i].count;
    }
    return 1;
}

/* Marks the connections that one operand touches. Out-of-range ones are left to kolo_plan_check(). */
static void mark_used(const kolo_plan_t *plan, uint16_t *used, uint16_t conn, int stride, uint32_t turns)
{
    if (conn == KOLO_NO_CONN) return;
    for (uint32_t t = 0; t < (stride ? turns : 1); t++) {
        int64_t c = conn + (int64_t)stride * t;
        if (c < 0 || c >= plan->nconns) return;
        used[c] = 1;
    }
}

/* Tells whether a renumbering keeps strided operands affine. */
static bool renumber_fits(const kolo_plan_t *plan, const uint16_t *to, uint16_t conn, int stride, uint32_t turns)
{
    if (conn == KOLO_NO_CONN || conn >= plan->nconns || !stride) return true;
    for (uint32_t t = 0; t < turns; t++) {
        int64_t c = conn + (int64_t)stride * t;
        if (c < 0 || c >= plan->nconns || to[c] != to[conn] + (int64_t)stride * t) return false;
    }
    return true;
}

/* Drops connections that nothing uses (made for a loop that runs no turn, say): comm would set them up at one
 * end. */
static void drop_unused_conns(kolo_builder_t *b)
{
    kolo_plan_t *plan = b->plan;
    uint16_t *to = calloc(plan->nconns ? plan->nconns : 1, sizeof(*to));
    if (!to) {
        fail(b, KOLO_ERR_NO_MEMORY, "no memory to renumber its connections");
        return;
    }
    for (uint32_t i = 0; i < plan->ninsns; i++) {
        const kolo_insn_t *in = &plan->insns[i];
        uint32_t turns = in->tx_stride || in->rx_stride ? turns_at(plan, i) : 1;
        mark_used(plan, to, in->tx, in->tx_stride, turns);
        mark_used(plan, to, in->rx, in->rx_stride, turns);
    }
    for (uint32_t i = 0; i < plan->nlist; i++)
        if (plan->list[i] < plan->nconns) to[plan->list[i]] = 1;
    uint16_t next = 0;
    for (uint32_t c = 0; c < plan->nconns; c++) to[c] = to[c] ? next++ : KOLO_NO_CONN;
    bool fits = next < plan->nconns;
    for (uint32_t i = 0; fits && i < plan->ninsns; i++) {
        const kolo_insn_t *in = &plan->insns[i];
        uint32_t turns = in->tx_stride || in->rx_stride ? turns_at(plan, i) : 1;
        fits = renumber_fits(plan, to, in->tx, in->tx_stride, turns) &&
               renumber_fits(plan, to, in->rx, in->rx_stride, turns);
    }
    if (fits) {
        for (uint32_t c = 0; c < plan->nconns; c++)
            if (to[c] != KOLO_NO_CONN) plan->conns[to[c]] = plan->conns[c];
        for (uint32_t i = 0; i < plan->ninsns; i++) {
            kolo_insn_t *in = &plan->insns[i];
            if (in->tx < plan->nconns) in->tx = to[in->tx];
            if (in->rx < plan->nconns) in->rx = to[in->rx];
        }
        for (uint32_t i = 0; i < plan->nlist; i++)
            if (plan->list[i] < plan->nconns) plan->list[i] = to[plan->list[i]];
        plan->nconns = next;
    }
    free(to);
}

kolo_status_t kolo_builder_finish(kolo_builder_t *b, kolo_plan_t **plan)
{
    if (b->nopen) fail(b, KOLO_ERR_INTERNAL, "its last lane ends inside a loop");
    if (b->plan->nlanes && b->plan->lanes[b->plan->nlanes - 1].count == 0) b->plan->nlanes--;
    if (b->status == KOLO_OK) drop_unused_conns(b);
    if (b->status == KOLO_OK) b->status = kolo_plan_check(b->plan);
    kolo_status_t status = b->status;
    if (status == KOLO_OK)
        *plan = b->plan;
    else
        kolo_plan_free(b->plan);
    free(b);
    return status;
}
