/* SPDX-License-Identifier: Apache-2.0
 *
 * An operation that runs into its time limit asks the other ranks what they do, and its error says who keeps it
 * waiting: one that did not come, and where it is instead, one that is stopped, and one that is not there any more.
 */
#include "kit/procs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 3
#define LATE  1
#ifdef KOLO_SANITIZED
#define LIMIT_MS 2000 /* what comes before must be through in that time, too */
#else
#define LIMIT_MS 1500
#endif
#define ANSWER_MS 1500 /* the survey, and a machine that is busy */

typedef enum { ABSENT, IN_RECV, QUEUED, NOWHERE, HOWS } how_t;

typedef struct {
    kolo_unique_id_t id;
    how_t how;
} case_t;

static void block(void *arg)
{
    (void)arg;
    nap_ms(LIMIT_MS + ANSWER_MS);
}

static void be_elsewhere(const rank_t *r, how_t how, float *data)
{
    kolo_stream_t stream;
    EXPECT_OK(kolo_stream_create(&stream));
    if (how == IN_RECV) EXPECT_OK(kolo_recv(data, 4, KOLO_FLOAT32, 2, r->comm, stream));
    if (how == QUEUED) {
        EXPECT_OK(kolo_stream_call(stream, block, NULL));
        EXPECT_OK(kolo_all_reduce(data, data, 4, KOLO_FLOAT32, KOLO_SUM, r->comm, stream));
    }
    meet();
    EXPECT_OK(kolo_comm_abort(r->comm));
    EXPECT_OK(kolo_stream_destroy(stream));
}

static void wait_for_the_late(rank_t *r)
{
    static const char *const where[HOWS] = {[ABSENT] = "last call is complete: operation 10 (barrier)",
                                            [IN_RECV] = "recv 4 float32 from rank 2",
                                            [QUEUED] = "queued all_reduce 4 float32 sum on a stream"};
    const case_t *c = r->arg;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    float data[4] = {0};
    config.op_timeout_ms = LIMIT_MS;
    if (!EXPECT_OK(kolo_comm_init_rank(&r->comm, r->nranks, c->id, r->rank, &config))) abort();
    works(r->comm);
    for (int i = 0; i < 10; i++) EXPECT_OK(kolo_barrier(r->comm, NULL));
    meet();
    if (r->rank == LATE) {
        be_elsewhere(r, c->how, data);
        return;
    }
    char here[80]; /* the first rank that is named is the one that waited */
    snprintf(here, sizeof here, "comm rank %d: time-out: rank %d, in operation 11 (all_reduce 4 float32 sum",
             r->rank, r->rank);
    uint64_t start = now_ms();
    EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_all_reduce(data, data, 4, KOLO_FLOAT32, KOLO_SUM, r->comm, NULL), here,
                 "waited ", " s for data from rank ", "rank 1 (process ",
                 "did not enter operation 11 (all_reduce 4 float32 sum)", where[c->how]);
    EXPECT(IN_TIME(now_ms() - start < LIMIT_MS + ANSWER_MS));
    meet();
    EXPECT_OK(kolo_comm_destroy(r->comm));
}

static void a_time_out_names_who_did_not_come_and_where_it_is(void **state)
{
    (void)state;
    for (case_t c = {.how = ABSENT}; c.how < NOWHERE; c.how++) {
        assert_int_equal(kolo_get_unique_id(&c.id), KOLO_OK);
        int failures = run_threads(RANKS, wait_for_the_late, &c);
        if (failures) print_message("case %d: %d failures\n", (int)c.how, failures);
        assert_int_equal(failures, 0);
    }
}

/* ---- processes ---- */

static void wait_for_the_stopped(proc_t *p)
{
    rank_t *r = &p->r;
    finding_t *f = &p->shared->found[r->rank];
    float data[4] = {0};
    works(r->comm);
    proc_meet(p, 0);
    if (r->rank == LATE) {
        raise(SIGSTOP);
        for (;;) pause();
    }
    uint64_t start = now_ms();
    f->status = kolo_all_reduce(data, data, 4, KOLO_FLOAT32, KOLO_SUM, r->comm, NULL);
    f->at_ms = now_ms() - start;
    snprintf(f->text, sizeof f->text, "%s", kolo_get_last_error(r->comm));
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
}

static void stop_one(const char *const *env, const char *expected)
{
    job_t job;
    job_start(&job, RANKS, env, wait_for_the_stopped, NULL);
    assert_int_equal(job_finish(&job, LATE), 0);
    kill(job.pids[LATE], SIGKILL);
    assert_int_equal(waitpid(job.pids[LATE], NULL, 0), job.pids[LATE]);
    for (int i = 0; i < RANKS; i++) {
        const finding_t *f = &job.shared->found[i];
        if (i == LATE) continue;
        if (f->status != KOLO_ERR_TIMEOUT || !strstr(f->text, expected)) print_message("rank %d: %s\n", i, f->text);
        assert_int_equal(f->status, KOLO_ERR_TIMEOUT);
        assert_non_null(strstr(f->text, expected));
        assert_true(IN_TIME(f->at_ms < LIMIT_MS + ANSWER_MS));
    }
}

static void a_stopped_process_does_not_delay_and_is_named(void **state)
{
    (void)state;
    static char limit[40];
    snprintf(limit, sizeof limit, "KOLO_OP_TIMEOUT_MS=%d", LIMIT_MS);
    stop_one((const char *const[]){limit, NULL}, "is stopped and does not answer");
    stop_one((const char *const[]){limit, "KOLO_RECORDER=0", NULL}, "time-out: rank ");
}

int main(void)
{
    limit_s(110);
    setenv("KOLO_MISMATCH_MS", "86400000", 1); /* which would find out before the time is up */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_process_does_not_delay_and_is_named),
        cmocka_unit_test(a_time_out_names_who_did_not_come_and_where_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
