/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the conformance kit of collectives on the ranks of a job (kolorun), on N threads (--threads N) or on N
 * forked processes (--procs N). What it runs over is chosen by parameters in the environment (KOLO_SHM_DISABLE,
 * KOLO_ALGO, KOLO_COUNTER_START, ...). --quick: fewer counts; --brief: as few as an emulated machine can do.
 * --stream: on a stream. --refuse: the kernel permits no copies between the processes' memories (all of them, or
 * rank 1's alone). Exit status 1 on any failure.
 */
#include "coll/cases.h"
#include "coll/refuse.h"

#include <kolo/job.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool quick, brief, on_stream;
static const char *refuse; /* refuse.h; NULL: nothing is */
static bool refuse_one;

static const size_t counts[] = {0, 1, 3, 17, 1000, 4096, 100003, 1300001};

static bool types_and_ops(test_rank_t *t)
{
    static const size_t few[] = {1, 5, 129, 5000};
    bool fine = true;
    for (int type = 0; type < KOLO_TYPE_COUNT; type++) {
        for (int op = 0; op < KOLO_OP_BUILTIN_COUNT; op++) {
            if (!kolo_op_takes((kolo_op_t)op, (kolo_type_t)type)) continue;
            for (size_t i = 0; i < sizeof few / sizeof few[0]; i++) {
                size_t n = few[i];
                if (brief && i != 1) continue;
                int root = (int)(i + (size_t)type) % t->nranks;
                fine = test_all_reduce(t, n, (kolo_type_t)type, (kolo_op_t)op, i & 1) && fine;
                if (quick && i != 1 && i != 3) continue;
                fine = test_reduce_scatter(t, n, (kolo_type_t)type, (kolo_op_t)op, i & 1) && fine;
                fine = test_reduce(t, n, (kolo_type_t)type, (kolo_op_t)op, root, i & 1) && fine;
            }
        }
        fine = test_reduce_scatterv(t, 777, (kolo_type_t)type, KOLO_SUM) && fine;
        fine = test_all_gatherv(t, 777, (kolo_type_t)type) && fine;
    }
    return fine;
}

static bool sizes_and_roots(test_rank_t *t)
{
    bool fine = true;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        size_t n = counts[i];
        if ((quick && n > 200000) || (brief && n > 4096)) continue;
        if (n * (size_t)t->nranks > 8000000) continue;
        for (int place = 0; place < 2; place++) {
            fine = test_all_reduce(t, n, KOLO_FLOAT32, KOLO_SUM, place) && fine;
            fine = test_all_gather(t, n, KOLO_UINT8, place) && fine;
            fine = test_reduce_scatter(t, n, KOLO_INT32, KOLO_MAX, place) && fine;
        }
        for (int root = 0; root < t->nranks; root++) {
            if (n > 5000 && root != t->nranks / 2) continue;
            fine = test_broadcast(t, n, KOLO_UINT8, root, i & 1) && fine;
            fine = test_reduce(t, n, KOLO_INT64, KOLO_SUM, root, i & 1) && fine;
            fine = test_gather(t, n, KOLO_INT32, root, i & 1) && fine;
            fine = test_scatter(t, n, KOLO_FLOAT64, root, i & 1) && fine;
            fine = test_gatherv(t, n, KOLO_UINT16, root, i & 1) && fine;
            fine = test_scatterv(t, n, KOLO_FLOAT32, root, i & 1) && fine;
        }
        fine = test_all_to_all(t, n, KOLO_INT32) && fine;
        fine = test_all_to_allv(t, n, KOLO_INT32) && fine;
        fine = test_all_gatherv(t, n, KOLO_FLOAT64) && fine;
        fine = test_reduce_scatterv(t, n, KOLO_FLOAT32, KOLO_AVG) && fine;
        if (t->nranks > 1) fine = test_ring_exchange(t, n, KOLO_UINT8) && fine;
        if (n < 200000) fine = test_group_mix(t, n) && fine;
        fine = kolo_barrier(t->comm, t->stream) == KOLO_OK && fine;
    }
    return fine;
}

static bool run_kit(kolo_comm_t comm)
{
    test_rank_t t = {.comm = comm, .seed = 1};
    if (kolo_comm_user_rank(comm, &t.rank) != KOLO_OK || kolo_comm_count(comm, &t.nranks) != KOLO_OK) return false;
    if (on_stream && kolo_stream_create(&t.stream) != KOLO_OK) return false;
    bool fine = sizes_and_roots(&t);
    fine = types_and_ops(&t) && fine;
    kolo_stream_destroy(t.stream);
    kolo_status_t status = kolo_comm_finalize(comm);
    if (status != KOLO_OK) fprintf(stderr, "finalize: %s\n", kolo_get_last_error(NULL));
    return fine && status == KOLO_OK && kolo_comm_destroy(comm) == KOLO_OK;
}

