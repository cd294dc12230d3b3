/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine with tensors on GPUs, by one backend and by another in turn, in one job: how many small tensors a
 * second, how many bytes of large ones. A process per rank and GPU, started by kolorun:
 *
 *     kolorun -n 2 bench-engine-gpu [only=TEXT] kolo nccl
 *
 * Each round submits all tensors of a workload in the program's stream and waits for the stream; medians of rounds.
 * "2 types": every other tensor is of float16, so that there are two operations where tensors are fused. "2 sets":
 * every other tensor is of a process set of this rank alone, which multiplies it. Adasum comes last. only=TEXT:
 * workloads whose names have this text.
 */
#include "gpu/kit.h"

#include <kolo/engine.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ENGINES 4
#define ROUNDS  9
#define TENSORS 2000

enum { PLAIN, TWO_TYPES, TWO_SETS, ADASUM };
static const struct {
    const char *name;
    int tensors;
    int64_t floats; /* of each */
    int kind;
} workloads[] = {{"2000 x 1 KB", 2000, 256, PLAIN},
                 {"200 x 256 KB", 200, 65536, PLAIN},
                 {"800 x 256 KB", 800, 65536, PLAIN},
                 {"800 x 256 KB, 2 types", 800, 65536, TWO_TYPES},
                 {"200 x 512 KB", 200, 131072, PLAIN},
                 {"50 x 4 MB", 50, 1 << 20, PLAIN},
                 {"20 x 16 MB", 20, 4 << 20, PLAIN},
                 {"8 x 128 MB", 8, 32 << 20, PLAIN},
                 {"40 x 4 MB, 2 sets", 40, 1 << 20, TWO_SETS},
                 {"200 x 64 KB, adasum", 200, 16384, ADASUM},
                 {"200 x 256 KB, adasum", 200, 65536, ADASUM},
                 {"20 x 4 MB, adasum", 20, 1 << 20, ADASUM},
                 {"1 x 256 MB, adasum", 1, 64 << 20, ADASUM}};
enum { WORKLOADS = sizeof workloads / sizeof workloads[0] };

static kit_rank_t gpu;
static kolo_engine_place_t me;

bool kit_fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "bench-engine-gpu: rank %d: %s:%d: ", me.rank, file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds from the first submission until the GPU has all results. */
static double run(kolo_tensor_engine_t e, int own, int w)
{
    static int64_t handles[TENSORS];
    static char names[TENSORS][24];
    kolo_tensor_memory_t memory = {gpu.device, NULL, gpu.streams[0]};
    kolo_op_t op = workloads[w].kind == ADASUM ? KOLO_ADASUM : KOLO_AVG;
    int64_t n = workloads[w].floats, twice = 2 * n, barrier;
    KIT_OK(kolo_engine_barrier(e, NULL, &barrier));
    KIT_OK(kolo_engine_wait(e, barrier, 0, NULL));
    double start = now_s();
    for (int i = 0; i < workloads[w].tensors; i++) {
        bool odd = i % 2, half = odd && workloads[w].kind == TWO_TYPES, mine = odd && workloads[w].kind == TWO_SETS;
        kolo_submission_t how = {.memory = &memory, .set = mine ? own : 0};
        snprintf(names[i], sizeof names[i], "grad.%d.%d", w, i);
        float *at = (float *)(void *)gpu.buffer + i * n;
        kolo_tensor_t t = {names[i], half ? KOLO_FLOAT16 : KOLO_FLOAT32, 1, half ? &twice : &n, at, at};
        KIT_OK(kolo_engine_all_reduce(e, &t, op, mine ? 2 : 1, 1, &how, &handles[i]));
    }
    for (int i = 0; i < workloads[w].tensors; i++) KIT_OK(kolo_engine_wait(e, handles[i], 0, NULL));
    if (!kit_sync(&gpu, gpu.streams[0])) exit(1);
    return now_s() - start;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *const *backends, int n, int w, double (*times)[ROUNDS])
{
    double first = 0;
    for (int i = 0; i < n; i++) {
        qsort(times[i], ROUNDS, sizeof times[i][0], by_value);
        double s = times[i][ROUNDS / 2], bytes = 4.0 * (double)workloads[w].floats * workloads[w].tensors;
        if (i == 0) first = s;
        printf("engine ranks=%d %-21s backend=%-5s %9.1f us %10.0f tensors/s %8.2f GB/s  ratio %.2f\n", me.size,
               workloads[w].name, backends[i], s * 1e6, workloads[w].tensors / s, bytes / s * 1e-9, s / first);
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    kolo_tensor_engine_t engines[ENGINES];
    static double times[ENGINES][ROUNDS];
    const char *only = argc > 1 && strncmp(argv[1], "only=", 5) == 0 ? argv[1] + 5 : NULL;
    if (only) argc--, argv++;
    const char *const alone[] = {"kolo"}, *const *backends = argc > 1 ? (const char *const *)argv + 1 : alone;
    int n = argc > 1 ? argc - 1 : 1, devices = 0, own[ENGINES];
    if (n > ENGINES || !kit_open(false, &devices) || devices < 1) return 2;
    for (int i = 0; i < n; i++) {
        kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
        config.backends = backends[i];
        config.cache_capacity = 4096;
        KIT_OK(kolo_engine_init(&engines[i], NULL, &config));
    }
    KIT_OK(kolo_engine_get_place(engines[0], &me));
    for (int i = 0; i < n; i++)
        for (int r = 0; r < me.size && me.size > 1; r++) {
            int set;
            KIT_OK(kolo_engine_add_set(engines[i], &r, 1, &set));
            if (r == me.rank) own[i] = set;
        }
    if (!kit_rank_open(&gpu, me.local_rank % devices, (size_t)1 << 30)) return 1;
    for (int w = 0; w < WORKLOADS; w++) {
        if (only && !strstr(workloads[w].name, only)) continue;
        if (me.size == 1 && workloads[w].kind == TWO_SETS) continue; /* its set is all there is */
        for (int round = -2; round < ROUNDS; round++)
            for (int i = 0; i < n; i++) {
                double s = run(engines[i], own[i], w);
                if (round >= 0) times[i][round] = s;
            }
        if (me.rank == 0) report(backends, n, w, times);
    }
    for (int i = 0; i < n; i++) KIT_OK(kolo_engine_shutdown(engines[i]));
    kit_rank_close(&gpu);
    return 0;
}
