/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of libcuda.so.1 that the fake driver exports, under the driver's names: what src/mem/cuda/driver.c
 * asks for, and a few that tests call themselves. Types and values are those of mem/cuda/api.h.
 */
#ifndef KOLO_TESTS_GPU_FAKE_CUDA_H
#define KOLO_TESTS_GPU_FAKE_CUDA_H

#include "mem/cuda/api.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

kolo_cu_result_t cuInit(unsigned flags);
kolo_cu_result_t cuGetErrorName(kolo_cu_result_t error, const char **name);
kolo_cu_result_t cuGetErrorString(kolo_cu_result_t error, const char **text);
kolo_cu_result_t cuDriverGetVersion(int *version);
kolo_cu_result_t cuDeviceGetCount(int *count);
kolo_cu_result_t cuDeviceGet(kolo_cu_device_t *device, int ordinal);
kolo_cu_result_t cuDeviceGetName(char *name, int bytes, kolo_cu_device_t device);
kolo_cu_result_t cuDeviceGetUuid_v2(kolo_cu_uuid_t *uuid, kolo_cu_device_t device);
kolo_cu_result_t cuDeviceGetPCIBusId(char *text, int bytes, kolo_cu_device_t device);
kolo_cu_result_t cuDeviceGetAttribute(int *value, int attribute, kolo_cu_device_t device);
kolo_cu_result_t cuDeviceCanAccessPeer(int *can, kolo_cu_device_t device, kolo_cu_device_t peer);
kolo_cu_result_t cuDeviceGetP2PAttribute(int *value, int attribute, kolo_cu_device_t device, kolo_cu_device_t peer);

kolo_cu_result_t cuDevicePrimaryCtxRetain(kolo_cu_ctx_t *ctx, kolo_cu_device_t device);
kolo_cu_result_t cuDevicePrimaryCtxRelease_v2(kolo_cu_device_t device);
kolo_cu_result_t cuCtxGetCurrent(kolo_cu_ctx_t *ctx);
kolo_cu_result_t cuCtxSetCurrent(kolo_cu_ctx_t ctx);
kolo_cu_result_t cuCtxGetDevice(kolo_cu_device_t *device);
kolo_cu_result_t cuCtxPushCurrent_v2(kolo_cu_ctx_t ctx);
kolo_cu_result_t cuCtxPopCurrent_v2(kolo_cu_ctx_t *ctx);
kolo_cu_result_t cuCtxEnablePeerAccess(kolo_cu_ctx_t peer, unsigned flags);
kolo_cu_result_t cuCtxSynchronize(void);

kolo_cu_result_t cuPointerGetAttributes(unsigned n, int *attributes, void **data, kolo_cu_ptr_t p);
kolo_cu_result_t cuMemGetAddressRange_v2(kolo_cu_ptr_t *base, size_t *bytes, kolo_cu_ptr_t p);
kolo_cu_result_t cuMemGetAllocationGranularity(size_t *bytes, const kolo_cu_mem_prop_t *prop, int option);
kolo_cu_result_t cuMemCreate(kolo_cu_mem_t *mem, size_t bytes, const kolo_cu_mem_prop_t *prop,
                             unsigned long long flags);
kolo_cu_result_t cuMemRelease(kolo_cu_mem_t mem);
kolo_cu_result_t cuMemRetainAllocationHandle(kolo_cu_mem_t *mem, void *at);
kolo_cu_result_t cuMemAddressReserve(kolo_cu_ptr_t *p, size_t bytes, size_t align, kolo_cu_ptr_t at,
                                     unsigned long long flags);
kolo_cu_result_t cuMemAddressFree(kolo_cu_ptr_t p, size_t bytes);
kolo_cu_result_t cuMemMap(kolo_cu_ptr_t p, size_t bytes, size_t offset, kolo_cu_mem_t mem,
                          unsigned long long flags);
