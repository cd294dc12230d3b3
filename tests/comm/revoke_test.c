/* SPDX-License-Identifier: Apache-2.0
 *
 * Revoke: one rank calls, and the work of all ends; what may be done with the communicator afterwards, and what
 * not.
 */
#include "kit/ranks.h"

#include <stdlib.h>

/* Rank 0 revokes what the others are in. */
static void leave_together(rank_t *r)
{
    int32_t *x = calloc(100000, sizeof *x);
    kolo_comm_t rest = NULL, other = NULL;
    kolo_status_t state;
    kolo_unique_id_t id;
    int lost[4], n = 4;
    EXPECT(works(r->comm));
    meet();
    uint64_t start = now_ms();
    if (r->rank == 0) {
        nap_ms(50);
        EXPECT_OK(kolo_comm_revoke(r->comm));
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_revoke(r->comm), "already");
    } else {
        EXPECT_ERROR(KOLO_ERR_REVOKED, kolo_all_reduce(x, x, 100000, KOLO_INT32, KOLO_SUM, r->comm, NULL), "rank 0",
                     "revoked");
        EXPECT(IN_TIME(now_ms() - start < 2000));
    }
    EXPECT_ERROR(KOLO_ERR_REVOKED, kolo_barrier(r->comm, NULL), "revoked");
    EXPECT_OK(kolo_comm_get_async_error(r->comm, &state));
    EXPECT(state == KOLO_ERR_REVOKED);
    EXPECT_IS(KOLO_ERR_REVOKED, kolo_comm_finalize(r->comm));
    EXPECT_IS(KOLO_ERR_REVOKED, kolo_comm_split(r->comm, 0, 0, &other, NULL));
    EXPECT_IS(KOLO_ERR_REVOKED, kolo_comm_get_grow_id(r->comm, &id));
    EXPECT_IS(KOLO_ERR_REVOKED, kolo_comm_grow(r->comm, r->nranks + 1, NULL, -1, &other, NULL));
    EXPECT_OK(kolo_comm_lost(r->comm, lost, &n));
    EXPECT(n == 0 && !other);
    if (r->rank > 0) nap_ms(100); /* rank 0 is in the shrink of all before the others come to that without it */
    if (r->rank > 0 && EXPECT_OK(kolo_comm_shrink(r->comm, (int[]){0}, 1, 0, &other, NULL))) {
        EXPECT(works(other));
        end_comm(&other);
    }
    if (EXPECT_OK(kolo_comm_shrink(r->comm, NULL, 0, r->arg ? KOLO_SHRINK_ABORT : 0, &rest, NULL))) {
        EXPECT_OK(kolo_comm_count(rest, &n));
        EXPECT(n == r->nranks && works(rest));
        end_comm(&rest);
    }
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(x);
}

static void all_are_out_and_may_shrink(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(1, leave_together, NULL), 0);
    assert_int_equal(run_ranks(2, leave_together, NULL), 0);
    assert_int_equal(run_ranks(6, leave_together, NULL), 0);
    assert_int_equal(run_ranks(6, leave_together, ""), 0);
}

static void revoke_all_at_once(rank_t *r)
{
    meet();
    EXPECT_OK(kolo_comm_revoke(r->comm));
    EXPECT_IS(KOLO_ERR_REVOKED, kolo_barrier(r->comm, NULL));
}

static void all_may_call_at_the_same_time(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(5, revoke_all_at_once, NULL), 0);
}

static void revoke_the_parent(rank_t *r)
{
    kolo_comm_t half = NULL, rest = NULL;
    EXPECT_OK(kolo_comm_split(r->comm, r->rank % 2, 0, &half, NULL));
    if (r->rank > 0) EXPECT_OK(kolo_comm_shrink(r->comm, (int[]){0}, 1, 0, &rest, NULL));
    meet();
    if (r->rank == 1) EXPECT_OK(kolo_comm_revoke(r->comm));
    EXPECT_IS(KOLO_ERR_REVOKED, kolo_barrier(r->comm, NULL));
    EXPECT(works(half));
    if (rest) EXPECT(works(rest));
    end_comm(&half);
    end_comm(&rest);
}

static void children_go_on(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(4, revoke_the_parent, NULL), 0);
}

static void revoke_queued_work(rank_t *r)
{
    int32_t x[8] = {0};
    kolo_stream_t stream;
    EXPECT(works(r->comm));
    EXPECT_OK(kolo_stream_create(&stream));
    if (r->rank > 0)
        for (int i = 0; i < 5; i++) EXPECT_OK(kolo_all_reduce(x, x, 8, KOLO_INT32, KOLO_SUM, r->comm, stream));
    meet();
    if (r->rank == 0) EXPECT_OK(kolo_comm_revoke(r->comm));
    if (r->rank > 0) EXPECT_IS(KOLO_ERR_REVOKED, kolo_stream_synchronize(stream));
    EXPECT_OK(kolo_stream_destroy(stream));
}

static void queued_work_ends(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, revoke_queued_work, NULL), 0);
}

/* Ranks 1 and 2 leave; the others count them and shrink without naming them. */
static void count_the_lost(rank_t *r)
{
    int lost[8] = {-1, -1, -1}, n = 8, none = 0;
    kolo_comm_t rest = NULL;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_lost(r->comm, lost, NULL), "count");
    EXPECT(works(r->comm));
    meet();
    if (r->rank == 1 || r->rank == 2) {
        EXPECT_OK(kolo_comm_abort(r->comm));
        r->comm = NULL;
        meet();
        return;
    }
    EXPECT_IS(KOLO_ERR_REMOTE, kolo_barrier(r->comm, NULL));
    if (EXPECT_OK(kolo_comm_shrink(r->comm, NULL, 0, r->arg ? KOLO_SHRINK_ABORT : 0, &rest, NULL))) {
        EXPECT_OK(kolo_comm_count(rest, &n));
        EXPECT(n <= r->nranks - 1 && n >= r->nranks - 2 && works(rest)); /* the second may have been in time */
    }
    n = 8;
    EXPECT_OK(kolo_comm_lost(r->comm, NULL, &none));
    EXPECT_OK(kolo_comm_lost(r->comm, lost, &n));
    EXPECT(n >= 1 && n <= 2 && lost[0] >= 1 && lost[n - 1] <= 2 && none >= 1);
    meet();
    if (rest) EXPECT_OK(kolo_comm_destroy(rest));
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
}

static void nobody_needs_to_name_the_lost(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(6, count_the_lost, NULL), 0);
    assert_int_equal(run_ranks(6, count_the_lost, ""), 0);
}

static void null_is_fine(void **state)
{
    (void)state;
    assert_int_equal(kolo_comm_revoke(NULL), KOLO_OK);
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_are_out_and_may_shrink),
        cmocka_unit_test(all_may_call_at_the_same_time),
        cmocka_unit_test(children_go_on),
        cmocka_unit_test(queued_work_ends),
        cmocka_unit_test(nobody_needs_to_name_the_lost),
        cmocka_unit_test(null_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
