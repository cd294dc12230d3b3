/* SPDX-License-Identifier: Apache-2.0
 *
 * Process sets: given at the start or made at run time, all operations within them, sets that overlap, the errors;
 * and that a set which has nothing to say costs nothing.
 */
#include "engine/kit/engines.h"

#include <stdio.h>
#include <string.h>

/* ---- small things ---- */

static kolo_status_t finish(erank_t *r, kolo_status_t status, const int64_t *handle, kolo_completion_t *c)
{
    return status == KOLO_OK ? kolo_engine_wait(r->engine, *handle, WAIT_MS, c) : status;
}

static kolo_status_t reduce_in(erank_t *r, int set, const char *name, float *data, int64_t count, kolo_op_t op)
{
    const kolo_submission_t how = {.set = set};
    kolo_tensor_t t = float_tensor(name, data, &count);
    int64_t handle = -1;
    kolo_status_t status = kolo_engine_all_reduce(r->engine, &t, op, 1, 1, &how, &handle);
    return finish(r, status, &handle, NULL);
}

static uint64_t cycles_of(erank_t *r)
{
    kolo_engine_counters_t c;
    EXPECT_OK(kolo_engine_get_counters(r->engine, &c));
    return c.cycles;
}

/* ---- which sets there are ---- */

static void expect_set(erank_t *r, int id, const int *ranks, int count)
{
    kolo_set_info_t info;
    int got[MAX_RANKS], mine = -1;
    if (!EXPECT_OK(kolo_engine_get_set(r->engine, id, &info))) return;
    for (int i = 0; i < count; i++)
        if (ranks[i] == r->rank) mine = i;
    EXPECT(info.id == id && info.size == count && info.rank == mine && info.included == (mine >= 0));
    EXPECT_OK(kolo_engine_get_set_ranks(r->engine, id, got, MAX_RANKS));
    EXPECT(memcmp(got, ranks, (size_t)count * sizeof *got) == 0);
}

static void expect_ids(erank_t *r, const int *want, int n)
{
    int got[16], count = 0;
    EXPECT_OK(kolo_engine_get_set_ids(r->engine, got, 16, &count));
    EXPECT(count == n && memcmp(got, want, (size_t)n * sizeof *got) == 0);
}

static void add_and_remove(erank_t *r)
{
    static const int even[] = {0, 2}, unsorted[] = {3, 1, 2}, sorted[] = {1, 2, 3}, one[] = {3},
                     all[] = {0, 1, 2, 3};
    int id = -1;
    expect_ids(r, (const int[]){0}, 1);
    expect_set(r, 0, all, 4);
    EXPECT_OK(kolo_engine_add_set(r->engine, even, 2, &id));
    EXPECT(id == 1);
    EXPECT_OK(kolo_engine_add_set(r->engine, unsorted, 3, &id));
    EXPECT(id == 2);
    EXPECT_OK(kolo_engine_add_set(r->engine, one, 1, &id));
    EXPECT(id == 3);
    expect_ids(r, (const int[]){0, 1, 2, 3}, 4);
    expect_set(r, 1, even, 2);
    expect_set(r, 2, sorted, 3);
    expect_set(r, 3, one, 1);
    EXPECT_OK(kolo_engine_remove_set(r->engine, 2));
    expect_ids(r, (const int[]){0, 1, 3}, 3);
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_get_set(r->engine, 2, &(kolo_set_info_t){0}),
                 "has been removed");
    EXPECT_OK(kolo_engine_add_set(r->engine, sorted, 3, &id));
    EXPECT(id == 4); /* ids are not given twice */
    EXPECT_OK(kolo_engine_remove_set(r->engine, 1));
    EXPECT_OK(kolo_engine_remove_set(r->engine, 4));
    EXPECT_OK(kolo_engine_remove_set(r->engine, 3));
    expect_ids(r, (const int[]){0}, 1);
    float x = 1;
    EXPECT_OK(reduce_now(r, "x", &x, 1, KOLO_SUM));
    EXPECT(x == 4);
    EXPECT_OK(kolo_engine_add_set(r->engine, even, 2, &id));
    EXPECT(id == 5);
    x = 1;
    EXPECT_OK(reduce_now(r, "x", &x, 1, KOLO_SUM));
    EXPECT(x == 4);
    if (r->rank % 2 == 0) EXPECT_OK(reduce_in(r, 5, "x", &x, 1, KOLO_SUM));
    EXPECT(x == (r->rank % 2 ? 4 : 8));
}

