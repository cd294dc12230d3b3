/* SPDX-License-Identifier: Apache-2.0
 *
 * Queues in memory: what the header must say, and slots and lines across every wrap-around.
 */
#include "wire/ll.h"
#include "wire/queue.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    void *memory;
    kolo_tx_t tx;
    kolo_rx_t rx;
} pair_t;

static kolo_conn_spec_t make_spec(kolo_proto_t proto, uint32_t depth, uint32_t slot_bytes, uint64_t start)
{
    return (kolo_conn_spec_t){.kind = KOLO_CONN_PAIR,
                              .proto = proto,
                              .writer = 0,
                              .reader = 1,
                              .depth = depth,
                              .slot_bytes = slot_bytes,
                              .start = start};
}

static void open_pair(pair_t *pair, const kolo_conn_spec_t *spec)
{
    size_t bytes = KOLO_ROUND_UP(kolo_queue_bytes(spec, 1), 64);
    memset(pair, 0, sizeof *pair);
    pair->memory = aligned_alloc(64, bytes);
    assert_non_null(pair->memory);
    memset(pair->memory, 0, bytes);
    kolo_queue_format(pair->memory, spec, 1, 77);
    pair->tx = kolo_queue_tx(spec, 1, NULL);
    pair->rx = kolo_queue_rx(spec, NULL);
    kolo_queue_bind_tx(pair->memory, &pair->tx);
    kolo_queue_bind_rx(pair->memory, &pair->rx, 1, 0);
    static kolo_bell_t silent;
    pair->tx.bells = &silent;
}

static void header_is_checked_field_by_field(void **state)
{
    kolo_conn_spec_t spec = make_spec(KOLO_PROTO_SIMPLE, 4, 128, 0);
    pair_t pair;
    (void)state;
    open_pair(&pair, &spec);
    assert_int_equal(kolo_queue_check(pair.memory, &spec, 1, 77), KOLO_OK);
    assert_int_equal(kolo_queue_check(pair.memory, &spec, 2, 77), KOLO_ERR_PROTOCOL);
    assert_int_equal(kolo_queue_check(pair.memory, &spec, 1, 78), KOLO_ERR_PROTOCOL);
    /* every byte of the first line counts */
    for (int i = 0; i < 64; i++) {
        uint8_t *byte = (uint8_t *)pair.memory + i;
        *byte ^= 1;
        assert_int_equal(kolo_queue_check(pair.memory, &spec, 1, 77), KOLO_ERR_PROTOCOL);
        *byte ^= 1;
    }
    assert_int_equal(kolo_queue_check(pair.memory, &spec, 1, 77), KOLO_OK);
    free(pair.memory);
}

static void specs_out_of_range_are_refused(void **state)
{
    kolo_conn_spec_t good = make_spec(KOLO_PROTO_SIMPLE, 4, 128, 0), bad;
    (void)state;
    assert_int_equal(kolo_conn_check_spec(&good), KOLO_OK);
    static const struct {
        uint32_t depth, slot_bytes;
        int writer, reader;
    } wrong[] = {{0, 64, 0, 1},          {3, 64, 0, 1},  {1u << 30, 64, 0, 1}, {4, 0, 0, 1}, {4, 100, 0, 1},
                 {4, 0xffffffc0u, 0, 1}, {4, 64, -1, 1}, {4, 64, 0, -1},       {4, 64, 2, 2}};
    for (size_t i = 0; i < KOLO_COUNTOF(wrong); i++) {
        bad = good;
        bad.depth = wrong[i].depth;
        bad.slot_bytes = wrong[i].slot_bytes;
        bad.writer = wrong[i].writer;
        bad.reader = wrong[i].reader;
        assert_int_equal(kolo_conn_check_spec(&bad), KOLO_ERR_INVALID_ARGUMENT);
    }
    bad = make_spec(KOLO_PROTO_SIMPLE, 1u << 24, 1u << 20, 0);
    assert_int_equal(kolo_conn_check_spec(&bad), KOLO_ERR_INVALID_ARGUMENT);
}

static const uint64_t starts[] = {
    0,         5, 0x7ffffffeull, 0x80000000ull - 3, 0xfffffffaull, 0xffffffffull, 0x17ffffffeull, UINT64_MAX - 5,
    UINT64_MAX};

