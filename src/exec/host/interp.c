/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan interpreter. Each lane is run until it would have to wait, then the next one; a call that could do
 * nothing in any lane returns KOLO_IN_PROGRESS. One turn of the loop in data_insn() handles one slot: the queues
 * are asked, a handler moves or reduces the bytes, the slot is posted or released.
 *
 * A lane runs at most one tile ahead of the slowest one, even where queues are deeper: what it copied in should be
 * in cache still when another lane reads it. (A plan is free of deadlock tile by tile, so waiting for a lane of an
 * earlier tile adds none.)
 */
#include "exec/host/interp.h"
#include "base/failpoint.h"

#include <inttypes.h>
#include <string.h>

static const kolo_task_way_t interpreted;

static void trace_conn(const kolo_slot_t *s, uint16_t conn, const kolo_segment_t *seg, uint32_t k)
{
    const kolo_plan_conn_t *c = &s->task->interp.plan->conns[conn];
    kolo_trace_step_t step = {.peer = c->peer,
                              .dir = c->dir,
                              .node = c->node,
                              .lane = c->lane,
                              .buf = seg->buf,
                              .chunk = kolo_segment_chunk(seg, s->lane->i, s->lane->j, k),
                              .tile = s->lane->tile};
    kolo_task_trace_step(s->task, &step);
}

void kolo_slot_trace(const kolo_slot_t *s, uint32_t chunk)
{
    bool from_src = s->in->op == KOLO_OP_SEND || s->in->op == KOLO_OP_RECV_REDUCE_SEND ||
                    s->in->op == KOLO_OP_EXPOSE || s->in->op == KOLO_OP_PUT;
    const kolo_segment_t *payload = from_src ? &s->in->src : &s->in->dst;
    if (s->rx) trace_conn(s, s->rx_index, payload, chunk);
    for (uint32_t k = 0; s->in->op == KOLO_OP_REDUCE_MANY && k < s->in->list_count; k++)
        trace_conn(s, s->task->interp.plan->list[s->in->list_first + k], payload, chunk);
    if (s->tx) trace_conn(s, s->tx_index, payload, chunk);
}

static inline bool past_cache(const kolo_slot_t *s)
{
    return s->task->interp.stream_out && s->in->dst.buf == KOLO_BUF_DST;
}

/* Where the slot may be posted from in place: memory that stays as it is until its wires have sent all. In a
 * collective that only moves data every chunk of SRC and DST does. In a reducing one SRC does unless the call is in
 * place (the result may be written while the wire still reads), and DST once it holds a finished value. */
static char *post_from(const kolo_slot_t *s, const kolo_segment_t *seg, bool finished)
{
    if (KOLO_LIKELY(!(s->tx->caps & KOLO_CAP_POST_FROM)) || s->bytes < KOLO_POST_FROM_LEAST) return NULL;
    if (seg->buf != KOLO_BUF_SRC && seg->buf != KOLO_BUF_DST) return NULL;
    if (s->task->reducing && !(seg->buf == KOLO_BUF_SRC ? s->task->interp.src_stays : finished)) return NULL;
    return kolo_row_run(s->task, s->lane, s->in, seg, s->bytes);
}

/* Posts the slot whose payload is in the slot (data NULL) or at `data`. */
static inline kolo_status_t post(const kolo_slot_t *s, const char *data)
{
    if (KOLO_UNLIKELY(data != NULL))
        return s->tx->ops->tx_post_from(s->tx, data, s->bytes, s->task->signature, s->task->operation);
    kolo_tx_post(s->tx, s->bytes, 0, s->task->signature, s->task->operation);
    return KOLO_OK;
}

/* ---- handlers: everything the slot needs is there ---- */

static kolo_status_t do_send(const kolo_slot_t *s)
{
    const kolo_reducer_t *r = &s->task->reducer;
    bool scale = kolo_slot_raw(s) && r->pre;
    char *data = scale ? NULL : post_from(s, &s->in->src, false), *to = kolo_tx_payload(s->tx);
    for (uint32_t done = 0; done < s->bytes;) {
        kolo_fragment_t f = kolo_slot_fragment(s, done);
        if (scale)
            kolo_reduce_load(r, to + done, f.src, kolo_reducer_elems(r, f.bytes), true, false);
        else if (!data)
            memcpy(to + done, f.src, f.bytes);
        kolo_row_advance(s->lane, f.bytes);
        done += f.bytes;
    }
    return post(s, data);
}

