/* SPDX-License-Identifier: Apache-2.0
 *
 * Point to point as ucx_perftest measures it (tag_lat, tag_bw), between two ranks of kolorun: half a round trip,
 * and the time per message of a long row of sends in one direction. Each rank stays on a core of its own, or goes
 * where the scheduler puts it (unbound).
 *
 *     kolorun -n 2 --no-tag bench-p2p latency|stream BYTES ITERATIONS [registered] [window N] [unbound]
 *
 * window: that many messages of a stream are under way together (a group of sends, a group of receives), each with
 * memory of its own; else each call returns before the next one, as MPI_Send does.
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

typedef struct {
    bool stream;
    size_t bytes;
    long window;
    char *out, *in; /* window * bytes, and some */
} test_t;

static void pass_window(kolo_comm_t comm, const test_t *t, int rank)
{
    if (t->window > 1) MUST(kolo_group_start());
    for (long i = 0; i < t->window; i++)
        pass(comm, rank == 0, (rank == 0 ? t->out : t->in) + (size_t)i * t->bytes, t->bytes, 1 - rank);
    if (t->window > 1) MUST(kolo_group_end());
}

static double run(kolo_comm_t comm, int rank, const test_t *t, long n)
{
    bool stream = t->stream;
    size_t bytes = t->bytes;
    char *out = t->out, *in = t->in;
    double start = now_us();
    n = (n + t->window - 1) / t->window * t->window;
    for (long i = 0; i < n; i += t->window) {
        if (stream) {
            pass_window(comm, t, rank);
        } else {
            pass(comm, rank == 0, rank == 0 ? out : in, bytes, 1 - rank);
            pass(comm, rank == 1, rank == 1 ? out : in, bytes, 1 - rank);
        }
    }
    if (stream) pass(comm, rank == 1, out, 1, 1 - rank); /* the last one has come */
    return (now_us() - start) / (double)n / (stream ? 1 : 2);
}

static int usage(void)
{
    fprintf(stderr,
            "usage: kolorun -n 2 --no-tag bench-p2p latency|stream BYTES ITERATIONS [registered] [window N] "
            "[unbound]\n");
    return 2;
}

int main(int argc, char **argv)
{
    kolo_job_place_t job;
    kolo_comm_t comm;
    kolo_registration_t handles[2];
    bool unbound = false, registered = false;
    test_t t = {.window = 1};
    if (argc < 4 || (strcmp(argv[1], "latency") != 0 && strcmp(argv[1], "stream") != 0)) return usage();
    t.stream = argv[1][0] == 's';
    t.bytes = strtoull(argv[2], NULL, 10);
    long n = strtol(argv[3], NULL, 10);
    for (int i = 4; i < argc; i++) {
        if (strcmp(argv[i], "registered") == 0)
            registered = true;
        else if (strcmp(argv[i], "unbound") == 0)
            unbound = true;
        else if (t.stream && strcmp(argv[i], "window") == 0 && i + 1 < argc)
            t.window = strtol(argv[++i], NULL, 10);
        else
            return usage();
    }
    if (n < 1 || t.window < 1 || kolo_job_get_place(&job) != KOLO_OK || job.nranks != 2) {
        fprintf(stderr, "bench-p2p: needs two ranks, iterations and a window\n");
        return 1;
    }
    size_t whole = (size_t)t.window * t.bytes + 64;
    t.out = room(whole, 1);
    t.in = room(whole, 1);
    memset(t.out, 1, whole);
    memset(t.in, 2, whole);
    if (!unbound) stay_on_core(job.rank);
    MUST(kolo_job_connect(&comm, NULL));
    if (registered) {
        MUST(kolo_comm_register(comm, t.out, whole, &handles[0]));
        MUST(kolo_comm_register(comm, t.in, whole, &handles[1]));
    }
    run(comm, job.rank, &t, n / 10 + (t.bytes < 65536 ? 10 : 2));
    MUST(kolo_barrier(comm, NULL));
    double us = run(comm, job.rank, &t, n);
    if (job.rank == 0) printf("%.4f\n", us);
    for (int i = 0; registered && i < 2; i++) MUST(kolo_comm_deregister(comm, handles[i]));
    MUST(kolo_comm_finalize(comm));
    MUST(kolo_comm_destroy(comm));
    free(t.out);
    free(t.in);
    return 0;
}
