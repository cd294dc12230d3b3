/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring of offers: where the reader wants each message. See verbs.h.
 */
#include "base/clock.h"
#include "remote/verbs/verbs.h"

#include <endian.h>

void kolo_verbs_offer_put(kolo_verbs_offer_t *ring, uint32_t depth, uint64_t request,
                          const kolo_verbs_place_t *place)
{
    kolo_verbs_offer_t *offer = &ring[request & (depth - 1)];
    offer->address = htole64(place->address);
    offer->key = htole32(place->key);
    offer->bytes = htole32(place->bytes);
    offer->tag = htole64(place->tag);
    atomic_store_explicit(&offer->number, htole64(request + 1), memory_order_release);
}

bool kolo_verbs_offer_get(const kolo_verbs_offer_t *ring, uint32_t depth, uint64_t request,
                          kolo_verbs_place_t *place)
{
    const kolo_verbs_offer_t *offer = &ring[request & (depth - 1)];
    if (le64toh(atomic_load_explicit(&offer->number, memory_order_acquire)) != request + 1) return false;
    *place = (kolo_verbs_place_t){le64toh(offer->address), le32toh(offer->key), le32toh(offer->bytes),
                                  le64toh(offer->tag)};
    return true;
}

static bool was_used(const kolo_verbs_offer_t *ring, uint32_t depth, uint64_t used, uint64_t request)
{
    uint64_t before = request - depth;
    return request >= depth && before < used &&
           le64toh(atomic_load_explicit(&ring[request & (depth - 1)].number, memory_order_acquire)) == before + 1;
}

bool kolo_verbs_offer_repeat(kolo_verbs_offer_t *ring, uint32_t depth, uint64_t used, uint64_t from, uint32_t n)
{
    if (n > depth) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!was_used(ring, depth, used, from + i)) return false;
    for (uint64_t r = from; r != from + n; r++) {
        kolo_verbs_offer_t *offer = &ring[r & (depth - 1)];
        offer->tag = htole64(le64toh(offer->tag) + depth);
        atomic_store_explicit(&offer->number, htole64(r + 1), memory_order_release);
    }
    return true;
}

uint32_t kolo_verbs_fifo_run(uint64_t from, uint64_t to, uint32_t depth)
{
    uint64_t to_end = depth - (from & (depth - 1));
    return (uint32_t)KOLO_MIN(to - from, to_end);
}
