/* SPDX-License-Identifier: Apache-2.0
 *
 * What the plans move, counted from their instructions, against what theory says of each algorithm: data sent per
 * rank, peers, and data that crosses between nodes. And the forms that the sweep in tests/verify does not take:
 * several lanes, another ring, several nodes without fan-out.
 */
#include "algo/test_shapes.h"
#include "base/test.h"
#include "prove/verify.h"

#define UNIT 5040u /* elements of a part; divides evenly for the grids below */

typedef struct {
    uint64_t pair, node, remote; /* elements put into PAIR and NODE connections; PAIR ones to another node */
    uint64_t messages;           /* chunks put into any connection */
    uint32_t peers;              /* PAIR connections written to */
} traffic_t;

static kolo_plan_t *emit(const kolo_emit_env_t *env, kolo_coll_t coll, kolo_algo_t algo, uint32_t rank)
{
    kolo_emit_env_t mine = *env;
    kolo_plan_t *plan = NULL;
    mine.rank = rank;
    if (kolo_algo_emit(coll, algo, &mine, &plan) != KOLO_OK) fail_msg("%s", kolo_error_text());
    return plan;
}

/* Elements in one chunk: `total` of the larger buffer in equal chunks. */
static uint64_t chunk_elements(const kolo_plan_t *plan, uint64_t total)
{
    uint64_t chunks = (uint64_t)plan->nparts * plan->nsubs;
    assert_int_equal(total % chunks, 0);
    return total / chunks;
}

static void count_insn(const kolo_plan_t *plan, const int *node_of, const kolo_insn_t *in, uint64_t turns,
                       uint64_t chunk, traffic_t *t)
{
    if (in->tx == KOLO_NO_CONN || in->op == KOLO_OP_RELEASE || in->op == KOLO_OP_EXPOSE) return;
    const kolo_plan_conn_t *c = &plan->conns[in->tx];
    uint64_t chunks = turns * (in->src.buf != KOLO_BUF_NONE ? in->src.n : in->dst.n);
    t->messages += chunks;
    if (c->node)
        t->node += chunks * chunk;
    else
        t->pair += chunks * chunk;
    if (!c->node && node_of[c->peer] != node_of[plan->rank]) t->remote += chunks * chunk;
}

/* What a rank sends in one call whose larger buffer has `total` elements. No algorithm nests loops around a
 * send. */
static traffic_t traffic(const kolo_emit_env_t *env, kolo_coll_t coll, kolo_algo_t algo, uint32_t rank,
                         uint64_t total)
{
    kolo_plan_t *plan = emit(env, coll, algo, rank);
    traffic_t t = {0};
    uint64_t turns = 1;
    for (uint32_t i = 0; i < plan->ninsns; i++) {
        const kolo_insn_t *in = &plan->insns[i];
        if (in->op == KOLO_OP_LOOP || in->op == KOLO_OP_END)
            turns = in->op == KOLO_OP_LOOP ? in->count : 1;
        else
            count_insn(plan, env->node_of, in, turns, chunk_elements(plan, total), &t);
    }
    for (uint32_t i = 0; i < plan->nconns; i++)
        t.peers += plan->conns[i].dir == KOLO_DIR_TX && !plan->conns[i].node;
    kolo_plan_free(plan);
    return t;
}

static uint32_t log2_up(uint32_t n)
{
    return n > 1 ? 32 - (uint32_t)__builtin_clz(n - 1) : 0;
}

static void rings_and_halving_send_the_least(void **state)
{
    (void)state;
    shape_env_t s;
    for (uint32_t n = 2; n <= 16; n++) {
        assert_true(shape_make(&s, SHAPE_ONE_NODE, n));
        for (uint32_t r = 0; r < n; r++) {
            traffic_t t = traffic(&s.env, KOLO_COLL_ALL_REDUCE, KOLO_ALGO_RING, r, UNIT * n);
            assert_int_equal(t.pair, 2 * (n - 1) * UNIT); /* 2 (n-1)/n of the buffer */
            assert_int_equal(t.messages, 2 * (n - 1));
            assert_int_equal(t.peers, 1);
            t = traffic(&s.env, KOLO_COLL_ALL_GATHER, KOLO_ALGO_RING, r, UNIT * n);
            assert_int_equal(t.pair, (n - 1) * UNIT);
            t = traffic(&s.env, KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_RING, r, UNIT * n);
            assert_int_equal(t.pair, (n - 1) * UNIT);
            if (n & (n - 1)) continue;
            t = traffic(&s.env, KOLO_COLL_ALL_REDUCE, KOLO_ALGO_HALVING_DOUBLING, r, UNIT * n);
            assert_int_equal(t.pair, 2 * (n - 1) * UNIT);
            assert_int_equal(t.peers, log2_up(n));
        }
    }
}

