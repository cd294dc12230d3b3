/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators that do not block: an operation that has to make its connections first returns at once and goes on
 * in the background, with every rule that follows from that; one that finds its connections runs in the caller.
 */
#include "kit/ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    kolo_unique_id_t id;
    int kind, limit_ms; /* of connecting and of operations, 0: the defaults */
} job_t;

static bool start(rank_t *r)
{
    const job_t *job = r->arg;
    kolo_config_t c = KOLO_CONFIG_INITIALIZER;
    c.blocking = 0;
    c.name = "eager";
    if (job->limit_ms) c.init_timeout_ms = c.op_timeout_ms = job->limit_ms;
    kolo_status_t status = kolo_comm_init_rank(&r->comm, r->nranks, job->id, r->rank, &c);
    return EXPECT_IS(KOLO_IN_PROGRESS, status) && EXPECT_OK(settled(r->comm, status));
}

static int run_job(int n, void (*fn)(rank_t *), int kind, int limit_ms)
{
    job_t job = {.kind = kind, .limit_ms = limit_ms};
    assert_int_equal(kolo_get_unique_id(&job.id), KOLO_OK);
    return run_threads(n, fn, &job);
}

typedef enum { SMALL, LARGE, V_FORM, EXCHANGE, SEND, GROUP, KINDS } kind_t;
#define LARGE_N (1u << 19)

static int32_t *new_data(const rank_t *r)
{
    int32_t *data = calloc(3 * (size_t)LARGE_N, sizeof *data);
    if (!data) abort();
    for (size_t i = 0; i < LARGE_N; i++) data[i] = r->rank + 1;
    return data;
}

static kolo_status_t call(const rank_t *r, int kind, int32_t *data)
{
    size_t counts[MAX_RANKS], displs[MAX_RANKS];
    int next = (r->rank + 1) % r->nranks, before = (r->rank + r->nranks - 1) % r->nranks;
    kolo_status_t status;
    switch (kind) {
    case SMALL:
        return kolo_all_reduce(data, data + LARGE_N, 2, KOLO_INT32, KOLO_SUM, r->comm, NULL);
    case LARGE:
        return kolo_all_reduce(data, data + LARGE_N, LARGE_N, KOLO_INT32, KOLO_SUM, r->comm, NULL);
    case V_FORM: /* the tables are gone when it runs */
        for (int i = 0; i < r->nranks; i++) counts[i] = (size_t)i + 1;
        for (int i = 0; i < r->nranks; i++) displs[i] = (size_t)i * 100;
        status = kolo_all_gatherv(data, data + LARGE_N, counts, displs, KOLO_INT32, r->comm, NULL);
        memset(counts, 0x55, sizeof counts);
        memset(displs, 0x55, sizeof displs);
        return status;
    case SEND:
        return r->rank == 0 ? kolo_send(data, 3, KOLO_INT32, 1, r->comm, NULL)
                            : kolo_recv(data + LARGE_N, 3, KOLO_INT32, 0, r->comm, NULL);
    case GROUP:
        EXPECT_OK(kolo_group_start());
        EXPECT_OK(kolo_all_reduce(data, data + LARGE_N, 2, KOLO_INT32, KOLO_SUM, r->comm, NULL));
        EXPECT_OK(kolo_send(data, 2, KOLO_INT32, next, r->comm, NULL));
        EXPECT_OK(kolo_recv(data + LARGE_N + 10, 2, KOLO_INT32, before, r->comm, NULL));
        return kolo_group_end();
    default:
        EXPECT_OK(kolo_group_start());
        EXPECT_OK(kolo_send(data, 2, KOLO_INT32, next, r->comm, NULL));
        EXPECT_OK(kolo_recv(data + LARGE_N, 2, KOLO_INT32, before, r->comm, NULL));
        return kolo_group_end();
    }
}

static bool is_right(const rank_t *r, int kind, const int32_t *data)
{
    const int32_t *out = data + LARGE_N;
    int sum = r->nranks * (r->nranks + 1) / 2, before = (r->rank + r->nranks - 1) % r->nranks;
    switch (kind) {
    case SMALL:
        return out[0] == sum && out[1] == sum;
    case LARGE:
        return out[0] == sum && out[LARGE_N - 1] == sum;
    case V_FORM:
        for (int i = 0; i < r->nranks; i++)
            for (int k = 0; k < i + 1; k++)
                if (out[i * 100 + k] != i + 1) return false;
        return true;
    case SEND:
        return r->rank == 0 || (out[0] == 1 && out[2] == 1);
    case GROUP:
        return out[0] == sum && out[10] == before + 1;
    default:
        return out[0] == before + 1 && out[1] == before + 1;
    }
}

/* ---- a peer that comes late ---- */

