/* SPDX-License-Identifier: Apache-2.0
 *
 * What happens to a parent while a child is made from it. A rank dies half way, but a process that it forked keeps
 * its sockets open, so nothing that the child sees tells of it; or the parent is revoked. Every rank has its answer
 * while that process still lives, or while a rank that is slow still sleeps, and the time limit is far away.
 */
#include "kit/procs.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define ORPHAN    ":orphan:60000" /* a job does not take longer: the ranks have an alarm */
#define SLOW_TEXT ":delay:6000"

static void note(proc_t *p, kolo_status_t status)
{
    finding_t *f = &p->shared->found[p->r.rank];
    f->status = status;
    f->at_ms = now_ms();
    snprintf(f->text, sizeof f->text, "%s", kolo_get_last_error(NULL));
}

static void leave(proc_t *p, int point)
{
    atomic_fetch_add(&p->shared->arrived[point], 1);
    while (atomic_load(&p->shared->arrived[point]) < p->r.nranks - (point == 3)) nap_ms(1);
    EXPECT_OK(kolo_comm_destroy(p->r.comm));
    p->r.comm = NULL;
}

static void check_told(const job_t *job, int rank, kolo_status_t status, const char *const *words)
{
    const finding_t *f = &job->shared->found[rank];
    bool fine = f->status == status;
    for (; *words; words++) fine = fine && strstr(f->text, *words);
    if (!fine) fail_msg("rank %d: status %d: %s", rank, f->status, f->text);
}

/* The processes that the dead left behind are ours: they have ended only if we end them. */
static int end_orphans(void)
{
    char path[64], line[256];
    int ended = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "r");
    if (f && fgets(line, sizeof line, f))
        for (char *at = line, *end; strtol(at, &end, 10) > 0 && end != at; at = end) {
            pid_t pid = (pid_t)strtol(at, NULL, 10);
            bool alive = waitpid(pid, NULL, WNOHANG) == 0;
            if (alive && kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid) ended++;
        }
    if (f) fclose(f);
    return ended;
}

/* Runs the job, in which `victim` dies and leaves a process behind. */
static void run_with_orphan(job_t *job, int n, int victim, const char *point, void (*fn)(proc_t *))
{
    char rule[128];
    snprintf(rule, sizeof rule, "@%d:KOLO_FAIL_POINT=%s" ORPHAN, victim, point);
    job_start(job, n, (const char *const[]){rule, NULL}, fn, NULL);
    assert_int_equal(job_finish(job, victim), 0);
    assert_int_equal(waitpid(job->pids[victim], NULL, 0), job->pids[victim]);
    assert_int_equal(end_orphans(), 1); /* it was there to the end */
}

/* ---- losses ---- */

static void split_reversed(proc_t *p)
{
    kolo_comm_t child = NULL;
    note(p, kolo_comm_split(p->r.comm, 0, -p->r.rank, &child, NULL));
    EXPECT(!child);
    leave(p, 3);
}

static void a_split_ends_when_the_parent_knows_of_a_death(void **state)
{
    job_t job;
    (void)state;
    run_with_orphan(&job, 4, 1, "comm.setup.wires:2", split_reversed); /* the first passage is that of init */
    char process[48];
    snprintf(process, sizeof process, "process %d)", (int)job.pids[1]);
    for (int r = 0; r < 4; r++) /* rank 1 would have been rank 2 of the child */
        if (r != 1) check_told(&job, r, KOLO_ERR_REMOTE, (const char *const[]){"rank 2", "lost", NULL});
    int named = 0;
    for (int r = 0; r < 4; r++)
        if (r != 1 && strstr(job.shared->found[r].text, "it is rank 1 of comm (host") &&
            strstr(job.shared->found[r].text, process))
            named++;
    assert_true(named > 0); /* whoever heard of it by the parent first says who that was there */
}

/* All but the last make a child. Rank 0 fails and leaves; what rank 1 sees is that it is not there, and what those
 * behind it see is that rank 1 says so. */
