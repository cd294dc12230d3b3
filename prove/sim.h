/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the simulator share.
 */
#ifndef KOLO_PROVE_SIM_H
#define KOLO_PROVE_SIM_H

#include "prove/fabric.h"
#include "prove/model.h"

typedef struct {
    kolo_cursor_t at;
    uint32_t rank, lane, tile;
    uint64_t left; /* bytes of the row that are not done */
    bool begun, done, parked;
    double time;
    uint32_t *waits;
} kolo_sim_lane_t;

typedef struct {
    double busy;                      /* until when the core works */
    double factor;                    /* ranks per core of its node, at least 1 */
    uint32_t node, local, first_lane; /* local: its number on its node */
    uint32_t *signals;
    double *signal_time;
} kolo_sim_rank_t;

typedef struct {
    double time;
    uint32_t lane;
} kolo_sim_due_t;

typedef struct {
    kolo_model_t model; /* plans and channels only */
    const kolo_sim_machine_t *machine;
    uint64_t count;
    uint32_t type_bytes, tiles, depth;
    bool apart; /* one rank stands for many, each alone on its node */
    uint64_t tile_bytes;
    kolo_sim_lane_t *lanes;
    uint32_t nlanes;
    kolo_sim_rank_t *ranks;
    double *arrive; /* by reader and slot */
    double *freed;  /* by channel and slot */
    uint32_t *left; /* by channel and slot: readers that have not taken it */
    double *uplink;
    uint64_t *uplink_bytes;
    kolo_fabric_t fabric;
    kolo_sim_due_t *heap;
    uint32_t nheap;
    uint32_t *waits;
    kolo_sim_result_t *result;
} kolo_sim_t;

/* Returns the bytes of a chunk of the plan's grid. */
uint64_t kolo_prove_chunk_bytes(const kolo_sim_t *s, const kolo_plan_t *p, uint32_t chunk);
/* Runs all lanes to their end and fills s->result. KOLO_ERR_INTERNAL: one waits for ever. */
kolo_status_t kolo_prove_run_sim(kolo_sim_t *s, uint32_t nranks);

#endif
