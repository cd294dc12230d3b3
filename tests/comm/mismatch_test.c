/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that call different things on connections that both sides wait on: the signature that travels with the data
 * tells them, within seconds, and the text says who called what.
 */
#include "kit/ranks.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 200000

typedef struct {
    const char *name;
    kolo_status_t (*call[2])(kolo_comm_t, int32_t *); /* of most ranks; of the last one */
    const char *words[2];                             /* that stand for them in the text */
} case_t;

#define REDUCTION(fn, n, type, op)                                                                                 \
    static kolo_status_t fn(kolo_comm_t comm, int32_t *x)                                                          \
    {                                                                                                              \
        return kolo_all_reduce(x, x + MOST, n, type, op, comm, NULL);                                              \
    }
REDUCTION(sum_10, 10, KOLO_INT32, KOLO_SUM)
REDUCTION(max_10, 10, KOLO_INT32, KOLO_MAX)
REDUCTION(sum_11, 11, KOLO_INT32, KOLO_SUM)
REDUCTION(sum_float, 10, KOLO_FLOAT32, KOLO_SUM)
REDUCTION(large_sum, 100000, KOLO_INT32, KOLO_SUM)
REDUCTION(large_max, 100000, KOLO_INT32, KOLO_MAX)
REDUCTION(larger_sum, 100008, KOLO_INT32, KOLO_SUM)
REDUCTION(large_unsigned, 100000, KOLO_UINT32, KOLO_SUM)

static kolo_status_t gather_10(kolo_comm_t comm, int32_t *x)
{
    return kolo_all_gather(x, x + MOST, 10, KOLO_INT32, comm, NULL);
}
static kolo_status_t all_to_all_10(kolo_comm_t comm, int32_t *x)
{
    return kolo_all_to_all(x, x + MOST, 10, KOLO_INT32, comm, NULL);
}
static kolo_status_t meet_all(kolo_comm_t comm, int32_t *x)
{
    (void)x;
    return kolo_barrier(comm, NULL);
}

static const case_t cases[] = {
    {"operator, few elements", {sum_10, max_10}, {"sum", "max"}},
    {"count, few elements", {sum_10, sum_11}, {"10", "11"}},
    {"type, few elements", {sum_10, sum_float}, {"int32", "float32"}},
    {"operation, few elements", {sum_10, gather_10}, {"all_reduce", "all_gather"}},
    {"barrier", {sum_10, meet_all}, {"all_reduce", "barrier"}},
    {"operator, many elements", {large_sum, large_max}, {"sum", "max"}},
    {"count, many elements", {large_sum, larger_sum}, {"100000", "100008"}},
    {"type, many elements", {large_sum, large_unsigned}, {"int32", "uint32"}},
    {"all_to_all", {all_to_all_10, gather_10}, {"all_to_all", "all_gather"}},
};
#define CASES (sizeof cases / sizeof cases[0])

typedef struct {
    const case_t *c;
    _Atomic int mismatches;
    char text[MAX_RANKS][1024];
} run_t;

static void call_different_things(rank_t *r)
{
    run_t *run = r->arg;
    int odd = r->rank == r->nranks - 1;
    int32_t *x = calloc(2 * (size_t)MOST + 4 * MAX_RANKS, sizeof *x);
    kolo_status_t state = KOLO_OK;
    /* the connections of both calls are there */
    for (int i = 0; i < 2; i++) EXPECT_OK(run->c->call[i](r->comm, x));
    meet();
    uint64_t start = now_ms();
    kolo_status_t status = run->c->call[odd](r->comm, x);
    if (status == KOLO_OK) status = kolo_barrier(r->comm, NULL); /* a rank may be through before others notice */
    EXPECT(IN_TIME(now_ms() - start < 5000));
    EXPECT(status == KOLO_ERR_MISMATCH || status == KOLO_ERR_REMOTE);
    snprintf(run->text[r->rank], sizeof run->text[0], "%s", kolo_get_last_error(r->comm));
    if (status == KOLO_ERR_MISMATCH) atomic_fetch_add(&run->mismatches, 1);
    EXPECT_OK(kolo_comm_get_async_error(r->comm, &state));
    EXPECT_IS(status, state);
    EXPECT_ERROR(status, kolo_barrier(r->comm, NULL), "earlier failure");
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

static void run_case(const case_t *c, void (*fn)(rank_t *), int n)
{
    run_t run = {.c = c};
    int failures = run_ranks(n, fn, &run);
    bool fine = failures == 0 && run.mismatches > 0 && told(&run, n, c->words[0]) && told(&run, n, c->words[1]);
    for (int i = 0; i < n && !fine; i++) print_message("%s, rank %d: %s\n", c->name, i, run.text[i]);
    assert_true(fine);
}

static void both_calls_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++)
        for (int n = 2; n <= 3; n++) run_case(&cases[i], call_different_things, n);
}

/* ---- a rank that takes the communicator for done ---- */

static kolo_status_t end(kolo_comm_t comm, int32_t *x)
{
    (void)x;
    return kolo_comm_finalize(comm);
}
static kolo_status_t receive_10(kolo_comm_t comm, int32_t *x)
{
    int nranks = 0;
    kolo_comm_count(comm, &nranks);
    return kolo_recv(x, 10, KOLO_INT32, nranks - 1, comm, NULL);
}

static const case_t ends[] = {
    {"the end, few elements", {sum_10, end}, {"all_reduce", "comm_finalize"}},
    {"the end, many elements", {large_sum, end}, {"all_reduce", "comm_finalize"}},
    {"the end, barrier", {meet_all, end}, {"barrier", "comm_finalize"}},
    {"the end, a message", {receive_10, end}, {"recv", "comm_finalize"}},
    {"the end, first use", {all_to_all_10, end}, {"all_to_all", "comm_finalize"}},
};

