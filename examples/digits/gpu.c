/* SPDX-License-Identifier: Apache-2.0
 *
 * See gpu.h.
 */
#include "gpu.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address_t;

/* Of cuda.h what is called here. */
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
} cuda;

static struct {
    address_t at;
    size_t bytes;
    void *event;
} slots[GPU_SLOTS];
static int number = -1;
static void *stream;

static bool load(const char **why)
{
    const struct {
        void *function;
        const char *name;
    } wanted[] = {{&cuda.init, "cuInit"},
                  {&cuda.count, "cuDeviceGetCount"},
                  {&cuda.get, "cuDeviceGet"},
                  {&cuda.retain, "cuDevicePrimaryCtxRetain"},
                  {&cuda.set_context, "cuCtxSetCurrent"},
                  {&cuda.alloc, "cuMemAlloc_v2"},
                  {&cuda.free, "cuMemFree_v2"},
                  {&cuda.copy, "cuMemcpyAsync"},
                  {&cuda.stream_new, "cuStreamCreate"},
                  {&cuda.stream_wait, "cuStreamSynchronize"},
                  {&cuda.event_new, "cuEventCreate"},
                  {&cuda.event_record, "cuEventRecord"}};
    const char *path = getenv("KOLO_CUDA_LIBRARY"); /* the driver that Kolo loads */
    void *library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW);
    *why = library ? NULL : dlerror();
    for (size_t i = 0; library && i < sizeof wanted / sizeof wanted[0]; i++) {
        void *found = dlsym(library, wanted[i].name);
        if (!found) *why = dlerror();
        memcpy(wanted[i].function, &found, sizeof found);
    }
    return !*why;
}

bool gpu_open(int worker, const char **why)
{
    int devices = 0, device;
    void *context;
    if (!load(why)) return false;
    *why = "there is no GPU";
    if (cuda.init(0) || cuda.count(&devices) || devices < 1) return false;
    *why = "the GPU cannot be used";
    if (cuda.get(&device, worker % devices) || cuda.retain(&context, device) || cuda.set_context(context) ||
        cuda.stream_new(&stream, 1))
        return false;
    for (int i = 0; i < GPU_SLOTS; i++)
        if (cuda.event_new(&slots[i].event, 2)) return false;
    number = worker % devices;
    return true;
}

int gpu_number(void)
{
    return number;
}

static address_t address(const void *p)
{
    return (address_t)(uintptr_t)p;
}

void *gpu_take(int slot, const void *data, size_t bytes, void **ready)
{
    if (bytes > slots[slot].bytes) {
        if (slots[slot].at && cuda.free(slots[slot].at)) return NULL;
        slots[slot].bytes = 0;
        if (cuda.alloc(&slots[slot].at, bytes)) return NULL;
        slots[slot].bytes = bytes;
    }
    if (cuda.copy(slots[slot].at, address(data), bytes, stream)) return NULL;
    if (cuda.event_record(slots[slot].event, stream)) return NULL;
    *ready = slots[slot].event;
    return (void *)(uintptr_t)slots[slot].at; /* NOLINT: a driver's address */
}

bool gpu_give(int slot, void *data, size_t bytes)
{
    return !cuda.copy(address(data), slots[slot].at, bytes, stream) && !cuda.stream_wait(stream);
}