static void direct_sends_inputs_to_pairs_and_results_to_all_at_once(void **state)
{
    (void)state;
    shape_env_t s;
    for (uint32_t n = 2; n <= 16; n++) {
        assert_true(shape_make(&s, SHAPE_ONE_NODE, n));
        traffic_t t = traffic(&s.env, KOLO_COLL_ALL_REDUCE, KOLO_ALGO_DIRECT, n - 1, UNIT * n);
        assert_int_equal(t.pair, (n - 1) * UNIT);
        assert_int_equal(t.node, UNIT);
        t = traffic(&s.env, KOLO_COLL_ALL_REDUCE, KOLO_ALGO_ONE_STEP, n - 1, UNIT);
        assert_int_equal(t.pair, 0);
        assert_int_equal(t.node, UNIT);
        assert_int_equal(t.messages, 1);
        t = traffic(&s.env, KOLO_COLL_BROADCAST, KOLO_ALGO_ONE_STEP, 0, UNIT);
        assert_int_equal(t.pair + t.node, UNIT);
        t = traffic(&s.env, KOLO_COLL_ALL_REDUCE, KOLO_ALGO_SINGLE_COPY, 0, UNIT * n);
        assert_int_equal(t.pair, n == 2 ? 0 : (n - 1) * UNIT); /* results travel by reference; of two, inputs too */
        t = traffic(&s.env, KOLO_COLL_REDUCE, KOLO_ALGO_SINGLE_COPY, 0, UNIT * n);
        assert_int_equal(t.pair, n == 2 ? 0 : (n - 1) * UNIT);
        s.env.fanout = false;
        t = traffic(&s.env, KOLO_COLL_ALL_REDUCE, KOLO_ALGO_DIRECT, n - 1, UNIT * n);
        assert_int_equal(t.pair, 2 * (n - 1) * UNIT);
        t = traffic(&s.env, KOLO_COLL_ALL_REDUCE, KOLO_ALGO_ONE_STEP, n - 1, UNIT);
        assert_int_equal(t.pair, (uint64_t)(n - 1) * UNIT);
    }
}

/* Two trees of n - 1 links, half of the data each, up and down; nobody sends more than twice the buffer. */
static void double_tree_shares_the_work(void **state)
{
    (void)state;
    shape_env_t s;
    for (uint32_t n = 2; n <= 33; n++) {
        uint64_t sum = 0;
        assert_true(shape_make(&s, SHAPE_ONE_NODE, n));
        for (uint32_t r = 0; r < n; r++) {
            traffic_t t = traffic(&s.env, KOLO_COLL_ALL_REDUCE, KOLO_ALGO_TREE, r, UNIT);
            assert_in_range(t.pair, 0, 2 * UNIT);
            sum += t.pair;
            t = traffic(&s.env, KOLO_COLL_BROADCAST, KOLO_ALGO_TREE, r, UNIT);
            assert_in_range(t.pair, 0, UNIT);
        }
        assert_int_equal(sum, 2 * (uint64_t)(n - 1) * UNIT);
    }
}

