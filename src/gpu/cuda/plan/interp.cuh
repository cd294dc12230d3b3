/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan interpreter as a kernel: a block runs one lane of one replica of a program (program.h), instruction by
 * instruction, piece by piece, as exec/host/interp.c does on CPUs. A piece is what a chunk has in a tile; it fits a
 * slot. For each piece the block waits for the slots that it takes and for room where it posts, moves or reduces
 * the bytes with all its threads, then sets flags and gives slots back. The same source runs on the host.
 */
#ifndef KOLO_GPU_CUDA_PLAN_INTERP_CUH
#define KOLO_GPU_CUDA_PLAN_INTERP_CUH

#include "gpu/cuda/plan/pieces.cuh"

/* ---- instructions ---- */

/* false: the host wants the kernel to end. */
template <typename T>
KOLO_DEV bool kolo_plan_data(const kolo_cuda_plan_args_t &a, const kolo_plan_at_t &at, const kolo_cuda_insn_t &in)
{
    uint32_t n = in.dst.n > in.src.n ? in.dst.n : in.src.n, rx = in.rx, tx = in.tx;
    if (rx != KOLO_CUDA_NO_CONN) rx = (uint32_t)((int32_t)rx + in.rx_stride * (int32_t)at.i);
    if (tx != KOLO_CUDA_NO_CONN) tx = (uint32_t)((int32_t)tx + in.tx_stride * (int32_t)at.i);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t bytes = kolo_plan_length(a, at, in, k);
        if (!bytes) continue;
        if (!kolo_plan_await(a, at, in, rx, tx)) return false;
        if (a.trace && kolo_tid() == 0) kolo_plan_record(a, at, in, k, rx, tx);
        if (in.op == KOLO_CUDA_OP_EXPOSE)
            kolo_plan_show(a, at, in, k, tx);
        else
            kolo_plan_move<T>(a, at, in, k, bytes, rx, tx);
        if (!kolo_plan_post(a, at, in, rx, tx)) return false;
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
    kolo_cuda_mailbox_t *box = (kolo_cuda_mailbox_t *)a.l.c.mailbox;
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
            kolo_report(box, KOLO_CUDA_WAITS_TILE, a.l.c.rank, in.event);
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
        uint32_t *steps = kolo_plan_steps(a, at, c.dir, peer, kolo_plan_queue(at, i));
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
    if (kolo_count_up(ended) + 1 < at.run->replicas * at.program->nlanes) return;
    for (uint32_t i = 0; i <= at.run->replicas * at.program->nevents; i++) kolo_flag_store(ended + i, 0);
}

/* Which of the two programs? All ranks' blocks come to the same, so those that have nothing to do come here, too.
 * false: the host wants the kernel to end. */
KOLO_DEV bool kolo_plan_meet(const kolo_cuda_plan_args_t &a, const kolo_cuda_plan_run_t **run)
{
    KOLO_SHARED kolo_buffers_t buffers;
    const kolo_cuda_args_t &c = a.l.c;
    *run = &a.runs[0];
    if (!a.runs[1].program) return true;
    uint32_t *counter =
        kolo_counter(&c.layout, kolo_region(c.regions, c.rank), KOLO_CUDA_COUNT_MEETINGS, kolo_bid());
    uint32_t number = *counter + 1;
    bool ok = kolo_meet(a.l, &buffers, number);
    kolo_sync();
    if (kolo_tid() == 0) *counter = number;
    if (ok && !(buffers.reachable & KOLO_CUDA_REACHABLE)) *run = &a.runs[1];
    return ok;
}

template <typename T> KOLO_DEV void kolo_plan_run(const kolo_cuda_plan_args_t &a)
{
    kolo_begin(false);
    KOLO_SHARED kolo_plan_block_t block;
    kolo_plan_at_t at;
    if (!kolo_plan_meet(a, &at.run)) return;
    const char *image = (const char *)at.run->program;
    at.program = (const kolo_cuda_program_t *)image;
    if (kolo_bid() >= at.run->replicas * at.program->nlanes) return;
    at.insns = (const kolo_cuda_insn_t *)(image + at.program->insns);
    at.conns = (const kolo_cuda_conn_t *)(image + at.program->conns);
    at.list = (const uint16_t *)(image + at.program->list);
    at.b = &block;
    at.own = kolo_region(a.l.c.regions, a.l.c.rank);
    at.lane = kolo_bid() % at.program->nlanes;
    at.replica = kolo_bid() / at.program->nlanes;
    kolo_cuda_lane_t lane = ((const kolo_cuda_lane_t *)(image + at.program->lanes))[at.lane];
    kolo_plan_counters(a, at, false);
    bool ok = true;
    for (at.tile = at.replica; ok && at.tile < at.run->tiles; at.tile += at.run->replicas) {
        at.pc = lane.first;
        at.depth = at.i = at.j = 0;
        while (ok && at.pc < lane.first + lane.count) ok = kolo_plan_step<T>(a, at);
    }
    kolo_plan_counters(a, at, true);
    kolo_plan_end_events(a, at);
}

#endif
