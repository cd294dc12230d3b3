/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done to the workers on purpose: kill -9, and stopping one for a while, which nobody may take for its
 * death.
 */
#include "job.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STOPPED_MS 2000

bool faults_take(options_t *o, bool stop, const char *text)
{
    char *end;
    fault_t f = {.stop = stop, .at = FAULT_HALF_WAY};
    if (o->faults == MOST_FAULTS || *text < '0' || *text > '9') return false;
    errno = 0;
    unsigned long worker = strtoul(text, &end, 10);
    if (*end == '@' && end[1] >= '0' && end[1] <= '9') f.at = strtoull(end + 1, &end, 10);
    if (errno || *end || worker >= MOST_PROCESSES) return false;
    f.worker = (int)worker;
    o->fault[o->faults++] = f;
    return true;
}

bool faults_take_setting(options_t *o, char *text)
{
    char *end;
    if (o->settings == MOST_FAULTS || *text < '0' || *text > '9') return false;
    errno = 0;
    unsigned long worker = strtoul(text, &end, 10);
    if (errno || *end != ':' || end[1] == '=' || !strchr(end, '=') || worker >= MOST_PROCESSES) return false;
    o->setting[o->settings++] = (setting_t){(int)worker, text, end + 1};
    return true;
}

void faults_begin(job_t *job)
{
    job->faults = job->options->faults;
    for (int i = 0; i < job->faults; i++) {
        job->fault[i] = job->options->fault[i];
        if (job->fault[i].at == FAULT_HALF_WAY) job->fault[i].at = job->steps / 2;
    }
}

/* A process that has ended meanwhile is not mistaken for another. */
static bool send_signal(const process_t *p, int sig)
{
    return p->pidfd >= 0 && syscall(SYS_pidfd_send_signal, p->pidfd, sig, NULL, 0) == 0;
}

static void strike(job_t *job, fault_t *f)
{
    const process_t *victim = &job->process[f->worker];
    const char *what = f->stop ? "kill -STOP" : "kill -9";
    f->done = true;
    if (!send_signal(victim, f->stop ? SIGSTOP : SIGKILL)) {
        job_say(job, "worker %d has ended before its %s", f->worker, what);
        return;
    }
    if (f->stop) f->over_ns = now_ns() + STOPPED_MS * UINT64_C(1000000);
    job_mark(job, "%s worker %d", what, f->worker);
    job_say(job, "%s worker %d (process %d) after step %" PRIu64 " of %" PRIu64, what, f->worker, (int)victim->pid,
            job->known, job->steps);
}

void faults_do(job_t *job)
{
    for (int i = 0; i < job->faults; i++) {
        fault_t *f = &job->fault[i];
        /* Whoever is not in yet may hold the others up when it goes. */
        if (!f->done && job->ranks_now > 0 && job->known >= f->at && job->process[f->worker].in) strike(job, f);
        if (!f->over_ns || now_ns() < f->over_ns) continue;
        f->over_ns = 0;
        if (send_signal(&job->process[f->worker], SIGCONT)) job_say(job, "worker %d goes on", f->worker);
    }
}

int faults_wait_ms(const job_t *job)
{
    int least = -1;
    for (int i = 0; i < job->faults; i++) {
        if (!job->fault[i].over_ns) continue;
        uint64_t now = now_ns(), over = job->fault[i].over_ns;
        int ms = over > now ? (int)((over - now) / 1000000) + 1 : 0;
        if (least < 0 || ms < least) least = ms;
    }
    return least;
}
