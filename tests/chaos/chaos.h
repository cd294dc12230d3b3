/* SPDX-License-Identifier: Apache-2.0
 *
 * The chaos harness: a driver starts ranks as processes, each runs a random program whose results it can check, one
 * fault happens at a random moment, and everybody has to end in time, with right results or an error, leaving
 * nothing behind. Everything follows from one seed.
 *
 *     main.c      options, random runs                         driver.c   one run: start, fault, reap
 *     scenario.c  what a seed stands for                       verdict.c  was it right? what did the hung wait for?
 *     rank.c      the life of a rank                           points.c   every fail point with every fault
 *     calls.c     random calls and what they must give         faults.c   faults inside a rank's process
 *     parts.c     steps that make communicators
 *     census.c    what a process holds                         net.c      hosts as network namespaces
 *     jobs.c      runs side by side                            table.c    sums, the table, records
 */
#ifndef KOLO_TESTS_CHAOS_H
#define KOLO_TESTS_CHAOS_H

#include "base/failpoint.h"

#include <kolo/kolo.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define CHAOS_RANKS   8
#define CHAOS_PROCS   10 /* with those that grow in */
#define CHAOS_HOSTS   4
#define CHAOS_INIT_MS 6000
#define CHAOS_POINTS  192 /* places of the library, names may come twice */

#ifdef KOLO_SANITIZED
#define CHAOS_SANITIZED 1 /* limits are 20 times longer, that of init 4 times */
#else
#define CHAOS_SANITIZED 0
#endif

/* ---- numbers from a seed ---- */

static inline uint64_t chaos_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}
static inline uint64_t chaos_draw(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15ull;
    return chaos_mix(*state);
}
static inline int chaos_below(uint64_t *state, int n)
{
    return (int)(chaos_draw(state) % (uint64_t)n);
}

uint64_t chaos_now_ns(void);
void chaos_nap_us(long us);

/* ---- what a seed stands for ---- */

typedef enum { CHAOS_CMA, CHAOS_SHM, CHAOS_TCP, CHAOS_WIRES } chaos_wires_t;
typedef enum { CHAOS_END_FINALIZE, CHAOS_END_ABORT, CHAOS_END_SHRINK, CHAOS_ENDINGS } chaos_ending_t;
/* What is done to the victim. Through a fail point: see `rule`. */
typedef enum { CHAOS_NO_FAULT, CHAOS_AT_MOMENT, CHAOS_AT_POINT, CHAOS_CUT_LINK } chaos_how_t;

/* How far a rank has come. Step k is over: CHAOS_READY + k + 1. */
enum { CHAOS_BORN = 1, CHAOS_JOINING = 2, CHAOS_READY = 3, CHAOS_ENDING = 1000, CHAOS_GONE = 1001 };

typedef struct {
    uint64_t seed;
    int nranks, nsteps;
    chaos_wires_t wires;
    chaos_ending_t ending;
    bool background; /* non-blocking communicators */
    bool shrinks;    /* survivors shrink and go on, else they abort */
    bool destroys;   /* the end after an error is destroy, else abort */
    chaos_how_t how;
    kolo_fault_t fault;
    int victim;
    int at_progress;                    /* CHAOS_AT_MOMENT: when the victim has come so far ... */
    int after_us;                       /* ... and so much time has passed */
    int stop_ms;                        /* of KOLO_FAULT_STOP */
    int number;                         /* of KOLO_FAULT_NOMEM: allocations that fail */
    char rule[160];                     /* CHAOS_AT_POINT: KOLO_FAIL_POINT of the victim */
    bool after_error;                   /* something else went wrong before the fault */
    int hosts;                          /* 0: all ranks in this namespace */
    char algorithms[64];                /* KOLO_ALGO of all ranks, "" none */
    int grown;                          /* processes that grow in; the victim may be one of them */
    int grow_at, revoke_at, exclude_at; /* at which step; -1: never */
    bool unnamed;                       /* survivors shrink without a list of the lost */
    int early_victim;                   /* is killed before the fault, by this rule; -1: nobody */
    char early_rule[96];
} chaos_scenario_t;

void chaos_scenario(chaos_scenario_t *s, uint64_t seed, bool net);
static inline int chaos_procs(const chaos_scenario_t *s)
{
    return s->nranks + s->grown;
}
void chaos_scenario_print(const chaos_scenario_t *s, char *text, size_t bytes);
/* The victim is gone by this fault. */
bool chaos_is_deadly(const chaos_scenario_t *s);
/* Nobody but the clock should notice. */
bool chaos_is_harmless(const chaos_scenario_t *s);

/* ---- what ranks and driver share ---- */

typedef struct {
    int fds, threads, mappings;
} chaos_census_t;

