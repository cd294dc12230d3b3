/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection that carries messages between two ranks. The progress thread reads it, into the memory of a waiting
 * receive or into its own memory for early messages. It stops reading while it has no room for the next message, so
 * that TCP holds the sender back. A rank's thread writes; what the socket does not take at once the progress thread
 * writes when it can.
 *
 * A rank's thread never removes a watch, because it holds oob->lock, which the handler may be waiting for: it
 * condemns the connection (shutdown), and the progress thread does the rest.
 */
#include "base/log.h"
#include "oob/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#define SCRATCH_BYTES KOLO_SEAL_BUFFER_BYTES /* so that no record stays behind, of which epoll knows nothing */
#define READS_AT_ONCE 16

static void conn_ready(void *arg, int fd, uint32_t events);

static uint32_t conn_interest(const kolo_conn_t *conn)
{
    return (conn->stalled ? 0u : (uint32_t)EPOLLIN) | (conn->out != NULL ? (uint32_t)EPOLLOUT : 0u);
}

/* Lets any thread add interest. */
static void conn_update_watch(kolo_conn_t *conn)
{
    uint32_t events = conn_interest(conn);
    if (conn->dead || events == 0 || (conn->watch != NULL && events == conn->events)) return;
    conn->events = events;
    kolo_status_t status = conn->watch == NULL ? kolo_watch_add(conn->oob->progress, conn->socket.fd, events,
                                                                conn_ready, conn, &conn->watch)
                                               : kolo_watch_mod(conn->watch, events);
    if (status != KOLO_OK) kolo_conn_condemn(conn, "cannot be watched");
}

/* Takes the watch away, on the progress thread, while nothing is awaited: not even an empty set may stay, a hang-up
 * would be reported for ever. */
static void conn_rest(kolo_conn_t *conn)
{
    if (conn->dead || conn_interest(conn) != 0) return;
    kolo_watch_del(conn->watch);
    conn->watch = NULL;
}

/* ---- the end of a connection ---- */

static void out_fail(kolo_outbound_t *out)
{
    out->done = out->failed = true;
    if (out->owned) free(out);
}

static void conn_fail_outs(kolo_conn_t *conn)
{
    for (kolo_outbound_t *out = conn->out, *next; out != NULL; out = next) {
        next = out->next;
        out_fail(out);
    }
    conn->out = NULL;
    conn->out_tail = &conn->out;
}

static void conn_drop_in(kolo_conn_t *conn)
{
    kolo_inbound_t *in = conn->in;
    conn->in = NULL;
    if (in == NULL) return;
    in->conn = NULL;
    in->started = false;
    in->got = 0;
    if (in->early) kolo_oob_early_remove(conn->oob, in);
}

static void conn_mark_dead(kolo_conn_t *conn, const char *why, kolo_loss_how_t how)
{
    kolo_peer_t *peer = conn->peer;
    kolo_oob_t *oob = conn->oob;
    conn->dead = true;
    conn_fail_outs(conn);
    conn_drop_in(conn);
    free(conn->stash);
    conn->stash = NULL;
    peer->live--;
    if (!peer->gone) snprintf(peer->why, sizeof(peer->why), "%s", why);
    if (peer->live == 0) peer->gone = true;
    if (!peer->farewell) kolo_rooms_lost(oob, peer->rank, how, oob->rank); /* it did not leave in order */
    kolo_debug("oob", "%s: rank %d: the connection to rank %d %s", oob->name, oob->rank, peer->rank, why);
    kolo_oob_wake(oob);
}

void kolo_conn_condemn(kolo_conn_t *conn, const char *why)
{
    if (conn->dead) return;
    shutdown(conn->socket.fd, SHUT_RDWR); /* the progress thread hears of it and closes */
    conn_mark_dead(conn, why, KOLO_LOSS_BROKEN);
}

/* Closes a connection, on the progress thread. */
static void conn_close(kolo_conn_t *conn)
{
    kolo_watch_del(conn->watch);
    conn->watch = NULL;
    kolo_socket_leave(&conn->socket);
}

