/* SPDX-License-Identifier: Apache-2.0
 *
 * Which kind of memory a pointer, or a device, is of (kinds.c).
 */
#include "mem/mem.h"

#include <stdatomic.h>

static _Atomic(const kolo_mem_ops_t *) added;

void kolo_mem_add(const kolo_mem_ops_t *row)
{
    atomic_store(&added, row);
}

bool kolo_mem_has_devices(void)
{
    if (atomic_load_explicit(&added, memory_order_relaxed)) return true;
    for (const kolo_mem_ops_t *const *row = kolo_mem_kinds; *row != &kolo_mem_host; row++)
        if (!(*row)->here || (*row)->here()) return true;
    return false;
}

void kolo_mem_find(const void *p, kolo_mem_place_t *place)
{
    const kolo_mem_ops_t *own = atomic_load_explicit(&added, memory_order_acquire);
    if (own && own->classify(p, place)) return;
    for (const kolo_mem_ops_t *const *row = kolo_mem_kinds; !(*row)->classify(p, place);) row++;
}

size_t kolo_mem_length(const kolo_mem_place_t *place, uintptr_t at, size_t bytes)
{
    uintptr_t end = place->base + place->bytes;
    kolo_mem_place_t next = *place;
    while (place->joins && end - at < bytes) {
        kolo_mem_find((const void *)end, &next); /* NOLINT: of a device */
        if (next.ops != place->ops || next.device != place->device || next.base != end || !next.joins) break;
        end += next.bytes;
    }
    return end - at;
}

kolo_status_t kolo_mem_row(int device, const kolo_mem_ops_t **row)
{
    const kolo_mem_ops_t *own = atomic_load_explicit(&added, memory_order_acquire);
    kolo_status_t status = KOLO_ERR_UNSUPPORTED;
    if (own && own->has(device) == KOLO_OK) {
        *row = own;
        return KOLO_OK;
    }
    for (const kolo_mem_ops_t *const *at = kolo_mem_kinds; *at != &kolo_mem_host && status != KOLO_OK; at++) {
        *row = *at;
        status = (*at)->has(device);
    }
    return status;
}

void kolo_mem_free(kolo_mem_t *mem)
{
    if (mem->ops) mem->ops->free(mem);
    *mem = (kolo_mem_t){0};
}
