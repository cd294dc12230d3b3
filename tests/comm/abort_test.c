/* SPDX-License-Identifier: Apache-2.0
 *
 * An abort from another thread ends whatever a communicator waits for: operations of every way through the library,
 * on first use (while it connects) and later, finalize, split, streams and groups. And the peers of a rank that has
 * aborted are told.
 */
#include "kit/ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define LARGE (1u << 20) /* elements */
#define TRIES 20         /* of a case whose abort came too early */

typedef kolo_status_t (*wait_fn_t)(kolo_comm_t comm, int32_t *data);

static kolo_status_t in_small_all_reduce(kolo_comm_t comm, int32_t *data)
{
    return kolo_all_reduce(data, data, 2, KOLO_INT32, KOLO_SUM, comm, NULL);
}
static kolo_status_t in_large_all_reduce(kolo_comm_t comm, int32_t *data)
{
    return kolo_all_reduce(data, data, LARGE, KOLO_INT32, KOLO_SUM, comm, NULL);
}
static kolo_status_t in_barrier(kolo_comm_t comm, int32_t *data)
{
    (void)data;
    return kolo_barrier(comm, NULL);
}
static kolo_status_t in_small_recv(kolo_comm_t comm, int32_t *data)
{
    return kolo_recv(data, 1, KOLO_INT32, 1, comm, NULL);
}
static kolo_status_t in_large_recv(kolo_comm_t comm, int32_t *data)
{
    return kolo_recv(data, LARGE, KOLO_INT32, 1, comm, NULL);
}
static kolo_status_t in_large_send(kolo_comm_t comm, int32_t *data)
{
    (void)data;
    static int32_t nothing[1u << 25]; /* more than the buffers of all sockets of a connection take */
    return kolo_send(nothing, sizeof nothing / sizeof *nothing, KOLO_INT32, 1, comm, NULL);
}
static kolo_status_t in_all_to_all(kolo_comm_t comm, int32_t *data)
{
    return kolo_all_to_all(data, data + LARGE / 2, LARGE / 8, KOLO_INT32, comm, NULL);
}
static kolo_status_t in_finalize(kolo_comm_t comm, int32_t *data)
{
    (void)data;
    return kolo_comm_finalize(comm);
}
static kolo_status_t in_split(kolo_comm_t comm, int32_t *data)
{
    kolo_comm_t child = NULL;
    (void)data;
    kolo_status_t status = kolo_comm_split(comm, 0, 0, &child, NULL);
    EXPECT(child == NULL);
    return status;
}
static kolo_status_t in_group(kolo_comm_t comm, int32_t *data)
{
    EXPECT_OK(kolo_group_start());
    kolo_status_t status = kolo_send(data, LARGE / 2, KOLO_INT32, 1, comm, NULL);
    if (!status) status = kolo_recv(data + LARGE / 2, LARGE / 2, KOLO_INT32, 1, comm, NULL);
    if (!status) status = kolo_recv(data, 1, KOLO_INT32, 1, comm, NULL);
    kolo_status_t ended = kolo_group_end();
    return status ? status : ended;
}
static kolo_status_t on_stream(kolo_comm_t comm, int32_t *data)
{
    kolo_stream_t stream;
    if (!EXPECT_OK(kolo_stream_create(&stream))) return KOLO_ERR_INTERNAL;
    kolo_status_t status = kolo_all_reduce(data, data, 10, KOLO_INT32, KOLO_SUM, comm, stream);
    if (!status) status = kolo_all_reduce(data, data, LARGE, KOLO_INT32, KOLO_SUM, comm, stream);
    if (!status) status = kolo_stream_synchronize(stream);
    EXPECT_OK(kolo_stream_destroy(stream));
    return status;
}
static kolo_status_t in_finalize_behind_a_stream(kolo_comm_t comm, int32_t *data)
{
    kolo_stream_t stream;
    if (!EXPECT_OK(kolo_stream_create(&stream))) return KOLO_ERR_INTERNAL;
    kolo_status_t status = kolo_all_reduce(data, data, 10, KOLO_INT32, KOLO_SUM, comm, stream);
    if (!status) status = kolo_comm_finalize(comm);
    EXPECT_OK(kolo_stream_destroy(stream));
    return status;
}

