/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections on first use: which ones a plan needs, which exist, the rest are set up through wire/connect.c. A
 * connection is named by (direction, kind, lane, peer, protocol); both ends of a pair reach the same name from the
 * same call, so what is connected at one end is connected at the other.
 */
#include "base/failpoint.h"
#include "base/log.h"
#include "comm/call/call.h"
#include "progress/progress.h"

#include <stdlib.h>
#include <string.h>

static bool is_remote(const kolo_body_t *body, const kolo_plan_conn_t *key)
{
    return !key->node && body->member.node_of[key->peer] != body->member.my_node;
}

static kolo_comm_conn_t **list_of(kolo_body_t *body, const kolo_plan_conn_t *key)
{
    return &body->conns.by_peer[key->peer < 0 ? body->nranks : key->peer];
}

kolo_comm_conn_t *kolo_body_find_conn(kolo_body_t *body, const kolo_plan_conn_t *key, kolo_proto_t proto)
{
    kolo_comm_conn_t *c = *list_of(body, key);
    while (c &&
           (c->key.dir != key->dir || c->key.node != key->node || c->key.lane != key->lane || c->proto != proto))
        c = c->next;
    return c;
}

static void conn_close(kolo_comm_conn_t *c)
{
    if (c->key.dir == KOLO_DIR_TX)
        kolo_tx_close(&c->u.tx);
    else
        kolo_rx_close(&c->u.rx);
}

static void conn_free(kolo_comm_conn_t *c)
{
    if (c->key.dir == KOLO_DIR_TX)
        kolo_tx_fini(&c->u.tx);
    else
        kolo_rx_fini(&c->u.rx);
    free(c);
}

static kolo_conn_spec_t spec_of(const kolo_body_t *body, const kolo_plan_conn_t *key, kolo_proto_t proto)
{
    bool tx = key->dir == KOLO_DIR_TX, remote = is_remote(body, key);
    kolo_conn_spec_t spec = {.kind = key->node ? KOLO_CONN_NODE : KOLO_CONN_PAIR,
                             .proto = proto,
                             .writer = tx ? body->rank : key->peer,
                             .reader = key->node ? -1 : (tx ? key->peer : body->rank),
                             .lane = key->lane,
                             .start = (uint64_t)kolo_comm_options.counter_start};
    if (proto == KOLO_PROTO_LL) {
        spec.depth = body->choice.sizes.ll_depth;
        spec.slot_bytes = body->choice.sizes.ll_slot_bytes;
    } else {
        spec.depth =
            remote ? body->choice.sizes.remote_depth : kolo_tune_pair_depth(&body->choice.sizes, key->lane);
        spec.slot_bytes = remote ? body->choice.sizes.remote_slot_bytes : body->choice.sizes.local_slot_bytes;
    }
    if (key->node)
        spec.depth = kolo_tune_node_depth(&body->choice.tune, &body->choice.sizes, proto == KOLO_PROTO_LL);
    return spec;
}

/* Connections that are being made, until they are among those of the body. */
struct kolo_making {
    kolo_body_t *body;
    kolo_conn_request_t *requests;
    kolo_comm_conn_t **fresh;
    int n, skipped;                /* skipped: those that there are already */
    kolo_connecting_t *connecting; /* of who does not wait */
};

/* Peers come when their programs call: to wait for that has the limit of operations, if they have one. An operation
 * that finds its connections may need less than one that makes them; who has set KOLO_NCCL_WAIT_MS asks who does
 * not come, connected or not. */
static uint64_t peers_deadline(const kolo_body_t *body)
{
    if (kolo_nccl_options.wait_ms && body->op_timeout_ms) return kolo_deadline_ms(body->op_timeout_ms);
    return body->op_timeout_ms ? kolo_deadline_ms(KOLO_MAX(body->op_timeout_ms, body->init_timeout_ms)) : 0;
}

