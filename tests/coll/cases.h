/* SPDX-License-Identifier: Apache-2.0
 *
 * One conformance case per collective. Every rank calls the same cases in the same order; a case fails on any wrong
 * value, on bits that differ between ranks, and on a write outside the buffers.
 */
#ifndef KOLO_TESTS_COLL_CASES_H
#define KOLO_TESTS_COLL_CASES_H

#include <kolo/kolo.h>

#include <stdbool.h>

#define TEST_MAX_RANKS 64

typedef struct {
    kolo_comm_t comm;
    int rank, nranks;
    kolo_stream_t stream; /* NULL: synchronous */
    uint64_t seed;        /* the same on all ranks; a new one per case */
} test_rank_t;

/* Waits for the stream, if there is one. */
static inline kolo_status_t test_finish(test_rank_t *t)
{
    return t->stream ? kolo_stream_synchronize(t->stream) : KOLO_OK;
}

bool test_all_reduce(test_rank_t *t, size_t count, kolo_type_t type, kolo_op_t op, bool in_place);
bool test_reduce(test_rank_t *t, size_t count, kolo_type_t type, kolo_op_t op, int root, bool in_place);
bool test_broadcast(test_rank_t *t, size_t count, kolo_type_t type, int root, bool in_place);
bool test_all_gather(test_rank_t *t, size_t count, kolo_type_t type, bool in_place);
bool test_reduce_scatter(test_rank_t *t, size_t count, kolo_type_t type, kolo_op_t op, bool in_place);
bool test_all_to_all(test_rank_t *t, size_t count, kolo_type_t type);
bool test_gather(test_rank_t *t, size_t count, kolo_type_t type, int root, bool in_place);
bool test_scatter(test_rank_t *t, size_t count, kolo_type_t type, int root, bool in_place);
bool test_gatherv(test_rank_t *t, size_t count, kolo_type_t type, int root, bool in_place);
bool test_scatterv(test_rank_t *t, size_t count, kolo_type_t type, int root, bool in_place);
bool test_all_gatherv(test_rank_t *t, size_t count, kolo_type_t type);
bool test_reduce_scatterv(test_rank_t *t, size_t count, kolo_type_t type, kolo_op_t op);
bool test_all_to_allv(test_rank_t *t, size_t count, kolo_type_t type);
bool test_ring_exchange(test_rank_t *t, size_t count, kolo_type_t type);
bool test_group_mix(test_rank_t *t, size_t count);

#endif
