/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks as processes: one is killed, and the engine of each survivor ends with words that name it, for every tensor
 * that is outstanding and for the shutdown; on a communicator that was shrunk it starts again. Idle engines cost
 * nothing.
 */
#include "kit/procs.h"

#include <kolo/engine.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define RANKS   4
#define VICTIM  2
#define WAIT_MS 30000

static kolo_status_t submit(kolo_tensor_engine_t e, const char *name, float *x, int64_t count, int64_t *handle)
{
    kolo_tensor_t t = {name, KOLO_FLOAT32, 1, &count, x, x};
    return kolo_engine_all_reduce(e, &t, KOLO_SUM, 1, 1, NULL, handle);
}

static kolo_status_t reduce(kolo_tensor_engine_t e, const char *name, float *x, int64_t count)
{
    int64_t handle;
    kolo_status_t status = submit(e, name, x, count, &handle);
    return status == KOLO_OK ? kolo_engine_wait(e, handle, WAIT_MS, NULL) : status;
}

static void begin_again(proc_t *p, int size)
{
    const int dead[] = {VICTIM};
    kolo_comm_t smaller;
    kolo_tensor_engine_t e;
    float x = 1;
    if (!EXPECT_OK(kolo_comm_shrink(p->r.comm, dead, 1, KOLO_SHRINK_ABORT, &smaller, NULL))) return;
    EXPECT_OK(kolo_comm_destroy(p->r.comm));
    p->r.comm = smaller;
    if (!EXPECT_OK(kolo_engine_init(&e, smaller, NULL))) return;
    EXPECT_OK(reduce(e, "again", &x, 1));
    EXPECT(x == (float)size);
    proc_meet(p, 2);
    EXPECT_OK(kolo_engine_shutdown(e));
}

/* ---- with tensors that wait for a rank, while the engines sleep ---- */

typedef struct {
    _Atomic int count, named;
} ended_t;

static void note_end(void *arg, const kolo_completion_t *c)
{
    ended_t *ended = arg;
    ended->named += c->status == KOLO_ERR_REMOTE && strstr(c->text, "rank 2 (host ") && strstr(c->text, c->name);
    ended->count++;
}

static void lose_while_asleep(proc_t *p)
{
    kolo_tensor_engine_t e;
    float x[5] = {0};
    char name[16];
    int64_t one = 1, handle;
    ended_t ended = {0, 0};
    kolo_submission_t how = {.done = note_end, .arg = &ended};
    if (!EXPECT_OK(kolo_engine_init(&e, p->r.comm, NULL))) return;
    EXPECT_OK(reduce(e, "common", x, 1));
    for (int i = 0; i < 5 && p->r.rank != VICTIM; i++) {
        snprintf(name, sizeof name, "lonely.%d", i);
        kolo_tensor_t t = {name, KOLO_FLOAT32, 1, &one, &x[i], &x[i]};
        EXPECT_OK(kolo_engine_all_reduce(e, &t, KOLO_SUM, 1, 1, &how, i == 4 ? &handle : NULL));
    }
    if (p->r.rank == VICTIM) nap_ms(100);
    proc_meet(p, 0); /* the parent kills the victim */
    if (p->r.rank == VICTIM) {
        nap_ms(60000);
        return;
    }
    EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_engine_wait(e, handle, WAIT_MS, NULL), "lonely.4", "rank 2");
    p->shared->found[p->r.rank].at_ms = now_ms();
    EXPECT_ERROR(KOLO_ERR_REMOTE, submit(e, "late", x, 1, &handle), "late", "rank 2");
    EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_engine_shutdown(e), "rank 2");
    EXPECT(ended.count == 5 && ended.named == 5);
    proc_meet(p, 1);
    begin_again(p, RANKS - 1);
}