static kolo_status_t make_list(kolo_making_t *m, const kolo_plan_conn_t *keys, const kolo_proto_t *protos,
                               uint32_t count)
{
    kolo_body_t *body = m->body;
    m->requests = calloc(count ? count : 1, sizeof *m->requests);
    m->fresh = calloc(count ? count : 1, sizeof(kolo_comm_conn_t *));
    if (!m->requests || !m->fresh) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %u connections", count);
    for (uint32_t i = 0; i < count; i++) {
        kolo_proto_t proto = protos ? protos[i] : KOLO_PROTO_SIMPLE;
        if (kolo_body_find_conn(body, &keys[i], proto)) {
            m->skipped++;
            continue;
        }
        kolo_comm_conn_t *c = calloc(1, sizeof *c);
        if (!c) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a connection");
        c->key = keys[i];
        c->proto = proto;
        m->fresh[m->n] = c;
        m->requests[m->n].spec = spec_of(body, &keys[i], proto);
        if (keys[i].dir == KOLO_DIR_TX)
            m->requests[m->n].tx = &c->u.tx;
        else
            m->requests[m->n].rx = &c->u.rx;
        m->n++;
    }
    body->ctx.deadline_ns = peers_deadline(body);
    KOLO_FAIL_POINT("comm.connect.start");
    return m->n > 0 ? kolo_progress_check_files() : KOLO_OK;
}

static size_t conn_memory(const kolo_comm_conn_t *c)
{
    bool sends = c->key.dir == KOLO_DIR_TX;
    return sizeof *c + (sends ? c->u.tx.ops->tx_memory(&c->u.tx) : c->u.rx.ops->rx_memory(&c->u.rx));
}

size_t kolo_body_conn_memory(const kolo_body_t *body)
{
    size_t bytes = 0;
    for (int i = 0; body->conns.by_peer && i <= body->nranks; i++)
        for (const kolo_comm_conn_t *c = body->conns.by_peer[i]; c; c = c->next) bytes += conn_memory(c);
    return bytes;
}

/* Adds the connections to the body's or, where they failed, frees them. */
static void finish_list(kolo_making_t *m, kolo_status_t status)
{
    kolo_body_t *body = m->body;
    KOLO_FAIL_POINT("comm.connect.done");
    for (int i = 0; i < m->n; i++) {
        kolo_comm_conn_t *c = m->fresh[i];
        if (status != KOLO_OK) {
            free(c);
            continue;
        }
        kolo_comm_conn_t **list = list_of(body, &c->key);
        c->next = *list;
        *list = c;
        body->conns.bytes += conn_memory(c);
    }
    if (m->n > 0)
        kolo_debug("comm", "set-up of rank %d ends: %d connections made, %d skipped that there were already",
                   body->rank, status == KOLO_OK ? m->n : 0, m->skipped);
    free(m->requests);
    free(m->fresh);
    m->n = 0;
    m->requests = NULL;
    m->fresh = NULL;
}

kolo_status_t kolo_body_connect(kolo_body_t *body, const kolo_plan_conn_t *keys, const kolo_proto_t *protos,
                                uint32_t count)
{
    kolo_making_t m = {.body = body};
    kolo_status_t status = make_list(&m, keys, protos, count);
    if (status == KOLO_OK && m.n > 0) status = kolo_wire_connect(&body->ctx, m.requests, m.n);
    finish_list(&m, status);
    return status;
}

kolo_status_t kolo_making_begin(kolo_body_t *body, const kolo_plan_conn_t *keys, const kolo_proto_t *protos,
                                uint32_t count, kolo_making_t **making)
{
    kolo_making_t *m = calloc(1, sizeof *m);
    if (!m) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %u connections", count);
    m->body = body;
    kolo_status_t status = make_list(m, keys, protos, count);
    if (status == KOLO_OK && m->n > 0)
        status = kolo_connecting_begin(&body->ctx, m->requests, m->n, &m->connecting);
    if (status == KOLO_OK) {
        *making = m;
        return KOLO_OK;
    }
    finish_list(m, status);
    free(m);
    return status;
}

