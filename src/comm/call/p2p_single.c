/* SPDX-License-Identifier: Apache-2.0
 *
 * A single send or receive outside a group: the same ways as p2p.c, with everything that depends on the peer alone
 * kept from call to call, so that a small message costs no lookup and no allocation.
 */
#include "base/failpoint.h"
#include "comm/call/call.h"

#include <stdlib.h>

struct kolo_lane_to { /* what is known of one peer */
    bool known, ll, refs;
    bool up[2];       /* connected: for receives, for sends */
    uint32_t lane[2]; /* of the group that is being taken in: number of its lane plus one */
    kolo_tx_t *ll_tx;
    kolo_rx_t *ll_rx;
    kolo_bound_t *send[3], *recv[3]; /* through slots, by reference, in halves */
};

static kolo_status_t lane_to(kolo_body_t *body, uint32_t peer, struct kolo_lane_to **out)
{
    if (KOLO_UNLIKELY(!body->lanes_to)) {
        body->lanes_to = calloc((size_t)body->nranks, sizeof *body->lanes_to);
        if (!body->lanes_to) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %d peers", body->nranks);
    }
    KOLO_TRY(kolo_mismatch_open_pairs(body));
    struct kolo_lane_to *to = &body->lanes_to[peer];
    if (KOLO_UNLIKELY(!to->known)) {
        to->ll = kolo_body_pair_ll(body, peer);
        to->refs = kolo_body_pair_refs(body, peer);
        to->known = true;
    }
    *out = to;
    return KOLO_OK;
}

kolo_status_t kolo_p2p_lane_of(kolo_body_t *body, uint32_t peer, bool send, uint32_t **lane)
{
    struct kolo_lane_to *to = NULL;
    KOLO_TRY(lane_to(body, peer, &to));
    *lane = &to->lane[send];
    return KOLO_OK;
}

kolo_p2p_way_t kolo_p2p_way(const kolo_body_t *body, uint32_t peer, uint64_t bytes)
{
    const struct kolo_lane_to *to = &body->lanes_to[peer];
    return kolo_tune_p2p(&body->choice.sizes, bytes, to->ll, to->refs);
}

typedef struct {
    kolo_body_t *body;
    uint32_t peer;
    bool send;
} pairing_t;

/* Describes the commonest hang of all: two ranks that first send to each other. */
static void describe_pairing(void *arg, char *buf, size_t bytes)
{
    const pairing_t *p = arg;
    if (p->send)
        snprintf(
            buf, bytes,
            "rank %d, in its first send to rank %u" KOLO_WAIT_FOR
            "rank %u to call the receive, and if it is in a send to this rank, that is a circle: put the two calls "
            "into a group, or use kolo_isend()",
            p->body->rank, p->peer, p->peer);
    else
        snprintf(buf, bytes, "rank %d, in its first receive from rank %u" KOLO_WAIT_FOR "rank %u to call the send",
                 p->body->rank, p->peer, p->peer);
}

static void explain_pairing(void *arg, char *buf, size_t bytes)
{
    kolo_ask_around_stalled(((const pairing_t *)arg)->body, buf, bytes);
}

static kolo_status_t connect_pair(kolo_body_t *body, uint32_t peer, bool send)
{
    if (kolo_p2p_pair_is_up(body, peer, send)) return KOLO_OK;
    kolo_plan_conn_t keys[KOLO_P2P_CONNECTIONS];
    kolo_proto_t protos[KOLO_P2P_CONNECTIONS];
    uint32_t n = kolo_p2p_connections(body, peer, send, keys, protos);
    atomic_store_explicit(&body->track.board.pairing, body->track.operation, memory_order_relaxed);
    kolo_record_state(&body->track.record, KOLO_RECORD_CONNECTING, KOLO_RECORD_NO_ALGO);
    kolo_record_waits(&body->track.record);
    pairing_t pairing = {body, peer, send};
    kolo_wait_purpose_t before = kolo_wait_set_purpose(
        (kolo_wait_purpose_t){.describe = describe_pairing, .arg = &pairing, .explain = explain_pairing});
    kolo_status_t status = kolo_body_connect(body, keys, protos, n);
    kolo_wait_set_purpose(before);
    atomic_store_explicit(&body->track.board.pairing, KOLO_BOARD_NONE, memory_order_relaxed);
    KOLO_TRY(status);
    kolo_record_state(&body->track.record, KOLO_RECORD_RUNNING, KOLO_RECORD_NO_ALGO);
    return KOLO_OK;
}

