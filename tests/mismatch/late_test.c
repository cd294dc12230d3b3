/* SPDX-License-Identifier: Apache-2.0
 *
 * A broadcast with another root on one rank, or with each rank as its root, in which nobody waits: what was sent
 * lies in queues. Ranks go on with operations that use other queues, and hear of it at the first long wait, however
 * many operations later that is; where nobody ever waits long, finalize says it. No time limit is set.
 */
#include "kit/ranks.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 5
#define ODD   4
#define COUNT                                                                                                      \
    21012        /* of 4 bytes: more than lines take, and two roots leave it in two queues that have room for it */
#define FEW 1966 /* of 8 bytes: later they find no room */

#ifdef KOLO_SANITIZED
#define SOON_MS 6000
#else
#define SOON_MS 2000
#endif

typedef struct {
    int calls;             /* between the broadcast and the wait */
    bool all_roots, alone; /* alone: one rank waits in what the others have not come to yet; else all do */
    _Atomic int told;
    int took_ms[RANKS];
    kolo_status_t status[RANKS];
    char text[RANKS][1024];
} run_t;

static kolo_status_t call_all(const rank_t *r, run_t *run, float *x)
{
    int root = run->all_roots ? r->rank : r->rank == ODD ? ODD : 3;
    kolo_status_t status = kolo_broadcast(x, x, COUNT, KOLO_FLOAT32, root, r->comm, NULL);
    for (int i = 0; i < run->calls && status == KOLO_OK; i++) status = kolo_barrier(r->comm, NULL);
    return status;
}

static void part_and_go_on(rank_t *r)
{
    run_t *run = r->arg;
    float *x = calloc((size_t)COUNT * 2, sizeof *x);
    for (int root = 0; root < r->nranks; root++) /* all connections are there */
        EXPECT_OK(kolo_broadcast(x, x, COUNT, KOLO_FLOAT32, root, r->comm, NULL));
    EXPECT_OK(kolo_all_gather(x, x + COUNT, FEW, KOLO_FLOAT64, r->comm, NULL));
    EXPECT_OK(kolo_barrier(r->comm, NULL));
    meet();
    kolo_status_t status = call_all(r, run, x);
    uint64_t start = now_ms();
    int alone = run->all_roots ? 0 : ODD;
    if (status == KOLO_OK && run->alone) {
        if (r->rank != alone) await_count(&run->told, 1);
        /* A first barrier may be complete with the lines that the lone rank wrote before it was told; a second
         * cannot. */
        status = kolo_barrier(r->comm, NULL);
        if (status == KOLO_OK && r->rank != alone) status = kolo_barrier(r->comm, NULL);
    } else if (status == KOLO_OK) {
        status = kolo_all_gather(x, x + COUNT, FEW, KOLO_FLOAT64, r->comm, NULL);
    }
    run->took_ms[r->rank] = (int)(now_ms() - start);
    run->status[r->rank] = status;
    snprintf(run->text[r->rank], sizeof run->text[0], "%s", kolo_get_last_error(r->comm));
    if (r->rank == alone) atomic_fetch_add(&run->told, 1);
    meet();
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(x);
}

static void check(const run_t *run, int ranks)
{
    int wrong = 0;
    for (int r = 0; r < ranks; r++) {
        const char *text = run->text[r];
        bool fine = run->status[r] == KOLO_ERR_MISMATCH && IN_TIME(run->took_ms[r] < SOON_MS);
        fine = fine && (run->all_roots || strstr(text, "rank 4"));
        wrong += !fine;
        if (!fine)
            print_message("%d calls later%s, rank %d: %d after %d ms: %s\n", run->calls,
                          run->all_roots ? ", all roots"
                          : run->alone   ? ", alone"
                                         : "",
                          r, (int)run->status[r], run->took_ms[r], text);
    }
    assert_int_equal(wrong, 0);
}

static void one_root_differs(void **state)
{
    static const int calls[] = {0, 22, 100, 2000};
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        for (int alone = 0; alone < 2; alone++) {
            run_t run = {.calls = calls[i], .alone = alone != 0};
            assert_int_equal(run_ranks(RANKS, part_and_go_on, &run), 0);
            check(&run, RANKS);
        }
    }
}

