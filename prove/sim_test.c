/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the simulator (times that can be computed by hand, bytes, shared uplinks, a very large ring) and of the
 * trace check.
 */
#include "prove/test_plans.h"
#include "prove/verify.h"
#include "prove/walk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* 1 byte per ns everywhere, nothing else costs. */
static kolo_sim_machine_t plain_machine(void)
{
    return (kolo_sim_machine_t){.local = {.latency_us = 0, .gbps = 1},
                                .remote = {.latency_us = 0, .gbps = 1},
                                .copy_gbps = 1,
                                .slot_bytes = 65536};
}

static void emit_all(kolo_plan_t **plans, test_emit_fn_t emit, uint32_t n, uint32_t root)
{
    for (uint32_t r = 0; r < n; r++) {
        kolo_emit_env_t env = {.nranks = n, .rank = r, .root = root};
        assert_int_equal(emit(&env, &plans[r]), KOLO_OK);
    }
}

static kolo_sim_result_t simulate(test_emit_fn_t emit, uint32_t n, const int *node_of, uint64_t count,
                                  const kolo_sim_machine_t *m)
{
    kolo_plan_t *plans[64];
    kolo_sim_result_t r;
    emit_all(plans, emit, n, 0);
    if (kolo_prove_simulate(&(kolo_sim_case_t){(const kolo_plan_t *const *)plans, n, node_of, count, 1, m}, &r) !=
        KOLO_OK)
        fail_msg("%s", kolo_error_text());
    for (uint32_t k = 0; k < n; k++) kolo_plan_free(plans[k]);
    return r;
}

static void assert_near(double got, double want, double part)
{
    if (got < want * (1 - part) || got > want * (1 + part)) fail_msg("%g us instead of %g", got, want);
}

static void a_chain_takes_a_hop_per_rank(void **state)
{
    (void)state;
    kolo_sim_machine_t m = plain_machine();
    /* 4 chunks of 1000 bytes: the root sends (1 us) and copies (1 us) each; rank 1 receives the last when it is
     * sent (7 us) and takes 1 us for it. */
    kolo_sim_result_t r = simulate(emit_chain, 2, NULL, 4000, &m);
    assert_near(r.time_us, 8, 0.001);
    assert_int_equal(r.local_bytes, 4000);
    m.local.latency_us = 10;
    assert_near(simulate(emit_chain, 2, NULL, 4000, &m).time_us, 48,
                0.001); /* one slot: send, wait, take, four times */
    double three = simulate(emit_chain, 3, NULL, 4000, &m).time_us;
    double nine = simulate(emit_chain, 9, NULL, 4000, &m).time_us;
    assert_near(nine - three, 6 * 12, 0.05); /* each rank between forwards: 10 of latency, copy and copy */
}

/* An exchange: a lane sends, another one receives. */
static kolo_status_t emit_exchange(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_builder_t *b = kolo_builder_open(KOLO_COLL_ALL_GATHER, KOLO_ALGO_DIRECT, env);
    if (!b) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a test plan");
    kolo_builder_grid(b, 2, 1, 1, 2);
    kolo_builder_lane(b);
    kolo_builder_send(b, kolo_builder_tx(b, 1 - env->rank, 0), kolo_seg(KOLO_BUF_SRC, 0, 1));
    kolo_builder_lane(b);
    kolo_builder_recv(b, kolo_builder_rx(b, 1 - env->rank, 0), kolo_seg(KOLO_BUF_DST, 1 - (int32_t)env->rank, 1));
    return kolo_builder_finish(b, plan);
}

static void a_lane_that_waits_leaves_the_core(void **state)
{
    (void)state;
    kolo_sim_machine_t m = plain_machine();
    m.local.latency_us = 10;
    /* both send at once, 4 us; then what has come is taken, 4 us. A core held for the message that is on its way
     * would send after it. */
    assert_near(simulate(emit_exchange, 2, NULL, 4000, &m).time_us, 18, 0.001);
}

static void bytes_are_those_of_the_algorithm(void **state)
{
    (void)state;
    kolo_sim_machine_t m = plain_machine();
    kolo_sim_result_t r = simulate(emit_ring, 8, NULL, 80000, &m);
    assert_int_equal(r.local_bytes, 2 * 7 * 80000); /* 2 (n-1)/n of the data per rank */
    assert_int_equal(r.remote_bytes, 0);
    static const int halves[8] = {0, 0, 0, 0, 1, 1, 1, 1};
    r = simulate(emit_ring, 8, halves, 80000, &m);
    assert_int_equal(r.remote_bytes, 2 * 14 * 10000);
    assert_int_equal(r.max_link_bytes, 14 * 10000);
}

