/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows between processes, for each way into another one's memory: data is right and in order, a rank that is
 * killed in the middle ends the others' puts and waits with words that name it, and a wait that takes too long says
 * for whom.
 */
#include "kit/procs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define RANKS  4
#define VICTIM 2
#define WORDS  20000u

static const char *const by_cma[] = {NULL};
static const char *const by_shm[] = {"KOLO_CMA_DISABLE=1", NULL};
static const char *const by_tcp[] = {"HOSTS=4", NULL};
static const char *const mixed[] = {"HOSTS=2", "KOLO_CMA_DISABLE=1", NULL};
static const char *const *const ways[] = {by_cma, by_shm, by_tcp, mixed};
enum { WAYS = sizeof ways / sizeof *ways };

/* Round a ring: each puts to the next, in the memory that `arg` says, and looks at what has come. Ends by an error,
 * or after `rounds`. */
static kolo_status_t ring(proc_t *p, bool kolo, uint32_t rounds)
{
    kolo_comm_t comm = p->r.comm;
    int next = (p->r.rank + 1) % p->r.nranks, last = (p->r.rank + p->r.nranks - 1) % p->r.nranks;
    uint32_t *own = calloc(WORDS, sizeof *own), *src = malloc(WORDS * sizeof *src), *base = NULL;
    kolo_signal_wait_t data = {last, 0, 1}, room = {next, 1, 1};
    kolo_window_t window;
    EXPECT_OK(kolo_window_register(comm, kolo ? NULL : own, WORDS * sizeof *own, &window));
    EXPECT_OK(kolo_window_memory(comm, window, (void **)&base, NULL));
    proc_meet(p, 0);
    kolo_status_t status = KOLO_OK;
    for (uint32_t i = 0; status == KOLO_OK && i < rounds; i++) {
        for (uint32_t k = 0; k < WORDS; k++) src[k] = i * 3 + k;
        status = kolo_put_signal(src, WORDS, KOLO_UINT32, next, window, 0, 0, comm, NULL);
        if (status == KOLO_OK) status = kolo_wait_signal(&data, 1, comm, NULL);
        for (uint32_t k = 0; status == KOLO_OK && k < WORDS; k++)
            if (!EXPECT(base[k] == i * 3 + k)) status = KOLO_ERR_INTERNAL;
        if (status == KOLO_OK) status = kolo_signal(last, 1, comm, NULL);
        if (status == KOLO_OK) status = kolo_wait_signal(&room, 1, comm, NULL);
    }
    snprintf(p->shared->found[p->r.rank].text, sizeof p->shared->found->text, "%s", kolo_get_last_error(comm));
    if (status == KOLO_OK) EXPECT_OK(kolo_window_deregister(comm, window));
    if (status != KOLO_OK) {
        EXPECT_OK(kolo_comm_destroy(comm)); /* before the memory goes */
        p->r.comm = NULL;
    }
    free(own);
    free(src);
    return status;
}

static void in_order(proc_t *p)
{
    EXPECT_IS(KOLO_OK, ring(p, false, 200));
    EXPECT_IS(KOLO_OK, ring(p, true, 200));
}

static void processes_see_what_was_put(void **state)
{
    (void)state;
    for (int i = 0; i < WAYS; i++) {
        job_t job;
        job_start(&job, RANKS, ways[i], in_order, NULL);
        assert_int_equal(job_finish(&job, -1), 0);
    }
}

static void until_it_fails(proc_t *p)
{
    EXPECT_IS(KOLO_ERR_REMOTE, ring(p, p->r.arg != NULL, UINT32_MAX));
    proc_meet(p, 1); /* nobody's leaving is to be taken for the loss */
}

static void a_killed_rank_is_named_by_all(void **state)
{
    char process[32];
    (void)state;
    for (int i = 0; i < 2 * WAYS; i++) {
        job_t job;
        job_start(&job, RANKS, ways[i / 2], until_it_fails, i % 2 ? &job : NULL);
        job_await(&job, 0, RANKS);
        nap_ms(30);
        kill(job.pids[VICTIM], SIGKILL);
        atomic_fetch_add(&job.shared->arrived[1], 1);
        assert_int_equal(job_finish(&job, VICTIM), 0);
        waitpid(job.pids[VICTIM], NULL, 0);
        snprintf(process, sizeof process, "process %d)", (int)job.pids[VICTIM]);
        for (int r = 0; r < RANKS; r++) {
            const char *text = job.shared->found[r].text;
            if (r == VICTIM) continue;
            if (!strstr(text, "rank 2 (host ") || !strstr(text, process)) print_message("rank %d: %s\n", r, text);
            assert_non_null(strstr(text, "rank 2 (host "));
            assert_non_null(strstr(text, process));
        }
    }
}

static void waits_in_vain(proc_t *p)
{
    kolo_signal_wait_t waits[2] = {{0, 3, 1}, {1, 7, 2}};
    uint64_t own = 0;
    kolo_window_t window;
    EXPECT_OK(kolo_window_register(p->r.comm, &own, sizeof own, &window));
    if (p->r.rank == 0) EXPECT_OK(kolo_signal(2, 3, p->r.comm, NULL));
    if (p->r.rank == 1) EXPECT_OK(kolo_signal(2, 7, p->r.comm, NULL));
    if (p->r.rank == 2) {
        EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_wait_signal(waits, 2, p->r.comm, NULL), "rank 2, in a wait for signals",
                     "rank 1 to signal: 1 of 2 signals with number 7 have come",
                     "has waited in wait for 2 signals from rank 1", "its last call is complete: signal to rank 2");
    }
    proc_meet(p, 1);
    EXPECT_OK(kolo_comm_destroy(p->r.comm));
    p->r.comm = NULL;
}

static void a_wait_that_takes_too_long_says_for_whom(void **state)
{
    static const char *const env[] = {"KOLO_OP_TIMEOUT_MS=300", NULL};
    job_t job;
    (void)state;
    job_start(&job, 3, env, waits_in_vain, NULL);
    assert_int_equal(job_finish(&job, -1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_see_what_was_put),
        cmocka_unit_test(a_killed_rank_is_named_by_all),
        cmocka_unit_test(a_wait_that_takes_too_long_says_for_whom),
    };
    limit_s(230);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
