/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs whose ranks cut the same messages into different groups, or none: whatever connection is new, they run,
 * for no connection waits for another one's peer.
 */
#include "comm/ranks.h"

#include <stdlib.h>
#include <string.h>

enum { LONG = 70000 }; /* elements: more than a queue has room for */
static const size_t lengths[] = {1, 300, LONG};
#define LENGTHS (sizeof lengths / sizeof lengths[0])

typedef struct {
    int32_t *out, *in[MAX_RANKS];
} buffers_t;

static void fill(int32_t *data, size_t n, int seed)
{
    for (size_t i = 0; i < n; i++) data[i] = (int32_t)(i * 31 + (size_t)seed * 1000003);
}

static bool filled(const int32_t *data, size_t n, int seed)
{
    for (size_t i = 0; i < n; i++)
        if (data[i] != (int32_t)(i * 31 + (size_t)seed * 1000003)) return false;
    return true;
}

static void make(buffers_t *b, const rank_t *r, size_t n)
{
    b->out = malloc(n * sizeof *b->out);
    fill(b->out, n, r->rank + 1);
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
        EXPECT(filled(b.in[mate], n, mate + 1));
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
    EXPECT(filled(b.in[previous], n, previous + 1));
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
        EXPECT(filled(b.in[mate], LONG, mate + 1));
    } else {
        for (size_t l = 0; l < LENGTHS; l++) {
            memset(b.in[mate], 0, LONG * sizeof *b.out);
            EXPECT_OK(kolo_recv(b.in[mate], lengths[l], KOLO_INT32, mate, r->comm, NULL));
            EXPECT(filled(b.in[mate], lengths[l], mate + 1));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_end_in_a_group),
        cmocka_unit_test(a_ring_with_one_group),
        cmocka_unit_test(a_group_against_single_calls),
    };
    limit_s(100);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
