/* SPDX-License-Identifier: Apache-2.0
 *
 * The policy of a job with a fixed number of ranks: when one fails, the cause is reported and the rest are ended.
 * The cause is the first that a signal killed of those seen at once, else the first that failed; but while its
 * errors name another rank as lost, and that one fails, too, it is that one.
 */
#include "job.h"

#include <stdio.h>
#include <string.h>

#define TELL_S   0.2 /* after ranks have ended, for others to end as well */
#define SETTLE_S 0.5 /* after a failure on one of several hosts, for word of its cause to come from another */
#define NAMED_S  5.0 /* after a failure whose errors name a rank that runs, for that one to end */

typedef struct {
    job_t job;
    process_t *failed; /* whose failure was seen and not yet told */
    double failed_at;  /* when it was seen */
    double judge_at;   /* when it is told; 0: at once */
    double tell_at;    /* when the others are told who has ended well; 0: they know */
    char also[60];     /* another that was seen with it and ended in another way */
} fixed_t;

/* "; ending the other 3" */
static const char *and_the_rest(int running, char text[48])
{
    text[0] = '\0';
    if (running > 0) snprintf(text, 48, "; ending the other %d", running);
    return text;
}

static bool has_ended_well(const process_t *p)
{
    return p->ended && p->pid != 0 && p->sig == 0 && p->status == 0;
}

static void report(job_t *job, const process_t *p)
{
    const fixed_t *f = (const fixed_t *)job;
    char rest[48], where[KOLORUN_HOST_NAME_MAX + 8] = "";
    if (!kolorun_host_is_here(p->host->name)) snprintf(where, sizeof where, " on %s", p->host->name);
    if (p->pid == 0) /* not started */
        job_end(job, p->status, "rank %d%s %s", p->id, where, p->how);
    else
        job_end(job, p->status, "rank %d (pid %d%s) %s%s%s", p->id, p->pid, where, p->how, f->also,
                and_the_rest(job->running, rest));
}

/* Lists the ranks that have ended well, for those that wait for them to connect (src/meet/ended.c). */
static void tell_ended(job_t *job)
{
    char text[KOLORUN_FILE_MAX - KOLORUN_FILE_NAME_MAX];
    size_t at = 0;
    for (int i = 0, to; i < job->nprocesses && at < sizeof text - 32; i = to + 1) {
        to = i;
        if (!has_ended_well(job->processes[i])) continue;
        while (to + 1 < job->nprocesses && has_ended_well(job->processes[to + 1])) to++;
        at +=
            (size_t)snprintf(text + at, sizeof text - at, "%d-%d\n", job->processes[i]->id, job->processes[to]->id);
    }
    for (int i = 0; i < job->nhosts; i++)
        if (!job->hosts[i]->lost) kolorun_host_put_file(job->hosts[i]->agent, "id.ended", text, at);
}

static void turn(job_t *job)
{
    fixed_t *f = (fixed_t *)job;
    const process_t *p = f->failed, *cause;
    double settle_s = 0;
    bool may_come;
    if (f->tell_at != 0 && kolorun_now() >= f->tell_at && !job->ending) {
        f->tell_at = 0;
        tell_ended(job);
    }
    if (p == NULL || job->ending) return;
    if (job->nhosts > 1 && job->running > 0 && p->sig == 0 && p->pid != 0) settle_s = SETTLE_S;
    cause = job_cause_of(job, p, &may_come);
    if (may_come) settle_s = NAMED_S;
    f->judge_at = f->failed_at + settle_s;
    if (settle_s > 0 && kolorun_now() < f->judge_at) return;
    f->judge_at = 0;
    if (cause != p) f->also[0] = '\0';
    report(job, cause);
}

static double next_s(const job_t *job)
{
    const fixed_t *f = (const fixed_t *)job;
    if (job->ending) return 0;
    return f->tell_at != 0 && (f->judge_at == 0 || f->tell_at < f->judge_at) ? f->tell_at : f->judge_at;
}

/* Of several failures seen at once the one by signal is the cause: the others are more likely to be ranks that
 * missed it. */
static void ended(job_t *job, process_t *p)
{
    fixed_t *f = (fixed_t *)job;
    if (p->status == 0) {
        if (job->running > 0 && f->tell_at == 0) f->tell_at = kolorun_now() + TELL_S;
        return;
    }
    if (f->failed == NULL) f->failed_at = kolorun_now();
    if (f->failed == NULL || (p->sig != 0 && f->failed->sig == 0)) {
        f->failed = p;
        f->also[0] = '\0';
    } else if (p->pid != 0 && p->sig == 0 && f->failed->sig == 0 && p->status != f->failed->status && !f->also[0]) {
        snprintf(f->also, sizeof f->also, ", rank %d (pid %d) with status %d", p->id, p->pid, p->status);
    }
}

static void lost(job_t *job, job_host_t *host, const char *why)
{
    char names[80], rest[48];
    int there = 0;
    for (int i = 0; i < job->nprocesses; i++) there += job->processes[i]->host == host && !job->processes[i]->ended;
    if (there > 0)
        job_end(job, 1, "host %s is lost with %s: %s%s", host->name, job_names(job, host, names), why,
                and_the_rest(job->running - there, rest));
}

/* The unique id, for the ranks of the other hosts. */
static void file(job_t *job, job_host_t *host, const char *name, const void *data, size_t bytes)
{
    for (int i = 0; i < job->nhosts; i++)
        if (job->hosts[i] != host) kolorun_host_put_file(job->hosts[i]->agent, name, data, bytes);
}

/* Ranks fill the hosts in their order. */
static bool prepare(job_t *job)
{
    const kolorun_options_t *o = job->options;
    for (int host = 0, ranks = 0; ranks < o->nranks; ranks += o->hosts.hosts[host++].slots)
        job_host_named(job, o->hosts.hosts[host].name)->slots = o->hosts.hosts[host].slots;
    return true;
}

static bool begin(job_t *job)
{
    const kolorun_options_t *o = job->options;
    for (int i = 0; i < job->nhosts; i++)
        if (!job_host_open(job->hosts[i])) return false;
    for (int i = 0; i < job->nhosts; i++) {
        job_host_t *host = job->hosts[i];
        const int left = o->nranks - job->started, size = left < host->slots ? left : host->slots;
        for (int slot = 0; slot < size; slot++) {
            process_t *p = job_add(host, slot, sizeof *p);
            if (!job_open_files(p)) return false;
            if (job_start(p, &(kolorun_place_t){p->id, o->nranks, slot, size, 0})) continue;
            kolorun_sink_printf(&job->err, "the arguments and variables of a rank are more than 8 MiB");
            return false;
        }
    }
    return true;
}

int job_run_fixed(kolorun_options_t *options)
{
    static const policy_t policy = {.one = "rank",
                                    .many = "ranks",
                                    .prepare = prepare,
                                    .begin = begin,
                                    .ended = ended,
                                    .lost = lost,
                                    .file = file,
                                    .turn = turn,
                                    .next_s = next_s};
    fixed_t f = {.failed = NULL};
    return job_run(&f.job, &policy, options);
}
