/* SPDX-License-Identifier: Apache-2.0
 *
 * Mates: two connections between the same ranks, one each way, whose small frames share a socket.
 */
#include "wire/tcp/tcp_testing.h"

#define PUMPS 2000000 /* before a test gives up */

/* L is rank 0 and writes to R (the carrier's direction), R writes back. */
typedef struct {
    test_pair_t p;
    kolo_tx_t tx[2]; /* of rank 0, of rank 1 */
    kolo_rx_t rx[2]; /* what rank 0 writes, what rank 1 writes */
    uint64_t sent[2], got[2];
} fix_t;

static test_side_t *side_of(fix_t *f, int rank)
{
    return rank == 0 ? &f->p.w : &f->p.r;
}

static kolo_conn_spec_t spec_from(int writer, uint32_t slot_bytes, uint64_t start)
{
    kolo_conn_spec_t spec = test_spec(4, slot_bytes, start);
    spec.writer = writer;
    spec.reader = 1 - writer;
    return spec;
}

static void open_direction(fix_t *f, int writer, uint32_t slot_bytes, uint64_t start, int nsocks)
{
    int a[4], b[4];
    kolo_conn_spec_t spec = spec_from(writer, slot_bytes, start);
    make_sockets(a, b, nsocks);
    tx_open(side_of(f, writer), &f->tx[writer], &spec, a, nsocks);
    rx_open(side_of(f, 1 - writer), &f->rx[writer], &spec, b, nsocks);
}

static void open_mates(fix_t *f, uint32_t slot_bytes, uint64_t start, int nsocks, int first)
{
    memset(f, 0, sizeof *f);
    pair_init(&f->p);
    open_direction(f, first, slot_bytes, start, nsocks);
    open_direction(f, 1 - first, slot_bytes, start, nsocks);
}

static void close_mates(fix_t *f)
{
    for (int d = 0; d < 2; d++) {
        kolo_wire_tcp.tx_fini(&f->tx[d]);
        kolo_wire_tcp.rx_fini(&f->rx[d]);
    }
    pair_fini(&f->p);
}

static void pump_both(fix_t *f)
{
    if (kolo_wire_step(&f->p.w.ctx) != KOLO_OK || kolo_wire_step(&f->p.r.ctx) != KOLO_OK)
        fail_msg("%s", kolo_error_text());
}

/* Small and large ones in turn, so that neighbours take different ways. */
static uint32_t length_of(uint64_t n, uint32_t slot_bytes)
{
    return n % 3 == 0 ? (uint32_t)(n % 97) : (uint32_t)(n * 2654435761u) % (slot_bytes + 1);
}

static void step(fix_t *f, int d, uint64_t count)
{
    kolo_tx_t *tx = &f->tx[d];
    kolo_rx_t *rx = &f->rx[d];
    while (f->sent[d] < count && kolo_tx_ready(tx)) {
        uint32_t n = length_of(f->sent[d], tx->end.slot_bytes);
        test_put(kolo_tx_payload(tx), f->sent[d] + (uint64_t)d, n);
        kolo_tx_post(tx, n, 0, 7, f->sent[d]++);
    }
    while (kolo_rx_ready(rx)) {
        const kolo_slot_header_t *h = kolo_rx_header(rx);
        assert_int_equal(h->bytes, length_of(f->got[d], rx->end.slot_bytes));
        assert_int_equal(h->operation, f->got[d]);
        test_verify(kolo_rx_payload(rx), f->got[d] + (uint64_t)d, h->bytes);
        kolo_rx_release(rx);
        f->got[d]++;
    }
}

static void run(uint32_t slot_bytes, uint64_t start, int nsocks, int first, uint64_t count)
{
    fix_t f;
    open_mates(&f, slot_bytes, start, nsocks, first);
    for (int i = 0; f.got[0] < count || f.got[1] < count; i++) {
        assert_true(i < PUMPS);
        for (int d = 0; d < 2; d++) step(&f, d, count);
        pump_both(&f);
    }
    assert_true(kolo_tx_sent(&f.tx[0]) && kolo_tx_sent(&f.tx[1]));
    close_mates(&f);
}

static void slots_of_all_lengths_arrive_in_order_both_ways(void **state)
{
    (void)state;
    /* loopback's segments are large: 8 KB decide there */
    for (int first = 0; first < 2; first++) {
        run(32768, 0, 1, first, 2000);
        run(32768, 0, 4, first, 500);
        for (uint64_t below = 0; below < 8; below++) run(16384, UINT64_MAX - below, 1, first, 40);
    }
}

