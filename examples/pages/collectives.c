/* SPDX-License-Identifier: Apache-2.0
 *
 * The collectives, for their manual pages. Run by kolorun -n 4.
 */
#include "page.h"

#include <kolo/job.h>

#define RANKS 4

static int rank;

static kolo_status_t all_reduce(kolo_comm_t comm)
{
    float mine[2] = {(float)rank, 1}, sum[2];
    TRY(kolo_all_reduce(mine, sum, 2, KOLO_FLOAT32, KOLO_SUM, comm, NULL));
    EXPECT(sum[0] == 0 + 1 + 2 + 3 && sum[1] == 4);                            /* on all ranks */
    return kolo_all_reduce(mine, mine, 2, KOLO_FLOAT32, KOLO_MAX, comm, NULL); /* in place */
}

static kolo_status_t reduce(kolo_comm_t comm)
{
    int64_t mine = rank + 1, product = 0;
    TRY(kolo_reduce(&mine, &product, 1, KOLO_INT64, KOLO_PROD, 0, comm, NULL));
    EXPECT(product == (rank == 0 ? 1 * 2 * 3 * 4 : 0)); /* the root alone has the result */
    return KOLO_OK;
}

static kolo_status_t broadcast(kolo_comm_t comm)
{
    double weights[3] = {0};
    if (rank == 2) weights[1] = 0.5;
    TRY(kolo_broadcast(weights, weights, 3, KOLO_FLOAT64, 2, comm, NULL)); /* rank 2 is the root */
    EXPECT(weights[1] == 0.5);
    return KOLO_OK;
}

static kolo_status_t all_gather(kolo_comm_t comm)
{
    int32_t mine[2] = {rank, 10 * rank}, all[2 * RANKS];
    TRY(kolo_all_gather(mine, all, 2, KOLO_INT32, comm, NULL)); /* count is what one rank gives */
    EXPECT(all[4] == 2 && all[5] == 20);
    return KOLO_OK;
}

static kolo_status_t all_gatherv(kolo_comm_t comm)
{
    size_t counts[RANKS] = {1, 0, 2, 1}, displs[RANKS] = {0, 1, 1, 3}; /* the same on all ranks */
    int32_t mine[2] = {rank, -rank}, all[4];
    TRY(kolo_all_gatherv(mine, all, counts, displs, KOLO_INT32, comm, NULL));
    EXPECT(all[0] == 0 && all[1] == 2 && all[2] == -2 && all[3] == 3); /* nothing of rank 1 */
    return KOLO_OK;
}

static kolo_status_t reduce_scatter(kolo_comm_t comm)
{
    float mine[2 * RANKS], part[2];
    for (int i = 0; i < 2 * RANKS; i++) mine[i] = (float)i;
    TRY(kolo_reduce_scatter(mine, part, 2, KOLO_FLOAT32, KOLO_SUM, comm, NULL)); /* count is one part */
    EXPECT(part[0] == (float)(RANKS * 2 * rank));
    return KOLO_OK;
}

static kolo_status_t reduce_scatterv(kolo_comm_t comm)
{
    size_t counts[RANKS] = {1, 2, 1, 1};
    float mine[5] = {1, 2, 3, 4, 5}, part[2] = {0};
    TRY(kolo_reduce_scatterv(mine, part, counts, NULL, KOLO_FLOAT32, KOLO_AVG, comm, NULL));
    EXPECT(rank != 1 || (part[0] == 2 && part[1] == 3)); /* rank 1 has two elements */
    return KOLO_OK;
}

static kolo_status_t all_to_all(kolo_comm_t comm)
{
    int32_t to[RANKS], from[RANKS];
    for (int i = 0; i < RANKS; i++) to[i] = 10 * rank + i;
    TRY(kolo_all_to_all(to, from, 1, KOLO_INT32, comm, NULL));
    EXPECT(from[3] == 30 + rank);
    return KOLO_OK;
}

static kolo_status_t all_to_allv(kolo_comm_t comm)
{
    /* Rank r sends i elements to rank i; so each rank gets `rank` elements from everyone. */
    size_t give[RANKS], from[RANKS], take[RANKS], to[RANKS];
    int32_t src[6] = {0}, dst[RANKS * RANKS];
    for (size_t i = 0, at = 0; i < RANKS; at += i, i++) {
        give[i] = i;
        from[i] = at;
        take[i] = (size_t)rank;
        to[i] = i * (size_t)rank;
    }
    for (int i = 0; i < 6; i++) src[i] = rank;
    TRY(kolo_all_to_allv(src, give, from, dst, take, to, KOLO_INT32, comm, NULL));
    EXPECT(rank == 0 || dst[3 * rank] == 3);
    return KOLO_OK;
}

