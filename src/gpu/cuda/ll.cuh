/* SPDX-License-Identifier: Apache-2.0
 *
 * The family for short operations: one step, by lines of 16 bytes that carry 8 of payload and their own arrival (the
 * LL protocol of NCCL). No barrier and no fence: a line is there when both its flags have the number of the operation.
 *
 * Two halves of the lines are used in turn, and every rank waits for a line of every other in each operation, so that
 * nobody is more than one operation ahead, and the half that is written now has been read by all.
 */
#ifndef KOLO_GPU_CUDA_LL_CUH
#define KOLO_GPU_CUDA_LL_CUH

#include "gpu/cuda/numeric.cuh"

template <typename T> KOLO_DEV kolo_vec_t kolo_user_load8(const char *at, uint64_t left, bool aligned)
{
    kolo_vec_t v = {{0, 0, 0, 0}};
    if (aligned && left >= 8) {
        uint64_t x = *(const uint64_t *)at;
        v.w[0] = (uint32_t)x;
        v.w[1] = (uint32_t)(x >> 32);
        return v;
    }
    return kolo_elems_load<T>(at, left < 8 ? (uint32_t)left : 8);
}
template <typename T> KOLO_DEV void kolo_user_store8(char *at, kolo_vec_t v, uint64_t left, bool aligned)
{
    if (aligned && left >= 8)
        *(uint64_t *)at = v.w[0] | (uint64_t)v.w[1] << 32;
    else
        kolo_elems_store<T>(at, v, left < 8 ? (uint32_t)left : 8);
}

/* The number of the operation after `number`. Never 0, which is in lines that were never written; the halves go on
 * in turn. */
KOLO_DEV uint32_t kolo_line_number(uint32_t number) { return number + 1 ? number + 1 : 2; }

/* What the flags of line `v` of a block are in its operation numbered `flag`. The first line is written in each
 * operation, so few bits of the number tell it from the last one in its place: the others tell what the operation
 * is. Ranks that differ in it wait for each other, and the host, which is told, finds out why. */
KOLO_DEV uint32_t kolo_line_flag(const kolo_cuda_args_t &c, uint32_t flag, uint32_t v)
{
    return v ? flag : flag << 24 | c.mark >> 8;
}

/* Payload of line `v_at`, which is at `at`, of operation `number`; false: the host wants the kernel to end. */
KOLO_DEV bool kolo_line_wait(const kolo_cuda_args_t &c, const kolo_vec_t *at, uint32_t number, uint32_t v_at,
                             uint32_t peer, kolo_vec_t *out)
{
    const uint32_t flag = kolo_line_flag(c, number, v_at);
    uint32_t spins = 0;
    for (;;) {
        kolo_vec_t v = kolo_line_load(at);
        if (v.w[1] == flag && v.w[3] == flag) {
            *out = kolo_vec_t{{v.w[0], v.w[2], 0, 0}};
            return true;
        }
        if (kolo_give_up(&spins, c, KOLO_CUDA_WAITS_LINES, peer, number)) return false;
    }
}

/* Does this block bring payload from one rank to another? If not, an empty line goes between them. */
KOLO_DEV bool kolo_ll_pays(const kolo_cuda_args_t &c, uint32_t n, uint32_t from, uint32_t to)
{
    return n && (c.senders == KOLO_CUDA_ALL || (uint32_t)c.senders == from) &&
           (c.receivers == KOLO_CUDA_ALL || (uint32_t)c.receivers == to);
}

/* The share of one block in an operation: vectors of 8 bytes [first, first + n). */
typedef struct {
    uint64_t first;
    uint32_t n, flag, block;
    char *own;
} kolo_ll_share_t;

template <typename T> KOLO_DEV void kolo_ll_send(const kolo_cuda_args_t &c, const kolo_ll_share_t &s)
{
    for (uint32_t j = 1; j < c.layout.nranks; j++) {
        uint32_t p = c.rank + j < c.layout.nranks ? c.rank + j : c.rank + j - c.layout.nranks;
        kolo_vec_t *lines = kolo_lines(&c.layout, kolo_region(c.regions, p), s.flag & 1, c.rank, s.block);
        if (!kolo_ll_pays(c, s.n, c.rank, p)) {
            uint32_t flag = kolo_line_flag(c, s.flag, 0);
            if (kolo_tid() == 0) kolo_line_store(lines, kolo_vec_t{{0, flag, 0, flag}});
            continue;
        }
        const char *src = (const char *)(c.src + p * c.src_stride);
        bool aligned = ((uint64_t)src & 7) == 0;
        KOLO_STEP(c.rank, s.block, 1, 0, p, src, s.first * 8, s.n * 8ull, c.bytes);
        for (uint32_t v = kolo_tid(); v < s.n; v += kolo_nthreads()) {
            uint64_t at = (s.first + v) * 8;
            kolo_vec_t x = kolo_own_input<T, 8 / sizeof(T)>(kolo_user_load8<T>(src + at, c.bytes - at, aligned), c);
            uint32_t flag = kolo_line_flag(c, s.flag, v);
            kolo_line_store(lines + v, kolo_vec_t{{x.w[0], flag, x.w[1], flag}});
        }
    }
}

