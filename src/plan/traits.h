/* SPDX-License-Identifier: Apache-2.0
 *
 * What the rooms have to know of a collective, once: its name, whether it reduces, which buffers only the root has,
 * and how long they are. Whoever needs such an answer asks this table instead of listing collectives, so that a new
 * one is a row here, a constructor in comm and its algorithms.
 */
#ifndef KOLO_PLAN_TRAITS_H
#define KOLO_PLAN_TRAITS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    KOLO_COLL_ALL_REDUCE,
    KOLO_COLL_REDUCE,
    KOLO_COLL_BROADCAST,
    KOLO_COLL_ALL_GATHER,
    KOLO_COLL_REDUCE_SCATTER,
    KOLO_COLL_ALL_TO_ALL,
    KOLO_COLL_GATHER,
    KOLO_COLL_SCATTER,
    KOLO_COLL_BARRIER,
    KOLO_COLL_P2P, /* a group of sends and receives */
    KOLO_COLL_COUNT
} kolo_coll_t;

typedef struct {
    const char *name;              /* "all_reduce", ... */
    bool reduces;                  /* SRC is raw input, results are FINAL (plan.h) */
    bool src_at_root, dst_at_root; /* only the root has this buffer */
    bool src_by_rank,
        dst_by_rank; /* this buffer has a part of `count` elements for each rank, else `count` in all */
    bool whole;      /* both buffers are the same `count` elements, which a plan may cut into even parts */
    bool in_place;   /* SRC may lie in DST, or DST in SRC */
} kolo_coll_traits_t;
extern const kolo_coll_traits_t kolo_coll_table[KOLO_COLL_COUNT + 1]; /* the last row is for what does not exist */

static inline const kolo_coll_traits_t *kolo_coll_traits(kolo_coll_t coll)
{
    return &kolo_coll_table[(unsigned)coll < KOLO_COLL_COUNT ? coll : KOLO_COLL_COUNT];
}
static inline const char *kolo_coll_name(kolo_coll_t coll)
{
    return kolo_coll_traits(coll)->name;
}
static inline bool kolo_coll_reduces(kolo_coll_t coll)
{
    return kolo_coll_traits(coll)->reduces;
}
static inline bool kolo_coll_rooted(kolo_coll_t coll)
{
    return kolo_coll_traits(coll)->src_at_root || kolo_coll_traits(coll)->dst_at_root;
}
/* Does a call tell the length of one rank's part (not of all the data)? */
static inline bool kolo_coll_by_rank(kolo_coll_t coll)
{
    return kolo_coll_traits(coll)->src_by_rank || kolo_coll_traits(coll)->dst_by_rank;
}
/* Elements of the buffers of a rank that has them, in a call with equal parts. */
static inline uint64_t kolo_coll_src_count(kolo_coll_t coll, uint64_t count, uint32_t nranks)
{
    return coll == KOLO_COLL_BARRIER ? 0 : kolo_coll_traits(coll)->src_by_rank ? count * nranks : count;
}
static inline uint64_t kolo_coll_dst_count(kolo_coll_t coll, uint64_t count, uint32_t nranks)
{
    return coll == KOLO_COLL_BARRIER ? 0 : kolo_coll_traits(coll)->dst_by_rank ? count * nranks : count;
}
kolo_status_t kolo_coll_parse(const char *name, kolo_coll_t *coll);

#endif
