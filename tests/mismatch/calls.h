/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls that these tests mix. Each fits any number of ranks up to MAX_RANKS; x has CALL_ELEMENTS elements.
 */
#ifndef KOLO_TESTS_MISMATCH_CALLS_H
#define KOLO_TESTS_MISMATCH_CALLS_H

#include "kit/ranks.h"

#define MANY          300000
#define CALL_ELEMENTS (2 * (size_t)MANY)

typedef kolo_status_t (*call_t)(kolo_comm_t, int32_t *);

static inline kolo_status_t sum_few(kolo_comm_t comm, int32_t *x)
{
    return kolo_all_reduce(x, x + MANY, 10, KOLO_INT32, KOLO_SUM, comm, NULL);
}
static inline kolo_status_t sum_many(kolo_comm_t comm, int32_t *x)
{
    return kolo_all_reduce(x, x + MANY, MANY, KOLO_INT32, KOLO_SUM, comm, NULL);
}
static inline kolo_status_t broadcast_many(kolo_comm_t comm, int32_t *x)
{
    return kolo_broadcast(x, x, MANY, KOLO_INT32, 0, comm, NULL);
}
static inline kolo_status_t broadcast_other(kolo_comm_t comm, int32_t *x)
{
    return kolo_broadcast(x, x, MANY, KOLO_INT32, 1, comm, NULL);
}
static inline kolo_status_t reduce_few(kolo_comm_t comm, int32_t *x)
{
    return kolo_reduce(x, x + MANY, 10, KOLO_INT32, KOLO_SUM, 0, comm, NULL);
}
static inline kolo_status_t exchange_many(kolo_comm_t comm, int32_t *x)
{
    return kolo_all_to_all(x, x + MANY, MANY / MAX_RANKS, KOLO_INT32, comm, NULL);
}
static inline kolo_status_t meet_all(kolo_comm_t comm, int32_t *x)
{
    (void)x;
    return kolo_barrier(comm, NULL);
}
/* Tables with one sum, the same parts in another order. */
static inline kolo_status_t gather_parts(kolo_comm_t comm, int32_t *x, int first)
{
    size_t counts[MAX_RANKS], displs[MAX_RANKS], at = 0;
    int n = 0;
    kolo_comm_count(comm, &n);
    for (int r = 0; r < n; at += counts[r++]) {
        counts[r] = r % 2 == first ? 10 : 0;
        displs[r] = at;
    }
    return kolo_all_gatherv(x, x + MANY, counts, displs, KOLO_INT32, comm, NULL);
}
static inline kolo_status_t gather_even_parts(kolo_comm_t comm, int32_t *x)
{
    return gather_parts(comm, x, 0);
}
static inline kolo_status_t gather_odd_parts(kolo_comm_t comm, int32_t *x)
{
    return gather_parts(comm, x, 1);
}
static inline kolo_status_t split_all(kolo_comm_t comm, int32_t *x)
{
    kolo_comm_t child = NULL;
    (void)x;
    kolo_status_t status = kolo_comm_split(comm, 0, 0, &child, NULL);
    kolo_comm_destroy(child);
    return status;
}
static inline kolo_status_t open_window(kolo_comm_t comm, int32_t *x)
{
    kolo_window_t window = NULL;
    kolo_status_t status = kolo_window_register(comm, x, 1024, &window);
    return status == KOLO_OK ? kolo_window_deregister(comm, window) : status;
}
static inline kolo_status_t recv_few(kolo_comm_t comm, int32_t *x)
{
    return kolo_recv(x, 10, KOLO_INT32, 0, comm, NULL);
}
static inline kolo_status_t recv_many(kolo_comm_t comm, int32_t *x)
{
    return kolo_recv(x, MANY, KOLO_INT32, 0, comm, NULL);
}
static inline kolo_status_t send_few(kolo_comm_t comm, int32_t *x)
{
    return kolo_send(x, 10, KOLO_INT32, 0, comm, NULL);
}
static inline kolo_status_t send_many(kolo_comm_t comm, int32_t *x)
{
    return kolo_send(x, MANY, KOLO_INT32, 0, comm, NULL);
}
/* From and to the first rank, in one group. */
static inline kolo_status_t swap_many(kolo_comm_t comm, int32_t *x)
{
    kolo_group_start();
    kolo_send(x, MANY, KOLO_INT32, 0, comm, NULL);
    kolo_recv(x + MANY, MANY, KOLO_INT32, 0, comm, NULL);
    return kolo_group_end();
}

#endif