typedef struct {
    _Atomic int progress;
    _Atomic uint64_t error_ns; /* when the first error came back to the rank */
    kolo_status_t status;
    int victim_at; /* its rank in the communicator that lasts, when the error came */
    int victim_as; /* the victim's rank in the communicator that is in use, -1: it is not in there */
    char where[64], text[1024];
    _Atomic int wrong;
    char wrong_text[512];
    _Atomic int leaks;
    char leak_text[768];
    bool made_grow_id;
    bool beside;        /* the error was in a communicator beside the one in use */
    bool shrunk_before; /* a shrink that is part of the program failed */
    int shrunk;         /* 1 it worked, -1 it did not */
    int shrunk_out;     /* without whom, as of this rank's call */
    int shrunk_of;      /* the generation of the communicator, and how many ranks it had */
    int shrunk_ranks;
    char shrink_text[512];
    char doing[160];
    _Atomic uint32_t hits[CHAOS_POINTS];
} chaos_report_t;

typedef struct {
    kolo_unique_id_t id;
    _Atomic int id_there;                                  /* -1: there will be none */
    _Atomic int broken;                                    /* somebody has seen an error: no more meetings */
    _Atomic int met_at_end, met_to_revoke, met_to_exclude; /* ranks that have come there */
    kolo_unique_id_t grow_id;
    int grow_old, grow_victim, grow_generation; /* ranks before the grow; the victim's in it; of comm before */
    _Atomic int through;                        /* ranks that go on without the one that is left out */
    _Atomic int grow_there;                     /* -1: there will be none */
    _Atomic uint64_t fault_ns;                  /* when the fault was done */
    _Atomic int fault_progress;                 /* how far the victim was then */
    chaos_report_t ranks[CHAOS_PROCS];
} chaos_shared_t;

/* ---- a rank ---- */

/* The whole life, in its own process. Those from nranks on grow in. */
void chaos_rank_live(const chaos_scenario_t *s, chaos_shared_t *shared, int proc);

typedef struct {
    const chaos_scenario_t *s;
    chaos_shared_t *shared;
    chaos_report_t *report;
    int proc;       /* which process this is; its rank at first */
    int rank, n;    /* in comm */
    int victim_at;  /* the victim's rank in comm, -1: it is not in there */
    int generation; /* of comm: grow, revoke and leaving ranks make a new one */
    bool left;      /* comm has gone on without this rank */
    kolo_comm_t comm;
    kolo_stream_t stream;
} chaos_life_t;

void chaos_doing(chaos_life_t *l, const char *what);
/* The first error of this rank. */
void chaos_note_error(chaos_life_t *l, kolo_status_t status, kolo_comm_t comm);
/* All ranks of comm, unless somebody is in trouble. Not through the library. */
bool chaos_meet(chaos_life_t *l, _Atomic int *met);
kolo_status_t chaos_work(chaos_life_t *l, kolo_comm_t comm, uint64_t seed, int from, int count, bool counts);
/* Finalizes where all is well, and frees. */
kolo_status_t chaos_part_with(chaos_life_t *l, kolo_comm_t comm, kolo_status_t status, const char *whom);

/* Steps that make communicators (parts.c): beside comm, or instead of it. */
kolo_status_t chaos_split(chaos_life_t *l, uint64_t seed);
kolo_status_t chaos_shrink_beside(chaos_life_t *l, uint64_t seed);
kolo_status_t chaos_grow(chaos_life_t *l, uint64_t seed);
kolo_status_t chaos_grow_in(chaos_life_t *l);
kolo_status_t chaos_revoke(chaos_life_t *l, uint64_t seed);
kolo_status_t chaos_exclude(chaos_life_t *l, uint64_t seed);

