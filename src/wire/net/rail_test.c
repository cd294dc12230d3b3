/* SPDX-License-Identifier: Apache-2.0
 *
 * Two rails of one connection, one of which is lost at an awkward moment: before a lazy writer is ready, or while
 * an offer that came back is made anew. By the first provider that has a device (verbs in tests/vm), else by
 * sockets.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "wire/net/test_ranks.h"

#include <string.h>

#define WAIT_MS 30000
#define SLOTS   12u /* several queues full */

static const kolo_conn_spec_t spec = {
    .kind = KOLO_CONN_PAIR, .proto = KOLO_PROTO_SIMPLE, .writer = 0, .reader = 1, .depth = 4, .slot_bytes = 1024};

/* Looks after the connection until rail 0 is in that state, or in any other. */
static int until_rail(kolo_kit_t *kit, kolo_net_conn_t *conn, kolo_net_rail_state_t state, bool is)
{
    for (uint64_t end = kolo_deadline_ms(WAIT_MS); (conn->rails[0].state == state) != is; sched_yield()) {
        KIT_CHECK(kolo_now_ns() < end);
        KIT_CHECK(kolo_net_conn_check(conn) == KOLO_OK);
    }
    return 0;
}

static int write_slots(kolo_kit_t *kit, kolo_tx_t *tx, uint64_t from, uint64_t to)
{
    for (uint64_t n = from; n < to; n++) {
        KIT_CHECK(kolo_kit_wait_tx(kit, tx, WAIT_MS) == KOLO_OK);
        memset(kolo_tx_payload(tx), (int)n + 1, 1000);
        kolo_tx_post(tx, 1000, 0, 7, n);
    }
    return 0;
}

static int read_slots(kolo_kit_t *kit, kolo_rx_t *rx, uint64_t from, uint64_t to)
{
    for (uint64_t n = from; n < to; n++) {
        KIT_CHECK(kolo_kit_wait_rx(kit, rx, WAIT_MS) == KOLO_OK);
        const kolo_slot_header_t *h = kolo_rx_header(rx);
        KIT_CHECK(h->bytes == 1000 && h->operation == n && ((const char *)(h + 1))[999] == (char)(n + 1));
        kolo_rx_release(rx);
    }
    return 0;
}

static _Atomic int up; /* ranks, which are threads, whose rail 0 is up */

/* Rails are made anew, for which both look after the connection: a writer's may be up since it has not heard yet.
 */
static int until_both_are_up(kolo_kit_t *kit, kolo_net_conn_t *conn)
{
    KIT_TRY(until_rail(kit, conn, KOLO_NET_RAIL_UP, true));
    atomic_fetch_add(&up, 1);
    for (uint64_t end = kolo_deadline_ms(WAIT_MS); atomic_load(&up) < 2; sched_yield()) {
        KIT_CHECK(kolo_now_ns() < end);
        KIT_CHECK(kolo_net_conn_check(conn) == KOLO_OK);
    }
    return 0;
}

static int end_writer(kolo_kit_t *kit, kolo_tx_t *tx)
{
    KIT_CHECK(kolo_kit_wait_released(kit, tx, WAIT_MS) == KOLO_OK);
    KIT_TRY(until_both_are_up(kit, tx->priv));
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    kolo_tx_close(tx);
    kolo_tx_fini(tx);
    return 0;
}

static int end_reader(kolo_kit_t *kit, kolo_rx_t *rx)
{
    KIT_TRY(until_both_are_up(kit, rx->priv));
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    kolo_rx_close(rx);
    kolo_rx_fini(rx);
    return 0;
}

/* ---- before a lazy writer is ready ---- */

static int write_on_the_other(kolo_kit_t *kit)
{
    const bool *comes_back_first = kit->job->arg;
    kolo_tx_t tx = {0};
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, NULL) == KOLO_OK);
    kolo_net_conn_t *conn = tx.priv;
    KIT_CHECK(conn->nrails == 2 && !conn->ready);
    KIT_TRY(until_rail(kit, conn, KOLO_NET_RAIL_UNUSED, false));
    if (*comes_back_first) KIT_TRY(until_rail(kit, conn, KOLO_NET_RAIL_UP, true));
    KIT_CHECK(!conn->ready);
    KIT_TRY(write_slots(kit, &tx, 0, SLOTS));
    KIT_CHECK(conn->ready && conn->rails[1].state == KOLO_NET_RAIL_UP);
    return end_writer(kit, &tx);
}