static kolo_status_t do_recv(const kolo_slot_t *s)
{
    const char *from = kolo_rx_payload(s->rx);
    bool direct = s->rx->direct != NULL; /* the wire put it where it belongs */
    for (uint32_t done = 0; done < s->bytes;) {
        kolo_fragment_t f = kolo_slot_fragment(s, done);
        if (!direct || f.dst != from + done) kolo_copy(f.dst, from + done, f.bytes, past_cache(s));
        kolo_row_advance(s->lane, f.bytes);
        done += f.bytes;
    }
    kolo_rx_release(s->rx);
    return KOLO_OK;
}

static kolo_status_t do_recv_send(const kolo_slot_t *s)
{
    const char *from = kolo_rx_payload(s->rx);
    char *data = s->in->dst.buf == KOLO_BUF_NONE ? NULL : post_from(s, &s->in->dst, true),
         *to = kolo_tx_payload(s->tx);
    for (uint32_t done = 0; done < s->bytes;) {
        kolo_fragment_t f = kolo_slot_fragment(s, done);
        if (f.dst && f.dst != from + done) memcpy(f.dst, from + done, f.bytes);
        if (!data) memcpy(to + done, f.dst ? f.dst : from + done, f.bytes);
        kolo_row_advance(s->lane, f.bytes);
        done += f.bytes;
    }
    kolo_rx_release(s->rx);
    return post(s, data);
}

/* RECV_REDUCE, RECV_REDUCE_SEND, RECV_REDUCE_COPY_SEND. */
static kolo_status_t do_recv_reduce(const kolo_slot_t *s)
{
    const kolo_reducer_t *r = &s->task->reducer;
    bool rx_first = s->in->flags & KOLO_FLAG_RX_FIRST, store = s->in->op != KOLO_OP_RECV_REDUCE_SEND;
    const char *from = kolo_rx_payload(s->rx);
    char *data = s->tx && store ? post_from(s, &s->in->dst, kolo_slot_final(s)) : NULL;
    char *to = s->tx && !data ? kolo_tx_payload(s->tx) : NULL;
    for (uint32_t done = 0; done < s->bytes;) {
        kolo_fragment_t f = kolo_slot_fragment(s, done);
        const void *srcs[2] = {rx_first ? from + done : f.src, rx_first ? f.src : from + done};
        kolo_reduce_many_t what = {.dst = store ? f.dst : to + done,
                                   .dst2 = store && to ? to + done : NULL,
                                   .srcs = srcs,
                                   .nsrcs = 2,
                                   .raw = kolo_slot_raw(s) ? rx_first : -1,
                                   .final = kolo_slot_final(s),
                                   .stream = store && to && past_cache(s)};
        kolo_reduce_many(r, &what, kolo_reducer_elems(r, f.bytes));
        kolo_row_advance(s->lane, f.bytes);
        done += f.bytes;
    }
    kolo_rx_release(s->rx);
    return s->tx ? post(s, data) : KOLO_OK;
}

static kolo_status_t do_reduce_many(const kolo_slot_t *s)
{
    const kolo_reducer_t *r = &s->task->reducer;
    const kolo_insn_t *in = s->in;
    const uint16_t *list = s->task->interp.plan->list + in->list_first;
    const void *srcs[KOLO_REDUCE_MAX];
    bool own = in->own_place != 0xffff;
    int nsrcs = (int)in->list_count + own;
    char *data = s->tx ? post_from(s, &in->dst, kolo_slot_final(s)) : NULL,
         *to = s->tx && !data ? kolo_tx_payload(s->tx) : NULL;
    for (uint32_t done = 0; done < s->bytes;) {
        kolo_fragment_t f = kolo_slot_fragment(s, done);
        int n = 0;
        for (uint32_t k = 0; k <= in->list_count; k++) {
            if (own && k == in->own_place) srcs[n++] = f.src;
            if (k < in->list_count) srcs[n++] = (const char *)kolo_rx_payload(s->task->interp.rx[list[k]]) + done;
        }
        kolo_reduce_many_t what = {.dst = f.dst,
                                   .dst2 = to ? to + done : NULL,
                                   .srcs = srcs,
                                   .nsrcs = nsrcs,
                                   .raw = own && kolo_slot_raw(s) ? in->own_place : -1,
                                   .final = kolo_slot_final(s),
                                   .stream = to && past_cache(s)};
        kolo_reduce_many(r, &what, kolo_reducer_elems(r, f.bytes));
        kolo_row_advance(s->lane, f.bytes);
        done += f.bytes;
    }
    for (uint32_t k = 0; k < in->list_count; k++) kolo_rx_release(s->task->interp.rx[list[k]]);
    s->lane->list_at = 0;
    return s->tx ? post(s, data) : KOLO_OK;
}

