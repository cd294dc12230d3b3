/* SPDX-License-Identifier: Apache-2.0
 *
 * What the net wire sends in bytes: tails of messages, farewells, cards. All little endian, all checked.
 */
#include "wire/net/conn.h"

#include <endian.h>
#include <string.h>

#define CARD_MAGIC   0x54454e31u /* "1NET" */
#define CARD_VERSION 3u
#define FLAG_INVITES 1u
#define FLAG_LAZY    2u
#define NOTE_MAGIC   0x45544f00u /* "OTE" and the kind */

_Static_assert(sizeof(kolo_net_tail_t) == KOLO_NET_TAIL_BYTES, "a tail travels");

void kolo_net_tail_encode(const kolo_net_tail_t *tail, uint8_t out[KOLO_NET_TAIL_BYTES])
{
    kolo_net_tail_t t = {.bytes = htole32(tail->bytes),
                         .flags = htole32(tail->flags),
                         .slot = htole64(tail->slot),
                         .signature = htole64(tail->signature),
                         .operation = htole64(tail->operation)};
    memcpy(out, &t, sizeof t);
}

static kolo_net_tail_t last_tail(const uint8_t *message, uint32_t message_bytes)
{
    kolo_net_tail_t t;
    memcpy(&t, message + message_bytes - KOLO_NET_TAIL_BYTES, sizeof t);
    return (kolo_net_tail_t){.bytes = le32toh(t.bytes),
                             .flags = le32toh(t.flags),
                             .slot = le64toh(t.slot),
                             .signature = le64toh(t.signature),
                             .operation = le64toh(t.operation)};
}

static kolo_status_t check_slot(const kolo_net_tail_t *tail, uint64_t slot)
{
    if (tail->slot == slot) return KOLO_OK;
    return kolo_fail(KOLO_ERR_PROTOCOL, "slot %llu came where %llu is due", (unsigned long long)tail->slot,
                     (unsigned long long)slot);
}

kolo_status_t kolo_net_tail_decode(const uint8_t *message, uint32_t message_bytes, uint64_t slot,
                                   uint32_t slot_bytes, kolo_net_tail_t *out)
{
    if (message_bytes < KOLO_NET_TAIL_BYTES)
        return kolo_fail(KOLO_ERR_PROTOCOL, "a message of %u bytes is too short", message_bytes);
    *out = last_tail(message, message_bytes);
    if (out->bytes > slot_bytes || kolo_net_message_bytes(out->bytes) != message_bytes)
        return kolo_fail(KOLO_ERR_PROTOCOL, "a message of %u bytes says that it holds %u, in slots of %u",
                         message_bytes, out->bytes, slot_bytes);
    return check_slot(out, slot);
}

bool kolo_net_tail_is_placed(const uint8_t *message, uint32_t message_bytes)
{
    return message_bytes == KOLO_NET_TAIL_BYTES && (last_tail(message, message_bytes).flags & KOLO_NET_PLACED);
}

bool kolo_net_tail_is_passed(const uint8_t *message, uint32_t message_bytes, uint64_t slot)
{
    if (message_bytes != KOLO_NET_TAIL_BYTES) return false;
    kolo_net_tail_t t = last_tail(message, message_bytes);
    return t.flags == KOLO_NET_PASSED && t.slot == slot && t.bytes == 0;
}

kolo_status_t kolo_net_tail_decode_placed(const uint8_t *message, uint32_t message_bytes, uint64_t slot,
                                          uint32_t bytes, kolo_net_tail_t *out)
{
    kolo_net_tail_t t = last_tail(message, message_bytes);
    if (t.bytes != bytes || bytes == 0)
        return kolo_fail(KOLO_ERR_PROTOCOL, "a message says that it has put %u bytes where %u were to be put",
                         t.bytes, bytes);
    t.flags &= ~KOLO_NET_PLACED;
    KOLO_TRY(check_slot(&t, slot));
    *out = t;
    return KOLO_OK;
}

