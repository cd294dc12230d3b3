/* SPDX-License-Identifier: Apache-2.0
 *
 * What travels between the two ends of a one-sided connection: the cards with which it begins, windows, and the
 * frames of kind tcp. Fixed little-endian layouts; pure and fuzzed.
 */
#include "base/bytes.h"
#include "remote/onesided/internal.h"

#include <string.h>

#define CARD_MAGIC  0x31736f6bu /* "kos1" */
#define FRAME_MAGIC 0x66736f6bu /* "kosf" */
#define VERSION     4u
#define HASH_AT     248
#define REST_AT     192 /* from here to the hash there is nothing */

/* Writes 0 magic, 4 version, 8 kinds, 12 uid, 16 pid, 20 ring, 24 shm_hash, 32 segment_bytes, 40 fd_address, 56
 * segment, 72 mailbox_bytes, 80 mailbox_key, 88 mailbox_at, 96 mailbox_address, 104 mailbox_rkey, 112 verbs, 184
 * probe, 192 zeros, 248 hash of all before. */
void kolo_onesided_card_encode(const kolo_onesided_card_t *card, uint8_t bytes[KOLO_ONESIDED_CARD_BYTES])
{
    memset(bytes, 0, KOLO_ONESIDED_CARD_BYTES);
    kolo_put32(bytes, CARD_MAGIC);
    kolo_put32(bytes + 4, VERSION);
    kolo_put32(bytes + 8, card->kinds);
    kolo_put32(bytes + 12, card->uid);
    kolo_put32(bytes + 16, (uint32_t)card->pid);
    kolo_put32(bytes + 20, card->ring);
    kolo_put64(bytes + 24, card->shm_hash);
    kolo_put64(bytes + 32, card->segment_bytes);
    memcpy(bytes + 40, card->fd_address, 16);
    memcpy(bytes + 56, card->segment, 16);
    kolo_put64(bytes + 72, card->mailbox_bytes);
    kolo_put64(bytes + 80, card->mailbox_key);
    kolo_put64(bytes + 88, card->mailbox_at);
    kolo_put64(bytes + 96, card->mailbox_address);
    kolo_put64(bytes + 104, card->mailbox_rkey);
    memcpy(bytes + 112, card->verbs, sizeof card->verbs);
    kolo_put64(bytes + 184, card->probe);
    kolo_put64(bytes + HASH_AT, kolo_hash_bytes(KOLO_HASH_INIT, bytes, HASH_AT));
}

const char *kolo_onesided_card_decode(const uint8_t *bytes, size_t length, kolo_onesided_card_t *card)
{
    if (length != KOLO_ONESIDED_CARD_BYTES) return "its length is wrong";
    if (kolo_get32(bytes) != CARD_MAGIC) return "it is no card";
    if (kolo_get32(bytes + 4) != VERSION) return "it is of another version";
    if (kolo_get64(bytes + HASH_AT) != kolo_hash_bytes(KOLO_HASH_INIT, bytes, HASH_AT))
        return "its checksum is wrong";
    *card = (kolo_onesided_card_t){.kinds = kolo_get32(bytes + 8),
                                   .uid = kolo_get32(bytes + 12),
                                   .pid = (int32_t)kolo_get32(bytes + 16),
                                   .ring = kolo_get32(bytes + 20),
                                   .shm_hash = kolo_get64(bytes + 24),
                                   .segment_bytes = kolo_get64(bytes + 32),
                                   .mailbox_bytes = kolo_get64(bytes + 72),
                                   .mailbox_key = kolo_get64(bytes + 80),
                                   .mailbox_at = kolo_get64(bytes + 88),
                                   .mailbox_address = kolo_get64(bytes + 96),
                                   .mailbox_rkey = kolo_get64(bytes + 104),
                                   .probe = kolo_get64(bytes + 184)};
    memcpy(card->verbs, bytes + 112, sizeof card->verbs);
    memcpy(card->fd_address, bytes + 40, 16);
    memcpy(card->segment, bytes + 56, 16);
    for (int i = REST_AT; i < HASH_AT; i++)
        if (bytes[i] != 0) return "there is something where nothing should be";
    if (card->kinds == 0) return "it offers nothing";
    if (!(card->kinds & 1u << KOLO_ONESIDED_SHM)) return NULL;
    if (card->ring < 2 || card->ring > 1u << 20 || (card->ring & (card->ring - 1)))
        return "its ring is out of range";
    return card->segment_bytes > 1ull << 46 ? "its segment is out of range" : NULL;
}

void kolo_onesided_window_encode(const kolo_onesided_window_t *window, uint8_t bytes[KOLO_WINDOW_BYTES])
{
    kolo_put64(bytes, window->address);
    kolo_put64(bytes + 8, window->bytes);
    kolo_put64(bytes + 16, window->key);
}

void kolo_onesided_window_decode(const uint8_t bytes[KOLO_WINDOW_BYTES], kolo_onesided_window_t *window)
{
    *window = (kolo_onesided_window_t){kolo_get64(bytes), kolo_get64(bytes + 8), kolo_get64(bytes + 16)};
}

/* Writes 0 magic, 4 flags, 8 number, 12 zeros, 16 bytes, 24 address, 32 key, 40 zeros. */
void kolo_onesided_frame_encode(const kolo_onesided_frame_t *frame, uint8_t bytes[KOLO_ONESIDED_FRAME_BYTES])
{
    memset(bytes, 0, KOLO_ONESIDED_FRAME_BYTES);
    kolo_put32(bytes, FRAME_MAGIC);
    kolo_put32(bytes + 4, frame->flags);
    kolo_put32(bytes + 8, frame->number);
    kolo_put64(bytes + 16, frame->bytes);
    kolo_put64(bytes + 24, frame->address);
    kolo_put64(bytes + 32, frame->key);
}

const char *kolo_onesided_frame_decode(const uint8_t *bytes, size_t length, kolo_onesided_frame_t *frame)
{
    if (length != KOLO_ONESIDED_FRAME_BYTES) return "its length is wrong";
    if (kolo_get32(bytes) != FRAME_MAGIC) return "it is no frame";
    *frame = (kolo_onesided_frame_t){.flags = kolo_get32(bytes + 4),
                                     .number = kolo_get32(bytes + 8),
                                     .bytes = kolo_get64(bytes + 16),
                                     .address = kolo_get64(bytes + 24),
                                     .key = kolo_get64(bytes + 32)};
    uint32_t flags = KOLO_ONESIDED_NOTIFY | KOLO_ONESIDED_PARTED | KOLO_ONESIDED_PIECE;
    if (frame->flags & ~flags) return "it has flags that are not known";
    if ((frame->flags & KOLO_ONESIDED_PIECE) && frame->flags != KOLO_ONESIDED_PIECE)
        return "it has flags that exclude each other";
    if ((frame->flags & (KOLO_ONESIDED_PARTED | KOLO_ONESIDED_PIECE)) && frame->bytes == 0)
        return "it is of a part of nothing";
    if (kolo_get32(bytes + 12) != 0 || kolo_get64(bytes + 40) != 0)
        return "there is something where nothing should be";
    if (frame->bytes == 0 && (frame->address != 0 || frame->key != 0)) return "it writes nothing, somewhere";
    return NULL;
}
