/* SPDX-License-Identifier: Apache-2.0
 *
 * What it costs to have a communicator: the time of its initialisation, and the memory that it takes from the
 * device, after it and after a first all_reduce of each length. NCCL's and Kolo's in turn.
 */
#include "peers_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MOST_ROUNDS 50

typedef struct {
    double ms[MOST_ROUNDS];
    double after_init_mb, after_use_mb; /* of the first one */
} cost_t;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static double free_mb(void)
{
    size_t left = 0, all = 0;
    CUDA_MUST(cuda.mem_info(&left, &all));
    return (double)left / 1e6;
}

static void use(rank_t *r, library_t lib)
{
    static const size_t counts[] = {1, 16384, 8 << 20};
    for (int i = 0; i < 3; i++) {
        if (lib == NCCL)
            NCCL_MUST(nccl.all_reduce(r->src, r->dst, counts[i], 7, 0, r->nccl, r->stream));
        else
            KOLO_MUST(kolo_all_reduce(r->src, r->dst, counts[i], KOLO_FLOAT32, KOLO_SUM, r->kolo, r->stream));
        CUDA_MUST(cuda.stream_sync(r->stream));
    }
}

static void one(rank_t *r, library_t lib, int round, cost_t *cost)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.device = r->rank;
    if (r->rank == 0 && lib == NCCL) NCCL_MUST(nccl.unique_id(&r->shared->nccl_id));
    if (r->rank == 0 && lib == KOLO) KOLO_MUST(kolo_get_unique_id(&r->shared->kolo_id));
    meet(r);
    double before = free_mb(), start = now_ms();
    if (lib == NCCL)
        NCCL_MUST(nccl.init_rank(&r->nccl, r->o->gpus, r->shared->nccl_id, r->rank));
    else
        KOLO_MUST(kolo_comm_init_rank(&r->kolo, r->o->gpus, r->shared->kolo_id, r->rank, &config));
    meet(r);
    cost->ms[round] = now_ms() - start;
    if (round == 0) cost->after_init_mb = before - free_mb();
    use(r, lib);
    if (round == 0) cost->after_use_mb = before - free_mb();
    meet(r);
    if (lib == NCCL)
        NCCL_MUST(nccl.destroy(r->nccl));
    else
        KOLO_MUST(kolo_comm_destroy(r->kolo));
    meet(r);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void measure_init(rank_t *r)
{
    static const char *const names[] = {[NCCL] = "nccl", [KOLO] = "kolo"};
    cost_t mine[2];
    int rounds = r->o->init_rounds < MOST_ROUNDS ? r->o->init_rounds : MOST_ROUNDS;
    for (int i = 0; i < rounds; i++) {
        one(r, NCCL, i, &mine[NCCL]);
        one(r, KOLO, i, &mine[KOLO]);
    }
    if (r->rank != 0) return;
    double median[2];
    for (int lib = 0; lib < 2; lib++) {
        cost_t *c = &mine[lib];
        double first = c->ms[0];
        qsort(c->ms + 1, (size_t)rounds - 1, sizeof c->ms[0], by_value);
        median[lib] = rounds > 1 ? c->ms[1 + (rounds - 1) / 2] : first;
        printf("init gpus=%d mode=%s lib=%s first %.1f ms, median of %d more %.1f ms; device memory %.1f MB, after "
               "first use %.1f MB\n",
               r->o->gpus, r->o->processes ? "processes" : "threads", names[lib], first, rounds - 1, median[lib],
               c->after_init_mb, c->after_use_mb);
    }
    printf("ratio init gpus=%d mode=%s nccl/kolo=%.2f memory nccl/kolo=%.2f\n", r->o->gpus,
           r->o->processes ? "processes" : "threads", median[NCCL] / median[KOLO],
           mine[NCCL].after_use_mb / mine[KOLO].after_use_mb);
}