static void an_uplink_is_shared(void **state)
{
    (void)state;
    kolo_sim_machine_t m = plain_machine();
    m.local.gbps = m.copy_gbps = 1000;
    static const int alternating[8] = {0, 1, 0, 1, 0, 1, 0, 1}, halves[8] = {0, 0, 0, 0, 1, 1, 1, 1};
    double crossing = simulate(emit_ring, 8, alternating, 80000, &m).time_us;
    double once = simulate(emit_ring, 8, halves, 80000, &m).time_us;
    /* 14 rounds of 10 us; with four ranks of a node crossing at once, each takes four times as long. */
    assert_near(once, 140, 0.1);
    assert_near(crossing, 4 * 140, 0.1);
}

static void crowded_cores_and_instructions_cost(void **state)
{
    (void)state;
    kolo_sim_machine_t m = plain_machine();
    double free_cores = simulate(emit_ring, 8, NULL, 80000, &m).time_us;
    m.cores = 2;
    assert_near(simulate(emit_ring, 8, NULL, 80000, &m).time_us, 4 * free_cores, 0.05);
    m.cores = 8;
    m.insn_us = 100;
    assert_true(simulate(emit_ring, 8, NULL, 80000, &m).time_us > free_cores + 14 * 100);
}

static void one_rank_stands_for_a_large_ring(void **state)
{
    (void)state;
    kolo_sim_machine_t m = plain_machine();
    m.remote.latency_us = 2;
    int apart[32];
    for (int i = 0; i < 32; i++) apart[i] = i;
    kolo_emit_env_t env = {.nranks = 32, .rank = 5};
    kolo_plan_t *plan;
    kolo_sim_result_t alike, all = simulate(emit_ring, 32, apart, 320000, &m);
    assert_int_equal(emit_ring(&env, &plan), KOLO_OK);
    assert_int_equal(kolo_prove_simulate_alike(plan, 320000, 1, &m, &alike), KOLO_OK);
    assert_near(alike.time_us, all.time_us, 0.01);
    assert_int_equal(alike.remote_bytes, all.remote_bytes);
    kolo_plan_free(plan);
    env.nranks = 100000;
    assert_int_equal(emit_ring(&env, &plan), KOLO_OK);
    assert_int_equal(kolo_prove_simulate_alike(plan, 100000000, 1, &m, &alike), KOLO_OK);
    assert_true(alike.time_us > 2.0 * 99998 * 2 && alike.time_us < 2.0 * 99999 * 10);
    kolo_plan_free(plan);
}

static void mistakes_are_refused(void **state)
{
    (void)state;
    kolo_sim_machine_t m = plain_machine();
    kolo_sim_result_t r;
    kolo_plan_t *plans[3];
    emit_all(plans, emit_ring, 3, 0);
    const kolo_plan_t *const *p = (const kolo_plan_t *const *)plans;
    for (int i = 0; i < 3; i++) plans[i]->depth = 2; /* two slices a chunk: no room to forward into */
    assert_int_equal(kolo_prove_simulate(&(kolo_sim_case_t){p, 3, NULL, 1 << 20, 1, &m}, &r), KOLO_ERR_INTERNAL);
    assert_non_null(strstr(kolo_error_text(), "do not complete"));
    m.copy_gbps = 0;
    assert_int_equal(kolo_prove_simulate(&(kolo_sim_case_t){p, 3, NULL, 1, 1, &m}, &r), KOLO_ERR_INVALID_ARGUMENT);
    for (int i = 0; i < 3; i++) kolo_plan_free(plans[i]);
}

/* ---- traces ---- */

/* What an executor records: connection by connection in another order than the plan's. */
static size_t record(const kolo_plan_t *p, uint32_t tiles, kolo_trace_step_t *steps)
{
    size_t count = 0;
    for (uint32_t c = p->nconns; c-- > 0;)
        for (uint32_t tile = 0; tile < tiles; tile++)
            for (uint32_t l = 0; l < p->nlanes; l++) {
                kolo_cursor_t at;
                kolo_cursor_start(&at);
                for (const kolo_insn_t *in; (in = kolo_cursor_at(&at, p, l)); kolo_cursor_next(&at)) {
                    const kolo_segment_t *g = kolo_insn_payload(in);
                    bool listed = false;
                    for (uint32_t e = 0; e < in->list_count; e++) listed |= p->list[in->list_first + e] == c;
                    if (in->rx != c && in->tx != c && !listed) continue;
                    const kolo_plan_conn_t *k = &p->conns[c];
                    steps[count++] = (kolo_trace_step_t){
                        k->peer, k->dir, k->node,
                        k->lane, g->buf, kolo_segment_chunk(g, kolo_cursor_i(&at), kolo_cursor_j(&at), 0),
                        tile};
                }
            }
    return count;
}