static void kill_victim(job_t *job, void (*fn)(proc_t *), int nap)
{
    job_start(job, RANKS, NULL, fn, NULL);
    job_await(job, 0, RANKS);
    nap_ms(nap);
    uint64_t start = now_ms(), worst = 0;
    kill(job->pids[VICTIM], SIGKILL);
    atomic_fetch_add(&job->shared->arrived[1], 1);
    atomic_fetch_add(&job->shared->arrived[2], 1);
    assert_int_equal(job_finish(job, VICTIM), 0);
    waitpid(job->pids[VICTIM], NULL, 0);
    for (int r = 0; r < RANKS; r++)
        if (r != VICTIM && job->shared->found[r].at_ms - start > worst) worst = job->shared->found[r].at_ms - start;
    print_message("all were told within %llu ms\n", (unsigned long long)worst);
}

static void outstanding_tensors_hear_of_a_death(void **state)
{
    job_t job;
    (void)state;
    kill_victim(&job, lose_while_asleep, 50);
}

/* ---- while the engines agree: the operation is theirs, and the program has called none ---- */

static void lose_in_an_agreement(proc_t *p)
{
    kolo_tensor_engine_t e;
    float x = 0;
    if (!EXPECT_OK(kolo_engine_init(&e, p->r.comm, NULL))) return;
    EXPECT_OK(reduce(e, "common", &x, 1));
    proc_meet(p, 0);
    if (p->r.rank == VICTIM) raise(SIGSTOP);
    proc_meet(p, 3); /* it has stopped */
    EXPECT_ERROR(KOLO_ERR_REMOTE, reduce(e, "common", &x, 1), "tensor common was outstanding", "rank 2 (host ");
    const char *text = kolo_get_last_error(NULL);
    if (!EXPECT(!strstr(text, "all_reduce number"))) fprintf(stderr, "    %s\n", text);
    if (strstr(text, "was under way")) EXPECT(strstr(text, "the engine's agreement on tensors was under way"));
    EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_engine_shutdown(e), "rank 2");
    proc_meet(p, 1);
    begin_again(p, RANKS - 1);
}

static void an_agreement_is_called_what_it_is(void **state)
{
    job_t job;
    int how;
    (void)state;
    job_start(&job, RANKS, NULL, lose_in_an_agreement, NULL);
    job_await(&job, 0, RANKS);
    assert_int_equal(waitpid(job.pids[VICTIM], &how, WUNTRACED), job.pids[VICTIM]);
    assert_true(WIFSTOPPED(how));
    atomic_fetch_add(&job.shared->arrived[3], 1);
    nap_ms(300); /* most of the others are in it by then; who is not has other words, which are right as well */
    kill(job.pids[VICTIM], SIGKILL);
    atomic_fetch_add(&job.shared->arrived[1], 1);
    atomic_fetch_add(&job.shared->arrived[2], 1);
    assert_int_equal(job_finish(&job, VICTIM), 0);
    waitpid(job.pids[VICTIM], NULL, 0);
}

/* ---- in the middle of work ---- */

static void lose_at_work(proc_t *p)
{
    enum { COUNT = 1 << 16 };
    kolo_tensor_engine_t e;
    float *x = calloc(COUNT, sizeof *x);
    kolo_status_t status;
    if (!EXPECT_OK(kolo_engine_init(&e, p->r.comm, NULL))) {
        free(x);
        return;
    }
    EXPECT_OK(reduce(e, "common", x, COUNT));
    proc_meet(p, 0);
    do status = reduce(e, "work", x, COUNT);
    while (status == KOLO_OK);
    p->shared->found[p->r.rank].at_ms = now_ms();
    EXPECT_ERROR(KOLO_ERR_REMOTE, status, "tensor work", "rank 2 (host "); /* also if it came between two tensors */
    EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_engine_shutdown(e), "rank 2 (host ");
    free(x);
    proc_meet(p, 1);
    begin_again(p, RANKS - 1);
}

static void work_ends_when_a_rank_is_killed(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        job_t job;
        kill_victim(&job, lose_at_work, 20 + 7 * i);
    }
}

/* ---- in the middle of work in sets that overlap: {0, 1}, {1, 2}, {2, 3}, {3, 0} ---- */

static void make_ring(kolo_tensor_engine_t e, int *sets)
{
    for (int i = 0; i < RANKS; i++) {
        const int pair[] = {i, (i + 1) % RANKS};
        EXPECT_OK(kolo_engine_add_set(e, pair, 2, &sets[i]));
    }
}

