/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages with requests: exchanges that would hang if a request ran before the call behind it, any mix with other
 * calls, requests that are only asked about, and what is left over at the end. And a duplicate of a communicator.
 */
#include "kit/ranks.h"

#include <stdlib.h>
#include <string.h>

#define LONG_COUNT ((size_t)300000) /* does not fit into any queue */

static int32_t *make(size_t n, int seed)
{
    int32_t *data = malloc(n * sizeof *data);
    if (!data) abort();
    for (size_t i = 0; i < n; i++) data[i] = (int32_t)(i * 7 + (size_t)seed * 1000003);
    return data;
}

static bool holds(const int32_t *data, size_t n, int seed)
{
    for (size_t i = 0; i < n; i++)
        if (data[i] != (int32_t)(i * 7 + (size_t)seed * 1000003)) return false;
    return true;
}

typedef enum { BOTH_REQUESTS, SEND_THEN_RECV, RECV_THEN_SEND, ASKED, ON_A_STREAM, BESIDE_A_SUM, WAYS } way_t;

static void poll(kolo_pending_t request)
{
    int complete = 0;
    uint64_t end = now_ms() + 20000;
    while (!complete && now_ms() < end) EXPECT_OK(kolo_pending_test(request, &complete));
    EXPECT(complete);
}

/* Everybody sends to the next one and receives from the one before. */
static void shift(rank_t *r, way_t way, size_t n)
{
    int next = (r->rank + 1) % r->nranks, last = (r->rank + r->nranks - 1) % r->nranks, sum = r->rank;
    int32_t *out = make(n, r->rank), *in = make(n, 99);
    kolo_pending_t send = NULL, receive = NULL;
    kolo_stream_t stream = NULL;
    if (way != RECV_THEN_SEND) EXPECT_OK(kolo_isend(out, n, KOLO_INT32, next, r->comm, &send));
    if (way != SEND_THEN_RECV && way != ON_A_STREAM)
        EXPECT_OK(kolo_irecv(in, n, KOLO_INT32, last, r->comm, &receive));
    if (way == SEND_THEN_RECV) EXPECT_OK(kolo_recv(in, n, KOLO_INT32, last, r->comm, NULL));
    if (way == RECV_THEN_SEND) EXPECT_OK(kolo_send(out, n, KOLO_INT32, next, r->comm, NULL));
    if (way == BESIDE_A_SUM) EXPECT_OK(kolo_all_reduce(&sum, &sum, 1, KOLO_INT32, KOLO_SUM, r->comm, NULL));
    if (way == BESIDE_A_SUM) EXPECT(sum == r->nranks * (r->nranks - 1) / 2);
    if (way == ON_A_STREAM) {
        EXPECT_OK(kolo_stream_create(&stream));
        EXPECT_OK(kolo_recv(in, n, KOLO_INT32, last, r->comm, stream));
        EXPECT_OK(kolo_stream_synchronize(stream));
    }
    if (way == ASKED) poll(receive);
    EXPECT_OK(kolo_pending_wait(send));
    EXPECT_OK(kolo_pending_wait(receive));
    EXPECT(holds(in, n, last) && holds(out, n, r->rank));
    EXPECT_OK(kolo_stream_destroy(stream));
    free(in);
    free(out);
}

static void shift_all_ways(rank_t *r)
{
    for (int round = 0; round < 2; round++)
        for (int way = 0; way < WAYS; way++) {
            shift(r, (way_t)way, 3);
            shift(r, (way_t)way, LONG_COUNT);
        }
    EXPECT(works(r->comm));
}

static void an_exchange_does_not_wait_for_itself(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, shift_all_ways, NULL), 0);
    assert_int_equal(run_ranks(3, shift_all_ways, NULL), 0);
}

/* Rank 0 sends, with the messages of two groups in turn; the other end takes them one by one. */
static void many_in_order(rank_t *r)
{
    enum { N = 40 };
    kolo_pending_t requests[N];
    int values[N];
    for (int i = 0; i < N; i++) {
        values[i] = r->rank == 0 ? i * i : -1;
        if (r->rank == 0)
            EXPECT_OK(kolo_isend(&values[i], 1, KOLO_INT32, 1, r->comm, &requests[i]));
        else if (i % 3)
            EXPECT_OK(kolo_irecv(&values[i], 1, KOLO_INT32, 0, r->comm, &requests[i]));
        else
            EXPECT_OK(kolo_recv(&values[i], 1, KOLO_INT32, 0, r->comm, NULL));
    }
    for (int i = N; i-- > 0;)
        if (r->rank == 0 || i % 3) EXPECT_OK(kolo_pending_wait(requests[i]));
    for (int i = 0; i < N; i++) EXPECT(values[i] == i * i);
}

static void messages_of_a_pair_keep_their_order(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, many_in_order, NULL), 0);
}

