/* SPDX-License-Identifier: Apache-2.0
 *
 * The tcp wire's table, and the first half of a connection's life: slots in private memory and the card that tells
 * the other end how many sockets there may be. connect.c adds the sockets.
 */
#include "base/log.h"
#include "base/process.h"
#include "wire/queue.h"
#include "wire/tcp/tcp.h"

#include <endian.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define CARD_MAGIC   0x50435431u /* "1TCP" */
#define CARD_VERSION 2u          /* 2: small frames of both directions on one socket */

typedef struct { /* little endian */
    uint32_t magic, version, sockets, reserved;
    uint64_t nonce;
} wire_card_t;
_Static_assert(sizeof(wire_card_t) == 24, "travels");

void kolo_tcp_card_encode(kolo_wire_card_t *card, uint32_t sockets, uint64_t nonce)
{
    wire_card_t c = {.magic = htole32(CARD_MAGIC),
                     .version = htole32(CARD_VERSION),
                     .sockets = htole32(sockets),
                     .nonce = htole64(nonce)};
    memset(card, 0, sizeof *card);
    kolo_wire_card_put(card, &c, sizeof c);
}

kolo_status_t kolo_tcp_card_decode(const kolo_wire_card_t *card, int peer, kolo_tcp_card_t *out)
{
    wire_card_t c;
    bool whole = kolo_wire_card_get(card, &c, sizeof c);
    uint32_t sockets = le32toh(c.sockets);
    if (!whole || le32toh(c.magic) != CARD_MAGIC || le32toh(c.version) != CARD_VERSION || sockets < 1 ||
        sockets > KOLO_TCP_MAX_SOCKETS || (sockets & (sockets - 1)) != 0)
        return kolo_fail(KOLO_ERR_PROTOCOL, "tcp: the set-up card from rank %d is malformed", peer);
    *out = (kolo_tcp_card_t){.sockets = sockets, .nonce = le64toh(c.nonce)};
    return KOLO_OK;
}

static bool can_connect(const kolo_wire_ctx_t *ctx, const kolo_peer_card_t *a, const kolo_peer_card_t *b)
{
    (void)ctx;
    return kolo_wire_on_card(a, &kolo_wire_tcp) && kolo_wire_on_card(b, &kolo_wire_tcp);
}

static kolo_status_t check_spec(const kolo_conn_spec_t *spec)
{
    if (spec->kind != KOLO_CONN_PAIR || spec->proto != KOLO_PROTO_SIMPLE)
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "tcp: only pair connections with the simple protocol (%d -> %d lane %u)", spec->writer,
                         spec->reader, spec->lane);
    return kolo_conn_check_spec(spec);
}

/* Several sockets are for speed. Where those of all connections would take more than half of the descriptors that
 * the process may have, one has to do: so that further communicators find room. The smaller offer of the two ends
 * counts. */
static _Atomic uint32_t offered;

static uint32_t offer(void)
{
    static _Atomic bool told;
    uint32_t n = 1u << kolo_tcp_param_sockets;
    struct rlimit limit;
    if (n > 1 && getrlimit(RLIMIT_NOFILE, &limit) == 0 && atomic_load(&offered) + n > limit.rlim_cur / 2) {
        if (!atomic_exchange(&told, true))
            kolo_warn("tcp",
                      "further connections get one socket each instead of KOLO_TCP_SOCKETS=%u: the present ones "
                      "use half of the %llu descriptors that this process may have (ulimit -n)",
                      n, (unsigned long long)limit.rlim_cur);
        n = 1;
    }
    atomic_fetch_add(&offered, n);
    return n;
}

static kolo_status_t conn_new(const kolo_conn_spec_t *spec, int peer, kolo_tcp_conn_t **result)
{
    KOLO_TRY(check_spec(spec));
    kolo_tcp_conn_t *conn = calloc(1, sizeof *conn);
    if (!conn) return kolo_fail(KOLO_ERR_NO_MEMORY, "tcp: no memory for a connection with rank %d", peer);
    conn->peer = peer;
    conn->slots_bytes = spec->depth * kolo_queue_stride(spec);
    conn->slots =
        mmap(NULL, conn->slots_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (conn->slots == MAP_FAILED) conn->slots = NULL;
    conn->head = aligned_alloc(KOLO_CACHE_LINE, sizeof *conn->head);
    conn->external = calloc(spec->depth, sizeof *conn->external);
    conn->routes = calloc(spec->depth, sizeof *conn->routes);
    if (!conn->slots || !conn->head || !conn->external || !conn->routes) {
        kolo_tcp_conn_fini(conn);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "tcp: no memory for %u slots of %u bytes (connection with rank %d)",
                         spec->depth, spec->slot_bytes, peer);
    }
    memset(conn->head, 0, sizeof *conn->head);
    atomic_init(&conn->head->consumed, spec->start);
    conn->routed = conn->sink.arrived = spec->start;
    kolo_queue_prepare(spec, conn->slots);
    conn->offered = offer();
    *result = conn;
    return KOLO_OK;
}

