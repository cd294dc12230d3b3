/* SPDX-License-Identifier: Apache-2.0
 *
 * The smallest whole program: every rank brings a number, every rank gets the sum. Start it with
 *     kolorun -n 4 build/examples/all_reduce
 * or with mpirun, mpiexec, srun, torchrun.
 */
#include <kolo/job.h> /* which rank this is, whoever started it, and how to meet the others */
#include <stdio.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, kolo_get_last_error(NULL));
    return 1;
}

int main(void)
{
    kolo_job_place_t job;
    kolo_comm_t comm;
    float mine, sum;
    if (kolo_job_get_place(&job) != KOLO_OK) return fail("place");
    if (kolo_job_connect(&comm, NULL) != KOLO_OK) return fail("connect");
    mine = (float)(job.rank + 1);
    if (kolo_all_reduce(&mine, &sum, 1, KOLO_FLOAT32, KOLO_SUM, comm, NULL) != KOLO_OK) return fail("all_reduce");
    printf("rank %d of %d: %g\n", job.rank, job.nranks, (double)sum);
    if (kolo_comm_finalize(comm) != KOLO_OK) return fail("finalize");
    return kolo_comm_destroy(comm) == KOLO_OK ? 0 : fail("destroy");
}
