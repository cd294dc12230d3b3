/* SPDX-License-Identifier: Apache-2.0
 *
 * The plans of a long broadcast and of a long reduce by kernels (gpu/cuda/piped.cuh), which no other executor
 * runs: for the simulator, and for the test that holds the kernels against them.
 */
#ifndef KOLO_TOOLS_TUNING_GPU_SPREAD_H
#define KOLO_TOOLS_TUNING_GPU_SPREAD_H

#include "algo/algo.h"

/* Each receiver owns a part, takes it from the root and hands it to the other receivers. To one receiver that is
 * one step. */
kolo_status_t gpu_emit_spread(const kolo_emit_env_t *env, kolo_plan_t **plan);

/* All ranks but the root own parts, or, between two, the root owns all; an owner reduces its part, and the root
 * gets it. */
kolo_status_t gpu_emit_owned_reduce(const kolo_emit_env_t *env, kolo_plan_t **plan);

#endif
