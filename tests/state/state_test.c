/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo_state on ranks as processes: one is killed, or several are, at each point of a step, and those that are left
 * end with the sum that one process alone would have: no step is lost, none is counted twice.
 */
#include "base/failpoint.h"
#include "kit/procs.h"
#include "state/samples.h"

#include <kolo/state.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define STEPS  40
#define FILLER 5000

/* Where the parent may kill: the rank meets it there. */
enum { AT_START, IN_THE_MIDDLE, BEFORE_COMMIT, NOWHERE };

typedef struct {
    int64_t step, first, second;
    int64_t filler[FILLER];
} model_t;

typedef struct {
    proc_t *p;
    model_t m;
    int place, step; /* where and when the victims come to the point of the parent */
    int calls;
    bool is_victim;
    kolo_status_t excuse; /* returned once by rank 1, though nobody is lost */
} trainer_t;

static void maybe_wait_for_the_end(trainer_t *t, int place)
{
    if (!t->is_victim || t->place != place || t->m.step != t->step) return;
    proc_meet(t->p, 0); /* never more than the victims come: who is through is not needed */
}

static kolo_status_t half(trainer_t *t, kolo_comm_t comm, int rank, int nranks, int64_t *sum)
{
    int64_t mine = 0;
    for (int i = rank; i < SAMPLES; i += nranks) mine += sample(t->m.step, i);
    kolo_status_t status = kolo_all_reduce(&mine, &mine, 1, KOLO_INT64, KOLO_SUM, comm, NULL);
    if (status == KOLO_OK) *sum += mine;
    return status;
}

static kolo_status_t train(kolo_state_t state, void *arg)
{
    trainer_t *t = arg;
    kolo_comm_t comm;
    kolo_state_info_t info;
    kolo_status_t status = kolo_state_comm(state, &comm);
    if (status == KOLO_OK) status = kolo_state_get_info(state, &info);
    t->calls++;
    while (status == KOLO_OK && t->m.step < STEPS) {
        maybe_wait_for_the_end(t, AT_START);
        status = half(t, comm, info.rank, info.nranks, &t->m.first);
        maybe_wait_for_the_end(t, IN_THE_MIDDLE);
        if (status == KOLO_OK && t->excuse != KOLO_OK && t->m.step == t->step && info.rank == 1) {
            status = t->excuse;
            t->excuse = KOLO_OK;
            return status;
        }
        if (status == KOLO_OK) status = half(t, comm, info.rank, info.nranks, &t->m.second);
        maybe_wait_for_the_end(t, BEFORE_COMMIT);
        if (status != KOLO_OK) break;
        t->m.step++;
        for (int i = 0; i < FILLER; i++) t->m.filler[i] = t->m.step * i;
        status = kolo_state_commit(state);
    }
    return status;
}

static bool set_up(trainer_t *t, kolo_state_t *state)
{
    kolo_state_config_t config = KOLO_STATE_CONFIG_INITIALIZER;
    config.comm = t->p->r.comm;
    t->p->r.comm = NULL; /* the state's from here on */
    return EXPECT_OK(kolo_state_create(state, &config)) &&
           EXPECT_OK(kolo_state_register(*state, "step", &t->m.step, sizeof t->m.step)) &&
           EXPECT_OK(kolo_state_register(*state, "sums", &t->m.first, 2 * sizeof t->m.first)) &&
           EXPECT_OK(kolo_state_register(*state, "filler", t->m.filler, sizeof t->m.filler));
}

static void check_sums(const trainer_t *t)
{
    EXPECT(t->m.step == STEPS);
    EXPECT(t->m.first == right_sum(STEPS));
    EXPECT(t->m.second == right_sum(STEPS));
    EXPECT(t->m.filler[FILLER - 1] == (int64_t)STEPS * (FILLER - 1));
}

/* Ranks under `victims` (bits) are killed by the parent at `place` of `step`. */
typedef struct {
    unsigned victims;
    int place, step;
    kolo_status_t excuse;
    bool loops; /* by kolo_state_enter() and kolo_state_next() */
} plan_t;

