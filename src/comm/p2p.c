/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends and receives that run together. Which way a message goes depends on its bytes and its pair alone, so both
 * ends choose alike: small ones are flat tasks over LL lines, the rest is one plan with a lane per peer and
 * direction. All connections that are missing are set up in one go, so that no two ranks wait for each other's
 * half; and of a pair all that messages of any size need, as the other end may take by itself what is one group
 * here.
 */
#include "base/failpoint.h"
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    kolo_body_t *body;
    const kolo_call_t *calls;
    size_t count;
    uint8_t *way; /* kolo_p2p_way_t per call, SELF for sends to itself */
    kolo_plan_conn_t *keys;
    kolo_proto_t *protos;
    uint32_t nkeys;
    int *peers; /* sends, then receives, of the plan */
    bool *refs, *halves;
    uint32_t nsends, nrecvs;
} kolo_p2p_work_t;
#define SELF 0xff

static uint64_t bytes_of(const kolo_call_t *call)
{
    return call->count * call->elem;
}

/* k-th send to itself goes to the k-th receive from itself. */
static kolo_status_t run_self(const kolo_p2p_work_t *w)
{
    size_t r = 0;
    int rank = w->body->rank;
    for (size_t s = 0; s < w->count; s++) {
        if (w->way[s] != SELF || w->calls[s].kind != KOLO_CALL_SEND) continue;
        while (r < w->count && (w->way[r] != SELF || w->calls[r].kind != KOLO_CALL_RECV)) r++;
        if (r == w->count)
            return kolo_fail(KOLO_ERR_INVALID_USAGE, "send from rank %d to itself has no receive in its group",
                             rank);
        if (bytes_of(&w->calls[s]) != bytes_of(&w->calls[r]))
            return kolo_fail(KOLO_ERR_MISMATCH, "rank %d sends itself %llu bytes but receives %llu", rank,
                             (unsigned long long)bytes_of(&w->calls[s]),
                             (unsigned long long)bytes_of(&w->calls[r]));
        if (bytes_of(&w->calls[s])) memmove(w->calls[r].dst, w->calls[s].src, bytes_of(&w->calls[s]));
        r++;
    }
    for (; r < w->count; r++)
        if (w->way[r] == SELF && w->calls[r].kind == KOLO_CALL_RECV)
            return kolo_fail(KOLO_ERR_INVALID_USAGE, "receive of rank %d from itself has no send in its group",
                             rank);
    return KOLO_OK;
}

static void choose_ways(kolo_p2p_work_t *w)
{
    for (size_t i = 0; i < w->count; i++) {
        uint32_t peer = w->calls[i].root;
        w->way[i] = (int)peer == w->body->rank ? SELF
                                               : (uint8_t)kolo_tune_p2p(&w->body->sizes, bytes_of(&w->calls[i]),
                                                                        kolo_body_pair_ll(w->body, peer),
                                                                        kolo_body_pair_refs(w->body, peer));
    }
}

