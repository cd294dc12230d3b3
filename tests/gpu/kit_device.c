/* SPDX-License-Identifier: Apache-2.0
 *
 * The device under a rank: the driver by dlopen, as Kolo loads it (KOLO_CUDA_LIBRARY), or host memory and Kolo's
 * own streams. See kit.h.
 */
#include "kit.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    kolo_cuda_api_t api; /* as far as the tests use it */
    kolo_cu_result_t (*ctx_set)(kolo_cu_ctx_t ctx);
    kolo_cu_result_t (*alloc)(kolo_cu_ptr_t *p, size_t bytes);
    kolo_cu_result_t (*free)(kolo_cu_ptr_t p);
    kolo_cu_result_t (*alloc_managed)(kolo_cu_ptr_t *p, size_t bytes, unsigned flags);
    kolo_cu_result_t (*alloc_queued)(kolo_cu_ptr_t *p, size_t bytes, kolo_cu_stream_t stream);
    kolo_cu_result_t (*free_queued)(kolo_cu_ptr_t p, kolo_cu_stream_t stream);
    kolo_cu_result_t (*stream_query)(kolo_cu_stream_t stream);
    kolo_cu_result_t (*capture_begin)(kolo_cu_stream_t stream, int mode);
    kolo_cu_result_t (*capture_end)(kolo_cu_stream_t stream, void **graph);
    kolo_cu_result_t (*graph_instantiate)(void **exec, void *graph, unsigned long long flags);
    kolo_cu_result_t (*graph_launch)(void *exec, kolo_cu_stream_t stream);
    kolo_cu_result_t (*graph_exec_destroy)(void *exec);
    kolo_cu_result_t (*graph_destroy)(void *graph);
} driver_t;

static driver_t driver;
static const _Atomic int *foreign, *imported;  /* words of the fake driver */
static long (*calls_of)(const char *function); /* of the fake driver */
static bool loaded;
static int shown;

#define F(member, name)                                                                                            \
    {                                                                                                              \
        name, offsetof(driver_t, member)                                                                           \
    }
static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    F(api.init, "cuInit"),
    F(api.error_name, "cuGetErrorName"),
    F(api.device_count, "cuDeviceGetCount"),
    F(api.device_get, "cuDeviceGet"),
    F(api.primary_retain, "cuDevicePrimaryCtxRetain"),
    F(api.ctx_get, "cuCtxGetCurrent"),
    F(api.ctx_push, "cuCtxPushCurrent_v2"),
    F(api.ctx_pop, "cuCtxPopCurrent_v2"),
    F(api.primary_release, "cuDevicePrimaryCtxRelease_v2"),
    F(api.host_alloc, "cuMemHostAlloc"),
    F(api.host_free, "cuMemFreeHost"),
    F(api.mem_create, "cuMemCreate"),
    F(api.mem_release, "cuMemRelease"),
    F(api.mem_reserve, "cuMemAddressReserve"),
    F(api.mem_unreserve, "cuMemAddressFree"),
    F(api.mem_map, "cuMemMap"),
    F(api.mem_unmap, "cuMemUnmap"),
    F(api.mem_access, "cuMemSetAccess"),
    F(api.memcpy_async, "cuMemcpyAsync"),
    F(api.memset8, "cuMemsetD8Async"),
    F(api.stream_create, "cuStreamCreate"),
    F(api.stream_destroy, "cuStreamDestroy_v2"),
    F(api.stream_sync, "cuStreamSynchronize"),
    F(api.stream_wait, "cuStreamWaitEvent"),
    F(api.event_create, "cuEventCreate"),
    F(api.event_record, "cuEventRecord"),
    F(api.event_destroy, "cuEventDestroy_v2"),
    F(api.event_query, "cuEventQuery"),
    F(api.stream_wait_word, "cuStreamWaitValue32_v2"),
    F(api.module_load, "cuModuleLoadData"),
    F(api.module_function, "cuModuleGetFunction"),
    F(api.launch, "cuLaunchKernel"),
    F(ctx_set, "cuCtxSetCurrent"),
    F(alloc, "cuMemAlloc_v2"),
    F(free, "cuMemFree_v2"),
    F(alloc_managed, "cuMemAllocManaged"),
    F(alloc_queued, "cuMemAllocAsync"),
    F(free_queued, "cuMemFreeAsync"),
    F(stream_query, "cuStreamQuery"),
    F(capture_begin, "cuStreamBeginCapture_v2"),
    F(capture_end, "cuStreamEndCapture"),
    F(graph_instantiate, "cuGraphInstantiateWithFlags"),
    F(graph_launch, "cuGraphLaunch"),
    F(graph_exec_destroy, "cuGraphExecDestroy"),
    F(graph_destroy, "cuGraphDestroy"),
};

