/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and requests of the plug-in's connections.
 */
#include "nccl_net/comm.h"

#include <errno.h>
#include <sys/socket.h>

#define ALIVE_ASK 256 /* tests in vain between two looks at the peer */

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

/* Tells whether the peer has died: after its last byte is here it may go, before that its socket ends. */
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

/* Has nothing to do: what comes is in memory of the host when a request is done. */
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
