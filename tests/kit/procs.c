/* SPDX-License-Identifier: Apache-2.0
 *
 * See procs.h.
 */
#include "kit/procs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

const kit_wire_t kit_wires[ALL_WIRES] = {
    {"single copy", {NULL}},
    {"shared memory", {"KOLO_CMA_DISABLE=1", NULL}},
    {"tcp", {"KOLO_CMA_DISABLE=1", "KOLO_SHM_DISABLE=1", NULL}},
    {"two hosts", {"HOSTS=2", NULL}},
};

#define LIMIT_S 60

static void work(proc_t *p, const char *const *env, void (*fn)(proc_t *))
{
    rank_t *r = &p->r;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    limit_s(LIMIT_S);
    for (; env && *env; env++) {
        char host[16];
        int only = -1, at = 0;
        if (sscanf(*env, "@%d:%n", &only, &at) == 1) {
            if (only == r->rank && putenv((char *)(uintptr_t)*env + at)) abort();
            continue;
        }
        snprintf(host, sizeof host, "host%d",
                 strncmp(*env, "HOSTS=", 6) ? 0 : r->rank * atoi(*env + 6) / r->nranks);
        if (!strncmp(*env, "HOSTS=", 6) ? setenv("KOLO_HOST_ID", host, 1) : putenv((char *)(uintptr_t)*env))
            abort();
    }
    if (r->rank == 0) {
        EXPECT_OK(kolo_get_unique_id(&p->shared->id));
        atomic_store(&p->shared->id_there, 1);
    } else if (!await_count(&p->shared->id_there, 1)) {
        abort();
    }
    if (!EXPECT_OK(kolo_comm_init_rank(&r->comm, r->nranks, p->shared->id, r->rank, NULL))) return;
    fn(p);
    end_comm(&r->comm);
}

void job_start(job_t *job, int n, const char *const *env, void (*fn)(proc_t *), void *arg)
{
    job->n = n;
    job->shared = mmap(NULL, sizeof *job->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job->shared == MAP_FAILED) abort();
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        job->pids[i] = fork();
        if (job->pids[i] < 0) abort();
        if (job->pids[i] > 0) continue;
        proc_t p = {{i, n, NULL, arg}, job->shared};
        work(&p, env, fn);
        exit(expect_failures() ? 1 : 0);
    }
}

int job_finish(job_t *job, int killed)
{
    int bad = 0, status;
    for (int i = 0; i < job->n; i++) {
        if (i == killed) continue;
        if (waitpid(job->pids[i], &status, 0) == job->pids[i] && status == 0) continue;
        fprintf(stderr, "the process of rank %d failed (status 0x%x)\n", i, (unsigned)status);
        bad++;
    }
    return bad;
}

void job_await(job_t *job, int point, int n)
{
    if (!await_count(&job->shared->arrived[point], n)) abort();
}

void proc_meet(proc_t *p, int point)
{
    atomic_fetch_add(&p->shared->arrived[point], 1);
    if (!await_count(&p->shared->arrived[point], p->r.nranks)) abort();
}
