/* SPDX-License-Identifier: Apache-2.0
 *
 * What travels between ranks on connections that are already authenticated: the head of a message, and frames of
 * fixed layout, little-endian. Encoders and decoders are pure over (bytes, length) and fuzzed.
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
    KOLO_FRAME_FAREWELL = 4,  /* tag: the rank that the sender blames, or its own if it just closed */
    KOLO_FRAME_BOARD = 5,     /* tag: number of the operation that is asked about (board.c) */
    KOLO_FRAME_PAIR = 6,   /* tag: number of the sender's next operation; what it has sent and received (board.c) */
    KOLO_FRAME_NEWS = 7,   /* tag: 0; who is lost, or that all is revoked (news.c) */
    KOLO_FRAME_BEAT = 8,   /* tag: 0, nothing follows: the sender lives (beat.c) */
    KOLO_FRAME_SURVEY = 9, /* tag: number of the question, nothing follows: what do you do? (survey.c) */
    KOLO_FRAME_FINDINGS = 10, /* tag: the same number; the answer */
    KOLO_FRAME_AGREE = 11,    /* tag: series and number of the agreement (agreement.c) */
    KOLO_FRAME_NUDGE = 12,    /* tag: the sender's number, nothing follows (nudge.c) */
    KOLO_FRAME_WORDS = 13 /* text, why a rank gave up. tag: 0 the sender, whose farewell follows (farewell.c); r +
                             1: rank r, of which news follow (news.c) */
} kolo_frame_kind_t;
typedef struct {
    kolo_frame_kind_t kind;
    uint32_t bytes;
    uint64_t tag;
} kolo_head_t;
#define KOLO_GATHER_FRAME_MAX (64u << 20)
#define KOLO_WORDS_FRAME_MAX  200

/* 0 word, 8 number of the operation that the word is of, 16 rank that is in it, 20 flags */
#define KOLO_BOARD_FRAME_BYTES 24
#define KOLO_BOARD_ASKS        1u /* an answer is wanted */
#define KOLO_BOARD_GAVE_UP     2u /* the rank has failed; the word is of the last operation that it was in */
#define KOLO_BOARD_STUCK       4u /* what the one that is told has begun to send or receive never comes */
#define KOLO_BOARD_STUCK_SEND  8u /* with that: to send */
typedef struct {
    uint64_t word, number;
    int rank;
    uint32_t flags;
} kolo_board_frame_t;

/* 0 words for receive and send, 16 receives begun by way, 32 sends begun that need their receive */
#define KOLO_PAIR_FRAME_BYTES 48
typedef struct {
    uint64_t words[2], begun[2][2];
} kolo_pair_frame_t;

/* 0 kind, 4 rank, 8 how, 12 who noticed */
#define KOLO_NEWS_FRAME_BYTES 16
typedef struct {
    kolo_news_kind_t kind;
    int rank;
    kolo_loss_how_t how; /* if KOLO_NEWS_LOST */
    int noticed_by;
} kolo_news_frame_t;

/* 0 number of operations | recorded << 8, 4 status, 8 operations: 0 number, 8 word, 16 age, 24 peer, 28 kind |
 * state << 8; those that are not there are zero */
#define KOLO_FINDINGS_FRAME_BYTES (8 + 32 * KOLO_SURVEY_OPS)

void kolo_board_encode(const kolo_board_frame_t *board, uint8_t bytes[KOLO_BOARD_FRAME_BYTES]);
void kolo_pair_encode(const kolo_pair_frame_t *pair, uint8_t bytes[KOLO_PAIR_FRAME_BYTES]);
void kolo_news_encode(const kolo_news_frame_t *news, uint8_t bytes[KOLO_NEWS_FRAME_BYTES]);
void kolo_findings_encode(const kolo_finding_t *finding, uint8_t bytes[KOLO_FINDINGS_FRAME_BYTES]); /* survey.c */
void kolo_head_encode(const kolo_head_t *head, uint8_t bytes[KOLO_HEAD_BYTES]);
/* NULL when fine, else what is wrong. */
const char *kolo_head_decode(const uint8_t *bytes, size_t length, kolo_head_t *head);
const char *kolo_board_decode(const uint8_t *bytes, size_t length, int nranks, kolo_board_frame_t *board);
const char *kolo_pair_decode(const uint8_t *bytes, size_t length, kolo_pair_frame_t *pair);
const char *kolo_news_decode(const uint8_t *bytes, size_t length, int nranks, kolo_news_frame_t *news);
/* Keeps finding->rank. */
const char *kolo_findings_decode(const uint8_t *bytes, size_t length, kolo_finding_t *finding);

#endif
