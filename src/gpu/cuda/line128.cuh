/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines of 128 bytes that carry 120 of payload, the number of the operation and what it is (the LL128 protocol of
 * NCCL; kolo_line_flag() in ll.cuh says why). Eight lanes store a line together, and NVLink brings the 128 bytes
 * whole, as long as no other process has a turn on the GPU: then a line may be seen in parts, once in some
 * millions. So the last word holds a sum of the payload, too, and a line whose sum does not fit has not come yet.
 */
#ifndef KOLO_GPU_CUDA_LINE128_CUH
#define KOLO_GPU_CUDA_LINE128_CUH

#include "gpu/cuda/ll.cuh"

#define KOLO_LINE_WORDS 15 /* of 8 bytes, before the flag */
#define KOLO_LINE_BATCH 4  /* lines that a group of lanes has under way; while it reduces, as registers allow */
template <typename T> struct kolo_reduce_batch {
    static const int value = sizeof(T) == 1 ? 1 : 2;
};

/* A thread's part of a line: one lane of eight, or on the host all of them. The four groups of a warp go through
 * their loops together, also those whose own line is beyond the end, so that shuffles and votes are of whole warps:
 * with a mask for each group they took half a microsecond of 512 KB. */
#ifdef __CUDACC__
#define KOLO_LANES 1
KOLO_DEV uint32_t kolo_lane(uint32_t k)
{
    return (threadIdx.x & 7) + k;
}
KOLO_DEV uint32_t kolo_group(void)
{
    return threadIdx.x / 8;
}
KOLO_DEV uint32_t kolo_groups(void)
{
    return blockDim.x / 8;
}
KOLO_DEV uint32_t kolo_first_of_warp(uint32_t line)
{
    return line & ~3u;
}
#else
#define KOLO_LANES 8
KOLO_DEV uint32_t kolo_lane(uint32_t k)
{
    return k;
}
KOLO_DEV uint32_t kolo_group(void)
{
    return 0;
}
KOLO_DEV uint32_t kolo_groups(void)
{
    return 1;
}
KOLO_DEV uint32_t kolo_first_of_warp(uint32_t line)
{
    return line;
}
#endif

typedef struct {
    uint64_t w[KOLO_LANES][2];
} kolo_line_t;

/* A lane's part of the sum of a line (an NH hash: Black et al., "UMAC", 1999). The keys differ from lane to lane,
 * so parts that changed places are noticed. `last`: the second word is the line's flag and not in the sum. */
KOLO_DEV uint32_t kolo_line128_part(const uint64_t *w, uint32_t lane, bool last)
{
    uint64_t second = last ? 0 : w[1];
    uint32_t key = lane * 0x9e3779b9u;
    uint64_t sum =
        (uint64_t)((uint32_t)w[0] + (key + 0x85ebca6bu)) * ((uint32_t)(w[0] >> 32) + (key + 0xc2b2ae35u)) +
        (uint64_t)((uint32_t)second + (key + 0x27d4eb2fu)) * ((uint32_t)(second >> 32) + (key + 0x165667b1u));
    return (uint32_t)sum ^ (uint32_t)(sum >> 32);
}
/* The flag of a line with this sum: its number stays as it is, in the lower half. */
KOLO_DEV uint64_t kolo_line128_signed(uint64_t flag, uint32_t sum)
{
    return flag ^ (uint64_t)sum << 32;
}

