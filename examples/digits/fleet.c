/* SPDX-License-Identifier: Apache-2.0
 *
 * The worker processes: starting them, noticing their end. Each has a socket to here and dies with this process,
 * however that ends.
 */
#include "job.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the child, between fork and exec. */
static void become_worker(const job_t *job, int index, pid_t parent, int fd)
{
    char number[16], epochs[16], seed[32];
    sigset_t none;
    snprintf(number, sizeof number, "%d", index);
    snprintf(epochs, sizeof epochs, "%d", job->options->epochs);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)job->options->seed);
    char *argv[] = {(char *)"digits",
                    (char *)"--worker",
                    number,
                    (char *)"--epochs",
                    epochs,
                    (char *)"--seed",
                    seed,
                    (char *)"--data",
                    (char *)job->options->data,
                    NULL,
                    NULL,
                    NULL,
                    NULL};
    int n = 9;
    if (job->options->gpu) argv[n++] = (char *)"--gpu";
    if (job->disturbed && job->options->timeline) {
        argv[n++] = (char *)"--timeline";
        argv[n] = (char *)job->options->timeline;
    }
    for (int i = 0; i < job->options->settings; i++)
        if (job->disturbed && job->options->setting[i].worker == index) putenv(job->options->setting[i].text);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* it ended before it could be noticed */
    if (fd == WORKER_FD ? fcntl(fd, F_SETFD, 0) : dup2(fd, WORKER_FD) < 0) _exit(1);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0); /* Ctrl-C is for the monitor */
    execv("/proc/self/exe", argv);
    _exit(127);
}

bool fleet_start(job_t *job)
{
    int fds[2];
    if (job->started == MOST_PROCESSES) {
        job_fail(job, "%d workers have been started and still some are missing", job->started);
        return false;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds)) {
        job_fail(job, "no socket for a worker: %s", strerror(errno));
        return false;
    }
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) become_worker(job, job->started, parent, fds[1]);
    close(fds[1]);
    if (pid < 0) {
        job_fail(job, "no process for a worker: %s", strerror(errno));
        close(fds[0]);
        return false;
    }
    job->process[job->started++] = (process_t){.pid = pid, .fd = fds[0]};
    return true;
}

static void note_end(job_t *job, int index, int status)
{
    process_t *p = &job->process[index];
    p->pid = 0;
    close(p->fd);
    p->fd = -1;
    if (p->killed && WIFSIGNALED(status)) return;
    if (p->done && WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    if (WIFSIGNALED(status))
        job_say(job, "worker %d has ended by signal %d", index, WTERMSIG(status));
    else
        job_say(job, "worker %d has ended with status %d", index, WEXITSTATUS(status));
    if (index >= job->options->workers && !p->joined)
        return; /* a newcomer that did not get in: another one follows */
    if (job->disturbed && fleet_all_in(job) && WIFSIGNALED(status)) return;
    job_fail(job, "worker %d ended before its work was done", index);
}

void fleet_reap(job_t *job)
{
    int status;
    for (int i = 0; i < job->started; i++) {
        process_t *p = &job->process[i];
        if (p->pid && p->heard_all && waitpid(p->pid, &status, WNOHANG) == p->pid) note_end(job, i, status);
    }
}

/* Whoever is still there. */
void fleet_end(job_t *job)
{
    for (int i = 0; i < job->started; i++) {
        process_t *p = &job->process[i];
        if (!p->pid) continue;
        kill(p->pid, SIGKILL);
        waitpid(p->pid, NULL, 0);
        close(p->fd);
        p->pid = 0;
        p->fd = -1;
    }
}

bool fleet_all_in(const job_t *job)
{
    for (int i = 0; i < job->options->workers; i++)
        if (!job->process[i].in) return false;
    return true;
}

bool fleet_lacks_one(const job_t *job)
{
    int there = 0;
    for (int i = 0; i < job->started; i++) there += job->process[i].pid != 0;
    const process_t *newest = &job->process[job->started - 1];
    return there < job->options->workers && (newest->joined || !newest->pid);
}

bool fleet_works(const job_t *job)
{
    for (int i = 0; i < job->started; i++)
        if (job->process[i].pid && (job->process[i].joined || !job->tested)) return true;
    return false;
}
