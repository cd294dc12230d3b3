/* SPDX-License-Identifier: Apache-2.0
 *
 * Named tensors and states that survive losses, for their manual pages. Run by kolorun -n 2.
 */
#include "page.h"

#include <kolo/engine.h>
#include <kolo/job.h>
#include <kolo/state.h>
#include <string.h>

static int rank;

/* Both ranks submit the same tensors, in whatever order they become ready. */
static kolo_status_t engine_all_reduce(kolo_tensor_engine_t engine)
{
    float weights[4] = {1, 2, 3, 4}, bias[1] = {(float)rank};
    int64_t long_shape[1] = {4}, short_shape[1] = {1}, handles[2];
    kolo_tensor_t first = {"weights", KOLO_FLOAT32, 1, long_shape, weights, weights}; /* in place */
    kolo_tensor_t second = {"bias", KOLO_FLOAT32, 1, short_shape, bias, bias};
    TRY(kolo_engine_all_reduce(engine, rank ? &first : &second, KOLO_AVG, 1, 1, NULL, &handles[0]));
    TRY(kolo_engine_all_reduce(engine, rank ? &second : &first, KOLO_AVG, 1, 1, NULL, &handles[1]));
    for (int i = 0; i < 2; i++) TRY(kolo_engine_wait(engine, handles[i], 0, NULL)); /* 0: no limit */
    EXPECT(bias[0] == 0.5f && weights[3] == 4);
    return KOLO_OK;
}

/* With a callback instead of waiting, and asking in between. */
static void completed(void *arg, const kolo_completion_t *completion)
{
    if (completion->status != KOLO_OK) fprintf(stderr, "%s: %s\n", completion->name, completion->text);
    *(_Atomic int *)arg += 1; /* on a thread of the engine */
}

static kolo_status_t engine_poll(kolo_tensor_engine_t engine)
{
    static _Atomic int done;
    float value = 1;
    int64_t handle, shape[1] = {1};
    kolo_tensor_t tensor = {"loss", KOLO_FLOAT32, 1, shape, &value, &value};
    kolo_submission_t how = {.done = completed, .arg = &done};
    int complete = 0;
    TRY(kolo_engine_all_reduce(engine, &tensor, KOLO_SUM, 1, 0.5, &how, &handle)); /* the sum times 0.5 */
    while (!complete) TRY(kolo_engine_poll(engine, handle, &complete));            /* here one would compute */
    TRY(kolo_engine_wait(engine, handle, 0, NULL));                                /* frees the handle */
    EXPECT(value == 1 && done == 1);
    return KOLO_OK;
}

static kolo_status_t engine_all_reduce_group(kolo_tensor_engine_t engine)
{
    float a = 1, b = 2;
    int64_t shape[1] = {1}, handles[2];
    kolo_tensor_t pair[2] = {{"pair/a", KOLO_FLOAT32, 1, shape, &a, &a},
                             {"pair/b", KOLO_FLOAT32, 1, shape, &b, &b}};
    TRY(kolo_engine_all_reduce_group(engine, pair, 2, KOLO_SUM, 1, 1, NULL, handles)); /* both or none */
    for (int i = 0; i < 2; i++) TRY(kolo_engine_wait(engine, handles[i], 0, NULL));
    EXPECT(a == 2 && b == 4);
    return KOLO_OK;
}

/* How many rows come is known when all ranks have submitted: the engine asks for the memory then. */
static void *allocate(void *arg, int index, size_t bytes, int ndims, const int64_t *shape)
{
    (void)index, (void)ndims, (void)shape;
    return *(void **)arg = malloc(bytes ? bytes : 1);
}

static kolo_status_t engine_all_gather(kolo_tensor_engine_t engine)
{
    int32_t rows[2] = {rank, rank};
    int64_t handle, shape[1] = {rank + 1}; /* one row of rank 0, two of rank 1 */
    void *memory = NULL;
    kolo_submission_t how = {.allocate = allocate, .arg = &memory};
    kolo_tensor_t tensor = {"ids", KOLO_INT32, 1, shape, rows, NULL};
    kolo_completion_t got;
    TRY(kolo_engine_all_gather(engine, &tensor, &how, &handle));
    TRY(kolo_engine_wait(engine, handle, 0, &got));
    EXPECT(got.shape[0] == 3 && got.part_rows[1] == 2 && ((int32_t *)got.output)[2] == 1);
    free(memory);
    return KOLO_OK;
}

