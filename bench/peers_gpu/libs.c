/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver and NCCL, loaded. See peers_gpu.h.
 */
#include "peers_gpu.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

cuda_t cuda;
nccl_t nccl;
cublas_t cublas;

typedef struct {
    const char *name;
    size_t offset;
    bool optional;
} function_t;

#define F(member, name)                                                                                            \
    {                                                                                                              \
        name, offsetof(cuda_t, member), false                                                                      \
    }
#define OPTIONAL(member, name)                                                                                     \
    {                                                                                                              \
        name, offsetof(cuda_t, member), true                                                                       \
    }
static const function_t cuda_functions[] = {
    F(init, "cuInit"),
    F(error_name, "cuGetErrorName"),
    F(driver_version, "cuDriverGetVersion"),
    F(device_count, "cuDeviceGetCount"),
    F(device_get, "cuDeviceGet"),
    F(device_name, "cuDeviceGetName"),
    F(context_retain, "cuDevicePrimaryCtxRetain"),
    F(context_set, "cuCtxSetCurrent"),
    F(mem_alloc, "cuMemAlloc_v2"),
    F(mem_free, "cuMemFree_v2"),
    OPTIONAL(mem_info, "cuMemGetInfo_v2"),
    F(memset8, "cuMemsetD8Async"),
    F(memcpy, "cuMemcpyAsync"),
    F(stream_create, "cuStreamCreate"),
    F(stream_sync, "cuStreamSynchronize"),
    F(event_create, "cuEventCreate"),
    F(event_record, "cuEventRecord"),
    F(event_elapsed, "cuEventElapsedTime"),
    F(stream_wait, "cuStreamWaitEvent"),
    F(piece_create, "cuMemCreate"),
    F(piece_map, "cuMemMap"),
    F(reserve, "cuMemAddressReserve"),
    F(allow, "cuMemSetAccess"),
    OPTIONAL(capture_begin, "cuStreamBeginCapture_v2"),
    OPTIONAL(capture_end, "cuStreamEndCapture"),
    OPTIONAL(graph_instantiate, "cuGraphInstantiateWithFlags"),
    OPTIONAL(graph_launch, "cuGraphLaunch"),
    OPTIONAL(graph_exec_destroy, "cuGraphExecDestroy"),
    OPTIONAL(graph_destroy, "cuGraphDestroy"),
};
#undef F
#undef OPTIONAL
#define F(member, name)                                                                                            \
    {                                                                                                              \
        name, offsetof(nccl_t, member), false                                                                      \
    }
#define OPTIONAL(member, name)                                                                                     \
    {                                                                                                              \
        name, offsetof(nccl_t, member), true                                                                       \
    }
static const function_t nccl_functions[] = {
    F(version, "ncclGetVersion"),
    F(unique_id, "ncclGetUniqueId"),
    F(init_rank, "ncclCommInitRank"),
    F(destroy, "ncclCommDestroy"),
    F(error_string, "ncclGetErrorString"),
    F(group_start, "ncclGroupStart"),
    F(group_end, "ncclGroupEnd"),
    F(all_reduce, "ncclAllReduce"),
    F(broadcast, "ncclBroadcast"),
    F(reduce, "ncclReduce"),
    F(all_gather, "ncclAllGather"),
    F(reduce_scatter, "ncclReduceScatter"),
    F(send, "ncclSend"),
    F(recv, "ncclRecv"),
    OPTIONAL(all_to_all, "ncclAlltoAll"),
    OPTIONAL(gather, "ncclGather"),
    OPTIONAL(scatter, "ncclScatter"),
    OPTIONAL(mem_alloc, "ncclMemAlloc"),
    OPTIONAL(mem_free, "ncclMemFree"),
    OPTIONAL(window_register, "ncclCommWindowRegister"),
    OPTIONAL(window_deregister, "ncclCommWindowDeregister"),
};

#undef F
#undef OPTIONAL
#define F(member, name)                                                                                            \
    {                                                                                                              \
        name, offsetof(cublas_t, member), false                                                                    \
    }
static const function_t cublas_functions[] = {
    F(create, "cublasCreate_v2"),
    F(destroy, "cublasDestroy_v2"),
    F(set_stream, "cublasSetStream_v2"),
    F(gemm, "cublasGemmEx"),
};

void die(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "peers-gpu: %s\n", text);
    fflush(NULL);
    _exit(1); /* threads that wait for a GPU would keep exit() */
}

void cuda_must(int result, const char *what)
{
    const char *name = NULL;
    if (!result) return;
    cuda.error_name(result, &name);
    die("%s: %s", what, name ? name : "unknown error");
}

void nccl_must(int result, const char *what)
{
    if (result) die("%s: %s", what, nccl.error_string(result));
}

void kolo_must(kolo_status_t status, const char *what)
{
    if (status != KOLO_OK) die("%s: %s: %s", what, kolo_status_string(status), kolo_get_last_error(NULL));
}

static void open_one(const char *path, const function_t *functions, size_t n, void *table)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) die("%s", dlerror());
    for (size_t i = 0; i < n; i++) {
        void *f = dlsym(library, functions[i].name);
        if (!f && !functions[i].optional) die("%s has no %s", path, functions[i].name);
        memcpy((char *)table + functions[i].offset, &f, sizeof f);
    }
}

void libraries_open(const options_t *o)
{
    int devices = 0;
    /* The switch of the machines that we measure on is shared: no multicast, on neither side. */
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    open_one(o->driver_path, cuda_functions, sizeof cuda_functions / sizeof cuda_functions[0], &cuda);
    if (!o->alone) open_one(o->nccl_path, nccl_functions, sizeof nccl_functions / sizeof nccl_functions[0], &nccl);
    if (o->product)
        open_one(o->cublas_path, cublas_functions, sizeof cublas_functions / sizeof cublas_functions[0], &cublas);
    variants_open(o);
    CUDA_MUST(cuda.init(0));
    CUDA_MUST(cuda.device_count(&devices));
    if (devices < o->gpus) die("%d GPUs are asked for, %d are there", o->gpus, devices);
    if (o->init_rounds && !cuda.mem_info) die("--init: the driver has no cuMemGetInfo()");
    if (o->graph && (!cuda.capture_begin || !cuda.capture_end || !cuda.graph_instantiate || !cuda.graph_launch ||
                     !cuda.graph_exec_destroy || !cuda.graph_destroy))
        die("--graph: the driver lacks functions for graphs");
    if (o->windows && (!nccl.mem_alloc || !nccl.mem_free || !nccl.window_register || !nccl.window_deregister))
        die("--windows: this NCCL has none; 2.27 is needed");
}