static void each_rank_is_a_root(void **state)
{
    static const int calls[] = {1, 100, 2000};
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        for (int ranks = 2; ranks < 4; ranks++) {
            run_t run = {.calls = calls[i], .all_roots = true, .alone = true};
            assert_int_equal(run_ranks(ranks, part_and_go_on, &run), 0);
            check(&run, ranks);
        }
}

/* ---- others that are thousands of operations ahead ---- */

typedef struct {
    int kind;
    run_t run;
} ahead_t;

#define AHEAD 6000

static kolo_status_t small_call(int kind, float *x, int root, kolo_comm_t comm)
{
    switch (kind) {
    case 0:
        return kolo_broadcast(x, x, 256, KOLO_FLOAT32, root, comm, NULL);
    case 1:
        return kolo_scatter(x, x + COUNT, 256, KOLO_FLOAT32, root, comm, NULL);
    case 2:
        return kolo_reduce(x, x + COUNT, 256, KOLO_FLOAT32, KOLO_SUM, root, comm, NULL);
    default:
        return kolo_gather(x, x + COUNT, 256, KOLO_FLOAT32, root, comm, NULL);
    }
}

static void part_and_run_ahead(rank_t *r)
{
    ahead_t *a = r->arg;
    float *x = calloc((size_t)COUNT * 2, sizeof *x);
    for (int root = 0; root < r->nranks; root++) EXPECT_OK(small_call(a->kind, x, root, r->comm));
    EXPECT_OK(kolo_barrier(r->comm, NULL));
    meet();
    uint64_t start = now_ms();
    kolo_status_t status = small_call(a->kind, x, r->rank == ODD ? 1 : 0, r->comm);
    for (int i = 0; i < AHEAD && status == KOLO_OK; i++) status = small_call(a->kind, x, 0, r->comm);
    if (status == KOLO_OK) status = kolo_barrier(r->comm, NULL);
    a->run.took_ms[r->rank] = (int)(now_ms() - start);
    a->run.status[r->rank] = status;
    snprintf(a->run.text[r->rank], sizeof a->run.text[0], "%s", kolo_get_last_error(r->comm));
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(x);
}

/* Over a network the kernels hold thousands of short slots, so the others are long past what boards know. */
static void the_others_may_be_far_ahead(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        ahead_t a = {.kind = kind, .run = {.calls = AHEAD}};
        assert_int_equal(run_ranks(RANKS, part_and_run_ahead, &a), 0);
        check(&a.run, RANKS);
    }
}

/* The others go on without the odd rank, which is in a broadcast from one of them that sends nothing: no queue has
 * anything of it. */
static void part_silently_and_run_ahead(rank_t *r)
{
    ahead_t *a = r->arg;
    float *x = calloc((size_t)COUNT * 2, sizeof *x);
    int odd = r->nranks - 1;
    for (int root = 0; root < r->nranks; root++) EXPECT_OK(small_call(0, x, root, r->comm));
    EXPECT_OK(small_call(3, x, 0, r->comm));
    meet();
    uint64_t start = now_ms();
    kolo_status_t status =
        kolo_broadcast(x, x, r->rank == odd ? 256 : 0, KOLO_FLOAT32, r->rank == odd ? 1 : 0, r->comm, NULL);
    for (int i = 0; i < a->run.calls && status == KOLO_OK; i++)
        status = kolo_broadcast(x, x, 1, KOLO_FLOAT32, 0, r->comm, NULL);
    if (status == KOLO_OK) status = small_call(3, x, 0, r->comm); /* rank 1 never sends to the odd rank */
    if (status == KOLO_OK) status = small_call(0, x, 0, r->comm);
    a->run.took_ms[r->rank] = (int)(now_ms() - start);
    a->run.status[r->rank] = status;
    snprintf(a->run.text[r->rank], sizeof a->run.text[0], "%s", kolo_get_last_error(r->comm));
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(x);
}

