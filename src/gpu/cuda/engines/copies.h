/* SPDX-License-Identifier: Apache-2.0
 *
 * Long all_gathers, broadcasts and all_to_alls by copy engines: no kernel, here or there, so that multiprocessors
 * stay with the program (copies.c).
 */
#ifndef KOLO_GPU_CUDA_COPIES_H
#define KOLO_GPU_CUDA_COPIES_H

#include "exec/exec.h"
#include "gpu/peers/peers.h"

struct kolo_cuda_state;
typedef struct kolo_cuda_copies kolo_cuda_copies_t;

/* Returns how long a region of `bytes` bytes becomes with the stages for this; `bytes` where it is not wanted. */
uint64_t kolo_cuda_copies_room(struct kolo_cuda_state *s, const kolo_regions_t *regions, uint64_t bytes);
/* Makes what all ranks share; collective. Nothing where it is not wanted, or a driver cannot do it. */
kolo_status_t kolo_cuda_copies_open(struct kolo_cuda_state *s, kolo_wire_ctx_t *ctx);
/* Closes it when nothing of it is queued any more. */
void kolo_cuda_copies_close(struct kolo_cuda_state *s);
/* Tells whether the call goes this way: the same on all ranks. */
bool kolo_cuda_copies_serve(const struct kolo_cuda_state *s, const kolo_exec_call_t *call);
kolo_status_t kolo_cuda_copies_launch(struct kolo_cuda_state *s, const kolo_exec_call_t *call);
/* Lets streams go on that wait here; after an abort, again and again until all of it has ended. */
void kolo_cuda_copies_release(struct kolo_cuda_state *s);
/* Tells whether something that went on so was not complete. */
bool kolo_cuda_copies_cut(const struct kolo_cuda_state *s);
/* Tells what is waited for, where kernels wait for nothing. */
void kolo_cuda_copies_waits(struct kolo_cuda_state *s, uint64_t now, kolo_exec_waits_t *waits);

#endif
