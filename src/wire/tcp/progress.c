/* SPDX-License-Identifier: Apache-2.0
 *
 * The tcp wire at work: posted slots go out (write.c), what has come is taken apart into free slots. One step makes
 * at most one sendmsg and one receive per socket, so that a waiter on another connection is soon back at its own
 * condition.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "oob/leave.h"
#include "wire/tcp/tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* steps between two looks for the reader's farewell or death on an otherwise idle writer */
#define FAREWELL_EACH 16
/* steps between two looks at a socket from which the next slot is not expected */
#define COLD_EACH 4
/* payloads up to which a message that comes after silence is peeked at */
#define PEEK_BYTES 1448
/* so long after the end of a connection word may come that its rank has left in order */
#define WORD_MS 20

/* ---- failure ---- */

kolo_status_t kolo_tcp_conn_fail(kolo_tcp_conn_t *conn, kolo_status_t status, const char *fmt, ...)
{
    const kolo_conn_spec_t *spec = kolo_tcp_spec(conn);
    const kolo_member_t *m = conn->state->ctx->member;
    int pid = m && m->peers && conn->peer < m->nranks ? m->peers[conn->peer].pid : 0;
    int n = snprintf(conn->error, sizeof conn->error,
                     "tcp: rank %d on %s (pid %d, %s), connection %d -> %d lane %u: ", conn->peer,
                     kolo_tcp_host_name(conn->state->ctx, conn->peer), pid, conn->address, spec->writer,
                     spec->reader, spec->lane);
    if (n > 0 && (size_t)n < sizeof conn->error) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(conn->error + n, sizeof conn->error - (size_t)n, fmt, ap);
        va_end(ap);
    }
    conn->status = status;
    return status;
}

kolo_status_t kolo_tcp_conn_lost(kolo_tcp_conn_t *conn, int err, const char *what, uint64_t slot)
{
    if (err == EBADMSG) return kolo_tcp_conn_fail(conn, KOLO_ERR_PROTOCOL, "%s", KOLO_SEAL_ALTERED);
    return kolo_tcp_conn_fail(conn, KOLO_ERR_REMOTE,
                              "lost %s slot %llu: %s; look at that rank's log and at the network", what,
                              (unsigned long long)slot, strerror(err));
}

static kolo_status_t report(const kolo_tcp_conn_t *conn)
{
    if (conn->closed)
        return kolo_fail(KOLO_ERR_ABORTED, "tcp: the connection with rank %d was closed here", conn->peer);
    return conn->status == KOLO_OK ? KOLO_OK : kolo_fail(conn->status, "%s", conn->error);
}

/* ---- reader ---- */

static kolo_status_t reader_gone(kolo_tcp_conn_t *conn, const kolo_tcp_stream_t *stream)
{
    conn->orderly = stream->bye;
    return stream->bye ? kolo_tcp_conn_fail(conn, KOLO_ERR_REMOTE, "has closed the connection")
                       : kolo_tcp_conn_fail(conn, KOLO_ERR_REMOTE,
                                            "the connection ended without farewell; its process has probably died");
}

/* Ends the connection, all of whose sockets have ended: in good order once all slots have come, the last ones
 * perhaps by the carrier. */
static kolo_status_t writer_gone(kolo_tcp_conn_t *conn)
{
    const kolo_tcp_conn_t *carrier = conn->mate;
    if (conn->sink.mixed && conn->sink.arrived != conn->sink.final) {
        if (carrier && carrier->status == KOLO_OK && !carrier->closed) return KOLO_OK;
        return kolo_tcp_conn_fail(conn, KOLO_ERR_REMOTE, "the connection ended before slot %llu had come",
                                  (unsigned long long)conn->rx->end.next);
    }
    conn->orderly = true;
    return kolo_tcp_conn_fail(conn, KOLO_ERR_REMOTE, "has closed the connection");
}

static bool all_ended(const kolo_tcp_conn_t *conn)
{
    for (uint32_t i = 0; i < conn->nsocks; i++)
        if (!conn->socks[i].ended) return false;
    return true;
}

