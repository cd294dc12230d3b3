/* SPDX-License-Identifier: Apache-2.0
 *
 * Listeners, connections and requests of the plug-in. A connection is an opened device of the provider with one end
 * on it, so that connections have nothing in common; a lock of its own serves callers that register memory while
 * another thread moves data. Setting up goes in steps, none of which waits:
 *
 *     connect: dial, send hello and proof      accept: read and check them, send hello and proof
 *     connect: read and check them, make the end's connection, send one byte: ready
 *                                              accept: read it, and take up the connection
 */
#include "base/file/fds.h"
#include "base/process.h"
#include "nccl_net/export.h"

#include "base/clock.h"
#include "link/address.h"
#include "link/auth.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC     0x6b6f6c6f6e657431ull
#define READY     0x72
#define DEPTH     KOLO_NCCL_REQUESTS
#define ALIVE_ASK 256 /* tests in vain between two looks at the peer */

typedef struct comm comm_t;
typedef struct { /* the handle; a dialling side keeps its half-made connection in it */
    uint64_t magic;
    kolo_address_t address;
    uint8_t key[32];
    comm_t *half;
} handle_t;
_Static_assert(sizeof(handle_t) <= KOLO_NCCL_HANDLE_BYTES, "a handle has its limit");

typedef struct {
    kolo_net_hello_t hello;
    kolo_key_t proof;
} introduction_t;

typedef struct {
    comm_t *comm;
    bool used, done;
    uint32_t bytes;
} request_t;

typedef enum { DIALLED, SENT, MET, UP } stage_t;
struct comm {
    pthread_mutex_t lock;
    const kolo_net_ops_t *ops;
    kolo_net_open_t *open;
    kolo_net_end_t *end;
    bool reads;
    stage_t stage;
    int socket;
    uint32_t got; /* of what is read from it */
    introduction_t theirs;
    kolo_net_hello_t mine;
    uint8_t key[32];
    request_t requests[DEPTH];
    uint64_t next, completed; /* by request */
    uint32_t in_vain;
};
typedef struct {
    int device, socket;
    uint8_t key[32];
    comm_t *half;
} listener_t;

/* ---- the socket beside it ---- */