static void split_without_the_last(proc_t *p)
{
    kolo_comm_t child = NULL;
    note(p, kolo_comm_split(p->r.comm, p->r.rank == p->r.nranks - 1, p->r.rank, &child, NULL));
    EXPECT(!child);
    leave(p, 3);
}

static void lose_the_last(int n)
{
    job_t job;
    char process[48], dies[64], early[64], who[32];
    int last = n - 1, told = n - 2; /* told: the last member */
    snprintf(dies, sizeof dies, "@%d:KOLO_FAIL_POINT=comm.split.open:1:kill", last);
    snprintf(early, sizeof early, "was in comm_split when rank %d was lost", last);
    for (int tries = 0; tries < 20; tries++) {
        job_start(&job, n, (const char *const[]){"@0:KOLO_FAIL_POINT=comm.setup.card:2:error", dies, NULL},
                  split_without_the_last, NULL);
        assert_int_equal(job_finish(&job, last), 0);
        assert_int_equal(waitpid(job.pids[last], NULL, 0), job.pids[last]);
        /* Unless it was not through with the colors yet, and saw the death there. */
        if (!strstr(job.shared->found[told].text, early)) break;
    }
    snprintf(process, sizeof process, "process %d)", (int)job.pids[last]);
    snprintf(who, sizeof who, "rank %d of comm (host", last);
    check_told(&job, told, KOLO_ERR_REMOTE,
               (const char *const[]){who, process, "was lost: ", "was being made: ", "rank 0", NULL});
}

static void a_split_names_the_rank_whose_loss_made_a_member_leave(void **state)
{
    (void)state;
    lose_the_last(3);
    lose_the_last(5);
}

/* Ranks 0 and 1 have a child, which knows nothing of rank 2. Rank 0 sees the parent fail, by asking for its state,
 * and aborts both; rank 1 waits for rank 0 in the child. */
static void abort_for_a_loss_elsewhere(proc_t *p)
{
    kolo_comm_t child = NULL;
    kolo_status_t state = KOLO_OK;
    EXPECT_OK(kolo_comm_split(p->r.comm, p->r.rank == 2 ? KOLO_SPLIT_NOCOLOR : 0, p->r.rank, &child, NULL));
    if (child) EXPECT(works(child));
    proc_meet(p, 1);
    if (p->r.rank == 2) raise(SIGKILL);
    if (p->r.rank == 1) note(p, kolo_barrier(child, NULL));
    if (p->r.rank == 0)
        while (state == KOLO_OK && kolo_comm_get_async_error(p->r.comm, &state) == KOLO_OK) nap_ms(1);
    EXPECT_OK(kolo_comm_abort(child));
    /* an abort that was asked for is no error */
    EXPECT(p->r.rank != 0 || kolo_get_last_error(NULL)[0] == '\0');
    leave(p, 3);
}

static void an_abort_names_the_loss_that_it_follows_from(void **state)
{
    job_t job;
    char process[48];
    (void)state;
    job_start(&job, 3, NULL, abort_for_a_loss_elsewhere, NULL);
    assert_int_equal(job_finish(&job, 2), 0);
    assert_int_equal(waitpid(job.pids[2], NULL, 0), job.pids[2]);
    snprintf(process, sizeof process, "process %d) was lost", (int)job.pids[2]);
    check_told(
        &job, 1, KOLO_ERR_REMOTE,
        (const char *const[]){"rank 0", "its program aborted the communicator; ", "rank 2 (host", process, NULL});
}

static void shrink_without_the_last(proc_t *p)
{
    const int last[] = {p->r.nranks - 1};
    kolo_comm_t rest = NULL;
    int n = 0;
    proc_meet(p, 1); /* one that dies in the shrink must not do so while another is still in init */
    if (p->r.rank != last[0]) {
        note(p, kolo_comm_shrink(p->r.comm, last, 1, KOLO_SHRINK_DEFAULT, &rest, NULL));
        EXPECT_OK(p->shared->found[p->r.rank].status);
        EXPECT_OK(kolo_comm_count(rest, &n));
        EXPECT(n == p->r.nranks - 2 && works(rest));
        end_comm(&rest);
    }
    leave(p, 3);
}

