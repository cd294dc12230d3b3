/* SPDX-License-Identifier: Apache-2.0
 *
 * Choosing wires and setting connections up. Both ends choose by the same rule from the same cards; then the
 * readers of a connection tell its writer, and the writer tells them, each with a wire's card, what of the wire is
 * possible (wire and capabilities), so that both ends hold the same. A rank that fails says so to all who wait for
 * it.
 */
#include "wire/queue.h"

#include "base/failpoint.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_MAGIC   0x6e6e636bu /* "kcnn" */
#define MESSAGE_VERSION 1u

typedef struct { /* out of band, one per end */
    uint32_t magic, version;
    int32_t status; /* not KOLO_OK: the sender has failed, and why */
    uint32_t wire, caps;
    uint32_t depth, slot_bytes, reserved;
    uint64_t start;
    kolo_wire_card_t card;
    char reason[256];
} message_t;

typedef struct { /* out of band, one per pair of ranks at the end */
    uint32_t magic, version;
    int32_t status, reserved;
    char reason[512];
} outcome_t;

typedef struct { /* one request under way */
    kolo_conn_request_t *request;
    const kolo_wire_ops_t *ops;
    uint32_t nreaders;
    bool meant;              /* the request names this rank and ranks that exist: others may wait for my message */
    bool told;               /* my message is out */
    kolo_wire_card_t *cards; /* of the readers, at the writer */
} pending_t;

/* ---- who reads ---- */

uint32_t kolo_wire_readers(const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec)
{
    if (spec->kind == KOLO_CONN_PAIR) return 1;
    return (uint32_t)ctx->member->node_size[ctx->member->node_of[spec->writer]] - 1;
}

int kolo_wire_reader_at(const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec, uint32_t index)
{
    const kolo_member_t *m = ctx->member;
    if (spec->kind == KOLO_CONN_PAIR) return spec->reader;
    int at = (int)index + ((int)index >= m->local_of[spec->writer]);
    return m->node_ranks[m->node_first[m->node_of[spec->writer]] + at];
}

int kolo_wire_reader_index(const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec, int rank)
{
    const kolo_member_t *m = ctx->member;
    if (spec->kind == KOLO_CONN_PAIR) return spec->reader == rank ? 0 : -1;
    if (rank == spec->writer || m->node_of[rank] != m->node_of[spec->writer]) return -1;
    return m->local_of[rank] - (m->local_of[rank] > m->local_of[spec->writer]);
}

/* ---- choosing ---- */

static bool connects_all(const kolo_wire_ops_t *ops, const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec,
                         kolo_wire_cost_t *cost)
{
    const kolo_peer_card_t *peers = ctx->member->peers;
    uint32_t nreaders = kolo_wire_readers(ctx, spec);
    /* LL lines, like a fan-out, live in memory that both ends map. */
    bool mapped = spec->kind == KOLO_CONN_NODE || spec->proto == KOLO_PROTO_LL;
    if (mapped && !(ops->caps & KOLO_CAP_FANOUT)) return false;
    for (uint32_t i = 0; i < nreaders; i++) {
        kolo_wire_cost_t one = {0, 0};
        int reader = kolo_wire_reader_at(ctx, spec, i);
        if (!ops->can_connect(ctx, &peers[spec->writer], &peers[reader], &one)) return false;
        if (i == 0 || one.latency_us > cost->latency_us) cost->latency_us = one.latency_us;
        if (i == 0 || one.gbps < cost->gbps) cost->gbps = one.gbps;
    }
    return nreaders > 0;
}

const kolo_wire_ops_t *kolo_wire_choose(const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec,
                                        kolo_wire_cost_t *cost)
{
    kolo_wire_cost_t unused;
    for (int i = 0; i < KOLO_WIRE_COUNT; i++)
        if (connects_all(kolo_wires[i], ctx, spec, cost ? cost : &unused)) return kolo_wires[i];
    return NULL;
}

bool kolo_wire_may_copy(const kolo_wire_ctx_t *ctx)
{
    const kolo_member_t *m = ctx->member;
    for (int i = 0; i < m->node_size[m->my_node]; i++) {
        int peer = m->node_ranks[m->node_first[m->my_node] + i];
        if (peer == m->rank) continue;
        kolo_conn_spec_t spec = {.kind = KOLO_CONN_PAIR, .writer = peer, .reader = m->rank};
        const kolo_wire_ops_t *wire = kolo_wire_choose(ctx, &spec, NULL);
        if (!wire || !wire->may_copy(ctx, &m->peers[peer])) return false;
    }
    return true;
}