static void conn_kill(kolo_conn_t *conn, const char *why, kolo_loss_how_t how)
{
    if (!conn->dead) conn_mark_dead(conn, why, how);
    conn_close(conn);
}

void kolo_conn_free(kolo_conn_t *conn)
{
    conn_close(conn);
    conn_fail_outs(conn);
    free(conn->stash);
    free(conn);
}

/* ---- writing ---- */

void kolo_outbound_init(kolo_outbound_t *out, kolo_frame_kind_t kind, uint64_t tag)
{
    *out = (kolo_outbound_t){.kind = kind, .tag = tag};
}

void kolo_outbound_add(kolo_outbound_t *out, const void *part, size_t bytes)
{
    int i = out->part_bytes[0] > 0 ? 1 : 0;
    if (bytes == 0) return;
    out->part[i] = part;
    out->part_bytes[i] = bytes;
}

static int out_iov(const kolo_outbound_t *out, struct iovec iov[3])
{
    const uint8_t *parts[3] = {out->head, out->part[0], out->part[1]};
    size_t sizes[3] = {KOLO_HEAD_BYTES, out->part_bytes[0], out->part_bytes[1]}, skip = out->sent;
    int n = 0;
    for (int i = 0; i < 3; i++) {
        if (skip >= sizes[i]) {
            skip -= sizes[i];
            continue;
        }
        iov[n].iov_base = (void *)(uintptr_t)(parts[i] + skip);
        iov[n++].iov_len = sizes[i] - skip;
        skip = 0;
    }
    return n;
}

/* Writes what waits. When nothing can be written any more, what the peer sent before it went is still to be read:
 * it may say why. The progress thread does that, and what waits to be written fails then. */
static void conn_flush(kolo_conn_t *conn)
{
    while (conn->out != NULL && !conn->mute) {
        kolo_outbound_t *out = conn->out;
        struct iovec iov[3];
        ssize_t n = kolo_socket_send(&conn->socket, iov, out_iov(out, iov));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) {
            conn->mute = true;
            return;
        }
        out->sent += (size_t)n;
        if (out->sent < out->total) continue;
        conn->out = out->next;
        if (conn->out == NULL) conn->out_tail = &conn->out;
        out->done = true;
        if (out->owned) free(out);
        kolo_oob_wake(conn->oob);
    }
}

void kolo_conn_send(kolo_conn_t *conn, kolo_outbound_t *out)
{
    kolo_head_t head = {out->kind, (uint32_t)(out->part_bytes[0] + out->part_bytes[1]), out->tag};
    kolo_oob_head_encode(&head, out->head);
    out->total = KOLO_HEAD_BYTES + head.bytes;
    out->next = NULL;
    if (conn->dead) {
        out_fail(out);
        return;
    }
    bool idle = conn->out == NULL;
    *conn->out_tail = out;
    conn->out_tail = &out->next;
    if (!idle) return;
    conn_flush(conn);
    if (conn->out != NULL) conn_update_watch(conn);
}

/* ---- reading ---- */

static void conn_refuse(kolo_conn_t *conn, const char *wrong)
{
    kolo_link_count(KOLO_COUNT_FRAME);
    kolo_warn("oob", "%s: rank %d refused %s from rank %d", conn->oob->name, conn->oob->rank, wrong,
              conn->peer->rank);
    kolo_conn_condemn(conn, "carried bytes that are no message");
}

static void conn_finish_in(kolo_conn_t *conn)
{
    kolo_inbound_t *in = conn->in;
    conn->in = NULL;
    conn->head_got = 0;
    in->conn = NULL;
    in->done = true;
    const kolo_frame_rule_t *rule = kolo_rooms_frame_rule(in->kind);
    const char *wrong = NULL;
    if (in == &conn->small)
        wrong = rule->arrived(conn);
    else if (rule->queued != NULL)
        wrong = rule->queued(conn->oob, in);
    else
        kolo_oob_wake(conn->oob);
    if (wrong != NULL) conn_refuse(conn, wrong);
}

