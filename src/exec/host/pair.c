/* SPDX-License-Identifier: Apache-2.0
 *
 * Two ranks without the interpreter: plans in which each sends the other one message and makes its result of that
 * and of its own data, and those of a send or a receive. Where the message fits a slot such a plan is one to three
 * instructions, and interpreting them takes a third of a small operation. What goes over the connections is the
 * same, so the other end may interpret its plan.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "exec/host/task.h"

#include <string.h>

bool kolo_pair_is(const kolo_plan_t *p)
{
    bool one = p->algo == KOLO_ALGO_ONE_STEP, direct = p->algo == KOLO_ALGO_DIRECT;
    if (p->nranks != 2 || p->nconns != 2 || p->nsubs != 1) return false;
    switch (p->coll) {
    case KOLO_COLL_ALL_REDUCE: /* the direct one takes two steps */
        return one && p->src_parts == 1 && p->dst_parts == 1;
    case KOLO_COLL_ALL_GATHER:
        return (one || direct) && p->src_parts == 1 && p->dst_parts == 2;
    case KOLO_COLL_REDUCE_SCATTER:
        return (one || direct) && p->src_parts == 2 && p->dst_parts == 1;
    case KOLO_COLL_ALL_TO_ALL:
        return direct && p->src_parts == 2 && p->dst_parts == 2;
    default:
        return false;
    }
}

/* Traces the steps as the interpreter names them. */
static void trace(kolo_task_t *t, kolo_dir_t dir, kolo_buf_t buf, uint32_t parts)
{
    const kolo_plan_t *p = t->pair.plan;
    const kolo_plan_conn_t *c = &p->conns[p->conns[0].dir == dir ? 0 : 1];
    kolo_trace_step_t step = {.peer = c->peer,
                              .dir = c->dir,
                              .node = c->node,
                              .lane = c->lane,
                              .buf = buf,
                              .chunk = parts == 2 ? 1 - p->rank : 0};
    kolo_task_trace(t, &step);
}

/* Puts the data. Who looks at the peer's slot before the own stores are in the cache takes the line from the peer
 * while it is being written; so they are waited for. 4 KB between two ranks: 1.2 us without, 1.05 with. */
static void put(kolo_task_t *t, const kolo_pair_t *x)
{
    const kolo_reducer_t *r = t->reducer;
    if (x->out_bytes) {
        if (t->reducing && KOLO_UNLIKELY(r->pre))
            kolo_reduce_load(r, kolo_tx_payload(x->tx), x->out.base, x->out.count, true, false);
        else
            memcpy(kolo_tx_payload(x->tx), x->out.base, x->out_bytes);
        kolo_tx_post(x->tx, x->out_bytes, 0, t->signature, t->operation);
        trace(t, KOLO_DIR_TX, KOLO_BUF_SRC, x->plan->src_parts);
        kolo_drain_stores();
    }
    if (t->reducing) return;
    if (x->kept.count && x->kept.base != x->own.base)
        memcpy(x->kept.base, x->own.base, x->kept.count * t->reducer->elem);
}

static void get(kolo_task_t *t, const kolo_pair_t *x)
{
    const void *theirs = kolo_rx_payload(x->rx), *srcs[2];
    if (!t->reducing) {
        memcpy(x->in.base, theirs, x->in_bytes);
    } else {
        uint32_t me = x->plan->rank;
        srcs[me] = x->own.base;
        srcs[1 - me] = theirs;
        kolo_reduce_many_t what = {.dst = x->in.base, .srcs = srcs, .nsrcs = 2, .raw = (int)me, .final = true};
        kolo_reduce_many(t->reducer, &what, x->in.count);
    }
    kolo_rx_release(x->rx);
    trace(t, KOLO_DIR_RX, KOLO_BUF_DST, x->plan->dst_parts);
}

/* Checks that the slot that has come is the peer's part of this operation. */
static inline kolo_status_t check(kolo_task_t *t, const kolo_pair_t *x)
{
    const kolo_slot_header_t *h = kolo_rx_header(x->rx);
    if (KOLO_LIKELY(h->bytes == x->in_bytes && h->signature == t->signature && h->operation == t->operation &&
                    h->flags == 0))
        return KOLO_OK;
    return kolo_task_mismatch(t, x->rx, x->in_bytes, h->bytes);
}

static kolo_status_t pair_step(kolo_task_t *t, bool *moved)
{
    kolo_pair_t *x = &t->pair;
    if (!x->posted) {
        if (x->out_bytes &&
            KOLO_UNLIKELY(!kolo_tx_ready(x->tx))) { /* what came instead may be why there is no room */
            if (x->in_bytes && kolo_rx_ready(x->rx)) KOLO_TRY(check(t, x));
            return KOLO_IN_PROGRESS;
        }
        KOLO_FAIL_POINT_TRY("exec.pair.put");
        put(t, x);
        x->posted = true;
        *moved = true;
    }
    if (!x->in_bytes) return KOLO_OK;
    if (!kolo_rx_ready(x->rx)) return KOLO_IN_PROGRESS;
    KOLO_TRY(check(t, x));
    KOLO_FAIL_POINT_TRY("exec.pair.get");
    get(t, x);
    x->taken = true;
    *moved = true;
    return KOLO_OK;
}

