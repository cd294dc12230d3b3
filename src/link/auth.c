/* SPDX-License-Identifier: Apache-2.0
 *
 * The proofs of auth.h with libsodium's BLAKE2b. Built without it a 128-bit SipHash stands in: enough to keep jobs
 * on one machine apart, and the library then listens on loopback only.
 */
#include "link/auth.h"

#include "base/bytes.h"
#include "base/process.h"

#include <errno.h>
#include <string.h>

#ifdef KOLO_HAVE_SODIUM
#include <sodium.h>
#endif

/* greeting: 0 magic, 4 version, 6 security, 8 nonce */
/* hello:    0 magic, 4 version, 6 purpose, 7 security, 8 from, 12 to, 16 tag, 24 nonce, 56 proof */
/* verdict:  0 magic, 4 code, 8 proof */
enum { NONCE_BYTES = 32, PROOF_BYTES = 32 };
enum { GREETING_SECURITY = 6, GREETING_NONCE = 8 };
enum {
    HELLO_PURPOSE = 6,
    HELLO_SECURITY = 7,
    HELLO_FROM = 8,
    HELLO_TO = 12,
    HELLO_TAG = 16,
    HELLO_NONCE = 24,
    HELLO_PROOF = 56
};
enum { VERDICT_CODE = 4, VERDICT_PROOF = 8 };

#define GREETING_MAGIC 0x31676b6bu /* "kkg1" */
#define HELLO_MAGIC    0x31686b6bu /* "kkh1" */
#define VERDICT_MAGIC  0x31766b6bu /* "kkv1" */

#ifdef KOLO_HAVE_SODIUM

static void keyed_hash(const kolo_key_t *key, const void *data, size_t bytes, uint8_t out[32])
{
    crypto_generichash(out, 32, data, bytes, key->bytes, sizeof(key->bytes));
}

static bool equal(const uint8_t *a, const uint8_t *b)
{
    return sodium_memcmp(a, b, PROOF_BYTES) == 0;
}

#else

static uint64_t rotate(uint64_t v, unsigned bits)
{
    return v << bits | v >> (64 - bits);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1], v[1] = rotate(v[1], 13) ^ v[0], v[0] = rotate(v[0], 32);
    v[2] += v[3], v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = rotate(v[1], 17) ^ v[2], v[2] = rotate(v[2], 32);
}

/* Computes SipHash-2-4 with the four key words of ours, four output words. */
static void keyed_hash(const kolo_key_t *key, const void *data, size_t bytes, uint8_t out[32])
{
    const uint8_t *p = data;
    uint64_t v[4] = {0x736f6d6570736575ull, 0x646f72616e646f6dull, 0x6c7967656e657261ull, 0x7465646279746573ull};
    for (int i = 0; i < 4; i++) v[i] ^= kolo_get64(key->bytes + 8 * i);
    for (size_t i = 0; i <= bytes; i += 8) {
        uint8_t block[8] = {0};
        size_t left = bytes - i < 8 ? bytes - i : 8;
        memcpy(block, p + i, left);
        if (left < 8) block[7] = (uint8_t)bytes;
        uint64_t m = kolo_get64(block);
        v[3] ^= m;
        sip_round(v);
        sip_round(v);
        v[0] ^= m;
    }
    for (unsigned i = 0; i < 4; i++) {
        v[2] ^= 0xffu - i;
        for (int r = 0; r < 4; r++) sip_round(v);
        kolo_put64(out + 8 * i, v[0] ^ v[1] ^ v[2] ^ v[3]);
    }
}

static bool equal(const uint8_t *a, const uint8_t *b)
{
    uint8_t difference = 0;
    for (int i = 0; i < PROOF_BYTES; i++) difference |= a[i] ^ b[i];
    return difference == 0;
}

#endif

void kolo_auth_wipe(void *data, size_t bytes)
{
    explicit_bzero(data, bytes);
}