static void await_bytes(int fd)
{
    uint64_t until = kolo_deadline_ms(30000);
    char byte;
    while (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0) assert_true(kolo_now_ns() < until);
}

static void small_frames_take_the_lower_ranks_socket(void **state)
{
    (void)state;
    fix_t f;
    open_mates(&f, 32768, 0, 1, 0);
    const kolo_tcp_conn_t *mate = f.tx[1].priv;
    assert_ptr_equal(mate->mate, f.rx[0].priv);
    assert_true(mate->carried_bytes >= 500 && mate->carried_bytes < 32768);
    kolo_tx_post(&f.tx[1], mate->carried_bytes, 0, 1, 1);
    kolo_tx_post(&f.tx[1], mate->carried_bytes + 1, 0, 1, 1);
    while (!kolo_tx_sent(&f.tx[1])) assert_int_equal(kolo_wire_step(&f.p.r.ctx), KOLO_OK);
    const kolo_tcp_conn_t *carrier = f.tx[0].priv, *reader = f.rx[1].priv;
    await_bytes(carrier->socks[0].socket.fd);
    await_bytes(reader->socks[0].socket.fd);
    close_mates(&f);
}

static void send_frame(int fd, uint16_t flags, uint64_t slot)
{
    uint8_t out[KOLO_TCP_FRAME_BYTES];
    kolo_tcp_frame_t frame = {.magic = KOLO_TCP_FRAME_MAGIC, .flags = flags, .slot = slot};
    kolo_tcp_frame_encode(out, &frame);
    assert_int_equal(send(fd, out, sizeof out, MSG_NOSIGNAL), sizeof out);
}

/* The carrier may be slower than the mate's own sockets, on which the farewell comes. */
static void a_farewell_waits_for_slots_on_the_carrier(void **state)
{
    (void)state;
    for (int dies = 0; dies < 2; dies++) {
        fix_t f;
        kolo_status_t st = KOLO_OK;
        uint64_t until = kolo_deadline_ms(30000);
        open_mates(&f, 256, 0, 1, 0);
        const kolo_tcp_conn_t *carrier = f.rx[0].priv, *mate = f.tx[1].priv;
        send_frame(mate->socks[0].socket.fd, KOLO_TCP_FRAME_BYE, 1);
        shutdown(mate->socks[0].socket.fd, SHUT_WR);
        const kolo_tcp_conn_t *reader = f.rx[1].priv;
        while (!reader->socks[0].ended && kolo_now_ns() < until)
            assert_int_equal(kolo_wire_tcp.rx_check(&f.rx[1]), KOLO_OK);
        for (int i = 0; i < 100; i++) assert_int_equal(kolo_wire_tcp.rx_check(&f.rx[1]), KOLO_OK);
        if (dies)
            shutdown(carrier->socks[0].socket.fd, SHUT_WR);
        else
            send_frame(carrier->socks[0].socket.fd, 0, 0);
        while (!dies && !kolo_rx_ready(&f.rx[1]) && kolo_now_ns() < until) pump_both(&f);
        assert_int_equal(kolo_rx_ready(&f.rx[1]), !dies);
        if (!dies) kolo_rx_release(&f.rx[1]);
        while (st == KOLO_OK && kolo_now_ns() < until) st = kolo_wire_tcp.rx_check(&f.rx[1]);
        assert_int_equal(st, KOLO_ERR_REMOTE);
        assert_int_equal(strstr(kolo_error_text(), "has closed the connection") != NULL, !dies);
        close_mates(&f);
    }
}

static void small_frames_arrive_before_the_farewell_counts(void **state)
{
    (void)state;
    for (int delay = 0; delay < 2; delay++) {
        fix_t f;
        kolo_status_t st = KOLO_OK;
        uint64_t until = kolo_deadline_ms(30000);
        open_mates(&f, 32768, 0, 1, 0);
        for (int i = 0; i < 3; i++) kolo_tx_post(&f.tx[1], 16, 0, 1, 1);
        while (!kolo_tx_sent(&f.tx[1])) assert_int_equal(kolo_wire_step(&f.p.r.ctx), KOLO_OK);
        kolo_wire_tcp.tx_close(&f.tx[1]);
        kolo_wire_tcp.rx_close(&f.rx[0]);
        for (int i = 0; i < 3; i++) {
            while (!kolo_rx_ready(&f.rx[1])) {
                assert_true(kolo_now_ns() < until);
                if (delay) assert_int_equal(kolo_wire_step(&f.p.w.ctx), KOLO_OK);
                if (kolo_rx_ready(&f.rx[1])) break;
                assert_int_equal(kolo_wire_tcp.rx_check(&f.rx[1]), KOLO_OK);
            }
            kolo_rx_release(&f.rx[1]);
        }
        while (st == KOLO_OK && kolo_now_ns() < until) st = kolo_wire_tcp.rx_check(&f.rx[1]);
        assert_int_equal(st, KOLO_ERR_REMOTE);
        assert_non_null(strstr(kolo_error_text(), "has closed the connection"));
        for (st = KOLO_OK; st == KOLO_OK && kolo_now_ns() < until;) st = kolo_wire_tcp.tx_check(&f.tx[0]);
        assert_non_null(strstr(kolo_error_text(), "has closed the connection"));
        close_mates(&f);
    }
}

