/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels are made of: loads and stores whose order other GPUs see, and waits that end when the host says so.
 * The same source compiles for the host, where a block is one thread: that is how it is tested without a GPU, under
 * the sanitizers. There kolo_block and kolo_blocks are set by whoever runs a block.
 */
// clang-format off
#ifndef KOLO_GPU_CUDA_DEVICE_CUH
#define KOLO_GPU_CUDA_DEVICE_CUH

#include "gpu/cuda/args.h"
#include "gpu/cuda/steps.h"

#include <stdint.h>

typedef struct alignas(16) {
    uint32_t w[4];
} kolo_vec_t;

#ifdef __CUDACC__

#define KOLO_DEV    static __device__ __forceinline__
#define KOLO_SHARED __shared__
#define KOLO_KERNEL extern "C" __global__ void __launch_bounds__(KOLO_CUDA_THREADS, 2)
#define KOLO_PARAM  const __grid_constant__

#define KOLO_STEP(...) ((void)0) /* see steps.h */
KOLO_DEV uint32_t kolo_tid(void) { return threadIdx.x; }
KOLO_DEV uint32_t kolo_nthreads(void) { return blockDim.x; }
KOLO_DEV uint32_t kolo_bid(void) { return blockIdx.x; }
KOLO_DEV uint32_t kolo_nblocks(void) { return gridDim.x; }

/* A library that is built for tests (-Dgpu_delays=true): the same for all lanes of a warp, one time in so many, up to
 * four microseconds. */
#ifdef KOLO_CUDA_DELAYS
KOLO_DEV void kolo_late(uint32_t one_in)
{
    uint32_t x = (uint32_t)clock64() + (threadIdx.x / 32 + blockIdx.x * 64) * 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = __shfl_sync(__activemask(), (x ^ x >> 13) * 0xc2b2ae35u, __ffs((int)__activemask()) - 1);
    if (x % one_in == 0) __nanosleep(x >> 20);
}
#else
KOLO_DEV void kolo_late(uint32_t) {}
#endif

KOLO_DEV void kolo_sync(void)
{
    kolo_late(256);
    __syncthreads();
}

