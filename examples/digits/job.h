/* SPDX-License-Identifier: Apache-2.0
 *
 * A training run as the monitor sees it: its worker processes, what they report, and the faults that are done to
 * it.
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
    pid_t pid; /* 0: ended */
    int fd;
    uint64_t reported; /* steps */
    bool hello, joined, done, killed;
    bool in;        /* has a communicator */
    bool heard_all; /* its end of the socket is closed and nothing unread is left */
} process_t;

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

    process_t process[MOST_PROCESSES];
    int started; /* processes, ever */
    uint64_t start_ns, replace_at;
    uint64_t last_line_ns, shown; /* the last progress line: when, and after which step */
    bool live;                    /* the progress line is rewritten in place */
    event_t event[MOST_EVENTS];
    int events;

    int ranks_now, right, tested;
    uint64_t final_hash, elapsed_ns;
    double pause_ms; /* of the last change of ranks */
    bool failed, interrupted;
} job_t;

/* Runs the whole training and leaves in `job` what happened. `signals` is a signalfd that tells of the wish to end
 * and of the ends of children. True: it has run to its end without anything unexpected. */
bool job_run(job_t *job, const options_t *options, bool disturbed, int signals);
void job_free(job_t *job);
/* What happened: in a line of its own; in the picture. */
__attribute__((format(printf, 2, 3))) void job_say(job_t *job, const char *format, ...);
__attribute__((format(printf, 2, 3))) void job_mark(job_t *job, const char *format, ...);
__attribute__((format(printf, 2, 3))) void job_fail(job_t *job, const char *format, ...);

/* books.c. Takes what worker `index` says of a step. */
void books_take(job_t *job, int index, const note_t *n);
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

/* fleet.c: the processes. */
bool fleet_start(job_t *job);
void fleet_reap(job_t *job);
void fleet_end(job_t *job);
/* Has each worker that the job began with a communicator? From here on losses can be mended. */
bool fleet_all_in(const job_t *job);
/* Are there fewer than there should be, and nobody on the way? */
bool fleet_lacks_one(const job_t *job);
/* Are there workers whose end must be awaited? Not a newcomer for whom the run was over too soon. */
bool fleet_works(const job_t *job);

/* plot.c: loss, throughput and ranks over time of two runs. False: the file cannot be written (errno). */
bool plot_write(const char *path, const job_t *disturbed, const job_t *undisturbed);

/* timeline.c: a folder for the workers' timelines. False: errno. */
bool timeline_prepare(const char *folder);
/* One file of all of them. */
bool timeline_merge(const char *folder, const char *path);

#endif
