/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs (random_program.h) that every rank submits in an order and with pauses of its own. All ranks must
 * get what a sequential reference gives, or the same error: with a cache, without, with one that is too small;
 * fused or not; with tensors in the memory of a device; while autotune changes the settings; and on ranks that take
 * themselves for several hosts, in levels.
 *
 *     engine_random_test [threads|hosts] [SEEDS [FIRST]]
 *
 * Each seed is a run of its own and can be repeated alone. Threads: seed % 4 is 1 with devices, 3 with autotune.
 */
#include "engine/kit/engines.h"
#include "engine/kit/fake_device.h"
#include "engine/kit/random_program.h"
#include "kit/procs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef union {
    int32_t i[OUT_MAX];
    float f[OUT_MAX];
} data_t;

typedef struct {
    int rank;
    kolo_tensor_engine_t engine;
    const program_t *p;
    data_t in[TENSORS_MAX], out[TENSORS_MAX];
    int64_t handles[TENSORS_MAX], shapes[TENSORS_MAX][2];
    fake_t *device; /* NULL: none */
    fake_queue_t *queue;
    data_t *there_in[TENSORS_MAX], *there_out[TENSORS_MAX]; /* the device's */
    bool there[TENSORS_MAX];                                /* this time, this tensor is */
    fake_event_t *events[TENSORS_MAX];
} run_t;

/* ---- tensors ---- */

static kolo_tensor_t make_tensor(run_t *run, int i, bool there)
{
    const item_t *t = &run->p->items[i];
    int me = run->rank;
    for (int k = 0; k < ROWS_MAX * COLS_MAX; k++) {
        if (t->type == KOLO_INT32)
            run->in[i].i[k] = value(i, me, k);
        else
            run->in[i].f[k] = (float)value(i, me, k);
    }
    run->shapes[i][0] = t->rows[me];
    run->shapes[i][1] = t->cols;
    run->there[i] = there;
    if (there) fake_write(run->queue, run->there_in[i], &run->in[i], sizeof run->in[i]);
    kolo_tensor_t tensor = {t->name,
                            t->type,
                            2,
                            run->shapes[i],
                            there ? run->there_in[i] : &run->in[i],
                            there ? run->there_out[i] : &run->out[i]};
    if (t->odd == me) tensor.type = t->type == KOLO_INT32 ? KOLO_FLOAT32 : KOLO_INT32;
    return tensor;
}

static const int64_t *splits_of(const run_t *run, int i, int64_t *splits)
{
    for (int d = 0; d < run->p->size; d++) splits[d] = run->p->items[i].splits[run->rank][d];
    return splits;
}

/* What is behind the writes that are queued, for `how`. */
static void describe(run_t *run, int i, bool there, kolo_tensor_memory_t *memory, kolo_submission_t *how)
{
    *how = (kolo_submission_t){.set = 0};
    if (!there) return;
    run->events[i] = fake_event_new(run->queue);
    *memory = (kolo_tensor_memory_t){run->rank, run->events[i], NULL};
    how->memory = memory;
}

static void submit(run_t *run, int i, bool there)
{
    const item_t *t = &run->p->items[i];
    kolo_tensor_engine_t e = run->engine;
    kolo_tensor_memory_t memory;
    kolo_submission_t how;
    int64_t splits[RANKS_MAX], *handle = &run->handles[i];
    if (t->kind == BARRIER) {
        EXPECT_OK(kolo_engine_barrier(e, NULL, handle));
        return;
    }
    kolo_tensor_t tensor = make_tensor(run, i, there);
    describe(run, i, there, &memory, &how);
    if (t->kind == REDUCE)
        EXPECT_OK(kolo_engine_all_reduce(e, &tensor, t->op, t->pre, t->post, &how, handle));
    else if (t->kind == SCATTER)
        EXPECT_OK(kolo_engine_reduce_scatter(e, &tensor, t->op, t->pre, t->post, &how, handle));
    else if (t->kind == BROADCAST)
        EXPECT_OK(kolo_engine_broadcast(e, &tensor, t->root, &how, handle));
    else if (t->kind == GATHER)
        EXPECT_OK(kolo_engine_all_gather(e, &tensor, &how, handle));
    else
        EXPECT_OK(kolo_engine_all_to_all(e, &tensor, splits_of(run, i, splits), &how, handle));
}

