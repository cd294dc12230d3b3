/* SPDX-License-Identifier: Apache-2.0
 *
 * One step: every rank sends all its data to every rank, and each computes the result alone, in rank order, so that
 * all get the same bits. The lowest latency, at n times the least traffic. Short calls follow these plans without
 * an interpreter, by loops over lines (exec/host/flat_*.c). Source: "one-shot" all-reduce of shared-memory and GPU
 * libraries; copy-in/copy-out collectives of XHC (G. Katevenis, M. Ploumidis, M. Marazakis, 2022).
 */
#include "algo/emit.h"

kolo_status_t kolo_one_step_all_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_segment_t src = kolo_seg(KOLO_BUF_SRC, 0, 1);
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_REDUCE, KOLO_ALGO_ONE_STEP, env, &b));
    kolo_builder_lane(b);
    kolo_emit_spread(b, env, 0, src);
    uint16_t first = kolo_emit_list_spread(b, env, 0);
    kolo_emit_reduce_many(b, (kolo_rx_list_t){first, env->nranks - 1, env->rank}, KOLO_NO_CONN,
                          kolo_seg(KOLO_BUF_DST, 0, 1), src, KOLO_FLAG_FINAL);
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_one_step_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, me = env->rank;
    kolo_segment_t src = kolo_seg(KOLO_BUF_SRC, 0, 1);
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_GATHER, KOLO_ALGO_ONE_STEP, env, &b));
    kolo_builder_grid(b, n, 1, 1, n);
    kolo_builder_lane(b);
    kolo_emit_spread(b, env, 0, src);
    kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, (int32_t)me, 1), src);
    for (uint32_t k = 1; k < n; k++) {
        uint32_t p = (me + k) % n;
        kolo_builder_recv(b, kolo_emit_spread_rx(b, env, p, 0), kolo_seg(KOLO_BUF_DST, (int32_t)p, 1));
    }
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_one_step_broadcast(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_segment_t src = kolo_seg(KOLO_BUF_SRC, 0, 1), dst = kolo_seg(KOLO_BUF_DST, 0, 1);
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_BROADCAST, KOLO_ALGO_ONE_STEP, env, &b));
    kolo_builder_lane(b);
    if (env->rank == env->root) {
        kolo_emit_spread(b, env, 0, src);
        kolo_builder_copy(b, dst, src);
    } else {
        kolo_builder_recv(b, kolo_emit_spread_rx(b, env, env->root, 0), dst);
    }
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_one_step_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_segment_t src = kolo_seg(KOLO_BUF_SRC, 0, 1);
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_REDUCE, KOLO_ALGO_ONE_STEP, env, &b));
    kolo_builder_lane(b);
    if (env->rank == env->root) {
        uint16_t first = kolo_emit_list_pairs(b, env, 0);
        kolo_emit_reduce_many(b, (kolo_rx_list_t){first, env->nranks - 1, env->rank}, KOLO_NO_CONN,
                              kolo_seg(KOLO_BUF_DST, 0, 1), src, KOLO_FLAG_FINAL);
    } else {
        kolo_builder_send(b, kolo_builder_tx(b, env->root, 0), src);
    }
    return kolo_builder_finish(b, plan);
}

/* Takes one lane: unlike the direct form nothing runs ahead, but a call is one pass. */
kolo_status_t kolo_one_step_reduce_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, me = env->rank;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_ONE_STEP, env, &b));
    kolo_builder_grid(b, n, 1, n, 1);
    kolo_builder_lane(b);
    for (uint32_t k = 1; k < n; k++) {
        uint32_t p = (me + k) % n;
        kolo_builder_send(b, kolo_builder_tx(b, p, 0), kolo_seg(KOLO_BUF_SRC, (int32_t)p, 1));
    }
    uint16_t first = kolo_emit_list_pairs(b, env, 0);
    kolo_emit_reduce_many(b, (kolo_rx_list_t){first, n - 1, me}, KOLO_NO_CONN, kolo_seg(KOLO_BUF_DST, 0, 1),
                          kolo_seg(KOLO_BUF_SRC, (int32_t)me, 1), KOLO_FLAG_FINAL);
    return kolo_builder_finish(b, plan);
}
