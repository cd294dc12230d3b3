/* SPDX-License-Identifier: Apache-2.0
 *
 * Users' memory that processes of one host map from each other, without anybody's call: each rank has a board of
 * shared memory, where it offers allocations when it first needs others to reach them, and where it tells what it
 * has mapped of theirs. Others look at it when they launch a long operation. Until an allocation is mapped by all,
 * operations on it go another way.
 *
 * An allocation is known by the number that the driver gave it, which no other one gets, so memory that was freed
 * is never taken for what lies there now. A board has few places, so a process holds few mappings, which keep freed
 * memory alive; what has been freed is withdrawn after some launches of any kind, which then look, too. A place
 * gets another allocation only when all that this rank has queued is complete, and with it what others did by the
 * old mapping.
 */
#ifndef KOLO_WIRE_CUDA_EXPORTS_H
#define KOLO_WIRE_CUDA_EXPORTS_H

#include "wire/cuda_ipc/cuda_ipc.h"

#define KOLO_EXPORTS_RANKS  32
#define KOLO_EXPORTS_PLACES 16

typedef struct kolo_exports kolo_exports_t;

/* Collective. NULL where all ranks are in one process: nothing is to be mapped. */
kolo_status_t kolo_exports_open(kolo_wire_ctx_t *ctx, int nranks, kolo_exports_t **exports);
/* Nothing of this communicator runs any more. NULL is fine. Does not wait for peers. */
void kolo_exports_close(kolo_exports_t *exports);
/* Maps what others have offered since the last time. The GPU's context is current. */
void kolo_exports_look(kolo_exports_t *exports);
/* Offers the allocation `id` of `bytes` at `base`, if it was not yet. false: all places are taken, or one has
 * memory that was freed, and not `idle`: only when all that this rank has queued is complete may a place get
 * another allocation. */
bool kolo_exports_offer(kolo_exports_t *exports, uintptr_t base, size_t bytes, uint64_t id, bool idle);
/* All that this rank has queued is complete: what it has freed since is to be unmapped by the others, at their next
 * look. */
void kolo_exports_withdraw_freed(kolo_exports_t *exports);
/* The address at which rank `peer`, of another process, has mapped it; 0: it has not. `keep`: the answer will be
 * used for as long as the communicator lives (by a graph). */
uint64_t kolo_exports_at(kolo_exports_t *exports, uint64_t id, int peer, bool keep);

#endif
