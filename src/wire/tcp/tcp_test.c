/* SPDX-License-Identifier: Apache-2.0
 *
 * The tcp wire between two contexts of one process: order, bounds, payload outside the slots, many connections.
 */
#include "wire/tcp/tcp_testing.h"

#include <stdio.h>

#define PUMPS 2000000 /* before a test gives up */

static void pump_both(test_pair_t *p)
{
    assert_int_equal(kolo_wire_step(&p->w.ctx), KOLO_OK);
    assert_int_equal(kolo_wire_step(&p->r.ctx), KOLO_OK);
}

static uint32_t test_length(uint64_t n, uint32_t slot_bytes)
{
    switch (n % 5) {
    case 0:
        return 0;
    case 1:
        return slot_bytes;
    case 2:
        return 1;
    default:
        return (uint32_t)(n * 2654435761u) % (slot_bytes + 1);
    }
}

static void run_in_order(uint32_t depth, uint32_t slot_bytes, uint64_t start, int nsocks, uint64_t count)
{
    test_pair_t p;
    kolo_tx_t tx;
    kolo_rx_t rx;
    int a[16], b[16];
    kolo_conn_spec_t spec = test_spec(depth, slot_bytes, start);
    pair_init(&p);
    make_sockets(a, b, nsocks);
    tx_open(&p.w, &tx, &spec, a, nsocks);
    rx_open(&p.r, &rx, &spec, b, nsocks);
    uint64_t sent = 0, got = 0;
    for (int i = 0; got < count; i++) {
        assert_true(i < PUMPS);
        while (sent < count && kolo_tx_ready(&tx)) {
            uint32_t n = test_length(sent, slot_bytes);
            test_put(kolo_tx_payload(&tx), sent, n);
            kolo_tx_post(&tx, n, 0, sent ^ 77, sent + 5);
            sent++;
        }
        pump_both(&p);
        while (kolo_rx_ready(&rx)) {
            const kolo_slot_header_t *h = kolo_rx_header(&rx);
            assert_int_equal(h->bytes, test_length(got, slot_bytes));
            assert_int_equal(h->signature, got ^ 77);
            assert_int_equal(h->operation, got + 5);
            test_verify(kolo_rx_payload(&rx), got, h->bytes);
            kolo_rx_release(&rx);
            got++;
        }
    }
    assert_true(kolo_tx_sent(&tx));
    assert_true(tx.end.next == start + count);
    kolo_wire_tcp.tx_fini(&tx);
    kolo_wire_tcp.rx_fini(&rx);
    pair_fini(&p);
}

static void slots_arrive_in_order_and_whole(void **state)
{
    (void)state;
    run_in_order(8, 256, 0, 1, 3000);
    run_in_order(1, 64, 0, 1, 300);
    run_in_order(4, 65536, 0, 1, 300);
    run_in_order(64, 1024, 0, 1, 3000);
}
static void slots_go_round_several_sockets(void **state)
{
    (void)state;
    run_in_order(8, 4096, 3, 2, 1000);
    run_in_order(8, 65536, 0, 4, 300);
    run_in_order(4, 512, 1, 16, 1000);
}
static void slot_numbers_wrap_around(void **state)
{
    (void)state;
    for (uint64_t below = 0; below < 12; below++) {
        run_in_order(8, 256, UINT64_MAX - below, 1, 40);
        run_in_order(4, 256, UINT64_MAX - below, 4, 40);
    }
}

static void a_slow_reader_bounds_the_writer(void **state)
{
    (void)state;
    test_pair_t p;
    kolo_tx_t tx;
    kolo_rx_t rx;
    int a, b;
    kolo_conn_spec_t spec = test_spec(4, 65536, 0);
    pair_init(&p);
    kolo_tcp_param_sndbuf = kolo_tcp_param_rcvbuf = 65536;
    make_sockets(&a, &b, 1);
    tx_open(&p.w, &tx, &spec, &a, 1);
    rx_open(&p.r, &rx, &spec, &b, 1);
    uint64_t sent = 0;
    for (int i = 0; i < 20000; i++) {
        if (kolo_tx_ready(&tx)) {
            test_put(kolo_tx_payload(&tx), sent++, 65536);
            kolo_tx_post(&tx, 65536, 0, 1, 1);
        }
        pump_both(&p);
    }
    /* Slots at both ends and what the kernel holds: 2 x 128 KB of buffers and what is between. */
    assert_true(sent >= 8 && sent < 8 + 16);
    assert_false(kolo_tx_sent(&tx));
    for (uint64_t got = 0; got < sent; got++) {
        for (int i = 0; !kolo_rx_ready(&rx); i++) {
            assert_true(i < PUMPS);
            pump_both(&p);
        }
        test_verify(kolo_rx_payload(&rx), got, 65536);
        kolo_rx_release(&rx);
    }
    assert_true(kolo_tx_sent(&tx));
    kolo_wire_tcp.tx_fini(&tx);
    kolo_wire_tcp.rx_fini(&rx);
    pair_fini(&p);
}

