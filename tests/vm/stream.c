/* SPDX-License-Identifier: Apache-2.0
 *
 * A job that reduces until something is wrong: prints each step, and the error of the one that fails. Exit status 0
 * when STEPS steps have gone well with right values, 1 at an error, 2 at a wrong value. usage: stream [STEPS]
 */
#include <kolo/job.h>

#include <stdio.h>
#include <stdlib.h>

#define COUNT 16384

static float in[COUNT], out[COUNT];

int main(int argc, char **argv)
{
    kolo_job_place_t job;
    kolo_comm_t comm;
    int steps = argc > 1 ? atoi(argv[1]) : 100000;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (kolo_job_get_place(&job) != KOLO_OK || kolo_job_connect(&comm, NULL) != KOLO_OK) {
        fprintf(stderr, "stream: connect: %s\n", kolo_get_last_error(NULL));
        return 1;
    }
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < COUNT; i++) in[i] = (float)(i % 100 + step % 10 + job.rank);
        if (kolo_all_reduce(in, out, COUNT, KOLO_FLOAT32, KOLO_SUM, comm, NULL) != KOLO_OK) {
            fprintf(stderr, "stream: rank %d, step %d: %s\n", job.rank, step, kolo_get_last_error(NULL));
            return 1;
        }
        int sum_of_ranks = job.nranks * (job.nranks - 1) / 2;
        float ranks = (float)sum_of_ranks;
        for (int i = 0; i < COUNT; i++)
            if (out[i] != (float)job.nranks * (float)(i % 100 + step % 10) + ranks) return 2;
        if (job.rank == 0) printf("step %d\n", step);
    }
    return kolo_comm_finalize(comm) == KOLO_OK && kolo_comm_destroy(comm) == KOLO_OK ? 0 : 1;
}
