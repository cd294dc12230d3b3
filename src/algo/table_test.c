/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of algorithms and the shape of what it emits: rows, refusals, sizes, and that both ends of every
 * connection of every plan exist. That the plans are right is shown by the verifier (tests/verify/sweep.c).
 */
#include "algo/test_shapes.h"
#include "base/test.h"

static kolo_plan_t *emit(const kolo_emit_env_t *env, kolo_coll_t coll, kolo_algo_t algo, uint32_t rank)
{
    kolo_emit_env_t mine = *env;
    kolo_plan_t *plan = NULL;
    mine.rank = rank;
    assert_int_equal(kolo_algo_emit(coll, algo, &mine, &plan), KOLO_OK);
    assert_non_null(plan);
    return plan;
}

static void every_row_is_complete_and_unique(void **state)
{
    (void)state;
    assert_true(kolo_algo_rows > 40);
    for (size_t i = 0; i < kolo_algo_rows; i++) {
        const kolo_algo_row_t *row = &kolo_algos[i];
        assert_true(row->emit && row->usable && row->source && row->source[0]);
        assert_ptr_equal(kolo_algo_find(row->coll, row->algo), row);
    }
    assert_null(kolo_algo_find(KOLO_COLL_BARRIER, KOLO_ALGO_RING));
}

static void every_collective_can_run_anywhere(void **state)
{
    (void)state;
    shape_env_t s;
    for (uint32_t n = 1; n <= 9; n++) {
        for (shape_t shape = 0; shape < SHAPE_COUNT; shape++) {
            if (!shape_make(&s, shape, n)) continue;
            s.env.fanout = s.env.refs = false;
            for (kolo_coll_t coll = 0; coll < KOLO_COLL_COUNT; coll++) {
                uint32_t usable = 0;
                for (size_t i = 0; i < kolo_algo_rows; i++)
                    usable += kolo_algos[i].coll == coll && kolo_algos[i].usable(&s.env);
                assert_true(usable > 0);
            }
        }
    }
}

static void what_is_not_usable_is_refused_with_a_reason(void **state)
{
    (void)state;
    shape_env_t s;
    kolo_plan_t *plan = NULL;
    assert_true(shape_make(&s, SHAPE_ONE_NODE, 6));
    s.env.fanout = s.env.refs = false;
    const struct {
        kolo_coll_t coll;
        kolo_algo_t algo;
    } wrong[] = {
        {KOLO_COLL_ALL_GATHER, KOLO_ALGO_HALVING_DOUBLING}, /* six ranks */
        {KOLO_COLL_ALL_REDUCE, KOLO_ALGO_HIERARCHICAL},     /* one node */
        {KOLO_COLL_BROADCAST, KOLO_ALGO_SINGLE_COPY},       /* no references */
        {KOLO_COLL_BARRIER, KOLO_ALGO_PAT},                 /* no such row */
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(kolo_algo_emit(wrong[i].coll, wrong[i].algo, &s.env, &plan), KOLO_ERR_UNSUPPORTED);
        assert_null(plan);
        assert_non_null(strstr(kolo_error_text(), kolo_plan_algo_name(wrong[i].algo)));
    }
}

static void ways_have_names_that_lead_back(void **state)
{
    kolo_way_t way, list[KOLO_WAYS_MAX];
    size_t by_lines = 0;
    (void)state;
    for (int c = 0; c < KOLO_COLL_P2P; c++) {
        size_t n = kolo_way_all((kolo_coll_t)c, list);
        assert_in_range(n, 2, KOLO_WAYS_MAX - 1); /* none was left out */
        for (size_t i = 0; i < n; i++) {
            assert_true(kolo_way_parse((kolo_coll_t)c, kolo_way_name((kolo_coll_t)c, list[i]), &way));
            assert_true(kolo_way_is(way, list[i]) && kolo_way_exists((kolo_coll_t)c, way));
            assert_in_range(kolo_way_number(way), 0, 254);
            assert_true(kolo_way_is(kolo_way_of_number(kolo_way_number(way)), way));
            by_lines += way.lines;
        }
    }
    assert_int_equal(by_lines, 10); /* a loop for each collective, and one more for all_reduce */
    assert_true(kolo_way_parse(KOLO_COLL_ALL_REDUCE, "flat_two_step", &way));
    assert_true(kolo_way_is(way, (kolo_way_t){KOLO_ALGO_DIRECT, true}));
    assert_false(kolo_way_parse(KOLO_COLL_BARRIER, "flat_two_step", &way));
    assert_true(kolo_way_parse(KOLO_COLL_COUNT, "flat_two_step", &way));
    assert_false(kolo_way_parse(KOLO_COLL_COUNT, "lines", &way));
    assert_int_equal(kolo_way_of_number(255).algo, KOLO_ALGO_COUNT);
}

