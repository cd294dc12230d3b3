/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators of some ranks of a job (kolo_job_connect_ranks()): lists that have no rank in common meet at the
 * same time, each in its own order; a list meets again and again, whatever its ranks did meanwhile; and what is
 * wrong with a list is said before anybody is waited for. kolorun starts four of these.
 */
#include <kolo/job.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 4

static int rank;

#define EXPECT(condition)                                                                                          \
    do {                                                                                                           \
        if (condition) break;                                                                                      \
        fprintf(stderr, "rank %d, line %d: %s: %s\n", rank, __LINE__, #condition, kolo_get_last_error(NULL));      \
        exit(1);                                                                                                   \
    } while (0)

/* The ranks of the list find each other, nobody else, in this order. */
static void meet(const int *ranks, int count)
{
    kolo_comm_t comm;
    int me, n, mine = rank, all[RANKS] = {-1, -1, -1, -1};
    EXPECT(kolo_job_connect_ranks(&comm, ranks, count, NULL) == KOLO_OK);
    EXPECT(kolo_comm_user_rank(comm, &me) == KOLO_OK && kolo_comm_count(comm, &n) == KOLO_OK && n == count);
    EXPECT(ranks[me] == rank);
    EXPECT(kolo_all_gather(&mine, all, 1, KOLO_INT32, comm, NULL) == KOLO_OK);
    EXPECT(memcmp(all, ranks, (size_t)count * sizeof *ranks) == 0);
    EXPECT(kolo_comm_finalize(comm) == KOLO_OK && kolo_comm_destroy(comm) == KOLO_OK);
}

static void expect_refused(const int *ranks, int count, const char *why)
{
    kolo_comm_t comm;
    EXPECT(kolo_job_connect_ranks(&comm, ranks, count, NULL) == KOLO_ERR_INVALID_ARGUMENT);
    EXPECT(strstr(kolo_get_last_error(NULL), why) != NULL);
}

/* Who comes alone is told who is missing, and whom the number means in the job. */
static void expect_alone(const int *ranks, int count, const char *who)
{
    kolo_comm_t comm;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.init_timeout_ms = 700;
    EXPECT(kolo_job_connect_ranks(&comm, ranks, count, &config) == KOLO_ERR_TIMEOUT);
    EXPECT(strstr(kolo_get_last_error(NULL), "rank 1 (never called) is missing") != NULL);
    EXPECT(strstr(kolo_get_last_error(NULL), who) != NULL);
}

int main(void)
{
    static const int low[] = {1, 0}, high[] = {2, 3}, odd[] = {3, 1}, all[] = {3, 2, 1, 0}, first[] = {0};
    kolo_job_place_t place;
    kolo_comm_t comm;
    EXPECT(kolo_job_get_place(&place) == KOLO_OK && place.nranks == RANKS);
    rank = place.rank;
    for (int i = 0; i < 3; i++) meet(rank < 2 ? low : high, 2);
    if (rank % 2) meet(odd, 2); /* the others are ahead */
    if (rank == 0) meet(first, 1);
    meet(all, RANKS);
    EXPECT(kolo_job_connect(&comm, NULL) == KOLO_OK); /* counted for itself */
    EXPECT(kolo_barrier(comm, NULL) == KOLO_OK);
    expect_refused((const int[]){(rank + 1) % RANKS, (rank + 2) % RANKS}, 2, "not in its own list");
    expect_refused((const int[]){rank, rank}, 2, "in it twice");
    expect_refused((const int[]){rank, RANKS}, 2, "no rank of the job");
    expect_refused((const int[]){rank, -1}, 2, "no rank of the job");
    expect_refused(NULL, 1, "the list is NULL");
    expect_refused(all, 0, "empty");
    expect_refused(all, 1 << 30, "of a job that has 4"); /* and nothing is read behind the list */
    if (rank == 0) expect_alone((const int[]){0, 2}, 2, "and so on: 0, 2)");
    EXPECT(kolo_comm_finalize(comm) == KOLO_OK && kolo_comm_destroy(comm) == KOLO_OK);
    meet(rank < 2 ? low : high, 2);
    return 0;
}
