/* SPDX-License-Identifier: Apache-2.0
 *
 * What travels while ranks agree (agreement.c). Fixed little-endian layouts; encoder and decoder are pure and
 * fuzzed.
 *
 *     0 type   4 ballot   8 key   16 flags   20 bytes of a row   24 accepted + 1   28 about   32 map of who is out
 *     then the sender's row (a report), then a value (see below) where there is one
 *
 * A value: 0 status, 4 about, 8 flags, 12 zeros, 16 map of who is out, then a row for each rank. Maps: map.h.
 */
#ifndef KOLO_MEMBER_AGREE_FRAME_H
#define KOLO_MEMBER_AGREE_FRAME_H

#include "member/map.h"
#include "member/member.h"

typedef enum {
    KOLO_BALLOT_REPORT = 1,  /* to the coordinator: what I know, and what I have accepted */
    KOLO_BALLOT_CALL = 2,    /* a new coordinator asks for a report */
    KOLO_BALLOT_PROPOSE = 3, /* the coordinator's value: accept it */
    KOLO_BALLOT_ACCEPT = 4,
    KOLO_BALLOT_DECIDE = 5, /* this is the result */
    KOLO_BALLOT_REFUSE = 6  /* the sender does not take part in this: flags is the status that says why */
} kolo_ballot_type_t;

#define KOLO_BALLOT_HEAD_BYTES  32
#define KOLO_BALLOT_VALUE_BYTES 16
#define KOLO_BALLOT_ROW_MAX     4096

typedef struct {
    kolo_ballot_type_t type;
    int ballot; /* the coordinator's rank */
    uint64_t key;
    uint32_t flags, row_bytes;
    int accepted;         /* the ballot of the value in a report, -1: none */
    int about;            /* of a refusal: the rank that is the reason */
    const uint8_t *out;   /* map */
    const uint8_t *row;   /* of a report, else NULL */
    const uint8_t *value; /* NULL: none */
} kolo_ballot_t;

size_t kolo_ballot_value_bytes(int nranks, size_t row_bytes);
/* Returns how long the message is; row and value count if they are not NULL. */
size_t kolo_ballot_bytes(const kolo_ballot_t *ballot, int nranks);
void kolo_ballot_encode(const kolo_ballot_t *ballot, int nranks, uint8_t *bytes);
/* Returns NULL when fine, else what is wrong; pointers go into `bytes`. */
const char *kolo_ballot_decode(const uint8_t *bytes, size_t length, int nranks, kolo_ballot_t *ballot);

#endif
