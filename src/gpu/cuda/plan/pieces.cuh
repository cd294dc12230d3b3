/* SPDX-License-Identifier: Apache-2.0
 *
 * What the interpreter (interp.cuh) does with one piece: waits for the slots that it takes and for room where it
 * posts, moves or reduces the bytes, posts and gives back. By lines a piece is its own arrival: its bytes are
 * waited for where they are used.
 */
#ifndef KOLO_GPU_CUDA_PLAN_PIECES_CUH
#define KOLO_GPU_CUDA_PLAN_PIECES_CUH

#include "gpu/cuda/plan/at.cuh"

/* ---- one piece: waiting ---- */

KOLO_DEV uint32_t kolo_plan_taken(const kolo_plan_at_t &at, const kolo_cuda_insn_t &in, uint32_t rx, uint32_t t)
{
    return in.op == KOLO_CUDA_OP_REDUCE_MANY ? at.list[in.list_first + t] : rx;
}
KOLO_DEV uint32_t kolo_plan_takes(const kolo_cuda_insn_t &in, uint32_t rx)
{
    return in.op == KOLO_CUDA_OP_REDUCE_MANY ? in.list_count : rx != KOLO_CUDA_NO_CONN;
}

/* Is what its slot holds the address of the peer's memory? */
KOLO_DEV bool kolo_plan_follows(const kolo_cuda_insn_t &in)
{
    return in.op == KOLO_CUDA_OP_GET || in.op == KOLO_CUDA_OP_GET_REDUCE || in.op == KOLO_CUDA_OP_PUT;
}

KOLO_DEV bool kolo_plan_await_slot(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, uint32_t conn)
{
    uint32_t spins = 0, step = at.b->steps[conn], peer = (uint32_t)at.conns[conn].peer;
    const uint64_t *flag = kolo_plan_ready(a, at.own, peer, kolo_plan_queue(at, conn), step);
    while (kolo_slot_flag_load(flag) != kolo_plan_flag(a, step))
        if (kolo_give_up(&spins, a.l.c, KOLO_CUDA_WAITS_TILE, peer, step)) return false;
    return true;
}
/* Until all but `left` of the slots that were posted to this reader have been given back. */
KOLO_DEV bool kolo_plan_await_room(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, uint32_t conn,
                                   uint32_t reader, uint32_t left)
{
    uint32_t spins = 0, step = at.b->steps[conn];
    const uint32_t *credit = kolo_plan_credit(a, at, at.own, reader, kolo_plan_queue(at, conn));
    while ((int32_t)(kolo_flag_load(credit) - (step - left)) < 0)
        if (kolo_give_up(&spins, a.l.c, KOLO_CUDA_WAITS_CREDIT, reader, step)) return false;
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
            uint32_t conn = kolo_plan_taken(at, in, rx, t), peer = (uint32_t)at.conns[conn].peer;
            if (at.run->way == KOLO_CUDA_BY_SLOTS && !kolo_plan_await_slot(a, at, conn)) b->ended = 1;
            uint32_t place = in.op == KOLO_CUDA_OP_REDUCE_MANY ? t + (t >= in.own_place)
                                                               : !(in.flags & KOLO_CUDA_FLAG_RX_FIRST) && in.src.n;
            const char *slot = kolo_plan_slot(a, at, at.own, peer, kolo_plan_queue(at, conn), b->steps[conn]);
            b->from[place] = slot;
            if (kolo_plan_follows(in)) b->from[place] = b->put = *(char *const *)slot;
            b->line[place] = at.run->way != KOLO_CUDA_BY_SLOTS ? kolo_line_number(b->steps[conn]) : 0;
            b->peer[place] = (uint16_t)peer;
        } else {
            uint32_t reader = kolo_plan_reader(a, at, tx, t - takes);
            if (!kolo_plan_await_room(a, at, tx, reader, KOLO_CUDA_PLAN_DEPTH - 1)) b->ended = 1;
            b->to[t - takes] = kolo_plan_slot(a, at, kolo_region(a.l.c.regions, reader), a.l.c.rank,
                                              kolo_plan_queue(at, tx), b->steps[tx]);
        }
    }
    kolo_sync();
    return !b->ended;
}

/* ---- one piece: bytes ---- */

