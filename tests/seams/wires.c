/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of the wires with one that the library does not have; it stands in for src/wire/wires.c.
 */
#include "procfd.h"

#include "wire/local/local.h"
#include "wire/mapped.h"
#include "wire/tcp/tcp.h"

const kolo_wire_ops_t *const kolo_wires[] = {&kolo_wire_local, &seam_wire_procfd, &kolo_wire_shm, &kolo_wire_tcp,
                                             NULL};
