/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the verifier: right plans pass at many rank counts, and each kind of mistake is named.
 */
#include "prove/test_plans.h"
#include "prove/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_RANKS 300

typedef struct {
    kolo_plan_t *plans[MAX_RANKS];
    uint32_t n;
} set_t;

static void emit_all(set_t *s, test_emit_fn_t emit, uint32_t n, uint32_t root)
{
    s->n = n;
    for (uint32_t r = 0; r < n; r++) {
        kolo_emit_env_t env = {.nranks = n, .rank = r, .root = root};
        assert_int_equal(emit(&env, &s->plans[r]), KOLO_OK);
    }
}

static void free_all(set_t *s)
{
    for (uint32_t r = 0; r < s->n; r++) kolo_plan_free(s->plans[r]);
}

static kolo_status_t verify(const set_t *s, bool in_place)
{
    kolo_verify_options_t o = {.in_place = in_place, .random_seeds = 2};
    return kolo_prove_verify((const kolo_plan_t *const *)s->plans, s->n, &o);
}

static void expect_ok(const set_t *s, bool in_place)
{
    if (verify(s, in_place) != KOLO_OK) fail_msg("%s", kolo_error_text());
}

static void expect_error(const set_t *s, bool in_place, const char *text)
{
    if (verify(s, in_place) != KOLO_ERR_INTERNAL) fail_msg("passed, should say '%s'", text);
    if (!strstr(kolo_error_text(), text)) fail_msg("says '%s' instead of '%s'", kolo_error_text(), text);
}

static void right_plans_pass(void **state)
{
    (void)state;
    static const test_emit_fn_t emits[] = {emit_ring, emit_direct, emit_chain, emit_references, emit_barrier};
    for (size_t e = 0; e < sizeof(emits) / sizeof(emits[0]); e++)
        for (uint32_t n = 2; n <= 17; n++)
            for (int in_place = 0; in_place < 2; in_place++) {
                set_t s;
                emit_all(&s, emits[e], n, n / 2);
                expect_ok(&s, in_place);
                free_all(&s);
            }
}

static void different_plans_may_follow_each_other(void **state)
{
    (void)state;
    static const test_emit_fn_t emits[] = {emit_ring, emit_direct, emit_chain, emit_references, emit_barrier};
    for (size_t e = 0; e < 5; e++)
        for (size_t f = 0; f < 5; f++) {
            set_t s, t;
            emit_all(&s, emits[e], 5, 0);
            emit_all(&t, emits[f], 5, 3);
            kolo_verify_options_t o = {.next = (const kolo_plan_t *const *)t.plans};
            if (kolo_prove_verify((const kolo_plan_t *const *)s.plans, 5, &o) != KOLO_OK)
                fail_msg("%zu then %zu: %s", e, f, kolo_error_text());
            free_all(&s);
            free_all(&t);
        }
}

static kolo_insn_t *find(kolo_plan_t *p, kolo_opcode_t op)
{
    for (uint32_t i = 0; i < p->ninsns; i++)
        if (p->insns[i].op == op) return &p->insns[i];
    fail_msg("no %s in the plan", kolo_plan_opcode_name(op));
    return NULL;
}

typedef struct {
    test_emit_fn_t emit;
    void (*damage)(set_t *s);
    bool in_place;
    const char *says;
} mistake_t;