kolo_cu_result_t cuMemUnmap(kolo_cu_ptr_t p, size_t bytes);
kolo_cu_result_t cuMemSetAccess(kolo_cu_ptr_t p, size_t bytes, const kolo_cu_access_t *who, size_t n);
kolo_cu_result_t cuMemGetAccess(unsigned long long *flags, const kolo_cu_location_t *who, kolo_cu_ptr_t p);
kolo_cu_result_t cuMemExportToShareableHandle(void *handle, kolo_cu_mem_t mem, int type, unsigned long long flags);
kolo_cu_result_t cuMemImportFromShareableHandle(kolo_cu_mem_t *mem, void *handle, int type);
kolo_cu_result_t cuMemAlloc_v2(kolo_cu_ptr_t *p, size_t bytes);
kolo_cu_result_t cuMemFree_v2(kolo_cu_ptr_t p);
kolo_cu_result_t cuIpcGetMemHandle(kolo_cu_ipc_t *handle, kolo_cu_ptr_t p);
kolo_cu_result_t cuIpcOpenMemHandle_v2(kolo_cu_ptr_t *p, kolo_cu_ipc_t handle, unsigned flags);
kolo_cu_result_t cuIpcCloseMemHandle(kolo_cu_ptr_t p);
kolo_cu_result_t cuMemAllocManaged(kolo_cu_ptr_t *p, size_t bytes, unsigned flags);
kolo_cu_result_t cuMemAllocAsync(kolo_cu_ptr_t *p, size_t bytes, kolo_cu_stream_t stream);
kolo_cu_result_t cuMemFreeAsync(kolo_cu_ptr_t p, kolo_cu_stream_t stream);
kolo_cu_result_t cuMemHostAlloc(void **p, size_t bytes, unsigned flags);
kolo_cu_result_t cuMemFreeHost(void *p);
kolo_cu_result_t cuMemHostGetDevicePointer_v2(kolo_cu_ptr_t *p, void *host, unsigned flags);
kolo_cu_result_t cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags);
kolo_cu_result_t cuMemHostUnregister(void *p);
kolo_cu_result_t cuMemsetD8Async(kolo_cu_ptr_t p, unsigned char value, size_t n, kolo_cu_stream_t stream);
kolo_cu_result_t cuMemcpyAsync(kolo_cu_ptr_t to, kolo_cu_ptr_t from, size_t bytes, kolo_cu_stream_t stream);
kolo_cu_result_t cuMemcpyBatchAsync_v2(kolo_cu_ptr_t *to, kolo_cu_ptr_t *from, size_t *bytes, size_t n,
                                       const kolo_cu_copy_how_t *how, const size_t *first_of_how, size_t nhow,
                                       kolo_cu_stream_t stream);

kolo_cu_result_t cuStreamCreate(kolo_cu_stream_t *stream, unsigned flags);
kolo_cu_result_t cuStreamCreateWithPriority(kolo_cu_stream_t *stream, unsigned flags, int priority);
kolo_cu_result_t cuCtxGetStreamPriorityRange(int *least, int *greatest);
kolo_cu_result_t cuStreamDestroy_v2(kolo_cu_stream_t stream);
kolo_cu_result_t cuStreamSynchronize(kolo_cu_stream_t stream);
kolo_cu_result_t cuStreamQuery(kolo_cu_stream_t stream);
kolo_cu_result_t cuStreamWaitEvent(kolo_cu_stream_t stream, kolo_cu_event_t event, unsigned flags);
kolo_cu_result_t cuStreamWaitValue32_v2(kolo_cu_stream_t stream, kolo_cu_ptr_t word, uint32_t value,
                                        unsigned flags);
kolo_cu_result_t cuStreamWriteValue32_v2(kolo_cu_stream_t stream, kolo_cu_ptr_t word, uint32_t value,
                                         unsigned flags);
kolo_cu_result_t cuLaunchHostFunc(kolo_cu_stream_t stream, void (*fn)(void *arg), void *arg);
kolo_cu_result_t cuStreamGetId(kolo_cu_stream_t stream, unsigned long long *id);
kolo_cu_result_t cuStreamGetCtx(kolo_cu_stream_t stream, kolo_cu_ctx_t *out);
kolo_cu_result_t cuStreamIsCapturing(kolo_cu_stream_t stream, int *status);
kolo_cu_result_t cuStreamBeginCapture_v2(kolo_cu_stream_t stream, int mode);
kolo_cu_result_t cuStreamEndCapture(kolo_cu_stream_t stream, kolo_cu_graph_t *graph);
kolo_cu_result_t cuStreamGetCaptureInfo_v2(kolo_cu_stream_t stream, int *status, unsigned long long *id,
                                           kolo_cu_graph_t *graph, const kolo_cu_node_t **nodes, size_t *n);
