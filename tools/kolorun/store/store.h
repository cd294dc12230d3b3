/* SPDX-License-Identifier: Apache-2.0
 *
 * The store of a job: small values under scope/key, kept by kolorun (--store) and reached over HTTP by its ranks.
 *
 *     PUT, GET, DELETE /scope/key
 *         answers: 200, 404 (no such key), 400, 403, 413, 507 (full)
 *
 *     Kolo-Client: 32 hex digits
 *         who asks, at random
 *
 *     Kolo-Count: a number
 *         of this client's requests, each larger than the one before: nothing counts twice. Microseconds since
 *         1970, so that it is also larger than those of clients that the server has forgotten
 *
 *     Kolo-Body: 64 hex digits
 *         BLAKE2b-256 of the body
 *
 *     Kolo-Signature: 64 hex digits
 *         BLAKE2b-256 with the job's key over method, path, client, count and Kolo-Body
 *
 * The signature is checked before a byte of the body is taken. The answer is signed the same way, with the status
 * in place of method and path, so that nobody else's answer is believed. What is sent is not encrypted.
 *
 * A rank finds the server in KOLO_STORE (host:port, [host]:port for an IPv6 address, unix:@name) and the key in the
 * file KOLO_STORE_KEY_FILE (mode 0600); it is in no environment and on no command line.
 */
#ifndef KOLO_TOOLS_STORE_H
#define KOLO_TOOLS_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KOLO_STORE_KEY_BYTES   32
#define KOLO_STORE_NAME_MAX    128        /* of a scope or a key: letters, digits, '.', '_', '-' */
#define KOLO_STORE_VALUE_MAX   (1u << 20) /* bytes of one value */
#define KOLO_STORE_ALL_MAX     (256u << 20)
#define KOLO_STORE_CLIENTS_MAX 4096 /* that the server remembers; of more, those who asked last */
#define KOLO_STORE_PATH_BYTES  (2 * KOLO_STORE_NAME_MAX + 3)
#define KOLO_STORE_HEX         65 /* text of 32 bytes, with its NUL */

/* ---- a rank's side; any thread ---- */

typedef struct kolo_store kolo_store_t;

/* From the two variables. A name in place of an address is looked up here, for as long as the resolver takes. NULL:
 * why, in a sentence. */
kolo_store_t *kolo_store_open(const char *address, const char *key_file, char *why, size_t why_bytes);
/* Each returns the HTTP status, or -1 (why, in a sentence) when the server cannot be reached within timeout_ms or
 * is not the job's. A key that is not there yet is waited for until then: 404 is the end of the patience. Calls of
 * several threads do not wait for each other. */
int kolo_store_put(kolo_store_t *store, const char *scope, const char *key, const void *data, size_t bytes,
                   int timeout_ms, char *why, size_t why_bytes);
/* *data is from malloc. */
int kolo_store_get(kolo_store_t *store, const char *scope, const char *key, void **data, size_t *bytes,
                   int timeout_ms, char *why, size_t why_bytes);
int kolo_store_delete(kolo_store_t *store, const char *scope, const char *key, int timeout_ms, char *why,
                      size_t why_bytes);
void kolo_store_close(kolo_store_t *store);

/* ---- kolorun's side ---- */

typedef struct kolo_store_server kolo_store_server_t;

typedef struct {
    uint64_t served;
    uint64_t is_unsigned, badly_signed, replayed, too_large, malformed; /* refused */
} kolo_store_counts_t;

bool kolo_store_server_available(void); /* built with libmicrohttpd and libsodium? */
/* Listens on a port of its choice: on loopback (on a Unix socket where that is not up), or on all addresses. NULL:
 * why. */
kolo_store_server_t *kolo_store_server_start(bool loopback, char *why, size_t why_bytes);
int kolo_store_server_port(const kolo_store_server_t *server);            /* 0: a Unix socket */
const char *kolo_store_server_address(const kolo_store_server_t *server); /* KOLO_STORE for ranks on this host */
const uint8_t *kolo_store_server_key(const kolo_store_server_t *server);  /* KOLO_STORE_KEY_BYTES */
int kolo_store_server_fd(const kolo_store_server_t *server);              /* to poll for reading */
double kolo_store_server_next_s(const kolo_store_server_t *server); /* run it then at the latest; 0: when fd asks */
void kolo_store_server_run(kolo_store_server_t *server);            /* does what can be done without waiting */
const kolo_store_counts_t *kolo_store_server_counts(const kolo_store_server_t *server);
void kolo_store_server_stop(kolo_store_server_t *server);

/* ---- what both sides read from the other; pure, fuzzed ---- */

bool kolo_store_name_ok(const char *name);
bool kolo_store_path_ok(const char *path); /* "/scope/key" */
/* Exactly 2 * bytes hex digits in lower case. */
bool kolo_store_unhex(const char *text, uint8_t *data, size_t bytes);
void kolo_store_hex(char *text, const uint8_t *data, size_t bytes);
bool kolo_store_count(const char *text, uint64_t *count);

typedef struct {
    int status;
    size_t body_at, body_bytes; /* in the text */
    char signature[KOLO_STORE_HEX], body_hash[KOLO_STORE_HEX];
} kolo_store_answer_t;
/* An answer of HTTP/1.1 with Content-Length. 1: complete; 0: more is to come; -1: not what our server sends. */
int kolo_store_answer_parse(const char *text, size_t bytes, kolo_store_answer_t *answer);

/* The signature of a request (what: "PUT /scope/key") or an answer (what: "200"). Needs libsodium: false
 * without. */
bool kolo_store_sign(const uint8_t key[KOLO_STORE_KEY_BYTES], const char *what, const char *client, uint64_t count,
                     const char *body_hash, char signature[KOLO_STORE_HEX]);
bool kolo_store_hash(const void *body, size_t bytes, char hash[KOLO_STORE_HEX]);
bool kolo_store_same(const char *a, const char *b); /* two signatures, in constant time */

#endif