kolo_status_t kolo_making_step(kolo_making_t *m)
{
    return m->connecting ? kolo_connecting_step(m->connecting) : KOLO_OK;
}

int kolo_making_awaits(const kolo_making_t *m)
{
    return m->connecting ? kolo_connecting_awaits(m->connecting) : -1;
}

void kolo_making_end(kolo_making_t *m, kolo_status_t status)
{
    if (!m) return;
    kolo_connecting_end(m->connecting); /* gives up what is not over, so before the ends are freed */
    finish_list(m, status);
    free(m);
}

void kolo_body_bound_free(kolo_bound_t *bound)
{
    if (!bound) return;
    kolo_plan_free(bound->plan);
    free(bound->tx);
    free(bound->rx);
    free(bound->state);
    free(bound);
}

static uint64_t ref_tile(const kolo_plan_t *plan)
{
    if (plan->algo == KOLO_ALGO_P2P) return KOLO_P2P_TILE;
    if (plan->algo != KOLO_ALGO_SINGLE_COPY) return 0;
    bool puts = false, reduces = false;
    for (uint32_t i = 0; i < plan->ninsns; i++) {
        uint8_t op = plan->insns[i].op;
        if (op <= KOLO_OP_REDUCE_MANY) return 0;
        reduces |= op == KOLO_OP_GET_REDUCE;
        puts |= op == KOLO_OP_PUT;
    }
    if (reduces && puts) return KOLO_REF_REDUCE_TILE;
    return plan->nscratch == 0 ? KOLO_REF_TILE : 0;
}

static kolo_status_t check_depth(const kolo_plan_t *plan, const kolo_conn_spec_t *spec)
{
    if (plan->depth <= spec->depth) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INTERNAL, "%s by %s needs queues of %u slots, the connection has %u",
                     kolo_coll_name(plan->coll), kolo_plan_algo_name(plan->algo), plan->depth, spec->depth);
}

kolo_status_t kolo_body_bind(kolo_body_t *body, kolo_plan_t *plan, kolo_bound_t **out)
{
    kolo_bound_t *b = calloc(1, sizeof *b);
    kolo_status_t status = KOLO_OK;
    if (!b) {
        kolo_plan_free(plan);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a plan");
    }
    b->plan = plan;
    b->ref_tile = ref_tile(plan);
    b->bounce = kolo_task_bounce_bytes(plan);
    b->tx = calloc(plan->nconns + 1, sizeof(kolo_tx_t *));
    b->rx = calloc(plan->nconns + 1, sizeof(kolo_rx_t *));
    b->state = calloc(1, kolo_task_plan_state_bytes(plan));
    if (!b->tx || !b->rx || !b->state) status = kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a plan");
    if (status == KOLO_OK) status = kolo_plan_check(plan);
    if (status == KOLO_OK) status = kolo_body_connect(body, plan->conns, NULL, plan->nconns);
    for (uint32_t i = 0; i < plan->nconns && status == KOLO_OK; i++) {
        kolo_comm_conn_t *c = kolo_body_find_conn(body, &plan->conns[i], KOLO_PROTO_SIMPLE);
        bool tx = plan->conns[i].dir == KOLO_DIR_TX;
        status = check_depth(plan, tx ? &c->u.tx.spec : &c->u.rx.spec);
        if (tx)
            b->tx[i] = &c->u.tx;
        else
            b->rx[i] = &c->u.rx;
    }
    if (status != KOLO_OK) {
        kolo_body_bound_free(b);
        return status;
    }
    b->exchange = kolo_pair_is(plan);
    *out = b;
    return KOLO_OK;
}

