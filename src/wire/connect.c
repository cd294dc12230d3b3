/* SPDX-License-Identifier: Apache-2.0
 *
 * Setting connections up. Both ends choose a wire by the same rule from the same cards (choose.c); then the readers
 * of a connection send a card of the wire to its writer, and the writer to them, with the wire and capabilities
 * that are possible, so that both ends have the same. A rank that fails notifies all that wait for it.
 *
 * Set-up is one walk over the list, phase by phase, which stops where a peer's message is missing. A blocking
 * caller waits there; others return and try again (kolo_connecting_step).
 */
#include "wire/connecting.h"

#include "base/failpoint.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- phases ---- */

/* Finds out who is meant, for all requests before anything else, so that all who wait can be told of a failure. */
static kolo_status_t identify(kolo_wire_ctx_t *ctx, kolo_connecting_pending_t *p)
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

static kolo_status_t prepare(kolo_connecting_t *c, kolo_connecting_pending_t *p)
{
    const kolo_wire_ctx_t *ctx = c->ctx;
    KOLO_FAIL_POINT_TRY("wire.connect.prepare");
    KOLO_TRY(kolo_conn_check_spec(&p->request->spec));
    p->ops = kolo_wire_choose(ctx, &p->request->spec);
    if (!p->ops) return kolo_wire_none(ctx, &p->request->spec);
    if (p->request->rx) {
        *p->request->rx = kolo_queue_rx(&p->request->spec, p->ops);
        return KOLO_OK;
    }
    *p->request->tx = kolo_queue_tx(&p->request->spec, p->nreaders, p->ops);
    p->cards = (kolo_wire_card_t *)calloc(p->nreaders, sizeof *p->cards);
    if (!p->cards) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the cards of %u ranks", p->nreaders);
    return KOLO_OK;
}

/* Logs a phase. Those of all connections of a list come one after the other: receive ends, send ends, and then both
 * connected, in the opposite order. */
static void log_phase(const kolo_connecting_t *c, const kolo_connecting_pending_t *p, const char *what)
{
    const kolo_conn_spec_t *spec = &p->request->spec;
    const kolo_wire_ops_t *ops = p->request->tx ? p->request->tx->ops : p->request->rx->ops;
    kolo_debug("wire", "set-up %d of rank %d: %d -> %d lane %u by %s: %s", (int)c->phase, c->ctx->member->rank,
               spec->writer, spec->reader, spec->lane, ops->name, what);
}

static kolo_status_t set_up_rx(kolo_connecting_t *c, kolo_connecting_pending_t *p)
{
    KOLO_FAIL_POINT_TRY("wire.connect.rx_setup");
    kolo_rx_t *rx = p->request->rx;
    kolo_connecting_message_t message;
    kolo_wire_card_t card = {0};
    KOLO_TRY(p->ops->rx_setup(c->ctx, rx, &card));
    kolo_connecting_fill(&message, &rx->spec, rx->ops, rx->caps & rx->ops->caps);
    message.u.card = card;
    log_phase(c, p, "receive end made, its card goes out");
    return kolo_connecting_tell(c->ctx, p, &message);
}

/* Makes the send end. What all readers can do is what the connection can do. */
static kolo_status_t set_up_tx(kolo_connecting_t *c, kolo_connecting_pending_t *p)
{
    if (c->reader == 0 && !c->receipt) KOLO_FAIL_POINT_TRY("wire.connect.tx_setup");
    kolo_tx_t *tx = p->request->tx;
    kolo_connecting_message_t message;
    kolo_wire_card_t card = {0};
    for (; c->reader < p->nreaders; c->reader++) {
        KOLO_TRY(kolo_connecting_hear(c, p, kolo_wire_reader_at(c->ctx, &tx->spec, c->reader)));
        if (!kolo_connecting_says(&c->in.message, p->ops)) tx->ops = p->ops->fallback;
        tx->caps &= c->in.message.caps;
        p->cards[c->reader] = c->in.message.u.card;
    }
    tx->caps &= tx->ops->caps;
    KOLO_TRY(tx->ops->tx_setup(c->ctx, tx, &card));
    kolo_connecting_fill(&message, &tx->spec, tx->ops, tx->caps);
    message.u.card = card;
    log_phase(c, p, "send end made, its card goes out");
    return kolo_connecting_tell(c->ctx, p, &message);
}