void kolo_auth_derive(const kolo_key_t *key, const char *purpose, const void *data, size_t bytes, kolo_key_t *out)
{
    uint8_t text[64 + 32] = "kolo derive ";
    kolo_key_t digest;
    size_t length = strnlen(purpose, 50);
    memcpy(text + 12, purpose, length);
    keyed_hash(key, data, bytes, digest.bytes);
    memcpy(text + 64, digest.bytes, 32);
    keyed_hash(key, text, sizeof(text), out->bytes);
}

/* Computes one hash for both sides: role, cookie, claim and nonce D (from the hello), nonce A, code. */
static void prove(const kolo_shake_t *s, const char role[8], uint32_t code, uint8_t proof[PROOF_BYTES])
{
    uint8_t text[8 + 8 + KOLO_GREETING_BYTES + HELLO_PROOF + 4];
    memcpy(text, role, 8);
    kolo_put64(text + 8, s->cookie);
    memcpy(text + 16, s->greeting, KOLO_GREETING_BYTES);
    memcpy(text + 16 + KOLO_GREETING_BYTES, s->hello, HELLO_PROOF);
    kolo_put32(text + 16 + KOLO_GREETING_BYTES + HELLO_PROOF, code);
    keyed_hash(s->key, text, sizeof(text), proof);
}

static const char role_dial[8] = {'k', 'o', 'l', 'o', 'd', 'i', 'a', 'l'};
static const char role_accept[8] = {'k', 'o', 'l', 'o', 'a', 'c', 'p', 't'};

kolo_status_t kolo_auth_greeting(uint8_t security, uint8_t greeting[KOLO_GREETING_BYTES])
{
    memset(greeting, 0, KOLO_GREETING_BYTES);
    kolo_put32(greeting, GREETING_MAGIC);
    kolo_put16(greeting + 4, KOLO_PROTOCOL_VERSION);
    greeting[GREETING_SECURITY] = security;
    return kolo_random(greeting + GREETING_NONCE, NONCE_BYTES);
}

bool kolo_auth_greeting_fits(const uint8_t greeting[KOLO_GREETING_BYTES], unsigned *version)
{
    *version = kolo_get32(greeting) == GREETING_MAGIC ? kolo_get16(greeting + 4) : 0;
    return *version == KOLO_PROTOCOL_VERSION;
}

uint8_t kolo_auth_greeting_security(const uint8_t greeting[KOLO_GREETING_BYTES])
{
    return greeting[GREETING_SECURITY];
}

uint8_t kolo_auth_hello_security(const uint8_t hello[KOLO_HELLO_BYTES])
{
    return hello[HELLO_SECURITY];
}

kolo_status_t kolo_auth_hello(const kolo_shake_t *s, const kolo_claim_t *claim)
{
    uint8_t *hello = s->hello;
    kolo_put32(hello, HELLO_MAGIC);
    kolo_put16(hello + 4, KOLO_PROTOCOL_VERSION);
    hello[HELLO_PURPOSE] = (uint8_t)claim->purpose;
    hello[HELLO_SECURITY] = claim->security;
    kolo_put32(hello + HELLO_FROM, (uint32_t)claim->from);
    kolo_put32(hello + HELLO_TO, (uint32_t)claim->to);
    kolo_put64(hello + HELLO_TAG, claim->tag);
    KOLO_TRY(kolo_random(hello + HELLO_NONCE, NONCE_BYTES));
    prove(s, role_dial, 0, hello + HELLO_PROOF);
    return KOLO_OK;
}

