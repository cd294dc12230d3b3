/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that is never freed but used again, by its length. Lengths are powers of two, so there is no more of it
 * than twice what all communicators had at the same time. See cuda.h.
 */
#include "mem/cuda/cuda.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct spare {
    struct spare *next;
    int device; /* ordinal; pinned memory is given by it, too: near its GPU */
    bool host;
    size_t bytes;
    uintptr_t at;
} spare_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static spare_t *spares;

static size_t rounded(size_t bytes)
{
    size_t n = 4096;
    while (n < bytes) n *= 2;
    return n;
}

/* Returns 0 where there is none. */
static uintptr_t find(int device, bool host, size_t bytes)
{
    uintptr_t at = 0;
    pthread_mutex_lock(&lock);
    for (spare_t **p = &spares; *p && !at; p = &(*p)->next) {
        spare_t *s = *p;
        if (s->device != device || s->host != host || s->bytes != bytes) continue;
        at = s->at;
        *p = s->next;
        free(s);
        break;
    }
    pthread_mutex_unlock(&lock);
    return at;
}

/* Keeps it; without memory for the note it is lost, which is better than to wait for the GPU. */
static void keep(int device, bool host, size_t bytes, uintptr_t at)
{
    spare_t *s = at ? malloc(sizeof *s) : NULL;
    if (!s) return;
    pthread_mutex_lock(&lock);
    *s = (spare_t){.next = spares, .device = device, .host = host, .bytes = rounded(bytes), .at = at};
    spares = s;
    pthread_mutex_unlock(&lock);
}

kolo_cu_result_t kolo_cuda_take_host(const kolo_cuda_device_t *device, size_t bytes, void **at)
{
    uintptr_t spare = find(device->ordinal, true, rounded(bytes));
    *at = (void *)spare; /* NOLINT: as it was given */
    if (spare) return KOLO_CU_SUCCESS;
    return kolo_cuda_loaded()->host_alloc(at, rounded(bytes), KOLO_CU_HOST_PORTABLE | KOLO_CU_HOST_MAPPED);
}

kolo_cu_result_t kolo_cuda_take_block(const kolo_cuda_device_t *device, size_t bytes, kolo_cu_ptr_t *at)
{
    *at = find(device->ordinal, false, rounded(bytes));
    return *at ? KOLO_CU_SUCCESS : kolo_cuda_loaded()->mem_alloc(at, rounded(bytes));
}

void kolo_cuda_give_host(const kolo_cuda_device_t *device, size_t bytes, void *at)
{
    keep(device->ordinal, true, bytes, (uintptr_t)at);
}

void kolo_cuda_give_block(const kolo_cuda_device_t *device, size_t bytes, kolo_cu_ptr_t at)
{
    keep(device->ordinal, false, bytes, (uintptr_t)at);
}
