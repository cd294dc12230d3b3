/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory: allocations that other processes may write to, registration, and what a communicator holds.
 */
#include "nccl/layer.h"

#include "base/clock.h"
#include "base/log.h"
#include "mem/cuda/beside.h"

#include <stdlib.h>
#include <string.h>

/* ---- ncclMemAlloc ---- */

/* Memory made by cuMemCreate() is freed by its address and size, which only the list knows. In CPU mode all is in
 * it: free() does not survive what is no allocation. */
typedef struct allocation {
    void *at;
    size_t bytes;
    int device;
    kolo_cu_mem_t mem;
    struct allocation *next;
} allocation_t;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static allocation_t *allocations;

void kolo_nccl_memory_hold(bool hold)
{
    (void)(hold ? pthread_mutex_lock(&lock) : pthread_mutex_unlock(&lock));
}

static void keep(allocation_t *a)
{
    pthread_mutex_lock(&lock);
    a->next = allocations;
    allocations = a;
    pthread_mutex_unlock(&lock);
}

static allocation_t *take(const void *p)
{
    pthread_mutex_lock(&lock);
    allocation_t **at = &allocations;
    while (*at && (*at)->at != p) at = &(*at)->next;
    allocation_t *a = *at;
    if (a) *at = a->next;
    pthread_mutex_unlock(&lock);
    return a;
}

/* Opens it to whoever of this process's GPUs reaches it. */
static kolo_cu_result_t open_to_all(const kolo_cuda_api_t *api, kolo_cu_ptr_t p, size_t bytes, int device)
{
    int count = 0, can;
    kolo_cu_result_t r = api->device_count(&count);
    for (int i = 0; !r && i < count; i++) {
        kolo_cu_access_t who = {.location = {KOLO_CU_LOCATION_DEVICE, i}, .flags = KOLO_CU_ACCESS_READ_WRITE};
        if (i != device && (api->can_access_peer(&can, i, device) || !can)) continue;
        kolo_cu_result_t one = api->mem_access(p, bytes, &who, 1);
        if (i == device) r = one;
    }
    return r;
}

static kolo_cu_result_t make_shareable(const kolo_cuda_api_t *api, size_t bytes, allocation_t *a)
{
    const kolo_cu_mem_prop_t prop = {
        .type = KOLO_CU_PINNED, .handles = KOLO_CU_HANDLE_FD, .location = {KOLO_CU_LOCATION_DEVICE, a->device}};
    size_t unit = 0;
    kolo_cu_ptr_t p = 0;
    kolo_cu_result_t r = api->mem_granularity(&unit, &prop, KOLO_CU_GRANULARITY_RECOMMENDED);
    if (r || !unit || bytes > SIZE_MAX - unit) return r ? r : 1;
    a->bytes = KOLO_ROUND_UP(bytes, unit);
    r = api->mem_create(&a->mem, a->bytes, &prop, 0);
    if (r) return r;
    r = api->mem_reserve(&p, a->bytes, 0, 0, 0);
    if (r) goto release;
    r = api->mem_map(p, a->bytes, 0, a->mem, 0);
    if (r) goto unreserve;
    r = open_to_all(api, p, a->bytes, a->device);
    if (r) goto unmap;
    a->at = (void *)(uintptr_t)p;
    return KOLO_CU_SUCCESS;
unmap:
    api->mem_unmap(p, a->bytes);
unreserve:
    api->mem_unreserve(p, a->bytes);
release:
    api->mem_release(a->mem);
    return r;
}

static ncclResult_t alloc_device(size_t bytes, void **p)
{
    const kolo_cuda_api_t *api;
    const kolo_cuda_device_t *device;
    kolo_cu_ptr_t plain = 0;
    bool pushed;
    int ordinal = kolo_nccl_current_device();
    kolo_status_t status = kolo_cuda_load(&api);
    if (status == KOLO_OK) status = kolo_cuda_device(ordinal, &device);
    if (status != KOLO_OK) return kolo_nccl_result(status);
    allocation_t *a = calloc(1, sizeof *a);
    if (!a) return kolo_nccl_fail(ncclSystemError, "ncclMemAlloc: out of memory");
    a->device = ordinal;
    int mode = kolo_cuda_uncaptured();
    bool made = device->shareable && make_shareable(api, bytes, a) == KOLO_CU_SUCCESS;
    kolo_cuda_captured(mode);
    if (made) {
        keep(a);
        *p = a->at;
        return ncclSuccess;
    }
    free(a);
    status = kolo_cuda_enter(device, &pushed);
    if (status != KOLO_OK) return kolo_nccl_result(status);
    mode = kolo_cuda_uncaptured();
    kolo_cu_result_t r = api->mem_alloc ? api->mem_alloc(&plain, bytes) : 1;
    kolo_cuda_captured(mode);
    kolo_cuda_leave(pushed);
    if (r) {
        kolo_nccl_result(kolo_cuda_fail(r, ordinal, "allocate the memory of ncclMemAlloc"));
        return ncclUnhandledCudaError;
    }
    *p = (void *)(uintptr_t)plain;
    return ncclSuccess;
}