static void submit_group(run_t *run, int first, bool there)
{
    const item_t *t = &run->p->items[first];
    kolo_tensor_engine_t e = run->engine;
    kolo_tensor_t x[GROUP];
    kolo_tensor_memory_t memory;
    kolo_submission_t how;
    int64_t room[GROUP][RANKS_MAX], *handles = &run->handles[first];
    const int64_t *splits[GROUP];
    for (int k = 0; k < GROUP; k++) {
        x[k] = make_tensor(run, first + k, there);
        splits[k] = splits_of(run, first + k, room[k]);
    }
    describe(run, first, there, &memory, &how);
    if (t->kind == REDUCE)
        EXPECT_OK(kolo_engine_all_reduce_group(e, x, GROUP, t->op, t->pre, t->post, &how, handles));
    else if (t->kind == SCATTER)
        EXPECT_OK(kolo_engine_reduce_scatter_group(e, x, GROUP, t->op, t->pre, t->post, &how, handles));
    else if (t->kind == BROADCAST)
        EXPECT_OK(kolo_engine_broadcast_group(e, x, GROUP, t->root, &how, handles));
    else if (t->kind == GATHER)
        EXPECT_OK(kolo_engine_all_gather_group(e, x, GROUP, &how, handles));
    else
        EXPECT_OK(kolo_engine_all_to_all_group(e, x, GROUP, splits, &how, handles));
}

static void submit_all(run_t *run, uint64_t *mine)
{
    int order[TENSORS_MAX], n = run->p->nitems;
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int k = below(mine, i + 1), keep = order[i];
        order[i] = order[k];
        order[k] = keep;
    }
    for (int i = 0; i < n; i++) {
        const item_t *t = &run->p->items[order[i]];
        bool there = run->device && below(mine, 3);
        if (!submits(run->p, order[i], run->rank)) continue;
        if (below(mine, 40) == 0) nap_ms(1);
        if (t->group < 0) submit(run, order[i], there);
        if (t->group == order[i]) submit_group(run, order[i], there);
    }
}

static void check(run_t *run, int i)
{
    const item_t *t = &run->p->items[i];
    double want[OUT_MAX];
    kolo_status_t status = kolo_engine_wait(run->engine, run->handles[i], WAIT_MS, NULL);
    if (t->odd >= 0) {
        EXPECT_ERROR(KOLO_ERR_MISMATCH, status, t->name);
        return;
    }
    if (!EXPECT_OK(status) || t->kind == BARRIER) return;
    if (run->there[i]) fake_read(run->queue, run->there_out[i], &run->out[i], sizeof run->out[i]);
    int n = reference(run->p, i, run->rank, want);
    for (int k = 0; k < n; k++) {
        double got = t->type == KOLO_INT32 ? run->out[i].i[k] : (double)run->out[i].f[k];
        if (got == want[k]) continue;
        fprintf(stderr, "rank %d, %s kind %d group %d there %d element %d of %d: %g, expected %g\n", run->rank,
                t->name, (int)t->kind, t->group, run->there[i], k, n, got, want[k]);
        EXPECT(!"the result is right");
        return;
    }
}

/* ---- one rank ---- */

static void run_epoch(run_t *run, uint64_t *mine)
{
    int64_t handle;
    submit_all(run, mine);
    if (run->p->joins) EXPECT_OK(kolo_engine_join(run->engine, NULL, &handle));
    for (int i = 0; i < run->p->nitems; i++)
        if (submits(run->p, i, run->rank)) check(run, i);
    if (run->p->joins) EXPECT_OK(kolo_engine_wait(run->engine, handle, WAIT_MS, NULL));
    for (int i = 0; i < TENSORS_MAX; i++) {
        if (run->events[i]) fake_event_end(run->events[i]);
        run->events[i] = NULL;
        run->there[i] = false;
    }
}

static void run_program(kolo_tensor_engine_t engine, int rank, int size, uint64_t seed, int epochs, fake_t *device)
{
    uint64_t common = seed * 2654435761u + 88172645463325252ull, mine = common ^ (uint64_t)(rank + 1) << 32;
    run_t *run = calloc(1, sizeof *run);
    program_t *program = calloc(1, sizeof *program);
    if (!run || !program) abort();
    run->rank = rank;
    run->engine = engine;
    run->p = program;
    run->device = device;
    if (device) run->queue = fake_queue_new(device);
    for (int i = 0; i < TENSORS_MAX && device; i++) {
        run->there_in[i] = fake_alloc(device, sizeof(data_t));
        run->there_out[i] = fake_alloc(device, sizeof(data_t));
    }
    for (int epoch = 0; epoch < epochs; epoch++) {
        uint64_t again = epoch % 3 ? seed + 977 : common; /* some epochs repeat: those are cached */
        if (epoch % 3 == 0) next_random(&common);
        make_program(&again, program, size, epoch);
        run_epoch(run, &mine);
    }
    for (int i = 0; i < TENSORS_MAX && device; i++) {
        fake_free(device, run->there_in[i]);
        fake_free(device, run->there_out[i]);
    }
    if (device) fake_queue_end(run->queue);
    free(program);
    free(run);
}

