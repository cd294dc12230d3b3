/* SPDX-License-Identifier: Apache-2.0
 *
 * Direct, two steps: everyone with everyone. Step one brings part p of every input to rank p, which reduces them in
 * rank order; step two hands the finished part to all by one fan-out write (inside a host) or a message each. Two
 * lanes, so that copying inputs in runs one tile ahead of the reduction; queues are short so that slots stay in
 * cache. Source: the reduce-scatter + all-gather schedule of R. Rabenseifner, "Optimization of collective reduction
 * operations", ICCS 2004, with the direct exchange that shared memory allows (as in XHC and in GPU "two-shot").
 * Short calls follow the all_reduce by loops over lines (exec/host/flat_two.c).
 *
 * With many ranks on a host one of them is always late (0073), so as little as can be waits for others: there an
 * all_reduce takes the results in a lane of its own, else no rank could reduce a tile before it had everybody's
 * results of the last one; and a broadcast's root hands out the parts by queues that are long enough for all.
 */
#include "algo/emit.h"

#define MANY 16u

static bool is_many(const kolo_emit_env_t *env)
{
    return kolo_emit_has_fan(env) && env->nranks > MANY;
}

/* Results travel on lane 1 where they would share a connection with the inputs of another lane. */
static uint32_t result_lane(const kolo_emit_env_t *env)
{
    return kolo_emit_has_fan(env) ? 0 : 1;
}

/* Sends part p to rank p, for all p but me, each rank starting with its successor so that nobody is everybody's
 * first. */
static void send_parts(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t lane)
{
    kolo_builder_lane(b);
    for (uint32_t k = 1; k < env->nranks; k++) {
        uint32_t p = (env->rank + k) % env->nranks;
        kolo_builder_send(b, kolo_builder_tx(b, p, lane), kolo_seg(KOLO_BUF_SRC, (int32_t)p, 1));
    }
}

static void reduce_mine(kolo_builder_t *b, const kolo_emit_env_t *env, uint16_t tx, kolo_segment_t dst)
{
    uint16_t first = kolo_emit_list_pairs(b, env, 0);
    kolo_emit_reduce_many(b, (kolo_rx_list_t){first, env->nranks - 1, env->rank}, tx, dst,
                          kolo_seg(KOLO_BUF_SRC, (int32_t)env->rank, 1), KOLO_FLAG_FINAL);
}

/* Receives DST[p] from every other p by its spread. */
static void recv_parts(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t lane)
{
    for (uint32_t k = 1; k < env->nranks; k++) {
        uint32_t p = (env->rank + k) % env->nranks;
        kolo_builder_recv(b, kolo_emit_spread_rx(b, env, p, lane), kolo_seg(KOLO_BUF_DST, (int32_t)p, 1));
    }
}

kolo_status_t kolo_direct_all_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks;
    kolo_segment_t mine = kolo_seg(KOLO_BUF_DST, (int32_t)env->rank, 1);
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_REDUCE, KOLO_ALGO_DIRECT, env, &b));
    kolo_builder_grid(b, n, 1, n, n);
    send_parts(b, env, 0);
    kolo_builder_lane(b);
    if (kolo_emit_has_fan(env)) {
        reduce_mine(b, env, kolo_builder_node_tx(b, 0), mine);
    } else {
        reduce_mine(b, env, KOLO_NO_CONN, mine);
        kolo_emit_spread(b, env, result_lane(env), mine);
    }
    if (is_many(env)) kolo_builder_lane(b);
    recv_parts(b, env, result_lane(env));
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_direct_reduce_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_DIRECT, env, &b));
    kolo_builder_grid(b, env->nranks, 1, env->nranks, 1);
    send_parts(b, env, 0);
    kolo_builder_lane(b);
    reduce_mine(b, env, KOLO_NO_CONN, kolo_seg(KOLO_BUF_DST, 0, 1));
    return kolo_builder_finish(b, plan);
}

/* Has every rank reduce its part; the root collects the parts. */
kolo_status_t kolo_direct_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_REDUCE, KOLO_ALGO_DIRECT, env, &b));
    kolo_builder_grid(b, n, 1, n, n);
    send_parts(b, env, 0);
    kolo_builder_lane(b);
    if (env->rank == env->root) {
        reduce_mine(b, env, KOLO_NO_CONN, kolo_seg(KOLO_BUF_DST, (int32_t)env->rank, 1));
        for (uint32_t k = 1; k < n; k++) {
            uint32_t p = (env->rank + k) % n;
            kolo_builder_recv(b, kolo_builder_rx(b, p, 1), kolo_seg(KOLO_BUF_DST, (int32_t)p, 1));
        }
    } else {
        kolo_builder_scratch(b, 1);
        reduce_mine(b, env, kolo_builder_tx(b, env->root, 1), kolo_seg_scratch(0, 1, (int32_t)env->rank));
    }
    return kolo_builder_finish(b, plan);
}

/* Scatters, then everyone fans its part out: the root writes the data once and reads none of it twice. (The root
 * takes its own copy of the others' parts from their fan-outs: a NODE connection is read by all.) */
kolo_status_t kolo_direct_broadcast(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, root = env->root, scatter = is_many(env) ? KOLO_SCATTER_LANE : 0;
    kolo_segment_t mine = kolo_seg(KOLO_BUF_DST, (int32_t)env->rank, 1);
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_BROADCAST, KOLO_ALGO_DIRECT, env, &b));
    kolo_builder_grid(b, n, 1, n, n);
    if (env->rank == root) {
        kolo_segment_t src = kolo_seg(KOLO_BUF_SRC, (int32_t)root, 1);
        send_parts(b, env, scatter);
        kolo_emit_spread(b, env, 1, src);
        kolo_builder_copy(b, mine, src);
    } else {
        kolo_builder_lane(b);
        uint16_t rx = kolo_builder_rx(b, root, scatter);
        if (kolo_emit_has_fan(env)) {
            kolo_emit_recv_send(b, rx, kolo_builder_node_tx(b, 1), mine);
        } else {
            kolo_builder_recv(b, rx, mine);
            kolo_emit_spread(b, env, 1, mine);
        }
    }
    kolo_builder_lane(b);
    recv_parts(b, env, 1);
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_direct_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_segment_t src = kolo_seg(KOLO_BUF_SRC, 0, 1);
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_GATHER, KOLO_ALGO_DIRECT, env, &b));
    kolo_builder_grid(b, env->nranks, 1, 1, env->nranks);
    kolo_builder_lane(b);
    kolo_emit_spread(b, env, 0, src);
    kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, (int32_t)env->rank, 1), src);
    kolo_builder_lane(b);
    recv_parts(b, env, 0);
    return kolo_builder_finish(b, plan);
}
