/* SPDX-License-Identifier: Apache-2.0
 *
 * How algorithms write plans. Errors (no memory, too many instructions) are sticky: an algorithm calls without
 * checking and kolo_builder_finish() reports the first one.
 */
#ifndef KOLO_PLAN_BUILDER_H
#define KOLO_PLAN_BUILDER_H

#include "plan/plan.h"

/* What an algorithm may know: numbers only. The same on every rank but for `rank`. */
typedef struct {
    uint32_t nranks, rank, root;
    uint32_t nnodes;
    const int *node_of;    /* rank -> node */
    const int *node_first; /* node -> index into node_ranks */
    const int *node_size;
    const int *node_ranks; /* ranks grouped by node, ascending */
    bool fanout;           /* NODE connections may be used inside a node */
    bool refs;             /* EXPOSE, GET, PUT may be used between any two ranks */
    bool one_fold;         /* reductions fold the inputs of all ranks at once, in rank order (config.order) */
    const int *rings;      /* nrings x nranks: rank orders (topology search); NULL: 0..n-1 */
    uint32_t nrings;       /* at least 1 where there are any; lane l goes by number l % nrings */
    uint32_t lanes;        /* how many lanes an algorithm that can use several should use (1 on CPUs) */
    /* P2P only: peers of the sends and receives of this group, in call order */
    const int *send_peers, *recv_peers;
    const bool *send_refs, *recv_refs;     /* by reference (EXPOSE and GET) instead of through slots; NULL: none */
    const bool *send_halves, *recv_halves; /* of those: the sender puts the second half itself; NULL: none */
    uint32_t nsends, nrecvs;
} kolo_emit_env_t;

typedef struct kolo_builder kolo_builder_t;

kolo_builder_t *kolo_builder_open(kolo_coll_t coll, kolo_algo_t algo,
                                  const kolo_emit_env_t *env); /* NULL: no memory */
void kolo_builder_grid(kolo_builder_t *b, uint32_t nparts, uint32_t nsubs, uint32_t src_parts, uint32_t dst_parts);
void kolo_builder_scratch(kolo_builder_t *b, uint32_t chunks);
void kolo_builder_queue(kolo_builder_t *b, uint32_t slices, uint32_t depth);
uint16_t kolo_builder_event(kolo_builder_t *b);
/* Connections: the same arguments give the same index; consecutive new ones get consecutive indices (for strides).
 * Connections that no instruction uses are dropped at the end: comm would connect them at one side only. */
uint16_t kolo_builder_tx(kolo_builder_t *b, uint32_t peer, uint32_t lane);
uint16_t kolo_builder_rx(kolo_builder_t *b, uint32_t peer, uint32_t lane);
uint16_t kolo_builder_node_tx(kolo_builder_t *b, uint32_t lane);
uint16_t kolo_builder_node_rx(kolo_builder_t *b, uint32_t writer, uint32_t lane);
/* Instructions go to the lane begun last. */
void kolo_builder_lane(kolo_builder_t *b);
kolo_insn_t *kolo_builder_insn(kolo_builder_t *b, kolo_opcode_t op); /* zeroed, conns NO_CONN; never NULL */
void kolo_builder_send(kolo_builder_t *b, uint16_t tx, kolo_segment_t src);
void kolo_builder_recv(kolo_builder_t *b, uint16_t rx, kolo_segment_t dst);
void kolo_builder_copy(kolo_builder_t *b, kolo_segment_t dst, kolo_segment_t src);
void kolo_builder_loop(kolo_builder_t *b, uint32_t count); /* count 0: the body is dropped */
void kolo_builder_end(kolo_builder_t *b);
uint16_t kolo_builder_list(kolo_builder_t *b, const uint16_t *rx, uint32_t count); /* returns list_first */
/* Frees the builder; on success hands over the plan. */
kolo_status_t kolo_builder_finish(kolo_builder_t *b, kolo_plan_t **plan);

/* Makes a segment; so do those below. */
static inline kolo_segment_t kolo_seg(kolo_buf_t buf, int32_t chunk, uint32_t n)
{
    return (kolo_segment_t){.buf = (uint8_t)buf, .base = chunk, .n = n};
}
static inline kolo_segment_t kolo_seg_loop(kolo_buf_t buf, int32_t base, int32_t stride, uint32_t mod)
{
    return (kolo_segment_t){.buf = (uint8_t)buf, .base = base, .stride = {stride, 0}, .mod = mod, .n = 1};
}
static inline kolo_segment_t kolo_seg_none(void)
{
    return (kolo_segment_t){.buf = KOLO_BUF_NONE};
}
/* Makes one of SCRATCH chunks chunk..chunk+n-1, as long as the grid chunks from `shape` on. */
static inline kolo_segment_t kolo_seg_scratch(int32_t chunk, uint32_t n, int32_t shape)
{
    return (kolo_segment_t){.buf = KOLO_BUF_SCRATCH, .base = chunk, .n = n, .shape = shape};
}
/* Makes the dst of a RECV_SEND that stores nothing: n chunks as long as the grid chunks from `shape` (+ stride * i)
 * on. */
static inline kolo_segment_t kolo_seg_pass(int32_t shape, int32_t stride, uint32_t n)
{
    return (kolo_segment_t){.buf = KOLO_BUF_NONE, .n = n, .shape = shape, .shape_stride = {stride, 0}};
}

#endif