static void sets_come_and_go(void **state)
{
    (void)state;
    assert_int_equal(run_engines(4, NULL, add_and_remove, NULL), 0);
}

static void use_first_sets(erank_t *r)
{
    static const int low[] = {0, 1}, high[] = {1, 2};
    expect_ids(r, (const int[]){0, 1, 2}, 3);
    expect_set(r, 1, low, 2);
    expect_set(r, 2, high, 2);
    for (int round = 0; round < 3; round++) {
        float a = 1, b = 10, c = 100;
        if (r->rank < 2) EXPECT_OK(reduce_in(r, 1, "t", &a, 1, KOLO_SUM));
        if (r->rank > 0) EXPECT_OK(reduce_in(r, 2, "t", &b, 1, KOLO_SUM));
        EXPECT_OK(reduce_in(r, 0, "t", &c, 1, KOLO_SUM));
        EXPECT(a == (r->rank < 2 ? 2 : 1) && b == (r->rank > 0 ? 20 : 10) && c == 300);
    }
}

static void sets_may_be_given_at_the_start(void **state)
{
    static const int low[] = {0, 1}, high[] = {2, 1};
    const kolo_rank_list_t sets[] = {{low, 2}, {high, 2}};
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    (void)state;
    config.nsets = 2;
    config.sets = sets;
    assert_int_equal(run_engines(3, &config, use_first_sets, NULL), 0);
}

static void start_wrongly(rank_t *r)
{
    const int mine[] = {0, r->rank}, far[] = {0, 3}, pair[] = {0, 1};
    kolo_rank_list_t sets[2] = {{mine, 1 + (r->rank > 0)}};
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    kolo_tensor_engine_t engine = NULL;
    config.sets = sets;
    config.nsets = 1;
    EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_engine_init(&engine, r->comm, &config), "process sets");
    sets[0] = (kolo_rank_list_t){far, 2};
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_init(&engine, r->comm, &config), "3 is no rank of 0..2");
    sets[0] = sets[1] = (kolo_rank_list_t){pair, 2};
    config.nsets = 2;
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_engine_init(&engine, r->comm, &config), "process set 1 consists of");
    config.sets = NULL;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_init(&engine, r->comm, &config), "NULL");
    EXPECT(engine == NULL);
}

static void first_sets_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, start_wrongly, NULL), 0);
}

/* ---- operations ---- */

