/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of KOLO_TCP_SECURITY with libsodium; see seal.h.
 */
#include "link/seal.h"
#include "base/file/fds.h"
#include "base/file/private.h"

#include "base/bytes.h"
#include "link/link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifdef KOLO_HAVE_SODIUM
#include <sodium.h>
#endif

#define MODE_MASK 0x0fu
#define HAS_AES   0x10u

#ifdef KOLO_HAVE_SODIUM

typedef struct {
    uint8_t key[32], check[crypto_shorthash_KEYBYTES];
    uint64_t number; /* of the next record */
    crypto_aead_aes256gcm_state aes;
} direction_t;

struct kolo_seal {
    direction_t out, in;
    bool hides, aes;
    bool altered;   /* a record was not what the other end had sent: nothing behind it is believed */
    uint32_t taken; /* payload of the records in out_bytes[out_begin..out_end) */
    uint32_t out_begin, out_end;
    uint32_t in_begin, in_end;     /* received and not opened */
    uint32_t open_begin, open_end; /* opened in place and not taken: ahead of in_begin */
    uint8_t out_bytes[KOLO_SEAL_BUFFER_BYTES], in_bytes[KOLO_SEAL_BUFFER_BYTES];
};

/* ---- keys ---- */

static void start_direction(const kolo_key_t *session, const char *name, direction_t *d, bool aes)
{
    kolo_key_t key;
    kolo_auth_derive(session, name, NULL, 0, &key);
    memcpy(d->key, key.bytes, sizeof d->key);
    kolo_auth_derive(session, name, "length", 6, &key);
    memcpy(d->check, key.bytes, sizeof d->check);
    if (aes) crypto_aead_aes256gcm_beforenm(&d->aes, d->key);
    kolo_auth_wipe(&key, sizeof key);
}

uint8_t kolo_seal_offer(void)
{
    uint8_t aes = crypto_aead_aes256gcm_is_available() ? HAS_AES : 0;
    return (uint8_t)kolo_link_values.security | (kolo_link_values.security != KOLO_SECURITY_NONE ? aes : 0);
}

kolo_status_t kolo_seal_check_build(void)
{
    return KOLO_OK;
}

