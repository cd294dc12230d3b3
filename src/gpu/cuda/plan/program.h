/* SPDX-License-Identifier: Apache-2.0
 *
 * A plan (plan/plan.h) as a kernel reads it, and the queues that it works on. Plain C, read by gcc and by nvcc;
 * lower.c makes a program from a plan, interp.cuh runs it, programs.c keeps those of a communicator.
 *
 * A program is run by replicas: copies of all its lanes, each with queues, scratch and events of its own. Tile t
 * belongs to replica t % replicas, so that a plan of one lane keeps many blocks busy. What the verifier shows of
 * the tiles of one run holds for each replica; replicas have different bytes of every chunk and nothing else in
 * common. A block is one lane of one replica, and a launch never has more blocks than are resident at once.
 *
 * A queue has KOLO_CUDA_PLAN_DEPTH slots, which lie in its reader's memory. A slot carries one piece: what a chunk
 * has in a tile. Behind it the writer sets the slot's flag, which holds the number of the slot and the mark of the
 * operation: a slot of another operation is never taken, the wait for it lasts until it is found out why. The
 * reader gives the slot back by a counter in the writer's memory. Both ends poll their own memory only.
 *
 * A queue has each slot three times: short pieces go by lines of 16 bytes (ll.cuh), which carry 8 of payload and
 * their own arrival, so nothing is set behind them and no fence is needed; longer ones by lines of 128 bytes, which
 * carry 120 (ll128.cuh). Which of the ways an operation takes follows from its length, so both ends know it; they
 * are counted apart, since the numbers in lines that are not written for long would come again.
 */
#ifndef KOLO_GPU_CUDA_PLAN_PROGRAM_H
#define KOLO_GPU_CUDA_PLAN_PROGRAM_H

#include "gpu/cuda/args.h"

#define KOLO_CUDA_PLAN_DEPTH  4u  /* slots of a queue */
#define KOLO_CUDA_PLAN_PAIRS  64u /* queues from one rank to another that have one reader */
#define KOLO_CUDA_PLAN_NODES  16u /* and those whose slots go to all ranks, with equal contents */
#define KOLO_CUDA_PLAN_QUEUES (KOLO_CUDA_PLAN_PAIRS + KOLO_CUDA_PLAN_NODES)
enum { KOLO_CUDA_BY_SLOTS, KOLO_CUDA_BY_LINES, KOLO_CUDA_BY_LINES_128, KOLO_CUDA_PLAN_WAYS };
#define KOLO_CUDA_PLAN_CONNS  256u /* ends of connections that one rank has in one plan */
#define KOLO_CUDA_PLAN_EVENTS 64u  /* of one plan */

/* As kolo_opcode_t, kolo_buf_t, KOLO_FLAG_*. */
enum {
    KOLO_CUDA_OP_SEND,
    KOLO_CUDA_OP_RECV,
    KOLO_CUDA_OP_RECV_REDUCE,
    KOLO_CUDA_OP_RECV_SEND,
    KOLO_CUDA_OP_RECV_REDUCE_SEND,
    KOLO_CUDA_OP_RECV_REDUCE_COPY_SEND,
    KOLO_CUDA_OP_REDUCE_MANY,
    KOLO_CUDA_OP_COPY,
    KOLO_CUDA_OP_REDUCE,
    KOLO_CUDA_OP_EXPOSE,
    KOLO_CUDA_OP_GET,
    KOLO_CUDA_OP_GET_REDUCE,
    KOLO_CUDA_OP_PUT,
    KOLO_CUDA_OP_RELEASE,
    KOLO_CUDA_OP_SIGNAL,
    KOLO_CUDA_OP_WAIT,
    KOLO_CUDA_OP_LOOP,
    KOLO_CUDA_OP_END
};
enum { KOLO_CUDA_BUF_NONE, KOLO_CUDA_BUF_SRC, KOLO_CUDA_BUF_DST, KOLO_CUDA_BUF_SCRATCH };
#define KOLO_CUDA_FLAG_FINAL     1u
#define KOLO_CUDA_FLAG_DST_FIRST 2u
#define KOLO_CUDA_FLAG_RX_FIRST  4u
#define KOLO_CUDA_FLAG_RAW       8u
#define KOLO_CUDA_NO_CONN        0xffffu

typedef struct { /* as kolo_segment_t */
    int32_t base, stride[2];
    uint32_t mod, n;
    int32_t shape, shape_stride[2];
    uint32_t buf;
} kolo_cuda_segment_t;

typedef struct { /* as kolo_insn_t */
    uint8_t op, flags;
    uint16_t tx, rx;
    int16_t tx_stride, rx_stride;
    uint16_t event;
    uint16_t list_first, list_count, own_place;
    uint16_t pad;
    uint32_t count;
    kolo_cuda_segment_t dst, src;
} kolo_cuda_insn_t;

