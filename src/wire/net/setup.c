/* SPDX-License-Identifier: Apache-2.0
 *
 * The net wire's table, and the first half of a connection's life: slots in registered memory, an end of the
 * provider that is ready to be found, and the card that says how. connect.c does the second half.
 */
#include "base/log.h"
#include "base/process.h"
#include "wire/net/conn.h"
#include "wire/queue.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Devices are looked for once, when a card is filled in. */
static kolo_status_t fill_card(kolo_peer_card_t *card)
{
    const char *why;
    bool demanded;
    const kolo_net_ops_t *ops = kolo_net_provider(&why, &demanded);
    if (!ops) return kolo_fail(demanded ? KOLO_ERR_INVALID_USAGE : KOLO_ERR_UNSUPPORTED, "net: %s", why);
    if (!kolo_wire_card_name(card, kolo_net_card_name(ops), ops->version))
        return kolo_fail(KOLO_ERR_INTERNAL, "net: no room for provider %s on the card", ops->name);
    return KOLO_OK;
}

/* Compares the providers on both cards: both ends must use the same one. */
static bool can_connect(const kolo_wire_ctx_t *ctx, const kolo_peer_card_t *a, const kolo_peer_card_t *b)
{
    const char *why;
    bool demanded;
    (void)ctx;
    if (!kolo_wire_on_card(a, &kolo_wire_net) || !kolo_wire_on_card(b, &kolo_wire_net)) return false;
    const kolo_net_ops_t *mine = kolo_net_provider(&why, &demanded);
    if (!mine) return false;
    const char *name = kolo_net_card_name(mine);
    return kolo_wire_card_names(a, name, mine->version) && kolo_wire_card_names(b, name, mine->version);
}

static kolo_status_t check_spec(const kolo_conn_spec_t *spec)
{
    if (spec->kind != KOLO_CONN_PAIR || spec->proto != KOLO_PROTO_SIMPLE)
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "net: only pair connections with the simple protocol (%d -> %d lane %u)", spec->writer,
                         spec->reader, spec->lane);
    if (spec->depth > KOLO_NET_MAX_DEPTH)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "net: %u slots (%d -> %d lane %u), at most %u", spec->depth,
                         spec->writer, spec->reader, spec->lane, KOLO_NET_MAX_DEPTH);
    return kolo_conn_check_spec(spec);
}

static size_t stride_of(const kolo_conn_spec_t *spec)
{
    return kolo_queue_stride(spec) + KOLO_NET_SLOT_EXTRA;
}

/* Prepares fresh slots: none looks full before it is, wherever the numbers start. */
static void prepare(kolo_net_conn_t *conn, const kolo_conn_spec_t *spec)
{
    for (uint32_t i = 0; i < spec->depth; i++) {
        uint64_t slot = spec->start + i;
        char *at = conn->slots + (slot & (spec->depth - 1)) * stride_of(spec);
        atomic_store_explicit(&((kolo_slot_header_t *)(void *)at)->seq, slot + 1 - spec->depth,
                              memory_order_relaxed);
    }
}

/* Makes slots whose pages stay with this process: a child of fork() would take them from the card's sight by
 * writing to them. */
static kolo_status_t make_slots(kolo_net_conn_t *conn, const kolo_conn_spec_t *spec)
{
    conn->slots_bytes =
        spec->depth * (stride_of(spec) + KOLO_NET_TAIL_BYTES); /* behind the slots: offers given back */
    conn->slots = mmap(NULL, conn->slots_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (conn->slots == MAP_FAILED) conn->slots = NULL;
    conn->head = aligned_alloc(KOLO_CACHE_LINE, sizeof *conn->head);
    if (!conn->slots || !conn->head)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "net: no memory for %u slots of %u bytes (connection with rank %d)",
                         spec->depth, spec->slot_bytes, conn->peer);
    (void)madvise(conn->slots, conn->slots_bytes, MADV_DONTFORK);
    memset(conn->head, 0, sizeof *conn->head);
    atomic_init(&conn->head->consumed, spec->start);
    prepare(conn, spec);
    if (conn->ops->invite) conn->places = calloc(spec->depth, sizeof *conn->places);
    conn->states = calloc(spec->depth, sizeof *conn->states);
    conn->requests = calloc(spec->depth, sizeof *conn->requests);
    if ((conn->ops->invite && !conn->places) || !conn->states || !conn->requests)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "net: no memory for %u slots", spec->depth);
    return KOLO_OK;
}