/* Counts a farewell once all sockets have brought theirs: until then another one may still carry slots. */
static kolo_status_t stream_end(kolo_tcp_conn_t *conn, kolo_tcp_sock_t *sock, const kolo_tcp_stream_t *stream)
{
    if (conn->tx) return reader_gone(conn, stream);
    if (stream->bye) {
        sock->ended = true;
        return KOLO_OK;
    }
    return kolo_tcp_conn_fail(conn, KOLO_ERR_REMOTE,
                              "the connection ended without farewell %s slot %llu; its process has "
                              "probably died",
                              kolo_tcp_stream_idle(stream) ? "before" : "in the middle of",
                              (unsigned long long)stream->slot);
}

bool kolo_tcp_take_peeked(kolo_tcp_sock_t *sock)
{
    char unused[KOLO_TCP_BUFFER_BYTES];
    while (sock->peeked > 0) {
        ssize_t n = recv(sock->socket.fd, unused, KOLO_MIN(sock->peeked, sizeof unused),
                         MSG_DONTWAIT | MSG_TRUNC); /* TRUNC: nothing is copied */
        if (n == 0) errno = ECONNRESET;
        if (n == 0 || (n < 0 && errno != EINTR)) return false;
        if (n > 0) sock->peeked -= (uint32_t)n;
    }
    return true;
}

/* Reads from a socket. A read that empties it may send an acknowledgement before it returns, which takes as long as
 * the message did. So a message that comes after silence is peeked at first and taken with the next look: an answer
 * that goes out meanwhile has carried the acknowledgement, or nobody waits for it any more. */
static kolo_status_t receive(kolo_tcp_conn_t *conn, kolo_tcp_sock_t *sock, kolo_tcp_stream_t *stream)
{
    struct iovec iov[2];
    if (sock->peeked > 0 && !kolo_tcp_take_peeked(sock))
        return kolo_tcp_conn_lost(conn, errno, "after receiving", stream->slot);
    int count = kolo_tcp_stream_want(stream, iov);
    if (count == 0) return KOLO_OK;
    bool one_segment = iov[0].iov_len > KOLO_TCP_FRAME_BYTES && stream->sink && stream->sink->awaited <= PEEK_BYTES;
    bool peek = sock->quiet && count == 1 && one_segment && sock->socket.seal == NULL;
    size_t asked = iov[0].iov_len + (count > 1 ? iov[1].iov_len : 0);
    ssize_t n = peek ? recv(sock->socket.fd, iov[0].iov_base, iov[0].iov_len, MSG_DONTWAIT | MSG_PEEK)
                     : kolo_socket_recv(&sock->socket, iov, count);
    sock->quiet = n < 0;
    if (n > 0) {
        KOLO_FAIL_POINT("wire.tcp.read");
        if (peek)
            sock->peeked = (uint32_t)n;
        else if ((size_t)n < asked && !sock->hung_up && sock->socket.seal == NULL)
            sock->readable = false; /* empty now: epoll tells when not */
        if (!conn->tx)
            conn->by_carrier = false;
        else if (conn->mate)
            conn->mate->by_carrier = true;
        return kolo_tcp_stream_got(stream, (size_t)n);
    }
    if (n == 0) return stream_end(conn, sock, stream);
    if (errno == EAGAIN) {
        if (!sock->hung_up) sock->readable = false;
    } else if (errno != EINTR) {
        return kolo_tcp_conn_lost(conn, errno, conn->tx ? "after sending" : "while receiving",
                                  conn->tx ? conn->outs[0].slot : stream->slot);
    }
    return KOLO_OK;
}

static kolo_status_t read_frames(kolo_tcp_conn_t *conn, uint32_t index)
{
    kolo_tcp_sock_t *sock = &conn->socks[index];
    kolo_tcp_stream_t *stream = &conn->streams[index];
    kolo_status_t st = kolo_tcp_stream_parse(stream);
    if (st == KOLO_OK && sock->readable && !sock->ended) st = receive(conn, sock, stream);
    if (st == KOLO_OK || conn->status != KOLO_OK) return st;
    return kolo_tcp_conn_fail(conn, st, "%s", kolo_error_text());
}

/* ---- all connections ---- */