typedef struct {
    char *dst; /* NULL: nowhere but to slots */
    uint32_t bytes, nfrom, nto;
    uint32_t raw; /* by bit: operands that are raw input, to be scaled */
    uint32_t finish;
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
KOLO_DEV void kolo_plan_reduce(const kolo_cuda_plan_args_t &a, const kolo_plan_block_t &b,
                               const kolo_plan_piece_t &p)
{
    const int N = 16 / sizeof(T);
    bool dst_aligned = ((uint64_t)p.dst & 15) == 0;
    uint32_t nv = (p.bytes + 15) / 16;
    for (uint32_t v = kolo_tid(); v < nv; v += kolo_nthreads()) {
        kolo_sum<T, N> sum;
        for (uint32_t k = 0; k < p.nfrom; k++) {
            const char *from = b.from[k];
            kolo_vec_t x = kolo_user_load<T>(from + 16ull * v, p.bytes - 16ull * v, ((uint64_t)from & 15) == 0);
            kolo_sum<T, N> one;
            if (p.raw >> k & 1) { /* rounded, as other ranks get it */
                kolo_sum_scaled(&one, x, a.l.c, true);
                x = kolo_sum_rounded(&one, a.l.c, KOLO_CUDA_AS_IT_IS);
            }
            kolo_sum_scaled(&one, x, a.l.c, false);
            if (k == 0)
                sum = one;
            else
                kolo_sum_join(&sum, one, a.l.c);
        }
        kolo_plan_put<T>(b, p, v, kolo_sum_rounded(&sum, a.l.c, p.finish), dst_aligned);
    }
}

/* Operand `k` of a piece, vector `v` of 8 bytes; false: the host wants the kernel to end. */
template <typename T>
KOLO_DEV bool kolo_plan_line_in(const kolo_cuda_plan_args_t &a, const kolo_plan_block_t *b,
                                const kolo_plan_piece_t &p, uint32_t k, uint32_t v, kolo_vec_t *x)
{
    const char *from = b->from[k];
    if (b->line[k]) return kolo_line_wait(a.l.c, (const kolo_vec_t *)from + v, b->line[k], v, b->peer[k], x);
    *x = kolo_user_load8<T>(from + 8ull * v, p.bytes - 8ull * v, ((uint64_t)from & 7) == 0);
    if (!(p.raw >> k & 1)) return true;
    kolo_sum<T, 8 / sizeof(T)> one; /* rounded, as other ranks get it */
    kolo_sum_scaled(&one, *x, a.l.c, true);
    *x = kolo_sum_rounded(&one, a.l.c, KOLO_CUDA_AS_IT_IS);
    return true;
}

/* By lines: one pass, whatever is done. `number`: of the lines that are posted. */
template <typename T>
KOLO_DEV void kolo_plan_lines(const kolo_cuda_plan_args_t &a, kolo_plan_block_t *b, const kolo_plan_piece_t &p,
                              uint32_t number)
{
    const int N = 8 / sizeof(T);
    uint32_t nv = (p.bytes + 7) / 8;
    for (uint32_t v = kolo_tid(); v < nv; v += kolo_nthreads()) {
        kolo_vec_t x;
        kolo_sum<T, N> sum;
        for (uint32_t k = 0; k < p.nfrom; k++) {
            if (!kolo_plan_line_in<T>(a, b, p, k, v, &x)) {
                b->ended = 1;
                return;
            }
            kolo_sum<T, N> one;
            if (p.nfrom == 1 && !p.finish) break; /* as it is */
            kolo_sum_scaled(&one, x, a.l.c, false);
            if (k == 0)
                sum = one;
            else
                kolo_sum_join(&sum, one, a.l.c);
        }
        if (p.nfrom > 1 || p.finish) x = kolo_sum_rounded(&sum, a.l.c, p.finish);
        if (p.dst) kolo_user_store8<T>(p.dst + 8ull * v, x, p.bytes - 8ull * v, ((uint64_t)p.dst & 7) == 0);
        uint32_t flag = kolo_line_flag(a.l.c, number, v);
        for (uint32_t u = 0; u < p.nto; u++)
            kolo_line_store((kolo_vec_t *)b->to[u] + v, kolo_vec_t{{x.w[0], flag, x.w[1], flag}});
    }
}

/* Operand `k` of a piece, line `at` of `n`. For a whole warp. false: the host wants the kernel to end. */
template <typename T>
KOLO_DEV bool kolo_plan_line128_in(const kolo_cuda_args_t &c, const kolo_plan_block_t *b,
                                   const kolo_plan_piece_t &p, uint32_t k, uint32_t at, uint32_t n, kolo_line_t *x)
{
    const char *from = b->from[k];
    if (b->line[k])
        return kolo_batch_wait<1>(c, kolo_line128_flag(c, b->line[k]), from, at, n, x, (uint32_t)b->peer[k]);
    kolo_words_load<T>(x, from, at, at < n ? p.bytes : 0, ((uint64_t)from & 7) == 0, NULL);
#pragma unroll
    for (uint32_t i = 0; i < KOLO_LANES && (p.raw >> k & 1); i++) { /* rounded, as other ranks get it */
        kolo_sum<T, 16 / sizeof(T)> one;
        kolo_sum_scaled(&one, kolo_vec_of(x->w[i]), c, true);
        kolo_words_of(x->w[i], kolo_sum_rounded(&one, c, KOLO_CUDA_AS_IT_IS));
    }
    return true;
}

/* The same by lines of 128 bytes. */
template <typename T>
KOLO_DEV void kolo_plan_lines128(const kolo_cuda_args_t &c, kolo_plan_block_t *b, const kolo_plan_piece_t &p,
                                 uint32_t number)
{
    const int N = 16 / sizeof(T);
    const uint64_t flag = kolo_line128_flag(c, number);
    const bool aligned = ((uint64_t)p.dst & 7) == 0, sums = p.nfrom > 1 || p.finish;
    uint32_t lines = ((p.bytes + 7) / 8 + KOLO_LINE_WORDS - 1) / KOLO_LINE_WORDS, n;
    for (uint32_t at = kolo_group(); (n = kolo_batch<1>(at, lines)); at += n * kolo_groups()) {
        kolo_line_t x = {};
        kolo_sum<T, N> sum[KOLO_LANES];
        for (uint32_t k = 0; k < p.nfrom; k++) {
            if (!kolo_plan_line128_in<T>(c, b, p, k, at, lines, &x)) {
                b->ended = 1;
                return;
            }
#pragma unroll
            for (uint32_t i = 0; i < KOLO_LANES && sums; i++) {
                kolo_sum<T, N> one;
                kolo_sum_scaled(&one, kolo_vec_of(x.w[i]), c, false);
                if (k == 0)
                    sum[i] = one;
                else
                    kolo_sum_join(&sum[i], one, c);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < KOLO_LANES && sums; i++)
            kolo_words_of(x.w[i], kolo_sum_rounded(&sum[i], c, p.finish));
        if (p.dst) kolo_words_store<T>(&x, p.dst, at, at < lines ? p.bytes : 0, aligned);
        for (uint32_t u = 0; u < p.nto; u++) kolo_line128_store(b->to[u] + 128ull * at, &x, flag, at < lines);
    }
}

/* EXPOSE: where the piece lies, as the reader sees it. */
KOLO_DEV void kolo_plan_show(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, const kolo_cuda_insn_t &in,
                             uint32_t k, uint32_t tx)
{
    bool src = in.src.buf == KOLO_CUDA_BUF_SRC;
    uint32_t peer = (uint32_t)at.conns[tx].peer;
    uint64_t offset = (uint64_t)kolo_plan_address(a, at, in.src, k) - (src ? a.l.c.src : a.l.c.dst);
    if (kolo_tid() == 0) *(uint64_t *)at.b->to[0] = (src ? a.l.src : a.l.dst)[peer] + offset;
}

/* Operands that are no slots; then all of it. */
template <typename T>
KOLO_DEV void kolo_plan_move(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, const kolo_cuda_insn_t &in,
                             uint32_t k, uint32_t bytes, uint32_t rx, uint32_t tx)
{
    kolo_plan_block_t *b = at.b;
    uint32_t takes = kolo_plan_takes(in, rx), readers = kolo_plan_readers(a, at, tx);
    uint32_t number = readers ? kolo_line_number(b->steps[tx]) : 0;
    bool has_src = in.src.n != 0 && !(in.op == KOLO_CUDA_OP_REDUCE_MANY && in.own_place == 0xffff);
    bool pair = in.op == KOLO_CUDA_OP_REDUCE, dst_first = pair && (in.flags & KOLO_CUDA_FLAG_DST_FIRST);
    uint32_t place = in.op == KOLO_CUDA_OP_REDUCE_MANY ? in.own_place
                     : takes                           ? (in.flags & KOLO_CUDA_FLAG_RX_FIRST) != 0
                                                       : dst_first;
    bool puts = in.op == KOLO_CUDA_OP_PUT;
    uint32_t finish = in.flags & KOLO_CUDA_FLAG_FINAL ? a.l.c.finish : (uint32_t)KOLO_CUDA_AS_IT_IS;
    uint32_t raw = has_src && in.src.buf == KOLO_CUDA_BUF_SRC ? 1u << place : 0;
    if (in.flags & KOLO_CUDA_FLAG_RAW) raw |= 1u << (!(in.flags & KOLO_CUDA_FLAG_RX_FIRST) && in.src.n);
    if (!a.l.c.reduce || a.l.c.scale == KOLO_CUDA_SCALE_NONE) raw = 0;
    char *dst = puts ? b->put : kolo_plan_address(a, at, in.dst, k);
    kolo_plan_piece_t p = {dst, bytes, (puts ? 0 : takes) + has_src + pair, readers, raw, finish};
    if (kolo_tid() == 0) {
        if (has_src) b->from[place] = kolo_plan_address(a, at, in.src, k);
        if (pair) b->from[!place] = p.dst;
        if (has_src) b->line[place] = 0;
        if (pair) b->line[!place] = 0;
    }
    if (has_src) kolo_sync();
    if (at.run->way == KOLO_CUDA_BY_LINES)
        kolo_plan_lines<T>(a, b, p, number);
    else if (at.run->way == KOLO_CUDA_BY_LINES_128)
        kolo_plan_lines128<T>(a.l.c, b, p, number);
    else if (p.nfrom > 1 || p.raw || p.finish)
        kolo_plan_reduce<T>(a, *b, p);
    else
        kolo_plan_copy<T>(*b, p);
}

/* ---- one piece: posting ---- */

/* false: the host wants the kernel to end; only lines are waited for while they are moved. */
KOLO_DEV bool kolo_plan_post(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, const kolo_cuda_insn_t &in,
                             uint32_t rx, uint32_t tx)
{
    kolo_plan_block_t *b = at.b;
    uint32_t takes = kolo_plan_takes(in, rx), readers = kolo_plan_readers(a, at, tx);
    uint32_t step = tx == KOLO_CUDA_NO_CONN ? 0 : b->steps[tx];
    kolo_sync();
    if (b->ended) return false;
    for (uint32_t t = kolo_tid(); t < takes + readers; t += kolo_nthreads()) {
        if (t >= takes) {
            uint32_t reader = kolo_plan_reader(a, at, tx, t - takes);
            char *region = kolo_region(a.l.c.regions, reader);
            if (at.run->way == KOLO_CUDA_BY_SLOTS)
                kolo_slot_flag_store(kolo_plan_ready(a, region, a.l.c.rank, kolo_plan_queue(at, tx), step),
                                     kolo_plan_flag(a, step));
            if (t == takes) b->steps[tx] = step + 1;
            continue;
        }
        uint32_t conn = kolo_plan_taken(at, in, rx, t), done = b->steps[conn] + 1;
        char *region = kolo_region(a.l.c.regions, (uint32_t)at.conns[conn].peer);
        uint32_t *credit = kolo_plan_credit(a, at, region, a.l.c.rank, kolo_plan_queue(at, conn));
        if (in.op == KOLO_CUDA_OP_PUT)
            kolo_flag_store(credit, done); /* and what was put there */
        else
            kolo_credit_store(credit, done);
        b->steps[conn] = done;
    }
    return true;
}

KOLO_DEV void kolo_plan_trace_end(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at,
                                  const kolo_cuda_segment_t &s, uint32_t k, uint32_t conn)
{
    kolo_cuda_trace_t *trace = (kolo_cuda_trace_t *)a.trace;
    const kolo_cuda_conn_t &c = at.conns[conn];
    uint32_t n = kolo_count_up(&trace->count);
    if (n >= trace->capacity) return;
    ((kolo_cuda_step_t *)(trace + 1))[n] = kolo_cuda_step_t{
        c.peer, at.replica, kolo_plan_chunk(at, s, k), at.tile, c.lane, c.dir, c.node, (uint8_t)s.buf, {0, 0, 0}};
}
KOLO_DEV void kolo_plan_record(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, const kolo_cuda_insn_t &in,
                               uint32_t k, uint32_t rx, uint32_t tx)
{
    bool from_src = in.op == KOLO_CUDA_OP_SEND || in.op == KOLO_CUDA_OP_RECV_REDUCE_SEND ||
                    in.op == KOLO_CUDA_OP_EXPOSE || in.op == KOLO_CUDA_OP_PUT;
    const kolo_cuda_segment_t &payload = from_src ? in.src : in.dst;
    for (uint32_t t = 0; t < kolo_plan_takes(in, rx); t++)
        kolo_plan_trace_end(a, at, payload, k, kolo_plan_taken(at, in, rx, t));
    if (tx != KOLO_CUDA_NO_CONN) kolo_plan_trace_end(a, at, payload, k, tx);
}

#endif