static kolo_status_t do_local(const kolo_slot_t *s)
{
    const kolo_reducer_t *r = &s->task->reducer;
    bool raw = kolo_slot_raw(s), dst_first = s->in->flags & KOLO_FLAG_DST_FIRST;
    for (uint32_t done = 0; done < s->bytes;) {
        kolo_fragment_t f = kolo_slot_fragment(s, done);
        if (s->in->op == KOLO_OP_REDUCE)
            kolo_reduce_pair(
                r, f.dst, dst_first ? f.dst : f.src, dst_first ? f.src : f.dst, kolo_reducer_elems(r, f.bytes),
                (raw ? dst_first ? KOLO_RAW_B : KOLO_RAW_A : 0u) | (kolo_slot_final(s) ? KOLO_FINAL : 0u));
        else if ((raw && r->pre) || (kolo_slot_final(s) && r->post_div > 1))
            kolo_reduce_load(r, f.dst, f.src, kolo_reducer_elems(r, f.bytes), raw, kolo_slot_final(s));
        else if (f.dst != f.src)
            kolo_copy(f.dst, f.src, f.bytes, past_cache(s));
        kolo_row_advance(s->lane, f.bytes);
        done += f.bytes;
    }
    return KOLO_OK;
}

static kolo_status_t (*const handlers[KOLO_OP_COUNT])(const kolo_slot_t *) = {
    [KOLO_OP_SEND] = do_send,
    [KOLO_OP_RECV] = do_recv,
    [KOLO_OP_RECV_REDUCE] = do_recv_reduce,
    [KOLO_OP_RECV_SEND] = do_recv_send,
    [KOLO_OP_RECV_REDUCE_SEND] = do_recv_reduce,
    [KOLO_OP_RECV_REDUCE_COPY_SEND] = do_recv_reduce,
    [KOLO_OP_REDUCE_MANY] = do_reduce_many,
    [KOLO_OP_COPY] = do_local,
    [KOLO_OP_REDUCE] = do_local,
    [KOLO_OP_EXPOSE] = kolo_slot_expose,
    [KOLO_OP_GET] = kolo_slot_get_put,
    [KOLO_OP_GET_REDUCE] = kolo_slot_get_put,
    [KOLO_OP_PUT] = kolo_slot_get_put,
};

/* ---- waiting for slots ---- */

/* The slot that `rx` shows must be the one this task expects. */
static inline kolo_status_t check_slot(const kolo_slot_t *s, const kolo_rx_t *rx)
{
    const kolo_slot_header_t *h = kolo_rx_header(rx);
    bool refs = kolo_insn_is_reference(s->in);
    uint32_t bytes = refs ? (uint32_t)sizeof(kolo_exposed_t) : s->bytes, got = h->bytes;
    if (KOLO_LIKELY(got == bytes && h->signature == s->task->signature && h->operation == s->task->operation &&
                    h->flags == (refs ? KOLO_SLOT_REF : 0)))
        return KOLO_OK;
    return kolo_task_mismatch(s->task, rx, bytes, got);
}

/* Tells the wire how long the next payload is, and where it belongs, so that it need not be copied there. */
static void expect(const kolo_slot_t *s)
{
    s->lane->expected = true;
    bool whole = s->in->op == KOLO_OP_RECV || s->in->op == KOLO_OP_RECV_SEND;
    char *into = whole ? kolo_row_run(s->task, s->lane, s->in, &s->in->dst, s->bytes) : NULL;
    s->rx->ops->rx_expect(s->rx, 0, into, s->bytes);
}

