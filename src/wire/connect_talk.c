/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranks tell each other while they set connections up, out of band: each end's card, and how it went.
 */
#include "wire/connecting.h"

#include "base/failpoint.h"

#include <stdio.h>
#include <string.h>

#define MESSAGE_MAGIC   0x6e6e636bu /* "kcnn" */
#define MESSAGE_VERSION 2u
#define NEVER_NS        UINT64_MAX

static uint64_t message_tag(const kolo_conn_spec_t *spec, bool from_reader)
{
    uint32_t words[6] = {
        (uint32_t)spec->kind, (uint32_t)spec->proto, (uint32_t)spec->writer, (uint32_t)spec->reader, spec->lane,
        from_reader};
    return 0x57ull << 56 | kolo_hash_bytes(KOLO_HASH_INIT, words, sizeof words) >> 8;
}

void kolo_connecting_fill(kolo_connecting_message_t *message, const kolo_conn_spec_t *spec,
                          const kolo_wire_ops_t *ops, uint32_t caps)
{
    memset(message, 0, sizeof *message);
    message->magic = MESSAGE_MAGIC;
    message->version = MESSAGE_VERSION;
    if (ops) message->wire = kolo_wire_id(ops);
    message->caps = caps;
    message->depth = spec->depth;
    message->slot_bytes = spec->slot_bytes;
    message->start = spec->start;
}

kolo_status_t kolo_connecting_tell(kolo_wire_ctx_t *ctx, kolo_connecting_pending_t *p,
                                   const kolo_connecting_message_t *message)
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

bool kolo_connecting_says(const kolo_connecting_message_t *message, const kolo_wire_ops_t *wire)
{
    kolo_wire_id_t id = kolo_wire_id(wire);
    return memcmp(&message->wire, &id, sizeof id) == 0;
}

uint64_t kolo_connecting_patience(const kolo_connecting_t *c)
{
    return c->deadline_ns ? c->deadline_ns : NEVER_NS;
}

kolo_status_t kolo_connecting_late(const kolo_connecting_t *c, int rank)
{
    char purpose[400];
    if (kolo_wait_purpose_words(purpose, sizeof purpose))
        return kolo_fail(KOLO_ERR_TIMEOUT, "time-out: rank %d has not come to connect: %s", rank, purpose);
    return kolo_fail(KOLO_ERR_TIMEOUT,
                     "time-out while waiting for rank %d, which has not come to connect with rank %d", rank,
                     c->ctx->member->rank);
}

/* Receives a message into c->in; KOLO_IN_PROGRESS: it is not there yet. */
static kolo_status_t receive(kolo_connecting_t *c, int from, uint64_t tag, size_t bytes)
{
    kolo_oob_t *oob = c->ctx->oob;
    if (c->patient) {
        kolo_status_t came = kolo_oob_recv(oob, from, tag, &c->in, bytes, kolo_connecting_patience(c));
        return came == KOLO_ERR_TIMEOUT ? kolo_connecting_late(c, from) : came;
    }
    if (!c->receipt) KOLO_TRY(kolo_oob_recv_begin(oob, from, tag, &c->in, bytes, &c->receipt));
    c->awaits = from;
    kolo_status_t status = kolo_oob_recv_poll(c->receipt);
    if (status == KOLO_IN_PROGRESS) return status;
    kolo_oob_recv_end(c->receipt);
    c->receipt = NULL;
    c->awaits = -1;
    return status;
}

