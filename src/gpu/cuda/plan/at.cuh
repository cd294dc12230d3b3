/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a block of the interpreter (interp.cuh) is: its queues, its chunks, and the words by which slots are handed
 * over.
 */
#ifndef KOLO_GPU_CUDA_PLAN_AT_CUH
#define KOLO_GPU_CUDA_PLAN_AT_CUH

#include "gpu/cuda/direct.cuh"
#include "gpu/cuda/ll128.cuh"
#include "gpu/cuda/plan/program.h"

#ifdef __CUDACC__
/* All that the block has written before kolo_sync() comes before the flag. */
KOLO_DEV void kolo_slot_flag_store(uint64_t *p, uint64_t v)
{
    asm volatile("fence.acq_rel.sys; st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
KOLO_DEV uint64_t kolo_slot_flag_load(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
/* Adds one, before and after all else that the block does; returns what was there. */
KOLO_DEV uint32_t kolo_count_up(uint32_t *p)
{
    __threadfence();
    uint32_t was = atomicAdd(p, 1u);
    __threadfence();
    return was;
}
#else
KOLO_DEV void kolo_slot_flag_store(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
KOLO_DEV uint64_t kolo_slot_flag_load(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
KOLO_DEV uint32_t kolo_count_up(uint32_t *p) { return __atomic_fetch_add(p, 1, __ATOMIC_ACQ_REL); }
#endif

/* What the threads of a block share. */
typedef struct {
    uint32_t steps[KOLO_CUDA_PLAN_CONNS]; /* slots that went over this end, for ends of this lane */
    uint32_t waits[KOLO_CUDA_PLAN_EVENTS], signals[KOLO_CUDA_PLAN_EVENTS];
    const char *from[KOLO_CUDA_RANKS + 1]; /* operands of a piece, in their order */
    uint32_t line[KOLO_CUDA_RANKS + 1];    /* by lines: the number in them; 0: it is memory */
    uint16_t peer[KOLO_CUDA_RANKS + 1];    /* and who writes them */
    char *to[KOLO_CUDA_RANKS];             /* slots that it is posted in */
    char *put;                             /* PUT: the peer's memory */
    uint32_t ended;
} kolo_plan_block_t;

/* Where the block is; the same in every thread. */
typedef struct {
    const kolo_cuda_plan_run_t *run;
    const kolo_cuda_program_t *program;
    const kolo_cuda_insn_t *insns;
    const kolo_cuda_conn_t *conns;
    const uint16_t *list;
    kolo_plan_block_t *b;
    char *own;
    uint32_t lane, replica, tile;
    uint32_t pc, depth, loop_pc[2], loop_i[2];
    uint32_t i, j; /* loop counters of segments */
} kolo_plan_at_t;

/* ---- queues ---- */

KOLO_DEV uint32_t kolo_plan_queue(const kolo_plan_at_t &at, uint32_t conn)
{
    const kolo_cuda_conn_t &c = at.conns[conn];
    return (c.node ? KOLO_CUDA_PLAN_PAIRS : 0) + c.number * at.run->replicas + at.replica;
}
KOLO_DEV uint32_t *kolo_plan_steps(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, uint32_t dir,
                                   uint32_t peer, uint32_t queue)
{
    uint32_t row = (at.run->way * 2 + dir) * a.l.c.layout.nranks + peer;
    return (uint32_t *)(at.own + a.plan.steps) + row * KOLO_CUDA_PLAN_QUEUES + queue;
}
KOLO_DEV uint64_t *kolo_plan_ready(const kolo_cuda_plan_args_t &a, char *region, uint32_t writer, uint32_t queue,
                                   uint32_t step)
{
    uint64_t slot = (uint64_t)(writer * KOLO_CUDA_PLAN_QUEUES + queue) * KOLO_CUDA_PLAN_DEPTH +
                    step % KOLO_CUDA_PLAN_DEPTH;
    return (uint64_t *)(region + a.plan.ready + slot * KOLO_CUDA_FLAG);
}
KOLO_DEV uint32_t *kolo_plan_credit(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, char *region,
                                    uint32_t reader, uint32_t queue)
{
    uint32_t row = at.run->way * a.l.c.layout.nranks + reader;
    return (uint32_t *)(region + a.plan.credit + (uint64_t)(row * KOLO_CUDA_PLAN_QUEUES + queue) * KOLO_CUDA_FLAG);
}
KOLO_DEV char *kolo_plan_slot(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, char *region, uint32_t writer,
                              uint32_t queue, uint32_t step)
{
    uint64_t slot = (uint64_t)(writer * KOLO_CUDA_PLAN_QUEUES + queue) * KOLO_CUDA_PLAN_DEPTH +
                    step % KOLO_CUDA_PLAN_DEPTH;
    if (at.run->way == KOLO_CUDA_BY_LINES) return region + a.plan.lines + slot * a.plan.line_bytes;
    if (at.run->way == KOLO_CUDA_BY_LINES_128) return region + a.plan.lines128 + slot * a.plan.line128_bytes;
    return region + a.plan.slots + slot * a.plan.slot_bytes;
}
KOLO_DEV uint64_t kolo_plan_flag(const kolo_cuda_plan_args_t &a, uint32_t step)
{
    return (step + 1) | (uint64_t)a.l.c.mark << 32;
}

/* How many readers a posting end has, and the u-th of them. */
KOLO_DEV uint32_t kolo_plan_readers(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, uint32_t tx)
{
    return tx == KOLO_CUDA_NO_CONN ? 0 : at.conns[tx].peer >= 0 ? 1 : a.l.c.layout.nranks - 1;
}
KOLO_DEV uint32_t kolo_plan_reader(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, uint32_t tx, uint32_t u)
{
    int32_t peer = at.conns[tx].peer;
    if (peer >= 0) return (uint32_t)peer;
    uint32_t r = a.l.c.rank + 1 + u;
    return r < a.l.c.layout.nranks ? r : r - a.l.c.layout.nranks;
}

/* ---- chunks ---- */

KOLO_DEV uint32_t kolo_plan_wrap(int32_t c, uint32_t mod)
{
    if (c >= 0 && (uint32_t)c < mod) return (uint32_t)c;
    c %= (int32_t)mod;
    return (uint32_t)(c < 0 ? c + (int32_t)mod : c);
}
KOLO_DEV uint32_t kolo_plan_chunk(const kolo_plan_at_t &at, const kolo_cuda_segment_t &s, uint32_t k)
{
    int32_t c = s.base + s.stride[0] * (int32_t)at.i + s.stride[1] * (int32_t)at.j + (int32_t)k;
    return s.mod ? kolo_plan_wrap(c, s.mod) : (uint32_t)c;
}
KOLO_DEV uint32_t kolo_plan_shape(const kolo_plan_at_t &at, const kolo_cuda_segment_t &s, uint32_t k)
{
    int32_t c = s.shape + s.shape_stride[0] * (int32_t)at.i + s.shape_stride[1] * (int32_t)at.j + (int32_t)k;
    return kolo_plan_wrap(c, at.program->chunks);
}

/* A chunk of SRC or DST: its first byte in the part, and its length. */
KOLO_DEV uint64_t kolo_plan_chunk_bytes(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, uint32_t buf,
                                        uint32_t chunk, uint64_t *first)
{
    uint32_t nsubs = at.program->nsubs, part = chunk / nsubs, sub = chunk - part * nsubs;
    kolo_cuda_cut_t cut = at.run->subs[part < at.run->parts.more];
    if (a.uneven) {
        uint64_t count = (buf == KOLO_CUDA_BUF_SRC ? a.src : a.dst).count[part];
        cut.each = count / nsubs;
        cut.more = count - cut.each * nsubs;
    }
    *first = (cut.each * sub + (sub < cut.more ? sub : cut.more)) * a.elem;
    return (cut.each + (sub < cut.more)) * a.elem;
}
/* What chunk `k` of the instruction's operands has in the tile. */
KOLO_DEV uint32_t kolo_plan_length(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at,
                                   const kolo_cuda_insn_t &in, uint32_t k)
{
    uint64_t bytes, first, from = (uint64_t)at.tile * at.run->tile_bytes;
    if (in.dst.buf == KOLO_CUDA_BUF_DST || in.dst.buf == KOLO_CUDA_BUF_SRC)
        bytes = kolo_plan_chunk_bytes(a, at, in.dst.buf, kolo_plan_chunk(at, in.dst, k), &first);
    else if (in.src.buf == KOLO_CUDA_BUF_DST || in.src.buf == KOLO_CUDA_BUF_SRC)
        bytes = kolo_plan_chunk_bytes(a, at, in.src.buf, kolo_plan_chunk(at, in.src, k), &first);
    else if (at.program->barrier)
        bytes = a.elem;
    else
        bytes = kolo_plan_chunk_bytes(a, at, at.program->grid_buf,
                                      kolo_plan_shape(at, in.dst.n ? in.dst : in.src, k), &first);
    if (bytes <= from) return 0;
    return bytes - from < at.run->tile_bytes ? (uint32_t)(bytes - from) : at.run->tile_bytes;
}
KOLO_DEV char *kolo_plan_address(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at,
                                 const kolo_cuda_segment_t &s, uint32_t k)
{
    if (s.buf == KOLO_CUDA_BUF_NONE) return NULL;
    uint32_t chunk = kolo_plan_chunk(at, s, k);
    if (s.buf == KOLO_CUDA_BUF_SCRATCH)
        return at.own + a.plan.scratch +
               ((uint64_t)at.replica * at.program->nscratch + chunk) * (uint64_t)at.run->tile_bytes;
    bool src = s.buf == KOLO_CUDA_BUF_SRC;
    uint32_t part = chunk / at.program->nsubs;
    uint64_t first, more = part < at.run->parts.more ? part : at.run->parts.more;
    kolo_plan_chunk_bytes(a, at, s.buf, chunk, &first);
    uint64_t in_buffer = a.uneven ? (src ? a.src : a.dst).at[part]
                                  : part * (src ? at.run->src_stride : at.run->dst_stride) + more * a.elem;
    return (char *)((src ? a.l.c.src : a.l.c.dst) + in_buffer + first + (uint64_t)at.tile * at.run->tile_bytes);
}

#endif
