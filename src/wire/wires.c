/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of the wires, in order of preference: the first that connects two ranks carries what goes between them.
 * A new wire is a folder and a row here; its parameters come with its table.
 */
#include "wire/cma/cma.h"
#include "wire/local/local.h"
#include "wire/mapped.h"
#include "wire/net/conn.h"
#include "wire/tcp/tcp.h"

const kolo_wire_ops_t *const kolo_wires[] = {
    &kolo_wire_local, &kolo_wire_cma, &kolo_wire_shm, &kolo_wire_net, &kolo_wire_tcp, NULL,
};
/* ... and what the net wire works by */
_Static_assert(KOLO_COUNTOF(kolo_wires) <= KOLO_WIRES_MAX, "a card names all wires");
