/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the CUDA driver's interface that Kolo uses, declared here so that the library builds where there is
 * no CUDA toolkit, and a table of its functions, filled from libcuda.so.1 when the first GPU communicator is made
 * (driver.c). Layouts and values are those of cuda.h since CUDA 11.3.
 */
#ifndef KOLO_MEM_CUDA_API_H
#define KOLO_MEM_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int kolo_cu_result_t;
typedef int kolo_cu_device_t;
typedef unsigned long long kolo_cu_ptr_t;
typedef unsigned long long kolo_cu_mem_t; /* CUmemGenericAllocationHandle */
typedef struct CUctx_st *kolo_cu_ctx_t;
typedef struct CUstream_st *kolo_cu_stream_t;
typedef struct CUevent_st *kolo_cu_event_t;
typedef struct CUmod_st *kolo_cu_module_t;
typedef struct CUfunc_st *kolo_cu_func_t;
typedef struct CUgraph_st *kolo_cu_graph_t;
typedef struct CUgraphNode_st *kolo_cu_node_t;
typedef struct CUuserObject_st *kolo_cu_object_t;

enum { KOLO_CU_GRAPH_NODE_GETS = 10 }; /* memory */
typedef struct {
    char pool[88]; /* what kind of memory it gets */
    const void *access;
    size_t naccess, bytes;
    kolo_cu_ptr_t at;
} kolo_cu_get_node_t;

enum {
    KOLO_CU_SUCCESS = 0,
    KOLO_CU_NOT_READY = 600,
    KOLO_CU_NO_DEVICE = 100,
    KOLO_CU_PEER_ALREADY = 704,

    KOLO_CU_ATTR_MULTIPROCESSORS = 16,
    KOLO_CU_ATTR_CC_MAJOR = 75,
    KOLO_CU_ATTR_CC_MINOR = 76,
    KOLO_CU_ATTR_VMM = 102,
    KOLO_CU_ATTR_POSIX_FD = 103,

    KOLO_CU_POINTER_MEMORY_TYPE = 2,
    KOLO_CU_POINTER_DEVICE_POINTER = 3,
    KOLO_CU_POINTER_MANAGED = 8,
    KOLO_CU_POINTER_BUFFER_ID = 7,
    KOLO_CU_POINTER_DEVICE = 9,
    KOLO_CU_POINTER_RANGE_START = 11,
    KOLO_CU_POINTER_RANGE_SIZE = 12,
    KOLO_CU_POINTER_LEGACY_IPC = 10,
    KOLO_CU_POINTER_HANDLE_TYPES = 14, /* 64 bits: what it can be exported as */
    KOLO_CU_MEMORY_HOST = 1,
    KOLO_CU_MEMORY_DEVICE = 2,

    KOLO_CU_LOCATION_DEVICE = 1,
    KOLO_CU_PINNED = 1,
    KOLO_CU_HANDLE_FD = 1,
    KOLO_CU_RANGE_DMA_BUF = 1,
    KOLO_CU_ACCESS_READ_WRITE = 3,
    KOLO_CU_GRANULARITY_RECOMMENDED = 1,

    KOLO_CU_WAIT_AT_LEAST = 0, /* cyclic: (int32_t)(word - value) >= 0 */
    KOLO_CU_WAIT_EQUAL = 1,
    KOLO_CU_WAIT_ANY_BIT = 2, /* (word & value) != 0 */

    KOLO_CU_HOST_PORTABLE = 1,
    KOLO_CU_HOST_MAPPED = 2,
    KOLO_CU_STREAM_NON_BLOCKING = 1,
    KOLO_CU_EVENT_NO_TIMING = 2,
    KOLO_CU_CAPTURE_NONE = 0,
    KOLO_CU_CAPTURE_ACTIVE = 1,
    KOLO_CU_CAPTURE_INVALIDATED = 2, /* it has failed, and takes nothing more */
    KOLO_CU_CAPTURE_ADD = 0,         /* of nodes that a stream's next one comes behind */
    KOLO_CU_CAPTURE_RELAXED = 2,
    KOLO_CU_OBJECT_NO_WAIT = 1, /* nobody waits in a call of the driver for its end */
    KOLO_CU_OBJECT_MOVE = 1,    /* the graph gets the reference that the caller had */
    KOLO_CU_EVENT_EXTERNAL = 1, /* of a wait in a stream that is captured: a node that waits, at each replay */
};

