/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends and receives that run together. Which way a message goes depends on its bytes and its pair alone, so both
 * ends choose alike; each runs as a single one does (p2p_single.c). Those to or from one peer form a lane and
 * follow each other. Lanes are independent, from their first use on: each makes its connections by itself and in
 * steps, and of a pair all that messages of any size need, as the other end may take by itself what is one group
 * here.
 */
#include "base/failpoint.h"
#include "comm/call/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct kolo_p2p_lane {
    uint32_t peer;
    bool send, over, running;
    bool up;               /* connected */
    kolo_making_t *making; /* NULL: not begun, or not needed */
    size_t first, last;    /* calls that are left */
    uint32_t announced;    /* slots of those behind the first one that were */
    kolo_part_t part;
    kolo_task_t task;
} kolo_p2p_lane_t;

static uint64_t bytes_of(const kolo_call_t *call)
{
    return call->count * call->elem;
}

/* Returns the next message from `at` on that is of this kind and to oneself. */
static size_t next_own(const kolo_call_t *calls, size_t count, int rank, size_t at, kolo_call_kind_t kind)
{
    while (at < count && (calls[at].kind != kind || calls[at].window || (int)calls[at].root != rank)) at++;
    return at;
}

/* Takes the k-th send to oneself and the k-th receive from oneself; copies, or only looks whether each has its
 * other half. */
static kolo_status_t pair_own(const kolo_call_t *calls, size_t count, int rank, bool copy)
{
    size_t s = next_own(calls, count, rank, 0, KOLO_CALL_SEND), r = next_own(calls, count, rank, 0, KOLO_CALL_RECV);
    for (; s < count && r < count; s = next_own(calls, count, rank, s + 1, KOLO_CALL_SEND),
                                   r = next_own(calls, count, rank, r + 1, KOLO_CALL_RECV)) {
        uint64_t out = bytes_of(&calls[s]), in = bytes_of(&calls[r]);
        if (out != in)
            return kolo_fail(KOLO_ERR_MISMATCH, "rank %d sends itself %llu bytes but receives %llu", rank,
                             (unsigned long long)out, (unsigned long long)in);
        if (copy && out) memmove(calls[r].dst, calls[s].src, out);
    }
    if (s < count)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "send from rank %d to itself has no receive in its group", rank);
    if (r < count)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "receive of rank %d from itself has no send in its group", rank);
    return KOLO_OK;
}

kolo_status_t kolo_p2p_check_own(const kolo_call_t *calls, size_t count, int rank)
{
    return pair_own(calls, count, rank, false);
}

uint32_t kolo_p2p_connections(const kolo_body_t *body, uint32_t peer, bool send, kolo_plan_conn_t *keys,
                              kolo_proto_t *protos)
{
    const kolo_plan_conn_t there = {send ? KOLO_DIR_TX : KOLO_DIR_RX, false, KOLO_P2P_LANE, (int32_t)peer},
                           back = {send ? KOLO_DIR_RX : KOLO_DIR_TX, false, KOLO_P2P_LANE + 1, (int32_t)peer};
    uint32_t n = 0;
    keys[n] = there;
    protos[n++] = KOLO_PROTO_SIMPLE;
    if (kolo_body_pair_refs(body, peer)) {
        keys[n] = back;
        protos[n++] = KOLO_PROTO_SIMPLE;
    }
    if (kolo_body_pair_ll(body, peer)) {
        keys[n] = there;
        protos[n++] = KOLO_PROTO_LL;
    }
    return n;
}

/* ---- lanes ---- */

static kolo_status_t take_in(kolo_p2p_t *p, size_t i)
{
    const kolo_call_t *call = &p->calls[i];
    bool send = call->kind == KOLO_CALL_SEND;
    uint32_t *number = NULL;
    if ((int)call->root == p->body->rank) return KOLO_OK;
    KOLO_TRY(kolo_p2p_lane_of(p->body, call->root, send, &number));
    if (*number) {
        kolo_p2p_lane_t *lane = &p->lanes[*number - 1];
        p->next[lane->last] = i;
        lane->last = i;
        return KOLO_OK;
    }
    kolo_p2p_lane_t *lane = &p->lanes[p->nlanes++];
    lane->peer = call->root;
    lane->send = send;
    lane->first = lane->last = i;
    lane->up = kolo_p2p_pair_is_up(p->body, lane->peer, send);
    *number = (uint32_t)p->nlanes;
    return KOLO_OK;
}

static kolo_status_t take_all_in(kolo_p2p_t *p)
{
    kolo_status_t status = KOLO_OK;
    for (size_t i = 0; i < p->count && status == KOLO_OK; i++) status = take_in(p, i);
    for (size_t i = 0; i < p->nlanes; i++) {
        uint32_t *number = NULL;
        if (kolo_p2p_lane_of(p->body, p->lanes[i].peer, p->lanes[i].send, &number) == KOLO_OK) *number = 0;
    }
    p->open = p->nlanes;
    return status;
}

