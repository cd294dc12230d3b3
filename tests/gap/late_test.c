/* SPDX-License-Identifier: Apache-2.0
 *
 * With many ranks on a host one of them is always late: its core is busy elsewhere. Each piece of a long operation
 * must not cost such a moment of somebody's. So the others go on until the queues are full, and whoever comes finds
 * all that. One thread steps all ranks here.
 */
#include "algo/algo.h"
#include "base/test.h"
#include "exec/host/fixture.h"
#include "exec/host/task.h"

#include <stdlib.h>
#include <string.h>

#define RANKS    FIXTURE_MAX_RANKS
#define LATE     (RANKS - 1)
#define DEPTH    8u
#define SLOT     256u
#define TILES    (2 * DEPTH)
#define PATIENCE 2000

typedef struct {
    fixture_t fixture;
    fixture_task_t tasks[RANKS];
    char *src[RANKS], *dst[RANKS];
    bool done[RANKS];
} job_t;

static void bind(job_t *j, const fixture_call_t *asked, kolo_algo_t algo, uint32_t rank, size_t bytes)
{
    static const int first = 0, size = RANKS;
    int zeros[RANKS] = {0}, ranks[RANKS];
    kolo_plan_t *plan;
    fixture_call_t call = *asked;
    for (int r = 0; r < RANKS; r++) ranks[r] = r;
    const kolo_emit_env_t env = {.nranks = RANKS,
                                 .rank = rank,
                                 .root = call.root,
                                 .nnodes = 1,
                                 .node_of = zeros,
                                 .node_first = &first,
                                 .node_size = &size,
                                 .node_ranks = ranks,
                                 .fanout = true,
                                 .lanes = 1};
    call.src = j->src[rank] = malloc(bytes);
    call.dst = j->dst[rank] = malloc(bytes);
    assert_true(call.src && call.dst);
    memset(j->src[rank], (int)rank + 1, bytes);
    memset(j->dst[rank], 0, bytes);
    assert_int_equal(kolo_algo_emit(call.coll, algo, &env, &plan), KOLO_OK);
    assert_int_equal(fixture_bind_plan(&j->fixture, &j->tasks[rank], plan, &call, SLOT), KOLO_OK);
}

static job_t *open_job(const fixture_call_t *call, kolo_algo_t algo)
{
    bool split = kolo_coll_traits(call->coll)->whole;
    job_t *j = calloc(1, sizeof *j);
    assert_non_null(j);
    fixture_init(&j->fixture, RANKS, DEPTH, SLOT, 0, false);
    for (uint32_t r = 0; r < RANKS; r++) bind(j, call, algo, r, call->count * (split ? 1 : RANKS));
    return j;
}

static void close_job(job_t *j)
{
    for (int r = 0; r < RANKS; r++) {
        fixture_release(&j->tasks[r]);
        free(j->src[r]);
        free(j->dst[r]);
    }
    fixture_fini(&j->fixture);
    free(j);
}

/* Steps ranks first to last by turns until none of them has gone on for as long as they may take for late. */
static void step(job_t *j, int first, int last)
{
    for (int idle = 0; idle < PATIENCE; idle++) {
        for (int r = first; r <= last; r++) {
            bool moved = false;
            if (j->done[r]) continue;
            kolo_status_t status = j->tasks[r].task.step(&j->tasks[r].task, &moved);
            j->done[r] = status == KOLO_OK;
            assert_true(status == KOLO_OK || status == KOLO_IN_PROGRESS);
            if (moved) idle = 0;
        }
    }
}

static uint32_t tile_of_late(const job_t *j, uint32_t lane)
{
    return j->tasks[LATE].task.interp.lanes[lane].tile;
}

static void finish(job_t *j)
{
    step(j, 0, RANKS - 1);
    for (int r = 0; r < RANKS; r++) assert_true(j->done[r]);
}

static void a_late_rank_finds_a_queueful_of_everybodys_part(void **state)
{
    const fixture_call_t call = {.coll = KOLO_COLL_ALL_GATHER, .count = TILES * SLOT, .type = KOLO_INT8};
    (void)state;
    job_t *j = open_job(&call, KOLO_ALGO_DIRECT);
    step(j, 0, LATE - 1);
    step(j, LATE, LATE);
    assert_int_equal(tile_of_late(j, 1), DEPTH); /* the lane that receives */
    finish(j);
    for (int r = 0; r < RANKS; r++)
        for (int k = 0; k < RANKS; k++) assert_int_equal(j->dst[r][(size_t)(k + 1) * TILES * SLOT - 1], k + 1);
    close_job(j);
}

static void a_late_rank_finds_a_queueful_of_its_share_of_a_broadcast(void **state)
{
    const fixture_call_t call = {.coll = KOLO_COLL_BROADCAST, .count = RANKS * TILES * SLOT, .type = KOLO_INT8};
    (void)state;
    job_t *j = open_job(&call, KOLO_ALGO_DIRECT);
    step(j, 0, LATE - 1);
    step(j, LATE, LATE);
    assert_int_equal(tile_of_late(j, 0), DEPTH); /* the lane that takes its share */
    finish(j);
    for (int r = 0; r < RANKS; r++) assert_int_equal(j->dst[r][call.count - 1], 1);
    close_job(j);
}

static void a_late_rank_finds_a_queueful_to_sum(void **state)
{
    const fixture_call_t call = {.coll = KOLO_COLL_ALL_REDUCE, .count = RANKS * TILES * SLOT, .type = KOLO_INT8};
    (void)state;
    job_t *j = open_job(&call, KOLO_ALGO_DIRECT);
    step(j, 0, LATE - 1);
    step(j, LATE, LATE);
    /* what it has sent are its own inputs: all queues to the others are full */
    assert_int_equal(tile_of_late(j, 0), DEPTH);
    finish(j);
    for (int r = 0; r < RANKS; r++) assert_int_equal(j->dst[r][call.count - 1], (int8_t)(RANKS * (RANKS + 1) / 2));
    close_job(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_rank_finds_a_queueful_of_everybodys_part),
        cmocka_unit_test(a_late_rank_finds_a_queueful_of_its_share_of_a_broadcast),
        cmocka_unit_test(a_late_rank_finds_a_queueful_to_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