static kolo_status_t no_wire(const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec)
{
    uint32_t nreaders = kolo_wire_readers(ctx, spec);
    int reader = nreaders ? kolo_wire_reader_at(ctx, spec, 0) : spec->writer;
    const kolo_peer_card_t *w = &ctx->member->peers[spec->writer], *r = &ctx->member->peers[reader];
    char switches[256] = "";
    for (int i = 0; i < KOLO_WIRE_COUNT; i++) {
        size_t at = strlen(switches);
        snprintf(switches + at, sizeof switches - at, "%s%s", i ? ", " : "", kolo_wires[i]->off);
    }
    return kolo_fail(
        KOLO_ERR_UNSUPPORTED,
        "no wire connects rank %d (host %.32s, pid %d, enabled wires 0x%x) with %srank %d (host %.32s, "
        "pid %d, enabled wires 0x%x); look at %s",
        spec->writer, w->host_name, w->pid, w->wires,
        spec->kind == KOLO_CONN_NODE ? "all ranks of its host, such as " : "", reader, r->host_name, r->pid,
        r->wires, switches);
}

/* ---- messages ---- */

static uint64_t message_tag(const kolo_conn_spec_t *spec, bool from_reader)
{
    uint32_t words[6] = {
        (uint32_t)spec->kind, (uint32_t)spec->proto, (uint32_t)spec->writer, (uint32_t)spec->reader, spec->lane,
        from_reader};
    return 0x57ull << 56 | kolo_hash_bytes(KOLO_HASH_INIT, words, sizeof words) >> 8;
}

static void fill_message(message_t *message, const kolo_conn_spec_t *spec, const kolo_wire_ops_t *ops,
                         uint32_t caps)
{
    memset(message, 0, sizeof *message);
    message->magic = MESSAGE_MAGIC;
    message->version = MESSAGE_VERSION;
    message->wire = ops ? (uint32_t)ops->kind : KOLO_WIRE_COUNT;
    message->caps = caps;
    message->depth = spec->depth;
    message->slot_bytes = spec->slot_bytes;
    message->start = spec->start;
}

/* Sends to the writer, or to all readers. */
static kolo_status_t tell(kolo_wire_ctx_t *ctx, pending_t *p, const message_t *message)
{
    const kolo_conn_spec_t *spec = &p->request->spec;
    p->told = true;
    if (p->request->rx)
        return kolo_oob_send(ctx->oob, spec->writer, message_tag(spec, true), message, sizeof *message);
    for (uint32_t i = 0; i < p->nreaders; i++)
        KOLO_TRY(kolo_oob_send(ctx->oob, kolo_wire_reader_at(ctx, spec, i), message_tag(spec, false), message,
                               sizeof *message));
    return KOLO_OK;
}

static kolo_status_t hear(kolo_wire_ctx_t *ctx, const pending_t *p, int from, message_t *message)
{
    const kolo_conn_spec_t *spec = &p->request->spec;
    uint64_t tag = message_tag(spec, p->request->tx != NULL);
    KOLO_TRY(kolo_oob_recv(ctx->oob, from, tag, message, sizeof *message, ctx->deadline_ns));
    if (message->magic != MESSAGE_MAGIC || message->version != MESSAGE_VERSION)
        return kolo_fail(KOLO_ERR_PROTOCOL,
                         "rank %d sent a set-up message that is not one (magic %08x, version %u)", from,
                         message->magic, message->version);
    message->reason[sizeof message->reason - 1] = '\0';
    if (message->status != KOLO_OK)
        return kolo_fail(KOLO_ERR_REMOTE, "rank %d could not set up its end of the connection from rank %d: %s",
                         from, spec->writer, message->reason);
    if (message->depth != spec->depth || message->slot_bytes != spec->slot_bytes || message->start != spec->start)
        return kolo_fail(
            KOLO_ERR_MISMATCH,
            "rank %d wants %u slots of %u bytes from number %llu for the connection from rank %d, rank "
            "%d wants %u of %u from %llu",
            from, message->depth, message->slot_bytes, (unsigned long long)message->start, spec->writer,
            ctx->member->rank, spec->depth, spec->slot_bytes, (unsigned long long)spec->start);
    if (message->wire != (uint32_t)p->ops->kind &&
        !(p->ops->fallback && message->wire == (uint32_t)p->ops->fallback->kind))
        return kolo_fail(KOLO_ERR_MISMATCH, "rank %d chose wire number %u where rank %d chose %s", from,
                         message->wire, ctx->member->rank, p->ops->name);
    return KOLO_OK;
}

