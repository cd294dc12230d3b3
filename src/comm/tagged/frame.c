/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames of messages with tags, to and from bytes. See frame.h.
 */
#include "comm/tagged/frame.h"

#include "base/bytes.h"

#include <stddef.h>

#define MARK 0x6d6bu

void kolo_tagged_encode(const kolo_tagged_frame_t *frame, uint8_t out[KOLO_TAGGED_FRAME_BYTES])
{
    kolo_put16(out, MARK);
    kolo_put16(out + 2, (uint16_t)frame->kind);
    kolo_put32(out + 4, frame->bytes);
    kolo_put64(out + 8, frame->id);
    kolo_put64(out + 16, frame->tag);
    kolo_put64(out + 24, frame->total);
}

static const char *check_length(const kolo_tagged_frame_t *f)
{
    switch (f->kind) {
    case KOLO_TAGGED_SHORT:
        return f->bytes == f->total && f->bytes <= KOLO_TAGGED_SHORT_MAX ? NULL
                                                                         : "a short message of another length";
    case KOLO_TAGGED_LONG:
        return f->bytes == 0 && f->total > 0 && f->total <= INT64_MAX ? NULL : "a long message without a length";
    case KOLO_TAGGED_PIECE:
        return f->bytes > 0 && f->bytes <= KOLO_TAGGED_PIECE_MAX && f->total == 0 ? NULL : "a piece of no length";
    case KOLO_TAGGED_TAKEN:
        return f->bytes == 0 && f->total <= KOLO_TAGGED_SHORT_MAX ? NULL : "an answer about too much";
    case KOLO_TAGGED_REFUSED:
        return f->bytes == 0 ? NULL : "an answer with data";
    default:
        return f->bytes == 0 && f->total == 0 ? NULL : "a frame with data that has none";
    }
}

const char *kolo_tagged_decode(const uint8_t in[KOLO_TAGGED_FRAME_BYTES], bool back, kolo_tagged_frame_t *frame)
{
    uint16_t kind = kolo_get16(in + 2);
    if (kolo_get16(in) != MARK) return "it does not begin like a frame";
    if (kind < (back ? KOLO_TAGGED_TAKEN : KOLO_TAGGED_SHORT) ||
        kind >= (back ? KOLO_TAGGED_KINDS : KOLO_TAGGED_TAKEN))
        return "a frame of a kind that does not belong here";
    *frame = (kolo_tagged_frame_t){.kind = (kolo_tagged_kind_t)kind,
                                   .bytes = kolo_get32(in + 4),
                                   .id = kolo_get64(in + 8),
                                   .tag = kolo_get64(in + 16),
                                   .total = kolo_get64(in + 24)};
    if (frame->tag != 0 && kind != KOLO_TAGGED_SHORT && kind != KOLO_TAGGED_LONG) return "a tag where none belongs";
    return check_length(frame);
}
