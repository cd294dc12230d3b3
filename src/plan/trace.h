/* SPDX-License-Identifier: Apache-2.0
 *
 * What an executor records when a test asks, so that the verifier can hold it against the plan.
 */
#ifndef KOLO_PLAN_TRACE_H
#define KOLO_PLAN_TRACE_H

#include "plan/plan.h"

/* One step of a real execution. */
typedef struct {
    int32_t peer; /* -1: NODE */
    uint8_t dir;  /* kolo_dir_t */
    bool node;
    uint16_t lane;
    uint8_t buf; /* where the payload came from or went to */
    uint32_t chunk, tile;
} kolo_trace_step_t;

#endif