kolo_status_t kolo_tcp_rx_setup(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, kolo_wire_card_t *card)
{
    kolo_tcp_conn_t *conn;
    (void)ctx;
    KOLO_TRY(conn_new(&rx->spec, rx->spec.writer, &conn));
    conn->rx = rx;
    conn->sink.rx = rx;
    rx->priv = conn;
    rx->end.slots = conn->slots;
    rx->end.head = conn->head;
    rx->bell = (kolo_bell_t){.asleep = NULL, .event_fd = -1};
    kolo_tcp_card_encode(card, conn->offered, 0);
    return KOLO_OK;
}

kolo_status_t kolo_tcp_tx_setup(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, kolo_wire_card_t *card)
{
    kolo_tcp_conn_t *conn;
    uint64_t nonce;
    (void)ctx;
    KOLO_TRY(kolo_random(&nonce, sizeof nonce));
    KOLO_TRY(conn_new(&tx->spec, tx->spec.reader, &conn));
    conn->tx = tx;
    conn->nonce = nonce;
    conn->bell = (kolo_bell_t){.asleep = NULL, .event_fd = -1};
    tx->priv = conn;
    tx->end.slots = conn->slots;
    tx->end.heads = conn->head;
    tx->sent = &conn->head->consumed;
    tx->bells = &conn->bell;
    kolo_tcp_card_encode(card, conn->offered, nonce);
    return KOLO_OK;
}

void kolo_tcp_conn_fini(kolo_tcp_conn_t *conn)
{
    if (!conn) return;
    kolo_tcp_conn_detach(conn);
    atomic_fetch_sub(&offered, conn->offered);
    if (conn->slots) munmap(conn->slots, conn->slots_bytes);
    free(conn->head);
    free(conn->external);
    free(conn->routes);
    free(conn);
}

static void tx_close(kolo_tx_t *tx)
{
    if (tx->priv) kolo_tcp_conn_close(tx->priv);
}
static void rx_close(kolo_rx_t *rx)
{
    if (rx->priv) kolo_tcp_conn_close(rx->priv);
}
static void tx_fini(kolo_tx_t *tx)
{
    kolo_tcp_conn_fini(tx->priv);
    tx->priv = NULL;
}
static void rx_fini(kolo_rx_t *rx)
{
    kolo_tcp_conn_fini(rx->priv);
    rx->priv = NULL;
}

/* Returns how much memory the connection has: slots that were never used have no pages yet, nor has the buffer of a
 * stream that brings a farewell at most. */
static size_t conn_memory(const kolo_tcp_conn_t *conn, uint64_t used, size_t stride, uint32_t depth)
{
    if (!conn) return 0;
    size_t streams = conn->nsocks * offsetof(kolo_tcp_stream_t, buffer),
           buffers = conn->rx ? conn->nsocks : kolo_tcp_is_carrier(conn), buffers_of_seals = 0;
    for (uint32_t i = 0; i < conn->nsocks; i++) buffers_of_seals += kolo_seal_memory(conn->socks[i].socket.seal);
    return buffers_of_seals + sizeof *conn + sizeof *conn->head +
           depth * (sizeof *conn->external + sizeof *conn->routes) +
           conn->nsocks * (sizeof *conn->socks + sizeof *conn->outs) + streams + buffers * KOLO_TCP_BUFFER_BYTES +
           (size_t)KOLO_MIN(used, (uint64_t)depth) * stride;
}

size_t kolo_tcp_tx_memory(const kolo_tx_t *tx)
{
    return conn_memory(tx->priv, tx->end.next - tx->spec.start, tx->end.stride, tx->end.depth);
}
size_t kolo_tcp_rx_memory(const kolo_rx_t *rx)
{
    return conn_memory(rx->priv, rx->end.next - rx->spec.start, rx->end.stride, rx->end.depth);
}

const kolo_wire_ops_t kolo_wire_tcp = {
    .name = "tcp",
    .version = 2,
    .what = "anywhere: sockets",
    .params = &kolo_tcp_params,
    .caps = KOLO_CAP_STEP | KOLO_CAP_POST_FROM,
    .can_connect = can_connect,
    .fill_card = kolo_wire_no_card,
    .may_copy = kolo_wire_no_copies,
    .rx_setup = kolo_tcp_rx_setup,
    .tx_setup = kolo_tcp_tx_setup,
    .tx_connect = kolo_tcp_tx_connect,
    .rx_connect = kolo_tcp_rx_connect,
    .rx_can_connect = kolo_tcp_rx_can_connect,
    .tx_check = kolo_tcp_tx_check,
    .rx_check = kolo_tcp_rx_check,
    .ref_make = kolo_wire_no_ref_make,
    .ref_start = kolo_wire_no_ref_start,
    .ref_done = kolo_wire_no_ref_done,
    .tx_post_from = kolo_tcp_tx_post_from,
    .rx_expect = kolo_tcp_rx_expect,
    .rx_unexpect = kolo_tcp_rx_unexpect,
    .tx_close = tx_close,
    .rx_close = rx_close,
    .tx_fini = tx_fini,
    .rx_fini = rx_fini,
    .tx_memory = kolo_tcp_tx_memory,
    .rx_memory = kolo_tcp_rx_memory,
};
