/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's library, loaded when the first GPU communicator is made, and the devices it shows.
 */
#include "base/log.h"
#include "mem/cuda/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const char *library_name;
const char *kolo_cuda_connections;

static const kolo_param_t rows[] = {
    {.key = "KOLO_CUDA_LIBRARY",
     .kind = KOLO_PARAM_FILE,
     .def = "libcuda.so.1",
     .help = "The CUDA driver's library, loaded when the first GPU communicator is made",
     .value = &library_name},
    {.key = "CUDA_DEVICE_MAX_CONNECTIONS",
     .kind = KOLO_PARAM_STR,
     .help =
         "The driver's own: how many queues of the hardware the streams of a process share; 8, if it is not set. "
         "Where ranks of one process share a GPU it has to be 32, the most, before the process uses a GPU",
     .value = &kolo_cuda_connections},
};
const kolo_param_table_t kolo_cuda_params = {.module = "cuda", .rows = rows, .count = KOLO_COUNTOF(rows)};

/* Where the address of each function goes. */
static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    {"cuInit", offsetof(kolo_cuda_api_t, init)},
    {"cuGetErrorName", offsetof(kolo_cuda_api_t, error_name)},
    {"cuGetErrorString", offsetof(kolo_cuda_api_t, error_string)},
    {"cuDriverGetVersion", offsetof(kolo_cuda_api_t, driver_version)},
    {"cuDeviceGetCount", offsetof(kolo_cuda_api_t, device_count)},
    {"cuDeviceGet", offsetof(kolo_cuda_api_t, device_get)},
    {"cuDeviceGetName", offsetof(kolo_cuda_api_t, device_name)},
    {"cuDeviceGetUuid_v2", offsetof(kolo_cuda_api_t, device_uuid)},
    {"cuDeviceGetPCIBusId", offsetof(kolo_cuda_api_t, device_bus_id)},
    {"cuDeviceGetAttribute", offsetof(kolo_cuda_api_t, device_attribute)},
    {"cuDeviceCanAccessPeer", offsetof(kolo_cuda_api_t, can_access_peer)},
    {"cuCtxEnablePeerAccess", offsetof(kolo_cuda_api_t, enable_peer)},
    {"cuDevicePrimaryCtxRetain", offsetof(kolo_cuda_api_t, primary_retain)},
    {"cuDevicePrimaryCtxRelease_v2", offsetof(kolo_cuda_api_t, primary_release)},
    {"cuCtxGetCurrent", offsetof(kolo_cuda_api_t, ctx_get)},
    {"cuCtxPushCurrent_v2", offsetof(kolo_cuda_api_t, ctx_push)},
    {"cuCtxPopCurrent_v2", offsetof(kolo_cuda_api_t, ctx_pop)},
    {"cuPointerGetAttributes", offsetof(kolo_cuda_api_t, pointer_attributes)},
    {"cuMemGetAddressRange_v2", offsetof(kolo_cuda_api_t, mem_address_range)},
    {"cuMemGetAllocationGranularity", offsetof(kolo_cuda_api_t, mem_granularity)},
    {"cuMemCreate", offsetof(kolo_cuda_api_t, mem_create)},
    {"cuMemRelease", offsetof(kolo_cuda_api_t, mem_release)},
    {"cuMemAddressReserve", offsetof(kolo_cuda_api_t, mem_reserve)},
    {"cuMemAddressFree", offsetof(kolo_cuda_api_t, mem_unreserve)},
    {"cuMemMap", offsetof(kolo_cuda_api_t, mem_map)},
    {"cuMemUnmap", offsetof(kolo_cuda_api_t, mem_unmap)},
    {"cuMemSetAccess", offsetof(kolo_cuda_api_t, mem_access)},
    {"cuMemGetAccess", offsetof(kolo_cuda_api_t, mem_get_access)},
    {"cuMemExportToShareableHandle", offsetof(kolo_cuda_api_t, mem_export)},
    {"cuMemImportFromShareableHandle", offsetof(kolo_cuda_api_t, mem_import)},
    {"cuIpcGetMemHandle", offsetof(kolo_cuda_api_t, ipc_get)},
    {"cuIpcOpenMemHandle_v2", offsetof(kolo_cuda_api_t, ipc_open)},
    {"cuIpcCloseMemHandle", offsetof(kolo_cuda_api_t, ipc_close)},
    {"cuMemHostAlloc", offsetof(kolo_cuda_api_t, host_alloc)},
    {"cuMemFreeHost", offsetof(kolo_cuda_api_t, host_free)},
    {"cuMemHostGetDevicePointer_v2", offsetof(kolo_cuda_api_t, host_device_pointer)},
    {"cuMemHostRegister_v2", offsetof(kolo_cuda_api_t, host_register)},
    {"cuMemHostUnregister", offsetof(kolo_cuda_api_t, host_unregister)},
    {"cuMemsetD8Async", offsetof(kolo_cuda_api_t, memset8)},
    {"cuMemcpyAsync", offsetof(kolo_cuda_api_t, memcpy_async)},
    {"cuStreamCreate", offsetof(kolo_cuda_api_t, stream_create)},
    {"cuStreamCreateWithPriority", offsetof(kolo_cuda_api_t, stream_create_priority)},
    {"cuCtxGetStreamPriorityRange", offsetof(kolo_cuda_api_t, stream_priorities)},
    {"cuStreamDestroy_v2", offsetof(kolo_cuda_api_t, stream_destroy)},
    {"cuStreamSynchronize", offsetof(kolo_cuda_api_t, stream_sync)},
    {"cuStreamQuery", offsetof(kolo_cuda_api_t, stream_query)},
    {"cuStreamWaitEvent", offsetof(kolo_cuda_api_t, stream_wait)},
    {"cuLaunchHostFunc", offsetof(kolo_cuda_api_t, stream_host_call)},
    {"cuStreamIsCapturing", offsetof(kolo_cuda_api_t, stream_capturing)},
    {"cuEventCreate", offsetof(kolo_cuda_api_t, event_create)},
    {"cuEventRecord", offsetof(kolo_cuda_api_t, event_record)},
    {"cuEventQuery", offsetof(kolo_cuda_api_t, event_query)},
    {"cuEventElapsedTime", offsetof(kolo_cuda_api_t, event_elapsed)},
    {"cuEventDestroy_v2", offsetof(kolo_cuda_api_t, event_destroy)},
    {"cuModuleLoadData", offsetof(kolo_cuda_api_t, module_load)},
    {"cuModuleUnload", offsetof(kolo_cuda_api_t, module_unload)},
    {"cuModuleGetFunction", offsetof(kolo_cuda_api_t, module_function)},
    {"cuLaunchKernel", offsetof(kolo_cuda_api_t, launch)},
    {"cuThreadExchangeStreamCaptureMode", offsetof(kolo_cuda_api_t, capture_mode)},
    {"cuMemAlloc_v2", offsetof(kolo_cuda_api_t, mem_alloc)},
    {"cuMemFree_v2", offsetof(kolo_cuda_api_t, mem_free)},
    {"cuFuncGetAttribute", offsetof(kolo_cuda_api_t, func_attribute)},
    {"cuLaunchKernelEx", offsetof(kolo_cuda_api_t, launch_ex)},
};
/* NULL where the driver is older than they are. */
static const struct {
    const char *name;
    size_t offset;
} newer_functions[] = {
    {"cuStreamWaitValue32_v2", offsetof(kolo_cuda_api_t, stream_wait_word)},
    {"cuStreamWriteValue32_v2", offsetof(kolo_cuda_api_t, stream_write_word)},
    {"cuMemcpyBatchAsync_v2", offsetof(kolo_cuda_api_t, memcpy_batch)},
    {"cuMemGetHandleForAddressRange", offsetof(kolo_cuda_api_t, mem_range_handle)},
    {"cuMemRetainAllocationHandle", offsetof(kolo_cuda_api_t, mem_retain)},
    {"cuStreamGetId", offsetof(kolo_cuda_api_t, stream_id)},
    {"cuStreamGetCtx", offsetof(kolo_cuda_api_t, stream_ctx)},
    {"cuStreamGetCaptureInfo_v2", offsetof(kolo_cuda_api_t, capture_info)},
    {"cuStreamUpdateCaptureDependencies", offsetof(kolo_cuda_api_t, capture_depend)},
    {"cuGraphAddEventRecordNode", offsetof(kolo_cuda_api_t, graph_add_record)},
    {"cuGraphAddDependencies", offsetof(kolo_cuda_api_t, graph_add_edges)},
    {"cuGraphRemoveDependencies", offsetof(kolo_cuda_api_t, graph_remove_edges)},
    {"cuUserObjectCreate", offsetof(kolo_cuda_api_t, object_create)},
    {"cuUserObjectRelease", offsetof(kolo_cuda_api_t, object_release)},
    {"cuGraphRetainUserObject", offsetof(kolo_cuda_api_t, graph_retain)},
    {"cuGraphGetNodes", offsetof(kolo_cuda_api_t, graph_nodes)},
    {"cuGraphNodeGetType", offsetof(kolo_cuda_api_t, graph_node_type)},
    {"cuGraphMemAllocNodeGetParams", offsetof(kolo_cuda_api_t, graph_node_get)},
    {"cuDeviceGetP2PAttribute", offsetof(kolo_cuda_api_t, peer_attribute)},
    {"cuCtxGetDevice", offsetof(kolo_cuda_api_t, ctx_device)},
    {"cuCtxSynchronize", offsetof(kolo_cuda_api_t, ctx_sync)},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kolo_cuda_api_t table;
static _Atomic(const kolo_cuda_api_t *) loaded;
static kolo_cuda_device_t devices[KOLO_CUDA_DEVICES];
static _Atomic bool known[KOLO_CUDA_DEVICES];

const kolo_cuda_api_t *kolo_cuda_loaded(void)
{
    return atomic_load_explicit(&loaded, memory_order_acquire);
}

kolo_status_t kolo_cuda_fail(kolo_cu_result_t result, int device, const char *what)
{
    const char *name = NULL, *text = NULL;
    if (table.error_name) table.error_name(result, &name);
    if (table.error_string) table.error_string(result, &text);
    return kolo_fail(KOLO_ERR_SYSTEM, "cannot %s on GPU %d: %s (%s)", what, device, name ? name : "unknown error",
                     text ? text : "the driver has no text for it");
}

static kolo_status_t load_locked(void)
{
    void *lib = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "no GPU can be used: the CUDA driver cannot be loaded: %s",
                         dlerror());
    for (size_t i = 0; i < KOLO_COUNTOF(functions); i++) {
        void *f = dlsym(lib, functions[i].name);
        if (!f && functions[i].offset == offsetof(kolo_cuda_api_t, launch_ex)) continue; /* may be missing */
        if (!f) {
            kolo_fail(KOLO_ERR_UNSUPPORTED,
                      "no GPU can be used: %s has no %s; a driver of CUDA 11.3 or newer is needed", library_name,
                      functions[i].name);
            dlclose(lib);
            return KOLO_ERR_UNSUPPORTED;
        }
        memcpy((char *)&table + functions[i].offset, &f, sizeof f);
    }
    for (size_t i = 0; i < KOLO_COUNTOF(newer_functions); i++) {
        void *f = dlsym(lib, newer_functions[i].name);
        memcpy((char *)&table + newer_functions[i].offset, &f, sizeof f);
    }
    kolo_cu_result_t r = table.init(0);
    if (r != KOLO_CU_SUCCESS) {
        kolo_cuda_fail(r, 0, "start the CUDA driver");
        dlclose(lib);
        memset(&table, 0, sizeof table);
        return kolo_fail_prefix(KOLO_ERR_UNSUPPORTED, "no GPU can be used: ");
    }
    atomic_store_explicit(&loaded, &table, memory_order_release);
    return KOLO_OK;
}