static void end_too_early(rank_t *r)
{
    run_t *run = r->arg;
    int32_t *x = calloc(2 * (size_t)MOST + 4 * MAX_RANKS, sizeof *x);
    EXPECT_OK(sum_10(r->comm, x));
    EXPECT_OK(large_sum(r->comm, x));
    EXPECT_OK(meet_all(r->comm, x));
    uint64_t start = now_ms();
    kolo_status_t status = run->c->call[r->rank == r->nranks - 1](r->comm, x);
    EXPECT(IN_TIME(now_ms() - start < 5000));
    EXPECT(status == KOLO_ERR_MISMATCH || status == KOLO_ERR_REMOTE);
    snprintf(run->text[r->rank], sizeof run->text[0], "%s", kolo_get_last_error(r->comm));
    if (status == KOLO_ERR_MISMATCH) atomic_fetch_add(&run->mismatches, 1);
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(x);
}

static void who_finalizes_too_early_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        for (int n = 2; n <= 3; n++) run_case(&ends[i], end_too_early, n);
}

static void roots_differ(rank_t *r)
{
    kolo_status_t status = KOLO_OK;
    int32_t x[4] = {0}, y[4];
    for (int root = 0; root < 3; root++) EXPECT_OK(kolo_reduce(x, y, 4, KOLO_INT32, KOLO_SUM, root, r->comm, NULL));
    meet();
    uint64_t start = now_ms();
    /* 0 and 2 send to 1, which thinks that it sends to 2 */
    status = kolo_reduce(x, y, 4, KOLO_INT32, KOLO_SUM, r->rank == 1 ? 2 : 1, r->comm, NULL);
    if (status == KOLO_OK) status = kolo_all_reduce(x, y, 4, KOLO_INT32, KOLO_SUM, r->comm, NULL);
    /* who had got all that it needed before the others noticed is through */
    EXPECT(status == KOLO_OK || status == KOLO_ERR_MISMATCH || status == KOLO_ERR_REMOTE);
    EXPECT(IN_TIME(now_ms() - start < 5000));
    EXPECT(status != KOLO_ERR_MISMATCH || strstr(kolo_get_last_error(r->comm), "reduce"));
    if (status == KOLO_ERR_MISMATCH) atomic_fetch_add((_Atomic int *)r->arg, 1);
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
}

static void different_roots_are_noticed(void **state)
{
    (void)state;
    _Atomic int mismatches = 0;
    assert_int_equal(run_ranks(3, roots_differ, &mismatches), 0);
    assert_true(mismatches > 0);
}

static void lengths_differ(rank_t *r)
{
    size_t n = r->arg ? 100000 : 10;
    int32_t *x = calloc(n + 1, sizeof *x);
    kolo_status_t status;
    for (int i = 0; i < 2; i++)
        EXPECT_OK(r->rank == i ? kolo_send(x, n, KOLO_INT32, 1 - i, r->comm, NULL)
                               : kolo_recv(x, n, KOLO_INT32, i, r->comm, NULL));
    meet();
    if (r->rank == 0) {
        status = kolo_send(x, n, KOLO_INT32, 1, r->comm, NULL);
        EXPECT(status == KOLO_OK || status == KOLO_ERR_REMOTE || status == KOLO_ERR_MISMATCH);
    } else {
        EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_recv(x, n + 1, KOLO_INT32, 0, r->comm, NULL), "rank 0",
                     r->arg ? "recv 100001 int32" : "recv 11 int32", r->arg ? "bytes" : "44 bytes",
                     r->arg ? "bytes" : "which has sent it", "same count and type");
    }
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(x);
}

static void a_message_of_another_length_is_noticed(void **state)
{
    (void)state;
    bool large = true;
    assert_int_equal(run_ranks(2, lengths_differ, NULL), 0);
    assert_int_equal(run_ranks(2, lengths_differ, &large), 0);
}

/* Messages that have room travel beside collectives: one that is in between does not meet them, and they are there
 * when they are received at last. */
static void receive_late(rank_t *r)
{
    enum { SENT = 8192, PART = 3000 };
    int32_t *x = calloc(2 * SENT + 4 * PART, sizeof *x), *got = x + SENT, *parts = got + SENT,
            *all = parts + 2 * PART;
    int mate = 1 - r->rank;
    for (int i = 0; i < 2; i++)
        EXPECT_OK(r->rank == i ? kolo_send(x, SENT, KOLO_INT32, mate, r->comm, NULL)
                               : kolo_recv(x, SENT, KOLO_INT32, i, r->comm, NULL));
    for (int i = 0; i < SENT; i++) x[i] = r->rank * 100000 + i;
    for (int i = 0; i < 2 * PART; i++) parts[i] = r->rank * 200000 + i;
    EXPECT_OK(kolo_send(x, SENT, KOLO_INT32, mate, r->comm, NULL));
    EXPECT_OK(kolo_all_to_all(parts, all, PART, KOLO_INT32, r->comm, NULL));
    EXPECT_OK(kolo_recv(got, SENT, KOLO_INT32, mate, r->comm, NULL));
    int wrong = 0;
    for (int i = 0; i < SENT; i++) wrong += got[i] != mate * 100000 + i;
    for (int i = 0; i < PART; i++) wrong += all[mate * PART + i] != mate * 200000 + r->rank * PART + i;
    EXPECT(wrong == 0);
    free(x);
}

static void messages_do_not_meet_collectives(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, receive_late, NULL), 0);
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_calls_are_named),
        cmocka_unit_test(who_finalizes_too_early_is_named),
        cmocka_unit_test(different_roots_are_noticed),
        cmocka_unit_test(a_message_of_another_length_is_noticed),
        cmocka_unit_test(messages_do_not_meet_collectives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