static kolo_status_t run_or_loop(kolo_state_t state, trainer_t *t, bool loops)
{
    int again;
    if (!loops) return kolo_state_run(state, train, t);
    kolo_status_t status = kolo_state_enter(state);
    while ((status = kolo_state_next(state, status, &again)) == KOLO_OK && again) status = train(state, t);
    EXPECT(again == 0);
    EXPECT_IS(KOLO_ERR_INVALID_USAGE, kolo_state_next(state, KOLO_OK, &again));
    return status;
}

static void train_and_check(proc_t *p)
{
    const plan_t *plan = p->r.arg;
    trainer_t t = {.p = p, .place = plan->place, .step = plan->step, .excuse = plan->excuse};
    kolo_state_t state;
    kolo_state_info_t info;
    t.is_victim = plan->victims >> p->r.rank & 1;
    t.m.first = t.m.second = p->r.rank == 0 ? 0 : 1000 + p->r.rank; /* that of rank 0 counts */
    if (!set_up(&t, &state)) return;
    EXPECT_OK(run_or_loop(state, &t, plan->loops));
    check_sums(&t);
    EXPECT_OK(kolo_state_get_info(state, &info));
    EXPECT(info.commits == STEPS);
    EXPECT((info.losses > 0) == (t.calls > 1));
    EXPECT(t.calls > 1 || (plan->victims == 0 && plan->excuse == KOLO_OK));
    EXPECT_OK(kolo_state_destroy(state));
}

static int run_plan(int n, plan_t plan)
{
    job_t job;
    int count = __builtin_popcount(plan.victims), bad = 0, status;
    job_start(&job, n, NULL, train_and_check, &plan);
    if (count > 0) job_await(&job, 0, count);
    for (int r = 0; r < n; r++)
        if (plan.victims >> r & 1) kill(job.pids[r], SIGKILL);
    for (int r = 0; r < n; r++) {
        if (waitpid(job.pids[r], &status, 0) != job.pids[r]) abort();
        if (plan.victims >> r & 1 || status == 0) continue;
        fprintf(stderr, "the process of rank %d failed (status 0x%x)\n", r, (unsigned)status);
        bad++;
    }
    return bad;
}

static void ranks_that_stay_train_as_one_would(void **state)
{
    (void)state;
    assert_int_equal(run_plan(4, (plan_t){.place = NOWHERE}), 0);
    assert_int_equal(run_plan(1, (plan_t){.place = NOWHERE}), 0);
}

static void a_loss_at_each_point_of_a_step_costs_no_step(void **state)
{
    (void)state;
    for (int place = AT_START; place <= BEFORE_COMMIT; place++)
        assert_int_equal(run_plan(4, (plan_t){.victims = 1u << 2, .place = place, .step = 7}), 0);
}

static void rank_0_may_be_lost_and_losses_may_come_together(void **state)
{
    (void)state;
    assert_int_equal(run_plan(4, (plan_t){.victims = 1u << 0, .place = IN_THE_MIDDLE, .step = 9}), 0);
    assert_int_equal(run_plan(5, (plan_t){.victims = 0x1b, .place = BEFORE_COMMIT, .step = 0}), 0);
}

static void an_error_that_nobody_died_of_costs_no_rank(void **state)
{
    (void)state;
    assert_int_equal(run_plan(4, (plan_t){.place = NOWHERE, .step = 11, .excuse = KOLO_ERR_REMOTE}), 0);
}

static void a_loop_is_as_good_as_a_function(void **state)
{
    (void)state;
    assert_int_equal(run_plan(1, (plan_t){.place = NOWHERE, .loops = true}), 0);
    for (int place = AT_START; place <= BEFORE_COMMIT; place++)
        assert_int_equal(run_plan(4, (plan_t){.victims = 1u << 1, .place = place, .step = 5, .loops = true}), 0);
    assert_int_equal(run_plan(3, (plan_t){.place = NOWHERE, .step = 11, .excuse = KOLO_ERR_REVOKED, .loops = true}),
                     0);
}

/* ---- deaths at any moment ---- */

static void train_until_killed(proc_t *p)
{
    trainer_t t = {.p = p, .place = NOWHERE};
    kolo_state_t state;
    if (!set_up(&t, &state)) return;
    proc_meet(p, 0);
    kolo_status_t status = kolo_state_run(state, train, &t);
    if (EXPECT_OK(status)) check_sums(&t);
    EXPECT_OK(kolo_state_destroy(state));
}

