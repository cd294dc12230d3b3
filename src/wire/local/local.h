/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of wire "local": the registry of memory that ranks of this process share, and copies by address.
 */
#ifndef KOLO_WIRE_LOCAL_LOCAL_H
#define KOLO_WIRE_LOCAL_LOCAL_H

#include "wire/mapped.h"

extern const kolo_wire_ops_t kolo_wire_local;
extern const kolo_mapped_memory_t kolo_local_memory;

kolo_status_t kolo_wire_local_ref_done(kolo_rx_t *rx, kolo_ref_copy_t *copy);

#endif
