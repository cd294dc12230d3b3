/* SPDX-License-Identifier: Apache-2.0
 *
 * What of the verbs provider needs no device: choices, hellos, the ring of offers. The rest is tested in tests/vm.
 */
#include "base/test.h"
#include "remote/verbs/verbs.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

static void a_list_admits_what_it_names(void **state)
{
    (void)state;
    static const struct {
        const char *list, *device;
        int port;
        bool admitted;
    } rows[] = {
        {NULL, "mlx5_0", 1, true},
        {"", "mlx5_0", 1, true},
        {"mlx5", "mlx5_0", 1, true}, /* the beginning of a name */
        {"mlx5", "rxe0", 1, false},
        {"mlx5_1", "mlx5_10", 1, true},
        {"=mlx5_1", "mlx5_10", 1, false}, /* all of it */
        {"=mlx5_1,mlx5_10", "mlx5_10", 1, true},
        {"=mlx5_1:1", "mlx5_1", 1, true},
        {"=mlx5_1:1", "mlx5_1", 2, false},
        {"mlx5_0:2,mlx5_0:1", "mlx5_0", 1, true},
        {"^mlx5_0", "mlx5_0", 1, false},
        {"^mlx5_0", "mlx5_1", 1, true},
        {"^=mlx5_1", "mlx5_10", 1, true},
        {"^=mlx5_1,rxe0:2", "rxe0", 2, false},
        {",,", "rxe0", 1, false},
        {"^", "rxe0", 1, true},
    };
    for (size_t i = 0; i < KOLO_COUNTOF(rows); i++) {
        bool admitted = kolo_verbs_admits(rows[i].list, rows[i].device, rows[i].port);
        if (admitted != rows[i].admitted) fail_msg("%s on %s:%d", rows[i].list, rows[i].device, rows[i].port);
    }
}

static void gid(const char *text, uint8_t out[16])
{
    assert_int_equal(inet_pton(AF_INET6, text, out), 1);
}

static void the_best_gid_is_roce_v2_with_ipv4(void **state)
{
    (void)state;
    uint8_t mapped[16], global[16], local[16], nothing[16] = {0};
    gid("::ffff:10.8.0.1", mapped);
    gid("2001:db8::1", global);
    gid("fe80::1", local);
    const int order[] = {
        kolo_verbs_gid_rank(nothing, IBV_GID_TYPE_ROCE_V2), kolo_verbs_gid_rank(local, IBV_GID_TYPE_ROCE_V1),
        kolo_verbs_gid_rank(global, IBV_GID_TYPE_ROCE_V1),  kolo_verbs_gid_rank(mapped, IBV_GID_TYPE_ROCE_V1),
        kolo_verbs_gid_rank(local, IBV_GID_TYPE_ROCE_V2),   kolo_verbs_gid_rank(global, IBV_GID_TYPE_ROCE_V2),
        kolo_verbs_gid_rank(mapped, IBV_GID_TYPE_ROCE_V2)};
    assert_int_equal(order[0], 0);
    for (size_t i = 1; i < KOLO_COUNTOF(order); i++) assert_true(order[i] > order[i - 1]);
    assert_true(kolo_verbs_gid_rank(local, IBV_GID_TYPE_IB) > 0);
}

static kolo_verbs_hello_t good_hello(void)
{
    kolo_verbs_hello_t h = {.qpn = 17,
                            .psn = 0xabcdef,
                            .mtu = IBV_MTU_4096,
                            .port = 1,
                            .link = IBV_LINK_LAYER_ETHERNET,
                            .fifo = 0x7f0000001000ull,
                            .fifo_key = 0x1234,
                            .depth = 8,
                            .device = "rxe0:1"};
    gid("::ffff:10.8.0.1", h.gid);
    return h;
}

static void a_hello_says_what_was_put_in(void **state)
{
    (void)state;
    kolo_verbs_hello_t h = good_hello(), got;
    kolo_net_hello_t wire;
    memset(&got, 0, sizeof got);
    kolo_verbs_hello_encode(&h, &wire);
    assert_int_equal(kolo_verbs_hello_decode(&wire, &got), KOLO_OK);
    assert_memory_equal(&h, &got, sizeof h);
}