static void other_peer(set_t *s)
{
    s->plans[2]->conns[0].peer = 0;
}
static void other_chunk(set_t *s)
{
    find(s->plans[2], KOLO_OP_SEND)->src.base = 3;
}
static void own_input_twice(set_t *s)
{
    kolo_insn_t *in = find(s->plans[1], KOLO_OP_RECV_REDUCE_SEND);
    in->op = KOLO_OP_RECV_SEND;
    in->dst = kolo_seg_pass(in->src.base, -1, 1);
    in->src = kolo_seg_none();
}
static void not_final(set_t *s)
{
    find(s->plans[3], KOLO_OP_RECV_REDUCE_COPY_SEND)->flags = 0;
}
static void no_wait(set_t *s)
{
    find(s->plans[0], KOLO_OP_WAIT)->event = 0; /* waits for its own signal instead of the other lane's */
}
static void no_signal(set_t *s)
{
    find(s->plans[3], KOLO_OP_SIGNAL)->op = KOLO_OP_WAIT;
}
static void signals_ahead(
    set_t *s) /* two signals a tile, one wait: the other lane runs ahead from the third tile on */
{
    for (uint32_t r = 0; r < s->n; r++) {
        kolo_plan_t *p = s->plans[r];
        for (uint32_t i = p->ninsns; i-- > 0;)
            if (p->insns[i].op == KOLO_OP_WAIT && p->insns[i].event == 1) {
                memmove(&p->insns[i], &p->insns[i + 1], (p->ninsns - i - 1) * sizeof(*p->insns));
                p->insns[p->ninsns - 1] = (kolo_insn_t){
                    .op = KOLO_OP_SIGNAL, .event = 1, .tx = KOLO_NO_CONN, .rx = KOLO_NO_CONN, .own_place = 0xffff};
                p->lanes[0].count--;
                p->lanes[1].first--;
                p->lanes[1].count++;
            }
    }
}
static void no_release(set_t *s)
{
    kolo_plan_t *p = s->plans[1];
    for (uint32_t i = 0; i < p->ninsns; i++)
        if (p->insns[i].op == KOLO_OP_RELEASE) p->insns[i].tx_stride = 0;
}
static void wrong_list_order(set_t *s)
{
    uint16_t *l = s->plans[2]->list, t = l[0];
    l[0] = l[1];
    l[1] = t;
}
static void wrong_operand_order(set_t *s) /* reduced once and passed on: only rank order minds */
{
    find(s->plans[2], KOLO_OP_RECV_REDUCE_COPY_SEND)->flags |= KOLO_FLAG_RX_FIRST;
}
static void barrier_without_last_round(set_t *s)
{
    for (uint32_t r = 0; r < s->n; r++) s->plans[r]->lanes[0].count = s->plans[r]->ninsns = 4;
}
static void source_is_written(set_t *s)
{
    find(s->plans[1], KOLO_OP_RECV)->dst.buf = KOLO_BUF_SRC;
}
/* Everyone gets the root's DST. */
static kolo_status_t emit_star(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_builder_t *b = kolo_builder_open(KOLO_COLL_BROADCAST, KOLO_ALGO_SINGLE_COPY, env);
    if (!b) return KOLO_ERR_NO_MEMORY;
    if (env->rank == env->root) {
        kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, 0, 1), kolo_seg(KOLO_BUF_SRC, 0, 1));
        uint16_t tx = kolo_builder_node_tx(b, 0);
        kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_EXPOSE);
        in->tx = tx;
        in->src = kolo_seg(KOLO_BUF_DST, 0, 1);
        kolo_builder_insn(b, KOLO_OP_RELEASE)->tx = tx;
    } else {
        kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_GET);
        in->rx = kolo_builder_node_rx(b, env->root, 0);
        in->dst = kolo_seg(KOLO_BUF_DST, 0, 1);
    }
    return kolo_builder_finish(b, plan);
}

static void exposed_before_written(set_t *s)
{
    kolo_insn_t *in = s->plans[0]->insns, t = in[0];
    in[0] = in[1];
    in[1] = t;
}

static void other_row(set_t *s) /* the end of the chain takes all chunks at once, the others one by one */
{
    kolo_plan_t *p = s->plans[4];
    p->insns[0] = p->insns[1];
    p->insns[0].dst = kolo_seg(KOLO_BUF_DST, 0, 4);
    p->ninsns = p->lanes[0].count = 1;
}

static void mistakes_are_named(void **state)
{
    (void)state;
    static const mistake_t mistakes[] = {
        {emit_ring, other_peer, false, "does not"},
        {emit_ring, other_chunk, false, "as long as grid chunk 3"},
        {emit_ring, own_input_twice, false, "FINAL is set for a value that does not hold the input of every rank"},
        {emit_ring, not_final, false, "was not written as FINAL"},
        {emit_ring, source_is_written, false, "SRC"},
        {emit_direct, no_wait, false, "at no ordered time"},
        {emit_direct, signals_ahead, false, "at no ordered time"},
        {emit_chain, other_row, false, "of an instruction with 1 chunks, expected is 0 of 4"},
        {emit_direct, no_signal, false, "nothing can move any more"},
        {emit_references, no_release, false, "were not RELEASEd"},
        {emit_star, exposed_before_written, false, "at no ordered time"},
        {emit_barrier, barrier_without_last_round, false, "surely entered"},
    };
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        set_t s;
        emit_all(&s, mistakes[i].emit, 5, 0);
        mistakes[i].damage(&s);
        if (mistakes[i].emit == emit_barrier)
            for (uint32_t r = 0; r < s.n; r++) s.plans[r]->nconns = 4;
        expect_error(&s, mistakes[i].in_place, mistakes[i].says);
        free_all(&s);
    }
}

