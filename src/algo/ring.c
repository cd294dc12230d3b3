/* SPDX-License-Identifier: Apache-2.0
 *
 * Rings and chains. A ring moves the least data that any algorithm can (2 (n-1)/n of the buffer per rank in an
 * all-reduce) and only talks to neighbours; its price is a latency that grows with n. Chains (broadcast, reduce)
 * move each byte once per rank and are pipelined by tiles. Source: P. Patarasuk, X. Yuan, "Bandwidth optimal
 * all-reduce algorithms for clusters of workstations", JPDC 69 (2009); the chunk order is NCCL's.
 *
 * With several lanes each part is cut into as many sub-chunks, and every lane runs its own ring over its share, in
 * an order of its own where the search has found several.
 */
#include "algo/emit.h"

typedef struct {
    uint32_t n, pos, lanes;
    uint32_t next, prev; /* ranks */
} ring_t;

static ring_t ring_of(const kolo_emit_env_t *env, uint32_t lane)
{
    ring_t r = {
        .n = env->nranks, .pos = kolo_emit_position(env, lane, env->rank), .lanes = env->lanes ? env->lanes : 1};
    r.next = kolo_emit_rank_at(env, lane, (int64_t)r.pos + 1);
    r.prev = kolo_emit_rank_at(env, lane, (int64_t)r.pos - 1);
    return r;
}

/* Returns the chunk that is `back` places behind mine, of lane `lane`, where chunks are numbered by position. */
static int32_t chunk_at(const ring_t *r, uint32_t lane, int64_t back)
{
    return (int32_t)(kolo_pattern_wrap((int64_t)r->pos - back, r->n) * r->lanes + lane);
}

/* Returns the same as a walk backwards: one place per loop turn. */
static kolo_segment_t walk(const ring_t *r, kolo_buf_t buf, uint32_t lane, int64_t back)
{
    return kolo_seg_loop(buf, chunk_at(r, lane, back), -(int32_t)r->lanes, r->n * r->lanes);
}

kolo_status_t kolo_ring_all_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, lanes = env->lanes ? env->lanes : 1;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_REDUCE, KOLO_ALGO_RING, env, &b));
    kolo_builder_grid(b, n, lanes, n, n);
    for (uint32_t l = 0; l < lanes; l++) {
        ring_t r = ring_of(env, l);
        uint16_t tx = kolo_builder_tx(b, r.next, l), rx = kolo_builder_rx(b, r.prev, l);
        int32_t done = chunk_at(&r, l, (int64_t)r.n - 1);
        kolo_builder_lane(b);
        kolo_builder_send(b, tx, kolo_seg(KOLO_BUF_SRC, chunk_at(&r, l, 0), 1));
        kolo_builder_loop(b, r.n - 2);
        kolo_emit_recv_reduce_send(b, rx, tx, walk(&r, KOLO_BUF_SRC, l, 1));
        kolo_builder_end(b);
        kolo_emit_recv_reduce_copy_send(b, rx, tx, kolo_seg(KOLO_BUF_DST, done, 1), kolo_seg(KOLO_BUF_SRC, done, 1),
                                        KOLO_FLAG_FINAL);
        kolo_builder_loop(b, r.n - 2);
        kolo_emit_recv_send(b, rx, tx, walk(&r, KOLO_BUF_DST, l, 0));
        kolo_builder_end(b);
        kolo_builder_recv(b, rx, kolo_seg(KOLO_BUF_DST, chunk_at(&r, l, (int64_t)r.n - 2), 1));
    }
    return kolo_builder_finish(b, plan);
}

