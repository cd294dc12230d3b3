/* SPDX-License-Identifier: Apache-2.0
 *
 * The net wire at work: posted slots become messages, free ones offers, and what has come is published. pump() does
 * what can be done on all connections of a context; it runs on the thread that waits, never blocks, and remembers
 * the first failure of each connection so that every later call reports it again.
 */
#include "base/log.h"
#include "wire/net/conn.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- failure ---- */

kolo_status_t kolo_net_conn_fail(kolo_net_conn_t *conn, kolo_status_t status, const char *fmt, ...)
{
    const kolo_conn_spec_t *spec = conn->tx ? &conn->tx->spec : &conn->rx->spec;
    const kolo_member_t *m = conn->state->ctx->member;
    const kolo_peer_card_t *peer = m && m->peers && conn->peer < m->nranks ? &m->peers[conn->peer] : NULL;
    int n = snprintf(conn->error, sizeof conn->error,
                     "net: rank %d on %.32s (pid %d), connection %d -> %d lane %u: ", conn->peer,
                     peer ? peer->host_name : "?", peer ? peer->pid : 0, spec->writer, spec->reader, spec->lane);
    if (n > 0 && (size_t)n < sizeof conn->error) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(conn->error + n, sizeof conn->error - (size_t)n, fmt, ap);
        va_end(ap);
    }
    conn->status = status;
    kolo_debug("net", "%s", conn->error);
    return status;
}

static kolo_status_t report(const kolo_net_conn_t *conn)
{
    if (conn->closed)
        return kolo_fail(KOLO_ERR_ABORTED, "net: the connection with rank %d was closed here", conn->peer);
    return conn->status == KOLO_OK ? KOLO_OK : kolo_fail(conn->status, "%s", conn->error);
}

/* ---- writer ---- */

static kolo_slot_header_t *slot_at(char *slots, uint64_t number, uint64_t mask, size_t stride)
{
    return (kolo_slot_header_t *)(void *)(slots + (number & mask) * stride);
}

static kolo_status_t send_slot(kolo_net_conn_t *conn)
{
    kolo_tx_t *tx = conn->tx;
    kolo_slot_header_t *h = slot_at(tx->slots, conn->handed, tx->mask, tx->stride);
    uint8_t *payload = (uint8_t *)(h + 1);
    uint32_t bytes = kolo_net_message_bytes(h->bytes);
    const kolo_net_place_t *place = conn->places ? &conn->places[conn->handed & tx->mask] : NULL;
    kolo_net_tail_t tail = {.bytes = h->bytes,
                            .flags = h->flags,
                            .slot = conn->handed,
                            .signature = h->signature,
                            .operation = h->operation};
    if (place && place->data) return kolo_net_send_placed(conn, place, &tail);
    kolo_net_tail_encode(&tail, payload + bytes - KOLO_NET_TAIL_BYTES);
    KOLO_TRY(conn->ops->isend(conn->end, payload, bytes, conn->region, conn->handed));
    conn->handed++;
    conn->bytes += h->bytes;
    return KOLO_OK;
}

/* The memory of messages that are done is the caller's again. */
static void free_slots(kolo_net_conn_t *conn, uint64_t until)
{
    for (; conn->places && conn->freed != until; conn->freed++)
        kolo_net_place_clear(&conn->places[conn->freed & conn->tx->mask]);
    atomic_store_explicit(&conn->head->consumed, until, memory_order_release);
}

static kolo_status_t pump_writer(kolo_net_conn_t *conn)
{
    kolo_net_done_t done[KOLO_NET_DONE_BATCH];
    int n;
    KOLO_TRY(conn->ops->test(conn->end, done, KOLO_NET_DONE_BATCH, &n));
    if (n > 0) free_slots(conn, done[n - 1].cookie + 1);
    kolo_status_t status = KOLO_OK;
    while (status == KOLO_OK && conn->handed != conn->tx->next) status = send_slot(conn);
    if (status != KOLO_OK && status != KOLO_IN_PROGRESS) return status;
    return conn->ops->push(conn->end);
}

/* ---- reader ---- */

/* A slot whose payload lies elsewhere is shown when it is the current one: only then has rx->direct a meaning. */
static void show(kolo_net_conn_t *conn)
{
    kolo_rx_t *rx = conn->rx;
    while (conn->shown != conn->arrived) {
        kolo_net_place_t *place = conn->places ? &conn->places[conn->shown & rx->mask] : NULL;
        if (place && place->came) {
            if (conn->shown != rx->next) return;
            rx->direct = place->data;
            kolo_net_place_clear(place);
        }
        kolo_slot_header_t *h = slot_at(rx->slots, conn->shown, rx->mask, rx->stride);
        atomic_store_explicit(&h->seq, ++conn->shown, memory_order_release);
    }
}