static void a_hello_with_a_field_that_makes_no_sense_is_refused(void **state)
{
    (void)state;
    kolo_verbs_hello_t bad[10], got;
    kolo_net_hello_t wire;
    for (size_t i = 0; i < KOLO_COUNTOF(bad); i++) bad[i] = good_hello();
    bad[0].qpn = 0;
    bad[1].qpn = 1u << 24;
    bad[2].psn = 1u << 24;
    bad[3].mtu = 0;
    bad[4].mtu = 6;
    bad[5].port = 0;
    bad[6].link = 0;
    bad[7].link = IBV_LINK_LAYER_INFINIBAND; /* and no LID */
    bad[8].depth = 12;
    memset(bad[9].device, 'x', sizeof bad[9].device); /* no end */
    for (size_t i = 0; i < KOLO_COUNTOF(bad); i++) {
        kolo_verbs_hello_encode(&bad[i], &wire);
        assert_int_equal(kolo_verbs_hello_decode(&wire, &got), KOLO_ERR_PROTOCOL);
    }
    for (size_t i = 0; i < 11; i++) { /* what is not used is zero: three bytes between fields, eight at the end */
        kolo_verbs_hello_t good = good_hello();
        kolo_verbs_hello_encode(&good, &wire);
        wire.bytes[i < 3 ? 29 + i : 61 + i] = 1;
        assert_int_equal(kolo_verbs_hello_decode(&wire, &got), KOLO_ERR_PROTOCOL);
    }
}

static void an_offer_counts_for_its_own_request_only(void **state)
{
    (void)state;
    kolo_verbs_offer_t ring[4];
    kolo_verbs_place_t got;
    memset(ring, 0, sizeof ring);
    assert_false(kolo_verbs_offer_get(ring, 4, 0, &got)); /* an empty ring offers nothing */
    for (uint64_t r = 0; r < 100; r++) {
        assert_false(kolo_verbs_offer_get(ring, 4, r, &got));
        kolo_verbs_offer_put(ring, 4, r, &(kolo_verbs_place_t){0x1000 + r, (uint32_t)r, 64, 3 * r});
        assert_true(kolo_verbs_offer_get(ring, 4, r, &got));
        assert_true(got.address == 0x1000 + r && got.key == r && got.bytes == 64 && got.tag == 3 * r);
        assert_false(kolo_verbs_offer_get(ring, 4, r + 4, &got)); /* the same place, later */
    }
}

static void only_what_was_offered_and_used_is_offered_again(void **state)
{
    (void)state;
    kolo_verbs_offer_t ring[4];
    kolo_verbs_place_t got;
    memset(ring, 0, sizeof ring);
    assert_false(kolo_verbs_offer_repeat(ring, 4, 0, 0, 1)); /* the first ones come from the reader itself */
    assert_false(kolo_verbs_offer_repeat(ring, 4, 0, 4, 1));
    for (uint64_t r = 0; r < 4; r++)
        kolo_verbs_offer_put(ring, 4, r, &(kolo_verbs_place_t){0x1000 + r, (uint32_t)(7 + r), 64, 100 + r});
    assert_false(kolo_verbs_offer_repeat(ring, 4, 2, 4, 3)); /* number 2 was not used yet */
    assert_false(kolo_verbs_offer_get(ring, 4, 4, &got));    /* so none of them is */
    assert_true(kolo_verbs_offer_repeat(ring, 4, 2, 4, 2));
    assert_false(kolo_verbs_offer_repeat(ring, 4, 2, 4, 1)); /* twice */
    for (uint64_t r = 2; r < 6; r++) {
        assert_true(kolo_verbs_offer_get(ring, 4, r, &got));
        assert_true(got.address == 0x1000 + r % 4 && got.key == 7 + r % 4 && got.bytes == 64 && got.tag == 100 + r);
    }
    assert_false(kolo_verbs_offer_repeat(ring, 4, 6, 6, 5)); /* more than a queue */
    assert_false(kolo_verbs_offer_repeat(ring, 4, 6, UINT64_MAX, 2));
    assert_false(kolo_verbs_offer_repeat(ring, 4, 6, 8 + 6, 1));
}

static void offers_in_a_row_end_where_the_ring_does(void **state)
{
    (void)state;
    assert_int_equal(kolo_verbs_fifo_run(0, 8, 8), 8);
    assert_int_equal(kolo_verbs_fifo_run(3, 8, 8), 5);
    assert_int_equal(kolo_verbs_fifo_run(3, 11, 8), 5);
    assert_int_equal(kolo_verbs_fifo_run(8, 11, 8), 3);
    assert_int_equal(kolo_verbs_fifo_run(15, 23, 8), 1);
    assert_int_equal(kolo_verbs_fifo_run(7, 8, 1), 1);
    assert_int_equal(kolo_verbs_fifo_run(UINT64_MAX - 1, 5, 8), 2); /* across the wrap-around */
}

