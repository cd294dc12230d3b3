/* SPDX-License-Identifier: Apache-2.0
 *
 * The hosts and processes of an elastic job: starting what is wanted, ending what is not, and what a failure means:
 * its host rests for a while, twice as long after each, and the job goes on.
 */
#include "elastic.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WELL_AFTER  4.0  /* times its last rest without a failure make a host well, */
#define WELL_LEAST  10.0 /* but no fewer seconds */
#define LEAVE_WAITS 5.0  /* what was asked to leave and does not */

int elastic_count(const elastic_t *e, worker_state_t state)
{
    int n = 0;
    for (int i = 0; i < e->job.nprocesses; i++) n += elastic_worker(e, i)->state == state;
    return n;
}

void elastic_set_state(worker_t *w, worker_state_t state)
{
    w->state = state;
    w->since = kolorun_now();
}

void elastic_say(worker_t *w, const char *format, ...)
{
    static char text[32768];
    char name[64];
    va_list args;
    if (w->state == WORKER_ENDED) return;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof text) return; /* callers bound it */
    snprintf(name, sizeof name, "to.%d.%u", w->p.id, w->said++);
    kolorun_host_put_file(w->p.host->agent, name, text, (size_t)n);
    explicit_bzero(text, (size_t)n);
}

/* ---- failures ---- */

static void rest_host(elastic_t *e, job_host_t *host)
{
    const elastic_options_t *o = &e->job.options->elastic;
    double t = kolorun_now(), pause = o->back_off_s;
    double quiet = t - host->failed_at, last = host->until - host->failed_at;
    if (host->failures > 0 && quiet > WELL_LEAST && quiet > WELL_AFTER * last) host->failures = 0;
    for (int i = 0; i < host->failures && pause < o->back_off_max_s; i++) pause *= 2;
    if (pause > o->back_off_max_s) pause = o->back_off_max_s;
    pause *=
        0.9 + 0.2 * (double)(host->failed_at > 0 ? (long)(t * 1e6) % 100 : 50) / 100; /* not all hosts at once */
    host->failures++;
    host->failed_at = t;
    if (t + pause > host->until) host->until = t + pause;
    kolorun_sink_printf(&e->job.err, "host %s rests for %.1f s after its failure %d", host->name, pause,
                        host->failures);
}

static void remember_first(elastic_t *e, int status, const char *text)
{
    if (e->first_failure != 0) return;
    e->first_failure = status;
    snprintf(e->first_failure_text, sizeof e->first_failure_text, "%s", text);
}

static void fail(elastic_t *e, worker_t *w)
{
    char pid[32] = "", rank[32] = "", text[sizeof e->first_failure_text];
    const process_t *p = &w->p;
    if (p->pid != 0) snprintf(pid, sizeof pid, "pid %d ", p->pid);
    if (w->state == WORKER_MEMBER) snprintf(rank, sizeof rank, ", rank %d", w->rank);
    snprintf(text, sizeof text, "process %d (%son %.64s%s) %.*s", p->id, pid, p->host->name, rank,
             (int)(sizeof text - 180), p->how); /* the words before it: 11 numbers and signs, the name of a host */
    kolorun_sink_printf(&e->job.err, "%s", text);
    remember_first(e, p->status, text);
    /* Once all have agreed that all is done, only what they do with it can go wrong; who died before they agreed,
     * and is heard of late, has done no harm. */
    if (w->done && e->job.exit_status == 0) e->job.exit_status = p->status;
    if (!e->finishing) rest_host(e, p->host);
}

void elastic_ended(job_t *job, process_t *p)
{
    elastic_t *e = (elastic_t *)job;
    worker_t *w = (worker_t *)p;
    const bool leaves =
        e->open && e->removes && w->unwanted && w->state == WORKER_MEMBER; /* its word is on the way */
    if (w->state != WORKER_LEAVING && !job->ending) {
        if (p->status != 0)
            fail(e, w);
        else if (!leaves)
            e->finishing = true;
    }
    elastic_set_state(w, WORKER_ENDED);
}

void elastic_lost(job_t *job, job_host_t *host, const char *why)
{
    elastic_t *e = (elastic_t *)job;
    char text[sizeof e->first_failure_text];
    if (!job->ending && host->slots > 0) {
        kolorun_sink_printf(&job->err, "host %s is lost: %s", host->name, why);
        rest_host(e, host);
    }
    for (int i = 0; i < job->nprocesses; i++) {
        worker_t *w = elastic_worker(e, i);
        if (w->p.host != host || w->state == WORKER_ENDED) continue;
        snprintf(text, sizeof text, "host %.64s was lost: %.200s", host->name, why);
        remember_first(e, 1, text);
        if (w->done && job->exit_status == 0) { /* as in fail() */
            job->exit_status = 1;
            kolorun_sink_printf(&job->err,
                                "process %d (pid %d on %.64s) had reported that all is done, and was lost: %s",
                                w->p.id, w->p.pid, host->name, why);
        }
        elastic_set_state(w, WORKER_ENDED);
    }
}