/* Takes a message apart; one without its payload must be one that was invited. */
static kolo_status_t read_tail(kolo_net_conn_t *conn, const uint8_t *message, uint32_t bytes, kolo_net_tail_t *tail)
{
    kolo_net_place_t *place = conn->places ? &conn->places[conn->arrived & conn->rx->mask] : NULL;
    if (!place || !kolo_net_tail_is_placed(message, bytes)) {
        if (place) kolo_net_place_clear(place);
        return kolo_net_tail_decode(message, bytes, conn->arrived, conn->rx->slot_bytes, tail);
    }
    KOLO_TRY(kolo_net_tail_decode_placed(message, bytes, conn->arrived, place->data ? place->bytes : 0, tail));
    place->came = true;
    conn->placed_bytes += tail->bytes;
    return KOLO_OK;
}

static kolo_status_t take_message(kolo_net_conn_t *conn, const kolo_net_done_t *done)
{
    kolo_rx_t *rx = conn->rx;
    kolo_slot_header_t *h = slot_at(rx->slots, conn->arrived, rx->mask, rx->stride);
    kolo_net_tail_t tail;
    if (done->cookie != conn->arrived)
        return kolo_fail(KOLO_ERR_INTERNAL, "slot %llu is done where %llu is due", (unsigned long long)done->cookie,
                         (unsigned long long)conn->arrived);
    KOLO_TRY(read_tail(conn, (uint8_t *)(h + 1), done->bytes, &tail));
    h->bytes = tail.bytes;
    h->flags = tail.flags;
    h->signature = tail.signature;
    h->operation = tail.operation;
    conn->bytes += tail.bytes;
    conn->arrived++;
    return KOLO_OK;
}

/* Free slots are offered a quarter of the queue at once, or when there is nothing else to do. */
static kolo_status_t offer(kolo_net_conn_t *conn, bool idle)
{
    kolo_rx_t *rx = conn->rx;
    uint64_t until = rx->next + rx->depth;
    if (until == conn->handed || (!idle && until - conn->handed < rx->depth / 4)) return conn->ops->push(conn->end);
    kolo_status_t status = KOLO_OK;
    while (status == KOLO_OK && conn->handed != until) {
        kolo_slot_header_t *h = slot_at(rx->slots, conn->handed, rx->mask, rx->stride);
        status =
            conn->ops->irecv(conn->end, h + 1, kolo_net_message_bytes(rx->slot_bytes), conn->region, conn->handed);
        if (status == KOLO_OK) conn->handed++;
    }
    if (status != KOLO_OK && status != KOLO_IN_PROGRESS) return status;
    return conn->ops->push(conn->end);
}

static kolo_status_t pump_reader(kolo_net_conn_t *conn)
{
    kolo_net_done_t done[KOLO_NET_DONE_BATCH];
    int n;
    KOLO_TRY(conn->ops->test(conn->end, done, KOLO_NET_DONE_BATCH, &n));
    for (int i = 0; i < n; i++) KOLO_TRY(take_message(conn, &done[i]));
    show(conn);
    return offer(conn, n == 0);
}

/* ---- all connections ---- */

/* An error on the network may be the other side's farewell, seen from here first. */
static void pump_conn(kolo_net_conn_t *conn)
{
    if (!conn->up || conn->closed || conn->status != KOLO_OK) return;
    kolo_status_t status = conn->tx ? pump_writer(conn) : pump_reader(conn);
    if (status == KOLO_OK) return;
    char text[KOLO_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", kolo_error_text());
    kolo_net_conn_listen(conn);
    if (conn->status == KOLO_OK) kolo_net_conn_fail(conn, status, "%.400s", text);
}

kolo_status_t kolo_net_pump(void *arg)
{
    kolo_net_state_t *state = arg;
    const kolo_net_conn_t *failed = NULL;
    for (kolo_net_conn_t *conn = state->first; conn; conn = conn->next) {
        pump_conn(conn);
        if (conn->status != KOLO_OK && !conn->orderly && !conn->closed && !failed) failed = conn;
    }
    return failed ? report(failed) : KOLO_OK;
}

/* A waiter polls before it asks: what this call itself has moved counts first, its failure with the next call. */
kolo_status_t kolo_net_conn_check(kolo_net_conn_t *conn)
{
    kolo_status_t before = conn->status;
    if (!conn->up) return KOLO_OK;
    pump_conn(conn);
    if (conn->status == KOLO_OK && !conn->closed) kolo_net_conn_listen(conn);
    if (conn->status == KOLO_OK && !conn->closed && conn->ops->look(conn->open) != KOLO_OK)
        kolo_net_conn_fail(conn, KOLO_ERR_SYSTEM, "%.400s", kolo_error_text());
    return before == KOLO_OK && !conn->closed ? KOLO_OK : report(conn);
}

kolo_status_t kolo_net_tx_check(kolo_tx_t *tx)
{
    return kolo_net_conn_check(tx->priv);
}

kolo_status_t kolo_net_rx_check(kolo_rx_t *rx)
{
    /* Slots that came before the end are still good. */
    if (kolo_rx_ready(rx)) return KOLO_OK;
    kolo_net_conn_t *conn = rx->priv;
    if (conn->invites) kolo_net_rx_expect(rx, 0, NULL, 0); /* nobody who waits keeps the writer waiting */
    return kolo_net_conn_check(conn);
}