static bool fine(kolo_cu_result_t r, const char *what)
{
    const char *name = NULL;
    if (!r) return true;
    driver.api.error_name(r, &name);
    return kit_fail("driver", 0, "%s: %s", what, name ? name : "unknown error");
}
#define CU(call) fine((call), #call)

bool kit_ok(const char *file, int line, const char *call, kolo_status_t status)
{
    return status == KOLO_OK || kit_fail(file, line, "%s: %s", call, kolo_get_last_error(NULL));
}

bool kit_open(bool host, int *devices)
{
    const char *library = getenv("KOLO_CUDA_LIBRARY");
    if (host) {
        *devices = 1;
        return true;
    }
    void *lib = dlopen(library ? library : "libcuda.so.1", RTLD_NOW);
    if (!lib) return kit_fail("driver", 0, "%s", dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *f = dlsym(lib, functions[i].name);
        if (!f && functions[i].offset >= offsetof(driver_t, capture_begin))
            continue; /* the fake driver has no graphs */
        if (!f) return kit_fail("driver", 0, "%s", dlerror());
        memcpy((char *)&driver + functions[i].offset, &f, sizeof f);
    }
    foreign = dlsym(lib, "fake_ipc_opened");
    imported = dlsym(lib, "fake_imports_mapped");
    *(void **)&calls_of = dlsym(lib, "fake_calls");
    loaded = true;
    return CU(driver.api.init(0)) && CU(driver.api.device_count(&shown)) && (*devices = shown) >= 0;
}

int kit_devices(void)
{
    return shown;
}

int kit_foreign(void)
{
    return foreign ? atomic_load(foreign) : -1;
}

long kit_calls(const char *function)
{
    return calls_of ? calls_of(function) : -1;
}

int kit_imported(void)
{
    return imported ? atomic_load(imported) : -1;
}

const kolo_cuda_api_t *kit_cuda(void)
{
    return loaded ? &driver.api : NULL;
}

void kit_enter(const kit_rank_t *r)
{
    if (r->device >= 0) CU(driver.ctx_set(r->ctx));
}

void kit_leave(const kit_rank_t *r)
{
    if (r->device >= 0) CU(driver.ctx_set(NULL));
}

static void *at(kolo_cu_ptr_t p)
{
    return (void *)(uintptr_t)p; /* NOLINT: a driver's address */
}

void *kit_alloc(const kit_rank_t *r, size_t bytes)
{
    kolo_cu_ptr_t p = 0;
    if (r->device < 0) return malloc(bytes);
    kit_enter(r);
    return CU(driver.alloc(&p, bytes)) ? at(p) : NULL;
}

void kit_free(const kit_rank_t *r, void *p)
{
    if (r->device < 0) {
        free(p);
    } else if (p) {
        kit_enter(r);
        CU(driver.free((uintptr_t)p));
    }
}

void *kit_alloc_managed(const kit_rank_t *r, size_t bytes)
{
    kolo_cu_ptr_t p = 0;
    kit_enter(r);
    return CU(driver.alloc_managed(&p, bytes, 1)) ? at(p) : NULL; /* of all streams */
}

void *kit_alloc_queued(const kit_rank_t *r, size_t bytes, void *stream)
{
    kolo_cu_ptr_t p = 0;
    kit_enter(r);
    return CU(driver.alloc_queued(&p, bytes, stream)) ? at(p) : NULL;
}

bool kit_free_queued(const kit_rank_t *r, void *p, void *stream)
{
    kit_enter(r);
    return CU(driver.free_queued((uintptr_t)p, stream));
}

