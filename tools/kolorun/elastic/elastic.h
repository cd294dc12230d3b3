/* SPDX-License-Identifier: Apache-2.0
 *
 * kolorun --min: a job whose processes come and go. The driver asks a script which hosts there are (discover),
 * starts and ends processes on them (workers), and tells those that make up the job what becomes of the ranks
 * (plan). It is a policy of the loop in ../job (run.c). How a process and the driver talk stands in
 * src/elastic/state.h; the processes change their communicator themselves (kolo/state.h), the driver only says who
 * should be in it.
 *
 * A plan adds processes or removes some. One is open at a time: until all that it concerns have told that it is
 * over, or are gone.
 */
#ifndef KOLO_TOOLS_ELASTIC_H
#define KOLO_TOOLS_ELASTIC_H

#include "../job/job.h"

/* ---- discovery ---- */

typedef struct {
    const elastic_options_t *options;
    const struct rlimit *files; /* what it starts with */
    kolorun_sink_t *err;        /* for warnings */
    pid_t pid;                  /* 0: it does not run */
    int pidfd, out, said;
    char *text; /* of its stdout */
    size_t used;
    char complaint[200]; /* the begin of its stderr */
    size_t complaint_used;
    bool cut, has_answer;
    double next_at, kill_at;   /* when it is started, ended */
    char warned[500];          /* the last warning: it is not repeated */
    kolorun_hostlist_t answer; /* the last good one */
} discovery_t;

void discovery_init(discovery_t *d, const elastic_options_t *options, const struct rlimit *files,
                    kolorun_sink_t *err);
void discovery_polls(const discovery_t *d, struct pollfd polls[POLICY_POLLS]);
/* Starts the script when it is time, reads, ends it when it takes too long. True: there is a new good answer. */
bool discovery_progress(discovery_t *d);
double discovery_next_s(const discovery_t *d);
void discovery_fini(discovery_t *d);

/* ---- workers ---- */

typedef enum {
    WORKER_STARTING, /* nothing was heard of it */
    WORKER_IDLE,     /* it can be taken in */
    WORKER_CALLED,   /* the open plan takes it in */
    WORKER_MEMBER,
    WORKER_LEAVING, /* it was told to leave, or asked to by its plan; how it ends does not matter */
    WORKER_ENDED
} worker_state_t;

typedef struct {
    process_t p; /* of its host, slot is the number of its slot */
    worker_state_t state;
    bool unwanted; /* its slot is gone */
    int rank;      /* the last one it told */
    bool told;     /* how to come in */
    bool wound_up; /* that few are enough now */
    bool done;     /* it has told that all is */
    uint32_t plan; /* the last one it told to be over */
    unsigned said; /* words for it so far */
    double since;  /* in this state */
} worker_t;

typedef struct {
    job_t job;
    discovery_t discovery;
    bool founded;            /* there has been a rank */
    uint32_t plan;           /* the last one */
    bool open, removes;      /* it is not over; it removes */
    int add;                 /* how many it takes in */
    uint32_t seen_plan;      /* of the communicator that was told of last */
    int seen_nranks, resets; /* how often the ranks have changed */
    bool finishing;          /* a process has ended well: what remains is to end the rest */
    int first_failure;       /* the status of the first process that failed */
    char first_failure_text[400];
    double short_since; /* 0: there are not too few */
} elastic_t;

static inline worker_t *elastic_worker(const elastic_t *e, int i)
{
    return (worker_t *)e->job.processes[i];
}

/* workers.c */
void elastic_ended(job_t *job, process_t *p);
void elastic_lost(job_t *job, job_host_t *host, const char *why);
/* from.W.N: a word. */
void elastic_file(job_t *job, job_host_t *host, const char *name, const void *data, size_t bytes);
void elastic_set_state(worker_t *w, worker_state_t state);
/* Takes the answer of the script as the hosts of now. */
void elastic_take_hosts(elastic_t *e, const kolorun_hostlist_t *list);
/* Starts what is wanted and ends what is not. */
void elastic_fill_slots(elastic_t *e);
void elastic_say(worker_t *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
int elastic_count(const elastic_t *e, worker_state_t state);
/* When something is to be started next, 0: not by time. */
double elastic_next_start_s(const elastic_t *e);

/* plan.c */
/* A word of a worker; bytes come from outside. */
void elastic_on_word(elastic_t *e, worker_t *w, const char *text, size_t bytes);
/* Decides who should be in the job, and says it. */
void elastic_plan(elastic_t *e);
double elastic_next_plan_s(const elastic_t *e);

/* run.c */
int elastic_run(kolorun_options_t *options); /* returns the exit status */

#endif
