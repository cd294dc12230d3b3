/* SPDX-License-Identifier: Apache-2.0
 *
 * Who should be in the job, and how the processes are told. A plan concerns all members and those that it takes in;
 * the next one is made when it is over for all of them that still live.
 */
#include "elastic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GATHER_S   30.0 /* processes that are ready wait so long for those that have just been started */
#define ID_DIGITS  256
#define REMOVE_MAX 1024 /* of one plan */

static double now_since(const worker_t *w)
{
    return kolorun_now() - w->since;
}

static int status_of(const elastic_t *e)
{
    return e->first_failure ? e->first_failure : 1;
}

/* ---- words ---- */

static void call_newcomers(elastic_t *e, long plan, long nranks, long add, const char *id)
{
    int next = 0;
    if (!e->open || e->removes || plan != (long)e->plan || add != e->add) return;
    for (int pass = 0; pass < 2; pass++) /* if one that was called is gone, another takes its place */
        for (int i = 0; i < e->job.nprocesses && next < add; i++) {
            worker_t *w = elastic_worker(e, i);
            if (w->state != (pass == 0 ? WORKER_CALLED : WORKER_IDLE) || w->told) continue;
            elastic_set_state(w, WORKER_CALLED);
            w->told = true;
            elastic_say(w, "join %ld %d %ld %ld %s", plan, e->job.options->elastic.min, nranks + next, nranks + add,
                        id);
            next++;
        }
}

static void on_ready(elastic_t *e, worker_t *w, long plan, long rank, long nranks)
{
    if (w->state != WORKER_CALLED && w->state != WORKER_MEMBER && w->state != WORKER_IDLE) return;
    elastic_set_state(w, WORKER_MEMBER);
    w->rank = (int)rank;
    w->plan = (uint32_t)plan;
    bool newer = (uint32_t)plan > e->seen_plan || ((uint32_t)plan == e->seen_plan && nranks < e->seen_nranks);
    if (!newer) return;
    if (e->seen_plan != 0) e->resets++;
    e->seen_plan = (uint32_t)plan;
    kolorun_sink_printf(&e->job.err, "%ld rank%s (%d before)", nranks, nranks == 1 ? "" : "s", e->seen_nranks);
    e->seen_nranks = (int)nranks;
    int limit = e->job.options->elastic.reset_limit;
    if (limit >= 0 && e->resets > limit)
        job_end(&e->job, status_of(e), "the ranks have changed %d times, --reset-limit is %d; ending the job",
                e->resets, limit);
}

void elastic_on_word(elastic_t *e, worker_t *w, const char *data, size_t bytes)
{
    char text[600], id[ID_DIGITS + 2] = "";
    long a = 0, b = 0, c = 0, d = 0;
    int end = 0;
    if (bytes >= sizeof text || memchr(data, '\0', bytes)) return;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    const int n = (int)bytes;
    if (sscanf(text, "hello %10ld%n", &a, &end) == 1 && end == n) {
        if (w->state == WORKER_STARTING || w->state == WORKER_CALLED) elastic_set_state(w, WORKER_IDLE);
        w->told = false;
    } else if (sscanf(text, "id %10ld %6ld %6ld %256[0-9a-f]%n", &a, &b, &c, id, &end) == 4 && end == n &&
               strlen(id) == ID_DIGITS) {
        if (w->state == WORKER_MEMBER || w->state == WORKER_CALLED) call_newcomers(e, a, b, c, id);
    } else if (sscanf(text, "ready %10ld %6ld %6ld %20ld%n", &a, &b, &c, &d, &end) == 4 && end == n && a >= 0 &&
               b >= 0 && b < c) {
        on_ready(e, w, a, b, c);
    } else if (strcmp(text, "done") == 0) {
        e->finishing = w->done = true;
    } else if (strcmp(text, "left") == 0) {
        elastic_set_state(w, WORKER_LEAVING);
    } else {
        kolorun_sink_printf(&e->job.err, "process %d says what means nothing; it is not heard", w->p.id);
    }
    explicit_bzero(text, sizeof text);
    explicit_bzero(id, sizeof id);
}

