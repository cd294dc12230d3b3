/* SPDX-License-Identifier: Apache-2.0
 *
 * The tcp wire's sockets: the writer dials them, the reader accepts them (oob proves on both sides who the other
 * is), and at the end each side sends a farewell, which distinguishes an orderly end from a death.
 */
#include "base/failpoint.h"
#include "base/file/fds.h"
#include "base/log.h"
#include "wire/tcp/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

const char *kolo_tcp_host_name(const kolo_wire_ctx_t *ctx, int rank)
{
    const kolo_member_t *m = ctx->member;
    return m && m->peers && rank >= 0 && rank < m->nranks ? m->peers[rank].host_name : "?";
}

/* ---- the context's list ---- */

static kolo_status_t state_get(kolo_wire_ctx_t *ctx, kolo_tcp_state_t **result)
{
    kolo_tcp_state_t *state = *kolo_wire_state(ctx, &kolo_wire_tcp);
    if (!state) {
        if (ctx->nsteps == KOLO_WIRE_MAX_STEPS) return kolo_fail(KOLO_ERR_INTERNAL, "tcp: no room for a step");
        state = calloc(1, sizeof *state);
        if (!state) return kolo_fail(KOLO_ERR_NO_MEMORY, "tcp: no memory for the connection list");
        state->ctx = ctx;
        state->epoll_fd = -1;
        ctx->steps[ctx->nsteps].fn = kolo_tcp_step;
        ctx->steps[ctx->nsteps++].arg = state;
        *kolo_wire_state(ctx, &kolo_wire_tcp) = state;
    }
    *result = state;
    return KOLO_OK;
}

/* Frees the state with its last connection; a context without connections has no step. */
static void state_put(kolo_tcp_state_t *state)
{
    kolo_wire_ctx_t *ctx = state->ctx;
    if (state->first) return;
    for (uint32_t i = 0; i < ctx->nsteps; i++) {
        if (ctx->steps[i].arg != state) continue;
        ctx->steps[i] = ctx->steps[--ctx->nsteps];
        break;
    }
    *kolo_wire_state(ctx, &kolo_wire_tcp) = NULL;
    if (state->epoll_fd >= 0) kolo_fd_close(state->epoll_fd);
    free(state);
}

static kolo_status_t epoll_add(kolo_tcp_state_t *state, kolo_tcp_sock_t *sock)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = sock};
    if (epoll_ctl(state->epoll_fd, EPOLL_CTL_ADD, sock->socket.fd, &ev) != 0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "tcp: cannot watch a socket");
    return KOLO_OK;
}

static kolo_status_t epoll_add_all(kolo_tcp_state_t *state)
{
    for (kolo_tcp_conn_t *c = state->first; c; c = c->next)
        for (uint32_t i = 0; i < c->nsocks; i++) KOLO_TRY(epoll_add(state, &c->socks[i]));
    return KOLO_OK;
}

/* Has epoll say from now on which of many sockets are worth a system call. If it cannot watch them all, each is
 * tried as before: of those it does not know nothing would ever be heard. */
static kolo_status_t epoll_start(kolo_tcp_state_t *state)
{
    state->epoll_fd = kolo_fd_own(epoll_create1(EPOLL_CLOEXEC));
    if (state->epoll_fd < 0) return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "tcp: epoll; descriptor limit?");
    kolo_status_t status = epoll_add_all(state);
    if (status == KOLO_OK) return KOLO_OK;
    kolo_fd_close(state->epoll_fd);
    state->epoll_fd = -1;
    return status;
}

static kolo_status_t list_add(kolo_tcp_state_t *state, kolo_tcp_conn_t *conn)
{
    conn->state = state;
    conn->next = state->first;
    conn->prev = NULL;
    if (state->first) state->first->prev = conn;
    state->first = conn;
    state->nsocks += conn->nsocks;
    if (state->epoll_fd >= 0) {
        for (uint32_t i = 0; i < conn->nsocks; i++) KOLO_TRY(epoll_add(state, &conn->socks[i]));
    } else if (state->nsocks > KOLO_TCP_TRY_SOCKETS) {
        KOLO_TRY(epoll_start(state));
    }
    for (uint32_t i = 0; i < conn->nsocks; i++) {
        KOLO_TRY(kolo_waker_add_fd(&state->ctx->waker, conn->socks[i].socket.fd));
        if (state->ctx->oob) KOLO_TRY(kolo_oob_watch_stream(state->ctx->oob, conn->peer, conn->socks[i].socket.fd));
    }
    return KOLO_OK;
}

/* ---- sockets ---- */