static int lose_and_read(kolo_kit_t *kit)
{
    kolo_rx_t rx = {0};
    KIT_CHECK(kolo_kit_connect(kit, &spec, NULL, &rx) == KOLO_OK);
    kolo_net_conn_t *conn = rx.priv;
    KIT_CHECK(conn->nrails == 2 && !conn->ready);
    KIT_CHECK(kolo_net_rail_lost(conn, 0, kolo_fail(KOLO_ERR_SYSTEM, "a test takes it away")) == KOLO_OK);
    KIT_CHECK(conn->rails[0].state == KOLO_NET_RAIL_GONE && conn->status == KOLO_OK);
    KIT_TRY(read_slots(kit, &rx, 0, SLOTS));
    return end_reader(kit, &rx);
}

static int early_loss(kolo_kit_t *kit)
{
    return kit->rank == 0 ? write_on_the_other(kit) : lose_and_read(kit);
}

/* ---- an offer that came back ---- */

/* Slot 0 is posted and its offer lies behind that of slot 1, as it may after a loss: slot 1's is given back. */
static int give_back(kolo_kit_t *kit)
{
    kolo_tx_t tx = {0};
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, NULL) == KOLO_OK);
    kolo_net_conn_t *conn = tx.priv;
    KIT_CHECK(conn->nrails == 2);
    conn->reordered = true;
    KIT_TRY(write_slots(kit, &tx, 0, 1));
    KIT_CHECK(kolo_kit_wait_released(kit, &tx, WAIT_MS) == KOLO_OK);
    KIT_CHECK(conn->rails[0].requests >= 2 && conn->rails[0].passed[0]);
    KIT_TRY(write_slots(kit, &tx, 1, SLOTS));
    return end_writer(kit, &tx);
}

static int lose_where_it_is_offered(kolo_kit_t *kit)
{
    static const struct {
        uint32_t rail;
        uint64_t slot;
    } offers[] = {{0, 1}, {0, 0}, {0, 2}, {1, 3}};
    kolo_rx_t rx = {0};
    KIT_CHECK(kolo_kit_connect(kit, &spec, NULL, &rx) == KOLO_OK);
    kolo_net_conn_t *conn = rx.priv;
    KIT_CHECK(conn->nrails == 2 && conn->handed == 0); /* the writer is lazy: nothing is offered yet */
    for (uint64_t end = kolo_deadline_ms(WAIT_MS); !conn->ready; sched_yield()) {
        KIT_CHECK(kolo_now_ns() < end && conn->status == KOLO_OK);
        kolo_net_conn_listen(conn);
    }
    for (size_t i = 0; i < KOLO_COUNTOF(offers); i++)
        KIT_CHECK(kolo_net_offer(conn, offers[i].rail, offers[i].slot) == KOLO_OK);
    conn->handed = KOLO_COUNTOF(offers);
    KIT_CHECK(kolo_fail_points_arm("wire.net.offer:1:error") == KOLO_OK);
    for (uint64_t end = kolo_deadline_ms(WAIT_MS); conn->rails[1].state == KOLO_NET_RAIL_UP; sched_yield()) {
        KIT_CHECK(kolo_now_ns() < end);
        KIT_CHECK(kolo_net_conn_check(conn) == KOLO_OK);
        KIT_CHECK(conn->rails[0].state == KOLO_NET_RAIL_UP); /* what came was fine */
    }
    KIT_CHECK(kolo_fail_points_arm(NULL) == KOLO_OK);
    KIT_TRY(read_slots(kit, &rx, 0, SLOTS));
    return end_reader(kit, &rx);
}

static int loss_at_an_offer(kolo_kit_t *kit)
{
    return kit->rank == 0 ? give_back(kit) : lose_where_it_is_offered(kit);
}

/* ---- an offer of a lost rail, while the reader's word that it is lost is under way ---- */

static _Atomic bool stale_is_there;

