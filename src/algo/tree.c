/* SPDX-License-Identifier: Apache-2.0
 *
 * Double binary tree: two trees, half of the data each, in which a rank that is inside one is a leaf of the other;
 * log n steps at about the bandwidth of a ring, pipelined by tiles. Source: P. Sanders, J. Speck, J. L. Traeff,
 * "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35 (2009); the use for
 * all-reduce is NCCL's. The links of the trees are in pattern.c.
 *
 * Per tree there is a lane upwards and a lane downwards. The root joins them by the order of its instructions.
 */
#include "algo/emit.h"

typedef struct {
    int parent; /* ranks, -1: none */
    int child[2];
    uint32_t which; /* tree, part of the data, and connection lane */
} node_t;

/* Returns my place in a tree whose root is the rank `root`, along the order of the ring, so that most links stay
 * near. */
static node_t place_in(const kolo_emit_env_t *env, uint32_t root, uint32_t which)
{
    uint32_t n = env->nranks, at = kolo_emit_position(env, 0, root);
    uint32_t mine = kolo_pattern_wrap((int64_t)kolo_emit_position(env, 0, env->rank) - at, n);
    kolo_tree_links_t links = kolo_pattern_tree(n, which, mine);
    node_t node = {.parent = -1, .child = {-1, -1}, .which = which};
    if (links.parent >= 0) node.parent = (int)kolo_emit_rank_at(env, 0, (int64_t)at + links.parent);
    for (int k = 0; k < 2; k++)
        if (links.child[k] >= 0) node.child[k] = (int)kolo_emit_rank_at(env, 0, (int64_t)at + links.child[k]);
    return node;
}

static kolo_segment_t part(const node_t *node, kolo_buf_t buf)
{
    return kolo_seg(buf, (int32_t)node->which, 1);
}

/* Sums my children and myself; towards the parent, or, at the root, into DST. The sum of two is in their order. */
static void up(kolo_builder_t *b, const kolo_emit_env_t *env, const node_t *node)
{
    kolo_builder_lane(b);
    uint16_t tx = node->parent < 0 ? KOLO_NO_CONN : kolo_builder_tx(b, (uint32_t)node->parent, node->which);
    uint16_t rx[2] = {0};
    uint32_t count = 0;
    for (; count < 2 && node->child[count] >= 0; count++)
        rx[count] = kolo_builder_rx(b, (uint32_t)node->child[count], node->which);
    if (node->parent < 0) {
        uint16_t first = kolo_builder_list(b, rx, count);
        kolo_emit_reduce_many(b, (kolo_rx_list_t){first, count, env->nranks == 2 ? env->rank : 0}, tx,
                              part(node, KOLO_BUF_DST), part(node, KOLO_BUF_SRC), KOLO_FLAG_FINAL);
    } else if (count == 0) {
        kolo_builder_send(b, tx, part(node, KOLO_BUF_SRC));
    } else if (count == 1) {
        kolo_emit_recv_reduce_send(b, rx[0], tx, part(node, KOLO_BUF_SRC));
    } else {
        uint16_t first = kolo_builder_list(b, rx, count);
        kolo_segment_t sum = kolo_seg_scratch((int32_t)node->which, 1, (int32_t)node->which);
        kolo_emit_reduce_many(b, (kolo_rx_list_t){first, count, 1}, tx, sum, part(node, KOLO_BUF_SRC), 0);
    }
}

/* Sends from the parent to my children; the root has the data in `have` and goes on in the lane it is in. */
static void down(kolo_builder_t *b, const node_t *node, kolo_buf_t have)
{
    uint16_t tx[2] = {0};
    int count = 0;
    for (; count < 2 && node->child[count] >= 0; count++)
        tx[count] = kolo_builder_tx(b, (uint32_t)node->child[count], node->which);
    if (node->parent < 0) {
        for (int k = 0; k < count; k++) kolo_builder_send(b, tx[k], part(node, have));
        return;
    }
    kolo_builder_lane(b);
    uint16_t rx = kolo_builder_rx(b, (uint32_t)node->parent, node->which);
    if (count == 0)
        kolo_builder_recv(b, rx, part(node, KOLO_BUF_DST));
    else
        kolo_emit_recv_send(b, rx, tx[0], part(node, KOLO_BUF_DST));
    if (count == 2) kolo_builder_send(b, tx[1], part(node, KOLO_BUF_DST));
}

kolo_status_t kolo_tree_all_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_REDUCE, KOLO_ALGO_TREE, env, &b));
    kolo_builder_grid(b, 2, 1, 2, 2);
    kolo_builder_scratch(b, 2);
    for (uint32_t t = 0; t < 2; t++) {
        node_t node = place_in(env, kolo_emit_rank_at(env, 0, 0), t);
        up(b, env, &node);
        down(b, &node, KOLO_BUF_DST);
    }
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_tree_broadcast(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_BROADCAST, KOLO_ALGO_TREE, env, &b));
    kolo_builder_grid(b, 2, 1, 2, 2);
    for (uint32_t t = 0; t < 2; t++) {
        node_t node = place_in(env, env->root, t);
        if (node.parent < 0) kolo_builder_lane(b);
        down(b, &node, KOLO_BUF_SRC);
        if (node.parent < 0) kolo_builder_copy(b, part(&node, KOLO_BUF_DST), part(&node, KOLO_BUF_SRC));
    }
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_tree_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_REDUCE, KOLO_ALGO_TREE, env, &b));
    kolo_builder_grid(b, 2, 1, 2, 2);
    kolo_builder_scratch(b, 2);
    for (uint32_t t = 0; t < 2; t++) {
        node_t node = place_in(env, env->root, t);
        up(b, env, &node);
    }
    return kolo_builder_finish(b, plan);
}
