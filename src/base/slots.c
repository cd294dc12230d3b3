/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of small objects behind handles. See slots.h.
 */
#include "base/slots.h"

#include <stdlib.h>
#include <string.h>

#define LIVES      0x6c697665u
#define QUARANTINE 64 /* free ones that are kept before one is used again */

void *kolo_slots_take(kolo_slots_t *slots)
{
    kolo_slot_t *slot = NULL;
    pthread_mutex_lock(&slots->lock);
    if (slots->count > QUARANTINE) {
        slot = slots->first;
        slots->first = slot->next;
        slots->count--;
    }
    pthread_mutex_unlock(&slots->lock);
    if (!slot && !(slot = calloc(1, slots->bytes))) return NULL;
    memset(slot + 1, 0, slots->bytes - sizeof *slot);
    slot->next = NULL;
    atomic_store_explicit(&slot->live, LIVES, memory_order_release);
    return slot;
}

bool kolo_slot_lives(const void *object)
{
    const kolo_slot_t *slot = object;
    return atomic_load_explicit(&slot->live, memory_order_acquire) == LIVES;
}

bool kolo_slot_end(void *object)
{
    kolo_slot_t *slot = object;
    uint32_t lives = LIVES;
    return atomic_compare_exchange_strong(&slot->live, &lives, 0);
}

void kolo_slots_give(kolo_slots_t *slots, void *object)
{
    kolo_slot_t *slot = object;
    slot->next = NULL;
    pthread_mutex_lock(&slots->lock);
    if (slots->count == 0)
        slots->first = slot;
    else
        slots->last->next = slot;
    slots->last = slot;
    slots->count++;
    pthread_mutex_unlock(&slots->lock);
}
