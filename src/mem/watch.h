/* SPDX-License-Identifier: Apache-2.0
 *
 * Being told by the kernel that pages go away: munmap, free() of large blocks, mremap, madvise(MADV_DONTNEED) and
 * what is mapped over them. It is a userfaultfd in write-protect mode that never protects anything, so no access
 * ever faults; the thread that takes pages away goes on when the news has been read. Private to the mem room.
 */
#ifndef KOLO_MEM_WATCH_H
#define KOLO_MEM_WATCH_H

#include "base/status.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* News are read, and `lost` called, with `lock` held: who takes the lock after its unmapping has returned finds it
 * dealt with. `lock` must be one under which nothing is allocated, freed or mapped. */
typedef struct {
    pthread_mutex_t *lock;
    void (*lost)(uintptr_t from, uintptr_t to);
} kolo_mem_watch_hooks_t;

/* Starts the thread that listens. Not to be called twice without stop. */
kolo_status_t kolo_mem_watch_start(const kolo_mem_watch_hooks_t *hooks);
void kolo_mem_watch_stop(void);
/* Watches whole pages. KOLO_ERR_UNSUPPORTED: this kind of memory cannot be watched. */
kolo_status_t kolo_mem_watch_add(uintptr_t from, uintptr_t to);
void kolo_mem_watch_remove(uintptr_t from, uintptr_t to);
/* Forgets, in a child of fork(), the parent's watch. */
void kolo_mem_watch_forget(void);

#endif
