/* SPDX-License-Identifier: Apache-2.0
 *
 * The row of ordinary memory. Segments that processes share are share/memfd.h's.
 */
#include "mem/mem.h"

#include <stdlib.h>
#include <string.h>

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
                                      .classify = classify,
                                      .make = make,
                                      .share = share,
                                      .map = map,
                                      .allow = allow,
                                      .free = release,
                                      .read = copy_out,
                                      .write = copy_in};