/* Takes a step over a wire, which has not sent what it has copied before it is asked again. */
static kolo_status_t wire_step(kolo_task_t *t, bool *moved)
{
    kolo_pair_t *x = &t->pair;
    if (x->in_bytes && !x->taken) {
        if (x->rx->caps & KOLO_CAP_AHEAD) x->rx->ops->rx_expect(x->rx, 0, NULL, x->in_bytes);
        KOLO_TRY(pair_step(t, moved));
    } else if (!x->posted) {
        KOLO_TRY(pair_step(t, moved));
    }
    return !x->out_bytes || kolo_tx_sent(x->tx) ? KOLO_OK : KOLO_IN_PROGRESS;
}

static kolo_status_t visit_waits(kolo_task_t *task, kolo_task_visit_fn_t visit, void *arg)
{
    kolo_pair_t *x = &task->pair;
    if (!x->posted && x->out_bytes && !kolo_tx_ready(x->tx))
        KOLO_TRY(visit(x->tx, NULL, "room in the queue to", arg));
    if (x->in_bytes && !x->taken && !kolo_rx_ready(x->rx)) KOLO_TRY(visit(NULL, x->rx, "data from", arg));
    if (x->posted && (!x->in_bytes || x->taken) && x->out_bytes && !kolo_tx_sent(x->tx))
        return visit(x->tx, NULL, "the last bytes to leave for", arg);
    return KOLO_OK;
}

static void cancel(kolo_task_t *task)
{
    (void)task; /* no memory was named to a wire */
}

static const char *algorithm(const kolo_task_t *task)
{
    return kolo_plan_algo_name(task->pair.plan->algo);
}

static const kolo_task_way_t exchange = {visit_waits, cancel, algorithm};

/* Returns the most bytes of a message that need not be interpreted: longer ones are posted from the caller's
 * memory. */
static uint32_t most_bytes(const kolo_tx_t *tx, const kolo_rx_t *rx, uint32_t piece_bytes)
{
    uint32_t caps = (tx ? tx->caps : 0) | (rx ? rx->caps : 0);
    return caps & KOLO_CAP_POST_FROM ? KOLO_MIN(piece_bytes, KOLO_POST_FROM_LEAST) : piece_bytes;
}

static void start(kolo_task_t *t)
{
    kolo_pair_t *x = &t->pair;
    uint32_t caps = (x->tx ? x->tx->caps : 0) | (x->rx ? x->rx->caps : 0);
    t->step = caps & (KOLO_CAP_STEP | KOLO_CAP_AHEAD) ? wire_step : pair_step;
    t->way = &exchange;
}

bool kolo_pair_start(kolo_task_t *t)
{
    const kolo_interp_t *in_pieces = &t->interp; /* shares its memory with t->pair */
    const kolo_plan_t *p = in_pieces->plan;
    const kolo_part_t *src_parts = in_pieces->src_parts, *dst_parts = in_pieces->dst_parts;
    uint32_t me = p->rank, peer = 1 - me;
    kolo_tx_t *to = in_pieces->tx[0] ? in_pieces->tx[0] : in_pieces->tx[1];
    kolo_rx_t *from = in_pieces->rx[0] ? in_pieces->rx[0] : in_pieces->rx[1];
    bool sends_parts = p->src_parts == 2, gets_parts = p->dst_parts == 2;
    const kolo_part_t *out = &src_parts[sends_parts ? peer : 0], *in = &dst_parts[gets_parts ? peer : 0];
    const uint64_t most = most_bytes(to, from, in_pieces->piece_bytes) >> __builtin_ctzl(t->reducer->elem);
    if (out->count > most || in->count > most) return false;
    t->pair = (kolo_pair_t){.plan = p,
                            .tx = to,
                            .rx = from,
                            .out = *out,
                            .own = src_parts[sends_parts ? me : 0],
                            .in = *in,
                            .kept = dst_parts[gets_parts ? me : 0],
                            .out_bytes = (uint32_t)(out->count * t->reducer->elem),
                            .in_bytes = (uint32_t)(in->count * t->reducer->elem)};
    start(t);
    return true;
}

bool kolo_pair_start_message(kolo_task_t *t, const kolo_plan_t *p, kolo_tx_t *tx, kolo_rx_t *rx,
                             const kolo_part_t *part, uint32_t piece_bytes)
{
    if (part->count > most_bytes(tx, rx, piece_bytes)) return false;
    t->pair = (kolo_pair_t){.plan = p, .tx = tx, .rx = rx};
    if (tx) {
        t->pair.out = *part;
        t->pair.out_bytes = (uint32_t)part->count;
    } else {
        t->pair.in = *part;
        t->pair.in_bytes = (uint32_t)part->count;
    }
    start(t);
    return true;
}
