/* SPDX-License-Identifier: Apache-2.0
 *
 * The monitor of one run: hears what kolorun and its workers print, kills one half way, shows the progress.
 */
#include "job.h"

#include "data.h"
#include "shards.h"

#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef KOLO_SANITIZED
#define PATIENCE 3
#else
#define PATIENCE 1
#endif
#define SILENCE_MS                                                                                                 \
    (40000 * PATIENCE)  /* longer than any limit of the workers: they tell what is wrong, if they can */
#define LINE_MS    100  /* between two progress lines on a terminal */
#define BACK_OFF   12   /* the replacement comes when a 12th of the steps can have been made without it, */
#define BACK_OFF_S 0.02 /* but not before */

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

/* ---- what is printed ---- */

static void take_hello(job_t *job, int index, int pid)
{
    process_t *p = &job->process[index];
    *p = (process_t){.pid = pid, .pidfd = (int)syscall(SYS_pidfd_open, pid, 0)};
    if (index >= job->options->workers) job_say(job, "worker %d is started as a replacement", index);
}

static void take_ranks(job_t *job, int index, int was, int nranks, int rank, uint64_t step, uint64_t us)
{
    process_t *p = &job->process[index];
    p->in = true;
    if (rank != 0) return; /* all tell; one is enough */
    if (job->ranks_now == 0) job->start_ns = now_ns();
    job->ranks_now = nranks;
    if (was == 0) return;
    job_mark(job, "%d -> %d ranks", was, nranks);
    job_say(job, "%d -> %d ranks after step %" PRIu64 "; the change took %.1f ms, no step lost", was, nranks, step,
            (double)us / 1e3);
}

static void take_done(job_t *job, int index, int right, int tested, uint64_t hash)
{
    if (job->tested && (job->right != right || job->final_hash != hash))
        job_fail(job, "worker %d has another result than the others", index);
    job->right = right;
    job->tested = tested;
    job->final_hash = hash;
    job->elapsed_ns = now_ns() - job->start_ns;
}

static void hear_worker(job_t *job, int index, const char *text)
{
    told_t n;
    int pid, was, nranks, rank, right, tested;
    uint64_t step, us, hash;
    if (index < 0 || index >= MOST_PROCESSES)
        job_fail(job, "%d workers have been started and still some are missing", index);
    else if (sscanf(text, "step %" SCNu64 " %" SCNx64 " %d %d %lf", &n.step, &n.hash, &n.samples, &n.nranks,
                    &n.loss) == 5)
        books_take(job, index, &n);
    else if (sscanf(text, "hello %d", &pid) == 1)
        take_hello(job, index, pid);
    else if (sscanf(text, "ranks %d %d %d %" SCNu64 " %" SCNu64, &was, &nranks, &rank, &step, &us) == 5)
        take_ranks(job, index, was, nranks, rank, step, us);
    else if (sscanf(text, "done %d %d %" SCNx64, &right, &tested, &hash) == 3)
        take_done(job, index, right, tested, hash);
    else if (strncmp(text, "failed ", 7) == 0)
        job_fail(job, "worker %d: %s", index, text + 7);
    else
        job_say(job, "worker %d: %s", index, text); /* a warning of the library */
}

/* A process has ended, says kolorun, and not well. */
static void hear_end(job_t *job, int index, const char *how)
{
    process_t *p = &job->process[index];
    if (p->pidfd >= 0) close(p->pidfd);
    p->pidfd = -1;
    if (!job->disturbed || strstr(how, "was killed by signal") == NULL)
        job_fail(job, "worker %d ended before its work was done", index);
}

void job_hear(job_t *job, char *line)
{
    int index = -1, end = 0;
    if (sscanf(line, "[%d] %n", &index, &end) == 1 && end > 0) {
        hear_worker(job, index, line + end);
        return;
    }
    job_say(job, "%s", line);
    if (sscanf(line, "kolorun: process %d (%n", &index, &end) == 1 && end > 0 && index >= 0 &&
        index < MOST_PROCESSES)
        hear_end(job, index, line + end);
}

/* ---- the loop ---- */

static void hear_signals(job_t *job, int signals)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD) job->interrupted = true;
}

static void hear_all(job_t *job, int signals)
{
    struct pollfd fds[] = {{signals, POLLIN, 0}, {job->words, POLLIN, 0}};
    int due_ms = faults_wait_ms(job);
    if (poll(fds, 2, due_ms < 0 ? SILENCE_MS : due_ms) == 0 && due_ms < 0)
        job_fail(job, "no word from any worker for %d s", SILENCE_MS / 1000);
    hear_signals(job, signals);
    launch_read(job);
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

/* What the fastest of such parts took: where others use the machine, many take longer. */
static double part_s(const job_t *job)
{
    const uint64_t part = job->steps / BACK_OFF + 1;
    uint64_t least = UINT64_MAX;
    for (uint64_t i = part; i < job->steps; i++)
        if (job->step[i].at_ns - job->step[i - part].at_ns < least)
            least = job->step[i].at_ns - job->step[i - part].at_ns;
    return least < UINT64_MAX ? (double)least / 1e9 : 0;
}

bool job_run(job_t *job, const options_t *options, const job_t *like, int signals)
{
    *job = (job_t){.options = options, .disturbed = like != NULL, .live = isatty(STDOUT_FILENO), .words = -1};
    job->name = job->disturbed ? "disturbed" : "undisturbed";
    job->start_ns = now_ns();
    job->back_off_s = like ? fmax(part_s(like), BACK_OFF_S) : BACK_OFF_S;
    for (int i = 0; i < MOST_PROCESSES; i++) job->process[i].pidfd = -1;
    if (!prepare(job)) return false;
    if (job->disturbed) faults_begin(job);
    bool started = launch_start(job);
    while (started && !job->failed && !job->interrupted && job->words >= 0) {
        hear_all(job, signals);
        faults_do(job);
        show_progress(job);
    }
    launch_end(job);
    if (job->interrupted || job->failed) return false;
    /* Who is killed after all have agreed that all is done makes kolorun fail, and nothing is lost. */
    if (!job->tested || (job->status != 0 && !job->disturbed))
        job_fail(job, "kolorun has ended with status %d and %s result", job->status, job->tested ? "a" : "no");
    job_say(job, "done: %d of %d test images right, %llu steps in %.2f s", job->right, job->tested,
            (unsigned long long)job->known, (double)job->elapsed_ns / 1e9);
    return !job->failed;
}

void job_free(job_t *job)
{
    free(job->step);
    job->step = NULL;
}