static void slots_are_never_full_early(void **state)
{
    (void)state;
    for (size_t s = 0; s < KOLO_COUNTOF(starts); s++) {
        for (uint32_t depth = 1; depth <= 8; depth *= 2) {
            kolo_conn_spec_t spec = make_spec(KOLO_PROTO_SIMPLE, depth, 64, starts[s]);
            pair_t pair;
            open_pair(&pair, &spec);
            for (int i = 0; i < 40; i++) {
                assert_false(kolo_rx_ready(&pair.rx));
                uint32_t burst = (uint32_t)i % depth + 1;
                for (uint32_t k = 0; k < burst; k++) {
                    assert_true(kolo_tx_ready(&pair.tx));
                    *(uint64_t *)kolo_tx_payload(&pair.tx) = pair.tx.end.next;
                    kolo_tx_post(&pair.tx, 8, 0, 1, 2);
                }
                if (burst == depth) assert_false(kolo_tx_ready(&pair.tx));
                for (uint32_t k = 0; k < burst; k++) {
                    assert_true(kolo_rx_ready(&pair.rx));
                    assert_true(*(const uint64_t *)kolo_rx_payload(&pair.rx) == pair.rx.end.next);
                    kolo_rx_release(&pair.rx);
                }
                assert_true(kolo_tx_released(&pair.tx));
            }
            free(pair.memory);
        }
    }
}

static void lines_are_never_there_early(void **state)
{
    enum { LINES = 6 };
    (void)state;
    for (size_t s = 0; s < KOLO_COUNTOF(starts); s++) {
        kolo_conn_spec_t spec = make_spec(KOLO_PROTO_LL, 4, LINES * 64, starts[s]);
        pair_t pair;
        open_pair(&pair, &spec);
        for (int i = 0; i < 40; i++) {
            uint8_t out[LINES * KOLO_LL_DATA], in[LINES * KOLO_LL_DATA];
            size_t bytes = i < 20 ? 8 : sizeof out; /* long ones meet lines that were never used */
            bool mismatch = false;
            for (size_t line = 0; line < LINES; line++) assert_false(kolo_ll_arrived(&pair.rx, line));
            memset(out, i + 1, sizeof out);
            kolo_ll_begin(&pair.tx, 9, (uint64_t)i);
            for (size_t line = 0; line < LINES; line++) assert_false(kolo_ll_arrived(&pair.rx, line));
            kolo_ll_put(&pair.tx, 0, out, bytes, 5);
            kolo_ll_post(&pair.tx);
            assert_int_equal(kolo_ll_get(&pair.rx, 0, in, bytes, 0, 5, &mismatch), bytes);
            assert_false(mismatch);
            assert_memory_equal(in, out, bytes);
            kolo_rx_release(&pair.rx);
        }
        free(pair.memory);
    }
}

/* A reader of a row of messages tells of a quarter of its queue at once: the writer never lacks more than that, and
 * nothing once the reader has caught up. */
static void lines_are_given_back_a_quarter_of_the_queue_at_once(void **state)
{
    (void)state;
    for (size_t s = 0; s < KOLO_COUNTOF(starts); s++) {
        for (uint32_t depth = 1; depth <= 32; depth *= 2) {
            kolo_conn_spec_t spec = make_spec(KOLO_PROTO_LL, depth, 64, starts[s]);
            uint32_t quarter = KOLO_MAX(depth / 4, 1);
            pair_t pair;
            open_pair(&pair, &spec);
            for (uint32_t burst = 1; burst <= depth; burst++) {
                uint32_t told = 0;
                for (uint32_t k = 0; k < burst; k++) {
                    assert_true(kolo_tx_ready(&pair.tx));
                    kolo_ll_begin(&pair.tx, 9, 1);
                    kolo_ll_put(&pair.tx, 0, &k, sizeof k, 5);
                    kolo_ll_post(&pair.tx);
                }
                assert_int_equal(kolo_tx_ready(&pair.tx), burst < depth);
                for (uint32_t k = 0; k < burst; k++) {
                    uint64_t before = kolo_tx_end_consumed(&pair.tx.end);
                    assert_true(kolo_ll_arrived(&pair.rx, 0));
                    kolo_ll_release(&pair.rx);
                    told += kolo_tx_end_consumed(&pair.tx.end) != before;
                    assert_in_range(pair.rx.end.next - kolo_tx_end_consumed(&pair.tx.end), 0, quarter - 1);
                }
                assert_in_range(told, 1, burst / quarter + 2);
                assert_true(kolo_tx_released(&pair.tx));
            }
            free(pair.memory);
        }
    }
}

/* A line written once and then left alone must not come back to life 2^32 messages later. */
static void stale_lines_are_swept(void **state)
{
    kolo_conn_spec_t spec = make_spec(KOLO_PROTO_LL, 4, 4 * 64, 0);
    uint8_t data[4 * KOLO_LL_DATA] = {0};
    pair_t pair;
    (void)state;
    open_pair(&pair, &spec);
    kolo_ll_begin(&pair.tx, 9, 0);
    kolo_ll_put(&pair.tx, 0, data, sizeof data, 5); /* slot 0, all lines */
    kolo_ll_post(&pair.tx);
    kolo_rx_release(&pair.rx);
    /* Jump to where the sweep is due, as if all messages between had been short. */
    static const uint64_t stops[] = {KOLO_LL_SWEEP, 2 * KOLO_LL_SWEEP};
    for (size_t i = 0; i < KOLO_COUNTOF(stops); i++) {
        pair.tx.end.next = pair.rx.end.next = stops[i];
        kolo_ll_begin(&pair.tx, 9, 1);
        for (size_t line = 0; line < 4; line++) assert_false(kolo_ll_arrived(&pair.rx, line));
        kolo_ll_put(&pair.tx, 0, data, 8, 5);
    }
    free(pair.memory);
}

