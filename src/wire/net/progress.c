/* SPDX-License-Identifier: Apache-2.0
 *
 * The net wire at work: posted slots become messages, free ones offers, and what has come is published. step() does
 * what can be done on all connections of a context; it runs on the thread that waits, never blocks, and remembers
 * the first failure of each connection so that every later call reports it again.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "wire/net/conn.h"

#include <stdarg.h>
#include <stdio.h>

/* steps of a connection with several rails between two looks for notes of the peer, and of a writer that rests */
#define NOTES_EACH 64
/* steps of which one goes through all connections, whatever comes, and looks for what nobody seems to be sending */
#define ALL_EACH 4
/* How long a reader's word that it has lost a rail may take. */
#define LEFT_OVER_MS 10000

/* ---- failure ---- */

kolo_status_t kolo_net_conn_fail(kolo_net_conn_t *conn, kolo_status_t status, const char *fmt, ...)
{
    const kolo_conn_spec_t *spec = kolo_net_spec(conn);
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

static kolo_status_t send_slot(kolo_net_conn_t *conn, kolo_net_rail_t *rail, uint64_t slot)
{
    kolo_tx_t *tx = conn->tx;
    kolo_slot_header_t *h = slot_at(tx->end.slots, slot, tx->end.mask, tx->end.stride);
    uint8_t *payload = (uint8_t *)(h + 1);
    uint32_t bytes = kolo_net_message_bytes(h->bytes);
    kolo_net_place_t *place = conn->places ? &conn->places[slot & tx->end.mask] : NULL;
    kolo_net_tail_t tail = {
        .bytes = h->bytes, .flags = h->flags, .slot = slot, .signature = h->signature, .operation = h->operation};
    if (place && place->data) return kolo_net_send_placed(conn, rail, slot, place, &tail);
    kolo_net_tail_encode(&tail, payload + bytes - KOLO_NET_TAIL_BYTES);
    KOLO_TRY(conn->ops->isend(rail->end, payload, bytes, rail->region, rail->requests));
    tail.flags |= kolo_net_mate_offers(conn); /* now that the message is sure to go out */
    if (tail.flags != h->flags) kolo_net_tail_encode(&tail, payload + bytes - KOLO_NET_TAIL_BYTES);
    conn->bytes += h->bytes;
    return KOLO_OK;
}

/* Returns KOLO_IN_PROGRESS for an offer of what has come: the reader has lost the rail, asked for the slot on
 * another one and got it there, and its word about the rail is still under way. Fails when that takes too long. */
static kolo_status_t left_over(const kolo_net_conn_t *conn, kolo_net_rail_t *rail, uint64_t slot)
{
    if (conn->nrails > 1 && rail->left_over_ns == 0) rail->left_over_ns = kolo_deadline_ms(LEFT_OVER_MS);
    if (conn->nrails > 1 && kolo_now_ns() < rail->left_over_ns) return KOLO_IN_PROGRESS;
    return kolo_fail(KOLO_ERR_PROTOCOL, "the peer asks again for slot %llu, slots %llu to %llu are due",
                     (unsigned long long)slot, (unsigned long long)conn->freed,
                     (unsigned long long)conn->tx->end.next);
}

/* Checks whether the slot of the next offer may be sent. The offer is the peer's word. */
static kolo_status_t next_offer(const kolo_net_conn_t *conn, kolo_net_rail_t *rail, uint64_t slot)
{
    const kolo_tx_t *tx = conn->tx;
    if ((int64_t)(slot - tx->end.next) >= 0 && slot - tx->end.next < tx->end.depth)
        return KOLO_IN_PROGRESS;                                               /* not posted yet */
    if ((int64_t)(slot - conn->freed) < 0) return left_over(conn, rail, slot); /* however many have gone since */
    if ((int64_t)(slot - tx->end.next) >= 0)
        return kolo_fail(KOLO_ERR_PROTOCOL, "the peer asks for slot %llu, slots %llu to %llu are due",
                         (unsigned long long)slot, (unsigned long long)conn->freed,
                         (unsigned long long)tx->end.next);
    uint8_t state = conn->states[slot & tx->end.mask];
    if (state == KOLO_NET_SLOT_IDLE) return KOLO_OK;
    /* It went by a rail that is lost, or about to be: until the peer has said what came by it. */
    if (state != KOLO_NET_SLOT_DONE && conn->nrails > 1) return KOLO_IN_PROGRESS;
    return left_over(conn, rail, slot);
}

/* Tells whether `slot` keeps one that is due, and was offered behind it, as after a loss, from being sent. */
static bool is_in_the_way(const kolo_net_conn_t *conn, uint64_t slot)
{
    for (uint64_t s = conn->freed; conn->reordered && (int64_t)(s - slot) < 0 && s != conn->tx->end.next; s++)
        if (conn->states[s & conn->tx->end.mask] == KOLO_NET_SLOT_IDLE) return true;
    return false;
}

/* Gives the offer back: the reader makes another, behind those that it has made. */
static kolo_status_t pass(kolo_net_conn_t *conn, kolo_net_rail_t *rail, uint64_t slot)
{
    const kolo_tx_t *tx = conn->tx;
    uint64_t at = rail->requests & tx->end.mask;
    uint8_t *message = (uint8_t *)conn->slots + tx->end.depth * tx->end.stride + at * KOLO_NET_TAIL_BYTES;
    const kolo_net_tail_t tail = {.flags = KOLO_NET_PASSED, .slot = slot};
    kolo_net_tail_encode(&tail, message);
    kolo_status_t status = conn->ops->isend(rail->end, message, KOLO_NET_TAIL_BYTES, rail->region, rail->requests);
    if (status != KOLO_OK) return status;
    rail->passed[at] = true;
    rail->slots[at] = slot;
    rail->requests++;
    return KOLO_OK;
}

static kolo_status_t send_next(kolo_net_conn_t *conn, uint32_t index)
{
    kolo_net_rail_t *rail = &conn->rails[index];
    uint64_t slot = conn->handed;
    if (conn->ops->offered && !conn->ops->offered(rail->end, &slot)) return KOLO_IN_PROGRESS;
    kolo_status_t status = next_offer(conn, rail, slot);
    if (status == KOLO_OK) status = send_slot(conn, rail, slot);
    if (status == KOLO_IN_PROGRESS && !rail->left_over_ns && is_in_the_way(conn, slot))
        return pass(conn, rail, slot);
    if (status != KOLO_OK) return status;
    conn->states[slot & conn->tx->end.mask] = (uint8_t)(index + 1);
    rail->passed[rail->requests & conn->tx->end.mask] = false;
    rail->slots[rail->requests++ & conn->tx->end.mask] = slot;
    conn->handed++;
    return KOLO_OK;
}

static kolo_status_t send_slots(kolo_net_conn_t *conn, uint32_t index)
{
    kolo_status_t status;
    do status = send_next(conn, index);
    while (status == KOLO_OK);
    if (status != KOLO_IN_PROGRESS) return status;
    return conn->ops->push(conn->rails[index].end);
}

/* Gives the memory of messages that are done back to the caller. */
void kolo_net_free_slots(kolo_net_conn_t *conn)
{
    const kolo_tx_t *tx = conn->tx;
    uint64_t before = conn->freed;
    for (; conn->freed != tx->end.next && conn->states[conn->freed & tx->end.mask] == KOLO_NET_SLOT_DONE;
         conn->freed++) {
        conn->states[conn->freed & tx->end.mask] = KOLO_NET_SLOT_IDLE;
        if (conn->places) kolo_net_place_clear(&conn->places[conn->freed & tx->end.mask]);
    }
    if (before != conn->freed) atomic_store_explicit(&conn->head->consumed, conn->freed, memory_order_release);
}

/* Marks all of a rail up to the last one that is done. */
static void mark_done(kolo_net_conn_t *conn, kolo_net_rail_t *rail, uint64_t last)
{
    for (; rail->done <= last && rail->done < rail->requests; rail->done++) {
        uint64_t slot = rail->slots[rail->done & conn->tx->end.mask];
        bool passed = rail->passed[rail->done & conn->tx->end.mask];
        if (!passed && (int64_t)(slot - conn->freed) >= 0)
            conn->states[slot & conn->tx->end.mask] = KOLO_NET_SLOT_DONE;
    }
}

/* ---- reader ---- */

/* Shows what has come. A slot whose payload lies elsewhere is shown when it is the current one: only then has
 * rx->direct a meaning. */
static void show(kolo_net_conn_t *conn)
{
    kolo_rx_t *rx = conn->rx;
    for (; conn->shown != conn->arrived; conn->shown++) {
        kolo_net_place_t *place = conn->places ? &conn->places[conn->shown & rx->end.mask] : NULL;
        if (place && place->came) {
            if (conn->shown != rx->end.next) return;
            rx->direct = place->data;
            conn->direct_bytes = place->bytes;
            kolo_net_place_clear(place);
        }
        kolo_slot_header_t *h = slot_at(rx->end.slots, conn->shown, rx->end.mask, rx->end.stride);
        atomic_store_explicit(&h->seq, conn->shown + 1, memory_order_release);
    }
}

/* Takes a message apart; one without its payload must be one that was invited. */
static kolo_status_t read_tail(kolo_net_conn_t *conn, uint64_t slot, const uint8_t *message, uint32_t bytes,
                               kolo_net_tail_t *tail)
{
    kolo_net_place_t *place = conn->places ? &conn->places[slot & conn->rx->end.mask] : NULL;
    if (!place || !kolo_net_tail_is_placed(message, bytes)) {
        if (place) kolo_net_place_clear(place);
        return kolo_net_tail_decode(message, bytes, slot, conn->rx->end.slot_bytes, tail);
    }
    KOLO_TRY(kolo_net_tail_decode_placed(message, bytes, slot, place->data ? place->bytes : 0, tail));
    place->came = true;
    conn->placed_bytes += tail->bytes;
    return KOLO_OK;
}

static kolo_status_t take_message(kolo_net_conn_t *conn, kolo_net_rail_t *rail, const kolo_net_done_t *done)
{
    kolo_rx_t *rx = conn->rx;
    if (done->cookie != rail->done || rail->done >= rail->requests)
        return kolo_fail(KOLO_ERR_INTERNAL, "request %llu is done where %llu is due",
                         (unsigned long long)done->cookie, (unsigned long long)rail->done);
    uint64_t slot = rail->slots[rail->done++ & rx->end.mask];
    kolo_slot_header_t *h = slot_at(rx->end.slots, slot, rx->end.mask, rx->end.stride);
    kolo_net_tail_t tail;
    if (conn->nrails > 1 && kolo_net_tail_is_passed((uint8_t *)(h + 1), done->bytes, slot)) {
        if (rail->state == KOLO_NET_RAIL_UP)
            kolo_net_offer_again(conn, slot); /* else with the rest of the rail's */
        return KOLO_OK;
    }
    KOLO_TRY(read_tail(conn, slot, (uint8_t *)(h + 1), done->bytes, &tail));
    KOLO_TRY(kolo_net_mate_take(conn, tail.flags));
    h->bytes = tail.bytes;
    h->flags = tail.flags & KOLO_NET_SLOT_FLAGS;
    h->signature = tail.signature;
    h->operation = tail.operation;
    conn->bytes += tail.bytes;
    conn->last_bytes = tail.bytes;
    conn->states[slot & rx->end.mask] = KOLO_NET_SLOT_DONE;
    while (conn->arrived != conn->handed && conn->states[conn->arrived & rx->end.mask] == KOLO_NET_SLOT_DONE)
        conn->states[conn->arrived++ & rx->end.mask] = KOLO_NET_SLOT_IDLE;
    return KOLO_OK;
}

kolo_status_t kolo_net_offer(kolo_net_conn_t *conn, uint32_t index, uint64_t slot)
{
    kolo_rx_t *rx = conn->rx;
    kolo_net_rail_t *rail = &conn->rails[index];
    KOLO_FAIL_POINT_TRY("wire.net.offer");
    kolo_status_t status =
        conn->ops->irecv(rail->end, slot_at(rx->end.slots, slot, rx->end.mask, rx->end.stride) + 1,
                         kolo_net_message_bytes(rx->end.slot_bytes), rail->region, rail->requests, slot);
    if (status != KOLO_OK) return status;
    conn->states[slot & rx->end.mask] = (uint8_t)(index + 1);
    conn->requests[slot & rx->end.mask] = rail->requests;
    rail->slots[rail->requests++ & rx->end.mask] = slot;
    return KOLO_OK;
}

/* Tells whether the free slots are to be offered now. After a long message when they are a quarter of the queue. An
 * offer costs as much as a short message, so after such a one only when the writer has less than half a queue left,
 * and then all of them at once. When nothing has come for a while, always: a writer may count on all slots. */
static bool offers_are_due(const kolo_net_conn_t *conn, uint64_t free_slots)
{
    uint32_t depth = conn->rx->end.depth;
    if (conn->idle >= KOLO_NET_IDLE) return true;
    if (conn->last_bytes > KOLO_NET_SHORT) return free_slots >= depth / 4;
    return conn->handed - conn->arrived < depth / 2;
}

/* Offers the slots that found no room before. */
static void offer_left(kolo_net_conn_t *conn)
{
    const kolo_rx_t *rx = conn->rx;
    conn->again = false;
    for (uint64_t slot = conn->arrived; slot != conn->handed && !conn->again; slot++)
        if (conn->states[slot & rx->end.mask] == KOLO_NET_SLOT_IDLE) kolo_net_offer_again(conn, slot);
}

static kolo_status_t offer_free(kolo_net_conn_t *conn, bool any)
{
    kolo_rx_t *rx = conn->rx;
    uint64_t until = rx->end.next + rx->end.depth;
    if (KOLO_UNLIKELY(conn->again)) offer_left(conn);
    if (any)
        conn->idle = 0;
    else if (conn->idle <= KOLO_NET_IDLE)
        conn->idle++;
    if (conn->handed == until || !offers_are_due(conn, until - conn->handed)) return KOLO_OK;
    for (; conn->handed != until; conn->handed++) {
        uint32_t index = kolo_net_rail_for(conn, conn->handed);
        kolo_status_t status = kolo_net_offer(conn, index, conn->handed);
        if (status == KOLO_IN_PROGRESS) return KOLO_OK;
        if (status != KOLO_OK) return kolo_net_rail_lost(conn, index, status);
    }
    return KOLO_OK;
}

kolo_status_t kolo_net_harvest(kolo_net_conn_t *conn, uint32_t index, bool *any)
{
    kolo_net_done_t done[KOLO_NET_DONE_BATCH];
    kolo_net_rail_t *rail = &conn->rails[index];
    int n;
    KOLO_TRY(conn->ops->test(rail->end, done, KOLO_NET_DONE_BATCH, &n));
    *any |= n > 0;
    if (conn->tx && n > 0) mark_done(conn, rail, done[n - 1].cookie);
    for (int i = 0; conn->rx && i < n; i++) KOLO_TRY(take_message(conn, rail, &done[i]));
    return KOLO_OK;
}

/* ---- both ---- */

static kolo_status_t pump_rails(kolo_net_conn_t *conn)
{
    bool any = false;
    for (uint32_t i = 0; i < conn->nrails; i++) {
        if (conn->rails[i].state != KOLO_NET_RAIL_UP) continue;
        kolo_status_t status = conn->tx ? send_slots(conn, i) : KOLO_OK; /* somebody may wait for it */
        if (status == KOLO_OK) status = kolo_net_harvest(conn, i, &any);
        if (status != KOLO_OK) KOLO_TRY(kolo_net_rail_lost(conn, i, status));
    }
    if (conn->tx) {
        kolo_net_free_slots(conn);
        return KOLO_OK;
    }
    show(conn);
    KOLO_TRY(offer_free(conn, any));
    for (uint32_t i = 0; i < conn->nrails; i++) {
        if (conn->rails[i].state != KOLO_NET_RAIL_UP) continue;
        kolo_status_t status = conn->ops->push(conn->rails[i].end);
        if (status != KOLO_OK) KOLO_TRY(kolo_net_rail_lost(conn, i, status));
    }
    return KOLO_OK;
}

/* Gets a lazy writer ready for its first slot. */
static kolo_status_t pump_ready(kolo_net_conn_t *conn)
{
    if (!conn->ready && conn->tx && conn->tx->end.next != conn->freed) KOLO_TRY(kolo_net_tx_ready(conn));
    return conn->ready ? pump_rails(conn) : KOLO_OK;
}

/* ---- all connections ---- */

/* Ends the connection. An error on the network may be the other side's farewell, seen from here first. */
void kolo_net_conn_broke(kolo_net_conn_t *conn, kolo_status_t status)
{
    char text[KOLO_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", kolo_error_text());
    kolo_net_conn_listen(conn);
    if (conn->status == KOLO_OK) kolo_net_conn_fail(conn, status, "%.800s", text);
}

static void pump_conn(kolo_net_conn_t *conn)
{
    if (!conn->up || conn->closed || conn->status != KOLO_OK) return;
    if (conn->nrails > 1 && conn->turns % NOTES_EACH == 0) kolo_net_conn_listen(conn);
    if (!conn->ready && conn->rx) kolo_net_conn_listen(conn);
    kolo_status_t status = conn->status == KOLO_OK ? pump_ready(conn) : KOLO_OK;
    if (status != KOLO_OK) kolo_net_conn_broke(conn, status);
}

/* Reads what devices tell by themselves. */
static kolo_status_t look_at_devices(kolo_net_conn_t *conn)
{
    for (uint32_t i = 0; i < conn->nrails; i++) {
        if (conn->rails[i].state != KOLO_NET_RAIL_UP) continue;
        kolo_status_t status = conn->ops->look(conn->rails[i].open);
        if (status != KOLO_OK) KOLO_TRY(kolo_net_rail_lost(conn, i, status));
    }
    return KOLO_OK;
}

/* Returns how many steps may pass between two looks at a connection. A writer whose messages are all done has
 * nothing to hear but bad news, which can wait for a moment; so can, for a shorter one, what comes to a reader that
 * has not had anything for long. */
static uint32_t looks_each(const kolo_net_conn_t *conn)
{
    if (conn->tx) return conn->freed == conn->tx->end.next ? NOTES_EACH : 1;
    return conn->idle > KOLO_NET_IDLE ? ALL_EACH : 1;
}

kolo_status_t kolo_net_step(void *arg)
{
    kolo_net_state_t *state = arg;
    const kolo_net_conn_t *failed = NULL;
    for (kolo_net_conn_t *conn = state->first; conn; conn = conn->next) {
        uint64_t shown = conn->shown;
        if (++conn->turns % looks_each(conn) == 0) pump_conn(conn);
        if (conn->status != KOLO_OK && !conn->orderly && !conn->closed && !failed) failed = conn;
        if (conn->shown != shown && conn->turns % ALL_EACH != 0) break; /* the caller looks at what has come */
    }
    return failed ? report(failed) : KOLO_OK;
}

/* Moves what can be moved before it fails: a waiter polls before it asks, so what this call has moved counts first,
 * its failure with the next call. */
kolo_status_t kolo_net_conn_check(kolo_net_conn_t *conn)
{
    kolo_status_t before = conn->status;
    if (!conn->up) return KOLO_OK;
    pump_conn(conn);
    if (conn->status == KOLO_OK && !conn->closed) kolo_net_conn_listen(conn);
    if (conn->status == KOLO_OK && !conn->closed && look_at_devices(conn) != KOLO_OK)
        kolo_net_conn_fail(conn, KOLO_ERR_SYSTEM, "%.800s", kolo_error_text());
    if (conn->status == KOLO_OK && !conn->closed && conn->nrails > 1) kolo_net_rails_look(conn);
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