static void a_trace_is_the_plans_or_not(void **state)
{
    (void)state;
    static const test_emit_fn_t emits[] = {emit_ring, emit_direct};
    for (size_t e = 0; e < 2; e++) {
        kolo_plan_t *plan;
        kolo_trace_step_t steps[256], t;
        kolo_emit_env_t env = {.nranks = 5, .rank = 2};
        assert_int_equal(emits[e](&env, &plan), KOLO_OK);
        size_t n = record(plan, 3, steps);
        assert_in_range(n, 20, 256);
        if (kolo_prove_verify_trace(plan, 3, steps, n) != KOLO_OK) fail_msg("%s", kolo_error_text());
        assert_int_equal(kolo_prove_verify_trace(plan, 2, steps, n), KOLO_ERR_INTERNAL);
        assert_int_equal(kolo_prove_verify_trace(plan, 4, steps, n), KOLO_ERR_INTERNAL);
        for (size_t i = 0; i < n; i++) {
            t = steps[i];
            steps[i].chunk ^= 1;
            assert_int_equal(kolo_prove_verify_trace(plan, 3, steps, n), KOLO_ERR_INTERNAL);
            steps[i] = t;
            steps[i].buf = KOLO_BUF_NONE;
            assert_int_equal(kolo_prove_verify_trace(plan, 3, steps, n), KOLO_ERR_INTERNAL);
            steps[i] = t;
            steps[i].peer = 4 - t.peer;
            assert_int_equal(kolo_prove_verify_trace(plan, 3, steps, n), KOLO_ERR_INTERNAL);
            steps[i] = steps[n - 1]; /* one is missing */
            if (i < n - 1) assert_int_equal(kolo_prove_verify_trace(plan, 3, steps, n - 1), KOLO_ERR_INTERNAL);
            steps[i] = t;
        }
        kolo_plan_free(plan);
    }
}

/* ---- cards and switches ---- */

typedef struct {
    kolo_sim_fabric_t fabric;
    double gbps[4];
    uint32_t close[16], nclose[4];
} net_t;

/* `cards` of 1 byte per ns; rank r of a node uses card r, or all of them in turn by lane. */
static void make_net(net_t *net, uint32_t cards, uint32_t nlocal, bool all)
{
    memset(net, 0, sizeof *net);
    for (uint32_t c = 0; c < cards; c++) net->gbps[c] = 1;
    for (uint32_t r = 0; r < nlocal; r++) {
        net->nclose[r] = all ? cards : 1;
        for (uint32_t i = 0; i < cards; i++) net->close[r * cards + i] = all ? i : r % cards;
    }
    net->fabric = (kolo_sim_fabric_t){.cards = cards,
                                      .card_gbps = net->gbps,
                                      .nlocal = nlocal,
                                      .close = net->close,
                                      .nclose = net->nclose,
                                      .oversubscription = 1};
}

/* Each even rank sends all it has to the next one. */
static kolo_status_t emit_pairs(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_builder_t *b = kolo_builder_open(KOLO_COLL_ALL_REDUCE, KOLO_ALGO_DIRECT, env);
    if (!b) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a test plan");
    kolo_builder_grid(b, 1, 1, 1, 1);
    kolo_builder_queue(b, 1, 8);
    kolo_builder_lane(b);
    if (env->rank % 2 == 0)
        kolo_builder_send(b, kolo_builder_tx(b, env->rank + 1, 0), kolo_seg(KOLO_BUF_SRC, 0, 1));
    else
        kolo_builder_recv(b, kolo_builder_rx(b, env->rank - 1, 0), kolo_seg(KOLO_BUF_DST, 0, 1));
    return kolo_builder_finish(b, plan);
}

