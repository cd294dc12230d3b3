/* SPDX-License-Identifier: Apache-2.0
 *
 * Grow as its users call it, ranks as threads: old ranks keep their numbers and their communicator, new ones join,
 * and what goes wrong on one side is told on the other.
 */
#include "kit/ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In which five ranks must have checked in, and the bound of what must not wait for a far larger limit. */
#ifdef KOLO_SANITIZED
#define SHORT_MS 2100
#else
#define SHORT_MS 700
#endif
#define SOON_MS 20000

static struct {
    kolo_unique_id_t first, grow;
    int old, total;
} job;

/* The old communicator, with all ready; NULL on new ranks. */
static kolo_comm_t start_old(const rank_t *r, int gateway)
{
    kolo_comm_t comm = NULL;
    if (r->rank == 0) EXPECT_OK(kolo_get_unique_id(&job.first));
    meet();
    if (r->rank < job.old) EXPECT_OK(kolo_comm_init_rank(&comm, job.old, job.first, r->rank, NULL));
    if (r->rank == gateway) EXPECT_OK(kolo_comm_get_grow_id(comm, &job.grow));
    meet();
    return comm;
}

static kolo_status_t call(const rank_t *r, kolo_comm_t comm, int gateway, kolo_comm_t *out,
                          const kolo_config_t *config)
{
    if (r->rank >= job.old) return kolo_comm_grow(NULL, job.total, &job.grow, r->rank, out, config);
    return kolo_comm_grow(comm, job.total, r->rank == gateway ? &job.grow : NULL, -1, out, config);
}

static void check_grown(const rank_t *r, kolo_comm_t grown)
{
    int n = 0, me = -1;
    EXPECT_OK(kolo_comm_count(grown, &n));
    EXPECT_OK(kolo_comm_user_rank(grown, &me));
    EXPECT(n == job.total && me == r->rank);
    EXPECT(works(grown));
}

static int run_job(int old, int total, void (*fn)(rank_t *))
{
    job.old = old;
    job.total = total;
    return run_threads(total, fn, NULL);
}

/* ---- what works ---- */

static void grow_once(rank_t *r)
{
    kolo_comm_t comm = start_old(r, job.old - 1), grown = NULL;
    if (EXPECT_OK(call(r, comm, job.old - 1, &grown, NULL))) check_grown(r, grown);
    if (comm) EXPECT(works(comm)); /* and serves on */
    end_comm(&grown);
    end_comm(&comm);
}

static void new_ranks_join(void **state)
{
    (void)state;
    assert_int_equal(run_job(1, 2, grow_once), 0);
    assert_int_equal(run_job(2, 3, grow_once), 0);
    assert_int_equal(run_job(3, 8, grow_once), 0);
    assert_int_equal(run_job(4, 8, grow_once), 0);
}

static bool await_ready(kolo_comm_t comm, kolo_status_t *state)
{
    uint64_t start = now_ms();
    *state = KOLO_IN_PROGRESS;
    while (*state == KOLO_IN_PROGRESS && now_ms() - start < 20000) {
        EXPECT_OK(kolo_comm_get_async_error(comm, state));
        nap_ms(1);
    }
    return *state == KOLO_OK;
}

/* New ranks come late, the last of them last; the old ones work until they are there. */
static void grow_beside_the_work(rank_t *r)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t comm = start_old(r, 0), grown = NULL;
    kolo_status_t state;
    int n;
    bool last = r->rank == job.total - 1;
    config.blocking = 0;
    if (!comm) meet();
    if (last) meet();
    EXPECT_IS(KOLO_IN_PROGRESS, call(r, comm, 0, &grown, &config));
    if (!last) {
        EXPECT_IS(KOLO_ERR_INVALID_USAGE, kolo_comm_count(grown, &n));
        EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_barrier(grown, NULL), "not ready");
    }
    if (comm) {
        for (int i = 0; i < 50; i++) EXPECT(works(comm));
        meet();
    }
    if (!last) meet();
    EXPECT(await_ready(grown, &state));
    check_grown(r, grown);
    if (comm) EXPECT_OK(kolo_comm_destroy(comm));
    EXPECT(works(grown));
    EXPECT_OK(kolo_comm_destroy(grown));
}

static void the_old_serves_meanwhile(void **state)
{
    (void)state;
    assert_int_equal(run_job(3, 5, grow_beside_the_work), 0);
}

/* Up and down again, each from the one before. */
static void grow_and_shrink(rank_t *r)
{
    kolo_comm_t comm = start_old(r, 1), grown = NULL, rest = NULL;
    EXPECT_OK(call(r, comm, 1, &grown, NULL));
    check_grown(r, grown);
    if (r->rank < job.old) {
        int out[MAX_RANKS];
        for (int i = job.old; i < job.total; i++) out[i - job.old] = i;
        EXPECT_OK(kolo_comm_shrink(grown, out, job.total - job.old, 0, &rest, NULL));
        EXPECT(works(rest));
        EXPECT_OK(kolo_comm_destroy(rest));
    }
    meet();
    EXPECT_OK(kolo_comm_destroy(grown));
    if (comm) EXPECT_OK(kolo_comm_destroy(comm));
}

static void what_has_grown_may_shrink(void **state)
{
    (void)state;
    assert_int_equal(run_job(2, 6, grow_and_shrink), 0);
}

/* ---- what goes wrong ---- */