/* The same for all slots of the instruction that fit the queue, when half of those announced have come. */
static void expect_ahead(const kolo_slot_t *s)
{
    kolo_lane_state_t *lane = s->lane, walk = *lane;
    bool whole = s->in->op == KOLO_OP_RECV || s->in->op == KOLO_OP_RECV_SEND;
    if (lane->announced > s->rx->end.depth / 2) return;
    for (uint32_t ahead = 0; ahead < s->rx->end.depth && walk.left; ahead++) {
        uint32_t bytes = kolo_row_slot(s->task, &walk);
        if (ahead >= lane->announced) {
            char *into = whole ? kolo_row_run(s->task, &walk, s->in, &s->in->dst, bytes) : NULL;
            s->rx->ops->rx_expect(s->rx, ahead, into, bytes);
            lane->announced = ahead + 1;
        }
        for (uint32_t done = 0; done < bytes;) {
            kolo_fragment_t f = kolo_row_fragment(s->task, &walk, s->in, bytes - done);
            kolo_row_advance(&walk, f.bytes);
            done += f.bytes;
        }
    }
}

static kolo_status_t await_list(const kolo_slot_t *s)
{
    const uint16_t *list = s->task->interp.plan->list + s->in->list_first;
    for (; s->lane->list_at < s->in->list_count; s->lane->list_at++) {
        kolo_rx_t *rx = s->task->interp.rx[list[s->lane->list_at]];
        if (!kolo_rx_ready(rx)) {
            if (KOLO_UNLIKELY(rx->caps & KOLO_CAP_AHEAD)) rx->ops->rx_expect(rx, 0, NULL, s->bytes);
            return KOLO_IN_PROGRESS;
        }
        KOLO_TRY(check_slot(s, rx));
    }
    return KOLO_OK;
}

static kolo_status_t await_slots(const kolo_slot_t *s)
{
    if (s->in->op == KOLO_OP_REDUCE_MANY) {
        KOLO_TRY(await_list(s));
    } else if (s->rx) {
        bool ahead = s->rx->caps & KOLO_CAP_AHEAD;
        if (KOLO_UNLIKELY(ahead) && !kolo_insn_is_reference(s->in)) expect_ahead(s);
        if (!kolo_rx_ready(s->rx)) {
            if (KOLO_UNLIKELY(s->rx->caps & KOLO_CAP_POST_FROM) && !ahead && !s->lane->expected) expect(s);
            return KOLO_IN_PROGRESS;
        }
        KOLO_TRY(check_slot(s, s->rx));
    }
    return !s->tx || kolo_tx_ready(s->tx) ? KOLO_OK : KOLO_IN_PROGRESS;
}

static kolo_status_t data_insn(kolo_task_t *task, kolo_lane_state_t *lane, const kolo_insn_t *in, bool *moved)
{
    if (!lane->begun) kolo_row_begin(task, lane, in);
    lane->begun = true;
    kolo_slot_t s = {.task = task, .lane = lane, .in = in};
    if (in->tx != KOLO_NO_CONN) {
        s.tx_index = (uint16_t)(in->tx + in->tx_stride * (int)lane->i);
        s.tx = task->interp.tx[s.tx_index];
    }
    if (in->rx != KOLO_NO_CONN) {
        s.rx_index = (uint16_t)(in->rx + in->rx_stride * (int)lane->i);
        s.rx = task->interp.rx[s.rx_index];
    }
    bool refs = kolo_insn_is_reference(in);
    while (lane->left) {
        s.bytes = refs ? (uint32_t)KOLO_MIN(lane->left, (uint64_t)UINT32_MAX) : kolo_row_slot(task, lane);
        KOLO_TRY(await_slots(&s));
        lane->expected = false;
        if (lane->announced) lane->announced--;
        if (KOLO_FAIL_POINTS_ARMED && !lane->shown) KOLO_TRY(kolo_interp_fail_point(in));
        *moved = true;
        KOLO_TRY(handlers[in->op](&s));
    }
    lane->begun = false;
    return KOLO_OK;
}

/* ---- control ---- */

