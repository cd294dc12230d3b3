/* SPDX-License-Identifier: Apache-2.0
 *
 * The books of the fake driver's memory, for memory.c and ipc.c. With fake_lock held where a name ends so.
 */
#ifndef KOLO_TESTS_GPU_FAKE_MEMORY_H
#define KOLO_TESTS_GPU_FAKE_MEMORY_H

#include "fake.h"

#define PAGE     4096u
#define IPC_NAME "kolo-fake-gpu-plain"

typedef struct {
    uint64_t id;
    int fd, device; /* device: of the machine */
    size_t bytes;
    int refs; /* handles and mappings */
    bool held;
    bool shared;  /* may be exported */
    bool foreign; /* was imported */
} physical_t;

typedef enum { RESERVED, MAPPED, PLAIN, MANAGED, POOL, OF_GRAPH, PINNED, REGISTERED, OPENED } kind_t;
typedef struct range {
    struct range *next;
    uint64_t id; /* no other had it before */
    kind_t kind;
    uintptr_t start;
    size_t bytes, room; /* room: with the guard */
    int device;         /* here; -1: of a device that is not visible, or host memory */
    physical_t *physical;
    uint32_t open_to; /* MAPPED: devices that have access */
    unsigned flags;
    int fd; /* PLAIN: the memory, for other processes */
} range_t;

/* device.c: devices do not reach each other. */
bool fake_apart(void);
/* graph.c: this thread captures a stream, and has not said that it may allocate meanwhile. */
bool fake_capture_forbids(const char *function);
range_t *fake_add_locked(kind_t kind, uintptr_t start, size_t bytes);
/* NULL: nothing is there, or only a reservation that is not asked for. */
range_t *fake_find_locked(uintptr_t p, bool with_reservations);
void fake_remove_locked(range_t *gone);
range_t *fake_exact_locked(kind_t kind, uintptr_t start);
/* Maps memory of its own with a guard behind it. Takes the lock. */
kolo_cu_result_t fake_map_new(kind_t kind, size_t bytes, int device, unsigned flags, uintptr_t *at);
/* Unmaps it; false: there is nothing of that kind. Takes the lock. */
bool fake_unmap_old(kind_t kind, uintptr_t p);

#endif