typedef struct {
    int type, id;
} kolo_cu_location_t;
typedef struct {
    int type, handles;
    kolo_cu_location_t location;
    void *windows;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} kolo_cu_mem_prop_t;
typedef struct {
    kolo_cu_location_t location;
    int flags;
} kolo_cu_access_t;
enum { KOLO_CU_COPY_IN_ORDER = 1, KOLO_CU_COPY_BESIDE_KERNELS = 1 };
typedef struct {
    int order;
    kolo_cu_location_t from, to; /* hints, of managed memory */
    unsigned flags;
} kolo_cu_copy_how_t;
typedef struct {
    char bytes[16];
} kolo_cu_uuid_t;

/* A handle of memory from cuMemAlloc() for other processes. */
typedef struct {
    char bytes[64];
} kolo_cu_ipc_t;
enum { KOLO_CU_IPC_PEER_ACCESS = 1 };

/* How a kernel is launched. */
enum { KOLO_CU_LAUNCH_EARLY = 6 }; /* beside the end of the kernel before it, which the kernel itself waits for */
typedef struct {
    int id;
    char pad[4];
    union {
        char room[64];
        int flag;
    } value;
} kolo_cu_launch_attribute_t;
typedef struct {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    kolo_cu_stream_t stream;
    kolo_cu_launch_attribute_t *attributes;
    unsigned count;
} kolo_cu_launch_t;
enum { KOLO_CU_FUNC_PTX_VERSION = 5 };
enum { KOLO_CU_P2P_ATOMICS = 3 };

