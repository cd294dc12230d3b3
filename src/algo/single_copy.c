/* SPDX-License-Identifier: Apache-2.0
 *
 * Single copy: ranks show each other their buffers (EXPOSE) and one of the two moves the bytes straight from user
 * memory to user memory (GET, PUT). Every byte is copied once instead of twice; each piece costs a system call or a
 * mapping, so this pays from some hundred KB on. A rank leaves a tile only when all that it exposed is released.
 * Source: single-copy collectives over KNEM, CMA and XPMEM (T. Ma et al., "Kernel assisted collective intra-node
 * MPI communication", ICPP 2011; XHC). The two-rank broadcast split in two halves is our own.
 *
 * Reductions of two ranks read the other's input where it is. With more ranks all_reduce and reduce pass
 * their inputs through slots and only put the results: each part is then reduced in one pass over all of them.
 */
#include "algo/emit.h"

static void expose(kolo_builder_t *b, uint16_t tx, kolo_segment_t src)
{
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_EXPOSE);
    in->tx = tx;
    in->src = src;
}

static void get(kolo_builder_t *b, uint16_t rx, kolo_segment_t dst)
{
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_GET);
    in->rx = rx;
    in->dst = dst;
}

/* Makes dst = src and the peer's raw input, in the order of the ranks. */
static void get_reduce(kolo_builder_t *b, const kolo_emit_env_t *env, uint16_t rx, kolo_segment_t dst,
                       kolo_segment_t src)
{
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_GET_REDUCE);
    in->rx = rx;
    in->dst = dst;
    in->src = src;
    in->flags = KOLO_FLAG_RAW | KOLO_FLAG_FINAL;
    if (env->rank) in->flags |= KOLO_FLAG_RX_FIRST;
}

static void put(kolo_builder_t *b, uint16_t rx, kolo_segment_t src)
{
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_PUT);
    in->rx = rx;
    in->src = src;
}

/* Returns the k-th rank after me, k = 1..n-1. */
static uint32_t after(const kolo_emit_env_t *env, uint32_t k)
{
    return (env->rank + k) % env->nranks;
}

/* Shows part p of `buf` to rank p, for all p but me. */
static void expose_parts(kolo_builder_t *b, const kolo_emit_env_t *env, kolo_buf_t buf, uint32_t lane)
{
    for (uint32_t k = 1; k < env->nranks; k++) {
        uint32_t p = after(env, k);
        expose(b, kolo_builder_tx(b, p, lane), kolo_seg(buf, (int32_t)p, 1));
    }
}

static void wait_released(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t lane)
{
    for (uint32_t k = 1; k < env->nranks; k++) kolo_emit_wait_released(b, kolo_builder_tx(b, after(env, k), lane));
}

static void copy_own(kolo_builder_t *b, uint32_t dst, uint32_t src)
{
    kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, (int32_t)dst, 1), kolo_seg(KOLO_BUF_SRC, (int32_t)src, 1));
}

/* Sends part p of SRC to rank p, for all p but me. */
static void send_parts(kolo_builder_t *b, const kolo_emit_env_t *env)
{
    kolo_builder_lane(b);
    for (uint32_t k = 1; k < env->nranks; k++) {
        uint32_t p = after(env, k);
        kolo_builder_send(b, kolo_builder_tx(b, p, 0), kolo_seg(KOLO_BUF_SRC, (int32_t)p, 1));
    }
}

/* Reduces my part of all inputs in one pass. */
static void reduce_part(kolo_builder_t *b, const kolo_emit_env_t *env, kolo_segment_t dst)
{
    uint16_t first = kolo_emit_list_pairs(b, env, 0);
    kolo_emit_reduce_many(b, (kolo_rx_list_t){first, env->nranks - 1, env->rank}, KOLO_NO_CONN, dst,
                          kolo_seg(KOLO_BUF_SRC, (int32_t)env->rank, 1), KOLO_FLAG_FINAL);
}

