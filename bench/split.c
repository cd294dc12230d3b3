/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a split of all ranks takes, with and without split_share, under kolorun; by turns in one run. The last
 * line is for machines:
 *
 *     split ranks=... asking_us=... sharing_us=... ratio=...
 */
#include "bench.h"

#include <kolo/job.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 41 };

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Until the last rank has its part. */
static double split_once(kolo_comm_t comm, int share)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t part;
    config.split_share = share;
    MUST(kolo_barrier(comm, NULL));
    double start = now_us();
    MUST(kolo_comm_split(comm, 0, 0, &part, &config));
    double took = now_us() - start;
    MUST(kolo_all_reduce(&took, &took, 1, KOLO_FLOAT64, KOLO_MAX, comm, NULL));
    MUST(kolo_comm_finalize(part));
    MUST(kolo_comm_destroy(part));
    return took;
}

int main(void)
{
    double times[2][ROUNDS];
    kolo_job_place_t job;
    kolo_comm_t comm;
    MUST(kolo_job_get_place(&job));
    MUST(kolo_job_connect(&comm, NULL));
    for (int i = 0; i < ROUNDS; i++)
        for (int share = 0; share < 2; share++) times[share][i] = split_once(comm, share);
    for (int share = 0; share < 2; share++) qsort(times[share], ROUNDS, sizeof times[share][0], by_value);
    double asking = times[0][ROUNDS / 2], sharing = times[1][ROUNDS / 2];
    if (job.rank == 0)
        printf("split ranks=%d asking_us=%.0f sharing_us=%.0f ratio=%.2f\n", job.nranks, asking, sharing,
               asking / sharing);
    MUST(kolo_comm_finalize(comm));
    MUST(kolo_comm_destroy(comm));
    return 0;
}
