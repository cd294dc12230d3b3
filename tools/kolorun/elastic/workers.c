/* SPDX-License-Identifier: Apache-2.0
 *
 * Hosts and the processes on them: which are wanted, how they are started, what their ends mean. A process that
 * fails makes its host rest before another is started there, longer each time; a host that stays well for some time
 * starts anew. Nothing else of the host is touched: its other processes go on.
 */
#include "elastic.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CLOSE_S     1.0
#define WELL_AFTER  4.0  /* times its last rest without a failure make a host well, */
#define WELL_LEAST  10.0 /* but no fewer seconds */
#define LEAVE_WAITS 5.0  /* what was asked to leave and does not */

int elastic_count(const elastic_t *e, worker_state_t state)
{
    int n = 0;
    for (int i = 0; i < e->nworkers; i++) n += e->workers[i]->state == state;
    return n;
}

int elastic_live(const elastic_t *e)
{
    return e->nworkers - elastic_count(e, WORKER_ENDED);
}

void elastic_signal_all(elastic_t *e, int sig)
{
    for (int i = 0; i < e->nhosts; i++)
        if (e->hosts[i]->agent != NULL) kolorun_host_signal(e->hosts[i]->agent, KOLORUN_ALL, sig);
}

void elastic_say(worker_t *w, const char *format, ...)
{
    static char text[32768];
    char name[64];
    va_list args;
    if (w->state == WORKER_ENDED || w->host->agent == NULL) return;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof text) return; /* callers bound it */
    snprintf(name, sizeof name, "to.%d.%u", w->id, w->said++);
    kolorun_host_put_file(w->host->agent, name, text, (size_t)n);
    explicit_bzero(text, (size_t)n);
}

/* ---- failures ---- */

static void rest_host(elastic_t *e, elastic_host_t *host)
{
    const elastic_options_t *o = &e->options->elastic;
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
    kolorun_sink_printf(&e->err, "host %s rests for %.1f s after its failure %d", host->name, pause,
                        host->failures);
}

static void set_state(worker_t *w, worker_state_t state)
{
    w->state = state;
    w->since = kolorun_now();
    if (state == WORKER_ENDED) kolorun_input_leave(&w->host->job->input, w->id);
}

static void fail(elastic_t *e, worker_t *w, int status, const char *what)
{
    char rank[32] = "";
    if (w->state == WORKER_MEMBER) snprintf(rank, sizeof rank, ", rank %d", w->rank);
    char text[sizeof e->first_failure_text];
    snprintf(text, sizeof text, "process %d (pid %d on %.64s%s) %.120s", w->id, w->pid, w->host->name, rank, what);
    kolorun_sink_printf(&e->err, "%s", text);
    if (e->first_failure == 0) {
        e->first_failure = status;
        memcpy(e->first_failure_text, text, sizeof text);
    }
    /* Once all have agreed that all is done, only what they do with it can go wrong; who died before they agreed,
     * and is heard of late, has done no harm. */
    if (w->done && e->exit_status == 0) e->exit_status = status;
    set_state(w, WORKER_ENDED);
    if (!e->finishing) rest_host(e, w->host);
}

static void end_well(elastic_t *e, worker_t *w)
{
    const bool leaves =
        e->open && e->removes && w->unwanted && w->state == WORKER_MEMBER; /* its word is on the way */
    if (!leaves) e->finishing = true;
    set_state(w, WORKER_ENDED);
}

/* ---- what hosts tell ---- */

static worker_t *worker_of(elastic_host_t *host, long id)
{
    elastic_t *e = host->job;
    for (int i = 0; i < e->nworkers; i++) /* the id comes over the wire */
        if (e->workers[i]->id == id && e->workers[i]->host == host && e->workers[i]->state != WORKER_ENDED)
            return e->workers[i];
    return NULL;
}

