/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams and events: calls run in their order, what is queued does not block its caller, a NULL stream is done
 * when the call returns, events order streams, and errors of the queue come out of synchronize.
 */
#include "kit/ranks.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Keeps a stream busy until it is let go. */
static void hold(void *arg)
{
    for (uint64_t end = now_ms() + 20000; !atomic_load((_Atomic int *)arg) && now_ms() < end;) nap_ms(1);
}

typedef struct {
    int *log, *at, value;
} note_t;

static void note(void *arg)
{
    const note_t *n = arg;
    n->log[(*n->at)++] = n->value;
}

static void calls_run_in_their_order(void **state)
{
    (void)state;
    enum { CALLS = 3000 };
    kolo_stream_t stream = NULL;
    int log[CALLS], at = 0, wrong = 0;
    note_t *notes = calloc(CALLS, sizeof *notes);
    assert_int_equal(kolo_stream_create(&stream), KOLO_OK);
    for (int i = 0; i < CALLS; i++) {
        notes[i] = (note_t){log, &at, i};
        assert_int_equal(kolo_stream_call(stream, note, &notes[i]), KOLO_OK);
    }
    assert_int_equal(kolo_stream_synchronize(stream), KOLO_OK);
    assert_int_equal(at, CALLS);
    for (int i = 0; i < CALLS; i++) wrong += log[i] != i;
    assert_int_equal(wrong, 0);
    assert_int_equal(kolo_stream_destroy(stream), KOLO_OK);
    free(notes);
}

static void destroying_a_stream_waits_for_its_queue(void **state)
{
    (void)state;
    kolo_stream_t stream = NULL;
    int log[2] = {0}, at = 0;
    note_t last = {log, &at, 42};
    _Atomic int go = 0;
    int before = expect_failures();
    census_t then = census_take();
    EXPECT_OK(kolo_stream_create(&stream));
    EXPECT_OK(kolo_stream_call(stream, hold, &go));
    EXPECT_OK(kolo_stream_call(stream, note, &last));
    EXPECT_IS(KOLO_IN_PROGRESS, kolo_stream_query(stream));
    atomic_store(&go, 1);
    EXPECT_OK(kolo_stream_destroy(stream));
    EXPECT(at == 1 && log[0] == 42);
    EXPECT_OK(kolo_stream_destroy(NULL));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_stream_destroy(stream), "stream_destroy", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_stream_query(stream), "stream_query", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_stream_synchronize(stream), "stream_synchronize", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_stream_call(stream, note, &last), "stream_call", "destroyed");
    EXPECT(census_no_more_than(then));
    assert_int_equal(expect_failures() - before, 0);
}

static void synchronize_here(void *arg)
{
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_stream_synchronize(arg), "stream_synchronize", "itself");
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_stream_destroy(arg), "stream_destroy", "itself");
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    kolo_stream_t stream = NULL;
    kolo_event_t event = NULL;
    int before = expect_failures();
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_stream_create(NULL), "stream_create", "output");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_event_create(NULL), "event_create", "output");
    EXPECT_OK(kolo_stream_create(&stream));
    EXPECT_OK(kolo_event_create(&event));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_stream_call(stream, NULL, NULL), "stream_call", "function");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_stream_call(NULL, hold, NULL), "stream_call", "stream");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_stream_query(NULL), "stream_query");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_stream_synchronize(NULL), "stream_synchronize");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_event_record(NULL, stream), "event_record", "event");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_event_record(event, NULL), "event_record", "stream");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_event_query(NULL), "event_query", "event");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_event_synchronize(NULL), "event_synchronize", "event");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_stream_wait_event(stream, NULL), "stream_wait_event", "event");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_stream_wait_event(NULL, event), "stream_wait_event", "stream");
    EXPECT_OK(kolo_event_destroy(NULL));
    EXPECT_OK(kolo_stream_call(stream, synchronize_here, stream));
    EXPECT_OK(kolo_stream_synchronize(stream));
    EXPECT_OK(kolo_event_query(event)); /* never recorded: nothing to wait for */
    EXPECT_OK(kolo_event_synchronize(event));
    EXPECT_OK(kolo_stream_wait_event(stream, event));
    EXPECT_OK(kolo_stream_synchronize(stream));
    EXPECT_OK(kolo_event_destroy(event));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_event_destroy(event), "event_destroy", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_event_query(event), "event_query", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_event_synchronize(event), "event_synchronize", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_event_record(event, stream), "event_record", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_stream_wait_event(stream, event), "wait_event", "destroyed");
    EXPECT_OK(kolo_stream_destroy(stream));
    assert_int_equal(expect_failures() - before, 0);
}