/* ---- plans ---- */

/* Has not everybody told that the open plan is over? Whom nobody calls any more waits again: the members are
 * through with the plan, or all that could have made the id are gone. */
static bool still_open(elastic_t *e)
{
    bool called = false, members = false, told = false;
    for (int i = 0; i < e->job.nprocesses; i++) {
        const worker_t *w = elastic_worker(e, i);
        if (w->state == WORKER_MEMBER && w->plan < e->plan) return true;
        members |= w->state == WORKER_MEMBER;
        told |= w->state == WORKER_CALLED && w->told;
    }
    for (int i = 0; i < e->job.nprocesses; i++) {
        worker_t *w = elastic_worker(e, i);
        if (w->state == WORKER_CALLED && !w->told && (members || !told)) w->state = WORKER_IDLE;
        called |= w->state == WORKER_CALLED;
    }
    return called;
}

static bool can_gather(const elastic_t *e)
{
    bool starting = false, patient = false;
    for (int i = 0; i < e->job.nprocesses; i++) {
        const worker_t *w = elastic_worker(e, i);
        starting |= w->state == WORKER_STARTING && !w->unwanted;
        patient |= w->state == WORKER_IDLE && now_since(w) > GATHER_S;
    }
    return !starting || patient;
}

static int by_place(const void *x, const void *y)
{
    const worker_t *a = *(worker_t *const *)x, *b = *(worker_t *const *)y;
    const job_t *job = a->p.host->job;
    for (int i = 0; a->p.host != b->p.host && i < job->nhosts; i++) {
        if (job->hosts[i] == a->p.host) return -1;
        if (job->hosts[i] == b->p.host) return 1;
    }
    return a->p.slot - b->p.slot;
}

/* Those that can be taken in, in the order of hosts and slots. The list itself is put into that order: the words of
 * one plan go out in it. */
static int idle_in_order(elastic_t *e, worker_t **list)
{
    int n = 0;
    for (int i = 0; i < e->job.nprocesses; i++)
        if (elastic_worker(e, i)->state == WORKER_IDLE && !elastic_worker(e, i)->unwanted)
            list[n++] = elastic_worker(e, i);
    qsort(list, (size_t)n, sizeof *list, by_place);
    return n;
}

static void call(worker_t **list, int n)
{
    for (int i = 0; i < n; i++) {
        elastic_set_state(list[i], WORKER_CALLED);
        list[i]->told = false;
    }
}

static void found(elastic_t *e, worker_t **idle, int n)
{
    if (n < e->job.options->elastic.min || !can_gather(e)) return;
    e->founded = e->open = true;
    e->removes = false;
    e->plan++;
    e->add = n - 1;
    call(idle, n);
    idle[0]->told = true; /* the others are told when it has made an id */
    elastic_say(idle[0], "found %u %d %d", e->plan, e->job.options->elastic.min, n - 1);
}

static void say_to_members(elastic_t *e, const char *text)
{
    for (int i = 0; i < e->job.nprocesses; i++)
        if (elastic_worker(e, i)->state == WORKER_MEMBER) elastic_say(elastic_worker(e, i), "%s", text);
}

static void add_workers(elastic_t *e, worker_t **idle, int n)
{
    char text[64];
    e->open = true;
    e->removes = false;
    e->add = n;
    snprintf(text, sizeof text, "add %u %d", ++e->plan, n);
    say_to_members(e, text);
    call(idle, n);
}

static void remove_workers(elastic_t *e)
{
    char text[REMOVE_MAX * 12 + 32];
    size_t at = (size_t)snprintf(text, sizeof text, "remove %u", ++e->plan);
    int n = 0;
    for (int i = 0; i < e->job.nprocesses && n < REMOVE_MAX; i++)
        if (elastic_worker(e, i)->state == WORKER_MEMBER && elastic_worker(e, i)->unwanted)
            at +=
                (size_t)snprintf(text + at, sizeof text - at, "%c%d", n++ ? ',' : ' ', elastic_worker(e, i)->p.id);
    e->open = e->removes = true;
    say_to_members(e, text);
}

