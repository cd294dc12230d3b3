/* SPDX-License-Identifier: Apache-2.0
 *
 * What the engine costs and carries, under kolorun. Five parts: 100 small tensors that are all cached (what the
 * agreement costs); the same of tensors that are gathered and scattered, and of one alone; small tensors in another
 * order on each rank (how many a second); the gradients of a network like ResNet-50 in backward order, against one
 * flat all_reduce of the same bytes; an idle engine. The last line is for machines:
 *
 *     engine cycle_us=... tensors_per_s=... flat_fraction=...
 */
#include "bench.h"

#include <kolo/engine.h>
#include <kolo/job.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define SMALL_COUNT 256 /* floats: 1 KB */

typedef struct {
    kolo_job_place_t job;
    kolo_comm_t comm;
    kolo_tensor_engine_t engine;
} bench_t;

static double slowest(bench_t *b, double mine)
{
    MUST(kolo_all_reduce(&mine, &mine, 1, KOLO_FLOAT64, KOLO_MAX, b->comm, NULL));
    return mine;
}

static double mean(bench_t *b, double mine)
{
    MUST(kolo_all_reduce(&mine, &mine, 1, KOLO_FLOAT64, KOLO_AVG, b->comm, NULL));
    return mine;
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *times, int n)
{
    qsort(times, (size_t)n, sizeof *times, by_value);
    return times[n / 2];
}

/* ---- tensors ---- */

typedef struct {
    int n;
    kolo_tensor_t *tensors;
    int64_t *counts, *handles;
    char (*names)[32];
    float *data;
    size_t floats;
} set_t;

static void make_set(set_t *s, const char *prefix, int n, const int64_t *counts)
{
    *s = (set_t){.n = n};
    s->tensors = room((size_t)n, sizeof *s->tensors);
    s->counts = room((size_t)n, sizeof *s->counts);
    s->handles = room((size_t)n, sizeof *s->handles);
    s->names = room((size_t)n, sizeof *s->names);
    for (int i = 0; i < n; i++) s->floats += (size_t)(counts ? counts[i] : SMALL_COUNT);
    s->data = room(s->floats, sizeof *s->data);
    float *at = s->data;
    for (int i = 0; i < n; i++) {
        s->counts[i] = counts ? counts[i] : SMALL_COUNT;
        snprintf(s->names[i], sizeof s->names[i], "%s.%d", prefix, i);
        s->tensors[i] = (kolo_tensor_t){s->names[i], KOLO_FLOAT32, 1, &s->counts[i], at, at};
        at += s->counts[i];
    }
}

static void free_set(set_t *s)
{
    free(s->tensors);
    free(s->counts);
    free(s->handles);
    free(s->names);
    free(s->data);
}

static void wait_set(bench_t *b, set_t *s)
{
    for (int i = 0; i < s->n; i++) MUST(kolo_engine_wait(b->engine, s->handles[i], 60000, NULL));
}

/* ---- part 1: a cycle of 100 cached tensors ---- */

/* The time to agree is the mean over ranks, waits for late ones included; of the steps, the median. */
static double measure_cycle(bench_t *b)
{
    enum { STEPS = 500 };
    set_t s;
    kolo_engine_counters_t before = {0}, last, now;
    double agree[STEPS], step[STEPS];
    make_set(&s, "cycle", 100, NULL);
    for (int i = -20; i < STEPS; i++) {
        MUST(kolo_barrier(b->comm, NULL));
        MUST(kolo_engine_get_counters(b->engine, &last));
        if (i == 0) before = last;
        double start = now_us();
        MUST(kolo_engine_all_reduce_group(b->engine, s.tensors, s.n, KOLO_SUM, 1, 1, NULL, s.handles));
        wait_set(b, &s);
        MUST(kolo_engine_get_counters(b->engine, &now));
        if (i < 0) continue;
        step[i] = now_us() - start;
        agree[i] = (double)(now.negotiate_ns - last.negotiate_ns) * 1e-3;
    }
    double cycles = (double)(now.cycles - before.cycles);
    MUST(kolo_all_reduce(agree, agree, STEPS, KOLO_FLOAT64, KOLO_AVG, b->comm, NULL));
    MUST(kolo_all_reduce(step, step, STEPS, KOLO_FLOAT64, KOLO_MAX, b->comm, NULL));
    double agreed = median(agree, STEPS), all = median(step, STEPS);
    if (b->job.rank == 0)
        printf(
            "cycle of 100 cached tensors: %.1f us to agree, %.1f us until the last is complete, %.2f cycles each\n",
            agreed, all, cycles / STEPS);
    free_set(&s);
    return agreed;
}

/* ---- part 2: the same, gathered and scattered; and one tensor alone ---- */

typedef kolo_status_t (*submit_t)(bench_t *b, set_t *s);