/* Broadcasts between two ranks: the receiver pulls the first half while the root pushes the second. */
static kolo_status_t broadcast_to_one(const kolo_emit_env_t *env, kolo_builder_t *b, kolo_plan_t **plan)
{
    uint32_t peer = 1 - env->rank;
    uint16_t tx = kolo_builder_tx(b, peer, 0), rx = kolo_builder_rx(b, peer, 0);
    kolo_builder_grid(b, 2, 1, 2, 2);
    kolo_builder_lane(b);
    if (env->rank == env->root) {
        expose(b, tx, kolo_seg(KOLO_BUF_SRC, 0, 1));
        put(b, rx, kolo_seg(KOLO_BUF_SRC, 1, 1));
        copy_own(b, 0, 0);
        copy_own(b, 1, 1);
    } else {
        expose(b, tx, kolo_seg(KOLO_BUF_DST, 1, 1));
        get(b, rx, kolo_seg(KOLO_BUF_DST, 0, 1));
    }
    kolo_emit_wait_released(b, tx);
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_single_copy_broadcast(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_BROADCAST, KOLO_ALGO_SINGLE_COPY, env, &b));
    if (env->nranks == 2) return broadcast_to_one(env, b, plan);
    kolo_builder_lane(b);
    if (env->rank != env->root) {
        get(b, kolo_builder_rx(b, env->root, 0), kolo_seg(KOLO_BUF_DST, 0, 1));
        return kolo_builder_finish(b, plan);
    }
    for (uint32_t k = 1; k < env->nranks; k++)
        expose(b, kolo_builder_tx(b, after(env, k), 0), kolo_seg(KOLO_BUF_SRC, 0, 1));
    copy_own(b, 0, 0);
    wait_released(b, env, 0);
    return kolo_builder_finish(b, plan);
}

/* Pushes everyone's part into the others' buffers, then copies it while it is in cache. */
kolo_status_t kolo_single_copy_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_GATHER, KOLO_ALGO_SINGLE_COPY, env, &b));
    kolo_builder_grid(b, env->nranks, 1, 1, env->nranks);
    kolo_builder_lane(b);
    expose_parts(b, env, KOLO_BUF_DST, 0);
    for (uint32_t k = 1; k < env->nranks; k++)
        put(b, kolo_builder_rx(b, after(env, k), 0), kolo_seg(KOLO_BUF_SRC, 0, 1));
    copy_own(b, env->rank, 0);
    wait_released(b, env, 0);
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_single_copy_all_to_all(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_TO_ALL, KOLO_ALGO_SINGLE_COPY, env, &b));
    kolo_builder_grid(b, n, 1, n, n);
    kolo_builder_lane(b);
    expose_parts(b, env, KOLO_BUF_SRC, 0);
    copy_own(b, env->rank, env->rank);
    for (uint32_t k = 1; k < n; k++) {
        uint32_t from = after(env, n - k);
        get(b, kolo_builder_rx(b, from, 0), kolo_seg(KOLO_BUF_DST, (int32_t)from, 1));
    }
    wait_released(b, env, 0);
    return kolo_builder_finish(b, plan);
}

/* Shows where parts go at the root; all ranks push at the same time. */
kolo_status_t kolo_single_copy_gather(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_GATHER, KOLO_ALGO_SINGLE_COPY, env, &b));
    kolo_builder_grid(b, env->nranks, 1, 1, env->nranks);
    kolo_builder_lane(b);
    if (env->rank == env->root) {
        expose_parts(b, env, KOLO_BUF_DST, 0);
        copy_own(b, env->rank, 0);
        wait_released(b, env, 0);
    } else {
        put(b, kolo_builder_rx(b, env->root, 0), kolo_seg(KOLO_BUF_SRC, 0, 1));
    }
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_single_copy_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_SCATTER, KOLO_ALGO_SINGLE_COPY, env, &b));
    kolo_builder_grid(b, env->nranks, 1, env->nranks, 1);
    kolo_builder_lane(b);
    if (env->rank == env->root) {
        expose_parts(b, env, KOLO_BUF_SRC, 0);
        copy_own(b, 0, env->rank);
        wait_released(b, env, 0);
    } else {
        get(b, kolo_builder_rx(b, env->root, 0), kolo_seg(KOLO_BUF_DST, 0, 1));
    }
    return kolo_builder_finish(b, plan);
}

/* Reduces, on each of two ranks, its part from the other's memory and puts the result there. Nobody but its owner
 * reads a part of SRC before it is overwritten (in place). */
