/* SPDX-License-Identifier: Apache-2.0
 *
 * Does the old communicator serve while a new one is made? Four processes run batches (an all_reduce of 1 MB and
 * one of 8 bytes) back to back; four more join by a non-blocking grow, all switch, and a non-blocking shrink leaves
 * four again. Prints the time between completed batches beside a run of the same length without scaling. Usage:
 * elastic_gap [ms]
 */
#include <kolo/kolo.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OLD     4
#define ALL     8
#define LARGE   (256 * 1024) /* elements: 1 MB */
#define SAMPLES 400000
#define LIMIT_S 100

#ifdef KOLO_SANITIZED
#define SLACK 20
#else
#define SLACK 1
#endif

typedef struct {
    kolo_unique_id_t id, grow_id;
    _Atomic int id_there, grow_id_there, failed;
    double p50[2], p99[2], p999[2], longest[2];
    size_t batches[2];
} shared_t;

static shared_t *shared;
static float data[LARGE], sum[LARGE];
static uint32_t *gaps; /* us */
static size_t ngaps;
static int ms_each = 1500;

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void must(kolo_status_t status, const char *what)
{
    if (status == KOLO_OK) return;
    fprintf(stderr, "elastic_gap: %s: %s: %s\n", what, kolo_status_string(status), kolo_get_last_error(NULL));
    atomic_store(&shared->failed, 1);
    _exit(1);
}

static void await(_Atomic int *word)
{
    struct timespec nap = {0, 1000000};
    while (!atomic_load(word)) nanosleep(&nap, NULL);
}

static bool is_ready(kolo_comm_t comm)
{
    kolo_status_t state;
    must(kolo_comm_get_async_error(comm, &state), "state");
    if (state == KOLO_IN_PROGRESS) return false;
    must(state, "making a communicator");
    return true;
}

/* A first use of a communicator that was made without blocking connects in the background. */
static void done(kolo_comm_t comm, kolo_status_t status, const char *what)
{
    struct timespec nap = {0, 100000};
    if (status != KOLO_IN_PROGRESS) must(status, what);
    while (status == KOLO_IN_PROGRESS && !is_ready(comm)) nanosleep(&nap, NULL);
}

/* One batch. All ranks agree in it whether to go on: `vote` is summed. */
static float batch(kolo_comm_t comm, float vote)
{
    float votes[2] = {vote, 1}, total[2];
    done(comm, kolo_all_reduce(data, sum, LARGE, KOLO_FLOAT32, KOLO_SUM, comm, NULL), "all_reduce of 1 MB");
    done(comm, kolo_all_reduce(votes, total, 2, KOLO_FLOAT32, KOLO_SUM, comm, NULL), "all_reduce of 8 bytes");
    if (sum[0] != total[1]) {
        fprintf(stderr, "elastic_gap: a sum is %g, expected %g\n", (double)sum[0], (double)total[1]);
        atomic_store(&shared->failed, 1);
        _exit(1);
    }
    return total[0];
}

static void note(uint64_t *last)
{
    uint64_t now = now_us();
    if (ngaps < SAMPLES) gaps[ngaps++] = (uint32_t)(now - *last);
    *last = now;
}

