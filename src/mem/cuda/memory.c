/* SPDX-License-Identifier: Apache-2.0
 *
 * The row of CUDA memory. What Kolo makes itself is virtual memory with a handle that goes to other processes as a
 * descriptor (never legacy IPC): physical memory lives until the last process has unmapped it, so the loss of its
 * owner does not fault a peer's kernel.
 */
#include "base/clock.h"
#include "base/log.h"
#include "mem/cuda/cuda.h"

#include <string.h>
#include <unistd.h>

static bool classify(const void *p, kolo_mem_place_t *place)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    int attributes[] = {KOLO_CU_POINTER_MEMORY_TYPE, KOLO_CU_POINTER_DEVICE, KOLO_CU_POINTER_RANGE_START,
                        KOLO_CU_POINTER_RANGE_SIZE, KOLO_CU_POINTER_LEGACY_IPC};
    unsigned type = 0;
    int device = -1;
    kolo_cu_ptr_t start = 0;
    size_t bytes = 0;
    int legacy = 0; /* made by cudaMalloc(): mapped for every device that has peer access */
    void *data[] = {&type, &device, &start, &bytes, &legacy};
    if (!api) return false;
    if (api->pointer_attributes(5, attributes, data, (kolo_cu_ptr_t)(uintptr_t)p) != KOLO_CU_SUCCESS) return false;
    if (type != KOLO_CU_MEMORY_DEVICE) return false;
    if (!legacy && api->mem_address_range(&start, &bytes, (kolo_cu_ptr_t)(uintptr_t)p) != KOLO_CU_SUCCESS)
        return false;
    *place = (kolo_mem_place_t){.ops = &kolo_mem_cuda,
                                .device = device,
                                .base = (uintptr_t)start,
                                .bytes = bytes,
                                .peers = legacy != 0,
                                .joins = !legacy};
    return true;
}

static bool reaches_device(const kolo_cuda_device_t *device, int ordinal, const void *p, bool legacy)
{
    const kolo_cuda_device_t *owner;
    int can = 0;
    if (ordinal == device->ordinal) return true;
    if (kolo_cuda_device(ordinal, &owner) != KOLO_OK) return false;
    if (!legacy) return kolo_cuda_reaches(device->device, p, false);
    if (kolo_cuda_loaded()->can_access_peer(&can, device->device, owner->device) || !can) return false;
    kolo_cu_result_t r = kolo_cuda_loaded()->enable_peer(owner->ctx, 0);
    return r == KOLO_CU_SUCCESS || r == KOLO_CU_PEER_ALREADY;
}

bool kolo_cuda_find_other(const kolo_cuda_device_t *device, const void *p, kolo_mem_place_t *place)
{
    int attributes[] = {KOLO_CU_POINTER_MEMORY_TYPE, KOLO_CU_POINTER_DEVICE,     KOLO_CU_POINTER_RANGE_START,
                        KOLO_CU_POINTER_RANGE_SIZE,  KOLO_CU_POINTER_LEGACY_IPC, KOLO_CU_POINTER_DEVICE_POINTER,
                        KOLO_CU_POINTER_MANAGED};
    unsigned type = 0, managed = 0;
    int ordinal = -1, legacy = 0;
    kolo_cu_ptr_t start = 0, seen = 0;
    size_t bytes = 0;
    void *data[] = {&type, &ordinal, &start, &bytes, &legacy, &seen, &managed};
    kolo_cu_ptr_t at = (kolo_cu_ptr_t)(uintptr_t)p;
    if (kolo_cuda_loaded()->pointer_attributes(KOLO_COUNTOF(attributes), attributes, data, at)) return false;
    bool host = type == KOLO_CU_MEMORY_HOST && seen == at;
    bool there = type == KOLO_CU_MEMORY_DEVICE && reaches_device(device, ordinal, p, legacy != 0);
    if (!host && !managed && !there) return false;
    if (!bytes) { /* the driver does not say where it begins */
        start = at;
        bytes = SIZE_MAX - (size_t)at;
    }
    *place = (kolo_mem_place_t){
        .ops = &kolo_mem_cuda, .device = device->ordinal, .base = (uintptr_t)start, .bytes = bytes};
    return true;
}

uint64_t kolo_cuda_buffer_id(const void *p)
{
    int attribute = KOLO_CU_POINTER_BUFFER_ID;
    uint64_t id = 0;
    void *data = &id;
    kolo_cu_ptr_t at = (kolo_cu_ptr_t)(uintptr_t)p;
    return kolo_cuda_loaded()->pointer_attributes(1, &attribute, &data, at) == KOLO_CU_SUCCESS ? id : 0;
}