typedef struct {
    const chaos_scenario_t *scenario;
    chaos_report_t *report;
    kolo_comm_t comm;
    int rank, nranks;
    kolo_stream_t stream;
} chaos_caller_t;
/* Call number `k`, the same on all ranks; checks the result. */
kolo_status_t chaos_call(chaos_caller_t *c, uint64_t seed, int k);
/* Waits for what was begun in the background. */
kolo_status_t chaos_settle(kolo_comm_t comm, kolo_status_t status);
void chaos_wrong(chaos_report_t *report, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void chaos_faults_prepare(const chaos_scenario_t *s, chaos_shared_t *shared, int rank);
/* The process can be examined again. */
void chaos_faults_end(void);
/* Memory of the harness itself, which no fault touches. */
void *chaos_alloc(size_t bytes);
void chaos_free(void *p);

chaos_census_t chaos_census(char *text, size_t bytes);

/* ---- the driver ---- */

typedef struct {
    bool verbose, any_name, stopped;
    bool cards; /* what is over shared memory otherwise is by network cards, where there are some */
    int jobs, part, parts;
    double slow; /* limits are so many times longer */
    const char *debugger;
} chaos_options_t;
extern chaos_options_t chaos_options;

/* So many milliseconds, longer where that is asked for, or many runs share few cores, or there are sanitizers. */
uint64_t chaos_limit_ns(uint64_t ms);
/* How long ranks wait for each other outside the library: longer than init may take, and much shorter than a run,
 * so that one whose peers have gone another way ends by itself. */
uint64_t chaos_wait_ns(void);
void chaos_look_around(void);
/* What ranks give to init, shrink and the like. */
int chaos_init_timeout_ms(void);

typedef struct {
    pid_t pids[CHAOS_PROCS];
    int exits[CHAOS_PROCS]; /* as of waitpid(); -1: still there when time was up */
    int log_fd;
    bool fired;
    int strays; /* processes that were left behind */
    uint64_t took_ns;
} chaos_run_t;

typedef struct {
    bool hang, wrong, leak, fired;
    int misnamed, ndetect;
    bool in_bootstrap; /* the fault struck before the victim was in */
    double detect_ms[CHAOS_PROCS];
    bool late[CHAOS_PROCS]; /* this one is of a rank that was joining itself */
    char text[4096];
} chaos_verdict_t;

/* Zeroed memory that forked processes share. */
void *chaos_share(size_t bytes);
/* Runs a scenario and judges it. `count`: ranks count the passages through all points. */
void chaos_run(const chaos_scenario_t *s, chaos_shared_t *shared, chaos_verdict_t *verdict, bool count);
void chaos_judge(const chaos_scenario_t *s, const chaos_shared_t *shared, const chaos_run_t *run,
                 chaos_verdict_t *v);
/* What the processes that are left wait for, on stderr. */
void chaos_dump(const chaos_scenario_t *s, const chaos_shared_t *shared, const chaos_run_t *run);
void chaos_show_log(int fd);

/* ---- what came of it ---- */

typedef struct {
    uint64_t seed;
    int point; /* -1: none in particular */
    kolo_fault_t fault;
    bool cut; /* a link; no other fault */
    bool hang, wrong, leak, fired, joining;
    int misnamed, ndetect;
    double detect_ms[CHAOS_PROCS];
    bool late[CHAOS_PROCS];
} chaos_result_t;
void chaos_result(chaos_result_t *r, const chaos_scenario_t *s, const chaos_verdict_t *v, int point);

typedef struct {
    uint64_t runs, fired, hangs, wrong, leaks, misnamed;
    double *detect_ms;
    size_t ndetect, capacity;
} chaos_sum_t;

enum { CHAOS_ROW_CUT = KOLO_FAULT_COUNT, CHAOS_ROWS };
typedef struct {
    chaos_sum_t all, running[CHAOS_ROWS], joining[CHAOS_ROWS];
    uint64_t met[CHAOS_POINTS][KOLO_FAULT_COUNT];
    FILE *records; /* NULL: none */
} chaos_table_t;
void chaos_table_add(chaos_table_t *t, const chaos_result_t *r);
void chaos_table_print(chaos_table_t *t, FILE *f);
/* Returns how many pairs of point and fault there were fewer than `wanted` times. */
uint64_t chaos_table_print_points(const chaos_table_t *t, FILE *f, uint64_t wanted, const char *only);
void chaos_table_print_line(chaos_table_t *t, FILE *f);
void chaos_table_fini(chaos_table_t *t);
void chaos_print_head(FILE *f, const char *title);
void chaos_record_write(FILE *f, const chaos_result_t *r);
bool chaos_records_read(const char *path, chaos_table_t *t);

/* ---- many runs ---- */

typedef struct {
    uint64_t count, end_ns;
    int hosts;                           /* 0: no namespaces */
    void (*work)(void *arg, uint64_t i); /* in a worker */
    void (*took)(void *arg, const chaos_result_t *r);
    void *arg;
} chaos_jobs_t;
/* Calls work(0..count) in chaos_options.jobs processes, and took() here for what they send. false: one broke. */
bool chaos_jobs_run(const chaos_jobs_t *j);
void chaos_result_send(const chaos_result_t *r);
/* For what a run has to say on stderr, so that runs do not talk at once. */
void chaos_print_lock(bool locked);

bool chaos_points(chaos_table_t *table, uint64_t seed, int times, const char *only, uint64_t end_ns);
/* The first place of that name stands for all. */
bool chaos_is_first(size_t i);
/* There are programs that pass it, and the fault means something there. */
bool chaos_can_meet(size_t i, int fault);

/* Namespaces joined by a bridge; false: not possible here, and why. */
bool chaos_net_open(int hosts, char *why, size_t bytes);
void chaos_net_close(void);
/* The calling process goes to live on that host. */
bool chaos_net_enter(int host);
void chaos_net_link(int host, bool up);

#endif
