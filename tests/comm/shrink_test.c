/* SPDX-License-Identifier: Apache-2.0
 *
 * Shrink as its users call it, ranks as threads: the new communicator has the old order without the excluded ranks
 * and works; the excluded ones need not call, and may be anywhere. Dead processes are in process_test.c.
 */
#include "kit/ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_child(const rank_t *r, kolo_comm_t child, int rank, int nranks)
{
    int n = 0, me = -1;
    EXPECT_OK(kolo_comm_count(child, &n));
    EXPECT_OK(kolo_comm_user_rank(child, &me));
    EXPECT(n == nranks && me == rank);
    EXPECT(works(child));
    (void)r;
}

/* ---- a sound parent ---- */

static void leave_some_out(rank_t *r)
{
    const int excluded[] = {3, 0};
    kolo_comm_t child = NULL;
    EXPECT(works(r->comm));
    if (r->rank != 0 && r->rank != 3) {
        EXPECT_OK(kolo_comm_shrink(r->comm, excluded, 2, KOLO_SHRINK_DEFAULT, &child, NULL));
        check_child(r, child, r->rank < 3 ? r->rank - 1 : r->rank - 2, r->nranks - 2);
        end_comm(&child);
    }
    EXPECT(works(r->comm)); /* the parent serves on, with all its ranks */
}

static void the_parent_serves_on(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(5, leave_some_out, NULL), 0);
}

/* Each time another rank is left out: those that were not asked have counted fewer shrinks. */
static void leave_out_one_after_another(rank_t *r)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.init_timeout_ms = 10000;
    for (int turn = 0; turn < 2 * r->nranks; turn++) {
        int out = turn % r->nranks;
        kolo_comm_t child = NULL;
        if (r->rank == out) continue;
        if (!EXPECT_OK(kolo_comm_shrink(r->comm, &out, 1, KOLO_SHRINK_DEFAULT, &child, &config))) return;
        check_child(r, child, r->rank < out ? r->rank : r->rank - 1, r->nranks - 1);
        end_comm(&child);
    }
}

static void who_is_left_out_may_change(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(4, leave_out_one_after_another, NULL), 0);
}

static void shrink_step_by_step(rank_t *r)
{
    kolo_comm_t comm = r->comm, child;
    for (int n = r->nranks; n > 1 && r->rank < n - 1; n--) { /* the last one goes, again and again */
        int last = n - 1;
        EXPECT_OK(kolo_comm_shrink(comm, &last, 1, KOLO_SHRINK_DEFAULT, &child, NULL));
        check_child(r, child, r->rank, n - 1);
        if (comm != r->comm) EXPECT_OK(kolo_comm_destroy(comm));
        comm = child;
    }
    if (comm != r->comm) EXPECT_OK(kolo_comm_destroy(comm));
}

static void down_to_one_rank(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(6, shrink_step_by_step, NULL), 0);
}

/* In the background, while the parent serves. */
static void shrink_beside_the_work(rank_t *r)
{
    int excluded[] = {1}, calls = 0;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t child = NULL;
    kolo_status_t state = KOLO_IN_PROGRESS;
    config.blocking = 0;
    if (r->rank != 1) EXPECT_IS(KOLO_IN_PROGRESS, kolo_comm_shrink(r->comm, excluded, 1, 0, &child, &config));
    for (; calls < 50; calls++) EXPECT(works(r->comm));
    if (!child) return;
    uint64_t start = now_ms();
    while (state == KOLO_IN_PROGRESS && now_ms() - start < 20000) {
        EXPECT_OK(kolo_comm_get_async_error(child, &state));
        nap_ms(1);
    }
    EXPECT_IS(KOLO_OK, state);
    check_child(r, child, r->rank ? r->rank - 1 : 0, r->nranks - 1);
    EXPECT_OK(kolo_comm_destroy(child));
}

static void work_goes_on_meanwhile(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(4, shrink_beside_the_work, NULL), 0);
}

/* ---- a parent that is stuck or broken ---- */

/* Rank 2 never calls the collective that the others are in. Another thread of each survivor shrinks in abort
 * mode. */
typedef struct {
    rank_t *r;
    kolo_comm_t child;
} rescue_t;

static void *rescue(void *arg)
{
    rescue_t *x = arg;
    const int excluded[] = {2};
    nap_ms(50);
    EXPECT_OK(kolo_comm_shrink(x->r->comm, excluded, 1, KOLO_SHRINK_ABORT, &x->child, NULL));
    return NULL;
}