static void rank_order_is_asked_for(void **state)
{
    (void)state;
    kolo_verify_options_t o = {.rank_order = true};
    set_t s;
    emit_all(&s, emit_direct, 5, 0);
    assert_int_equal(kolo_prove_verify((const kolo_plan_t *const *)s.plans, 5, &o), KOLO_OK);
    wrong_list_order(&s);
    assert_int_equal(kolo_prove_verify((const kolo_plan_t *const *)s.plans, 5, &o), KOLO_ERR_INTERNAL);
    assert_non_null(strstr(kolo_error_text(), "not reduced in rank order"));
    free_all(&s);
    emit_all(&s, emit_ring, 5, 0);
    wrong_operand_order(&s);
    expect_ok(&s, false);
    free_all(&s);
}

/* Two ranks that both send two chunks before they receive: fits a queue of two pieces, not of one. */
static kolo_status_t emit_exchange(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t peer = 1 - env->rank;
    kolo_builder_t *b = kolo_builder_open(KOLO_COLL_ALL_TO_ALL, KOLO_ALGO_PAIRWISE, env);
    if (!b) return KOLO_ERR_NO_MEMORY;
    kolo_builder_grid(b, 2, 2, 2, 2);
    kolo_builder_queue(b, 1, 2);
    int32_t me = (int32_t)env->rank * 2, other = (int32_t)peer * 2;
    kolo_builder_send(b, kolo_builder_tx(b, peer, 0), kolo_seg(KOLO_BUF_SRC, other, 2));
    kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, me, 2), kolo_seg(KOLO_BUF_SRC, me, 2));
    kolo_builder_recv(b, kolo_builder_rx(b, peer, 0), kolo_seg(KOLO_BUF_DST, other, 2));
    return kolo_builder_finish(b, plan);
}

static void a_queue_too_short_is_a_deadlock(void **state)
{
    (void)state;
    set_t s;
    emit_all(&s, emit_exchange, 2, 0);
    expect_ok(&s, false);
    s.plans[0]->depth = s.plans[1]->depth = 1;
    expect_error(&s, false, "nothing can move any more");
    s.plans[0]->depth = s.plans[1]->depth = 2;
    s.plans[0]->slices = s.plans[1]->slices = 2; /* more slots for the same chunks */
    expect_error(&s, false, "nothing can move any more");
    free_all(&s);
}

static void empty_parts_are_skipped_at_both_ends(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 32; bits++) {
        uint8_t empty = (uint8_t)bits;
        kolo_verify_options_t o = {.empty_parts = &empty, .schedules = 1, .seed = bits};
        set_t s;
        emit_all(&s, emit_references, 5, 0);
        if (kolo_prove_verify((const kolo_plan_t *const *)s.plans, 5, &o) != KOLO_OK)
            fail_msg("%s", kolo_error_text());
        free_all(&s);
        emit_all(&s, emit_ring, 5, 0);
        if (kolo_prove_verify((const kolo_plan_t *const *)s.plans, 5, &o) != KOLO_OK)
            fail_msg("%s", kolo_error_text());
        free_all(&s);
    }
}

static void large_rank_counts_are_quick(void **state)
{
    (void)state;
    kolo_verify_options_t o = {.schedules = 1, .tiles = 2};
    set_t s;
    emit_all(&s, emit_ring, 255, 0);
    if (kolo_prove_verify((const kolo_plan_t *const *)s.plans, 255, &o) != KOLO_OK)
        fail_msg("%s", kolo_error_text());
    free_all(&s);
    emit_all(&s, emit_direct, 128, 0);
    if (kolo_prove_verify((const kolo_plan_t *const *)s.plans, 128, &o) != KOLO_OK)
        fail_msg("%s", kolo_error_text());
    free_all(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_plans_pass),
        cmocka_unit_test(different_plans_may_follow_each_other),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(rank_order_is_asked_for),
        cmocka_unit_test(a_queue_too_short_is_a_deadlock),
        cmocka_unit_test(empty_parts_are_skipped_at_both_ends),
        cmocka_unit_test(large_rank_counts_are_quick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
