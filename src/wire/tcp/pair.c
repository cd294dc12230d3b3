/* SPDX-License-Identifier: Apache-2.0
 *
 * Mates: two tcp connections between the same ranks, one each way. On a socket that carries data one way only, the
 * kernel answers each small message with an acknowledgement of its own, which costs as much as the message; where
 * both talk on one socket the next message carries it. So small frames of both directions travel on the first
 * socket of the lower rank's connection, the carrier. What is longer than a segment is acknowledged at once in any
 * case, and two sockets are faster for it: each connection keeps its own for that.
 *
 *     carrier, lower -> higher     frames of all lengths -->   <-- small frames of its mate, farewell of the reader
 *     mate, higher -> lower                                    <-- large frames
 *
 * No agreement is needed: a reader takes small frames from either socket, and a writer that has the carrier uses
 * it.
 */
#include "wire/tcp/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

static bool are_mates(const kolo_conn_spec_t *a, const kolo_conn_spec_t *b)
{
    return a->lane == b->lane && a->writer == b->reader && a->reader == b->writer;
}

/* Returns what fits one segment with its header; the reader's own is only a guess of the writer's. */
static uint32_t carried_bytes(const kolo_tcp_conn_t *carrier)
{
    int mss = 0;
    socklen_t len = sizeof mss;
    if (getsockopt(carrier->socks[0].socket.fd, IPPROTO_TCP, TCP_MAXSEG, &mss, &len) != 0 || mss < 536) mss = 536;
    return KOLO_MIN((uint32_t)mss, KOLO_TCP_LARGE_BYTES) - KOLO_TCP_FRAME_BYTES;
}

static void join(kolo_tcp_conn_t *carrier, kolo_tcp_conn_t *mate)
{
    carrier->mate = mate;
    mate->mate = carrier;
    mate->carried_bytes = carried_bytes(carrier);
    if (mate->tx) {
        mate->outs[mate->nsocks] = (kolo_tcp_out_t){.sock = &carrier->socks[0], .slot = mate->routed};
        mate->nouts = mate->nsocks + 1;
        return;
    }
    mate->sink.mixed = true;
    carrier->streams[0].sink = &mate->sink;
    carrier->streams[0].slot = mate->rx->end.next;
}

void kolo_tcp_pair(kolo_tcp_conn_t *conn)
{
    const kolo_conn_spec_t *spec = kolo_tcp_spec(conn);
    for (kolo_tcp_conn_t *c = conn->state->first; c; c = c->next) {
        if (c->mate || c->closed || c->status != KOLO_OK || !are_mates(spec, kolo_tcp_spec(c))) continue;
        if (spec->writer < spec->reader)
            join(conn, c);
        else
            join(c, conn);
        return;
    }
}

static void leave_reader(kolo_tcp_conn_t *carrier, kolo_tcp_conn_t *mate)
{
    kolo_tcp_stream_t *stream = &carrier->streams[0];
    bool within = stream->in_payload || (!stream->bye && stream->begin != stream->end);
    stream->sink = NULL;
    stream->in_payload = false;
    if (!within) return;
    if (carrier->status == KOLO_OK && !carrier->closed)
        kolo_tcp_conn_fail(carrier, KOLO_ERR_INTERNAL, "the connection that it carried ends within a frame");
    if (mate->status == KOLO_OK && !mate->closed)
        kolo_tcp_conn_fail(mate, KOLO_ERR_INTERNAL, "its carrier ends within a frame");
}

void kolo_tcp_unpair(kolo_tcp_conn_t *conn)
{
    if (!conn->mate) return;
    kolo_tcp_conn_t *carrier = kolo_tcp_is_carrier(conn) ? conn : conn->mate, *mate = carrier->mate;
    if (mate->tx) {
        if (mate->outs[mate->nsocks].sent > 0) carrier->socks[0].cut = true;
        if (mate->outs[mate->nsocks].slot != mate->routed && mate->status == KOLO_OK && !mate->closed)
            kolo_tcp_conn_fail(mate, KOLO_ERR_INTERNAL, "its carrier was closed here with frames unsent");
        mate->nouts = mate->nsocks;
    } else {
        leave_reader(carrier, mate);
    }
    mate->carried_bytes = 0;
    mate->by_carrier = false;
    carrier->mate = mate->mate = NULL;
}

/* Compares where sockets and reader stand: slots ascend on each socket, so one at a later slot than the reader does
 * not bring the reader's. */
kolo_status_t kolo_tcp_check_order(const kolo_tcp_conn_t *conn)
{
    const kolo_tcp_conn_t *carrier = conn->carried_bytes > 0 ? conn->mate : NULL;
    uint64_t next = conn->rx->end.next;
    uint32_t later = 0;
    if (!conn->sink.mixed || kolo_rx_ready(conn->rx)) return KOLO_OK;
    for (uint32_t i = 0; i < conn->nsocks + (carrier != NULL); i++) {
        const kolo_tcp_stream_t *s = i < conn->nsocks ? &conn->streams[i] : &carrier->streams[0];
        bool over = s->bye || (i == conn->nsocks && (carrier->closed || carrier->status != KOLO_OK));
        if (!over && (int64_t)(s->slot - next) <= 0) return KOLO_OK;
        later += !over;
    }
    if (later == 0) return KOLO_OK; /* all have ended: perhaps as they should */
    return kolo_fail(KOLO_ERR_PROTOCOL, "later frames on every socket that has not ended, but none for slot %llu",
                     (unsigned long long)next);
}