/* Two ranks of one node send to two of another: one after the other on one card, at once on two. */
static void ranks_share_a_card_or_have_their_own(void **state)
{
    (void)state;
    kolo_sim_machine_t m = plain_machine();
    static const int node_of[] = {0, 1, 0, 1};
    net_t net;
    m.local.gbps = m.copy_gbps = 1e6;
    m.fabric = &net.fabric;
    make_net(&net, 1, 2, false);
    kolo_sim_result_t shared = simulate(emit_pairs, 4, node_of, 1000000, &m);
    make_net(&net, 2, 2, false);
    kolo_sim_result_t own = simulate(emit_pairs, 4, node_of, 1000000, &m);
    assert_near(shared.time_us, 2000, 0.1);
    assert_near(own.time_us, 1000, 0.1);
    assert_int_equal(shared.max_link_bytes, 2000000);
    assert_int_equal(own.max_link_bytes, 1000000);
    assert_int_equal(own.spine_bytes, 0);
}

static void what_leaves_a_leaf_switch_shares_its_way_up(void **state)
{
    (void)state;
    kolo_sim_machine_t m = plain_machine();
    static const int node_of[] = {0, 2, 1, 3}; /* pods of two nodes: both pairs cross */
    net_t net;
    m.local.gbps = m.copy_gbps = 1e6;
    m.fabric = &net.fabric;
    make_net(&net, 1, 1, false);
    net.fabric.pod_nodes = 2;
    for (int over = 1; over <= 4; over *= 2) {
        net.fabric.oversubscription = over; /* up: 2 bytes per ns for both, by that */
        kolo_sim_result_t r = simulate(emit_pairs, 4, node_of, 1000000, &m);
        assert_near(r.time_us, over < 2 ? 1000 : 1000 * over, 0.1);
        assert_int_equal(r.spine_bytes, 2000000);
    }
    net.fabric.oversubscription = 1;
    net.fabric.switch_us = 50;
    static const int inside[] = {0, 1, 2, 3};
    kolo_sim_result_t near = simulate(emit_pairs, 4, inside, 64, &m),
                      far = simulate(emit_pairs, 4, node_of, 64, &m);
    assert_near(far.time_us - near.time_us, 100, 0.01); /* three switches instead of one */
}

static void with_rails_a_card_of_another_number_is_far(void **state)
{
    (void)state;
    kolo_sim_machine_t m = plain_machine();
    static const int node_of[] = {0, 1, 0, 1};
    net_t net;
    m.fabric = &net.fabric;
    make_net(&net, 2, 2, false);
    net.fabric.rails = true;
    assert_int_equal(simulate(emit_pairs, 4, node_of, 1000, &m).spine_bytes, 0);
    static const int crossed[] = {0, 0, 1, 0}; /* ranks 0 and 1 are on one node; 2 has card 0, 3 has card 1 */
    make_net(&net, 2, 4, false);
    net.fabric.rails = true;
    net.close[2 * 2] = 1;
    assert_int_equal(simulate(emit_pairs, 4, crossed, 1000, &m).spine_bytes, 1000);
}

static void a_network_without_sense_is_refused(void **state)
{
    (void)state;
    kolo_sim_machine_t m = plain_machine();
    kolo_sim_result_t r;
    kolo_plan_t *plans[2];
    net_t net;
    emit_all(plans, emit_chain, 2, 0);
    m.fabric = &net.fabric;
    for (int bad = 0; bad < 4; bad++) {
        make_net(&net, 2, 2, true);
        if (bad == 0) net.gbps[1] = 0;
        if (bad == 1) net.close[1] = 2;
        if (bad == 2) net.nclose[0] = 0;
        if (bad == 3) net.fabric.oversubscription = 0.5;
        const kolo_sim_case_t c = {(const kolo_plan_t *const *)plans, 2, (const int[]){0, 1}, 1000, 1, &m};
        assert_int_equal(kolo_prove_simulate(&c, &r), KOLO_ERR_INVALID_ARGUMENT);
    }
    for (int k = 0; k < 2; k++) kolo_plan_free(plans[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_takes_a_hop_per_rank),
        cmocka_unit_test(a_lane_that_waits_leaves_the_core),
        cmocka_unit_test(bytes_are_those_of_the_algorithm),
        cmocka_unit_test(an_uplink_is_shared),
        cmocka_unit_test(crowded_cores_and_instructions_cost),
        cmocka_unit_test(one_rank_stands_for_a_large_ring),
        cmocka_unit_test(ranks_share_a_card_or_have_their_own),
        cmocka_unit_test(what_leaves_a_leaf_switch_shares_its_way_up),
        cmocka_unit_test(with_rails_a_card_of_another_number_is_far),
        cmocka_unit_test(a_network_without_sense_is_refused),
        cmocka_unit_test(mistakes_are_refused),
        cmocka_unit_test(a_trace_is_the_plans_or_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