static void to_myself(rank_t *r)
{
    kolo_pending_t send, receive;
    int out = 7 + r->rank, in = 0, other = 0;
    EXPECT_OK(kolo_isend(&out, 1, KOLO_INT32, r->rank, r->comm, &send));
    EXPECT_OK(kolo_irecv(&in, 1, KOLO_INT32, r->rank, r->comm, &receive));
    EXPECT_OK(kolo_pending_wait(receive));
    EXPECT_OK(kolo_pending_wait(send));
    EXPECT(in == out);
    EXPECT_OK(kolo_isend(&out, 1, KOLO_INT32, r->rank, r->comm, &send));
    EXPECT_OK(kolo_recv(&other, 1, KOLO_INT32, r->rank, r->comm, NULL));
    EXPECT_OK(kolo_pending_wait(send));
    EXPECT(other == out);
}

static void a_rank_sends_to_itself(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, to_myself, NULL), 0);
}

/* What rank 1 does one by one, in that order, rank 0 begins with a message that it puts aside. Whatever call comes
 * next takes it along or makes it begin: else rank 1 would wait for ever. */
typedef enum { IN_A_GROUP, IN_A_GROUP_ON_A_STREAM, WITH_A_WINDOW, WITH_A_COPY, NEXTS } next_t;

static void follow_it(rank_t *r, next_t next)
{
    int out = 11 + (int)next, in = 0, peer = 1 - r->rank;
    bool stream_used = next == IN_A_GROUP_ON_A_STREAM;
    kolo_pending_t request = NULL;
    kolo_stream_t stream = NULL;
    kolo_window_t window;
    kolo_comm_t copy;
    if (stream_used) EXPECT_OK(kolo_stream_create(&stream));
    if (r->rank == 0) EXPECT_OK(kolo_isend(&out, 1, KOLO_INT32, peer, r->comm, &request));
    if (r->rank == 1) EXPECT_OK(kolo_recv(&in, 1, KOLO_INT32, peer, r->comm, NULL));
    if (next == WITH_A_WINDOW) {
        EXPECT_OK(kolo_window_register(r->comm, NULL, 8, &window));
        EXPECT_OK(kolo_window_deregister(r->comm, window));
    } else if (next == WITH_A_COPY) {
        EXPECT_OK(kolo_comm_dup(r->comm, &copy, NULL));
        EXPECT_OK(kolo_comm_destroy(copy));
    } else if (r->rank == 1) {
        EXPECT_OK(kolo_send(&in, 1, KOLO_INT32, peer, r->comm, NULL));
    } else {
        EXPECT_OK(kolo_group_start());
        EXPECT_OK(kolo_recv(&in, 1, KOLO_INT32, peer, r->comm, stream));
        EXPECT_OK(kolo_group_end());
        if (stream_used) EXPECT_OK(kolo_stream_synchronize(stream));
    }
    EXPECT_OK(kolo_pending_wait(request));
    if (r->rank == 1 || next < WITH_A_WINDOW) EXPECT(in == out);
    EXPECT_OK(kolo_stream_destroy(stream));
}

static void follow_all(rank_t *r)
{
    for (int next = 0; next < NEXTS; next++) follow_it(r, (next_t)next);
    EXPECT(works(r->comm));
}

static void any_next_call_makes_it_begin(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, follow_all, NULL), 0);
}

/* A message that came into an open group is not complete before the group is, and not at all if that is dropped. */
static void in_a_group(rank_t *r)
{
    kolo_pending_t request = NULL;
    int out = 5 + r->rank, in = 0, peer = 1 - r->rank, complete = 1;
    EXPECT_OK(kolo_isend(&out, 1, KOLO_INT32, peer, r->comm, &request));
    EXPECT_OK(kolo_group_start());
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_pending_test(request, &complete), "group_start", "cannot begin");
    EXPECT_OK(kolo_recv(&in, 1, KOLO_INT32, peer, r->comm, NULL));
    EXPECT_OK(kolo_pending_test(request, &complete));
    EXPECT(!complete);
    EXPECT_OK(kolo_group_end());
    EXPECT_OK(kolo_pending_test(request, &complete));
    EXPECT(complete && in == 5 + peer);
    EXPECT_OK(kolo_pending_wait(request));
    EXPECT_OK(kolo_isend(&out, 1, KOLO_INT32, peer, r->comm, &request));
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_barrier(r->comm, NULL));
    EXPECT_OK(kolo_group_drop());
    EXPECT_ERROR(KOLO_ERR_ABORTED, kolo_pending_wait(request), "group_drop");
    EXPECT(works(r->comm));
}

static void it_is_part_of_an_open_group(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, in_a_group, NULL), 0);
}