static kolo_status_t all_reduce_of_two(const kolo_emit_env_t *env, kolo_builder_t *b, kolo_plan_t **plan)
{
    int32_t me = (int32_t)env->rank, other = 1 - me;
    uint16_t tx = kolo_builder_tx(b, (uint32_t)other, 0), rx = kolo_builder_rx(b, (uint32_t)other, 0);
    kolo_builder_grid(b, 2, 1, 2, 2);
    kolo_builder_lane(b);
    expose(b, tx, kolo_seg(KOLO_BUF_SRC, other, 1));
    expose(b, tx, kolo_seg(KOLO_BUF_DST, other, 1));
    get_reduce(b, env, rx, kolo_seg(KOLO_BUF_DST, me, 1), kolo_seg(KOLO_BUF_SRC, me, 1));
    put(b, rx, kolo_seg(KOLO_BUF_DST, me, 1));
    kolo_emit_wait_released(b, tx);
    return kolo_builder_finish(b, plan);
}

/* Passes inputs through slots (lane 0); each rank reduces a part in one pass over all and puts it into the root's
 * DST (lane 1), which copies no results. In place is safe: a rank writes part p there after it has read part p of
 * SRC. */
static kolo_status_t reduce_of_many(const kolo_emit_env_t *env, kolo_builder_t *b, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, me = env->rank;
    bool root = me == env->root;
    kolo_segment_t mine = kolo_seg(KOLO_BUF_DST, (int32_t)me, 1);
    kolo_builder_grid(b, n, 1, n, n);
    send_parts(b, env);
    kolo_builder_lane(b);
    if (root) expose_parts(b, env, KOLO_BUF_DST, 1);
    if (!root) {
        kolo_builder_scratch(b, 1);
        mine = kolo_seg_scratch(0, 1, (int32_t)me);
    }
    reduce_part(b, env, mine);
    if (root)
        wait_released(b, env, 1);
    else
        put(b, kolo_builder_rx(b, env->root, 1), mine);
    return kolo_builder_finish(b, plan);
}

/* Reduces, at the root of two ranks, out of the other's memory. (Halves that both reduce are slower below some
 * hundred KB: two more copies between the cores than the work that is shared.) */
kolo_status_t kolo_single_copy_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_segment_t src = kolo_seg(KOLO_BUF_SRC, 0, 1);
    uint32_t peer = 1 - env->rank;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_REDUCE, KOLO_ALGO_SINGLE_COPY, env, &b));
    if (env->nranks > 2) return reduce_of_many(env, b, plan);
    kolo_builder_lane(b);
    if (env->rank == env->root) {
        get_reduce(b, env, kolo_builder_rx(b, peer, 0), kolo_seg(KOLO_BUF_DST, 0, 1), src);
    } else {
        uint16_t tx = kolo_builder_tx(b, peer, 0);
        expose(b, tx, src);
        kolo_emit_wait_released(b, tx);
    }
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_single_copy_reduce_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    int32_t me = (int32_t)env->rank, other = 1 - me;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_SINGLE_COPY, env, &b));
    uint16_t tx = kolo_builder_tx(b, (uint32_t)other, 0), rx = kolo_builder_rx(b, (uint32_t)other, 0);
    kolo_builder_grid(b, 2, 1, 2, 1);
    kolo_builder_lane(b);
    expose(b, tx, kolo_seg(KOLO_BUF_SRC, other, 1));
    get_reduce(b, env, rx, kolo_seg(KOLO_BUF_DST, 0, 1), kolo_seg(KOLO_BUF_SRC, me, 1));
    kolo_emit_wait_released(b, tx);
    return kolo_builder_finish(b, plan);
}

/* Inputs through slots (lane 0), results put into the others' DST (lane 1). A rank may write part p of my DST only
 * after it has read part p of my SRC, so in place is safe. */
kolo_status_t kolo_single_copy_all_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, me = env->rank;
    kolo_segment_t mine = kolo_seg(KOLO_BUF_DST, (int32_t)me, 1);
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_REDUCE, KOLO_ALGO_SINGLE_COPY, env, &b));
    if (n == 2) return all_reduce_of_two(env, b, plan);
    kolo_builder_grid(b, n, 1, n, n);
    send_parts(b, env);
    kolo_builder_lane(b);
    expose_parts(b, env, KOLO_BUF_DST, 1);
    reduce_part(b, env, mine);
    for (uint32_t k = 1; k < n; k++) put(b, kolo_builder_rx(b, after(env, k), 1), mine);
    wait_released(b, env, 1);
    return kolo_builder_finish(b, plan);
}