/* 16 bytes, in one piece over NVLink and PCIe as far as each 8 of them are concerned. */
KOLO_DEV void kolo_line_store(kolo_vec_t *p, kolo_vec_t v)
{
    kolo_late(512);
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]),
                 "r"(v.w[3])
                 : "memory");
}
KOLO_DEV kolo_vec_t kolo_line_load(const kolo_vec_t *p)
{
    kolo_vec_t v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                 : "l"(p)
                 : "memory");
    return v;
}
/* All that the block has written, or read, before kolo_sync() comes before the flag. */
KOLO_DEV void kolo_flag_store(uint32_t *p, uint32_t v)
{
    kolo_late(16);
    asm volatile("fence.acq_rel.sys; st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/* All that the block has read before kolo_sync() was read before the flag is seen: what was read has arrived in
 * registers, and no write needs to be waited for. */
KOLO_DEV void kolo_credit_store(uint32_t *p, uint32_t v)
{
    kolo_late(16);
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
KOLO_DEV uint32_t kolo_flag_load(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
KOLO_DEV uint32_t kolo_mailbox_aborted(const kolo_cuda_mailbox_t *box)
{
    return *(const volatile uint32_t *)&box->abort;
}
KOLO_DEV void kolo_report(kolo_cuda_mailbox_t *box, uint32_t what, uint32_t peer, uint32_t step)
{
    if (atomicCAS_system(&box->report.set, 0u, 2u) != 0u) return;
    box->report.block = blockIdx.x;
    box->report.peer = peer;
    box->report.what = what;
    box->report.step = step;
    __threadfence_system();
    *(volatile uint32_t *)&box->report.set = 1u;
}
/* Waits for the kernel before this one, beside whose end this one may have been launched (launch.c). The next one may
 * be launched as soon as all blocks say so: those of short operations, whose blocks are few. */
KOLO_DEV void kolo_begin(bool next)
{
    kolo_late(16);
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (next) asm volatile("griddepcontrol.launch_dependents;");
#endif
}
KOLO_DEV void kolo_bits_keep(uint32_t *p, uint32_t bits) { atomicAnd(p, bits); } /* p: shared by a block */
KOLO_DEV void kolo_pause(void) {}
/* Threads of a warp that look at the same time tell once. */
KOLO_DEV void kolo_tell_wait(kolo_cuda_mailbox_t *box, uint64_t number, uint64_t word, uint32_t what, uint32_t peer,
                             uint32_t step)
{
    uint32_t lane, mask = __activemask();
    uint64_t beat, at = step | (uint64_t)blockIdx.x << 32 | (uint64_t)what << 48;
    kolo_cuda_waiting_t *w = &box->waiting[peer];
    asm volatile("mov.u32 %0, %%laneid; mov.u64 %1, %%globaltimer;" : "=r"(lane), "=l"(beat));
    if (__ffs((int)mask) - 1 != (int)lane) return;
    asm volatile("st.volatile.global.v2.u64 [%0], {%1,%2};" ::"l"(&w->number), "l"(number), "l"(word) : "memory");
    asm volatile("st.volatile.global.v2.u64 [%0], {%1,%2};" ::"l"(&w->at), "l"(at), "l"(beat) : "memory");
}
KOLO_DEV void kolo_tell_unfit(kolo_cuda_mailbox_t *box, uint64_t number, uint32_t peer, uint32_t sends, uint64_t mine,
                              uint64_t theirs)
{
    if (atomicCAS_system(&box->unfit.set, 0u, 2u) != 0u) return;
    box->unfit.peer = peer;
    box->unfit.sends = sends;
    box->unfit.number = number;
    box->unfit.mine = mine;
    box->unfit.theirs = theirs;
    __threadfence_system();
    *(volatile uint32_t *)&box->unfit.set = 1u;
}

#else /* the host, in C++ */

#define KOLO_DEV    static inline
#define KOLO_SHARED static thread_local
#define KOLO_KERNEL extern "C" void
#define KOLO_PARAM  const

extern thread_local uint32_t kolo_block, kolo_blocks;
extern "C" void kolo_pause(void); /* lets other blocks run */
extern "C" bool kolo_tears(void); /* is this line to come in parts? */

/* [from, from + length) of `base`, as far as it lies before `end`. */
KOLO_DEV void kolo_step(uint32_t rank, uint32_t block, uint8_t sends, uint8_t phase, uint32_t peer, const void *base,
                        uint64_t from, uint64_t length, uint64_t end)
{
    if (!kolo_cuda_tell || from >= end || !length) return;
    kolo_cuda_told_t step = {rank, block, peer, sends, phase, base ? (uint64_t)base + from : 0,
                             length < end - from ? length : end - from};
    kolo_cuda_tell(&step);
}
#define KOLO_STEP(...) kolo_step(__VA_ARGS__)
KOLO_DEV uint32_t kolo_tid(void) { return 0; }
KOLO_DEV uint32_t kolo_nthreads(void) { return 1; }
KOLO_DEV uint32_t kolo_bid(void) { return kolo_block; }
KOLO_DEV uint32_t kolo_nblocks(void) { return kolo_blocks; }
KOLO_DEV void kolo_sync(void) {}

/* What a line holds has come of what its writer loaded, and what its reader stores comes of the line: an order that GPUs
 * keep without fences. A sanitizer knows it only as release and acquire. */
KOLO_DEV void kolo_line_store(kolo_vec_t *p, kolo_vec_t v)
{
    uint64_t *at = (uint64_t *)p;
    __atomic_store_n(at, v.w[0] | (uint64_t)v.w[1] << 32, __ATOMIC_RELEASE);
    __atomic_store_n(at + 1, v.w[2] | (uint64_t)v.w[3] << 32, __ATOMIC_RELEASE);
}
KOLO_DEV kolo_vec_t kolo_line_load(const kolo_vec_t *p)
{
    const uint64_t *at = (const uint64_t *)p;
    uint64_t a = __atomic_load_n(at, __ATOMIC_ACQUIRE), b = __atomic_load_n(at + 1, __ATOMIC_ACQUIRE);
    return kolo_vec_t{{(uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32)}};
}
KOLO_DEV void kolo_flag_store(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
KOLO_DEV void kolo_credit_store(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
KOLO_DEV uint32_t kolo_flag_load(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
KOLO_DEV uint32_t kolo_mailbox_aborted(const kolo_cuda_mailbox_t *box)
{
    return __atomic_load_n(&box->abort, __ATOMIC_RELAXED);
}
KOLO_DEV void kolo_begin(bool) {}
KOLO_DEV void kolo_bits_keep(uint32_t *p, uint32_t bits) { *p &= bits; }
KOLO_DEV void kolo_report(kolo_cuda_mailbox_t *box, uint32_t what, uint32_t peer, uint32_t step)
{
    uint32_t none = 0;
    if (!__atomic_compare_exchange_n(&box->report.set, &none, 2u, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
    box->report.block = kolo_bid();
    box->report.peer = peer;
    box->report.what = what;
    box->report.step = step;
    __atomic_store_n(&box->report.set, 1u, __ATOMIC_RELEASE);
}
KOLO_DEV void kolo_tell_wait(kolo_cuda_mailbox_t *box, uint64_t number, uint64_t word, uint32_t what, uint32_t peer,
                             uint32_t step)
{
    kolo_cuda_waiting_t *w = &box->waiting[peer];
    __atomic_store_n(&w->number, number, __ATOMIC_RELAXED);
    __atomic_store_n(&w->word, word, __ATOMIC_RELAXED);
    __atomic_store_n(&w->at, step | (uint64_t)kolo_bid() << 32 | (uint64_t)what << 48, __ATOMIC_RELAXED);
    __atomic_fetch_add(&w->beat, 1, __ATOMIC_RELEASE);
}
KOLO_DEV void kolo_tell_unfit(kolo_cuda_mailbox_t *box, uint64_t number, uint32_t peer, uint32_t sends, uint64_t mine,
                              uint64_t theirs)
{
    uint32_t none = 0;
    if (!__atomic_compare_exchange_n(&box->unfit.set, &none, 2u, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
    box->unfit.peer = peer;
    box->unfit.sends = sends;
    box->unfit.number = number;
    box->unfit.mine = mine;
    box->unfit.theirs = theirs;
    __atomic_store_n(&box->unfit.set, 1u, __ATOMIC_RELEASE);
}

#endif

/* What both ends of a message must agree on, its type and length: the receiver of a long one tells the sender; by lines,
 * where it is short, it is in the upper half of every flag and behind the lines of a slot. */
KOLO_DEV uint64_t kolo_message_tag(const kolo_cuda_message_t &m) { return m.bytes | (uint64_t)m.type << 56; }
KOLO_DEV uint64_t kolo_message_flag(const kolo_cuda_message_t &m, uint32_t step)
{
    return step | m.bytes << 32 | (uint64_t)m.type << 59;
}
KOLO_DEV uint64_t kolo_message_tag_of(uint64_t flag) { return (flag << 5 >> 37) | flag >> 59 << 56; }

/* Spins between two looks at the mailbox, which lies in host memory: a look takes two microseconds, or, on the host,
 * a spin gives the core away. */
#ifdef __CUDACC__
#define KOLO_SPINS_A_LOOK 4096u
#else
#define KOLO_SPINS_A_LOOK 16u
#endif

/* After a look that found nothing: does the host want the kernel to end? It learns what is awaited. */
template <typename C>
KOLO_DEV bool kolo_give_up(uint32_t *spins, const C &c, uint32_t what, uint32_t peer, uint32_t step)
{
    kolo_cuda_mailbox_t *box = (kolo_cuda_mailbox_t *)c.mailbox;
    kolo_pause();
    if (++*spins % KOLO_SPINS_A_LOOK) return false;
    kolo_tell_wait(box, c.number, c.word, what, peer, step);
    if (!kolo_mailbox_aborted(box)) return false;
    kolo_report(box, what, peer, step);
    return true;
}

/* Stages are ordinary memory: the flag behind a tile, and kolo_sync() after it was seen, order them. */
KOLO_DEV kolo_vec_t kolo_stage_load(const kolo_vec_t *p) { return *p; }
KOLO_DEV void kolo_stage_store(kolo_vec_t *p, kolo_vec_t v) { *p = v; }

/* ---- the region ---- */

KOLO_DEV char *kolo_region(const uint64_t *regions, uint32_t rank) { return (char *)regions[rank]; }
/* What a block of this rank has behind it. */
KOLO_DEV uint32_t *kolo_counter(const kolo_cuda_layout_t *l, char *own, uint32_t row, uint32_t block)
{
    return (uint32_t *)(own + l->counters) + row * KOLO_CUDA_GRID + block;
}
/* KOLO_CUDA_MESSAGE_*, of messages to or from a peer. */
KOLO_DEV uint32_t *kolo_message_counter(const kolo_cuda_layout_t *l, char *own, uint32_t way, uint32_t peer,
                                        uint32_t block)
{
    return (uint32_t *)(own + l->counters) +
           (KOLO_CUDA_COUNTERS + way * l->nranks + peer) * KOLO_CUDA_GRID + block;
}
KOLO_DEV uint32_t *kolo_message_credit(const kolo_cuda_layout_t *l, char *region, uint32_t peer, uint32_t block)
{
    return (uint32_t *)(region + l->message_credit + (uint64_t)(peer * l->message_blocks + block) * KOLO_CUDA_FLAG);
}
KOLO_DEV char *kolo_message_lines(const kolo_cuda_layout_t *l, char *region, uint32_t from, uint32_t block,
                                  uint32_t step)
{
    uint64_t slot = (uint64_t)(from * l->message_blocks + block) * KOLO_CUDA_DEPTH + step % KOLO_CUDA_DEPTH;
    return region + l->message_lines + slot * KOLO_CUDA_MESSAGE_SLOT_BYTES;
}
/* What the message in a slot is (kolo_message_flag()): the flags of its lines do not tell, since sums are in them. */
KOLO_DEV void kolo_message_word_store(uint64_t *at, uint64_t word)
{
#ifdef __CUDACC__
    *(volatile uint64_t *)at = word;
#else
    __atomic_store_n(at, word, __ATOMIC_RELAXED);
#endif
}
KOLO_DEV uint64_t kolo_message_word_load(const uint64_t *at)
{
#ifdef __CUDACC__
    return *(const volatile uint64_t *)at;
#else
    return __atomic_load_n(at, __ATOMIC_RELAXED);
#endif
}
KOLO_DEV void kolo_message_what_store(char *lines, uint64_t what)
{
    kolo_message_word_store((uint64_t *)(lines + KOLO_CUDA_MESSAGE_SLOT_LINES * 128u), what);
}
KOLO_DEV uint64_t kolo_message_what_load(const char *lines)
{
    return kolo_message_word_load((const uint64_t *)(lines + KOLO_CUDA_MESSAGE_SLOT_LINES * 128u));
}
KOLO_DEV kolo_message_meeting_t *kolo_message_meeting(const kolo_cuda_layout_t *l, char *region, uint32_t peer,
                                                      uint32_t block)
{
    return (kolo_message_meeting_t *)(region + l->message_meetings +
                                      (uint64_t)(peer * l->message_blocks + block) * KOLO_CUDA_FLAG);
}

KOLO_DEV uint32_t *kolo_flag(const kolo_cuda_layout_t *l, char *region, uint64_t flags, uint32_t phase, uint32_t from,
                             uint32_t block)
{
    return (uint32_t *)(region + flags + (uint64_t)((phase * l->nranks + from) * l->blocks + block) * KOLO_CUDA_FLAG);
}
KOLO_DEV kolo_vec_t *kolo_stage(const kolo_cuda_layout_t *l, char *region, uint32_t phase, uint32_t from,
                                uint32_t block, uint32_t tile)
{
    uint64_t slot = (uint64_t)((phase * l->nranks + from) * l->stage_blocks + block) * KOLO_CUDA_DEPTH +
                    tile % KOLO_CUDA_DEPTH;
    return (kolo_vec_t *)(region + l->stages + slot * l->tile_bytes);
}
KOLO_DEV kolo_vec_t *kolo_lines(const kolo_cuda_layout_t *l, char *region, uint32_t half, uint32_t from,
                                uint32_t block)
{
    uint64_t at = (uint64_t)(half * l->nranks + from) * l->ll_blocks + block;
    return (kolo_vec_t *)(region + l->lines + at * 2 * KOLO_CUDA_LL_BLOCK_BYTES);
}

/* ---- user memory: any alignment that the type has ---- */

KOLO_DEV bool kolo_aligned(uint64_t a, uint64_t b) { return ((a | b) & 15) == 0; }

/* The n bytes at `at` of a user's buffer, element by element; n <= 16, the rest is zero. */
template <typename T> KOLO_DEV kolo_vec_t kolo_elems_load(const char *at, uint32_t n)
{
    union {
        kolo_vec_t v;
        T e[16 / sizeof(T)];
    } u;
    u.v.w[0] = u.v.w[1] = u.v.w[2] = u.v.w[3] = 0;
#pragma unroll
    for (uint32_t i = 0; i < 16 / sizeof(T); i++)
        if (i * sizeof(T) < n) u.e[i] = ((const T *)at)[i];
    return u.v;
}
template <typename T> KOLO_DEV void kolo_elems_store(char *at, kolo_vec_t v, uint32_t n)
{
    union {
        kolo_vec_t v;
        T e[16 / sizeof(T)];
    } u;
    u.v = v;
#pragma unroll
    for (uint32_t i = 0; i < 16 / sizeof(T); i++)
        if (i * sizeof(T) < n) ((T *)at)[i] = u.e[i];
}
template <typename T> KOLO_DEV kolo_vec_t kolo_user_load(const char *at, uint64_t left, bool aligned)
{
    if (aligned && left >= 16) return *(const kolo_vec_t *)at;
    return kolo_elems_load<T>(at, left < 16 ? (uint32_t)left : 16);
}
template <typename T> KOLO_DEV void kolo_user_store(char *at, kolo_vec_t v, uint64_t left, bool aligned)
{
    if (aligned && left >= 16)
        *(kolo_vec_t *)at = v;
    else
        kolo_elems_store<T>(at, v, left < 16 ? (uint32_t)left : 16);
}

#endif