static void name_peer(kolo_tcp_conn_t *conn, int fd)
{
    struct sockaddr_storage sa = {0};
    socklen_t bytes = sizeof sa;
    kolo_address_t peer;
    snprintf(conn->address, sizeof conn->address, "address unknown");
    if (getpeername(fd, (struct sockaddr *)&sa, &bytes) != 0) return;
    kolo_address_from_sockaddr(&peer, (const struct sockaddr *)&sa);
    kolo_address_print(&peer, conn->address);
}

static void set_buffer(int fd, int option, int64_t bytes)
{
    int n = (int)bytes;
    if (n > 0 && setsockopt(fd, SOL_SOCKET, option, &n, sizeof n) != 0)
        kolo_warn("tcp", "cannot set a socket buffer of %d bytes: %s", n, strerror(errno));
}

static kolo_status_t set_options(int fd)
{
    set_buffer(fd, SO_SNDBUF, kolo_tcp_param_sndbuf);
    set_buffer(fd, SO_RCVBUF, kolo_tcp_param_rcvbuf);
    int us = (int)kolo_tcp_param_busy_poll_us;
    if (us > 0 && setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &us, sizeof us) != 0)
        kolo_warn("tcp", "KOLO_TCP_BUSY_POLL_US has no effect: %s", strerror(errno));
    const char *cc = kolo_tcp_param_congestion;
    if (cc && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cc, (socklen_t)strlen(cc)) != 0)
        return kolo_fail_errno(
            KOLO_ERR_INVALID_ARGUMENT, errno,
            "tcp: KOLO_TCP_CONGESTION=%s (see /proc/sys/net/ipv4/tcp_allowed_congestion_control)", cc);
    return KOLO_OK;
}

static kolo_status_t attach(kolo_tcp_conn_t *conn, kolo_wire_ctx_t *ctx, const kolo_socket_t *sockets,
                            uint32_t nsocks)
{
    kolo_tcp_state_t *state = NULL;
    const kolo_conn_spec_t *spec = kolo_tcp_spec(conn);
    conn->socks = calloc(nsocks, sizeof *conn->socks);
    conn->streams = calloc(nsocks, sizeof *conn->streams);
    if (conn->tx) conn->outs = calloc(nsocks + 1, sizeof *conn->outs);
    if (!conn->socks || !conn->streams || (conn->tx && !conn->outs)) {
        for (uint32_t i = 0; i < nsocks; i++) {
            kolo_socket_t socket = sockets[i];
            kolo_socket_close(&socket);
        }
        return kolo_fail(KOLO_ERR_NO_MEMORY, "tcp: no memory for the sockets to rank %d", conn->peer);
    }
    conn->nsocks = nsocks;
    for (uint32_t i = 0; i < nsocks; i++) {
        uint64_t slot = spec->start + i;
        uint32_t at = (uint32_t)(slot & (nsocks - 1));
        conn->socks[at] =
            (kolo_tcp_sock_t){.conn = conn, .socket = sockets[at], .readable = true, .writable = true};
        conn->streams[at].slot = slot;
        conn->streams[at].step = nsocks;
        conn->streams[at].back = conn->tx != NULL;
        conn->streams[at].sink = conn->rx ? &conn->sink : NULL;
        if (conn->tx) conn->outs[at] = (kolo_tcp_out_t){.sock = &conn->socks[at], .slot = spec->start};
    }
    conn->nouts = conn->tx ? nsocks : 0;
    name_peer(conn, sockets[0].fd);
    for (uint32_t i = 0; i < nsocks; i++) KOLO_TRY(set_options(sockets[i].fd));
    KOLO_TRY(state_get(ctx, &state));
    KOLO_TRY(list_add(state, conn));
    kolo_tcp_pair(conn);
    return KOLO_OK;
}

kolo_status_t kolo_tcp_conn_attach(kolo_tcp_conn_t *conn, kolo_wire_ctx_t *ctx, const kolo_socket_t *sockets,
                                   uint32_t nsocks)
{
    KOLO_FAIL_POINT("wire.tcp.attach");
    kolo_status_t st = attach(conn, ctx, sockets, nsocks);
    if (st != KOLO_OK) kolo_tcp_conn_detach(conn);
    return st;
}

typedef kolo_status_t (*open_fn_t)(kolo_oob_t *oob, int peer, uint64_t tag, uint64_t deadline_ns,
                                   kolo_socket_t *socket);

static kolo_status_t open_sockets(kolo_tcp_conn_t *conn, kolo_wire_ctx_t *ctx, uint32_t nsocks, uint64_t nonce,
                                  open_fn_t open_socket)
{
    kolo_socket_t sockets[KOLO_TCP_MAX_SOCKETS];
    KOLO_FAIL_POINT_TRY("wire.tcp.open");
    for (uint32_t i = 0; i < nsocks; i++) {
        kolo_status_t st = open_socket(ctx->oob, conn->peer, nonce + i, ctx->deadline_ns, &sockets[i]);
        if (st == KOLO_OK) continue;
        while (i > 0) kolo_socket_close(&sockets[--i]);
        return kolo_fail_prefix(st, "tcp: connection with rank %d on %.32s: ", conn->peer,
                                kolo_tcp_host_name(ctx, conn->peer));
    }
    return kolo_tcp_conn_attach(conn, ctx, sockets, nsocks);
}

