/* SPDX-License-Identifier: Apache-2.0
 *
 * Payloads that are not copied: the writer's lies in memory that its program has registered, the reader's goes to
 * memory that its program has registered, or either of them. A writer that has such a payload waits until the
 * reader has come to that slot and said where it wants it (an invitation); so nobody writes into memory that was
 * not named for this very slot. Slots that are not worth it, and all slots of programs that have nothing
 * registered, go as always.
 */
#include "wire/net/conn.h"

#include <string.h>

/* Below this waiting for the reader costs more than a copy. */
#define PLACE_LEAST 16384u

void kolo_net_place_clear(kolo_net_place_t *place)
{
    if (place->range) kolo_mem_range_put(place->range);
    *place = (kolo_net_place_t){0};
}

/* Returns what the rail's device knows the range as; NULL: it cannot. */
static kolo_net_region_t *region_of(kolo_net_conn_t *conn, const kolo_net_rail_t *rail, kolo_mem_range_t *range)
{
    void *handle;
    return kolo_mem_range_pin(range, &conn->state->devices[rail->device].pinner, &handle) == KOLO_OK ? handle
                                                                                                     : NULL;
}

/* Finds registered memory that the connection's first device has or can be given. */
static bool find(kolo_net_conn_t *conn, const void *data, uint32_t bytes, kolo_net_place_t *place)
{
    kolo_mem_range_t *range = bytes < PLACE_LEAST ? NULL : kolo_mem_range_find(data, bytes);
    if (!range) return false;
    if (!region_of(conn, &conn->rails[0], range)) {
        kolo_mem_range_put(range);
        return false;
    }
    *place = (kolo_net_place_t){.data = (char *)(uintptr_t)data, .bytes = bytes, .range = range};
    return true;
}

/* ---- writer ---- */

static bool may_wait(kolo_net_conn_t *conn)
{
    for (uint32_t i = 0; i < conn->nrails && !conn->invites; i++)
        if (conn->rails[i].state == KOLO_NET_RAIL_UP)
            conn->invites = conn->ops->invited(conn->rails[i].end, 0) != KOLO_NET_NOT_YET;
    return conn->invites;
}

kolo_status_t kolo_net_tx_post_from(kolo_tx_t *tx, const void *data, uint32_t bytes, uint64_t signature,
                                    uint64_t operation)
{
    kolo_net_conn_t *conn = tx->priv;
    if (bytes > tx->end.slot_bytes)
        return kolo_fail(KOLO_ERR_INTERNAL, "net: %u bytes for a slot of %u", bytes, tx->end.slot_bytes);
    if (!conn->places || !may_wait(conn) || !find(conn, data, bytes, &conn->places[tx->end.next & tx->end.mask]))
        memcpy(kolo_tx_payload(tx), data, bytes);
    kolo_tx_post(tx, bytes, 0, signature, operation);
    return KOLO_OK;
}

kolo_status_t kolo_net_send_placed(kolo_net_conn_t *conn, kolo_net_rail_t *rail, uint64_t slot,
                                   kolo_net_place_t *place, kolo_net_tail_t *tail)
{
    const kolo_tx_t *tx = conn->tx;
    kolo_net_invitation_t said = conn->ops->invited(rail->end, place->bytes);
    if (said == KOLO_NET_NOT_YET) return KOLO_IN_PROGRESS;
    kolo_net_region_t *region = region_of(conn, rail, place->range);
    if (!region)
        return kolo_fail(KOLO_ERR_SYSTEM,
                         "registered memory that one device knows cannot be pinned for another: %.200s",
                         kolo_error_text());
    /* The rest lies where it would lie behind a payload in the slot. */
    uint8_t *at = (uint8_t *)tx->end.slots + (slot & tx->end.mask) * tx->end.stride + sizeof(kolo_slot_header_t);
    uint32_t whole = kolo_net_message_bytes(place->bytes);
    bool in_place = said == KOLO_NET_IN_PLACE;
    if (in_place) tail->flags |= KOLO_NET_PLACED;
    kolo_net_tail_encode(tail, at + whole - KOLO_NET_TAIL_BYTES);
    uint32_t skip = in_place ? whole - KOLO_NET_TAIL_BYTES : place->bytes;
    const kolo_net_piece_t payload = {place->data, place->bytes, region},
                           rest = {at + skip, whole - skip, rail->region};
    kolo_status_t status = conn->ops->isend_from(rail->end, &payload, &rest, in_place, rail->requests);
    if (status != KOLO_OK) return status;
    conn->bytes += place->bytes;
    conn->placed_bytes += place->bytes;
    return KOLO_OK;
}

