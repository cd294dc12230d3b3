/* SPDX-License-Identifier: Apache-2.0
 *
 * The families for longer operations: tiles are stored into stages in the receiver's memory, a flag behind them says
 * that they are there, another, in the sender's memory, that they have been taken. Both ends poll only their own
 * memory. Blocks of the same number work together and with no others, so there is no barrier over a grid. What a rank
 * does with a tile at its stations is done by blocks of their own (roles), so that all stations work at once.
 *
 * One step (kolo_staged): what is sent is taken, or reduced, by its receiver. Two steps (kolo_two_step): each rank
 * owns a part of a vector, reduces it and hands it out; reduce-scatter and all-gather run as one pipeline over tiles.
 */
#ifndef KOLO_GPU_CUDA_STAGED_CUH
#define KOLO_GPU_CUDA_STAGED_CUH

#include "gpu/cuda/numeric.cuh"
#include "gpu/cuda/realign.cuh"

typedef struct {
    char *own;
    uint32_t block, n;
} kolo_staged_t;

/* Waits until each of the other ranks has brought its flag to `step`; the same answer for the whole block. */
KOLO_DEV bool kolo_flags_wait(const kolo_cuda_args_t &c, const kolo_staged_t &s, uint64_t flags, uint32_t phase,
                              uint32_t step, uint32_t what)
{
    KOLO_SHARED uint32_t ended;
    if (kolo_tid() == 0) ended = 0;
    kolo_sync();
    for (uint32_t r = kolo_tid(); r < s.n; r += kolo_nthreads()) {
        const uint32_t *flag = kolo_flag(&c.layout, s.own, flags, phase, r, s.block);
        uint32_t spins = 0;
        if (r == c.rank) continue;
        while ((int32_t)(kolo_flag_load(flag) - step) < 0) {
            if (!kolo_give_up(&spins, c, what, r, step)) continue;
            ended = 1;
            break;
        }
    }
    kolo_sync();
    return !ended;
}
/* Sets this rank's flag at every other rank. What the block did before is seen by whoever sees it. */
KOLO_DEV void kolo_flags_set(const kolo_cuda_args_t &c, const kolo_staged_t &s, uint64_t flags, uint32_t phase,
                             uint32_t step)
{
    kolo_sync();
    for (uint32_t r = kolo_tid(); r < s.n; r += kolo_nthreads())
        if (r != c.rank)
            kolo_flag_store(kolo_flag(&c.layout, kolo_region(c.regions, r), flags, phase, c.rank, s.block), step);
}

#define KOLO_UNROLL 4