static void use_with_a_late_peer(rank_t *r)
{
    int kind = ((job_t *)r->arg)->kind, n;
    int32_t *data = new_data(r);
    kolo_comm_t other = NULL;
    kolo_status_t state = KOLO_OK;
    if (!start(r)) abort();
    meet();
    if (r->rank == 1) {
        meet(); /* rank 0 is back from its call, and has looked around */
        nap_ms(20);
    }
    kolo_status_t status = call(r, kind, data);
    EXPECT_IS(KOLO_IN_PROGRESS, status);
    if (r->rank == 0) {
        EXPECT_OK(kolo_comm_get_async_error(r->comm, &state));
        EXPECT_IS(KOLO_IN_PROGRESS, state);
        EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_barrier(r->comm, NULL), "eager rank 0 is not ready",
                     "connections");
        EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_split(r->comm, 0, 0, &other, NULL), "not ready");
        EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_finalize(r->comm), "not ready");
        EXPECT_OK(kolo_comm_count(r->comm, &n));
        meet();
    }
    EXPECT_OK(settled(r->comm, status));
    EXPECT(is_right(r, kind, data));
    meet();
    memset(data + LARGE_N, 0, LARGE_N * sizeof *data);
    EXPECT_OK(call(r, kind, data)); /* now in the caller */
    EXPECT(is_right(r, kind, data));
    works(r->comm);
    EXPECT_OK(settled(r->comm, kolo_comm_finalize(r->comm)));
    EXPECT_OK(kolo_comm_destroy(r->comm));
    free(data);
}

static void a_first_use_does_not_wait_for_a_late_peer(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        int failures = run_job(2, use_with_a_late_peer, kind, 0);
        if (failures) print_message("kind %d: %d failures\n", kind, failures);
        assert_int_equal(failures, 0);
    }
}

/* ---- the end comes before the peer ---- */

static void give_up_while_connecting(rank_t *r)
{
    int kind = ((job_t *)r->arg)->kind;
    int32_t *data = new_data(r);
    if (!start(r)) abort();
    meet();
    if (r->rank == 0) {
        EXPECT_IS(KOLO_IN_PROGRESS, call(r, SMALL, data));
        nap_ms(50);
        uint64_t begun = now_ms();
        EXPECT_OK(kind ? kolo_comm_destroy(r->comm) : kolo_comm_abort(r->comm));
        EXPECT(IN_TIME(now_ms() - begun < 2000));
    }
    meet();
    if (r->rank == 1) EXPECT_OK(kolo_comm_abort(r->comm));
    free(data);
}

static void abort_and_destroy_end_a_first_use(void **state)
{
    (void)state;
    assert_int_equal(run_job(2, give_up_while_connecting, 0, 0), 0);
    assert_int_equal(run_job(2, give_up_while_connecting, 1, 0), 0);
}

static void *abort_soon(void *arg)
{
    nap_ms(50);
    EXPECT_OK(kolo_comm_abort(arg));
    return NULL;
}

/* The application polls with a time limit of its own; another thread aborts meanwhile. */
static void be_aborted_while_polling(rank_t *r)
{
    int32_t *data = new_data(r);
    pthread_t thread;
    if (!start(r)) abort();
    meet();
    if (r->rank == 0) {
        kolo_status_t state = KOLO_IN_PROGRESS;
        EXPECT_IS(KOLO_IN_PROGRESS, call(r, LARGE, data));
        if (pthread_create(&thread, NULL, abort_soon, r->comm)) abort();
        uint64_t begun = now_ms();
        while (state == KOLO_IN_PROGRESS && now_ms() - begun < 30000) {
            kolo_status_t status = kolo_comm_get_async_error(r->comm, &state);
            if (status != KOLO_OK) state = status; /* the handle is dead */
        }
        EXPECT(state == KOLO_ERR_ABORTED || state == KOLO_ERR_INVALID_ARGUMENT);
        EXPECT(IN_TIME(now_ms() - begun < 2000));
        pthread_join(thread, NULL);
    }
    meet();
    if (r->rank == 1) EXPECT_OK(kolo_comm_abort(r->comm));
    free(data);
}

static void another_thread_may_abort_a_first_use(void **state)
{
    (void)state;
    assert_int_equal(run_job(2, be_aborted_while_polling, 0, 0), 0);
}

/* The peer leaves instead of coming. */
static void be_left_while_connecting(rank_t *r)
{
    int32_t *data = new_data(r);
    if (!start(r)) abort();
    meet();
    if (r->rank == 0) {
        kolo_status_t status = call(r, SMALL, data);
        EXPECT_IS(KOLO_IN_PROGRESS, status);
        meet();
        EXPECT_IS(KOLO_ERR_REMOTE, settled(r->comm, status));
        EXPECT(strstr(kolo_get_last_error(r->comm), "rank 1") != NULL);
        EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_barrier(r->comm, NULL), "earlier failure");
    } else {
        meet();
        nap_ms(50);
        EXPECT_OK(kolo_comm_abort(r->comm));
        r->comm = NULL;
    }
    EXPECT_OK(kolo_comm_destroy(r->comm));
    free(data);
}

static void a_first_use_ends_when_its_peer_leaves(void **state)
{
    (void)state;
    assert_int_equal(run_job(2, be_left_while_connecting, 0, 0), 0);
}