/* A wait is for the recording before it, also where a later one of another stream is reached first. */
static void a_later_recording_does_not_end_a_wait(void **state)
{
    (void)state;
    kolo_stream_t slow = NULL, quick = NULL, waits = NULL;
    kolo_event_t event = NULL;
    _Atomic int go = 0;
    int log[2], at = 0, before = expect_failures();
    note_t notes[] = {{log, &at, 0}, {log, &at, 1}};
    EXPECT_OK(kolo_stream_create(&slow));
    EXPECT_OK(kolo_stream_create(&quick));
    EXPECT_OK(kolo_stream_create(&waits));
    EXPECT_OK(kolo_event_create(&event));
    EXPECT_OK(kolo_stream_call(slow, hold, &go));
    EXPECT_OK(kolo_stream_call(slow, note, &notes[0]));
    EXPECT_OK(kolo_event_record(event, slow));
    EXPECT_OK(kolo_stream_wait_event(waits, event));
    EXPECT_OK(kolo_stream_call(waits, note, &notes[1]));
    EXPECT_OK(kolo_event_record(event, quick));
    EXPECT_OK(kolo_stream_synchronize(quick));
    nap_ms(20);
    EXPECT_IS(KOLO_IN_PROGRESS, kolo_stream_query(waits));
    atomic_store(&go, 1);
    EXPECT_OK(kolo_event_synchronize(event));
    EXPECT_OK(kolo_stream_synchronize(waits));
    EXPECT(at == 2 && log[0] == 0 && log[1] == 1);
    EXPECT_OK(kolo_event_destroy(event));
    EXPECT_OK(kolo_stream_destroy(slow));
    EXPECT_OK(kolo_stream_destroy(quick));
    EXPECT_OK(kolo_stream_destroy(waits));
    assert_int_equal(expect_failures() - before, 0);
}

static void an_event_orders_two_streams(void **state)
{
    (void)state;
    kolo_stream_t first = NULL, second = NULL;
    kolo_event_t event = NULL;
    int log[8], at = 0, before = expect_failures();
    note_t notes[] = {{log, &at, 0}, {log, &at, 1}, {log, &at, 2}, {log, &at, 3}};
    for (int round = 0; round < 50; round++) {
        _Atomic int go = 0;
        at = 0;
        EXPECT_OK(kolo_stream_create(&first));
        EXPECT_OK(kolo_stream_create(&second));
        EXPECT_OK(kolo_event_create(&event));
        EXPECT_OK(kolo_stream_call(first, hold, &go));
        EXPECT_OK(kolo_stream_call(first, note, &notes[0]));
        EXPECT_OK(kolo_event_record(event, first));
        EXPECT_OK(kolo_stream_wait_event(second, event));
        EXPECT_OK(kolo_stream_call(second, note, &notes[1]));
        EXPECT_IS(KOLO_IN_PROGRESS, kolo_event_query(event));
        EXPECT_IS(KOLO_IN_PROGRESS, kolo_stream_query(second));
        EXPECT_OK(kolo_event_record(event, second)); /* recorded again: the wait above keeps its point */
        EXPECT_OK(kolo_stream_wait_event(first, event));
        EXPECT_OK(kolo_stream_call(first, note, &notes[2]));
        if (round % 2) EXPECT_OK(kolo_event_destroy(event)); /* those who wait keep it */
        atomic_store(&go, 1);
        EXPECT_OK(kolo_stream_synchronize(first));
        if (round % 2 == 0) {
            EXPECT_OK(kolo_event_synchronize(event));
            EXPECT_OK(kolo_event_query(event));
            EXPECT_OK(kolo_event_destroy(event));
        }
        EXPECT(at == 3 && log[0] == 0 && log[1] == 1 && log[2] == 2);
        EXPECT_OK(kolo_stream_destroy(first));
        EXPECT_OK(kolo_stream_destroy(second));
    }
    assert_int_equal(expect_failures() - before, 0);
}

