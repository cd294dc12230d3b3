/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of communicators: started in the background, with several ids, all in one process, in groups; split; and
 * many at once.
 */
#include "kit/ranks.h"

#include <kolo/engine.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static kolo_status_t wait_ready(kolo_comm_t comm)
{
    kolo_status_t state = KOLO_IN_PROGRESS;
    for (uint64_t end = now_ms() + 20000; state == KOLO_IN_PROGRESS && now_ms() < end; nap_ms(1))
        if (!EXPECT_OK(kolo_comm_get_async_error(comm, &state))) return KOLO_ERR_INTERNAL;
    return state;
}

/* ---- in the background ---- */

typedef struct {
    kolo_unique_id_t ids[4];
    int nids;
} ids_t;

static void start_in_background(rank_t *r)
{
    kolo_config_t c = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t comm = NULL, half = NULL;
    int n;
    c.blocking = 0;
    if (r->rank == 1) meet(); /* rank 0 is seen while it waits */
    EXPECT_ERROR(KOLO_IN_PROGRESS, kolo_comm_init_rank(&comm, r->nranks, ((ids_t *)r->arg)->ids[0], r->rank, &c),
                 "goes on in the background");
    if (!comm) return;
    if (r->rank == 0) {
        kolo_status_t state = KOLO_OK;
        EXPECT_OK(kolo_comm_get_async_error(comm, &state));
        EXPECT_IS(KOLO_IN_PROGRESS, state);
        EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_count(comm, &n), "comm_count", "not ready");
        EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_barrier(comm, NULL), "not ready");
        EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_finalize(comm), "comm_finalize", "not ready");
        EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_split(comm, 0, 0, &half, NULL), "not ready");
    }
    if (r->rank != 1) meet();
    EXPECT_OK(wait_ready(comm));
    works(comm);
    EXPECT_ERROR(KOLO_IN_PROGRESS, kolo_comm_split(comm, r->rank % 2, 0, &half, NULL), "goes on in the background");
    if (half) {
        EXPECT_OK(wait_ready(half));
        works(half);
        EXPECT_ERROR(KOLO_IN_PROGRESS, kolo_comm_finalize(half), "goes on in the background");
        EXPECT_OK(wait_ready(half));
        EXPECT_OK(kolo_comm_destroy(half));
    }
    EXPECT_IS(KOLO_IN_PROGRESS, kolo_comm_finalize(comm));
    EXPECT_OK(wait_ready(comm));
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_barrier(comm, NULL), "finalized");
    EXPECT_OK(kolo_comm_destroy(comm));
}

static void what_does_not_block_ends_in_the_background(void **state)
{
    (void)state;
    ids_t ids;
    assert_int_equal(kolo_get_unique_id(&ids.ids[0]), KOLO_OK);
    assert_int_equal(run_threads(4, start_in_background, &ids), 0);
}

static void a_start_that_nobody_joins_can_be_dropped(void **state)
{
    (void)state;
    kolo_config_t c = KOLO_CONFIG_INITIALIZER;
    kolo_unique_id_t id;
    int before = expect_failures();
    c.blocking = 0;
    for (int i = 0; i < 2; i++) {
        kolo_comm_t comm = NULL;
        EXPECT_OK(kolo_get_unique_id(&id));
        EXPECT_IS(KOLO_IN_PROGRESS, kolo_comm_init_rank(&comm, 2, id, 0, &c));
        if (i) nap_ms(50);
        uint64_t start = now_ms();
        EXPECT_OK(i ? kolo_comm_destroy(comm) : kolo_comm_abort(comm));
        EXPECT(IN_TIME(now_ms() - start < 2000));
    }
    assert_int_equal(expect_failures() - before, 0);
}

/* ---- other ways to start ---- */

static void start_scalable(rank_t *r)
{
    const ids_t *ids = r->arg;
    if (!EXPECT_OK(kolo_comm_init_rank_scalable(&r->comm, r->nranks, r->rank, ids->nids, ids->ids, NULL))) return;
    works(r->comm);
    end_comm(&r->comm);
}