static void lose_at_work_in_sets(proc_t *p)
{
    int sets[RANKS], me = p->r.rank, before = (me + RANKS - 1) % RANKS;
    kolo_tensor_engine_t e;
    float x[2][64] = {{0}};
    int64_t handles[2], count = 64;
    kolo_status_t status = KOLO_OK;
    if (!EXPECT_OK(kolo_engine_init(&e, p->r.comm, NULL))) return;
    make_ring(e, sets);
    proc_meet(p, 0);
    while (status == KOLO_OK) {
        const kolo_submission_t how[2] = {{.set = sets[me]}, {.set = sets[before]}};
        for (int i = 0; i < 2 && status == KOLO_OK; i++) {
            kolo_tensor_t t = {"work", KOLO_FLOAT32, 1, &count, x[i], x[i]};
            status = kolo_engine_all_reduce(e, &t, KOLO_SUM, 1, 1, &how[i], &handles[i]);
        }
        for (int i = 0; i < 2 && status == KOLO_OK; i++) status = kolo_engine_wait(e, handles[i], WAIT_MS, NULL);
    }
    p->shared->found[me].at_ms = now_ms();
    EXPECT_ERROR(KOLO_ERR_REMOTE, status, "tensor work", "rank 2 (host "); /* also if it came between two tensors */
    EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_engine_shutdown(e), "rank 2 (host ");
    proc_meet(p, 1);
    begin_again(p, RANKS - 1);
}

static void sets_end_with_the_name_of_who_was_killed(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        job_t job;
        kill_victim(&job, lose_at_work_in_sets, 20 + 7 * i);
    }
}

/* ---- idle ---- */

static uint64_t cpu_us(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u)) abort();
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* What came before may take a while to come to rest: a tenth of a second that uses no more than 1 % of a core. */
static void come_to_rest(void)
{
    uint64_t before;
    int windows = 0;
    do {
        before = cpu_us();
        nap_ms(100);
    } while (cpu_us() - before >= 1000 && ++windows < 100);
}

static void idle(proc_t *p)
{
    kolo_tensor_engine_t e;
    float x = 1, y = 1;
    int64_t handle;
    int sets[RANKS];
    if (!EXPECT_OK(kolo_engine_init(&e, p->r.comm, NULL))) return;
    make_ring(e, sets);
    EXPECT_OK(reduce(e, "common", &x, 1));
    if (p->r.rank > 0) EXPECT_OK(submit(e, "waiting", &y, 1, &handle)); /* idle though something is outstanding */
    proc_meet(p, 0);
    come_to_rest();
    uint64_t before = cpu_us();
    nap_ms(2000);
    p->shared->found[p->r.rank].cpu_us = cpu_us() - before;
    proc_meet(p, 1);
    if (p->r.rank == 0) EXPECT_OK(submit(e, "waiting", &y, 1, &handle));
    EXPECT_OK(kolo_engine_wait(e, handle, WAIT_MS, NULL)); /* and it wakes up */
    EXPECT(y == (float)RANKS);
    proc_meet(p, 2);
    EXPECT_OK(kolo_engine_shutdown(e));
}

static void idle_engines_use_no_core(void **state)
{
    job_t job;
    uint64_t sum = 0;
    (void)state;
    job_start(&job, RANKS, NULL, idle, NULL);
    assert_int_equal(job_finish(&job, -1), 0);
    for (int i = 0; i < RANKS; i++) sum += job.shared->found[i].cpu_us;
    print_message("%d idle engines use %.3f %% of a core\n", RANKS, (double)sum / 20000.0);
#ifndef KOLO_SANITIZED
    assert_true(IN_TIME(sum < 10000)); /* 0.5 % of two seconds, all ranks together */
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outstanding_tensors_hear_of_a_death),
        cmocka_unit_test(an_agreement_is_called_what_it_is),
        cmocka_unit_test(work_ends_when_a_rank_is_killed),
        cmocka_unit_test(sets_end_with_the_name_of_who_was_killed),
        cmocka_unit_test(idle_engines_use_no_core),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