static ncclResult_t alloc_host(size_t bytes, void **p)
{
    allocation_t *a = calloc(1, sizeof *a);
    if (!a || posix_memalign(&a->at, 4096, bytes)) {
        free(a);
        return kolo_nccl_fail(ncclSystemError, "ncclMemAlloc: out of memory for %zu bytes", bytes);
    }
    *p = a->at;
    keep(a);
    return ncclSuccess;
}

static ncclResult_t free_host(const void *p)
{
    allocation_t *a = take(p);
    if (!a)
        return kolo_nccl_fail(ncclInvalidArgument, "ncclMemFree: %p is not from ncclMemAlloc(), or was freed", p);
    free(a->at);
    free(a);
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **p, size_t bytes)
{
    KOLO_NCCL_WHOLE;
    ncclResult_t r = kolo_nccl_start();
    if (r != ncclSuccess) return r;
    if (!p) return kolo_nccl_fail(ncclInvalidArgument, "ncclMemAlloc: the output is NULL");
    *p = NULL;
    if (!bytes) return ncclSuccess; /* as cudaMalloc() */
    return kolo_nccl_on_cpu() ? alloc_host(bytes, p) : alloc_device(bytes, p);
}
KOLO_NCCL_TWIN(ncclMemAlloc, pncclMemAlloc);

/* Frees it as cudaFree() does: what still runs may use it. */
static kolo_cu_result_t free_shareable(const kolo_cuda_api_t *api, const kolo_cuda_device_t *device,
                                       allocation_t *a)
{
    kolo_cu_ptr_t at = (kolo_cu_ptr_t)(uintptr_t)a->at;
    kolo_cu_result_t r = kolo_cuda_await_idle(device);
    if (!r) r = api->mem_unmap(at, a->bytes);
    if (!r) r = api->mem_unreserve(at, a->bytes);
    if (!r) r = api->mem_release(a->mem);
    free(a);
    return r;
}

ncclResult_t ncclMemFree(void *p)
{
    KOLO_NCCL_WHOLE;
    ncclResult_t r = kolo_nccl_start();
    if (r != ncclSuccess || !p) return r;
    if (kolo_nccl_on_cpu()) return free_host(p);
    const kolo_cuda_api_t *api;
    kolo_status_t status = kolo_cuda_load(&api);
    if (status != KOLO_OK) return kolo_nccl_result(status);
    const kolo_cuda_device_t *device;
    allocation_t *a = take(p);
    int ordinal = a ? a->device : kolo_nccl_current_device();
    bool pushed;
    status = kolo_cuda_device(ordinal, &device);
    if (status == KOLO_OK) status = kolo_cuda_enter(device, &pushed); /* the thread may have none, or another */
    if (status != KOLO_OK) {
        if (a) keep(a);
        return kolo_nccl_result(status);
    }
    int mode = kolo_cuda_uncaptured();
    kolo_cu_result_t cu = a               ? free_shareable(api, device, a)
                          : api->mem_free ? api->mem_free((kolo_cu_ptr_t)(uintptr_t)p)
                                          : 1;
    kolo_cuda_captured(mode);
    kolo_cuda_leave(pushed);
    if (!cu) return ncclSuccess;
    kolo_nccl_result(kolo_cuda_fail(cu, ordinal, "free the memory of ncclMemAlloc"));
    return ncclUnhandledCudaError;
}
KOLO_NCCL_TWIN(ncclMemFree, pncclMemFree);

