/* SPDX-License-Identifier: Apache-2.0
 *
 * The second half of a connection's life. The writer's end is up when it dials the socket, so whoever has accepted
 * that may write offers; a lazy writer's (KOLO_NET_LAZY) is up with its first slot, and it says so by a note. At
 * the end each side says farewell over it.
 */
#include "base/failpoint.h"
#include "wire/net/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static kolo_status_t read_card(const kolo_net_conn_t *conn, const kolo_wire_card_t *in, kolo_net_card_t *out)
{
    const kolo_conn_spec_t *spec = kolo_net_spec(conn);
    kolo_net_card_t expected = {
        .provider = kolo_net_provider_id(conn->ops), .depth = spec->depth, .slot_bytes = spec->slot_bytes};
    return kolo_net_card_decode(in, &expected, conn->peer, out);
}

static kolo_status_t watch(kolo_net_conn_t *conn, kolo_wire_ctx_t *ctx)
{
    KOLO_TRY(kolo_waker_add_fd(&ctx->waker, conn->socket.fd));
    conn->up = true;
    return KOLO_OK;
}

/* Makes those rails ready that the reader has not lost meanwhile, or had made anew. */
static kolo_status_t make_ready(kolo_net_conn_t *conn, const kolo_net_hello_t *hellos)
{
    for (uint32_t i = 0; i < conn->nrails; i++) {
        if (conn->rails[i].state != KOLO_NET_RAIL_UNUSED) continue;
        KOLO_TRY(conn->ops->connect(conn->rails[i].end, &hellos[i]));
        conn->rails[i].state = KOLO_NET_RAIL_UP;
    }
    conn->ready = true;
    return KOLO_OK;
}

static kolo_status_t keep(kolo_net_conn_t *conn, const kolo_net_hello_t *hellos)
{
    conn->hellos = malloc(conn->nrails * sizeof *hellos);
    if (!conn->hellos)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "net: no memory for a connection with rank %d", conn->peer);
    memcpy(conn->hellos, hellos, conn->nrails * sizeof *hellos);
    return KOLO_OK;
}

kolo_status_t kolo_net_tx_ready(kolo_net_conn_t *conn)
{
    const kolo_net_note_t note = {.kind = KOLO_NET_READY};
    KOLO_FAIL_POINT_TRY("wire.net.ready");
    KOLO_TRY(make_ready(conn, conn->hellos));
    if (!kolo_net_send_note(conn, &note))
        return kolo_fail(KOLO_ERR_REMOTE, "cannot send the peer word that this end is ready");
    return KOLO_OK;
}

kolo_status_t kolo_net_tx_connect(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, const kolo_wire_card_t *reader_cards)
{
    kolo_net_conn_t *conn = tx->priv;
    kolo_net_card_t card;
    KOLO_FAIL_POINT_TRY("wire.net.connect");
    KOLO_TRY(read_card(conn, &reader_cards[0], &card));
    conn->invites = card.invites;
    conn->nrails = KOLO_MIN(conn->nrails, card.nrails);
    if (kolo_net_options.lazy)
        KOLO_TRY(keep(conn, card.hellos));
    else
        KOLO_TRY(make_ready(conn, card.hellos));
    KOLO_TRY(kolo_oob_dial(ctx->oob, conn->peer, conn->nonce, ctx->deadline_ns, &conn->socket));
    return watch(conn, ctx);
}

kolo_status_t kolo_net_rx_connect(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, const kolo_wire_card_t *writer_card)
{
    kolo_net_conn_t *conn = rx->priv;
    kolo_net_card_t card;
    KOLO_FAIL_POINT_TRY("wire.net.accept");
    KOLO_TRY(read_card(conn, writer_card, &card));
    KOLO_TRY(kolo_oob_accept(ctx->oob, conn->peer, card.nonce, ctx->deadline_ns, &conn->socket));
    conn->nrails = KOLO_MIN(conn->nrails, card.nrails);
    for (uint32_t i = 0; i < conn->nrails; i++) {
        KOLO_TRY(conn->ops->accept(conn->rails[i].end, &card.hellos[i]));
        conn->rails[i].state = KOLO_NET_RAIL_UP;
    }
    conn->ready = !card.lazy;
    KOLO_TRY(watch(conn, ctx));
    return kolo_net_conn_check(conn); /* the first offers */
}

bool kolo_net_rx_can_connect(kolo_wire_ctx_t *ctx, const kolo_rx_t *rx, const kolo_wire_card_t *writer_card)
{
    kolo_net_card_t card;
    if (read_card(rx->priv, writer_card, &card) != KOLO_OK) return true; /* which says why not */
    return kolo_oob_can_accept(ctx->oob, rx->spec.writer, card.nonce, 1);
}

/* ---- the end ---- */

void kolo_net_conn_close(kolo_net_conn_t *conn)
{
    if (conn->closed) return;
    conn->closed = true;
    if (conn->socket.fd < 0) return;
    KOLO_FAIL_POINT("wire.net.farewell");
    uint64_t done = conn->tx ? kolo_tx_end_consumed(&conn->tx->end) : 0;
    if (conn->status == KOLO_OK && (!conn->tx || done == conn->tx->end.next)) {
        const kolo_net_note_t bye = {.kind = KOLO_NET_BYE, .value = done};
        (void)kolo_net_send_note(conn, &bye); /* an empty socket takes it; a dead one does not matter */
    }
    shutdown(conn->socket.fd, SHUT_WR);
}

static void take_note(kolo_net_conn_t *conn)
{
    kolo_net_note_t note;
    conn->inbox_bytes = 0;
    if (conn->bye || !kolo_net_note_decode(conn->inbox, &note)) {
        kolo_net_conn_fail(conn, KOLO_ERR_PROTOCOL, "the socket beside it brings what is no note");
    } else if (note.kind == KOLO_NET_BYE) {
        conn->bye = true;
        conn->last = note.value;
    } else if (note.kind == KOLO_NET_READY && conn->rx && !conn->ready) {
        conn->ready = true;
    } else {
        kolo_net_take_note(conn, &note);
    }
}

static void read_notes(kolo_net_conn_t *conn)
{
    while (!conn->ended && conn->status == KOLO_OK) {
        ssize_t n = kolo_socket_recv_bytes(&conn->socket, conn->inbox + conn->inbox_bytes,
                                           KOLO_NET_NOTE_BYTES - conn->inbox_bytes);
        if (n > 0) conn->inbox_bytes += (uint32_t)n;
        if (conn->inbox_bytes == KOLO_NET_NOTE_BYTES) take_note(conn);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        conn->ended = n <= 0;
    }
}

void kolo_net_conn_listen(kolo_net_conn_t *conn)
{
    if (conn->socket.fd < 0 || conn->status != KOLO_OK) return;
    if (!conn->ended) read_notes(conn);
    if (!conn->ended || conn->status != KOLO_OK) return;
    if (conn->bye && conn->rx && conn->arrived != conn->last) return; /* it is on its way */
    conn->orderly = conn->bye;
    kolo_net_conn_fail(conn, KOLO_ERR_REMOTE, "%s",
                       conn->bye ? "has closed the connection"
                                 : "the connection ended without farewell; its process has probably died");
}
