/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake driver's devices and contexts. Only primary contexts exist, one per device; each thread has a stack of
 * current ones.
 */
#include "memory.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define STACK 32

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic bool initialized, forked;
static const char *failing;
static int devices, multiprocessors, jitter_us, apart, pci, resident, tears, one_queue,
    of_machine[FAKE_MAX_DEVICES];
static struct CUctx_st contexts[FAKE_MAX_DEVICES];
static __thread struct CUctx_st *stack[STACK];
static __thread int depth;

static const struct {
    kolo_cu_result_t result;
    const char *name, *text;
} errors[] = {
    {KOLO_CU_SUCCESS, "CUDA_SUCCESS", "no error"},
    {FAKE_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {FAKE_NO_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {FAKE_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {KOLO_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {FAKE_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {FAKE_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {FAKE_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {FAKE_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {KOLO_CU_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {KOLO_CU_PEER_ALREADY, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {FAKE_CONTEXT_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {FAKE_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {FAKE_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
};

kolo_cu_result_t fake_wrong(kolo_cu_result_t result, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "fake CUDA driver: %s\n", text);
    return result;
}

void fake_abort(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "fake CUDA driver: %s\n", text);
    abort();
}

static int number(const char *name, int def, int least, int most)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text) return def;
    long v = strtol(text, &end, 10);
    if (*end || v < least || v > most) fake_abort("%s=%s is no number from %d to %d", name, text, least, most);
    return (int)v;
}

/* As the real one: the list ends at the first entry that is no device. */
static void read_visible(int there)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    char *end;
    devices = 0;
    for (; text && *text && devices < FAKE_MAX_DEVICES; text = *end == ',' ? end + 1 : end) {
        long v = strtol(text, &end, 10);
        if (end == text || v < 0 || v >= there) break;
        of_machine[devices++] = (int)v;
    }
    if (text) return;
    for (devices = 0; devices < there; devices++) of_machine[devices] = devices;
}

bool fake_tears(void)
{
    return tears;
}

static void in_child(void)
{
    atomic_store(&forked, true);
}

static void start(void)
{
    read_visible(number("FAKE_CUDA_DEVICES", 2, 0, FAKE_MAX_DEVICES));
    multiprocessors = number("FAKE_CUDA_SMS", 132, 1, 256);
    jitter_us = number("FAKE_CUDA_JITTER_US", 0, 0, 1000000);
    apart = number("FAKE_CUDA_APART", 0, 0, 1);
    pci = number("FAKE_CUDA_PCI", 0, 0, 1);
    resident = number("FAKE_CUDA_RESIDENT", 0, 0, 1);
    tears = number("FAKE_CUDA_TEARS", 0, 0, 1);
    one_queue = number("FAKE_CUDA_ONE_QUEUE", 0, 0, 1);
    failing = getenv("FAKE_CUDA_FAIL");
    for (int i = 0; i < devices; i++) contexts[i].device = i;
    pthread_atfork(NULL, NULL, in_child);
    atomic_store(&initialized, true);
}

bool fake_fails(const char *function)
{
    static _Atomic long calls;
    size_t n = strlen(function);
    return failing && strncmp(failing, function, n) == 0 && failing[n] == ':' &&
           atomic_fetch_add(&calls, 1) + 1 >= strtol(failing + n + 1, NULL, 10);
}

kolo_cu_result_t fake_ready(const char *function)
{
    fake_count(function);
    if (strcmp(function, "cuStreamSynchronize") != 0 && fake_fails(function)) return FAKE_LAUNCH_FAILED;
    if (atomic_load(&forked)) {
        return fake_wrong(FAKE_NOT_INITIALIZED,
                          "%s in a process that was forked after cuInit(): no driver works there", function);
    }
    return atomic_load(&initialized) ? KOLO_CU_SUCCESS
                                     : fake_wrong(FAKE_NOT_INITIALIZED, "%s before cuInit()", function);
}

struct CUctx_st *fake_context(const char *function, kolo_cu_result_t *why)
{
    *why = fake_ready(function);
    if (*why) return NULL;
    *why = FAKE_INVALID_CONTEXT;
    if (!depth || !stack[depth - 1]) {
        fake_wrong(0, "%s without a current context", function);
        return NULL;
    }
    *why = FAKE_CONTEXT_DESTROYED;
    pthread_mutex_lock(&fake_lock);
    bool alive = stack[depth - 1]->retained > 0;
    pthread_mutex_unlock(&fake_lock);
    if (!alive) fake_wrong(0, "%s in a context that was destroyed", function);
    return alive ? stack[depth - 1] : NULL;
}

int fake_devices(void)
{
    return devices;
}

struct CUctx_st *fake_context_of(int device)
{
    return &contexts[device];
}

int fake_device_of_machine(int device)
{
    return of_machine[device];
}

int fake_device_here(int machine)
{
    for (int i = 0; i < devices; i++)
        if (of_machine[i] == machine) return i;
    return -1;
}

int fake_multiprocessors(void)
{
    return multiprocessors;
}

void fake_jitter(void)
{
    static __thread uint64_t state;
    if (!jitter_us) return;
    if (!state) state = (uint64_t)(uintptr_t)&state ^ (uint64_t)getpid() << 32 ^ 0x9e3779b97f4a7c15ull;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    long us = (long)(state % (uint64_t)(jitter_us + 1));
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* ---- exported ---- */

kolo_cu_result_t cuInit(unsigned flags)
{
    if (flags) return fake_wrong(FAKE_INVALID_VALUE, "cuInit(%u)", flags);
    if (atomic_load(&forked)) return FAKE_NOT_INITIALIZED;
    pthread_once(&once, start);
    return fake_fails(__func__) ? FAKE_LAUNCH_FAILED : devices ? KOLO_CU_SUCCESS : KOLO_CU_NO_DEVICE;
}

kolo_cu_result_t cuGetErrorName(kolo_cu_result_t error, const char **name)
{
    *name = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].result == error) *name = errors[i].name;
    return *name ? KOLO_CU_SUCCESS : FAKE_INVALID_VALUE;
}

kolo_cu_result_t cuGetErrorString(kolo_cu_result_t error, const char **text)
{
    *text = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].result == error) *text = errors[i].text;
    return *text ? KOLO_CU_SUCCESS : FAKE_INVALID_VALUE;
}

kolo_cu_result_t cuDriverGetVersion(int *version)
{
    *version = 13000;
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuDeviceGetCount(int *count)
{
    FAKE_READY();
    *count = devices;
    return KOLO_CU_SUCCESS;
}

static bool there(const char *function, int device)
{
    if (device >= 0 && device < devices) return true;
    fake_wrong(0, "%s: there is no device %d", function, device);
    return false;
}

#define DEVICE(d)                                                                                                  \
    FAKE_READY();                                                                                                  \
    if (!there(__func__, d)) return FAKE_INVALID_DEVICE

kolo_cu_result_t cuDeviceGet(kolo_cu_device_t *device, int ordinal)
{
    DEVICE(ordinal);
    *device = ordinal;
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuDeviceGetName(char *name, int bytes, kolo_cu_device_t device)
{
    DEVICE(device);
    snprintf(name, (size_t)bytes, "fake GPU");
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuDeviceGetUuid_v2(kolo_cu_uuid_t *uuid, kolo_cu_device_t device)
{
    DEVICE(device);
    snprintf(uuid->bytes, sizeof uuid->bytes, "fake-gpu-%06d", of_machine[device]);
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuDeviceGetPCIBusId(char *text, int bytes, kolo_cu_device_t device)
{
    DEVICE(device);
    if (bytes < 13) return FAKE_INVALID_VALUE;
    snprintf(text, (size_t)bytes, "0000:%02X:00.0", of_machine[device] + 0x10);
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuDeviceGetAttribute(int *value, int attribute, kolo_cu_device_t device)
{
    DEVICE(device);
    switch (attribute) {
    case KOLO_CU_ATTR_MULTIPROCESSORS:
        *value = multiprocessors;
        return KOLO_CU_SUCCESS;
    case KOLO_CU_ATTR_CC_MAJOR:
        *value = 9;
        return KOLO_CU_SUCCESS;
    case KOLO_CU_ATTR_CC_MINOR:
        *value = 0;
        return KOLO_CU_SUCCESS;
    case KOLO_CU_ATTR_VMM:
    case KOLO_CU_ATTR_POSIX_FD:
        *value = 1;
        return KOLO_CU_SUCCESS;
    default:
        return fake_wrong(FAKE_INVALID_VALUE, "device attribute %d is not known here", attribute);
    }
}

bool fake_one_queue(void)
{
    return one_queue;
}

bool fake_resident(void)
{
    return resident;
}

bool fake_apart(void)
{
    return apart;
}

kolo_cu_result_t cuDeviceCanAccessPeer(int *can, kolo_cu_device_t device, kolo_cu_device_t peer)
{
    DEVICE(device);
    DEVICE(peer);
    *can = device != peer && !apart;
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuDeviceGetP2PAttribute(int *value, int attribute, kolo_cu_device_t device, kolo_cu_device_t peer)
{
    DEVICE(device);
    DEVICE(peer);
    if (attribute != KOLO_CU_P2P_ATOMICS || device == peer)
        return fake_wrong(FAKE_INVALID_VALUE, "attribute %d of devices %d and %d", attribute, device, peer);
    *value = !apart && !pci;
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuDevicePrimaryCtxRetain(kolo_cu_ctx_t *ctx, kolo_cu_device_t device)
{
    DEVICE(device);
    pthread_mutex_lock(&fake_lock);
    contexts[device].retained++;
    pthread_mutex_unlock(&fake_lock);
    *ctx = &contexts[device];
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuDevicePrimaryCtxRelease_v2(kolo_cu_device_t device)
{
    DEVICE(device);
    pthread_mutex_lock(&fake_lock);
    bool held = contexts[device].retained > 0;
    contexts[device].retained -= held;
    pthread_mutex_unlock(&fake_lock);
    return held ? KOLO_CU_SUCCESS
                : fake_wrong(FAKE_INVALID_CONTEXT, "release of a primary context that nobody holds");
}

kolo_cu_result_t cuCtxGetCurrent(kolo_cu_ctx_t *ctx)
{
    FAKE_READY();
    *ctx = depth ? stack[depth - 1] : NULL;
    return KOLO_CU_SUCCESS;
}

static bool is_context(const struct CUctx_st *ctx)
{
    bool good = false;
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < devices; i++) good = good || (ctx == &contexts[i] && ctx->retained > 0);
    pthread_mutex_unlock(&fake_lock);
    if (!good) fake_wrong(0, "%p is no live context", (const void *)ctx);
    return good;
}

kolo_cu_result_t cuCtxSetCurrent(kolo_cu_ctx_t ctx)
{
    FAKE_READY();
    if (ctx && !is_context(ctx)) return FAKE_INVALID_CONTEXT;
    if (!ctx) {
        depth -= depth > 0;
        return KOLO_CU_SUCCESS;
    }
    if (!depth) depth = 1;
    stack[depth - 1] = ctx;
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuCtxGetDevice(kolo_cu_device_t *device)
{
    FAKE_CONTEXT(ctx);
    *device = ctx->device;
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuCtxPushCurrent_v2(kolo_cu_ctx_t ctx)
{
    FAKE_READY();
    if (!is_context(ctx)) return FAKE_INVALID_CONTEXT;
    if (depth == STACK) fake_abort("%d contexts pushed and not popped", STACK);
    stack[depth++] = ctx;
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuCtxPopCurrent_v2(kolo_cu_ctx_t *ctx)
{
    FAKE_READY();
    if (!depth) return fake_wrong(FAKE_INVALID_CONTEXT, "a context is popped where none was pushed");
    depth--;
    if (ctx) *ctx = stack[depth];
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuCtxEnablePeerAccess(kolo_cu_ctx_t peer, unsigned flags)
{
    FAKE_CONTEXT(ctx);
    if (flags) return FAKE_INVALID_VALUE;
    if (!is_context(peer) || peer == ctx) return fake_wrong(FAKE_INVALID_DEVICE, "peer access to itself");
    pthread_mutex_lock(&fake_lock);
    bool had = ctx->peers >> peer->device & 1;
    ctx->peers |= 1u << peer->device;
    pthread_mutex_unlock(&fake_lock);
    return had ? KOLO_CU_PEER_ALREADY : KOLO_CU_SUCCESS;
}