static void end_of_loop(kolo_lane_state_t *lane, const kolo_insn_t *insns)
{
    uint32_t top = lane->depth - 1;
    if (++lane->loop_i[top] < insns[lane->loop_pc[top]].count) {
        lane->pc = lane->loop_pc[top] + 1;
        return;
    }
    lane->depth--;
    lane->pc++;
}

/* May the lane begin its next tile? */
static bool keeps_step(const kolo_task_t *task, const kolo_lane_state_t *lane)
{
    for (uint32_t k = 0; k < task->interp.plan->nlanes; k++)
        if (!task->interp.lanes[k].done && lane->tile > task->interp.lanes[k].tile + 1) return false;
    return true;
}

/* One instruction. KOLO_IN_PROGRESS: it cannot go on now. */
static inline kolo_status_t step_lane(kolo_task_t *task, kolo_lane_state_t *lane, const kolo_insn_t *insns,
                                      bool *moved)
{
    const kolo_insn_t *in = &insns[lane->pc];
    switch (in->op) {
    case KOLO_OP_LOOP:
        lane->loop_pc[lane->depth] = lane->pc++;
        lane->loop_i[lane->depth++] = 0;
        return KOLO_OK;
    case KOLO_OP_END:
        end_of_loop(lane, insns);
        return KOLO_OK;
    case KOLO_OP_SIGNAL:
        KOLO_FAIL_POINT_TRY("exec.signal");
        task->interp.events[in->event]++;
        break;
    case KOLO_OP_WAIT:
        if (task->interp.events[in->event] <= lane->waits[in->event]) return KOLO_IN_PROGRESS;
        lane->waits[in->event]++;
        KOLO_FAIL_POINT_TRY("exec.wait");
        break;
    case KOLO_OP_RELEASE:
        KOLO_FAIL_POINT_TRY("exec.release");
        if (!kolo_tx_released(task->interp.tx[in->tx])) return KOLO_IN_PROGRESS;
        break;
    default:
        KOLO_TRY(data_insn(task, lane, in, moved));
        break;
    }
    lane->pc++;
    *moved = true;
    return KOLO_OK;
}

static kolo_status_t run_lane(kolo_task_t *task, uint32_t index, bool *moved)
{
    kolo_lane_state_t *lane = &task->interp.lanes[index];
    const kolo_insn_t *insns = task->interp.plan->insns;
    uint32_t first = task->interp.plan->lanes[index].first, end = first + task->interp.plan->lanes[index].count;
    if (lane->pc == first && !lane->begun && !keeps_step(task, lane)) return KOLO_OK;
    while (!lane->done) {
        while (lane->pc < end) {
            kolo_status_t status = step_lane(task, lane, insns, moved);
            if (status != KOLO_OK) return status == KOLO_IN_PROGRESS ? KOLO_OK : status;
        }
        lane->pc = first;
        lane->done = ++lane->tile >= task->interp.ntiles;
        *moved = true;
        if (!keeps_step(task, lane)) return KOLO_OK;
    }
    return KOLO_OK;
}

/* Wires that move bytes themselves may still be reading the caller's memory. */
static bool sent(const kolo_task_t *task)
{
    for (uint32_t i = 0; i < task->interp.plan->nconns; i++) {
        const kolo_tx_t *tx = task->interp.tx[i];
        if (tx && !kolo_tx_sent(tx)) return false;
    }
    return true;
}

bool kolo_task_is_posted(const kolo_task_t *task)
{
    for (uint32_t k = 0; task->way == &interpreted && k < task->interp.plan->nlanes; k++)
        if (!task->interp.lanes[k].done) return false;
    return task->way == &interpreted;
}

uint32_t kolo_task_awaited_slots(const kolo_task_t *task, uint32_t *depth)
{
    const kolo_rx_t *rx = task->way == &interpreted ? task->interp.rx[0] : NULL;
    const kolo_lane_state_t *lane = task->interp.lanes;
    *depth = 0;
    if (!rx || !(rx->caps & KOLO_CAP_AHEAD)) return 0;
    uint32_t awaited = lane->begun ? (uint32_t)KOLO_DIV_UP(lane->left, (uint64_t)task->interp.piece_bytes) : 0;
    if (lane->announced >= awaited) *depth = rx->end.depth;
    return awaited;
}