static kolo_status_t engine_broadcast(kolo_tensor_engine_t engine)
{
    double start = rank == 0 ? 3.5 : 0;
    int64_t handle;
    kolo_tensor_t tensor = {"start", KOLO_FLOAT64, 0, NULL, &start, &start}; /* no dimensions: a scalar */
    TRY(kolo_engine_broadcast(engine, &tensor, 0, NULL, &handle));
    TRY(kolo_engine_wait(engine, handle, 0, NULL));
    EXPECT(start == 3.5);
    return KOLO_OK;
}

static kolo_status_t engine_all_to_all(kolo_tensor_engine_t engine)
{
    int32_t rows[3] = {rank, rank, rank}, got[4];
    int64_t handle, shape[1] = {3}, splits[2] = {1, 2}; /* one row to rank 0, two to rank 1 */
    kolo_tensor_t tensor = {"tokens", KOLO_INT32, 1, shape, rows, got};
    TRY(kolo_engine_all_to_all(engine, &tensor, splits, NULL, &handle));
    TRY(kolo_engine_wait(engine, handle, 0, NULL));
    EXPECT(got[rank == 0 ? 1 : 2] == 1);
    return KOLO_OK;
}

static kolo_status_t engine_reduce_scatter(kolo_tensor_engine_t engine)
{
    float rows[2] = {1, 2}, part;
    int64_t handle, shape[1] = {2};
    kolo_tensor_t tensor = {"shard", KOLO_FLOAT32, 1, shape, rows, &part};
    TRY(kolo_engine_reduce_scatter(engine, &tensor, KOLO_SUM, 1, 1, NULL, &handle));
    TRY(kolo_engine_wait(engine, handle, 0, NULL));
    EXPECT(part == (rank == 0 ? 2 : 4));
    return KOLO_OK;
}

/* Groups of the other operations: one array of tensors, one call. */
static kolo_status_t engine_broadcast_group(kolo_tensor_engine_t engine)
{
    int32_t in[2] = {rank, 10 + rank}, all[2][2], parts[2], turned[2];
    int64_t one[1] = {1}, two[1] = {2}, handles[4];
    kolo_tensor_t start = {"group/start", KOLO_INT32, 1, two, in, in};
    kolo_tensor_t gather = {"group/gather", KOLO_INT32, 1, one, in, all};
    kolo_tensor_t part = {"group/part", KOLO_INT32, 1, two, in, parts};
    kolo_tensor_t turn = {"group/turn", KOLO_INT32, 1, two, in, turned};
    TRY(kolo_engine_broadcast_group(engine, &start, 1, 0, NULL, &handles[0]));
    TRY(kolo_engine_wait(engine, handles[0], 0, NULL)); /* `in` is the same on all ranks from here on */
    TRY(kolo_engine_all_gather_group(engine, &gather, 1, NULL, &handles[1]));
    TRY(kolo_engine_reduce_scatter_group(engine, &part, 1, KOLO_SUM, 1, 1, NULL, &handles[2]));
    TRY(kolo_engine_all_to_all_group(engine, &turn, 1, NULL, NULL, &handles[3])); /* splits NULL: equal parts */
    for (int i = 1; i < 4; i++) TRY(kolo_engine_wait(engine, handles[i], 0, NULL));
    EXPECT(parts[0] == (rank == 0 ? 0 : 20) && turned[1] == (rank == 0 ? 0 : 10));
    return KOLO_OK;
}