kolo_status_t kolo_cuda_load(const kolo_cuda_api_t **api)
{
    kolo_status_t status = KOLO_OK;
    if (!kolo_cuda_loaded()) {
        pthread_mutex_lock(&lock);
        if (!kolo_cuda_loaded()) status = load_locked();
        pthread_mutex_unlock(&lock);
    }
    if (status == KOLO_OK) *api = kolo_cuda_loaded();
    return status;
}

void kolo_cuda_load_if_used(void)
{
    const kolo_cuda_api_t *api;
    void *lib = kolo_cuda_loaded() ? NULL : dlopen(library_name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!lib) return;
    if (kolo_cuda_load(&api) != KOLO_OK) kolo_error_clear(); /* who names a device gets to hear of it */
    dlclose(lib);
}

static kolo_status_t fill_device(const kolo_cuda_api_t *api, int ordinal, kolo_cuda_device_t *d)
{
    int vmm = 0, fd = 0;
    kolo_cu_result_t r = api->device_get(&d->device, ordinal);
    d->ordinal = ordinal;
    if (!r) r = api->device_name(d->name, sizeof d->name, d->device);
    if (!r) r = api->device_uuid(&d->uuid, d->device);
    if (!r) r = api->device_bus_id(d->bus_id, sizeof d->bus_id, d->device);
    if (!r) r = api->device_attribute(&d->multiprocessors, KOLO_CU_ATTR_MULTIPROCESSORS, d->device);
    if (!r) r = api->device_attribute(&d->major, KOLO_CU_ATTR_CC_MAJOR, d->device);
    if (!r) r = api->device_attribute(&d->minor, KOLO_CU_ATTR_CC_MINOR, d->device);
    if (!r) r = api->device_attribute(&vmm, KOLO_CU_ATTR_VMM, d->device);
    if (!r) r = api->device_attribute(&fd, KOLO_CU_ATTR_POSIX_FD, d->device);
    d->shareable = vmm && fd;
    if (r) return kolo_cuda_fail(r, ordinal, "ask for the properties");
    r = api->primary_retain(&d->ctx, d->device);
    return r ? kolo_cuda_fail(r, ordinal, "open the primary context") : KOLO_OK;
}

