/* SPDX-License-Identifier: Apache-2.0
 *
 * See tuner_model.h.
 */
#include "engine/tuner/tuner_model.h"

#include "base/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 4 /* of the recording */

double model_unit(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(*seed >> 11) * 0x1p-53;
}

double model_normal(uint64_t *seed)
{
    double sum = 0;
    for (int i = 0; i < 4; i++) sum += model_unit(seed) - 0.5;
    return sum * 1.732;
}

/* ---- workloads ---- */

static void add(workload_t *w, int64_t floats)
{
    assert_true(w->count < MODEL_TENSORS);
    int n = w->count++;
    kolo_response_t *r = &w->responses[n];
    snprintf(w->names[n], sizeof w->names[n], "t%d", n);
    kolo_name_init(&r->request.name, w->names[n], (uint32_t)strlen(w->names[n]));
    r->request.type = KOLO_FLOAT32;
    r->request.ndims = 1;
    r->request.shape[0] = floats;
    w->bytes += 4.0 * (double)floats;
}

void model_load(workload_t *w, const char *path)
{
    char line[600];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    memset(w, 0, sizeof *w);
    while (fgets(line, sizeof line, f)) {
        char *at = line;
        if (line[0] == '#') continue;
        int n = w->count;
        add(w, strtoll(at, &at, 10));
        for (int s = 0; s < MODEL_STEPS; s++)
            for (int k = 0; k < RANKS; k++) w->ready_us[s][n] = fmax(w->ready_us[s][n], strtod(at + 1, &at));
    }
    fclose(f);
    assert_int_equal(w->count, 161);
}

static int64_t between(uint64_t *seed, double low, double high)
{
    return llround(low * pow(high / low, model_unit(seed)));
}

static void add_convolutions(workload_t *w, uint64_t *seed)
{
    int layers = 20 + (int)(model_unit(seed) * 60);
    int64_t wide = between(seed, 256, 2048);
    for (int i = layers; i > 0; i--) {
        int64_t channels = 64 + wide * i / layers;
        add(w, channels * channels * (i % 3 == 1 ? 9 : 4) / 4);
        add(w, channels);
        add(w, channels);
    }
}

static void add_transformer(workload_t *w, uint64_t *seed)
{
    int layers = 6 + (int)(model_unit(seed) * 30);
    int64_t wide = between(seed, 128, 1024);
    for (int i = 0; i < layers; i++) {
        add(w, 4 * wide * wide);
        add(w, wide);
        add(w, 4 * wide * wide);
        add(w, 4 * wide);
        add(w, 2 * wide);
        add(w, wide * wide);
        add(w, 3 * wide * wide);
        add(w, 3 * wide);
        add(w, 2 * wide);
    }
    add(w, 30000 * wide);
}

static void add_small(workload_t *w, uint64_t *seed)
{
    int n = 100 + (int)(model_unit(seed) * 400);
    double most = (double)between(seed, 200, 30000);
    for (int i = 0; i < n; i++) add(w, between(seed, 10, most));
}

void model_random_workload(workload_t *w, uint64_t *seed)
{
    static void (*const kinds[])(workload_t *, uint64_t *) = {add_convolutions, add_transformer, add_small};
    memset(w, 0, sizeof *w);
    kinds[(int)(model_unit(seed) * 3)](w, seed);
    /* a tensor comes when its gradient is computed: some time each, more for larger ones, and never quite evenly */
    double each = (double)between(seed, 1, 100), megabyte = (double)between(seed, 50, 5000);
    for (int s = 0; s < MODEL_STEPS; s++) {
        double us = 0;
        for (int i = 0; i < w->count; i++) {
            double mb = 4e-6 * (double)w->responses[i].request.shape[0];
            us += (each + mb * megabyte) * (0.7 + 0.6 * model_unit(seed));
            w->ready_us[s][i] = us;
        }
    }
}