bool kolo_p2p_pair_is_up(kolo_body_t *body, uint32_t peer, bool send)
{
    kolo_plan_conn_t keys[KOLO_P2P_CONNECTIONS];
    kolo_proto_t protos[KOLO_P2P_CONNECTIONS];
    bool *up = body->lanes_to ? &body->lanes_to[peer].up[send] : NULL;
    if (KOLO_LIKELY(up && *up)) return true;
    uint32_t n = kolo_p2p_connections(body, peer, send, keys, protos);
    for (uint32_t i = 0; i < n; i++)
        if (!kolo_body_find_conn(body, &keys[i], protos[i])) return false;
    if (up) *up = true;
    return true;
}

static kolo_status_t connect_ll(kolo_body_t *body, struct kolo_lane_to *to, uint32_t peer, bool send)
{
    kolo_plan_conn_t key = {send ? KOLO_DIR_TX : KOLO_DIR_RX, false, KOLO_P2P_LANE, (int32_t)peer};
    KOLO_TRY(connect_pair(body, peer, send));
    kolo_comm_conn_t *c = kolo_body_find_conn(body, &key, KOLO_PROTO_LL);
    if (send)
        to->ll_tx = &c->u.tx;
    else
        to->ll_rx = &c->u.rx;
    return KOLO_OK;
}

/* Returns what both ends name: bytes on the CPU; type and count on a device, where all who differ are told.
 * Messages in slots show their lengths by themselves. */
static inline uint64_t sign(const kolo_body_t *body, const kolo_call_t *call, uint64_t bytes)
{
    if (KOLO_LIKELY(body->gpu.device < 0)) return kolo_signature(KOLO_COLL_P2P, KOLO_INT8, 0, 0, bytes);
    return kolo_signature(KOLO_COLL_P2P, (int)call->type, 0, 0, call->count);
}

static kolo_status_t start_ll(kolo_body_t *body, const kolo_call_t *call, struct kolo_lane_to *to,
                              kolo_task_t *task)
{
    bool send = call->kind == KOLO_CALL_SEND;
    uint64_t bytes = call->count * call->elem;
    if (KOLO_UNLIKELY(send ? !to->ll_tx : !to->ll_rx)) KOLO_TRY(connect_ll(body, to, call->root, send));
    kolo_p2p_fill_small(body, task, bytes, sign(body, call, bytes));
    task->flat.src = call->src;
    task->flat.dst = call->dst;
    if (send) {
        task->flat.ll_tx = to->ll_tx;
        return kolo_flat_start_send(task);
    }
    task->flat.ll_one = to->ll_rx;
    task->flat.ll_rx = &task->flat.ll_one;
    return kolo_flat_start_recv(task);
}

static kolo_status_t bind_one(kolo_body_t *body, uint32_t peer, bool send, kolo_p2p_way_t way, kolo_bound_t **bound)
{
    kolo_emit_env_t env = body->choice.emit;
    kolo_plan_t *plan;
    int peers[1] = {(int)peer};
    KOLO_TRY(connect_pair(body, peer, send));
    bool refs[1] = {way != KOLO_P2P_SLOTS}, halves[1] = {way == KOLO_P2P_HALVES};
    env.root = 0;
    env.send_peers = env.recv_peers = peers;
    env.send_refs = env.recv_refs = refs;
    env.send_halves = env.recv_halves = halves;
    env.nsends = send;
    env.nrecvs = !send;
    KOLO_TRY(kolo_algo_emit(KOLO_COLL_P2P, KOLO_ALGO_P2P, &env, &plan));
    return kolo_body_bind(body, plan, bound);
}

/* Starts a message by its plan. single: it is no part of a row, whose messages are announced and posted ahead of
 * each other. */
static kolo_status_t start_plan(const kolo_call_t *call, struct kolo_lane_to *to, kolo_p2p_way_t way, bool single,
                                kolo_part_t *part, kolo_task_t *task)
{
    kolo_body_t *body = call->comm->body;
    bool send = call->kind == KOLO_CALL_SEND;
    kolo_bound_t **bound = send ? &to->send[way - KOLO_P2P_SLOTS] : &to->recv[way - KOLO_P2P_SLOTS];
    if (KOLO_UNLIKELY(!*bound)) KOLO_TRY(bind_one(body, call->root, send, way, bound));
    *part = (kolo_part_t){send ? (void *)(uintptr_t)call->src : call->dst, call->count * call->elem};
    uint64_t signature = sign(body, call, 0);
    if (single && way == KOLO_P2P_SLOTS && kolo_p2p_start_message(body, *bound, part, signature, task))
        return KOLO_OK;
    return kolo_p2p_start_plan(body, *bound, part, part, signature, task);
}