static const struct {
    const char *name;
    wait_fn_t wait;
} waits[] = {
    {"small all_reduce", in_small_all_reduce},
    {"large all_reduce", in_large_all_reduce},
    {"barrier", in_barrier},
    {"small recv", in_small_recv},
    {"large recv", in_large_recv},
    {"large send", in_large_send},
    {"all_to_all", in_all_to_all},
    {"finalize", in_finalize},
    {"split", in_split},
    {"group", in_group},
    {"stream", on_stream},
    {"finalize behind a stream", in_finalize_behind_a_stream},
};

typedef struct {
    size_t wait;
    bool warm; /* connections are there */
    bool late; /* the abort was there before the call: says nothing */
    _Atomic int calls;
} case_t;

static void *abort_soon(void *arg)
{
    rank_t *r = arg;
    case_t *c = r->arg;
    kolo_status_t state;
    EXPECT(await_count(&c->calls, 1));
    nap_ms(30);
    EXPECT_OK(kolo_comm_get_async_error(r->comm, &state));
    EXPECT(kolo_get_last_error(r->comm) != NULL);
    uint64_t start = now_ms();
    EXPECT_OK(kolo_comm_abort(r->comm));
    EXPECT(IN_TIME(now_ms() - start < 1000));
    return NULL;
}

static void wait_and_be_aborted(rank_t *r)
{
    case_t *c = r->arg;
    if (c->warm) works(r->comm);
    meet();
    if (r->rank == 0) {
        int32_t *data = calloc(2 * (size_t)LARGE, sizeof *data);
        pthread_t thread;
        if (pthread_create(&thread, NULL, abort_soon, r)) abort();
        uint64_t start = now_ms();
        atomic_store(&c->calls, 1);
        kolo_status_t status = waits[c->wait].wait(r->comm, data);
        c->late = status == KOLO_ERR_INVALID_ARGUMENT && strstr(kolo_get_last_error(NULL), "aborted");
        if (!c->late) EXPECT_ERROR(KOLO_ERR_ABORTED, status, "rank 0");
        EXPECT(IN_TIME(now_ms() - start < 1000));
        pthread_join(thread, NULL);
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_barrier(r->comm, NULL), "barrier", "aborted");
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_abort(r->comm), "comm_abort", "aborted");
        free(data);
    }
    meet();
    if (r->rank) EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
}

static void abort_ends_every_wait(void **state)
{
    (void)state;
    int failures = 0;
    for (size_t i = 0; i < 2 * sizeof waits / sizeof waits[0]; i++) {
        case_t c;
        int n, tries = 0;
        do {
            c = (case_t){.wait = i / 2, .warm = i % 2};
            n = run_ranks(2, wait_and_be_aborted, &c);
            if (c.late && ++tries == TRIES) n++;
        } while (c.late && tries < TRIES && n == 0);
        if (n) print_message("%s, %s: %d failures\n", waits[c.wait].name, c.warm ? "warm" : "first use", n);
        failures += n;
    }
    assert_int_equal(failures, 0);
}

/* Rank 0 aborts while the others wait for it. */
static void lose_a_peer(rank_t *r)
{
    case_t *c = r->arg;
    int32_t *data = calloc(2 * (size_t)LARGE, sizeof *data);
    if (c->warm) works(r->comm);
    meet();
    if (r->rank == 1) {
        EXPECT(await_count(&c->calls, 1));
        nap_ms(30);
        EXPECT_OK(kolo_comm_abort(r->comm));
    } else {
        uint64_t start = now_ms();
        atomic_store(&c->calls, 1);
        EXPECT_ERROR(KOLO_ERR_REMOTE, waits[c->wait].wait(r->comm, data), "rank 1");
        EXPECT(IN_TIME(now_ms() - start < 2000));
        kolo_status_t state = KOLO_OK;
        EXPECT_OK(kolo_comm_get_async_error(r->comm, &state));
        EXPECT_IS(KOLO_ERR_REMOTE, state);
        EXPECT(strstr(kolo_get_last_error(r->comm), "rank 1"));
        EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_barrier(r->comm, NULL), "earlier failure", "rank 1");
        EXPECT_OK(kolo_comm_destroy(r->comm));
    }
    r->comm = NULL;
    free(data);
}

static void peers_of_an_aborted_rank_are_told(void **state)
{
    (void)state;
    int failures = 0;
    for (size_t i = 0; i < 2 * 7; i++) {
        case_t c = {.wait = i / 2, .warm = i % 2};
        int n = run_ranks(2, lose_a_peer, &c);
        if (n) print_message("%s, %s: %d failures\n", waits[c.wait].name, c.warm ? "warm" : "first use", n);
        failures += n;
    }
    assert_int_equal(failures, 0);
}