static kolo_cu_mem_prop_t properties(int device)
{
    return (kolo_cu_mem_prop_t){
        .type = KOLO_CU_PINNED, .handles = KOLO_CU_HANDLE_FD, .location = {KOLO_CU_LOCATION_DEVICE, device}};
}

static kolo_status_t allow_at(kolo_cu_ptr_t p, size_t bytes, int device)
{
    kolo_cu_access_t who = {{KOLO_CU_LOCATION_DEVICE, device}, KOLO_CU_ACCESS_READ_WRITE};
    kolo_cu_result_t r = kolo_cuda_loaded()->mem_access(p, bytes, &who, 1);
    return r ? kolo_cuda_fail(r, device, "get access to memory of a GPU") : KOLO_OK;
}

/* Maps a handle, which it takes on failure too, to addresses that `device` may use. */
static kolo_status_t map_handle(kolo_cu_mem_t handle, size_t bytes, size_t align, int device, kolo_mem_t *mem)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_ptr_t p = 0;
    kolo_status_t status = KOLO_OK;
    kolo_cu_result_t r = api->mem_reserve(&p, bytes, align, 0, 0);
    if (r) {
        status = kolo_cuda_fail(r, device, "reserve addresses");
        api->mem_release(handle);
        return status;
    }
    r = api->mem_map(p, bytes, 0, handle, 0);
    if (r) {
        status = kolo_cuda_fail(r, device, "map memory");
    } else {
        status = allow_at(p, bytes, device);
        if (status != KOLO_OK) api->mem_unmap(p, bytes);
    }
    if (status != KOLO_OK) {
        api->mem_unreserve(p, bytes);
        api->mem_release(handle);
        return status;
    }
    *mem = (kolo_mem_t){.ops = &kolo_mem_cuda,
                        .device = device,
                        .address = (void *)(uintptr_t)p, /* NOLINT: a driver's address */
                        .bytes = bytes,
                        .handle = handle};
    return KOLO_OK;
}

bool kolo_cuda_reaches(kolo_cu_device_t device, const void *p, bool legacy)
{
    kolo_cu_location_t who = {KOLO_CU_LOCATION_DEVICE, device};
    unsigned long long flags = 0;
    if (legacy) return true;
    kolo_cu_result_t r = kolo_cuda_loaded()->mem_get_access(&flags, &who, (kolo_cu_ptr_t)(uintptr_t)p);
    return r == KOLO_CU_SUCCESS && flags == KOLO_CU_ACCESS_READ_WRITE;
}

/* Clears on a stream of its own: the default stream would wait for the user's work. */
static kolo_status_t clear(const kolo_cuda_device_t *d, const kolo_mem_t *mem)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_stream_t stream;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(d, &pushed));
    kolo_status_t status = KOLO_OK;
    kolo_cu_result_t r = api->stream_create(&stream, KOLO_CU_STREAM_NON_BLOCKING);
    if (!r) {
        r = api->memset8((kolo_cu_ptr_t)(uintptr_t)mem->address, 0, mem->bytes, stream);
        if (!r) status = kolo_cuda_drain(d, stream, kolo_deadline_ms(KOLO_CUDA_COPY_MS), "clear memory");
        api->stream_destroy(stream);
    }
    kolo_cuda_leave(pushed);
    return r ? kolo_cuda_fail(r, d->ordinal, "clear memory") : status;
}

static kolo_status_t make(int device, size_t bytes, kolo_mem_t *mem)
{
    const kolo_cuda_device_t *d;
    KOLO_TRY(kolo_cuda_device(device, &d));
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    if (!d->shareable)
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "GPU %d (%s) cannot share memory by descriptor", device, d->name);
    kolo_cu_mem_prop_t prop = properties(d->device);
    kolo_cu_mem_t handle;
    size_t unit = 0;
    kolo_cu_result_t r = api->mem_granularity(&unit, &prop, KOLO_CU_GRANULARITY_RECOMMENDED);
    if (r) return kolo_cuda_fail(r, device, "ask for the unit of allocation");
    bytes = KOLO_ROUND_UP(bytes, unit);
    r = api->mem_create(&handle, bytes, &prop, 0);
    if (r) return kolo_cuda_fail(r, device, "allocate memory");
    KOLO_TRY(map_handle(handle, bytes, unit, d->device, mem));
    kolo_status_t status = clear(d, mem);
    if (status != KOLO_OK && status != KOLO_ERR_TIMEOUT) kolo_mem_free(mem); /* else it is still being cleared */
    return status;
}

