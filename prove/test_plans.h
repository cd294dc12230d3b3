/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans for the tests of this room, written here so that they do not depend on src/algo: ring all_reduce, direct
 * all_reduce on two lanes over node fan-out, broadcast along a chain, all_gather by reference, a dissemination
 * barrier. Included by the tests only.
 */
#ifndef KOLO_PROVE_TEST_PLANS_H
#define KOLO_PROVE_TEST_PLANS_H

#include "plan/builder.h"

typedef kolo_status_t (*test_emit_fn_t)(const kolo_emit_env_t *env, kolo_plan_t **plan);

/* Emits all_reduce along a ring, one lane. n >= 2. */
static inline kolo_status_t emit_ring(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    int n = (int)env->nranks, r = (int)env->rank;
    kolo_builder_t *b = kolo_builder_open(KOLO_COLL_ALL_REDUCE, KOLO_ALGO_RING, env);
    if (!b) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a test plan");
    kolo_builder_grid(b, (uint32_t)n, 1, (uint32_t)n, (uint32_t)n);
    kolo_builder_queue(b, 2, 3); /* a chunk of two slots under way and one free slot to forward into */
    kolo_builder_lane(b);
    uint16_t tx = kolo_builder_tx(b, (uint32_t)((r + 1) % n), 0);
    uint16_t rx = kolo_builder_rx(b, (uint32_t)((r + n - 1) % n), 0);
    kolo_builder_send(b, tx, kolo_seg(KOLO_BUF_SRC, r, 1));
    kolo_builder_loop(b, (uint32_t)(n - 2));
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_RECV_REDUCE_SEND);
    in->tx = tx;
    in->rx = rx;
    in->src = kolo_seg_loop(KOLO_BUF_SRC, r - 1, -1, (uint32_t)n);
    kolo_builder_end(b);
    in = kolo_builder_insn(b, KOLO_OP_RECV_REDUCE_COPY_SEND);
    in->tx = tx;
    in->rx = rx;
    in->flags = KOLO_FLAG_FINAL;
    in->src = kolo_seg_loop(KOLO_BUF_SRC, r + 1, 0, (uint32_t)n);
    in->dst = kolo_seg_loop(KOLO_BUF_DST, r + 1, 0, (uint32_t)n);
    kolo_builder_loop(b, (uint32_t)(n - 2));
    in = kolo_builder_insn(b, KOLO_OP_RECV_SEND);
    in->tx = tx;
    in->rx = rx;
    in->dst = kolo_seg_loop(KOLO_BUF_DST, r, -1, (uint32_t)n);
    kolo_builder_end(b);
    kolo_builder_recv(b, rx, kolo_seg_loop(KOLO_BUF_DST, r + 2, 0, (uint32_t)n));
    return kolo_builder_finish(b, plan);
}

/* Emits all_reduce in two steps: one lane sends inputs to the ranks that reduce them and puts its own part into
 * scratch, the other reduces, fans the result out and gathers. Events hand the scratch chunk over and back. */
static inline kolo_status_t emit_direct(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, r = env->rank;
    uint16_t inputs[256], results[256];
    kolo_builder_t *b = kolo_builder_open(KOLO_COLL_ALL_REDUCE, KOLO_ALGO_DIRECT, env);
    if (!b) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a test plan");
    kolo_builder_grid(b, n, 1, n, n);
    kolo_builder_scratch(b, 1);
    kolo_builder_queue(b, 1, 1);
    uint16_t copied = kolo_builder_event(b), reduced = kolo_builder_event(b);
    uint32_t count = 0;
    uint16_t out = kolo_builder_node_tx(b, 0);
    for (uint32_t q = 0; q < n; q++) {
        if (q == r) continue;
        inputs[count] = kolo_builder_rx(b, q, 1);
        results[count++] = kolo_builder_node_rx(b, q, 0);
    }
    kolo_builder_lane(b); /* inputs: to the rank that reduces them */
    for (uint32_t q = 0; q < n; q++)
        if (q != r) kolo_builder_send(b, kolo_builder_tx(b, q, 1), kolo_seg(KOLO_BUF_SRC, (int32_t)q, 1));
    kolo_builder_copy(b, kolo_seg_scratch(0, 1, (int32_t)r), kolo_seg(KOLO_BUF_SRC, (int32_t)r, 1));
    kolo_builder_insn(b, KOLO_OP_SIGNAL)->event = copied;
    kolo_builder_insn(b, KOLO_OP_WAIT)->event = reduced; /* the next tile writes the same scratch */
    kolo_builder_lane(b);                                /* results */
    kolo_builder_insn(b, KOLO_OP_WAIT)->event = copied;
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_REDUCE_MANY);
    in->tx = out;
    in->dst = kolo_seg(KOLO_BUF_DST, (int32_t)r, 1);
    in->src = kolo_seg_scratch(0, 1, (int32_t)r);
    in->flags = KOLO_FLAG_FINAL;
    in->list_count = (uint16_t)count;
    in->own_place = (uint16_t)r;
    in->list_first = kolo_builder_list(b, inputs, count);
    kolo_builder_insn(b, KOLO_OP_SIGNAL)->event = reduced;
    count = 0;
    for (uint32_t q = 0; q < n; q++)
        if (q != r) kolo_builder_recv(b, results[count++], kolo_seg(KOLO_BUF_DST, (int32_t)q, 1));
    return kolo_builder_finish(b, plan);
}