void model_random_machine(machine_t *m, uint64_t *seed)
{
    *m = (machine_t){.name = "random"};
    m->agree_us = (double)between(seed, 20, 3000);
    m->uncached_us = (double)between(seed, 1, 50);
    m->start_us = (double)between(seed, 5, 3000);
    m->bytes_per_us = (double)between(seed, 300, 20000);
    m->pack_us = (double)between(seed, 50, 500);
    m->cache_bytes = (double)between(seed, 1e6, 3e7);
    m->steal = model_unit(seed);
    m->faster = (double)between(seed, 100, 1000) / 100;
    m->hier = 0.7 + 0.8 * model_unit(seed);
}

/* ---- the model ---- */

static double batch_us(const machine_t *m, const kolo_tuning_t *t, kolo_response_t *const *batch, size_t n)
{
    double bytes = 0;
    for (size_t i = 0; i < n; i++) bytes += 4.0 * (double)batch[i]->request.shape[0];
    bool hier = t->choices >> KOLO_CHOOSE_HIER_ALL_REDUCE & 1;
    double us = (m->start_us + bytes / m->bytes_per_us) / (hier ? m->hier : 1);
    if (n > 1) us += bytes * 1e-6 * m->pack_us * (bytes > m->cache_bytes ? 3 : 1);
    return us;
}

/* Microseconds that a step takes. `done` is how far the computation has come, in time of the recording. */
static double run_step(const workload_t *w, const machine_t *m, const kolo_tuning_t *t, int step,
                       kolo_batches_t *batches)
{
    kolo_fuse_rules_t rules = {.threshold = t->fusion_threshold,
                               .tensor_max = 64 << 20, /* of all sizes, so that the threshold matters */
                               .gpu_tensor_max = 64 << 20,
                               .nranks = 1};
    kolo_response_t *now[MODEL_TENSORS];
    const double *ready = w->ready_us[step]; /* ascending: each rank submits in this order */
    double faster = m->faster;
    double wall = 0, done = 0, began = -1e9;
    for (int next = 0; next < w->count;) {
        size_t n = 0;
        double at = fmax(wall, began + (double)t->cycle_time_us);
        at = fmax(at, wall + ready[next] / faster - done); /* nothing to do before */
        done = fmax(done + at - wall, ready[next] / faster);
        wall = began = at;
        for (; next < w->count && ready[next] / faster <= done; next++)
            now[n++] = (kolo_response_t *)(uintptr_t)&w->responses[next];
        double us = m->agree_us + (t->choices >> KOLO_CHOOSE_CACHE & 1 ? 0 : m->uncached_us * (double)n);
        assert_int_equal(kolo_fusion_batches(&rules, now, n, batches), KOLO_OK);
        for (size_t b = 0, from = 0; b < batches->nbatches; from = batches->ends[b++])
            us += batch_us(m, t, batches->responses + from, batches->ends[b] - from);
        wall += us;
        done += us * (1 - m->steal);
    }
    return wall;
}

double model_bytes_per_s(const workload_t *w, const machine_t *m, const kolo_tuning_t *t, kolo_batches_t *batches)
{
    double us = 0;
    for (int s = 0; s < MODEL_STEPS; s++) us += run_step(w, m, t, s, batches);
    return w->bytes * MODEL_STEPS / us * 1e6;
}

double model_best_of_grid(const workload_t *w, const machine_t *m, kolo_tuning_t *best, kolo_batches_t *batches)
{
    enum { SIDE = 17 };
    const kolo_tuner_rules_t rules = {.threshold = true, .cycle = true};
    double most = 0;
    for (int i = 0; i < SIDE * SIDE * 4; i++) {
        double x[2] = {(double)(i % SIDE) / (SIDE - 1), (double)(i / SIDE % SIDE) / (SIDE - 1)};
        kolo_tuning_t t = {.choices = 0};
        kolo_autotune_from_point(&rules, x, &t);
        if (i / (SIDE * SIDE) & 1) t.choices |= 1u << KOLO_CHOOSE_CACHE;
        if (i / (SIDE * SIDE) & 2) t.choices |= 1u << KOLO_CHOOSE_HIER_ALL_REDUCE;
        double score = model_bytes_per_s(w, m, &t, batches);
        if (score <= most) continue;
        most = score;
        *best = t;
    }
    return most;
}
