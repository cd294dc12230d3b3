/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets that came out of a handshake, and KOLO_TCP_SECURITY: what happens to the bytes behind it. With `none`
 * they travel as they are; with `mac` and `encrypt` they travel in records, each with a tag that fails when a byte
 * was changed, left out, repeated or moved:
 *
 *     u32 bytes   u64 check of the length   payload (encrypt: enciphered)   tag of 16 bytes
 *
 * The keys, one per direction, are derived from the job's secret and both nonces of the handshake, so no two
 * connections share one; a record's number is its nonce. The length has a check of its own because a reader would
 * otherwise wait for the bytes of a length that nobody sent. AES-GCM where both ends have the instructions for it,
 * else ChaCha20-Poly1305; with `mac` the payload is the associated data of an empty message.
 *
 * The functions behave as sendmsg() and recvmsg() without blocking. Bytes count as sent once the kernel has the
 * whole record, so who was told EAGAIN calls again with the same bytes in front.
 */
#ifndef KOLO_LINK_SEAL_H
#define KOLO_LINK_SEAL_H

#include "link/auth.h"

#include <sys/types.h>
#include <sys/uio.h>

enum { KOLO_SECURITY_NONE, KOLO_SECURITY_MAC, KOLO_SECURITY_ENCRYPT };

#define KOLO_SEAL_HEAD_BYTES   12u
#define KOLO_SEAL_EXTRA_BYTES  (KOLO_SEAL_HEAD_BYTES + 16u)
#define KOLO_SEAL_RECORD_BYTES 16384u /* payload of one record, at most */
/* A receive into this much room leaves no complete record behind. */
#define KOLO_SEAL_BUFFER_BYTES (2u * (KOLO_SEAL_RECORD_BYTES + KOLO_SEAL_EXTRA_BYTES))

typedef struct kolo_seal kolo_seal_t;
typedef struct {
    int fd;
    kolo_seal_t *seal; /* NULL: the bytes travel as they are */
} kolo_socket_t;

/* Returns what this process can and wants, for the greeting. */
uint8_t kolo_seal_offer(void);
/* Makes the dialling end's answer to a greeting's offer: the same mode, and the cipher that both have. false: the
 * modes differ. */
bool kolo_seal_answer(uint8_t offer, uint8_t *answer);
bool kolo_seal_fits(uint8_t answer);
const char *kolo_seal_mode_name(uint8_t word);
/* Checks that this build can do what the parameter asks for. */
kolo_status_t kolo_seal_check_build(void);

/* Makes the seal of a connection; *seal is NULL where the answer says `none`. */
kolo_status_t kolo_seal_create(const kolo_key_t *key, const uint8_t greeting[KOLO_GREETING_BYTES],
                               const uint8_t hello[KOLO_HELLO_BYTES], bool dialled, kolo_seal_t **seal);
void kolo_seal_destroy(kolo_seal_t *seal);
size_t kolo_seal_memory(const kolo_seal_t *seal);

/* Sends without blocking and without SIGPIPE; returns -1 and errno like sendmsg(). */
ssize_t kolo_socket_send(const kolo_socket_t *socket, const struct iovec *iov, int count);
/* Receives likewise. 0: the end of the stream; -1 and EBADMSG: bytes were changed on their way. */
ssize_t kolo_socket_recv(const kolo_socket_t *socket, const struct iovec *iov, int count);
ssize_t kolo_socket_send_bytes(const kolo_socket_t *socket, const void *bytes, size_t length);
ssize_t kolo_socket_recv_bytes(const kolo_socket_t *socket, void *bytes, size_t room);
/* Has part of a record gone out, and the rest not? Nothing else can follow but that. */
bool kolo_socket_within(const kolo_socket_t *socket);
/* For messages: what EBADMSG is to the person who reads of it. */
#define KOLO_SEAL_ALTERED                                                                                          \
    "bytes were changed on the way (found by KOLO_TCP_SECURITY): check what is between these hosts"
/* Closes the descriptor at once, or as kolo_socket_hang_up() does. */
void kolo_socket_close(kolo_socket_t *socket);
void kolo_socket_leave(kolo_socket_t *socket);

#endif