/* Rank 0 aborts between two operations; of the others each waits for one who only gives up because of it. */
static void lose_the_end_of_a_chain(rank_t *r)
{
    int32_t x = 0;
    works(r->comm);
    meet();
    if (r->rank == 0) {
        EXPECT_OK(kolo_comm_abort(r->comm));
    } else {
        EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_recv(&x, 1, KOLO_INT32, r->rank - 1, r->comm, NULL), "rank 0 (");
        EXPECT(!strstr(kolo_get_last_error(r->comm), "rank 1 ("));
        EXPECT_OK(kolo_comm_destroy(r->comm));
    }
    r->comm = NULL;
}

static void the_rank_that_aborted_is_named_by_all(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) assert_int_equal(run_ranks(4, lose_the_end_of_a_chain, NULL), 0);
}

static void aborts_leave_nothing(void **state)
{
    census_t before = census_take();
    abort_ends_every_wait(state);
    assert_true(census_no_more_than(before));
}

/* A thread that polls a communicator need not know that another one has aborted it. */
static void abort_and_ask(rank_t *r)
{
    kolo_comm_t comm = r->comm, other = NULL;
    kolo_status_t state = KOLO_OK;
    kolo_unique_id_t id;
    EXPECT(works(comm));
    meet();
    EXPECT_OK(kolo_comm_abort(comm));
    r->comm = NULL;
    for (int i = 0; i < 3; i++) { /* also when others have been made since */
        state = KOLO_OK;
        EXPECT_OK(kolo_comm_get_async_error(comm, &state));
        EXPECT_IS(KOLO_ERR_ABORTED, state);
        EXPECT_OK(kolo_get_unique_id(&id));
        if (EXPECT_OK(kolo_comm_init_rank(&other, 1, id, 0, NULL))) EXPECT_OK(kolo_comm_destroy(other));
        state = KOLO_OK;
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_get_async_error(other, &state), "comm_get_async_error");
        EXPECT_IS(KOLO_OK, state);
    }
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_get_async_error(comm, NULL), "comm_get_async_error");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_barrier(comm, NULL), "barrier", "aborted");
}

static void the_async_error_after_an_abort_says_so(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, abort_and_ask, NULL), 0);
}

/* Rank 1 does not come to the shrink. */
static void abort_a_child(rank_t *r)
{
    const int gone[] = {2};
    EXPECT(works(r->comm));
    meet();
    for (int flags = KOLO_SHRINK_DEFAULT; r->rank == 0 && flags <= KOLO_SHRINK_ABORT; flags++) {
        kolo_config_t config = KOLO_CONFIG_INITIALIZER;
        kolo_comm_t child = NULL;
        config.blocking = 0;
        EXPECT_IS(KOLO_IN_PROGRESS, kolo_comm_shrink(r->comm, gone, 1, flags, &child, &config));
        nap_ms(20);
        uint64_t start = now_ms();
        EXPECT_OK(kolo_comm_abort(child));
        EXPECT(IN_TIME(now_ms() - start < 2000)); /* 50, where nothing else runs */
    }
    meet();
    EXPECT_OK(kolo_comm_abort(r->comm));
    r->comm = NULL;
}

static void abort_ends_a_child_that_is_being_made(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, abort_a_child, NULL), 0);
}

/* A communicator that does not block is aborted before it is ready: who polls it is told so. */
static void an_aborted_start_says_so(void **state)
{
    (void)state;
    kolo_unique_id_t id;
    kolo_comm_t comm = NULL;
    kolo_status_t status = KOLO_OK;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.blocking = 0;
    assert_int_equal(kolo_get_unique_id(&id), KOLO_OK);
    assert_int_equal(kolo_comm_init_rank(&comm, 2, id, 0, &config), KOLO_IN_PROGRESS);
    assert_int_equal(kolo_comm_abort(comm), KOLO_OK);
    assert_int_equal(kolo_comm_get_async_error(comm, &status), KOLO_OK);
    assert_int_equal(status, KOLO_ERR_ABORTED);
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_aborted_start_says_so),
        cmocka_unit_test(abort_ends_every_wait),
        cmocka_unit_test(peers_of_an_aborted_rank_are_told),
        cmocka_unit_test(the_rank_that_aborted_is_named_by_all),
        cmocka_unit_test(aborts_leave_nothing),
        cmocka_unit_test(the_async_error_after_an_abort_says_so),
        cmocka_unit_test(abort_ends_a_child_that_is_being_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
