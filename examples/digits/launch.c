/* SPDX-License-Identifier: Apache-2.0
 *
 * kolorun for one run: on a command line this is
 *
 *     kolorun --min 1 -H localhost:4 --back-off 0.5:0.5 digits --worker --epochs 60 ...
 *
 * It starts the workers, keeps their number, and dies with this process, however that ends; so do the workers.
 */
#include "job.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRACE_S "1"
#ifdef KOLO_SANITIZED
#define CHANGE_MS "60000"
#else
#define CHANGE_MS "20000" /* of ranks, whatever happens */
#endif

/* In the child, between fork and exec. */
static _Noreturn void become_kolorun(const job_t *job, pid_t parent, int fd)
{
    const options_t *o = job->options;
    char self[4096] = "", workers[16], epochs[16], seed[32], hosts[32], back_off[64];
    char *argv[32 + 2 * MOST_FAULTS];
    int n = 0;
    sigset_t none;
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    snprintf(workers, sizeof workers, "%d", o->workers);
    snprintf(epochs, sizeof epochs, "%d", o->epochs);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)o->seed);
    snprintf(hosts, sizeof hosts, "localhost:%d", o->workers);
    snprintf(back_off, sizeof back_off, "%.3f:%.3f", job->back_off_s, job->back_off_s);
    const char *const begin[] = {DIGITS_KOLORUN,
                                 "--min",
                                 "1",
                                 "-H",
                                 hosts,
                                 "--back-off",
                                 back_off,
                                 "--grace",
                                 GRACE_S,
                                 "-x",
                                 "KOLO_STATE_CHANGE_MS=" CHANGE_MS,
                                 self,
                                 "--worker",
                                 "--workers",
                                 workers,
                                 "--epochs",
                                 epochs,
                                 "--seed",
                                 seed,
                                 "--data",
                                 o->data};
    for (size_t i = 0; i < sizeof begin / sizeof *begin; i++) argv[n++] = (char *)(uintptr_t)begin[i];
    if (o->gpu) argv[n++] = (char *)(uintptr_t) "--gpu";
    if (job->disturbed && o->timeline) {
        argv[n++] = (char *)(uintptr_t) "--timeline";
        argv[n++] = (char *)(uintptr_t)o->timeline;
    }
    for (int i = 0; i < o->settings && job->disturbed; i++) {
        argv[n++] = (char *)(uintptr_t) "--env";
        argv[n++] = o->setting[i].text;
    }
    argv[n] = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (bytes <= 0 || getppid() != parent || dup2(fd, 1) < 0 || dup2(fd, 2) < 0) _exit(1);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0); /* Ctrl-C is for the monitor */
    execv(argv[0], argv);
    dprintf(2, "%s cannot be started: %s\n", argv[0], strerror(errno));
    _exit(127);
}

bool launch_start(job_t *job)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC)) {
        job_fail(job, "no pipe for kolorun: %s", strerror(errno));
        return false;
    }
    pid_t parent = getpid();
    fflush(NULL);
    job->kolorun = fork();
    if (job->kolorun == 0) become_kolorun(job, parent, fds[1]);
    close(fds[1]);
    job->words = fds[0];
    fcntl(job->words, F_SETFL, O_NONBLOCK);
    if (job->kolorun > 0) return true;
    job->kolorun = 0;
    job_fail(job, "no process for kolorun: %s", strerror(errno));
    return false;
}

void launch_read(job_t *job)
{
    ssize_t n;
    while (!job->failed && (n = read(job->words, job->text + job->used, sizeof job->text - 1 - job->used)) != 0) {
        if (n < 0) return; /* nothing more now */
        job->used += (size_t)n;
        char *begin = job->text, *end;
        job->text[job->used] = '\0';
        while ((end = strchr(begin, '\n')) != NULL) {
            *end = '\0';
            job_hear(job, begin);
            begin = end + 1;
        }
        job->used -= (size_t)(begin - job->text);
        memmove(job->text, begin, job->used);
        if (job->used == sizeof job->text - 1) job->used = 0; /* no line of ours */
    }
    close(job->words);
    job->words = -1;
}

void launch_end(job_t *job)
{
    int status = 0;
    if (job->words >= 0) {
        close(job->words);
        if (job->kolorun > 0) kill(job->kolorun, SIGTERM);
    }
    job->words = -1;
    if (job->kolorun > 0) waitpid(job->kolorun, &status, 0);
    job->kolorun = 0;
    job->status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    for (int i = 0; i < MOST_PROCESSES; i++)
        if (job->process[i].pidfd >= 0) close(job->process[i].pidfd);
}
