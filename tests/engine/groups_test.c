/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups of every operation: nothing of a group is done before all of it is there on all ranks, results are those
 * of the operation, again from the cache, and a group one of whose tensors is refused leaves nothing behind.
 */
#include "engine/kit/engines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS   3
#define MEMBERS 3
#define ROWS    6 /* divided evenly by the ranks */
#define ROUNDS  3

typedef enum { GATHER, BROADCAST, EXCHANGE, SCATTER, KINDS } kind_t;

typedef struct {
    float in[MEMBERS][ROWS + MEMBERS], out[MEMBERS][RANKS * (ROWS + MEMBERS)];
    char names[MEMBERS][32];
    int64_t shapes[MEMBERS][1], handles[MEMBERS];
    kolo_tensor_t tensors[MEMBERS];
} group_t;

/* Rank r's row k of tensor i holds 100 i + 10 r + k. Gathered tensors have i + 1 + r rows, the others ROWS. */
static void make(group_t *g, kind_t kind, int rank)
{
    for (int i = 0; i < MEMBERS; i++) {
        int rows = kind == GATHER ? i + 1 + rank : ROWS;
        for (int k = 0; k < rows; k++) g->in[i][k] = (float)(100 * i + 10 * rank + k);
        memset(g->out[i], 0, sizeof g->out[i]);
        snprintf(g->names[i], sizeof g->names[i], "kind.%d.member.%d", (int)kind, i);
        g->shapes[i][0] = rows;
        g->tensors[i] = (kolo_tensor_t){g->names[i], KOLO_FLOAT32, 1, g->shapes[i], g->in[i], g->out[i]};
    }
}

/* Each tensor has an output of its own, which the index alone tells. */
static void *output_of(void *arg, int index, size_t bytes, int ndims, const int64_t *shape)
{
    group_t *g = arg;
    (void)ndims, (void)shape;
    EXPECT(index >= 0 && index < MEMBERS && bytes <= sizeof g->out[0]);
    return g->out[index];
}

static kolo_status_t submit(erank_t *r, kind_t kind, group_t *g, int root)
{
    static const int64_t splits[RANKS] = {1, 2, 3};
    const int64_t *const tables[MEMBERS] = {splits, NULL, splits};
    switch (kind) {
    case GATHER:
        for (int i = 0; i < MEMBERS; i++) g->tensors[i].output = NULL;
        return kolo_engine_all_gather_group(r->engine, g->tensors, MEMBERS,
                                            &(kolo_submission_t){.allocate = output_of, .arg = g}, g->handles);
    case BROADCAST:
        return kolo_engine_broadcast_group(r->engine, g->tensors, MEMBERS, root, NULL, g->handles);
    case EXCHANGE:
        return kolo_engine_all_to_all_group(r->engine, g->tensors, MEMBERS, tables, NULL, g->handles);
    default:
        return kolo_engine_reduce_scatter_group(r->engine, g->tensors, MEMBERS, KOLO_SUM, 1, 2, NULL, g->handles);
    }
}

static void check(kind_t kind, const group_t *g, int rank)
{
    for (int i = 0; i < MEMBERS; i++) {
        const float *out = g->out[i];
        int n = 0;
        for (int from = 0; from < RANKS; from++) {
            int first = 0, rows = 0;
            if (kind == GATHER) rows = i + 1 + from;
            if (kind == EXCHANGE && i == 1) first = 2 * rank, rows = 2;
            if (kind == EXCHANGE && i != 1) first = rank * (rank + 1) / 2, rows = rank + 1;
            for (int k = 0; k < rows; k++) EXPECT(out[n++] == (float)(100 * i + 10 * from + first + k));
        }
        for (int k = 0; k < ROWS && kind == BROADCAST; k++) EXPECT(out[k] == (float)(100 * i + 10 + k));
        for (int k = 0; k < 2 && kind == SCATTER; k++)
            EXPECT(out[k] == 2 * (float)(300 * i + 30 + 3 * (2 * rank + k)));
    }
}

static void run_groups(erank_t *r)
{
    group_t *g = calloc(KINDS, sizeof *g);
    if (!g) abort();
    for (int round = 0; round < ROUNDS; round++) {
        for (int kind = 0; kind < KINDS; kind++) {
            int complete = 1;
            make(&g[kind], (kind_t)kind, r->rank);
            if (r->rank != round) EXPECT_OK(submit(r, (kind_t)kind, &g[kind], 1));
            EXPECT_OK(barrier_now(r)); /* so the others' groups have been agreed on as far as can be */
            for (int i = 0; i < MEMBERS && r->rank != round; i++) {
                EXPECT_OK(kolo_engine_poll(r->engine, g[kind].handles[i], &complete));
                EXPECT(!complete);
            }
            EXPECT_OK(barrier_now(r));
            if (r->rank == round) EXPECT_OK(submit(r, (kind_t)kind, &g[kind], 1));
            for (int i = 0; i < MEMBERS; i++)
                EXPECT_OK(kolo_engine_wait(r->engine, g[kind].handles[i], WAIT_MS, NULL));
            check((kind_t)kind, &g[kind], r->rank);
        }
    }
    free(g);
}

static void refuse_groups(erank_t *r)
{
    group_t *g = calloc(1, sizeof *g);
    if (!g) abort();
    for (int kind = 0; kind < KINDS; kind++) {
        make(g, (kind_t)kind, r->rank);
        g->tensors[2].type = KOLO_TYPE_COUNT;
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, submit(r, (kind_t)kind, g, 1), "member.2", "_group");
        g->tensors[2].type = KOLO_FLOAT32;
        EXPECT_OK(submit(r, (kind_t)kind, g, 1)); /* the first two are not outstanding */
        for (int i = 0; i < MEMBERS; i++) EXPECT_OK(kolo_engine_wait(r->engine, g->handles[i], WAIT_MS, NULL));
        check((kind_t)kind, g, r->rank);
    }
    make(g, BROADCAST, r->rank);
    EXPECT_OK(submit(r, BROADCAST, g, r->rank == 2 ? 0 : 1));
    for (int i = 0; i < MEMBERS; i++)
        EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_engine_wait(r->engine, g->handles[i], WAIT_MS, NULL), g->names[i],
                     "root 0");
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_all_gather_group(r->engine, NULL, 2, NULL, NULL));
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_all_gather_group(r->engine, g->tensors, 0, NULL, NULL));
    free(g);
}

static void groups_of_all_operations_are_done_as_a_whole(void **state)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    (void)state;
    assert_int_equal(run_engines(RANKS, &config, run_groups, NULL), 0);
    config.cache_capacity = 0;
    assert_int_equal(run_engines(RANKS, &config, run_groups, NULL), 0);
}

static void a_group_that_is_refused_leaves_nothing(void **state)
{
    (void)state;
    assert_int_equal(run_engines(RANKS, NULL, refuse_groups, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_all_operations_are_done_as_a_whole),
        cmocka_unit_test(a_group_that_is_refused_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