void kolo_task_announce(const kolo_task_t *task, uint32_t *ahead, void *data, uint64_t bytes, uint32_t piece_bytes)
{
    kolo_rx_t *rx = task->interp.rx[0];
    uint64_t piece = piece_bytes;
    for (uint64_t at = 0; at < bytes && *ahead < rx->end.depth; at += piece)
        rx->ops->rx_expect(rx, (*ahead)++, (char *)data + at, (uint32_t)KOLO_MIN(piece, bytes - at));
}

static void cancel(kolo_task_t *task)
{
    for (uint32_t i = 0; i < task->interp.plan->nconns; i++) {
        kolo_rx_t *rx = task->interp.rx[i];
        if (rx && (rx->caps & (KOLO_CAP_POST_FROM | KOLO_CAP_REF))) rx->ops->rx_unexpect(rx);
    }
}

static kolo_status_t step_plan(kolo_task_t *task, bool *moved)
{
    bool all = true, any;
    task->interp.in_pieces = false;
    do {
        any = false;
        all = true;
        for (uint32_t k = 0; k < task->interp.plan->nlanes; k++) {
            if (task->interp.lanes[k].done) continue;
            kolo_status_t status = run_lane(task, k, &any);
            if (KOLO_UNLIKELY(status != KOLO_OK)) {
                cancel(task);
                return status;
            }
            all &= task->interp.lanes[k].done;
        }
        *moved |= any;
    } while (any && !all && !task->interp.in_pieces);
    return all && sent(task) ? KOLO_OK : KOLO_IN_PROGRESS;
}

/* ---- start, end ---- */

size_t kolo_task_bounce_bytes(const kolo_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->ninsns; i++)
        if (plan->insns[i].op == KOLO_OP_GET_REDUCE) return KOLO_BOUNCE_BYTES;
    return 0;
}

size_t kolo_task_plan_state_bytes(const kolo_plan_t *plan)
{
    return plan->nlanes * (sizeof(kolo_lane_state_t) + plan->nevents * sizeof(uint32_t)) +
           plan->nevents * sizeof(uint32_t);
}

static uint64_t longest_chunk(const kolo_task_t *task)
{
    const kolo_plan_t *p = task->interp.plan;
    uint64_t most = p->coll == KOLO_COLL_BARRIER ? 1 : 0;
    for (uint32_t i = 0; i < p->src_parts; i++) most = KOLO_MAX(most, task->interp.src_parts[i].count);
    for (uint32_t i = 0; i < p->dst_parts; i++) most = KOLO_MAX(most, task->interp.dst_parts[i].count);
    return kolo_part_count(most, p->nsubs, 0) * task->reducer.elem;
}

/* Does any part of SRC overlap any part of DST? */
static bool is_in_place(const kolo_task_t *task)
{
    const kolo_plan_t *p = task->interp.plan;
    for (uint32_t i = 0; i < p->src_parts; i++) {
        uintptr_t a = (uintptr_t)task->interp.src_parts[i].base,
                  a_end = a + task->interp.src_parts[i].count * task->reducer.elem;
        for (uint32_t k = 0; a && k < p->dst_parts; k++) {
            uintptr_t b = (uintptr_t)task->interp.dst_parts[k].base,
                      b_end = b + task->interp.dst_parts[k].count * task->reducer.elem;
            if (b && a < b_end && b < a_end) return true;
        }
    }
    return false;
}

static bool moves_slots(const kolo_insn_t *in)
{
    return in->op <= KOLO_OP_REDUCE_MANY;
}

/* Nothing of these plans waits in scratch or in slots for the end of a tile. */
static bool may_be_long(const kolo_plan_t *p)
{
    if (p->algo == KOLO_ALGO_P2P) return true;
    for (uint32_t i = 0; i < p->ninsns; i++)
        if (moves_slots(&p->insns[i])) return false;
    return p->algo == KOLO_ALGO_SINGLE_COPY;
}

