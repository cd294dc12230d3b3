/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of communicators: what a handle still allows, what arrives after a rank has left, and that nothing
 * remains.
 */
#include "kit/ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void use_after_the_end(rank_t *r)
{
    kolo_comm_t comm = r->comm, child;
    kolo_status_t state;
    int n = -1;
    float x = 1;
    size_t bytes;
    kolo_op_t op;
    kolo_registration_t reg;
    works(comm);
    EXPECT_OK(kolo_comm_finalize(comm));
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_finalize(comm), "comm_finalize", "finalized");
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_barrier(comm, NULL), "finalized");
    EXPECT(kolo_comm_count(comm, &n) == KOLO_OK && n == r->nranks);
    EXPECT_OK(kolo_comm_destroy(comm));
    r->comm = NULL;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_destroy(comm), "comm_destroy", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_abort(comm), "comm_abort", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_finalize(comm), "comm_finalize", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_count(comm, &n), "comm_count", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_user_rank(comm, &n), "comm_user_rank", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_device(comm, &n), "comm_device", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_memory(comm, &bytes), "comm_memory", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_get_async_error(comm, &state), "comm_get_async_error");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_split(comm, 0, 0, &child, NULL), "comm_split", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_op_create_premul_sum(&op, &x, KOLO_FLOAT32, comm), "premul");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_op_destroy(KOLO_OP_BUILTIN_COUNT, comm), "op_destroy");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_register(comm, &x, 4, &reg), "comm_register", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_send(&x, 1, KOLO_FLOAT32, 0, comm, NULL), "send", "destroyed");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_all_reduce(&x, &x, 1, KOLO_FLOAT32, KOLO_SUM, comm, NULL),
                 "all_reduce", "destroyed");
    EXPECT(kolo_get_last_error(comm) != NULL);
    static uint64_t zeros[1024];
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_barrier((kolo_comm_t)(void *)zeros, NULL), "barrier",
                 "not a communicator");
}

static void an_ended_communicator_is_refused_everywhere(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, use_after_the_end, NULL), 0);
}

static void queries_want_an_output(rank_t *r)
{
    size_t bytes = 0;
    int n = 7;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_count(r->comm, NULL), "comm_count", "output");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_user_rank(r->comm, NULL), "comm_user_rank", "output");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_device(r->comm, NULL), "comm_device", "output");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_memory(r->comm, NULL), "comm_memory", "output");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_get_async_error(r->comm, NULL), "async_error", "output");
    EXPECT(kolo_comm_device(r->comm, &n) == KOLO_OK && n == -1);
    EXPECT(kolo_comm_memory(r->comm, &bytes) == KOLO_OK && bytes > 0);
    works(r->comm);
}

static void queries_without_output_are_refused(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, queries_want_an_output, NULL), 0);
}

static void leave_at_once(rank_t *r)
{
    size_t count = 300000;
    int32_t *data = malloc(count * sizeof *data);
    for (size_t i = 0; i < count; i++) data[i] = r->rank == 0 ? (int32_t)i : -1;
    works(r->comm);
    for (size_t n = 1; n <= count; n *= 300000) {
        if (r->rank) nap_ms(100);
        EXPECT_OK(kolo_broadcast(data, data, n, KOLO_INT32, 0, r->comm, NULL));
        EXPECT(data[n - 1] == (int32_t)n - 1);
    }
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(data);
}

/* Who has its part done may go; what it sent still arrives. */
static void destroy_without_finalize_loses_no_data(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, leave_at_once, NULL), 0);
}

static void destroys_first(rank_t *r)
{
    works(r->comm);
    if (r->rank == 0) {
        nap_ms(150);
        EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_comm_finalize(r->comm), "comm_finalize", "rank 1 closed its side");
        return;
    }
    nap_ms(50); /* until all that it has sent is acknowledged */
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
}

/* Within a machine a connection ends by a reset, which is no broken network where the peer has taken its leave. */
static void who_has_destroyed_did_not_die(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) assert_int_equal(run_ranks(2, destroys_first, NULL), 0);
}

static void copies_without_one(rank_t *r)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t copy = NULL;
    kolo_status_t status;
    works(r->comm);
    meet(); /* who is told that rank 0 has gone tells the others, wherever they are */
    if (r->rank == 0) {
        EXPECT_OK(kolo_comm_destroy(r->comm));
        r->comm = NULL;
        return;
    }
    config.blocking = 0;
    status = kolo_comm_dup(r->comm, &copy, &config);
    if (status == KOLO_IN_PROGRESS) status = settled(copy, status);
    EXPECT(status == KOLO_ERR_REMOTE);
    char words[64];
    snprintf(words, sizeof words, "comm_dup from comm, rank %d of 3", r->rank);
    if (copy) EXPECT(strstr(kolo_get_last_error(copy), words) != NULL);
    EXPECT_OK(kolo_comm_destroy(copy));
}