static void several_ids_make_one_communicator(void **state)
{
    (void)state;
    for (int nids = 1; nids <= 4; nids += 1) {
        ids_t ids = {.nids = nids};
        for (int i = 0; i < nids; i++) assert_int_equal(kolo_get_unique_id(&ids.ids[i]), KOLO_OK);
        assert_int_equal(run_threads(nids == 4 ? 4 : 7, start_scalable, &ids), 0);
    }
}

static void add_up(kolo_comm_t *comms, int n)
{
    int32_t in[MAX_RANKS], out[MAX_RANKS] = {0};
    EXPECT_OK(kolo_group_start());
    for (int r = 0; r < n; r++) {
        in[r] = r + 1;
        EXPECT_OK(kolo_all_reduce(&in[r], &out[r], 1, KOLO_INT32, KOLO_SUM, comms[r], NULL));
    }
    kolo_status_t status = kolo_group_end();
    for (int r = 0; r < n; r++) EXPECT_OK(settled(comms[r], status));
    for (int r = 0; r < n; r++) EXPECT(out[r] == n * (n + 1) / 2);
}

static void one_thread_holds_all_ranks(void **state)
{
    (void)state;
    kolo_comm_t comms[5];
    int before = expect_failures(), rank;
    for (int n = 1; n <= 5; n += 2) {
        memset(comms, 0, sizeof comms);
        EXPECT_OK(kolo_comm_init_all(comms, n, NULL));
        for (int r = 0; r < n; r++) EXPECT(kolo_comm_user_rank(comms[r], &rank) == KOLO_OK && rank == r);
        add_up(comms, n);
        for (int r = 0; r < n; r++) EXPECT_OK(kolo_comm_destroy(comms[r]));
    }
    assert_int_equal(expect_failures() - before, 0);
}

static void starts_of_a_group_wait_at_its_end(void **state)
{
    (void)state;
    kolo_unique_id_t id;
    kolo_comm_t comms[3] = {NULL}, late = NULL;
    int32_t one = 1;
    int before = expect_failures();
    EXPECT_OK(kolo_get_unique_id(&id));
    EXPECT_OK(kolo_group_start());
    for (int r = 0; r < 3; r++) EXPECT_OK(kolo_comm_init_rank(&comms[r], 3, id, r, NULL));
    EXPECT_OK(kolo_group_end());
    EXPECT_OK(kolo_group_start());
    for (int r = 0; r < 3; r++) EXPECT_OK(kolo_all_reduce(&one, &one, 0, KOLO_INT32, KOLO_SUM, comms[r], NULL));
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_init_rank(&late, 1, id, 0, NULL), "init", "group");
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_group_end(), "nothing of the group has run");
    EXPECT(late == NULL);
    add_up(comms, 3);
    for (int r = 0; r < 3; r++) EXPECT_OK(kolo_comm_destroy(comms[r]));
    assert_int_equal(expect_failures() - before, 0);
}

/* Without blocking, the end of the group returns at once. */
static void starts_of_a_group_may_go_on_in_the_background(void **state)
{
    (void)state;
    kolo_config_t c = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t comms[3] = {NULL};
    int before = expect_failures();
    c.blocking = 0;
    EXPECT_IS(KOLO_IN_PROGRESS, kolo_comm_init_all(comms, 3, &c));
    for (int r = 0; r < 3; r++) EXPECT_OK(wait_ready(comms[r]));
    add_up(comms, 3);
    for (int r = 0; r < 3; r++) EXPECT_IS(KOLO_IN_PROGRESS, kolo_comm_finalize(comms[r]));
    for (int r = 0; r < 3; r++) EXPECT_OK(wait_ready(comms[r]));
    for (int r = 0; r < 3; r++) EXPECT_OK(kolo_comm_destroy(comms[r]));
    assert_int_equal(expect_failures() - before, 0);
}

/* ---- split ---- */

