/* SPDX-License-Identifier: Apache-2.0
 *
 * Join and leave: ranks without input, the order in which they join, barriers meanwhile; a rank that shuts down or
 * aborts while others have tensors outstanding.
 */
#include "engine/kit/engines.h"

#include <stdio.h>
#include <string.h>

/* Rank r has r + 1 steps; the lower ranks join first, or the higher with `reverse`. */
typedef struct {
    bool reverse;
    int average;
} order_t;

static void join_in_order(erank_t *r)
{
    const order_t *order = r->arg;
    int mine = order->reverse ? r->size - r->rank : r->rank + 1;
    for (int round = 0; round < 2; round++) {
        for (int step = 0; step < mine; step++) {
            int left = 0, sum = 0; /* ranks that still have this step */
            for (int i = 0; i < r->size; i++) {
                int steps = order->reverse ? r->size - i : i + 1;
                left += steps > step;
                sum += steps > step ? i + 1 : 0;
            }
            float a[2] = {(float)(r->rank + 1), 1}, s[1] = {(float)(r->rank + 1)}, lo[1] = {(float)(r->rank + 1)},
                  p[1] = {2};
            EXPECT_OK(reduce_now(r, "sum", s, 1, KOLO_SUM));
            EXPECT(s[0] == (float)sum);
            EXPECT_OK(reduce_now(r, "average", a, 2, KOLO_AVG));
            int by = order->average == KOLO_AVERAGE_ALL ? r->size : left;
            EXPECT(a[0] > (float)sum / (float)by - 1e-5f && a[0] < (float)sum / (float)by + 1e-5f);
            EXPECT_OK(reduce_now(r, "min", lo, 1, KOLO_MIN));
            EXPECT(lo[0] == (order->reverse ? 1.0f : (float)(r->size - left + 1)));
            EXPECT_OK(reduce_now(r, "product", p, 1, KOLO_PROD));
            EXPECT(p[0] == (float)(1 << left));
            EXPECT_OK(barrier_now(r));
        }
        int64_t handle;
        kolo_completion_t c;
        EXPECT_OK(kolo_engine_join(r->engine, NULL, &handle));
        EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, &c));
        EXPECT(c.last_joined == (order->reverse ? 0 : r->size - 1));
    }
    float x = 1; /* as before */
    EXPECT_OK(reduce_now(r, "sum", &x, 1, KOLO_SUM));
    EXPECT(x == (float)r->size);
}

static void ranks_join_in_any_order(void **state)
{
    (void)state;
    for (int reverse = 0; reverse < 2; reverse++) {
        for (int average = KOLO_AVERAGE_ALL; average <= KOLO_AVERAGE_CONTRIBUTORS; average++) {
            order_t order = {reverse, average};
            kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
            config.average = average;
            assert_int_equal(run_engines(4, &config, join_in_order, &order), 0);
            config.cache_capacity = 0;
            assert_int_equal(run_engines(3, &config, join_in_order, &order), 0);
        }
    }
}

static void gather_while_joined(erank_t *r)
{
    int64_t one = 1, handle;
    int32_t x = 1, out[8];
    kolo_tensor_t t = {"rows", KOLO_INT32, 1, &one, &x, out};
    for (int round = 0; round < 2; round++) { /* the second time the gather was cached */
        EXPECT_OK(kolo_engine_all_gather(r->engine, &t, NULL, &handle));
        EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
        if (r->rank != 1) {
            EXPECT_OK(kolo_engine_all_gather(r->engine, &t, NULL, &handle));
            if (r->rank == 0) meet();
            if (r->rank == 2) meet();
            EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_engine_wait(r->engine, handle, WAIT_MS, NULL), "rows",
                         "all_gather is not possible while rank 1 has joined");
        } else {
            meet();
        }
        EXPECT_OK(kolo_engine_join(r->engine, NULL, &handle));
        if (r->rank == 1)
            EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_engine_barrier(r->engine, NULL, NULL), "has joined");
        EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
    }
}

static void other_work_fails_while_ranks_have_joined(void **state)
{
    (void)state;
    assert_int_equal(run_engines(3, NULL, gather_while_joined, NULL), 0);
}

/* ---- leaving ---- */

static void leave_early(erank_t *r)
{
    float x = 1;
    int64_t one = 1, handle = -1;
    kolo_tensor_t t = float_tensor("lonely", &x, &one);
    EXPECT_OK(reduce_now(r, "common", &x, 1, KOLO_SUM));
    if (r->rank != 1) EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, &handle));
    meet();
    if (r->rank == 1) {
        EXPECT_OK(kolo_engine_shutdown(r->engine));
        r->engine = NULL;
        return;
    }
    EXPECT_ERROR(KOLO_ERR_ABORTED, kolo_engine_wait(r->engine, handle, WAIT_MS, NULL), "lonely",
                 "rank 1 has shut the engine down");
    EXPECT_ERROR(KOLO_ERR_ABORTED, kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, NULL),
                 "rank 1 has shut the engine down");
}

static void a_rank_that_leaves_ends_it_for_all(void **state)
{
    (void)state;
    for (int n = 2; n <= 4; n++) assert_int_equal(run_engines(n, NULL, leave_early, NULL), 0);
}

static void abort_one(rank_t *r)
{
    erank_t e = {r->rank, r->nranks, r->comm, NULL, NULL};
    float x = 1;
    int64_t one = 1, handle = -1;
    kolo_tensor_t t = float_tensor("lonely", &x, &one);
    if (!EXPECT_OK(kolo_engine_init(&e.engine, r->comm, NULL))) return;
    EXPECT_OK(reduce_now(&e, "common", &x, 1, KOLO_SUM));
    if (r->rank != 1) EXPECT_OK(kolo_engine_all_reduce(e.engine, &t, KOLO_SUM, 1, 1, NULL, &handle));
    meet();
    if (r->rank == 1) {
        EXPECT_OK(kolo_engine_abort(e.engine));
    } else {
        EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_engine_wait(e.engine, handle, WAIT_MS, NULL), "lonely", "rank 1");
        EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_engine_shutdown(e.engine), "rank 1");
    }
    meet();
    EXPECT(works(r->comm)); /* the caller's communicator has not noticed */
}

static void an_abort_is_noticed_by_sleepers(void **state)
{
    census_t before = census_take();
    (void)state;
    assert_int_equal(run_ranks(3, abort_one, NULL), 0);
    assert_true(census_no_more_than(before));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_join_in_any_order),
        cmocka_unit_test(other_work_fails_while_ranks_have_joined),
        cmocka_unit_test(a_rank_that_leaves_ends_it_for_all),
        cmocka_unit_test(an_abort_is_noticed_by_sleepers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
