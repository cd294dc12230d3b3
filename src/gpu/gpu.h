/* SPDX-License-Identifier: Apache-2.0
 *
 * What a communicator of GPUs takes from this room: the list of the executors (exec/exec.h) and which of them
 * serves.
 */
#ifndef KOLO_GPU_GPU_H
#define KOLO_GPU_GPU_H

#include "exec/exec.h"

extern const kolo_exec_ops_t kolo_exec_cuda;   /* kernels that reach all peers' memory */
extern const kolo_exec_ops_t kolo_exec_staged; /* copies to pinned memory, and the CPU's algorithms there */
/* executors.c: all of them, in order of preference; ends with NULL. */
#define KOLO_EXECUTORS_MAX 8
extern const kolo_exec_ops_t *const kolo_executors[];
/* Refuses what is neither "auto" nor a name of the list (choose.c). */
kolo_status_t kolo_gpu_check_name(const kolo_param_t *row, const char *name);
/* Tells whether the executor of this name (or "auto") may need kernels. */
bool kolo_gpu_may_need_kernels(const char *name);
/* Chooses the one of that name, or the first of the list that can serve. `why` is for the log. KOLO_ERR_UNSUPPORTED
 * with the reasons of those that were asked. */
kolo_status_t kolo_gpu_choose(const char *name, const kolo_exec_gpus_t *gpus, const kolo_exec_ops_t **exec,
                              char why[KOLO_EXEC_WHY]);
/* Enters what rooms below reach by tables of functions. When the library is first used. */
void kolo_gpu_init(void);

#endif
