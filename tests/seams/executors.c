/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of the executors with one that the library does not have; it stands in for src/gpu/executors.c.
 */
#include "blocking.h"
#include "gpu/gpu.h"

const kolo_exec_ops_t *const kolo_executors[] = {&seam_exec_blocking, &kolo_exec_cuda, NULL};