static void be_rescued(rank_t *r)
{
    int32_t *x = calloc(200000, sizeof *x);
    EXPECT(works(r->comm));
    meet();
    if (r->rank != 2) {
        rescue_t save = {r, NULL};
        pthread_t thread;
        if (pthread_create(&thread, NULL, rescue, &save)) abort();
        uint64_t start = now_ms();
        EXPECT_ERROR(KOLO_ERR_ABORTED, kolo_all_reduce(x, x, 200000, KOLO_INT32, KOLO_SUM, r->comm, NULL), "rank");
        EXPECT(IN_TIME(now_ms() - start < 2000));
        pthread_join(thread, NULL);
        check_child(r, save.child, r->rank > 2 ? r->rank - 1 : r->rank, r->nranks - 1);
        end_comm(&save.child);
        EXPECT_ERROR(KOLO_ERR_ABORTED, kolo_barrier(r->comm, NULL), "abort mode");
        EXPECT_ERROR(KOLO_ERR_ABORTED, kolo_comm_shrink(r->comm, (int[]){2}, 1, 0, &save.child, NULL), "failure");
    }
    meet();
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(x);
}

static void a_stuck_collective_is_left_behind(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(4, be_rescued, NULL), 0);
}

/* Ranks 1 and then 3 abort, which to the others is a loss; each time the rest goes on, from the first parent. */
static void lose_two(rank_t *r)
{
    const int lost[] = {1, 3};
    kolo_comm_t child = NULL;
    EXPECT(works(r->comm));
    meet();
    if (r->rank == 1) EXPECT_OK(kolo_comm_abort(r->comm));
    if (r->rank != 1) {
        EXPECT_IS(KOLO_ERR_REMOTE, kolo_barrier(r->comm, NULL));
        EXPECT_OK(kolo_comm_shrink(r->comm, lost, 1, KOLO_SHRINK_ABORT, &child, NULL));
        check_child(r, child, r->rank ? r->rank - 1 : 0, r->nranks - 1);
        end_comm(&child);
    }
    meet();
    if (r->rank == 3) EXPECT_OK(kolo_comm_abort(r->comm));
    if (r->rank != 1 && r->rank != 3) {
        EXPECT_OK(kolo_comm_shrink(r->comm, lost, 2, KOLO_SHRINK_ABORT, &child, NULL));
        check_child(r, child, r->rank == 0 ? 0 : r->rank == 2 ? 1 : r->rank - 2, r->nranks - 2);
        end_comm(&child);
        EXPECT_OK(kolo_comm_destroy(r->comm));
    }
    r->comm = NULL;
}

static void ranks_are_lost_one_after_another(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(6, lose_two, NULL), 0);
}

/* A survivor that is lost while others shrink: they go on without it, too. */
static void lose_one_while_shrinking(rank_t *r)
{
    const int excluded[] = {0};
    kolo_comm_t child = NULL;
    EXPECT(works(r->comm));
    meet();
    if (r->rank == 2) {
        nap_ms(30);
        EXPECT_OK(kolo_comm_abort(r->comm));
        r->comm = NULL;
    } else if (r->rank != 0) {
        uint64_t start = now_ms();
        EXPECT_OK(kolo_comm_shrink(r->comm, excluded, 1, KOLO_SHRINK_ABORT, &child, NULL));
        EXPECT(IN_TIME(now_ms() - start < 5000));
        check_child(r, child, r->rank == 1 ? 0 : r->rank - 2, r->nranks - 2);
        end_comm(&child);
        EXPECT_OK(kolo_comm_destroy(r->comm));
        r->comm = NULL;
    }
    meet();
    if (r->comm) EXPECT_OK(kolo_comm_abort(r->comm));
    r->comm = NULL;
}

static void a_loss_during_shrink_is_agreed_on(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(5, lose_one_while_shrinking, NULL), 0);
}

/* ---- bad calls ---- */

/* Who is to go has gone already, which the others know or do not know yet. */
static void leave_out_who_has_gone(rank_t *r)
{
    const int excluded[] = {2};
    kolo_comm_t child = NULL;
    EXPECT(works(r->comm));
    meet();
    if (r->rank == 2) {
        EXPECT_OK(kolo_comm_abort(r->comm));
    } else {
        if (r->rank < 2) EXPECT_IS(KOLO_ERR_REMOTE, kolo_barrier(r->comm, NULL));
        EXPECT_OK(kolo_comm_shrink(r->comm, excluded, 1, KOLO_SHRINK_DEFAULT, &child, NULL));
        check_child(r, child, r->rank < 2 ? r->rank : r->rank - 1, r->nranks - 1);
        end_comm(&child);
        EXPECT_OK(kolo_comm_destroy(r->comm));
    }
    r->comm = NULL;
}

