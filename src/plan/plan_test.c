/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the plan as data: names, signatures, the builder's habits, and what the structural check refuses.
 */
#include "plan/builder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <stdio.h>

static kolo_builder_t *open_ring(uint32_t n, uint32_t rank)
{
    kolo_emit_env_t env = {.nranks = n, .rank = rank};
    kolo_builder_t *b = kolo_builder_open(KOLO_COLL_ALL_REDUCE, KOLO_ALGO_RING, &env);
    assert_non_null(b);
    kolo_builder_grid(b, n, 1, n, n);
    return b;
}

static void names_parse_back_to_their_values(void **state)
{
    (void)state;
    for (int i = 0; i < KOLO_COLL_COUNT; i++) {
        kolo_coll_t c = KOLO_COLL_COUNT;
        assert_int_equal(kolo_coll_parse(kolo_coll_name((kolo_coll_t)i), &c), KOLO_OK);
        assert_int_equal(c, i);
    }
    for (int i = 0; i < KOLO_ALGO_COUNT; i++) {
        kolo_algo_t a = KOLO_ALGO_COUNT;
        assert_int_equal(kolo_plan_algo_parse(kolo_plan_algo_name((kolo_algo_t)i), &a), KOLO_OK);
        assert_int_equal(a, i);
    }
    for (int i = 0; i < KOLO_OP_COUNT; i++)
        assert_string_not_equal(kolo_plan_opcode_name((kolo_opcode_t)i), "unknown");
    kolo_algo_t a = KOLO_ALGO_TREE;
    assert_int_equal(kolo_plan_algo_parse("rings", &a), KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(a, KOLO_ALGO_TREE);
    assert_non_null(strstr(kolo_error_text(), "halving_doubling"));
}

static void traits_agree_with_each_other(void **state)
{
    (void)state;
    for (int i = 0; i < KOLO_COLL_COUNT; i++) {
        kolo_coll_t c = (kolo_coll_t)i;
        const kolo_coll_traits_t *t = kolo_coll_traits(c);
        bool moves = c != KOLO_COLL_BARRIER && c != KOLO_COLL_P2P;
        assert_int_equal(t->whole + kolo_coll_by_rank(c), moves);
        assert_false(t->src_at_root && t->dst_at_root);
        assert_false(t->reduces && t->dst_by_rank); /* one result, or a part of it for each */
        assert_int_equal(kolo_coll_src_count(c, 3, 5), c == KOLO_COLL_BARRIER ? 0 : t->src_by_rank ? 15 : 3);
        assert_int_equal(kolo_coll_dst_count(c, 3, 5), c == KOLO_COLL_BARRIER ? 0 : t->dst_by_rank ? 15 : 3);
    }
    assert_string_equal(kolo_coll_name(KOLO_COLL_COUNT), "unknown");
    assert_false(kolo_coll_rooted(KOLO_COLL_COUNT) || kolo_coll_reduces(KOLO_COLL_COUNT));
}

static void signatures_differ_and_print(void **state)
{
    (void)state;
    char text[128];
    uint64_t s = kolo_signature(KOLO_COLL_REDUCE, KOLO_FLOAT32, KOLO_SUM, 3, 1024);
    kolo_signature_print(s, text, sizeof(text));
    assert_string_equal(text, "reduce 1024 float32 sum root 3");
    assert_true(s != kolo_signature(KOLO_COLL_REDUCE, KOLO_FLOAT32, KOLO_SUM, 4, 1024));
    assert_true(s != kolo_signature(KOLO_COLL_REDUCE, KOLO_FLOAT64, KOLO_SUM, 3, 1024));
    assert_true(s != kolo_signature(KOLO_COLL_REDUCE, KOLO_FLOAT32, KOLO_MAX, 3, 1024));
    assert_true(s != kolo_signature(KOLO_COLL_BROADCAST, KOLO_FLOAT32, KOLO_SUM, 3, 1024));
    assert_true(s != kolo_signature(KOLO_COLL_REDUCE, KOLO_FLOAT32, KOLO_SUM, 3, 1025));
    assert_true(kolo_signature(KOLO_COLL_ALL_REDUCE, 0, 0, 0, 0) != 0);
    kolo_signature_print(~(uint64_t)0, text, sizeof(text)); /* from outside: anything */
    kolo_signature_print(0, text, 8);
    kolo_signature_print(s, text, 1);
    kolo_signature_print(kolo_signature(KOLO_COLL_ALL_GATHER, KOLO_INT8, 77, 9, 5), text, sizeof(text));
    assert_string_equal(text, "all_gather 5 int8");
    uint64_t sum = kolo_signature_table(30, 0x1a2b);
    kolo_signature_print(kolo_signature(KOLO_COLL_ALL_GATHER, KOLO_INT8, 0, KOLO_SIGNATURE_V_ROOT, sum), text,
                         sizeof(text));
    assert_string_equal(text, "all_gatherv 30 int8 counts #1a2b");
    sum = kolo_signature_table(UINT64_C(1) << 40, 3);
    kolo_signature_print(kolo_signature(KOLO_COLL_SCATTER, KOLO_INT8, KOLO_SIGNATURE_V, 2, sum), text,
                         sizeof(text));
    assert_string_equal(text, "scatterv 4194303+ int8 root 2 counts #3");
    kolo_signature_print(kolo_signature(KOLO_COLL_ALL_TO_ALL, KOLO_INT8, 0, KOLO_SIGNATURE_V_ROOT, 0), text,
                         sizeof(text));
    assert_string_equal(text, "all_to_allv int8");
    kolo_signature_print(kolo_signature_of_call(KOLO_CALL_WORD_SPLIT), text, sizeof(text));
    assert_string_equal(text, "comm_split");
    kolo_signature_print(kolo_signature_of_call(KOLO_CALL_WORDS), text, sizeof(text));
    assert_string_equal(text, "unknown");
    kolo_signature_print(kolo_signature_of_call(KOLO_CALL_WORD_FINALIZE), text, sizeof(text));
    assert_string_equal(text, "comm_finalize");
}

static void equal_connections_have_one_index(void **state)
{
    (void)state;
    kolo_builder_t *b = open_ring(4, 1);
    uint16_t tx = kolo_builder_tx(b, 2, 0), rx = kolo_builder_rx(b, 2, 0), lane1 = kolo_builder_tx(b, 2, 1);
    assert_true(tx != rx && tx != lane1 && rx != lane1);
    assert_int_equal(kolo_builder_tx(b, 2, 0), tx);
    assert_int_equal(kolo_builder_rx(b, 2, 0), rx);
    uint16_t unused = kolo_builder_rx(b, 0, 3);
    assert_int_equal(unused, 3);
    kolo_builder_lane(b);
    kolo_builder_send(b, lane1, kolo_seg(KOLO_BUF_SRC, 0, 4));
    kolo_builder_recv(b, rx, kolo_seg(KOLO_BUF_DST, 3, 1));
    kolo_plan_t *plan;
    assert_int_equal(kolo_builder_finish(b, &plan), KOLO_OK);
    assert_int_equal(plan->nconns, 2); /* those without use are gone, the others renumbered */
    assert_int_equal(plan->conns[plan->insns[0].tx].lane, 1);
    assert_int_equal(plan->conns[plan->insns[1].rx].dir, KOLO_DIR_RX);
    kolo_plan_free(plan);
}

static void empty_loops_and_lanes_vanish(void **state)
{
    (void)state;
    kolo_builder_t *b = open_ring(4, 1);
    kolo_builder_lane(b);
    kolo_builder_loop(b, 3);
    kolo_builder_loop(b, 0);
    kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, 0, 1), kolo_seg(KOLO_BUF_SRC, 0, 1));
    kolo_builder_end(b);
    kolo_builder_end(b); /* its body is empty now */
    kolo_builder_lane(b);
    kolo_builder_loop(b, 4);
    kolo_builder_copy(b, kolo_seg_loop(KOLO_BUF_DST, 0, 1, 0), kolo_seg_loop(KOLO_BUF_SRC, 0, 1, 4));
    kolo_builder_end(b);
    kolo_builder_lane(b);
    kolo_plan_t *plan;
    assert_int_equal(kolo_builder_finish(b, &plan), KOLO_OK);
    assert_int_equal(plan->nlanes, 1);
    assert_int_equal(plan->ninsns, 3);
    assert_int_equal(plan->insns[2].count, 0);
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    kolo_plan_print(plan, f);
    fclose(f);
    assert_non_null(strstr(text, "copy dst=DST[0+1i] src=SRC[0+1i mod 4]"));
    free(text);
    kolo_plan_free(plan);
}