static kolo_status_t visit_lane(kolo_task_t *task, const kolo_lane_state_t *lane, kolo_task_visit_fn_t visit,
                                void *arg)
{
    const kolo_insn_t *in = &task->interp.plan->insns[lane->pc];
    if (in->op == KOLO_OP_RELEASE)
        return visit(task->interp.tx[in->tx], NULL, "the release of what it exposed to", arg);
    if (!lane->begun) return KOLO_OK;
    int i = (int)lane->i;
    for (uint32_t k = lane->list_at; in->op == KOLO_OP_REDUCE_MANY && k < in->list_count; k++) {
        kolo_rx_t *rx = task->interp.rx[task->interp.plan->list[in->list_first + k]];
        if (!kolo_rx_ready(rx)) KOLO_TRY(visit(NULL, rx, "data from", arg));
    }
    kolo_rx_t *rx = in->rx == KOLO_NO_CONN ? NULL : task->interp.rx[in->rx + in->rx_stride * i];
    if (rx && !kolo_rx_ready(rx)) KOLO_TRY(visit(NULL, rx, "data from", arg));
    kolo_tx_t *tx = in->tx == KOLO_NO_CONN ? NULL : task->interp.tx[in->tx + in->tx_stride * i];
    if (tx && !kolo_tx_ready(tx)) KOLO_TRY(visit(tx, NULL, "room in the queue to", arg));
    return KOLO_OK;
}

static kolo_status_t visit_waits(kolo_task_t *task, kolo_task_visit_fn_t visit, void *arg)
{
    bool all = true;
    for (uint32_t k = 0; k < task->interp.plan->nlanes; k++) {
        if (task->interp.lanes[k].done) continue;
        all = false;
        if (task->interp.lanes[k].pc < task->interp.plan->ninsns)
            KOLO_TRY(visit_lane(task, &task->interp.lanes[k], visit, arg));
    }
    for (uint32_t i = 0; all && i < task->interp.plan->nconns; i++) {
        kolo_tx_t *tx = task->interp.tx[i];
        if (tx && !kolo_tx_sent(tx)) KOLO_TRY(visit(tx, NULL, "the last bytes to leave for", arg));
    }
    return KOLO_OK;
}

static const char *algorithm(const kolo_task_t *task)
{
    return kolo_algo_name(task->interp.plan->algo);
}

static const kolo_task_way_t interpreted = {visit_waits, cancel, algorithm};

kolo_status_t kolo_task_start_plan(kolo_task_t *task, void *state)
{
    const kolo_plan_t *p = task->interp.plan;
    size_t odd = task->reducer.elem - 1; /* a power of two, so what is no multiple has bits in it */
    bool too_long = task->interp.tile_bytes > (uint64_t)p->slices * task->interp.piece_bytes && !may_be_long(p);
    if (!task->reducer.elem || (task->reducer.elem & odd) || !task->interp.piece_bytes ||
        (task->interp.piece_bytes & odd) || !task->interp.tile_bytes || (task->interp.tile_bytes & odd) || too_long)
        return kolo_fail(KOLO_ERR_INTERNAL,
                         "rank %u: %s with elements of %zu bytes in slots of %u and tiles of %" PRIu64, p->rank,
                         kolo_coll_name(p->coll), task->reducer.elem, task->interp.piece_bytes,
                         task->interp.tile_bytes);
    memset(state, 0, kolo_task_plan_state_bytes(p));
    task->interp.bouncing = NULL;
    task->interp.src_stays = !task->reducing || !is_in_place(task);
    task->step = step_plan;
    task->way = &interpreted;
    task->interp.lanes = state;
    task->interp.events = (uint32_t *)(void *)(task->interp.lanes + p->nlanes);
    for (uint32_t k = 0; k < p->nlanes; k++) {
        task->interp.lanes[k].pc = p->lanes[k].first;
        task->interp.lanes[k].waits = task->interp.events + (size_t)p->nevents * (k + 1);
    }
    uint64_t longest = longest_chunk(task);
    task->interp.ntiles = 1;
    if (longest > task->interp.tile_bytes)
        task->interp.ntiles = (uint32_t)KOLO_DIV_UP(longest, task->interp.tile_bytes);
    task->interp.bounce =
        task->interp.scratch ? (char *)task->interp.scratch + (size_t)p->nscratch * task->interp.tile_bytes : NULL;
    return KOLO_OK;
}