kolo_status_t kolo_seal_create(const kolo_key_t *key, const uint8_t greeting[KOLO_GREETING_BYTES],
                               const uint8_t hello[KOLO_HELLO_BYTES], bool dialled, kolo_seal_t **out)
{
    uint8_t text[KOLO_GREETING_BYTES + KOLO_HELLO_BYTES], word = kolo_auth_hello_security(hello);
    kolo_key_t session;
    *out = NULL;
    if ((word & MODE_MASK) == KOLO_SECURITY_NONE) return KOLO_OK;
    kolo_seal_t *seal = kolo_private_alloc(sizeof *seal);
    if (seal == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for KOLO_TCP_SECURITY of a connection");
    memcpy(text, greeting, KOLO_GREETING_BYTES);
    memcpy(text + KOLO_GREETING_BYTES, hello, KOLO_HELLO_BYTES);
    kolo_auth_derive(key, "session", text, sizeof text, &session);
    seal->hides = (word & MODE_MASK) == KOLO_SECURITY_ENCRYPT;
    seal->aes = word & HAS_AES;
    start_direction(&session, dialled ? "to acceptor" : "to dialler", &seal->out, seal->aes);
    start_direction(&session, dialled ? "to dialler" : "to acceptor", &seal->in, seal->aes);
    kolo_auth_wipe(&session, sizeof session);
    *out = seal;
    return KOLO_OK;
}

void kolo_seal_destroy(kolo_seal_t *seal)
{
    kolo_private_free(seal, sizeof *seal);
}

size_t kolo_seal_memory(const kolo_seal_t *seal)
{
    return seal != NULL ? sizeof *seal : 0;
}

/* ---- records ---- */

static uint64_t check_of(const direction_t *d, uint32_t bytes)
{
    uint8_t text[12], sum[crypto_shorthash_BYTES];
    kolo_put32(text, bytes);
    kolo_put64(text + 4, d->number);
    crypto_shorthash(sum, text, sizeof text, d->check);
    return kolo_get64(sum);
}

static void nonce_of(const direction_t *d, uint8_t nonce[12])
{
    memset(nonce, 0, 4);
    kolo_put64(nonce + 4, d->number);
}

static void close_record(kolo_seal_t *seal, uint8_t *at, uint32_t bytes)
{
    direction_t *d = &seal->out;
    uint8_t nonce[12], *body = at + KOLO_SEAL_HEAD_BYTES, *tag = body + bytes;
    unsigned long long hidden = seal->hides ? bytes : 0, shown = seal->hides ? 0 : bytes;
    kolo_put32(at, bytes);
    kolo_put64(at + 4, check_of(d, bytes));
    nonce_of(d, nonce);
    if (seal->aes)
        crypto_aead_aes256gcm_encrypt_detached_afternm(body, tag, NULL, body, hidden, body, shown, NULL, nonce,
                                                       &d->aes);
    else
        crypto_aead_chacha20poly1305_ietf_encrypt_detached(body, tag, NULL, body, hidden, body, shown, NULL, nonce,
                                                           d->key);
    d->number++;
}

static bool open_record(kolo_seal_t *seal, uint8_t *at, uint32_t bytes)
{
    direction_t *d = &seal->in;
    uint8_t nonce[12], *body = at + KOLO_SEAL_HEAD_BYTES;
    const uint8_t *tag = body + bytes;
    unsigned long long hidden = seal->hides ? bytes : 0, shown = seal->hides ? 0 : bytes;
    nonce_of(d, nonce);
    int wrong = seal->aes ? crypto_aead_aes256gcm_decrypt_detached_afternm(body, NULL, body, hidden, tag, body,
                                                                           shown, nonce, &d->aes)
                          : crypto_aead_chacha20poly1305_ietf_decrypt_detached(body, NULL, body, hidden, tag, body,
                                                                               shown, nonce, d->key);
    d->number++;
    return wrong == 0;
}

/* ---- sending ---- */

static void seal_bytes(kolo_seal_t *seal, const struct iovec *iov, int count)
{
    size_t skip = 0;
    seal->taken = seal->out_begin = seal->out_end = 0;
    for (int i = 0; i < count && seal->out_end + KOLO_SEAL_EXTRA_BYTES < KOLO_SEAL_BUFFER_BYTES;) {
        uint8_t *at = seal->out_bytes + seal->out_end;
        uint32_t room = KOLO_MIN(KOLO_SEAL_RECORD_BYTES,
                                 KOLO_SEAL_BUFFER_BYTES - seal->out_end - KOLO_SEAL_EXTRA_BYTES),
                 bytes = 0;
        while (i < count && bytes < room) {
            uint32_t take = (uint32_t)KOLO_MIN(iov[i].iov_len - skip, (size_t)(room - bytes));
            if (take > 0) memcpy(at + KOLO_SEAL_HEAD_BYTES + bytes, (const char *)iov[i].iov_base + skip, take);
            bytes += take;
            skip += take;
            if (skip < iov[i].iov_len) break;
            skip = 0;
            i++;
        }
        if (bytes == 0) break;
        close_record(seal, at, bytes);
        seal->out_end += bytes + KOLO_SEAL_EXTRA_BYTES;
        seal->taken += bytes;
    }
}

static ssize_t sealed_send(kolo_seal_t *seal, int fd, const struct iovec *iov, int count)
{
    if (seal->out_begin == seal->out_end) seal_bytes(seal, iov, count);
    while (seal->out_begin < seal->out_end) {
        ssize_t n = send(fd, seal->out_bytes + seal->out_begin, seal->out_end - seal->out_begin,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        seal->out_begin += (uint32_t)n;
    }
    return (ssize_t)seal->taken;
}

/* ---- receiving ---- */

/* Returns the payload of the complete record at in_begin; -1: there is none; -2: it was changed. */
static int64_t next_record(const kolo_seal_t *seal)
{
    const uint8_t *at = seal->in_bytes + seal->in_begin;
    uint32_t have = seal->in_end - seal->in_begin;
    if (have < KOLO_SEAL_HEAD_BYTES) return -1;
    uint32_t bytes = kolo_get32(at);
    if (bytes == 0 || bytes > KOLO_SEAL_RECORD_BYTES || kolo_get64(at + 4) != check_of(&seal->in, bytes)) return -2;
    return have >= bytes + KOLO_SEAL_EXTRA_BYTES ? (int64_t)bytes : -1;
}

static bool open_next(kolo_seal_t *seal)
{
    int64_t bytes = next_record(seal);
    if (bytes == -1) return false;
    if (bytes == -2 || !open_record(seal, seal->in_bytes + seal->in_begin, (uint32_t)bytes)) {
        seal->altered = true;
        return false;
    }
    seal->open_begin = seal->in_begin + KOLO_SEAL_HEAD_BYTES;
    seal->open_end = seal->open_begin + (uint32_t)bytes;
    seal->in_begin += (uint32_t)bytes + KOLO_SEAL_EXTRA_BYTES;
    return true;
}

/* Moves opened bytes into iov from `at` on. */
static size_t take_opened(kolo_seal_t *seal, const struct iovec *iov, int count, size_t at)
{
    size_t moved = 0;
    for (int i = 0; i < count; i++) {
        if (at >= iov[i].iov_len) {
            at -= iov[i].iov_len;
            continue;
        }
        for (size_t room; (room = iov[i].iov_len - at) > 0;) {
            if (seal->open_begin == seal->open_end && !open_next(seal)) return moved;
            size_t n = KOLO_MIN(room, (size_t)(seal->open_end - seal->open_begin));
            memcpy((char *)iov[i].iov_base + at, seal->in_bytes + seal->open_begin, n);
            seal->open_begin += (uint32_t)n;
            at += n;
            moved += n;
        }
        at = 0;
    }
    return moved;
}

static ssize_t sealed_recv(kolo_seal_t *seal, int fd, const struct iovec *iov, int count)
{
    size_t moved = take_opened(seal, iov, count, 0);
    while (moved == 0 && !seal->altered) { /* nothing is open: what is left begins at in_begin */
        memmove(seal->in_bytes, seal->in_bytes + seal->in_begin, seal->in_end - seal->in_begin);
        seal->in_end -= seal->in_begin;
        seal->in_begin = seal->open_begin = seal->open_end = 0;
        ssize_t n = recv(fd, seal->in_bytes + seal->in_end, KOLO_SEAL_BUFFER_BYTES - seal->in_end, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n;
        seal->in_end += (uint32_t)n;
        moved = take_opened(seal, iov, count, 0);
    }
    if (moved > 0) return (ssize_t)moved;
    errno = EBADMSG;
    return -1;
}

static bool within(const kolo_seal_t *seal)
{
    return seal->out_begin < seal->out_end;
}

#else

struct kolo_seal {
    int none;
};

uint8_t kolo_seal_offer(void)
{
    return KOLO_SECURITY_NONE;
}

kolo_status_t kolo_seal_check_build(void)
{
    if (kolo_link_values.security == KOLO_SECURITY_NONE) return KOLO_OK;
    return kolo_fail(KOLO_ERR_UNSUPPORTED, "KOLO_TCP_SECURITY=%s: Kolo was built without libsodium",
                     kolo_seal_mode_name((uint8_t)kolo_link_values.security));
}

kolo_status_t kolo_seal_create(const kolo_key_t *key, const uint8_t greeting[KOLO_GREETING_BYTES],
                               const uint8_t hello[KOLO_HELLO_BYTES], bool dialled, kolo_seal_t **out)
{
    (void)key, (void)greeting, (void)hello, (void)dialled;
    *out = NULL;
    return KOLO_OK;
}

void kolo_seal_destroy(kolo_seal_t *seal)
{
    (void)seal;
}

size_t kolo_seal_memory(const kolo_seal_t *seal)
{
    (void)seal;
    return 0;
}

static ssize_t sealed_send(kolo_seal_t *seal, int fd, const struct iovec *iov, int count)
{
    (void)seal, (void)fd, (void)iov, (void)count;
    errno = ENOTSUP;
    return -1;
}

static ssize_t sealed_recv(kolo_seal_t *seal, int fd, const struct iovec *iov, int count)
{
    return sealed_send(seal, fd, iov, count);
}

static bool within(const kolo_seal_t *seal)
{
    return seal != NULL;
}

#endif

/* ---- modes ---- */

const char *kolo_seal_mode_name(uint8_t word)
{
    static const char *const names[] = {"none", "mac", "encrypt"};
    unsigned mode = word & MODE_MASK;
    return mode < KOLO_COUNTOF(names) ? names[mode] : "something else";
}

bool kolo_seal_answer(uint8_t offer, uint8_t *answer)
{
    *answer = kolo_seal_offer();
    if ((*answer ^ offer) & MODE_MASK) return false;
    *answer &= offer; /* the mode is the same in both */
    return true;
}

bool kolo_seal_fits(uint8_t answer)
{
    uint8_t mine = kolo_seal_offer();
    return ((answer ^ mine) & MODE_MASK) == 0 && (answer & ~(unsigned)mine & HAS_AES) == 0;
}

/* ---- sockets ---- */

ssize_t kolo_socket_send(const kolo_socket_t *socket, const struct iovec *iov, int count)
{
    struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)count};
    if (socket->seal != NULL) return sealed_send(socket->seal, socket->fd, iov, count);
    if (count == 1) return send(socket->fd, iov[0].iov_base, iov[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sendmsg(socket->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t kolo_socket_recv(const kolo_socket_t *socket, const struct iovec *iov, int count)
{
    struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)count};
    if (socket->seal != NULL) return sealed_recv(socket->seal, socket->fd, iov, count);
    if (count == 1) return recv(socket->fd, iov[0].iov_base, iov[0].iov_len, MSG_DONTWAIT);
    return recvmsg(socket->fd, &msg, MSG_DONTWAIT);
}

ssize_t kolo_socket_send_bytes(const kolo_socket_t *socket, const void *bytes, size_t length)
{
    struct iovec iov = {(void *)(uintptr_t)bytes, length};
    return kolo_socket_send(socket, &iov, 1);
}

ssize_t kolo_socket_recv_bytes(const kolo_socket_t *socket, void *bytes, size_t room)
{
    struct iovec iov = {bytes, room};
    return kolo_socket_recv(socket, &iov, 1);
}

bool kolo_socket_within(const kolo_socket_t *socket)
{
    return socket->seal != NULL && within(socket->seal);
}

static void forget(kolo_socket_t *socket)
{
    kolo_seal_destroy(socket->seal);
    *socket = (kolo_socket_t){.fd = -1};
}

void kolo_socket_close(kolo_socket_t *socket)
{
    if (socket->fd >= 0) kolo_fd_close(socket->fd);
    forget(socket);
}

void kolo_socket_leave(kolo_socket_t *socket)
{
    if (socket->fd >= 0) kolo_socket_hang_up(socket->fd);
    forget(socket);
}
