/* SPDX-License-Identifier: Apache-2.0
 *
 * What tells a communicator from others, for rooms above that name it to tools.
 */
#ifndef KOLO_COMM_IDENTITY_H
#define KOLO_COMM_IDENTITY_H

#include "base/status.h"

#include <kolo/kolo.h>

/* Returns a number that is equal on all its ranks, not secret, and on how many hosts they are. Of a communicator
 * that is ready, or was. */
kolo_status_t kolo_comm_identity(kolo_comm_t comm, uint64_t *id, int *nhosts);

#endif
