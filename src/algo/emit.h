/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to algo/: the emit functions that table.c lists, and the few phrases they share. An emit function is
 * called with at least two ranks (kolo_algo_emit() sees to one rank), but for the point-to-point one.
 */
#ifndef KOLO_ALGO_EMIT_H
#define KOLO_ALGO_EMIT_H

#include "algo/algo.h"
#include "algo/pattern.h"

/* ---- phrases (emit.c) ---- */

/* Opens a builder with the usual queue: small inside a machine, where a deeper one only costs cache; two pieces
 * under way and two more to hide latency between machines. Always more slots than one chunk takes, so that a
 * forwarding step finds room while everybody forwards. */
kolo_status_t kolo_emit_open(kolo_coll_t coll, kolo_algo_t algo, const kolo_emit_env_t *env, kolo_builder_t **b);

/* Returns the order of ranks round the ring: position of a rank, rank at a position (any sign). */
uint32_t kolo_emit_position(const kolo_emit_env_t *env, uint32_t lane, uint32_t rank);
uint32_t kolo_emit_rank_at(const kolo_emit_env_t *env, uint32_t lane, int64_t position);
/* Tells whether the ring is 0, 1, ..., n-1: chunks numbered by rank are then affine in the step. */
bool kolo_emit_ring_is_plain(const kolo_emit_env_t *env, uint32_t lane);

/* Tells whether one NODE connection reaches all other ranks (else a PAIR each); and sends to all of them. */
bool kolo_emit_has_fan(const kolo_emit_env_t *env);
void kolo_emit_spread(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t lane, kolo_segment_t src);
uint16_t kolo_emit_spread_rx(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t writer, uint32_t lane);

void kolo_emit_recv_send(kolo_builder_t *b, uint16_t rx, uint16_t tx, kolo_segment_t dst);
void kolo_emit_recv_reduce(kolo_builder_t *b, uint16_t rx, kolo_segment_t dst, kolo_segment_t src, uint8_t flags);
void kolo_emit_recv_reduce_send(kolo_builder_t *b, uint16_t rx, uint16_t tx, kolo_segment_t src);
void kolo_emit_recv_reduce_copy_send(kolo_builder_t *b, uint16_t rx, uint16_t tx, kolo_segment_t dst,
                                     kolo_segment_t src, uint8_t flags);
typedef struct {
    uint16_t first; /* of kolo_builder_list() */
    uint32_t count;
    uint32_t own_place; /* so many of them come before this rank's own operand */
} kolo_rx_list_t;
/* Reduces what the list brings, in its order, with src in its place, to dst; tx may be NO_CONN. */
void kolo_emit_reduce_many(kolo_builder_t *b, kolo_rx_list_t list, uint16_t tx, kolo_segment_t dst,
                           kolo_segment_t src, uint8_t flags);
/* Returns a list of one connection from every other rank in rank order. */
uint16_t kolo_emit_list_pairs(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t lane);
uint16_t kolo_emit_list_spread(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t lane);
void kolo_emit_wait_released(kolo_builder_t *b, uint16_t tx);

/* ---- algorithms: one file each ---- */

kolo_status_t kolo_ring_all_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_ring_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_ring_reduce_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_ring_broadcast(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_ring_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan);

kolo_status_t kolo_direct_all_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_direct_reduce_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_direct_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_direct_broadcast(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_direct_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_direct_gather(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_direct_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_direct_all_to_all(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_direct_barrier(const kolo_emit_env_t *env, kolo_plan_t **plan);

kolo_status_t kolo_one_step_all_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_one_step_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_one_step_broadcast(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_one_step_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_one_step_reduce_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan);

kolo_status_t kolo_halving_doubling_all_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_halving_doubling_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_halving_doubling_reduce_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan);

kolo_status_t kolo_tree_all_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_tree_broadcast(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_tree_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan);

kolo_status_t kolo_bruck_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_bruck_all_to_all(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_bruck_barrier(const kolo_emit_env_t *env, kolo_plan_t **plan);

kolo_status_t kolo_pairwise_all_to_all(const kolo_emit_env_t *env, kolo_plan_t **plan);

kolo_status_t kolo_pat_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_pat_reduce_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan);

kolo_status_t kolo_hierarchical_all_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_hierarchical_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_hierarchical_reduce_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_hierarchical_broadcast(const kolo_emit_env_t *env, kolo_plan_t **plan);

kolo_status_t kolo_single_copy_broadcast(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_single_copy_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_single_copy_all_to_all(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_single_copy_gather(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_single_copy_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_single_copy_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_single_copy_reduce_scatter(const kolo_emit_env_t *env, kolo_plan_t **plan);
kolo_status_t kolo_single_copy_all_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan);

kolo_status_t kolo_p2p_group(const kolo_emit_env_t *env, kolo_plan_t **plan);

#endif