static void collect_events(kolo_tcp_state_t *state)
{
    struct epoll_event events[64];
    int n = epoll_wait(state->epoll_fd, events, 64, 0);
    for (int i = 0; i < n; i++) {
        kolo_tcp_sock_t *sock = events[i].data.ptr;
        if (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) sock->hung_up = true;
        if (events[i].events & EPOLLOUT) sock->writable = true;
        if (events[i].events & EPOLLIN || sock->hung_up) sock->readable = true;
        if (sock->hung_up) sock->writable = true;
    }
}

/* Tells whether this is a turn to look at what the sockets have brought. A look at an empty one costs as much as a
 * small message. */
static bool is_turn(const kolo_tcp_conn_t *conn)
{
    uint32_t calls = conn->state->calls;
    if (conn->state->epoll_fd >= 0) return true;
    if (conn->tx && !kolo_tcp_is_carrier(conn)) return calls % FAREWELL_EACH == 0;
    if (conn->tx) return conn->mate->rx == NULL || conn->mate->by_carrier || calls % COLD_EACH == 0;
    return !conn->by_carrier || calls % COLD_EACH == 0;
}

static bool is_alive(const kolo_tcp_conn_t *conn)
{
    return !conn->closed && conn->status == KOLO_OK;
}

static void note_failure(kolo_tcp_conn_t *conn)
{
    kolo_debug("tcp", "%s", conn->error);
    conn->failed_ns = kolo_now_ns();
    if (!kolo_tcp_is_carrier(conn) || conn->orderly || conn->mate->status != KOLO_OK) return;
    kolo_tcp_conn_fail(conn->mate, conn->status, "its carrier failed: %.*s", 200, conn->error);
    conn->mate->failed_ns = conn->failed_ns;
}

/* Tells whether its failure concerns also those who wait for other connections. A process that has left and ends by
 * _exit() says no farewell here, and word of its leave may come just behind: so that is awaited for a moment. */
static bool is_for_all(kolo_tcp_conn_t *conn)
{
    kolo_wire_ctx_t *ctx = conn->state->ctx;
    if (conn->status == KOLO_OK || conn->orderly || conn->closed) return false;
    if (conn->status != KOLO_ERR_REMOTE || !ctx->oob) return true;
    conn->orderly = kolo_oob_has_left(ctx->oob, conn->peer);
    if (conn->orderly) return false;
    if (kolo_now_ns() - conn->failed_ns >= WORD_MS * KOLO_NS_PER_MS) return true;
    kolo_waker_wake(&ctx->waker); /* who sleeps looks again */
    return false;
}

static void pump_out(kolo_tcp_conn_t *conn, bool *wrote)
{
    if (!conn->tx || !is_alive(conn)) return;
    if (conn->state->epoll_fd < 0)
        for (uint32_t i = 0; i < conn->nouts; i++) conn->outs[i].sock->writable = true;
    if (kolo_tcp_write(conn, wrote) != KOLO_OK) note_failure(conn);
}

static kolo_status_t read_all(kolo_tcp_conn_t *conn)
{
    for (uint32_t i = 0; i < conn->nsocks; i++) {
        if (conn->state->epoll_fd < 0) conn->socks[i].readable = true;
        KOLO_TRY(read_frames(conn, i));
    }
    if (!conn->rx) return KOLO_OK;
    if (kolo_tcp_check_order(conn) != KOLO_OK)
        return kolo_tcp_conn_fail(conn, KOLO_ERR_PROTOCOL, "%s", kolo_error_text());
    return all_ended(conn) ? writer_gone(conn) : KOLO_OK;
}

static void pump_in(kolo_tcp_conn_t *conn)
{
    if (is_alive(conn) && read_all(conn) != KOLO_OK) note_failure(conn);
}

/* Writes what is posted before anything else. A step that has written does not read as well: who waits for the
 * writing alone goes on at once, who waits for an answer comes again. */
kolo_status_t kolo_tcp_step(void *arg)
{
    kolo_tcp_state_t *state = arg;
    const kolo_tcp_conn_t *failed = NULL;
    bool wrote = false;
    if (state->epoll_fd >= 0) collect_events(state);
    for (kolo_tcp_conn_t *conn = state->first; conn; conn = conn->next) pump_out(conn, &wrote);
    state->calls += !wrote;
    for (kolo_tcp_conn_t *conn = state->first; conn; conn = conn->next) {
        if (!wrote && is_turn(conn)) pump_in(conn);
        if (KOLO_UNLIKELY(conn->status != KOLO_OK) && !failed && is_for_all(conn)) failed = conn;
    }
    return failed ? report(failed) : KOLO_OK;
}