kolo_status_t kolo_tcp_tx_connect(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, const kolo_wire_card_t *reader_cards)
{
    kolo_tcp_conn_t *conn = tx->priv;
    kolo_tcp_card_t card;
    KOLO_TRY(kolo_tcp_card_decode(&reader_cards[0], conn->peer, &card));
    return open_sockets(conn, ctx, KOLO_MIN(conn->offered, card.sockets), conn->nonce, kolo_oob_dial);
}

kolo_status_t kolo_tcp_rx_connect(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, const kolo_wire_card_t *writer_card)
{
    kolo_tcp_conn_t *conn = rx->priv;
    kolo_tcp_card_t card;
    KOLO_TRY(kolo_tcp_card_decode(writer_card, conn->peer, &card));
    return open_sockets(conn, ctx, KOLO_MIN(conn->offered, card.sockets), card.nonce, kolo_oob_accept);
}

bool kolo_tcp_rx_can_connect(kolo_wire_ctx_t *ctx, const kolo_rx_t *rx, const kolo_wire_card_t *writer_card)
{
    const kolo_tcp_conn_t *conn = rx->priv;
    kolo_tcp_card_t card;
    if (kolo_tcp_card_decode(writer_card, rx->spec.writer, &card) != KOLO_OK) return true; /* which says why not */
    return kolo_oob_can_accept(ctx->oob, rx->spec.writer, card.nonce, KOLO_MIN(conn->offered, card.sockets));
}

/* ---- the end ---- */

/* Sends the farewell, which says that nothing was cut off: not when a frame is half written or still waits. */
static void say_farewell(const kolo_tcp_conn_t *conn, kolo_tcp_sock_t *sock, bool in_order)
{
    uint8_t bytes[KOLO_TCP_FRAME_BYTES];
    const kolo_tcp_conn_t *mate =
        conn->rx && kolo_tcp_is_carrier(conn) && sock == &conn->socks[0] ? conn->mate : NULL;
    (void)kolo_tcp_take_peeked(sock); /* the kernel resets a connection that is closed with bytes unread */
    bool within = sock->cut || kolo_socket_within(&sock->socket) || (mate && mate->outs[mate->nsocks].sent > 0);
    if (in_order && !within) {
        kolo_tcp_frame_t bye = {
            .magic = KOLO_TCP_FRAME_MAGIC, .flags = KOLO_TCP_FRAME_BYE, .slot = conn->tx ? conn->tx->end.next : 0};
        kolo_tcp_frame_encode(bytes, &bye);
        ssize_t n = kolo_socket_send_bytes(&sock->socket, bytes, sizeof bytes);
        (void)n; /* a full socket: the peer will take it for a death, which is no worse for it */
    }
    shutdown(sock->socket.fd, SHUT_WR);
}

void kolo_tcp_conn_close(kolo_tcp_conn_t *conn)
{
    if (conn->closed) return;
    KOLO_FAIL_POINT("wire.tcp.farewell");
    bool in_order = conn->status == KOLO_OK && !(conn->tx && conn->nsocks > 0 && kolo_tcp_unsent(conn));
    conn->closed = true;
    for (uint32_t i = 0; i < conn->nsocks; i++) say_farewell(conn, &conn->socks[i], in_order);
}

void kolo_tcp_conn_detach(kolo_tcp_conn_t *conn)
{
    kolo_tcp_state_t *state = conn->state;
    kolo_tcp_unpair(conn);
    if (state) {
        if (conn->prev) conn->prev->next = conn->next;
        if (conn->next) conn->next->prev = conn->prev;
        if (state->first == conn) state->first = conn->next;
        state->nsocks -= conn->nsocks;
    }
    for (uint32_t i = 0; i < conn->nsocks; i++) {
        if (state) kolo_waker_del_fd(&state->ctx->waker, conn->socks[i].socket.fd);
        if (state && state->ctx->oob)
            kolo_oob_unwatch_stream(state->ctx->oob, conn->peer, conn->socks[i].socket.fd);
        if (state && state->epoll_fd >= 0)
            epoll_ctl(state->epoll_fd, EPOLL_CTL_DEL, conn->socks[i].socket.fd, NULL);
        kolo_socket_close(&conn->socks[i].socket);
    }
    if (state) state_put(state);
    conn->state = NULL;
    conn->nsocks = 0;
    free(conn->socks);
    free(conn->streams);
    free(conn->outs);
    conn->socks = NULL;
    conn->streams = NULL;
    conn->outs = NULL;
    conn->nouts = 0;
}