static void one_new_rank_stays_away(rank_t *r)
{
    uint64_t start = now_ms();
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t comm = start_old(r, 0), grown = NULL;
    config.init_timeout_ms = SHORT_MS;
    if (r->rank != 4) EXPECT_ERROR(KOLO_ERR_TIMEOUT, call(r, comm, 0, &grown, &config), "rank 4 (never called)");
    EXPECT(IN_TIME(now_ms() - start < SHORT_MS + SOON_MS) && !grown);
    EXPECT(r->rank == 4 || now_ms() - start >= SHORT_MS * 4 / 5 - 2); /* when the root speaks */
    meet();
    if (comm) EXPECT(works(comm)); /* nothing has happened to the old one */
    end_comm(&comm);
}

static void a_missing_new_rank_is_named(void **state)
{
    (void)state;
    assert_int_equal(run_job(3, 6, one_new_rank_stays_away), 0);
}

/* Rank 1 aborts its old communicator while new ranks are awaited. */
static void lose_an_old_rank(rank_t *r)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t comm = start_old(r, 0), grown = NULL;
    kolo_status_t state;
    config.init_timeout_ms = 20000;
    config.blocking = 0;
    if (r->rank < job.old) {
        uint64_t start = now_ms();
        EXPECT_IS(KOLO_IN_PROGRESS, call(r, comm, 0, &grown, &config));
        nap_ms(200);
        if (r->rank == 1) {
            EXPECT_OK(kolo_comm_abort(grown));
        } else {
            EXPECT(!await_ready(grown, &state));
            EXPECT_IS(KOLO_ERR_REMOTE, state);
            EXPECT(IN_TIME(now_ms() - start < 5000));
            EXPECT_OK(kolo_comm_destroy(grown));
        }
    }
    meet();
    end_comm(&comm);
}

static void a_loss_ends_the_wait_for_new_ranks(void **state)
{
    (void)state;
    assert_int_equal(run_job(4, 6, lose_an_old_rank), 0);
}

/* kolo_comm_abort() of the old communicator gets its rank out of a blocking grow. */
static void *abort_soon(void *arg)
{
    nap_ms(200);
    EXPECT_OK(kolo_comm_abort(arg));
    return NULL;
}

static void abort_the_old(rank_t *r)
{
    kolo_comm_t comm = start_old(r, 0), grown = NULL;
    if (r->rank < job.old) {
        pthread_t thread;
        uint64_t start = now_ms();
        if (pthread_create(&thread, NULL, abort_soon, comm)) abort();
        kolo_status_t status = call(r, comm, 0, &grown, NULL);
        EXPECT(status == KOLO_ERR_ABORTED || status == KOLO_ERR_REMOTE);
        EXPECT(IN_TIME(now_ms() - start < 5000));
        pthread_join(thread, NULL);
    }
    meet();
}

static void abort_ends_a_blocking_grow(void **state)
{
    (void)state;
    assert_int_equal(run_job(2, 4, abort_the_old), 0);
}

static void pass_two_ids(rank_t *r)
{
    kolo_comm_t comm = start_old(r, 0), grown = NULL;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_grow(comm, job.old + 1, &job.grow, -1, &grown, NULL),
                 "passed an id");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_grow(comm, job.old + 1, NULL, -1, &grown, NULL),
                 "passed an id");
    EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_comm_grow(comm, job.old + 1 + r->rank, NULL, -1, &grown, NULL),
                 "the same");
    EXPECT(works(comm));
    end_comm(&comm);
}

static void one_rank_passes_the_id(void **state)
{
    (void)state;
    assert_int_equal(run_job(2, 2, pass_two_ids), 0);
}

static void call_wrongly(rank_t *r)
{
    kolo_comm_t comm = start_old(r, 0), grown = NULL;
    kolo_unique_id_t junk = {{0}};
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_grow(NULL, 3, NULL, 2, &grown, NULL), "needs the id");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_grow(NULL, 3, &junk, 2, &grown, NULL), "comm_grow");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_grow(NULL, 3, &job.first, 2, &grown, NULL), "grow_id");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_grow(NULL, 3, &job.grow, 1, &grown, NULL), "new rank is 1");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_grow(NULL, 3, &job.grow, 3, &grown, NULL), "new rank is 3");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_grow(comm, 2, NULL, -1, &grown, NULL), "nranks is 2");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_grow(comm, 3, NULL, r->rank, &grown, NULL), "passes -1");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_grow(comm, 3, &job.first, -1, &grown, NULL), "grow_id");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_grow(comm, 3, NULL, -1, NULL, NULL), "output");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_init_rank(&grown, 2, job.grow, 0, NULL), "kolo_comm_grow");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_get_grow_id(comm, NULL), "output");
    EXPECT(!grown && works(comm));
    end_comm(&comm);
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    assert_int_equal(run_job(2, 2, call_wrongly), 0);
}

static void nothing_is_left(void **state)
{
    (void)state;
    assert_int_equal(run_job(2, 5, grow_once), 0);
    census_t before = census_take();
    for (int i = 0; i < 4; i++) assert_int_equal(run_job(2, 5, grow_once), 0);
    assert_true(census_no_more_than(before));
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_ranks_join),
        cmocka_unit_test(the_old_serves_meanwhile),
        cmocka_unit_test(what_has_grown_may_shrink),
        cmocka_unit_test(a_missing_new_rank_is_named),
        cmocka_unit_test(a_loss_ends_the_wait_for_new_ranks),
        cmocka_unit_test(abort_ends_a_blocking_grow),
        cmocka_unit_test(one_rank_passes_the_id),
        cmocka_unit_test(bad_calls_are_refused),
        cmocka_unit_test(nothing_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
