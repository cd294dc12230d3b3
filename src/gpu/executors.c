/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of the executors, in order of preference: the first that can serve a communicator's GPUs runs its
 * operations. A new executor is a folder and a row here; its parameters come with its table.
 */
#include "gpu/gpu.h"
#include "gpu/levels/levels.h"

const kolo_exec_ops_t *const kolo_executors[] = {
    &kolo_exec_cuda,
    &kolo_exec_levels,
    &kolo_exec_staged,
    NULL,
};
_Static_assert(KOLO_COUNTOF(kolo_executors) <= KOLO_EXECUTORS_MAX + 1, "all of them have room for parameters");