static void log_step_algorithms_have_few_peers(void **state)
{
    (void)state;
    shape_env_t s;
    for (uint32_t n = 2; n <= 40; n++) {
        uint64_t hops = 0;
        for (uint32_t j = 1; j < n; j++) hops += (uint32_t)__builtin_popcount(j);
        assert_true(shape_make(&s, SHAPE_ONE_NODE, n));
        const struct {
            kolo_coll_t coll;
            kolo_algo_t algo;
            uint64_t parts;
        } rows[] = {
            {KOLO_COLL_ALL_GATHER, KOLO_ALGO_BRUCK, n - 1},
            {KOLO_COLL_ALL_GATHER, KOLO_ALGO_PAT, n - 1},
            {KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_PAT, n - 1},
            {KOLO_COLL_ALL_TO_ALL, KOLO_ALGO_BRUCK, hops},
        };
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            traffic_t t = traffic(&s.env, rows[i].coll, rows[i].algo, n / 2, UNIT * n);
            assert_int_equal(t.pair, rows[i].parts * UNIT);
            assert_int_equal(t.peers, log2_up(n));
        }
        traffic_t t = traffic(&s.env, KOLO_COLL_ALL_TO_ALL, KOLO_ALGO_PAIRWISE, n / 2, UNIT * n);
        assert_int_equal(t.pair, (n - 1) * UNIT);
        assert_int_equal(traffic(&s.env, KOLO_COLL_BARRIER, KOLO_ALGO_BRUCK, 0, 1).messages, log2_up(n));
    }
}

/* Elements that all ranks together send to other nodes. */
static uint64_t crossing(const kolo_emit_env_t *env, kolo_coll_t coll, kolo_algo_t algo, uint64_t total)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < env->nranks; r++) sum += traffic(env, coll, algo, r, total).remote;
    return sum;
}

static void hierarchical_crosses_between_nodes_as_little_as_possible(void **state)
{
    (void)state;
    shape_env_t s;
    for (uint32_t n = 4; n <= 14; n += 2) {
        for (shape_t shape = SHAPE_PAIRS; shape <= SHAPE_UNEVEN; shape++) {
            assert_true(shape_make(&s, shape, n));
            uint64_t nodes = s.env.nnodes, rails = 1;
            for (uint32_t v = 0; v < nodes; v++)
                if ((uint64_t)s.size[v] > rails) rails = (uint64_t)s.size[v];
            uint64_t total = rails * nodes * UNIT;
            assert_int_equal(crossing(&s.env, KOLO_COLL_ALL_REDUCE, KOLO_ALGO_HIERARCHICAL, total),
                             2 * (nodes - 1) * total); /* 2 (N-1)/N per node */
            assert_int_equal(crossing(&s.env, KOLO_COLL_BROADCAST, KOLO_ALGO_HIERARCHICAL, UNIT),
                             (nodes - 1) * UNIT);
            /* every part enters (a sum of it leaves) every other node once */
            assert_int_equal(crossing(&s.env, KOLO_COLL_ALL_GATHER, KOLO_ALGO_HIERARCHICAL, n * UNIT),
                             n * (nodes - 1) * UNIT);
            assert_int_equal(crossing(&s.env, KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_HIERARCHICAL, n * UNIT),
                             n * (nodes - 1) * UNIT);
        }
    }
}

static void verify_form(const kolo_algo_row_t *row, const kolo_emit_env_t *env)
{
    kolo_plan_t *plans[SHAPE_MOST_RANKS];
    kolo_verify_options_t options = {.in_place = row->in_place,
                                     .rank_order = kolo_coll_reduces(row->coll) && !row->commutative,
                                     .one_fold = row->one_fold || (row->fold_of_two && env->nranks == 2),
                                     .schedules = 2,
                                     .node_of = env->node_of};
    for (uint32_t r = 0; r < env->nranks; r++) plans[r] = emit(env, row->coll, row->algo, r);
    if (kolo_prove_verify((const kolo_plan_t *const *)plans, env->nranks, &options) != KOLO_OK)
        fail_msg("%s by %s, %u ranks, %u nodes, root %u, lanes %u: %s", kolo_coll_name(row->coll),
                 kolo_plan_algo_name(row->algo), env->nranks, env->nnodes, env->root, env->lanes,
                 kolo_error_text());
    for (uint32_t r = 0; r < env->nranks; r++) kolo_plan_free(plans[r]);
}

static void every_row_holds_without_fan_out_on_other_rings_and_lanes(void **state)
{
    (void)state;
    shape_env_t s;
    for (uint32_t n = 2; n <= 7; n++) {
        for (shape_t shape = 0; shape < SHAPE_COUNT; shape++) {
            if (!shape_make(&s, shape, n)) continue;
            s.env.fanout = false;
            s.env.rings = s.rings;
            s.env.nrings = 2;
            s.env.lanes = 3;
            s.env.root = n - 1;
            for (size_t i = 0; i < kolo_algo_rows; i++)
                if (kolo_algos[i].coll != KOLO_COLL_P2P && kolo_algos[i].usable(&s.env))
                    verify_form(&kolo_algos[i], &s.env);
        }
    }
}

