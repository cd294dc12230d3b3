/* SPDX-License-Identifier: Apache-2.0
 *
 * One of eight processes is killed in the middle of a 64 MB all_reduce: the others get the error, shrink without
 * it, and the next all_reduce is right. On every wire; prints how long each took.
 */
#include "kit/procs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define RANKS  8
#define VICTIM 5
#define LARGE  (16u << 20) /* elements: 64 MB */

#ifdef KOLO_SANITIZED
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

static bool sum_is_right(kolo_comm_t comm, int32_t *data, size_t count)
{
    int n = 0, rank = 0;
    EXPECT_OK(kolo_comm_count(comm, &n));
    EXPECT_OK(kolo_comm_user_rank(comm, &rank));
    for (size_t i = 0; i < count; i++) data[i] = rank + (int32_t)(i % 1000);
    if (!EXPECT_OK(kolo_all_reduce(data, data, count, KOLO_INT32, KOLO_SUM, comm, NULL))) return false;
    for (size_t i = 0; i < count; i++)
        if (data[i] != n * (n - 1) / 2 + n * (int32_t)(i % 1000)) return false;
    return true;
}

/* finding: at_ms the error, cpu_us (borrowed) how long the shrink took. */
static void survive(proc_t *p)
{
    rank_t *r = &p->r;
    finding_t *f = &p->shared->found[r->rank];
    const int lost[] = {VICTIM};
    int32_t *data = malloc(LARGE * sizeof *data);
    kolo_comm_t rest = NULL;
    EXPECT(data && sum_is_right(r->comm, data, LARGE / 16));
    proc_meet(p, 0);
    do f->status = kolo_all_reduce(data, data, LARGE, KOLO_INT32, KOLO_SUM, r->comm, NULL);
    while (f->status == KOLO_OK); /* until it is hit in the middle of one */
    f->at_ms = now_ms();
    snprintf(f->text, sizeof f->text, "%s", kolo_get_last_error(r->comm));
    uint64_t start = now_ms();
    if (EXPECT_OK(kolo_comm_shrink(r->comm, lost, 1, KOLO_SHRINK_ABORT, &rest, NULL))) {
        f->cpu_us = now_ms() - start;
        EXPECT(sum_is_right(rest, data, LARGE / 4));
        end_comm(&rest);
    }
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(data);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void kill_one(const kit_wire_t *w)
{
    job_t job;
    uint64_t told[RANKS], longest = 0;
    int n = 0;
    job_start(&job, RANKS, w->env, survive, NULL);
    job_await(&job, 0, RANKS);
    nap_ms(150);
    uint64_t start = now_ms();
    kill(job.pids[VICTIM], SIGKILL);
    assert_int_equal(job_finish(&job, VICTIM), 0);
    assert_int_equal(waitpid(job.pids[VICTIM], NULL, 0), job.pids[VICTIM]);
    for (int i = 0; i < RANKS; i++) {
        const finding_t *f = &job.shared->found[i];
        if (i == VICTIM) continue;
        if (f->status != KOLO_ERR_REMOTE || !strstr(f->text, "rank 5")) print_message("rank %d: %s\n", i, f->text);
        assert_int_equal(f->status, KOLO_ERR_REMOTE);
        assert_non_null(strstr(f->text, "rank 5"));
        told[n++] = f->at_ms - start;
        if (f->cpu_us > longest) longest = f->cpu_us;
    }
    qsort(told, (size_t)n, sizeof told[0], by_value);
    print_message("%s: told after %llu ms (median), %llu (last); shrink %llu ms\n", w->name,
                  (unsigned long long)told[n / 2], (unsigned long long)told[n - 1], (unsigned long long)longest);
    assert_true(told[n - 1] < 1000 || sanitized);
}

static void survivors_shrink_and_go_on(void **state)
{
    (void)state;
    for (size_t w = 0; w < LOCAL_WIRES; w++) kill_one(&kit_wires[w]);
}

int main(void)
{
    limit_s(220);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_shrink_and_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