kolo_status_t kolo_p2p_start(const kolo_call_t *call, kolo_part_t *part, kolo_task_t *task)
{
    kolo_body_t *body = call->comm->body;
    struct kolo_lane_to *to = NULL;
    KOLO_TRY(lane_to(body, call->root, &to));
    kolo_p2p_way_t way = kolo_p2p_way(body, call->root, call->count * call->elem);
    return way == KOLO_P2P_LL ? start_ll(body, call, to, task) : start_plan(call, to, way, false, part, task);
}

typedef struct {
    kolo_task_t task; /* first: the wait looks at the task, too */
    const kolo_call_t *call;
} single_t;

void kolo_p2p_describe_call(int rank, const kolo_call_t *call, char *buf, size_t bytes)
{
    char words[160];
    kolo_signature_print(kolo_mismatch_word(call), words, sizeof words);
    snprintf(buf, bytes, "rank %d, in %s" KOLO_WAIT_FOR "rank %u to %s", rank, words, call->root,
             call->kind == KOLO_CALL_SEND ? "receive it" : "send it");
}

static void describe_single(void *arg, char *buf, size_t bytes)
{
    const single_t *single = arg;
    kolo_p2p_describe_call(single->call->comm->rank, single->call, buf, bytes);
}

kolo_status_t kolo_p2p_run_single(const kolo_call_t *call)
{
    kolo_body_t *body = call->comm->body;
    struct kolo_lane_to *to = NULL;
    single_t single = {.call = call};
    kolo_task_t *task = &single.task;
    kolo_part_t part;
    kolo_wait_t wait;
    bool moved = false;
    KOLO_FAIL_POINT_TRY("comm.message.start");
    KOLO_TRY(lane_to(body, call->root, &to));
    uint64_t word = kolo_mismatch_word(call), bytes = call->count * call->elem;
    kolo_p2p_way_t way = kolo_p2p_way(body, call->root, bytes);
    bool lines_are_open = way == KOLO_P2P_LL && to->ll_tx != NULL;
    bool firm =
        call->kind == KOLO_CALL_SEND && !lines_are_open && kolo_mismatch_is_firm(body, (int)call->root, way, bytes);
    kolo_mismatch_show_pair(body, call, way, word, firm);
    kolo_record_begin(&body->track.record, call, body->track.operation, word, KOLO_RECORD_RUNNING,
                      KOLO_RECORD_NO_ALGO);
    if (KOLO_LIKELY(way == KOLO_P2P_LL))
        KOLO_TRY(start_ll(body, call, to, task));
    else
        KOLO_TRY(start_plan(call, to, way, true, &part, task));
    kolo_status_t status = task->step(task, &moved);
    if (status == KOLO_OK) return KOLO_OK;
    kolo_status_t pumped = moved ? kolo_wire_step(&body->ctx) : KOLO_OK; /* it leaves before the wait is prepared */
    if (status == KOLO_IN_PROGRESS && pumped != KOLO_OK) status = pumped;
    if (status == KOLO_IN_PROGRESS) {
        KOLO_FAIL_POINT("comm.message.wait");
        kolo_mismatch_wait_init(body, &wait, task);
        wait.describe = describe_single;
        wait.look = kolo_mismatch_look_pair;
        status = kolo_task_run(task, &wait);
    } else {
        kolo_task_cancel(task);
    }
    return kolo_mismatch_end_pairs(call, 1, status);
}

bool kolo_p2p_connected(const kolo_call_t *call)
{
    kolo_body_t *body = call->comm->body;
    uint32_t peer = call->root;
    bool send = call->kind == KOLO_CALL_SEND;
    if ((int)peer == body->rank) return true;
    return kolo_p2p_pair_is_up(body, peer, send);
}

void kolo_p2p_forget(kolo_body_t *body)
{
    for (int r = 0; body->lanes_to && r < body->nranks; r++) {
        for (int i = 0; i < 3; i++) {
            kolo_body_bound_free(body->lanes_to[r].send[i]);
            kolo_body_bound_free(body->lanes_to[r].recv[i]);
        }
    }
    free(body->lanes_to);
    body->lanes_to = NULL;
}