/* Sends `count` messages of `bytes` from outside the slots; the reader expects them at its own address. Returns how
 * many came there directly. */
static uint64_t run_direct(uint32_t bytes, int nsocks, uint64_t count)
{
    test_pair_t p;
    kolo_tx_t tx;
    kolo_rx_t rx;
    int a[4], b[4];
    uint64_t sent = 0, direct = 0;
    kolo_conn_spec_t spec = test_spec(4, KOLO_ROUND_UP(bytes + 1, 64), 0);
    char *from = malloc(count * bytes), *to = malloc(bytes);
    assert_true(from && to);
    pair_init(&p);
    make_sockets(a, b, nsocks);
    tx_open(&p.w, &tx, &spec, a, nsocks);
    rx_open(&p.r, &rx, &spec, b, nsocks);
    for (uint64_t got = 0; got < count; got++) {
        memset(to, 0, bytes);
        kolo_wire_tcp.rx_expect(&rx, 0, to, bytes);
        for (int i = 0; !kolo_rx_ready(&rx); i++) {
            assert_true(i < PUMPS);
            while (sent < count && kolo_tx_ready(&tx)) {
                test_put(from + sent * bytes, sent, bytes);
                assert_int_equal(kolo_wire_tcp.tx_post_from(&tx, from + sent * bytes, bytes, 1, 1), KOLO_OK);
                sent++;
            }
            pump_both(&p);
        }
        direct += rx.direct == to;
        assert_true(rx.direct == to || !rx.direct);
        test_verify(kolo_rx_payload(&rx), got, bytes);
        kolo_rx_release(&rx);
    }
    kolo_wire_tcp.tx_fini(&tx);
    kolo_wire_tcp.rx_fini(&rx);
    pair_fini(&p);
    free(from);
    free(to);
    return direct;
}

static void payload_goes_from_and_to_memory_outside_the_slots(void **state)
{
    (void)state;
    assert_int_equal(run_direct(262144, 1, 40), 40);
    assert_int_equal(run_direct(262144, 4, 40), 40);
    assert_true(run_direct(100, 1, 40) >= 1);
}

static void an_expectation_is_only_a_hint(void **state)
{
    (void)state;
    test_pair_t p;
    kolo_tx_t tx;
    kolo_rx_t rx;
    int a, b;
    static char to[32768];
    kolo_conn_spec_t spec = test_spec(4, 32768, 0);
    pair_init(&p);
    make_sockets(&a, &b, 1);
    tx_open(&p.w, &tx, &spec, &a, 1);
    rx_open(&p.r, &rx, &spec, &b, 1);
    for (uint64_t k = 0; k < 4; k++) {
        bool take_back_before = k == 1, take_back_after = k == 2, other_size = k == 3;
        kolo_wire_tcp.rx_expect(&rx, 0, to, other_size ? 77 : 32768);
        if (take_back_before) kolo_wire_tcp.rx_unexpect(&rx);
        test_put(kolo_tx_payload(&tx), k, 32768);
        kolo_tx_post(&tx, 32768, 0, 1, 1);
        for (int i = 0; !kolo_rx_ready(&rx); i++) {
            assert_true(i < PUMPS);
            pump_both(&p);
        }
        if (take_back_after) {
            assert_ptr_equal(rx.direct, to);
            kolo_wire_tcp.rx_unexpect(&rx);
            memset(to, 0, sizeof to);
        }
        assert_ptr_equal(rx.direct, k == 0 ? to : NULL);
        test_verify(kolo_rx_payload(&rx), k, 32768);
        kolo_rx_release(&rx);
    }
    kolo_wire_tcp.tx_fini(&tx);
    kolo_wire_tcp.rx_fini(&rx);
    pair_fini(&p);
}

