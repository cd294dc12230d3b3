/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocations of other processes that this process has mapped by the driver's handles, of all communicators.
 *
 * A driver that closes such a mapping waits for all that the GPU has to do. A part of that may wait for what the
 * calling thread does next, or for another rank whose call waits in the same place. So a thread of the
 * communicator closes them (a closer), when the GPU is idle (kolo_cuda_when_idle()), while calls go on; what lies
 * in the same pages is mapped when it is through. The communicator's end does not wait for it longer than a second.
 */
#ifndef KOLO_GPU_PEERS_SPANS_H
#define KOLO_GPU_PEERS_SPANS_H

#include "mem/cuda/cuda.h"

typedef struct kolo_spans_closer kolo_spans_closer_t;

/* An allocation: of which process, its number there, and as its owner sees it. */
typedef struct {
    kolo_cu_ipc_t handle;
    uint64_t process, id, base, bytes;
} kolo_spans_what_t;

/* Returns NULL: mapped at *at. Else why not; *later: what is in its way is being closed. The GPU's context is
 * current. Any thread. */
const char *kolo_spans_map(const kolo_spans_what_t *what, kolo_cu_ptr_t *at, bool *later);
/* Closes what was mapped there: by the closer, soon; NULL: now. 0 is fine. */
void kolo_spans_unmap(kolo_cu_ptr_t at, kolo_spans_closer_t *closer);
/* Returns NULL without memory: then whoever unmaps closes by himself. */
kolo_spans_closer_t *kolo_spans_closer_open(const kolo_cuda_device_t *device);
/* Gives it up: what it has not closed within a second, it closes later. NULL is fine. */
void kolo_spans_closer_end(kolo_spans_closer_t *closer);

#endif
