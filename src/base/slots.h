/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of small objects whose handles users hold. It is used again for objects of the same kind only and never
 * freed, so a handle that is used after its end is recognised, and not read as something else.
 */
#ifndef KOLO_BASE_SLOTS_H
#define KOLO_BASE_SLOTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first member of the object. */
typedef struct kolo_slot {
    _Atomic uint32_t live;
    struct kolo_slot *next; /* free */
} kolo_slot_t;

/* Objects of one kind, of `bytes` bytes. */
typedef struct kolo_slots {
    size_t bytes;
    pthread_mutex_t lock;
    kolo_slot_t *first, *last; /* free, the one that ended first in front */
    size_t count;
} kolo_slots_t;
#define KOLO_SLOTS_OF(type)                                                                                        \
    {                                                                                                              \
        .bytes = sizeof(type), .lock = PTHREAD_MUTEX_INITIALIZER                                                   \
    }

/* Returns a living object, all zeros but for its slot; NULL: no memory. Any thread. */
void *kolo_slots_take(kolo_slots_t *slots);
/* Does a user's handle name a living object? */
bool kolo_slot_lives(const void *object);
/* Ends the handle; false: it has ended before. The memory stays the object's until it is given back. */
bool kolo_slot_end(void *object);
/* Gives the memory of an ended object back. Any thread. */
void kolo_slots_give(kolo_slots_t *slots, void *object);

#endif
