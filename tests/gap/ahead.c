/* SPDX-License-Identifier: Apache-2.0
 *
 * With many ranks on a host one of them is always late: its core is busy elsewhere. A root that broadcasts must not
 * wait for the slowest after each few calls, else the job goes at the pace of all these moments added up. Started
 * by kolorun with more than 16 ranks: the last rank takes its broadcasts only after the root has made all of them
 * and told it so.
 */
#include <kolo/job.h>
#include <stdio.h>
#include <stdlib.h>

enum { SHORT = 2, LONG = 192, AHEAD_SHORT = 40, AHEAD_LONG = 7, LIMIT_MS = 20000 };

static kolo_comm_t comm;

static void must(kolo_status_t status)
{
    if (status == KOLO_OK) return;
    fprintf(stderr, "%s\n", kolo_get_last_error(comm));
    exit(1);
}

static void take_all(int rank, size_t count, int calls)
{
    int32_t data[LONG];
    for (int i = 0; i < calls; i++) {
        for (size_t k = 0; k < count; k++) data[k] = rank == 0 ? i : -1;
        must(kolo_broadcast(data, data, count, KOLO_INT32, 0, comm, NULL));
        if (data[0] != i || data[count - 1] != i) exit(2);
    }
}

static void run_ahead(int rank, int last, size_t count, int calls)
{
    int32_t done = 0;
    if (rank == last) must(kolo_recv(&done, 1, KOLO_INT32, 0, comm, NULL));
    take_all(rank, count, calls);
    if (rank == 0) must(kolo_send(&done, 1, KOLO_INT32, last, comm, NULL));
    must(kolo_barrier(comm, NULL));
}

int main(void)
{
    kolo_job_place_t job;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.op_timeout_ms = LIMIT_MS;
    if (kolo_job_get_place(&job) != KOLO_OK) return 2;
    must(kolo_job_connect(&comm, &config));
    int last = job.nranks - 1;
    take_all(job.rank, LONG, AHEAD_LONG); /* the connections */
    take_all(job.rank, SHORT, AHEAD_SHORT);
    run_ahead(job.rank, last, SHORT, AHEAD_SHORT);
    run_ahead(job.rank, last, LONG, AHEAD_LONG);
    must(kolo_comm_finalize(comm));
    must(kolo_comm_destroy(comm));
    return 0;
}