/* 1: all is there; 0: not yet; -1: it has ended. */
static int read_up_to(int fd, void *at, uint32_t *got, uint32_t want)
{
    while (*got < want) {
        ssize_t n = recv(fd, (char *)at + *got, want - *got, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (n <= 0) return -1;
        *got += (uint32_t)n;
    }
    return 1;
}

static kolo_status_t say(int fd, const void *bytes, size_t n)
{
    ssize_t sent;
    do sent = send(fd, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)n ? KOLO_OK : kolo_fail_errno(KOLO_ERR_REMOTE, errno, "the peer has gone");
}

static void prove(const comm_t *c, bool reader, const kolo_net_hello_t *hello, kolo_key_t *proof)
{
    kolo_key_t key;
    memcpy(key.bytes, c->key, sizeof key.bytes);
    kolo_auth_derive(&key, reader ? "export reader" : "export writer", hello, sizeof *hello, proof);
}

static kolo_status_t introduce(comm_t *c)
{
    introduction_t mine = {.hello = c->mine};
    prove(c, c->reads, &mine.hello, &mine.proof);
    return say(c->socket, &mine, sizeof mine);
}

/* KOLO_IN_PROGRESS until the peer's introduction is there. */
static kolo_status_t meet(comm_t *c)
{
    kolo_key_t proof;
    uint8_t difference = 0;
    int there = read_up_to(c->socket, &c->theirs, &c->got, sizeof c->theirs);
    if (there == 0) return KOLO_IN_PROGRESS;
    if (there < 0) return kolo_fail(KOLO_ERR_REMOTE, "the peer has gone while the connection was made");
    prove(c, !c->reads, &c->theirs.hello, &proof);
    for (size_t i = 0; i < sizeof proof.bytes; i++) difference |= proof.bytes[i] ^ c->theirs.proof.bytes[i];
    if (difference) return kolo_fail(KOLO_ERR_AUTH, "who answers does not know the key of the connection");
    c->got = 0;
    return KOLO_OK;
}

/* ---- making ---- */

static void comm_free(comm_t *c)
{
    if (c->end) c->ops->shut(c->end);
    if (c->open) c->ops->close(c->open);
    if (c->socket >= 0) kolo_fd_close(c->socket);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static kolo_status_t comm_new(int device, bool reads, int fd, const uint8_t key[32], comm_t **result)
{
    comm_t *c = calloc(1, sizeof *c);
    if (!c) {
        kolo_fd_close(fd);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a connection");
    }
    c->ops = kolo_export_provider();
    c->socket = fd;
    c->reads = reads;
    memcpy(c->key, key, sizeof c->key);
    pthread_mutex_init(&c->lock, NULL);
    const kolo_net_end_config_t config = {.depth = DEPTH,
                                          .message_bytes = KOLO_EXPORT_MESSAGE_BYTES,
                                          .acknowledged = true,
                                          .key = c->key,
                                          .label = reads ? "NCCL, receives" : "NCCL, sends"};
    kolo_status_t status = c->ops->open(device, &c->open);
    if (status == KOLO_OK) status = (reads ? c->ops->listen : c->ops->start)(c->open, &config, &c->mine, &c->end);
    if (status != KOLO_OK) {
        comm_free(c);
        return status;
    }
    *result = c;
    return KOLO_OK;
}

static kolo_status_t listen_on(listener_t *l, handle_t *h)
{
    struct sockaddr_storage sa;
    KOLO_TRY(kolo_address_choose_local(NULL, &h->address));
    socklen_t length = kolo_address_to_sockaddr(&h->address, &sa);
    l->socket = kolo_fd_socket(sa.ss_family, SOCK_STREAM);
    if (l->socket < 0 || bind(l->socket, (struct sockaddr *)&sa, length) != 0 || listen(l->socket, 64) != 0 ||
        getsockname(l->socket, (struct sockaddr *)&sa, &length) != 0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot listen");
    kolo_address_from_sockaddr(&h->address, (struct sockaddr *)&sa);
    h->magic = MAGIC;
    KOLO_TRY(kolo_random(l->key, sizeof l->key));
    memcpy(h->key, l->key, sizeof h->key);
    return KOLO_OK;
}

int kolo_export_listen(int device, void *handle, void **listener)
{
    handle_t h = {0};
    listener_t *l = calloc(1, sizeof *l);
    if (!l) return KOLO_NCCL_SYSTEM_ERROR;
    l->device = device;
    l->socket = -1;
    kolo_status_t status = listen_on(l, &h);
    if (status != KOLO_OK) {
        kolo_export_close_listener(l);
        return kolo_export_fail(status);
    }
    memset(handle, 0, KOLO_NCCL_HANDLE_BYTES);
    memcpy(handle, &h, sizeof h);
    *listener = l;
    return KOLO_NCCL_SUCCESS;
}

int kolo_export_close_listener(void *listener)
{
    listener_t *l = listener;
    if (l->half) comm_free(l->half);
    if (l->socket >= 0) kolo_fd_close(l->socket);
    free(l);
    return KOLO_NCCL_SUCCESS;
}

static kolo_status_t dial(int device, handle_t *h)
{
    struct sockaddr_storage sa;
    const char *why = h->magic == MAGIC ? kolo_address_check(&h->address) : "it is not of this plug-in";
    if (why) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "the handle cannot be used: %s", why);
    socklen_t length = kolo_address_to_sockaddr(&h->address, &sa);
    int fd = kolo_fd_socket(sa.ss_family, SOCK_STREAM);
    if (fd < 0) return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "no socket; descriptor limit?");
    if (connect(fd, (struct sockaddr *)&sa, length) != 0 && errno != EINPROGRESS) {
        int err = errno;
        kolo_fd_close(fd);
        return kolo_fail_errno(KOLO_ERR_REMOTE, err, "the peer cannot be reached");
    }
    return comm_new(device, false, fd, h->key, &h->half);
}

static kolo_status_t is_dialled(int fd)
{
    int err = 0;
    socklen_t length = sizeof err;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &length) != 0) err = errno;
    if (err) return kolo_fail_errno(KOLO_ERR_REMOTE, err, "the peer cannot be reached");
    struct sockaddr_storage peer;
    length = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0) return KOLO_OK;
    return errno == ENOTCONN ? KOLO_IN_PROGRESS : kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "the socket is broken");
}

