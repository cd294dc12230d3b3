/* SPDX-License-Identifier: Apache-2.0
 *
 * Point to point as ucx_perftest measures it (tag_lat, tag_bw), between two ranks of kolorun: half a round trip,
 * and the time per message of a long row of sends in one direction. Each rank stays on a core of its own, or goes
 * where the scheduler puts it (unbound).
 *
 *     kolorun -n 2 --no-tag bench-p2p latency|stream BYTES ITERATIONS [registered] [unbound]
 *
 * Prints one line: microseconds per message.
 */
#include "bench.h"

#include <kolo/job.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* As ucx_perftest -c 0 and -c 1. */
static void stay_on_core(int rank)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2) return;
    for (int cpu = 0, nth = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all) || nth++ != rank) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
        return;
    }
}

static void pass(kolo_comm_t comm, bool send, void *buf, size_t bytes, int peer)
{
    MUST(send ? kolo_send(buf, bytes, KOLO_UINT8, peer, comm, NULL)
              : kolo_recv(buf, bytes, KOLO_UINT8, peer, comm, NULL));
}

static double run(kolo_comm_t comm, int rank, bool stream, size_t bytes, long n, char *out, char *in)
{
    double start = now_us();
    for (long i = 0; i < n; i++) {
        if (stream) {
            pass(comm, rank == 0, rank == 0 ? out : in, bytes, 1 - rank);
        } else {
            pass(comm, rank == 0, rank == 0 ? out : in, bytes, 1 - rank);
            pass(comm, rank == 1, rank == 1 ? out : in, bytes, 1 - rank);
        }
    }
    if (stream) pass(comm, rank == 1, out, 1, 1 - rank); /* the last one has come */
    return (now_us() - start) / (double)n / (stream ? 1 : 2);
}

int main(int argc, char **argv)
{
    kolo_job_place_t job;
    kolo_comm_t comm;
    kolo_registration_t handles[2];
    bool unbound = argc > 4 && strcmp(argv[argc - 1], "unbound") == 0;
    bool registered = argc > 4 && strcmp(argv[4], "registered") == 0;
    if (argc != 4 + registered + unbound || (strcmp(argv[1], "latency") != 0 && strcmp(argv[1], "stream") != 0)) {
        fprintf(stderr,
                "usage: kolorun -n 2 --no-tag bench-p2p latency|stream BYTES ITERATIONS [registered] [unbound]\n");
        return 2;
    }
    bool stream = argv[1][0] == 's';
    size_t bytes = strtoull(argv[2], NULL, 10);
    long n = strtol(argv[3], NULL, 10);
    if (n < 1 || kolo_job_get_place(&job) != KOLO_OK || job.nranks != 2) {
        fprintf(stderr, "bench-p2p: needs two ranks and iterations\n");
        return 1;
    }
    char *out = room(bytes + 64, 1), *in = room(bytes + 64, 1);
    memset(out, 1, bytes + 64);
    memset(in, 2, bytes + 64);
    if (!unbound) stay_on_core(job.rank);
    MUST(kolo_job_connect(&comm, NULL));
    if (registered) {
        MUST(kolo_comm_register(comm, out, bytes + 64, &handles[0]));
        MUST(kolo_comm_register(comm, in, bytes + 64, &handles[1]));
    }
    run(comm, job.rank, stream, bytes, n / 10 + 10, out, in);
    MUST(kolo_barrier(comm, NULL));
    double us = run(comm, job.rank, stream, bytes, n, out, in);
    if (job.rank == 0) printf("%.4f\n", us);
    for (int i = 0; registered && i < 2; i++) MUST(kolo_comm_deregister(comm, handles[i]));
    MUST(kolo_comm_finalize(comm));
    MUST(kolo_comm_destroy(comm));
    free(out);
    free(in);
    return 0;
}
