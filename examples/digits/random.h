/* SPDX-License-Identifier: Apache-2.0
 *
 * Random numbers that are the same everywhere for the same seed (splitmix64), and a hash made of the same mixing.
 */
#ifndef DIGITS_RANDOM_H
#define DIGITS_RANDOM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t random_mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static inline uint64_t random_next(uint64_t *state)
{
    return random_mix(*state += UINT64_C(0x9e3779b97f4a7c15));
}

/* 0 <= x < 1, in steps that a float holds exactly */
static inline float random_unit(uint64_t *state)
{
    return (float)(random_next(state) >> 40) / 16777216.0f;
}

static inline uint64_t random_below(uint64_t *state, uint64_t limit)
{
    return random_next(state) % limit; /* the limits here are tiny against 2^64 */
}

/* bytes must be a multiple of 8 */
static inline uint64_t random_hash(const void *data, size_t bytes)
{
    const char *at = data;
    uint64_t h = bytes;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word;
        memcpy(&word, at + i, sizeof word);
        h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 32;
    }
    return random_mix(h);
}

#endif
