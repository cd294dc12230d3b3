/* SPDX-License-Identifier: Apache-2.0
 *
 * Small tensors that are gathered or scattered share one operation, as those that are reduced do: counted by the
 * engine's operations, and the values are those of each tensor by itself. Also where tensors lie on devices of some
 * ranks, within a process set, and where one rank has no memory for its result.
 */
#include "engine/kit/buffers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N     20
#define COLS  3
#define ROWS  7 /* the most of one rank */
#define RANKS 5
#define MOST  (RANKS * ROWS * COLS)

typedef enum { GATHER, SCATTER } kind_t;

typedef struct {
    kind_t kind;
    int set, rank, size; /* of the set */
    int32_t in[N][ROWS * COLS], out[N][MOST];
    int32_t *there_in[N], *there_out[N]; /* the device's; NULL: it is on the CPU */
    char names[N][32];
    int64_t shapes[N][2], handles[N];
    kolo_tensor_t tensors[N];
} group_t;

/* Of gathered tensors each rank has rows of its own, also none. Of scattered ones some have fewer than ranks. */
static int rows_of(kind_t kind, int i, int rank)
{
    return kind == GATHER ? (i + 2 * rank) % (ROWS + 1) : i % (ROWS + 1);
}

static int32_t value(int i, int rank, int k)
{
    return 1000 * i + 100 * rank + k;
}

static void make_group(group_t *g, kind_t kind, int set, int rank, int size)
{
    *g = (group_t){.kind = kind, .set = set, .rank = rank, .size = size};
    for (int i = 0; i < N; i++) {
        g->shapes[i][0] = rows_of(kind, i, rank);
        g->shapes[i][1] = COLS;
        for (int k = 0; k < ROWS * COLS; k++) g->in[i][k] = value(i, rank, k);
        snprintf(g->names[i], sizeof g->names[i], "%s.%d", kind == GATHER ? "gather" : "scatter", i);
        g->tensors[i] = (kolo_tensor_t){g->names[i], KOLO_INT32, 2, g->shapes[i], g->in[i], g->out[i]};
    }
}

static kolo_status_t submit(erank_t *r, group_t *g, const kolo_submission_t *how)
{
    if (g->kind == GATHER) return kolo_engine_all_gather_group(r->engine, g->tensors, N, how, g->handles);
    return kolo_engine_reduce_scatter_group(r->engine, g->tensors, N, KOLO_SUM, 2, 3, how, g->handles);
}

static bool is_right(const group_t *g, int i)
{
    const int32_t *out = g->out[i];
    int n = 0, rows = rows_of(g->kind, i, 0), first = 0;
    for (int r = 0; r < g->size && g->kind == GATHER; r++)
        for (int k = 0; k < rows_of(GATHER, i, r) * COLS; k++)
            if (out[n++] != value(i, r, k)) return false;
    if (g->kind == GATHER) return true;
    for (int r = 0; r < g->rank; r++) first += rows / g->size + (r < rows % g->size);
    rows = rows / g->size + (g->rank < rows % g->size);
    for (int k = first * COLS; k < (first + rows) * COLS; k++) {
        int32_t sum = 0;
        for (int r = 0; r < g->size; r++) sum += 2 * value(i, r, k);
        if (out[n++] != 3 * sum) return false;
    }
    return true;
}

static uint64_t operations_of(erank_t *r)
{
    kolo_engine_counters_t c;
    EXPECT_OK(kolo_engine_get_counters(r->engine, &c));
    return c.operations;
}

/* All of the group, which takes this number of operations. */
static void run_group(erank_t *r, group_t *g, const kolo_submission_t *how, uint64_t operations)
{
    uint64_t before = operations_of(r);
    EXPECT_OK(submit(r, g, how));
    for (int i = 0; i < N; i++) {
        kolo_completion_t c;
        if (!EXPECT_OK(kolo_engine_wait(r->engine, g->handles[i], WAIT_MS, &c))) continue;
        EXPECT(g->there_out[i] || is_right(g, i));
        EXPECT(g->kind != GATHER ||
               (c.parts == g->size && c.part_rows[g->size - 1] == rows_of(GATHER, i, g->size - 1)));
    }
    EXPECT(operations_of(r) - before == operations);
}

/* ---- on the CPU ---- */

static void run_both(erank_t *r)
{
    const uint64_t *operations = r->arg;
    group_t *g = malloc(sizeof *g);
    if (!g) abort();
    for (int round = 0; round < 3; round++) /* not cached, then cached */
        for (int kind = GATHER; kind <= SCATTER; kind++) {
            make_group(g, (kind_t)kind, 0, r->rank, r->size);
            run_group(r, g, NULL, *operations);
        }
    free(g);
}

static void a_group_is_one_operation(void **state)
{
    uint64_t operations = 1;
    (void)state;
    for (int n = 1; n <= RANKS; n++) assert_int_equal(run_engines(n, NULL, run_both, &operations), 0);
}

static void without_fusion_each_has_its_own(void **state)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    uint64_t operations = N;
    (void)state;
    config.fusion_threshold = 0;
    assert_int_equal(run_engines(3, &config, run_both, &operations), 0);
}

static void run_in_set(erank_t *r)
{
    static const int ranks[] = {0, 2, 3};
    const kolo_submission_t how = {.set = 1};
    group_t *g = malloc(sizeof *g);
    int id;
    if (!g) abort();
    EXPECT_OK(kolo_engine_add_set(r->engine, ranks, 3, &id));
    for (int kind = GATHER; kind <= SCATTER && r->rank != 1; kind++) {
        make_group(g, (kind_t)kind, id, r->rank ? r->rank - 1 : 0, 3);
        run_group(r, g, &how, 1);
    }
    meet();
    free(g);
}