static void all_kinds(erank_t *r)
{
    static const int members[] = {1, 2, 4};
    int set, me = r->rank == 1 ? 0 : r->rank == 2 ? 1 : 2;
    EXPECT_OK(kolo_engine_add_set(r->engine, members, 3, &set));
    if (r->rank == 0 || r->rank == 3) return;
    const kolo_submission_t how = {.set = set};
    for (int round = 0; round < 3; round++) {
        kolo_completion_t c;
        int64_t h = -1, one = 1, three = 3, four = 4, rows = me + 1;
        int32_t x[4] = {r->rank, r->rank, r->rank, r->rank}, y[8] = {0};
        kolo_tensor_t t = {"bcast", KOLO_INT32, 1, &one, x, y};
        EXPECT_OK(finish(r, kolo_engine_broadcast(r->engine, &t, 2, &how, &h), &h, NULL));
        EXPECT(y[0] == 4); /* the third rank of the set */
        t = (kolo_tensor_t){"gather", KOLO_INT32, 1, &rows, x, y};
        EXPECT_OK(finish(r, kolo_engine_all_gather(r->engine, &t, &how, &h), &h, &c));
        EXPECT(c.parts == 3 && c.part_rows[2] == 3 && y[0] == 1 && y[1] == 2 && y[3] == 4 && y[5] == 4);
        t = (kolo_tensor_t){"exchange", KOLO_INT32, 1, &three, x, y};
        EXPECT_OK(finish(r, kolo_engine_all_to_all(r->engine, &t, NULL, &how, &h), &h, NULL));
        EXPECT(y[0] == 1 && y[1] == 2 && y[2] == 4);
        t = (kolo_tensor_t){"scatter", KOLO_INT32, 1, &four, x, y};
        EXPECT_OK(finish(r, kolo_engine_reduce_scatter(r->engine, &t, KOLO_SUM, 1, 1, &how, &h), &h, &c));
        EXPECT(c.shape[0] == (me == 0 ? 2 : 1) && y[0] == 7);
        float v = (float)r->rank, w = 3;
        EXPECT_OK(reduce_in(r, set, "mean", &v, 1, KOLO_AVG));
        EXPECT(v > 2.33f && v < 2.34f);
        EXPECT_OK(reduce_in(r, set, "adasum", &w, 1, KOLO_ADASUM));
        EXPECT(w == 3);
        EXPECT_OK(finish(r, kolo_engine_barrier(r->engine, &how, &h), &h, NULL));
        if (me != 1) { /* the second joins early */
            v = 1;
            EXPECT_OK(reduce_in(r, set, "joined", &v, 1, KOLO_SUM));
            EXPECT(v == 2);
        }
        EXPECT_OK(finish(r, kolo_engine_join(r->engine, &how, &h), &h, &c));
        EXPECT(c.last_joined == 0 || c.last_joined == 2);
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_broadcast(r->engine, &t, 3, &how, &h), "0..2");
    }
}

static void every_operation_runs_within_a_set(void **state)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    (void)state;
    assert_int_equal(run_engines(5, NULL, all_kinds, NULL), 0);
    config.cache_capacity = 0;
    assert_int_equal(run_engines(5, &config, all_kinds, NULL), 0);
}

/* Rank r is in the sets of its row and of its column, and in all of them has many tensors outstanding at once. */
static void rows_and_columns(erank_t *r)
{
    enum { SIDE = 3, EACH = 40 };
    int sets[2 * SIDE];
    for (int i = 0; i < 2 * SIDE; i++) {
        int ranks[SIDE];
        for (int k = 0; k < SIDE; k++) ranks[k] = i < SIDE ? i * SIDE + k : k * SIDE + i - SIDE;
        EXPECT_OK(kolo_engine_add_set(r->engine, ranks, SIDE, &sets[i]));
    }
    int mine[3] = {sets[r->rank / SIDE], sets[SIDE + r->rank % SIDE], 0};
    static const int sizes[3] = {SIDE, SIDE, SIDE * SIDE};
    for (int round = 0; round < 4; round++) {
        static _Thread_local float data[3 * EACH];
        int64_t handles[3 * EACH], one = 1;
        for (int k = 0; k < 3 * EACH; k++) {
            int i = r->rank % 2 ? k : 3 * EACH - 1 - k; /* half of the ranks the other way round */
            const kolo_submission_t how = {.set = mine[i / EACH]};
            char name[16];
            snprintf(name, sizeof name, "t%d", i % EACH);
            data[i] = 1;
            kolo_tensor_t t = float_tensor(name, &data[i], &one);
            EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, &handles[i]));
        }
        for (int i = 0; i < 3 * EACH; i++) {
            EXPECT_OK(kolo_engine_wait(r->engine, handles[i], WAIT_MS, NULL));
            EXPECT((int)data[i] == sizes[i / EACH]);
        }
    }
}

static void sets_that_cross_do_not_wait_for_each_other(void **state)
{
    (void)state;
    assert_int_equal(run_engines(9, NULL, rows_and_columns, NULL), 0); /* and more than one level of the tree */
}

/* ---- what it costs ---- */

