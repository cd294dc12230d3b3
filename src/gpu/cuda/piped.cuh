/* SPDX-License-Identifier: Apache-2.0
 *
 * Long reductions of two steps whose tiles are under way in both steps at once, so that no link waits for a sum
 * (decision 0068). Some ranks own parts of the vector; tile by tile each rank stores its input into the owner's
 * stage, and the owner sums in rank order and stores the result to its receivers. Of an all_reduce all own parts;
 * of a reduce all but the root do, so that no link carries more than the vector, or, between two, the root. A part
 * is written only where its owner has all inputs of it, so in place is safe: nobody reads it any more.
 *
 * Of three blocks one gives and two sum: tiles go by turns through the stages of the first and of the second phase
 * (staged.cuh), whose flags and counters they move on as operations by stages do, on all ranks alike, also on those
 * that have nothing to sum.
 */
#ifndef KOLO_GPU_CUDA_PIPED_CUH
#define KOLO_GPU_CUDA_PIPED_CUH

#include "gpu/cuda/meet.cuh"

#define KOLO_PIPED_TILES 2u /* of a block, at least, if they can be as long as all threads take at once */

typedef struct {
    kolo_staged_t s;
    uint32_t root, owners; /* root: KOLO_CUDA_RANKS, there is none */
    bool owned_by_root;
    uint64_t bytes;     /* of the vector, without a head */
    uint64_t part, row; /* bytes of a part, and of a tile of each block */
    uint32_t tile, tiles;
    const char *src;
} kolo_piped_t;

KOLO_DEV bool kolo_piped_owns(const kolo_piped_t &w, uint32_t rank)
{
    return (rank == w.root) == w.owned_by_root;
}
/* Of owner `p`: where its part begins, and how much of tile `i` there is. */
KOLO_DEV uint64_t kolo_piped_at(const kolo_piped_t &w, uint32_t p, uint32_t i, uint32_t *len)
{
    uint64_t from = w.owned_by_root ? 0 : (p > w.root ? p - 1 : p) * w.part, end = from + w.part;
    uint64_t at = from + i * w.row + (uint64_t)w.s.block * w.tile;
    *len = at < end ? (uint32_t)kolo_tile_length(at, end < w.bytes ? end : w.bytes, w.tile) : 0;
    return at;
}

KOLO_DEV kolo_piped_t kolo_piped_begin(const kolo_cuda_args_t &c, const kolo_buffers_t *b, uint32_t *role)
{
    kolo_piped_t w;
    uint32_t blocks, least = 16 * KOLO_CUDA_THREADS, n = c.layout.nranks;
    w.s = kolo_role(c, KOLO_CUDA_TWO_STEP_ROLES, role, &blocks);
    w.root = c.receivers == KOLO_CUDA_ALL ? KOLO_CUDA_RANKS : (uint32_t)c.receivers;
    w.owned_by_root = w.root < n && n == 2;
    w.owners = w.root >= n ? n : n == 2 ? 1 : n - 1;
    w.bytes = c.bytes - b->head;
    w.src = (const char *)b->src[c.rank];
    w.part = ((w.bytes + w.owners - 1) / w.owners + 127) / 128 * 128;
    uint64_t each = (w.part / KOLO_PIPED_TILES / blocks + 127) / 128 * 128;
    if (each < least) each = least;
    w.tile = each > c.layout.tile_bytes ? c.layout.tile_bytes : (uint32_t)each;
    w.row = (uint64_t)blocks * w.tile;
    w.tiles = (uint32_t)((w.part + w.row - 1) / w.row);
    return w;
}

/* How many tiles go by `channel`. */
KOLO_DEV uint32_t kolo_piped_tiles(const kolo_piped_t &w, uint32_t channel)
{
    return (w.tiles + 1 - channel) / 2;
}

/* What was read before is behind this rank: no fence. */
KOLO_DEV void kolo_piped_taken(const kolo_cuda_args_t &c, const kolo_piped_t &w, uint32_t channel, uint32_t step)
{
    kolo_sync();
    for (uint32_t r = kolo_tid(); r < w.s.n; r += kolo_nthreads())
        if (r != c.rank)
            kolo_credit_store(
                kolo_flag(&c.layout, kolo_region(c.regions, r), c.layout.credit, channel, c.rank, w.s.block), step);
}

