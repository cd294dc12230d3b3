/* SPDX-License-Identifier: Apache-2.0
 *
 * The monitor of one run: hears the workers, kills one half way, sends a replacement, shows the progress.
 */
#include "job.h"

#include "data.h"
#include "shards.h"

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#ifdef KOLO_SANITIZED
#define PATIENCE 3
#else
#define PATIENCE 1
#endif
#define SILENCE_MS                                                                                                 \
    (40000 * PATIENCE) /* longer than any limit of the workers: they tell what is wrong, if they can */
#define LINE_MS    100 /* between two progress lines on a terminal */
#define REPLACE_OF 8   /* the replacement comes when an 8th of the steps has been made without it */

/* ---- what is shown ---- */

static double seconds(const job_t *job)
{
    return (double)(now_ns() - job->start_ns) / 1e9;
}

void job_say(job_t *job, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    printf("%s%-11s %7.3f s  %s\n", job->live ? "\r\033[K" : "", job->name, seconds(job), text);
    fflush(stdout);
}

void job_fail(job_t *job, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!job->failed) fprintf(stderr, "%sdigits, %s: %s\n", job->live ? "\r\033[K" : "", job->name, text);
    job->failed = true;
}

void job_mark(job_t *job, const char *format, ...)
{
    if (job->events == MOST_EVENTS) return;
    event_t *e = &job->event[job->events++];
    va_list args;
    e->at_s = seconds(job);
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
}

/* One line that lives, on a terminal; elsewhere a dozen lines for a run. */
static void show_progress(job_t *job)
{
    uint64_t now = now_ns(), tenth = job->steps / 10 + 1, back = job->known > 200 ? job->known - 200 : 0;
    if (job->known == job->shown) return;
    bool soon = job->live ? now - job->last_line_ns < LINE_MS * UINT64_C(1000000) : job->known < job->shown + tenth;
    if (soon && job->shown) return;
    job->shown = job->known;
    const step_t *s = &job->step[job->known - 1], *from = &job->step[back];
    int per_epoch = shards_steps(job->images);
    double took = (double)(s->at_ns - from->at_ns) / 1e9;
    printf("%s%-11s %7.3f s  epoch %d/%d  step %llu/%llu  loss %.4f  %d ranks  %.0f samples/s%s",
           job->live ? "\r" : "", job->name, seconds(job), (int)((job->known - 1) / (uint64_t)per_epoch) + 1,
           job->options->epochs, (unsigned long long)job->known, (unsigned long long)job->steps, s->loss, s->nranks,
           took > 0 ? (double)(job->known - 1 - back) * STEP_SAMPLES / took : 0.0, job->live ? "\033[K" : "\n");
    fflush(stdout);
    job->last_line_ns = now;
}

/* ---- what the workers tell ---- */

static void start_all(job_t *job, const note_t *n)
{
    for (int i = 0; i < job->options->workers; i++) {
        note_t start = {.kind = NOTE_START, .rank = i, .nranks = job->options->workers, .id = n->id};
        job->process[i].joined = true;
        note_send(job->process[i].fd, &start);
    }
    job->ranks_now = job->options->workers;
    job->start_ns = now_ns();
}

static void let_in(job_t *job, const note_t *n)
{
    process_t *p = &job->process[job->started - 1]; /* the newest is the only one that can be waiting */
    note_t join = {.kind = NOTE_JOIN, .nranks = n->nranks + 1, .id = n->id};
    if (p->pid && !p->joined) note_send(p->fd, &join);
}

static void announce(job_t *job, int index)
{
    note_t note = {.kind = NOTE_NEWCOMER, .index = index};
    job_say(job, "worker %d is there and waits to be taken in", index);
    for (int i = 0; i < job->started; i++)
        if (job->process[i].pid && job->process[i].joined) note_send(job->process[i].fd, &note);
}

static void take_hello(job_t *job, process_t *p, int index)
{
    int there = 0;
    p->hello = true;
    if (job->ranks_now) {
        announce(job, index);
        return;
    }
    for (int i = 0; i < job->started; i++) there += job->process[i].hello;
    note_t make = {.kind = NOTE_MAKE_ID};
    if (there == job->options->workers) note_send(job->process[0].fd, &make);
}