static kolo_status_t step_writer(comm_t *c)
{
    static const uint8_t ready = READY;
    kolo_status_t status = c->stage == DIALLED ? is_dialled(c->socket) : KOLO_OK;
    if (status != KOLO_OK) return status;
    if (c->stage == DIALLED) {
        KOLO_TRY(introduce(c));
        c->stage = SENT;
    }
    status = meet(c);
    if (status != KOLO_OK) return status;
    KOLO_TRY(c->ops->connect(c->end, &c->theirs.hello));
    KOLO_TRY(say(c->socket, &ready, 1));
    c->stage = UP;
    return KOLO_OK;
}

static kolo_status_t step_reader(comm_t *c)
{
    uint8_t ready = 0;
    if (c->stage == DIALLED) {
        kolo_status_t status = meet(c);
        if (status != KOLO_OK) return status;
        KOLO_TRY(introduce(c));
        c->stage = MET;
    }
    int there = read_up_to(c->socket, &ready, &c->got, 1);
    if (there == 0) return KOLO_IN_PROGRESS;
    if (there < 0 || ready != READY)
        return kolo_fail(KOLO_ERR_REMOTE, "the peer has gone while the connection was made");
    KOLO_TRY(c->ops->accept(c->end, &c->theirs.hello));
    c->stage = UP;
    return KOLO_OK;
}

/* The half-made connection goes one step; when it is whole it is the caller's. */
static int advance(comm_t **half, void **result)
{
    kolo_status_t status = (*half)->reads ? step_reader(*half) : step_writer(*half);
    *result = NULL;
    if (status == KOLO_IN_PROGRESS) return KOLO_NCCL_SUCCESS;
    if (status == KOLO_OK)
        *result = *half;
    else
        comm_free(*half);
    *half = NULL;
    return status == KOLO_OK ? KOLO_NCCL_SUCCESS : kolo_export_fail(status);
}

int kolo_export_connect(int device, void *handle, void **sender)
{
    handle_t h;
    *sender = NULL;
    memcpy(&h, handle, sizeof h);
    if (!h.half) {
        kolo_status_t status = dial(device, &h);
        if (status != KOLO_OK) return kolo_export_fail(status);
    }
    int result = advance(&h.half, sender);
    memcpy(handle, &h, sizeof h);
    return result;
}

int kolo_export_accept(void *listener, void **receiver, void **offload)
{
    listener_t *l = listener;
    (void)offload;
    *receiver = NULL;
    if (!l->half) {
        int fd = kolo_fd_accept(l->socket, NULL, NULL);
        if (fd < 0) return errno == EAGAIN || errno == EINTR ? KOLO_NCCL_SUCCESS : KOLO_NCCL_SYSTEM_ERROR;
        kolo_status_t status = comm_new(l->device, true, fd, l->key, &l->half);
        if (status != KOLO_OK) return kolo_export_fail(status);
    }
    return advance(&l->half, receiver);
}

int kolo_export_close(void *comm)
{
    comm_free(comm);
    return KOLO_NCCL_SUCCESS;
}

/* ---- memory ---- */

int kolo_export_register(void *comm, void *data, size_t bytes, int pointer, void **memory)
{
    comm_t *c = comm;
    kolo_net_region_t *region;
    if (pointer != KOLO_NCCL_PTR_HOST) return KOLO_NCCL_INVALID_ARGUMENT;
    pthread_mutex_lock(&c->lock);
    kolo_status_t status = c->ops->enroll(c->open, data, bytes, c->reads, &region);
    pthread_mutex_unlock(&c->lock);
    if (status != KOLO_OK) return kolo_export_fail(status);
    *memory = region;
    return KOLO_NCCL_SUCCESS;
}