/* Each member is the function of libcuda.so.1 whose name stands beside it in driver.c. */
typedef struct kolo_cuda_api {
    kolo_cu_result_t (*init)(unsigned flags);
    kolo_cu_result_t (*error_name)(kolo_cu_result_t error, const char **name);
    kolo_cu_result_t (*error_string)(kolo_cu_result_t error, const char **text);
    kolo_cu_result_t (*driver_version)(int *version);
    kolo_cu_result_t (*device_count)(int *count);
    kolo_cu_result_t (*device_get)(kolo_cu_device_t *device, int ordinal);
    kolo_cu_result_t (*device_name)(char *name, int bytes, kolo_cu_device_t device);
    kolo_cu_result_t (*device_uuid)(kolo_cu_uuid_t *uuid, kolo_cu_device_t device);
    kolo_cu_result_t (*device_bus_id)(char *text, int bytes, kolo_cu_device_t device);
    kolo_cu_result_t (*device_attribute)(int *value, int attribute, kolo_cu_device_t device);
    kolo_cu_result_t (*can_access_peer)(int *can, kolo_cu_device_t device, kolo_cu_device_t peer);
    kolo_cu_result_t (*enable_peer)(kolo_cu_ctx_t peer, unsigned flags);
    kolo_cu_result_t (*primary_retain)(kolo_cu_ctx_t *ctx, kolo_cu_device_t device);
    kolo_cu_result_t (*primary_release)(kolo_cu_device_t device);
    kolo_cu_result_t (*ctx_get)(kolo_cu_ctx_t *ctx);
    kolo_cu_result_t (*ctx_push)(kolo_cu_ctx_t ctx);
    kolo_cu_result_t (*ctx_pop)(kolo_cu_ctx_t *ctx);
    kolo_cu_result_t (*pointer_attributes)(unsigned n, int *attributes, void **data, kolo_cu_ptr_t p);
    /* Of virtual memory: the piece, while a pointer's attributes tell what was reserved around it. */
    kolo_cu_result_t (*mem_address_range)(kolo_cu_ptr_t *base, size_t *bytes, kolo_cu_ptr_t p);
    kolo_cu_result_t (*mem_granularity)(size_t *bytes, const kolo_cu_mem_prop_t *prop, int option);
    kolo_cu_result_t (*mem_create)(kolo_cu_mem_t *mem, size_t bytes, const kolo_cu_mem_prop_t *prop,
                                   unsigned long long flags);
    kolo_cu_result_t (*mem_release)(kolo_cu_mem_t mem);
    kolo_cu_result_t (*mem_reserve)(kolo_cu_ptr_t *p, size_t bytes, size_t align, kolo_cu_ptr_t at,
                                    unsigned long long flags);
    kolo_cu_result_t (*mem_unreserve)(kolo_cu_ptr_t p, size_t bytes);
    kolo_cu_result_t (*mem_map)(kolo_cu_ptr_t p, size_t bytes, size_t offset, kolo_cu_mem_t mem,
                                unsigned long long flags);
    kolo_cu_result_t (*mem_unmap)(kolo_cu_ptr_t p, size_t bytes);
    kolo_cu_result_t (*mem_access)(kolo_cu_ptr_t p, size_t bytes, const kolo_cu_access_t *who, size_t n);
    kolo_cu_result_t (*mem_get_access)(unsigned long long *flags, const kolo_cu_location_t *who, kolo_cu_ptr_t p);
    kolo_cu_result_t (*mem_export)(void *handle, kolo_cu_mem_t mem, int type, unsigned long long flags);
    kolo_cu_result_t (*mem_import)(kolo_cu_mem_t *mem, void *handle, int type);
    /* NULL before CUDA 11.7 */
    kolo_cu_result_t (*mem_range_handle)(void *handle, kolo_cu_ptr_t p, size_t bytes, int type,
                                         unsigned long long flags);
    kolo_cu_result_t (*ipc_get)(kolo_cu_ipc_t *handle, kolo_cu_ptr_t p);
    kolo_cu_result_t (*ipc_open)(kolo_cu_ptr_t *p, kolo_cu_ipc_t handle, unsigned flags);
    kolo_cu_result_t (*ipc_close)(kolo_cu_ptr_t p);
    kolo_cu_result_t (*host_alloc)(void **p, size_t bytes, unsigned flags);
    kolo_cu_result_t (*host_free)(void *p);
    kolo_cu_result_t (*host_device_pointer)(kolo_cu_ptr_t *p, void *host, unsigned flags);
    kolo_cu_result_t (*host_register)(void *p, size_t bytes, unsigned flags);
    kolo_cu_result_t (*host_unregister)(void *p);
    kolo_cu_result_t (*memset8)(kolo_cu_ptr_t p, unsigned char value, size_t n, kolo_cu_stream_t stream);
    kolo_cu_result_t (*memcpy_async)(kolo_cu_ptr_t to, kolo_cu_ptr_t from, size_t bytes, kolo_cu_stream_t stream);
    kolo_cu_result_t (*stream_create)(kolo_cu_stream_t *stream, unsigned flags);
    kolo_cu_result_t (*stream_create_priority)(kolo_cu_stream_t *stream, unsigned flags, int priority);
    kolo_cu_result_t (*stream_priorities)(int *least, int *greatest);
    kolo_cu_result_t (*stream_destroy)(kolo_cu_stream_t stream);
    kolo_cu_result_t (*stream_sync)(kolo_cu_stream_t stream);
    kolo_cu_result_t (*stream_query)(kolo_cu_stream_t stream);
    kolo_cu_result_t (*stream_wait)(kolo_cu_stream_t stream, kolo_cu_event_t event, unsigned flags);
    /* NULL before CUDA 11.7: a stream waits for, or writes, a word that the host has, too. */
    kolo_cu_result_t (*stream_wait_word)(kolo_cu_stream_t stream, kolo_cu_ptr_t word, uint32_t value,
                                         unsigned flags);
    kolo_cu_result_t (*stream_write_word)(kolo_cu_stream_t stream, kolo_cu_ptr_t word, uint32_t value,
                                          unsigned flags);
    /* NULL before CUDA 13: copies that may say how they are done. Not on the legacy default stream, nor in
     * captures. */
    kolo_cu_result_t (*memcpy_batch)(kolo_cu_ptr_t *to, kolo_cu_ptr_t *from, size_t *bytes, size_t n,
                                     kolo_cu_copy_how_t *how, size_t *first_of_how, size_t nhow,
                                     kolo_cu_stream_t stream);
    kolo_cu_result_t (*stream_host_call)(kolo_cu_stream_t stream, void (*fn)(void *arg), void *arg);
    kolo_cu_result_t (*stream_capturing)(kolo_cu_stream_t stream, int *status);
    kolo_cu_result_t (*event_create)(kolo_cu_event_t *event, unsigned flags);
    kolo_cu_result_t (*event_record)(kolo_cu_event_t event, kolo_cu_stream_t stream);
    kolo_cu_result_t (*event_query)(kolo_cu_event_t event);
    kolo_cu_result_t (*event_elapsed)(float *ms, kolo_cu_event_t from, kolo_cu_event_t to);
    kolo_cu_result_t (*event_destroy)(kolo_cu_event_t event);
    kolo_cu_result_t (*module_load)(kolo_cu_module_t *module, const void *image);
    kolo_cu_result_t (*module_unload)(kolo_cu_module_t module);
    kolo_cu_result_t (*module_function)(kolo_cu_func_t *function, kolo_cu_module_t module, const char *name);
    kolo_cu_result_t (*launch)(kolo_cu_func_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                               kolo_cu_stream_t stream, void **params, void **extra);
    kolo_cu_result_t (*func_attribute)(int *value, int attribute, kolo_cu_func_t function);
    /* NULL where the driver has none: the handle behind an address, held once more */
    kolo_cu_result_t (*mem_retain)(kolo_cu_mem_t *handle, void *p);
    /* NULL before CUDA 11.3: what a stream that is captured goes into, and its next node comes behind; more of
     * that; a node beside it that records an event; edges. */
    kolo_cu_result_t (*capture_info)(kolo_cu_stream_t stream, int *status, unsigned long long *id,
                                     kolo_cu_graph_t *graph, const kolo_cu_node_t **nodes, size_t *n);
    kolo_cu_result_t (*capture_depend)(kolo_cu_stream_t stream, kolo_cu_node_t *nodes, size_t n, unsigned flags);
    kolo_cu_result_t (*graph_add_record)(kolo_cu_node_t *node, kolo_cu_graph_t graph, const kolo_cu_node_t *behind,
                                         size_t n, kolo_cu_event_t event);
    kolo_cu_result_t (*graph_add_edges)(kolo_cu_graph_t graph, const kolo_cu_node_t *from, const kolo_cu_node_t *to,
                                        size_t n);
    kolo_cu_result_t (*graph_remove_edges)(kolo_cu_graph_t graph, const kolo_cu_node_t *from,
                                           const kolo_cu_node_t *to, size_t n);
    /* NULL before CUDA 11.3: something that graphs hold, with the copies that are launched. `end` is called when
     * none does any more and no replay runs, on a thread of the driver, of which it calls nothing. */
    kolo_cu_result_t (*object_create)(kolo_cu_object_t *object, void *p, void (*end)(void *p), unsigned refs,
                                      unsigned flags);
    kolo_cu_result_t (*object_release)(kolo_cu_object_t object, unsigned refs);
    kolo_cu_result_t (*graph_retain)(kolo_cu_graph_t graph, kolo_cu_object_t object, unsigned refs, unsigned flags);
    /* NULL before CUDA 11.4: the nodes of a graph, and which memory one of them gets. */
    kolo_cu_result_t (*graph_nodes)(kolo_cu_graph_t graph, kolo_cu_node_t *nodes, size_t *n);
    kolo_cu_result_t (*graph_node_type)(kolo_cu_node_t node, int *type);
    kolo_cu_result_t (*graph_node_get)(kolo_cu_node_t node, kolo_cu_get_node_t *get);
    /* NULL before CUDA 12: another number than any stream had before, while handles come again. */
    kolo_cu_result_t (*stream_id)(kolo_cu_stream_t stream, unsigned long long *id);
    kolo_cu_result_t (*stream_ctx)(kolo_cu_stream_t stream, kolo_cu_ctx_t *ctx); /* may be NULL, too */
    /* What this thread may do while a stream is captured; gives back what held. */
    kolo_cu_result_t (*capture_mode)(int *mode);
    kolo_cu_result_t (*mem_alloc)(kolo_cu_ptr_t *p, size_t bytes);
    kolo_cu_result_t (*mem_free)(kolo_cu_ptr_t p);
    /* Of libnccl.so.2 alone, which looks whether they are there. */
    kolo_cu_result_t (*ctx_device)(kolo_cu_device_t *device);
    kolo_cu_result_t (*ctx_sync)(void);
    /* KOLO_CU_P2P_ATOMICS and others; may be NULL */
    kolo_cu_result_t (*peer_attribute)(int *value, int attribute, kolo_cu_device_t device, kolo_cu_device_t peer);
    /* NULL before CUDA 11.8 */
    kolo_cu_result_t (*launch_ex)(const kolo_cu_launch_t *launch, kolo_cu_func_t function, void **params,
                                  void **extra);
} kolo_cuda_api_t;

#endif
