/* SPDX-License-Identifier: Apache-2.0
 *
 * Whatever a peer sends as card, tail or farewell is refused or stays within what this end has.
 */
#include "wire/net/conn.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool condition)
{
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { SLOT = 256 };
    kolo_wire_card_t wire = {0}, again;
    kolo_net_card_t expected = {.provider = 1, .depth = 4, .slot_bytes = SLOT}, card;
    kolo_net_card_encode(&expected, &again);
    memcpy(wire.bytes, data, size < sizeof wire.bytes ? size : sizeof wire.bytes);
    wire.length = again.length;
    if (kolo_net_card_decode(&wire, &expected, 1, &card) == KOLO_OK) {
        need(card.nrails >= 1 && card.nrails <= KOLO_NET_MAX_RAILS);
        need(card.provider == 1 && card.depth == 4 && card.slot_bytes == SLOT);
        kolo_net_card_encode(&card, &again);
        need(kolo_net_card_decode(&again, &expected, 1, &card) == KOLO_OK);
    }
    uint8_t *message = malloc(size); /* of its very length, for the sanitizer */
    kolo_net_tail_t tail;
    if (!message) return 0;
    if (size) memcpy(message, data, size);
    uint64_t slot = size > 40 ? data[0] : 0;
    if (size <= SLOT + KOLO_NET_SLOT_EXTRA &&
        kolo_net_tail_decode(message, (uint32_t)size, slot, SLOT, &tail) == KOLO_OK)
        need(tail.bytes <= SLOT && tail.bytes + KOLO_NET_TAIL_BYTES <= size && tail.slot == slot);
    uint32_t place = size > 40 ? data[1] : 64; /* as in the seeds */
    if (kolo_net_tail_is_placed(message, (uint32_t)size) &&
        kolo_net_tail_decode_placed(message, (uint32_t)size, slot, place, &tail) == KOLO_OK)
        need(tail.bytes == place && place > 0 && tail.slot == slot);
    if (kolo_net_tail_is_passed(message, (uint32_t)size, slot)) need(size == KOLO_NET_TAIL_BYTES);
    free(message);
    uint8_t bytes[KOLO_NET_NOTE_BYTES] = {0};
    kolo_net_note_t note;
    memcpy(bytes, data, size < sizeof bytes ? size : sizeof bytes);
    if (kolo_net_note_decode(bytes, &note)) need(note.rail < KOLO_NET_MAX_RAILS && note.kind < KOLO_NET_NOTES);
    return 0;
}