/* Lists the connections of the flat path: I write to all of my host, and read from each. */
static kolo_status_t flat_keys(const kolo_body_t *body, kolo_plan_conn_t **keys, kolo_proto_t **protos)
{
    uint32_t n = (uint32_t)body->nranks;
    *keys = calloc(n, sizeof **keys);
    *protos = calloc(n, sizeof **protos);
    if (!*keys || !*protos) {
        free(*keys);
        free(*protos);
        kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for the flat path of %u ranks", n);
        return KOLO_ERR_NO_MEMORY;
    }
    for (uint32_t r = 0; r < n; r++) {
        (*protos)[r] = KOLO_PROTO_LL;
        (*keys)[r] = (int)r == body->rank ? (kolo_plan_conn_t){KOLO_DIR_TX, true, 0, -1}
                                          : (kolo_plan_conn_t){KOLO_DIR_RX, true, 0, (int32_t)r};
    }
    return KOLO_OK;
}

kolo_status_t kolo_making_begin_flat(kolo_body_t *body, kolo_making_t **making)
{
    kolo_plan_conn_t *keys;
    kolo_proto_t *protos;
    if (body->conns.ll_tx || body->nranks == 1) return KOLO_OK;
    KOLO_TRY(flat_keys(body, &keys, &protos));
    kolo_status_t status = kolo_making_begin(body, keys, protos, (uint32_t)body->nranks, making);
    free(keys);
    free(protos);
    return status;
}

kolo_status_t kolo_body_connect_flat(kolo_body_t *body)
{
    uint32_t n = (uint32_t)body->nranks;
    kolo_plan_conn_t *keys;
    kolo_proto_t *protos;
    if (body->conns.ll_tx || n == 1) return KOLO_OK;
    KOLO_TRY(flat_keys(body, &keys, &protos));
    uint8_t *temp = malloc((size_t)n * KOLO_FLAT_MAX);
    kolo_status_t status = temp ? kolo_body_connect(body, keys, protos, n)
                                : kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for the flat path of %u ranks", n);
    for (uint32_t r = 0; r < n && status == KOLO_OK; r++)
        if ((int)r != body->rank) body->conns.ll_rx[r] = &kolo_body_find_conn(body, &keys[r], KOLO_PROTO_LL)->u.rx;
    if (status == KOLO_OK) {
        body->conns.ll_tx = &kolo_body_find_conn(body, &keys[body->rank], KOLO_PROTO_LL)->u.tx;
        body->conns.ll_temp = temp;
        temp = NULL;
    }
    free(keys);
    free(protos);
    free(temp);
    return status;
}

static const kolo_wire_ops_t *pair_wire(const kolo_body_t *body, uint32_t peer, kolo_proto_t proto)
{
    /* the lower rank stands for the writer so that both ends ask the same question */
    int low = KOLO_MIN(body->rank, (int)peer), high = KOLO_MAX(body->rank, (int)peer);
    kolo_conn_spec_t spec = {.kind = KOLO_CONN_PAIR, .proto = proto, .writer = low, .reader = high};
    return kolo_wire_choose(&body->ctx, &spec);
}

bool kolo_body_pair_refs(const kolo_body_t *body, uint32_t peer)
{
    const kolo_wire_ops_t *wire = pair_wire(body, peer, KOLO_PROTO_SIMPLE);
    return body->choice.emit.refs && wire && (wire->caps & KOLO_CAP_REF);
}

bool kolo_body_pair_ll(const kolo_body_t *body, uint32_t peer)
{
    return body->member.node_of[peer] == body->member.my_node && pair_wire(body, peer, KOLO_PROTO_LL) != NULL;
}

void kolo_body_disconnect(kolo_body_t *body)
{
    /* in good order: peers that still read what was sent must not take the end for a death */
    for (int r = 0; body->conns.by_peer && r <= body->nranks; r++)
        for (kolo_comm_conn_t *c = body->conns.by_peer[r]; c; c = c->next) conn_close(c);
    while (body->plans.bounds) {
        kolo_bound_t *next = body->plans.bounds->next;
        kolo_body_bound_free(body->plans.bounds);
        body->plans.bounds = next;
    }
    for (int r = 0; body->conns.by_peer && r <= body->nranks; r++) {
        while (body->conns.by_peer[r]) {
            kolo_comm_conn_t *next = body->conns.by_peer[r]->next;
            conn_free(body->conns.by_peer[r]);
            body->conns.by_peer[r] = next;
        }
    }
}