static void plan_next(elastic_t *e)
{
    worker_t **idle = kolorun_grow(NULL, sizeof *idle * ((size_t)e->job.nprocesses + 1));
    int n = idle_in_order(e, idle), members = 0, unwanted = 0;
    for (int i = 0; i < e->job.nprocesses; i++) {
        members += elastic_worker(e, i)->state == WORKER_MEMBER;
        unwanted += elastic_worker(e, i)->state == WORKER_MEMBER && elastic_worker(e, i)->unwanted;
    }
    int stay = members - unwanted;
    bool adds = n > 0 && can_gather(e);
    if (!e->founded)
        found(e, idle, n);
    else if (unwanted > 0 && stay >= e->job.options->elastic.min)
        remove_workers(e);
    else if (adds)
        add_workers(e, idle, n); /* before the last that hold the state go */
    else if (unwanted > 0 && stay > 0)
        remove_workers(e);
    free(idle);
}

/* The work is done: no process joins any more, and few may be left for the last steps. */
static void wind_up(elastic_t *e)
{
    for (int i = 0; i < e->job.nprocesses; i++) {
        worker_t *w = elastic_worker(e, i);
        if (w->state == WORKER_MEMBER && !w->wound_up) {
            elastic_say(w, "min 1");
            w->wound_up = true;
        } else if (w->state == WORKER_STARTING || w->state == WORKER_IDLE || w->state == WORKER_CALLED) {
            elastic_say(w, "leave");
            elastic_set_state(w, WORKER_LEAVING);
        }
    }
}

static void judge_numbers(elastic_t *e)
{
    const elastic_options_t *o = &e->job.options->elastic;
    int members = elastic_count(e, WORKER_MEMBER), called = elastic_count(e, WORKER_CALLED);
    int there = members + called + elastic_count(e, WORKER_IDLE), starting = elastic_count(e, WORKER_STARTING);
    if (e->founded && members + called == 0) {
        if (e->seen_plan == 0 && there + starting > 0) { /* nothing was done yet: another one begins */
            e->founded = e->open = false;
            return;
        }
        job_end(&e->job, status_of(e),
                "no process is left that has the state of the job; the first failure: %s; ending the job",
                e->first_failure ? e->first_failure_text : "none, all have left");
        return;
    }
    if (there + starting == 0 && e->first_failure != 0 && !e->founded) {
        job_end(&e->job, e->first_failure, "every process has failed; the first: %s; ending the job",
                e->first_failure_text);
        return;
    }
    int unwanted = 0;
    for (int i = 0; i < e->job.nprocesses; i++)
        unwanted += elastic_worker(e, i)->unwanted &&
                    (elastic_worker(e, i)->state == WORKER_MEMBER || elastic_worker(e, i)->state == WORKER_CALLED);
    if (there - unwanted >= o->min)
        e->short_since = 0;
    else if (e->short_since == 0)
        e->short_since = kolorun_now();
    else if (kolorun_now() >= e->short_since + o->timeout_s)
        job_end(&e->job, status_of(e),
                "%d process%s ready (%d more started) for %g s, --min is %d%s%s; ending the job", there - unwanted,
                there - unwanted == 1 ? " was" : "es were", starting, o->timeout_s, o->min,
                e->first_failure ? "; the first failure: " : "", e->first_failure_text);
}

void elastic_plan(elastic_t *e)
{
    if (e->job.ending) return;
    if (e->finishing) {
        wind_up(e);
        return;
    }
    if (e->open && !still_open(e)) e->open = false; /* may give back those that were called: judged after it */
    judge_numbers(e);
    if (!e->job.ending && !e->open) plan_next(e);
}

double elastic_next_plan_s(const elastic_t *e)
{
    double next = e->short_since != 0 ? e->short_since + e->job.options->elastic.timeout_s : 0;
    for (int i = 0; i < e->job.nprocesses && !e->open; i++) {
        double at = elastic_worker(e, i)->since + GATHER_S;
        if (elastic_worker(e, i)->state == WORKER_IDLE && at > kolorun_now() && (next == 0 || at < next)) next = at;
    }
    return next;
}