#ifdef __CUDACC__
#define KOLO_WARP 0xffffffffu
/* The sum of the line that eight lanes hold; the same in each of them. For a whole warp. */
KOLO_DEV uint32_t kolo_line128_sum(const kolo_line_t *x)
{
    uint32_t sum = kolo_line128_part(x->w[0], kolo_lane(0), kolo_lane(0) == 7);
    for (int i = 1; i < 8; i *= 2) sum += __shfl_xor_sync(KOLO_WARP, sum, i);
    return sum;
}
KOLO_DEV void kolo_line128_store(char *line, const kolo_line_t *x, uint64_t flag, bool valid)
{
    uint32_t sum = kolo_line128_sum(x);
    kolo_late(512);
    uint64_t second = kolo_lane(0) == 7 ? kolo_line128_signed(flag, sum) : x->w[0][1];
    if (!valid) return;
    asm volatile("st.volatile.global.v2.u64 [%0], {%1,%2};" ::"l"(line + 16 * kolo_lane(0)), "l"(x->w[0][0]),
                 "l"(second)
                 : "memory");
}
KOLO_DEV void kolo_line128_load(const char *line, kolo_line_t *x)
{
    asm volatile("ld.volatile.global.v2.u64 {%0,%1}, [%2];"
                 : "=l"(x->w[0][0]), "=l"(x->w[0][1])
                 : "l"(line + 16 * kolo_lane(0))
                 : "memory");
}
/* Has this line come? Only its last lane can say no. For a whole warp. */
KOLO_DEV bool kolo_line128_came(const kolo_line_t *x, uint64_t flag)
{
    uint32_t sum = kolo_line128_sum(x);
    return kolo_lane(0) != 7 || x->w[0][1] == kolo_line128_signed(flag, sum);
}
KOLO_DEV bool kolo_all_lanes(bool x)
{
    return __all_sync(KOLO_WARP, x);
}
KOLO_DEV bool kolo_any_lane(bool x)
{
    return __any_sync(KOLO_WARP, x);
}
#else
KOLO_DEV uint32_t kolo_line128_sum(const kolo_line_t *x)
{
    uint32_t sum = 0;
    for (uint32_t k = 0; k < 8; k++) sum += kolo_line128_part(x->w[k], k, k == 7);
    return sum;
}
KOLO_DEV void kolo_line128_store(char *line, const kolo_line_t *x, uint64_t flag, bool)
{
    uint64_t *at = (uint64_t *)line, last = kolo_line128_signed(flag, kolo_line128_sum(x));
    if (kolo_tears()) { /* the worst order: the flag is there, the rest is not */
        __atomic_store_n(at + KOLO_LINE_WORDS, last, __ATOMIC_RELEASE);
        kolo_pause();
    }
    for (int i = 0; i < KOLO_LINE_WORDS; i++) __atomic_store_n(at + i, x->w[i / 2][i % 2], __ATOMIC_RELAXED);
    __atomic_store_n(at + KOLO_LINE_WORDS, last, __ATOMIC_RELEASE);
}
KOLO_DEV void kolo_line128_load(const char *line, kolo_line_t *x)
{
    const uint64_t *at = (const uint64_t *)line;
    x->w[7][1] = __atomic_load_n(at + KOLO_LINE_WORDS, __ATOMIC_ACQUIRE);
    for (int i = 0; i < KOLO_LINE_WORDS; i++) x->w[i / 2][i % 2] = __atomic_load_n(at + i, __ATOMIC_RELAXED);
}
KOLO_DEV bool kolo_line128_came(const kolo_line_t *x, uint64_t flag)
{
    return x->w[7][1] == kolo_line128_signed(flag, kolo_line128_sum(x));
}
KOLO_DEV bool kolo_all_lanes(bool x)
{
    return x;
}
KOLO_DEV bool kolo_any_lane(bool x)
{
    return x;
}
#endif

/* Where the lines from a rank's block lie in a region. */
KOLO_DEV char *kolo_lines128(const kolo_cuda_layout_t *l, char *region, uint32_t half, uint32_t from,
                             uint32_t block)
{
    uint64_t at = (uint64_t)(half * l->nranks + from) * l->ll128_blocks + block;
    return region + l->lines128 + at * l->ll128_bytes;
}

/* This thread's words of line `line` of this rank's input of `bytes`. `c`: of a collective, whose inputs may be
 * scaled; NULL: as they are. */
template <typename T>
KOLO_DEV void kolo_words_load(kolo_line_t *x, const char *buf, uint64_t line, uint64_t bytes, bool aligned,
                              const kolo_cuda_args_t *c)
{
#pragma unroll
    for (uint32_t k = 0; k < KOLO_LANES; k++) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint64_t at = (line * KOLO_LINE_WORDS + kolo_lane(k) * 2 + i) * 8;
            x->w[k][i] = 0;
            if (kolo_lane(k) * 2 + i == KOLO_LINE_WORDS || at >= bytes) continue;
            kolo_vec_t v = kolo_user_load8<T>(buf + at, bytes - at, aligned);
            if (c) v = kolo_own_input<T, 8 / sizeof(T)>(v, *c);
            x->w[k][i] = v.w[0] | (uint64_t)v.w[1] << 32;
        }
    }
}
template <typename T>
KOLO_DEV void kolo_words_store(const kolo_line_t *x, char *buf, uint64_t line, uint64_t bytes, bool aligned)
{
#pragma unroll
    for (uint32_t k = 0; k < KOLO_LANES; k++) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint64_t at = (line * KOLO_LINE_WORDS + kolo_lane(k) * 2 + i) * 8;
            if (kolo_lane(k) * 2 + i == KOLO_LINE_WORDS || at >= bytes) continue;
            kolo_vec_t v = {{(uint32_t)x->w[k][i], (uint32_t)(x->w[k][i] >> 32), 0, 0}};
            kolo_user_store8<T>(buf + at, v, bytes - at, aligned);
        }
    }
}