static void work_beside_idle_sets(erank_t *r)
{
    static const int low[] = {0, 1}, high[] = {2, 3}, odd[] = {1, 3};
    int sets[3];
    float x = 1;
    EXPECT_OK(kolo_engine_add_set(r->engine, low, 2, &sets[0]));
    EXPECT_OK(kolo_engine_add_set(r->engine, high, 2, &sets[1]));
    EXPECT_OK(kolo_engine_add_set(r->engine, odd, 2, &sets[2]));
    EXPECT_OK(reduce_now(r, "settle", &x, 1, KOLO_SUM));
    EXPECT_OK(barrier_now(r));
    meet();
    uint64_t before = cycles_of(r);
    for (int i = 0; i < 200 && r->rank < 2; i++) EXPECT_OK(reduce_in(r, sets[0], "low", &x, 1, KOLO_MIN));
    meet();
    /* what follows at once after the last barrier may still be counted here */
    EXPECT(cycles_of(r) - before <= (r->rank < 2 ? 402 : 2));
    EXPECT(r->rank >= 2 || cycles_of(r) - before >= 200);
}

static void a_set_does_not_wake_who_is_not_in_it(void **state)
{
    (void)state;
    assert_int_equal(run_engines(4, NULL, work_beside_idle_sets, NULL), 0);
}

/* ---- errors ---- */

static void lists_that_make_no_sense(erank_t *r)
{
    int twice[] = {0, 1, 0}, far[] = {0, 3}, below[] = {-1}, pair[] = {0, 1}, all[] = {2, 1, 0}, set = 77;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_add_set(r->engine, twice, 3, &set), "rank 0", "twice");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_add_set(r->engine, far, 2, &set), "3 is no rank of 0..2");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_add_set(r->engine, below, 1, &set), "-1");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_add_set(r->engine, pair, 0, &set), "at least one rank");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_add_set(r->engine, NULL, 2, &set), "at least one rank");
    /* nothing is read behind the list */
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_add_set(r->engine, all, 1 << 20, &set),
                 "of a job that has 3");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_add_set(r->engine, pair, 2, NULL), "NULL");
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_engine_add_set(r->engine, all, 3, &set), "process set 0");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_remove_set(r->engine, 0), "all ranks");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_remove_set(r->engine, 1), "no process set 1");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_get_set_ranks(r->engine, -1, pair, 2), "no process set -1");
    EXPECT(set == 77);
    EXPECT_OK(kolo_engine_add_set(r->engine, pair, 2, &set));
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_engine_add_set(r->engine, pair, 2, &set),
                 "process set 1 consists of");
    pair[1] = r->rank == 2 ? 2 : 1;
    EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_engine_add_set(r->engine, pair, 2, &set), "rank 2 sent ranks 0, 2",
                 "the others ranks 0, 1");
    EXPECT(set == 1);
}

static void wrong_lists_are_refused(void **state)
{
    (void)state;
    assert_int_equal(run_engines(3, NULL, lists_that_make_no_sense, NULL), 0);
}

static void strangers_and_quarrels(erank_t *r)
{
    static const int members[] = {1, 3};
    float x[3] = {1, 1, 1};
    int set;
    EXPECT_OK(kolo_engine_add_set(r->engine, members, 2, &set));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, reduce_in(r, 9, "x", x, 1, KOLO_SUM), "no process set 9");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, reduce_in(r, -1, "x", x, 1, KOLO_SUM), "no process set -1");
    if (r->rank % 2 == 0)
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, reduce_in(r, set, "x", x, 1, KOLO_SUM), "does not belong",
                     "ranks 1, 3");
    else
        EXPECT_ERROR(KOLO_ERR_MISMATCH, reduce_in(r, set, "x", x, r->rank, KOLO_SUM), "tensor x of process set 1",
                     "rank 3 sent shape [3]", "rank 1 shape [1]");
    EXPECT_OK(kolo_engine_remove_set(r->engine, set));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, reduce_in(r, set, "x", x, 1, KOLO_SUM), "has been removed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_remove_set(r->engine, set), "has been removed");
}

