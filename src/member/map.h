/* SPDX-License-Identifier: Apache-2.0
 *
 * A map of ranks: bit r % 8 of byte r / 8 is rank r, in whole words of 8 bytes, so that it travels and is hashed
 * alike on all ranks.
 */
#ifndef KOLO_MEMBER_MAP_H
#define KOLO_MEMBER_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline size_t kolo_map_bytes(int nranks)
{
    return ((size_t)nranks + 63) / 64 * 8;
}
static inline bool kolo_map_has(const uint8_t *map, int rank)
{
    return map[rank / 8] >> (rank % 8) & 1;
}
static inline void kolo_map_add(uint8_t *map, int rank)
{
    map[rank / 8] |= (uint8_t)(1u << (rank % 8));
}

#endif
