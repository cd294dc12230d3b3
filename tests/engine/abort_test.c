/* SPDX-License-Identifier: Apache-2.0
 *
 * An abort of the engine on one thread while its loop, another one, is about to read who the ranks are: the abort
 * gives the communicator back. Fail points hold the loop where it would.
 */
#include "base/failpoint.h"
#include "kit/procs.h"

#include <fcntl.h>
#include <kolo/engine.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *held; /* the fail point */
static _Atomic int there;

static void note(const char *name, kolo_fault_t fault)
{
    if (fault == KOLO_FAULT_DELAY && strcmp(name, held) == 0) atomic_store(&there, 1);
}

/* The next passage of this rank's loop through the place takes 300 ms. */
static void hold_loop(const char *name)
{
    char rule[80];
    held = name;
    snprintf(rule, sizeof rule, "%s:1:delay:300", name);
    kolo_fail_point_hook = note;
    EXPECT_OK(kolo_fail_points_arm(rule));
}

static kolo_status_t submit(kolo_tensor_engine_t e, float *x)
{
    static const int64_t count = 1000;
    kolo_tensor_t t = {"x", KOLO_FLOAT32, 1, &count, x, x};
    return kolo_engine_all_reduce(e, &t, KOLO_SUM, 1, 1, NULL, NULL);
}

/* ---- which backend moves the data is asked for each operation; levels depend on who is on which host ---- */

static void abort_in_a_choice(proc_t *p)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    kolo_tensor_engine_t e;
    float x[1000] = {0};
    config.backends = "hierarchical";
    if (!EXPECT_OK(kolo_engine_init(&e, p->r.comm, &config))) return;
    if (p->r.rank == 0) hold_loop("engine.backend.choose");
    proc_meet(p, 0);
    EXPECT_OK(submit(e, x));
    if (p->r.rank == 0) EXPECT(await_count(&there, 1));
    if (p->r.rank != 0) proc_meet(p, 1);
    EXPECT_OK(kolo_engine_abort(e));
    if (p->r.rank == 0) proc_meet(p, 1);
}

static void an_abort_meets_the_choice_of_a_backend(void **state)
{
    job_t job;
    (void)state;
    job_start(&job, 4, (const char *const[]){"HOSTS=2", NULL}, abort_in_a_choice, NULL);
    assert_int_equal(job_finish(&job, -1), 0);
}

/* ---- who is missing is told with its process and host ---- */

static void read_back(int fd, char *text, size_t bytes)
{
    ssize_t n = pread(fd, text, bytes - 1, 0);
    text[n > 0 ? n : 0] = '\0';
}

static void abort_in_a_warning(proc_t *p)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    kolo_tensor_engine_t e;
    float x[1000] = {0};
    char name[] = "/tmp/kolo-abort-XXXXXX", text[8192], host[64] = "", words[160];
    config.stall_warn_ms = 100;
    if (!EXPECT_OK(kolo_engine_init(&e, p->r.comm, &config))) return;
    if (p->r.rank == 1) p->shared->found[1].bytes = (uint64_t)getpid();
    proc_meet(p, 0);
    if (p->r.rank == 0) {
        int log = mkstemp(name), before = dup(2);
        hold_loop("engine.stall.words");
        dup2(log, 2);
        kolo_status_t submitted = submit(e, x);
        bool came = await_count(&there, 1);
        kolo_status_t aborted = kolo_engine_abort(e);
        dup2(before, 2);
        unlink(name);
        EXPECT_OK(submitted);
        EXPECT(came);
        EXPECT_OK(aborted);
        read_back(log, text, sizeof text);
        gethostname(host, sizeof host - 1);
        snprintf(words, sizeof words, "rank 1 is process %d on host %.31s (", (int)p->shared->found[1].bytes, host);
        if (!EXPECT(strstr(text, words))) fprintf(stderr, "no \"%s\" in: %s\n", words, text);
        close(log);
        close(before);
    }
    proc_meet(p, 1);
    if (p->r.rank != 0) EXPECT_OK(kolo_engine_abort(e));
}

static void an_abort_meets_the_words_about_a_missing_rank(void **state)
{
    job_t job;
    (void)state;
    job_start(&job, 2, (const char *const[]){NULL}, abort_in_a_warning, NULL);
    assert_int_equal(job_finish(&job, -1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_abort_meets_the_choice_of_a_backend),
                                       cmocka_unit_test(an_abort_meets_the_words_about_a_missing_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