static void one_rank_copies_and_talks_to_nobody(void **state)
{
    (void)state;
    shape_env_t s;
    assert_true(shape_make(&s, SHAPE_ONE_NODE, 1));
    for (size_t i = 0; i < kolo_algo_rows; i++) {
        if (kolo_algos[i].coll == KOLO_COLL_P2P) continue;
        kolo_plan_t *plan = emit(&s.env, kolo_algos[i].coll, kolo_algos[i].algo, 0);
        assert_int_equal(plan->nconns, 0);
        assert_int_equal(plan->ninsns, kolo_algos[i].coll == KOLO_COLL_BARRIER ? 0 : 1);
        kolo_plan_free(plan);
    }
}

static void ring_all_reduce_is_as_short_at_any_size(void **state)
{
    (void)state;
    kolo_emit_env_t env = {.nranks = 100000, .nnodes = 12500, .lanes = 1};
    kolo_plan_t *plan = emit(&env, KOLO_COLL_ALL_REDUCE, KOLO_ALGO_RING, 77777);
    assert_int_equal(plan->ninsns, 5 + 2 * 2); /* two of the five stand in a loop */
    assert_int_equal(plan->nconns, 2);
    kolo_plan_free(plan);
}

static void logarithmic_algorithms_stay_short(void **state)
{
    (void)state;
    kolo_emit_env_t env = {.nranks = 4096, .nnodes = 512, .lanes = 1};
    const struct {
        kolo_coll_t coll;
        kolo_algo_t algo;
        uint32_t most;
    } rows[] = {
        {KOLO_COLL_ALL_REDUCE, KOLO_ALGO_TREE, 8},
        {KOLO_COLL_ALL_REDUCE, KOLO_ALGO_HALVING_DOUBLING, 2 * 12 * 4},
        {KOLO_COLL_ALL_GATHER, KOLO_ALGO_BRUCK, 12 * 4 + 1},
        {KOLO_COLL_ALL_GATHER, KOLO_ALGO_PAT, 12 * 4 + 1},
        {KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_PAT, 4096}, /* bounded scratch costs it the logarithm */
        {KOLO_COLL_BARRIER, KOLO_ALGO_BRUCK, 12 * 2},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        kolo_plan_t *plan = emit(&env, rows[i].coll, rows[i].algo, 1234);
        assert_in_range(plan->ninsns, 1, rows[i].most);
        kolo_plan_free(plan);
    }
}

/* ---- both ends of every connection ---- */

static bool has_conn(const kolo_plan_t *plan, kolo_dir_t dir, bool node, int peer, uint16_t lane)
{
    for (uint32_t i = 0; i < plan->nconns; i++) {
        const kolo_plan_conn_t *c = &plan->conns[i];
        if (c->dir == dir && c->node == node && c->lane == lane && c->peer == peer) return true;
    }
    return false;
}

static void check_ends(kolo_plan_t *const *plans, const kolo_emit_env_t *env)
{
    for (uint32_t r = 0; r < env->nranks; r++) {
        for (uint32_t i = 0; i < plans[r]->nconns; i++) {
            const kolo_plan_conn_t *c = &plans[r]->conns[i];
            if (c->node && c->dir == KOLO_DIR_TX) {
                for (uint32_t p = 0; p < env->nranks; p++)
                    if (p != r && env->node_of[p] == env->node_of[r])
                        assert_true(has_conn(plans[p], KOLO_DIR_RX, true, (int)r, c->lane));
            } else if (c->node) {
                assert_int_equal(env->node_of[c->peer], env->node_of[r]);
                assert_true(has_conn(plans[c->peer], KOLO_DIR_TX, true, -1, c->lane));
            } else {
                kolo_dir_t other = c->dir == KOLO_DIR_TX ? KOLO_DIR_RX : KOLO_DIR_TX;
                assert_true(has_conn(plans[c->peer], other, false, (int)r, c->lane));
            }
        }
    }
}

static void both_ends_of_every_connection_exist(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {2, 3, 4, 5, 7, 8, 13, 16, 24};
    shape_env_t s;
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        for (shape_t shape = 0; shape < SHAPE_COUNT; shape++) {
            if (!shape_make(&s, shape, sizes[k])) continue;
            s.env.root = sizes[k] / 2;
            for (size_t i = 0; i < kolo_algo_rows; i++) {
                const kolo_algo_row_t *row = &kolo_algos[i];
                if (row->coll == KOLO_COLL_P2P || !row->usable(&s.env)) continue;
                kolo_plan_t *plans[32];
                for (uint32_t r = 0; r < sizes[k]; r++) plans[r] = emit(&s.env, row->coll, row->algo, r);
                check_ends(plans, &s.env);
                for (uint32_t r = 0; r < sizes[k]; r++) {
                    assert_in_range(plans[r]->depth, 1, shape == SHAPE_ONE_NODE ? 2 : 4);
                    kolo_plan_free(plans[r]);
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_complete_and_unique),
        cmocka_unit_test(every_collective_can_run_anywhere),
        cmocka_unit_test(what_is_not_usable_is_refused_with_a_reason),
        cmocka_unit_test(ways_have_names_that_lead_back),
        cmocka_unit_test(one_rank_copies_and_talks_to_nobody),
        cmocka_unit_test(ring_all_reduce_is_as_short_at_any_size),
        cmocka_unit_test(logarithmic_algorithms_stay_short),
        cmocka_unit_test(both_ends_of_every_connection_exist),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
