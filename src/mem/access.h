/* SPDX-License-Identifier: Apache-2.0
 *
 * May this process read or write memory over its whole length? Dear: it reads /proc/self/maps. For KOLO_CHECK=deep.
 */
#ifndef KOLO_MEM_ACCESS_H
#define KOLO_MEM_ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    KOLO_ACCESS_FULL, /* or nothing can be found out here */
    KOLO_ACCESS_UNMAPPED,
    KOLO_ACCESS_PROTECTED,
    KOLO_ACCESS_READ_ONLY,
    KOLO_ACCESS_ABSENT, /* mapped, but reading it fails */
    KOLO_ACCESS_COUNT
} kolo_access_t;

typedef struct {
    kolo_access_t access;
    uintptr_t at;  /* the first byte that cannot be reached */
    char path[96]; /* of the file that is mapped there; "" none */
} kolo_accessed_t;

/* Finds the first byte that may not be read, or written. Any thread. */
void kolo_mem_access_find(const void *memory, size_t bytes, bool write, kolo_accessed_t *found);
/* Returns half a sentence: "it is protected". */
const char *kolo_mem_access_why(kolo_access_t access);

#endif
