/* SPDX-License-Identifier: Apache-2.0
 *
 * What a rank without a tensor puts into a reduction of the others: the value that changes nothing.
 */
#ifndef KOLO_MEM_IDENTITY_H
#define KOLO_MEM_IDENTITY_H

#include <kolo/kolo.h>
#include <stdint.h>

/* Returns the identity of a built-in operator, as 64 bits: the element again and again. */
uint64_t kolo_mem_identity_word(kolo_type_t type, kolo_op_t op);

#endif