void kolo_net_note_encode(const kolo_net_note_t *note, uint8_t out[KOLO_NET_NOTE_BYTES])
{
    uint32_t kind = htole32(NOTE_MAGIC + (uint32_t)note->kind), rail = htole32(note->rail);
    uint64_t value = htole64(note->value);
    memset(out, 0, KOLO_NET_NOTE_BYTES);
    memcpy(out, &kind, 4);
    memcpy(out + 4, &rail, 4);
    memcpy(out + 8, &value, 8);
    memcpy(out + 16, &note->hello, sizeof note->hello);
}

bool kolo_net_note_decode(const uint8_t in[KOLO_NET_NOTE_BYTES], kolo_net_note_t *note)
{
    uint32_t kind, rail;
    uint64_t value;
    memcpy(&kind, in, 4);
    memcpy(&rail, in + 4, 4);
    memcpy(&value, in + 8, 8);
    kind = le32toh(kind) - NOTE_MAGIC;
    note->kind = (kolo_net_note_kind_t)kind;
    note->rail = le32toh(rail);
    note->value = le64toh(value);
    memcpy(&note->hello, in + 16, sizeof note->hello);
    return kind < KOLO_NET_NOTES && note->rail < KOLO_NET_MAX_RAILS;
}

typedef struct {
    uint32_t magic, version, provider, depth, slot_bytes, flags;
    uint64_t nonce;
    uint32_t nrails, reserved;
    kolo_net_hello_t hellos[KOLO_NET_MAX_RAILS];
} layout_t;
_Static_assert(sizeof(layout_t) <= KOLO_WIRE_CARD_BYTES, "a card of the net wire fits");

void kolo_net_card_encode(const kolo_net_card_t *card, kolo_wire_card_t *out)
{
    layout_t l = {.magic = htole32(CARD_MAGIC),
                  .version = htole32(CARD_VERSION),
                  .provider = htole32(card->provider),
                  .depth = htole32(card->depth),
                  .slot_bytes = htole32(card->slot_bytes),
                  .flags = htole32((card->invites ? FLAG_INVITES : 0) | (card->lazy ? FLAG_LAZY : 0)),
                  .nonce = htole64(card->nonce),
                  .nrails = htole32(card->nrails)};
    memcpy(l.hellos, card->hellos, sizeof l.hellos);
    memset(out, 0, sizeof *out);
    kolo_wire_card_put(out, &l, sizeof l);
}

kolo_status_t kolo_net_card_decode(const kolo_wire_card_t *in, const kolo_net_card_t *expected, int peer,
                                   kolo_net_card_t *out)
{
    layout_t l;
    if (!kolo_wire_card_get(in, &l, sizeof l) || le32toh(l.magic) != CARD_MAGIC ||
        le32toh(l.version) != CARD_VERSION || (le32toh(l.flags) & ~(FLAG_INVITES | FLAG_LAZY)))
        return kolo_fail(KOLO_ERR_PROTOCOL, "net: the set-up card from rank %d makes no sense", peer);
    *out = (kolo_net_card_t){.provider = le32toh(l.provider),
                             .depth = le32toh(l.depth),
                             .slot_bytes = le32toh(l.slot_bytes),
                             .invites = le32toh(l.flags) & FLAG_INVITES,
                             .lazy = le32toh(l.flags) & FLAG_LAZY,
                             .nonce = le64toh(l.nonce),
                             .nrails = le32toh(l.nrails)};
    memcpy(out->hellos, l.hellos, sizeof l.hellos);
    if (out->nrails < 1 || out->nrails > KOLO_NET_MAX_RAILS || l.reserved != 0)
        return kolo_fail(KOLO_ERR_PROTOCOL, "net: the set-up card from rank %d has %u rails", peer, out->nrails);
    if (out->provider != expected->provider)
        return kolo_fail(KOLO_ERR_MISMATCH, "net: rank %d uses provider number %u, this rank %u", peer,
                         out->provider, expected->provider);
    if (out->depth != expected->depth || out->slot_bytes != expected->slot_bytes)
        return kolo_fail(KOLO_ERR_PROTOCOL, "net: the card from rank %d is for %u slots of %u bytes, not %u of %u",
                         peer, out->depth, out->slot_bytes, expected->depth, expected->slot_bytes);
    return KOLO_OK;
}