static void on_started(void *arg, kolorun_host_t *agent, int id, int pid)
{
    worker_t *w = worker_of(arg, id);
    (void)agent;
    if (w != NULL) w->pid = pid;
}

static void on_not_started(void *arg, kolorun_host_t *agent, int id, int error)
{
    elastic_host_t *host = arg;
    worker_t *w = worker_of(host, id);
    char what[200];
    (void)agent;
    if (w == NULL) return;
    snprintf(what, sizeof what, "cannot start %.80s: %s", host->job->options->argv[0],
             strerror(error & ~KOLORUN_ERROR_DIR));
    fail(host->job, w, error == ENOENT ? 127 : 126, what);
}

static void on_output(void *arg, kolorun_host_t *agent, int id, int stream, const void *data, size_t bytes)
{
    worker_t *w = worker_of(arg, id);
    (void)agent;
    if (w != NULL) kolorun_stream_feed(stream == 1 ? &w->out : &w->err, data, bytes);
}

static void on_ended(void *arg, kolorun_host_t *agent, int id, int wait_status)
{
    elastic_host_t *host = arg;
    elastic_t *e = host->job;
    worker_t *w = worker_of(host, id);
    char what[100];
    (void)agent;
    if (w == NULL) return;
    kolorun_stream_fini(&w->err); /* its last words come before the report */
    kolorun_stream_fini(&w->out);
    int sig = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0,
        status = sig ? 128 + sig : WEXITSTATUS(wait_status);
    if (sig != 0)
        snprintf(what, sizeof what, "was killed by signal %d (%s)", sig, strsignal(sig));
    else
        snprintf(what, sizeof what, "exited with status %d", status);
    if (w->state == WORKER_LEAVING || e->over)
        set_state(w, WORKER_ENDED);
    else if (status == 0)
        end_well(e, w);
    else
        fail(e, w, status, what);
}

/* from.W.N: a word. */
static void on_took(void *arg, kolorun_host_t *agent, int id, int bytes)
{
    elastic_host_t *host = arg;
    kolorun_input_took(&host->job->input, agent, id, bytes);
}

static void on_file(void *arg, kolorun_host_t *agent, const char *name, const void *data, size_t bytes)
{
    elastic_host_t *host = arg;
    char *end;
    (void)agent;
    if (strncmp(name, "from.", 5) != 0) return;
    long id = strtol(name + 5, &end, 10);
    worker_t *w = end != name + 5 && *end == '.' ? worker_of(host, id) : NULL;
    if (w != NULL) elastic_on_word(host->job, w, data, bytes);
}

static void on_said(void *arg, kolorun_host_t *agent, const char *line)
{
    elastic_host_t *host = arg;
    (void)agent;
    kolorun_sink_printf(&host->job->err, "%s: %s", host->name, line);
}

static void on_lost(void *arg, kolorun_host_t *agent, const char *why)
{
    elastic_host_t *host = arg;
    elastic_t *e = host->job;
    (void)agent;
    host->lost = true; /* closed by elastic_tidy() */
    if (!e->over && host->slots > 0) {
        kolorun_sink_printf(&e->err, "host %s is lost: %s", host->name, why);
        rest_host(e, host);
    }
    for (int i = 0; i < e->nworkers; i++) {
        worker_t *w = e->workers[i];
        if (w->host != host || w->state == WORKER_ENDED) continue;
        if (e->first_failure == 0) {
            e->first_failure = 1;
            snprintf(e->first_failure_text, sizeof e->first_failure_text, "host %.64s was lost: %.200s", host->name,
                     why);
        }
        if (w->done &&
            e->exit_status == 0) { /* as in fail(): it had not yet done with it what it does in the end */
            e->exit_status = 1;
            kolorun_sink_printf(&e->err,
                                "process %d (pid %d on %.64s) had reported that all is done, and was lost: %s",
                                w->id, w->pid, host->name, why);
        }
        set_state(w, WORKER_ENDED);
    }
}