/* config.order: what may be chosen is one fold of all ranks' inputs in their order; there is something for all that
 * reduce, and the others are refused, also when they are forced. */
static void in_rank_order_each_result_is_one_fold(void **state)
{
    (void)state;
    shape_env_t s;
    for (uint32_t n = 1; n <= 16; n++) {
        for (shape_t shape = 0; shape < SHAPE_COUNT; shape++) {
            if (!shape_make(&s, shape, n)) continue;
            uint32_t found[KOLO_COLL_COUNT] = {0};
            s.env.one_fold = true;
            s.env.root = n / 2;
            for (size_t i = 0; i < kolo_algo_rows; i++) {
                const kolo_algo_row_t *row = &kolo_algos[i];
                kolo_plan_t *plan;
                if (!kolo_coll_reduces(row->coll) || !row->usable(&s.env)) continue;
                if (kolo_algo_usable(row, &s.env)) {
                    found[row->coll]++;
                    verify_form(row, &s.env);
                } else {
                    s.env.rank = 0;
                    assert_int_equal(kolo_algo_emit(row->coll, row->algo, &s.env, &plan), KOLO_ERR_UNSUPPORTED);
                    assert_non_null(strstr(kolo_error_text(), "rank order"));
                }
            }
            for (int c = 0; c < KOLO_COLL_COUNT; c++)
                assert_true(found[c] > 0 || !kolo_coll_reduces((kolo_coll_t)c));
        }
    }
}

/* Sums in orders of their own: the verifier tells them apart. */
static void the_verifier_refuses_what_is_not_one_fold(void **state)
{
    (void)state;
    shape_env_t s;
    static const kolo_algo_t others[] = {KOLO_ALGO_RING, KOLO_ALGO_TREE, KOLO_ALGO_HALVING_DOUBLING};
    kolo_verify_options_t options = {.one_fold = true, .schedules = 1};
    assert_true(shape_make(&s, SHAPE_ONE_NODE, 5));
    options.node_of = s.env.node_of;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        kolo_plan_t *plans[5];
        for (uint32_t r = 0; r < 5; r++) plans[r] = emit(&s.env, KOLO_COLL_ALL_REDUCE, others[i], r);
        assert_int_not_equal(kolo_prove_verify((const kolo_plan_t *const *)plans, 5, &options), KOLO_OK);
        assert_non_null(strstr(kolo_error_text(), "not one fold"));
        for (uint32_t r = 0; r < 5; r++) kolo_plan_free(plans[r]);
    }
}

static void lanes_go_by_rings_of_their_own(void **state)
{
    (void)state;
    shape_env_t s;
    shape_make(&s, SHAPE_ONE_NODE, 5);
    s.env.rings = s.rings;
    s.env.nrings = s.env.lanes = 2;
    kolo_plan_t *plan = emit(&s.env, KOLO_COLL_ALL_REDUCE, KOLO_ALGO_RING, 0);
    int32_t next[2] = {-1, -1}, prev[2] = {-1, -1};
    for (uint32_t i = 0; i < plan->nconns; i++) {
        const kolo_plan_conn_t *c = &plan->conns[i];
        *(c->dir == KOLO_DIR_TX ? &next[c->lane] : &prev[c->lane]) = c->peer;
    }
    assert_true(next[0] >= 0 && prev[0] >= 0 && next[0] != prev[0]);
    assert_int_equal(next[1], prev[0]); /* the second is the first one backwards */
    assert_int_equal(prev[1], next[0]);
    kolo_plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rings_and_halving_send_the_least),
        cmocka_unit_test(direct_sends_inputs_to_pairs_and_results_to_all_at_once),
        cmocka_unit_test(double_tree_shares_the_work),
        cmocka_unit_test(log_step_algorithms_have_few_peers),
        cmocka_unit_test(hierarchical_crosses_between_nodes_as_little_as_possible),
        cmocka_unit_test(every_row_holds_without_fan_out_on_other_rings_and_lanes),
        cmocka_unit_test(in_rank_order_each_result_is_one_fold),
        cmocka_unit_test(the_verifier_refuses_what_is_not_one_fold),
        cmocka_unit_test(lanes_go_by_rings_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
