/* SPDX-License-Identifier: Apache-2.0
 *
 * Monotonic time in nanoseconds, and a few small helpers on numbers that every room needs.
 */
#ifndef KOLO_BASE_CLOCK_H
#define KOLO_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define KOLO_NS_PER_MS 1000000ull
#define KOLO_NS_PER_S  1000000000ull

static inline uint64_t kolo_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * KOLO_NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* Reads a cheap clock with steps of some milliseconds, for checks whether something has taken long. */
static inline uint64_t kolo_about_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    return (uint64_t)ts.tv_sec * KOLO_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static inline uint64_t kolo_deadline_ms(int64_t ms) /* 0 = none */
{
    return ms > 0 ? kolo_now_ns() + (uint64_t)ms * KOLO_NS_PER_MS : 0;
}

static inline void kolo_cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns when the own stores so far are in the cache, where others see them. Not needed for order: it keeps the
 * loads that follow from starting earlier. */
static inline void kolo_drain_stores(void)
{
#if defined(__x86_64__)
    __builtin_ia32_mfence();
#endif
}

#define KOLO_MIN(a, b)      ((a) < (b) ? (a) : (b))
#define KOLO_MAX(a, b)      ((a) > (b) ? (a) : (b))
#define KOLO_DIV_UP(a, b)   (((a) + (b)-1) / (b))
#define KOLO_ROUND_UP(a, b) (KOLO_DIV_UP(a, b) * (b))
#define KOLO_CACHE_LINE     64

/* FNV-1a, for hashes that must be equal on all hosts. Start with KOLO_HASH_INIT. */
#define KOLO_HASH_INIT 0xcbf29ce484222325ull
static inline uint64_t kolo_hash_bytes(uint64_t hash, const void *data, uint64_t bytes)
{
    const unsigned char *p = (const unsigned char *)data;
    for (uint64_t i = 0; i < bytes; i++) hash = (hash ^ p[i]) * 0x100000001b3ull;
    return hash;
}

#endif
