/* SPDX-License-Identifier: Apache-2.0
 *
 * How long an element is.
 */
#ifndef KOLO_BASE_TYPE_H
#define KOLO_BASE_TYPE_H

#include <kolo/kolo.h>

/* Returns kolo_type_size() without the way through the loader's table. 0: no such type. */
static inline size_t kolo_type_bytes(kolo_type_t type)
{
    static const unsigned char sizes[KOLO_TYPE_COUNT] = {1, 1, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 2, 2, 1};
    return (unsigned)type < KOLO_TYPE_COUNT ? sizes[type] : 0;
}

#endif
