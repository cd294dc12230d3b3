/* SPDX-License-Identifier: Apache-2.0
 *
 * What the monitor and the workers have in common: the options.
 */
#ifndef DIGITS_H
#define DIGITS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define MOST_WORKERS 12

#define MOST_FAULTS    8
#define FAULT_HALF_WAY UINT64_MAX

typedef struct {
    int worker;
    bool stop;   /* for two seconds; else killed */
    uint64_t at; /* after so many steps */
    bool done;
    uint64_t over_ns; /* when a stopped one goes on; 0: none is stopped */
} fault_t;

typedef struct {
    int worker;
    char *text;  /* WORKER:NAME=VALUE, */
    char *value; /* and in it NAME=VALUE, for the environment of that worker in the disturbed run */
} setting_t;

typedef struct {
    int workers, epochs;
    int least; /* accuracy that must be reached, in thousandths */
    fault_t fault[MOST_FAULTS];
    int faults;
    setting_t setting[MOST_FAULTS];
    int settings;
    uint64_t seed;
    const char *data, *out;
    bool no_timeline;
    bool gpu;             /* tensors are on GPUs while they are summed up */
    const char *timeline; /* a worker's: the folder for its timelines, NULL: none */
} options_t;

static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

int worker_main(const options_t *options);

#endif
