/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of wire "cma": may I read the writer's memory, and copies between two processes.
 */
#ifndef KOLO_WIRE_CMA_CMA_H
#define KOLO_WIRE_CMA_CMA_H

#include "wire/mapped.h"

/* Tried once per peer by reading a word that its control page announces; *why says what stood in the way. */
bool kolo_cma_permitted(kolo_control_peer_t *peer, const char **why);
kolo_status_t kolo_cma_ref_read(kolo_rx_t *rx, const kolo_ref_t *ref, uint64_t offset, void *dst, size_t bytes);
kolo_status_t kolo_cma_ref_write(kolo_rx_t *rx, const kolo_ref_t *ref, uint64_t offset, const void *src,
                                 size_t bytes);

#endif