static void a_shrink_begins_again_when_the_parent_knows_of_a_death(void **state)
{
    job_t job;
    (void)state;
    run_with_orphan(&job, 5, 2, "comm.setup.card:2", shrink_without_the_last);
}

static void *join_as_new(void *arg)
{
    proc_t *p = arg;
    kolo_comm_t grown = NULL;
    finding_t *f = &p->shared->found[p->r.nranks];
    f->status = kolo_comm_grow(NULL, p->r.nranks + 1, &p->shared->id, p->r.nranks, &grown, NULL);
    snprintf(f->text, sizeof f->text, "%s", kolo_get_last_error(NULL));
    return NULL;
}

static void grow(proc_t *p, bool new_comes)
{
    kolo_comm_t grown = NULL;
    pthread_t thread;
    bool gateway = p->r.rank == 0;
    if (gateway) EXPECT_OK(kolo_comm_get_grow_id(p->r.comm, &p->shared->id));
    if (gateway && new_comes) EXPECT(pthread_create(&thread, NULL, join_as_new, p) == 0);
    note(p, kolo_comm_grow(p->r.comm, p->r.nranks + 1, gateway ? &p->shared->id : NULL, -1, &grown, NULL));
    if (gateway && new_comes) pthread_join(thread, NULL);
}

static void grow_by_one(proc_t *p)
{
    grow(p, true);
    leave(p, 3);
}

static void grow_in_vain(proc_t *p)
{
    grow(p, false);
    leave(p, 3);
}

static void a_grow_ends_when_the_parent_knows_of_a_death(void **state)
{
    static const char *const words[] = {"rank 1", "lost", "process", NULL};
    job_t job;
    (void)state;
    run_with_orphan(&job, 3, 1, "comm.grow.key:1", grow_by_one);
    for (int r = 0; r < 4; r++) /* 3 is the new one, which hears of it by the gateway */
        if (r != 1) check_told(&job, r, KOLO_ERR_REMOTE, words);
    run_with_orphan(&job, 3, 1, "comm.grow.key:1", grow_in_vain);
    check_told(&job, 0, KOLO_ERR_REMOTE, words); /* it was waiting for the new one */
    check_told(&job, 2, KOLO_ERR_REMOTE, words);
}

/* Both old ranks bring an id. */
static void grow_by_two_ids(proc_t *p)
{
    kolo_comm_t grown = NULL;
    kolo_unique_id_t id;
    pthread_t thread;
    EXPECT_OK(kolo_comm_get_grow_id(p->r.comm, &id));
    if (p->r.rank == 0) {
        p->shared->id = id;
        EXPECT(pthread_create(&thread, NULL, join_as_new, p) == 0);
    }
    note(p, kolo_comm_grow(p->r.comm, p->r.nranks + 1, &id, -1, &grown, NULL));
    if (p->r.rank == 0) pthread_join(thread, NULL);
    leave(p, 2);
}

static void a_new_rank_hears_of_a_grow_that_ends_before_its_door_opens(void **state)
{
    static const char *const words[] = {"2 old ranks have passed an id", NULL};
    job_t job;
    (void)state;
    job_start(&job, 2, NULL, grow_by_two_ids, NULL);
    assert_int_equal(job_finish(&job, -1), 0); /* the time limit of init is longer than that of the job */
    check_told(&job, 0, KOLO_ERR_INVALID_ARGUMENT, words);
    check_told(&job, 1, KOLO_ERR_INVALID_ARGUMENT, words);
    check_told(&job, 2, KOLO_ERR_INVALID_ARGUMENT, words);
}

/* ---- revoke ---- */

/* Rank 2 sleeps in the middle of it; rank 0 revokes when the others wait for that one. */
static void revoke_from(proc_t *p, kolo_status_t (*begin)(proc_t *, kolo_comm_t *, const kolo_config_t *))
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t child = NULL;
    config.blocking = p->r.rank != 0;
    kolo_status_t status = begin(p, &child, &config);
    if (p->r.rank == 0) {
        nap_ms(500); /* for the others to be there; if they are not, they are told earlier */
        EXPECT_OK(kolo_comm_revoke(p->r.comm));
        status = settled(child, status);
        note(p, status);
        snprintf(p->shared->found[0].text, sizeof p->shared->found[0].text, "%s", kolo_get_last_error(child));
    } else {
        note(p, status);
    }
    if (status == KOLO_OK) {
        EXPECT(works(child));
        EXPECT_OK(kolo_comm_destroy(child));
    } else if (child) {
        EXPECT_OK(kolo_comm_destroy(child));
    }
    leave(p, 2);
}

