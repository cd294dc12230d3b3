/* SPDX-License-Identifier: Apache-2.0
 *
 * GPUs that reach each other's memory: every rank of a communicator makes a region in its GPU's memory, and maps
 * the regions of all others. Ranks of one process use one address and allow each other's device; other processes of
 * the host get a descriptor (share/fdpass.h). A region lives until the last rank of its process has left it, and
 * its memory until the last process has.
 */
#ifndef KOLO_GPU_PEERS_PEERS_H
#define KOLO_GPU_PEERS_PEERS_H

#include "mem/cuda/cuda.h"
#include "wire/wire.h"

typedef struct {
    int nranks, rank;
    int ranks_per_gpu; /* the largest number of ranks that share one GPU */
    int min_major, min_minor, min_multiprocessors;
    void **address; /* by rank, as this rank's GPU sees it */
    int *ordinal;   /* by rank: the GPU's number in its own process */
    uint64_t here;  /* by bit: ranks of this process whose GPUs have peer access to and from this one */
    struct kolo_region_ref *refs; /* by rank */
} kolo_regions_t;

/* How large this rank's region is to be, when it is known how many ranks share a GPU; the same on all ranks. */
typedef size_t (*kolo_region_bytes_fn_t)(void *arg, const kolo_regions_t *regions);

/* Opens them; collective, within ctx->deadline_ns. The errors name both ranks and GPUs. */
kolo_status_t kolo_cuda_regions_open(kolo_wire_ctx_t *ctx, const kolo_cuda_device_t *device,
                                     kolo_region_bytes_fn_t bytes, void *arg, kolo_regions_t *regions);
/* Closes them; a zeroed struct is fine. Does not wait for peers. */
void kolo_cuda_regions_close(kolo_regions_t *regions);

#endif