/* Finds a place for the message of a head that is complete. false: it has none yet. */
static bool conn_begin_in(kolo_conn_t *conn)
{
    const kolo_frame_rule_t *rule = kolo_rooms_frame_rule(conn->frame.kind);
    kolo_inbound_t *in = &conn->small;
    if (rule->arrived != NULL) {
        *in = (kolo_inbound_t){.kind = conn->frame.kind, .peer = conn->peer->rank, .bytes = conn->frame.bytes};
        in->part[0] = conn->body;
        in->part_bytes[0] = conn->frame.bytes;
    } else {
        in = kolo_inbound_place(conn->oob, conn->peer, &conn->frame);
    }
    if (in == NULL) return false;
    conn->in = in;
    in->conn = conn;
    in->started = true;
    if (in->bytes == 0) conn_finish_in(conn);
    return true;
}

static void conn_stall(kolo_conn_t *conn, const uint8_t *rest, size_t n)
{
    conn->stalled = true;
    conn->stash_bytes = n;
    if (n > 0) {
        conn->stash = malloc(n);
        if (conn->stash == NULL) {
            kolo_conn_condemn(conn, "ran out of memory");
            return;
        }
        memcpy(conn->stash, rest, n);
    }
    kolo_oob_wake(conn->oob); /* who waits for another message of this peer must know */
}

/* Takes n bytes that were read; may stall or kill the connection. */
static void conn_feed(kolo_conn_t *conn, const uint8_t *bytes, size_t n)
{
    while (n > 0 && !conn->dead) {
        if (conn->in != NULL) {
            uint32_t take = (uint32_t)KOLO_MIN(n, (size_t)(conn->in->bytes - conn->in->got));
            kolo_inbound_copy(conn->in, conn->in->got, bytes, take);
            conn->in->got += take;
            bytes += take;
            n -= take;
            if (conn->in->got == conn->in->bytes) conn_finish_in(conn);
            continue;
        }
        uint32_t take = (uint32_t)KOLO_MIN(n, (size_t)(KOLO_HEAD_BYTES - conn->head_got));
        memcpy(conn->head + conn->head_got, bytes, take);
        conn->head_got += take;
        bytes += take;
        n -= take;
        if (conn->head_got < KOLO_HEAD_BYTES) return;
        const char *wrong = kolo_oob_head_decode(conn->head, KOLO_HEAD_BYTES, &conn->frame);
        if (wrong != NULL) {
            conn_refuse(conn, wrong);
        } else if (!conn_begin_in(conn)) {
            conn_stall(conn, bytes, n);
            return;
        }
    }
}

void kolo_conn_resume(kolo_conn_t *conn)
{
    if (!conn->stalled || conn->dead) return;
    if (!conn_begin_in(conn)) return;
    uint8_t *stash = conn->stash;
    size_t n = conn->stash_bytes;
    conn->stash = NULL;
    conn->stash_bytes = 0;
    conn->stalled = false;
    conn_feed(conn, stash, n);
    free(stash);
    conn_update_watch(conn);
}

static void conn_altered(kolo_conn_t *conn)
{
    kolo_link_count(KOLO_COUNT_FRAME);
    kolo_warn("oob", "%s: rank %d: connection with rank %d: %s", conn->oob->name, conn->oob->rank, conn->peer->rank,
              KOLO_SEAL_ALTERED);
    conn_kill(conn, "carried " KOLO_SEAL_ALTERED, KOLO_LOSS_ALTERED);
}

/* Ends a connection that the peer has closed, or that the kernel has reset: also what a process of this machine
 * does that has taken its leave (see kolo_socket_hang_up()), so its farewell counts for more than the manner of the
 * end. */