static void a_wrong_signature_is_told(void **state)
{
    kolo_conn_spec_t spec = make_spec(KOLO_PROTO_LL, 2, 128, 0);
    uint8_t data[100] = {0};
    bool mismatch = false;
    pair_t pair;
    (void)state;
    open_pair(&pair, &spec);
    kolo_ll_begin(&pair.tx, 0xabcdef, 3);
    kolo_ll_put(&pair.tx, 0, data, sizeof data, 5);
    kolo_ll_post(&pair.tx);
    assert_int_equal(kolo_ll_get(&pair.rx, 0, data, sizeof data, 0, 6, &mismatch), 0);
    assert_true(mismatch);
    assert_true(kolo_rx_header(&pair.rx)->signature == 0xabcdef);
    assert_true(kolo_rx_header(&pair.rx)->operation == 3);
    free(pair.memory);
}

static void a_wire_answers_every_call(void **state)
{
    (void)state;
    for (int i = 0; kolo_wires[i]; i++) {
        const kolo_wire_ops_t *w = kolo_wires[i];
        kolo_rx_t rx = {.ops = w, .spec = {.writer = 3, .reader = 5}};
        kolo_tx_t tx = {.ops = w, .spec = {.writer = 3, .reader = 5}};
        assert_true(w->can_connect && w->fill_card && w->may_copy && w->rx_setup && w->tx_setup && w->tx_connect);
        assert_true(w->rx_connect && w->tx_check && w->rx_check && w->ref_make && w->ref_start && w->ref_done &&
                    w->tx_post_from);
        assert_true(w->rx_expect && w->rx_unexpect && w->tx_close && w->rx_close && w->tx_fini && w->rx_fini);
        assert_true(w->tx_memory && w->rx_memory);
        if (!(w->caps & KOLO_CAP_REF)) {
            assert_int_equal(w->ref_make(&tx, NULL, 0, NULL), KOLO_ERR_UNSUPPORTED);
            assert_int_equal(w->ref_done(&rx, NULL), KOLO_ERR_UNSUPPORTED);
            assert_int_equal(w->ref_start(&rx, NULL, NULL), KOLO_ERR_UNSUPPORTED);
            assert_non_null(strstr(kolo_error_text(), "from rank 3 to rank 5"));
        }
        if (!(w->caps & KOLO_CAP_POST_FROM))
            assert_int_equal(w->tx_post_from(&tx, NULL, 0, 0, 0), KOLO_ERR_UNSUPPORTED);
    }
}

static void a_card_names_wires_and_versions(void **state)
{
    (void)state;
    kolo_wire_ops_t mine = *kolo_wires[0], newer = mine, longer = mine;
    kolo_peer_card_t card = {.nwires = 2, .wires = {{"other", 1}, kolo_wire_id(&mine)}};
    newer.version++;
    longer.name = "localer";
    assert_true(kolo_wire_on_card(&card, &mine));
    assert_false(kolo_wire_on_card(&card, &newer));
    assert_false(kolo_wire_on_card(&card, &longer));
    card.nwires = 1;
    assert_false(kolo_wire_on_card(&card, &mine));
    for (int i = 0; kolo_wires[i]; i++) {
        const kolo_param_t *row = &kolo_wires[i]->params->rows[0];
        assert_int_equal(row->kind, KOLO_PARAM_BOOL); /* kolo_wire_disabled() */
        assert_non_null(strstr(row->key, "_DISABLE"));
        assert_in_range(strlen(kolo_wires[i]->name), 1, sizeof card.wires[0].name);
        assert_true(kolo_wires[i]->version > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_is_checked_field_by_field),
        cmocka_unit_test(specs_out_of_range_are_refused),
        cmocka_unit_test(slots_are_never_full_early),
        cmocka_unit_test(lines_are_never_there_early),
        cmocka_unit_test(lines_are_given_back_a_quarter_of_the_queue_at_once),
        cmocka_unit_test(stale_lines_are_swept),
        cmocka_unit_test(a_wrong_signature_is_told),
        cmocka_unit_test(a_wire_answers_every_call),
        cmocka_unit_test(a_card_names_wires_and_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