static void the_first_error_stays(void **state)
{
    (void)state;
    kolo_builder_t *b = open_ring(4, 1);
    kolo_builder_lane(b);
    for (int i = 0; i < 3; i++) kolo_builder_loop(b, 2);
    assert_non_null(kolo_builder_insn(b, KOLO_OP_SEND));
    kolo_builder_send(b, 7, kolo_seg(KOLO_BUF_SRC, 0, 1));
    for (int i = 0; i < 3; i++) kolo_builder_end(b);
    kolo_plan_t *plan = NULL;
    assert_int_equal(kolo_builder_finish(b, &plan), KOLO_ERR_INTERNAL);
    assert_null(plan);
    assert_non_null(strstr(kolo_error_text(), "nested deeper than two"));
}

/* One lane with everything in it that the check looks at. */
static kolo_plan_t *full_plan(void)
{
    kolo_builder_t *b = open_ring(4, 1);
    kolo_builder_scratch(b, 4);
    uint16_t ev = kolo_builder_event(b);
    uint16_t tx = kolo_builder_tx(b, 2, 0), rx[2] = {kolo_builder_rx(b, 0, 0), kolo_builder_rx(b, 2, 0)};
    uint16_t rx3 = kolo_builder_rx(b, 3, 0);
    kolo_builder_lane(b);
    kolo_builder_send(b, tx, kolo_seg(KOLO_BUF_SRC, 1, 1));          /* 0 */
    kolo_builder_loop(b, 2);                                         /* 1 */
    kolo_builder_recv(b, rx3, kolo_seg_loop(KOLO_BUF_DST, 1, 2, 0)); /* 2 */
    kolo_builder_end(b);                                             /* 3 */
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_REDUCE_MANY);     /* 4 */
    in->list_count = 2;
    in->own_place = 1;
    in->dst = kolo_seg(KOLO_BUF_DST, 1, 1);
    in->src = kolo_seg(KOLO_BUF_SRC, 1, 1);
    in->flags = KOLO_FLAG_FINAL;
    in->list_first = kolo_builder_list(b, rx, 2);
    kolo_builder_insn(b, KOLO_OP_SIGNAL)->event = ev; /* 5 */
    kolo_builder_lane(b);
    kolo_builder_insn(b, KOLO_OP_WAIT)->event = ev;                                /* 6 */
    kolo_builder_copy(b, kolo_seg_scratch(0, 2, 2), kolo_seg(KOLO_BUF_SRC, 2, 2)); /* 7 */
    kolo_plan_t *plan = NULL;
    assert_int_equal(kolo_builder_finish(b, &plan), KOLO_OK);
    return plan;
}