/* `c`: of a collective, whose inputs may be scaled; NULL: as they are. */
template <typename T>
KOLO_DEV void kolo_tile_in(kolo_vec_t *stage, const char *src, uint64_t len, const kolo_cuda_args_t *c)
{
    bool aligned = ((uint64_t)src & 15) == 0, own = c && c->scale == KOLO_CUDA_SCALE_OWN;
    uint32_t nv = (uint32_t)((len + 15) / 16), step = kolo_nthreads();
    uint32_t v = kolo_tid(), whole = aligned && !own ? (uint32_t)(len / 16) : 0;
    if (!aligned && !own) {
        kolo_copy_across<T>((char *)stage, src, len, v, step);
        return;
    }
    for (; v + (KOLO_UNROLL - 1) * step < whole; v += KOLO_UNROLL * step) {
        kolo_vec_t x[KOLO_UNROLL];
#pragma unroll
        for (int u = 0; u < KOLO_UNROLL; u++) x[u] = ((const kolo_vec_t *)src)[v + u * step];
#pragma unroll
        for (int u = 0; u < KOLO_UNROLL; u++) kolo_stage_store(stage + v + u * step, x[u]);
    }
    for (; v < nv; v += step) {
        kolo_vec_t x = kolo_user_load<T>(src + 16ull * v, len - 16ull * v, aligned);
        kolo_stage_store(stage + v, own ? kolo_own_input<T, 16 / sizeof(T)>(x, *c) : x);
    }
}
template <typename T> KOLO_DEV void kolo_tile_out(char *dst, const kolo_vec_t *stage, uint64_t len)
{
    bool aligned = ((uint64_t)dst & 15) == 0;
    uint32_t nv = (uint32_t)((len + 15) / 16), step = kolo_nthreads();
    uint32_t v = kolo_tid(), whole = aligned ? (uint32_t)(len / 16) : 0;
    if (!aligned) {
        kolo_copy_across<T>(dst, (const char *)stage, len, v, step);
        return;
    }
    for (; v + (KOLO_UNROLL - 1) * step < whole; v += KOLO_UNROLL * step) {
        kolo_vec_t x[KOLO_UNROLL];
#pragma unroll
        for (int u = 0; u < KOLO_UNROLL; u++) x[u] = kolo_stage_load(stage + v + u * step);
#pragma unroll
        for (int u = 0; u < KOLO_UNROLL; u++) ((kolo_vec_t *)dst)[v + u * step] = x[u];
    }
    for (; v < nv; v += step)
        kolo_user_store<T>(dst + 16ull * v, kolo_stage_load(stage + v), len - 16ull * v, aligned);
}
template <typename T> KOLO_DEV void kolo_tile_copy(char *dst, const char *src, uint64_t len)
{
    if (dst != src) kolo_copy_across<T>(dst, src, len, kolo_tid(), kolo_nthreads());
}

/* The reduction of tile `tile` over all ranks, in their order: this rank's from src, the others' from the stages of
 * phase 0. To dst if it is not NULL, and to the stages of `phase` of the ranks that `hand` names (or nobody: -2). */
template <typename T, int U>
KOLO_DEV void kolo_tile_reduce(const kolo_cuda_args_t &c, const kolo_staged_t &s, const char *src, char *dst,
                               uint64_t len, uint32_t tile, int32_t hand, uint32_t hand_tile)
{
    const int N = 16 / sizeof(T);
    bool src_aligned = ((uint64_t)src & 15) == 0, dst_aligned = ((uint64_t)dst & 15) == 0;
    uint32_t nv = (uint32_t)((len + 15) / 16), step = kolo_nthreads();
    for (uint32_t v = kolo_tid(); v < nv; v += U * step) {
        kolo_sum<T, N> sum[U];
        for (uint32_t r = 0; r < s.n; r++) {
            kolo_vec_t x[U];
            const kolo_vec_t *stage = kolo_stage(&c.layout, s.own, 0, r, s.block, tile);
            if (v == kolo_tid()) KOLO_STEP(c.rank, s.block, 0, 0, r, dst, 0, len, len);
#pragma unroll
            for (int u = 0; u < U; u++) {
                uint32_t w = v + u * step;
                if (w >= nv) break;
                x[u] = r == c.rank
                           ? kolo_own_input<T, N>(kolo_user_load<T>(src + 16ull * w, len - 16ull * w, src_aligned), c)
                           : kolo_stage_load(stage + w);
            }
#pragma unroll
            for (int u = 0; u < U; u++) {
                if (v + u * step >= nv) break;
                if (r == 0)
                    kolo_sum_begin(&sum[u], x[u], c);
                else
                    kolo_sum_add(&sum[u], x[u], c);
            }
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            uint32_t w = v + u * step;
            if (w >= nv) break;
            kolo_vec_t x = kolo_sum_end(&sum[u], c);
            if (dst) kolo_user_store<T>(dst + 16ull * w, x, len - 16ull * w, dst_aligned);
            for (uint32_t j = 1; hand != -2 && j < s.n; j++) {
                uint32_t p = c.rank + j < s.n ? c.rank + j : c.rank + j - s.n;
                if (hand != KOLO_CUDA_ALL && (uint32_t)hand != p) continue;
                if (w == kolo_tid()) KOLO_STEP(c.rank, s.block, 1, 1, p, dst, 0, len, len);
                kolo_stage_store(
                    kolo_stage(&c.layout, kolo_region(c.regions, p), 1, c.rank, s.block, hand_tile) + w, x);
            }
        }
    }
}
template <typename T> struct kolo_reduce_unroll {
    static const int value = sizeof(T) == 1 ? 1 : 2;
};

