/* SPDX-License-Identifier: Apache-2.0
 *
 * Records what an engine is given to do: the backward pass of a network with the layers of ResNet-50, run with real
 * arithmetic (of images of 56 x 56 pixels) and a real engine. Each rank notes when it submits each gradient; rank 0
 * writes, per tensor, its floats and these times in microseconds since the step began, step by step and rank by
 * rank.
 *
 *   kolorun -n 4 build/bench/bench-workload > workload.csv
 *
 * tests/data/workload.csv was made so; src/engine/tuner/tuner_test.c replays it.
 */
#include "bench.h"

#include <kolo/engine.h>
#include <kolo/job.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TENSORS_MAX 200
#define WARM_UP     3
#define STEPS       3

typedef struct {
    int64_t floats;
    int work; /* multiplications per float */
} layer_t;

/* In the order of the layers; returns how many tensors. */
static int network(layer_t *layers)
{
    static const int blocks[] = {3, 4, 6, 3};
    int n = 0;
    int64_t in = 64;
    layers[n++] = (layer_t){64 * 3 * 49, 256};
    layers[n++] = (layer_t){64, 256};
    layers[n++] = (layer_t){64, 256};
    for (int stage = 0; stage < 4; stage++) {
        int64_t p = INT64_C(64) << stage;
        for (int i = 0; i < blocks[stage]; i++) {
            const int64_t convs[] = {in * p, p * p * 9, p * 4 * p, in * 4 * p}, norms[] = {p, p, 4 * p, 4 * p};
            for (int k = 0; k < (i == 0 ? 4 : 3); k++) {
                layers[n++] = (layer_t){convs[k], 64 >> 2 * stage};
                layers[n++] = (layer_t){norms[k], 64 >> 2 * stage};
                layers[n++] = (layer_t){norms[k], 64 >> 2 * stage};
            }
            in = 4 * p;
        }
    }
    layers[n++] = (layer_t){2048 * 1000, 1};
    layers[n++] = (layer_t){1000, 1};
    return n;
}

static void compute(const layer_t *layer, float *gradient)
{
    for (int k = 0; k < layer->work; k++)
        for (int64_t i = 0; i < layer->floats; i++) gradient[i] = gradient[i] * 0.5f + 0.25f;
}

typedef struct {
    kolo_tensor_engine_t engine;
    kolo_comm_t comm;
    int n;
    layer_t layers[TENSORS_MAX];
    float *gradients[TENSORS_MAX];
    double times[STEPS][TENSORS_MAX];
} pass_t;

static void run_step(pass_t *p, double *times)
{
    int64_t handles[TENSORS_MAX];
    MUST(kolo_barrier(p->comm, NULL));
    double began = now_us();
    for (int i = p->n; i-- > 0;) {
        char name[32];
        snprintf(name, sizeof name, "gradient.%d", i);
        kolo_tensor_t t = {name, KOLO_FLOAT32, 1, &p->layers[i].floats, p->gradients[i], p->gradients[i]};
        compute(&p->layers[i], p->gradients[i]);
        if (times) times[i] = now_us() - began;
        MUST(kolo_engine_all_reduce(p->engine, &t, KOLO_AVG, 1, 1, NULL, &handles[i]));
    }
    for (int i = 0; i < p->n; i++) MUST(kolo_engine_wait(p->engine, handles[i], 60000, NULL));
}

static void print(const pass_t *p, const double *all, int nranks)
{
    printf("# floats");
    for (int s = 0; s < STEPS; s++)
        for (int r = 0; r < nranks; r++) printf(",us.step%d.rank%d", s, r);
    printf("\n");
    for (int i = p->n; i-- > 0;) {
        printf("%lld", (long long)p->layers[i].floats);
        for (int s = 0; s < STEPS; s++)
            for (int r = 0; r < nranks; r++) printf(",%.0f", all[(r * STEPS + s) * TENSORS_MAX + i]);
        printf("\n");
    }
}

int main(void)
{
    kolo_job_place_t job;
    pass_t *p = room(1, sizeof *p);
    kolo_status_t status = kolo_job_get_place(&job);
    if (status == KOLO_OK) status = kolo_job_connect(&p->comm, NULL);
    if (status != KOLO_OK) {
        fprintf(stderr, "bench-workload: %s\n", kolo_get_last_error(NULL));
        free(p);
        return 1;
    }
    p->n = network(p->layers);
    for (int i = 0; i < p->n; i++) p->gradients[i] = room((size_t)p->layers[i].floats, sizeof(float));
    MUST(kolo_engine_init(&p->engine, p->comm, NULL));
    for (int s = -WARM_UP; s < STEPS; s++) run_step(p, s < 0 ? NULL : p->times[s]);
    double *all = room((size_t)job.nranks * STEPS * TENSORS_MAX, sizeof *all);
    MUST(kolo_all_gather(p->times, all, (size_t)STEPS * TENSORS_MAX, KOLO_FLOAT64, p->comm, NULL));
    if (job.rank == 0) print(p, all, job.nranks);
    MUST(kolo_engine_shutdown(p->engine));
    MUST(kolo_comm_finalize(p->comm));
    MUST(kolo_comm_destroy(p->comm));
    for (int i = 0; i < p->n; i++) free(p->gradients[i]);
    free(all);
    free(p);
    return 0;
}
