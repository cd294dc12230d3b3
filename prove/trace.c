/* SPDX-License-Identifier: Apache-2.0
 *
 * Is a recorded execution the plan's? Per connection the steps of the trace must be the plan's, in the plan's
 * order; what order different connections have among each other is free. This is what makes the proof of a plan
 * cover hand-written loops that claim to follow it.
 */
#include "prove/verify.h"
#include "prove/walk.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct {
    const kolo_plan_t *plan;
    const kolo_trace_step_t *steps;
    size_t *next;  /* by connection: its next step in the trace, plus one; 0: no more */
    size_t *after; /* by step: the next step of the same connection, plus one */
} trace_t;

static int64_t find_conn(const kolo_plan_t *p, const kolo_trace_step_t *s)
{
    for (uint32_t c = 0; c < p->nconns; c++) {
        const kolo_plan_conn_t *k = &p->conns[c];
        if (k->dir == s->dir && k->node == s->node && k->lane == s->lane && k->peer == s->peer) return c;
    }
    return -1;
}

/* Threads the steps of each connection together. */
static kolo_status_t sort_steps(trace_t *t, size_t count)
{
    size_t *last = calloc((size_t)t->plan->nconns + 1, sizeof(*last));
    if (!last) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to check a trace");
    for (size_t i = 0; i < count; i++) {
        const kolo_trace_step_t *s = &t->steps[i];
        int64_t c = find_conn(t->plan, s);
        if (c < 0) {
            free(last);
            return kolo_fail(KOLO_ERR_INTERNAL,
                             "trace of rank %" PRIu32
                             ", step %zu: the %s plan for %s has no %s %s connection %u with "
                             "rank %" PRId32,
                             t->plan->rank, i, kolo_plan_algo_name(t->plan->algo), kolo_coll_name(t->plan->coll),
                             s->node ? "node" : "pair", s->dir == KOLO_DIR_TX ? "tx" : "rx", s->lane, s->peer);
        }
        *(last[c] ? &t->after[last[c] - 1] : &t->next[c]) = i + 1;
        last[c] = i + 1;
    }
    free(last);
    return KOLO_OK;
}

static kolo_status_t expect(trace_t *t, uint32_t conn, const kolo_segment_t *seg, uint32_t chunk, uint32_t tile)
{
    const kolo_plan_t *p = t->plan;
    const kolo_plan_conn_t *c = &p->conns[conn];
    size_t at = t->next[conn];
    const char *dir = c->dir == KOLO_DIR_TX ? "tx to" : "rx from";
    if (!at)
        return kolo_fail(KOLO_ERR_INTERNAL,
                         "trace of rank %" PRIu32 " (%s by %s): %s rank %" PRId32 " ends before chunk %" PRIu32
                         " of buffer %u, tile %" PRIu32,
                         p->rank, kolo_coll_name(p->coll), kolo_plan_algo_name(p->algo), dir, c->peer, chunk,
                         seg->buf, tile);
    const kolo_trace_step_t *s = &t->steps[at - 1];
    t->next[conn] = t->after[at - 1];
    if (s->buf == seg->buf && s->tile == tile && (s->chunk == chunk || seg->buf == KOLO_BUF_NONE)) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INTERNAL,
                     "trace of rank %" PRIu32 " (%s by %s), step %zu, %s rank %" PRId32 ": chunk %" PRIu32
                     " of buffer %u, tile %" PRIu32 ", but the plan has chunk %" PRIu32
                     " of buffer %u, tile %" PRIu32,
                     p->rank, kolo_coll_name(p->coll), kolo_plan_algo_name(p->algo), at - 1, dir, c->peer, s->chunk,
                     s->buf, s->tile, chunk, seg->buf, tile);
}

static kolo_status_t walk_insn(trace_t *t, const kolo_insn_t *in, const kolo_cursor_t *at, uint32_t tile)
{
    const kolo_segment_t *seg = kolo_insn_payload(in);
    uint32_t i = kolo_cursor_i(at), j = kolo_cursor_j(at);
    for (uint32_t k = 0; k < seg->n; k++) {
        uint32_t chunk = kolo_segment_chunk(seg, i, j, k);
        if (in->rx != KOLO_NO_CONN)
            KOLO_TRY(expect(t, (uint32_t)(in->rx + in->rx_stride * (int)i), seg, chunk, tile));
        for (uint32_t e = 0; in->op == KOLO_OP_REDUCE_MANY && e < in->list_count; e++)
            KOLO_TRY(expect(t, t->plan->list[in->list_first + e], seg, chunk, tile));
        if (in->tx != KOLO_NO_CONN)
            KOLO_TRY(expect(t, (uint32_t)(in->tx + in->tx_stride * (int)i), seg, chunk, tile));
    }
    return KOLO_OK;
}

static kolo_status_t walk(trace_t *t, uint32_t tiles)
{
    for (uint32_t l = 0; l < t->plan->nlanes; l++)
        for (uint32_t tile = 0; tile < tiles; tile++) {
            kolo_cursor_t at;
            kolo_cursor_start(&at);
            for (const kolo_insn_t *in; (in = kolo_cursor_at(&at, t->plan, l)); kolo_cursor_next(&at))
                if (kolo_insn_has_chunks(in)) KOLO_TRY(walk_insn(t, in, &at, tile));
        }
    for (uint32_t c = 0; c < t->plan->nconns; c++)
        if (t->next[c])
            return kolo_fail(KOLO_ERR_INTERNAL,
                             "trace of rank %" PRIu32 ", step %zu: the plan has no further step with rank %" PRId32,
                             t->plan->rank, t->next[c] - 1, t->plan->conns[c].peer);
    return KOLO_OK;
}

kolo_status_t kolo_prove_verify_trace(const kolo_plan_t *plan, uint32_t tiles, const kolo_trace_step_t *steps,
                                      size_t count)
{
    KOLO_TRY(kolo_plan_check(plan));
    trace_t t = {.plan = plan, .steps = steps};
    t.next = calloc((size_t)plan->nconns + 1, sizeof(*t.next));
    t.after = calloc(count + 1, sizeof(*t.after));
    kolo_status_t status =
        t.next && t.after ? sort_steps(&t, count) : kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to check a trace");
    if (status == KOLO_OK) status = walk(&t, tiles);
    free(t.next);
    free(t.after);
    return status;
}