static void strangers_are_told_and_errors_name_ranks_of_the_job(void **state)
{
    (void)state;
    assert_int_equal(run_engines(4, NULL, strangers_and_quarrels, NULL), 0);
}

static void remove_while_busy(erank_t *r)
{
    static const int members[] = {0, 2};
    int set;
    int64_t handle = -1, one = 1;
    float x = 1;
    kolo_tensor_t t = float_tensor("late", &x, &one);
    EXPECT_OK(kolo_engine_add_set(r->engine, members, 2, &set));
    const kolo_submission_t how = {.set = set};
    if (r->rank == 2) EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, &handle));
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_engine_remove_set(r->engine, set), "set 1 cannot be removed",
                 "outstanding in it on rank 2");
    if (r->rank == 0) EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, &handle));
    if (r->rank != 1) EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
    EXPECT(x == (r->rank == 1 ? 1 : 2));
    int other = r->rank == 1 ? 9 : set;
    if (r->rank == 1) EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_remove_set(r->engine, other), "9");
    EXPECT_OK(kolo_engine_remove_set(r->engine, set));
}

static void a_set_with_tensors_stays(void **state)
{
    (void)state;
    assert_int_equal(run_engines(3, NULL, remove_while_busy, NULL), 0);
}

/* ---- the end ---- */

static void end_with_work_in_sets(erank_t *r)
{
    static const int low[] = {0, 1}, high[] = {1, 2};
    int sets[2];
    float x = 1, y = 1;
    int64_t one = 1, h[2] = {-1, -1};
    EXPECT_OK(kolo_engine_add_set(r->engine, low, 2, &sets[0]));
    EXPECT_OK(kolo_engine_add_set(r->engine, high, 2, &sets[1]));
    bool abort = *(const bool *)r->arg;
    const kolo_submission_t in_low = {.set = sets[0]}, in_high = {.set = sets[1]};
    kolo_tensor_t t = float_tensor("x", &x, &one), u = float_tensor("y", &y, &one);
    if (r->rank == 1) EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &in_low, &h[0]));
    if (r->rank == 2) EXPECT_OK(kolo_engine_all_reduce(r->engine, &u, KOLO_SUM, 1, 1, &in_high, &h[1]));
    meet();
    if (r->rank == 0) {
        EXPECT_OK(abort ? kolo_engine_abort(r->engine) : kolo_engine_shutdown(r->engine));
        r->engine = NULL;
        meet();
        return;
    }
    kolo_status_t status = kolo_engine_wait(r->engine, h[r->rank - 1], WAIT_MS, NULL);
    EXPECT_ERROR(abort ? KOLO_ERR_REMOTE : KOLO_ERR_ABORTED, status, "was outstanding", "rank 0");
    EXPECT(reduce_in(r, sets[1], "z", &x, 1, KOLO_SUM) == status);
    EXPECT_IS(status, kolo_engine_remove_set(r->engine, sets[1]));
    EXPECT_IS(abort ? KOLO_ERR_REMOTE : KOLO_OK, kolo_engine_shutdown(r->engine));
    r->engine = NULL;
    meet();
}

static void the_end_comes_to_all_sets(void **state)
{
    (void)state;
    for (int abort = 0; abort < 2; abort++) {
        bool how = abort;
        assert_int_equal(run_engines(3, NULL, end_with_work_in_sets, &how), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_come_and_go),
        cmocka_unit_test(sets_may_be_given_at_the_start),
        cmocka_unit_test(first_sets_that_make_no_sense_are_refused),
        cmocka_unit_test(every_operation_runs_within_a_set),
        cmocka_unit_test(sets_that_cross_do_not_wait_for_each_other),
        cmocka_unit_test(a_set_does_not_wake_who_is_not_in_it),
        cmocka_unit_test(wrong_lists_are_refused),
        cmocka_unit_test(strangers_are_told_and_errors_name_ranks_of_the_job),
        cmocka_unit_test(a_set_with_tensors_stays),
        cmocka_unit_test(the_end_comes_to_all_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