static kolo_status_t share(const kolo_mem_t *mem, int *fd)
{
    kolo_cu_result_t r = kolo_cuda_loaded()->mem_export(fd, mem->handle, KOLO_CU_HANDLE_FD, 0);
    return r ? kolo_cuda_fail(r, mem->device, "share memory by descriptor") : KOLO_OK;
}

static kolo_status_t map(int fd, size_t bytes, int device, kolo_mem_t *mem)
{
    const kolo_cuda_device_t *d;
    kolo_cu_mem_t handle;
    size_t unit = 0;
    KOLO_TRY(kolo_cuda_device(device, &d));
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_mem_prop_t prop = properties(d->device);
    kolo_cu_result_t r = api->mem_granularity(&unit, &prop, KOLO_CU_GRANULARITY_RECOMMENDED);
    if (r) return kolo_cuda_fail(r, device, "ask for the unit of allocation");
    r = api->mem_import(&handle, (void *)(intptr_t)fd, KOLO_CU_HANDLE_FD); /* NOLINT: the interface wants it so */
    if (r) return kolo_cuda_fail(r, device, "take over memory of another process");
    bytes = KOLO_ROUND_UP(bytes, unit);
    return map_handle(handle, bytes, unit, d->device, mem);
}

static kolo_status_t allow(const kolo_mem_t *mem, int device)
{
    const kolo_cuda_device_t *d;
    KOLO_TRY(kolo_cuda_device(device, &d));
    return allow_at((kolo_cu_ptr_t)(uintptr_t)mem->address, mem->bytes, d->device);
}

static void release(kolo_mem_t *mem)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_ptr_t p = (kolo_cu_ptr_t)(uintptr_t)mem->address;
    kolo_cu_result_t r = api->mem_unmap(p, mem->bytes);
    if (!r) r = api->mem_unreserve(p, mem->bytes);
    if (!r) r = api->mem_release(mem->handle);
    if (r) {
        kolo_cuda_fail(r, mem->device, "free memory");
        kolo_warn("cuda", "%s", kolo_error_text());
    }
}

static kolo_status_t copy(int device, void *to, const void *from, size_t bytes)
{
    const kolo_cuda_device_t *d;
    kolo_cu_stream_t stream;
    bool pushed;
    KOLO_TRY(kolo_cuda_device(device, &d));
    KOLO_TRY(kolo_cuda_enter(d, &pushed));
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_status_t status = KOLO_OK;
    kolo_cu_result_t r = api->stream_create(&stream, KOLO_CU_STREAM_NON_BLOCKING);
    if (!r) {
        r = api->memcpy_async((kolo_cu_ptr_t)(uintptr_t)to, (kolo_cu_ptr_t)(uintptr_t)from, bytes, stream);
        if (!r) status = kolo_cuda_drain(d, stream, kolo_deadline_ms(KOLO_CUDA_COPY_MS), "copy memory");
        api->stream_destroy(stream);
    }
    kolo_cuda_leave(pushed);
    return r ? kolo_cuda_fail(r, device, "copy memory") : status;
}

static kolo_status_t has(int device)
{
    const kolo_cuda_device_t *d;
    return kolo_cuda_device(device, &d);
}

static kolo_status_t dmabuf(const void *p, size_t bytes, int *fd, size_t *offset)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)p, from = at & ~(page - 1),
                    to = (at + bytes + page - 1) & ~(page - 1);
    if (!api || !api->mem_range_handle)
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "the CUDA driver is older than 11.7: it gives no DMA-BUF");
    kolo_cu_result_t result = api->mem_range_handle(fd, from, to - from, KOLO_CU_RANGE_DMA_BUF, 0);
    if (result != KOLO_CU_SUCCESS)
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "the CUDA driver gives no DMA-BUF for this memory (error %d)",
                         result);
    *offset = at - from;
    return KOLO_OK;
}

static bool here(void)
{
    return kolo_cuda_loaded() != NULL;
}

const kolo_mem_ops_t kolo_mem_cuda = {.name = "CUDA",
                                      .here = here,
                                      .classify = classify,
                                      .make = make,
                                      .share = share,
                                      .map = map,
                                      .allow = allow,
                                      .free = release,
                                      .read = copy,
                                      .write = copy,
                                      .has = has,
                                      .dmabuf = dmabuf,
                                      .queues = &kolo_cuda_queues};
