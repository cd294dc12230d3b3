/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between a program's buffers and the pinned room. A driver makes a copy from host memory to host memory at
 * once: the call waits until the stream has come there, which it never does while it stands behind a wait for a
 * piece that this very call is queueing. So where a buffer is host memory, a function of the host copies, in the
 * stream's order.
 */
#include "gpu/staged/staged.h"

#include <stdlib.h>
#include <string.h>

struct kolo_staged_host_copy {
    struct kolo_staged_host_copy *next; /* captured ones, which live until close */
    void *to;
    const void *from;
    size_t bytes;
    bool once;
};

/* Copies, on a thread of the driver. */
static void copy_on_host(void *arg)
{
    kolo_staged_host_copy_t *c = arg;
    memcpy(c->to, c->from, c->bytes);
    if (c->once) free(c);
}

/* Tells whether memory is the host's. Managed memory is the driver's to move. */
static bool is_host(const kolo_staged_t *s, const void *p)
{
    int attributes[] = {KOLO_CU_POINTER_MEMORY_TYPE, KOLO_CU_POINTER_MANAGED};
    unsigned type = 0, managed = 0;
    void *data[] = {&type, &managed};
    return !s->api->pointer_attributes(2, attributes, data, (uintptr_t)p) && type == KOLO_CU_MEMORY_HOST &&
           !managed;
}

static kolo_status_t queue_on_host(kolo_staged_t *s, kolo_cu_stream_t stream, void *to, const void *from,
                                   size_t bytes)
{
    kolo_staged_host_copy_t *c = malloc(sizeof *c);
    if (!c) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a copy of %zu bytes", bytes);
    *c = (kolo_staged_host_copy_t){.to = to, .from = from, .bytes = bytes, .once = !s->order.capturing};
    bool once = c->once; /* it may be gone when the driver returns */
    kolo_cu_result_t r = s->api->stream_host_call(stream, copy_on_host, c);
    if (r) {
        free(c);
        return kolo_cuda_fail(r, s->device->ordinal, "queue a copy on the host");
    }
    if (once) return KOLO_OK;
    c->next = s->host_copies;
    s->host_copies = c;
    return KOLO_OK;
}

kolo_status_t kolo_staged_copy(kolo_staged_t *s, kolo_cu_stream_t stream, void *to, const void *from, size_t bytes)
{
    if (!bytes || to == from) return KOLO_OK;
    if (is_host(s, to) && is_host(s, from)) return queue_on_host(s, stream, to, from, bytes);
    kolo_cu_result_t r = s->api->memcpy_async((uintptr_t)to, (uintptr_t)from, bytes, stream);
    return r ? kolo_cuda_fail(r, s->device->ordinal, "queue a copy") : KOLO_OK;
}

void kolo_staged_free_copies(kolo_staged_t *s)
{
    for (kolo_staged_host_copy_t *c; (c = s->host_copies);) {
        s->host_copies = c->next;
        free(c);
    }
}
