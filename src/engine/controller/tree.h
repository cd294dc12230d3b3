/* SPDX-License-Identifier: Apache-2.0
 *
 * The tree by which requests of many ranks come to the coordinator, and what an inner rank does: it merges what its
 * children send with its own, so that a request that all ranks below it mean alike goes up once.
 *
 * A rank and all below it are consecutive ranks, the rank itself the lowest of them, and its children come in
 * ascending order. So a merged list can be kept in the order in which the coordinator would have seen the last rank
 * send each request had it heard all ranks one by one, which is the order in which it answers; and a set of ranks
 * mostly is "all of mine".
 */
#ifndef KOLO_ENGINE_CONTROLLER_TREE_H
#define KOLO_ENGINE_CONTROLLER_TREE_H

#include "engine/engine.h"

extern int64_t kolo_engine_tree_ranks, kolo_engine_tree_fan_in; /* parameters */
#define KOLO_TREE_FAN_IN_MAX 1024

typedef struct {
    int first, end; /* the rank, and all below it */
    int parent;     /* -1: none */
    int nchildren;
} kolo_tree_place_t;
kolo_tree_place_t kolo_tree_find(int nranks, int fan_in, int rank);
kolo_tree_place_t kolo_tree_child(const kolo_tree_place_t *place, int fan_in, int child);

/* ---- merge.c ---- */

typedef struct kolo_shared { /* a request, and who sends it */
    struct kolo_shared *before, *behind, *next_in_bucket;
    uint64_t hash;
    kolo_ranks_t ranks;
    kolo_tensor_request_t request; /* with the first dimension of the lowest of them */
} kolo_shared_t;

typedef struct {
    kolo_shared_t *first, *last; /* in the order of the last rank, and of its list */
    size_t count;
    kolo_shared_t **buckets;
    size_t nbuckets;
} kolo_merge_t;

void kolo_merge_fini(kolo_merge_t *m); /* begins as zeros */
/* Adds a request of ranks higher than all that were here before, in the order of their list. */
kolo_status_t kolo_merge_add(kolo_merge_t *m, const kolo_tensor_request_t *request, const kolo_ranks_t *ranks);
kolo_status_t kolo_merge_own(kolo_merge_t *m, int rank, const kolo_tensor_request_t *const *requests, size_t count);
kolo_status_t kolo_merge_child(kolo_merge_t *m, const kolo_tree_place_t *child, int nranks, const uint8_t *bytes,
                               size_t length);

/* ---- message_shared.c ---- */

/* Encodes those of all ranks of a place. No request at all makes no bytes. */
kolo_status_t kolo_merge_encode(const kolo_merge_t *m, const kolo_tree_place_t *place, kolo_bytes_t *out);
/* Calls fn for each, in order; what it gets lives as long as the call. Bytes that make no sense, ranks that are not
 * of the place among it, are KOLO_ERR_PROTOCOL before the first call. */
typedef kolo_status_t (*kolo_request_fn_t)(void *arg, const kolo_tensor_request_t *request,
                                           const kolo_ranks_t *ranks);
kolo_status_t kolo_requests_decode(const uint8_t *bytes, size_t length, const kolo_tree_place_t *place, int nranks,
                                   kolo_request_fn_t fn, void *arg);
/* The longest list of a place, whatever its sender announces: what its ranks could send one by one, and in any case
 * no more than this, several times what 100,000 tensors in other orders need. */
#define KOLO_SHARED_BYTES_MAX (UINT64_C(256) << 20)
static inline uint64_t kolo_shared_bytes_max(const kolo_tree_place_t *place)
{
    uint64_t most = (uint64_t)KOLO_ENGINE_MESSAGE_MAX * (uint64_t)(place->end - place->first);
    return KOLO_MIN(most, KOLO_SHARED_BYTES_MAX);
}

#endif
