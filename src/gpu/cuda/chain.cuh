/* SPDX-License-Identifier: Apache-2.0
 *
 * A long reduce that goes from neighbour to neighbour (decision 0068): each rank adds its input to a tile that the
 * rank before it has stored into its stage, and stores the sum to the rank behind it, the root into its destination.
 * So each GPU stores to one other alone, which links like better than loads and than stores to all (365, 335 and 345
 * GB/s between four H100). Sums are not in the order of ranks, and are handed on as elements: only where no order was
 * asked for, and of types that lose nothing by that.
 *
 * Blocks of the same number work with each other alone and count the tiles that they have handed on, from the first
 * operation of this kind on. All meet before and afterwards: so the stages, those of the first two phases, are free.
 */
#ifndef KOLO_GPU_CUDA_CHAIN_CUH
#define KOLO_GPU_CUDA_CHAIN_CUH

#include "gpu/cuda/piped.cuh"

#define KOLO_CHAIN_UNROLL 2 /* vectors that a thread has under way */

typedef struct {
    uint32_t prev, next, tile;
    uint32_t taken, put, begin; /* tiles: since the first operation; begin: when this one began */
    uint32_t *counter, *ended; /* ended: shared by the block; set when the host wants the kernel to end */
    kolo_cuda_meeting_t *from_prev, *from_next, *at_prev, *at_next;
    char *own, *there; /* stages: of this block here, and at the next rank */
} kolo_chain_t;

KOLO_DEV kolo_chain_t kolo_chain_begin(const kolo_cuda_args_t &c, uint32_t *ended)
{
    kolo_chain_t w;
    uint32_t n = c.layout.nranks, block = kolo_bid();
    char *own = kolo_region(c.regions, c.rank);
    w.prev = c.rank ? c.rank - 1 : n - 1;
    w.next = c.rank + 1 < n ? c.rank + 1 : 0;
    w.tile = c.hop_bytes;
    w.counter = kolo_counter(&c.layout, own, KOLO_CUDA_COUNT_CHAIN, block);
    w.begin = w.taken = w.put = *w.counter;
    w.from_prev = kolo_meeting(&c.layout, own, w.prev, block, 0);
    w.from_next = kolo_meeting(&c.layout, own, w.next, block, 0);
    w.at_prev = kolo_meeting(&c.layout, kolo_region(c.regions, w.prev), c.rank, block, 0);
    w.at_next = kolo_meeting(&c.layout, kolo_region(c.regions, w.next), c.rank, block, 0);
    uint64_t at = c.layout.stages + (uint64_t)block * KOLO_CUDA_CHAIN_DEPTH * w.tile;
    w.own = own + at;
    w.there = kolo_region(c.regions, w.next) + at;
    w.ended = ended;
    if (kolo_tid() == 0) *ended = 0;
    kolo_sync();
    return w;
}

KOLO_DEV char *kolo_chain_slot(const kolo_chain_t &w, char *stages, uint32_t number)
{
    return stages + (uint64_t)((number - w.begin) % KOLO_CUDA_CHAIN_DEPTH) * w.tile;
}

/* Waits until the tile that comes next is here, and until there is room for the one that is put next; the same answer
 * for the whole block. */
KOLO_DEV bool kolo_chain_wait(const kolo_cuda_args_t &c, const kolo_chain_t &w, bool takes, bool puts)
{
    for (uint32_t i = kolo_tid(); i < 2; i += kolo_nthreads()) {
        uint32_t spins = 0, step = i ? w.put + 1 - KOLO_CUDA_CHAIN_DEPTH : w.taken + 1;
        const uint32_t *flag = i ? &w.from_next->credit : &w.from_prev->ready;
        if (i ? !puts || w.put - w.begin < KOLO_CUDA_CHAIN_DEPTH : !takes) continue;
        while ((int32_t)(kolo_flag_load(flag) - step) < 0) {
            if (!kolo_give_up(&spins, c, i ? KOLO_CUDA_WAITS_CREDIT : KOLO_CUDA_WAITS_TILE, i ? w.next : w.prev,
                              step))
                continue;
            *w.ended = 1;
            break;
        }
    }
    kolo_sync();
    return !*w.ended;
}