static void split_up(rank_t *r)
{
    kolo_comm_t part = NULL, again = NULL, none = r->comm;
    int rank = -1, n = -1, color = r->rank % 2, members = (r->nranks + 1 - color) / 2;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_split(r->comm, -2, 0, &part, NULL), "comm_split", "color");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_split(r->comm, 0, 0, NULL, NULL), "comm_split", "output");
    /* larger keys go last: the order is turned round */
    if (!EXPECT_OK(kolo_comm_split(r->comm, color, -r->rank, &part, NULL))) return;
    EXPECT(kolo_comm_count(part, &n) == KOLO_OK && n == members);
    EXPECT(kolo_comm_user_rank(part, &rank) == KOLO_OK && rank == members - 1 - r->rank / 2);
    works(part);
    EXPECT_OK(kolo_comm_split(r->comm, r->rank == 0 ? KOLO_SPLIT_NOCOLOR : INT32_MAX, 7, &none, NULL));
    EXPECT((none == NULL) == (r->rank == 0));
    if (none)
        EXPECT(kolo_comm_user_rank(none, &rank) == KOLO_OK && rank == r->rank - 1); /* equal keys: old order */
    if (none) works(none);
    EXPECT_OK(kolo_comm_split(part, 0, rank, &again, NULL));
    works(r->comm);
    end_comm(&none);
    end_comm(&r->comm);
    works(part); /* children outlive their parent */
    works(again);
    end_comm(&part);
    works(again);
    end_comm(&again);
}

static void split_makes_parts_that_stand_alone(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(5, split_up, NULL), 0);
    assert_int_equal(run_ranks(1, split_up, NULL), 0);
}

/* A rank that gets no part has its next splits called before the first is over; each has its place all the same. */
static void stand_aside(rank_t *r)
{
    enum { SPLITS = 4 };
    kolo_config_t c = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t parts[SPLITS] = {NULL};
    c.blocking = 0;
    c.init_timeout_ms = 20000;
    EXPECT_IS(KOLO_IN_PROGRESS, kolo_comm_init_rank(&r->comm, r->nranks, ((ids_t *)r->arg)->ids[0], r->rank, &c));
    if (!r->comm || wait_ready(r->comm) != KOLO_OK) return;
    for (int i = 0; i < SPLITS; i++)
        EXPECT_IS(KOLO_IN_PROGRESS,
                  kolo_comm_split(r->comm, r->rank == 0 ? KOLO_SPLIT_NOCOLOR : 1, 0, &parts[i], NULL));
    for (int i = 0; i < SPLITS && r->rank > 0; i++)
        if (EXPECT_OK(wait_ready(parts[i]))) works(parts[i]);
    works(r->comm);
    for (int i = 0; i < SPLITS; i++) EXPECT_OK(kolo_comm_destroy(parts[i]));
    EXPECT_OK(kolo_comm_destroy(r->comm));
}

static void splits_without_a_part_follow_each_other(void **state)
{
    (void)state;
    ids_t ids = {.nids = 1};
    assert_int_equal(kolo_get_unique_id(&ids.ids[0]), KOLO_OK);
    assert_int_equal(run_threads(3, stand_aside, &ids), 0);
}

/* ---- several at once ---- */

static void work_alone(rank_t *r)
{
    const ids_t *ids = r->arg;
    int nranks = r->nranks / ids->nids, mine = r->rank / nranks;
    if (!EXPECT_OK(kolo_comm_init_rank(&r->comm, nranks, ids->ids[mine], r->rank % nranks, NULL))) return;
    for (int i = 0; i < 200; i++)
        if (!works(r->comm)) break;
    end_comm(&r->comm);
}

static void communicators_do_not_disturb_each_other(void **state)
{
    (void)state;
    ids_t ids = {.nids = 4};
    for (int i = 0; i < ids.nids; i++) assert_int_equal(kolo_get_unique_id(&ids.ids[i]), KOLO_OK);
    assert_int_equal(run_threads(12, work_alone, &ids), 0);
}

/* A child of fork() may do nothing to its parent's communicator; the parent goes on. */
static void fork_in_the_middle(rank_t *r)
{
    works(r->comm);
    meet();
    if (r->rank == 0) {
        int status = -1;
        pid_t child = fork();
        if (child == 0) {
            float x = 1, y;
            bool good =
                kolo_all_reduce(&x, &y, 1, KOLO_FLOAT32, KOLO_SUM, r->comm, NULL) == KOLO_ERR_INVALID_USAGE &&
                kolo_comm_finalize(r->comm) == KOLO_ERR_INVALID_USAGE &&
                kolo_comm_abort(r->comm) == KOLO_ERR_INVALID_USAGE &&
                kolo_comm_destroy(r->comm) == KOLO_ERR_INVALID_USAGE &&
                strstr(kolo_get_last_error(NULL), "forked") != NULL;
            _exit(good ? 0 : 1);
        }
        EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    meet();
    works(r->comm);
}

static void a_child_of_fork_is_kept_out(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, fork_in_the_middle, NULL), 0);
}