/* ---- registration ---- */

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buf, size_t bytes, void **handle)
{
    KOLO_NCCL_WHOLE;
    static const char call[] = "ncclCommRegister";
    kolo_registration_t made = NULL;
    ncclResult_t r = kolo_nccl_check_made(comm, call);
    if (r != ncclSuccess) return r;
    if (!handle) return kolo_nccl_fail(ncclInvalidArgument, "%s: the output is NULL", call);
    *handle = NULL;
    kolo_status_t status = kolo_comm_register(comm->kolo, buf, bytes, &made);
    if (status == KOLO_ERR_UNSUPPORTED) return ncclSuccess; /* never needed; NCCL answers so, too */
    r = kolo_nccl_result(status);
    if (r == ncclSuccess) *handle = made;
    return r;
}
KOLO_NCCL_TWIN(ncclCommRegister, pncclCommRegister);

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    KOLO_NCCL_WHOLE;
    ncclResult_t r = kolo_nccl_check_made(comm, "ncclCommDeregister");
    if (r != ncclSuccess || !handle) return r;
    return kolo_nccl_result(kolo_comm_deregister(comm->kolo, (kolo_registration_t)handle));
}
KOLO_NCCL_TWIN(ncclCommDeregister, pncclCommDeregister);

/* ---- what a communicator holds ---- */

ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags)
{
    KOLO_NCCL_WHOLE;
    static const char call[] = "ncclCommSuspend";
    ncclResult_t r = kolo_nccl_check_made(comm, call);
    if (r != ncclSuccess) return r;
    if (flags != NCCL_SUSPEND_MEM)
        return kolo_nccl_fail(ncclInvalidArgument, "%s: the flags are 0x%x: expected NCCL_SUSPEND_MEM (1)", call,
                              (unsigned)flags);
    if (atomic_load(&comm->suspended))
        return kolo_nccl_fail(ncclInvalidUsage, "%s: communicator %p is suspended", call, (void *)comm);
    kolo_status_t status = kolo_comm_suspend(comm->kolo, NULL);
    if (status == KOLO_ERR_UNSUPPORTED)
        kolo_info("nccl", "%s frees nothing: %s", call, kolo_error_text());
    else
        r = kolo_nccl_result(status);
    if (r == ncclSuccess) atomic_store(&comm->suspended, status == KOLO_OK ? 2 : 1);
    return r;
}
KOLO_NCCL_TWIN(ncclCommSuspend, pncclCommSuspend);

ncclResult_t ncclCommResume(ncclComm_t comm)
{
    KOLO_NCCL_WHOLE;
    static const char call[] = "ncclCommResume";
    ncclResult_t r = kolo_nccl_check_made(comm, call);
    if (r != ncclSuccess) return r;
    if (!atomic_load(&comm->suspended))
        return kolo_nccl_fail(ncclInvalidUsage, "%s: communicator %p is not suspended", call, (void *)comm);
    if (atomic_load(&comm->suspended) == 2) r = kolo_nccl_result(kolo_comm_resume(comm->kolo));
    if (r == ncclSuccess) atomic_store(&comm->suspended, 0);
    return r;
}
KOLO_NCCL_TWIN(ncclCommResume, pncclCommResume);

/* Tells the one sum that Kolo knows; what suspend would free is nearly all of it on GPUs. */
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value)
{
    KOLO_NCCL_WHOLE;
    static const char call[] = "ncclCommMemStats";
    size_t bytes = 0;
    ncclResult_t r = kolo_nccl_check_made(comm, call);
    if (r != ncclSuccess) return r;
    if (!value) return kolo_nccl_fail(ncclInvalidArgument, "%s: the output is NULL", call);
    if (stat != ncclStatGpuMemSuspended) r = kolo_nccl_result(kolo_comm_memory(comm->kolo, &bytes));
    if (r != ncclSuccess) return r;
    switch (stat) {
    case ncclStatGpuMemSuspended:
        *value = atomic_load(&comm->suspended) != 0;
        return ncclSuccess;
    case ncclStatGpuMemSuspend:
    case ncclStatGpuMemTotal:
        *value = bytes;
        return ncclSuccess;
    case ncclStatGpuMemPersist:
        *value = 0;
        return ncclSuccess;
    }
    return kolo_nccl_fail(ncclInvalidArgument, "%s: there is no figure %d", call, (int)stat);
}
KOLO_NCCL_TWIN(ncclCommMemStats, pncclCommMemStats);
