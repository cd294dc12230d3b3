/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of descriptor passing: the three messages (one SOCK_SEQPACKET record each) and what proves a key.
 */
#ifndef KOLO_SHARE_FDPASS_FRAME_H
#define KOLO_SHARE_FDPASS_FRAME_H

#include "share/fdpass.h"

#include <sys/socket.h>
#include <sys/un.h>

#define KOLO_FDPASS_MAGIC       0x7364666bu /* "kfds" */
#define KOLO_FDPASS_VERSION     1u
#define KOLO_FDPASS_NONCE_BYTES 32
#define KOLO_FDPASS_PROOF_BYTES 32

typedef enum {
    KOLO_FDPASS_SERVED = 0,
    KOLO_FDPASS_NO_SUCH_NAME = 1,
    KOLO_FDPASS_WRONG_KEY = 2
} kolo_fdpass_result_t;

typedef struct {
    uint32_t magic, version;
    uint8_t nonce[KOLO_FDPASS_NONCE_BYTES];
} kolo_fdpass_hello_t;

typedef struct {
    uint32_t magic, nfds;
    uint8_t name[KOLO_FDPASS_NAME_BYTES];
    uint8_t nonce[KOLO_FDPASS_NONCE_BYTES];
    uint8_t proof[KOLO_FDPASS_PROOF_BYTES];
} kolo_fdpass_request_t;

typedef struct {
    uint32_t magic, result;
    uint8_t proof[KOLO_FDPASS_PROOF_BYTES]; /* zeros unless served */
} kolo_fdpass_answer_t;

/* The two sides prove different things, so that neither's proof can be sent back as the other's. */
typedef enum { KOLO_FDPASS_OF_CLIENT = 1, KOLO_FDPASS_OF_SERVER = 2 } kolo_fdpass_side_t;
void kolo_fdpass_prove(uint8_t proof[KOLO_FDPASS_PROOF_BYTES], kolo_fdpass_side_t side,
                       const uint8_t key[KOLO_FDPASS_KEY_BYTES],
                       const uint8_t server_nonce[KOLO_FDPASS_NONCE_BYTES],
                       const uint8_t client_nonce[KOLO_FDPASS_NONCE_BYTES],
                       const uint8_t name[KOLO_FDPASS_NAME_BYTES]);
bool kolo_fdpass_equal(const uint8_t a[32], const uint8_t b[32]); /* in constant time */

/* Writes the abstract socket name that belongs to an address; returns its length. */
socklen_t kolo_fdpass_sockaddr(const uint8_t address[16], struct sockaddr_un *sun);

/* Serves a fetch within this process: true if `address` is its own (then *status is the outcome). */
bool kolo_fdpass_fetch_own(const uint8_t address[16], const uint8_t name[KOLO_FDPASS_NAME_BYTES],
                           const uint8_t key[KOLO_FDPASS_KEY_BYTES], int *fds, int nfds,
                           kolo_fdpass_result_t *result);

#endif