typedef struct {
    int32_t peer; /* -1: all other ranks (NODE, tx) */
    uint16_t
        number;    /* of its lane and kind among those that any rank uses; queues of a replica follow each other */
    uint16_t lane; /* as in the plan, for traces */
    uint8_t dir, node;
    uint16_t owner; /* the lane of the program that uses this end */
} kolo_cuda_conn_t;

typedef struct {
    uint32_t first, count;
} kolo_cuda_lane_t;

/* The head; what follows it is found by offsets in bytes. */
typedef struct {
    uint32_t nlanes, nconns, nevents, nsubs;
    uint32_t chunks;   /* of the grid */
    uint32_t nscratch; /* chunks of scratch */
    uint32_t barrier;  /* every chunk is one element */
    uint32_t insns, conns, lanes, list;
    uint32_t grid_buf;  /* the buffer that has all parts */
    uint32_t refs, pad; /* refs: it passes references to memory */
} kolo_cuda_program_t;

/* Where it all lies in a region (args.h), behind what the other kernels use. */
typedef struct {
    uint32_t slot_bytes, line_bytes; /* line_bytes: of the lines of a slot, twice their payload */
    uint32_t line128_bytes, pad;     /* of its lines of 128 bytes */
    uint64_t lines_most;             /* longest chunk that goes by lines, in bytes */
    uint64_t lines128_most;          /* and by lines of 128 bytes, if it does not go by the others */
    uint64_t steps;                  /* uint32_t [WAYS][2][nranks][QUEUES]: slots posted to, taken from each rank */
    uint64_t ready;                  /* uint64_t flags [nranks][QUEUES][DEPTH], by writer */
    uint64_t credit;                 /* uint32_t flags [WAYS][nranks][QUEUES], by reader */
    uint64_t events;                 /* uint32_t: blocks that have ended; then [replica][event] */
    uint64_t scratch;                /* [replica][chunk][tile_bytes] */
    uint64_t scratch_bytes;
    uint64_t programs; /* images */
    uint64_t programs_bytes;
    uint64_t lines;    /* [nranks][QUEUES][DEPTH][line_bytes], by writer */
    uint64_t lines128; /* [nranks][QUEUES][DEPTH][line128_bytes], by writer */
    uint64_t slots;    /* [nranks][QUEUES][DEPTH][slot_bytes], by writer */
    uint64_t bytes;    /* of the region, with all of this; 0: there is nothing of it */
} kolo_cuda_plan_layout_t;

/* How `count` elements are cut: see kolo_part_cut(). */
typedef struct {
    uint64_t each, more;
} kolo_cuda_cut_t;

/* Parts of unequal lengths (the v forms): how many elements, and how many bytes behind the buffer's begin. */
typedef struct {
    uint64_t count[KOLO_CUDA_RANKS], at[KOLO_CUDA_RANKS];
} kolo_cuda_parts_t;

/* A program, and how this call is cut for it. */
typedef struct {
    uint64_t program; /* address; 0: there is none */
    uint32_t replicas, tiles, tile_bytes;
    uint32_t way;                    /* that pieces go: KOLO_CUDA_BY_... */
    uint64_t src_stride, dst_stride; /* of parts, which part p has `more` elements more of */
    kolo_cuda_cut_t parts;           /* count of a part; `more`: how many have one more */
    kolo_cuda_cut_t subs[2];         /* of a part with `each` elements, with one more */
} kolo_cuda_plan_run_t;

/* l: its layout, regions, mailbox, number, word and mark; src and dst, and how others see them; operator and
 * factor, with scale and finish as they are for raw inputs and for results. Where the first program passes
 * references, the kernels of all ranks meet first (direct.cuh): if one rank's buffers cannot be reached by all, all
 * run the second. */
typedef struct {
    kolo_cuda_long_args_t l;
    kolo_cuda_plan_layout_t plan;
    uint64_t trace; /* kolo_cuda_trace_t, or 0 */
    uint32_t elem;
    uint32_t uneven; /* src and dst hold, not parts and subs */
    kolo_cuda_plan_run_t runs[2];
    kolo_cuda_parts_t src, dst;
} kolo_cuda_plan_args_t;

/* What a kernel records when a test asks: kolo_trace_step_t, and by which replica. */
typedef struct {
    int32_t peer;
    uint32_t replica, chunk, tile;
    uint16_t lane;
    uint8_t dir, node, buf, pad[3];
} kolo_cuda_step_t;
typedef struct {              /* the steps follow it */
    uint32_t count, capacity; /* steps beyond the capacity are counted, not stored */
} kolo_cuda_trace_t;

#endif