/* ---- reader ---- */

kolo_status_t kolo_net_invite(kolo_net_conn_t *conn, uint64_t slot)
{
    kolo_rx_t *rx = conn->rx;
    kolo_net_place_t *place = &conn->places[slot & rx->end.mask];
    kolo_net_rail_t *rail = &conn->rails[conn->states[slot & rx->end.mask] - 1];
    uint64_t request = conn->requests[slot & rx->end.mask];
    kolo_net_region_t *region = place->data ? region_of(conn, rail, place->range) : NULL;
    if (!region) kolo_net_place_clear(place);
    kolo_status_t status = conn->ops->invite(rail->end, request, place->data, place->bytes, region);
    if (status != KOLO_IN_PROGRESS) return status;
    KOLO_TRY(conn->ops->push(rail->end)); /* not in a row with those before: these go first */
    return conn->ops->invite(rail->end, request, place->data, place->bytes, region);
}

/* Invites a slot, which is offered first; false: not now. */
static bool announce(kolo_net_conn_t *conn, uint64_t slot, kolo_net_place_t *found)
{
    const kolo_rx_t *rx = conn->rx;
    while ((int64_t)(conn->handed - slot) <= 0) { /* what is invited is offered */
        if (kolo_net_offer(conn, kolo_net_rail_for(conn, conn->handed), conn->handed) != KOLO_OK) break;
        conn->handed++;
    }
    uint8_t state = conn->states[slot & rx->end.mask];
    bool waits = (int64_t)(slot - conn->handed) < 0 && (int64_t)(slot - conn->arrived) >= 0 &&
                 state != KOLO_NET_SLOT_IDLE && state != KOLO_NET_SLOT_DONE;
    if (waits) conn->places[slot & rx->end.mask] = *found;
    if (!waits || kolo_net_invite(conn, slot) != KOLO_OK) { /* a failure is found by the next step as well */
        kolo_net_place_clear(waits ? &conn->places[slot & rx->end.mask] : found);
        return state == KOLO_NET_SLOT_DONE; /* it has come without */
    }
    return true;
}

void kolo_net_rx_expect(kolo_rx_t *rx, uint32_t ahead, void *data, uint32_t bytes)
{
    kolo_net_conn_t *conn = rx->priv;
    uint64_t slot = rx->end.next + ahead;
    if (!conn->places || !conn->ready || conn->status != KOLO_OK || conn->closed || ahead >= rx->end.depth) return;
    if ((int64_t)(slot - conn->invited) < 0) return;
    kolo_net_place_t found = {0}, none = {0};
    bool placed = data && find(conn, data, bytes, &found);
    conn->invites |= placed; /* from the first one on the writer may wait for them, so all slots have one */
    if (!conn->invites) return;
    if ((int64_t)(conn->invited - conn->arrived) < 0) conn->invited = conn->arrived;
    while ((int64_t)(conn->invited - slot) < 0 && announce(conn, conn->invited, &none)) conn->invited++;
    if (conn->invited == slot && announce(conn, slot, &found))
        conn->invited++;
    else if (conn->invited != slot)
        kolo_net_place_clear(&found);
}

/* Takes the invitation back: what has come stays readable in its slots, what may still come has nowhere to go any
 * more. */
void kolo_net_rx_unexpect(kolo_rx_t *rx)
{
    kolo_net_conn_t *conn = rx->priv;
    bool open = false;
    if (!conn || !conn->places) return;
    if (rx->direct) memcpy(kolo_rx_header(rx) + 1, rx->direct, conn->direct_bytes);
    rx->direct = NULL;
    for (uint32_t i = 0; i < rx->end.depth; i++) {
        kolo_net_place_t *place = &conn->places[i];
        if (place->came)
            memcpy(rx->end.slots + i * rx->end.stride + sizeof(kolo_slot_header_t), place->data, place->bytes);
        else
            open |= place->data != NULL;
        kolo_net_place_clear(place);
    }
    if (!open || conn->closed) return;
    for (uint32_t i = 0; i < conn->nrails; i++)
        if (conn->rails[i].end) conn->ops->revoke(conn->rails[i].end);
    if (conn->status == KOLO_OK)
        kolo_net_conn_fail(conn, KOLO_ERR_ABORTED,
                           "a receive into the caller's memory was given up here, and the connection with it");
}