kolo_hello_result_t kolo_auth_check_hello(const kolo_shake_t *s, kolo_claim_t *claim)
{
    const uint8_t *hello = s->hello;
    uint8_t proof[PROOF_BYTES];
    if (kolo_get32(hello) != HELLO_MAGIC) return KOLO_HELLO_BAD_MAGIC;
    if (kolo_get16(hello + 4) != KOLO_PROTOCOL_VERSION) return KOLO_HELLO_BAD_VERSION;
    prove(s, role_dial, 0, proof);
    if (!equal(proof, hello + HELLO_PROOF)) return KOLO_HELLO_BAD_PROOF;
    claim->purpose = (kolo_purpose_t)hello[HELLO_PURPOSE];
    claim->security = hello[HELLO_SECURITY];
    claim->from = (int)kolo_get32(hello + HELLO_FROM);
    claim->to = (int)kolo_get32(hello + HELLO_TO);
    claim->tag = kolo_get64(hello + HELLO_TAG);
    return KOLO_HELLO_OK;
}

void kolo_auth_verdict(const kolo_shake_t *s, kolo_auth_verdict_t code, uint8_t verdict[KOLO_VERDICT_BYTES])
{
    kolo_put32(verdict, VERDICT_MAGIC);
    kolo_put32(verdict + VERDICT_CODE, code);
    prove(s, role_accept, code, verdict + VERDICT_PROOF);
}

void kolo_auth_unproven_refusal(uint8_t verdict[KOLO_VERDICT_BYTES])
{
    memset(verdict, 0, KOLO_VERDICT_BYTES);
    kolo_put32(verdict, VERDICT_MAGIC);
    kolo_put32(verdict + VERDICT_CODE, KOLO_VERDICT_REFUSED);
}

bool kolo_auth_check_verdict(const kolo_shake_t *s, const uint8_t verdict[KOLO_VERDICT_BYTES],
                             kolo_auth_verdict_t *code)
{
    uint8_t proof[PROOF_BYTES];
    *code = KOLO_VERDICT_REFUSED;
    if (kolo_get32(verdict) != VERDICT_MAGIC || kolo_get32(verdict + VERDICT_CODE) > KOLO_VERDICT_GONE)
        return false;
    *code = (kolo_auth_verdict_t)kolo_get32(verdict + VERDICT_CODE);
    prove(s, role_accept, *code, proof);
    return equal(proof, verdict + VERDICT_PROOF);
}

/* ---- a secret on its way ---- */

#ifdef KOLO_HAVE_SODIUM
_Static_assert(KOLO_SEALED_BYTES == crypto_secretbox_NONCEBYTES + crypto_secretbox_MACBYTES + 32,
               "nonce, MAC, secret");
_Static_assert(sizeof(kolo_key_t) == crypto_secretbox_KEYBYTES, "our keys are the box's");

kolo_status_t kolo_auth_seal(const kolo_key_t *key, const uint8_t secret[32], uint8_t sealed[KOLO_SEALED_BYTES])
{
    KOLO_TRY(kolo_random(sealed, crypto_secretbox_NONCEBYTES));
    crypto_secretbox_easy(sealed + crypto_secretbox_NONCEBYTES, secret, 32, sealed, key->bytes);
    return KOLO_OK;
}

kolo_status_t kolo_auth_unseal(const kolo_key_t *key, const uint8_t sealed[KOLO_SEALED_BYTES], uint8_t secret[32])
{
    if (crypto_secretbox_open_easy(secret, sealed + crypto_secretbox_NONCEBYTES,
                                   KOLO_SEALED_BYTES - crypto_secretbox_NONCEBYTES, sealed, key->bytes) == 0)
        return KOLO_OK;
    return kolo_fail(KOLO_ERR_AUTH,
                     "a sealed secret was not made by a rank of this job, or was changed on its way");
}
#else
kolo_status_t kolo_auth_seal(const kolo_key_t *key, const uint8_t secret[32], uint8_t sealed[KOLO_SEALED_BYTES])
{
    (void)key, (void)secret, (void)sealed;
    return kolo_fail(KOLO_ERR_UNSUPPORTED, "a secret cannot be passed on: Kolo was built without libsodium");
}

kolo_status_t kolo_auth_unseal(const kolo_key_t *key, const uint8_t sealed[KOLO_SEALED_BYTES], uint8_t secret[32])
{
    (void)secret;
    return kolo_auth_seal(key, sealed, NULL);
}
#endif