void elastic_file(job_t *job, job_host_t *host, const char *name, const void *data, size_t bytes)
{
    elastic_t *e = (elastic_t *)job;
    char *end;
    if (strncmp(name, "from.", 5) != 0) return;
    const long id = strtol(name + 5, &end, 10);
    for (int i = 0; i < job->nprocesses && end != name + 5 && *end == '.';
         i++) { /* the number comes over the wire */
        worker_t *w = elastic_worker(e, i);
        if (w->p.id != id || w->p.host != host || w->state == WORKER_ENDED) continue;
        elastic_on_word(e, w, data, bytes);
        return;
    }
}

/* ---- hosts and slots ---- */

void elastic_take_hosts(elastic_t *e, const kolorun_hostlist_t *list)
{
    job_t *job = &e->job;
    int *before = kolorun_grow(NULL, sizeof *before * ((size_t)job->nhosts + 1));
    int known = job->nhosts;
    for (int i = 0; i < known; i++) {
        before[i] = job->hosts[i]->slots;
        job->hosts[i]->slots = 0;
    }
    for (int i = 0; i < list->count; i++) job_host_named(job, list->hosts[i].name)->slots = list->hosts[i].slots;
    for (int i = 0; i < job->nhosts; i++) {
        const job_host_t *h = job->hosts[i];
        int was = i < known ? before[i] : 0;
        if (h->slots != was && e->plan > 0)
            kolorun_sink_printf(&job->err, "host %s: %d slot%s, %d before", h->name, h->slots,
                                h->slots == 1 ? "" : "s", was);
    }
    free(before);
}

static void start_worker(elastic_t *e, job_host_t *host, int slot)
{
    if (!job_host_open(host)) {
        rest_host(e, host);
        return;
    }
    worker_t *w = (worker_t *)job_add(host, slot, sizeof *w);
    w->rank = -1;
    elastic_set_state(w, WORKER_STARTING);
    job_open_files(&w->p); /* without them the job goes on: that was said */
    if (job_start(&w->p, &(kolorun_place_t){0, 0, slot, host->slots, w->p.id})) return;
    w->p.status = 1;
    snprintf(w->p.how, sizeof w->p.how, "cannot be started: its arguments and variables are more than 8 MiB");
    fail(e, w);
    elastic_set_state(w, WORKER_ENDED);
    job_mark_ended(&w->p);
}

static bool has_slot(const elastic_t *e, const job_host_t *host, int slot)
{
    for (int i = 0; i < e->job.nprocesses; i++) {
        const worker_t *w = elastic_worker(e, i);
        if (w->p.host == host && w->p.slot == slot && w->state != WORKER_ENDED && !w->unwanted &&
            w->state != WORKER_LEAVING)
            return true;
    }
    return false;
}

/* Who keeps its slot, given that no more than max may. Those that hold the state come before those that do not. */
static int mark_unwanted(elastic_t *e)
{
    int max = e->job.options->elastic.max, kept = 0;
    for (int members = 1; members >= 0; members--)
        for (int i = 0; i < e->job.nprocesses; i++) {
            worker_t *w = elastic_worker(e, i);
            if (w->state == WORKER_ENDED || w->state == WORKER_LEAVING || (w->state == WORKER_MEMBER) != members)
                continue;
            w->unwanted = w->p.slot >= w->p.host->slots || (max > 0 && kept >= max);
            kept += !w->unwanted;
        }
    return kept;
}

static double leave_limit(const worker_t *w)
{
    return w->since + LEAVE_WAITS + w->p.host->job->options->grace_s;
}

void elastic_fill_slots(elastic_t *e)
{
    double t = kolorun_now();
    int max = e->job.options->elastic.max, kept = mark_unwanted(e);
    for (int i = 0; i < e->job.nprocesses; i++) {
        worker_t *w = elastic_worker(e, i);
        if (w->unwanted && (w->state == WORKER_STARTING || w->state == WORKER_IDLE)) {
            elastic_say(w, "leave");
            elastic_set_state(w, WORKER_LEAVING);
        }
        if (w->state == WORKER_LEAVING && t >= leave_limit(w)) {
            kolorun_host_signal(w->p.host->agent, w->p.id, SIGKILL);
            w->since = t;
        }
    }
    if (e->finishing || e->job.ending) return;
    for (int i = 0; i < e->job.nhosts; i++) {
        job_host_t *host = e->job.hosts[i];
        for (int slot = 0; slot < host->slots && (max == 0 || kept < max) && t >= host->until; slot++)
            if (!host->lost && !has_slot(e, host, slot)) {
                start_worker(e, host, slot);
                kept++;
            }
    }
}

double elastic_next_start_s(const elastic_t *e)
{
    double next = 0, t = kolorun_now();
    for (int i = 0; i < e->job.nhosts; i++)
        if (e->job.hosts[i]->slots > 0 && e->job.hosts[i]->until > t) kolorun_sooner(&next, e->job.hosts[i]->until);
    for (int i = 0; i < e->job.nprocesses; i++)
        if (elastic_worker(e, i)->state == WORKER_LEAVING) kolorun_sooner(&next, leave_limit(elastic_worker(e, i)));
    return next;
}
