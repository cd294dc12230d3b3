/* SPDX-License-Identifier: Apache-2.0
 *
 * A job as kolorun drives it: hosts with an agent each (kolorun_host.h), the processes on them, and one loop over
 * signals, agents and time (job.c). What becomes of a job when a process ends, and which processes there are, is
 * the policy's: a fixed number of ranks (fixed.c), or processes that come and go (../elastic). Output, input, the
 * files of --output-dir, the store and the end of a job are the same for both. cause.c knows whom errors name.
 *
 * A policy has a struct of its own that begins with job_t, and processes that begin with process_t.
 */
#ifndef KOLO_TOOLS_KOLORUN_JOB_H
#define KOLO_TOOLS_KOLORUN_JOB_H

#include "../kolorun.h"
#include "../kolorun_input.h"
#include "../kolorun_options.h"
#include "../store/store.h"

typedef struct job job_t;

typedef struct {
    job_t *job;
    char name[KOLORUN_HOST_NAME_MAX + 1];
    int slots;             /* 0: no longer named */
    kolorun_host_t *agent; /* NULL: none runs */
    bool lost;             /* the agent has ended */
    int failures;          /* elastic jobs: since it was last well */
    double until;          /* nothing is started before */
    double failed_at;
} job_host_t;

#define JOB_CAUSE_WORDS 256 /* at most: "rank N (host H, process P) was lost" */

/* Whom the first error on a rank's stderr that names a lost rank names. */
typedef struct {
    char line[1024];
    size_t used;
    bool named;
    int rank, pid; /* pid 0: not told */
} job_cause_t;

typedef struct {
    int id; /* its number in words and in front of its lines */
    job_host_t *host;
    int slot; /* on its host */
    int pid;  /* 0: not told yet, or never */
    bool ended;
    int status, sig; /* its exit status as a shell has it; the signal that ended it, or 0 */
    char how[320];   /* it ended: "exited with status 1" */
    kolorun_stream_t out, err;
    job_cause_t cause;
    kolorun_sink_t files[2];
} process_t;

#define POLICY_POLLS 3 /* at most */

typedef struct {
    const char *one, *many; /* what a process is called */
    bool restarts;          /* what ends is started anew, unless the job is ending */
    /* Names the hosts; begins. false: it has been said why not. */
    bool (*prepare)(job_t *job);
    bool (*begin)(job_t *job);
    /* A process has ended or could not be started. */
    void (*ended)(job_t *job, process_t *p);
    /* The host's agent has ended. Its processes are called to have ended right after. */
    void (*lost)(job_t *job, job_host_t *host, const char *why);
    /* A process left a file of this name in the job's directory on this host. */
    void (*file)(job_t *job, job_host_t *host, const char *name, const void *data, size_t bytes);
    /* In each turn of the loop, after all that came was taken; when it must come at the latest, 0: not by time. */
    void (*turn)(job_t *job);
    double (*next_s)(const job_t *job);
    /* NULL: none. Fills at most POLICY_POLLS, returns how many. */
    nfds_t (*polls)(const job_t *job, struct pollfd *polls);
    /* NULL: no. Does the job go on although no process runs? */
    bool (*expects)(const job_t *job);
    void (*finish)(job_t *job); /* NULL: nothing is to be done */
} policy_t;

struct job {
    kolorun_options_t *options;
    const policy_t *policy;
    job_host_t **hosts; /* in the order in which they were first named */
    int nhosts;
    process_t **processes; /* by their number */
    int nprocesses, running, started;
    kolorun_sink_t out, err;
    kolorun_input_t input;
    bool paused[2];             /* the agents were told not to read the processes' stdout, stderr */
    kolo_store_server_t *store; /* NULL: none */
    int signal_fd, starter_fd;
    struct pollfd *polls;
    bool ending, killed;    /* asked the rest to end; stopped asking */
    bool interrupted;       /* the user wants the end: a second time means now */
    bool impatient;         /* after a second signal: do not wait until the output is read */
    int asked_by;           /* the SIGTERM or SIGHUP that asked the processes to end; 0: none */
    int exit_status;        /* of the first failure */
    double end_at, kill_at; /* seconds of the monotonic clock, 0 = none */
};

/* job.c */
int job_run(job_t *job, const policy_t *policy, kolorun_options_t *options); /* returns the exit status */
int job_run_fixed(kolorun_options_t *options);                               /* fixed.c */
/* Asks all to end. The sentence says why, unless that was done before. */
void job_end(job_t *job, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
void job_signal_all(job_t *job, int sig);

/* cause.c */
void job_cause_feed(job_cause_t *cause, const void *data, size_t bytes);
void job_cause_end(job_cause_t *cause);
/* Returns the cause of p's failure: p itself, or the failed process that its errors name, or theirs. *may_come: the
 * next one that is named still runs. */
const process_t *job_cause_of(const job_t *job, const process_t *p, bool *may_come);

/* process.c */
job_host_t *job_host_named(job_t *job, const char *name); /* makes it if it is new */
/* Starts its agent, if none runs. false: it has been said why not. */
bool job_host_open(job_host_t *host);
/* Closes agents that have ended or have nothing to do, or all; they end side by side. */
void job_close_agents(job_t *job, bool all, double patience_s);
/* A new process of so many bytes, which begin with process_t; the rest is zero. It is the job's. */
process_t *job_add(job_host_t *host, int slot, size_t bytes);
/* false: its arguments and variables are too large. */
bool job_start(process_t *p, const kolorun_place_t *place);
/* Opens its files of --output-dir, if any. false: it has been said why not. */
bool job_open_files(process_t *p);
void job_mark_ended(process_t *p);
/* "ranks 0, 3, ..." of those that run, on one host or (NULL) on all; "the job" where none does. */
const char *job_names(const job_t *job, const job_host_t *host, char text[80]);
/* Frees the processes that have ended. */
void job_drop_ended(job_t *job);

#endif