static kolo_status_t make_rails(kolo_net_conn_t *conn, const kolo_conn_spec_t *spec, kolo_wire_card_t *card)
{
    conn->invites = conn->rx && conn->places && kolo_mem_ranges_exist();
    kolo_net_card_t mine = {.provider = kolo_net_provider_id(conn->ops),
                            .depth = spec->depth,
                            .slot_bytes = spec->slot_bytes,
                            .invites = conn->invites,
                            .lazy = conn->tx && kolo_net_options.lazy,
                            .nonce = conn->nonce,
                            .nrails = conn->nrails};
    for (uint32_t i = 0; i < conn->nrails; i++) KOLO_TRY(kolo_net_rail_make(conn, i, &mine.hellos[i]));
    kolo_net_card_encode(&mine, card);
    return KOLO_OK;
}

/* Logs what the connection has cost its card, for whoever tunes (and tests/vm, which counts). */
static void log_counts(const kolo_net_conn_t *conn)
{
    const kolo_conn_spec_t *spec = kolo_net_spec(conn);
    kolo_net_counts_t n = {0};
    for (uint32_t i = 0; i < KOLO_NET_MAX_RAILS; i++) {
        n.requests += conn->rails[i].before.requests;
        n.completions += conn->rails[i].before.completions;
        n.doorbells += conn->rails[i].before.doorbells;
        n.invitations += conn->rails[i].before.invitations;
        n.trips += conn->rails[i].before.trips;
    }
    kolo_info("net",
              "connection %d -> %d lane %u ends at its %s: %llu slots, %llu requests, %llu completions, %llu "
              "doorbells, %llu bytes, %llu in place, %llu invitations, %llu trips",
              spec->writer, spec->reader, spec->lane, conn->tx ? "writer" : "reader",
              (unsigned long long)((conn->tx ? conn->freed : conn->arrived) - spec->start),
              (unsigned long long)n.requests, (unsigned long long)n.completions, (unsigned long long)n.doorbells,
              (unsigned long long)conn->bytes, (unsigned long long)conn->placed_bytes,
              (unsigned long long)n.invitations, (unsigned long long)n.trips);
}

static void conn_fini(kolo_net_conn_t *conn)
{
    if (!conn) return;
    for (uint32_t i = 0; i < KOLO_NET_MAX_RAILS; i++) kolo_net_rail_free(conn, &conn->rails[i]);
    if (conn->up) log_counts(conn);
    uint32_t depth = kolo_net_spec(conn)->depth;
    for (uint32_t i = 0; conn->places && i < depth; i++) kolo_net_place_clear(&conn->places[i]);
    free(conn->places);
    free(conn->states);
    free(conn->requests);
    free(conn->hellos);
    if (conn->socket.fd >= 0) {
        kolo_waker_del_fd(&conn->state->ctx->waker, conn->socket.fd);
        kolo_socket_close(&conn->socket);
    }
    kolo_net_state_leave(conn);
    if (conn->slots) munmap(conn->slots, conn->slots_bytes);
    free(conn->head);
    free(conn);
}

static kolo_status_t conn_new(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, kolo_rx_t *rx, kolo_wire_card_t *card,
                              kolo_net_conn_t **result)
{
    const kolo_conn_spec_t *spec = tx ? &tx->spec : &rx->spec;
    int peer = tx ? spec->reader : spec->writer;
    KOLO_TRY(check_spec(spec));
    kolo_net_conn_t *conn = calloc(1, sizeof *conn);
    if (!conn) return kolo_fail(KOLO_ERR_NO_MEMORY, "net: no memory for a connection with rank %d", peer);
    *conn = (kolo_net_conn_t){.tx = tx, .rx = rx, .peer = peer, .socket = {.fd = -1}};
    conn->bell = (kolo_bell_t){.asleep = NULL, .event_fd = -1};
    conn->handed = conn->arrived = conn->shown = conn->freed = conn->invited = spec->start;
    kolo_status_t status = kolo_random(&conn->nonce, sizeof conn->nonce);
    if (status == KOLO_OK) status = kolo_net_state_join(ctx, conn);
    if (status == KOLO_OK) status = make_slots(conn, spec);
    if (status == KOLO_OK) status = make_rails(conn, spec, card);
    if (status != KOLO_OK) {
        conn_fini(conn);
        return kolo_fail_prefix(status, "net: connection %d -> %d lane %u: ", spec->writer, spec->reader,
                                spec->lane);
    }
    *result = conn;
    return KOLO_OK;
}

