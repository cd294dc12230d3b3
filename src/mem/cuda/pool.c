/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that is never freed but used again, by its length. Lengths are rounded up, by an eighth at most: so they
 * are few, and of each there is what all communicators had at the same time. See cuda.h.
 */
#include "base/clock.h"
#include "mem/cuda/cuda.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

typedef enum { HOST, PAGES, BLOCK } kind_t;
typedef struct spare {
    struct spare *next;
    int device; /* ordinal; pinned memory is given by it, too: near its GPU */
    kind_t kind;
    size_t bytes;
    uintptr_t at;
} spare_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static spare_t *spares;

static size_t rounded(size_t bytes)
{
    size_t step = 4096;
    while (step < bytes / 16) step *= 2;
    return KOLO_ROUND_UP(bytes, step);
}

/* Returns 0 where there is none. */
static uintptr_t find(int device, kind_t kind, size_t bytes)
{
    uintptr_t at = 0;
    pthread_mutex_lock(&lock);
    for (spare_t **p = &spares; *p && !at; p = &(*p)->next) {
        spare_t *s = *p;
        if (s->device != device || s->kind != kind || s->bytes != bytes) continue;
        at = s->at;
        *p = s->next;
        free(s);
        break;
    }
    pthread_mutex_unlock(&lock);
    return at;
}

/* Keeps it; without memory for the note it is lost, which is better than to wait for the GPU. */
static void keep(int device, kind_t kind, size_t bytes, uintptr_t at)
{
    spare_t *s = at ? malloc(sizeof *s) : NULL;
    if (!s) return;
    pthread_mutex_lock(&lock);
    *s = (spare_t){.next = spares, .device = device, .kind = kind, .bytes = bytes, .at = at};
    spares = s;
    pthread_mutex_unlock(&lock);
}

kolo_cu_result_t kolo_cuda_take_host(const kolo_cuda_device_t *device, size_t bytes, void **at)
{
    uintptr_t spare = find(device->ordinal, HOST, rounded(bytes));
    *at = (void *)spare; /* NOLINT: as it was given */
    if (spare) return KOLO_CU_SUCCESS;
    return kolo_cuda_loaded()->host_alloc(at, rounded(bytes), KOLO_CU_HOST_PORTABLE | KOLO_CU_HOST_MAPPED);
}

kolo_cu_result_t kolo_cuda_take_block(const kolo_cuda_device_t *device, size_t bytes, kolo_cu_ptr_t *at)
{
    *at = find(device->ordinal, BLOCK, rounded(bytes));
    return *at ? KOLO_CU_SUCCESS : kolo_cuda_loaded()->mem_alloc(at, rounded(bytes));
}

void kolo_cuda_give_host(const kolo_cuda_device_t *device, size_t bytes, void *at)
{
    keep(device->ordinal, HOST, rounded(bytes), (uintptr_t)at);
}

void kolo_cuda_give_block(const kolo_cuda_device_t *device, size_t bytes, kolo_cu_ptr_t at)
{
    keep(device->ordinal, BLOCK, rounded(bytes), (uintptr_t)at);
}

kolo_status_t kolo_cuda_take_pages(const kolo_cuda_device_t *device, size_t bytes, void **at)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    uintptr_t spare = find(device->ordinal, PAGES, rounded(bytes));
    *at = (void *)spare; /* NOLINT: as it was given */
    if (spare) return KOLO_OK;
    void *p = mmap(NULL, rounded(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return kolo_fail_errno(KOLO_ERR_NO_MEMORY, errno, "no %zu bytes of memory to pin", bytes);
    kolo_cu_result_t r = api->host_register(p, rounded(bytes), KOLO_CU_HOST_PORTABLE | KOLO_CU_HOST_MAPPED);
    if (r) {
        munmap(p, rounded(bytes));
        return kolo_cuda_fail(r, device->ordinal, "pin host memory");
    }
    *at = p;
    return KOLO_OK;
}

void kolo_cuda_give_pages(const kolo_cuda_device_t *device, size_t bytes, void *at)
{
    keep(device->ordinal, PAGES, rounded(bytes), (uintptr_t)at);
}
