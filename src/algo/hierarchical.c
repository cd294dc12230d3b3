/* SPDX-License-Identifier: Apache-2.0
 *
 * Two levels: inside every node first, between nodes once per byte, inside again. Nodes may have unequal sizes:
 * rail q of a node is served by its member q mod size, so that where a node has fewer ranks some serve several
 * rails. Source: the two-level collectives of Open MPI's HAN (X. Luo et al., CLUSTER 2020) and NCCL's rail-aligned
 * rings; uneven nodes by letting members own several rails.
 *
 * Every rail has lanes and connections of its own (connection lane = rail), so that no rail waits for another.
 */
#include "algo/emit.h"

typedef struct {
    const kolo_emit_env_t *env;
    uint32_t node, size, local; /* my node, its size, my place in it */
} here_t;

static uint32_t member(const kolo_emit_env_t *env, uint32_t node, uint32_t rail)
{
    return (uint32_t)env->node_ranks[env->node_first[node] + (int)(rail % (uint32_t)env->node_size[node])];
}

static uint32_t place_of(const kolo_emit_env_t *env, uint32_t rank)
{
    int node = env->node_of[rank], i = 0;
    while (env->node_ranks[env->node_first[node] + i] != (int)rank) i++;
    return (uint32_t)i;
}

static here_t here_of(const kolo_emit_env_t *env)
{
    uint32_t node = (uint32_t)env->node_of[env->rank];
    return (here_t){
        .env = env, .node = node, .size = (uint32_t)env->node_size[node], .local = place_of(env, env->rank)};
}

static uint32_t largest_node(const kolo_emit_env_t *env)
{
    int most = 1;
    for (uint32_t v = 0; v < env->nnodes; v++)
        if (env->node_size[v] > most) most = env->node_size[v];
    return (uint32_t)most;
}

/* Sends to all other ranks of my node, and receives from such a writer. */
static void spread(kolo_builder_t *b, const here_t *h, uint32_t lane, kolo_segment_t src)
{
    if (h->size == 1) return;
    if (h->env->fanout) {
        kolo_builder_send(b, kolo_builder_node_tx(b, lane), src);
        return;
    }
    for (uint32_t k = 1; k < h->size; k++)
        kolo_builder_send(b, kolo_builder_tx(b, member(h->env, h->node, h->local + k), lane), src);
}

static uint16_t spread_rx(kolo_builder_t *b, const here_t *h, uint32_t writer, uint32_t lane)
{
    return h->env->fanout ? kolo_builder_node_rx(b, writer, lane) : kolo_builder_rx(b, writer, lane);
}

/* Receives a chunk and spreads it: in one pass where one fan-out write reaches everybody. */
static void recv_spread(kolo_builder_t *b, const here_t *h, uint16_t rx, uint32_t lane, kolo_segment_t dst)
{
    if (h->size > 1 && h->env->fanout) {
        kolo_emit_recv_send(b, rx, kolo_builder_node_tx(b, lane), dst);
        return;
    }
    kolo_builder_recv(b, rx, dst);
    spread(b, h, lane, dst);
}

/* Lists one connection from every other member of my node, in rank order. */
static uint16_t list_members(kolo_builder_t *b, const here_t *h, uint32_t lane)
{
    uint16_t first = 0;
    bool begun = false;
    for (uint32_t i = 0; i < h->size; i++) {
        if (i == h->local) continue;
        uint16_t rx = kolo_builder_rx(b, member(h->env, h->node, i), lane);
        uint16_t at = kolo_builder_list(b, &rx, 1);
        if (!begun) first = at;
        begun = true;
    }
    return first;
}

/* ---- all_reduce: reduce to the rail's owner, ring of owners, spread ---- */

typedef struct {
    uint32_t rail, rails, nodes, node;
} rail_t;

/* Chunks are numbered node-major: chunk (position, rail); a walk goes one node back per turn. */
static kolo_segment_t rail_walk(const rail_t *r, kolo_buf_t buf, int64_t back)
{
    uint32_t at = kolo_pattern_wrap((int64_t)r->node - back, r->nodes) * r->rails + r->rail;
    return kolo_seg_loop(buf, (int32_t)at, -(int32_t)r->rails, r->rails * r->nodes);
}

/* Adds up one chunk inside the node, into DST and, if any, the first connection of the ring. */
static void reduce_local(kolo_builder_t *b, const here_t *h, const rail_t *r, uint16_t list, uint16_t tx,
                         int64_t back)
{
    if (h->size > 1)
        kolo_emit_reduce_many(b, (kolo_rx_list_t){list, h->size - 1, h->local}, tx,
                              rail_walk(r, KOLO_BUF_DST, back), rail_walk(r, KOLO_BUF_SRC, back), 0);
    else if (tx != KOLO_NO_CONN)
        kolo_builder_send(b, tx, rail_walk(r, KOLO_BUF_SRC, back));
}