/* ---- phases ---- */

static void fill_tx(pending_t *p)
{
    const kolo_conn_spec_t *spec = &p->request->spec;
    *p->request->tx = (kolo_tx_t){
        .next = spec->start,
        .room = spec->start + spec->depth,
        .mask = spec->depth - 1,
        .stride = kolo_queue_stride(spec),
        .slot_bytes = spec->slot_bytes,
        .depth = spec->depth,
        .nreaders = p->nreaders,
        .caps = p->ops->caps,
        .ops = p->ops,
        .spec = *spec,
    };
}

static void fill_rx(pending_t *p)
{
    const kolo_conn_spec_t *spec = &p->request->spec;
    *p->request->rx = (kolo_rx_t){
        .next = spec->start,
        .mask = spec->depth - 1,
        .stride = kolo_queue_stride(spec),
        .slot_bytes = spec->slot_bytes,
        .depth = spec->depth,
        .caps = p->ops->caps,
        .ops = p->ops,
        .spec = *spec,
    };
}

/* Who is meant, for all requests before anything else, so that all who wait can be told of a failure. */
static kolo_status_t identify(kolo_wire_ctx_t *ctx, pending_t *p)
{
    const kolo_conn_spec_t *spec = &p->request->spec;
    int rank = ctx->member->rank, nranks = ctx->member->nranks;
    bool is_pair = spec->kind == KOLO_CONN_PAIR;
    if (spec->writer < 0 || spec->writer >= nranks ||
        (is_pair && (spec->reader < 0 || spec->reader >= nranks || spec->reader == spec->writer)))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "connection from rank %d to rank %d among %d ranks",
                         spec->writer, spec->reader, nranks);
    bool writes = spec->writer == rank, reads = kolo_wire_reader_index(ctx, spec, rank) >= 0;
    if (writes != (p->request->tx != NULL) || reads != (p->request->rx != NULL) || writes == reads)
        return kolo_fail(KOLO_ERR_INTERNAL,
                         "rank %d asks for the wrong end of the connection from rank %d to rank %d", rank,
                         spec->writer, spec->reader);
    p->nreaders = kolo_wire_readers(ctx, spec);
    p->meant = true;
    return KOLO_OK;
}

static kolo_status_t prepare(kolo_wire_ctx_t *ctx, pending_t *p)
{
    KOLO_FAIL_POINT_TRY("wire.connect.prepare");
    KOLO_TRY(kolo_conn_check_spec(&p->request->spec));
    p->ops = kolo_wire_choose(ctx, &p->request->spec, NULL);
    if (!p->ops) return no_wire(ctx, &p->request->spec);
    if (p->request->rx) {
        fill_rx(p);
        return KOLO_OK;
    }
    fill_tx(p);
    p->cards = (kolo_wire_card_t *)calloc(p->nreaders, sizeof *p->cards);
    if (!p->cards) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the cards of %u ranks", p->nreaders);
    return KOLO_OK;
}

static kolo_status_t set_up_rx(kolo_wire_ctx_t *ctx, pending_t *p)
{
    KOLO_FAIL_POINT_TRY("wire.connect.rx_setup");
    kolo_rx_t *rx = p->request->rx;
    message_t message;
    kolo_wire_card_t card = {{0}};
    KOLO_TRY(p->ops->rx_setup(ctx, rx, &card));
    fill_message(&message, &rx->spec, rx->ops, rx->caps & rx->ops->caps);
    message.card = card;
    return tell(ctx, p, &message);
}

/* What all readers can do is what the connection can do. */
static kolo_status_t set_up_tx(kolo_wire_ctx_t *ctx, pending_t *p)
{
    KOLO_FAIL_POINT_TRY("wire.connect.tx_setup");
    kolo_tx_t *tx = p->request->tx;
    message_t message;
    kolo_wire_card_t card = {{0}};
    for (uint32_t i = 0; i < p->nreaders; i++) {
        KOLO_TRY(hear(ctx, p, kolo_wire_reader_at(ctx, &tx->spec, i), &message));
        if (message.wire != (uint32_t)p->ops->kind) tx->ops = p->ops->fallback;
        tx->caps &= message.caps;
        p->cards[i] = message.card;
    }
    tx->caps &= tx->ops->caps;
    KOLO_TRY(tx->ops->tx_setup(ctx, tx, &card));
    fill_message(&message, &tx->spec, tx->ops, tx->caps);
    message.card = card;
    return tell(ctx, p, &message);
}

