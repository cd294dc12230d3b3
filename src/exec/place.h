/* SPDX-License-Identifier: Apache-2.0
 *
 * What every executor of GPUs refuses of a buffer, in the same words.
 */
#ifndef KOLO_EXEC_PLACE_H
#define KOLO_EXEC_PLACE_H

#include "mem/mem.h"

/* Does what was found of a buffer fit the communicator of `rank`, which works on `device`? `what` is the buffer, in
 * words. */
kolo_status_t kolo_exec_check_place(const kolo_mem_place_t *place, const void *p, uint64_t bytes, int rank,
                                    int device, const char *what);

#endif
