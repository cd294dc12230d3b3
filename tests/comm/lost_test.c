/* SPDX-License-Identifier: Apache-2.0
 *
 * How the loss of a rank is noticed and told, with ranks as processes: an idle communicator hears of it, the words
 * name who, where, how and what was under way, a stopped process on another host gets a verdict and is fenced when
 * it wakes up, one that only makes no calls does not.
 */
#include "kit/procs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS  6
#define VICTIM 4
#ifdef KOLO_SANITIZED
#define PATIENCE 20
#else
#define PATIENCE 1
#endif

static kolo_status_t async_error(kolo_comm_t comm)
{
    kolo_status_t error = KOLO_ERR_INTERNAL;
    EXPECT_OK(kolo_comm_get_async_error(comm, &error));
    return error;
}

static void await_error(proc_t *p, int limit_ms)
{
    finding_t *f = &p->shared->found[p->r.rank];
    uint64_t end = now_ms() + (uint64_t)limit_ms;
    while ((f->status = async_error(p->r.comm)) == KOLO_OK && now_ms() < end) nap_ms(1);
    f->at_ms = now_ms();
    snprintf(f->text, sizeof f->text, "%s", kolo_get_last_error(p->r.comm));
}

static void leave(proc_t *p)
{
    EXPECT_OK(kolo_comm_destroy(p->r.comm));
    p->r.comm = NULL;
}

/* Makes no call but the query. */
static void idle(proc_t *p)
{
    int32_t one = 1, sum = 0;
    EXPECT(works(p->r.comm));
    proc_meet(p, 0);
    await_error(p, 20000);
    EXPECT_IS(p->shared->found[p->r.rank].status,
              kolo_all_reduce(&one, &sum, 1, KOLO_INT32, KOLO_SUM, p->r.comm, NULL));
    proc_meet(p, 1); /* nobody's leaving is to be mistaken for the loss */
    leave(p);
}

/* All survivors were told within the time, and each text holds the words. */
static void check_told(const job_t *job, uint64_t since, uint64_t within_ms, kolo_status_t status,
                       const char *const *words)
{
    uint64_t worst = 0;
    for (int r = 0; r < job->n; r++) {
        const finding_t *f = &job->shared->found[r];
        if (r == VICTIM) continue;
        if (f->status != status) print_message("rank %d: %s\n", r, f->text);
        assert_int_equal(f->status, status);
        for (const char *const *w = words; *w; w++) {
            if (!strstr(f->text, *w)) print_message("rank %d: '%s' is not in: %s\n", r, *w, f->text);
            assert_non_null(strstr(f->text, *w));
        }
        const char *cause = strstr(f->text, "was lost: ");
        if (cause && strstr(cause + 1, "was lost: "))
            print_message("rank %d tells the cause twice: %s\n", r, f->text);
        assert_true(!cause || !strstr(cause + 1, "was lost: "));
        if (f->at_ms - since > worst) worst = f->at_ms - since;
    }
    print_message("all were told within %llu ms\n", (unsigned long long)worst);
    assert_true(IN_TIME(worst <= within_ms * PATIENCE));
}

/* Kills the victim, this long after all were there, and waits for the others. Returns when it was killed. */
static uint64_t kill_victim(job_t *job, const char *const *env, void (*fn)(proc_t *), int after_ms)
{
    job_start(job, RANKS, env, fn, NULL);
    job_await(job, 0, RANKS);
    nap_ms(after_ms);
    uint64_t start = now_ms();
    kill(job->pids[VICTIM], SIGKILL);
    atomic_fetch_add(&job->shared->arrived[1], 1);
    assert_int_equal(job_finish(job, VICTIM), 0);
    waitpid(job->pids[VICTIM], NULL, 0);
    return start;
}

/* Stops the victim until all others have been told. Returns when it was stopped. */
static uint64_t stop_victim(job_t *job, const char *const *env, void (*fn)(proc_t *), int after_ms)
{
    job_start(job, RANKS, env, fn, NULL);
    job_await(job, 0, RANKS);
    nap_ms(after_ms);
    uint64_t start = now_ms();
    kill(job->pids[VICTIM], SIGSTOP);
    job_await(job, 1, RANKS - 1);
    kill(job->pids[VICTIM], SIGCONT);
    assert_int_equal(job_finish(job, -1), 0);
    return start;
}

