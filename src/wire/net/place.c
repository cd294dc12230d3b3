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

/* Registered memory that the connection's device has or can be given. */
static bool find(kolo_net_conn_t *conn, const void *data, uint32_t bytes, kolo_net_place_t *place)
{
    void *handle;
    kolo_mem_range_t *range = bytes < PLACE_LEAST ? NULL : kolo_mem_range_find(data, bytes);
    if (!range) return false;
    if (kolo_mem_range_pin(range, &conn->state->devices[conn->device].pinner, &handle) != KOLO_OK) {
        kolo_mem_range_put(range);
        return false;
    }
    *place = (kolo_net_place_t){.data = (char *)(uintptr_t)data, .bytes = bytes, .range = range, .region = handle};
    return true;
}

/* ---- writer ---- */

static bool may_wait(kolo_net_conn_t *conn)
{
    if (!conn->invites) conn->invites = conn->ops->invited(conn->end, 0) != KOLO_NET_NOT_YET;
    return conn->invites;
}

kolo_status_t kolo_net_tx_post_from(kolo_tx_t *tx, const void *data, uint32_t bytes, uint64_t signature,
                                    uint64_t operation)
{
    kolo_net_conn_t *conn = tx->priv;
    if (bytes > tx->slot_bytes)
        return kolo_fail(KOLO_ERR_INTERNAL, "net: %u bytes for a slot of %u", bytes, tx->slot_bytes);
    if (!may_wait(conn) || !find(conn, data, bytes, &conn->places[tx->next & tx->mask]))
        memcpy(kolo_tx_payload(tx), data, bytes);
    kolo_tx_post(tx, bytes, 0, signature, operation);
    return KOLO_OK;
}

kolo_status_t kolo_net_send_placed(kolo_net_conn_t *conn, const kolo_net_place_t *place, kolo_net_tail_t *tail)
{
    const kolo_tx_t *tx = conn->tx;
    kolo_net_invitation_t said = conn->ops->invited(conn->end, place->bytes);
    if (said == KOLO_NET_NOT_YET) return KOLO_IN_PROGRESS;
    /* The rest lies where it would lie behind a payload in the slot. */
    uint8_t *slot = (uint8_t *)tx->slots + (conn->handed & tx->mask) * tx->stride + sizeof(kolo_slot_header_t);
    uint32_t whole = kolo_net_message_bytes(place->bytes);
    bool in_place = said == KOLO_NET_IN_PLACE;
    if (in_place) tail->flags |= KOLO_NET_PLACED;
    kolo_net_tail_encode(tail, slot + whole - KOLO_NET_TAIL_BYTES);
    uint32_t skip = in_place ? whole - KOLO_NET_TAIL_BYTES : place->bytes;
    const kolo_net_piece_t payload = {place->data, place->bytes, place->region},
                           rest = {slot + skip, whole - skip, conn->region};
    kolo_status_t status = conn->ops->isend_from(conn->end, &payload, &rest, in_place, conn->handed);
    if (status != KOLO_OK) return status;
    conn->handed++;
    conn->bytes += place->bytes;
    conn->placed_bytes += place->bytes;
    return KOLO_OK;
}

/* ---- reader ---- */

void kolo_net_rx_expect(kolo_rx_t *rx, uint32_t ahead, void *data, uint32_t bytes)
{
    kolo_net_conn_t *conn = rx->priv;
    uint64_t slot = rx->next + ahead;
    if (!conn->up || conn->status != KOLO_OK || conn->closed) return;
    if (slot - rx->next >= rx->depth || (int64_t)(slot - conn->arrived) < 0 || (int64_t)(slot - conn->invited) < 0)
        return; /* it has come, or was invited already */
    kolo_net_place_t *place = &conn->places[slot & rx->mask], found = {0};
    bool placed = data && find(conn, data, bytes, &found);
    conn->invites |= placed; /* from the first one on the writer may wait for them, so all slots have one */
    if (!conn->invites) return;
    uint64_t request = slot - rx->spec.start;
    kolo_status_t status = conn->ops->invite(conn->end, request, found.data, found.bytes, found.region);
    if (status == KOLO_IN_PROGRESS) { /* not behind those that are to be sent: these go first */
        status = conn->ops->push(conn->end);
        if (status == KOLO_OK)
            status = conn->ops->invite(conn->end, request, found.data, found.bytes, found.region);
    }
    if (status != KOLO_OK) { /* a failure is found by the next pump as well; or the next look comes again */
        kolo_net_place_clear(&found);
        return;
    }
    *place = found;
    conn->invited = slot + 1;
}

/* What has come stays readable in its slots; what may still come has nowhere to go any more. */
void kolo_net_rx_unexpect(kolo_rx_t *rx)
{
    kolo_net_conn_t *conn = rx->priv;
    bool open = false;
    if (!conn || !conn->places) return;
    if (rx->direct) memcpy(kolo_rx_header(rx) + 1, rx->direct, kolo_rx_header(rx)->bytes);
    rx->direct = NULL;
    for (uint32_t i = 0; i < rx->depth; i++) {
        kolo_net_place_t *place = &conn->places[i];
        if (place->came)
            memcpy(rx->slots + i * rx->stride + sizeof(kolo_slot_header_t), place->data, place->bytes);
        else
            open |= place->data != NULL;
        kolo_net_place_clear(place);
    }
    if (!open || conn->closed) return;
    conn->ops->revoke(conn->end);
    if (conn->status == KOLO_OK)
        kolo_net_conn_fail(conn, KOLO_ERR_ABORTED,
                           "a receive into the caller's memory was given up here, and the connection with it");
}