kolo_cu_result_t cuStreamUpdateCaptureDependencies(kolo_cu_stream_t stream, kolo_cu_node_t *nodes, size_t n,
                                                   unsigned flags);
kolo_cu_result_t cuThreadExchangeStreamCaptureMode(int *mode);
kolo_cu_result_t cuGraphAddEventRecordNode(kolo_cu_node_t *node, kolo_cu_graph_t graph,
                                           const kolo_cu_node_t *behind, size_t n, kolo_cu_event_t event);
kolo_cu_result_t cuUserObjectCreate(kolo_cu_object_t *object, void *p, void (*fn)(void *p), unsigned refs,
                                    unsigned flags);
kolo_cu_result_t cuUserObjectRelease(kolo_cu_object_t object, unsigned refs);
kolo_cu_result_t cuGraphRetainUserObject(kolo_cu_graph_t graph, kolo_cu_object_t object, unsigned refs,
                                         unsigned flags);
kolo_cu_result_t cuGraphGetNodes(kolo_cu_graph_t graph, kolo_cu_node_t *nodes, size_t *n);
kolo_cu_result_t cuGraphNodeGetType(kolo_cu_node_t node, int *type);
kolo_cu_result_t cuGraphMemAllocNodeGetParams(kolo_cu_node_t node, kolo_cu_get_node_t *get);
kolo_cu_result_t cuGraphAddDependencies(kolo_cu_graph_t graph, const kolo_cu_node_t *from, const kolo_cu_node_t *to,
                                        size_t n);
kolo_cu_result_t cuGraphRemoveDependencies(kolo_cu_graph_t graph, const kolo_cu_node_t *from,
                                           const kolo_cu_node_t *to, size_t n);
kolo_cu_result_t cuGraphInstantiateWithFlags(kolo_cu_graph_t *exec, kolo_cu_graph_t graph,
                                             unsigned long long flags);
kolo_cu_result_t cuGraphLaunch(kolo_cu_graph_t exec, kolo_cu_stream_t stream);
kolo_cu_result_t cuGraphExecDestroy(kolo_cu_graph_t exec);
kolo_cu_result_t cuGraphDestroy(kolo_cu_graph_t graph);
kolo_cu_result_t cuEventCreate(kolo_cu_event_t *event, unsigned flags);
kolo_cu_result_t cuEventRecord(kolo_cu_event_t event, kolo_cu_stream_t stream);
kolo_cu_result_t cuEventQuery(kolo_cu_event_t event);
kolo_cu_result_t cuEventSynchronize(kolo_cu_event_t event);
kolo_cu_result_t cuEventElapsedTime(float *ms, kolo_cu_event_t start, kolo_cu_event_t end);
kolo_cu_result_t cuEventElapsedTime_v2(float *ms, kolo_cu_event_t start, kolo_cu_event_t end);
kolo_cu_result_t cuEventDestroy_v2(kolo_cu_event_t event);

kolo_cu_result_t cuModuleLoadData(kolo_cu_module_t *module, const void *image);
kolo_cu_result_t cuModuleUnload(kolo_cu_module_t module);
kolo_cu_result_t cuModuleGetFunction(kolo_cu_func_t *function, kolo_cu_module_t module, const char *name);
kolo_cu_result_t cuLaunchKernel(kolo_cu_func_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                kolo_cu_stream_t stream, void **params, void **extra);
kolo_cu_result_t cuFuncGetAttribute(int *value, int attribute, kolo_cu_func_t function);
kolo_cu_result_t cuLaunchKernelEx(const kolo_cu_launch_t *launch, kolo_cu_func_t function, void **params,
                                  void **extra);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