/* A first use goes on in the background. */
static void exchange_in_the_background(rank_t *r)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t copy = NULL;
    kolo_pending_t send = NULL, receive = NULL;
    int peer = 1 - r->rank, complete = 1;
    int32_t *out = make(LONG_COUNT, r->rank), *in = make(LONG_COUNT, 99);
    config.blocking = 0;
    EXPECT_OK(settled(r->comm, kolo_comm_dup(r->comm, &copy, &config)));
    EXPECT_OK(settled(copy, KOLO_IN_PROGRESS));
    EXPECT_OK(kolo_isend(out, LONG_COUNT, KOLO_INT32, peer, copy, &send));
    EXPECT_OK(kolo_irecv(in, LONG_COUNT, KOLO_INT32, peer, copy, &receive));
    if (r->rank == 1) meet();
    EXPECT(kolo_barrier(copy, NULL) == KOLO_IN_PROGRESS);
    if (r->rank == 0) {
        EXPECT_OK(kolo_pending_test(receive, &complete));
        EXPECT(!complete); /* the other has not called it */
        meet();
    }
    if (r->rank == 0) poll(receive);
    EXPECT_OK(kolo_pending_wait(receive));
    EXPECT(holds(in, LONG_COUNT, peer));
    EXPECT_OK(kolo_pending_wait(send));
    EXPECT_OK(settled(copy, KOLO_IN_PROGRESS));
    EXPECT_OK(kolo_comm_destroy(copy));
    free(in);
    free(out);
}

static void it_is_not_complete_while_it_connects(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, exchange_in_the_background, NULL), 0);
}

/* What is put aside while something else connects begins when that is over, and is not refused. */
static void put_aside_while_it_connects(rank_t *r)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t copy = NULL;
    kolo_pending_t message = NULL;
    int peer = 1 - r->rank, complete = 1;
    int32_t data = r->rank == 0 ? 23 : -1;
    config.blocking = 0;
    EXPECT_OK(settled(r->comm, kolo_comm_dup(r->comm, &copy, &config)));
    EXPECT_OK(settled(copy, KOLO_IN_PROGRESS));
    if (r->rank == 1) meet();
    EXPECT(kolo_barrier(copy, NULL) == KOLO_IN_PROGRESS);
    if (r->rank == 0) EXPECT_OK(kolo_isend(&data, 1, KOLO_INT32, peer, copy, &message));
    if (r->rank == 1) EXPECT_OK(kolo_irecv(&data, 1, KOLO_INT32, peer, copy, &message));
    if (r->rank == 0) {
        EXPECT_OK(kolo_pending_test(message, &complete));
        EXPECT(!complete);
        meet();
    }
    EXPECT_OK(kolo_pending_wait(message));
    EXPECT(data == 23);
    EXPECT_OK(kolo_comm_synchronize(copy));
    EXPECT_OK(kolo_comm_destroy(copy));
}

static void what_is_put_aside_while_it_connects_is_not_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) assert_int_equal(run_ranks(2, put_aside_while_it_connects, NULL), 0);
}

/* The copy ends while an exchange of rank 0 connects in the background: by rank 1, or by rank 0 itself. */
static void lose_it_in_the_background(rank_t *r)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.blocking = 0;
    for (int own = 0; own < 2; own++) {
        kolo_comm_t copy = NULL;
        kolo_pending_t send = NULL, receive = NULL;
        int32_t out = 5, in = 0;
        EXPECT_OK(settled(r->comm, kolo_comm_dup(r->comm, &copy, &config)));
        EXPECT_OK(settled(copy, KOLO_IN_PROGRESS));
        if (r->rank == 0) {
            EXPECT_OK(kolo_isend(&out, 1, KOLO_INT32, 1, copy, &send));
            EXPECT_OK(kolo_irecv(&in, 1, KOLO_INT32, 1, copy, &receive));
            EXPECT(kolo_barrier(copy, NULL) == KOLO_IN_PROGRESS);
        }
        meet();
        if (r->rank == 1 || own) EXPECT_OK(kolo_comm_abort(copy));
        if (r->rank == 1) continue;
        EXPECT_ERROR(own ? KOLO_ERR_ABORTED : KOLO_ERR_REMOTE, kolo_pending_wait(receive),
                     own ? "ended before anybody waited" : "rank 1");
        EXPECT_ERROR(own ? KOLO_ERR_ABORTED : KOLO_ERR_REMOTE, kolo_pending_wait(send),
                     own ? "ended before anybody waited" : "rank 1");
        if (!own) EXPECT_OK(kolo_comm_destroy(copy));
    }
}

static void a_loss_ends_it_while_it_connects(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, lose_it_in_the_background, NULL), 0);
}

