/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of the kinds of memory, in the order in which they are asked. A new kind is a folder and a row here.
 */
#include "mem/mem.h"

const kolo_mem_ops_t *const kolo_mem_kinds[] = {&kolo_mem_cuda, &kolo_mem_host};
