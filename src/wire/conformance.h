/* SPDX-License-Identifier: Apache-2.0
 *
 * The conformance kit: what every wire must do, run on each by the same code. A wire's test is a main() that calls
 * kolo_conformance_main(); the kit forces the wire by disabling those before it, bootstraps over loopback, and runs
 * the cases that the wire's capabilities allow, between threads and between processes.
 */
#ifndef KOLO_WIRE_CONFORMANCE_H
#define KOLO_WIRE_CONFORMANCE_H

#include "wire/testkit.h"

enum { KOLO_CONFORM_THREADS = 1, KOLO_CONFORM_PROCESSES = 2 };

typedef struct {
    const char *name;
    int nranks;
    int modes; /* KOLO_CONFORM_ bits it makes sense in */
    int (*run)(kolo_kit_t *kit);
    uint32_t needs;  /* KOLO_CAP_ bits of the wire */
    uint32_t except; /* KOLO_CAP_ bits of wires that it is not for */
    int dies;        /* rank that kills itself, -1 none */
} kolo_conformance_case_t;

extern const kolo_conformance_case_t kolo_conformance_data[], kolo_conformance_faults[];
extern const size_t kolo_conformance_ndata, kolo_conformance_nfaults;

/* Disables every wire before `wire` in the order of preference and enables the rest, through the parameters. */
kolo_status_t kolo_conformance_force(const kolo_wire_ops_t *wire);
/* Number of failed cases; prints one line per case. argv[1], if there is one: only cases whose names contain it. */
int kolo_conformance_main(const kolo_wire_ops_t *wire, int modes, int argc, char **argv);

/* The one that is being tested, for cases. */
extern const kolo_wire_ops_t *kolo_conformance_wire;

#endif
