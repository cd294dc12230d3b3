/* SPDX-License-Identifier: Apache-2.0
 *
 * Two ranks that answer each other: what frees a slot travels with the answer, where the provider can do that. And
 * what a peer offers in that way without having anything to offer. By the first provider that has a device (verbs
 * in tests/vm), else by sockets.
 */
#include "wire/net/test_ranks.h"

#include <string.h>

#define WAIT_MS 30000
#define TURNS   200u

static const kolo_conn_spec_t spec = {.kind = KOLO_CONN_PAIR,
                                      .proto = KOLO_PROTO_SIMPLE,
                                      .writer = 0,
                                      .reader = 1,
                                      .depth = 4,
                                      .slot_bytes = 1024,
                                      .start = UINT64_MAX - 5};

static uint32_t length(uint64_t n)
{
    return (uint32_t)(n * 37 % 1000);
}

static int write_slot(kolo_kit_t *kit, kolo_tx_t *tx, uint64_t n)
{
    KIT_CHECK(kolo_kit_wait_tx(kit, tx, WAIT_MS) == KOLO_OK);
    memset(kolo_tx_payload(tx), (int)(n + (uint64_t)kit->rank), length(n));
    kolo_tx_post(tx, length(n), n % 2 ? KOLO_SLOT_REF : 0, 7, n);
    return 0;
}

static int read_slot(kolo_kit_t *kit, kolo_rx_t *rx, uint64_t n)
{
    KIT_CHECK(kolo_kit_wait_rx(kit, rx, WAIT_MS) == KOLO_OK);
    const kolo_slot_header_t *h = kolo_rx_header(rx);
    const char *payload = kolo_rx_payload(rx), value = (char)(n + (uint64_t)(1 - kit->rank));
    KIT_CHECK(h->bytes == length(n) && h->operation == n && h->flags == (n % 2 ? KOLO_SLOT_REF : 0));
    for (uint32_t i = 0; i < h->bytes; i++) KIT_CHECK(payload[i] == value);
    kolo_rx_release(rx);
    return 0;
}

static int end_both(kolo_kit_t *kit, kolo_tx_t *tx, kolo_rx_t *rx)
{
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    kolo_tx_close(tx);
    kolo_rx_close(rx);
    kolo_tx_fini(tx);
    kolo_rx_fini(rx);
    return 0;
}

/* One to four messages to and as many fro; a queue full of them at once needs offers of its own. */
static int take_turns(kolo_kit_t *kit)
{
    kolo_tx_t tx = {0};
    kolo_rx_t rx = {0};
    uint64_t out = 0, in = 0;
    KIT_CHECK(kolo_kit_connect_both(kit, spec, &tx, &rx) == KOLO_OK);
    const kolo_net_conn_t *conn = rx.priv;
    KIT_CHECK(conn->mate == tx.priv && conn->mate->mate == conn);
    for (uint64_t turn = 0; turn < TURNS; turn++) {
        uint64_t many = turn < TURNS / 2 ? 1 : 1 + turn % 4;
        for (uint64_t i = 0; kit->rank == 0 && i < many; i++) KIT_TRY(write_slot(kit, &tx, out++));
        for (uint64_t i = 0; i < many; i++) KIT_TRY(read_slot(kit, &rx, in++));
        for (uint64_t i = 0; kit->rank == 1 && i < many; i++) KIT_TRY(write_slot(kit, &tx, out++));
        if (turn != TURNS / 2 - 1 || !conn->ops->take_offers) continue;
        kolo_net_counts_t n;
        conn->ops->counts(conn->rails[0].end, &n);
        KIT_CHECK(n.requests >= in && n.requests < in + 20); /* a receive for each, and hardly an offer */
    }
    KIT_CHECK(kolo_kit_wait_released(kit, &tx, WAIT_MS) == KOLO_OK);
    return end_both(kit, &tx, &rx);
}

/* The flags of a slot are nobody's business but the executor's: here they are what a mate would offer. */
static int offer_nonsense(kolo_kit_t *kit)
{
    const uint32_t *flags = kit->job->arg;
    kolo_tx_t tx = {0};
    kolo_rx_t rx = {0};
    KIT_CHECK(kolo_kit_connect_both(kit, spec, &tx, &rx) == KOLO_OK);
    if (kit->rank == 0) {
        KIT_CHECK(kolo_kit_wait_tx(kit, &tx, WAIT_MS) == KOLO_OK);
        kolo_tx_post(&tx, 8, *flags, 7, 0);
        KIT_CHECK(kolo_kit_wait_released(kit, &tx, WAIT_MS) == KOLO_OK);
    } else {
        KIT_CHECK(kolo_kit_wait_rx(kit, &rx, WAIT_MS) == KOLO_ERR_PROTOCOL);
        KIT_CHECK(strstr(kolo_error_text(), "slots the other way") != NULL);
    }
    return end_both(kit, &tx, &rx);
}

static bool fails(const char *name, int (*run)(kolo_kit_t *kit), uint32_t flags)
{
    return kolo_net_test_fails(name, run, &flags);
}

int main(void)
{
    if (!kolo_net_test_begin()) return 1;
    kolo_net_options.nics = kolo_net_options.queue_pairs = 1;
    int failed = fails("messages in turns", take_turns, 0);
    failed += fails("one slot that was never offered", offer_nonsense, 1u << 4 | 5u << 12);
    failed += fails("slots whose first offers come from their reader", offer_nonsense, 4u << 4 | 4u << 12);
    failed += fails("more slots than a queue has", offer_nonsense, 255u << 4 | 8u << 12);
    failed += fails("slots from long ago", offer_nonsense, 1u << 4 | 0xfff0u << 12);
    return failed;
}
