/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of the kinds of memory with one that the library does not have; it stands in for src/mem/kinds.c.
 */
#include "guarded.h"

const kolo_mem_ops_t *const kolo_mem_kinds[] = {&seam_mem_guarded, &kolo_mem_host};
