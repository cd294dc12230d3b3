/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks as forked processes, watched by a parent that never calls the library: so it may fork, and kill, at will.
 */
#ifndef KOLO_TESTS_KIT_PROCS_H
#define KOLO_TESTS_KIT_PROCS_H

#include "kit/ranks.h"

#include <stdatomic.h>
#include <sys/types.h>

typedef struct { /* what a rank leaves for the parent */
    kolo_status_t status;
    uint64_t at_ms, cpu_us, bytes, rounds;
    char text[1024];
} finding_t;

typedef struct { /* shared by the parent and all ranks */
    kolo_unique_id_t id;
    _Atomic int id_there, arrived[4];
    finding_t found[MAX_RANKS];
} shared_t;

typedef struct {
    rank_t r;
    shared_t *shared;
} proc_t;

typedef struct {
    int n;
    pid_t pids[MAX_RANKS];
    shared_t *shared;
} job_t;

/* Variables of job_start() for each wire between processes of a host, and for two hosts behind them. */
typedef struct {
    const char *name;
    const char *env[4];
} kit_wire_t;
#define LOCAL_WIRES 3
#define ALL_WIRES   4
extern const kit_wire_t kit_wires[ALL_WIRES];

/* Forks n processes with the variables `env` ("NAME=value", ends with NULL) and runs fn in each on a communicator.
 * HOSTS=k spreads the ranks over k hosts, as KOLO_HOST_ID tells them apart; "@2:NAME=value" is rank 2's alone. */
void job_start(job_t *job, int n, const char *const *env, void (*fn)(proc_t *), void *arg);
/* Waits for all but the rank `killed` (-1: none); returns how many went wrong. */
int job_finish(job_t *job, int killed);
/* Waits until `n` ranks have come to the point. */
void job_await(job_t *job, int point, int n);
/* Says that this rank has come to the point, and waits for the others. */
void proc_meet(proc_t *p, int point);

#endif
