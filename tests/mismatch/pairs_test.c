/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank calls something else than the others, so that all of them wait: every one must hear of it well within a
 * second, with both calls in its text; whether they were connected before or these are the first calls. And a rank
 * that only comes late is nobody's mistake.
 */
#include "mismatch/calls.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef KOLO_SANITIZED
#define SOON_MS 3000
#else
#define SOON_MS 1500 /* KOLO_MISMATCH_MS is 200; the rest is for machines with more to do than this test */
#endif

typedef struct {
    const char *name;
    call_t call[2];       /* of most ranks; of the last one */
    const char *words[2]; /* that stand for them in the text */
    bool messages;        /* the last one's is a send or receive: nothing to be called by all before */
    bool unlinked; /* only first calls: else the message is under way, or what is needed of whom is not known */
    bool sends;    /* its data may leave for the queue, where the others find it and know only what it is */
} case_t;

static const case_t cases[] = {
    {"all_reduce and broadcast", {sum_many, broadcast_many}, .words = {"all_reduce", "broadcast"}},
    {"small and large all_reduce", {sum_few, sum_many}, .words = {"all_reduce 10 ", "all_reduce 300000"}},
    {"all_reduce and barrier", {sum_many, meet_all}, .words = {"all_reduce", "barrier"}},
    {"all_reduce and split", {sum_many, split_all}, .words = {"all_reduce", "comm_split"}},
    {"all_to_all and a window", {exchange_many, open_window}, .words = {"all_to_all", "window_register"}},
    {"split and barrier", {split_all, meet_all}, .words = {"comm_split", "barrier"}},
    {"two tables of counts", {gather_odd_parts, gather_even_parts}, .words = {"counts #", "counts #"}},
    {"two roots", {broadcast_many, broadcast_other}, .words = {"root 0", "root 1"}},
    {"small all_reduce and small recv", {sum_few, recv_few}, {"all_reduce 10 ", "recv 10 "}, .messages = true},
    {"large all_reduce and large recv", {sum_many, recv_many}, {"all_reduce", "recv 300000"}, .messages = true},
    {"split and small recv", {split_all, recv_few}, {"comm_split", "recv 10 "}, .messages = true},
    {"all_gatherv and small recv",
     {gather_odd_parts, recv_few},
     {"all_gatherv", "recv 10 "},
     .messages = true,
     .unlinked = true},
    {"barrier and large recv", {meet_all, recv_many}, {"barrier", "recv 300000"}, .messages = true},
    {"small all_reduce and large send",
     {sum_few, send_many},
     {"all_reduce 10 ", "send 300000"},
     .messages = true,
     .sends = true},
    {"large all_reduce and small send",
     {sum_many, send_few},
     {"all_reduce", "send 10 "},
     .messages = true,
     .unlinked = true},
    {"large all_reduce and a group",
     {sum_many, swap_many},
     {"all_reduce", "300000 int32"},
     .messages = true,
     .sends = true},
    {"all_to_all and small recv", {exchange_many, recv_few}, {"all_to_all", "recv 10 "}, .messages = true},
};
#define CASES (sizeof cases / sizeof cases[0])

typedef struct {
    const case_t *c;
    bool connected;
    _Atomic int mismatches, slowest_ms;
    char text[MAX_RANKS][1024];
} run_t;

/* The first and the last rank exchange messages of all kinds, so that those connections are there. */
static void exchange(const rank_t *r, int32_t *x)
{
    int last = r->nranks - 1;
    for (int i = 0; i < 4 && (r->rank == 0 || r->rank == last); i++) {
        size_t n = i < 2 ? 10 : MANY;
        int peer = r->rank == 0 ? last : 0;
        if ((r->rank == 0) == (i % 2 == 0))
            EXPECT_OK(kolo_send(x, n, KOLO_INT32, peer, r->comm, NULL));
        else
            EXPECT_OK(kolo_recv(x, n, KOLO_INT32, peer, r->comm, NULL));
    }
}

static void connect_all(const rank_t *r, const case_t *c, int32_t *x)
{
    EXPECT_OK(c->call[0](r->comm, x));
    if (c->messages)
        exchange(r, x);
    else
        EXPECT_OK(c->call[1](r->comm, x));
    EXPECT_OK(kolo_barrier(r->comm, NULL));
}

static void call_different_things(rank_t *r)
{
    run_t *run = r->arg;
    int32_t *x = calloc(CALL_ELEMENTS, sizeof *x);
    if (run->connected) connect_all(r, run->c, x);
    meet();
    uint64_t start = now_ms();
    kolo_status_t status = run->c->call[r->rank == r->nranks - 1](r->comm, x);
    if (status == KOLO_OK) status = kolo_barrier(r->comm, NULL); /* a root may need nobody */
    int took = (int)(now_ms() - start);
    EXPECT(IN_TIME(took < SOON_MS));
    EXPECT_IS(KOLO_ERR_MISMATCH, status);
    if (status == KOLO_ERR_MISMATCH) atomic_fetch_add(&run->mismatches, 1);
    snprintf(run->text[r->rank], sizeof run->text[0], "%s", kolo_get_last_error(r->comm));
    for (int seen = atomic_load(&run->slowest_ms);
         took > seen && !atomic_compare_exchange_weak(&run->slowest_ms, &seen, took);)
        continue;
    meet(); /* what a rank hears, it hears from those that are still there */
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(x);
}

/* A send that its queue or socket has room for is complete at once; its rank is then found in the barrier behind
 * it. */
static bool says(const run_t *run, int rank, int which)
{
    const char *text = run->text[rank];
    return strstr(text, run->c->words[which]) ||
           (which == 1 && run->c->sends && (strstr(text, "message of") || strstr(text, "barrier")));
}

