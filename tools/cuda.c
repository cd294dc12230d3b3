/* SPDX-License-Identifier: Apache-2.0
 *
 * See cuda.h.
 */
#include "cuda.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cuda_driver_t cuda;

static int number = -1;
static void *stream;
static char error[300];

static const struct {
    void *function; /* in cuda */
    const char *name;
    bool of_graphs;
} wanted[] = {{&cuda.init, "cuInit", false},
              {&cuda.error_name, "cuGetErrorName", false},
              {&cuda.error_text, "cuGetErrorString", false},
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

bool cuda_succeeded(int result, const void *function)
{
    const char *call = "a call", *name = NULL, *text = NULL;
    char where[32] = "";
    if (!result) return true;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (wanted[i].function == function) call = wanted[i].name;
    cuda.error_name(result, &name);
    cuda.error_text(result, &text);
    if (number >= 0) snprintf(where, sizeof where, " on GPU %d", number);
    snprintf(error, sizeof error, "%s%s failed: %s (error %d: %s)", call, where, name ? name : "unknown", result,
             text ? text : "the driver has no text for it");
    return false;
}

const char *cuda_error(void)
{
    return error;
}

static bool load(bool graphs)
{
    const char *path = getenv("KOLO_CUDA_LIBRARY"); /* the driver that Kolo loads */
    void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW);
    if (!library) snprintf(error, sizeof error, "the CUDA driver cannot be loaded: %s", dlerror());
    for (size_t i = 0; library && i < sizeof wanted / sizeof wanted[0]; i++) {
        void *found = dlsym(library, wanted[i].name);
        memcpy(wanted[i].function, &found, sizeof found);
        if (found || (wanted[i].of_graphs && !graphs)) continue;
        snprintf(error, sizeof error, "the CUDA driver is too old: %s", dlerror());
        return false;
    }
    return library;
}

bool cuda_open(int worker, bool graphs)
{
    int devices = 0, device;
    void *context;
    if (!load(graphs) || !CUDA_OK(init, 0) || !CUDA_OK(count, &devices)) return false;
    if (devices < 1) {
        snprintf(error, sizeof error, "the CUDA driver sees no GPU here (CUDA_VISIBLE_DEVICES?)");
        return false;
    }
    number = worker % devices;
    return CUDA_OK(get, &device, number) && CUDA_OK(retain, &context, device) && CUDA_OK(set_context, context) &&
           CUDA_OK(stream_new, &stream, 1);
}

bool cuda_has_graphs(void)
{
    return cuda.capture_begin && cuda.capture_end && cuda.instantiate && cuda.launch && cuda.exec_destroy &&
           cuda.graph_destroy;
}

int cuda_number(void)
{
    return number;
}

void *cuda_stream(void)
{
    return stream;
}

cuda_address_t cuda_address(const void *p)
{
    return (cuda_address_t)(uintptr_t)p;
}

bool cuda_copy(cuda_address_t to, cuda_address_t from, size_t bytes)
{
    return CUDA_OK(copy, to, from, bytes, stream) && CUDA_OK(stream_wait, stream);
}
