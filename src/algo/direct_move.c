/* SPDX-License-Identifier: Apache-2.0
 *
 * Direct collectives that reduce nothing and have no fan-out: gather, scatter, all_to_all, and the barrier in which
 * every rank sends to every rank. One message per pair, the least that these collectives need. Source: the linear
 * algorithms of MPI libraries; rotated starts as in pairwise exchange.
 */
#include "algo/emit.h"

kolo_status_t kolo_direct_gather(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_GATHER, KOLO_ALGO_DIRECT, env, &b));
    kolo_builder_grid(b, n, 1, 1, n);
    kolo_builder_lane(b);
    if (env->rank != env->root) {
        kolo_builder_send(b, kolo_builder_tx(b, env->root, 0), kolo_seg(KOLO_BUF_SRC, 0, 1));
        return kolo_builder_finish(b, plan);
    }
    kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, (int32_t)env->rank, 1), kolo_seg(KOLO_BUF_SRC, 0, 1));
    for (uint32_t k = 1; k < n; k++) {
        uint32_t p = (env->rank + k) % n;
        kolo_builder_recv(b, kolo_builder_rx(b, p, 0), kolo_seg(KOLO_BUF_DST, (int32_t)p, 1));
    }
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_direct_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_SCATTER, KOLO_ALGO_DIRECT, env, &b));
    kolo_builder_grid(b, n, 1, n, 1);
    kolo_builder_lane(b);
    if (env->rank != env->root) {
        kolo_builder_recv(b, kolo_builder_rx(b, env->root, 0), kolo_seg(KOLO_BUF_DST, 0, 1));
        return kolo_builder_finish(b, plan);
    }
    for (uint32_t k = 1; k < n; k++) {
        uint32_t p = (env->rank + k) % n;
        kolo_builder_send(b, kolo_builder_tx(b, p, 0), kolo_seg(KOLO_BUF_SRC, (int32_t)p, 1));
    }
    kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, 0, 1), kolo_seg(KOLO_BUF_SRC, (int32_t)env->rank, 1));
    return kolo_builder_finish(b, plan);
}

/* Sends in one lane and receives in one: few lanes, and the next tile is copied in while this one is read. */
kolo_status_t kolo_direct_all_to_all(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, me = env->rank;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_TO_ALL, KOLO_ALGO_DIRECT, env, &b));
    kolo_builder_grid(b, n, 1, n, n);
    kolo_builder_lane(b);
    for (uint32_t k = 1; k < n; k++) {
        uint32_t to = (me + k) % n;
        kolo_builder_send(b, kolo_builder_tx(b, to, 0), kolo_seg(KOLO_BUF_SRC, (int32_t)to, 1));
    }
    kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, (int32_t)me, 1), kolo_seg(KOLO_BUF_SRC, (int32_t)me, 1));
    kolo_builder_lane(b);
    for (uint32_t k = 1; k < n; k++) {
        uint32_t from = (me + n - k) % n;
        kolo_builder_recv(b, kolo_builder_rx(b, from, 0), kolo_seg(KOLO_BUF_DST, (int32_t)from, 1));
    }
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_direct_barrier(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_BARRIER, KOLO_ALGO_DIRECT, env, &b));
    kolo_builder_grid(b, 1, 1, 0, 0);
    kolo_builder_scratch(b, 2);
    kolo_builder_lane(b);
    kolo_emit_spread(b, env, 0, kolo_seg_scratch(0, 1, 0));
    for (uint32_t k = 1; k < env->nranks; k++) {
        uint32_t from = (env->rank + k) % env->nranks;
        kolo_builder_recv(b, kolo_emit_spread_rx(b, env, from, 0), kolo_seg_scratch(1, 1, 0));
    }
    return kolo_builder_finish(b, plan);
}