static int write_past_a_stale_offer(kolo_kit_t *kit)
{
    kolo_tx_t tx = {0};
    uint64_t tag = 77, end = kolo_deadline_ms(WAIT_MS);
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, NULL) == KOLO_OK);
    kolo_net_conn_t *conn = tx.priv;
    KIT_TRY(write_slots(kit, &tx, 0, 1));
    KIT_CHECK(kolo_kit_wait_released(kit, &tx, WAIT_MS) == KOLO_OK);
    for (; !conn->ops->offered(conn->rails[0].end, &tag); sched_yield()) {
        KIT_CHECK(kolo_now_ns() < end);
        KIT_CHECK(kolo_net_conn_check(conn) == KOLO_OK);
    }
    KIT_CHECK(tag == 0);
    atomic_store(&stale_is_there, true);
    KIT_TRY(write_slots(kit, &tx, 1, SLOTS));
    KIT_TRY(until_rail(kit, conn, KOLO_NET_RAIL_UP, false));
    return end_writer(kit, &tx);
}

static int leave_a_stale_offer(kolo_kit_t *kit)
{
    kolo_net_done_t done;
    kolo_rx_t rx = {0};
    int n;
    KIT_CHECK(kolo_kit_connect(kit, &spec, NULL, &rx) == KOLO_OK);
    kolo_net_conn_t *conn = rx.priv;
    kolo_net_rail_t *rail = &conn->rails[0];
    KIT_CHECK(!conn->ready);
    rail->state = KOLO_NET_RAIL_GONE; /* and nobody hears of it yet */
    rail->again_ns = UINT64_MAX;
    KIT_TRY(read_slots(kit, &rx, 0, 1));
    KIT_CHECK(conn->ops->irecv(rail->end, conn->slots, kolo_net_message_bytes(spec.slot_bytes), rail->region, 0,
                               0) == KOLO_OK);
    rail->slots[rail->requests++] = 0;
    for (uint64_t end = kolo_deadline_ms(WAIT_MS); !atomic_load(&stale_is_there); sched_yield()) {
        KIT_CHECK(kolo_now_ns() < end);
        KIT_CHECK(conn->ops->push(rail->end) == KOLO_OK && conn->ops->test(rail->end, &done, 1, &n) == KOLO_OK &&
                  n == 0);
    }
    KIT_TRY(read_slots(kit, &rx, 1, SLOTS));
    rail->state = KOLO_NET_RAIL_UP;
    KIT_CHECK(kolo_net_rail_lost(conn, 0, kolo_fail(KOLO_ERR_SYSTEM, "a test takes it away")) == KOLO_OK);
    return end_reader(kit, &rx);
}

static int stale_offer(kolo_kit_t *kit)
{
    return kit->rank == 0 ? write_past_a_stale_offer(kit) : leave_a_stale_offer(kit);
}

/* ---- a rail that has no room for the offers of a lost one ---- */

static kolo_net_ops_t full; /* the provider's, but for irecv: it takes nothing for a while */
static int refusals;
static kolo_status_t (*take)(kolo_net_end_t *end, void *data, uint32_t bytes, const kolo_net_region_t *region,
                             uint64_t cookie, uint64_t tag);

static kolo_status_t refuse(kolo_net_end_t *end, void *data, uint32_t bytes, const kolo_net_region_t *region,
                            uint64_t cookie, uint64_t tag)
{
    return refusals-- > 0 ? KOLO_IN_PROGRESS : take(end, data, bytes, region, cookie, tag);
}