/* Asks the kernel whether the other end has closed: small frames that nobody takes stand before its farewell. */
static void look_behind(kolo_tcp_conn_t *conn)
{
    struct iovec iov[2];
    struct pollfd fd = {.fd = conn->socks[0].socket.fd, .events = POLLRDHUP};
    if (kolo_tcp_stream_want(&conn->streams[0], iov) > 0 || poll(&fd, 1, 0) <= 0) return;
    conn->orderly = true; /* a death is seen by the member room and on the mate's own sockets */
    kolo_tcp_conn_fail(conn, KOLO_ERR_REMOTE, "has closed the connection, and messages from it were not read");
}

/* Moves what can be moved before it fails: a waiter polls before it asks, so what this call has moved counts first,
 * its failure with the next call. */
static kolo_status_t check_conn(kolo_tcp_conn_t *conn)
{
    kolo_status_t before = conn->status;
    if (!conn->state) return KOLO_OK;
    if (conn->state->epoll_fd >= 0) collect_events(conn->state);
    bool wrote;
    pump_out(conn, &wrote);
    if (conn->mate) pump_in(conn->mate);
    pump_in(conn);
    if (conn->tx && kolo_tcp_is_carrier(conn) && conn->status == KOLO_OK && !conn->closed) look_behind(conn);
    return before == KOLO_OK && !conn->closed ? KOLO_OK : report(conn);
}

kolo_status_t kolo_tcp_tx_check(kolo_tx_t *tx)
{
    return check_conn(tx->priv);
}

kolo_status_t kolo_tcp_rx_check(kolo_rx_t *rx)
{
    /* Slots that came before the end are still good. */
    return kolo_rx_ready(rx) ? KOLO_OK : check_conn(rx->priv);
}

/* ---- payload outside the slots ---- */

kolo_status_t kolo_tcp_tx_post_from(kolo_tx_t *tx, const void *data, uint32_t bytes, uint64_t signature,
                                    uint64_t operation)
{
    kolo_tcp_conn_t *conn = tx->priv;
    if (bytes > tx->end.slot_bytes)
        return kolo_fail(KOLO_ERR_INTERNAL, "tcp: %u bytes for a slot of %u", bytes, tx->end.slot_bytes);
    conn->external[tx->end.next & tx->end.mask] = data;
    kolo_tx_post(tx, bytes, 0, signature, operation);
    return KOLO_OK;
}

/* Lists the streams on which the current slot may come, the carrier's last. */
static uint32_t count_streams(const kolo_tcp_conn_t *conn)
{
    return conn->nsocks + (conn->carried_bytes > 0);
}
static kolo_tcp_stream_t *stream_at(const kolo_tcp_conn_t *conn, uint32_t index)
{
    return index < conn->nsocks ? &conn->streams[index] : &conn->mate->streams[0];
}

void kolo_tcp_rx_expect(kolo_rx_t *rx, uint32_t ahead, void *data, uint32_t bytes)
{
    (void)ahead;
    kolo_tcp_conn_t *conn = rx->priv;
    if (conn->nsocks == 0 || kolo_rx_ready(rx)) return;
    conn->by_carrier = bytes <= conn->carried_bytes && conn->carried_bytes > 0;
    conn->sink.awaited = bytes;
    if (!data) return;
    for (uint32_t i = 0; i < count_streams(conn); i++) kolo_tcp_stream_expect(stream_at(conn, i), data, bytes);
    conn->sink.expect = data;
    conn->sink.expect_bytes = bytes;
    conn->sink.patient = true;
}

void kolo_tcp_rx_unexpect(kolo_rx_t *rx)
{
    kolo_tcp_conn_t *conn = rx->priv;
    if (conn->nsocks == 0) return;
    if (rx->direct) { /* it has come: back to the slot */
        kolo_slot_header_t *h = kolo_rx_header(rx);
        memcpy(h + 1, rx->direct, h->bytes);
        rx->direct = NULL;
        return;
    }
    for (uint32_t i = 0; i < count_streams(conn); i++) kolo_tcp_stream_unexpect(stream_at(conn, i));
    conn->sink.expect = NULL;
}
