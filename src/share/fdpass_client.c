/* SPDX-License-Identifier: Apache-2.0
 *
 * The asking side of descriptor passing, on the caller's thread, and the proofs that both sides use. See fdpass.h.
 */
#include "base/bytes.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/file/fds.h"
#include "base/process.h"
#include "share/fdpass_frame.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef KOLO_HAVE_SODIUM
#include <sodium.h>
#endif

#define DEFAULT_LIMIT_MS 30000
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

void kolo_fdpass_prove(uint8_t proof[KOLO_FDPASS_PROOF_BYTES], kolo_fdpass_side_t side,
                       const uint8_t key[KOLO_FDPASS_KEY_BYTES],
                       const uint8_t server_nonce[KOLO_FDPASS_NONCE_BYTES],
                       const uint8_t client_nonce[KOLO_FDPASS_NONCE_BYTES],
                       const uint8_t name[KOLO_FDPASS_NAME_BYTES])
{
    uint8_t text[16 + 2 * KOLO_FDPASS_NONCE_BYTES + KOLO_FDPASS_NAME_BYTES] = "kolo fdpass";
    text[15] = (uint8_t)side;
    memcpy(text + 16, server_nonce, KOLO_FDPASS_NONCE_BYTES);
    memcpy(text + 16 + KOLO_FDPASS_NONCE_BYTES, client_nonce, KOLO_FDPASS_NONCE_BYTES);
    memcpy(text + 16 + 2 * KOLO_FDPASS_NONCE_BYTES, name, KOLO_FDPASS_NAME_BYTES);
#ifdef KOLO_HAVE_SODIUM
    crypto_generichash(proof, KOLO_FDPASS_PROOF_BYTES, text, sizeof text, key, KOLO_FDPASS_KEY_BYTES);
#else
    /* Keeps jobs of one user apart by mistake only; the kernel's user id is the protection then. */
    uint64_t words[4] = {KOLO_HASH_INIT};
    for (int i = 0; i < 4; i++) {
        words[i] = kolo_hash_bytes(words[i ? i - 1 : 0], key, KOLO_FDPASS_KEY_BYTES);
        words[i] = kolo_hash_bytes(words[i], text, sizeof text);
    }
    memcpy(proof, words, sizeof words);
#endif
}

bool kolo_fdpass_equal(const uint8_t a[32], const uint8_t b[32])
{
    unsigned difference = 0;
    for (int i = 0; i < 32; i++) difference |= (unsigned)(a[i] ^ b[i]);
    return difference == 0;
}