const kolorun_host_events_t elastic_events = {.started = on_started,
                                              .not_started = on_not_started,
                                              .output = on_output,
                                              .ended = on_ended,
                                              .took = on_took,
                                              .file = on_file,
                                              .said = on_said,
                                              .lost = on_lost};

/* ---- hosts ---- */

static elastic_host_t *host_named(elastic_t *e, const char *name)
{
    for (int i = 0; i < e->nhosts; i++)
        if (strcmp(e->hosts[i]->name, name) == 0) return e->hosts[i];
    elastic_host_t *host = kolorun_grow(NULL, sizeof *host);
    *host = (elastic_host_t){.job = e};
    snprintf(host->name, sizeof host->name, "%s", name);
    e->hosts = kolorun_grow(e->hosts, sizeof *e->hosts * ((size_t)e->nhosts + 1));
    e->hosts[e->nhosts++] = host;
    return host;
}

void elastic_take_hosts(elastic_t *e, const kolorun_hostlist_t *list)
{
    int *before = kolorun_grow(NULL, sizeof *before * ((size_t)e->nhosts + 1));
    int known = e->nhosts;
    for (int i = 0; i < known; i++) {
        before[i] = e->hosts[i]->slots;
        e->hosts[i]->slots = 0;
    }
    for (int i = 0; i < list->count; i++) host_named(e, list->hosts[i].name)->slots = list->hosts[i].slots;
    for (int i = 0; i < e->nhosts; i++) {
        const elastic_host_t *h = e->hosts[i];
        int was = i < known ? before[i] : 0;
        if (h->slots != was && e->plan > 0)
            kolorun_sink_printf(&e->err, "host %s: %d slot%s, %d before", h->name, h->slots,
                                h->slots == 1 ? "" : "s", was);
    }
    free(before);
}

/* ---- slots ---- */

static char **environment(const elastic_t *e, const worker_t *w, bool remote)
{
    char number[64];
    char **env = kolorun_env_make(e->options, remote, 0, 0, w->slot, w->host->slots);
    size_t n = 0;
    while (env[n] != NULL) n++;
    env = kolorun_grow(env, sizeof *env * (n + 2));
    int bytes = snprintf(number, sizeof number, "KOLO_ELASTIC_WORKER=%d", w->id) + 1;
    env[n] = memcpy(kolorun_grow(NULL, (size_t)bytes), number, (size_t)bytes);
    env[n + 1] = NULL;
    return env;
}

static void start_worker(elastic_t *e, elastic_host_t *host, int slot)
{
    const kolorun_options_t *o = e->options;
    char why[300], tag[24] = "", dir[4096] = "";
    if (host->agent == NULL) {
        host->lost = false;
        host->agent = kolorun_host_open(host->name, &o->way, &elastic_events, host, why, sizeof why);
        if (host->agent == NULL) {
            kolorun_sink_printf(&e->err, "%s", why);
            rest_host(e, host);
            return;
        }
        for (int k = 0; k < 2; k++)
            if (e->paused[k]) kolorun_host_pause(host->agent, k + 1, true);
    }
    worker_t *w = kolorun_grow(NULL, sizeof *w);
    *w = (worker_t){.id = e->started++, .host = host, .slot = slot, .rank = -1, .since = kolorun_now()};
    if (o->tagged) snprintf(tag, sizeof tag, "[%d] ", w->id);
    kolorun_stream_init(&w->out, tag, &e->out, NULL);
    kolorun_stream_init(&w->err, tag, &e->err, NULL);
    e->workers = kolorun_grow(e->workers, sizeof *e->workers * ((size_t)e->nworkers + 1));
    e->workers[e->nworkers++] = w;
    bool remote = !kolorun_host_is_local(host->agent);
    if (remote && getcwd(dir, sizeof dir) == NULL) dir[0] = '\0';
    char **env = environment(e, w, remote);
    const bool input = kolorun_input_wanted(&e->input, w->id);
    const kolorun_spec_t spec = {.dir = dir, .argv = o->argv, .env = env, .input = input};
    if (input) kolorun_input_add(&e->input, host->agent, w->id);
    if (!kolorun_host_start(host->agent, w->id, &spec))
        fail(e, w, 1, "cannot be started: its arguments and variables are more than 8 MiB");
    kolorun_env_free(env);
}

