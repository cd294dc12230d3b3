/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory shared between processes: memfds that the writer of a queue makes, seals and hands to its readers by
 * descriptor (wire/fdpass.h). They have no name in any file system. Wires "shm" and "cma" use them for queues.
 */
#ifndef KOLO_WIRE_MEMFD_H
#define KOLO_WIRE_MEMFD_H

#include "wire/mapped.h"

extern const kolo_wire_ops_t kolo_wire_shm; /* wire/shm, which is little more than this memory */
extern const kolo_mapped_memory_t kolo_memfd_memory;

/* A zeroed memfd of exactly `bytes` that can neither shrink nor grow; the caller closes it. */
kolo_status_t kolo_memfd_make(const char *name, size_t bytes, int *fd);
/* Is this descriptor from a peer such a memfd? Otherwise a peer could cut it short under us (SIGBUS). */
kolo_status_t kolo_memfd_check(int fd, size_t bytes, const kolo_peer_card_t *owner);

#endif