static kolo_status_t gather(bench_t *b, set_t *s)
{
    return kolo_engine_all_gather_group(b->engine, s->tensors, s->n, NULL, s->handles);
}

static kolo_status_t scatter(bench_t *b, set_t *s)
{
    return kolo_engine_reduce_scatter_group(b->engine, s->tensors, s->n, KOLO_SUM, 1, 1, NULL, s->handles);
}

static kolo_status_t reduce(bench_t *b, set_t *s)
{
    return kolo_engine_all_reduce_group(b->engine, s->tensors, s->n, KOLO_SUM, 1, 1, NULL, s->handles);
}

/* A step of n cached tensors of 1 KB from each rank: its median time, and the operations that it takes. */
static void measure_step(bench_t *b, const char *what, int n, submit_t submit)
{
    enum { STEPS = 1000 };
    set_t s;
    double step[STEPS];
    kolo_engine_counters_t before = {0}, after;
    make_set(&s, what, n, NULL);
    float *outputs = room(s.floats * (size_t)b->job.nranks, sizeof *outputs), *at = outputs;
    for (int i = 0; i < n; at += s.counts[i++] * b->job.nranks) s.tensors[i].output = at;
    for (int i = -50; i < STEPS; i++) {
        if (i == 0) MUST(kolo_engine_get_counters(b->engine, &before));
        MUST(kolo_barrier(b->comm, NULL));
        double start = now_us();
        MUST(submit(b, &s));
        wait_set(b, &s);
        if (i >= 0) step[i] = now_us() - start;
    }
    MUST(kolo_engine_get_counters(b->engine, &after));
    MUST(kolo_all_reduce(step, step, STEPS, KOLO_FLOAT64, KOLO_MAX, b->comm, NULL));
    double us = median(step, STEPS);
    if (b->job.rank == 0)
        printf(
            "%3d cached tensors of 1 KB, %s: %.1f us, %.0f tensors/s, %.2f operations, %.2f cycles, %.2f sleeps\n",
            n, what, us, n / us * 1e6, (double)(after.operations - before.operations) / STEPS,
            (double)(after.cycles - before.cycles) / STEPS, (double)(after.sleeps - before.sleeps) / STEPS);
    free(outputs);
    free_set(&s);
}

/* ---- part 3: small tensors, another order on each rank ---- */

static void print_shares(bench_t *b, const kolo_engine_counters_t *x, const kolo_engine_counters_t *y, double us)
{
    double agree = mean(b, (double)(y->negotiate_ns - x->negotiate_ns) * 1e-3),
           pack = mean(b, (double)(y->pack_ns - x->pack_ns) * 1e-3);
    double operate = mean(b, (double)(y->operate_ns - x->operate_ns) * 1e-3),
           complete = mean(b, (double)(y->complete_ns - x->complete_ns) * 1e-3);
    if (b->job.rank == 0)
        printf("    agreeing %.0f %%, packing %.0f %%, reducing %.0f %%, completing %.0f %%; %llu cycles, %llu "
               "operations, "
               "%llu sleeps\n",
               100 * agree / us, 100 * pack / us, 100 * operate / us, 100 * complete / us,
               (unsigned long long)(y->cycles - x->cycles), (unsigned long long)(y->operations - x->operations),
               (unsigned long long)(y->sleeps - x->sleeps));
}

static void shuffle(int *order, int n, uint64_t *s)
{
    for (int i = n - 1; i > 0; i--) {
        *s = *s * 6364136223846793005ull + 1442695040888963407ull;
        int k = (int)((*s >> 33) % (uint64_t)(i + 1)), keep = order[i];
        order[i] = order[k];
        order[k] = keep;
    }
}

static double measure_small(bench_t *b)
{
    enum { N = 1000, STEPS = 40 };
    set_t s;
    int *order = room(N, sizeof *order);
    uint64_t seed = 77 + (uint64_t)b->job.rank;
    double times[STEPS], start = 0;
    kolo_engine_counters_t before, after;
    make_set(&s, "small", N, NULL);
    for (int i = 0; i < N; i++) order[i] = i;
    for (int step = -5; step < STEPS; step++) {
        if (step == 0) MUST(kolo_engine_get_counters(b->engine, &before));
        shuffle(order, N, &seed);
        MUST(kolo_barrier(b->comm, NULL));
        start = now_us();
        for (int i = 0; i < N; i++)
            MUST(kolo_engine_all_reduce(b->engine, &s.tensors[order[i]], KOLO_SUM, 1, 1, NULL,
                                        &s.handles[order[i]]));
        wait_set(b, &s);
        if (step >= 0) times[step] = slowest(b, now_us() - start);
    }
    MUST(kolo_engine_get_counters(b->engine, &after));
    double sum = 0;
    for (int i = 0; i < STEPS; i++) sum += times[i];
    double middle = median(times, STEPS);
    if (b->job.rank == 0) printf("small tensors of 1 KB: %.0f/s (median step of %d)\n", N / middle * 1e6, N);
    print_shares(b, &before, &after, sum);
    free(order);
    free_set(&s);
    return N / middle * 1e6;
}