/* All ranks' vectors, reduced in the order of ranks. */
template <typename T> KOLO_DEV bool kolo_ll_reduce(const kolo_cuda_args_t &c, const kolo_ll_share_t &s)
{
    const int N = 8 / sizeof(T);
    const char *src = (const char *)(c.src + c.rank * c.src_stride);
    char *dst = (char *)c.dst;
    bool src_aligned = ((uint64_t)src & 7) == 0, dst_aligned = ((uint64_t)dst & 7) == 0;
    for (uint32_t v = kolo_tid(); v < s.n; v += kolo_nthreads()) {
        uint64_t at = (s.first + v) * 8;
        kolo_sum<T, N> sum;
        for (uint32_t r = 0; r < c.layout.nranks; r++) {
            kolo_vec_t x;
            if (v == kolo_tid()) KOLO_STEP(c.rank, s.block, 0, 0, r, dst, s.first * 8, s.n * 8ull, c.bytes);
            if (r == c.rank)
                x = kolo_own_input<T, N>(kolo_user_load8<T>(src + at, c.bytes - at, src_aligned), c);
            else if (!kolo_line_wait(c, kolo_lines(&c.layout, s.own, s.flag & 1, r, s.block) + v,
                                     s.flag, v, r, &x))
                return false;
            if (r == 0)
                kolo_sum_begin(&sum, x, c);
            else
                kolo_sum_add(&sum, x, c);
        }
        kolo_user_store8<T>(dst + at, kolo_sum_end(&sum, c), c.bytes - at, dst_aligned);
    }
    return true;
}

template <typename T>
KOLO_DEV bool kolo_ll_copy(const kolo_cuda_args_t &c, const kolo_ll_share_t &s, uint32_t r)
{
    char *dst = (char *)(c.dst + r * c.dst_stride);
    const char *src = (const char *)(c.src + r * c.src_stride);
    const kolo_vec_t *lines = kolo_lines(&c.layout, s.own, s.flag & 1, r, s.block);
    bool aligned = (((uint64_t)dst | (r == c.rank ? (uint64_t)src : 0)) & 7) == 0;
    if (r == c.rank && src == dst) return true;
    KOLO_STEP(c.rank, s.block, 0, 0, r, dst, s.first * 8, s.n * 8ull, c.bytes);
    for (uint32_t v = kolo_tid(); v < s.n; v += kolo_nthreads()) {
        uint64_t at = (s.first + v) * 8;
        kolo_vec_t x;
        if (r == c.rank)
            x = kolo_user_load8<T>(src + at, c.bytes - at, aligned);
        else if (!kolo_line_wait(c, lines + v, s.flag, v, r, &x))
            return false;
        kolo_user_store8<T>(dst + at, x, c.bytes - at, aligned);
    }
    return true;
}

template <typename T> KOLO_DEV void kolo_ll(const kolo_cuda_args_t &c)
{
    kolo_ll_share_t s;
    uint64_t all = (c.bytes + 7) / 8, each = (all + kolo_nblocks() - 1) / kolo_nblocks();
    bool ok = true;
    s.block = kolo_bid();
    s.own = kolo_region(c.regions, c.rank);
    uint32_t *counter = kolo_counter(&c.layout, s.own, KOLO_CUDA_COUNT_LINES, s.block);
    s.first = each * s.block;
    s.n = (uint32_t)(s.first >= all ? 0 : all - s.first < each ? all - s.first : each);
    kolo_begin(true); /* what comes of the arguments alone is ready by then */
    s.flag = kolo_line_number(*counter);
    kolo_ll_send<T>(c, s);
    bool reduces = c.reduce && kolo_ll_pays(c, s.n, c.rank, c.rank);
    if (reduces) ok = kolo_ll_reduce<T>(c, s);
    for (uint32_t j = 0; ok && !reduces && j < c.layout.nranks; j++) {
        uint32_t r = c.rank + j < c.layout.nranks ? c.rank + j : c.rank + j - c.layout.nranks;
        kolo_vec_t none;
        if (kolo_ll_pays(c, s.n, r, c.rank) && !c.reduce)
            ok = kolo_ll_copy<T>(c, s, r);
        else if (r != c.rank && kolo_tid() == 0)
            ok = kolo_line_wait(c, kolo_lines(&c.layout, s.own, s.flag & 1, r, s.block), s.flag, 0, r, &none);
    }
    kolo_sync();
    if (kolo_tid() == 0) *counter = s.flag;
}

#endif