static void wait_for_nobody(rank_t *r)
{
    int32_t *data = new_data(r);
    if (!start(r)) abort();
    meet();
    if (r->rank == 0) {
        kolo_status_t status = call(r, SMALL, data);
        EXPECT_IS(KOLO_IN_PROGRESS, status);
        EXPECT_IS(KOLO_ERR_TIMEOUT, settled(r->comm, status));
        EXPECT(strstr(kolo_get_last_error(r->comm), "eager rank 0") != NULL);
        EXPECT(strstr(kolo_get_last_error(r->comm), "rank 1") != NULL);
        EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_barrier(r->comm, NULL), "earlier failure");
    }
    meet();
    EXPECT_OK(kolo_comm_destroy(r->comm));
    free(data);
}

static void a_first_use_ends_by_the_configured_time(void **state)
{
    (void)state;
    assert_int_equal(run_job(2, wait_for_nobody, 0, 1500), 0);
}

/* ---- beside streams ---- */

static void end_comm_settled(rank_t *r)
{
    EXPECT_OK(settled(r->comm, kolo_comm_finalize(r->comm)));
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
}

static void block(void *arg)
{
    EXPECT(await_count(arg, 1));
}

/* A call without a stream behind one that has not had its turn does not wait for that either. */
static void call_behind_a_queue(rank_t *r)
{
    int32_t *data = new_data(r);
    kolo_stream_t stream;
    _Atomic int called = 0;
    if (!start(r)) abort();
    works(r->comm);
    EXPECT_OK(kolo_stream_create(&stream));
    EXPECT_OK(kolo_stream_call(stream, block, &called));
    EXPECT_OK(kolo_all_reduce(data, data + LARGE_N, 2, KOLO_INT32, KOLO_SUM, r->comm, stream));
    kolo_status_t status = kolo_all_reduce(data, data + LARGE_N + 10, 2, KOLO_INT32, KOLO_SUM, r->comm, NULL);
    EXPECT_IS(KOLO_IN_PROGRESS, status);
    atomic_store(&called, 1);
    EXPECT_OK(settled(r->comm, status));
    EXPECT_OK(kolo_stream_synchronize(stream));
    EXPECT(data[LARGE_N] == 3 && data[LARGE_N + 10] == 3);
    EXPECT_OK(kolo_stream_destroy(stream));
    end_comm_settled(r);
    free(data);
}

static void a_call_behind_a_stream_goes_to_the_background(void **state)
{
    (void)state;
    assert_int_equal(run_job(2, call_behind_a_queue, 0, 0), 0);
}

/* One group with and without a stream. */
static void group_with_a_stream(rank_t *r)
{
    int32_t *data = new_data(r);
    kolo_stream_t stream;
    if (!start(r)) abort();
    EXPECT_OK(kolo_stream_create(&stream));
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_all_reduce(data, data + LARGE_N, 2, KOLO_INT32, KOLO_SUM, r->comm, NULL));
    EXPECT_OK(kolo_all_reduce(data, data + LARGE_N + 10, 2, KOLO_INT32, KOLO_SUM, r->comm, stream));
    kolo_status_t status = kolo_group_end();
    EXPECT_IS(KOLO_IN_PROGRESS, status);
    EXPECT_OK(settled(r->comm, status));
    EXPECT_OK(kolo_stream_synchronize(stream));
    EXPECT(data[LARGE_N] == 3 && data[LARGE_N + 10] == 3);
    EXPECT_OK(kolo_stream_destroy(stream));
    end_comm_settled(r);
    free(data);
}

static void a_group_may_hold_streams_as_well(void **state)
{
    (void)state;
    assert_int_equal(run_job(2, group_with_a_stream, 0, 0), 0);
}

static void a_group_holds_communicators_of_one_kind(void **state)
{
    (void)state;
    kolo_config_t c = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t one[1] = {NULL}, other[1] = {NULL};
    int before = expect_failures();
    EXPECT_OK(kolo_comm_init_all(one, 1, NULL));
    c.blocking = 0;
    c.name = "eager";
    EXPECT_IS(KOLO_IN_PROGRESS, kolo_comm_init_all(other, 1, &c));
    EXPECT_OK(settled(other[0], KOLO_IN_PROGRESS));
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_barrier(one[0], NULL));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_barrier(other[0], NULL), "eager does not");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_group_end(), "nothing of the group has run", "eager does not");
    EXPECT_OK(kolo_comm_destroy(one[0]));
    EXPECT_OK(kolo_comm_destroy(other[0]));
    assert_int_equal(expect_failures() - before, 0);
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_first_use_does_not_wait_for_a_late_peer),
        cmocka_unit_test(abort_and_destroy_end_a_first_use),
        cmocka_unit_test(another_thread_may_abort_a_first_use),
        cmocka_unit_test(a_first_use_ends_when_its_peer_leaves),
        cmocka_unit_test(a_first_use_ends_by_the_configured_time),
        cmocka_unit_test(a_call_behind_a_stream_goes_to_the_background),
        cmocka_unit_test(a_group_may_hold_streams_as_well),
        cmocka_unit_test(a_group_holds_communicators_of_one_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
