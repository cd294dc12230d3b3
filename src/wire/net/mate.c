/* SPDX-License-Identifier: Apache-2.0
 *
 * Offers that travel with a message the other way. Two ranks that talk have a connection in each direction on a
 * lane: mates. A message of one carries, in its tail, how many more slots of the other are offered, so a request
 * and its answer cost the card one message each. Where a slot is was said with its first offer, by the provider,
 * and does not change; so a number is enough.
 *
 * Only between connections of one rail: with several, each offer says which rail its slot is to take.
 */
#include "wire/net/conn.h"

#define COUNT_SHIFT  4u /* of a tail's flags: 8 bits, how many */
#define COUNT_MOST   0xffu
#define NUMBER_SHIFT 12u /* 16 bits: number of the request after the last of them */

_Static_assert(KOLO_NET_MAX_DEPTH < 1u << 15, "16 bits are enough to know which request is meant");
_Static_assert(KOLO_NET_SLOT_FLAGS < 1u << COUNT_SHIFT && KOLO_NET_PASSED >= 1u << (NUMBER_SHIFT + 16),
               "no overlap");

void kolo_net_mate_find(kolo_net_conn_t *conn)
{
    const kolo_conn_spec_t *spec = kolo_net_spec(conn);
    for (kolo_net_conn_t *c = conn->state->first; c; c = c->next) {
        const kolo_conn_spec_t *other = kolo_net_spec(c);
        if (c == conn || c->mate || c->peer != conn->peer || other->lane != spec->lane || !c->tx == !conn->tx)
            continue;
        c->mate = conn;
        conn->mate = c;
        return;
    }
}

void kolo_net_mate_lose(kolo_net_conn_t *conn)
{
    if (conn->mate) conn->mate->mate = NULL;
    conn->mate = NULL;
}

static bool works(const kolo_net_conn_t *conn)
{
    return conn->up && conn->ready && !conn->closed && conn->status == KOLO_OK && conn->nrails == 1 &&
           conn->rails[0].state == KOLO_NET_RAIL_UP;
}

/* ---- the side that offers ---- */

static kolo_status_t offer_all(kolo_net_conn_t *conn, uint64_t *from, uint32_t *n)
{
    const kolo_rx_t *rx = conn->rx;
    for (uint64_t until = rx->end.next + rx->end.depth; conn->handed != until; conn->handed++) {
        kolo_status_t status = kolo_net_offer(conn, 0, conn->handed);
        if (status == KOLO_IN_PROGRESS) break;
        KOLO_TRY(status);
    }
    return conn->ops->take_offers(conn->rails[0].end, COUNT_MOST, from, n);
}

uint32_t kolo_net_mate_offers(const kolo_net_conn_t *conn)
{
    kolo_net_conn_t *mate = conn->mate;
    uint64_t from;
    uint32_t n;
    if (!mate || !conn->ops->take_offers || conn->nrails != 1 || !works(mate)) return 0;
    kolo_status_t status = offer_all(mate, &from, &n);
    if (status != KOLO_OK) {
        kolo_net_conn_broke(mate, status);
        return 0;
    }
    return n == 0 ? 0 : n << COUNT_SHIFT | (uint32_t)((from + n) & 0xffff) << NUMBER_SHIFT;
}

/* ---- the side that is offered ---- */

kolo_status_t kolo_net_mate_take(const kolo_net_conn_t *conn, uint32_t flags)
{
    const kolo_net_conn_t *mate = conn->mate;
    uint32_t n = flags >> COUNT_SHIFT & COUNT_MOST, number = flags >> NUMBER_SHIFT & 0xffff;
    if (n == 0 || (mate && (mate->closed || mate->status != KOLO_OK))) return KOLO_OK;
    if (mate && works(mate) && conn->ops->repeat_offers) {
        uint64_t known = mate->rails[0].requests;
        uint64_t to = known + (uint64_t)(int64_t)(int16_t)(uint16_t)(number - (uint32_t)known);
        if (conn->ops->repeat_offers(mate->rails[0].end, to - n, n)) return KOLO_OK;
    }
    return kolo_fail(KOLO_ERR_PROTOCOL,
                     "the peer offers %u slots the other way, up to number %u, which makes no sense", n, number);
}
