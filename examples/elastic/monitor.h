/* SPDX-License-Identifier: Apache-2.0
 *
 * The monitor process: one thread, one poll loop. fleet.c has the worker processes, front.c the requests, rules.c
 * decides, moves.c carries out, faults.c breaks things, hosts.c makes the two hosts with a cable between them.
 */
#ifndef ELASTIC_MONITOR_H
#define ELASTIC_MONITOR_H

#include "elastic.h"

#include <sys/types.h>

#define MOST_PEERS 48 /* worker processes at a time, those that were replaced and have not ended yet among them */

typedef enum {
    PEER_NONE,     /* the slot is free */
    PEER_STARTING, /* no hello yet */
    PEER_SPARE,    /* is there, has no rank */
    PEER_MEMBER,   /* has a rank in the epoch that serves */
    PEER_FENCED    /* was replaced or is leaving; nothing that it says counts */
} peer_state_t;

typedef struct {
    peer_state_t state;
    int index, host;
    pid_t pid; /* 0: has ended */
    int control, front;
    int rank;                   /* in the epoch that serves */
    int next_rank;              /* in the move that is under way; -1: none */
    bool ready, dead, expected; /* of the move; ended while it was needed; may end by a signal */
    kolo_status_t error;        /* reported in the epoch that serves */
    bool cut_off, slow;
    uint64_t heard_ns, started_ns, wake_ns, slow_ns;
    uint64_t batches, latency_us, term_ps;
} peer_t;

typedef enum { MOVE_NONE, MOVE_SECOND_INIT, MOVE_SHRINK, MOVE_RESCUE, MOVE_REINIT, MOVE_KINDS } move_kind_t;
typedef enum {
    STEP_SETTLE, /* something is wrong: wait for everybody's word */
    STEP_CREW,   /* nobody is left: wait for new workers */
    STEP_ID,
    STEP_READY,
    STEP_ORDER, /* the order is in a batch */
    STEP_RESUME /* serving again, no answer yet */
} move_step_t;

typedef struct {
    move_kind_t kind;
    move_step_t step;
    epoch_t epoch; /* that the move makes */
    int nranks, attempt;
    bool recovery, first;
    uint64_t started_ns, deadline_ns, gap_ns;
    char reason[300];
} move_t;

typedef struct {
    uint64_t value, made_ns;
    uint32_t tries, answers;
} request_t;

typedef struct {
    request_t *requests;
    uint64_t made, done, capacity; /* [done, made) are unanswered */
    double owed;                   /* requests that the rate has not given out yet */
    uint64_t clock_ns, window_ns, window_made, rate;
    bool waiting; /* a batch is out */
    batch_t batch;
    uint64_t sent_ns, answered_ns;
    uint64_t retried, duplicates, wrong, refused;
    /* longest time without an answer: of all, during planned moves, and while nothing went on */
    uint64_t gap_ns, move_gap_ns, calm_gap_ns;
    bool disturbed; /* something failed since the last answer */
} front_t;

typedef struct {
    int workers, seconds;
    uint64_t seed;
    bool kill, stop, cut, slow;
    bool check;   /* each of the four moves has to be made */
    int patience; /* factor on all time limits */
    int pause_ms; /* mean time between faults */
} options_t;

typedef struct {
    options_t options;
    int batch_ms, silent_ms, beat_ms, settle_ms, init_ms;
    uint64_t start_ns, end_ns; /* no new requests and faults after it */
    uint64_t dice;
    peer_t peers[MOST_PEERS];
    int made_peers;
    front_t front;
    epoch_t epoch, last_epoch; /* that serves, 0: none; the last one given to anything */
    move_t move;
    uint64_t moves[MOVE_KINDS], failed_moves, recoveries, recovery_ns, longest_recovery_ns;
    uint64_t retry_ns, surplus_ns; /* no planned move before; more workers than needed since */
    order_t order;                 /* to go into the next batch */
    int32_t excluded[MOST_WORKERS];
    int excluded_count;
    uint64_t next_fault_ns, heal_ns;
    unsigned bag; /* faults not yet drawn from this round */
    bool linked, is_cut, stopping, interrupted, said_abort;
    uint64_t faults[4];
    int bad_ends;
} monitor_t;

/* main.c */
void say(const monitor_t *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t dice(monitor_t *m, uint64_t sides);

/* fleet.c */
peer_t *fleet_spawn(monitor_t *m);
void fleet_reap(monitor_t *m);
bool fleet_tell(peer_t *p, note_t *note);
void fleet_tell_kind(peer_t *p, note_kind_t kind, epoch_t epoch);
void fleet_fence(monitor_t *m, peer_t *p, const char *why);
int fleet_count(const monitor_t *m, peer_state_t state);
int fleet_members(monitor_t *m, peer_t **list);
bool fleet_all_ended(const monitor_t *m);
void fleet_end(monitor_t *m);

/* front.c */
bool front_generate(monitor_t *m);
void front_work(monitor_t *m);
void front_hear(monitor_t *m, peer_t *p);
void front_interrupt(monitor_t *m);

/* rules.c */
void rules_hear(monitor_t *m, peer_t *p);
void rules_decide(monitor_t *m);
int rules_want(const monitor_t *m);

/* moves.c */
extern const char *const move_names[MOVE_KINDS];
void move_begin(monitor_t *m, move_kind_t kind, peer_t **ranks, int nranks, const char *reason);
void move_hear(monitor_t *m, peer_t *p, const note_t *note);
void move_watch(monitor_t *m);
void move_switched(monitor_t *m);
void move_give_up(monitor_t *m, const char *why);
void recovery_begin(monitor_t *m, const char *reason);
void recovery_answered(monitor_t *m, uint64_t gap_ns);

/* faults.c */
void faults_work(monitor_t *m);
void faults_undo(monitor_t *m);

/* hosts.c */
bool hosts_make(monitor_t *m, const char **why_not);
bool hosts_enter(int host); /* in a process to be: it runs on that host from now on */
void hosts_link(bool up);
void hosts_end(void);

#endif