static void deaths_at_any_moment_cost_no_step(void **state)
{
    (void)state;
    uint64_t x = 12345;
    for (int round = 0; round < 12; round++) {
        job_t job;
        int status, bad = 0, victim = round % 4, other = (round / 4 + victim + 1) % 4;
        job_start(&job, 4, NULL, train_until_killed, NULL);
        job_await(&job, 0, 4);
        for (uint64_t end = now_ms() + (x >> 33) % 12; now_ms() < end;) nap_ms(1);
        x = x * 6364136223846793005u + 1442695040888963407u;
        kill(job.pids[victim], SIGKILL);
        if (round % 3 == 0) kill(job.pids[other], SIGKILL);
        for (int r = 0; r < 4; r++) {
            if (waitpid(job.pids[r], &status, 0) != job.pids[r]) abort();
            bad += status != 0 && r != victim && (r != other || round % 3 != 0);
        }
        assert_int_equal(bad, 0);
    }
}

/* ---- misuse ---- */

/* Has rank 1 be late with what it passes on for the nth time from here on, if that is asked for: whoever stands
 * behind it in the ring is still in the operation when the others have its end. */
static void come_late(proc_t *p, int nth)
{
    char rule[64];
    snprintf(rule, sizeof rule, "exec.recv_send:%d:delay:300", nth);
    if (p->r.arg && p->r.rank == 1) EXPECT_OK(kolo_fail_points_arm(rule));
}

static void register_otherwise(proc_t *p)
{
    trainer_t t = {.p = p, .place = NOWHERE};
    kolo_state_t state;
    int64_t more = 0;
    if (!set_up(&t, &state)) return;
    if (p->r.rank == 2) EXPECT_OK(kolo_state_register(state, "more", &more, sizeof more));
    come_late(p, 2);
    EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_state_run(state, train, &t), "rank 2", "registered other buffers");
    EXPECT(t.calls == 0);
    EXPECT_OK(kolo_state_destroy(state));
}

static kolo_status_t end_early_on_rank_1(kolo_state_t state, void *arg)
{
    kolo_state_info_t info;
    trainer_t *t = arg;
    if (kolo_state_get_info(state, &info) != KOLO_OK) return KOLO_ERR_INTERNAL;
    t->calls++;
    come_late(t->p, 1);
    return info.rank == 1 ? KOLO_OK : kolo_state_commit(state);
}

static void end_at_different_points(proc_t *p)
{
    trainer_t t = {.p = p, .place = NOWHERE};
    kolo_state_t state;
    if (!set_up(&t, &state)) return;
    EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_state_run(state, end_early_on_rank_1, &t), "not at the same point");
    EXPECT_OK(kolo_state_destroy(state));
}

/* Each rank is the root of a broadcast: it fits into the queues, and nobody waits until the end. */
static kolo_status_t name_other_roots(kolo_state_t state, void *arg)
{
    float x[8192] = {0};
    kolo_comm_t comm;
    kolo_state_info_t info;
    (void)arg;
    if (kolo_state_comm(state, &comm) != KOLO_OK || kolo_state_get_info(state, &info) != KOLO_OK)
        return KOLO_ERR_INTERNAL;
    for (int r = 0; r < info.nranks; r++) EXPECT_OK(kolo_broadcast(x, x, 8192, KOLO_FLOAT32, r, comm, NULL));
    EXPECT_OK(kolo_barrier(comm, NULL));
    return kolo_broadcast(x, x, 8192, KOLO_FLOAT32, info.rank, comm, NULL);
}

static void part_from_each_other(proc_t *p)
{
    trainer_t t = {.p = p, .place = NOWHERE};
    kolo_state_t state;
    if (!set_up(&t, &state)) return;
    EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_state_run(state, name_other_roots, &t), "broadcast 8192 float32");
    EXPECT_OK(kolo_state_destroy(state));
}

static kolo_status_t always_lost(kolo_state_t state, void *arg)
{
    (void)state;
    ((trainer_t *)arg)->calls++;
    return KOLO_ERR_REMOTE;
}

