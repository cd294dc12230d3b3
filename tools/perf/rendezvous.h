/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-perf rendezvous: keyed tensors between two processes. inside_rendezvous.c runs the two and times,
 * inside_rendezvous_main.c reads the command line and prints.
 */
#ifndef KOLO_TOOLS_PERF_RENDEZVOUS_H
#define KOLO_TOOLS_PERF_RENDEZVOUS_H

#include "perf.h"

#include <kolo/rendezvous.h>
#include <signal.h>
#include <sys/types.h>

typedef enum {
    PERF_RDV_COPIES,     /* of values, by us */
    PERF_RDV_WRITES,     /* work requests */
    PERF_RDV_NOTICES,    /* completions at the other end */
    PERF_RDV_MESSAGES,   /* of the protocol */
    PERF_RDV_REQUESTS,   /* round trips: each request, ... */
    PERF_RDV_REREQUESTS, /* ... and each request made again with memory of the right size */
    PERF_RDV_WORK,       /* of network cards: work requests, ... */
    PERF_RDV_COMPLETIONS,
    PERF_RDV_REGISTRATIONS,
    PERF_RDV_COUNTS
} perf_rdv_count_t;

typedef struct {
    uint64_t bytes, values;
    int depth;
    double us;                      /* per value */
    double counts[PERF_RDV_COUNTS]; /* per value, of both processes */
} perf_rdv_row_t;

typedef struct {
    void *task;
    pid_t child;
    bool own; /* values are received into memory of the asker's own */
} perf_rdv_t;
/* Starts the two processes. perf_rdv_close() in any case; returns 0 when both ended well. */
kolo_status_t perf_rdv_open(perf_rdv_t *r, const char *protocol);
int perf_rdv_close(perf_rdv_t *r, bool orderly);
/* `values` values, at most `depth` receives under way. */
kolo_status_t perf_rdv_measure(perf_rdv_t *r, uint64_t bytes, uint64_t values, int depth, perf_rdv_row_t *row);

int perf_rendezvous(int argc, char **argv); /* exit status */

#endif
