/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring between the loop and the thread that writes a timeline: one puts, one takes, nobody waits. See
 * timeline.h.
 */
#include "engine/timeline/timeline.h"

#include <stdlib.h>
#include <string.h>

kolo_status_t kolo_trace_ring_init(kolo_trace_ring_t *ring, uint64_t records)
{
    memset(ring, 0, sizeof *ring);
    for (ring->capacity = 64; ring->capacity < records;) ring->capacity *= 2;
    ring->slots = calloc(ring->capacity, sizeof *ring->slots);
    if (ring->slots) return KOLO_OK;
    return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %llu records of a timeline",
                     (unsigned long long)ring->capacity);
}

void kolo_trace_ring_fini(kolo_trace_ring_t *ring)
{
    free(ring->slots);
    ring->slots = NULL;
}

static uint64_t used(kolo_trace_ring_t *ring, uint64_t enough)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    if (head - ring->tail_seen > enough) ring->tail_seen = atomic_load_explicit(&ring->tail, memory_order_acquire);
    return head - ring->tail_seen;
}

bool kolo_trace_reserve(kolo_trace_ring_t *ring, uint64_t count)
{
    if (KOLO_LIKELY(used(ring, ring->capacity - count) + count <= ring->capacity)) return true;
    uint64_t lost = atomic_load_explicit(&ring->lost, memory_order_relaxed);
    atomic_store_explicit(&ring->lost, lost + 1, memory_order_relaxed);
    return false;
}

bool kolo_trace_has_room(kolo_trace_ring_t *ring)
{
    return used(ring, ring->capacity / 4) <= ring->capacity / 4;
}

bool kolo_trace_is_filling(kolo_trace_ring_t *ring)
{
    return used(ring, ring->capacity / 8) > ring->capacity / 8;
}
