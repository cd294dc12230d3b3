/* SPDX-License-Identifier: Apache-2.0
 *
 * A lazy writer (KOLO_NET_LAZY): both ends settle before it can be reached; nothing is offered to it until it has
 * said that it is ready, however late that is. Where no provider has a device it says so and is skipped; tests/vm
 * has some.
 */
#include "wire/conformance.h"
#include "wire/net/conn.h"

#include <string.h>

#define LOOKS   300 /* of a reader at a writer that is not ready */
#define WAIT_MS 30000

static const kolo_conn_spec_t spec = {
    .kind = KOLO_CONN_PAIR, .proto = KOLO_PROTO_SIMPLE, .writer = 0, .reader = 1, .depth = 4, .slot_bytes = 1024};

static int write_late(kolo_kit_t *kit)
{
    kolo_tx_t tx = {0};
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, NULL) == KOLO_OK);
    kolo_net_conn_t *conn = tx.priv;
    for (int i = 0; i < LOOKS; i++) KIT_CHECK(kolo_net_conn_check(conn) == KOLO_OK); /* nothing to send */
    KIT_CHECK(conn->ready == !kolo_net_options.lazy);
    KIT_CHECK(conn->rails[0].state == (kolo_net_options.lazy ? KOLO_NET_RAIL_UNUSED : KOLO_NET_RAIL_UP));
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK); /* until the reader has looked in vain */
    for (uint64_t n = 0; n < 8; n++) {
        KIT_CHECK(kolo_kit_wait_tx(kit, &tx, WAIT_MS) == KOLO_OK);
        memset(kolo_tx_payload(&tx), (int)n + 1, 1000);
        kolo_tx_post(&tx, 1000, 0, 7, n);
    }
    KIT_CHECK(kolo_kit_wait_released(kit, &tx, WAIT_MS) == KOLO_OK);
    KIT_CHECK(conn->ready && conn->rails[0].state == KOLO_NET_RAIL_UP);
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    kolo_tx_close(&tx);
    kolo_tx_fini(&tx);
    return 0;
}

static int read_early(kolo_kit_t *kit)
{
    kolo_rx_t rx = {0};
    KIT_CHECK(kolo_kit_connect(kit, &spec, NULL, &rx) == KOLO_OK);
    const kolo_net_conn_t *conn = rx.priv;
    for (int i = 0; i < LOOKS; i++) KIT_CHECK(kolo_net_rx_check(&rx) == KOLO_OK);
    KIT_CHECK(conn->handed - spec.start == (kolo_net_options.lazy ? 0 : spec.depth)); /* offers */
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    for (uint64_t n = 0; n < 8; n++) {
        KIT_CHECK(kolo_kit_wait_rx(kit, &rx, WAIT_MS) == KOLO_OK);
        const kolo_slot_header_t *h = kolo_rx_header(&rx);
        KIT_CHECK(h->bytes == 1000 && h->operation == n && ((const char *)(h + 1))[999] == (char)(n + 1));
        kolo_rx_release(&rx);
    }
    KIT_CHECK(conn->ready);
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    kolo_rx_close(&rx);
    kolo_rx_fini(&rx);
    return 0;
}

static int run(kolo_kit_t *kit)
{
    return kit->rank == 0 ? write_late(kit) : read_early(kit);
}

int main(void)
{
    const char *why = "";
    bool demanded = false;
    if (kolo_conformance_force(&kolo_wire_net) != KOLO_OK || !kolo_net_provider(&why, &demanded)) {
        fprintf(stderr, "skipped: no network card that the net wire can use: %s (make test-vm has some)\n", why);
        return 77;
    }
    int failed = 0;
    for (int lazy = 0; lazy < 2; lazy++) {
        const kolo_kit_job_t job = {
            .name = lazy ? "lazy" : "at once", .nranks = 2, .limit_s = 30, .run = run, .dies = -1};
        kolo_net_options.lazy = lazy;
        int bad = kolo_kit_run(&job);
        printf("%s a writer that gets ready %s\n", bad ? "FAILED" : "ok    ", job.name);
        failed += bad != 0;
    }
    return failed;
}