/* Rank 1 has no more batches; rank 0 has one. */
static kolo_status_t engine_join(kolo_tensor_engine_t engine)
{
    float value = 8;
    int64_t handle, shape[1] = {1};
    kolo_tensor_t tensor = {"last batch", KOLO_FLOAT32, 1, shape, &value, &value};
    kolo_completion_t end;
    if (rank == 0) {
        TRY(kolo_engine_all_reduce(engine, &tensor, KOLO_SUM, 1, 1, NULL, &handle)); /* rank 1 gives zeros */
        TRY(kolo_engine_wait(engine, handle, 0, NULL));
    }
    TRY(kolo_engine_join(engine, NULL, &handle));
    TRY(kolo_engine_wait(engine, handle, 0, &end));
    EXPECT(value == 8 && (end.last_joined == 0 || end.last_joined == 1));
    return KOLO_OK;
}

static kolo_status_t engine_barrier(kolo_tensor_engine_t engine)
{
    int64_t handle;
    TRY(kolo_engine_barrier(engine, NULL, &handle));
    return kolo_engine_wait(engine, handle, 0, NULL);
}

static kolo_status_t engine_add_set(kolo_tensor_engine_t engine)
{
    static const int members[1] = {1};
    int set, ids[4], count, ranks[2];
    kolo_set_info_t info;
    TRY(kolo_engine_add_set(engine, members, 1, &set)); /* all ranks call it, with the same list */
    TRY(kolo_engine_get_set(engine, set, &info));
    TRY(kolo_engine_get_set_ranks(engine, set, ranks, 2));
    TRY(kolo_engine_get_set_ids(engine, ids, 4, &count));
    EXPECT(info.included == rank && info.size == 1 && ranks[0] == 1 && count == 2); /* set 0: all ranks */
    return kolo_engine_remove_set(engine, set);
}

static kolo_status_t engine_get_counters(kolo_tensor_engine_t engine)
{
    kolo_engine_place_t place;
    kolo_engine_counters_t counters;
    kolo_backend_info_t backend;
    TRY(kolo_engine_get_place(engine, &place));
    TRY(kolo_engine_get_counters(engine, &counters));
    printf("rank %d of %d: %llu tensors in %llu operations\n", place.rank, place.size,
           (unsigned long long)counters.tensors, (unsigned long long)counters.operations);
    for (int i = 0; kolo_engine_get_backend(engine, i, &backend) == KOLO_OK; i++)
        if (backend.available)
            printf("%s: %llu operations\n", backend.name, (unsigned long long)backend.operations);
    return KOLO_OK;
}

static kolo_status_t engine_timeline_start(kolo_tensor_engine_t engine, const char *path)
{
    TRY(kolo_engine_timeline_start(engine, path, 0)); /* for chrome://tracing, Perfetto and kolo-trace */
    TRY(engine_barrier(engine));
    return kolo_engine_timeline_stop(engine);
}

/* From the launcher's job; over a communicator of the program's own: give it instead of NULL. */
static kolo_status_t engine_init(kolo_tensor_engine_t *engine)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    config.stall_limit_ms = 600000; /* a tensor that some rank does not submit for ten minutes ends the job */
    return kolo_engine_init(engine, NULL, &config);
}

static kolo_status_t engine_shutdown(kolo_tensor_engine_t engine, int in_order)
{
    if (in_order) return kolo_engine_shutdown(engine);
    return kolo_engine_abort(engine); /* waits for nobody; the others get KOLO_ERR_REMOTE */
}

/* ---- states ---- */

typedef struct {
    double weight;
    int step;
} model_t;

/* Called again after each change of the ranks; what is registered is then as at the last commit. */
static kolo_status_t state_commit(kolo_state_t state, void *arg)
{
    model_t *model = arg;
    kolo_comm_t comm;
    TRY(kolo_state_comm(state, &comm));
    while (model->step < 3) {
        double gradient = 1;
        TRY(kolo_all_reduce(&gradient, &gradient, 1, KOLO_FLOAT64, KOLO_SUM, comm, NULL));
        model->weight -= 0.1 * gradient;
        model->step++;
        TRY(kolo_state_commit(state));
    }
    EXPECT(model->step == 3);
    return KOLO_OK;
}