static void own_rail(kolo_builder_t *b, const here_t *h, const rail_t *r)
{
    const kolo_emit_env_t *env = h->env;
    uint32_t n = r->nodes;
    kolo_buf_t mine = h->size > 1 ? KOLO_BUF_DST : KOLO_BUF_SRC;
    kolo_builder_lane(b);
    uint16_t list = list_members(b, h, r->rail);
    uint16_t tx = kolo_builder_tx(b, member(env, (r->node + 1) % n, r->rail), r->rail);
    uint16_t rx = kolo_builder_rx(b, member(env, (r->node + n - 1) % n, r->rail), r->rail);
    reduce_local(b, h, r, list, tx, 0);
    kolo_builder_loop(b, n - 2);
    reduce_local(b, h, r, list, KOLO_NO_CONN, 1);
    kolo_emit_recv_reduce_send(b, rx, tx, rail_walk(r, mine, 1));
    kolo_builder_end(b);
    reduce_local(b, h, r, list, KOLO_NO_CONN, (int64_t)n - 1);
    kolo_emit_recv_reduce_copy_send(b, rx, tx, rail_walk(r, KOLO_BUF_DST, (int64_t)n - 1),
                                    rail_walk(r, mine, (int64_t)n - 1), KOLO_FLAG_FINAL);
    spread(b, h, r->rail, rail_walk(r, KOLO_BUF_DST, (int64_t)n - 1));
    kolo_builder_loop(b, n - 2);
    kolo_emit_recv_send(b, rx, tx, rail_walk(r, KOLO_BUF_DST, 0));
    spread(b, h, r->rail, rail_walk(r, KOLO_BUF_DST, 0));
    kolo_builder_end(b);
    recv_spread(b, h, rx, r->rail, rail_walk(r, KOLO_BUF_DST, (int64_t)n - 2));
}

kolo_status_t kolo_hierarchical_all_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    here_t h = here_of(env);
    uint32_t rails = largest_node(env), n = env->nnodes;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_REDUCE, KOLO_ALGO_HIERARCHICAL, env, &b));
    kolo_builder_grid(b, rails * n, 1, rails * n, rails * n);
    for (uint32_t q = 0; q < rails; q++) {
        rail_t r = {.rail = q, .rails = rails, .nodes = n, .node = h.node};
        uint32_t owner = member(env, h.node, q);
        if (owner == env->rank) {
            own_rail(b, &h, &r);
            continue;
        }
        kolo_builder_lane(b);
        kolo_builder_loop(b, n);
        kolo_builder_send(b, kolo_builder_tx(b, owner, q), rail_walk(&r, KOLO_BUF_SRC, 0));
        kolo_builder_end(b);
        kolo_builder_lane(b);
        kolo_builder_loop(b, n);
        kolo_builder_recv(b, spread_rx(b, &h, owner, q), rail_walk(&r, KOLO_BUF_DST, -1));
        kolo_builder_end(b);
    }
    return kolo_builder_finish(b, plan);
}

/* ---- all_gather: a part enters every other node once, at the member of its rail, and is spread there ---- */

/* Receives the remote parts that enter my node at its member `entry`, in the order in which everybody there handles
 * them: those of the node before mine first. If that is me, they come from their owners and I spread them. */
static void recv_entering(kolo_builder_t *b, const here_t *h, uint32_t entry)
{
    const kolo_emit_env_t *env = h->env;
    for (uint32_t k = 1; k < env->nnodes; k++) {
        uint32_t node = (h->node + env->nnodes - k) % env->nnodes;
        for (uint32_t i = 0; i < (uint32_t)env->node_size[node]; i++) {
            uint32_t part = member(env, node, i);
            kolo_segment_t dst = kolo_seg(KOLO_BUF_DST, (int32_t)part, 1);
            if (member(env, h->node, i) != entry) continue;
            if (entry == env->rank)
                recv_spread(b, h, kolo_builder_rx(b, part, 0), 1, dst);
            else
                kolo_builder_recv(b, spread_rx(b, h, entry, 1), dst);
        }
    }
}

kolo_status_t kolo_hierarchical_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    here_t h = here_of(env);
    kolo_segment_t src = kolo_seg(KOLO_BUF_SRC, 0, 1);
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_GATHER, KOLO_ALGO_HIERARCHICAL, env, &b));
    kolo_builder_grid(b, env->nranks, 1, 1, env->nranks);
    kolo_builder_lane(b);
    spread(b, &h, 0, src);
    for (uint32_t k = 1; k < env->nnodes; k++)
        kolo_builder_send(b, kolo_builder_tx(b, member(env, (h.node + k) % env->nnodes, h.local), 0), src);
    kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, (int32_t)env->rank, 1), src);
    kolo_builder_lane(b);
    recv_entering(b, &h, env->rank);
    for (uint32_t k = 1; k < h.size; k++) {
        uint32_t peer = member(env, h.node, h.local + k);
        kolo_builder_lane(b);
        kolo_builder_recv(b, spread_rx(b, &h, peer, 0), kolo_seg(KOLO_BUF_DST, (int32_t)peer, 1));
        recv_entering(b, &h, peer);
    }
    return kolo_builder_finish(b, plan);
}

