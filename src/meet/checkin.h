/* SPDX-License-Identifier: Apache-2.0
 *
 * What travels between a rank and its root on connections that are already authenticated: the check-in and the
 * reply. Fixed little-endian layouts. Encoders and decoders are pure over (bytes, length) and fuzzed.
 */
#ifndef KOLO_MEET_CHECKIN_H
#define KOLO_MEET_CHECKIN_H

#include "link/address.h"

#define KOLO_NRANKS_MAX (1 << 24)

/* 0 magic, 4 version, 6 flags, 8 rank, 12 nranks, 16 nids, 20 id index, 24 timeout_ms, 28 zeros,
 * 32 peer address, 64 root-only address, 96 zeros */
#define KOLO_CHECKIN_BYTES 128
typedef struct {
    int rank, nranks, nids, id_index;
    int timeout_ms; /* what is left of it */
    bool neighbour; /* not a rank of this root: the first rank of the next root's share, for my last rank's sake */
    kolo_address_t peer, root_only;
} kolo_checkin_t;

/* 0 magic, 4 status, 8 next rank, 12 text length, 16 zeros, 32 address of the next rank, 64 text */
#define KOLO_REPLY_BYTES      1024
#define KOLO_REPLY_TEXT_BYTES (KOLO_REPLY_BYTES - 64)
typedef struct {
    kolo_status_t
        status; /* KOLO_OK, or why the bootstrap failed; KOLO_IN_PROGRESS: what it waits for (lifeline.h) */
    int next_rank;
    kolo_address_t next; /* if KOLO_OK */
    char text[KOLO_REPLY_TEXT_BYTES + 1];
} kolo_reply_t;

void kolo_meet_checkin_encode(const kolo_checkin_t *checkin, uint8_t bytes[KOLO_CHECKIN_BYTES]);
void kolo_meet_reply_encode(const kolo_reply_t *reply, uint8_t bytes[KOLO_REPLY_BYTES]);
/* Returns NULL when fine, else what is wrong. */
const char *kolo_meet_checkin_decode(const uint8_t *bytes, size_t length, kolo_checkin_t *checkin);
const char *kolo_meet_reply_decode(const uint8_t *bytes, size_t length, kolo_reply_t *reply);

/* Finds the ranks [first, first + count) that call id `index`: even shares. */
void kolo_root_share(int nranks, int nids, int index, int *first, int *count);
int kolo_root_of_rank(int nranks, int nids, int rank);

#endif