/* Tile `i` to the owners of its parts, among at most R ranks: all of what a thread loads is under way at once. */
template <typename T, int R>
KOLO_DEV void kolo_piped_give(const kolo_cuda_args_t &c, const kolo_piped_t &w, uint32_t i, uint32_t number)
{
    const char *from[R - 1];
    kolo_vec_t *to[R - 1];
    uint32_t bytes[R - 1], channel = i % 2, most = w.tile / 16, step = kolo_nthreads();
#pragma unroll
    for (uint32_t j = 0; j < R - 1; j++) {
        uint32_t p = c.rank + j + 1 < w.s.n ? c.rank + j + 1 : c.rank + j + 1 - w.s.n;
        bool owner = j + 1 < w.s.n && kolo_piped_owns(w, p);
        uint64_t at = kolo_piped_at(w, owner ? p : 0, i, &bytes[j]);
        if (!owner) bytes[j] = 0;
        from[j] = w.src + at;
        to[j] = kolo_stage(&c.layout, kolo_region(c.regions, owner ? p : 0), channel, c.rank, w.s.block, number);
        KOLO_STEP(c.rank, 2 * w.s.block + channel, 1, 0, p, w.src, at, bytes[j], at + bytes[j]);
    }
    for (uint32_t v = kolo_tid(); v < most; v += 2 * step) {
        kolo_vec_t x[2][R - 1];
#pragma unroll
        for (uint32_t u = 0; u < 2; u++) {
#pragma unroll
            for (uint32_t j = 0; j < R - 1; j++) {
                uint32_t at = 16 * (v + u * step);
                if (at < bytes[j]) x[u][j] = kolo_user_load<T>(from[j] + at, bytes[j] - at, true);
            }
        }
#pragma unroll
        for (uint32_t u = 0; u < 2; u++) {
#pragma unroll
            for (uint32_t j = 0; j < R - 1; j++)
                if (16 * (v + u * step) < bytes[j]) kolo_stage_store(to[j] + v + u * step, x[u][j]);
        }
    }
}
/* The same among more ranks. */
template <typename T>
KOLO_DEV void kolo_piped_give_any(const kolo_cuda_args_t &c, const kolo_piped_t &w, uint32_t i, uint32_t number)
{
    uint32_t channel = i % 2;
    for (uint32_t j = 1; j < w.s.n; j++) {
        uint32_t p = c.rank + j < w.s.n ? c.rank + j : c.rank + j - w.s.n, len;
        uint64_t at = kolo_piped_at(w, p, i, &len);
        if (!kolo_piped_owns(w, p) || !len) continue;
        KOLO_STEP(c.rank, 2 * w.s.block + channel, 1, 0, p, w.src, at, len, at + len);
        kolo_tile_in<T>(kolo_stage(&c.layout, kolo_region(c.regions, p), channel, c.rank, w.s.block, number),
                        w.src + at, len, NULL);
    }
}

template <typename T> KOLO_DEV bool kolo_piped_giver(const kolo_cuda_args_t &c, const kolo_piped_t &w)
{
    uint32_t *counters[2] = {kolo_counter(&c.layout, w.s.own, KOLO_CUDA_COUNT_SENT, w.s.block),
                             kolo_counter(&c.layout, w.s.own, KOLO_CUDA_COUNT_SENT_2, w.s.block)};
    uint32_t begin[2] = {*counters[0], *counters[1]};
    bool ok = true;
    for (uint32_t i = 0; i < w.tiles; i++) {
        uint32_t number = (i % 2 ? begin[1] : begin[0]) + i / 2;
        ok = kolo_flags_wait(c, w.s, c.layout.credit, i % 2, number + 1 - KOLO_CUDA_DEPTH, KOLO_CUDA_WAITS_CREDIT);
        if (!ok) break;
        if (w.s.n <= 4)
            kolo_piped_give<T, 4>(c, w, i, number);
        else
            kolo_piped_give_any<T>(c, w, i, number);
        kolo_flags_set(c, w.s, c.layout.ready, i % 2, number + 1);
    }
    kolo_sync();
    for (uint32_t channel = 0; channel < 2 && kolo_tid() == 0; channel++)
        *counters[channel] = begin[channel] + kolo_piped_tiles(w, channel);
    return ok;
}

/* An owner's tile. */
typedef struct {
    uint64_t at;
    uint32_t len, channel, number;
} kolo_piped_tile_t;

template <typename T>
KOLO_DEV void kolo_piped_store(const kolo_cuda_args_t &c, const kolo_buffers_t *b, const kolo_piped_tile_t &t,
                               uint32_t v, kolo_vec_t x)
{
    for (uint32_t j = 1; j <= c.layout.nranks; j++) {
        uint32_t p = c.rank + j < c.layout.nranks ? c.rank + j : c.rank + j - c.layout.nranks;
        if (!kolo_takes_part(c.receivers, p)) continue;
        char *to = (char *)b->dst[p] + t.at + 16ull * v;
        kolo_user_store<T>(to, x, t.len - 16 * v, true);
    }
}