kolo_status_t kolo_connecting_hear(kolo_connecting_t *c, const kolo_connecting_pending_t *p, int from)
{
    const kolo_wire_ctx_t *ctx = c->ctx;
    const kolo_conn_spec_t *spec = &p->request->spec;
    kolo_connecting_message_t *message = &c->in.message;
    KOLO_TRY(receive(c, from, message_tag(spec, p->request->tx != NULL), sizeof *message));
    if (message->magic != MESSAGE_MAGIC || message->version != MESSAGE_VERSION)
        return kolo_fail(KOLO_ERR_PROTOCOL,
                         "rank %d sent a set-up message that is not one (magic %08x, version %u)", from,
                         message->magic, message->version);
    if (message->status != KOLO_OK) {
        message->u.reason[sizeof message->u.reason - 1] = '\0';
        return kolo_fail(KOLO_ERR_REMOTE, "rank %d could not set up its end of the connection from rank %d: %s",
                         from, spec->writer, message->u.reason);
    }
    if (message->u.card.length > KOLO_WIRE_CARD_BYTES)
        return kolo_fail(KOLO_ERR_PROTOCOL, "rank %d sent a card of %u bytes for a connection, at most %d fit",
                         from, message->u.card.length, KOLO_WIRE_CARD_BYTES);
    if (message->depth != spec->depth || message->slot_bytes != spec->slot_bytes || message->start != spec->start)
        return kolo_fail(
            KOLO_ERR_MISMATCH,
            "rank %d wants %u slots of %u bytes from number %llu for the connection from rank %d, rank "
            "%d wants %u of %u from %llu",
            from, message->depth, message->slot_bytes, (unsigned long long)message->start, spec->writer,
            ctx->member->rank, spec->depth, spec->slot_bytes, (unsigned long long)spec->start);
    if (!kolo_connecting_says(message, p->ops) &&
        !(p->ops->fallback && kolo_connecting_says(message, p->ops->fallback)))
        return kolo_fail(
            KOLO_ERR_MISMATCH, "rank %d chose wire %.7s (version %u) where rank %d chose %s (version %u)", from,
            message->wire.name, message->wire.version, ctx->member->rank, p->ops->name, p->ops->version);
    return KOLO_OK;
}

/* ---- agreeing on the outcome ---- */

void kolo_connecting_sum_up(kolo_connecting_t *c, const kolo_connecting_pending_t *p)
{
    const kolo_conn_spec_t *spec = &p->request->spec;
    if (p->request->rx) c->sums[spec->writer] += message_tag(spec, true);
    for (uint32_t r = 0; p->request->tx && r < p->nreaders; r++)
        c->sums[kolo_wire_reader_at(c->ctx, spec, r)] += message_tag(spec, true);
}

static uint64_t outcome_tag(uint64_t sum)
{
    return 0x58ull << 56 | sum >> 8;
}

kolo_status_t kolo_connecting_hear_outcomes(kolo_connecting_t *c)
{
    kolo_connecting_outcome_t *outcome = &c->in.outcome;
    for (; c->rank < c->ctx->member->nranks; c->rank++) {
        if (!c->sums[c->rank]) continue;
        KOLO_TRY(receive(c, c->rank, outcome_tag(c->sums[c->rank]), sizeof *outcome));
        if (outcome->magic != MESSAGE_MAGIC || outcome->version != MESSAGE_VERSION)
            return kolo_fail(KOLO_ERR_PROTOCOL, "rank %d sent an outcome of set-up that is not one (magic %08x)",
                             c->rank, outcome->magic);
        outcome->reason[sizeof outcome->reason - 1] = '\0';
        if (outcome->status != KOLO_OK)
            return kolo_fail(KOLO_ERR_REMOTE, "rank %d could not set up its connections: %s", c->rank,
                             outcome->reason);
    }
    return KOLO_OK;
}

kolo_status_t kolo_connecting_tell_outcome(kolo_connecting_t *c, kolo_status_t status)
{
    kolo_connecting_outcome_t outcome = {
        .magic = MESSAGE_MAGIC, .version = MESSAGE_VERSION, .status = (int32_t)status};
    if (status != KOLO_OK)
        snprintf(outcome.reason, sizeof outcome.reason, "%.*s", (int)sizeof outcome.reason - 1, kolo_error_text());
    KOLO_FAIL_POINT("wire.connect.settle");
    for (int rank = 0; rank < c->ctx->member->nranks; rank++) {
        if (!c->sums[rank]) continue;
        kolo_status_t sent = kolo_oob_send(c->ctx->oob, rank, outcome_tag(c->sums[rank]), &outcome, sizeof outcome);
        if (status == KOLO_OK) status = sent; /* a rank that cannot be told is found gone by others as well */
    }
    KOLO_FAIL_POINT("wire.connect.told");
    c->settling = true;
    return outcome.status != KOLO_OK ? kolo_fail(status, "%s", outcome.reason) : status;
}

void kolo_connecting_refuse(kolo_wire_ctx_t *ctx, kolo_connecting_pending_t *p, kolo_status_t status,
                            const char *text)
{
    kolo_connecting_message_t message;
    if (!p->meant || p->told) return;
    kolo_connecting_fill(&message, &p->request->spec, p->ops, 0);
    message.status = (int32_t)status;
    snprintf(message.u.reason, sizeof message.u.reason, "%.*s", (int)sizeof message.u.reason - 1, text);
    (void)kolo_connecting_tell(ctx, p, &message);
}