static void an_idle_communicator_hears_of_a_death(void **state)
{
    job_t job;
    char process[32];
    (void)state;
    uint64_t start = kill_victim(&job, NULL, idle, 0);
    snprintf(process, sizeof process, "process %d)", (int)job.pids[VICTIM]);
    check_told(&job, start, 200, KOLO_ERR_REMOTE,
               (const char *const[]){"rank 4 (host ", process, "was lost", NULL});
}

static void with_a_child(proc_t *p)
{
    EXPECT(works(p->r.comm)); /* all connections are there */
    if (p->r.rank == VICTIM) {
        pid_t child = fork();
        if (child == 0)
            for (;;) pause(); /* holds all sockets open */
        p->shared->found[VICTIM].bytes = (uint64_t)child;
    }
    idle(p);
}

static void a_child_that_holds_the_sockets_hides_no_death(void **state)
{
    static const char *const env[] = {"HOSTS=6", NULL}; /* nobody sees its process: only the sockets tell */
    job_t job;
    (void)state;
    uint64_t start = kill_victim(&job, env, with_a_child, 0);
    kill((pid_t)job.shared->found[VICTIM].bytes, SIGKILL);
    check_told(&job, start, 200, KOLO_ERR_REMOTE,
               (const char *const[]){"rank 4 (host ", "its connection was closed",
                                     NULL}); /* the child's copies are gone */
}

static void busy(proc_t *p)
{
    size_t count = 1 << 20;
    int32_t *data = calloc(count, sizeof *data);
    finding_t *f = &p->shared->found[p->r.rank];
    EXPECT(data && works(p->r.comm));
    proc_meet(p, 0);
    do f->status = kolo_all_reduce(data, data, count, KOLO_INT32, KOLO_SUM, p->r.comm, NULL);
    while (f->status == KOLO_OK);
    f->at_ms = now_ms();
    snprintf(f->text, sizeof f->text, "%s", kolo_get_last_error(p->r.comm));
    proc_meet(p, 1);
    free(data);
    leave(p);
}

static void the_words_say_who_where_how_and_what_was_under_way(void **state)
{
    job_t job;
    char process[32];
    (void)state;
    uint64_t start = kill_victim(&job, NULL, busy, 50);
    snprintf(process, sizeof process, "process %d)", (int)job.pids[VICTIM]);
    check_told(
        &job, start, 200, KOLO_ERR_REMOTE,
        (const char *const[]){"rank 4 (host ", process, "was lost", "all_reduce number ", "4194304 bytes", NULL});
}

/* ---- hosts ---- */

/* Survivors go on without the stopped one, which then wakes up and wants to go on without another. */
static void go_on(proc_t *p)
{
    const int victim[] = {VICTIM}, another[] = {0};
    kolo_comm_t rest = NULL;
    EXPECT(works(p->r.comm));
    proc_meet(p, 0);
    await_error(p, 20000);
    if (p->r.rank == VICTIM) {
        EXPECT_IS(KOLO_ERR_PARTITION, kolo_comm_shrink(p->r.comm, another, 1, KOLO_SHRINK_ABORT, &rest, NULL));
    } else if (EXPECT_OK(kolo_comm_shrink(p->r.comm, victim, 1, KOLO_SHRINK_ABORT, &rest, NULL))) {
        EXPECT(works(rest));
    }
    proc_meet(p, 1);
    if (rest) {
        EXPECT(works(rest));
        end_comm(&rest);
    }
    leave(p);
}

/* The survivors' own beats come late all the time, as on a host that is starved: 8 ticks by 0.9 s each. What they
 * miss is not to be put down to the silent one, but neither is it to hide him. */
static void late_ticks_are_forgiven_no_longer_than_a_verdict(void **state)
{
#define LATE(n) "member.beat.tick:" #n ":delay:900"
    static const char *const env[] = {"HOSTS=3", "KOLO_SUSPECT_MS=1000", "KOLO_VERDICT_MS=2000",
                                      "KOLO_FAIL_POINT=" LATE(10) "," LATE(11) "," LATE(12) "," LATE(13) "," LATE(
                                          14) "," LATE(15) "," LATE(16) "," LATE(17),
                                      NULL};
    job_t job;
    (void)state;
    uint64_t start = stop_victim(&job, env, go_on, 0);
    check_told(&job, start, 8500, KOLO_ERR_REMOTE,
               (const char *const[]){"rank 4 (host ", "nothing was heard from it", NULL});
    for (int r = 0; r < RANKS; r++) /* with all of it forgiven it takes 8 * 0.9 + 2 seconds at least */
        assert_true(r == VICTIM || job.shared->found[r].at_ms - start < 9200 * PATIENCE);
}