static int lose_into_a_full_one(kolo_kit_t *kit)
{
    kolo_rx_t rx = {0};
    KIT_CHECK(kolo_kit_connect(kit, &spec, NULL, &rx) == KOLO_OK);
    kolo_net_conn_t *conn = rx.priv;
    KIT_CHECK(conn->nrails == 2 && conn->handed == 0);
    for (uint64_t end = kolo_deadline_ms(WAIT_MS); !conn->ready; sched_yield()) {
        KIT_CHECK(kolo_now_ns() < end && conn->status == KOLO_OK);
        kolo_net_conn_listen(conn);
    }
    for (; conn->handed < spec.depth; conn->handed++) KIT_CHECK(kolo_net_offer(conn, 0, conn->handed) == KOLO_OK);
    full = *conn->ops;
    take = full.irecv;
    full.irecv = refuse;
    conn->ops = &full;
    refusals = 3;
    KIT_CHECK(kolo_net_rail_lost(conn, 0, kolo_fail(KOLO_ERR_SYSTEM, "a test takes it away")) == KOLO_OK);
    KIT_CHECK(conn->status == KOLO_OK && conn->rails[1].state == KOLO_NET_RAIL_UP && refusals < 3);
    KIT_TRY(read_slots(kit, &rx, 0, SLOTS));
    KIT_CHECK(refusals < 0);
    return end_reader(kit, &rx);
}

static int write_all(kolo_kit_t *kit)
{
    kolo_tx_t tx = {0};
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, NULL) == KOLO_OK);
    KIT_TRY(write_slots(kit, &tx, 0, SLOTS));
    return end_writer(kit, &tx);
}

static int loss_without_room(kolo_kit_t *kit)
{
    return kit->rank == 0 ? write_all(kit) : lose_into_a_full_one(kit);
}

/* ---- a rail that is lost behind the last slot ---- */

static _Atomic bool all_are_released, word_is_under_way;

static int hear_late_of_a_loss(kolo_kit_t *kit)
{
    kolo_tx_t tx = {0};
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, NULL) == KOLO_OK);
    kolo_net_conn_t *conn = tx.priv;
    KIT_TRY(write_slots(kit, &tx, 0, SLOTS));
    KIT_CHECK(kolo_kit_wait_released(kit, &tx, WAIT_MS) == KOLO_OK);
    atomic_store(&all_are_released, true);
    for (uint64_t end = kolo_deadline_ms(WAIT_MS); !atomic_load(&word_is_under_way); sched_yield())
        KIT_CHECK(kolo_now_ns() < end);
    KIT_CHECK(conn->rails[0].state == KOLO_NET_RAIL_UP); /* for all that this end knows */
    return end_writer(kit, &tx);
}

static int lose_behind_the_last(kolo_kit_t *kit)
{
    kolo_rx_t rx = {0};
    KIT_CHECK(kolo_kit_connect(kit, &spec, NULL, &rx) == KOLO_OK);
    kolo_net_conn_t *conn = rx.priv;
    KIT_TRY(read_slots(kit, &rx, 0, SLOTS));
    for (uint64_t end = kolo_deadline_ms(WAIT_MS); !atomic_load(&all_are_released); sched_yield()) {
        KIT_CHECK(kolo_now_ns() < end);
        KIT_CHECK(kolo_net_conn_check(conn) == KOLO_OK);
    }
    KIT_CHECK(kolo_net_rail_lost(conn, 0, kolo_fail(KOLO_ERR_SYSTEM, "a test takes it away")) == KOLO_OK);
    KIT_CHECK(conn->rails[0].state == KOLO_NET_RAIL_GONE);
    atomic_store(&word_is_under_way, true);
    return end_reader(kit, &rx);
}

static int late_loss(kolo_kit_t *kit)
{
    return kit->rank == 0 ? hear_late_of_a_loss(kit) : lose_behind_the_last(kit);
}

/* ---- */

static bool fails(const char *name, int (*run)(kolo_kit_t *kit), bool arg)
{
    atomic_store(&up, 0);
    return kolo_net_test_fails(name, run, &arg);
}

int main(void)
{
    if (!kolo_net_test_begin()) return 1;
    kolo_net_options.nics = 1;
    kolo_net_options.queue_pairs = 2;
    kolo_net_options.lazy = true;
    int failed = fails("a rail is lost before a lazy writer is ready", early_loss, false);
    failed += fails("and comes back before that, too", early_loss, true);
    failed += fails("what cannot be offered again is the fault of where it was to go", loss_at_an_offer, false);
    failed += fails("an offer that a lost rail has left is no mistake, however old", stale_offer, false);
    failed += fails("offers of a lost rail wait for room on the other", loss_without_room, false);
    failed += fails("a rail comes back of whose loss the writer hears when it has nothing to do", late_loss, false);
    return failed;
}
