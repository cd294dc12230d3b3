/* SPDX-License-Identifier: Apache-2.0
 *
 * The row of ordinary memory, and the list of rows. Segments that processes share are wire/memfd.h's.
 */
#include "mem/cuda/cuda.h"
#include "mem/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic(const kolo_mem_ops_t *) added;

void kolo_mem_add(const kolo_mem_ops_t *row)
{
    atomic_store(&added, row);
}

bool kolo_mem_has_devices(void)
{
    return atomic_load_explicit(&added, memory_order_relaxed) || kolo_cuda_loaded();
}

void kolo_mem_find(const void *p, kolo_mem_place_t *place)
{
    const kolo_mem_ops_t *own = atomic_load_explicit(&added, memory_order_acquire);
    if (own && own->classify(p, place)) return;
    if (kolo_mem_cuda.classify(p, place)) return;
    kolo_mem_host.classify(p, place);
}

kolo_status_t kolo_mem_row(int device, const kolo_mem_ops_t **row)
{
    const kolo_mem_ops_t *own = atomic_load_explicit(&added, memory_order_acquire);
    *row = &kolo_mem_cuda;
    if (!own || own->has(device) != KOLO_OK) return kolo_mem_cuda.has(device);
    *row = own;
    return KOLO_OK;
}

void kolo_mem_free(kolo_mem_t *mem)
{
    if (mem->ops) mem->ops->free(mem);
    *mem = (kolo_mem_t){0};
}

static bool classify(const void *p, kolo_mem_place_t *place)
{
    (void)p;
    *place = (kolo_mem_place_t){.ops = &kolo_mem_host, .device = -1};
    return true;
}

static kolo_status_t make(int device, size_t bytes, kolo_mem_t *mem)
{
    void *p = NULL;
    (void)device;
    if (posix_memalign(&p, 4096, bytes ? bytes : 1))
        return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %zu bytes", bytes);
    memset(p, 0, bytes);
    *mem = (kolo_mem_t){.ops = &kolo_mem_host, .device = -1, .address = p, .bytes = bytes};
    return KOLO_OK;
}

static kolo_status_t share(const kolo_mem_t *mem, int *fd)
{
    (void)mem;
    (void)fd;
    return kolo_fail(KOLO_ERR_UNSUPPORTED, "ordinary memory cannot be shared by descriptor; use a memfd segment");
}

static kolo_status_t map(int fd, size_t bytes, int device, kolo_mem_t *mem)
{
    (void)fd;
    (void)bytes;
    (void)device;
    (void)mem;
    return kolo_fail(KOLO_ERR_UNSUPPORTED, "ordinary memory cannot be mapped by descriptor; use a memfd segment");
}

static kolo_status_t allow(const kolo_mem_t *mem, int device)
{
    (void)mem;
    return kolo_fail(KOLO_ERR_UNSUPPORTED, "ordinary memory cannot be mapped for device %d", device);
}

static void release(kolo_mem_t *mem)
{
    free(mem->address);
}

static kolo_status_t copy_out(int device, void *host, const void *from, size_t bytes)
{
    (void)device;
    memcpy(host, from, bytes);
    return KOLO_OK;
}

static kolo_status_t copy_in(int device, void *to, const void *host, size_t bytes)
{
    (void)device;
    memcpy(to, host, bytes);
    return KOLO_OK;
}

const kolo_mem_ops_t kolo_mem_host = {.name = "host",
                                      .kind = KOLO_MEM_HOST,
                                      .classify = classify,
                                      .make = make,
                                      .share = share,
                                      .map = map,
                                      .allow = allow,
                                      .free = release,
                                      .read = copy_out,
                                      .write = copy_in};
