/* SPDX-License-Identifier: Apache-2.0
 *
 * What kolo-perf takes from inside the library: the choice that a communicator remembers, and forcing another one.
 */
#ifndef KOLO_TOOLS_PERF_INSIDE_H
#define KOLO_TOOLS_PERF_INSIDE_H

#include "comm/comm.h"
#include "perf.h"

/* The collective behind a name of ours; sendrecv is KOLO_COLL_P2P. */
kolo_coll_t perf_inside_coll(perf_coll_t coll);
/* How the communicator ran this call: what it remembers, else (another call took the place) what the tuner, a pure
 * function of what the communicator is, says again. */
typedef struct {
    kolo_way_t way;
    uint32_t piece_bytes; /* of a slot; 0: references, long tiles */
} perf_ran_t;
kolo_status_t perf_inside_ran(const perf_job_t *job, perf_coll_t coll, uint64_t count, perf_ran_t *ran);
/* As KOLO_ALGO from the next call on; all ranks. Returns what was before. */
const char *perf_inside_force(const perf_job_t *job, const char *text);
/* What the tuner chooses now. */
kolo_status_t perf_inside_choose(const perf_job_t *job, perf_coll_t coll, uint64_t count,
                                 kolo_tune_choice_t *choice);

#endif