/* Emits broadcast along a chain that starts at the root, in four sub-chunks. */
static inline kolo_status_t emit_chain(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, at = (env->rank + n - env->root) % n;
    uint32_t next = (env->rank + 1) % n, prev = (env->rank + n - 1) % n;
    kolo_builder_t *b = kolo_builder_open(KOLO_COLL_BROADCAST, KOLO_ALGO_RING, env);
    if (!b) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a test plan");
    kolo_builder_grid(b, 1, 4, 1, 1);
    kolo_builder_queue(b, 2, 1);
    kolo_builder_lane(b);
    if (at == 0) {
        kolo_builder_loop(b, 4);
        kolo_builder_send(b, kolo_builder_tx(b, next, 0), kolo_seg_loop(KOLO_BUF_SRC, 0, 1, 0));
        kolo_builder_copy(b, kolo_seg_loop(KOLO_BUF_DST, 0, 1, 0), kolo_seg_loop(KOLO_BUF_SRC, 0, 1, 0));
        kolo_builder_end(b);
    } else if (at == n - 1) {
        kolo_builder_loop(b, 4);
        kolo_builder_recv(b, kolo_builder_rx(b, prev, 0), kolo_seg_loop(KOLO_BUF_DST, 0, 1, 0));
        kolo_builder_end(b);
    } else {
        kolo_builder_loop(b, 4);
        kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_RECV_SEND);
        in->rx = kolo_builder_rx(b, prev, 0);
        in->tx = kolo_builder_tx(b, next, 0);
        in->dst = kolo_seg_loop(KOLO_BUF_DST, 0, 1, 0);
        kolo_builder_end(b);
    }
    return kolo_builder_finish(b, plan);
}

/* Emits all_gather by reference: everyone exposes its SRC to everyone. Connections by stride. */
static inline kolo_status_t emit_references(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, r = env->rank;
    kolo_builder_t *b = kolo_builder_open(KOLO_COLL_ALL_GATHER, KOLO_ALGO_SINGLE_COPY, env);
    if (!b) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a test plan");
    kolo_builder_grid(b, n, 2, 1, n);
    kolo_builder_queue(b, 1, 2);
    for (uint32_t k = 1; k < n; k++) kolo_builder_tx(b, (r + k) % n, 0);
    for (uint32_t k = 1; k < n; k++) kolo_builder_rx(b, (r + k) % n, 0);
    kolo_builder_lane(b);
    kolo_builder_loop(b, n - 1);
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_EXPOSE);
    in->tx = 0;
    in->tx_stride = 1;
    in->src = kolo_seg(KOLO_BUF_SRC, 0, 2);
    kolo_builder_end(b);
    kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, (int32_t)(2 * r), 2), kolo_seg(KOLO_BUF_SRC, 0, 2));
    kolo_builder_loop(b, n - 1);
    in = kolo_builder_insn(b, KOLO_OP_GET);
    in->rx = (uint16_t)(n - 1);
    in->rx_stride = 1;
    in->dst = kolo_seg_loop(KOLO_BUF_DST, (int32_t)(2 * r + 2), 2, 2 * n);
    in->dst.n = 2;
    kolo_builder_end(b);
    kolo_builder_loop(b, n - 1);
    in = kolo_builder_insn(b, KOLO_OP_RELEASE);
    in->tx = 0;
    in->tx_stride = 1;
    kolo_builder_end(b);
    return kolo_builder_finish(b, plan);
}

static inline kolo_status_t emit_barrier(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, r = env->rank;
    kolo_builder_t *b = kolo_builder_open(KOLO_COLL_BARRIER, KOLO_ALGO_BRUCK, env);
    if (!b) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a test plan");
    kolo_builder_scratch(b, 1);
    kolo_builder_queue(b, 1, 1);
    kolo_builder_lane(b);
    for (uint32_t d = 1, k = 0; d < n; d *= 2, k++) {
        kolo_builder_send(b, kolo_builder_tx(b, (r + d) % n, k), kolo_seg_scratch(0, 1, 0));
        kolo_builder_recv(b, kolo_builder_rx(b, (r + n - d) % n, k), kolo_seg_scratch(0, 1, 0));
    }
    return kolo_builder_finish(b, plan);
}

#endif
