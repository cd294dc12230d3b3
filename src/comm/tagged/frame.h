/* SPDX-License-Identifier: Apache-2.0
 *
 * What travels on the two connections of a pair of ranks that exchange messages with tags: one for each direction,
 * opened by the sender. Envelopes and data go forward, answers come back. All frames have one form, little-endian:
 *
 *     u16 mark   u16 kind   u32 bytes   u64 id   u64 tag   u64 total   then `bytes` bytes of data
 */
#ifndef KOLO_COMM_TAGGED_FRAME_H
#define KOLO_COMM_TAGGED_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#define KOLO_TAGGED_FRAME_BYTES 32u
#define KOLO_TAGGED_SHORT_MAX   (64u << 10)
#define KOLO_TAGGED_PIECE_MAX   (256u << 10)

/* `id` counts the envelopes of a direction. */
typedef enum {
    /* forward */
    KOLO_TAGGED_SHORT = 1, /* an envelope: tag and length (total), and the data at once */
    KOLO_TAGGED_LONG,      /* an envelope; the data waits for CLEAR */
    KOLO_TAGGED_PIECE,     /* data of a long message */
    KOLO_TAGGED_WITHDRAWN, /* the message will not come, or not to its end */
    /* back; one for each envelope, except that nothing answers to a message withdrawn after CLEAR */
    KOLO_TAGGED_TAKEN,   /* a short one (of length total) was received or thrown away */
    KOLO_TAGGED_CLEAR,   /* a long one has found its receive */
    KOLO_TAGGED_REFUSED, /* a long one is longer than its receive (total) */
    KOLO_TAGGED_GONE,    /* a long one was withdrawn before it had found one */
    KOLO_TAGGED_KINDS
} kolo_tagged_kind_t;

typedef struct {
    kolo_tagged_kind_t kind;
    uint32_t bytes;
    uint64_t id, tag, total;
} kolo_tagged_frame_t;

void kolo_tagged_encode(const kolo_tagged_frame_t *frame, uint8_t out[KOLO_TAGGED_FRAME_BYTES]);
/* Decodes a frame: NULL, or what is wrong with it. back: it came on a connection that answers come on. */
const char *kolo_tagged_decode(const uint8_t in[KOLO_TAGGED_FRAME_BYTES], bool back, kolo_tagged_frame_t *frame);

#endif