/* ---- with operations ---- */

static void queue_operations(rank_t *r)
{
    kolo_stream_t stream = NULL;
    int32_t x[3] = {1, 2, 3}, y[3 * MAX_RANKS] = {0}, n = r->nranks;
    _Atomic int go = 0;
    EXPECT_OK(kolo_stream_create(&stream));
    EXPECT_OK(kolo_stream_call(stream, hold, &go));
    for (int i = 0; i < 3; i++) EXPECT_OK(kolo_all_reduce(x, x, 3, KOLO_INT32, KOLO_SUM, r->comm, stream));
    EXPECT_OK(kolo_all_gather(x, y, 3, KOLO_INT32, r->comm, stream));
    EXPECT_IS(KOLO_IN_PROGRESS, kolo_stream_query(stream));
    EXPECT(x[0] == 1 && y[0] == 0);
    atomic_store(&go, 1);
    EXPECT_OK(kolo_stream_synchronize(stream));
    EXPECT_OK(kolo_stream_query(stream));
    EXPECT(x[2] == 3 * n * n * n && y[3 * n - 1] == x[2] && y[0] == n * n * n);
    EXPECT_OK(kolo_stream_destroy(stream));
}

static void queued_operations_run_in_order_and_do_not_block(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, queue_operations, NULL), 0);
}

static void *volatile nothing;

/* A call without stream comes after what is queued, and is done when it returns. */
static void mix_with_synchronous(rank_t *r)
{
    kolo_stream_t streams[2] = {NULL};
    int32_t x = 1, n = r->nranks;
    for (int i = 0; i < 2; i++) EXPECT_OK(kolo_stream_create(&streams[i]));
    for (int round = 0; round < 100; round++) {
        x = 1;
        EXPECT_OK(kolo_all_reduce(&x, &x, 1, KOLO_INT32, KOLO_SUM, r->comm, streams[0]));
        EXPECT_OK(kolo_all_reduce(&x, &x, 1, KOLO_INT32, KOLO_SUM, r->comm, streams[1]));
        EXPECT_OK(kolo_all_reduce(&x, &x, 1, KOLO_INT32, KOLO_SUM, r->comm, nothing));
        if (!EXPECT(x == n * n * n)) break;
    }
    for (int i = 0; i < 2; i++) EXPECT_OK(kolo_stream_destroy(streams[i]));
}

static void operations_of_a_communicator_keep_the_order_of_calls(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, mix_with_synchronous, NULL), 0);
}

static void finalize_behind_queue(rank_t *r)
{
    kolo_stream_t stream = NULL;
    int32_t x = 1;
    _Atomic int go = 0;
    EXPECT_OK(kolo_stream_create(&stream));
    EXPECT_OK(kolo_stream_call(stream, hold, &go));
    for (int i = 0; i < 5; i++) EXPECT_OK(kolo_all_reduce(&x, &x, 1, KOLO_INT32, KOLO_SUM, r->comm, stream));
    atomic_store(&go, 1);
    EXPECT_OK(kolo_comm_finalize(r->comm));
    EXPECT(x == 32);
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_barrier(r->comm, NULL), "finalized");
    (void)kolo_barrier(r->comm, stream); /* refused now or, as it is queued, when its turn comes */
    EXPECT_IS(KOLO_ERR_INVALID_USAGE, kolo_stream_synchronize(stream)); /* what is queued too late */
    EXPECT_OK(kolo_stream_synchronize(stream));                         /* an error is told once */
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    EXPECT_OK(kolo_stream_destroy(stream));
}