KOLO_DEV uint64_t kolo_line128_flag(const kolo_cuda_args_t &c, uint32_t flag)
{
    return flag | (uint64_t)c.mark << 32;
}

/* Lines are long in coming. Those of a message (messages.cuh) may be there, but tell of another length or type, or
 * its sender has a long one instead: `seen` at the look before this one, too, or its lines may be on their way. */
KOLO_DEV void kolo_line128_look(const kolo_cuda_args_t &, const char *, uint64_t, uint32_t, bool *)
{
}
KOLO_DEV void kolo_line128_look(const kolo_cuda_p2p_args_t &c, const char *lines, uint64_t flag, uint32_t peer,
                                bool *seen)
{
    uint32_t block = kolo_bid() % c.blocks;
    char *own = kolo_region(c.regions, c.rank);
    uint64_t there = kolo_message_what_load(lines);
    kolo_message_meeting_t *meeting = kolo_message_meeting(&c.layout, own, peer, block);
    bool differs = there && (uint32_t)there == (uint32_t)flag && there != flag; /* 0: nothing was ever there */
    bool is_long = kolo_flag_load(&meeting->offer) ==
                   *kolo_message_counter(&c.layout, own, KOLO_CUDA_MESSAGE_RECEIVED_LONG, peer, block) + 1;
    if (differs || (is_long && *seen))
        kolo_tell_unfit((kolo_cuda_mailbox_t *)c.mailbox, c.number, peer, 0, kolo_message_tag_of(flag),
                        differs ? kolo_message_tag_of(there) : kolo_message_word_load(&meeting->offer_tag));
    *seen = is_long;
}

/* How many lines a warp goes through from `at` on, at most a batch, of `n`; this group's own may be beyond the end.
 */
template <int B> KOLO_DEV uint32_t kolo_batch(uint32_t at, uint32_t n)
{
    uint32_t first = kolo_first_of_warp(at), left = first < n ? (n - first + kolo_groups() - 1) / kolo_groups() : 0;
    return left < B ? left : B;
}

/* A batch of lines from a peer, from `at` on, of `n`. For a whole warp. */
template <int B, typename C>
KOLO_DEV bool kolo_batch_wait(const C &c, uint64_t flag, const char *lines, uint32_t at, uint32_t n, kolo_line_t *x,
                              uint32_t peer)
{
    uint32_t spins = 0, batch = kolo_batch<B>(at, n);
    bool seen = false;
    for (;;) {
        bool all = true;
#pragma unroll
        for (uint32_t u = 0; u < B; u++)
            if (u < batch && at + u * kolo_groups() < n)
                kolo_line128_load(lines + (uint64_t)(at + u * kolo_groups()) * 128, &x[u]);
#pragma unroll
        for (uint32_t u = 0; u < B; u++)
            if (u < batch) all = (kolo_line128_came(&x[u], flag) || at + u * kolo_groups() >= n) && all;
        if (kolo_all_lanes(all)) return true;
        if (kolo_any_lane(kolo_give_up(&spins, c, KOLO_CUDA_WAITS_LINES, peer, (uint32_t)flag))) return false;
        if (spins % KOLO_SPINS_A_LOOK == 0) kolo_line128_look(c, lines, flag, peer, &seen);
    }
}

KOLO_DEV kolo_vec_t kolo_vec_of(const uint64_t *w)
{
    return kolo_vec_t{{(uint32_t)w[0], (uint32_t)(w[0] >> 32), (uint32_t)w[1], (uint32_t)(w[1] >> 32)}};
}
KOLO_DEV void kolo_words_of(uint64_t *w, kolo_vec_t v)
{
    w[0] = v.w[0] | (uint64_t)v.w[1] << 32;
    w[1] = v.w[2] | (uint64_t)v.w[3] << 32;
}

#endif
