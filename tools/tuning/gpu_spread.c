/* SPDX-License-Identifier: Apache-2.0
 *
 * See gpu_spread.h.
 */
#include "gpu_spread.h"

#include "algo/emit.h"

/* Which part of the vector rank `p` owns, where the root owns none. */
static int32_t owned(const kolo_emit_env_t *env, uint32_t p)
{
    return (int32_t)(env->nranks == 2 ? 0 : p > env->root ? p - 1 : p);
}
static bool owns(const kolo_emit_env_t *env, uint32_t p)
{
    return (p == env->root) == (env->nranks == 2);
}

kolo_status_t gpu_emit_owned_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, root = env->root, me = env->rank, parts = n == 2 ? 1 : n - 1;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_REDUCE, KOLO_ALGO_DIRECT, env, &b));
    kolo_builder_grid(b, parts, 1, parts, parts);
    if (n > 2 || me != root) kolo_builder_lane(b);
    for (uint32_t k = 1; k < n; k++) {
        uint32_t p = (me + k) % n;
        if (owns(env, p)) kolo_builder_send(b, kolo_builder_tx(b, p, 0), kolo_seg(KOLO_BUF_SRC, owned(env, p), 1));
    }
    if (n > 2 || me == root) kolo_builder_lane(b);
    if (owns(env, me)) {
        kolo_segment_t own = kolo_seg(KOLO_BUF_SRC, owned(env, me), 1), sum = own;
        uint16_t first = kolo_emit_list_pairs(b, env, 0);
        sum.buf = KOLO_BUF_DST;
        if (me != root) {
            kolo_builder_scratch(b, 1);
            sum = kolo_seg_scratch(0, 1, owned(env, me));
        }
        kolo_emit_reduce_many(b, (kolo_rx_list_t){first, n - 1, me},
                              me == root ? KOLO_NO_CONN : kolo_builder_tx(b, root, 1), sum, own, KOLO_FLAG_FINAL);
    }
    for (uint32_t p = 0; p < n && me == root && n > 2; p++)
        if (p != root) kolo_builder_recv(b, kolo_builder_rx(b, p, 1), kolo_seg(KOLO_BUF_DST, owned(env, p), 1));
    return kolo_builder_finish(b, plan);
}

kolo_status_t gpu_emit_spread(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, root = env->root, me = env->rank;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_BROADCAST, KOLO_ALGO_DIRECT, env, &b));
    kolo_builder_grid(b, n - 1, 1, n - 1, n - 1);
    for (uint32_t p = 0, part = 0; p < n && me == root; p++) {
        kolo_segment_t src = kolo_seg(KOLO_BUF_SRC, (int32_t)part, 1);
        if (p == root) continue;
        kolo_builder_send(b, kolo_builder_tx(b, p, 0), src);
        kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, (int32_t)part++, 1), src);
    }
    if (me == root) return kolo_builder_finish(b, plan);
    kolo_segment_t mine = kolo_seg(KOLO_BUF_DST, (int32_t)(me > root ? me - 1 : me), 1);
    kolo_builder_lane(b);
    kolo_builder_recv(b, kolo_builder_rx(b, root, 0), mine);
    for (uint32_t p = 0; p < n; p++)
        if (p != root && p != me) kolo_builder_send(b, kolo_builder_tx(b, p, 1), mine);
    kolo_builder_lane(b);
    for (uint32_t p = 0; p < n; p++)
        if (p != root && p != me)
            kolo_builder_recv(b, kolo_builder_rx(b, p, 1),
                              kolo_seg(KOLO_BUF_DST, (int32_t)(p > root ? p - 1 : p), 1));
    return kolo_builder_finish(b, plan);
}
