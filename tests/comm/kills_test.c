/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes that are killed while large copies run, some of them with so much memory that their end takes a while:
 * all survivors get the loss of that rank, and hear of it before the system has taken the process apart.
 *
 *     comm_kills_test [RUNS [SEED]]     by default a few runs; `make kills RUNS=500`
 */
#include "kit/procs.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ATTEMPTS    5
#define MOST_FLOATS (8u << 20)
#define MB          ((size_t)1 << 20)

typedef struct {
    int ranks, victim, after_us;
    size_t count, ballast_mb;
    unsigned what; /* which operation; 4: in turn */
    const char *env[4];
} plan_t;

static const char *const wires[][4] = {
    {NULL},
    {"KOLO_CMA_DISABLE=1", NULL},
    {"KOLO_CMA_DISABLE=1", "KOLO_SHM_DISABLE=1", NULL},
};

/* Small pages: that takes longest to free. */
static void take_ballast(size_t bytes)
{
    char *ballast = mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ballast == MAP_FAILED) abort();
    (void)madvise(ballast, bytes, MADV_NOHUGEPAGE);
    memset(ballast, 1, bytes);
}

static kolo_status_t operate(kolo_comm_t comm, unsigned what, float *src, float *dst, size_t count, int ranks)
{
    switch (what % 4) {
    case 0:
        return kolo_all_reduce(src, dst, count, KOLO_FLOAT32, KOLO_SUM, comm, NULL);
    case 1:
        return kolo_all_gather(src, dst, count / (size_t)ranks, KOLO_FLOAT32, comm, NULL);
    case 2:
        return kolo_all_to_all(src, dst, count / (size_t)ranks, KOLO_FLOAT32, comm, NULL);
    default:
        return kolo_reduce_scatter(src, dst, count / (size_t)ranks, KOLO_FLOAT32, KOLO_MAX, comm, NULL);
    }
}

/* Until one of the others is killed. */
static void work_on(proc_t *p)
{
    const plan_t *plan = p->r.arg;
    finding_t *f = &p->shared->found[p->r.rank];
    float *src = calloc(plan->count, sizeof *src), *dst = calloc(plan->count, sizeof *dst);
    if (!src || !dst) abort();
    if (p->r.rank == plan->victim) take_ballast(plan->ballast_mb * MB);
    EXPECT(works(p->r.comm));
    proc_meet(p, 0);
    for (unsigned i = 0; f->status == KOLO_OK; i++)
        f->status = operate(p->r.comm, plan->what < 4 ? plan->what : i, src, dst, plan->count, p->r.nranks);
    f->at_ms = now_ms();
    snprintf(f->text, sizeof f->text, "%s", kolo_get_last_error(p->r.comm));
    EXPECT_OK(kolo_comm_destroy(p->r.comm));
    p->r.comm = NULL;
    free(src);
    free(dst);
}

static int kill_and_look(plan_t *plan, uint64_t *ended_ms, uint64_t *told_ms)
{
    job_t job;
    char who[48];
    int wrong = 0;
    job_start(&job, plan->ranks, plan->env, work_on, plan);
    job_await(&job, 0, plan->ranks);
    pid_t pid = job.pids[plan->victim];
    struct pollfd over = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    usleep((useconds_t)plan->after_us); /* the moment is part of the plan */
    kill(pid, SIGKILL);
    poll(&over, 1, -1);
    *ended_ms = now_ms();
    *told_ms = 0;
    close(over.fd);
    wrong += job_finish(&job, plan->victim);
    waitpid(pid, NULL, 0);
    snprintf(who, sizeof who, "rank %d (host ", plan->victim);
    for (int r = 0; r < plan->ranks; r++) {
        const finding_t *f = &job.shared->found[r];
        if (r == plan->victim) continue;
        if (f->at_ms > *told_ms) *told_ms = f->at_ms;
        const char *lost = strstr(f->text, who);
        if (f->status == KOLO_ERR_REMOTE && lost) continue;
        print_message("rank %d of %d, killed %d: status %d: %s\n", r, plan->ranks, plan->victim, (int)f->status,
                      f->text);
        wrong++;
    }
    munmap(job.shared, sizeof *job.shared);
    return wrong;
}

/* The order of events counts, and the machine may be busy: once is enough, and without looking it is never. */
static void a_large_victim_is_noticed_before_it_has_ended(void **state)
{
    (void)state;
    for (size_t w = 0; w < sizeof wires / sizeof wires[0]; w++) {
        plan_t plan = {.ranks = 3, .victim = 1, .after_us = 20000, .count = 1000, .ballast_mb = 1200, .what = 0};
        int early = 0;
        memcpy(plan.env, wires[w], sizeof plan.env);
        for (int i = 0; i < ATTEMPTS && !early; i++) {
            uint64_t ended, told;
            assert_int_equal(kill_and_look(&plan, &ended, &told), 0);
            print_message("the last survivor knew %lld ms before the process had ended\n",
                          (long long)(ended - told));
            early += told < ended;
        }
        assert_int_equal(early, 1);
    }
}

static unsigned long runs = 12, seed = 20261122;

static unsigned draw(uint64_t *s, unsigned below)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull; /* Knuth, MMIX */
    return (unsigned)((*s >> 33) % below);
}

static void kills_while_large_copies_run_are_losses(void **state)
{
    int wrong = 0;
    (void)state;
    for (unsigned long i = 0; i < runs; i++) {
        uint64_t s = seed + i, ended, told;
        plan_t plan = {.ranks = 2 + (int)draw(&s, 4)};
        plan.victim = (int)draw(&s, (unsigned)plan.ranks);
        plan.after_us = (int)draw(&s, 60000);
        plan.count = (size_t)1 << (14 + draw(&s, 10));
        plan.ballast_mb = draw(&s, 2) ? draw(&s, 500) : 0;
        plan.what = draw(&s, 5);
        if (plan.count > MOST_FLOATS) plan.count = MOST_FLOATS;
        memcpy(plan.env, wires[draw(&s, 6) == 5 ? 1 + draw(&s, 2) : 0], sizeof plan.env);
        if (kill_and_look(&plan, &ended, &told) == 0) continue;
        print_message("this was seed %lu\n", seed + i);
        wrong++;
    }
    print_message("%lu kills, %d went wrong\n", runs, wrong);
    assert_int_equal(wrong, 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) runs = strtoul(argv[1], NULL, 0);
    if (argc > 2) seed = strtoul(argv[2], NULL, 0);
    limit_s(200 + 5 * (unsigned)runs);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_victim_is_noticed_before_it_has_ended),
        cmocka_unit_test(kills_while_large_copies_run_are_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