/* ---- part 4: the gradients of a network ---- */

/* Parameters of ResNet-50 in the order of its layers; returns how many tensors. */
static int network(int64_t *counts)
{
    static const int blocks[] = {3, 4, 6, 3};
    int n = 0;
    int64_t in = 64;
    counts[n++] = 64 * 3 * 49;
    counts[n++] = 64;
    counts[n++] = 64;
    for (int layer = 0; layer < 4; layer++) {
        int64_t p = INT64_C(64) << layer;
        for (int i = 0; i < blocks[layer]; i++) {
            const int64_t convs[] = {in * p, p * p * 9, p * 4 * p, in * 4 * p}, norms[] = {p, p, 4 * p, 4 * p};
            for (int k = 0; k < (i == 0 ? 4 : 3); k++) {
                counts[n++] = convs[k];
                counts[n++] = norms[k];
                counts[n++] = norms[k];
            }
            in = 4 * p;
        }
    }
    counts[n++] = 2048 * 1000;
    counts[n++] = 1000;
    return n;
}

static double measure_network(bench_t *b)
{
    enum { STEPS = 11, LAYERS_MAX = 200 };
    int64_t forward[LAYERS_MAX], counts[LAYERS_MAX];
    double flat[STEPS], engine[STEPS], ratio[STEPS], start, sum = 0;
    kolo_engine_counters_t before, after;
    set_t s;
    int n = network(forward);
    for (int i = 0; i < n; i++) counts[i] = forward[n - 1 - i];
    make_set(&s, "grad", n, counts);
    for (int step = -2; step < STEPS; step++) {
        int at = step < 0 ? 0 : step;
        if (step == 0) MUST(kolo_engine_get_counters(b->engine, &before));
        MUST(kolo_barrier(b->comm, NULL));
        start = now_us();
        MUST(kolo_all_reduce(s.data, s.data, s.floats, KOLO_FLOAT32, KOLO_AVG, b->comm, NULL));
        flat[at] = slowest(b, now_us() - start);
        MUST(kolo_barrier(b->comm, NULL));
        start = now_us();
        for (int i = 0; i < n; i++)
            MUST(kolo_engine_all_reduce(b->engine, &s.tensors[i], KOLO_AVG, 1, 1, NULL, &s.handles[i]));
        wait_set(b, &s);
        engine[at] = slowest(b, now_us() - start);
        ratio[at] = flat[at] / engine[at];
        if (step >= 0) sum += engine[at];
    }
    MUST(kolo_engine_get_counters(b->engine, &after));
    double fraction = median(ratio, STEPS);
    if (b->job.rank == 0)
        printf("%d gradients, %.1f M floats: engine %.1f ms, flat all_reduce %.1f ms, fraction %.3f\n", n,
               (double)s.floats * 1e-6, median(engine, STEPS) * 1e-3, median(flat, STEPS) * 1e-3, fraction);
    print_shares(b, &before, &after, sum);
    free_set(&s);
    return fraction;
}

/* ---- part 5: nothing to do ---- */

static double cpu_s(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) != 0) return 0;
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void measure_idle(bench_t *b)
{
    MUST(kolo_barrier(b->comm, NULL));
    double before = cpu_s();
    poll(NULL, 0, 1000); /* this second is what is measured */
    double used = slowest(b, cpu_s() - before);
    if (b->job.rank == 0) printf("idle: %.3f %% of a core, the busiest process\n", 100 * used);
}

int main(void)
{
    bench_t b;
    kolo_status_t status = kolo_job_get_place(&b.job);
    if (status == KOLO_OK) status = kolo_job_connect(&b.comm, NULL);
    if (status != KOLO_OK) {
        fprintf(stderr, "bench-engine: %s\n", kolo_get_last_error(NULL));
        return 1;
    }
    MUST(kolo_engine_init(&b.engine, b.comm, NULL));
    double cycle = measure_cycle(&b);
    measure_step(&b, "gathered", 100, gather);
    measure_step(&b, "scattered", 100, scatter);
    measure_step(&b, "reduced", 1, reduce);
    double small = measure_small(&b), fraction = measure_network(&b);
    measure_idle(&b);
    MUST(kolo_barrier(b.comm, NULL));
    MUST(kolo_engine_shutdown(b.engine));
    MUST(kolo_comm_finalize(b.comm));
    MUST(kolo_comm_destroy(b.comm));
    if (b.job.rank == 0)
        printf("engine cycle_us=%.1f tensors_per_s=%.0f flat_fraction=%.3f\n", cycle, small, fraction);
    return 0;
}