static kolo_status_t hear_writer(kolo_connecting_t *c, kolo_connecting_pending_t *p)
{
    kolo_rx_t *rx = p->request->rx;
    if (!c->receipt) KOLO_FAIL_POINT_TRY("wire.connect.rx_connect");
    KOLO_TRY(kolo_connecting_hear(c, p, rx->spec.writer));
    if (!kolo_connecting_says(&c->in.message, p->ops)) rx->ops = p->ops->fallback;
    rx->caps &= c->in.message.caps & rx->ops->caps;
    return KOLO_OK;
}

static kolo_status_t connect_rx(kolo_connecting_t *c, kolo_connecting_pending_t *p)
{
    kolo_rx_t *rx = p->request->rx;
    if (c->reader == 0) KOLO_TRY(hear_writer(c, p));
    c->reader = 1; /* the writer's card is in c->in */
    bool writer_came = rx->ops->rx_can_connect(c->ctx, rx, &c->in.message.u.card);
    if (!c->patient && !writer_came) {
        c->awaits = rx->spec.writer;
        return KOLO_IN_PROGRESS;
    }
    c->awaits = -1;
    if (!writer_came) c->ctx->deadline_ns = kolo_connecting_patience(c); /* it may still wait for another rank */
    kolo_status_t status = rx->ops->rx_connect(c->ctx, rx, &c->in.message.u.card);
    c->ctx->deadline_ns = c->deadline_ns;
    if (status == KOLO_OK) log_phase(c, p, "receive end connected");
    return status;
}

static kolo_status_t connect_tx(kolo_connecting_t *c, kolo_connecting_pending_t *p)
{
    KOLO_FAIL_POINT_TRY("wire.connect.tx_connect");
    KOLO_TRY(p->request->tx->ops->tx_connect(c->ctx, p->request->tx, p->cards));
    log_phase(c, p, "send end connected");
    return KOLO_OK;
}

static kolo_status_t run_phases(kolo_connecting_t *c)
{
    static const struct {
        kolo_status_t (*fn)(kolo_connecting_t *c, kolo_connecting_pending_t *p);
        bool of_rx, of_tx;
    } phases[] = {
        {prepare, true, true},     {set_up_rx, true, false},  {set_up_tx, false, true},
        {connect_tx, false, true}, {connect_rx, true, false},
    };
    for (; c->phase < KOLO_COUNTOF(phases); c->phase++) {
        for (; c->at < c->count; c->at++) {
            kolo_connecting_pending_t *p = &c->pending[c->at];
            if (p->request->rx ? phases[c->phase].of_rx : phases[c->phase].of_tx)
                KOLO_TRY(phases[c->phase].fn(c, p));
            c->reader = 0;
        }
        c->at = 0;
    }
    return KOLO_OK;
}

static void log_connection(const kolo_wire_ctx_t *ctx, const kolo_tx_t *tx)
{
    char to[48];
    if (tx->spec.kind == KOLO_CONN_PAIR)
        snprintf(to, sizeof to, "rank %d", tx->spec.reader);
    else
        snprintf(to, sizeof to, "%u ranks of its host", tx->end.nreaders);
    kolo_info("wire", "rank %d -> %s, lane %u: %s%s, %s, %u slots of %u bytes", ctx->member->rank, to,
              tx->spec.lane, tx->ops->name, tx->caps & KOLO_CAP_REF ? " with single copies" : "",
              tx->spec.proto == KOLO_PROTO_LL ? "low latency" : "simple", tx->end.depth, tx->end.slot_bytes);
}