/* As a card writes a message: it ends at the last word. */
static void write_line(kolo_verbs_line_t *lines, uint32_t depth, uint64_t request, const void *data, uint32_t bytes)
{
    kolo_verbs_line_t *line = &lines[request & (depth - 1)];
    memcpy((char *)line + KOLO_VERBS_LINE_MOST - bytes, data, bytes);
    atomic_store(&line->last, kolo_verbs_line_last(request, data, bytes));
}

static void a_line_counts_for_its_own_request_only(void **state)
{
    (void)state;
    kolo_verbs_line_t lines[4];
    uint8_t data[KOLO_VERBS_LINE_MOST], out[KOLO_VERBS_LINE_MOST];
    uint32_t bytes = 0;
    memset(lines, 0, sizeof lines);
    /* numbers travel in 24 bits */
    static const uint64_t starts[] = {0, (1u << 24) - 9, UINT64_MAX - 7};
    for (size_t i = 0; i < KOLO_COUNTOF(starts); i++)
        for (uint64_t r = starts[i]; r != starts[i] + 20; r++) {
            uint32_t length = (uint32_t)(r % 16) * 8;
            memset(data, (int)r, sizeof data);
            assert_false(kolo_verbs_line_get(lines, 4, r, out, sizeof out, &bytes));
            write_line(lines, 4, r, data, length);
            assert_true(kolo_verbs_line_get(lines, 4, r, out, sizeof out, &bytes) && bytes == length);
            assert_memory_equal(out, data, length);
            assert_false(kolo_verbs_line_get(lines, 4, r + 4, out, sizeof out, &bytes)); /* the same place, later */
            assert_false(
                kolo_verbs_line_get(lines, 4, r + (1ull << 24), out, sizeof out, &bytes)); /* the same bits */
            if (length)
                assert_false(kolo_verbs_line_get(lines, 4, r, out, length - 8, &bytes)); /* no room for it */
        }
}

/* Cards may write the words of a line in any order: until all are there, over what was there before, none
 * counts. */
static void a_line_counts_as_a_whole(void **state)
{
    (void)state;
    kolo_verbs_line_t line = {0}, whole = {0};
    uint64_t data[KOLO_VERBS_LINE_MOST / 8], out[KOLO_VERBS_LINE_MOST / 8];
    uint32_t bytes, n = KOLO_COUNTOF(data);
    for (uint32_t k = 0; k < n; k++) data[k] = 7 * k;
    write_line(&line, 1, 4, data, sizeof data); /* an earlier one */
    for (uint32_t k = 0; k < n; k++) data[k] = k % 3 ? 11 * k + 1 : 7 * k;
    write_line(&whole, 1, 5, data, sizeof data);
    atomic_store(&line.last, atomic_load(&whole.last)); /* the last word comes first */
    for (uint32_t k = n; k-- > 0;) {
        if (k % 3) assert_false(kolo_verbs_line_get(&line, 1, 5, out, sizeof out, &bytes));
        atomic_store(&line.words[k], data[k]);
    }
    assert_true(kolo_verbs_line_get(&line, 1, 5, out, sizeof out, &bytes));
    assert_memory_equal(out, data, sizeof data);
    atomic_store(&line.words[n - 1], data[n - 1] ^ 1);
    assert_false(kolo_verbs_line_get(&line, 1, 5, out, sizeof out, &bytes));
}

static void a_line_with_a_size_that_makes_no_sense_is_none(void **state)
{
    (void)state;
    kolo_verbs_line_t line = {0};
    uint8_t out[256];
    uint32_t bytes;
    for (uint64_t size = 0; size < 256; size++) {
        atomic_store(&line.last, 1u << 8 | size); /* request 0, without its sum */
        assert_false(kolo_verbs_line_get(&line, 1, 0, out, sizeof out, &bytes));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_admits_what_it_names),
        cmocka_unit_test(the_best_gid_is_roce_v2_with_ipv4),
        cmocka_unit_test(a_hello_says_what_was_put_in),
        cmocka_unit_test(a_hello_with_a_field_that_makes_no_sense_is_refused),
        cmocka_unit_test(an_offer_counts_for_its_own_request_only),
        cmocka_unit_test(only_what_was_offered_and_used_is_offered_again),
        cmocka_unit_test(offers_in_a_row_end_where_the_ring_does),
        cmocka_unit_test(a_line_counts_for_its_own_request_only),
        cmocka_unit_test(a_line_counts_as_a_whole),
        cmocka_unit_test(a_line_with_a_size_that_makes_no_sense_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
