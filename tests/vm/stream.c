/* SPDX-License-Identifier: Apache-2.0
 *
 * A job that reduces until something is wrong: prints each step, and the error of the one that fails. Exit status 0
 * when STEPS steps have gone well with right values, 1 at an error, 2 at a wrong value. usage: stream [STEPS
 * [LEFT_OUT]] LEFT_OUT: after an error all but this rank shrink (-1: all of them) and go on for some steps; it must
 * come to that. With VM_TEST_END it ends in good order when that file is there.
 */
#include "until.h"

#include <kolo/job.h>

#include <stdio.h>
#include <stdlib.h>

#define COUNT 16384
#define MORE  10 /* steps after a shrink */

static float in[COUNT + 1], out[COUNT + 1]; /* the last one: rank 0 wants to end */
static int me;

static int run(kolo_comm_t comm, int steps)
{
    int rank, nranks;
    if (kolo_comm_user_rank(comm, &rank) != KOLO_OK || kolo_comm_count(comm, &nranks) != KOLO_OK) return 1;
    int sum_of_ranks = nranks * (nranks - 1) / 2;
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < COUNT; i++) in[i] = (float)(i % 100 + step % 10 + rank);
        in[COUNT] = rank == 0 && end_is_asked_for();
        if (kolo_all_reduce(in, out, COUNT + 1, KOLO_FLOAT32, KOLO_SUM, comm, NULL) != KOLO_OK) {
            fprintf(stderr, "stream: rank %d, step %d: %s\n", me, step, kolo_get_last_error(NULL));
            return 1;
        }
        for (int i = 0; i < COUNT; i++)
            if (out[i] != (float)nranks * (float)(i % 100 + step % 10) + (float)sum_of_ranks) return 2;
        if (rank == 0) printf("step %d\n", step);
        if (out[COUNT] > 0) return 0;
    }
    return 0;
}

static int go_on(kolo_comm_t comm, int left_out)
{
    kolo_comm_t rest;
    int nranks = 0;
    if (me == left_out) return kolo_comm_abort(comm) == KOLO_OK ? 0 : 1;
    if (kolo_comm_shrink(comm, left_out >= 0 ? &left_out : NULL, left_out >= 0, KOLO_SHRINK_ABORT, &rest, NULL) !=
        KOLO_OK) {
        fprintf(stderr, "stream: rank %d: shrink: %s\n", me, kolo_get_last_error(NULL));
        return 1;
    }
    int status = run(rest, MORE);
    kolo_comm_count(rest, &nranks);
    printf("rank %d went on with %d ranks: %s\n", me, nranks, status == 0 ? "right" : "WRONG");
    if (kolo_comm_destroy(rest) != KOLO_OK || kolo_comm_destroy(comm) != KOLO_OK) return 1;
    return status;
}

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
    me = job.rank;
    int status = run(comm, steps);
    if (status == 1 && argc > 2) return go_on(comm, atoi(argv[2]));
    if (status != 0) return status;
    if (argc > 2) return 3; /* there should have been an error */
    return kolo_comm_finalize(comm) == KOLO_OK && kolo_comm_destroy(comm) == KOLO_OK ? 0 : 1;
}