static void get_nowhere(proc_t *p)
{
    trainer_t t = {.p = p, .place = NOWHERE};
    kolo_state_t state;
    if (!set_up(&t, &state)) return;
    EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_state_run(state, always_lost, &t), "nothing was committed");
    EXPECT(t.calls < 20);
    EXPECT_OK(kolo_state_destroy(state));
}

static kolo_status_t say_that_they_change(kolo_state_t state, void *arg)
{
    (void)state, (void)arg;
    return KOLO_IN_PROGRESS;
}

static void change_on_my_own(proc_t *p)
{
    trainer_t t = {.p = p, .place = NOWHERE};
    kolo_state_t state;
    if (!set_up(&t, &state)) return;
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_state_run(state, say_that_they_change, &t), "no commit had said");
    EXPECT_OK(kolo_state_destroy(state));
}

static void ask_for_more(proc_t *p)
{
    kolo_state_config_t config = KOLO_STATE_CONFIG_INITIALIZER;
    trainer_t t = {.p = p, .place = NOWHERE};
    kolo_state_t state;
    config.comm = p->r.comm;
    config.min_ranks = 5;
    p->r.comm = NULL;
    if (!EXPECT_OK(kolo_state_create(&state, &config))) return;
    EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_state_run(state, train, &t), "4 ranks are left, 5 are needed");
    EXPECT(t.calls == 0);
    EXPECT_OK(kolo_state_destroy(state));
}

/* Rank 0 is lost, and those that are left are too few. */
static void lose_one_too_many(proc_t *p)
{
    kolo_state_config_t config = KOLO_STATE_CONFIG_INITIALIZER;
    trainer_t t = {.p = p, .place = IN_THE_MIDDLE, .step = 3, .is_victim = p->r.rank == 0};
    kolo_state_t state;
    config.comm = p->r.comm;
    config.min_ranks = 3;
    p->r.comm = NULL;
    if (!EXPECT_OK(kolo_state_create(&state, &config))) return;
    EXPECT_OK(kolo_state_register(state, "model", &t.m, sizeof t.m));
    EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_state_run(state, train, &t), "2 ranks are left, 3 are needed");
    EXPECT(t.calls == 1);
    EXPECT_OK(kolo_state_destroy(state));
}

/* A loop that is left in its middle, as by an exception: the others are told. */
static void leave_the_loop(proc_t *p)
{
    trainer_t t = {.p = p, .place = NOWHERE};
    kolo_state_t state;
    kolo_state_info_t info;
    int again;
    if (!set_up(&t, &state)) return;
    kolo_status_t status = kolo_state_enter(state);
    EXPECT_OK(kolo_state_next(state, status, &again));
    EXPECT(again == 1);
    if (p->r.rank == 1) {
        EXPECT_OK(kolo_state_destroy(state));
        return;
    }
    do status = train(state, &t);
    while ((status = kolo_state_next(state, status, &again)) == KOLO_OK && again);
    EXPECT_OK(status);
    check_sums(&t);
    EXPECT_OK(kolo_state_get_info(state, &info));
    EXPECT(info.losses == 1 && info.nranks == 2);
    EXPECT_OK(kolo_state_destroy(state));
}

/* ---- what the communicator is like ---- */

static kolo_comm_t not_blocking(proc_t *p)
{
    kolo_config_t c = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t comm = NULL;
    kolo_status_t status = KOLO_IN_PROGRESS;
    c.blocking = 0;
    EXPECT_IS(KOLO_IN_PROGRESS, kolo_comm_split(p->r.comm, 0, 0, &comm, &c));
    for (uint64_t end = now_ms() + 60000; status == KOLO_IN_PROGRESS && now_ms() < end; nap_ms(1))
        if (!EXPECT_OK(kolo_comm_get_async_error(comm, &status))) break;
    EXPECT_OK(status);
    return comm;
}

static void train_without_blocking(proc_t *p)
{
    kolo_state_config_t config = KOLO_STATE_CONFIG_INITIALIZER;
    trainer_t t = {.p = p, .place = NOWHERE, .step = 7, .excuse = KOLO_ERR_REMOTE};
    kolo_state_t state;
    config.comm = not_blocking(p);
    if (!EXPECT_OK(kolo_state_create(&state, &config))) return;
    EXPECT_OK(kolo_state_register(state, "model", &t.m, sizeof t.m));
    EXPECT_OK(kolo_state_run(state, train, &t));
    EXPECT(t.calls == 2);
    check_sums(&t);
    EXPECT_OK(kolo_state_destroy(state));
}