static void a_farewell_behind_unread_messages_is_seen(void **state)
{
    (void)state;
    fix_t f;
    kolo_status_t st = KOLO_OK;
    uint64_t until = kolo_deadline_ms(30000);
    open_mates(&f, 32768, 0, 1, 0);
    for (int i = 0; i < 12; i++) { /* more than there are slots, and nobody takes them */
        while (!kolo_tx_ready(&f.tx[1])) pump_both(&f);
        kolo_tx_post(&f.tx[1], 16, 0, 1, 1);
    }
    while (!kolo_tx_sent(&f.tx[1])) pump_both(&f);
    kolo_wire_tcp.rx_close(&f.rx[0]);
    while (st == KOLO_OK && kolo_now_ns() < until) st = kolo_wire_tcp.tx_check(&f.tx[0]);
    assert_int_equal(st, KOLO_ERR_REMOTE);
    assert_non_null(strstr(kolo_error_text(), "has closed the connection"));
    close_mates(&f);
}

static void one_may_go_and_the_other_stays(void **state)
{
    (void)state;
    for (int gone = 0; gone < 2; gone++) {
        fix_t f;
        open_mates(&f, 16384, 0, 1, 0);
        for (int i = 0; f.got[0] < 20 || f.got[1] < 20; i++) {
            assert_true(i < PUMPS);
            for (int d = 0; d < 2; d++) step(&f, d, 20);
            pump_both(&f);
        }
        kolo_wire_tcp.tx_close(&f.tx[gone]);
        kolo_wire_tcp.rx_close(&f.rx[gone]);
        kolo_wire_tcp.tx_fini(&f.tx[gone]);
        kolo_wire_tcp.rx_fini(&f.rx[gone]);
        for (int i = 0; f.got[1 - gone] < 60; i++) {
            assert_true(i < PUMPS);
            step(&f, 1 - gone, 60);
            pump_both(&f);
        }
        close_mates(&f);
    }
}

/* Two frames by the carrier, and perhaps one by the mate's own socket, from rank 1 to rank 0. */
static void run_nonsense(uint64_t first, uint64_t second, uint64_t own, const char *text)
{
    fix_t f;
    kolo_status_t st = KOLO_OK;
    uint64_t until = kolo_deadline_ms(30000);
    open_mates(&f, 256, 0, 1, 0);
    const kolo_tcp_conn_t *carrier = f.rx[0].priv, *mate = f.tx[1].priv;
    send_frame(carrier->socks[0].socket.fd, 0, first);
    send_frame(carrier->socks[0].socket.fd, 0, second);
    if (own != UINT64_MAX) send_frame(mate->socks[0].socket.fd, 0, own);
    while (st == KOLO_OK && kolo_now_ns() < until) st = kolo_wire_step(&f.p.w.ctx);
    assert_int_equal(st, KOLO_ERR_PROTOCOL);
    if (!strstr(kolo_error_text(), text)) fail_msg("\"%s\" lacks \"%s\"", kolo_error_text(), text);
    close_mates(&f);
}

static void wrong_slot_numbers_are_protocol_errors(void **state)
{
    (void)state;
    run_nonsense(1, 0, UINT64_MAX, "where slot 2 was awaited");
    run_nonsense(0, 1, 1, "a second frame for slot 1");
    run_nonsense(7, 8, 9, "none for slot 0");
    run_nonsense(1, 2, 3, "none for slot 0");
}

/* Rank 1 writes to rank 0, on the carrier and on its own socket. */
/* Half a frame by the carrier, then all of another for the same slot by the mate's own socket: the rest of the
 * first would go to memory that the slot's payload does not have any more. */