/* Half a payload has come when the reader names an address for it, or takes it back. */
static void run_change_of_mind(bool withdraw)
{
    test_pair_t p;
    kolo_rx_t rx;
    int a, b;
    static char to[32768], frame[KOLO_TCP_FRAME_BYTES + 32768];
    kolo_conn_spec_t spec = test_spec(4, 32768, 0);
    kolo_tcp_frame_t f = {.magic = KOLO_TCP_FRAME_MAGIC, .bytes = 32768};
    pair_init(&p);
    make_sockets(&a, &b, 1);
    rx_open(&p.r, &rx, &spec, &b, 1);
    kolo_tcp_frame_encode((uint8_t *)frame, &f);
    test_put(frame + KOLO_TCP_FRAME_BYTES, 9, 32768);
    memset(to, 0, sizeof to);
    if (withdraw) kolo_wire_tcp.rx_expect(&rx, 0, to, 32768);
    assert_int_equal(send(a, frame, 20000, 0), 20000);
    for (int i = 0; i < 1000; i++) assert_int_equal(kolo_wire_step(&p.r.ctx), KOLO_OK);
    assert_int_equal(to[0], withdraw ? frame[KOLO_TCP_FRAME_BYTES] : 0);
    if (withdraw)
        kolo_wire_tcp.rx_unexpect(&rx);
    else
        kolo_wire_tcp.rx_expect(&rx, 0, to, 32768);
    if (withdraw) memset(to, 0, sizeof to);
    assert_int_equal(send(a, frame + 20000, sizeof frame - 20000, 0), sizeof frame - 20000);
    for (int i = 0; !kolo_rx_ready(&rx); i++) {
        assert_true(i < PUMPS);
        assert_int_equal(kolo_wire_step(&p.r.ctx), KOLO_OK);
    }
    assert_ptr_equal(rx.direct, withdraw ? NULL : to);
    test_verify(kolo_rx_payload(&rx), 9, 32768);
    if (withdraw) assert_int_equal(to[25000], 0);
    close(a);
    kolo_wire_tcp.rx_fini(&rx);
    pair_fini(&p);
}
static void an_expectation_is_withdrawn_in_the_middle_of_a_payload(void **state)
{
    (void)state;
    run_change_of_mind(true);
}
static void an_address_is_named_in_the_middle_of_a_payload(void **state)
{
    (void)state;
    run_change_of_mind(false);
}

static void sixty_four_connections_share_a_context(void **state)
{
    (void)state;
    enum { N = 64 };
    static kolo_tx_t tx[N];
    static kolo_rx_t rx[N];
    test_pair_t p;
    uint64_t sent[N] = {0}, got[N] = {0}, all = 0;
    pair_init(&p);
    int before = open_descriptors();
    for (int c = 0; c < N; c++) { /* half of them in each direction, so that each context has both kinds of ends */
        int a, b;
        kolo_conn_spec_t spec = test_spec(4, 2048, (uint64_t)c);
        spec.lane = (uint32_t)c;
        make_sockets(&a, &b, 1);
        tx_open(c % 2 ? &p.w : &p.r, &tx[c], &spec, &a, 1);
        rx_open(c % 2 ? &p.r : &p.w, &rx[c], &spec, &b, 1);
    }
    for (int i = 0; all < N * 200; i++) {
        assert_true(i < PUMPS);
        for (int c = 0; c < N; c++) {
            if (sent[c] < 200 && kolo_tx_ready(&tx[c])) {
                uint32_t n = test_length(sent[c], 2048);
                test_put(kolo_tx_payload(&tx[c]), sent[c] + (uint64_t)c, n);
                kolo_tx_post(&tx[c], n, 0, 0, 0);
                sent[c]++;
            }
            while (kolo_rx_ready(&rx[c])) {
                test_verify(kolo_rx_payload(&rx[c]), got[c] + (uint64_t)c, kolo_rx_header(&rx[c])->bytes);
                kolo_rx_release(&rx[c]);
                got[c]++;
                all++;
            }
        }
        pump_both(&p);
    }
    for (int c = 0; c < N; c++) { /* one by one: those that stay go on working */
        assert_int_equal(got[c], 200);
        kolo_wire_tcp.tx_fini(&tx[c]);
        kolo_wire_tcp.rx_fini(&rx[c]);
        pump_both(&p);
    }
    assert_int_equal(open_descriptors(), before);
    pair_fini(&p);
}

static void unused_slots_take_no_memory(void **state)
{
    (void)state;
    test_pair_t p;
    kolo_tx_t tx;
    int a, b;
    kolo_conn_spec_t spec = test_spec(64, 1 << 20, 0);
    pair_init(&p);
    make_sockets(&a, &b, 1);
    tx_open(&p.w, &tx, &spec, &a, 1);
    assert_true(kolo_wire_tcp.tx_memory(&tx) < 8192);
    kolo_tx_post(&tx, 8, 0, 0, 0);
    assert_true(kolo_wire_tcp.tx_memory(&tx) > 1 << 20);
    close(b);
    kolo_wire_tcp.tx_fini(&tx);
    pair_fini(&p);
}

