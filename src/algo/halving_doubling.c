/* SPDX-License-Identifier: Apache-2.0
 *
 * Recursive halving and doubling: 2 log n steps and the least data, at powers of two. Other rank counts fold the
 * extra ranks onto a neighbour first and hand the result back (all_reduce only; the others need a power of two).
 * Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
 * IJHPCA 19 (2005).
 *
 * Chunks are exchanged one by one, in both directions in turn, so that two slots suffice however much is exchanged.
 */
#include "algo/emit.h"

typedef struct {
    kolo_builder_t *b;
    uint16_t tx, rx;
} link_t;

static link_t link_to(kolo_builder_t *b, uint32_t peer)
{
    return (link_t){.b = b, .tx = kolo_builder_tx(b, peer, 0), .rx = kolo_builder_rx(b, peer, 0)};
}

static kolo_segment_t run(kolo_buf_t buf, uint32_t base)
{
    return kolo_seg_loop(buf, (int32_t)base, 1, 0);
}

/* Sends, `count` times, a chunk of the half I give up, takes one of the half I keep and adds mine (`mine` buffer).
 * */
static void halve(const link_t *l, kolo_buf_t mine, uint32_t give, uint32_t keep, uint32_t count, uint8_t flags)
{
    kolo_builder_loop(l->b, count);
    kolo_builder_send(l->b, l->tx, run(mine, give));
    kolo_emit_recv_reduce(l->b, l->rx, run(KOLO_BUF_DST, keep), run(mine, keep), flags);
    kolo_builder_end(l->b);
}

static void double_up(const link_t *l, uint32_t have, uint32_t want, uint32_t count)
{
    kolo_builder_loop(l->b, count);
    kolo_builder_send(l->b, l->tx, run(KOLO_BUF_DST, have));
    kolo_builder_recv(l->b, l->rx, run(KOLO_BUF_DST, want));
    kolo_builder_end(l->b);
}

kolo_status_t kolo_halving_doubling_all_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks;
    kolo_fold_t fold = kolo_pattern_fold(n, env->rank);
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_REDUCE, KOLO_ALGO_HALVING_DOUBLING, env, &b));
    kolo_builder_grid(b, fold.p, 1, fold.p, fold.p);
    kolo_builder_lane(b);
    if (fold.core < 0) {
        link_t l = link_to(b, (uint32_t)fold.partner);
        kolo_builder_send(b, l.tx, kolo_seg(KOLO_BUF_SRC, 0, fold.p));
        kolo_builder_recv(b, l.rx, kolo_seg(KOLO_BUF_DST, 0, fold.p));
        return kolo_builder_finish(b, plan);
    }
    kolo_buf_t mine = KOLO_BUF_SRC; /* where my partial sums are */
    if (fold.partner >= 0) {
        kolo_emit_recv_reduce(b, link_to(b, (uint32_t)fold.partner).rx, kolo_seg(KOLO_BUF_DST, 0, fold.p),
                              kolo_seg(KOLO_BUF_SRC, 0, fold.p), 0);
        mine = KOLO_BUF_DST;
    }
    uint32_t core = (uint32_t)fold.core;
    for (uint32_t half = fold.p / 2; half; half /= 2) {
        link_t l = link_to(b, kolo_pattern_unfold(n, core ^ half));
        uint32_t low = core & ~(2 * half - 1), keep = low | (core & half), give = low | (~core & half);
        halve(&l, mine, give, keep, half, half == 1 ? KOLO_FLAG_FINAL : 0);
        mine = KOLO_BUF_DST;
    }
    for (uint32_t half = 1; half < fold.p; half *= 2) {
        link_t l = link_to(b, kolo_pattern_unfold(n, core ^ half));
        uint32_t low = core & ~(2 * half - 1);
        double_up(&l, low | (core & half), low | (~core & half), half);
    }
    if (fold.partner >= 0)
        kolo_builder_send(b, link_to(b, (uint32_t)fold.partner).tx, kolo_seg(KOLO_BUF_DST, 0, fold.p));
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_halving_doubling_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, me = env->rank;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_GATHER, KOLO_ALGO_HALVING_DOUBLING, env, &b));
    kolo_builder_grid(b, n, 1, 1, n);
    kolo_builder_lane(b);
    kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, (int32_t)me, 1), kolo_seg(KOLO_BUF_SRC, 0, 1));
    for (uint32_t half = 1; half < n; half *= 2) {
        link_t l = link_to(b, me ^ half);
        uint32_t low = me & ~(2 * half - 1);
        double_up(&l, low | (me & half), low | (~me & half), half);
    }
    return kolo_builder_finish(b, plan);
}

/* Keeps partial sums of the half I keep in SCRATCH[part mod n/2]; the last step puts my part into DST. */
kolo_status_t kolo_halving_doubling_reduce_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, me = env->rank;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_HALVING_DOUBLING, env, &b));
    kolo_builder_grid(b, n, 1, n, 1);
    if (n > 2) kolo_builder_scratch(b, n / 2);
    kolo_builder_lane(b);
    for (uint32_t half = n / 2; half; half /= 2) {
        link_t l = link_to(b, me ^ half);
        uint32_t low = me & ~(2 * half - 1), keep = low | (me & half), give = low | (~me & half);
        kolo_segment_t dst = run(KOLO_BUF_SCRATCH, keep % (n / 2)), src = run(KOLO_BUF_SRC, keep);
        kolo_segment_t away = run(KOLO_BUF_SRC, give);
        if (half < n / 2) {
            src = run(KOLO_BUF_SCRATCH, keep % (n / 2));
            away = run(KOLO_BUF_SCRATCH, give % (n / 2));
        }
        if (half == 1) dst = kolo_seg(KOLO_BUF_DST, 0, 1);
        dst.shape = src.shape = (int32_t)keep;
        away.shape = (int32_t)give;
        dst.shape_stride[0] = src.shape_stride[0] = away.shape_stride[0] = 1;
        kolo_builder_loop(b, half);
        kolo_builder_send(b, l.tx, away);
        kolo_emit_recv_reduce(b, l.rx, dst, src, half == 1 ? KOLO_FLAG_FINAL : 0);
        kolo_builder_end(b);
    }
    return kolo_builder_finish(b, plan);
}