static void sets_have_ranks_of_their_own(void **state)
{
    (void)state;
    assert_int_equal(run_engines(4, NULL, run_in_set, NULL), 0);
}

/* ---- one rank without memory ---- */

static void *allocate_most(void *arg, int index, size_t bytes, int ndims, const int64_t *shape)
{
    group_t *g = arg;
    (void)ndims, (void)shape;
    EXPECT(bytes <= sizeof g->out[0]);
    return g->rank == 1 && index == 5 ? NULL : g->out[index];
}

static void lack_memory(erank_t *r)
{
    group_t *g = malloc(sizeof *g);
    if (!g) abort();
    for (int kind = GATHER; kind <= SCATTER; kind++) {
        const kolo_submission_t how = {.allocate = allocate_most, .arg = g};
        make_group(g, (kind_t)kind, 0, r->rank, r->size);
        for (int i = 0; i < N; i++) g->tensors[i].output = NULL;
        EXPECT_OK(submit(r, g, &how));
        for (int i = 0; i < N; i++) {
            kolo_status_t status = kolo_engine_wait(r->engine, g->handles[i], WAIT_MS, NULL);
            if (r->rank == 1 && i == 5)
                EXPECT_ERROR(KOLO_ERR_NO_MEMORY, status, g->names[i]);
            else if (EXPECT_OK(status))
                EXPECT(is_right(g, i));
        }
    }
    free(g);
}

static void a_rank_without_memory_fails_that_tensor_alone(void **state)
{
    (void)state;
    assert_int_equal(run_engines(3, NULL, lack_memory, NULL), 0);
}

/* ---- on devices of some ranks ---- */

static void place(group_t *g, fake_t *f, fake_queue_t *q, int i)
{
    g->tensors[i].input = g->there_in[i] = fake_alloc(f, sizeof g->in[i]);
    g->tensors[i].output = g->there_out[i] = fake_alloc(f, sizeof g->out[i]);
    fake_write(q, g->there_in[i], g->in[i], sizeof g->in[i]);
}

static void check_there(group_t *g, fake_t *f, fake_queue_t *q)
{
    for (int i = 0; i < N; i++) {
        if (!g->there_out[i]) continue;
        fake_read(q, g->there_out[i], g->out[i], sizeof g->out[i]);
        EXPECT(is_right(g, i));
        fake_free(f, g->there_in[i]);
        fake_free(f, g->there_out[i]);
    }
}

/* Rank 0 has all of it on the CPU, the others on their devices. */
static void run_there(erank_t *r)
{
    fake_t *f = fakes[r->rank];
    fake_queue_t *q = fake_queue_new(f);
    group_t *g = malloc(sizeof *g);
    if (!g) abort();
    for (int turn = 0; turn < 4; turn++) {
        make_group(g, turn % 2 ? SCATTER : GATHER, 0, r->rank, r->size);
        for (int i = 0; i < N && r->rank > 0; i++) place(g, f, q, i);
        fake_event_t *ready = fake_event_new(q);
        kolo_tensor_memory_t memory = {r->rank, ready, NULL};
        run_group(r, g, &(kolo_submission_t){.memory = r->rank > 0 ? &memory : NULL}, 1);
        check_there(g, f, q);
        fake_event_end(ready);
    }
    free(g);
    fake_queue_end(q);
}

/* A rank has a third of them on its device. */
static void run_mixed(erank_t *r)
{
    fake_t *f = fakes[r->rank];
    fake_queue_t *q = fake_queue_new(f);
    group_t *g = malloc(sizeof *g);
    fake_event_t *ready[N] = {NULL};
    if (!g) abort();
    for (int turn = 0; turn < 4; turn++) {
        make_group(g, turn % 2 ? SCATTER : GATHER, 0, r->rank, r->size);
        for (int i = 0; i < N; i++) {
            kolo_tensor_memory_t memory = {r->rank, NULL, NULL};
            bool there = i % 3 == r->rank;
            const kolo_submission_t how = {.memory = there ? &memory : NULL};
            if (there) place(g, f, q, i);
            if (there) memory.ready = ready[i] = fake_event_new(q);
            if (g->kind == GATHER)
                EXPECT_OK(kolo_engine_all_gather(r->engine, &g->tensors[i], &how, &g->handles[i]));
            else
                EXPECT_OK(
                    kolo_engine_reduce_scatter(r->engine, &g->tensors[i], KOLO_SUM, 2, 3, &how, &g->handles[i]));
        }
        for (int i = 0; i < N; i++) {
            EXPECT_OK(kolo_engine_wait(r->engine, g->handles[i], WAIT_MS, NULL));
            EXPECT(g->there_out[i] || is_right(g, i));
            if (g->there_out[i]) fake_event_end(ready[i]);
        }
        check_there(g, f, q);
    }
    free(g);
    fake_queue_end(q);
}

static void tensors_on_devices_of_some_ranks_go_along(void **state)
{
    (void)state;
    for (unsigned flags = 0; flags <= FAKE_TELLS; flags++) {
        assert_int_equal(run_on_fakes(3, flags, NULL, run_there), 0);
        assert_int_equal(run_on_fakes(3, flags, NULL, run_mixed), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_is_one_operation),
        cmocka_unit_test(without_fusion_each_has_its_own),
        cmocka_unit_test(sets_have_ranks_of_their_own),
        cmocka_unit_test(a_rank_without_memory_fails_that_tensor_alone),
        cmocka_unit_test(tensors_on_devices_of_some_ranks_go_along),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