/* Batches until `n` ranks have voted that `next` is ready, or for `ms`; all leave after the same batch. */
static void serve(kolo_comm_t comm, int n, kolo_comm_t next, int ms, uint64_t *last)
{
    uint64_t end = now_us() + (uint64_t)ms * 1000;
    for (;;) {
        bool ready = next ? is_ready(next) : now_us() >= end;
        bool all = batch(comm, ready ? 1 : 0) >= (float)n;
        if (last) note(last);
        if (all) return;
    }
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void summarise(int i)
{
    size_t middle = ngaps / 2, near_last = ngaps * 99 / 100, nearer = ngaps * 999 / 1000;
    qsort(gaps, ngaps, sizeof *gaps, by_value);
    shared->batches[i] = ngaps;
    shared->p50[i] = gaps[middle] / 1000.0;
    shared->p99[i] = gaps[near_last] / 1000.0;
    shared->p999[i] = gaps[nearer] / 1000.0;
    shared->longest[i] = gaps[ngaps - 1] / 1000.0;
    ngaps = 0;
}

static void be_old(int rank)
{
    kolo_comm_t comm, grown = NULL, rest = NULL;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    const int out[] = {4, 5, 6, 7};
    if (rank == 0) {
        must(kolo_get_unique_id(&shared->id), "id");
        atomic_store(&shared->id_there, 1);
    }
    await(&shared->id_there);
    must(kolo_comm_init_rank(&comm, OLD, shared->id, rank, NULL), "init");
    for (int i = 0; i < 20; i++) batch(comm, 0);
    uint64_t start = now_us(), last = start;
    config.blocking = 0;
    /* with scaling */
    serve(comm, OLD, NULL, ms_each, &last);
    if (rank == 0) {
        must(kolo_comm_get_grow_id(comm, &shared->grow_id), "grow id");
        atomic_store(&shared->grow_id_there, 1);
    }
    kolo_status_t status = kolo_comm_grow(comm, ALL, rank == 0 ? &shared->grow_id : NULL, -1, &grown, &config);
    if (status != KOLO_IN_PROGRESS) must(status, "grow");
    serve(comm, OLD, grown, 0, &last);
    batch(grown, 0);
    note(&last);
    serve(grown, ALL, NULL, ms_each, &last);
    status = kolo_comm_shrink(grown, out, ALL - OLD, KOLO_SHRINK_DEFAULT, &rest, &config);
    if (status != KOLO_IN_PROGRESS) must(status, "shrink");
    serve(comm, OLD, rest, 0, &last); /* the excluded have left the group of eight; the old four serve on */
    serve(rest, OLD, NULL, ms_each, &last);
    int total_ms = (int)((last - start) / 1000);
    if (rank == 0) summarise(1);
    /* without */
    last = now_us();
    serve(rest, OLD, NULL, total_ms, &last);
    if (rank == 0) summarise(0);
    must(kolo_comm_destroy(grown), "destroy");
    must(kolo_comm_destroy(comm), "destroy");
    must(kolo_comm_destroy(rest), "destroy");
}

static void be_new(int rank)
{
    kolo_comm_t grown;
    await(&shared->grow_id_there);
    must(kolo_comm_grow(NULL, ALL, &shared->grow_id, rank, &grown, NULL), "join");
    batch(grown, 0);
    serve(grown, ALL, NULL, ms_each, NULL);
    must(kolo_comm_destroy(grown), "destroy");
}

static int run(void)
{
    pid_t pids[ALL];
    int bad = 0, status;
    for (int r = 0; r < ALL; r++) {
        pids[r] = fork();
        if (pids[r] < 0) abort();
        if (pids[r] > 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(LIMIT_S);
        for (int i = 0; i < LARGE; i++) data[i] = 1;
        if (r < OLD)
            be_old(r);
        else
            be_new(r);
        exit(0);
    }
    for (int r = 0; r < ALL; r++)
        if (waitpid(pids[r], &status, 0) != pids[r] || status != 0) bad++;
    return bad;
}

int main(int argc, char **argv)
{
    static const char *const names[2] = {"without scaling", "grow 4->8, shrink 8->4"};
    if (argc > 1) ms_each = atoi(argv[1]);
    gaps = malloc(SAMPLES * sizeof *gaps);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!gaps || shared == MAP_FAILED || ms_each < 1) return 2;
    double above = 0;
    int bad = 0;
    for (int i = 0; i < 3 && (i == 0 || above > 20.0 * SLACK) && bad == 0; i++) { /* other load may hit one half */
        atomic_store(&shared->id_there, 0);
        atomic_store(&shared->grow_id_there, 0);
        bad = run();
        above = shared->p999[1] - shared->p999[0];
    }
    printf("%-24s %8s %9s %9s %9s %11s\n", "ms between batches", "batches", "p50", "p99", "p99.9", "longest");
    for (int i = 0; i < 2 && bad == 0; i++)
        printf("%-24s %8zu %9.3f %9.3f %9.3f %11.3f\n", names[i], shared->batches[i], shared->p50[i],
               shared->p99[i], shared->p999[i], shared->longest[i]);
    if (bad > 0 || atomic_load(&shared->failed)) {
        printf("%d of %d processes failed\n", bad, ALL);
        return 1;
    }
    printf("p99.9 with scaling is %.3f ms above the run without\n", above);
    return above <= 20.0 * SLACK ? 0 : 1;
}