int kolo_export_deregister(void *comm, void *memory)
{
    comm_t *c = comm;
    pthread_mutex_lock(&c->lock);
    if (memory) c->ops->withdraw(memory);
    pthread_mutex_unlock(&c->lock);
    return KOLO_NCCL_SUCCESS;
}

/* ---- requests ---- */

static kolo_status_t poll_end(comm_t *c)
{
    kolo_net_done_t done[8];
    int n = 0;
    KOLO_TRY(c->ops->test(c->end, done, KOLO_COUNTOF(done), &n));
    for (int i = 0; i < n; i++)
        for (; c->completed <= done[i].cookie && c->completed != c->next; c->completed++) {
            request_t *r = &c->requests[c->completed % DEPTH];
            if (c->reads) r->bytes = done[i].bytes;
            r->done = true;
        }
    if (n) c->in_vain = 0;
    return KOLO_OK;
}

/* After its last byte is here a peer may go; if it dies before, its socket ends. */
static kolo_status_t look_after_peer(comm_t *c)
{
    char byte;
    if (++c->in_vain % ALIVE_ASK) return KOLO_OK;
    ssize_t n = recv(c->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return KOLO_OK;
    uint64_t before = c->completed;
    KOLO_TRY(poll_end(c));
    return c->completed != before ? KOLO_OK
                                  : kolo_fail(KOLO_ERR_REMOTE, "the peer has died or closed the connection");
}

static int begin(comm_t *c, void *data, size_t bytes, int tag, void *memory, void **request)
{
    *request = NULL;
    if (bytes > KOLO_EXPORT_MESSAGE_BYTES) return KOLO_NCCL_INVALID_ARGUMENT;
    pthread_mutex_lock(&c->lock);
    request_t *r = &c->requests[c->next % DEPTH];
    kolo_status_t status = r->used ? KOLO_IN_PROGRESS : KOLO_OK;
    if (status == KOLO_OK)
        status = c->reads ? c->ops->irecv(c->end, data, (uint32_t)bytes, memory, c->next, (uint64_t)(uint32_t)tag)
                          : c->ops->isend(c->end, data, (uint32_t)bytes, memory, c->next);
    if (status == KOLO_OK) {
        *r = (request_t){.comm = c, .used = true, .bytes = (uint32_t)bytes};
        c->next++;
        *request = r;
        status = c->ops->push(c->end);
    } else if (status == KOLO_IN_PROGRESS) { /* what is awaited may have come */
        status = poll_end(c);
        if (status == KOLO_OK) status = look_after_peer(c);
    }
    pthread_mutex_unlock(&c->lock);
    return status == KOLO_OK ? KOLO_NCCL_SUCCESS : kolo_export_fail(status);
}

int kolo_export_isend(void *sender, void *data, size_t bytes, int tag, void *memory, void **request)
{
    return begin(sender, data, bytes, tag, memory, request);
}

int kolo_export_irecv(void *receiver, int n, void *data, size_t bytes, int tag, void *memory, void **request)
{
    return n == 1 ? begin(receiver, data, bytes, tag, memory, request) : KOLO_NCCL_INVALID_ARGUMENT;
}

/* What comes is in memory of the host when a request is done. */
int kolo_export_flush(void *receiver, int n, void **data, int *bytes, void **memory, void **request)
{
    (void)receiver;
    (void)n;
    (void)data;
    (void)bytes;
    (void)memory;
    *request = NULL;
    return KOLO_NCCL_SUCCESS;
}

int kolo_export_test(void *request, int *done, int *bytes)
{
    request_t *r = request;
    comm_t *c = r->comm;
    pthread_mutex_lock(&c->lock);
    kolo_status_t status = r->done ? KOLO_OK : c->ops->push(c->end);
    if (status == KOLO_OK && !r->done) status = poll_end(c);
    if (status == KOLO_OK && !r->done) status = look_after_peer(c);
    *done = r->done;
    if (r->done) {
        if (bytes) *bytes = (int)r->bytes;
        r->used = r->done = false;
    }
    pthread_mutex_unlock(&c->lock);
    return status == KOLO_OK ? KOLO_NCCL_SUCCESS : kolo_export_fail(status);
}
