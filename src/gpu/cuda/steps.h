/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels made for their collectives tell of themselves when a test asks, so that it can hold them against
 * verified plans: a step is a piece of a buffer that goes to a peer, or comes from one. Only where device code runs
 * on the host (device.cuh); on a GPU nothing of it is compiled.
 */
#ifndef KOLO_GPU_CUDA_STEPS_H
#define KOLO_GPU_CUDA_STEPS_H

#include <stdint.h>

typedef struct {
    uint32_t rank, block; /* whose step; blocks of the same number work together */
    uint32_t peer;        /* rank itself: its own operand of a reduction, or its own part */
    uint8_t sends;        /* 1: to the peer; 0: from it */
    uint8_t phase;        /* two steps: 0 brings inputs to the owner of a part, 1 hands its result out */
    uint64_t address;     /* of the piece in the memory of `rank`; 0: it is kept nowhere there */
    uint64_t bytes;
} kolo_cuda_told_t;

/* Called by the thread of the block; NULL: nobody asks. */
extern void (*kolo_cuda_tell)(const kolo_cuda_told_t *step);

#endif
