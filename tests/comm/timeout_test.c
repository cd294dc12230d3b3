/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations with a time limit: one that waits for a rank that does not come ends with KOLO_ERR_TIMEOUT, in time,
 * and says what was awaited; one that nobody keeps waiting is not touched by the limit.
 */
#include "kit/ranks.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGE (1u << 18)
#ifdef KOLO_SANITIZED
#define LIMIT_MS 2000 /* what nobody keeps waiting must be through in that time */
#else
#define LIMIT_MS 1000
#endif

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
/* More than sockets take on their own. */
static kolo_status_t in_huge_send(kolo_comm_t comm, int32_t *data)
{
    size_t n = 64 * (size_t)LARGE;
    int32_t *huge = calloc(n, sizeof *huge);
    (void)data;
    kolo_status_t status = kolo_send(huge, n, KOLO_INT32, 1, comm, NULL);
    free(huge);
    return status;
}
static kolo_status_t in_group(kolo_comm_t comm, int32_t *data)
{
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_send(data, 3, KOLO_INT32, 1, comm, NULL));
    EXPECT_OK(kolo_recv(data + LARGE / 2, 3, KOLO_INT32, 1, comm, NULL));
    return kolo_group_end();
}
static kolo_status_t on_stream(kolo_comm_t comm, int32_t *data)
{
    kolo_stream_t stream;
    if (!EXPECT_OK(kolo_stream_create(&stream))) return KOLO_ERR_INTERNAL;
    EXPECT_OK(kolo_all_reduce(data, data, LARGE, KOLO_INT32, KOLO_SUM, comm, stream));
    kolo_status_t status = kolo_stream_synchronize(stream);
    EXPECT_OK(kolo_stream_destroy(stream));
    return status;
}

static const wait_fn_t waits[] = {
    in_small_all_reduce, in_large_all_reduce, in_barrier, in_small_recv, in_huge_send, in_group, on_stream};

typedef struct {
    kolo_unique_id_t id;
    wait_fn_t wait;
} limited_t;

static void exchange(kolo_comm_t comm, int peer, int32_t *data)
{
    for (size_t n = 1; n <= LARGE; n *= LARGE) {
        EXPECT_OK(kolo_group_start());
        EXPECT_OK(kolo_send(data, n, KOLO_INT32, peer, comm, NULL));
        EXPECT_OK(kolo_recv(data + LARGE, n, KOLO_INT32, peer, comm, NULL));
        EXPECT_OK(kolo_group_end());
    }
}

static void wait_in_vain(rank_t *r)
{
    const limited_t *l = r->arg;
    kolo_config_t c = KOLO_CONFIG_INITIALIZER;
    int32_t *data = calloc(2 * (size_t)LARGE, sizeof *data);
    kolo_status_t state = KOLO_OK;
    c.op_timeout_ms = LIMIT_MS;
    c.name = "limited";
    if (!EXPECT_OK(kolo_comm_init_rank(&r->comm, r->nranks, l->id, r->rank, &c))) abort();
    works(r->comm);
    EXPECT_OK(in_large_all_reduce(r->comm, data));
    exchange(r->comm, 1 - r->rank, data);
    if (l->wait == waits[0]) nap_ms(2 * LIMIT_MS); /* the limit is one of each operation, not of the communicator */
    works(r->comm);
    meet();
    if (r->rank == 0) {
        uint64_t start = now_ms();
        EXPECT_ERROR(KOLO_ERR_TIMEOUT, l->wait(r->comm, data), "limited rank 0", "rank 1");
        uint64_t took = now_ms() - start;
        EXPECT(took >= LIMIT_MS - 2 && IN_TIME(took < LIMIT_MS + 5000)); /* without a limit there would be no end */
        EXPECT_OK(kolo_comm_get_async_error(r->comm, &state));
        EXPECT_IS(KOLO_ERR_TIMEOUT, state);
        EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_barrier(r->comm, NULL), "earlier failure");
    }
    meet();
    EXPECT_OK(kolo_comm_destroy(r->comm));
    free(data);
}

static void an_operation_past_its_limit_says_whom_it_awaited(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
        limited_t l = {.wait = waits[i]};
        assert_int_equal(kolo_get_unique_id(&l.id), KOLO_OK);
        int failures = run_threads(2, wait_in_vain, &l);
        if (failures) print_message("wait %zu: %d failures\n", i, failures);
        assert_int_equal(failures, 0);
    }
}

/* ---- several threads read the error that one has caused ---- */

typedef struct {
    kolo_comm_t comm;
    _Atomic int stop, reads, wrong;
} readers_t;

/* A text stays as it is until this thread's next call, whatever others do, and is never half of one. */
static void *read_errors(void *arg)
{
    readers_t *readers = arg;
    char before[1024];
    while (!atomic_load(&readers->stop)) {
        const char *text = kolo_get_last_error(readers->comm);
        snprintf(before, sizeof before, "%s", text);
        for (int i = 0; i < 10; i++) sched_yield(); /* on a crowded machine each may take long */
        bool whole = !*before || (strstr(before, "limited rank 0") && strstr(before, "rank 1"));
        if (strcmp(before, text) != 0 || !whole) atomic_fetch_add(&readers->wrong, 1);
        atomic_fetch_add(&readers->reads, *before != 0);
    }
    return NULL;
}

static void fail_among_readers(rank_t *r)
{
    const limited_t *l = r->arg;
    kolo_config_t c = KOLO_CONFIG_INITIALIZER;
    int32_t data[4] = {0};
    pthread_t threads[2];
    c.op_timeout_ms = 200;
    c.name = "limited";
    if (!EXPECT_OK(kolo_comm_init_rank(&r->comm, r->nranks, l->id, r->rank, &c))) abort();
    works(r->comm);
    meet();
    if (r->rank == 0) {
        readers_t readers = {.comm = r->comm};
        for (int i = 0; i < 2; i++) EXPECT(pthread_create(&threads[i], NULL, read_errors, &readers) == 0);
        EXPECT_IS(KOLO_ERR_TIMEOUT, in_barrier(r->comm, data));
        EXPECT(await_count(&readers.reads, 4));
        /* other errors, of this thread and of the same communicator, change nothing for them */
        for (int i = 0; i < 100; i++) EXPECT_IS(KOLO_ERR_TIMEOUT, in_barrier(r->comm, data));
        for (int i = 0; i < 100; i++) EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_get_version(NULL));
        EXPECT(strstr(kolo_get_last_error(NULL), "version") != NULL);
        EXPECT(strstr(kolo_get_last_error(r->comm), "rank 1") != NULL);
        atomic_store(&readers.stop, 1);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        EXPECT(readers.wrong == 0);
    }
    meet();
    EXPECT_OK(kolo_comm_destroy(r->comm));
}

static void what_a_thread_has_read_no_other_changes(void **state)
{
    limited_t l = {.wait = NULL};
    (void)state;
    assert_int_equal(kolo_get_unique_id(&l.id), KOLO_OK);
    assert_int_equal(run_threads(2, fail_among_readers, &l), 0);
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_operation_past_its_limit_says_whom_it_awaited),
        cmocka_unit_test(what_a_thread_has_read_no_other_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