socklen_t kolo_fdpass_sockaddr(const uint8_t address[16], struct sockaddr_un *sun)
{
    memset(sun, 0, sizeof *sun);
    sun->sun_family = AF_UNIX; /* sun_path[0] stays 0: an abstract name */
    memcpy(sun->sun_path + 1, "kolo-", 5);
    for (int i = 0; i < 16; i++) snprintf(sun->sun_path + 6 + 2 * i, 3, "%02x", address[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 6 + 32);
}

typedef struct {
    const kolo_fdpass_call_t *call;
    const uint8_t *name;
    int *fds;
    int nfds;
    kolo_wait_t wait;
    bool again;    /* the server or the offer is not there yet, or the server is busy */
    bool missing;  /* it is the server or the offer */
    bool unserved; /* it is the server */
    int sock;
} fetch_t;

static void describe(void *arg, char *buf, size_t bytes)
{
    const fetch_t *f = (const fetch_t *)arg;
    snprintf(buf, bytes, "a shared segment or control page of %s%s", f->call->who,
             f->again ? "; it has not offered it, it may have failed or be elsewhere in its program" : "");
}

/* Receives one record, with the descriptors that come along. *bytes 0: the server hung up. */
static kolo_status_t receive(fetch_t *f, void *record, size_t size, ssize_t *bytes, int *fds, int *nfds)
{
    union {
        char bytes[CMSG_SPACE(KOLO_FDPASS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {record, size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    for (;;) {
        msg.msg_control = fds ? control.bytes : NULL;
        msg.msg_controllen = fds ? sizeof control.bytes : 0;
        *bytes = recvmsg(f->sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (*bytes >= 0) break;
        if (errno == ECONNRESET) {
            *bytes = 0;
            return KOLO_OK;
        }
        if (errno != EAGAIN && errno != EINTR)
            return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot receive descriptors from %s", f->call->who);
        KOLO_TRY(kolo_wait_pause(&f->wait));
    }
    kolo_wait_end(&f->wait);
    if (!fds) return KOLO_OK;
    *nfds = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        int n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + (size_t)i * sizeof fd, sizeof fd);
            fd = kolo_fd_own(fd);
            if (*nfds < KOLO_FDPASS_MAX && fd >= 0)
                fds[(*nfds)++] = fd;
            else
                kolo_fd_close(fd);
        }
    }
    return KOLO_OK;
}

static kolo_status_t check_user(fetch_t *f, int *pid)
{
    struct ucred cred;
    socklen_t size = sizeof cred;
    if (getsockopt(f->sock, SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot ask who serves the address of %s", f->call->who);
    if (cred.uid != geteuid())
        return kolo_fail(KOLO_ERR_AUTH, "the address of %s is served by user %u, expected user %u", f->call->who,
                         (unsigned)cred.uid, (unsigned)geteuid());
    *pid = cred.pid;
    return KOLO_OK;
}

/* Says hello, asks, takes the answer. fds beyond what was asked for are closed by the caller. */
static kolo_status_t converse(fetch_t *f, int *fds, int *nfds)
{
    kolo_fdpass_hello_t hello;
    kolo_fdpass_answer_t answer;
    ssize_t bytes;
    KOLO_FAIL_POINT_TRY("wire.fdpass.called");
    KOLO_TRY(receive(f, &hello, sizeof hello, &bytes, NULL, NULL));
    f->again = bytes == 0; /* it had too many callers */
    if (f->again) return KOLO_OK;
    if (bytes != (ssize_t)sizeof hello || hello.magic != KOLO_FDPASS_MAGIC || hello.version != KOLO_FDPASS_VERSION)
        return kolo_fail(KOLO_ERR_PROTOCOL, "the server of %s greets with something else", f->call->who);
    kolo_fdpass_request_t request = {.magic = KOLO_FDPASS_MAGIC, .nfds = (uint32_t)f->nfds};
    memcpy(request.name, f->name, sizeof request.name);
    KOLO_TRY(kolo_random(request.nonce, sizeof request.nonce));
    kolo_fdpass_prove(request.proof, KOLO_FDPASS_OF_CLIENT, f->call->key, hello.nonce, request.nonce, f->name);
    f->again = send(f->sock, &request, sizeof request, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof request;
    if (f->again) return KOLO_OK; /* it hung up meanwhile */
    KOLO_FAIL_POINT_TRY("wire.fdpass.asked");
    KOLO_TRY(receive(f, &answer, sizeof answer, &bytes, fds, nfds));
    f->again = bytes == 0;
    if (f->again) return KOLO_OK;
    if (bytes != (ssize_t)sizeof answer || answer.magic != KOLO_FDPASS_MAGIC)
        return kolo_fail(KOLO_ERR_PROTOCOL, "the server of %s answers something else", f->call->who);
    if (answer.result == KOLO_FDPASS_NO_SUCH_NAME) {
        f->again = f->missing = true;
        return KOLO_OK;
    }
    uint8_t proof[KOLO_FDPASS_PROOF_BYTES];
    kolo_fdpass_prove(proof, KOLO_FDPASS_OF_SERVER, f->call->key, hello.nonce, request.nonce, f->name);
    if (answer.result != KOLO_FDPASS_SERVED || !kolo_fdpass_equal(proof, answer.proof))
        return kolo_fail(KOLO_ERR_AUTH, "%s and this process hold different job keys", f->call->who);
    char buf[128];
    if (*nfds < f->nfds) /* the kernel leaves out those that there is no room for */
        return kolo_fail(KOLO_ERR_SYSTEM, "%d of %d descriptors that %s has passed came: %s", *nfds, f->nfds,
                         f->call->who, kolo_fd_print_all(buf, sizeof buf));
    if (*nfds != f->nfds)
        return kolo_fail(KOLO_ERR_PROTOCOL, "%s passed %d descriptors, expected %d", f->call->who, *nfds, f->nfds);
    return KOLO_OK;
}

/* Returns what tells the death of the process behind `sock`: its pidfd, else the connection itself, which the
 * server keeps open. (A connection alone would be kept alive by children that a dying process leaves behind.) */
static int alive_descriptor(int *sock, int pid)
{
    int fd = -1;
    socklen_t size = sizeof fd;
    if (getsockopt(*sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0 && fd >= 0) return kolo_fd_own(fd);
    fd = pid > 0 ? kolo_fd_own((int)syscall(SYS_pidfd_open, pid, 0)) : -1;
    if (fd < 0) {
        fd = *sock;
        *sock = -1;
    }
    return fd;
}

static kolo_status_t fetch_once(fetch_t *f, kolo_fdpass_peer_t *peer)
{
    struct sockaddr_un sun;
    socklen_t size = kolo_fdpass_sockaddr(f->call->address, &sun);
    int fds[KOLO_FDPASS_MAX], nfds = 0, pid = 0;
    if (connect(f->sock, (struct sockaddr *)&sun, size) != 0) {
        f->again = errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR;
        f->missing = f->unserved = errno == ECONNREFUSED;
        if (f->again) return KOLO_OK;
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot call the descriptor server of %s", f->call->who);
    }
    kolo_status_t status = check_user(f, &pid);
    if (status == KOLO_OK) status = converse(f, fds, &nfds);
    if (status == KOLO_OK && !f->again) {
        memcpy(f->fds, fds, (size_t)nfds * sizeof(int));
        if (peer) *peer = (kolo_fdpass_peer_t){.pid = pid, .alive_fd = alive_descriptor(&f->sock, pid)};
        return KOLO_OK;
    }
    for (int i = 0; i < nfds; i++) kolo_fd_close(fds[i]);
    return status;
}

static kolo_status_t fetch_by_socket(fetch_t *f, kolo_fdpass_peer_t *peer)
{
    bool watched = false;
    f->sock = kolo_fd_socket(AF_UNIX, SOCK_SEQPACKET);
    if (f->sock < 0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "no socket to call %s (raise the limit of open files?)",
                               f->call->who);
    int sock = f->sock;
    if (f->wait.nwakers) {
        kolo_status_t status = kolo_waker_add_fd(f->call->waker, sock);
        if (status != KOLO_OK) {
            kolo_fd_close(sock);
            return status;
        }
        watched = true;
    }
    kolo_status_t status = fetch_once(f, peer);
    kolo_wait_end(&f->wait);
    if (watched) kolo_waker_del_fd(f->call->waker, sock);
    if (f->sock >= 0) kolo_fd_close(f->sock);
    return status;
}

static kolo_status_t fetch_here(fetch_t *f, kolo_fdpass_peer_t *peer, bool *own)
{
    kolo_fdpass_result_t result;
    *own = kolo_fdpass_fetch_own(f->call->address, f->name, f->call->key, f->fds, f->nfds, &result);
    if (!*own) return KOLO_OK;
    if (result == KOLO_FDPASS_WRONG_KEY)
        return kolo_fail(KOLO_ERR_AUTH, "%s, of this process, holds another job key, or no descriptor is free",
                         f->call->who);
    f->again = f->missing = result == KOLO_FDPASS_NO_SUCH_NAME;
    if (peer) *peer = (kolo_fdpass_peer_t){.pid = (int)getpid(), .alive_fd = -1};
    return KOLO_OK;
}

kolo_status_t kolo_fdpass_fetch(const kolo_fdpass_call_t *call, const uint8_t name[KOLO_FDPASS_NAME_BYTES],
                                kolo_fdpass_patience_t patience, int *fds, int nfds, kolo_fdpass_peer_t *peer)
{
    fetch_t f = {.call = call, .name = name, .fds = fds, .nfds = nfds, .sock = -1};
    uint64_t deadline = call->deadline_ns ? call->deadline_ns : kolo_deadline_ms(DEFAULT_LIMIT_MS);
    kolo_wait_t retry;
    kolo_wait_init(&f.wait, call->abort, deadline, describe, &f, call->ranks_here);
    if (call->waker) f.wait.wakers[f.wait.nwakers++] = call->waker;
    kolo_wait_init(&retry, call->abort, deadline, describe, &f, call->ranks_here);
    retry.spins = retry.yields = 0; /* each pause sleeps 50 us */
    for (int pauses = 1;; pauses = KOLO_MIN(2 * pauses, 64)) {
        bool own;
        KOLO_TRY(fetch_here(&f, peer, &own));
        if (!own) KOLO_TRY(fetch_by_socket(&f, peer));
        if (!f.again) return KOLO_OK;
        if (f.missing && patience == KOLO_FDPASS_MUST_BE_THERE)
            return kolo_fail(KOLO_ERR_REMOTE,
                             "%s has taken back its side of a connection, or is gone; its own message says why%s",
                             call->who, f.unserved ? " (or it is " KOLO_FDPASS_TWIN ")" : "");
        if (f.missing && call->there) KOLO_TRY(call->there(call->arg, !f.unserved));
        f.missing = f.unserved = false;
        for (int i = 0; i < pauses; i++) KOLO_TRY(kolo_wait_pause(&retry));
    }
}