KOLO_DEV bool kolo_takes_part(int32_t who, uint32_t rank)
{
    return who == KOLO_CUDA_ALL || (uint32_t)who == rank;
}

/* ---- one step ---- */

template <typename T>
KOLO_DEV bool kolo_staged_push(const kolo_cuda_args_t &c, const kolo_staged_t &s, uint64_t off, uint64_t len,
                               uint32_t tile)
{
    if (!kolo_flags_wait(c, s, c.layout.credit, 0, tile + 1 - KOLO_CUDA_DEPTH, KOLO_CUDA_WAITS_CREDIT)) return false;
    for (uint32_t j = 1; j < s.n && kolo_takes_part(c.senders, c.rank); j++) {
        uint32_t p = c.rank + j < s.n ? c.rank + j : c.rank + j - s.n;
        if (!kolo_takes_part(c.receivers, p)) continue;
        KOLO_STEP(c.rank, s.block, 1, 0, p, (const char *)(c.src + p * c.src_stride), off, len, off + len);
        kolo_tile_in<T>(kolo_stage(&c.layout, kolo_region(c.regions, p), 0, c.rank, s.block, tile),
                        (const char *)(c.src + p * c.src_stride) + off, len, &c);
    }
    kolo_flags_set(c, s, c.layout.ready, 0, tile + 1);
    return true;
}

template <typename T>
KOLO_DEV bool kolo_staged_take(const kolo_cuda_args_t &c, const kolo_staged_t &s, uint64_t off, uint64_t len,
                               uint32_t tile)
{
    if (!kolo_flags_wait(c, s, c.layout.ready, 0, tile + 1, KOLO_CUDA_WAITS_TILE)) return false;
    if (kolo_takes_part(c.receivers, c.rank)) {
        const char *src = (const char *)(c.src + c.rank * c.src_stride) + off;
        if (c.reduce)
            kolo_tile_reduce<T, kolo_reduce_unroll<T>::value>(c, s, src, (char *)c.dst + off, len, tile, -2, 0);
        for (uint32_t j = 0; j < s.n && !c.reduce; j++) {
            uint32_t r = c.rank + j < s.n ? c.rank + j : c.rank + j - s.n;
            char *dst = (char *)(c.dst + r * c.dst_stride) + off;
            if (!kolo_takes_part(c.senders, r)) continue;
            KOLO_STEP(c.rank, s.block, 0, 0, r, dst, 0, len, len);
            if (r == c.rank)
                kolo_tile_copy<T>(dst, src, len);
            else
                kolo_tile_out<T>(dst, kolo_stage(&c.layout, s.own, 0, r, s.block, tile), len);
        }
    }
    kolo_flags_set(c, s, c.layout.credit, 0, tile + 1);
    return true;
}

KOLO_DEV uint64_t kolo_tile_length(uint64_t off, uint64_t bytes, uint64_t tile_bytes)
{
    if (off >= bytes) return 0;
    return bytes - off < tile_bytes ? bytes - off : tile_bytes;
}

/* Begins a role: which block of it this is, and how many there are. */
KOLO_DEV kolo_staged_t kolo_role(const kolo_cuda_args_t &c, uint32_t roles, uint32_t *role, uint32_t *blocks)
{
    *role = kolo_bid() % roles;
    *blocks = kolo_nblocks() / roles;
    return kolo_staged_t{kolo_region(c.regions, c.rank), kolo_bid() / roles, c.layout.nranks};
}