/* ---- reduce_scatter: every node adds up each part at the member of its rail, which sends the sum to its owner
 * ---- */

/* Parts in the order in which my node handles them: the next node's first, my own node's last. */
static uint32_t part_member(const here_t *h, uint32_t k, uint32_t i)
{
    return member(h->env, (h->node + k) % h->env->nnodes, i);
}

static uint32_t part_members(const here_t *h, uint32_t k)
{
    return (uint32_t)h->env->node_size[(h->node + k) % h->env->nnodes];
}

static void send_to_adders(kolo_builder_t *b, const here_t *h)
{
    kolo_builder_lane(b);
    for (uint32_t k = 1; k <= h->env->nnodes; k++) {
        for (uint32_t i = 0; i < part_members(h, k); i++) {
            uint32_t part = part_member(h, k, i), adder = member(h->env, h->node, i);
            if (adder == h->env->rank) continue;
            kolo_builder_send(b, kolo_builder_tx(b, adder, 0), kolo_seg(KOLO_BUF_SRC, (int32_t)part, 1));
        }
    }
}

static void add_for_others(kolo_builder_t *b, const here_t *h, uint16_t list)
{
    for (uint32_t k = 1; k < h->env->nnodes; k++) {
        for (uint32_t i = h->local; i < part_members(h, k); i += h->size) {
            uint32_t part = part_member(h, k, i);
            kolo_segment_t src = kolo_seg(KOLO_BUF_SRC, (int32_t)part, 1);
            uint16_t tx = kolo_builder_tx(b, part, 0);
            if (h->size == 1)
                kolo_builder_send(b, tx, src);
            else
                kolo_emit_reduce_many(b, (kolo_rx_list_t){list, h->size - 1, h->local}, tx,
                                      kolo_seg_scratch(0, 1, (int32_t)part), src, 0);
        }
    }
}

kolo_status_t kolo_hierarchical_reduce_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    here_t h = here_of(env);
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_HIERARCHICAL, env, &b));
    kolo_builder_grid(b, env->nranks, 1, env->nranks, 1);
    kolo_builder_scratch(b, 1);
    send_to_adders(b, &h);
    kolo_builder_lane(b);
    uint16_t list = list_members(b, &h, 0);
    add_for_others(b, &h, list);
    uint16_t all = list_members(b, &h, 0);
    for (uint32_t k = 1; k < env->nnodes; k++) {
        uint16_t rx = kolo_builder_rx(b, part_member(&h, k, h.local), 0);
        uint16_t at = kolo_builder_list(b, &rx, 1);
        if (h.size == 1 && k == 1) all = at;
    }
    kolo_emit_reduce_many(b, (kolo_rx_list_t){all, h.size - 1 + env->nnodes - 1, h.local}, KOLO_NO_CONN,
                          kolo_seg(KOLO_BUF_DST, 0, 1), kolo_seg(KOLO_BUF_SRC, (int32_t)env->rank, 1),
                          KOLO_FLAG_FINAL);
    return kolo_builder_finish(b, plan);
}

/* ---- broadcast: a chain of one leader per node, each spreading in its node ---- */

kolo_status_t kolo_hierarchical_broadcast(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    here_t h = here_of(env);
    uint32_t n = env->nnodes, root_node = (uint32_t)env->node_of[env->root], rail = place_of(env, env->root);
    uint32_t hops = kolo_pattern_wrap((int64_t)h.node - root_node, n), leader = member(env, h.node, rail);
    kolo_segment_t src = kolo_seg(KOLO_BUF_SRC, 0, 1), dst = kolo_seg(KOLO_BUF_DST, 0, 1);
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_BROADCAST, KOLO_ALGO_HIERARCHICAL, env, &b));
    kolo_builder_lane(b);
    if (env->rank != leader) {
        kolo_builder_recv(b, spread_rx(b, &h, leader, 0), dst);
        return kolo_builder_finish(b, plan);
    }
    uint32_t next = member(env, (h.node + 1) % n, rail), prev = member(env, (h.node + n - 1) % n, rail);
    if (hops == 0) {
        kolo_builder_send(b, kolo_builder_tx(b, next, 0), src);
        spread(b, &h, 0, src);
        kolo_builder_copy(b, dst, src);
    } else if (hops == n - 1) {
        recv_spread(b, &h, kolo_builder_rx(b, prev, 0), 0, dst);
    } else {
        kolo_emit_recv_send(b, kolo_builder_rx(b, prev, 0), kolo_builder_tx(b, next, 0), dst);
        spread(b, &h, 0, dst);
    }
    return kolo_builder_finish(b, plan);
}
