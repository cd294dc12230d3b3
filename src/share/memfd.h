/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory shared between processes: memfds that their maker seals and hands to others by descriptor (fdpass.h). They
 * have no name in any file system.
 */
#ifndef KOLO_SHARE_MEMFD_H
#define KOLO_SHARE_MEMFD_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Tells whether this process may have so large a memfd. Not beyond RLIMIT_FSIZE, nor where a sandbox refuses
 * memfd_create(2), which is tried once. Who may not goes without shared memory. */
bool kolo_memfd_may(uint64_t bytes);

/* Makes a zeroed memfd of exactly `bytes` that can neither shrink nor grow; the caller closes it. */
kolo_status_t kolo_memfd_make(const char *name, size_t bytes, int *fd);
/* Checks that this descriptor from `who` is such a memfd: otherwise they could cut it short under us (SIGBUS). */
kolo_status_t kolo_memfd_check(int fd, size_t bytes, const char *who);

#endif