static kolo_status_t connect_rx(kolo_wire_ctx_t *ctx, pending_t *p)
{
    KOLO_FAIL_POINT_TRY("wire.connect.rx_connect");
    kolo_rx_t *rx = p->request->rx;
    message_t message;
    KOLO_TRY(hear(ctx, p, rx->spec.writer, &message));
    if (message.wire != (uint32_t)p->ops->kind) rx->ops = p->ops->fallback;
    rx->caps &= message.caps & rx->ops->caps;
    return rx->ops->rx_connect(ctx, rx, &message.card);
}

static kolo_status_t connect_tx(kolo_wire_ctx_t *ctx, pending_t *p)
{
    KOLO_FAIL_POINT_TRY("wire.connect.tx_connect");
    return p->request->tx->ops->tx_connect(ctx, p->request->tx, p->cards);
}

typedef kolo_status_t (*phase_fn_t)(kolo_wire_ctx_t *ctx, pending_t *p);

static kolo_status_t run_phases(kolo_wire_ctx_t *ctx, pending_t *pending, int count)
{
    static const struct {
        phase_fn_t fn;
        bool of_rx, of_tx;
    } phases[] = {
        {identify, true, true},   {prepare, true, true},     {set_up_rx, true, false},
        {set_up_tx, false, true}, {connect_tx, false, true}, {connect_rx, true, false},
    };
    for (size_t f = 0; f < KOLO_COUNTOF(phases); f++) {
        for (int i = 0; i < count; i++) {
            bool reads = pending[i].request->rx != NULL;
            if (reads ? phases[f].of_rx : phases[f].of_tx) KOLO_TRY(phases[f].fn(ctx, &pending[i]));
        }
    }
    return KOLO_OK;
}

static void log_connection(const kolo_wire_ctx_t *ctx, const kolo_tx_t *tx)
{
    char to[48];
    if (tx->spec.kind == KOLO_CONN_PAIR)
        snprintf(to, sizeof to, "rank %d", tx->spec.reader);
    else
        snprintf(to, sizeof to, "%u ranks of its host", tx->nreaders);
    kolo_info("wire", "rank %d -> %s, lane %u: %s%s, %s, %u slots of %u bytes", ctx->member->rank, to,
              tx->spec.lane, tx->ops->name, tx->caps & KOLO_CAP_REF ? " with single copies" : "",
              tx->spec.proto == KOLO_PROTO_LL ? "low latency" : "simple", tx->depth, tx->slot_bytes);
}

/* ---- agreeing on the outcome ---- */

/* For each rank that shares connections of this list with me, a number that is the same at both; 0: none shared. */
static void sum_up(const kolo_wire_ctx_t *ctx, const pending_t *pending, int count, uint64_t *sums)
{
    for (int i = 0; i < count; i++) {
        const kolo_conn_spec_t *spec = &pending[i].request->spec;
        if (!pending[i].meant) continue;
        if (pending[i].request->rx) sums[spec->writer] += message_tag(spec, true);
        for (uint32_t r = 0; pending[i].request->tx && r < pending[i].nreaders; r++)
            sums[kolo_wire_reader_at(ctx, spec, r)] += message_tag(spec, true);
    }
}

static uint64_t outcome_tag(uint64_t sum)
{
    return 0x58ull << 56 | sum >> 8;
}

static kolo_status_t hear_outcome(kolo_wire_ctx_t *ctx, int from, uint64_t sum)
{
    outcome_t outcome;
    KOLO_TRY(kolo_oob_recv(ctx->oob, from, outcome_tag(sum), &outcome, sizeof outcome, ctx->deadline_ns));
    if (outcome.magic != MESSAGE_MAGIC || outcome.version != MESSAGE_VERSION)
        return kolo_fail(KOLO_ERR_PROTOCOL, "rank %d sent an outcome of set-up that is not one (magic %08x)", from,
                         outcome.magic);
    outcome.reason[sizeof outcome.reason - 1] = '\0';
    if (outcome.status != KOLO_OK)
        return kolo_fail(KOLO_ERR_REMOTE, "rank %d could not set up its connections: %s", from, outcome.reason);
    return KOLO_OK;
}