/* Parts belong to ranks here, so a ring in another order than 0, 1, 2, ... is written out step by step. */
kolo_status_t kolo_ring_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, lanes = env->lanes ? env->lanes : 1;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_GATHER, KOLO_ALGO_RING, env, &b));
    kolo_builder_grid(b, n, lanes, 1, n);
    for (uint32_t l = 0; l < lanes; l++) {
        ring_t r = ring_of(env, l);
        bool plain = kolo_emit_ring_is_plain(env, l);
        uint16_t tx = kolo_builder_tx(b, r.next, l), rx = kolo_builder_rx(b, r.prev, l);
        kolo_segment_t mine = kolo_seg(KOLO_BUF_SRC, (int32_t)l, 1);
        kolo_builder_lane(b);
        kolo_builder_send(b, tx, mine);
        kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, (int32_t)(env->rank * r.lanes + l), 1), mine);
        if (plain) {
            kolo_builder_loop(b, r.n - 2);
            kolo_emit_recv_send(b, rx, tx, walk(&r, KOLO_BUF_DST, l, 1));
            kolo_builder_end(b);
        }
        for (uint32_t k = 1; !plain && k + 1 < r.n; k++) {
            uint32_t from = kolo_emit_rank_at(env, l, (int64_t)r.pos - k);
            kolo_emit_recv_send(b, rx, tx, kolo_seg(KOLO_BUF_DST, (int32_t)(from * r.lanes + l), 1));
        }
        kolo_builder_recv(b, rx, kolo_seg(KOLO_BUF_DST, (int32_t)(r.next * r.lanes + l), 1));
    }
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_ring_reduce_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, lanes = env->lanes ? env->lanes : 1;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_RING, env, &b));
    kolo_builder_grid(b, n, lanes, n, 1);
    for (uint32_t l = 0; l < lanes; l++) {
        ring_t r = ring_of(env, l);
        bool plain = kolo_emit_ring_is_plain(env, l);
        uint16_t tx = kolo_builder_tx(b, r.next, l), rx = kolo_builder_rx(b, r.prev, l);
        kolo_builder_lane(b);
        kolo_builder_send(b, tx, kolo_seg(KOLO_BUF_SRC, (int32_t)(r.prev * r.lanes + l), 1));
        if (plain) {
            kolo_builder_loop(b, r.n - 2);
            kolo_emit_recv_reduce_send(b, rx, tx, walk(&r, KOLO_BUF_SRC, l, 2));
            kolo_builder_end(b);
        }
        for (uint32_t k = 2; !plain && k < r.n; k++) {
            uint32_t to = kolo_emit_rank_at(env, l, (int64_t)r.pos - k);
            kolo_emit_recv_reduce_send(b, rx, tx, kolo_seg(KOLO_BUF_SRC, (int32_t)(to * r.lanes + l), 1));
        }
        kolo_emit_recv_reduce(b, rx, kolo_seg(KOLO_BUF_DST, (int32_t)l, 1),
                              kolo_seg(KOLO_BUF_SRC, (int32_t)(env->rank * r.lanes + l), 1), KOLO_FLAG_FINAL);
    }
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_ring_broadcast(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, lanes = env->lanes ? env->lanes : 1;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_BROADCAST, KOLO_ALGO_RING, env, &b));
    kolo_builder_grid(b, lanes, 1, lanes, lanes);
    for (uint32_t l = 0; l < lanes; l++) {
        ring_t r = ring_of(env, l);
        uint32_t hops = kolo_pattern_wrap((int64_t)r.pos - kolo_emit_position(env, l, env->root), n);
        kolo_segment_t dst = kolo_seg(KOLO_BUF_DST, (int32_t)l, 1), src = kolo_seg(KOLO_BUF_SRC, (int32_t)l, 1);
        kolo_builder_lane(b);
        if (hops == 0) {
            kolo_builder_send(b, kolo_builder_tx(b, r.next, l), src);
            kolo_builder_copy(b, dst, src);
        } else if (hops == r.n - 1) {
            kolo_builder_recv(b, kolo_builder_rx(b, r.prev, l), dst);
        } else {
            kolo_emit_recv_send(b, kolo_builder_rx(b, r.prev, l), kolo_builder_tx(b, r.next, l), dst);
        }
    }
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_ring_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, lanes = env->lanes ? env->lanes : 1;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_REDUCE, KOLO_ALGO_RING, env, &b));
    kolo_builder_grid(b, lanes, 1, lanes, lanes);
    for (uint32_t l = 0; l < lanes; l++) {
        ring_t r = ring_of(env, l);
        uint32_t hops =
            kolo_pattern_wrap((int64_t)kolo_emit_position(env, l, env->root) - r.pos, n); /* to the root */
        kolo_segment_t dst = kolo_seg(KOLO_BUF_DST, (int32_t)l, 1), src = kolo_seg(KOLO_BUF_SRC, (int32_t)l, 1);
        kolo_builder_lane(b);
        if (hops == 0)
            kolo_emit_recv_reduce(b, kolo_builder_rx(b, r.prev, l), dst, src, KOLO_FLAG_FINAL);
        else if (hops == r.n - 1)
            kolo_builder_send(b, kolo_builder_tx(b, r.next, l), src);
        else
            kolo_emit_recv_reduce_send(b, kolo_builder_rx(b, r.prev, l), kolo_builder_tx(b, r.next, l), src);
    }
    return kolo_builder_finish(b, plan);
}