static void a_stopped_rank_on_another_host_gets_a_verdict_and_is_fenced(void **state)
{
    static const char *const env[] = {"HOSTS=3", "KOLO_SUSPECT_MS=300", "KOLO_VERDICT_MS=1000", NULL};
    job_t job;
    (void)state;
    uint64_t start = stop_victim(&job, env, go_on, 300);
    check_told(&job, start, 1500, KOLO_ERR_REMOTE,
               (const char *const[]){"rank 4 (host ", "nothing was heard from it", NULL});
    const finding_t *f = &job.shared->found[VICTIM];
    print_message("the one that woke up: %s\n", f->text);
    assert_int_equal(f->status, KOLO_ERR_PARTITION);
    assert_non_null(strstr(f->text, "given up"));
}

static void no_calls(proc_t *p)
{
    EXPECT(works(p->r.comm));
    proc_meet(p, 0);
    while (atomic_load(&p->shared->arrived[1]) == 0) nap_ms(5); /* until the parent says so; its end is ours */
    EXPECT_IS(KOLO_OK, async_error(p->r.comm));
    EXPECT(works(p->r.comm));
}

static void silence_without_calls_or_for_a_while_is_no_death(void **state)
{
    static const char *const env[] = {"HOSTS=3", "KOLO_SUSPECT_MS=100", "KOLO_VERDICT_MS=3000", NULL};
    job_t job;
    (void)state;
    job_start(&job, RANKS, env, no_calls, NULL);
    job_await(&job, 0, RANKS);
    kill(job.pids[VICTIM], SIGSTOP);
    nap_ms(1500);
    kill(job.pids[VICTIM], SIGCONT);
    nap_ms(500);
    for (int i = 0; i < 2; i++) { /* all but one stop: they must not blame the one that went on */
        for (int r = 1; r < RANKS; r++) kill(job.pids[r], i == 0 ? SIGSTOP : SIGCONT);
        nap_ms(1500);
    }
    atomic_store(&job.shared->arrived[1], 1);
    assert_int_equal(job_finish(&job, -1), 0);
}

#define CALL_BYTES 200 /* they go through a slot, by memcpy */

/* Rank 0 stays for a while in the midst of its part, which begins in the background; rank 2 dies meanwhile. What
 * the caller does when it is told that the call is over would end the process if it were not. */
static void first_use_of_buffers(proc_t *p)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t child = NULL;
    void *data = mmap(NULL, CALL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    config.blocking = 0;
    EXPECT(data != MAP_FAILED);
    kolo_status_t status = kolo_comm_split(p->r.comm, 0, 0, &child, &config);
    EXPECT_OK(settled(child, status));
    status = kolo_all_reduce(data, data, CALL_BYTES, KOLO_INT8, KOLO_SUM, child, NULL);
    EXPECT_IS(p->r.rank == 0 ? KOLO_IN_PROGRESS : status, status);
    status = settled(child, status);
    EXPECT(mprotect(data, CALL_BYTES, PROT_NONE) == 0);
    if (p->r.rank == 0) EXPECT_IS(KOLO_ERR_REMOTE, status);
    EXPECT_OK(kolo_comm_abort(child));
    EXPECT(munmap(data, CALL_BYTES) == 0);
    leave(p);
}

static void buffers_are_the_callers_when_the_error_is_told(void **state)
{
    static const char *const env[] = {"HOSTS=3", "@0:KOLO_FAIL_POINT=exec.send:1:delay:1500",
                                      "@2:KOLO_FAIL_POINT=exec.send:1:kill", NULL};
    job_t job;
    (void)state;
    job_start(&job, 3, env, first_use_of_buffers, NULL);
    assert_int_equal(job_finish(&job, 2), 0);
    assert_int_equal(waitpid(job.pids[2], NULL, 0), job.pids[2]);
}

int main(void)
{
    limit_s(220);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_communicator_hears_of_a_death),
        cmocka_unit_test(a_child_that_holds_the_sockets_hides_no_death),
        cmocka_unit_test(the_words_say_who_where_how_and_what_was_under_way),
        cmocka_unit_test(late_ticks_are_forgiven_no_longer_than_a_verdict),
        cmocka_unit_test(a_stopped_rank_on_another_host_gets_a_verdict_and_is_fenced),
        cmocka_unit_test(buffers_are_the_callers_when_the_error_is_told),
        cmocka_unit_test(silence_without_calls_or_for_a_while_is_no_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