/* Among R ranks, as far as there are U whole vectors for each thread; returns where it has ended. */
template <typename T, int R>
KOLO_DEV uint32_t kolo_piped_sum_of(const kolo_cuda_args_t &c, const kolo_buffers_t *b, const kolo_piped_t &w,
                                    const kolo_piped_tile_t &t)
{
    const int N = 16 / sizeof(T), U = sizeof(T) == 1 ? 1 : 2;
    const kolo_vec_t *in[R];
    uint32_t v = kolo_tid(), step = kolo_nthreads(), whole = t.len / 16;
#pragma unroll
    for (uint32_t r = 0; r < R; r++)
        in[r] = r == c.rank ? (const kolo_vec_t *)(w.src + t.at)
                            : kolo_stage(&c.layout, w.s.own, t.channel, r, w.s.block, t.number);
    for (; v + (U - 1) * step < whole; v += U * step) {
        kolo_vec_t x[U][R];
#pragma unroll
        for (int u = 0; u < U; u++) {
#pragma unroll
            for (int r = 0; r < R; r++) x[u][r] = in[r][v + u * step];
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            kolo_sum<T, N> sum;
            kolo_sum_begin(&sum, x[u][0], c);
#pragma unroll
            for (int r = 1; r < R; r++) kolo_sum_add(&sum, x[u][r], c);
            kolo_piped_store<T>(c, b, t, v + u * step, kolo_sum_end(&sum, c));
        }
    }
    return v;
}

KOLO_DEV void kolo_piped_tell(const kolo_cuda_args_t &c, const kolo_buffers_t *b, uint32_t block,
                              const kolo_piped_tile_t &t)
{
    const char *kept = kolo_takes_part(c.receivers, c.rank) ? (const char *)b->dst[c.rank] + t.at : NULL;
    for (uint32_t r = 0; r < c.layout.nranks; r++) KOLO_STEP(c.rank, block, 0, 0, r, kept, 0, t.len, t.len);
    for (uint32_t p = 0; p < c.layout.nranks; p++) {
        if (p == c.rank || !kolo_takes_part(c.receivers, p)) continue;
        KOLO_STEP(c.rank, block, 1, 1, p, kept, 0, t.len, t.len);
        KOLO_STEP(p, block, 0, 1, c.rank, (const char *)b->dst[p] + t.at, 0, t.len, t.len);
    }
    (void)block;
    (void)kept;
}

/* All inputs in the order of ranks, this rank's own from the source; the result to all that receive it. */
template <typename T>
KOLO_DEV void kolo_piped_sum(const kolo_cuda_args_t &c, const kolo_buffers_t *b, const kolo_piped_t &w,
                             const kolo_piped_tile_t &t)
{
    const int N = 16 / sizeof(T);
    const char *src = w.src + t.at;
    uint32_t v = w.s.n == 4   ? kolo_piped_sum_of<T, 4>(c, b, w, t)
                 : w.s.n == 3 ? kolo_piped_sum_of<T, 3>(c, b, w, t)
                 : w.s.n == 2 ? kolo_piped_sum_of<T, 2>(c, b, w, t)
                              : kolo_tid();
    kolo_piped_tell(c, b, 2 * w.s.block + t.channel, t);
    for (; 16 * v < t.len; v += kolo_nthreads()) {
        kolo_sum<T, N> sum;
        for (uint32_t r = 0; r < w.s.n; r++) {
            kolo_vec_t x =
                r == c.rank
                    ? kolo_user_load<T>(src + 16ull * v, t.len - 16 * v, true)
                    : kolo_stage_load(kolo_stage(&c.layout, w.s.own, t.channel, r, w.s.block, t.number) + v);
            if (r == 0)
                kolo_sum_begin(&sum, x, c);
            else
                kolo_sum_add(&sum, x, c);
        }
        kolo_piped_store<T>(c, b, t, v, kolo_sum_end(&sum, c));
    }
}

template <typename T>
KOLO_DEV bool kolo_piped_owner(const kolo_cuda_args_t &c, const kolo_buffers_t *b, const kolo_piped_t &w,
                               uint32_t channel)
{
    uint32_t *counter =
        kolo_counter(&c.layout, w.s.own, channel ? KOLO_CUDA_COUNT_TAKEN_2 : KOLO_CUDA_COUNT_TAKEN, w.s.block);
    uint32_t begin = *counter, end = begin + kolo_piped_tiles(w, channel);
    bool owns = kolo_piped_owns(w, c.rank), ok = true;
    kolo_piped_tile_t t = {0, 0, channel, begin};
    for (uint32_t i = channel; ok && owns && i < w.tiles; i += 2, t.number++) {
        t.at = kolo_piped_at(w, c.rank, i, &t.len);
        ok = kolo_flags_wait(c, w.s, c.layout.ready, channel, t.number + 1, KOLO_CUDA_WAITS_TILE);
        if (ok && t.len) kolo_piped_sum<T>(c, b, w, t);
        if (ok) kolo_piped_taken(c, w, channel, t.number + 1);
    }
    if (!owns) kolo_piped_taken(c, w, channel, end);
    kolo_sync();
    if (kolo_tid() == 0) *counter = end;
    return ok;
}

template <typename T> KOLO_DEV bool kolo_piped(const kolo_cuda_args_t &c, const kolo_buffers_t *b)
{
    uint32_t role;
    kolo_piped_t w = kolo_piped_begin(c, b, &role);
    return role ? kolo_piped_owner<T>(c, b, w, role - 1) : kolo_piped_giver<T>(c, w);
}

#endif