template <typename T> KOLO_DEV void kolo_staged(const kolo_cuda_args_t &c)
{
    uint32_t role, blocks;
    kolo_staged_t s = kolo_role(c, KOLO_CUDA_STAGED_ROLES, &role, &blocks);
    uint32_t *counter = kolo_counter(&c.layout, s.own, role ? KOLO_CUDA_COUNT_TAKEN : KOLO_CUDA_COUNT_SENT, s.block);
    uint64_t row = (uint64_t)blocks * c.tile_bytes, at = (uint64_t)s.block * c.tile_bytes;
    uint32_t tiles = (uint32_t)((c.bytes + row - 1) / row), begin = *counter;
    bool ok = true;
    for (uint32_t i = 0; ok && i < tiles; i++, at += row) {
        uint64_t len = kolo_tile_length(at, c.bytes, c.tile_bytes);
        ok = role ? kolo_staged_take<T>(c, s, at, len, begin + i) : kolo_staged_push<T>(c, s, at, len, begin + i);
    }
    kolo_sync();
    if (kolo_tid() == 0) *counter = begin + tiles;
}

/* ---- two steps ---- */

template <typename T>
KOLO_DEV bool kolo_two_step_push(const kolo_cuda_args_t &c, const kolo_staged_t &s, uint64_t off, uint32_t tile)
{
    if (!kolo_flags_wait(c, s, c.layout.credit, 0, tile + 1 - KOLO_CUDA_DEPTH, KOLO_CUDA_WAITS_CREDIT)) return false;
    for (uint32_t j = 1; j < s.n && kolo_takes_part(c.senders, c.rank); j++) {
        uint32_t p = c.rank + j < s.n ? c.rank + j : c.rank + j - s.n;
        uint64_t from = p * c.part_bytes + off, end = (p + 1) * c.part_bytes;
        uint64_t len = kolo_tile_length(from, end < c.bytes ? end : c.bytes, c.tile_bytes);
        KOLO_STEP(c.rank, s.block, 1, 0, p, (const char *)c.src, from, len, from + len);
        if (len)
            kolo_tile_in<T>(kolo_stage(&c.layout, kolo_region(c.regions, p), 0, c.rank, s.block, tile),
                            (const char *)c.src + from, len, &c);
    }
    kolo_flags_set(c, s, c.layout.ready, 0, tile + 1);
    return true;
}

/* The owner's own tile: reduced, or taken from the one sender, and handed out. Tiles of the two phases have numbers of
 * their own. */
template <typename T>
KOLO_DEV bool kolo_two_step_own(const kolo_cuda_args_t &c, const kolo_staged_t &s, uint64_t off, uint32_t tile,
                                uint32_t out)
{
    if (!kolo_flags_wait(c, s, c.layout.ready, 0, tile + 1, KOLO_CUDA_WAITS_TILE)) return false;
    if (!kolo_flags_wait(c, s, c.layout.credit, 1, out + 1 - KOLO_CUDA_DEPTH, KOLO_CUDA_WAITS_CREDIT)) return false;
    uint64_t from = c.rank * c.part_bytes + off, end = (c.rank + 1) * c.part_bytes;
    uint64_t len = kolo_tile_length(from, end < c.bytes ? end : c.bytes, c.tile_bytes);
    bool receiver = kolo_takes_part(c.receivers, c.rank);
    char *dst = receiver ? (char *)c.dst + from : NULL;
    const char *src = (const char *)c.src + from;
    if (c.reduce && len) {
        kolo_tile_reduce<T, kolo_reduce_unroll<T>::value>(c, s, src, dst, len, tile, c.receivers, out);
    } else if (len) {
        const kolo_vec_t *stage = kolo_stage(&c.layout, s.own, 0, (uint32_t)c.senders, s.block, tile);
        bool mine = (uint32_t)c.senders == c.rank;
        KOLO_STEP(c.rank, s.block, 0, 0, (uint32_t)c.senders, dst, 0, len, len);
        for (uint32_t j = 1; j < s.n; j++) {
            uint32_t p = c.rank + j < s.n ? c.rank + j : c.rank + j - s.n;
            kolo_vec_t *to = kolo_stage(&c.layout, kolo_region(c.regions, p), 1, c.rank, s.block, out);
            KOLO_STEP(c.rank, s.block, 1, 1, p, mine ? src : dst, 0, len, len);
            if (p == (uint32_t)c.senders) continue; /* it has the vector; the flag alone goes there */
            if (mine)
                kolo_tile_in<T>(to, src, len, NULL);
            else
                for (uint32_t v = kolo_tid(); v < (len + 15) / 16; v += kolo_nthreads())
                    kolo_stage_store(to + v, kolo_stage_load(stage + v));
        }
        if (mine)
            kolo_tile_copy<T>(dst, src, len);
        else
            kolo_tile_out<T>(dst, stage, len);
    }
    kolo_flags_set(c, s, c.layout.credit, 0, tile + 1);
    kolo_flags_set(c, s, c.layout.ready, 1, out + 1);
    return true;
}