static void conn_end(kolo_conn_t *conn, bool closed)
{
    if (conn->peer->farewell)
        conn_kill(conn, "closed its side (destroyed there, perhaps after an error of its own)", KOLO_LOSS_CLOSED);
    else if (closed)
        conn_kill(
            conn,
            "was closed: the process was killed, or ended without kolo_comm_finalize() or kolo_comm_destroy() "
            "(an engine: kolo_engine_shutdown())",
            KOLO_LOSS_CLOSED);
    else
        conn_kill(conn, "broke: the process died or the network failed", KOLO_LOSS_BROKEN);
}

/* Reads once: the rest of the message straight to its place, what follows into the scratch. Returns false when
 * there is nothing more to read now. */
static bool conn_read_once(kolo_conn_t *conn, uint8_t *scratch)
{
    struct iovec iov[3];
    int parts = 0;
    size_t direct = 0;
    if (conn->in != NULL) parts = kolo_inbound_iov(conn->in, iov, &direct);
    iov[parts] = (struct iovec){scratch, SCRATCH_BYTES};
    ssize_t n = kolo_socket_recv(&conn->socket, iov, parts + 1);
    if (n < 0 && errno == EINTR) return true;
    if (n < 0 && errno == EAGAIN) return false;
    if (n < 0 && errno == EBADMSG) {
        conn_altered(conn);
        return false;
    }
    if (n <= 0) {
        conn_end(conn, n == 0);
        return false;
    }
    conn->peer->heard_ns = kolo_now_ns();
    if (direct > 0) {
        size_t took = KOLO_MIN((size_t)n, direct);
        conn->in->got += (uint32_t)took;
        if (took == direct) conn_finish_in(conn);
        n -= (ssize_t)took;
    }
    bool more = (size_t)n == SCRATCH_BYTES || direct > 0;
    conn_feed(conn, scratch, (size_t)n);
    return more && !conn->stalled && !conn->dead;
}

void kolo_conn_drain(kolo_conn_t *conn)
{
    uint8_t scratch[SCRATCH_BYTES];
    while (!conn->dead && !conn->stalled && conn_read_once(conn, scratch)) continue;
}

static void conn_ready(void *arg, int fd, uint32_t events)
{
    kolo_conn_t *conn = arg;
    kolo_oob_t *oob = conn->oob;
    uint8_t scratch[SCRATCH_BYTES];
    (void)fd;
    pthread_mutex_lock(&oob->lock);
    if (conn->dead) { /* condemned */
        conn_close(conn);
        pthread_mutex_unlock(&oob->lock);
        return;
    }
    if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) conn_flush(conn);
    if (!conn->stalled && (events & (EPOLLIN | EPOLLERR | EPOLLHUP)))
        for (int i = 0; i < READS_AT_ONCE && conn_read_once(conn, scratch); i++) continue;
    if (conn->mute && conn->stalled && !conn->dead) conn_end(conn, false);
    conn_rest(conn);
    conn_update_watch(conn);
    pthread_mutex_unlock(&oob->lock);
}

kolo_status_t kolo_conn_add(kolo_oob_t *oob, int rank, kolo_socket_t socket)
{
    kolo_peer_t *peer = kolo_peer_get(oob, rank);
    kolo_conn_t *conn = peer != NULL ? calloc(1, sizeof(*conn)) : NULL;
    if (conn == NULL) {
        kolo_socket_close(&socket);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the connection to rank %d", rank);
    }
    conn->oob = oob;
    conn->peer = peer;
    conn->socket = socket;
    conn->out_tail = &conn->out;
    conn->events = EPOLLIN;
    kolo_status_t status = kolo_watch_add(oob->progress, socket.fd, EPOLLIN, conn_ready, conn, &conn->watch);
    if (status != KOLO_OK) {
        kolo_socket_close(&socket);
        free(conn);
        return status;
    }
    conn->next = peer->conns;
    peer->conns = conn;
    peer->live++;
    peer->gone = peer->absent = false;
    kolo_rooms_connected(conn);
    if (oob->left) kolo_farewell_queue(conn);
    kolo_oob_wake(oob);
    return KOLO_OK;
}
