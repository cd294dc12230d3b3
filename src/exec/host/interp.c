/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan interpreter. Each lane is run until it would have to wait, then the next one; a call that could do
 * nothing in any lane returns KOLO_IN_PROGRESS. One turn of the loop in data_insn() handles one slot: the queues
 * are asked, a handler moves or reduces the bytes, the slot is posted or released.
 *
 * A lane runs at most one tile ahead of the slowest one, even where queues are deeper: what it copied in should be
 * in cache still when another lane reads it. (A plan is free of deadlock tile by tile, so waiting for a lane of an
 * earlier tile adds none.) But with many ranks one of them is always late, and should not cost its lateness at each
 * tile: once a rank has waited for a while, it goes on as far as the queues have room (0073).
 */
#include "exec/host/interp.h"
#include "base/failpoint.h"

/* ---- waiting for slots ---- */

/* Checks that the slot that `rx` shows is the one this task expects. */
static inline kolo_status_t check_slot(const kolo_interp_slot_t *s, const kolo_rx_t *rx)
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
static void expect(const kolo_interp_slot_t *s)
{
    s->lane->expected = true;
    bool whole = s->in->op == KOLO_OP_RECV || s->in->op == KOLO_OP_RECV_SEND;
    char *into = whole ? kolo_row_run(s->task, s->lane, s->in, &s->in->dst, s->bytes) : NULL;
    s->rx->ops->rx_expect(s->rx, 0, into, s->bytes);
}

/* Does the same for all slots of the instruction that fit the queue, when half of those announced have come. */
static void expect_ahead(const kolo_interp_slot_t *s)
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

static kolo_status_t await_list(const kolo_interp_slot_t *s)
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

static kolo_status_t await_slots(const kolo_interp_slot_t *s)
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
    kolo_interp_slot_t s = {.task = task, .lane = lane, .in = in};
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
        KOLO_TRY(kolo_slot_handlers[in->op](&s));
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

#define MANY       16u  /* ranks */
#define LATE_STEPS 500u /* without a move, some 50 us: longer than ranks on their cores are apart */

static bool is_slowest(const kolo_task_t *task, const kolo_lane_state_t *lane)
{
    for (uint32_t k = 0; k < task->interp.plan->nlanes; k++)
        if (!task->interp.lanes[k].done && task->interp.lanes[k].tile < lane->tile) return false;
    return true;
}

/* Notes whether this step has moved anything. */
static void look_for_lateness(kolo_task_t *task, bool moved)
{
    task->interp.idle = moved ? 0 : task->interp.idle + 1;
    if (task->interp.idle == LATE_STEPS) task->interp.late = true;
}

/* Tells whether the lane may begin its next tile. Scratch is a tile's, and another lane may read it still. */
static bool keeps_step(const kolo_task_t *task, const kolo_lane_state_t *lane)
{
    const kolo_plan_t *p = task->interp.plan;
    if (task->interp.late && p->nranks > MANY && !p->nscratch) return true;
    for (uint32_t k = 0; k < p->nlanes; k++)
        if (!task->interp.lanes[k].done && lane->tile > task->interp.lanes[k].tile + 1) return false;
    return true;
}

/* Runs one instruction. KOLO_IN_PROGRESS: it cannot go on now. */
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
        if (task->interp.late && is_slowest(task, lane)) task->interp.late = false;
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
    for (uint32_t k = 0; task->way == &kolo_interp_way && k < task->interp.plan->nlanes; k++)
        if (!task->interp.lanes[k].done) return false;
    return task->way == &kolo_interp_way;
}

uint32_t kolo_task_awaited_slots(const kolo_task_t *task, uint32_t *depth)
{
    const kolo_rx_t *rx = task->way == &kolo_interp_way ? task->interp.rx[0] : NULL;
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

kolo_status_t kolo_interp_step(kolo_task_t *task, bool *moved)
{
    bool all = true, any, anything = false;
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
        anything |= any;
    } while (any && !all && !task->interp.in_pieces);
    *moved |= anything;
    look_for_lateness(task, anything);
    return all && sent(task) ? KOLO_OK : KOLO_IN_PROGRESS;
}

/* ---- what a task waits for ---- */

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
    return kolo_plan_algo_name(task->interp.plan->algo);
}

const kolo_task_way_t kolo_interp_way = {visit_waits, cancel, algorithm};