static void a_slot_that_has_begun_to_come_is_not_begun_again(void **state)
{
    (void)state;
    fix_t f;
    kolo_status_t st = KOLO_OK;
    uint8_t bytes[KOLO_TCP_FRAME_BYTES + 16] = {0};
    const kolo_tcp_frame_t frame = {.magic = KOLO_TCP_FRAME_MAGIC, .bytes = 16};
    kolo_tcp_frame_encode(bytes, &frame);
    open_mates(&f, 256, 0, 1, 0);
    const kolo_tcp_conn_t *carrier = f.rx[0].priv, *mate = f.tx[1].priv, *reads = f.tx[0].priv;
    assert_int_equal(send(carrier->socks[0].socket.fd, bytes, sizeof bytes - 8, MSG_NOSIGNAL), sizeof bytes - 8);
    uint64_t until = kolo_deadline_ms(30000);
    while (!reads->streams[0].in_payload && kolo_now_ns() < until)
        assert_int_equal(kolo_wire_step(&f.p.w.ctx), KOLO_OK);
    assert_int_equal(send(mate->socks[0].socket.fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    while (st == KOLO_OK && !kolo_rx_ready(&f.rx[1]) && kolo_now_ns() < until) st = kolo_wire_step(&f.p.w.ctx);
    assert_int_equal(st, KOLO_ERR_PROTOCOL);
    if (!strstr(kolo_error_text(), "a second frame for slot 0")) fail_msg("%s", kolo_error_text());
    close_mates(&f);
}

static void open_reader_of_two(fix_t *f, int *carrier_fd, int *own_fd)
{
    open_mates(f, 256, 0, 1, 0);
    *carrier_fd = ((const kolo_tcp_conn_t *)f->rx[0].priv)->socks[0].socket.fd;
    *own_fd = ((const kolo_tcp_conn_t *)f->tx[1].priv)->socks[0].socket.fd;
}

static void pump_reader(fix_t *f, int times)
{
    while (times-- > 0)
        if (kolo_wire_step(&f->p.w.ctx) != KOLO_OK) fail_msg("%s", kolo_error_text());
}

static void read_slots(fix_t *f, int count)
{
    for (int i = 0; count > 0; i++) {
        assert_true(i < PUMPS);
        pump_reader(f, 1);
        if (!kolo_rx_ready(&f->rx[1])) continue;
        kolo_rx_release(&f->rx[1]);
        count--;
    }
}

/* Of depth 4: slot 4 comes before it is free, and so does slot 8. */
static void sockets_may_stand_at_later_slots_as_long_as_one_does_not(void **state)
{
    (void)state;
    fix_t f;
    int carrier, own;
    open_reader_of_two(&f, &carrier, &own);
    send_frame(own, 0, 4);
    pump_reader(&f, 1000);
    for (uint64_t slot = 0; slot < 4; slot++) send_frame(carrier, 0, slot);
    send_frame(carrier, 0, 8);
    read_slots(&f, 5);
    pump_reader(&f, 1000);
    for (uint64_t slot = 5; slot < 8; slot++) send_frame(own, 0, slot);
    read_slots(&f, 4);
    close_mates(&f);
}

static void a_later_slot_on_its_way_does_not_bring_an_earlier_one(void **state)
{
    (void)state;
    fix_t f;
    int carrier, own;
    kolo_status_t st = KOLO_OK;
    uint64_t until = kolo_deadline_ms(30000);
    uint8_t out[KOLO_TCP_FRAME_BYTES];
    const kolo_tcp_frame_t half = {.magic = KOLO_TCP_FRAME_MAGIC, .bytes = 100, .slot = 2};
    open_reader_of_two(&f, &carrier, &own);
    kolo_tcp_frame_encode(out, &half);
    assert_int_equal(send(own, out, sizeof out, MSG_NOSIGNAL), sizeof out);
    pump_reader(&f, 1000);
    send_frame(carrier, 0, 1);
    while (st == KOLO_OK && kolo_now_ns() < until) st = kolo_wire_step(&f.p.w.ctx);
    assert_int_equal(st, KOLO_ERR_PROTOCOL);
    assert_non_null(strstr(kolo_error_text(), "none for slot 0"));
    close_mates(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_of_all_lengths_arrive_in_order_both_ways),
        cmocka_unit_test(small_frames_take_the_lower_ranks_socket),
        cmocka_unit_test(a_farewell_waits_for_slots_on_the_carrier),
        cmocka_unit_test(small_frames_arrive_before_the_farewell_counts),
        cmocka_unit_test(a_farewell_behind_unread_messages_is_seen),
        cmocka_unit_test(one_may_go_and_the_other_stays),
        cmocka_unit_test(wrong_slot_numbers_are_protocol_errors),
        cmocka_unit_test(a_slot_that_has_begun_to_come_is_not_begun_again),
        cmocka_unit_test(sockets_may_stand_at_later_slots_as_long_as_one_does_not),
        cmocka_unit_test(a_later_slot_on_its_way_does_not_bring_an_earlier_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