static kolo_status_t begin_split(proc_t *p, kolo_comm_t *child, const kolo_config_t *config)
{
    return kolo_comm_split(p->r.comm, 0, 0, child, config);
}

static void revoke_split(proc_t *p)
{
    revoke_from(p, begin_split);
}

static kolo_status_t begin_shrink(proc_t *p, kolo_comm_t *child, const kolo_config_t *config)
{
    return kolo_comm_shrink(p->r.comm, NULL, 0, KOLO_SHRINK_DEFAULT, child, config);
}

static void revoke_shrink(proc_t *p)
{
    revoke_from(p, begin_shrink);
}

/* The gateway waits for a new rank that never comes. */
static kolo_status_t begin_grow(proc_t *p, kolo_comm_t *child, const kolo_config_t *config)
{
    if (p->r.rank == 3) EXPECT_OK(kolo_comm_get_grow_id(p->r.comm, &p->shared->id));
    return kolo_comm_grow(p->r.comm, p->r.nranks + 1, p->r.rank == 3 ? &p->shared->id : NULL, -1, child, config);
}

static void revoke_grow(proc_t *p)
{
    revoke_from(p, begin_grow);
}

static void a_revoke_of_the_parent_ends_a_split(void **state)
{
    static const char *const words[] = {"rank 0 revoked the communicator that it is made from", NULL};
    job_t job;
    (void)state;
    job_start(&job, 4, (const char *const[]){"@2:KOLO_FAIL_POINT=comm.split.open:1" SLOW_TEXT, NULL}, revoke_split,
              NULL);
    assert_int_equal(job_finish(&job, -1), 0);
    const finding_t *f = job.shared->found;
    for (int r = 0; r < 4; r++) check_told(&job, r, KOLO_ERR_REVOKED, words);
    for (int r = 0; r < 4; r++) assert_true(r == 2 || IN_TIME(f[r].at_ms < f[2].at_ms));
}

static void a_revoke_of_the_parent_ends_a_grow(void **state)
{
    static const char *const words[] = {"revoked", NULL};
    job_t job;
    (void)state;
    job_start(&job, 4, NULL, revoke_grow, NULL);
    assert_int_equal(job_finish(&job, -1), 0); /* the time limit of init is longer than that of the job */
    for (int r = 0; r < 4; r++) check_told(&job, r, KOLO_ERR_REVOKED, words);
}

static void a_revoke_of_the_parent_does_not_end_a_shrink(void **state)
{
    job_t job;
    (void)state;
    job_start(&job, 4, (const char *const[]){"@2:KOLO_FAIL_POINT=comm.setup.card:2" SLOW_TEXT, NULL}, revoke_shrink,
              NULL);
    assert_int_equal(job_finish(&job, -1), 0);
    for (int r = 0; r < 4; r++) check_told(&job, r, KOLO_OK, (const char *const[]){NULL});
}

int main(void)
{
    limit_s(220);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_ends_when_the_parent_knows_of_a_death),
        cmocka_unit_test(a_split_names_the_rank_whose_loss_made_a_member_leave),
        cmocka_unit_test(an_abort_names_the_loss_that_it_follows_from),
        cmocka_unit_test(a_shrink_begins_again_when_the_parent_knows_of_a_death),
        cmocka_unit_test(a_grow_ends_when_the_parent_knows_of_a_death),
        cmocka_unit_test(a_new_rank_hears_of_a_grow_that_ends_before_its_door_opens),
        cmocka_unit_test(a_revoke_of_the_parent_ends_a_split),
        cmocka_unit_test(a_revoke_of_the_parent_ends_a_grow),
        cmocka_unit_test(a_revoke_of_the_parent_does_not_end_a_shrink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