kolo_status_t kolo_cuda_device(int ordinal, const kolo_cuda_device_t **device)
{
    const kolo_cuda_api_t *api;
    int count = 0;
    KOLO_TRY(kolo_cuda_load(&api));
    kolo_cu_result_t r = api->device_count(&count);
    if (r) return kolo_cuda_fail(r, ordinal, "count the GPUs");
    if (ordinal < 0 || ordinal >= count || ordinal >= KOLO_CUDA_DEVICES)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "there is no GPU %d: this process sees %d%s", ordinal, count,
                         count ? " (CUDA_VISIBLE_DEVICES decides which)" : "");
    kolo_status_t status = KOLO_OK;
    if (!atomic_load_explicit(&known[ordinal], memory_order_acquire)) {
        pthread_mutex_lock(&lock);
        if (!atomic_load(&known[ordinal])) status = fill_device(api, ordinal, &devices[ordinal]);
        if (status == KOLO_OK) atomic_store_explicit(&known[ordinal], true, memory_order_release);
        pthread_mutex_unlock(&lock);
    }
    if (status == KOLO_OK) *device = &devices[ordinal];
    return status;
}

kolo_status_t kolo_cuda_enter(const kolo_cuda_device_t *device, bool *pushed)
{
    kolo_cu_ctx_t now = NULL;
    *pushed = false;
    if (table.ctx_get(&now) == KOLO_CU_SUCCESS && now == device->ctx) return KOLO_OK;
    kolo_cu_result_t r = table.ctx_push(device->ctx);
    if (r) return kolo_cuda_fail(r, device->ordinal, "make the context current");
    *pushed = true;
    return KOLO_OK;
}

void kolo_cuda_leave(bool pushed)
{
    kolo_cu_ctx_t old;
    if (pushed) table.ctx_pop(&old);
}

int kolo_cuda_uncaptured(void)
{
    int mode = KOLO_CU_CAPTURE_RELAXED;
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    return api && api->capture_mode && !api->capture_mode(&mode) ? mode : -1;
}

void kolo_cuda_captured(int mode)
{
    if (mode >= 0) kolo_cuda_loaded()->capture_mode(&mode);
}

kolo_cu_result_t kolo_cuda_event_query(kolo_cu_event_t event)
{
    int mode = kolo_cuda_uncaptured();
    kolo_cu_result_t r = kolo_cuda_loaded()->event_query(event);
    kolo_cuda_captured(mode);
    return r;
}

kolo_cu_result_t kolo_cuda_stream_query(kolo_cu_stream_t stream)
{
    int mode = kolo_cuda_uncaptured();
    kolo_cu_result_t r = kolo_cuda_loaded()->stream_query(stream);
    kolo_cuda_captured(mode);
    return r;
}