template <typename T>
KOLO_DEV bool kolo_two_step_take(const kolo_cuda_args_t &c, const kolo_staged_t &s, uint64_t off, uint32_t tile)
{
    if (!kolo_flags_wait(c, s, c.layout.ready, 1, tile + 1, KOLO_CUDA_WAITS_TILE)) return false;
    bool root = !c.reduce && (uint32_t)c.senders == c.rank; /* of a broadcast: only copies its own vector */
    for (uint32_t j = 1; j < s.n && kolo_takes_part(c.receivers, c.rank); j++) {
        uint32_t r = c.rank + j < s.n ? c.rank + j : c.rank + j - s.n;
        uint64_t from = r * c.part_bytes + off, end = (r + 1) * c.part_bytes;
        uint64_t len = kolo_tile_length(from, end < c.bytes ? end : c.bytes, c.tile_bytes);
        KOLO_STEP(c.rank, s.block, 0, 1, r, (char *)c.dst, from, len, from + len);
        if (len && root)
            kolo_tile_copy<T>((char *)c.dst + from, (const char *)c.src + from, len);
        else if (len)
            kolo_tile_out<T>((char *)c.dst + from, kolo_stage(&c.layout, s.own, 1, r, s.block, tile), len);
    }
    kolo_flags_set(c, s, c.layout.credit, 1, tile + 1);
    return true;
}

template <typename T> KOLO_DEV void kolo_two_step(const kolo_cuda_args_t &c)
{
    uint32_t role, blocks;
    kolo_staged_t s = kolo_role(c, KOLO_CUDA_TWO_STEP_ROLES, &role, &blocks);
    const uint32_t rows[KOLO_CUDA_TWO_STEP_ROLES] = {KOLO_CUDA_COUNT_SENT, KOLO_CUDA_COUNT_TAKEN,
                                                     KOLO_CUDA_COUNT_TAKEN_2};
    uint32_t *counter = kolo_counter(&c.layout, s.own, rows[role], s.block), begin = *counter;
    uint32_t *out_counter = kolo_counter(&c.layout, s.own, KOLO_CUDA_COUNT_SENT_2, s.block);
    uint32_t out = role == 1 ? *out_counter : 0; /* the other roles' blocks may be later than this one's end */
    uint64_t row = (uint64_t)blocks * c.tile_bytes, at = (uint64_t)s.block * c.tile_bytes;
    uint32_t tiles = (uint32_t)((c.part_bytes + row - 1) / row);
    bool ok = true;
    for (uint32_t i = 0; ok && i < tiles; i++, at += row)
        ok = role == 0   ? kolo_two_step_push<T>(c, s, at, begin + i)
             : role == 1 ? kolo_two_step_own<T>(c, s, at, begin + i, out + i)
                         : kolo_two_step_take<T>(c, s, at, begin + i);
    kolo_sync();
    if (kolo_tid() != 0) return;
    *counter = begin + tiles;
    if (role == 1) *out_counter = out + tiles;
}

#endif