static kolo_status_t state_restore(kolo_state_t state, void *arg)
{
    model_t *model = arg;
    TRY(kolo_state_commit(state));
    model->weight = -1; /* a step that went wrong */
    TRY(kolo_state_restore(state));
    EXPECT(model->weight != -1);
    return kolo_state_sync(state); /* the newest commit of any rank, on all */
}

static kolo_status_t state_run(kolo_status_t (*train)(kolo_state_t state, void *arg))
{
    model_t model = {.weight = 1};
    kolo_state_info_t info;
    kolo_state_t state;
    TRY(kolo_state_create(&state, NULL));
    TRY(kolo_state_register(state, "model", &model, sizeof model));
    TRY(kolo_state_run(state, train, &model));
    TRY(kolo_state_get_info(state, &info));
    printf("rank %d of %d: %llu commits, %llu losses\n", info.rank, info.nranks, (unsigned long long)info.commits,
           (unsigned long long)info.losses);
    return kolo_state_destroy(state);
}

static kolo_status_t one_step(kolo_state_t state, int *step)
{
    kolo_comm_t comm;
    double gradient = 1;
    TRY(kolo_state_comm(state, &comm));
    TRY(kolo_all_reduce(&gradient, &gradient, 1, KOLO_FLOAT64, KOLO_SUM, comm, NULL));
    (*step)++;
    return kolo_state_commit(state);
}

/* The same without a function that is called: each round of the loop trains on the ranks that there are. */
static kolo_status_t state_enter(void)
{
    kolo_state_t state;
    kolo_status_t status;
    int step = 0, again;
    TRY(kolo_state_create(&state, NULL));
    TRY(kolo_state_register(state, "step", &step, sizeof step));
    status = kolo_state_enter(state);
    while ((status = kolo_state_next(state, status, &again)) == KOLO_OK && again)
        while (status == KOLO_OK && step < 3) status = one_step(state, &step);
    EXPECT(status == KOLO_OK && step == 3);
    return kolo_state_destroy(state);
}

/* A value grows from commit to commit: here what has been seen. */
static kolo_status_t state_put(kolo_state_t state, void *unused)
{
    const void *seen;
    size_t bytes;
    (void)unused;
    TRY(kolo_state_get(state, "seen", &seen, &bytes));
    EXPECT(bytes == 0); /* as it was put before kolo_state_run() */
    TRY(kolo_state_put(state, "seen", "samples 1, 5, 9", 16));
    TRY(kolo_state_commit(state));
    TRY(kolo_state_put(state, "seen", "samples 1, 5, 9, 13", 20)); /* not committed */
    TRY(kolo_state_restore(state));
    TRY(kolo_state_get(state, "seen", &seen, &bytes));
    EXPECT(bytes == 16);
    printf("seen: %s\n", (const char *)seen);
    return KOLO_OK;
}

static kolo_status_t keep_value(void)
{
    kolo_state_t state;
    TRY(kolo_state_create(&state, NULL));
    TRY(kolo_state_put(state, "seen", NULL, 0));
    TRY(kolo_state_run(state, state_put, NULL));
    return kolo_state_destroy(state);
}

int main(int argc, char **argv)
{
    static kolo_status_t (*const examples[])(kolo_tensor_engine_t) = {
        engine_all_reduce, engine_poll,       engine_all_reduce_group, engine_all_gather,
        engine_broadcast,  engine_all_to_all, engine_reduce_scatter,   engine_broadcast_group,
        engine_join,       engine_barrier,    engine_add_set,          engine_get_counters};
    kolo_tensor_engine_t engine;
    kolo_job_place_t place;
    char path[300];
    if (argc != 2) return 2;
    SHOW(kolo_job_get_place, &place);
    rank = place.rank;
    SHOW(engine_init, &engine);
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) SHOW(examples[i], engine);
    snprintf(path, sizeof path, "%s/t.%%r.json", argv[1]);
    SHOW(engine_timeline_start, engine, path);
    SHOW(engine_shutdown, engine, 1);
    SHOW(state_run, state_commit);
    SHOW(state_run, state_restore);
    SHOW(state_enter);
    SHOW(keep_value);
    return 0;
}
