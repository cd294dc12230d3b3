/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo_comm_destroy() waits for no peer: not for one that is stopped, with messages on the way to it, on any wire.
 * kolo_comm_finalize() waits for all, and says for whom.
 */
#include "kit/procs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS   4
#define STOPPED 3
#define LARGE   (1u << 18)
#define SMALL   64

enum { READY, IS_STOPPED, DESTROYED };

/* Each with each, small and large, so that all connections there can be are up. */
static void meet_all(const rank_t *r)
{
    int32_t *data = calloc(LARGE, sizeof *data);
    char mine[SMALL] = {0}, theirs[SMALL];
    if (!data) abort();
    EXPECT_OK(kolo_all_reduce(data, data, LARGE, KOLO_INT32, KOLO_SUM, r->comm, NULL));
    EXPECT_OK(kolo_all_reduce(data, data, 2, KOLO_INT32, KOLO_SUM, r->comm, NULL));
    for (int peer = 0; peer < r->nranks; peer++) {
        if (peer == r->rank) continue;
        EXPECT_OK(kolo_group_start());
        EXPECT_OK(kolo_send(mine, SMALL, KOLO_UINT8, peer, r->comm, NULL));
        EXPECT_OK(kolo_recv(theirs, SMALL, KOLO_UINT8, peer, r->comm, NULL));
        EXPECT_OK(kolo_group_end());
    }
    free(data);
}

static void leave_a_stopped_peer(proc_t *p)
{
    rank_t *r = &p->r;
    char bytes[SMALL] = {1};
    meet_all(r);
    proc_meet(p, READY);
    if (r->rank == STOPPED) { /* and stopped it is before it comes to anything */
        if (!await_count(&p->shared->arrived[DESTROYED], RANKS - 1)) abort();
        EXPECT_OK(kolo_comm_destroy(r->comm));
        r->comm = NULL;
        return;
    }
    if (!await_count(&p->shared->arrived[IS_STOPPED], 1)) abort();
    EXPECT_OK(kolo_send(bytes, SMALL, KOLO_UINT8, STOPPED, r->comm, NULL)); /* lies in a queue or a socket */
    uint64_t start = now_ms();
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    p->shared->found[r->rank].at_ms = now_ms() - start;
    atomic_fetch_add(&p->shared->arrived[DESTROYED], 1);
}

static void await_stop(pid_t pid)
{
    int status;
    if (kill(pid, SIGSTOP) != 0 || waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status)) abort();
}

static void leave_on(const char *const *env)
{
    job_t job;
    job_start(&job, RANKS, env, leave_a_stopped_peer, NULL);
    job_await(&job, READY, RANKS);
    await_stop(job.pids[STOPPED]);
    atomic_fetch_add(&job.shared->arrived[IS_STOPPED], 1);
    job_await(&job, DESTROYED, RANKS - 1); /* else they wait for the one that is stopped */
    kill(job.pids[STOPPED], SIGCONT);
    assert_int_equal(job_finish(&job, -1), 0);
    for (int i = 0; i < STOPPED; i++) {
        print_message("rank %d: %llu ms\n", i, (unsigned long long)job.shared->found[i].at_ms);
        assert_true(IN_TIME(job.shared->found[i].at_ms < 1000));
    }
}

static void destroy_waits_for_no_stopped_peer(void **state)
{
    static const char *const wires[][5] = {
        {NULL},
        {"KOLO_CMA_DISABLE=1", NULL},
        {"KOLO_CMA_DISABLE=1", "KOLO_SHM_DISABLE=1", NULL},
        {"KOLO_CMA_DISABLE=1", "KOLO_SHM_DISABLE=1", "KOLO_TCP_SECURITY=mac", NULL},
        {"HOSTS=2", NULL},
    };
    (void)state;
    for (size_t w = 0; w < sizeof wires / sizeof wires[0]; w++) leave_on(wires[w]);
}

/* Returns whether a log has a warning of a rank that waits for rank 3. */
static bool has_warned(const char *path)
{
    char line[2048];
    bool found = false;
    FILE *f = fopen(path, "r");
    while (f && !found && fgets(line, sizeof line, f))
        found = strstr(line, "still waiting") && strstr(line, "rank 3 to come to the same call");
    if (f) fclose(f);
    return found;
}

static void finalize_before_the_last(proc_t *p)
{
    rank_t *r = &p->r;
    EXPECT(works(r->comm));
    if (r->rank == STOPPED && !await_count(&p->shared->arrived[READY], 1)) abort();
} /* the kit finalizes */

/* The last rank comes to finalize only when another one has said that it waits for it. */
static void finalize_says_whom_it_waits_for(void **state)
{
    char path[] = "/tmp/kolo-stopped-XXXXXX", log[64];
    const char *const env[] = {"KOLO_STALL_WARN_MS=300", log, NULL};
    int fd = mkstemp(path);
    job_t job;
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    snprintf(log, sizeof log, "KOLO_LOG_FILE=%s", path);
    job_start(&job, RANKS, env, finalize_before_the_last, NULL);
    bool said = false;
    for (uint64_t end = now_ms() + 20000; !said && now_ms() < end; nap_ms(20)) said = has_warned(path);
    atomic_fetch_add(&job.shared->arrived[READY], 1);
    assert_int_equal(job_finish(&job, -1), 0);
    unlink(path);
    assert_true(said);
}

int main(void)
{
    limit_s(200);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(destroy_waits_for_no_stopped_peer),
        cmocka_unit_test(finalize_says_whom_it_waits_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