static kolo_status_t gather(kolo_comm_t comm)
{
    int32_t mine = rank, all[RANKS];
    TRY(kolo_gather(&mine, rank == 0 ? all : NULL, 1, KOLO_INT32, 0, comm, NULL));
    EXPECT(rank != 0 || all[3] == 3);
    return KOLO_OK;
}

static kolo_status_t gatherv(kolo_comm_t comm)
{
    size_t counts[RANKS] = {2, 1, 1, 1}, displs[RANKS] = {0, 2, 3, 4};
    int32_t mine[2] = {rank, rank}, all[5];
    TRY(kolo_gatherv(mine, all, counts, displs, KOLO_INT32, 1, comm, NULL)); /* displs and dst: on the root */
    EXPECT(rank != 1 || (all[1] == 0 && all[4] == 3));
    return KOLO_OK;
}

static kolo_status_t scatter(kolo_comm_t comm)
{
    static const int32_t parts[RANKS] = {5, 6, 7, 8};
    int32_t mine;
    TRY(kolo_scatter(rank == 3 ? parts : NULL, &mine, 1, KOLO_INT32, 3, comm, NULL));
    EXPECT(mine == 5 + rank);
    return KOLO_OK;
}

static kolo_status_t scatterv(kolo_comm_t comm)
{
    static const int32_t all[5] = {1, 2, 3, 4, 5};
    size_t counts[RANKS] = {1, 1, 1, 2}, displs[RANKS] = {0, 1, 2, 3};
    int32_t mine[2];
    TRY(kolo_scatterv(all, counts, displs, mine, KOLO_INT32, 0, comm, NULL));
    EXPECT(mine[0] == 1 + rank);
    return KOLO_OK;
}

static kolo_status_t barrier(kolo_comm_t comm)
{
    return kolo_barrier(comm, NULL); /* behind it all ranks have done what stands before it */
}

/* Operators beside the built-in ones. */
static void larger_absolute(const void *in, void *inout, size_t count, kolo_type_t type, void *arg)
{
    const int64_t *a = in;
    int64_t *b = inout;
    (void)type, (void)arg;
    for (size_t i = 0; i < count; i++)
        if (llabs(a[i]) > llabs(b[i])) b[i] = a[i];
}

static kolo_status_t op_create_callback(kolo_comm_t comm)
{
    int64_t value = rank == 1 ? -7 : rank;
    kolo_op_t op;
    TRY(kolo_op_create_callback(&op, larger_absolute, NULL, KOLO_INT64, comm));
    TRY(kolo_all_reduce(&value, &value, 1, KOLO_INT64, op, comm, NULL));
    EXPECT(value == -7);
    return kolo_op_destroy(op, comm);
}

static kolo_status_t op_create_premul_sum(kolo_comm_t comm)
{
    float half = 0.5f, value = 4;
    kolo_op_t op;
    TRY(kolo_op_create_premul_sum(&op, &half, KOLO_FLOAT32, comm));
    TRY(kolo_all_reduce(&value, &value, 1, KOLO_FLOAT32, op, comm, NULL));
    EXPECT(value == RANKS * 4 * 0.5f);
    return kolo_op_destroy(op, comm);
}

static kolo_status_t op_takes(void)
{
    EXPECT(kolo_op_takes(KOLO_BXOR, KOLO_INT32) && !kolo_op_takes(KOLO_BXOR, KOLO_FLOAT32));
    EXPECT(kolo_type_size(KOLO_BFLOAT16) == 2);
    return KOLO_OK;
}

int main(void)
{
    static kolo_status_t (*const examples[])(kolo_comm_t) = {all_reduce,
                                                             reduce,
                                                             broadcast,
                                                             all_gather,
                                                             all_gatherv,
                                                             reduce_scatter,
                                                             reduce_scatterv,
                                                             all_to_all,
                                                             all_to_allv,
                                                             gather,
                                                             gatherv,
                                                             scatter,
                                                             scatterv,
                                                             barrier,
                                                             op_create_callback,
                                                             op_create_premul_sum};
    kolo_job_place_t place;
    kolo_comm_t comm;
    SHOW(kolo_job_get_place, &place);
    EXPECT(place.nranks == RANKS);
    rank = place.rank;
    SHOW(kolo_job_connect, &comm, NULL);
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) SHOW(examples[i], comm);
    SHOW(op_takes);
    SHOW(kolo_comm_finalize, comm);
    SHOW(kolo_comm_destroy, comm);
    return 0;
}
