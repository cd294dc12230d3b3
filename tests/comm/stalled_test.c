/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that call different things on connections that only one side uses, so that no data and no signature ever
 * arrives: every rank that waits must hear of it soon, with both calls in the text. And ranks that call the right
 * things slowly, which is nobody's mistake.
 */
#include "kit/ranks.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 300000
/* KOLO_MISMATCH_MS is 200; the rest is for machines with more to do than this test. */
#define SOON_MS 3000

typedef kolo_status_t (*call_t)(kolo_comm_t, int32_t *);

static kolo_status_t sum_few(kolo_comm_t comm, int32_t *x)
{
    return kolo_all_reduce(x, x + MOST, 10, KOLO_INT32, KOLO_SUM, comm, NULL);
}
static kolo_status_t sum_many(kolo_comm_t comm, int32_t *x)
{
    return kolo_all_reduce(x, x + MOST, MOST, KOLO_INT32, KOLO_SUM, comm, NULL);
}
static kolo_status_t broadcast_many(kolo_comm_t comm, int32_t *x)
{
    return kolo_broadcast(x, x, MOST, KOLO_INT32, 0, comm, NULL);
}
static kolo_status_t gather_many(kolo_comm_t comm, int32_t *x)
{
    return kolo_gather(x, x + MOST, MOST / MAX_RANKS, KOLO_INT32, 0, comm, NULL);
}
static kolo_status_t exchange_many(kolo_comm_t comm, int32_t *x)
{
    return kolo_all_to_all(x, x + MOST, MOST / MAX_RANKS, KOLO_INT32, comm, NULL);
}
static kolo_status_t meet_all(kolo_comm_t comm, int32_t *x)
{
    (void)x;
    return kolo_barrier(comm, NULL);
}

typedef struct {
    const char *name;
    call_t call[2]; /* of most ranks; of the last one */
    const char *words[2];
} case_t;

static const case_t cases[] = {
    {"lines and slots", {sum_few, sum_many}, {"all_reduce", "300000"}},
    {"slots and lines", {sum_many, meet_all}, {"all_reduce", "barrier"}},
    {"two plans", {sum_many, exchange_many}, {"all_reduce", "all_to_all"}},
    {"a root that the others do not have", {exchange_many, gather_many}, {"all_to_all", "gather"}},
    {"a broadcast that only one wants", {sum_many, broadcast_many}, {"all_reduce", "broadcast"}},
};
#define CASES (sizeof cases / sizeof cases[0])

typedef struct {
    const case_t *c;
    bool connected; /* both calls were made before */
    _Atomic int mismatches;
    _Atomic int slowest_ms;
    char text[MAX_RANKS][1024];
} run_t;

static void call_different_things(rank_t *r)
{
    run_t *run = r->arg;
    int32_t *x = calloc(2 * (size_t)MOST, sizeof *x);
    for (int i = 0; run->connected && i < 2; i++) EXPECT_OK(run->c->call[i](r->comm, x));
    meet();
    uint64_t start = now_ms();
    kolo_status_t status = run->c->call[r->rank == r->nranks - 1](r->comm, x);
    if (status == KOLO_OK) status = kolo_barrier(r->comm, NULL); /* it needed nobody, or was served */
    int took = (int)(now_ms() - start);
    EXPECT(IN_TIME(took < SOON_MS));
    EXPECT(status == KOLO_ERR_MISMATCH || status == KOLO_ERR_REMOTE);
    snprintf(run->text[r->rank], sizeof run->text[0], "%s", kolo_get_last_error(r->comm));
    /* whose own call was served before the others found out hears that they have given up */
    if (status == KOLO_ERR_MISMATCH) atomic_fetch_add(&run->mismatches, 1);
    if (status == KOLO_ERR_REMOTE) EXPECT(strstr(run->text[r->rank], "given up"));
    if (took > atomic_load(&run->slowest_ms)) atomic_store(&run->slowest_ms, took);
    meet(); /* what a rank hears, it hears from those that are still there */
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(x);
}

static bool told(const run_t *run, int n, const char *word)
{
    for (int i = 0; i < n; i++)
        if (strstr(run->text[i], word)) return true;
    return false;
}

static void run_case(const case_t *c, int n, bool connected)
{
    run_t run = {.c = c, .connected = connected};
    int failures = run_ranks(n, call_different_things, &run);
    bool fine = failures == 0 && run.mismatches > 0 && told(&run, n, c->words[0]) && told(&run, n, c->words[1]);
    print_message("%s, %d ranks, %s: told after %d ms\n", c->name, n, connected ? "connected" : "first calls",
                  run.slowest_ms);
    for (int i = 0; i < n && !fine; i++) print_message("%s, rank %d: %s\n", c->name, i, run.text[i]);
    assert_true(fine);
}

static void every_rank_that_waits_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++)
        for (int n = 2; n <= 5; n += 3) run_case(&cases[i], n, true);
}

static void ranks_that_still_connect_are_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) run_case(&cases[i], 3, false);
}

static void come_late(rank_t *r)
{
    int32_t *x = calloc(2 * (size_t)MOST, sizeof *x);
    for (size_t i = 0; i < 2 * CASES; i++) {
        call_t call = cases[i / 2].call[i % 2];
        if (r->rank == 1 && i % 4 == 3) nap_ms(700); /* in code of its own */
        EXPECT_OK(call(r->comm, x));
    }
    free(x);
}

static void a_late_rank_is_nobodys_mistake(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, come_late, NULL), 0);
}

/* Some ranks run ahead of others all the time: a root needs nobody, a reader only the root. */
static void run_ahead(rank_t *r)
{
    int32_t *x = calloc(2 * (size_t)MOST, sizeof *x);
    uint32_t dice = 1;
    for (int i = 0, n = kolo_test_steps(600); i < n; i++) {
        dice = dice * 1664525u + 1013904223u; /* the same on all ranks */
        call_t call = cases[(dice >> 8) % CASES].call[(dice >> 24) % 2];
        if (((uint32_t)r->rank ^ dice >> 16) % 64 == 0) nap_ms(3);
        if (!EXPECT_OK(dice >> 30 ? call(r->comm, x) : broadcast_many(r->comm, x))) break;
    }
    free(x);
}

static void questions_never_accuse_right_calls(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(4, run_ahead, NULL), 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    limit_s(110);
    const struct CMUnitTest patient[] = {
        cmocka_unit_test(every_rank_that_waits_is_told),
        cmocka_unit_test(ranks_that_still_connect_are_told),
        cmocka_unit_test(a_late_rank_is_nobodys_mistake),
    };
    const struct CMUnitTest hasty[] = {
        cmocka_unit_test(questions_never_accuse_right_calls),
    };
    if (getenv("KOLO_MISMATCH_MS")) return cmocka_run_group_tests(hasty, NULL, NULL);
    int failed = cmocka_run_group_tests(patient, NULL, NULL);
    if (failed) return failed;
    /* Parameters are read once in a process: another one, that asks after every millisecond. */
    setenv("KOLO_MISMATCH_MS", "1", 1);
    execv("/proc/self/exe", argv);
    return 1;
}