/* Rank 2 does not come to the change: it waits in its function until the others have given it up. */
static kolo_status_t change_or_hang(kolo_state_t state, void *arg)
{
    trainer_t *t = arg;
    kolo_state_info_t info;
    kolo_status_t status = kolo_state_get_info(state, &info);
    if (status != KOLO_OK || t->calls++ > 0) return status == KOLO_OK ? KOLO_ERR_INTERNAL : status;
    if (info.rank == 2) proc_meet(t->p, 0);
    return info.rank == 2 ? KOLO_ERR_INTERNAL : KOLO_ERR_REMOTE;
}

static void change_in_time(proc_t *p)
{
    kolo_state_config_t config = KOLO_STATE_CONFIG_INITIALIZER;
    trainer_t t = {.p = p, .place = NOWHERE};
    kolo_state_t state;
    config.comm = p->r.comm;
    config.change_timeout_ms = 1000;
    p->r.comm = NULL;
    if (!EXPECT_OK(kolo_state_create(&state, &config))) return;
    uint64_t began = now_ms();
    EXPECT(kolo_state_run(state, change_or_hang, &t) != KOLO_OK);
    EXPECT(IN_TIME(now_ms() - began < 25000)); /* the communicator alone would wait for longer */
    if (p->r.rank != 2) proc_meet(p, 0);
    EXPECT_OK(kolo_state_destroy(state));
}

static int run_job(int n, void (*fn)(proc_t *))
{
    job_t job;
    job_start(&job, n, NULL, fn, NULL);
    return job_finish(&job, -1);
}

static int run_late(int n, void (*fn)(proc_t *))
{
    static const char *const env[] = {"KOLO_ALGO=all_reduce=ring,all_gather=ring", NULL};
    job_t job;
    job_start(&job, n, env, fn, "late");
    return job_finish(&job, -1);
}

static void ranks_that_disagree_are_told(void **state)
{
    (void)state;
    assert_int_equal(run_job(4, register_otherwise), 0);
    assert_int_equal(run_job(3, end_at_different_points), 0);
    assert_int_equal(run_job(3, part_from_each_other), 0);
    assert_int_equal(run_job(2, change_on_my_own), 0);
    assert_int_equal(run_job(4, ask_for_more), 0);
}

static void who_comes_late_to_the_end_is_told_the_same(void **state)
{
    (void)state;
    assert_int_equal(run_late(4, register_otherwise), 0);
    assert_int_equal(run_late(3, end_at_different_points), 0);
}

static void who_leaves_the_loop_is_a_loss_for_the_others(void **state)
{
    (void)state;
    assert_int_equal(run_job(3, leave_the_loop), 0);
}

static void too_few_after_a_loss_are_an_end(void **state)
{
    job_t job;
    int status;
    (void)state;
    job_start(&job, 3, NULL, lose_one_too_many, NULL);
    job_await(&job, 0, 1);
    kill(job.pids[0], SIGKILL);
    for (int r = 0; r < 3; r++) {
        if (waitpid(job.pids[r], &status, 0) != job.pids[r]) abort();
        assert_true(r == 0 || status == 0);
    }
}

static void a_communicator_that_does_not_block_will_do(void **state)
{
    (void)state;
    assert_int_equal(run_job(3, train_without_blocking), 0);
}

static void a_change_takes_no_longer_than_it_may(void **state)
{
    (void)state;
    assert_int_equal(run_job(3, change_in_time), 0);
}

static void a_job_that_gets_nowhere_ends(void **state)
{
    (void)state;
    assert_int_equal(run_job(3, get_nowhere), 0);
}