static void finalize_completes_what_is_queued(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) assert_int_equal(run_ranks(2, finalize_behind_queue, NULL), 0);
}

static void destroy_behind_queue(rank_t *r)
{
    kolo_stream_t stream = NULL;
    int32_t x = 1;
    EXPECT_OK(kolo_stream_create(&stream));
    for (int i = 0; i < 5; i++) EXPECT_OK(kolo_all_reduce(&x, &x, 1, KOLO_INT32, KOLO_SUM, r->comm, stream));
    EXPECT_OK(kolo_comm_destroy(r->comm));
    EXPECT(x == 32);
    r->comm = NULL;
    EXPECT_OK(kolo_stream_synchronize(stream));
    EXPECT_OK(kolo_stream_destroy(stream));
}

static void destroy_completes_what_is_queued(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) assert_int_equal(run_ranks(2, destroy_behind_queue, NULL), 0);
}

static void fail_on_stream(rank_t *r)
{
    kolo_stream_t stream = NULL;
    int32_t x = 1;
    kolo_status_t state = KOLO_OK;
    works(r->comm);
    EXPECT_OK(kolo_stream_create(&stream));
    if (r->rank == 1) {
        EXPECT_OK(kolo_comm_abort(r->comm));
    } else {
        EXPECT_OK(kolo_recv(&x, 1, KOLO_INT32, 1, r->comm, stream));
        EXPECT_OK(kolo_all_reduce(&x, &x, 1, KOLO_INT32, KOLO_SUM, r->comm, stream));
        EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_stream_synchronize(stream), "rank 1");
        EXPECT_OK(kolo_stream_synchronize(stream));
        EXPECT_OK(kolo_comm_get_async_error(r->comm, &state));
        EXPECT_IS(KOLO_ERR_REMOTE, state);
        EXPECT_OK(kolo_comm_destroy(r->comm));
    }
    r->comm = NULL;
    EXPECT_OK(kolo_stream_destroy(stream));
}

static void errors_of_the_queue_come_out_of_synchronize(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, fail_on_stream, NULL), 0);
}

/* Those that were destroyed are refused, and their places serve others. */
static void many_streams_come_and_go(void **state)
{
    (void)state;
    enum { STREAMS = 150 };
    kolo_stream_t streams[STREAMS];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < STREAMS; i++) assert_int_equal(kolo_stream_create(&streams[i]), KOLO_OK);
        for (int i = 0; i < STREAMS; i += 2) assert_int_equal(kolo_stream_destroy(streams[i]), KOLO_OK);
        for (int i = 0; i < STREAMS; i++)
            assert_int_equal(kolo_stream_query(streams[i]), i % 2 ? KOLO_OK : KOLO_ERR_INVALID_ARGUMENT);
        for (int i = 1; i < STREAMS; i += 2) assert_int_equal(kolo_stream_destroy(streams[i]), KOLO_OK);
    }
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_run_in_their_order),
        cmocka_unit_test(destroying_a_stream_waits_for_its_queue),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(many_streams_come_and_go),
        cmocka_unit_test(an_event_orders_two_streams),
        cmocka_unit_test(a_later_recording_does_not_end_a_wait),
        cmocka_unit_test(queued_operations_run_in_order_and_do_not_block),
        cmocka_unit_test(operations_of_a_communicator_keep_the_order_of_calls),
        cmocka_unit_test(finalize_completes_what_is_queued),
        cmocka_unit_test(destroy_completes_what_is_queued),
        cmocka_unit_test(errors_of_the_queue_come_out_of_synchronize),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