/* Shows all messages on the board before any of them connects or waits. */
static kolo_status_t show_all(kolo_p2p_t *p)
{
    kolo_body_t *body = p->body;
    KOLO_TRY(kolo_mismatch_open_pairs(body));
    for (size_t i = 0; i < p->count; i++) {
        const kolo_call_t *call = &p->calls[i];
        if ((int)call->root == body->rank) continue;
        kolo_mismatch_begin_pair(body, call, kolo_p2p_way(body, call->root, bytes_of(call)));
    }
    return KOLO_OK;
}

kolo_status_t kolo_p2p_begin(kolo_body_t *body, const kolo_call_t *calls, size_t count, kolo_p2p_t *p)
{
    *p = (kolo_p2p_t){.body = body, .calls = calls, .count = count};
    p->lanes = calloc(count, sizeof *p->lanes + sizeof *p->next);
    if (!p->lanes) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %zu sends and receives", count);
    p->next = (size_t *)(p->lanes + count);
    kolo_status_t status = pair_own(p->calls, p->count, p->body->rank, true);
    if (status == KOLO_OK) status = take_all_in(p);
    if (status == KOLO_OK) status = show_all(p);
    for (size_t i = 0; i < p->nlanes; i++) p->connecting |= !p->lanes[i].up;
    if (status != KOLO_OK) kolo_p2p_end(p);
    return status;
}

/* ---- one message ---- */

static const kolo_reducer_t plain_bytes = {.type = KOLO_INT8, .op = KOLO_SUM, .elem = 1, .pre_int = 1};

static inline void begin(kolo_body_t *body, kolo_task_t *task, uint64_t signature)
{
    task->ctx = &body->ctx;
    task->rank = (uint32_t)body->rank;
    task->operation = 0; /* pairs of ranks count for themselves */
    task->signature = signature;
    task->reducer = &plain_bytes;
    task->reducing = false;
    task->trace = NULL;
}

bool kolo_p2p_start_message(kolo_body_t *body, kolo_bound_t *b, const kolo_part_t *part, uint64_t signature,
                            kolo_task_t *task)
{
    begin(body, task, signature);
    return kolo_pair_start_message(task, b->plan, b->tx[0], b->rx[0], part,
                                   kolo_tune_p2p_piece(&body->choice.tune, &body->choice.sizes, part->count));
}

kolo_status_t kolo_p2p_start_plan(kolo_body_t *body, kolo_bound_t *b, const kolo_part_t *src,
                                  const kolo_part_t *dst, uint64_t signature, kolo_task_t *task)
{
    begin(body, task, signature);
    task->interp.plan = b->plan;
    task->interp.tx = b->tx;
    task->interp.rx = b->rx;
    task->interp.src_parts = src;
    task->interp.dst_parts = dst;
    task->interp.scratch = NULL;
    task->interp.piece_bytes = kolo_tune_p2p_piece(&body->choice.tune, &body->choice.sizes, src->count);
    task->interp.tile_bytes = b->ref_tile;
    task->interp.stream_out = false;
    return kolo_task_start_plan(task, b->state);
}

void kolo_p2p_fill_small(kolo_body_t *body, kolo_task_t *task, uint64_t bytes, uint64_t signature)
{
    begin(body, task, signature);
    task->flat.nranks = (uint32_t)body->nranks;
    task->flat.root = 0;
    task->flat.count = bytes;
    task->flat.ll_tx = NULL;
    task->flat.ll_rx = NULL;
    task->flat.ll_one = NULL;
    task->flat.ll_temp = NULL;
}

/* ---- steps ---- */

static kolo_status_t connect_lane(kolo_p2p_t *p, kolo_p2p_lane_t *lane)
{
    kolo_plan_conn_t keys[KOLO_P2P_CONNECTIONS];
    kolo_proto_t protos[KOLO_P2P_CONNECTIONS];
    if (!lane->making) {
        uint32_t n = kolo_p2p_connections(p->body, lane->peer, lane->send, keys, protos);
        KOLO_TRY(kolo_making_begin(p->body, keys, protos, n, &lane->making));
    }
    kolo_status_t status = kolo_making_step(lane->making);
    if (status == KOLO_IN_PROGRESS) return status;
    kolo_making_end(lane->making, status);
    lane->making = NULL;
    lane->up = status == KOLO_OK;
    return status;
}

static bool goes_by_slots(const kolo_p2p_t *p, size_t i)
{
    return kolo_p2p_way(p->body, p->calls[i].root, bytes_of(&p->calls[i])) == KOLO_P2P_SLOTS;
}

/* Tells the sender where the messages after the awaited one will go, half a queue at once, so that it need not wait
 * for each. */