typedef struct {
    const char *name;
    size_t offset; /* of a 32-bit field in kolo_plan_t */
    uint32_t value;
} damage_t;

static void the_check_refuses_numbers_out_of_range(void **state)
{
    (void)state;
    static const damage_t damages[] = {
        {"rank", offsetof(kolo_plan_t, rank), 4},          {"root", offsetof(kolo_plan_t, root), 4},
        {"nranks", offsetof(kolo_plan_t, nranks), 0},      {"nparts", offsetof(kolo_plan_t, nparts), 3},
        {"nsubs", offsetof(kolo_plan_t, nsubs), 0},        {"nsubs", offsetof(kolo_plan_t, nsubs), 1u << 31},
        {"slices", offsetof(kolo_plan_t, slices), 3},      {"depth", offsetof(kolo_plan_t, depth), 0},
        {"nscratch", offsetof(kolo_plan_t, nscratch), 1},  {"nevents", offsetof(kolo_plan_t, nevents), 0},
        {"nconns", offsetof(kolo_plan_t, nconns), 3},      {"nlist", offsetof(kolo_plan_t, nlist), 1},
        {"ninsns", offsetof(kolo_plan_t, ninsns), 7},      {"coll", offsetof(kolo_plan_t, coll), 10},
        {"algo", offsetof(kolo_plan_t, algo), 99},         {"src_parts", offsetof(kolo_plan_t, src_parts), 5},
        {"dst_parts", offsetof(kolo_plan_t, dst_parts), 3}};
    for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        kolo_plan_t *plan = full_plan();
        assert_int_equal(kolo_plan_check(plan), KOLO_OK);
        memcpy((char *)plan + damages[i].offset, &damages[i].value, 4);
        if (kolo_plan_check(plan) == KOLO_OK) fail_msg("%s %u was accepted", damages[i].name, damages[i].value);
        kolo_plan_free(plan);
    }
}

