/* SPDX-License-Identifier: Apache-2.0
 *
 * Phrases that the algorithms share: instructions with their operands, the order of the ring, and "to everybody".
 */
#include "algo/emit.h"

kolo_status_t kolo_emit_open(kolo_coll_t coll, kolo_algo_t algo, const kolo_emit_env_t *env, kolo_builder_t **b)
{
    kolo_builder_t *builder = kolo_builder_open(coll, algo, env);
    if (!builder)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to build the %s plan for %s", kolo_plan_algo_name(algo),
                         kolo_coll_name(coll));
    if (env->nnodes > 1)
        kolo_builder_queue(builder, 2, 4);
    else
        kolo_builder_queue(builder, 1, 2);
    *b = builder;
    return KOLO_OK;
}

static const int *ring_of(const kolo_emit_env_t *env, uint32_t lane)
{
    return env->rings ? env->rings + (size_t)(lane % env->nrings) * env->nranks : NULL;
}

uint32_t kolo_emit_position(const kolo_emit_env_t *env, uint32_t lane, uint32_t rank)
{
    const int *ring = ring_of(env, lane);
    if (!ring) return rank;
    for (uint32_t i = 0; i < env->nranks; i++)
        if (ring[i] == (int)rank) return i;
    return 0;
}

uint32_t kolo_emit_rank_at(const kolo_emit_env_t *env, uint32_t lane, int64_t position)
{
    const int *ring = ring_of(env, lane);
    uint32_t at = kolo_pattern_wrap(position, env->nranks);
    return ring ? (uint32_t)ring[at] : at;
}

bool kolo_emit_ring_is_plain(const kolo_emit_env_t *env, uint32_t lane)
{
    const int *ring = ring_of(env, lane);
    for (uint32_t i = 0; ring && i < env->nranks; i++)
        if (ring[i] != (int)i) return false;
    return true;
}

bool kolo_emit_has_fan(const kolo_emit_env_t *env)
{
    return env->fanout && env->nnodes == 1;
}

void kolo_emit_spread(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t lane, kolo_segment_t src)
{
    if (kolo_emit_has_fan(env)) {
        kolo_builder_send(b, kolo_builder_node_tx(b, lane), src);
        return;
    }
    for (uint32_t k = 1; k < env->nranks; k++)
        kolo_builder_send(b, kolo_builder_tx(b, (env->rank + k) % env->nranks, lane), src);
}

uint16_t kolo_emit_spread_rx(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t writer, uint32_t lane)
{
    return kolo_emit_has_fan(env) ? kolo_builder_node_rx(b, writer, lane) : kolo_builder_rx(b, writer, lane);
}

void kolo_emit_recv_send(kolo_builder_t *b, uint16_t rx, uint16_t tx, kolo_segment_t dst)
{
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_RECV_SEND);
    in->rx = rx;
    in->tx = tx;
    in->dst = dst;
}

void kolo_emit_recv_reduce(kolo_builder_t *b, uint16_t rx, kolo_segment_t dst, kolo_segment_t src, uint8_t flags)
{
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_RECV_REDUCE);
    in->rx = rx;
    in->dst = dst;
    in->src = src;
    in->flags = flags;
}

void kolo_emit_recv_reduce_send(kolo_builder_t *b, uint16_t rx, uint16_t tx, kolo_segment_t src)
{
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_RECV_REDUCE_SEND);
    in->rx = rx;
    in->tx = tx;
    in->src = src;
}

void kolo_emit_recv_reduce_copy_send(kolo_builder_t *b, uint16_t rx, uint16_t tx, kolo_segment_t dst,
                                     kolo_segment_t src, uint8_t flags)
{
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_RECV_REDUCE_COPY_SEND);
    in->rx = rx;
    in->tx = tx;
    in->dst = dst;
    in->src = src;
    in->flags = flags;
}

void kolo_emit_reduce_many(kolo_builder_t *b, kolo_rx_list_t list, uint16_t tx, kolo_segment_t dst,
                           kolo_segment_t src, uint8_t flags)
{
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_REDUCE_MANY);
    in->list_first = list.first;
    in->list_count = (uint16_t)list.count;
    in->own_place = (uint16_t)list.own_place;
    in->tx = tx;
    in->dst = dst;
    in->src = src;
    in->flags = flags;
}

uint16_t kolo_emit_list_pairs(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t lane)
{
    uint16_t first = 0;
    bool begun = false;
    for (uint32_t p = 0; p < env->nranks; p++) {
        if (p == env->rank) continue;
        uint16_t rx = kolo_builder_rx(b, p, lane);
        uint16_t at = kolo_builder_list(b, &rx, 1);
        if (!begun) first = at;
        begun = true;
    }
    return first;
}

uint16_t kolo_emit_list_spread(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t lane)
{
    if (!kolo_emit_has_fan(env)) return kolo_emit_list_pairs(b, env, lane);
    uint16_t first = 0;
    bool begun = false;
    for (uint32_t p = 0; p < env->nranks; p++) {
        if (p == env->rank) continue;
        uint16_t rx = kolo_builder_node_rx(b, p, lane);
        uint16_t at = kolo_builder_list(b, &rx, 1);
        if (!begun) first = at;
        begun = true;
    }
    return first;
}

void kolo_emit_wait_released(kolo_builder_t *b, uint16_t tx)
{
    kolo_builder_insn(b, KOLO_OP_RELEASE)->tx = tx;
}
