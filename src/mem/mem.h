/* SPDX-License-Identifier: Apache-2.0
 *
 * Kinds of memory. What a pointer points to is asked once, by classify(); what a kind can do stands in one table of
 * functions, and code above this room that meets memory of a device goes through it. A row that cannot do something
 * says so in words. The list of the rows is in kinds.c; a program may add one while it runs (tests have devices
 * that come and go), which is asked first.
 */
#ifndef KOLO_MEM_MEM_H
#define KOLO_MEM_MEM_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kolo_mem_ops;

/* Where a pointer points to. */
typedef struct {
    const struct kolo_mem_ops *ops;
    int device;     /* ordinal in this process; -1: host memory */
    uintptr_t base; /* of the whole allocation, with its length; 0 where the kind does not know */
    size_t bytes;
    bool peers; /* other devices of this process that have peer access reach it */
    bool joins; /* a program may have mapped other memory beside it, to use both as one */
} kolo_mem_place_t;

/* Memory that Kolo has made, or that a peer has made and this process has mapped. */
typedef struct {
    const struct kolo_mem_ops *ops;
    int device;
    void *address;
    size_t bytes;
    uint64_t handle; /* the kind's own */
} kolo_mem_t;

typedef struct kolo_mem_ops {
    const char *name;
    /* Can there be memory of this kind in this process? Cheap. NULL: always. */
    bool (*here)(void);
    /* Is `p` of this kind? Any address, any thread; fills *place in. */
    bool (*classify)(const void *p, kolo_mem_place_t *place);
    /* Zeroed memory of at least `bytes` on `device`. */
    kolo_status_t (*make)(int device, size_t bytes, kolo_mem_t *mem);
    /* A descriptor by which another process of this host can map it; the caller closes it. */
    kolo_status_t (*share)(const kolo_mem_t *mem, int *fd);
    /* Maps what a descriptor from a peer stands for, `bytes` of it, for use by `device`. The descriptor stays the
     * caller's. */
    kolo_status_t (*map)(int fd, size_t bytes, int device, kolo_mem_t *mem);
    /* Lets another device of this process read and write it at the same address. */
    kolo_status_t (*allow)(const kolo_mem_t *mem, int device);
    /* Frees or unmaps; a zeroed struct is fine. */
    void (*free)(kolo_mem_t *mem);
    /* Copies between this kind and host memory; complete when it returns. */
    kolo_status_t (*read)(int device, void *host, const void *from, size_t bytes);
    kolo_status_t (*write)(int device, void *to, const void *host, size_t bytes);
    /* Is there a device of this number? KOLO_OK, or why not. NULL: the kind has none. */
    kolo_status_t (*has)(int device);
    /* A DMA-BUF descriptor of the pages around `p`, by which a network card can reach them, and where `p` lies in
     * it; the caller closes it. NULL: the kind has no such thing. */
    kolo_status_t (*dmabuf)(const void *p, size_t bytes, int *fd, size_t *offset);
    const struct kolo_mem_queue_ops *queues; /* queue.h; NULL: it has none */
} kolo_mem_ops_t;

extern const kolo_mem_ops_t kolo_mem_host, kolo_mem_cuda;
/* In the order in which they are asked; ends with the host's, which takes what nobody else knows. */
extern const kolo_mem_ops_t *const kolo_mem_kinds[];

/* Asks the rows in turn. Any address. */
void kolo_mem_find(const void *p, kolo_mem_place_t *place);
/* Returns how much memory of one device there is from `at`, which lies in *place, on; looks for `bytes` at most.
 * Pieces that were mapped beside each other count as one, other allocations end where they end. */
size_t kolo_mem_length(const kolo_mem_place_t *place, uintptr_t at, size_t bytes);
/* Tells whether there can be memory of devices in this process. Cheap. */
bool kolo_mem_has_devices(void);
/* Finds the row of the device with this number, which has queues. */
kolo_status_t kolo_mem_row(int device, const kolo_mem_ops_t **row);
/* Adds a row of the program's own; NULL takes it out again, when nothing of it is in use. */
void kolo_mem_add(const kolo_mem_ops_t *row);
/* Frees by the row that it came from; a zeroed struct is fine. */
void kolo_mem_free(kolo_mem_t *mem);

#endif