static void who_is_left_out_may_be_lost(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(4, leave_out_who_has_gone, NULL), 0);
}

/* The list has one who lives; another one is lost. */
static void leave_out_another(rank_t *r)
{
    const int excluded[] = {3};
    kolo_comm_t child = NULL;
    EXPECT(works(r->comm));
    meet();
    if (r->rank < 2) {
        EXPECT_IS(KOLO_ERR_REMOTE, kolo_barrier(r->comm, NULL));
        EXPECT_IS(KOLO_ERR_REMOTE, kolo_comm_shrink(r->comm, excluded, 1, KOLO_SHRINK_DEFAULT, &child, NULL));
    } else if (r->rank == 2) {
        EXPECT_OK(kolo_comm_abort(r->comm));
        r->comm = NULL;
    }
    meet();
    if (r->comm) EXPECT_OK(kolo_comm_abort(r->comm));
    r->comm = NULL;
}

static void a_loss_that_is_not_listed_is_told(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(4, leave_out_another, NULL), 0);
}

static void call_wrongly(rank_t *r)
{
    kolo_comm_t child = NULL;
    const int me[] = {r->rank}, far[] = {r->nranks}, twice[] = {1 - r->rank, 1 - r->rank};
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_shrink(NULL, me, 1, 0, &child, NULL), "comm_shrink");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_shrink(r->comm, NULL, 1, 0, &child, NULL), "comm_shrink",
                 "NULL");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_shrink(r->comm, me, 0, 0, &child, NULL), "comm_shrink", "0");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_shrink(r->comm, me, 1, 0, &child, NULL), "excluded");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_shrink(r->comm, far, 1, 0, &child, NULL), "excluded[0]");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_shrink(r->comm, twice, 2, 0, &child, NULL), "comm_shrink");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_shrink(r->comm, far, 1, 0, NULL, NULL), "output");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_shrink(r->comm, twice, 1, 8, &child, NULL), "flags");
    EXPECT(!child && works(r->comm));
}

static void bad_lists_are_refused(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, call_wrongly, NULL), 0);
}

static void name_different_ranks(rank_t *r)
{
    const int excluded[] = {r->rank == 1 ? 3 : 2}; /* 0 waits for 3, 1 for 2, which do not call */
    kolo_comm_t child = NULL;
    if (r->rank < 2)
        EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_comm_shrink(r->comm, excluded, 1, 0, &child, NULL), "other ranks");
    meet();
    EXPECT_OK(kolo_comm_abort(r->comm));
    r->comm = NULL;
}

static void different_lists_are_noticed(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(4, name_different_ranks, NULL), 0);
}

/* The first two give the communicator up, as after a loss. The others leave out the first one and wait for the
 * second: they are told, and come, too. */
static void give_up_beside_a_list(rank_t *r)
{
    kolo_comm_t rest = NULL;
    EXPECT(works(r->comm));
    meet();
    if (r->rank > 1)
        EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_comm_shrink(r->comm, (int[]){0}, 1, 0, &rest, NULL),
                     "rank 1 has given the communicator up");
    if (EXPECT_OK(kolo_comm_shrink(r->comm, NULL, 0, KOLO_SHRINK_ABORT, &rest, NULL)))
        check_child(r, rest, r->rank, r->nranks);
    end_comm(&rest);
}

static void who_gives_up_says_so_to_those_who_wait_for_it(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(4, give_up_beside_a_list, NULL), 0);
}

static void nothing_is_left(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(5, leave_some_out, NULL), 0);
    census_t before = census_take();
    for (int i = 0; i < 5; i++) {
        assert_int_equal(run_ranks(5, leave_some_out, NULL), 0);
        assert_int_equal(run_ranks(6, lose_two, NULL), 0);
    }
    assert_true(census_no_more_than(before));
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_parent_serves_on),
        cmocka_unit_test(who_is_left_out_may_change),
        cmocka_unit_test(down_to_one_rank),
        cmocka_unit_test(work_goes_on_meanwhile),
        cmocka_unit_test(a_stuck_collective_is_left_behind),
        cmocka_unit_test(ranks_are_lost_one_after_another),
        cmocka_unit_test(a_loss_during_shrink_is_agreed_on),
        cmocka_unit_test(who_is_left_out_may_be_lost),
        cmocka_unit_test(a_loss_that_is_not_listed_is_told),
        cmocka_unit_test(bad_lists_are_refused),
        cmocka_unit_test(different_lists_are_noticed),
        cmocka_unit_test(who_gives_up_says_so_to_those_who_wait_for_it),
        cmocka_unit_test(nothing_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