static void run_case(const case_t *c, int n, bool connected)
{
    run_t run = {.c = c, .connected = connected};
    bool fine = run_ranks(n, call_different_things, &run) == 0 && run.mismatches == n;
    bool told[2] = {false, false};
    for (int i = 0; i < n; i++)
        for (int w = 0; w < 2; w++) told[w] = told[w] || says(&run, i, w);
    /* where messages were awaited and none came every single text has both */
    for (int i = 0; i < n && c->messages && !c->sends; i++) fine = fine && says(&run, i, 0) && says(&run, i, 1);
    fine = fine && told[0] && told[1];
    print_message("%s, %d ranks, %s: told after %d ms\n", c->name, n, connected ? "connected" : "first calls",
                  run.slowest_ms);
    for (int i = 0; i < n && !fine; i++) print_message("%s, rank %d: %s\n", c->name, i, run.text[i]);
    assert_true(fine);
}

static void every_rank_that_waits_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++)
        for (int n = 2; n <= 4 && !cases[i].unlinked; n += 2) run_case(&cases[i], n, true);
}

static void ranks_that_still_connect_are_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++)
        for (int n = 2; n <= 4; n += 2) run_case(&cases[i], n, false);
}

/* Rank 2 waits for 1, 1 for 0, and 0 is in a collective: the end of the chain hears of it too. */
static void wait_in_a_chain(rank_t *r)
{
    int32_t *x = calloc(CALL_ELEMENTS, sizeof *x);
    meet();
    uint64_t start = now_ms();
    if (r->rank == 0)
        EXPECT_ERROR(KOLO_ERR_MISMATCH, sum_many(r->comm, x), "all_reduce", "recv 10 int32 from rank 0");
    else
        EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_recv(x, 10, KOLO_INT32, r->rank - 1, r->comm, NULL), "all_reduce",
                     r->rank == 1 ? "recv 10 int32 from rank 0" : "recv 10 int32 from rank 1");
    EXPECT(IN_TIME(now_ms() - start < SOON_MS));
    meet();
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(x);
}

static void a_chain_of_receives_is_told(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, wait_in_a_chain, NULL), 0);
}

/* Rank 2 waits for 1, which is in an operation that 2 has not called but is not needed for: it ends, and 2 is
 * served. */
static void serve_later(rank_t *r)
{
    int32_t x[20] = {0};
    for (int i = 0; i < 2; i++) {
        if (r->rank == 2 && i == 1) EXPECT_OK(kolo_recv(x + 10, 10, KOLO_INT32, 1, r->comm, NULL));
        if (r->rank == 0 && i == 1) nap_ms(700);
        EXPECT_OK(kolo_broadcast(x, x, 10, KOLO_INT32, 0, r->comm, NULL)); /* the first one connects */
        if (r->rank == 1 && i == 1) EXPECT_OK(kolo_send(x, 10, KOLO_INT32, 2, r->comm, NULL));
    }
    EXPECT_OK(kolo_barrier(r->comm, NULL));
}

static void come_late(rank_t *r)
{
    static const call_t calls[] = {sum_few, sum_many, broadcast_many, meet_all, reduce_few, exchange_many};
    int32_t *x = calloc(CALL_ELEMENTS, sizeof *x);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        if (r->rank == 1 && i % 3 == 0) nap_ms(1500); /* in code of its own */
        EXPECT_OK(calls[i](r->comm, x));
    }
    if (r->rank == 0) nap_ms(1500);
    exchange(r, x); /* now rank 0 is the late one, and the last waits for its messages */
    if (r->rank == 0) nap_ms(700);
    exchange(r, x);
    EXPECT_OK(kolo_barrier(r->comm, NULL)); /* where rank 1 has waited all the time, needing nobody's message */
    free(x);
}

static void a_late_rank_is_nobodys_mistake(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, come_late, NULL), 0);
    /* over TCP a broadcast may go through rank 2 */
    if (!getenv("KOLO_SHM_DISABLE")) assert_int_equal(run_ranks(3, serve_later, NULL), 0);
}

/* ---- everybody its own root ---- */

/* Each sends its data and waits for nobody. The queues are full of what is never read, so that all wait in the
 * operation behind it, which is the same for all. */
static void be_my_own_root(rank_t *r)
{
    const size_t count = 100000;
    int32_t *x = calloc(CALL_ELEMENTS, sizeof *x);
    char text[1024];
    for (int i = 0; i < 3; i++) EXPECT_OK(kolo_all_reduce(x, x + MANY, count, KOLO_INT32, KOLO_SUM, r->comm, NULL));
    meet();
    uint64_t start = now_ms();
    kolo_status_t status = kolo_broadcast(x, x + MANY, count, KOLO_INT32, r->rank, r->comm, NULL);
    for (int i = 0; i < 3 && status == KOLO_OK; i++)
        status = kolo_all_reduce(x, x + MANY, count, KOLO_INT32, KOLO_SUM, r->comm, NULL);
    EXPECT(IN_TIME((int)(now_ms() - start) < SOON_MS));
    EXPECT_IS(KOLO_ERR_MISMATCH, status);
    snprintf(text, sizeof text, "%s", kolo_get_last_error(r->comm));
    if (!EXPECT(strstr(text, "operation 3 of rank ") && strstr(text, "broadcast 100000 int32 root")))
        print_message("rank %d: %s\n", r->rank, text);
    meet();
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(x);
}

static void ranks_that_are_all_roots_are_told(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, be_my_own_root, NULL), 0);
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_that_waits_is_told),     cmocka_unit_test(ranks_that_still_connect_are_told),
        cmocka_unit_test(a_chain_of_receives_is_told),       cmocka_unit_test(a_late_rank_is_nobodys_mistake),
        cmocka_unit_test(ranks_that_are_all_roots_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
