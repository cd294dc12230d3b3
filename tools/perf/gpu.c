/* SPDX-License-Identifier: Apache-2.0
 *
 * See gpu.h. The CUDA driver is loaded here as Kolo loads it.
 */
#include "gpu.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define WARM_UPS 3

typedef unsigned long long address_t;

static struct {
    int (*init)(unsigned flags);
    int (*count)(int *devices);
    int (*get)(int *device, int ordinal);
    int (*retain)(void **context, int device);
    int (*set_context)(void *context);
    int (*alloc)(address_t *at, size_t bytes);
    int (*free)(address_t at);
    int (*copy)(address_t to, address_t from, size_t bytes, void *stream);
    int (*stream_new)(void **stream, unsigned flags);
    int (*stream_wait)(void *stream);
    int (*event_new)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*elapsed)(float *ms, void *from, void *to);
    /* graphs; NULL where the driver has none */
    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **graph);
    int (*instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*launch)(void *exec, void *stream);
    int (*exec_destroy)(void *exec);
    int (*graph_destroy)(void *graph);
} cuda;

static void *stream, *begin_event, *end_event;

static bool load(bool graphs, const char **why)
{
    const struct {
        void *function;
        const char *name;
        bool of_graphs;
    } wanted[] = {{&cuda.init, "cuInit", false},
                  {&cuda.count, "cuDeviceGetCount", false},
                  {&cuda.get, "cuDeviceGet", false},
                  {&cuda.retain, "cuDevicePrimaryCtxRetain", false},
                  {&cuda.set_context, "cuCtxSetCurrent", false},
                  {&cuda.alloc, "cuMemAlloc_v2", false},
                  {&cuda.free, "cuMemFree_v2", false},
                  {&cuda.copy, "cuMemcpyAsync", false},
                  {&cuda.stream_new, "cuStreamCreate", false},
                  {&cuda.stream_wait, "cuStreamSynchronize", false},
                  {&cuda.event_new, "cuEventCreate", false},
                  {&cuda.event_record, "cuEventRecord", false},
                  {&cuda.elapsed, "cuEventElapsedTime", false},
                  {&cuda.capture_begin, "cuStreamBeginCapture_v2", true},
                  {&cuda.capture_end, "cuStreamEndCapture", true},
                  {&cuda.instantiate, "cuGraphInstantiateWithFlags", true},
                  {&cuda.launch, "cuGraphLaunch", true},
                  {&cuda.exec_destroy, "cuGraphExecDestroy", true},
                  {&cuda.graph_destroy, "cuGraphDestroy", true}};
    const char *path = getenv("KOLO_CUDA_LIBRARY");
    void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW);
    *why = library ? NULL : dlerror();
    for (size_t i = 0; library && i < sizeof wanted / sizeof wanted[0]; i++) {
        void *found = dlsym(library, wanted[i].name);
        if (!found && (graphs || !wanted[i].of_graphs)) *why = dlerror();
        memcpy(wanted[i].function, &found, sizeof found);
    }
    return !*why;
}

bool perf_gpu_open(int local_rank, bool graphs, int *number, const char **why)
{
    int devices = 0, device;
    void *context;
    if (!load(graphs, why)) return false;
    *why = "there is no GPU";
    if (cuda.init(0) || cuda.count(&devices) || devices < 1) return false;
    *why = "the GPU cannot be used";
    *number = local_rank % devices;
    return !cuda.get(&device, *number) && !cuda.retain(&context, device) && !cuda.set_context(context) &&
           !cuda.stream_new(&stream, 1) && !cuda.event_new(&begin_event, 0) && !cuda.event_new(&end_event, 0);
}

bool perf_gpu_has_graphs(void)
{
    return cuda.capture_begin && cuda.capture_end && cuda.instantiate && cuda.launch && cuda.exec_destroy &&
           cuda.graph_destroy;
}

static address_t address(const void *p)
{
    return (address_t)(uintptr_t)p;
}

char *perf_gpu_alloc(uint64_t bytes)
{
    address_t at = 0;
    return cuda.alloc(&at, bytes) ? NULL : (char *)(uintptr_t)at; /* NOLINT: a driver's address */
}

void perf_gpu_free(char *at)
{
    if (at) cuda.free(address(at));
}

bool perf_gpu_write(char *at, const void *host, uint64_t bytes)
{
    return !cuda.copy(address(at), address(host), bytes, stream) && !cuda.stream_wait(stream);
}

bool perf_gpu_read(void *host, const char *at, uint64_t bytes)
{
    return !cuda.copy(address(host), address(at), bytes, stream) && !cuda.stream_wait(stream);
}

void *perf_gpu_stream(void)
{
    return stream;
}

bool perf_gpu_sync(void)
{
    return !cuda.stream_wait(stream);
}

/* ---- times ---- */

static kolo_status_t put_calls(const perf_job_t *job, perf_coll_t coll, const perf_buffers_t *b, bool in_place,
                               int calls)
{
    kolo_status_t status = KOLO_OK;
    for (int i = 0; i < calls && status == KOLO_OK; i++) {
        int k = job->options->rotate ? i & 1 : 0;
        const void *src = in_place ? perf_in_place_src(job, coll, b->dst[k], b->count) : b->src[k];
        status = perf_call(job, coll, src, b->dst[k], b->count, stream);
    }
    return status;
}

static kolo_status_t capture(const perf_job_t *job, perf_coll_t coll, const perf_buffers_t *b, bool in_place,
                             int calls, void **exec)
{
    void *graph = NULL;
    if (cuda.capture_begin(stream, 2)) return KOLO_ERR_SYSTEM; /* 2: of this thread's doing only */
    kolo_status_t status = put_calls(job, coll, b, in_place, calls);
    if (cuda.capture_end(stream, &graph) || !graph) return status == KOLO_OK ? KOLO_ERR_SYSTEM : status;
    if (status == KOLO_OK && cuda.instantiate(exec, graph, 0)) status = KOLO_ERR_SYSTEM;
    cuda.graph_destroy(graph);
    return status;
}

kolo_status_t perf_gpu_time_calls(const perf_job_t *job, perf_coll_t coll, const perf_buffers_t *b, bool in_place,
                                  int calls, int n, double *times)
{
    void *exec = NULL;
    float ms = 0;
    kolo_status_t status = put_calls(job, coll, b, in_place, 1); /* the first use, by itself */
    if (status == KOLO_OK && job->options->graph) status = capture(job, coll, b, in_place, calls, &exec);
    for (int i = -WARM_UPS; i < n && status == KOLO_OK; i++) {
        status = kolo_barrier(job->host, NULL);
        if (status == KOLO_OK && cuda.event_record(begin_event, stream)) status = KOLO_ERR_SYSTEM;
        if (status == KOLO_OK && exec && cuda.launch(exec, stream)) status = KOLO_ERR_SYSTEM;
        if (status == KOLO_OK && !exec) status = put_calls(job, coll, b, in_place, calls);
        if (status == KOLO_OK && (cuda.event_record(end_event, stream) || cuda.stream_wait(stream) ||
                                  cuda.elapsed(&ms, begin_event, end_event)))
            status = KOLO_ERR_SYSTEM;
        if (i >= 0) times[i] = (double)ms * 1e3 / calls;
    }
    if (exec) cuda.exec_destroy(exec);
    return status;
}