static void do_nothing(void *arg)
{
    (void)arg;
}

/* What a stream's thread or an engine's should do would be awaited for ever. */
static bool is_kept_out_of(kolo_stream_t stream, kolo_event_t event, kolo_tensor_engine_t engine)
{
    int64_t handle;
    const kolo_status_t all[] = {kolo_stream_call(stream, do_nothing, NULL),
                                 kolo_stream_synchronize(stream),
                                 kolo_stream_destroy(stream),
                                 kolo_event_record(event, stream),
                                 kolo_event_synchronize(event),
                                 kolo_engine_barrier(engine, NULL, &handle),
                                 kolo_engine_wait(engine, 0, 0, NULL),
                                 kolo_engine_shutdown(engine)};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i] != KOLO_ERR_INVALID_USAGE || strstr(kolo_get_last_error(NULL), "forked") == NULL) return false;
    return true;
}

static void fork_beside_threads(rank_t *r)
{
    kolo_tensor_engine_t engine;
    kolo_stream_t stream;
    kolo_event_t event;
    int status = -1;
    EXPECT_OK(kolo_engine_init(&engine, r->comm, NULL));
    EXPECT_OK(kolo_stream_create(&stream));
    EXPECT_OK(kolo_event_create(&event));
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        _exit(is_kept_out_of(stream, event, engine) ? 0 : 1);
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_OK(kolo_event_record(event, stream));
    EXPECT_OK(kolo_event_synchronize(event));
    EXPECT_OK(kolo_event_destroy(event));
    EXPECT_OK(kolo_stream_destroy(stream));
    EXPECT_OK(kolo_engine_shutdown(engine));
}

static void a_child_of_fork_has_no_part_in_streams_and_engines(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(1, fork_beside_threads, NULL), 0);
}

/* Ranks without a color have nothing to poll but the communicator itself, which comes to an end with it. */
static void split_without_color(rank_t *r)
{
    kolo_comm_t parent = NULL, child = r->comm;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_status_t status, now = KOLO_OK;
    config.blocking = 0;
    status = kolo_comm_split(r->comm, 0, 0, &parent, &config);
    EXPECT_OK(settled(parent, status));
    meet();
    if (r->rank == 0) { /* its turn lasts until the others have come */
        EXPECT_IS(KOLO_IN_PROGRESS, kolo_comm_split(parent, KOLO_SPLIT_NOCOLOR, 0, &child, NULL));
        EXPECT(child == NULL);
        EXPECT_OK(kolo_comm_get_async_error(parent, &now));
        EXPECT_IS(KOLO_IN_PROGRESS, now);
    }
    meet();
    if (r->rank != 0) {
        status = kolo_comm_split(parent, 1, 0, &child, NULL);
        EXPECT_OK(settled(child, status));
    }
    EXPECT_OK(settled(parent, KOLO_IN_PROGRESS));
    works(parent);
    meet();
    if (r->rank != 0) EXPECT_OK(kolo_comm_destroy(child));
    EXPECT_OK(kolo_comm_destroy(parent));
}

static void a_split_without_color_comes_to_an_end(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, split_without_color, NULL), 0);
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_of_fork_is_kept_out),
        cmocka_unit_test(a_child_of_fork_has_no_part_in_streams_and_engines),
        cmocka_unit_test(a_split_without_color_comes_to_an_end),
        cmocka_unit_test(what_does_not_block_ends_in_the_background),
        cmocka_unit_test(a_start_that_nobody_joins_can_be_dropped),
        cmocka_unit_test(several_ids_make_one_communicator),
        cmocka_unit_test(one_thread_holds_all_ranks),
        cmocka_unit_test(starts_of_a_group_wait_at_its_end),
        cmocka_unit_test(starts_of_a_group_may_go_on_in_the_background),
        cmocka_unit_test(split_makes_parts_that_stand_alone),
        cmocka_unit_test(splits_without_a_part_follow_each_other),
        cmocka_unit_test(communicators_do_not_disturb_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