static void kinds_it_cannot_carry_are_refused(void **state)
{
    (void)state;
    test_pair_t p;
    kolo_tx_t tx;
    kolo_rx_t rx;
    kolo_wire_card_t card;
    kolo_conn_spec_t spec = test_spec(4, 256, 0);
    pair_init(&p);
    spec.proto = KOLO_PROTO_LL;
    test_fill_tx(&tx, &spec);
    assert_int_equal(kolo_wire_tcp.tx_setup(&p.w.ctx, &tx, &card), KOLO_ERR_UNSUPPORTED);
    spec.proto = KOLO_PROTO_SIMPLE;
    spec.kind = KOLO_CONN_NODE;
    test_fill_rx(&rx, &spec);
    assert_int_equal(kolo_wire_tcp.rx_setup(&p.r.ctx, &rx, &card), KOLO_ERR_UNSUPPORTED);
    assert_false(kolo_wire_tcp.caps & KOLO_CAP_FANOUT);
    assert_true(kolo_wire_tcp.can_connect(&p.w.ctx, &p.w.cards[0], &p.w.cards[1]));
    p.w.cards[1].nwires = 0;
    assert_false(kolo_wire_tcp.can_connect(&p.w.ctx, &p.w.cards[0], &p.w.cards[1]));
    pair_fini(&p);
}

static void cards_are_checked(void **state)
{
    (void)state;
    kolo_wire_card_t card;
    kolo_tcp_card_t out;
    kolo_tcp_card_encode(&card, 4, 1234);
    assert_int_equal(kolo_tcp_card_decode(&card, 1, &out), KOLO_OK);
    assert_int_equal(out.sockets, 4);
    assert_int_equal(out.nonce, 1234);
    uint32_t bad[] = {0, 3, 32, 1u << 31};
    for (size_t i = 0; i < KOLO_COUNTOF(bad); i++) {
        kolo_tcp_card_encode(&card, bad[i], 1);
        assert_int_equal(kolo_tcp_card_decode(&card, 7, &out), KOLO_ERR_PROTOCOL);
        assert_non_null(strstr(kolo_error_text(), "rank 7"));
    }
    kolo_tcp_card_encode(&card, 4, 1);
    card.length--;
    assert_int_equal(kolo_tcp_card_decode(&card, 1, &out), KOLO_ERR_PROTOCOL);
    card.length++;
    memset(card.bytes, 0xff, sizeof card.bytes);
    assert_int_equal(kolo_tcp_card_decode(&card, 1, &out), KOLO_ERR_PROTOCOL);
}

static void an_unknown_congestion_control_names_its_parameter(void **state)
{
    (void)state;
    test_pair_t p;
    kolo_tx_t tx;
    kolo_wire_card_t card;
    int a, b;
    kolo_conn_spec_t spec = test_spec(4, 256, 0);
    pair_init(&p);
    int before = open_descriptors();
    make_sockets(&a, &b, 1);
    test_fill_tx(&tx, &spec);
    assert_int_equal(kolo_wire_tcp.tx_setup(&p.w.ctx, &tx, &card), KOLO_OK);
    kolo_tcp_param_congestion = "nosuch";
    assert_int_equal(kolo_tcp_conn_attach(tx.priv, &p.w.ctx, &(kolo_socket_t){.fd = a}, 1),
                     KOLO_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(kolo_error_text(), "KOLO_TCP_CONGESTION=nosuch"));
    kolo_tcp_param_congestion = NULL;
    close(b);
    kolo_wire_tcp.tx_close(&tx);
    kolo_wire_tcp.tx_fini(&tx);
    assert_int_equal(open_descriptors(), before);
    pair_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_arrive_in_order_and_whole),
        cmocka_unit_test(slots_go_round_several_sockets),
        cmocka_unit_test(slot_numbers_wrap_around),
        cmocka_unit_test(a_slow_reader_bounds_the_writer),
        cmocka_unit_test(payload_goes_from_and_to_memory_outside_the_slots),
        cmocka_unit_test(an_expectation_is_only_a_hint),
        cmocka_unit_test(an_expectation_is_withdrawn_in_the_middle_of_a_payload),
        cmocka_unit_test(an_address_is_named_in_the_middle_of_a_payload),
        cmocka_unit_test(sixty_four_connections_share_a_context),
        cmocka_unit_test(unused_slots_take_no_memory),
        cmocka_unit_test(kinds_it_cannot_carry_are_refused),
        cmocka_unit_test(cards_are_checked),
        cmocka_unit_test(an_unknown_congestion_control_names_its_parameter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