static void announce(const kolo_p2p_t *p, kolo_p2p_lane_t *lane)
{
    uint32_t depth, awaited = kolo_task_awaited_slots(&lane->task, &depth), ahead = awaited;
    if (awaited + lane->announced > depth / 2) return;
    for (size_t i = lane->first; i != lane->last && ahead < depth;) {
        i = p->next[i];
        if (!goes_by_slots(p, i)) break;
        uint64_t bytes = bytes_of(&p->calls[i]);
        kolo_task_announce(&lane->task, &ahead, p->calls[i].dst, bytes,
                           kolo_tune_p2p_piece(&p->body->choice.tune, &p->body->choice.sizes, bytes));
    }
    lane->announced = ahead - awaited;
}

/* Tells whether the next message of a lane may begin: the last of a row of sends waits until the wire is done with
 * the memory of all. */
static bool may_follow(const kolo_p2p_t *p, const kolo_p2p_lane_t *lane)
{
    return lane->send && lane->first != lane->last && kolo_task_is_posted(&lane->task) &&
           goes_by_slots(p, p->next[lane->first]);
}

static kolo_status_t step_lane(kolo_p2p_t *p, kolo_p2p_lane_t *lane, bool *moved)
{
    if (!lane->up) {
        KOLO_TRY(connect_lane(p, lane));
        *moved = true;
    }
    for (;;) {
        if (!lane->running) {
            KOLO_TRY(kolo_p2p_start(&p->calls[lane->first], &lane->part, &lane->task));
            lane->running = true;
        }
        kolo_status_t status = lane->task.step(&lane->task, moved);
        if (status == KOLO_IN_PROGRESS && !lane->send) announce(p, lane);
        if (status != KOLO_OK && (status != KOLO_IN_PROGRESS || !may_follow(p, lane))) return status;
        lane->running = false;
        lane->announced = 0;
        *moved = true;
        if (lane->first == lane->last) break;
        lane->first = p->next[lane->first];
    }
    lane->over = true;
    p->open--;
    return KOLO_OK;
}

kolo_status_t kolo_p2p_step(kolo_p2p_t *p, bool *moved)
{
    bool connecting = false;
    for (size_t i = 0; i < p->nlanes; i++) {
        kolo_p2p_lane_t *lane = &p->lanes[i];
        if (lane->over) continue;
        kolo_status_t status = step_lane(p, lane, moved);
        if (status != KOLO_OK && status != KOLO_IN_PROGRESS) return status;
        connecting |= !lane->up;
    }
    if (p->connecting && !connecting) {
        p->connecting = false;
        KOLO_FAIL_POINT("comm.messages.connected");
    }
    return p->open ? KOLO_IN_PROGRESS : KOLO_OK;
}

/* ---- waiting ---- */

kolo_status_t kolo_p2p_check(kolo_p2p_t *p)
{
    for (size_t i = 0; i < p->nlanes; i++)
        if (p->lanes[i].running) KOLO_TRY(kolo_task_check_peers(&p->lanes[i].task));
    return KOLO_OK;
}

void kolo_p2p_describe(void *arg, char *buf, size_t bytes)
{
    kolo_p2p_t *p = arg;
    kolo_p2p_lane_t *lane = p->lanes;
    while (lane < p->lanes + p->nlanes && lane->over) lane++;
    if (lane == p->lanes + p->nlanes)
        snprintf(buf, bytes, "messages that are over");
    else if (lane->running)
        kolo_p2p_describe_call(p->body->rank, &p->calls[lane->first], buf, bytes);
    else
        snprintf(buf, bytes, "rank %d, in a %s rank %u" KOLO_WAIT_FOR "rank %u to come and connect", p->body->rank,
                 lane->send ? "send to" : "receive from", lane->peer, lane->peer);
}

const kolo_task_t *kolo_p2p_met(const kolo_p2p_t *p, const kolo_call_t **call)
{
    for (size_t i = 0; i < p->nlanes; i++) {
        const kolo_p2p_lane_t *lane = &p->lanes[i];
        if (!lane->running || !lane->task.met) continue;
        *call = &p->calls[lane->first];
        return &lane->task;
    }
    return NULL;
}

size_t kolo_p2p_awaited(kolo_p2p_t *p, int *ranks, size_t most)
{
    size_t n = 0;
    for (size_t i = 0; i < p->nlanes && n < most; i++) {
        kolo_p2p_lane_t *lane = &p->lanes[p->body->waits.stalled_pairs.turn++ % p->nlanes];
        if (lane->over) continue;
        if (lane->running)
            n += kolo_task_awaited(&lane->task, ranks + n, most - n);
        else
            ranks[n++] = (int)lane->peer;
    }
    return n;
}

void kolo_p2p_end(kolo_p2p_t *p)
{
    for (size_t i = 0; i < p->nlanes; i++) {
        if (p->lanes[i].running) kolo_task_cancel(&p->lanes[i].task);
        kolo_making_end(p->lanes[i].making, KOLO_ERR_ABORTED);
    }
    free(p->lanes);
    memset(p, 0, sizeof *p);
}
