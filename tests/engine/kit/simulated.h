/* SPDX-License-Identifier: Apache-2.0
 *
 * The slow path of as many ranks as one likes, in one process: what ranks send is encoded, merged, decoded and
 * counted by the engine's own code, only that bytes are handed over instead of sent. Both ways, flat and by the
 * tree, with what each costs its busiest rank.
 */
#ifndef KOLO_TESTS_ENGINE_KIT_SIMULATED_H
#define KOLO_TESTS_ENGINE_KIT_SIMULATED_H

#include "engine/controller/tree.h"

typedef struct { /* what one rank sends in one cycle */
    const kolo_tensor_request_t **requests;
    size_t count;
} sim_list_t;

typedef struct {
    uint64_t messages, bytes, records, cpu_ns;
} sim_work_t;

typedef struct {
    sim_work_t first;   /* of rank 0, up to the answer's encoding */
    sim_work_t busiest; /* the most that any other rank has of each */
    int depth;          /* messages on the way from a rank to rank 0, at most */
} sim_cost_t;

/* A cycle. answer: what rank 0 sends to all; cost may be NULL. */
kolo_status_t sim_flat(kolo_controller_t *c, const sim_list_t *lists, kolo_bytes_t *answer, sim_cost_t *cost);
kolo_status_t sim_tree(kolo_controller_t *c, int fan_in, const sim_list_t *lists, kolo_bytes_t *answer,
                       sim_cost_t *cost);

#endif
