/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the program that it has registered (kolo_comm_register), so that devices may read and write it without
 * a copy. A range is made of whole pages and known to the process as often as it is registered; which devices have
 * it pinned is found out when they first meet it, and remembered. Everything here may be called by any thread.
 *
 * A device reaches the pages that were there when it pinned them. If a program unmapped, moved or dropped pages of
 * a registered range, a device would write to the wrong pages. So the kernel is asked to report such changes
 * (watch.h), and a reported range is never found again. Where the kernel cannot report them, no range is found
 * unless KOLO_MEM_UNWATCHED is set.
 */
#ifndef KOLO_MEM_RANGE_H
#define KOLO_MEM_RANGE_H

#include "base/params.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kolo_mem_range kolo_mem_range_t;

typedef struct kolo_mem_pinner { /* a device, as far as memory is concerned; its address tells it from others */
    kolo_status_t (*pin)(void *arg, void *memory, size_t bytes, void **handle);
    void (*unpin)(void *arg, void *handle);
    void *arg;
} kolo_mem_pinner_t;

/* Registers whole pages around [memory, memory + bytes). The same pages again are the same range. */
kolo_status_t kolo_mem_range_register(void *memory, size_t bytes, kolo_mem_range_t **range);
/* Does the same for memory that nobody has registered but that is used again and again: that it goes away is no
 * mistake of the program's, so nothing is said about it. */
kolo_status_t kolo_mem_range_keep(void *memory, size_t bytes, kolo_mem_range_t **range);
/* Tells whether it may be used: its pages are still the ones that it was made of. */
bool kolo_mem_range_works(const kolo_mem_range_t *range);
/* Undoes one register or keep. What is under way keeps the pages pinned until it has put them back. */
void kolo_mem_range_deregister(kolo_mem_range_t *range);
/* Returns a registered range that holds all of it and may be used; the caller puts it back. NULL: none. */
kolo_mem_range_t *kolo_mem_range_find(const void *memory, size_t bytes);
void kolo_mem_range_put(kolo_mem_range_t *range);
/* Returns the device's handle for a range that was found; pins it at the first time. KOLO_ERR_NO_MEMORY above
 * KOLO_MEM_PIN_MB, or what pin() says. */
kolo_status_t kolo_mem_range_pin(kolo_mem_range_t *range, const kolo_mem_pinner_t *pinner, void **handle);
/* Unpins all that the device has; before it is closed. */
void kolo_mem_pinner_leave(const kolo_mem_pinner_t *pinner);
/* Tells whether anything is registered. Cheap. */
bool kolo_mem_ranges_exist(void);

typedef struct {
    uint32_t ranges, pins; /* now */
    uint64_t pinned_bytes; /* now, counted once per device */
    uint64_t lost;         /* ranges whose pages went away under them, so far */
} kolo_mem_range_counts_t;
void kolo_mem_range_count(kolo_mem_range_counts_t *out);

extern const kolo_param_table_t kolo_mem_params;

#endif