static void take_ranks(job_t *job, process_t *p, const note_t *n)
{
    p->in = true;
    if (n->rank != 0 || n->was == 0) return; /* all tell; one is enough */
    job->pause_ms = (double)n->us / 1e3;
    job->ranks_now = n->nranks;
    if (n->nranks > n->was) job->process[job->started - 1].joined = true;
    if (n->nranks < n->was) job->replace_at = n->step + job->steps / REPLACE_OF + 1;
    job_mark(job, "%d -> %d ranks", n->was, n->nranks);
    job_say(job, "%d -> %d ranks after step %llu; the change took %.1f ms, no step lost", n->was, n->nranks,
            (unsigned long long)n->step, job->pause_ms);
}

static void take_note(job_t *job, int index, const note_t *n)
{
    process_t *p = &job->process[index];
    if (n->kind == NOTE_HELLO) take_hello(job, p, index);
    if (n->kind == NOTE_ID && !job->ranks_now)
        start_all(job, n);
    else if (n->kind == NOTE_ID)
        let_in(job, n);
    if (n->kind == NOTE_STEP) books_take(job, index, n);
    if (n->kind == NOTE_RANKS) take_ranks(job, p, n);
    if (n->kind == NOTE_FAILED && (p->joined || !job->known)) job_fail(job, "worker %d: %s", index, n->text);
    if (n->kind == NOTE_FAILED) job_say(job, "worker %d: %s", index, n->text);
    if (n->kind != NOTE_DONE) return;
    if (job->tested && (job->right != n->right || job->final_hash != n->hash))
        job_fail(job, "worker %d has another result than the others", index);
    p->done = true;
    job->right = n->right;
    job->tested = n->samples;
    job->final_hash = n->hash;
    job->elapsed_ns = now_ns() - job->start_ns;
}

/* ---- the loop ---- */

static void replace(job_t *job)
{
    if (!job->replace_at || job->known < job->replace_at || job->known == job->steps || !fleet_lacks_one(job))
        return;
    if (fleet_start(job)) job_say(job, "worker %d is started as a replacement", job->started - 1);
}

static void hear_signals(job_t *job, int signals)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD) job->interrupted = true;
}

static void hear(job_t *job, int index)
{
    process_t *p = &job->process[index];
    note_t note;
    int got = 0;
    while (p->pid && !p->heard_all && (got = note_receive(p->fd, &note, false)) > 0) take_note(job, index, &note);
    if (got < 0) p->heard_all = true; /* its end follows, or has come */
}

static void hear_all(job_t *job, int signals)
{
    struct pollfd fds[MOST_PROCESSES + 1];
    for (int i = 0; i < job->started; i++)
        fds[i] = (struct pollfd){job->process[i].heard_all ? -1 : job->process[i].fd, POLLIN, 0};
    fds[job->started] = (struct pollfd){signals, POLLIN, 0};
    int due_ms = faults_wait_ms(job);
    if (poll(fds, (nfds_t)job->started + 1, due_ms < 0 ? SILENCE_MS : due_ms) == 0 && due_ms < 0)
        job_fail(job, "no word from any worker for %d s", SILENCE_MS / 1000);
    hear_signals(job, signals);
    for (int i = 0; i < job->started; i++) hear(job, i);
    fleet_reap(job);
}

static bool prepare(job_t *job)
{
    digits_t digits;
    char error[400];
    if (!digits_load(&digits, job->options->data, error, sizeof error)) {
        job_fail(job, "%s", error);
        return false;
    }
    job->images = digits.train.count;
    job->steps = (uint64_t)shards_steps(job->images) * (uint64_t)job->options->epochs;
    digits_free(&digits);
    job->step = calloc(job->steps, sizeof *job->step);
    if (!job->step) job_fail(job, "no memory for %llu steps", (unsigned long long)job->steps);
    return job->step != NULL;
}

bool job_run(job_t *job, const options_t *options, bool disturbed, int signals)
{
    *job = (job_t){.options = options, .disturbed = disturbed, .live = isatty(STDOUT_FILENO)};
    job->name = disturbed ? "disturbed" : "undisturbed";
    job->start_ns = now_ns();
    if (!prepare(job)) return false;
    if (disturbed) faults_begin(job);
    for (int i = 0; i < options->workers && fleet_start(job); i++) {
    }
    while (!job->failed && !job->interrupted && fleet_works(job)) {
        hear_all(job, signals);
        faults_do(job);
        replace(job);
        show_progress(job);
    }
    fleet_end(job);
    if (job->interrupted || job->failed) return false;
    if (!job->tested) job_fail(job, "all workers have ended and none has a result");
    job_say(job, "done: %d of %d test images right, %llu steps in %.2f s", job->right, job->tested,
            (unsigned long long)job->known, (double)job->elapsed_ns / 1e9);
    return !job->failed;
}

void job_free(job_t *job)
{
    free(job->step);
    job->step = NULL;
}