/* Its place in the new communicator is not known when that fails: it is told by its old one. */
static void who_cannot_be_copied_is_told_by_its_rank(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, copies_without_one, NULL), 0);
}

static void come_and_go(rank_t *r)
{
    (void)works(r->comm);
}

static void fifty_communicators_leave_nothing(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, come_and_go, NULL), 0);
    census_t before = census_take();
    for (int i = 0; i < 50; i++) assert_int_equal(run_ranks(3, come_and_go, NULL), 0);
    assert_true(census_no_more_than(before));
}

/* ---- an abort from another thread, while messages are put aside ---- */

enum { ASIDE = 200000 };

static void *abort_soon(void *arg)
{
    nap_ms(2);
    EXPECT_OK(kolo_comm_abort(arg));
    return NULL;
}

/* Puts messages aside until the communicator has ended; then each is ended, and once. */
static void put_aside_until_the_end(rank_t *r)
{
    static kolo_pending_t requests[ASIDE];
    pthread_t thread;
    int32_t data;
    int n = 0;
    meet();
    if (r->rank == 0) {
        if (pthread_create(&thread, NULL, abort_soon, r->comm)) abort();
        while (n < ASIDE && kolo_irecv(&data, 1, KOLO_INT32, 1, r->comm, &requests[n]) == KOLO_OK) n++;
        pthread_join(thread, NULL);
        for (int i = 0; i < n; i++) EXPECT_ERROR(KOLO_ERR_ABORTED, kolo_pending_wait(requests[i]), "ended");
        r->comm = NULL;
    }
    meet();
}

static void messages_put_aside_beside_an_abort_all_end(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) assert_int_equal(run_ranks(2, put_aside_until_the_end, NULL), 0);
}

static void *abort_now(void *arg)
{
    EXPECT_OK(kolo_comm_abort(arg));
    return NULL;
}

static void send_to_myself(const rank_t *r)
{
    kolo_pending_t send = NULL, receive = NULL;
    int32_t out = 17, in = 0;
    EXPECT_OK(kolo_irecv(&in, 1, KOLO_INT32, r->rank, r->comm, &receive));
    EXPECT_OK(kolo_isend(&out, 1, KOLO_INT32, r->rank, r->comm, &send));
    EXPECT_OK(kolo_pending_wait(receive));
    EXPECT_OK(kolo_pending_wait(send));
    EXPECT(in == out);
}

/* Asks about messages that are aside, and waits for them, the last one first, while another thread's abort ends
 * them. Those on another communicator get the memory of the first. */
static void wait_beside_an_abort(rank_t *r, int blocking)
{
    enum { MANY = 300 };
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_pending_t requests[MANY];
    kolo_status_t state = KOLO_OK;
    kolo_comm_t copy = NULL;
    pthread_t thread;
    int32_t data;
    int complete = 0;
    config.blocking = blocking;
    state = kolo_comm_dup(r->comm, &copy, &config);
    EXPECT_OK(settled(copy, state));
    state = KOLO_OK;
    meet();
    if (r->rank == 0) {
        for (int i = 0; i < MANY; i++) EXPECT_OK(kolo_irecv(&data, 1, KOLO_INT32, 1, copy, &requests[i]));
        if (pthread_create(&thread, NULL, abort_now, copy)) abort();
        while (kolo_comm_get_async_error(copy, &state) == KOLO_OK && state == KOLO_OK) continue;
        EXPECT_OK(kolo_pending_test(requests[0], &complete));
        for (int i = MANY; i-- > 0;) {
            EXPECT_ERROR(KOLO_ERR_ABORTED, kolo_pending_wait(requests[i]), "ended before anybody waited");
            EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_pending_wait(requests[i]), "waited for already");
            if (i % 4 == 0) send_to_myself(r);
        }
        pthread_join(thread, NULL);
    }
    meet();
    if (r->rank != 0) EXPECT_OK(kolo_comm_destroy(copy));
}

static void wait_beside_aborts(rank_t *r)
{
    for (int i = 0; i < 10; i++) wait_beside_an_abort(r, i % 2);
}

static void who_waits_for_what_an_abort_ends_is_told_once(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, wait_beside_aborts, NULL), 0);
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_ended_communicator_is_refused_everywhere),
        cmocka_unit_test(queries_without_output_are_refused),
        cmocka_unit_test(destroy_without_finalize_loses_no_data),
        cmocka_unit_test(who_has_destroyed_did_not_die),
        cmocka_unit_test(who_cannot_be_copied_is_told_by_its_rank),
        cmocka_unit_test(messages_put_aside_beside_an_abort_all_end),
        cmocka_unit_test(who_waits_for_what_an_abort_ends_is_told_once),
        cmocka_unit_test(fifty_communicators_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