static kolo_status_t misuse_inside(kolo_state_t s, void *arg)
{
    int64_t *x = arg;
    EXPECT_IS(KOLO_ERR_INVALID_USAGE, kolo_state_register(s, "late", x, sizeof *x));
    EXPECT_IS(KOLO_ERR_INVALID_USAGE, kolo_state_destroy(s));
    int again;
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_state_next(s, KOLO_OK, &again), "not from the function");
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_state_put(s, "late", x, sizeof *x), "new names come before");
    *x = 5;
    EXPECT_OK(kolo_state_restore(s));
    EXPECT(*x == 1);
    *x = 6;
    EXPECT_OK(kolo_state_commit(s));
    *x = 7;
    EXPECT_OK(kolo_state_sync(s));
    EXPECT(*x == 6);
    return KOLO_OK;
}

static void arguments(proc_t *p)
{
    int64_t x = 1;
    kolo_state_t s;
    kolo_comm_t comm;
    kolo_state_config_t config = {0};
    const void *data;
    size_t bytes;
    int again;
    char name[KOLO_STATE_NAME_MAX + 2];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_state_create(NULL, NULL));
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_state_create(&s, &config));
    config = (kolo_state_config_t)KOLO_STATE_CONFIG_INITIALIZER;
    config.min_ranks = 0;
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_state_create(&s, &config));
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_state_commit(NULL));
    if (!EXPECT_OK(kolo_state_create(&s, NULL))) return; /* a job of one rank */
    EXPECT_IS(KOLO_ERR_INVALID_USAGE, kolo_state_commit(s));
    EXPECT_IS(KOLO_ERR_INVALID_USAGE, kolo_state_restore(s));
    EXPECT_IS(KOLO_ERR_INVALID_USAGE, kolo_state_sync(s));
    EXPECT_IS(KOLO_ERR_INVALID_USAGE, kolo_state_comm(s, &comm));
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_state_comm(s, NULL));
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_state_register(s, "", &x, sizeof x));
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_state_register(s, name, &x, sizeof x));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_state_register(s, "x", NULL, sizeof x), "\"x\" is at NULL");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_state_register(s, "x", &x, 0), "\"x\" has 0 bytes");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_state_register(s, "x", &x, SIZE_MAX / 2), "a negative number?");
    EXPECT_OK(kolo_state_register(s, "x", &x, sizeof x));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_state_register(s, "x", &x, sizeof x), "already");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_state_put(s, "x", &x, 1), "is a buffer");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_state_get(s, "y", &data, &bytes), "there is no");
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_state_put(s, "y", NULL, 1));
    EXPECT_OK(kolo_state_put(s, "y", NULL, 0));
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_state_get(s, "y", NULL, &bytes));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_state_register(s, "y", &x, sizeof x), "already");
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_state_next(s, KOLO_OK, &again), "kolo_state_enter() comes before");
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_state_next(s, KOLO_OK, NULL));
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_state_run(s, NULL, NULL));
    EXPECT_OK(kolo_state_run(s, misuse_inside, &x));
    EXPECT_IS(KOLO_ERR_INVALID_USAGE, kolo_state_run(s, misuse_inside, &x));
    EXPECT_OK(kolo_state_destroy(s));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_state_destroy(s), "not a state, or one that was destroyed");
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_state_register(s, "y", &x, sizeof x));
    EXPECT_OK(kolo_state_destroy(NULL));
    (void)p;
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    assert_int_equal(run_job(1, arguments), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(ranks_that_stay_train_as_one_would),
        cmocka_unit_test(a_loss_at_each_point_of_a_step_costs_no_step),
        cmocka_unit_test(rank_0_may_be_lost_and_losses_may_come_together),
        cmocka_unit_test(an_error_that_nobody_died_of_costs_no_rank),
        cmocka_unit_test(a_loop_is_as_good_as_a_function),
        cmocka_unit_test(who_leaves_the_loop_is_a_loss_for_the_others),
        cmocka_unit_test(deaths_at_any_moment_cost_no_step),
        cmocka_unit_test(ranks_that_disagree_are_told),
        cmocka_unit_test(who_comes_late_to_the_end_is_told_the_same),
        cmocka_unit_test(a_job_that_gets_nowhere_ends),
        cmocka_unit_test(too_few_after_a_loss_are_an_end),
        cmocka_unit_test(a_communicator_that_does_not_block_will_do),
        cmocka_unit_test(a_change_takes_no_longer_than_it_may),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
