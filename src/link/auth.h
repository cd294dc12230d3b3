/* SPDX-License-Identifier: Apache-2.0
 *
 * How two ends of a connection prove to each other that they know the job's secret. One round trip after connect:
 *
 *     accepting side -> greeting   magic, version, nonce A                        40 bytes
 *     dialling side  -> hello      magic, version, claim, nonce D, proof D        88 bytes
 *     accepting side -> verdict    code, proof A                                  40 bytes
 *
 * Where a frame of fixed size follows (a check-in, a root's reply), one byte acknowledges it; a caller that does
 * not get it calls again.
 *
 * A proof is a keyed hash over the side's role, the claim (purpose, ranks, tag), both nonces and the cookie of the
 * listening socket; the verdict's also over its code. Both nonces are fresh, so nothing that was recorded opens
 * another session; the roles differ, so a proof cannot be reflected. The accepting side believes no byte of the
 * claim before the proof holds. Greeting and hello also say what is to happen to the bytes behind the handshake
 * (KOLO_TCP_SECURITY, seal.h); by default nothing does, which keeps out strangers, not somebody who can rewrite
 * packets on the path.
 *
 * All functions are pure over fixed-size byte arrays, except for the nonces.
 */
#ifndef KOLO_LINK_AUTH_H
#define KOLO_LINK_AUTH_H

#include "base/status.h"

#include <stdbool.h>

#define KOLO_PROTOCOL_VERSION 1

#ifdef KOLO_HAVE_SODIUM
#define KOLO_AUTH_STRONG 1
#else
#define KOLO_AUTH_STRONG 0 /* SipHash: good against accidents, so only loopback is served */
#endif

typedef struct {
    uint8_t bytes[32];
} kolo_key_t;

typedef enum {
    KOLO_PURPOSE_CHECKIN = 1, /* rank -> root: a check-in frame follows */
    KOLO_PURPOSE_REPLY = 2,   /* root -> rank: a reply frame follows */
    KOLO_PURPOSE_MESSAGE = 3, /* rank -> rank: message frames, both ways */
    KOLO_PURPOSE_STREAM = 4,  /* rank -> rank: handed over to a wire */
    KOLO_PURPOSE_PROBE = 5    /* rank -> rank: a long frame, to see whether it arrives */
} kolo_purpose_t;

#define KOLO_RANK_ROOT (-1)

typedef struct {
    kolo_purpose_t purpose;
    int from, to; /* ranks, KOLO_RANK_ROOT */
    uint64_t tag;
    uint8_t security; /* of the connection, if it is let in (seal.h) */
} kolo_claim_t;

typedef enum {
    KOLO_VERDICT_OK = 0,
    KOLO_VERDICT_BUSY = 1,    /* a queue is full: try again later */
    KOLO_VERDICT_REFUSED = 2, /* the claim makes no sense here, or the proof is wrong */
    KOLO_VERDICT_GONE = 3     /* it was right once, but who is called has left, and only its socket still stands */
} kolo_auth_verdict_t;

#define KOLO_GREETING_BYTES 40
#define KOLO_HELLO_BYTES    88
#define KOLO_VERDICT_BYTES  40
#define KOLO_FRAME_ACK      0x6b
#define KOLO_FRAME_KEPT     0x6c /* the same, and the connection stays (lifeline.c) */

/* A handshake under way, as both sides see it. */
typedef struct {
    const kolo_key_t *key;
    uint64_t cookie;
    const uint8_t *greeting; /* KOLO_GREETING_BYTES */
    uint8_t *hello;          /* KOLO_HELLO_BYTES, which the dialling side writes */
} kolo_shake_t;

/* Makes the accepting side's greeting. */
kolo_status_t kolo_auth_greeting(uint8_t security, uint8_t greeting[KOLO_GREETING_BYTES]);
typedef enum {
    KOLO_HELLO_OK,
    KOLO_HELLO_BAD_MAGIC,
    KOLO_HELLO_BAD_VERSION,
    KOLO_HELLO_BAD_PROOF
} kolo_hello_result_t;
kolo_hello_result_t kolo_auth_check_hello(const kolo_shake_t *s, kolo_claim_t *claim);
void kolo_auth_verdict(const kolo_shake_t *s, kolo_auth_verdict_t code, uint8_t verdict[KOLO_VERDICT_BYTES]);
/* Refuses a hello whose proof failed: no proof of our own goes with it. */
void kolo_auth_unproven_refusal(uint8_t verdict[KOLO_VERDICT_BYTES]);

/* Tells the dialling side whether the greeting is of this protocol and version (*version: what it said, 0 if
 * nothing). */
bool kolo_auth_greeting_fits(const uint8_t greeting[KOLO_GREETING_BYTES], unsigned *version);
kolo_status_t kolo_auth_hello(const kolo_shake_t *s, const kolo_claim_t *claim);
/* Returns whether the acceptor proved itself; *code is its verdict (unproven if false). */
bool kolo_auth_check_verdict(const kolo_shake_t *s, const uint8_t verdict[KOLO_VERDICT_BYTES],
                             kolo_auth_verdict_t *code);

uint8_t kolo_auth_greeting_security(const uint8_t greeting[KOLO_GREETING_BYTES]);
uint8_t kolo_auth_hello_security(const uint8_t hello[KOLO_HELLO_BYTES]);

/* Derives 32 bytes from a key, a purpose and data. */
void kolo_auth_derive(const kolo_key_t *key, const char *purpose, const void *data, size_t bytes, kolo_key_t *out);
/* 32 bytes so that only who has the key can read them, and nobody can change them. Only with libsodium. */
#define KOLO_SEALED_BYTES 72
kolo_status_t kolo_auth_seal(const kolo_key_t *key, const uint8_t secret[32], uint8_t sealed[KOLO_SEALED_BYTES]);
kolo_status_t kolo_auth_unseal(const kolo_key_t *key, const uint8_t sealed[KOLO_SEALED_BYTES], uint8_t secret[32]);
void kolo_auth_wipe(void *data, size_t bytes);

#endif
