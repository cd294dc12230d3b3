/* SPDX-License-Identifier: Apache-2.0
 *
 * Parallel aggregated trees: every part travels its own binomial tree, and the trees of all parts are laid over
 * each other so that each step is one exchange over one distance. ceil(log2 n) steps at any n; the long distances
 * carry the least data (unlike Bruck's). Source: the PAT algorithm of NCCL 2.23 (S. Jeaugey, "PAT: a new algorithm
 * for all-gather and reduce-scatter operations at scale", 2025).
 *
 * all_gather: a part that has come over the distance j (all bits of j at or above 2d) goes on over d, for d from
 * the largest power of two down to 1. reduce_scatter runs the same edges backwards: partial sums of the part j
 * behind me, with j's lowest bit d, go back over d. Partial sums wait in SCRATCH[j / 2]: half as many as parts.
 */
#include "algo/emit.h"

/* Returns how many distances 0, 2d, 4d, ... have room for one more hop of d among n ranks. */
static uint32_t hops_over(uint32_t n, uint32_t d)
{
    return (n - d + 2 * d - 1) / (2 * d);
}

kolo_status_t kolo_pat_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, me = env->rank;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_GATHER, KOLO_ALGO_PAT, env, &b));
    kolo_builder_grid(b, n, 1, 1, n);
    kolo_builder_lane(b);
    kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, (int32_t)me, 1), kolo_seg(KOLO_BUF_SRC, 0, 1));
    for (uint32_t d = kolo_pattern_floor_power(n - 1); d; d /= 2) {
        int32_t back = -(int32_t)(2 * d);
        uint16_t tx = kolo_builder_tx(b, (me + d) % n, 0), rx = kolo_builder_rx(b, (me + n - d) % n, 0);
        kolo_builder_loop(b, hops_over(n, d));
        kolo_builder_send(b, tx, kolo_seg_loop(KOLO_BUF_DST, (int32_t)me, back, n));
        kolo_builder_recv(b, rx, kolo_seg_loop(KOLO_BUF_DST, (int32_t)me - (int32_t)d, back, n));
        kolo_builder_end(b);
    }
    return kolo_builder_finish(b, plan);
}

/* ---- reduce_scatter ---- */

#define BLOCK 32u /* distances handled together; partial sums of half as many wait in SCRATCH */

typedef struct {
    kolo_builder_t *b;
    uint32_t n, me;
    uint32_t base, size; /* the block: distances base .. base + size - 1 */
} block_t;

/* Returns my sums of the parts at the distances base + first, base + first + stride, ...: SRC as long as nothing
 * was added. */
static kolo_segment_t sums(const block_t *k, bool raw, uint32_t first, uint32_t stride)
{
    int32_t part = (int32_t)k->me - (int32_t)(k->base + first);
    kolo_segment_t s = kolo_seg_loop(KOLO_BUF_SRC, part, -(int32_t)stride, k->n);
    if (raw) return s;
    s = kolo_seg_loop(KOLO_BUF_SCRATCH, (int32_t)(first / 2), (int32_t)(stride / 2), 0);
    s.shape = part;
    s.shape_stride[0] = -(int32_t)stride;
    return s;
}

static void add(const block_t *k, uint16_t rx, bool last, kolo_segment_t dst, kolo_segment_t src)
{
    kolo_segment_t mine = kolo_seg(KOLO_BUF_DST, 0, 1);
    kolo_emit_recv_reduce(k->b, rx, last ? mine : dst, src, last ? KOLO_FLAG_FINAL : 0);
}

/* Makes one exchange over the distance d inside a block: give away the sums of j = d + 2di, add what comes to those
 * of j = 2di. `last`: what is added to j = 0, the only turn, is my result. */
static void give_and_add(const block_t *k, uint32_t d, bool last)
{
    uint32_t n = k->n, count = hops_over(k->size, d);
    uint16_t tx = kolo_builder_tx(k->b, (k->me + n - d) % n, 0), rx = kolo_builder_rx(k->b, (k->me + d) % n, 0);
    /* Nobody is behind the last of a block: if its number is even, its sum stays the raw input until it leaves. */
    uint32_t raw_end = d > 1 && d + 2 * d * (count - 1) == k->size - 1;
    uint32_t turns = count - raw_end, at = 2 * d * turns;
    kolo_builder_loop(k->b, turns);
    kolo_builder_send(k->b, tx, sums(k, d == 1, d, 2 * d));
    add(k, rx, last, sums(k, false, 0, 2 * d), sums(k, d == 1, 0, 2 * d));
    kolo_builder_end(k->b);
    if (!raw_end) return;
    kolo_builder_send(k->b, tx, sums(k, true, at + d, 0));
    add(k, rx, last, sums(k, false, at, 0), sums(k, false, at, 0));
}

/* Adds what the farther blocks have sent to the sum of block number `at`, and sends it on to a nearer one. Every
 * rank takes the blocks from the farthest to the nearest, so that sums in between wait in the queues and nowhere
 * else. */
static void far_hops(const block_t *k, uint32_t at, uint32_t blocks)
{
    uint32_t n = k->n, low = at ? at & (0u - at) : kolo_pattern_floor_power(blocks - 1) * 2;
    bool raw = k->size == 1;
    for (uint32_t d = 1; d < low && at + d < blocks; d *= 2) {
        bool last = at == 0 && (2 * d >= low || 2 * d >= blocks);
        uint16_t rx = kolo_builder_rx(k->b, (uint32_t)(((uint64_t)k->me + (uint64_t)d * BLOCK) % n), 0);
        add(k, rx, last, sums(k, false, 0, 0), sums(k, raw, 0, 0));
        raw = false;
    }
    if (!at) return;
    uint32_t to = kolo_pattern_wrap((int64_t)k->me - (int64_t)low * BLOCK, n);
    kolo_builder_send(k->b, kolo_builder_tx(k->b, to, 0), sums(k, raw, 0, 0));
}

kolo_status_t kolo_pat_reduce_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, blocks = KOLO_DIV_UP(n, BLOCK);
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_PAT, env, &b));
    kolo_builder_grid(b, n, 1, n, 1);
    kolo_builder_scratch(b, blocks > 1 ? BLOCK / 2 : (n + 1) / 2);
    kolo_builder_lane(b);
    for (uint32_t at = blocks; at-- > 0;) {
        block_t k = {.b = b, .n = n, .me = env->rank, .base = at * BLOCK};
        k.size = n - k.base < BLOCK ? n - k.base : BLOCK;
        for (uint32_t d = 1; d < k.size; d *= 2) give_and_add(&k, d, blocks == 1 && 2 * d >= k.size);
        if (blocks > 1) far_hops(&k, at, blocks);
    }
    return kolo_builder_finish(b, plan);
}