/* Gives up all ends after a failure: nothing stays. */
static void give_up(kolo_connecting_t *c, kolo_status_t status)
{
    char text[KOLO_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", kolo_error_text()); /* sending may fail as well */
    KOLO_FAIL_POINT("wire.connect.give_up");
    for (int i = 0; i < c->count; i++) {
        kolo_connecting_pending_t *p = &c->pending[i];
        kolo_connecting_refuse(c->ctx, p, status, text);
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

static kolo_status_t finish(kolo_connecting_t *c, kolo_status_t status)
{
    kolo_oob_recv_end(c->receipt);
    c->receipt = NULL;
    c->awaits = -1;
    if (status != KOLO_OK && !c->settling) status = kolo_connecting_tell_outcome(c, status);
    if (status != KOLO_OK) give_up(c, status);
    for (int i = 0; i < c->count && status == KOLO_OK; i++)
        if (c->requests[i].tx) log_connection(c->ctx, c->requests[i].tx);
    c->over = true;
    return c->status = status;
}

kolo_status_t kolo_connecting_step(kolo_connecting_t *c)
{
    kolo_status_t status = KOLO_OK;
    if (c->over) return c->status;
    uint64_t changes = kolo_oob_changes(c->ctx->oob);
    if (!c->patient && c->awaits >= 0 && changes == c->seen) {
        bool in_time = c->deadline_ns == 0 || kolo_now_ns() < c->deadline_ns;
        return in_time ? KOLO_IN_PROGRESS : finish(c, kolo_connecting_late(c, c->awaits));
    }
    c->seen = changes;
    c->ctx->deadline_ns = c->deadline_ns;
    if (!c->settling) {
        status = run_phases(c);
        if (status == KOLO_OK) status = kolo_connecting_tell_outcome(c, status);
    }
    if (status == KOLO_OK) status = kolo_connecting_hear_outcomes(c);
    return status == KOLO_IN_PROGRESS ? status : finish(c, status);
}

int kolo_connecting_awaits(const kolo_connecting_t *c)
{
    return c->awaits;
}

/* Tells those who would wait that this rank has no memory to begin. */
static kolo_status_t cannot_begin(kolo_wire_ctx_t *ctx, const kolo_conn_request_t *requests, int count)
{
    char text[80];
    snprintf(text, sizeof text, "no memory to set up %d connections", count);
    for (int i = 0; i < count; i++) {
        kolo_conn_request_t request = requests[i];
        kolo_connecting_pending_t p = {.request = &request};
        if (identify(ctx, &p) == KOLO_OK) kolo_connecting_refuse(ctx, &p, KOLO_ERR_NO_MEMORY, text);
    }
    return kolo_fail(KOLO_ERR_NO_MEMORY, "%s", text);
}

kolo_status_t kolo_connecting_begin(kolo_wire_ctx_t *ctx, const kolo_conn_request_t *requests, int count,
                                    kolo_connecting_t **out)
{
    size_t n = (size_t)count;
    kolo_connecting_t *c = (kolo_connecting_t *)calloc(1, sizeof *c);
    if (!c) return cannot_begin(ctx, requests, count);
    *c = (kolo_connecting_t){.ctx = ctx, .deadline_ns = ctx->deadline_ns, .count = count, .awaits = -1};
    c->requests = (kolo_conn_request_t *)calloc(n, sizeof *c->requests);
    c->pending = (kolo_connecting_pending_t *)calloc(n, sizeof *c->pending);
    c->sums = (uint64_t *)calloc((size_t)ctx->member->nranks, sizeof *c->sums);
    if (!c->requests || !c->pending || !c->sums) {
        c->over = true;
        kolo_connecting_end(c);
        return cannot_begin(ctx, requests, count);
    }
    kolo_status_t status = KOLO_OK;
    for (int i = 0; i < count; i++) {
        c->requests[i] = requests[i];
        c->pending[i].request = &c->requests[i];
        if (requests[i].tx) memset(requests[i].tx, 0, sizeof *requests[i].tx);
        if (requests[i].rx) memset(requests[i].rx, 0, sizeof *requests[i].rx);
    }
    for (int i = 0; i < count; i++) {
        kolo_status_t one = identify(ctx, &c->pending[i]);
        if (one == KOLO_OK) kolo_connecting_sum_up(c, &c->pending[i]);
        if (status == KOLO_OK) status = one;
    }
    if (status == KOLO_OK) {
        *out = c;
        return KOLO_OK;
    }
    finish(c, status);
    kolo_connecting_end(c);
    return status;
}

void kolo_connecting_end(kolo_connecting_t *c)
{
    if (!c) return;
    if (!c->over) {
        char text[KOLO_ERROR_TEXT_BYTES]; /* why it is given up: the caller still wants to say so */
        snprintf(text, sizeof text, "%s", kolo_error_text());
        finish(c, KOLO_ERR_ABORTED);
        (void)kolo_fail(KOLO_ERR_ABORTED, "%s", text);
    }
    for (int i = 0; c->pending && i < c->count; i++) free(c->pending[i].cards);
    free(c->sums);
    free(c->pending);
    free(c->requests);
    free(c);
}

kolo_status_t kolo_wire_connect(kolo_wire_ctx_t *ctx, kolo_conn_request_t *requests, int count)
{
    kolo_connecting_t *c = NULL;
    if (count <= 0) return KOLO_OK;
    KOLO_TRY(kolo_connecting_begin(ctx, requests, count, &c));
    c->patient = true;
    kolo_status_t status = kolo_connecting_step(c);
    kolo_connecting_end(c);
    return status;
}