uint32_t kolo_p2p_connections(const kolo_body_t *body, uint32_t peer, bool send, kolo_plan_conn_t *keys,
                              kolo_proto_t *protos)
{
    const kolo_plan_conn_t there = {send ? KOLO_DIR_TX : KOLO_DIR_RX, false, 0, (int32_t)peer},
                           back = {send ? KOLO_DIR_RX : KOLO_DIR_TX, false, 1, (int32_t)peer};
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

static void list_pair(kolo_p2p_work_t *w, bool send, int peer)
{
    for (uint32_t k = 0; k < w->nkeys; k++) /* the first of its three is lane 0 */
        if (w->keys[k].peer == peer && !w->keys[k].lane && w->keys[k].dir == (send ? KOLO_DIR_TX : KOLO_DIR_RX))
            return;
    w->nkeys += kolo_p2p_connections(w->body, (uint32_t)peer, send, w->keys + w->nkeys, w->protos + w->nkeys);
}

static void list_connections(kolo_p2p_work_t *w)
{
    for (int pass = 0; pass < 2; pass++) { /* sends first, as the plan wants them */
        for (size_t i = 0; i < w->count; i++) {
            bool send = w->calls[i].kind == KOLO_CALL_SEND;
            if (w->way[i] == SELF || send != (pass == 0)) continue;
            int peer = (int)w->calls[i].root;
            list_pair(w, send, peer);
            if (w->way[i] == KOLO_P2P_LL) continue;
            uint32_t at = w->nsends + w->nrecvs;
            w->peers[at] = peer;
            w->refs[at] = w->way[i] != KOLO_P2P_SLOTS;
            w->halves[at] = w->way[i] == KOLO_P2P_HALVES;
            if (send)
                w->nsends++;
            else
                w->nrecvs++;
        }
    }
}

static kolo_status_t connect_all(kolo_p2p_work_t *w)
{
    kolo_body_t *body = w->body;
    KOLO_TRY(kolo_mismatch_open_pairs(body));
    for (size_t i = 0; i < w->count; i++)
        if (w->way[i] != SELF) kolo_mismatch_begin_pair(body, &w->calls[i], (kolo_p2p_way_t)w->way[i]);
    atomic_store_explicit(&body->board.pairing, body->operation, memory_order_relaxed);
    kolo_status_t status = kolo_body_connect(body, w->keys, w->protos, w->nkeys);
    atomic_store_explicit(&body->board.pairing, KOLO_BOARD_NONE, memory_order_relaxed);
    return status;
}

static kolo_status_t make_plan(kolo_p2p_work_t *w, kolo_p2p_t *p2p)
{
    kolo_body_t *body = w->body;
    kolo_emit_env_t env = body->emit;
    kolo_plan_t *plan;
    env.root = 0;
    env.send_peers = w->peers;
    env.recv_peers = w->peers + w->nsends;
    env.send_refs = w->refs;
    env.recv_refs = w->refs + w->nsends;
    env.send_halves = w->halves;
    env.recv_halves = w->halves + w->nsends;
    env.nsends = w->nsends;
    env.nrecvs = w->nrecvs;
    KOLO_TRY(kolo_algo_emit(KOLO_COLL_P2P, KOLO_ALGO_P2P, &env, &plan));
    KOLO_TRY(kolo_body_bind(body, plan, &p2p->bound));
    p2p->parts = calloc(w->nsends + w->nrecvs, sizeof *p2p->parts);
    if (!p2p->parts) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %u messages", w->nsends + w->nrecvs);
    uint32_t s = 0, r = w->nsends;
    for (size_t i = 0; i < w->count; i++) {
        const kolo_call_t *c = &w->calls[i];
        if (w->way[i] == SELF || w->way[i] == KOLO_P2P_LL) continue;
        if (c->kind == KOLO_CALL_SEND)
            p2p->parts[s++] = (kolo_part_t){(void *)(uintptr_t)c->src, bytes_of(c)};
        else
            p2p->parts[r++] = (kolo_part_t){c->dst, bytes_of(c)};
    }
    return KOLO_OK;
}

kolo_status_t kolo_p2p_start_plan(kolo_body_t *body, kolo_bound_t *b, const kolo_part_t *src,
                                  const kolo_part_t *dst, kolo_task_t *task)
{
    uint32_t piece = kolo_tune_p2p_piece(&body->tune, &body->sizes);
    task->ctx = &body->ctx;
    task->operation = 0; /* pairs of ranks count for themselves */
    task->signature = kolo_signature(KOLO_COLL_P2P, KOLO_INT8, 0, 0, 0);
    task->reducing = false;
    task->trace = NULL;
    task->plan = b->plan;
    task->tx = b->tx;
    task->rx = b->rx;
    task->src_parts = src;
    task->dst_parts = dst;
    task->scratch = NULL;
    task->piece_bytes = piece;
    task->tile_bytes = b->ref_tile;
    task->stream_out = false;
    KOLO_TRY(kolo_reducer_init(&task->reducer, KOLO_INT8, KOLO_SUM, body->emit.nranks));
    return kolo_task_start_plan(task, b->state);
}

void kolo_p2p_fill_small(kolo_body_t *body, kolo_task_t *task, uint32_t peer, uint64_t bytes)
{
    task->ctx = &body->ctx;
    task->operation = 0;
    task->signature = kolo_signature(KOLO_COLL_P2P, KOLO_INT8, 0, 0, bytes);
    task->reducing = false;
    task->trace = NULL;
    task->plan = NULL;
    task->rank = (uint32_t)body->rank;
    task->nranks = (uint32_t)body->nranks;
    task->peer = peer;
    task->root = 0;
    task->count = bytes;
    task->ll_tx = NULL;
    task->ll_rx = NULL;
    task->ll_one = NULL;
    task->ll_temp = NULL;
    task->reducer.type = KOLO_INT8;
    task->reducer.elem = 1;
    task->reducer.pre = false;
    task->reducer.user = NULL;
}

static kolo_status_t start_small(kolo_body_t *body, const kolo_call_t *call, kolo_task_t *task)
{
    bool send = call->kind == KOLO_CALL_SEND;
    kolo_plan_conn_t key = {send ? KOLO_DIR_TX : KOLO_DIR_RX, false, 0, (int32_t)call->root};
    kolo_conn_t *c = kolo_body_find_conn(body, &key, KOLO_PROTO_LL);
    kolo_p2p_fill_small(body, task, call->root, bytes_of(call));
    task->src = call->src;
    task->dst = call->dst;
    if (send) {
        task->ll_tx = &c->u.tx;
        return kolo_flat_start_send(task);
    }
    task->ll_one = &c->u.rx;
    task->ll_rx = &task->ll_one;
    return kolo_flat_start_recv(task);
}

static kolo_status_t start_tasks(kolo_p2p_work_t *w, kolo_p2p_t *p2p)
{
    kolo_task_t *task = p2p->tasks;
    if (w->nsends + w->nrecvs) {
        KOLO_TRY(make_plan(w, p2p));
        KOLO_TRY(kolo_p2p_start_plan(w->body, p2p->bound, p2p->parts, p2p->parts + w->nsends, task++));
    }
    for (size_t i = 0; i < w->count; i++)
        if (w->way[i] == KOLO_P2P_LL) KOLO_TRY(start_small(w->body, &w->calls[i], task++));
    p2p->count = (size_t)(task - p2p->tasks);
    return KOLO_OK;
}

kolo_status_t kolo_p2p_prepare(kolo_body_t *body, const kolo_call_t *calls, size_t count, kolo_p2p_t *p2p)
{
    kolo_p2p_work_t w = {.body = body, .calls = calls, .count = count};
    memset(p2p, 0, sizeof *p2p);
    w.way = calloc(count, sizeof *w.way);
    w.keys = calloc(KOLO_P2P_CONNECTIONS * count, sizeof *w.keys);
    w.protos = calloc(KOLO_P2P_CONNECTIONS * count, sizeof *w.protos);
    w.peers = calloc(count, sizeof *w.peers);
    w.refs = calloc(count, sizeof *w.refs);
    w.halves = calloc(count, sizeof *w.halves);
    p2p->tasks = calloc(count + 1, sizeof *p2p->tasks);
    kolo_status_t status = KOLO_OK;
    if (!w.way || !w.keys || !w.protos || !w.peers || !w.refs || !w.halves || !p2p->tasks)
        status = kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %zu sends and receives", count);
    if (status == KOLO_OK) {
        choose_ways(&w);
        status = run_self(&w);
    }
    if (status == KOLO_OK) {
        list_connections(&w);
        status = connect_all(&w);
    }
    KOLO_FAIL_POINT("comm.messages.connected");
    if (status == KOLO_OK) status = start_tasks(&w, p2p);
    free(w.way);
    free(w.keys);
    free(w.protos);
    free(w.peers);
    free(w.refs);
    free(w.halves);
    if (status != KOLO_OK) kolo_p2p_free(p2p);
    return status;
}

void kolo_p2p_free(kolo_p2p_t *p2p)
{
    kolo_bound_free(p2p->bound);
    free(p2p->parts);
    free(p2p->over);
    free(p2p->tasks);
    memset(p2p, 0, sizeof *p2p);
}

/* Two tasks may not use one LL connection at once: messages match in order. */
static bool must_wait(const kolo_p2p_t *p2p, size_t i)
{
    const kolo_task_t *t = &p2p->tasks[i];
    if (t->plan) return false;
    for (size_t k = 0; k < i; k++) {
        const kolo_task_t *o = &p2p->tasks[k];
        if (!p2p->over[k] && !o->plan && o->ll_tx == t->ll_tx && o->ll_one == t->ll_one) return true;
    }
    return false;
}

/* The first task that is not over, for waiting and messages. */
static kolo_status_t step_all(kolo_p2p_t *p2p, bool *moved, kolo_task_t **pending)
{
    *pending = NULL;
    for (size_t i = 0; i < p2p->count; i++) {
        if (p2p->over[i] || must_wait(p2p, i)) continue;
        kolo_status_t status = p2p->tasks[i].step(&p2p->tasks[i], moved);
        if (status == KOLO_OK) {
            p2p->over[i] = *moved = true;
            continue;
        }
        if (status != KOLO_IN_PROGRESS) return status;
        if (!*pending) *pending = &p2p->tasks[i];
    }
    return KOLO_OK;
}

kolo_status_t kolo_p2p_run(kolo_body_t *body, kolo_p2p_t *p2p)
{
    kolo_task_t *pending = NULL;
    kolo_wait_t wait;
    uint64_t polls = 0;
    p2p->over = calloc(p2p->count + 1, sizeof *p2p->over);
    if (!p2p->over) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %zu messages", p2p->count);
    kolo_body_wait_init(body, &wait, NULL);
    wait.look = kolo_mismatch_look_pair;
    body->together = p2p;
    KOLO_FAIL_POINT("comm.messages.run");
    kolo_status_t status = KOLO_OK;
    while (status == KOLO_OK) {
        bool moved = false;
        status = step_all(p2p, &moved, &pending);
        if (status != KOLO_OK || !pending) break;
        wait.arg = pending;
        if (moved) {
            kolo_wait_end(&wait);
            continue;
        }
        status = kolo_wire_pump(&body->ctx);
        if (status == KOLO_OK && (++polls % 1024 == 0 || wait.armed)) status = kolo_task_check_peers(pending);
        if (status == KOLO_OK) status = kolo_wait_pause(&wait);
    }
    kolo_wait_end(&wait);
    for (size_t i = 0; i < p2p->count && status != KOLO_OK; i++)
        if (!p2p->over[i]) kolo_task_cancel(&p2p->tasks[i]);
    body->together = NULL;
    return status;
}