/* Both ends of a connection are up or none is: every rank tells those it shares connections with how it went. */
static kolo_status_t settle(kolo_wire_ctx_t *ctx, const pending_t *pending, int count, kolo_status_t status)
{
    int nranks = ctx->member->nranks;
    uint64_t *sums = (uint64_t *)calloc((size_t)nranks, sizeof *sums);
    if (!sums) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to settle connections among %d ranks", nranks);
    outcome_t outcome = {.magic = MESSAGE_MAGIC, .version = MESSAGE_VERSION, .status = (int32_t)status};
    if (status != KOLO_OK)
        snprintf(outcome.reason, sizeof outcome.reason, "%.*s", (int)sizeof outcome.reason - 1, kolo_error_text());
    sum_up(ctx, pending, count, sums);
    KOLO_FAIL_POINT("wire.connect.settle");
    for (int rank = 0; rank < nranks; rank++) {
        if (!sums[rank]) continue;
        kolo_status_t sent = kolo_oob_send(ctx->oob, rank, outcome_tag(sums[rank]), &outcome, sizeof outcome);
        if (status == KOLO_OK) status = sent; /* a rank that cannot be told is found gone by others as well */
    }
    KOLO_FAIL_POINT("wire.connect.told");
    bool mine_failed = outcome.status != KOLO_OK;
    for (int rank = 0; rank < nranks && status == KOLO_OK; rank++)
        if (sums[rank]) status = hear_outcome(ctx, rank, sums[rank]);
    free(sums);
    return mine_failed ? kolo_fail(status, "%s", outcome.reason) : status;
}

/* I have failed: whoever still waits for my message hears why, and nothing stays. */
static void give_up(kolo_wire_ctx_t *ctx, pending_t *pending, int count, kolo_status_t status)
{
    message_t message;
    char text[KOLO_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", kolo_error_text()); /* sending may fail as well */
    KOLO_FAIL_POINT("wire.connect.give_up");
    for (int i = 0; i < count; i++) {
        pending_t *p = &pending[i];
        if (p->meant && !p->told) {
            fill_message(&message, &p->request->spec, p->ops, 0);
            message.status = (int32_t)status;
            snprintf(message.reason, sizeof message.reason, "%.*s", (int)sizeof message.reason - 1, text);
            (void)tell(ctx, p, &message);
        }
        if (p->request->tx) {
            kolo_tx_close(p->request->tx);
            kolo_tx_fini(p->request->tx);
        }
        if (p->request->rx) {
            kolo_rx_close(p->request->rx);
            kolo_rx_fini(p->request->rx);
        }
    }
    (void)kolo_fail(status, "%s", text);
}

kolo_status_t kolo_wire_connect(kolo_wire_ctx_t *ctx, kolo_conn_request_t *requests, int count)
{
    if (count <= 0) return KOLO_OK;
    pending_t *pending = (pending_t *)calloc((size_t)count, sizeof *pending);
    if (!pending) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to set up %d connections", count);
    for (int i = 0; i < count; i++) {
        pending[i].request = &requests[i];
        if (requests[i].tx) memset(requests[i].tx, 0, sizeof *requests[i].tx);
        if (requests[i].rx) memset(requests[i].rx, 0, sizeof *requests[i].rx);
    }
    kolo_status_t status = settle(ctx, pending, count, run_phases(ctx, pending, count));
    if (status != KOLO_OK) give_up(ctx, pending, count, status);
    for (int i = 0; i < count; i++) {
        if (status == KOLO_OK && requests[i].tx) log_connection(ctx, requests[i].tx);
        free(pending[i].cards);
    }
    free(pending);
    return status;
}

/* ---- ends ---- */

void kolo_tx_close(kolo_tx_t *tx)
{
    if (tx->ops) tx->ops->tx_close(tx);
}

void kolo_rx_close(kolo_rx_t *rx)
{
    if (rx->ops) rx->ops->rx_close(rx);
}

void kolo_tx_fini(kolo_tx_t *tx)
{
    if (tx->ops) tx->ops->tx_fini(tx);
    memset(tx, 0, sizeof *tx);
}

void kolo_rx_fini(kolo_rx_t *rx)
{
    if (rx->ops) rx->ops->rx_fini(rx);
    memset(rx, 0, sizeof *rx);
}