/* ---- seeds ---- */

static uint64_t first_seed = 1, seeds = 0;
#ifdef KOLO_SANITIZED
enum { THREADS = 40, HOSTS = 20 };
#else
enum { THREADS = 160, HOSTS = 40 };
#endif
enum { EPOCHS = 7, EPOCHS_TUNED = 30 };

/* A setting each few steps, so that several change within a run. */
static void tune_fast(void)
{
    setenv("KOLO_AUTOTUNE_WARMUP_SAMPLES", "1", 0);
    setenv("KOLO_AUTOTUNE_STEPS_PER_SAMPLE", "1", 0);
    setenv("KOLO_AUTOTUNE_SAMPLES", "1", 0);
    setenv("KOLO_AUTOTUNE_SETTINGS", "12", 0);
}

static kolo_engine_config_t config_of(uint64_t seed, bool tuned)
{
    static const int64_t capacities[] = {1024, 0, 2, 7}, thresholds[] = {128 << 20, 0, 200};
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    config.autotune = tuned;
    if (!tuned || seed / 4 % 2) config.cache_capacity = capacities[seed / 4 % 4];
    if (!tuned) config.fusion_threshold = thresholds[seed / 16 % 3];
    return config;
}

static bool is_tuned(uint64_t seed)
{
#ifdef KOLO_TEST_AUTOTUNE
    return seed % 4 == 3;
#else
    (void)seed;
    return false;
#endif
}

static fake_t *devices[RANKS_MAX];

static void run_thread(erank_t *r)
{
    uint64_t seed = *(const uint64_t *)r->arg;
    run_program(r->engine, r->rank, r->size, seed, is_tuned(seed) ? EPOCHS_TUNED : EPOCHS, devices[r->rank]);
}

static void random_programs_give_what_a_sequence_gives(void **state)
{
    uint64_t end = first_seed + seeds;
    (void)state;
    for (uint64_t seed = first_seed; seed < end; seed++) {
        kolo_engine_config_t config = config_of(seed, is_tuned(seed));
        int n = 2 + (int)(seed / 4 % 4);
        for (int r = 0; r < n && seed % 4 == 1; r++)
            devices[r] = fake_new(r, seed, seed / 16 % 2 ? FAKE_TELLS : seed / 32 % 2 ? FAKE_PUNCTUAL : 0);
        int failures = run_engines(n, &config, run_thread, &seed);
        for (int r = 0; r < n && seed % 4 == 1; r++) {
            fake_end(devices[r]);
            devices[r] = NULL;
        }
        if (failures) fprintf(stderr, "seed %llu of threads\n", (unsigned long long)seed);
        assert_int_equal(failures, 0);
    }
}

static void run_process(proc_t *p)
{
    uint64_t seed = *(const uint64_t *)p->r.arg;
    kolo_tensor_engine_t e;
    kolo_engine_config_t config = config_of(seed, is_tuned(seed));
    config.backends = "hierarchical";
    if (!EXPECT_OK(kolo_engine_init(&e, p->r.comm, &config))) return;
    run_program(e, p->r.rank, p->r.nranks, seed, is_tuned(seed) ? EPOCHS_TUNED / 2 : EPOCHS, NULL);
    EXPECT_OK(kolo_barrier(p->r.comm, NULL));
    EXPECT_OK(kolo_engine_shutdown(e));
}

static void random_programs_in_levels(void **state)
{
    uint64_t end = first_seed + seeds;
    (void)state;
    for (uint64_t seed = first_seed; seed < end; seed++) {
        const char *env[] = {seed / 4 % 2 ? "HOSTS=2" : "HOSTS=3", NULL};
        job_t job;
        job_start(&job, 4 + (int)(seed / 8 % 2), env, run_process, &seed);
        int failures = job_finish(&job, -1);
        if (failures) fprintf(stderr, "seed %llu of hosts\n", (unsigned long long)seed);
        assert_int_equal(failures, 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest threads[] = {cmocka_unit_test(random_programs_give_what_a_sequence_gives)};
    const struct CMUnitTest hosts[] = {cmocka_unit_test(random_programs_in_levels)};
    bool levels = argc > 1 && strcmp(argv[1], "hosts") == 0;
    if (argc > 2) seeds = strtoull(argv[2], NULL, 10);
    if (argc > 3) first_seed = strtoull(argv[3], NULL, 10);
    if (!seeds) seeds = levels ? HOSTS : THREADS;
    seeds = (uint64_t)kolo_test_steps((int)seeds);
    tune_fast();
    return levels ? cmocka_run_group_tests(hosts, NULL, NULL) : cmocka_run_group_tests(threads, NULL, NULL);
}
