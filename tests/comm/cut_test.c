/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs whose ranks cut the same messages into different groups, or none: whatever connection is new, they run,
 * for no connection waits for another one's peer.
 */
#include "kit/ranks.h"

#include <stdlib.h>
#include <string.h>

enum { LONG = 70000 }; /* elements: more than a queue has room for */
static const size_t lengths[] = {1, 300, LONG};
#define LENGTHS (sizeof lengths / sizeof lengths[0])

typedef struct {
    int32_t *out, *in[MAX_RANKS];
} buffers_t;

static void make(buffers_t *b, const rank_t *r, size_t n)
{
    b->out = malloc(n * sizeof *b->out);
    fill_ints(b->out, n, r->rank + 1);
    for (int p = 0; p < r->nranks; p++) b->in[p] = calloc(n, sizeof *b->out);
}

static void drop(buffers_t *b, const rank_t *r)
{
    free(b->out);
    for (int p = 0; p < r->nranks; p++) free(b->in[p]);
}

static void swap_in_a_group_and_without(rank_t *r)
{
    const size_t n = *(const size_t *)r->arg;
    buffers_t b;
    int mate = 1 - r->rank;
    make(&b, r, n);
    for (int round = 0; round < 3; round++) {
        memset(b.in[mate], 0, n * sizeof *b.out);
        if (r->rank == 0) {
            EXPECT_OK(kolo_group_start());
            EXPECT_OK(kolo_send(b.out, n, KOLO_INT32, mate, r->comm, NULL));
            EXPECT_OK(kolo_recv(b.in[mate], n, KOLO_INT32, mate, r->comm, NULL));
            EXPECT_OK(kolo_group_end());
        } else {
            EXPECT_OK(kolo_recv(b.in[mate], n, KOLO_INT32, mate, r->comm, NULL));
            EXPECT_OK(kolo_send(b.out, n, KOLO_INT32, mate, r->comm, NULL));
        }
        EXPECT(ints_are(b.in[mate], n, mate + 1));
    }
    drop(&b, r);
}

static void one_end_in_a_group(void **state)
{
    (void)state;
    for (size_t l = 0; l < LENGTHS; l++) {
        size_t n = lengths[l];
        assert_int_equal(run_ranks(2, swap_in_a_group_and_without, &n), 0);
    }
}

/* A ring that rank 0 takes in one group and the others by a receive and then a send: each connection but the first
 * waits for the message before it. */
static void pass_on(rank_t *r)
{
    const size_t n = *(const size_t *)r->arg;
    int next = (r->rank + 1) % r->nranks, previous = (r->rank + r->nranks - 1) % r->nranks;
    buffers_t b;
    make(&b, r, n);
    if (r->rank == 0) {
        EXPECT_OK(kolo_group_start());
        EXPECT_OK(kolo_recv(b.in[previous], n, KOLO_INT32, previous, r->comm, NULL));
        EXPECT_OK(kolo_send(b.out, n, KOLO_INT32, next, r->comm, NULL));
        EXPECT_OK(kolo_group_end());
    } else {
        EXPECT_OK(kolo_recv(b.in[previous], n, KOLO_INT32, previous, r->comm, NULL));
        EXPECT_OK(kolo_send(b.out, n, KOLO_INT32, next, r->comm, NULL));
    }
    EXPECT(ints_are(b.in[previous], n, previous + 1));
    drop(&b, r);
}

static void a_ring_with_one_group(void **state)
{
    (void)state;
    for (size_t l = 0; l < LENGTHS; l++) {
        size_t n = lengths[l];
        assert_int_equal(run_ranks(3, pass_on, &n), 0);
        assert_int_equal(run_ranks(7, pass_on, &n), 0);
    }
}

/* Three messages one way, three the other; who is even sends all in a group, who is odd cuts behind each. */
static void several_and_each_by_itself(rank_t *r)
{
    int mate = r->rank ^ 1;
    buffers_t b;
    make(&b, r, LONG);
    if (r->rank % 2 == 0) {
        EXPECT_OK(kolo_group_start());
        for (size_t l = 0; l < LENGTHS; l++)
            EXPECT_OK(kolo_send(b.out, lengths[l], KOLO_INT32, mate, r->comm, NULL));
        EXPECT_OK(kolo_recv(b.in[mate], LONG, KOLO_INT32, mate, r->comm, NULL));
        EXPECT_OK(kolo_group_end());
        EXPECT(ints_are(b.in[mate], LONG, mate + 1));
    } else {
        for (size_t l = 0; l < LENGTHS; l++) {
            memset(b.in[mate], 0, LONG * sizeof *b.out);
            EXPECT_OK(kolo_recv(b.in[mate], lengths[l], KOLO_INT32, mate, r->comm, NULL));
            EXPECT(ints_are(b.in[mate], lengths[l], mate + 1));
        }
        EXPECT_OK(kolo_send(b.out, LONG, KOLO_INT32, mate, r->comm, NULL));
    }
    drop(&b, r);
}

static void a_group_against_single_calls(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(4, several_and_each_by_itself, NULL), 0);
}

