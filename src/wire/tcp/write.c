/* SPDX-License-Identifier: Apache-2.0
 *
 * The writer's half of the tcp wire: posted slots get a route (which socket), become frames and go out, many in one
 * system call. A slot is free again when the kernel has taken all of its frame.
 */
#include "base/failpoint.h"
#include "wire/tcp/tcp.h"

#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>

#define MAX_IOV 64

/* The frame header lies in the slot header's padding, so that header and payload are one piece of memory. */
_Static_assert(offsetof(kolo_slot_header_t, pad) + KOLO_TCP_FRAME_BYTES == sizeof(kolo_slot_header_t),
               "in one piece");

static kolo_slot_header_t *tx_slot(const kolo_tx_t *tx, uint64_t slot)
{
    return (kolo_slot_header_t *)(void *)(tx->end.slots + (slot & tx->end.mask) * tx->end.stride);
}

static bool posted(const kolo_tx_t *tx, uint64_t slot)
{
    return atomic_load_explicit(&tx_slot(tx, slot)->seq, memory_order_acquire) == slot + 1;
}

static bool carrier_works(const kolo_tcp_conn_t *conn)
{
    return conn->carried_bytes > 0 && conn->mate->status == KOLO_OK && !conn->mate->closed;
}

/* Chooses the socket: small frames go by the carrier, others round the sockets. */
static void route(kolo_tcp_conn_t *conn)
{
    const kolo_tx_t *tx = conn->tx;
    for (; posted(tx, conn->routed); conn->routed++) {
        bool carried = carrier_works(conn) && tx_slot(tx, conn->routed)->bytes <= conn->carried_bytes;
        uint64_t index = carried ? conn->nsocks : conn->routed & (conn->nsocks - 1);
        conn->routes[conn->routed & tx->end.mask] = (uint8_t)index;
    }
}

/* Returns the first slot from `slot` on that goes out here; conn->routed if there is none. */
static uint64_t first_of(const kolo_tcp_conn_t *conn, uint32_t index, uint64_t slot)
{
    while (slot != conn->routed && conn->routes[slot & conn->tx->end.mask] != index) slot++;
    return slot;
}

/* Puts what is left of [header, payload) after `skip` bytes into iov; returns how many entries. */
static int frame_iov(const kolo_tcp_conn_t *conn, uint64_t slot, uint32_t skip, struct iovec *iov)
{
    kolo_slot_header_t *h = tx_slot(conn->tx, slot);
    const void *external = conn->external[slot & conn->tx->end.mask];
    int n = 0;
    if (skip == 0) {
        kolo_tcp_frame_t frame = {.magic = KOLO_TCP_FRAME_MAGIC,
                                  .bytes = h->bytes,
                                  .slot = slot,
                                  .signature = h->signature,
                                  .operation = h->operation};
        kolo_tcp_frame_encode(h->pad, &frame);
    }
    if (!external) {
        iov[n++] = (struct iovec){h->pad + skip, KOLO_TCP_FRAME_BYTES + h->bytes - skip};
        return n;
    }
    if (skip < KOLO_TCP_FRAME_BYTES) iov[n++] = (struct iovec){h->pad + skip, KOLO_TCP_FRAME_BYTES - skip};
    uint32_t done = skip > KOLO_TCP_FRAME_BYTES ? skip - KOLO_TCP_FRAME_BYTES : 0;
    if (h->bytes > done) iov[n++] = (struct iovec){(char *)(uintptr_t)external + done, h->bytes - done};
    return n;
}

static void frames_written(kolo_tcp_conn_t *conn, uint32_t index, size_t bytes)
{
    kolo_tcp_out_t *out = &conn->outs[index];
    while (bytes > 0) {
        uint64_t at = out->slot & conn->tx->end.mask;
        size_t left = KOLO_TCP_FRAME_BYTES + tx_slot(conn->tx, out->slot)->bytes - out->sent;
        if (bytes < left) {
            out->sent += (uint32_t)bytes;
            return;
        }
        bytes -= left;
        conn->external[at] = NULL;
        conn->routes[at] = KOLO_TCP_WRITTEN;
        out->sent = 0;
        out->slot = first_of(conn, index, out->slot);
    }
}

static kolo_status_t write_frames(kolo_tcp_conn_t *conn, uint32_t index)
{
    kolo_tcp_out_t *out = &conn->outs[index];
    struct iovec iov[MAX_IOV];
    uint32_t skip = out->sent;
    int n = 0;
    for (uint64_t slot = out->slot; slot != conn->routed && n + 2 <= MAX_IOV;
         slot = first_of(conn, index, slot + 1), skip = 0)
        n += frame_iov(conn, slot, skip, iov + n);
    KOLO_FAIL_POINT("wire.tcp.write");
    ssize_t wrote = kolo_socket_send(&out->sock->socket, iov, n);
    if (wrote >= 0) {
        frames_written(conn, index, (size_t)wrote);
    } else if (errno == EAGAIN) {
        out->sock->writable = false;
    } else if (errno != EINTR) {
        return kolo_tcp_conn_lost(conn, errno, "while sending", out->slot);
    }
    return KOLO_OK;
}

/* Frames that wait for a carrier which has gone have nowhere to go: others may have overtaken them. */
static kolo_status_t carrier_gone(kolo_tcp_conn_t *conn, uint64_t slot)
{
    conn->orderly = conn->mate->orderly;
    return kolo_tcp_conn_fail(conn, KOLO_ERR_REMOTE, "has closed the connection that was to carry slot %llu",
                              (unsigned long long)slot);
}

kolo_status_t kolo_tcp_write(kolo_tcp_conn_t *conn, bool *done)
{
    uint64_t low = 0, before = atomic_load_explicit(&conn->head->consumed, memory_order_relaxed);
    route(conn);
    for (uint32_t i = 0; i < conn->nouts; i++) {
        kolo_tcp_out_t *out = &conn->outs[i];
        out->slot = first_of(conn, i, out->slot);
        if (out->slot != conn->routed) {
            if (i == conn->nsocks && !carrier_works(conn)) return carrier_gone(conn, out->slot);
            if (out->sock->writable) KOLO_TRY(write_frames(conn, i));
        }
        if (i == 0 || (int64_t)(out->slot - low) < 0) low = out->slot;
    }
    if (low == before) return KOLO_OK;
    atomic_store_explicit(&conn->head->consumed, low, memory_order_release);
    if (low == conn->routed) *done = true;
    return KOLO_OK;
}

bool kolo_tcp_unsent(kolo_tcp_conn_t *conn)
{
    route(conn);
    for (uint32_t i = 0; i < conn->nouts; i++)
        if (first_of(conn, i, conn->outs[i].slot) != conn->tx->end.next) return true;
    return conn->routed != conn->tx->end.next;
}