static bool open_host(kit_rank_t *r)
{
    kolo_stream_t s;
    for (int i = 0; i < 2; i++) {
        if (!KIT_OK(kolo_stream_create(&s))) return false;
        r->streams[i] = s;
    }
    r->buffer = malloc(r->room);
    r->image = malloc(r->room);
    r->back = malloc(r->room);
    return r->buffer && r->image && r->back;
}

bool kit_rank_open(kit_rank_t *r, int device, size_t room)
{
    kolo_cu_device_t d;
    void *image, *back, *held;
    r->device = device;
    r->room = room;
    if (device < 0) return open_host(r);
    if (!CU(driver.api.device_get(&d, device)) || !CU(driver.api.primary_retain(&r->ctx, d))) return false;
    kit_enter(r);
    for (int i = 0; i < 2; i++) {
        kolo_cu_stream_t s;
        if (!CU(driver.api.stream_create(&s, KOLO_CU_STREAM_NON_BLOCKING))) return false;
        r->streams[i] = s;
    }
    r->streams[3] = (void *)(uintptr_t)2; /* NOLINT: the thread's own default stream */
    r->buffer = kit_alloc(r, room);
    if (!CU(driver.api.host_alloc(&image, room, 0)) || !CU(driver.api.host_alloc(&back, room, 0)) ||
        !CU(driver.api.host_alloc(&held, sizeof *r->held, 0)))
        return false;
    r->image = image;
    r->back = back;
    r->held = held;
    return r->buffer != NULL;
}

void kit_rank_close(kit_rank_t *r)
{
    kolo_cu_device_t d;
    if (r->device < 0) {
        for (int i = 0; i < 2; i++) kolo_stream_destroy(r->streams[i]);
        free(r->image);
        free(r->back);
    } else {
        kit_enter(r);
        CU(driver.api.host_free(r->image));
        CU(driver.api.host_free(r->back));
        CU(driver.api.host_free(r->held));
        for (int i = 0; i < 2; i++) CU(driver.api.stream_destroy(r->streams[i]));
    }
    kit_free(r, r->buffer);
    if (r->device >= 0 && CU(driver.api.device_get(&d, r->device))) CU(driver.api.primary_release(d));
}

/* ---- copies in a stream's order ---- */

typedef struct {
    char *to;
    const char *from;
    size_t bytes;
} host_copy_t;

static void do_copy(void *arg)
{
    host_copy_t *c = arg;
    memcpy(c->to, c->from, c->bytes);
    free(c);
}

static bool copy(const kit_rank_t *r, char *to, const char *from, size_t bytes, void *stream)
{
    if (!bytes) return true;
    if (r->device >= 0) {
        kit_enter(r);
        return CU(driver.api.memcpy_async((uintptr_t)to, (uintptr_t)from, bytes, stream));
    }
    host_copy_t *c = malloc(sizeof *c);
    if (!c) return false;
    *c = (host_copy_t){to, from, bytes};
    if (stream) return KIT_OK(kolo_stream_call(stream, do_copy, c));
    do_copy(c);
    return true;
}

bool kit_upload(kit_rank_t *r, size_t from, size_t bytes, void *stream)
{
    return copy(r, r->buffer + from, r->image + from, bytes, stream);
}

bool kit_download(kit_rank_t *r, size_t from, size_t bytes, void *stream)
{
    return copy(r, r->back + from, r->buffer + from, bytes, stream);
}

bool kit_put(kit_rank_t *r, kolo_cu_ptr_t p, size_t bytes, void *stream)
{
    return copy(r, at(p), r->image, bytes, stream);
}

bool kit_fetch(kit_rank_t *r, kolo_cu_ptr_t p, size_t bytes, void *stream)
{
    return copy(r, r->back, at(p), bytes, stream);
}

/* ---- kernels and graphs ---- */

bool kit_kernel(const kit_rank_t *r, const void *image, const char *name, kolo_cu_func_t *function)
{
    kolo_cu_module_t module;
    kit_enter(r);
    return CU(driver.api.module_load(&module, image)) && CU(driver.api.module_function(function, module, name));
}

