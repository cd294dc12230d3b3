/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoder and decoder of frame.h. The decoder accepts exactly what the encoder can have written.
 */
#include "oob/room.h"

#include "base/bytes.h"

#define HEAD_MAGIC 0x316d6b6bu /* "kkm1" */

void kolo_oob_head_encode(const kolo_head_t *head, uint8_t bytes[KOLO_HEAD_BYTES])
{
    kolo_put32(bytes, HEAD_MAGIC);
    kolo_put32(bytes + 4, (uint32_t)head->kind);
    kolo_put32(bytes + 8, head->bytes);
    kolo_put32(bytes + 12, 0);
    kolo_put64(bytes + 16, head->tag);
}

const char *kolo_oob_head_decode(const uint8_t *bytes, size_t length, kolo_head_t *head)
{
    if (length != KOLO_HEAD_BYTES) return "a message head of the wrong length";
    if (kolo_get32(bytes) != HEAD_MAGIC || kolo_get32(bytes + 12) != 0) return "bytes that are no message head";
    uint32_t kind = kolo_get32(bytes + 4), size = kolo_get32(bytes + 8);
    const kolo_frame_rule_t *rule = kolo_rooms_frame_rule(kind);
    if (rule == NULL) return "a message of an unknown kind";
    if (size > rule->most) return "an oversized message";
    if (size < rule->least) return "a message that is too short for its kind";
    *head = (kolo_head_t){.kind = (kolo_frame_kind_t)kind, .bytes = size, .tag = kolo_get64(bytes + 16)};
    return NULL;
}
