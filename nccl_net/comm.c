/* SPDX-License-Identifier: Apache-2.0
 *
 * Listeners and connections of the plug-in. Setting up goes in steps, none of which waits:
 *
 *     connect: dial, send hello and proof      accept: read and check them, send hello and proof
 *     connect: read and check them, make the end's connection, send one byte: ready
 *                                              accept: read it, and take up the connection
 */
#include "nccl_net/comm.h"
#include "base/file/fds.h"
#include "base/process.h"

#include "base/clock.h"
#include "link/address.h"
#include "link/auth.h"
#include "link/first.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC    0x6b6f6c6f6e657431ull
#define READY    0x72
#define CALLERS  16  /* of a listener, whose proof is not there yet; when there is no room, ... */
#define GRACE_MS 250 /* ... who has had this makes place */

typedef struct { /* the handle; a dialling side keeps its half-made connection in it */
    uint64_t magic;
    kolo_address_t address;
    uint8_t key[32];
    comm_t *half;
} handle_t;
_Static_assert(sizeof(handle_t) <= KOLO_NCCL_HANDLE_BYTES, "a handle has its limit");

typedef struct { /* one that has not proven itself */
    int socket;
    uint32_t got;
    uint64_t since_ns;
    introduction_t theirs;
} caller_t;
typedef struct {
    int device, socket;
    uint8_t key[32];
    comm_t *half;
    caller_t callers[CALLERS];
    uint32_t ncallers;
} listener_t;

/* ---- the socket beside it ---- */

static kolo_status_t say(int fd, const void *bytes, size_t n)
{
    return kolo_link_say(fd, bytes, n) ? KOLO_OK : kolo_fail_errno(KOLO_ERR_REMOTE, errno, "the peer has gone");
}

static void prove(const uint8_t of[32], bool reader, const kolo_net_hello_t *hello, kolo_key_t *proof)
{
    kolo_key_t key;
    memcpy(key.bytes, of, sizeof key.bytes);
    kolo_auth_derive(&key, reader ? "export reader" : "export writer", hello, sizeof *hello, proof);
}

static kolo_status_t introduce(comm_t *c)
{
    introduction_t mine = {.hello = c->mine};
    prove(c->key, c->reads, &mine.hello, &mine.proof);
    return say(c->socket, &mine, sizeof mine);
}

static bool is_proven(const uint8_t key[32], bool reader, const introduction_t *theirs)
{
    kolo_key_t proof;
    uint8_t difference = 0;
    prove(key, reader, &theirs->hello, &proof);
    for (size_t i = 0; i < sizeof proof.bytes; i++) difference |= proof.bytes[i] ^ theirs->proof.bytes[i];
    return difference == 0;
}

/* Takes the peer's introduction; KOLO_IN_PROGRESS until it is there. */
static kolo_status_t meet(comm_t *c)
{
    int there = kolo_link_read_up_to(c->socket, &c->theirs, &c->got, sizeof c->theirs);
    if (there == 0) return KOLO_IN_PROGRESS;
    if (there < 0) return kolo_fail(KOLO_ERR_REMOTE, "the peer has gone while the connection was made");
    if (!is_proven(c->key, !c->reads, &c->theirs))
        return kolo_fail(KOLO_ERR_AUTH, "who answers does not know the key of the connection");
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
    while (l->ncallers > 0) kolo_fd_close(l->callers[--l->ncallers].socket);
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
    if (c->stage == DIALLED) { /* its introduction was read, and is right */
        KOLO_TRY(introduce(c));
        c->stage = MET;
    }
    int there = kolo_link_read_up_to(c->socket, &ready, &c->got, 1);
    if (there == 0) return KOLO_IN_PROGRESS;
    if (there < 0 || ready != READY)
        return kolo_fail(KOLO_ERR_REMOTE, "the peer has gone while the connection was made");
    KOLO_TRY(c->ops->accept(c->end, &c->theirs.hello));
    c->stage = UP;
    return KOLO_OK;
}

/* Moves the half-made connection one step; when it is whole it is the caller's. */
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

/* Finds the place of the next caller: that of the one that has been silent longest, if there is no room. */
static caller_t *find_room(listener_t *l)
{
    if (l->ncallers < CALLERS) return &l->callers[l->ncallers];
    caller_t *oldest = &l->callers[0];
    for (uint32_t i = 1; i < l->ncallers; i++)
        if (l->callers[i].since_ns < oldest->since_ns) oldest = &l->callers[i];
    return kolo_now_ns() - oldest->since_ns >= GRACE_MS * KOLO_NS_PER_MS ? oldest : NULL;
}

/* Takes callers in. Strangers hold nobody up, and end nothing: they are closed. */
static int take_callers(listener_t *l)
{
    for (caller_t *room; (room = find_room(l)) != NULL;) {
        int fd = kolo_fd_accept(l->socket, NULL, NULL);
        if (fd < 0) return errno == EAGAIN || errno == EINTR ? KOLO_NCCL_SUCCESS : KOLO_NCCL_SYSTEM_ERROR;
        if (room < l->callers + l->ncallers)
            kolo_fd_close(room->socket);
        else
            l->ncallers++;
        *room = (caller_t){.socket = fd, .since_ns = kolo_now_ns()};
    }
    return KOLO_NCCL_SUCCESS;
}

/* Makes the first caller that has proven itself the half-made connection. */
static kolo_status_t choose_caller(listener_t *l)
{
    for (uint32_t i = 0; i < l->ncallers && !l->half;) {
        caller_t c = l->callers[i];
        int there = kolo_link_read_up_to(c.socket, &c.theirs, &c.got, sizeof c.theirs);
        if (there == 0) {
            l->callers[i++] = c;
            continue;
        }
        l->callers[i] = l->callers[--l->ncallers];
        if (there < 0 || !is_proven(l->key, false, &c.theirs)) {
            kolo_fd_close(c.socket);
            continue;
        }
        KOLO_TRY(comm_new(l->device, true, c.socket, l->key, &l->half));
        l->half->theirs = c.theirs;
    }
    return KOLO_OK;
}

int kolo_export_accept(void *listener, void **receiver, void **offload)
{
    listener_t *l = listener;
    (void)offload;
    *receiver = NULL;
    if (!l->half) {
        int result = take_callers(l);
        if (result != KOLO_NCCL_SUCCESS) return result;
        kolo_status_t status = choose_caller(l);
        if (status != KOLO_OK) return kolo_export_fail(status);
        if (!l->half) return KOLO_NCCL_SUCCESS;
    }
    return advance(&l->half, receiver);
}

int kolo_export_close(void *comm)
{
    comm_free(comm);
    return KOLO_NCCL_SUCCESS;
}