typedef struct {
    kolo_unique_id_t id;
    int rank, nranks;
    bool fine;
} worker_t;

static void *worker(void *arg)
{
    worker_t *w = arg;
    kolo_comm_t comm;
    kolo_status_t status = kolo_comm_init_rank(&comm, w->nranks, w->id, w->rank, NULL);
    if (status != KOLO_OK) fprintf(stderr, "rank %d: init: %s\n", w->rank, kolo_get_last_error(NULL));
    w->fine = status == KOLO_OK && run_kit(comm);
    return NULL;
}

static bool run_threads(int n)
{
    worker_t w[TEST_MAX_RANKS];
    pthread_t threads[TEST_MAX_RANKS];
    kolo_unique_id_t id;
    bool fine = true;
    if (kolo_get_unique_id(&id) != KOLO_OK) {
        fprintf(stderr, "unique id: %s\n", kolo_get_last_error(NULL));
        return false;
    }
    for (int r = 0; r < n; r++) {
        w[r] = (worker_t){id, r, n, false};
        if (pthread_create(&threads[r], NULL, worker, &w[r])) abort();
    }
    for (int r = 0; r < n; r++) {
        pthread_join(threads[r], NULL);
        fine = fine && w[r].fine;
    }
    return fine;
}

/* Rank 0 is the parent, so that the id's root lives as long as it is needed. */
static bool run_processes(int n)
{
    int pipes[TEST_MAX_RANKS][2];
    pid_t pids[TEST_MAX_RANKS];
    worker_t w = {.nranks = n};
    for (int r = 1; r < n; r++) {
        if (pipe(pipes[r])) abort();
        pids[r] = fork();
        if (pids[r] == 0) {
            alarm(600);
            w.rank = r;
            if (refuse && refuse_one && r == 1 && !test_refuse(refuse)) _exit(1);
            if (read(pipes[r][0], &w.id, sizeof w.id) != sizeof w.id) _exit(1);
            worker(&w);
            exit(w.fine ? 0 : 1);
        }
    }
    if (kolo_get_unique_id(&w.id) != KOLO_OK) return false;
    for (int r = 1; r < n; r++)
        if (write(pipes[r][1], &w.id, sizeof w.id) != sizeof w.id) return false;
    worker(&w);
    bool fine = w.fine;
    for (int r = 1; r < n; r++) {
        int status;
        if (waitpid(pids[r], &status, 0) != pids[r] || status != 0) {
            fprintf(stderr, "the process of rank %d failed\n", r);
            fine = false;
        }
    }
    return fine;
}

static bool run_job(void)
{
    kolo_job_place_t job;
    kolo_comm_t comm;
    if (kolo_job_get_place(&job) != KOLO_OK || kolo_job_connect(&comm, NULL) != KOLO_OK) {
        fprintf(stderr, "job: %s\n", kolo_get_last_error(NULL));
        return false;
    }
    return run_kit(comm);
}

int main(int argc, char **argv)
{
    int threads = 0, processes = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else if (strcmp(argv[i], "--brief") == 0)
            quick = brief = true;
        else if (strcmp(argv[i], "--stream") == 0)
            on_stream = true;
        else if ((strcmp(argv[i], "--refuse") == 0 || strcmp(argv[i], "--refuse-one") == 0) && i + 1 < argc) {
            refuse_one = strcmp(argv[i], "--refuse-one") == 0;
            refuse = argv[++i];
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            threads = atoi(argv[++i]);
        else if (strcmp(argv[i], "--procs") == 0 && i + 1 < argc)
            processes = atoi(argv[++i]);
        else
            return fprintf(stderr,
                           "usage: %s [--quick | --brief] [--stream] [--refuse[-one] dump|seccomp|ptrace_scope] "
                           "[--threads N | --procs N]\n",
                           argv[0]),
                   2;
    }
    alarm(600);
    if (threads < 0 || threads > TEST_MAX_RANKS || processes < 0 || processes > TEST_MAX_RANKS) return 2;
    if (refuse && !test_drop_privileges()) return 1;
    if (refuse && !refuse_one && !test_refuse(refuse)) return 1;
    bool fine = threads ? run_threads(threads) : processes ? run_processes(processes) : run_job();
    return fine ? 0 : 1;
}