static bool has_slot(const elastic_t *e, const elastic_host_t *host, int slot)
{
    for (int i = 0; i < e->nworkers; i++) {
        const worker_t *w = e->workers[i];
        if (w->host == host && w->slot == slot && w->state != WORKER_ENDED && !w->unwanted &&
            w->state != WORKER_LEAVING)
            return true;
    }
    return false;
}

/* Who keeps its slot, given that no more than max may. Those that hold the state come before those that do not. */
static int mark_unwanted(elastic_t *e)
{
    int max = e->options->elastic.max, kept = 0;
    for (int members = 1; members >= 0; members--)
        for (int i = 0; i < e->nworkers; i++) {
            worker_t *w = e->workers[i];
            if (w->state == WORKER_ENDED || w->state == WORKER_LEAVING || (w->state == WORKER_MEMBER) != members)
                continue;
            w->unwanted = w->slot >= w->host->slots || (max > 0 && kept >= max);
            kept += !w->unwanted;
        }
    return kept;
}

void elastic_fill_slots(elastic_t *e)
{
    double t = kolorun_now();
    int max = e->options->elastic.max, kept = mark_unwanted(e);
    for (int i = 0; i < e->nworkers; i++) {
        worker_t *w = e->workers[i];
        bool early = w->state == WORKER_STARTING || w->state == WORKER_IDLE;
        if (w->unwanted && early) {
            elastic_say(w, "leave");
            set_state(w, WORKER_LEAVING);
        }
        if (w->state == WORKER_LEAVING && t >= w->since + LEAVE_WAITS + e->options->grace_s) {
            kolorun_host_signal(w->host->agent, w->id, SIGKILL);
            w->since = t;
        }
    }
    if (e->finishing || e->over) return;
    for (int i = 0; i < e->nhosts; i++) {
        elastic_host_t *host = e->hosts[i];
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
    for (int i = 0; i < e->nhosts; i++) {
        double until = e->hosts[i]->until;
        if (e->hosts[i]->slots > 0 && until > t && (next == 0 || until < next)) next = until;
    }
    for (int i = 0; i < e->nworkers; i++) {
        const worker_t *w = e->workers[i];
        double at = w->since + LEAVE_WAITS + e->options->grace_s;
        if (w->state == WORKER_LEAVING && (next == 0 || at < next)) next = at;
    }
    return next;
}

void elastic_tidy(elastic_t *e)
{
    int kept = 0;
    for (int i = 0; i < e->nworkers; i++) {
        worker_t *w = e->workers[i];
        if (w->state != WORKER_ENDED) {
            e->workers[kept++] = w;
            continue;
        }
        kolorun_stream_fini(&w->out);
        kolorun_stream_fini(&w->err);
        free(w);
    }
    e->nworkers = kept;
    kolorun_host_t **agents = kolorun_grow(NULL, sizeof *agents * ((size_t)e->nhosts + 1));
    int n = 0;
    for (int i = 0; i < e->nhosts; i++) {
        elastic_host_t *host = e->hosts[i];
        bool used = host->slots > 0;
        for (int k = 0; k < e->nworkers; k++) used |= e->workers[k]->host == host;
        if (host->agent == NULL || (used && !host->lost)) continue;
        agents[n++] = host->agent;
        host->agent = NULL;
        host->lost = false;
    }
    kolorun_hosts_close(agents, n, CLOSE_S); /* side by side: the loop serves no other host meanwhile */
    free(agents);
}
