/* SPDX-License-Identifier: Apache-2.0
 *
 * Right calls, thousands of them, in a process whose ranks ask their peers after every millisecond of waiting
 * (KOLO_MISMATCH_MS=1): collectives of all kinds, single and grouped messages of all lengths and between all pairs,
 * ranks that dawdle. Nobody may ever be accused.
 */
#include "mismatch/calls.h"

#include <stdlib.h>

#define RANKS 4

static uint32_t roll(uint32_t *dice)
{
    *dice = *dice * 1664525u + 1013904223u;
    return *dice >> 8;
}

static const size_t lengths[] = {0, 1, 10, 700, 5000, 40000, MANY};

/* One message between two ranks; the others go on. Each end has its own pace. */
static kolo_status_t pass(const rank_t *r, int32_t *x, uint32_t *dice)
{
    int from = (int)(roll(dice) % RANKS), to = (int)((uint32_t)from + 1 + roll(dice) % (RANKS - 1)) % RANKS;
    size_t n = lengths[roll(dice) % (sizeof lengths / sizeof lengths[0])];
    uint32_t slow = roll(dice) % 16;
    if (slow < RANKS && (int)slow == r->rank) nap_ms(3);
    if (r->rank == from) return kolo_send(x, n, KOLO_INT32, to, r->comm, NULL);
    if (r->rank == to) return kolo_recv(x + MANY, n, KOLO_INT32, from, r->comm, NULL);
    return KOLO_OK;
}

/* Everybody to everybody, of two lengths each, with a collective in the same group. */
static kolo_status_t pass_all(const rank_t *r, int32_t *x, uint32_t *dice)
{
    size_t n = lengths[roll(dice) % 5], m = lengths[roll(dice) % 5];
    bool sum = roll(dice) % 2;
    kolo_group_start();
    for (int i = 0; i < RANKS; i++) {
        kolo_send(x, n, KOLO_INT32, i, r->comm, NULL);
        kolo_send(x, m, KOLO_INT32, i, r->comm, NULL);
        kolo_recv(x + MANY + 10000 * i, n, KOLO_INT32, i, r->comm, NULL);
        kolo_recv(x + MANY + 10000 * i + 5000, m, KOLO_INT32, i, r->comm, NULL);
    }
    if (sum) kolo_all_reduce(x + 50000, x + MANY + 50000, 10, KOLO_INT32, KOLO_SUM, r->comm, NULL);
    return kolo_group_end();
}

/* ---- groups cut differently, ranks that are late ---- */

#define LATE_MS 30

/* A collective, a message from the first rank to the second, a collective: each rank cuts them into groups as bit i
 * of `cut` says (a group begins with call i), and one rank is late. */
typedef struct {
    size_t count; /* of the message */
    unsigned cut[RANKS];
    int late;
} cut_t;

static void call_cut(rank_t *r)
{
    const cut_t *c = r->arg;
    int32_t *x = calloc(CALL_ELEMENTS, sizeof *x);
    bool open = false;
    for (int i = 0; i < 4; i++) { /* all connections are there */
        EXPECT_OK(reduce_few(r->comm, x));
        EXPECT_OK(meet_all(r->comm, x));
        if (r->rank == 0) EXPECT_OK(kolo_send(x, c->count, KOLO_INT32, 1, r->comm, NULL));
        if (r->rank == 1) EXPECT_OK(kolo_recv(x + MANY, c->count, KOLO_INT32, 0, r->comm, NULL));
    }
    if (r->rank == c->late) nap_ms(LATE_MS);
    for (int i = 0; i < 3; i++) {
        if (open && (c->cut[r->rank] >> i & 1)) EXPECT_OK(kolo_group_end());
        if (!open || (c->cut[r->rank] >> i & 1)) EXPECT_OK(kolo_group_start());
        open = true;
        if (i == 0) EXPECT_OK(reduce_few(r->comm, x));
        if (i == 1 && r->rank == 0) EXPECT_OK(kolo_send(x, c->count, KOLO_INT32, 1, r->comm, NULL));
        if (i == 1 && r->rank == 1) EXPECT_OK(kolo_recv(x + MANY, c->count, KOLO_INT32, 0, r->comm, NULL));
        if (i == 2) EXPECT_OK(meet_all(r->comm, x));
    }
    EXPECT_OK(kolo_group_end());
    free(x);
}

/* The receive after the barrier, where the sender has both in one group. */
static void call_apart(rank_t *r)
{
    const cut_t *c = r->arg;
    int32_t *x = calloc(CALL_ELEMENTS, sizeof *x);
    for (int i = 0; i < 4; i++) {
        if (i == 3 && r->rank == c->late) nap_ms(LATE_MS);
        if (r->rank == 0) EXPECT_OK(kolo_group_start());
        EXPECT_OK(reduce_few(r->comm, x));
        if (r->rank == 0) EXPECT_OK(kolo_send(x, c->count, KOLO_INT32, 1, r->comm, NULL));
        EXPECT_OK(meet_all(r->comm, x));
        if (r->rank == 0) EXPECT_OK(kolo_group_end());
        if (r->rank == 1) EXPECT_OK(kolo_recv(x + MANY, c->count, KOLO_INT32, 0, r->comm, NULL));
    }
    free(x);
}

static void groups_may_be_cut_in_any_way_and_ranks_be_late(void **state)
{
    (void)state;
    for (size_t i = 1; i < sizeof lengths / sizeof lengths[0]; i += 2)
        for (int late = 0; late < RANKS; late++) {
            cut_t c = {.count = lengths[i], .late = late};
            for (int r = 0; r < RANKS; r++) c.cut[r] = (unsigned)(i * 5 + (size_t)late * 3 + (size_t)r * 2) % 8;
            assert_int_equal(run_ranks(RANKS, call_cut, &c), 0);
            c.count = lengths[i + 1 < sizeof lengths / sizeof lengths[0] ? i + 1 : i];
            assert_int_equal(run_ranks(RANKS, call_apart, &c), 0);
        }
}

static void call_right_things(rank_t *r)
{
    static const call_t calls[] = {sum_few,    sum_many,      broadcast_many, broadcast_other,
                                   reduce_few, exchange_many, meet_all};
    int32_t *x = calloc(CALL_ELEMENTS, sizeof *x);
    uint32_t dice = (uint32_t)(uintptr_t)r->arg; /* the same on all ranks */
    for (int i = 0, n = kolo_test_steps(1000); i < n; i++) {
        uint32_t what = roll(&dice) % 16, slow = roll(&dice) % 64;
        if (slow < RANKS && (int)slow == r->rank) nap_ms(4);
        kolo_status_t status = what < 7    ? calls[what](r->comm, x)
                               : what < 15 ? pass(r, x, &dice)
                                           : pass_all(r, x, &dice);
        if (!EXPECT_OK(status)) break;
    }
    free(x);
}

static void right_calls_are_never_accused(void **state)
{
    (void)state;
    for (uintptr_t seed = 1; seed <= 3; seed++)
        assert_int_equal(run_ranks(RANKS, call_right_things, (void *)seed), 0);
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {cmocka_unit_test(right_calls_are_never_accused),
                                       cmocka_unit_test(groups_may_be_cut_in_any_way_and_ranks_be_late)};
    if (!getenv("KOLO_MISMATCH_MS")) setenv("KOLO_MISMATCH_MS", "1", 1); /* before the library reads it */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