static void no_queue_need_have_anything_of_it(void **state)
{
    static const int calls[] = {900, 6000};
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        ahead_t a = {.run = {.calls = calls[i]}};
        assert_int_equal(run_ranks(3, part_silently_and_run_ahead, &a), 0);
        for (int r = 0; r < 3; r++) {
            bool fine = a.run.status[r] == KOLO_ERR_MISMATCH && IN_TIME(a.run.took_ms[r] < SOON_MS);
            if (!fine || !strstr(a.run.text[r], "rank 2"))
                fail_msg("%d calls later, rank %d: %d after %d ms: %s", calls[i], r, (int)a.run.status[r],
                         a.run.took_ms[r], a.run.text[r]);
        }
    }
}

/* ---- ranks that never wait ---- */

typedef struct {
    bool all_roots, once_more; /* once_more: the odd rank makes a call that the others do not make */
    bool dup;                  /* before the end */
    bool tables;               /* parts from each, as each sees it: nobody waits for any */
    int calls;                 /* after the one that differs, over other queues */
    const char *says;
} end_t;

static kolo_status_t gather_mine(const rank_t *r, float *x)
{
    size_t counts[RANKS] = {0}, displs[RANKS] = {0};
    counts[r->rank] = 10;
    return kolo_all_gatherv(x, x + COUNT, counts, displs, KOLO_FLOAT32, r->comm, NULL);
}

static void part_and_end(rank_t *r)
{
    const end_t *e = r->arg;
    float *x = calloc((size_t)COUNT * 2, sizeof *x);
    bool odd = r->rank == r->nranks - 1;
    int root = e->all_roots ? r->rank : odd && !e->once_more && !e->tables ? r->rank : 0;
    for (int i = 0; i < r->nranks; i++) EXPECT_OK(kolo_broadcast(x, x, 1024, KOLO_FLOAT32, i, r->comm, NULL));
    EXPECT_OK(kolo_all_gather(x, x + COUNT, FEW, KOLO_FLOAT64, r->comm, NULL));
    EXPECT_OK(kolo_barrier(r->comm, NULL));
    EXPECT_OK(kolo_broadcast(x, x, 1024, KOLO_FLOAT32, root, r->comm, NULL));
    if (e->tables) EXPECT_OK(gather_mine(r, x));
    if (e->once_more && odd) EXPECT_OK(kolo_broadcast(x, x, 1024, KOLO_FLOAT32, r->rank, r->comm, NULL));
    for (int i = 0; i < e->calls; i++) EXPECT_OK(kolo_all_gather(x, x + COUNT, FEW, KOLO_FLOAT64, r->comm, NULL));
    kolo_comm_t copy = NULL;
    if (e->dup) EXPECT_OK(kolo_comm_dup(r->comm, &copy, NULL));
    EXPECT_OK(kolo_comm_destroy(copy));
    const char *who = e->all_roots || e->tables ? "rank 0"
                      : r->nranks == 3          ? "rank 2 differs from most others"
                                                : "rank 1";
    EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_comm_finalize(r->comm), "comm_finalize", e->says, who);
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(x);
}

/* Finalize compares what all have called, once. */
static void finalize_tells_who_has_parted(void **state)
{
    static const end_t ends[] = {
        {.says = "broadcast"},
        {.calls = 100, .says = "broadcast"},
        {.calls = 1100, .says = "different places"},
        {.all_roots = true, .says = "broadcast"},
        {.once_more = true, .says = "broadcast"},
        {.dup = true, .says = "broadcast"},
        {.tables = true, .says = "all_gatherv 10 float32 counts #"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        for (int ranks = 2; ranks < 4; ranks++)
            assert_int_equal(run_ranks(ranks, part_and_end, (void *)(uintptr_t)&ends[i]), 0);
}

/* "finalize": only that, and KOLO_MISMATCH_MS is so long that no wait asks before. */
int main(int argc, char **argv)
{
    const struct CMUnitTest waits[] = {
        cmocka_unit_test(one_root_differs),
        cmocka_unit_test(each_rank_is_a_root),
        cmocka_unit_test(the_others_may_be_far_ahead),
        cmocka_unit_test(no_queue_need_have_anything_of_it),
    };
    const struct CMUnitTest end[] = {cmocka_unit_test(finalize_tells_who_has_parted)};
    limit_s(100);
    if (argc > 1 && strcmp(argv[1], "finalize") == 0) return cmocka_run_group_tests(end, NULL, NULL);
    return cmocka_run_group_tests(waits, NULL, NULL);
}
