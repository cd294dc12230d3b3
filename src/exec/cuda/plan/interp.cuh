/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan interpreter as a kernel: a block runs one lane of one replica of a program (program.h), instruction by
 * instruction, piece by piece, as exec/host/interp.c does on CPUs. A piece is what a chunk has in a tile; it fits a
 * slot. For each piece the block waits for the slots that it takes and for room where it posts, moves or reduces
 * the bytes with all its threads, then sets flags and gives slots back. The same source runs on the host.
 */
#ifndef KOLO_EXEC_CUDA_PLAN_INTERP_CUH
#define KOLO_EXEC_CUDA_PLAN_INTERP_CUH

#include "exec/cuda/numeric.cuh"
#include "exec/cuda/plan/program.h"

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
    char *to[KOLO_CUDA_RANKS];             /* slots that it is posted in */
    uint32_t ended;
} kolo_plan_block_t;

/* Where the block is; the same in every thread. */
typedef struct {
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

KOLO_DEV uint32_t kolo_plan_queue(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, uint32_t conn)
{
    const kolo_cuda_conn_t &c = at.conns[conn];
    return (c.node ? KOLO_CUDA_PLAN_PAIRS : 0) + c.number * a.replicas + at.replica;
}
KOLO_DEV uint32_t *kolo_plan_steps(const kolo_cuda_plan_args_t &a, char *own, uint32_t dir, uint32_t peer,
                                   uint32_t queue)
{
    return (uint32_t *)(own + a.plan.steps) + (dir * a.c.layout.nranks + peer) * KOLO_CUDA_PLAN_QUEUES + queue;
}
KOLO_DEV uint64_t *kolo_plan_ready(const kolo_cuda_plan_args_t &a, char *region, uint32_t writer, uint32_t queue,
                                   uint32_t step)
{
    uint64_t slot = (uint64_t)(writer * KOLO_CUDA_PLAN_QUEUES + queue) * KOLO_CUDA_PLAN_DEPTH +
                    step % KOLO_CUDA_PLAN_DEPTH;
    return (uint64_t *)(region + a.plan.ready + slot * KOLO_CUDA_FLAG);
}
KOLO_DEV uint32_t *kolo_plan_credit(const kolo_cuda_plan_args_t &a, char *region, uint32_t reader, uint32_t queue)
{
    return (uint32_t *)(region + a.plan.credit +
                        (uint64_t)(reader * KOLO_CUDA_PLAN_QUEUES + queue) * KOLO_CUDA_FLAG);
}
KOLO_DEV char *kolo_plan_slot(const kolo_cuda_plan_args_t &a, char *region, uint32_t writer, uint32_t queue,
                              uint32_t step)
{
    uint64_t slot = (uint64_t)(writer * KOLO_CUDA_PLAN_QUEUES + queue) * KOLO_CUDA_PLAN_DEPTH +
                    step % KOLO_CUDA_PLAN_DEPTH;
    return region + a.plan.slots + slot * a.plan.slot_bytes;
}
KOLO_DEV uint64_t kolo_plan_flag(const kolo_cuda_plan_args_t &a, uint32_t step)
{
    return (step + 1) | (uint64_t)a.c.mark << 32;
}

/* How many readers a posting end has, and the u-th of them. */
KOLO_DEV uint32_t kolo_plan_readers(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, uint32_t tx)
{
    return tx == KOLO_CUDA_NO_CONN ? 0 : at.conns[tx].peer >= 0 ? 1 : a.c.layout.nranks - 1;
}
KOLO_DEV uint32_t kolo_plan_reader(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, uint32_t tx, uint32_t u)
{
    int32_t peer = at.conns[tx].peer;
    if (peer >= 0) return (uint32_t)peer;
    uint32_t r = a.c.rank + 1 + u;
    return r < a.c.layout.nranks ? r : r - a.c.layout.nranks;
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
KOLO_DEV uint64_t kolo_plan_chunk_bytes(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, uint32_t chunk,
                                        uint64_t *first)
{
    uint32_t nsubs = at.program->nsubs, part = chunk / nsubs, sub = chunk - part * nsubs;
    const kolo_cuda_cut_t &cut = a.subs[part < a.parts.more];
    *first = (cut.each * sub + (sub < cut.more ? sub : cut.more)) * a.elem;
    return (cut.each + (sub < cut.more)) * a.elem;
}
/* What chunk `k` of the instruction's operands has in the tile. */
KOLO_DEV uint32_t kolo_plan_length(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at,
                                   const kolo_cuda_insn_t &in, uint32_t k)
{
    uint64_t bytes, first, from = (uint64_t)at.tile * a.c.tile_bytes;
    if (in.dst.buf == KOLO_CUDA_BUF_DST || in.dst.buf == KOLO_CUDA_BUF_SRC)
        bytes = kolo_plan_chunk_bytes(a, at, kolo_plan_chunk(at, in.dst, k), &first);
    else if (in.src.buf == KOLO_CUDA_BUF_DST || in.src.buf == KOLO_CUDA_BUF_SRC)
        bytes = kolo_plan_chunk_bytes(a, at, kolo_plan_chunk(at, in.src, k), &first);
    else if (at.program->barrier)
        bytes = a.elem;
    else
        bytes = kolo_plan_chunk_bytes(a, at, kolo_plan_shape(at, in.dst.n ? in.dst : in.src, k), &first);
    if (bytes <= from) return 0;
    return bytes - from < a.c.tile_bytes ? (uint32_t)(bytes - from) : a.c.tile_bytes;
}
KOLO_DEV char *kolo_plan_address(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at,
                                 const kolo_cuda_segment_t &s, uint32_t k)
{
    if (s.buf == KOLO_CUDA_BUF_NONE) return NULL;
    uint32_t chunk = kolo_plan_chunk(at, s, k);
    if (s.buf == KOLO_CUDA_BUF_SCRATCH)
        return at.own + a.plan.scratch +
               ((uint64_t)at.replica * at.program->nscratch + chunk) * (uint64_t)a.c.tile_bytes;
    uint32_t part = chunk / at.program->nsubs;
    uint64_t first, base = s.buf == KOLO_CUDA_BUF_SRC ? a.c.src : a.c.dst,
                    stride = s.buf == KOLO_CUDA_BUF_SRC ? a.c.src_stride : a.c.dst_stride;
    kolo_plan_chunk_bytes(a, at, chunk, &first);
    uint64_t more = part < a.parts.more ? part : a.parts.more;
    return (char *)(base + part * stride + more * a.elem + first + (uint64_t)at.tile * a.c.tile_bytes);
}

/* ---- one piece: waiting ---- */

KOLO_DEV uint32_t kolo_plan_taken(const kolo_plan_at_t &at, const kolo_cuda_insn_t &in, uint32_t rx, uint32_t t)
{
    return in.op == KOLO_CUDA_OP_REDUCE_MANY ? at.list[in.list_first + t] : rx;
}
KOLO_DEV uint32_t kolo_plan_takes(const kolo_cuda_insn_t &in, uint32_t rx)
{
    return in.op == KOLO_CUDA_OP_REDUCE_MANY ? in.list_count : rx != KOLO_CUDA_NO_CONN;
}

KOLO_DEV bool kolo_plan_await_slot(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, uint32_t conn)
{
    uint32_t spins = 0, step = at.b->steps[conn], peer = (uint32_t)at.conns[conn].peer;
    const uint64_t *flag = kolo_plan_ready(a, at.own, peer, kolo_plan_queue(a, at, conn), step);
    while (kolo_slot_flag_load(flag) != kolo_plan_flag(a, step))
        if (kolo_give_up(&spins, a.c, KOLO_CUDA_WAITS_TILE, peer, step)) return false;
    return true;
}
/* Until all but `left` of the slots that were posted to this reader have been given back. */
KOLO_DEV bool kolo_plan_await_room(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, uint32_t conn,
                                   uint32_t reader, uint32_t left)
{
    uint32_t spins = 0, step = at.b->steps[conn];
    const uint32_t *credit = kolo_plan_credit(a, at.own, reader, kolo_plan_queue(a, at, conn));
    while ((int32_t)(kolo_flag_load(credit) - (step - left)) < 0)
        if (kolo_give_up(&spins, a.c, KOLO_CUDA_WAITS_CREDIT, reader, step)) return false;
    return true;
}

/* Waits for all slots that the piece needs, and says where they are; the same answer for the whole block. */
KOLO_DEV bool kolo_plan_await(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, const kolo_cuda_insn_t &in,
                              uint32_t rx, uint32_t tx)
{
    kolo_plan_block_t *b = at.b;
    uint32_t takes = kolo_plan_takes(in, rx), readers = kolo_plan_readers(a, at, tx);
    kolo_sync(); /* counters, and memory that the last piece has written */
    for (uint32_t t = kolo_tid(); t < takes + readers; t += kolo_nthreads()) {
        if (t < takes) {
            uint32_t conn = kolo_plan_taken(at, in, rx, t);
            if (!kolo_plan_await_slot(a, at, conn)) b->ended = 1;
            uint32_t place = in.op == KOLO_CUDA_OP_REDUCE_MANY ? t + (t >= in.own_place)
                                                               : !(in.flags & KOLO_CUDA_FLAG_RX_FIRST) && in.src.n;
            b->from[place] = kolo_plan_slot(a, at.own, (uint32_t)at.conns[conn].peer, kolo_plan_queue(a, at, conn),
                                            b->steps[conn]);
        } else {
            uint32_t reader = kolo_plan_reader(a, at, tx, t - takes);
            if (!kolo_plan_await_room(a, at, tx, reader, KOLO_CUDA_PLAN_DEPTH - 1)) b->ended = 1;
            b->to[t - takes] = kolo_plan_slot(a, kolo_region(a.c.regions, reader), a.c.rank,
                                              kolo_plan_queue(a, at, tx), b->steps[tx]);
        }
    }
    kolo_sync();
    return !b->ended;
}

/* ---- one piece: bytes ---- */

typedef struct {
    char *dst; /* NULL: nowhere but to slots */
    uint32_t bytes, nfrom, nto;
    uint32_t raw; /* the operand that is raw input, where there is one to scale */
    bool scale, divide;
} kolo_plan_piece_t;

template <typename T>
KOLO_DEV void kolo_plan_put(const kolo_plan_block_t &b, const kolo_plan_piece_t &p, uint32_t v, kolo_vec_t x,
                            bool aligned)
{
    if (p.dst) kolo_user_store<T>(p.dst + 16ull * v, x, p.bytes - 16ull * v, aligned);
    for (uint32_t u = 0; u < p.nto; u++) kolo_stage_store((kolo_vec_t *)b.to[u] + v, x);
}

/* One operand, as it is. */
template <typename T> KOLO_DEV void kolo_plan_copy(const kolo_plan_block_t &b, const kolo_plan_piece_t &p)
{
    const int U = 4;
    const char *from = b.from[0];
    bool aligned = ((uint64_t)from & 15) == 0, dst_aligned = ((uint64_t)p.dst & 15) == 0;
    uint32_t nv = (p.bytes + 15) / 16, step = kolo_nthreads(), v = kolo_tid();
    uint32_t whole = aligned && dst_aligned ? p.bytes / 16 : 0;
    if (p.dst == from && !p.nto) return;
    for (; v + (U - 1) * step < whole; v += U * step) {
        kolo_vec_t x[U];
#pragma unroll
        for (int u = 0; u < U; u++) x[u] = ((const kolo_vec_t *)from)[v + u * step];
#pragma unroll
        for (int u = 0; u < U; u++) kolo_plan_put<T>(b, p, v + u * step, x[u], true);
    }
    for (; v < nv; v += step)
        kolo_plan_put<T>(b, p, v, kolo_user_load<T>(from + 16ull * v, p.bytes - 16ull * v, aligned), dst_aligned);
}

template <typename T>
KOLO_DEV void kolo_plan_reduce(const kolo_cuda_plan_args_t &a, const kolo_plan_block_t &b, const kolo_plan_piece_t &p)
{
    const int N = 16 / sizeof(T);
    bool dst_aligned = ((uint64_t)p.dst & 15) == 0;
    uint32_t nv = (p.bytes + 15) / 16;
    for (uint32_t v = kolo_tid(); v < nv; v += kolo_nthreads()) {
        kolo_sum<T, N> sum;
        for (uint32_t k = 0; k < p.nfrom; k++) {
            const char *from = b.from[k];
            kolo_vec_t x =
                kolo_user_load<T>(from + 16ull * v, p.bytes - 16ull * v, ((uint64_t)from & 15) == 0);
            kolo_sum<T, N> one;
            if (p.scale && k == p.raw) { /* rounded, as other ranks get it */
                kolo_sum_scaled(&one, x, a.c, true);
                x = kolo_sum_rounded(&one, a.c, false);
            }
            kolo_sum_scaled(&one, x, a.c, false);
            if (k == 0)
                sum = one;
            else
                kolo_sum_join(&sum, one, a.c);
        }
        kolo_plan_put<T>(b, p, v, kolo_sum_rounded(&sum, a.c, p.divide), dst_aligned);
    }
}

/* Operands that are no slots; then all of it. */
template <typename T>
KOLO_DEV void kolo_plan_move(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, const kolo_cuda_insn_t &in,
                             uint32_t k, uint32_t bytes, uint32_t takes, uint32_t readers)
{
    kolo_plan_block_t *b = at.b;
    bool has_src = in.src.n != 0 && !(in.op == KOLO_CUDA_OP_REDUCE_MANY && in.own_place == 0xffff);
    bool pair = in.op == KOLO_CUDA_OP_REDUCE, dst_first = pair && (in.flags & KOLO_CUDA_FLAG_DST_FIRST);
    uint32_t place = in.op == KOLO_CUDA_OP_REDUCE_MANY ? in.own_place
                     : takes                           ? (in.flags & KOLO_CUDA_FLAG_RX_FIRST) != 0
                                                       : dst_first;
    bool raw = has_src && a.c.reduce && in.src.buf == KOLO_CUDA_BUF_SRC;
    bool scale = raw && a.c.scale != KOLO_CUDA_SCALE_NONE;
    bool divide = (in.flags & KOLO_CUDA_FLAG_FINAL) && a.c.divide;
    kolo_plan_piece_t p = {kolo_plan_address(a, at, in.dst, k), bytes, takes + has_src + pair, readers, place, scale,
                           divide};
    if (kolo_tid() == 0) {
        if (has_src) b->from[place] = kolo_plan_address(a, at, in.src, k);
        if (pair) b->from[!place] = p.dst;
    }
    if (has_src) kolo_sync();
    if (p.nfrom > 1 || p.scale || p.divide)
        kolo_plan_reduce<T>(a, *b, p);
    else
        kolo_plan_copy<T>(*b, p);
}

/* ---- one piece: posting ---- */

KOLO_DEV void kolo_plan_post(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, const kolo_cuda_insn_t &in,
                             uint32_t rx, uint32_t tx)
{
    kolo_plan_block_t *b = at.b;
    uint32_t takes = kolo_plan_takes(in, rx), readers = kolo_plan_readers(a, at, tx);
    uint32_t step = tx == KOLO_CUDA_NO_CONN ? 0 : b->steps[tx];
    kolo_sync();
    for (uint32_t t = kolo_tid(); t < takes + readers; t += kolo_nthreads()) {
        if (t >= takes) {
            uint32_t reader = kolo_plan_reader(a, at, tx, t - takes);
            char *region = kolo_region(a.c.regions, reader);
            kolo_slot_flag_store(kolo_plan_ready(a, region, a.c.rank, kolo_plan_queue(a, at, tx), step),
                                 kolo_plan_flag(a, step));
            if (t == takes) b->steps[tx] = step + 1;
            continue;
        }
        uint32_t conn = kolo_plan_taken(at, in, rx, t), done = b->steps[conn] + 1;
        char *region = kolo_region(a.c.regions, (uint32_t)at.conns[conn].peer);
        kolo_credit_store(kolo_plan_credit(a, region, a.c.rank, kolo_plan_queue(a, at, conn)), done);
        b->steps[conn] = done;
    }
}

KOLO_DEV void kolo_plan_trace_end(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at,
                                  const kolo_cuda_segment_t &s, uint32_t k, uint32_t conn)
{
    kolo_cuda_trace_t *trace = (kolo_cuda_trace_t *)a.trace;
    const kolo_cuda_conn_t &c = at.conns[conn];
    uint32_t n = kolo_count_up(&trace->count);
    if (n >= trace->capacity) return;
    ((kolo_cuda_step_t *)(trace + 1))[n] = kolo_cuda_step_t{c.peer, at.replica, kolo_plan_chunk(at, s, k), at.tile,
                                                           c.lane, c.dir,      c.node, (uint8_t)s.buf, {0, 0, 0}};
}
KOLO_DEV void kolo_plan_record(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, const kolo_cuda_insn_t &in,
                               uint32_t k, uint32_t rx, uint32_t tx)
{
    bool from_src = in.op == KOLO_CUDA_OP_SEND || in.op == KOLO_CUDA_OP_RECV_REDUCE_SEND;
    const kolo_cuda_segment_t &payload = from_src ? in.src : in.dst;
    for (uint32_t t = 0; t < kolo_plan_takes(in, rx); t++)
        kolo_plan_trace_end(a, at, payload, k, kolo_plan_taken(at, in, rx, t));
    if (tx != KOLO_CUDA_NO_CONN) kolo_plan_trace_end(a, at, payload, k, tx);
}

/* ---- instructions ---- */

/* false: the host wants the kernel to end. */
template <typename T>
KOLO_DEV bool kolo_plan_data(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, const kolo_cuda_insn_t &in)
{
    uint32_t n = in.dst.n > in.src.n ? in.dst.n : in.src.n, rx = in.rx, tx = in.tx;
    if (rx != KOLO_CUDA_NO_CONN) rx = (uint32_t)((int32_t)rx + in.rx_stride * (int32_t)at.i);
    if (tx != KOLO_CUDA_NO_CONN) tx = (uint32_t)((int32_t)tx + in.tx_stride * (int32_t)at.i);
    uint32_t takes = kolo_plan_takes(in, rx), readers = kolo_plan_readers(a, at, tx);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t bytes = kolo_plan_length(a, at, in, k);
        if (!bytes) continue;
        if (!kolo_plan_await(a, at, in, rx, tx)) return false;
        if (a.trace && kolo_tid() == 0) kolo_plan_record(a, at, in, k, rx, tx);
        kolo_plan_move<T>(a, at, in, k, bytes, takes, readers);
        kolo_plan_post(a, at, in, rx, tx);
    }
    return true;
}

KOLO_DEV uint32_t *kolo_plan_event(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, uint32_t event)
{
    return (uint32_t *)(at.own + a.plan.events) + 1 + at.replica * at.program->nevents + event;
}

/* SIGNAL, WAIT, RELEASE. */
KOLO_DEV bool kolo_plan_order(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, const kolo_cuda_insn_t &in)
{
    kolo_plan_block_t *b = at.b;
    kolo_cuda_mailbox_t *box = (kolo_cuda_mailbox_t *)a.c.mailbox;
    uint32_t spins = 0;
    kolo_sync();
    if (in.op == KOLO_CUDA_OP_RELEASE) {
        for (uint32_t u = kolo_tid(); u < kolo_plan_readers(a, at, in.tx); u += kolo_nthreads())
            if (!kolo_plan_await_room(a, at, in.tx, kolo_plan_reader(a, at, in.tx, u), 0)) b->ended = 1;
    } else if (kolo_tid() == 0 && in.op == KOLO_CUDA_OP_SIGNAL) {
        kolo_flag_store(kolo_plan_event(a, at, in.event), ++b->signals[in.event]);
    } else if (kolo_tid() == 0) {
        /* Another lane of this rank is late: it tells for whom it waits. */
        while ((int32_t)(kolo_flag_load(kolo_plan_event(a, at, in.event)) - b->waits[in.event]) <= 0) {
            kolo_pause();
            if (++spins % KOLO_SPINS_A_LOOK || !kolo_mailbox_aborted(box)) continue;
            b->ended = 1;
            break;
        }
        b->waits[in.event]++;
    }
    kolo_sync();
    return !b->ended;
}

template <typename T> KOLO_DEV bool kolo_plan_step(const kolo_cuda_plan_args_t &a, kolo_plan_at_t &at)
{
    const kolo_cuda_insn_t &in = at.insns[at.pc];
    switch (in.op) {
    case KOLO_CUDA_OP_LOOP:
        at.loop_pc[at.depth] = at.pc++;
        at.loop_i[at.depth++] = 0;
        break;
    case KOLO_CUDA_OP_END:
        if (++at.loop_i[at.depth - 1] < at.insns[at.loop_pc[at.depth - 1]].count) {
            at.pc = at.loop_pc[at.depth - 1] + 1;
            break;
        }
        at.depth--;
        at.pc++;
        break;
    case KOLO_CUDA_OP_SIGNAL:
    case KOLO_CUDA_OP_WAIT:
    case KOLO_CUDA_OP_RELEASE:
        at.pc++;
        return kolo_plan_order(a, at, in);
    default:
        at.pc++;
        return kolo_plan_data<T>(a, at, in);
    }
    at.i = at.depth ? at.loop_i[at.depth - 1] : 0;
    at.j = at.depth == 2 ? at.loop_i[0] : 0;
    return true;
}

/* ---- the kernel ---- */

/* What the ends of this lane have counted so far: read, or kept for the next operation. */
KOLO_DEV void kolo_plan_counters(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, bool keep)
{
    kolo_sync();
    for (uint32_t i = kolo_tid(); i < at.program->nconns; i += kolo_nthreads()) {
        const kolo_cuda_conn_t &c = at.conns[i];
        uint32_t peer = c.peer >= 0 ? (uint32_t)c.peer : kolo_plan_reader(a, at, i, 0);
        if (c.owner != at.lane) continue;
        uint32_t *steps = kolo_plan_steps(a, at.own, c.dir, peer, kolo_plan_queue(a, at, i));
        if (keep)
            *steps = at.b->steps[i];
        else
            at.b->steps[i] = *steps;
    }
    for (uint32_t i = kolo_tid(); i < KOLO_CUDA_PLAN_EVENTS && !keep; i += kolo_nthreads())
        at.b->waits[i] = at.b->signals[i] = 0;
    if (kolo_tid() == 0 && !keep) at.b->ended = 0;
    kolo_sync();
}

/* The last block of the launch leaves the events as the next one expects them. */
KOLO_DEV void kolo_plan_end_events(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at)
{
    uint32_t *ended = (uint32_t *)(at.own + a.plan.events);
    if (kolo_tid() != 0 || !at.program->nevents) return;
    if (kolo_count_up(ended) + 1 < kolo_nblocks()) return;
    for (uint32_t i = 0; i <= a.replicas * at.program->nevents; i++) kolo_flag_store(ended + i, 0);
}

template <typename T> KOLO_DEV void kolo_plan_run(const kolo_cuda_plan_args_t &a)
{
    kolo_begin(false);
    KOLO_SHARED kolo_plan_block_t block;
    const char *image = (const char *)a.program;
    kolo_plan_at_t at;
    at.program = (const kolo_cuda_program_t *)image;
    at.insns = (const kolo_cuda_insn_t *)(image + at.program->insns);
    at.conns = (const kolo_cuda_conn_t *)(image + at.program->conns);
    at.list = (const uint16_t *)(image + at.program->list);
    at.b = &block;
    at.own = kolo_region(a.c.regions, a.c.rank);
    at.lane = kolo_bid() % at.program->nlanes;
    at.replica = kolo_bid() / at.program->nlanes;
    kolo_cuda_lane_t lane = ((const kolo_cuda_lane_t *)(image + at.program->lanes))[at.lane];
    kolo_plan_counters(a, at, false);
    bool ok = true;
    for (at.tile = at.replica; ok && at.tile < a.tiles; at.tile += a.replicas) {
        at.pc = lane.first;
        at.depth = at.i = at.j = 0;
        while (ok && at.pc < lane.first + lane.count) ok = kolo_plan_step<T>(a, at);
    }
    kolo_plan_counters(a, at, true);
    kolo_plan_end_events(a, at);
}

#endif