static void misuse(rank_t *r)
{
    kolo_pending_t request = NULL;
    int x = 0, peer = 1 - r->rank, complete;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_isend(&x, 1, KOLO_INT32, 2, r->comm, &request), "isend", "peer 2");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_irecv(NULL, 1, KOLO_INT32, 0, r->comm, &request), "irecv", "NULL");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_irecv(&x, 1, KOLO_INT32, 0, r->comm, NULL), "request");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_irecv(&x, 1, KOLO_INT32, 0, NULL, &request), "communicator");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_pending_test(NULL, &complete), "pending_test");
    EXPECT_OK(kolo_pending_wait(NULL));
    EXPECT_OK(kolo_group_start());
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_isend(&x, 1, KOLO_INT32, peer, r->comm, &request), "group_start");
    EXPECT_OK(kolo_group_end());
    EXPECT_OK(kolo_irecv(&x, 1, KOLO_INT32, peer, r->comm, &request));
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_finalize(r->comm), "nobody has waited for");
    meet();
    EXPECT_OK(kolo_comm_destroy(r->comm));
    EXPECT_ERROR(KOLO_ERR_ABORTED, kolo_pending_wait(request), "ended before anybody waited");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_pending_wait(request), "pending_wait", "waited for already");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_pending_test(request, &complete), "pending_test", "already");
    r->comm = NULL;
}

static void what_is_left_over_ends_with_an_error(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, misuse, NULL), 0);
}

static void leave_others_waiting(rank_t *r)
{
    kolo_pending_t request;
    int x = 0, complete = 0;
    if (r->rank == 0) {
        EXPECT_OK(kolo_irecv(&x, 1, KOLO_INT32, 1, r->comm, &request));
        EXPECT_OK(kolo_pending_test(request, &complete)); /* under way, in the background */
        meet();
        kolo_status_t status = kolo_pending_wait(request);
        EXPECT(status == KOLO_ERR_REMOTE);
        EXPECT(strstr(kolo_get_last_error(NULL), "rank 1") != NULL);
        kolo_comm_destroy(r->comm);
    } else {
        meet();
        kolo_comm_abort(r->comm);
    }
    r->comm = NULL;
}

static void a_loss_ends_a_request(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, leave_others_waiting, NULL), 0);
}

/* The copy's calls have no order with those of the first: rank 1 makes them the other way round. */
static void use_a_copy(rank_t *r)
{
    kolo_comm_t copy = NULL;
    kolo_stream_t stream;
    int here = r->rank + 1, there = 10 * here, n = 0, rank = -1;
    EXPECT_OK(kolo_stream_create(&stream));
    EXPECT_OK(kolo_comm_dup(r->comm, &copy, NULL));
    EXPECT_OK(kolo_comm_count(copy, &n));
    EXPECT_OK(kolo_comm_user_rank(copy, &rank));
    EXPECT(n == r->nranks && rank == r->rank);
    if (r->rank == 1) EXPECT_OK(kolo_all_reduce(&there, &there, 1, KOLO_INT32, KOLO_SUM, copy, stream));
    EXPECT_OK(kolo_all_reduce(&here, &here, 1, KOLO_INT32, KOLO_SUM, r->comm, NULL));
    if (r->rank != 1) EXPECT_OK(kolo_all_reduce(&there, &there, 1, KOLO_INT32, KOLO_SUM, copy, stream));
    EXPECT_OK(kolo_stream_synchronize(stream));
    int all = r->nranks * (r->nranks + 1) / 2;
    EXPECT(here == all && there == 10 * all);
    end_comm(&copy);
    EXPECT(works(r->comm));
    EXPECT_OK(kolo_stream_destroy(stream));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_dup(NULL, &copy, NULL), "comm_dup");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_dup(r->comm, NULL, NULL), "comm_dup", "output");
}

static void a_copy_has_the_same_ranks_and_an_order_of_its_own(void **state)
{
    (void)state;
    for (int n = 1; n <= 3; n++) assert_int_equal(run_ranks(n, use_a_copy, NULL), 0);
}

int main(void)
{
    limit_s(110);
    /* between the end of a first use and the word that it is over */
    setenv("KOLO_FAIL_POINT",
           "comm.first_use.over:1:delay,comm.first_use.over:2:delay,comm.first_use.over:3:delay,"
           "comm.first_use.over:4:delay",
           1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_exchange_does_not_wait_for_itself),
        cmocka_unit_test(messages_of_a_pair_keep_their_order),
        cmocka_unit_test(a_rank_sends_to_itself),
        cmocka_unit_test(any_next_call_makes_it_begin),
        cmocka_unit_test(it_is_part_of_an_open_group),
        cmocka_unit_test(it_is_not_complete_while_it_connects),
        cmocka_unit_test(what_is_put_aside_while_it_connects_is_not_refused),
        cmocka_unit_test(a_loss_ends_it_while_it_connects),
        cmocka_unit_test(what_is_left_over_ends_with_an_error),
        cmocka_unit_test(a_loss_ends_a_request),
        cmocka_unit_test(a_copy_has_the_same_ranks_and_an_order_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
