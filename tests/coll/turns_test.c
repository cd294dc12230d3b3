/* SPDX-License-Identifier: Apache-2.0
 *
 * Several threads on one communicator: calls that return when they are complete do not overlap, and who tries is
 * told; calls that are queued on streams may be made by any number of threads. And a limit for one call.
 */
#include "kit/ranks.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- overlapping calls ---- */

typedef struct {
    kolo_comm_t comm;
    int told, called;
} callback_t;

static void *call_from_a_thread(void *arg)
{
    callback_t *c = arg;
    int32_t x = 1;
    c->told += EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_barrier(c->comm, NULL), "another thread is in a call",
                            "kolo_comm_dup");
    c->told += EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_all_reduce(&x, &x, 1, KOLO_INT32, KOLO_SUM, c->comm, NULL),
                            "nothing was done");
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_all_reduce(&x, &x, 1, KOLO_INT32, KOLO_SUM, c->comm, NULL));
    c->told += EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_group_end(), "another thread is in a call");
    EXPECT_IS(1, x);
    return NULL;
}

/* It runs inside the all_reduce. */
static void sum(const void *in, void *inout, size_t count, kolo_type_t type, void *arg)
{
    callback_t *c = arg;
    pthread_t thread;
    (void)type;
    for (size_t i = 0; i < count; i++) ((int32_t *)inout)[i] += ((const int32_t *)in)[i];
    if (c->called++) return;
    if (!EXPECT(pthread_create(&thread, NULL, call_from_a_thread, c) == 0)) return;
    pthread_join(thread, NULL);
    c->told += EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_barrier(c->comm, NULL), "made by a function");
}

static void overlap(rank_t *r)
{
    callback_t c = {.comm = r->comm};
    kolo_op_t op;
    int32_t x[64];
    EXPECT_OK(kolo_op_create_callback(&op, sum, &c, KOLO_INT32, r->comm));
    for (int in_group = 0; in_group < 2; in_group++) {
        c.called = c.told = 0;
        for (int i = 0; i < 64; i++) x[i] = r->rank;
        if (in_group) EXPECT_OK(kolo_group_start());
        EXPECT_OK(kolo_all_reduce(x, x, 64, KOLO_INT32, op, r->comm, NULL));
        if (in_group) EXPECT_OK(kolo_group_end());
        for (int i = 0; i < 64; i++) EXPECT_IS(3, x[i]);
        EXPECT(c.called == 0 || c.told == 4);
        EXPECT(works(r->comm)); /* the calls that were refused have done nothing */
    }
    EXPECT_OK(kolo_op_destroy(op, r->comm));
}

static void a_call_that_overlaps_another_is_refused(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, overlap, NULL), 0);
}

/* ---- queued by several threads ---- */

#define QUEUERS 4
#define CALLS   400

typedef struct {
    kolo_comm_t comm;
    kolo_stream_t stream;
    int32_t values[CALLS];
} queuer_t;

static void *queue_calls(void *arg)
{
    queuer_t *q = arg;
    for (int i = 0; i < CALLS; i++) {
        q->values[i] = 1;
        EXPECT_OK(kolo_all_reduce(&q->values[i], &q->values[i], 1, KOLO_INT32, KOLO_SUM, q->comm, q->stream));
    }
    return NULL;
}

/* All calls are alike, so it does not matter which of them meet. */
static void queue_from_threads(rank_t *r)
{
    bool one_stream = *(bool *)r->arg;
    queuer_t *all = calloc(QUEUERS, sizeof *all);
    pthread_t threads[QUEUERS];
    for (int i = 0; i < QUEUERS; i++) {
        all[i].comm = r->comm;
        if (i && one_stream)
            all[i].stream = all[0].stream;
        else
            EXPECT_OK(kolo_stream_create(&all[i].stream));
    }
    for (int i = 0; i < QUEUERS; i++) EXPECT(pthread_create(&threads[i], NULL, queue_calls, &all[i]) == 0);
    for (int i = 0; i < QUEUERS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < QUEUERS; i++) {
        EXPECT_OK(kolo_stream_synchronize(all[i].stream));
        for (int k = 0; k < CALLS; k++) EXPECT_IS(r->nranks, all[i].values[k]);
    }
    for (int i = 0; i < (one_stream ? 1 : QUEUERS); i++) EXPECT_OK(kolo_stream_destroy(all[i].stream));
    EXPECT(works(r->comm));
    free(all);
}

static void threads_may_queue_calls_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        bool one_stream = i;
        assert_int_equal(run_ranks(2, queue_from_threads, &one_stream), 0);
    }
}

/* ---- a limit for one call ---- */

#define LIMIT_MS 300

static void limit_calls(rank_t *r)
{
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_set_op_timeout(r->comm, -1, NULL), "negative");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_set_op_timeout(NULL, 5, NULL), "NULL");
    EXPECT_OK(kolo_barrier(r->comm, NULL));
    int before = -1;
    EXPECT_OK(kolo_comm_set_op_timeout(r->comm, LIMIT_MS, &before));
    EXPECT_IS(0, before);
    EXPECT_OK(kolo_comm_set_op_timeout(r->comm, before, &before));
    EXPECT_IS(LIMIT_MS, before);
    if (r->rank == 1) nap_ms(2 * LIMIT_MS);
    EXPECT_OK(kolo_barrier(r->comm, NULL)); /* no limit any more */
    if (r->rank == 0) {
        uint64_t start = now_ms();
        EXPECT_OK(kolo_comm_set_op_timeout(r->comm, LIMIT_MS, NULL));
        EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_barrier(r->comm, NULL), "rank 1");
        EXPECT(now_ms() - start >= LIMIT_MS - 2);
    }
    meet();
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
}

static void a_call_may_have_a_limit_of_its_own(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, limit_calls, NULL), 0);
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_that_overlaps_another_is_refused),
        cmocka_unit_test(threads_may_queue_calls_at_once),
        cmocka_unit_test(a_call_may_have_a_limit_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