/* A message and a collective: one end has them in a group, the other one behind the other, in either order. */
static void mix(rank_t *r)
{
    const bool message_first = r->arg != NULL;
    int32_t x = 5, got = 0, one = r->rank + 1, sum = 0;
    for (int round = 0; round < 3; round++) {
        got = sum = 0;
        if (r->rank == 0) {
            if (message_first) EXPECT_OK(kolo_send(&x, 1, KOLO_INT32, 1, r->comm, NULL));
            EXPECT_OK(kolo_all_reduce(&one, &sum, 1, KOLO_INT32, KOLO_SUM, r->comm, NULL));
            if (!message_first) EXPECT_OK(kolo_send(&x, 1, KOLO_INT32, 1, r->comm, NULL));
        } else {
            EXPECT_OK(kolo_group_start());
            if (!message_first && r->rank == 1) EXPECT_OK(kolo_recv(&got, 1, KOLO_INT32, 0, r->comm, NULL));
            EXPECT_OK(kolo_all_reduce(&one, &sum, 1, KOLO_INT32, KOLO_SUM, r->comm, NULL));
            if (message_first && r->rank == 1) EXPECT_OK(kolo_recv(&got, 1, KOLO_INT32, 0, r->comm, NULL));
            EXPECT_OK(kolo_group_end());
        }
        EXPECT(sum == r->nranks * (r->nranks + 1) / 2 && (r->rank != 1 || got == 5));
    }
}

static void collectives_and_messages_cut_differently(void **state)
{
    (void)state;
    bool first = true;
    assert_int_equal(run_ranks(2, mix, NULL), 0);
    assert_int_equal(run_ranks(2, mix, &first), 0);
    assert_int_equal(run_ranks(3, mix, NULL), 0);
    assert_int_equal(run_ranks(3, mix, &first), 0);
}

/* One group over two communicators, called in another order by each rank, on one stream of each rank. */
static void two_on_one_stream(rank_t *r)
{
    kolo_comm_t other = NULL, comms[2];
    kolo_stream_t stream;
    int32_t x[2] = {1, 10}, y[2];
    if (!EXPECT_OK(kolo_comm_split(r->comm, 0, 0, &other, NULL))) return;
    comms[r->rank % 2] = r->comm;
    comms[1 - r->rank % 2] = other;
    EXPECT_OK(kolo_stream_create(&stream));
    for (int round = 0; round < 20; round++) {
        y[0] = y[1] = 0;
        EXPECT_OK(kolo_group_start());
        for (int i = 0; i < 2; i++)
            EXPECT_OK(kolo_all_reduce(&x[i], &y[i], 1, KOLO_INT32, KOLO_SUM, comms[i], stream));
        EXPECT_OK(kolo_group_end());
        EXPECT_OK(kolo_stream_synchronize(stream));
        /* what I gave to my first communicator is in the sum of those whose first it is, too */
        int evens = (r->nranks + 1) / 2, odds = r->nranks / 2;
        int with_ones = r->rank % 2 == 0 ? evens + 10 * odds : 10 * evens + odds;
        EXPECT(y[0] == with_ones && y[1] == 11 * r->nranks - with_ones);
    }
    EXPECT_OK(kolo_stream_destroy(stream));
    end_comm(&other);
}

static void a_group_of_two_communicators_on_one_stream(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, two_on_one_stream, NULL), 0);
    assert_int_equal(run_ranks(5, two_on_one_stream, NULL), 0);
}

/* One thread, all ranks, one stream; messages and collectives. */
static void one_thread_with_one_stream(void **state)
{
    (void)state;
    enum { N = 20 };
    kolo_comm_t comms[N];
    kolo_stream_t stream;
    int32_t in[N], sum[N], got[N];
    int before = expect_failures();
    EXPECT_OK(kolo_stream_create(&stream));
    EXPECT_OK(kolo_comm_init_all(comms, N, NULL));
    for (int way = 0; way < 4; way++) {
        void *on = way % 2 ? stream : NULL;
        EXPECT_OK(kolo_group_start());
        for (int i = 0; i < N; i++) {
            int r = way < 2 ? i : N - 1 - i;
            in[r] = r + 1;
            sum[r] = got[r] = 0;
            EXPECT_OK(kolo_recv(&got[r], 1, KOLO_INT32, (r + 1) % N, comms[r], on));
            EXPECT_OK(kolo_all_reduce(&in[r], &sum[r], 1, KOLO_INT32, KOLO_SUM, comms[r], on));
            EXPECT_OK(kolo_send(&in[r], 1, KOLO_INT32, (r + N - 1) % N, comms[r], on));
        }
        EXPECT_OK(kolo_group_end());
        if (on) EXPECT_OK(kolo_stream_synchronize(on));
        for (int r = 0; r < N; r++) EXPECT(sum[r] == N * (N + 1) / 2 && got[r] == (r + 1) % N + 1);
    }
    for (int r = 0; r < N; r++) EXPECT_OK(kolo_comm_destroy(comms[r]));
    EXPECT_OK(kolo_stream_destroy(stream));
    assert_int_equal(expect_failures() - before, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_end_in_a_group),
        cmocka_unit_test(a_ring_with_one_group),
        cmocka_unit_test(a_group_against_single_calls),
        cmocka_unit_test(collectives_and_messages_cut_differently),
        cmocka_unit_test(a_group_of_two_communicators_on_one_stream),
        cmocka_unit_test(one_thread_with_one_stream),
    };
    limit_s(100);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
