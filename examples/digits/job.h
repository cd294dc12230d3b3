/* SPDX-License-Identifier: Apache-2.0
 *
 * A training run as the monitor sees it: a job of kolorun, what its processes print, and the faults that are done
 * to it.
 */
#ifndef DIGITS_JOB_H
#define DIGITS_JOB_H

#include "digits.h"

#include <sys/types.h>

#define MOST_PROCESSES (4 * MOST_WORKERS) /* replacements included */
#define MOST_EVENTS    32

typedef struct {
    uint64_t at_ns; /* since the start of the run */
    uint64_t hash;  /* of the state after the step: the same from every worker, or the run has failed */
    double loss;
    int nranks, samples, reports;
} step_t;

typedef struct {
    double at_s;
    char text[64];
} event_t;

typedef struct {
    pid_t pid;
    int pidfd;         /* -1: not there yet, or ended */
    uint64_t reported; /* steps */
    bool in;           /* has been a rank */
} process_t;

typedef struct {
    uint64_t step, hash;
    int samples, nranks;
    double loss;
} told_t;

typedef struct {
    const options_t *options;
    const char *name;
    bool disturbed; /* faults are done to it, and losses of any kind are no failure */
    fault_t fault[MOST_FAULTS];
    int faults;
    uint64_t steps; /* to be made */
    step_t *step;   /* steps of them */
    uint64_t known; /* the newest that was reported */
    int images;     /* for training */

    process_t process[MOST_PROCESSES]; /* by kolorun's numbers */
    pid_t kolorun;                     /* 0: ended */
    int status;                        /* its exit status then */
    int words;                         /* a pipe of what it prints; -1: no more comes */
    char text[16384];
    size_t used;
    double back_off_s; /* from a failure to the replacement */
    uint64_t start_ns;
    uint64_t last_line_ns, shown; /* the last progress line: when, and after which step */
    bool live;                    /* the progress line is rewritten in place */
    event_t event[MOST_EVENTS];
    int events;

    int ranks_now, right, tested;
    uint64_t final_hash, elapsed_ns;
    bool failed, interrupted;
} job_t;

/* Runs the whole training and leaves in `job` what happened. `like`: NULL, or an undisturbed run before; then this
 * one is disturbed. `signals` is a signalfd that tells of the wish to end and of the ends of children. True: it has
 * run to its end without anything unexpected. */
bool job_run(job_t *job, const options_t *options, const job_t *like, int signals);
void job_free(job_t *job);
/* What happened: in a line of its own; in the picture. */
__attribute__((format(printf, 2, 3))) void job_say(job_t *job, const char *format, ...);
__attribute__((format(printf, 2, 3))) void job_mark(job_t *job, const char *format, ...);
__attribute__((format(printf, 2, 3))) void job_fail(job_t *job, const char *format, ...);

/* books.c. Takes what worker `index` says of a step. */
void books_take(job_t *job, int index, const told_t *n);
/* Steps that are missing, plus those in which the samples were not those of the step. */
uint64_t job_lost_steps(const job_t *job);
/* How many ranks there were, one after the other: "4->3->4". Returns the last number. */
int job_ranks(const job_t *job, char *text, size_t room);

/* faults.c. Takes "WORKER" or "WORKER@STEP"; false: it is not that. */
bool faults_take(options_t *o, bool stop, const char *text);
/* Takes "WORKER:NAME=VALUE". */
bool faults_take_setting(options_t *o, char *text);
void faults_begin(job_t *job);
/* Does what is due. */
void faults_do(job_t *job);
/* Until something is due that no worker will tell; -1: nothing. */
int faults_wait_ms(const job_t *job);

/* launch.c: kolorun, which starts the workers. */
bool launch_start(job_t *job);
/* Calls job_hear() with each line that has come. */
void launch_read(job_t *job);
/* Ends what still runs, kolorun and its workers. */
void launch_end(job_t *job);
void job_hear(job_t *job, char *line);

/* plot.c: loss over steps, throughput and ranks over time of two runs. False: the file cannot be written
 * (errno). */
bool plot_write(const char *path, const job_t *disturbed, const job_t *undisturbed);

/* timeline.c: a folder for the workers' timelines. False: errno. */
bool timeline_prepare(const char *folder);
/* One file of all of them. */
bool timeline_merge(const char *folder, const char *path);

#endif
