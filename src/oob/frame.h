/* SPDX-License-Identifier: Apache-2.0
 *
 * The head of a message between ranks, and the kinds of messages. What follows the head of which kind is known to
 * the room that registers it (room.h). Little-endian; encoders and decoders are pure over (bytes, length) and
 * fuzzed.
 */
#ifndef KOLO_OOB_FRAME_H
#define KOLO_OOB_FRAME_H

#include "oob/oob.h"

/* 0 magic, 4 kind, 8 bytes, 12 zeros, 16 tag */
#define KOLO_HEAD_BYTES 24
typedef enum {
    KOLO_FRAME_MESSAGE = 1,   /* the user's tag */
    KOLO_FRAME_GATHER = 2,    /* tag: call number and round */
    KOLO_FRAME_BROADCAST = 3, /* tag: call number and part */
    KOLO_FRAME_FAREWELL = 4,  /* tag: the rank that the sender blames, and whether that one has left (farewell.c) */
    KOLO_FRAME_BOARD = 5,     /* tag: number of the operation that is asked about (board.c) */
    KOLO_FRAME_PAIR = 6,   /* tag: number of the sender's next operation; what it has sent and received (board.c) */
    KOLO_FRAME_NEWS = 7,   /* tag: 0; who is lost, or that all is revoked (news.c) */
    KOLO_FRAME_BEAT = 8,   /* tag: 0, nothing follows: the sender lives (beat.c) */
    KOLO_FRAME_SURVEY = 9, /* tag: number of the question, nothing follows: what do you do? (survey.c) */
    KOLO_FRAME_FINDINGS = 10, /* tag: the same number; the answer */
    KOLO_FRAME_AGREE = 11,    /* tag: series and number of the agreement (agreement.c) */
    KOLO_FRAME_NOTIFY = 12,   /* tag: the sender's number, nothing follows (notify.c) */
    KOLO_FRAME_WORDS = 13, /* text, why a rank gave up. tag: 0 the sender, whose farewell follows (farewell.c); r +
                             1: rank r, of which news follow (news.c) */
    KOLO_FRAME_DIFFERENCE = 14, /* tag: 0; two ranks that called different things (difference.c) */
    KOLO_FRAME_SUMS = 15,       /* tag: number of the operation that the last sum is of (diag/sums.c) */
    KOLO_FRAME_LEFT = 16,       /* tag: 0; a rank that has left, and how far it had come (diag/left.c) */
    KOLO_FRAME_KINDS
} kolo_frame_kind_t;
typedef struct {
    kolo_frame_kind_t kind;
    uint32_t bytes;
    uint64_t tag;
} kolo_head_t;
#define KOLO_GATHER_FRAME_MAX (64u << 20)
#define KOLO_WORDS_FRAME_MAX  200

void kolo_oob_head_encode(const kolo_head_t *head, uint8_t bytes[KOLO_HEAD_BYTES]);
/* Returns NULL, or what is wrong with the frame: a kind that no room has registered (room.h), or too long for its
 * kind. */
const char *kolo_oob_head_decode(const uint8_t *bytes, size_t length, kolo_head_t *head);

#endif