static kolo_status_t rx_setup(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, kolo_wire_card_t *card)
{
    kolo_net_conn_t *conn;
    KOLO_TRY(conn_new(ctx, NULL, rx, card, &conn));
    rx->priv = conn;
    rx->end.slots = conn->slots;
    rx->end.stride = stride_of(&rx->spec);
    rx->end.head = conn->head;
    rx->bell = conn->bell;
    if (!conn->places) rx->caps &= ~((uint32_t)KOLO_CAP_POST_FROM | KOLO_CAP_AHEAD);
    return KOLO_OK;
}

static kolo_status_t tx_setup(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, kolo_wire_card_t *card)
{
    kolo_net_conn_t *conn;
    KOLO_TRY(conn_new(ctx, tx, NULL, card, &conn));
    tx->priv = conn;
    tx->end.slots = conn->slots;
    tx->end.stride = stride_of(&tx->spec);
    tx->end.heads = conn->head;
    tx->sent = &conn->head->consumed;
    tx->bells = &conn->bell;
    return KOLO_OK;
}

static void tx_close(kolo_tx_t *tx)
{
    if (tx->priv) kolo_net_conn_close(tx->priv);
}
static void rx_close(kolo_rx_t *rx)
{
    if (rx->priv) kolo_net_conn_close(rx->priv);
}
static void tx_fini(kolo_tx_t *tx)
{
    conn_fini(tx->priv);
    tx->priv = NULL;
}
static void rx_fini(kolo_rx_t *rx)
{
    conn_fini(rx->priv);
    rx->priv = NULL;
}

/* Returns how much memory the connection has, all of it locked from the start. */
static size_t conn_memory(const kolo_net_conn_t *conn)
{
    return conn ? sizeof *conn + sizeof *conn->head + conn->slots_bytes : 0;
}
static size_t tx_memory(const kolo_tx_t *tx)
{
    return conn_memory(tx->priv);
}
static size_t rx_memory(const kolo_rx_t *rx)
{
    return conn_memory(rx->priv);
}

static bool disabled;
kolo_net_options_t kolo_net_options = {.nics = 1, .queue_pairs = 1};
static const kolo_param_t rows[] = {
    {"KOLO_NET_DISABLE", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false, "1: no network cards between ranks, but tcp",
     &disabled},
    {"KOLO_NET_NICS", KOLO_PARAM_INT, "2", 1, KOLO_NET_MAX_RAILS, NULL, false,
     "network cards that one connection uses at most: one that fails is left out as long as another works",
     &kolo_net_options.nics},
    {"KOLO_NET_QPS", KOLO_PARAM_INT, "1", 1, KOLO_NET_MAX_RAILS, NULL, false,
     "queue pairs that one connection has on each of its network cards (4 on all of them at most)",
     &kolo_net_options.queue_pairs},
    {"KOLO_NET_LAZY", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false,
     "1: the writer of a connection gets ready when it has something to send, and says so; the reader offers "
     "nothing before",
     &kolo_net_options.lazy},
};
static const kolo_param_table_t params = {"net", rows, KOLO_COUNTOF(rows), NULL};

const kolo_wire_ops_t kolo_wire_net = {
    .name = "net",
    .version = 4,
    .what = "hosts with network cards: RDMA by verbs, plug-ins, several interfaces by sockets",
    .params = &params,
    .caps = KOLO_CAP_STEP | KOLO_CAP_POST_FROM | KOLO_CAP_AHEAD,
    .can_connect = can_connect,
    .fill_card = fill_card,
    .may_copy = kolo_wire_no_copies,
    .rx_setup = rx_setup,
    .tx_setup = tx_setup,
    .tx_connect = kolo_net_tx_connect,
    .rx_connect = kolo_net_rx_connect,
    .rx_can_connect = kolo_net_rx_can_connect,
    .tx_check = kolo_net_tx_check,
    .rx_check = kolo_net_rx_check,
    .ref_make = kolo_wire_no_ref_make,
    .ref_start = kolo_wire_no_ref_start,
    .ref_done = kolo_wire_no_ref_done,
    .tx_post_from = kolo_net_tx_post_from,
    .rx_expect = kolo_net_rx_expect,
    .rx_unexpect = kolo_net_rx_unexpect,
    .tx_close = tx_close,
    .rx_close = rx_close,
    .tx_fini = tx_fini,
    .rx_fini = rx_fini,
    .tx_memory = tx_memory,
    .rx_memory = rx_memory,
};