/* Sets the flags behind a tile, by another thread than the one that waits for the next. */
KOLO_DEV void kolo_chain_tell(kolo_chain_t *w, bool takes, bool puts)
{
    w->taken += takes;
    w->put += puts;
    kolo_sync();
    if (kolo_tid() != kolo_nthreads() - 1) return;
    if (takes) kolo_credit_store(&w->at_prev->credit, w->taken);
    if (puts) kolo_flag_store(&w->at_next->ready, w->put);
}

/* Passes on a tile of this rank's input, with what comes from the rank before it if `takes`: into the stage of the next, or, if
 * `kept` is not NULL, there as a result. */
template <typename T>
KOLO_DEV bool kolo_chain_sum(const kolo_cuda_args_t &c, kolo_chain_t *w, const char *src, uint32_t len, bool takes,
                             char *kept)
{
    const int N = 16 / sizeof(T), U = KOLO_CHAIN_UNROLL;
    uint32_t nv = (len + 15) / 16, step = kolo_nthreads(), v = kolo_tid();
    bool puts = !kept;
    kolo_vec_t x[U];
#pragma unroll
    for (int u = 0; u < U; u++) /* while it is waited for the other's */
        if (v + u * step < nv) x[u] = kolo_user_load<T>(src + 16 * (v + u * step), len - 16 * (v + u * step), true);
    if (!kolo_chain_wait(c, *w, takes, puts)) return false;
    const kolo_vec_t *in = (const kolo_vec_t *)kolo_chain_slot(*w, w->own, w->taken);
    char *to = kept ? kept : kolo_chain_slot(*w, w->there, w->put);
    if (takes) KOLO_STEP(c.rank, kolo_bid(), 0, 0, w->prev, kept ? kept : src, 0, len, len);
    if (puts) KOLO_STEP(c.rank, kolo_bid(), 1, 0, w->next, kept ? kept : src, 0, len, len);
    while (v < nv) {
        kolo_vec_t y[U];
#pragma unroll
        for (int u = 0; u < U; u++)
            if (takes && v + u * step < nv) y[u] = kolo_stage_load(in + v + u * step);
#pragma unroll
        for (int u = 0; u < U; u++) {
            uint32_t at = 16 * (v + u * step);
            kolo_sum<T, N> sum;
            if (at >= len) break;
            if (takes) {
                kolo_sum_scaled(&sum, y[u], c, false);
                kolo_sum_add(&sum, x[u], c);
            } else {
                kolo_sum_begin(&sum, x[u], c);
            }
            kolo_vec_t z = kolo_sum_rounded(&sum, c, kept ? c.finish : (uint32_t)KOLO_CUDA_AS_IT_IS);
            if (kept)
                kolo_user_store<T>(to + at, z, len - at, true);
            else
                kolo_stage_store((kolo_vec_t *)(to + at), z);
        }
        v += U * step;
#pragma unroll
        for (int u = 0; u < U; u++)
            if (v + u * step < nv)
                x[u] = kolo_user_load<T>(src + 16 * (v + u * step), len - 16 * (v + u * step), true);
    }
    kolo_chain_tell(w, takes, puts);
    return true;
}

KOLO_DEV void kolo_chain_end(const kolo_chain_t &w, uint32_t tiles)
{
    kolo_sync();
    if (kolo_tid() == 0) *w.counter = w.begin + tiles;
}

template <typename T> KOLO_DEV bool kolo_chain(const kolo_cuda_args_t &c, const kolo_buffers_t *b)
{
    KOLO_SHARED uint32_t ended;
    kolo_chain_t w = kolo_chain_begin(c, &ended);
    uint32_t root = (uint32_t)c.receivers, tiles = 0;
    uint64_t bytes = c.bytes - b->head, row = (uint64_t)kolo_nblocks() * w.tile;
    bool ok = true;
    for (uint64_t at = (uint64_t)kolo_bid() * w.tile; at < bytes; at += row, tiles++) {
        uint32_t len = (uint32_t)kolo_tile_length(at, bytes, w.tile);
        char *kept = c.rank == root ? (char *)b->dst[root] + at : NULL;
        if (ok)
            ok = kolo_chain_sum<T>(c, &w, (const char *)b->src[c.rank] + at, len, w.prev != root, kept);
    }
    kolo_chain_end(w, tiles);
    return ok;
}

#endif
