/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans on GPUs, for gpu/cuda. lower.c makes programs of plans and cuts calls into tiles, with no GPU in sight;
 * programs.c has the programs of a communicator in its region and launches them.
 */
#ifndef KOLO_GPU_CUDA_PLAN_PLAN_H
#define KOLO_GPU_CUDA_PLAN_PLAN_H

#include "exec/exec.h"
#include "gpu/cuda/plan/program.h"

/* Cuts what plans need behind the `at` bytes that a region has already. */
void kolo_cuda_plan_layout(uint32_t nranks, uint64_t at, kolo_cuda_plan_layout_t *layout);

/* A rank's program, and what all ranks' programs of this plan need: the same numbers on all ranks. */
typedef struct {
    kolo_cuda_program_t *image;
    size_t bytes;
    uint32_t lanes, events, scratch; /* the most that any rank has */
    uint32_t pairs, nodes;           /* connection lanes of each kind */
    bool refs;                       /* any rank passes references to its memory */
    bool lines;                      /* on all ranks pieces may go by lines */
} kolo_cuda_lowered_t;
/* Lowers this rank's of the plans of all. KOLO_ERR_UNSUPPORTED: an instruction has no form on GPUs, or the plan is
 * too large. */
kolo_status_t kolo_cuda_lower(const kolo_plan_t *const *plans, uint32_t nranks, uint32_t rank,
                              kolo_cuda_lowered_t *lowered);

/* Tells whether this rank's pieces may go by lines (lines.c). */
kolo_status_t kolo_cuda_plan_takes_lines(const kolo_plan_t *plan, bool *takes);

/* Finds a call's tiles and replicas, with at most `resident` blocks of a rank at once; 0: any number. The arguments
 * kolo_cuda_fill() has set are there. A launch has run->replicas * lowered->lanes blocks at most; a plan without
 * references needs no more than its own lanes. */
kolo_status_t kolo_cuda_plan_cut(const kolo_cuda_lowered_t *lowered, const kolo_plan_t *plan,
                                 const kolo_exec_call_t *call, uint32_t resident, kolo_cuda_plan_args_t *args,
                                 kolo_cuda_plan_run_t *run);

#endif
