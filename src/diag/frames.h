/* SPDX-License-Identifier: Apache-2.0
 *
 * How boards, counts of messages, differences and findings travel (board.c, difference.c, survey.c). Pure and
 * fuzzed.
 */
#ifndef KOLO_DIAG_FRAMES_H
#define KOLO_DIAG_FRAMES_H

#include "diag/diag.h"

/* 0 word, 8 number of the operation that the word is of, 16 rank that is in it, 20 flags, 24 sum */
#define KOLO_BOARD_FRAME_BYTES 32
#define KOLO_BOARD_ASKS        1u /* an answer is wanted */
#define KOLO_BOARD_GAVE_UP     2u /* the rank has failed; the word is of the last operation that it was in */
#define KOLO_BOARD_STUCK       4u /* what the one that is told has begun to send or receive never comes */
#define KOLO_BOARD_STUCK_SEND  8u /* with that: to send */
typedef struct {
    uint64_t word, number;
    int rank;
    uint32_t flags;
    uint64_t sum; /* of all operations up to this one; 0: it is not known, or this is no operation */
} kolo_board_frame_t;

/* 0 operations from one to the next, 4 how many, 8 sums; the last is of the operation of the frame's tag */
#define KOLO_SUMS_STEP           32
#define KOLO_SUMS_MOST           (KOLO_SUMS_STEP + 1)
#define KOLO_SUMS_FRAME_BYTES(n) (8 + 8 * (size_t)(n))
#define KOLO_SUMS_FRAME_MOST     KOLO_SUMS_FRAME_BYTES(KOLO_SUMS_MOST)
typedef struct {
    uint32_t step, count;
    uint64_t sums[KOLO_SUMS_MOST];
} kolo_sums_frame_t;

/* 0 words for receive and send, 16 receives begun by way, 32 sends begun that need their receive */
#define KOLO_PAIR_FRAME_BYTES 48
typedef struct {
    uint64_t words[2], begun[2][2];
} kolo_pair_frame_t;

/* 0 word, 8 number, 16 the other's word, 24 its number, 32 rank, 36 the other */
#define KOLO_DIFFERENCE_FRAME_BYTES 40

/* 0 the last operation, 8 the sum, 16 rank, 20 whether these count, 24 all-gathers that it has come to */
#define KOLO_LEFT_FRAME_BYTES 32
typedef struct {
    uint64_t last, sum, gathers;
    int rank;
    bool counts;
} kolo_left_frame_t;

/* 0 number of operations | recorded << 8 | callback << 16, 4 status, 8 time in that, 16 operations: 0 number, 8
 * word, 16 age, 24 peer, 28 kind | state << 8; those that are not there are zero. Then the note, with zeros behind
 */
#define KOLO_FINDINGS_NOTE_AT     (16 + 32 * KOLO_SURVEY_OPS)
#define KOLO_FINDINGS_FRAME_BYTES (KOLO_FINDINGS_NOTE_AT + KOLO_SURVEY_NOTE)

void kolo_board_encode(const kolo_board_frame_t *board, uint8_t bytes[KOLO_BOARD_FRAME_BYTES]);
void kolo_sums_encode(const kolo_sums_frame_t *sums, uint8_t bytes[KOLO_SUMS_FRAME_MOST]);
void kolo_pair_encode(const kolo_pair_frame_t *pair, uint8_t bytes[KOLO_PAIR_FRAME_BYTES]);
void kolo_difference_encode(const kolo_difference_t *d, uint8_t bytes[KOLO_DIFFERENCE_FRAME_BYTES]);
void kolo_left_encode(const kolo_left_frame_t *left, uint8_t bytes[KOLO_LEFT_FRAME_BYTES]);
void kolo_findings_encode(const kolo_finding_t *finding, uint8_t bytes[KOLO_FINDINGS_FRAME_BYTES]);
/* Returns NULL when fine, else what is wrong. */
const char *kolo_board_decode(const uint8_t *bytes, size_t length, int nranks, kolo_board_frame_t *board);
const char *kolo_sums_decode(const uint8_t *bytes, size_t length, kolo_sums_frame_t *sums);
const char *kolo_pair_decode(const uint8_t *bytes, size_t length, kolo_pair_frame_t *pair);
const char *kolo_difference_decode(const uint8_t *bytes, size_t length, int nranks, kolo_difference_t *d);
const char *kolo_left_decode(const uint8_t *bytes, size_t length, int nranks, kolo_left_frame_t *left);
/* Keeps finding->rank. */
const char *kolo_findings_decode(const uint8_t *bytes, size_t length, kolo_finding_t *finding);

#endif
