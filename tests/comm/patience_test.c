/* SPDX-License-Identifier: Apache-2.0
 *
 * No false verdict: ranks on "hosts" of their own (heartbeats go between all) on a machine with a load of 20, each
 * of them stopped for up to three seconds now and then, with the default times. Some make no calls, some do. Runs
 * ten seconds as a test; KOLO_TEST_SECONDS=600 is the figure that is promised.
 */
#include "kit/procs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 6
#define LOAD  20

static int seconds = 10;

/* Ranks in step: half a second without a call, then all at once. */
static void now_and_then(proc_t *p)
{
    finding_t *f = &p->shared->found[p->r.rank];
    EXPECT(works(p->r.comm));
    proc_meet(p, 0);
    limit_s((unsigned)seconds + 60);
    int32_t go = 1, all = 1;
    while (f->status == KOLO_OK && all) {
        nap_ms(500);
        go = !atomic_load(&p->shared->arrived[1]);
        f->status = kolo_all_reduce(&go, &all, 1, KOLO_INT32, KOLO_MIN, p->r.comm, NULL);
        f->rounds++;
    }
    snprintf(f->text, sizeof f->text, "%s", kolo_get_last_error(p->r.comm));
}

static void spin(pid_t pids[LOAD])
{
    for (int i = 0; i < LOAD; i++)
        if ((pids[i] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (volatile unsigned n = 0;; n++) continue;
        }
}

static void stops_and_load_bring_no_verdict(void **state)
{
    static const char *const env[] = {"HOSTS=6", NULL};
    job_t job;
    pid_t load[LOAD];
    unsigned stops = 0, seed = 1;
    (void)state;
    job_start(&job, RANKS, env, now_and_then, NULL);
    job_await(&job, 0, RANKS);
    spin(load);
    for (uint64_t end = now_ms() + (uint64_t)seconds * 1000; now_ms() < end; stops++) {
        int victim = rand_r(&seed) % RANKS, also = rand_r(&seed) % RANKS;
        kill(job.pids[victim], SIGSTOP);
        kill(job.pids[also], SIGSTOP);
        nap_ms(500 + rand_r(&seed) % 2500);
        kill(job.pids[victim], SIGCONT);
        kill(job.pids[also], SIGCONT);
        nap_ms(rand_r(&seed) % 1000);
    }
    atomic_store(&job.shared->arrived[1], 1);
    int bad = job_finish(&job, -1);
    for (int i = 0; i < LOAD; i++) kill(load[i], SIGKILL);
    for (int i = 0; i < LOAD; i++) waitpid(load[i], NULL, 0);
    for (int r = 0; r < RANKS; r++) {
        const finding_t *f = &job.shared->found[r];
        if (f->status != KOLO_OK) print_message("rank %d: %s\n", r, f->text);
        assert_int_equal(f->status, KOLO_OK);
    }
    assert_int_equal(bad, 0);
    print_message("%d s, %u times two of %d ranks were stopped for up to 3 s, load %d: no verdict, %llu rounds\n",
                  seconds, stops, RANKS, LOAD, (unsigned long long)job.shared->found[0].rounds);
}

int main(void)
{
    const char *text = getenv("KOLO_TEST_SECONDS");
    if (text) seconds = atoi(text);
    unsetenv("KOLO_TEST_SECONDS");
    limit_s((unsigned)seconds + 100);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stops_and_load_bring_no_verdict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
