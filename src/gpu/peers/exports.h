/* SPDX-License-Identifier: Apache-2.0
 *
 * Users' memory that processes of one host map from each other, without anybody's call: each rank has a board of
 * shared memory, where it offers allocations when it first needs others to reach them, and where it tells what it
 * has mapped of theirs. Others look at it when they launch a long operation. Until an allocation is mapped by all,
 * operations on it go another way.
 *
 * An allocation is known by the number that the driver gave it, which no other one gets, so memory that was freed
 * is never taken for what lies there now; a run of pieces by a number that this process gave it while each piece
 * had its own. A board has few places, so a process holds few mappings, which keep freed memory alive; what has
 * been freed is withdrawn after some launches of any kind, which then look, too. A place gets another allocation
 * only when all that this rank has queued is complete, and with it what others did by the old mapping.
 */
#ifndef KOLO_GPU_PEERS_EXPORTS_H
#define KOLO_GPU_PEERS_EXPORTS_H

#include "gpu/peers/peers.h"

#define KOLO_EXPORTS_RANKS  32
#define KOLO_EXPORTS_PLACES 16

typedef struct kolo_exports kolo_exports_t;

/* Opens it; collective. NULL where all ranks are in one process: nothing is to be mapped. */
kolo_status_t kolo_exports_open(kolo_wire_ctx_t *ctx, const kolo_cuda_device_t *device, int nranks,
                                kolo_exports_t **exports);
/* Closes it when nothing of this communicator runs any more. NULL is fine. Does not wait for peers. */
void kolo_exports_close(kolo_exports_t *exports);
/* Maps what others have offered since the last time. The GPU's context is current. */
void kolo_exports_look(kolo_exports_t *exports);
/* An allocation, or a run of pieces. */
typedef struct {
    uintptr_t base;
    size_t bytes;
    uint64_t id;
    const kolo_cuda_run_t *run; /* NULL: cudaMalloc() made it */
} kolo_exports_memory_t;
/* Counts uses of places. All that this rank queued before the clock showed `complete` is complete: then what was
 * used last until then may be given up. */
uint64_t kolo_exports_clock(const kolo_exports_t *exports);
/* Tells whether a place has nothing, so that an offer takes it from nobody. */
bool kolo_exports_has_room(const kolo_exports_t *exports);
/* Offers it, if it was not yet. false: all places are taken, or one has memory that was freed, and none may be
 * given up. */
bool kolo_exports_offer(kolo_exports_t *exports, const kolo_exports_memory_t *memory, uint64_t complete);
/* Has the others unmap, at their next look, what this rank has freed since. false: not all may be given up. */
bool kolo_exports_withdraw_freed(kolo_exports_t *exports, uint64_t complete);
/* Returns where rank `peer`, of another process, has mapped it; 0: it has not. `keep`: the answer will be used for
 * as long as the communicator lives (by a graph). */
uint64_t kolo_exports_at(kolo_exports_t *exports, uint64_t id, int peer, bool keep);

#endif