bool kit_launch(const kit_rank_t *r, kolo_cu_func_t function, unsigned blocks, void *args, void *stream)
{
    void *params[] = {args};
    kit_enter(r);
    return CU(driver.api.launch(function, blocks, 1, 1, 512, 1, 1, 0, stream, params, NULL));
}

void *kit_stream_new(const kit_rank_t *r)
{
    kolo_cu_stream_t stream = NULL;
    kit_enter(r);
    return CU(driver.api.stream_create(&stream, KOLO_CU_STREAM_NON_BLOCKING)) ? stream : NULL;
}

void kit_stream_end(const kit_rank_t *r, void *stream)
{
    kit_enter(r);
    if (stream) CU(driver.api.stream_destroy(stream));
}

bool kit_stream_wait(const kit_rank_t *r, void *stream, kolo_cu_event_t event)
{
    kit_enter(r);
    return CU(driver.api.stream_wait(stream, event, 0));
}

bool kit_capture(const kit_rank_t *r, void *stream)
{
    if (!driver.capture_begin) return kit_fail("driver", 0, "this driver has no graphs");
    kit_enter(r);
    return CU(driver.capture_begin(stream, 1)); /* of this thread's doing */
}

bool kit_captured(const kit_rank_t *r, void *stream, void **plan)
{
    if (!driver.capture_end) return false;
    kit_enter(r);
    return CU(driver.capture_end(stream, plan));
}

bool kit_capture_lost(const kit_rank_t *r, void *stream)
{
    void *plan = NULL;
    kit_enter(r);
    if (driver.capture_end(stream, &plan)) return true;
    driver.graph_destroy(plan);
    return false;
}

bool kit_graph(const kit_rank_t *r, void *plan, void **graph)
{
    if (!plan || !driver.graph_instantiate || !driver.graph_launch)
        return kit_fail("driver", 0, "this driver has no graphs");
    kit_enter(r);
    bool good = CU(driver.graph_instantiate(graph, plan, 0));
    return CU(driver.graph_destroy(plan)) && good;
}

bool kit_replay(const kit_rank_t *r, void *graph, void *stream)
{
    kit_enter(r);
    return CU(driver.graph_launch(graph, stream));
}

void kit_graph_end(void *graph)
{
    if (graph) CU(driver.graph_exec_destroy(graph));
}

bool kit_sync(const kit_rank_t *r, void *stream)
{
    if (r->device < 0) return !stream || KIT_OK(kolo_stream_synchronize(stream));
    kit_enter(r);
    return CU(driver.api.stream_sync(stream));
}

static kolo_status_t answer(kolo_cu_result_t result)
{
    if (result == KOLO_CU_NOT_READY) return KOLO_IN_PROGRESS;
    return CU(result) ? KOLO_OK : KOLO_ERR_SYSTEM;
}

kolo_status_t kit_query(const kit_rank_t *r, void *stream)
{
    if (r->device < 0) return stream ? kolo_stream_query(stream) : KOLO_OK;
    kit_enter(r);
    return answer(driver.stream_query(stream));
}

bool kit_event_new(kolo_cu_event_t *event)
{
    return CU(driver.api.event_create(event, KOLO_CU_EVENT_NO_TIMING));
}

bool kit_event_record(kolo_cu_event_t event, void *stream)
{
    return CU(driver.api.event_record(event, stream));
}

kolo_status_t kit_event_query(kolo_cu_event_t event)
{
    return answer(driver.api.event_query(event));
}

void kit_event_end(kolo_cu_event_t event)
{
    CU(driver.api.event_destroy(event));
}

bool kit_hold(const kit_rank_t *r, void *stream)
{
    __atomic_store_n(r->held, 0, __ATOMIC_RELEASE);
    kit_enter(r);
    return CU(driver.api.stream_wait_word(stream, (uintptr_t)r->held, 1, KOLO_CU_WAIT_AT_LEAST));
}

void kit_let_go(const kit_rank_t *r)
{
    __atomic_store_n(r->held, 1, __ATOMIC_RELEASE);
}

void kit_nap(void)
{
    struct timespec t = {0, 200000};
    nanosleep(&t, NULL);
}