static void break_insn(kolo_plan_t *p, int which)
{
    switch (which) {
    case 0:
        p->insns[0].op = KOLO_OP_COUNT;
        break;
    case 1:
        p->insns[0].tx = 4;
        break;
    case 2:
        p->insns[0].tx = p->insns[2].rx;
        break;
    case 3:
        p->insns[0].tx = KOLO_NO_CONN;
        break;
    case 4:
        p->insns[0].src.base = 4;
        break;
    case 5:
        p->insns[0].src.base = -1;
        break;
    case 6:
        p->insns[0].src.n = 0;
        break;
    case 7:
        p->insns[0].src.mod = 5;
        break;
    case 8:
        p->insns[0].src.buf = 7;
        break;
    case 9:
        p->insns[0].flags = KOLO_FLAG_FINAL;
        break;
    case 10:
        p->insns[1].count = 0;
        break;
    case 11:
        p->insns[1].count = 3;
        break; /* DST[5] */
    case 12:
        p->insns[3].count = 0;
        break;
    case 13:
        p->insns[3].op = KOLO_OP_SIGNAL;
        break;
    case 14:
        p->insns[2].rx_stride = 1;
        break;
    case 15:
        p->insns[4].list_count = 3;
        break;
    case 16:
        p->list[0] = p->list[1];
        break;
    case 17:
        p->insns[4].own_place = 0xffff;
        break;
    case 18:
        p->insns[4].own_place = 3;
        break;
    case 19:
        p->insns[4].dst.n = 2;
        break;
    case 20:
        p->insns[6].op = KOLO_OP_SIGNAL;
        break; /* the other lane signals it already */
    case 21:
        p->insns[7].src.n = 1;
        break;
    case 22:
        p->lanes[1].first = 5;
        break;
    case 23:
        p->lanes[1].count = 3;
        break;
    case 24:
        p->conns[0].peer = 1;
        break;
    case 25:
        p->conns[0].peer = 9;
        break;
    case 26:
        p->conns[1] = p->conns[2];
        break;
    case 27:
        p->conns[0].dir = 2;
        break;
    case 28:
        p->insns[7].op = KOLO_OP_SEND, p->insns[7].tx = p->insns[0].tx;
        break; /* two lanes, one connection */
    case 29:
        p->insns[2].dst.stride[0] = INT32_MAX;
        break;
    case 30:
        p->insns[7].op = KOLO_OP_EXPOSE;
        break;
    case 31:
        p->insns[0].rx = p->insns[2].rx;
        break;
    default:
        fail_msg("no such damage");
    }
}

static void the_check_refuses_broken_instructions(void **state)
{
    (void)state;
    for (int i = 0; i < 32; i++) {
        kolo_plan_t *plan = full_plan();
        break_insn(plan, i);
        if (kolo_plan_check(plan) != KOLO_ERR_INTERNAL) fail_msg("damage %d was accepted", i);
        kolo_plan_free(plan);
    }
}

static void chunk_expressions_wrap_both_ways(void **state)
{
    (void)state;
    kolo_segment_t s = {.buf = KOLO_BUF_SRC, .base = 1, .stride = {-2, 5}, .mod = 4, .n = 2};
    assert_int_equal(kolo_segment_chunk(&s, 0, 0, 0), 1);
    assert_int_equal(kolo_segment_chunk(&s, 1, 0, 0), 3);
    assert_int_equal(kolo_segment_chunk(&s, 1, 0, 1), 0);
    assert_int_equal(kolo_segment_chunk(&s, 0, 1, 1), 3);
    kolo_segment_t pass = kolo_seg_pass(-1, -1, 1);
    assert_int_equal(kolo_segment_shape(&pass, 3, 0, 0, 6), 2);
    uint64_t sum = 0;
    for (uint32_t p = 0; p < 7; p++) {
        assert_int_equal(kolo_part_offset(1000, 7, p), sum);
        sum += kolo_part_count(1000, 7, p);
    }
    assert_int_equal(sum, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_parse_back_to_their_values),
        cmocka_unit_test(traits_agree_with_each_other),
        cmocka_unit_test(signatures_differ_and_print),
        cmocka_unit_test(equal_connections_have_one_index),
        cmocka_unit_test(empty_loops_and_lanes_vanish),
        cmocka_unit_test(the_first_error_stays),
        cmocka_unit_test(the_check_refuses_numbers_out_of_range),
        cmocka_unit_test(the_check_refuses_broken_instructions),
        cmocka_unit_test(chunk_expressions_wrap_both_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
