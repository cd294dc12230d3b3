/* SPDX-License-Identifier: Apache-2.0
 *
 * The binary interface of network plug-ins for NCCL, versions 8 to 11: what lies where in a plug-in's table and how
 * its functions are called. Written from the facts of the interface, for both directions: Kolo loads such plug-ins
 * (this folder) and is one (nccl_net). A plug-in is a shared object with a symbol ncclNetPlugin_vN that
 * is such a table. All functions return 0, or the number of an error.
 */
#ifndef KOLO_REMOTE_PLUGIN_ABI_H
#define KOLO_REMOTE_PLUGIN_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { /* what the functions return */
       KOLO_NCCL_SUCCESS = 0,
       KOLO_NCCL_SYSTEM_ERROR = 2,
       KOLO_NCCL_INTERNAL_ERROR = 3,
       KOLO_NCCL_INVALID_ARGUMENT = 4,
       KOLO_NCCL_INVALID_USAGE = 5,
       KOLO_NCCL_REMOTE_ERROR = 6
};
enum { KOLO_NCCL_PTR_HOST = 1, KOLO_NCCL_PTR_CUDA = 2, KOLO_NCCL_PTR_DMABUF = 4 };
enum { /* levels of the logger */
       KOLO_NCCL_LOG_VERSION = 1,
       KOLO_NCCL_LOG_WARN = 2,
       KOLO_NCCL_LOG_INFO = 3
};
#define KOLO_NCCL_HANDLE_BYTES 128 /* of what a listener gives to be found */
#define KOLO_NCCL_REQUESTS     32  /* under way on one connection, at most */
#define KOLO_NCCL_VDEVICES     4   /* devices that a virtual one joins, at most */
#define KOLO_NCCL_OLDEST       8
#define KOLO_NCCL_NEWEST       11

typedef void (*kolo_nccl_logger_t)(int level, unsigned long parts, const char *file, int line, const char *fmt,
                                   ...);
typedef int (*kolo_nccl_profiler_t)(void **event, int type, void *parent, int64_t plugin, void *more);

/* ---- properties of a device ---- */

typedef struct {
    int count;
    int devices[KOLO_NCCL_VDEVICES];
} kolo_nccl_vdevice_t;

typedef struct {
    char *name, *pci_path;
    uint64_t guid;
    int pointers; /* KOLO_NCCL_PTR_ */
    int global_registration;
    int mbps, port;
    float latency;
    int max_comms, max_receives;       /* connections; buffers of one receive */
    int offload_kind, offload_version; /* 0: the host drives it */
} kolo_nccl_properties_v8_t;

typedef struct {
    char *name, *pci_path;
    uint64_t guid;
    int pointers;
    int global_registration;
    int force_flush;
    int mbps, port;
    float latency;
    int max_comms, max_receives;
    int offload_kind, offload_version;
    kolo_nccl_vdevice_t vdevice;
    size_t max_p2p_bytes, max_collective_bytes;
} kolo_nccl_properties_v9_t; /* and 10 */

typedef struct {
    kolo_nccl_properties_v9_t v9;
    int max_multi_request;
} kolo_nccl_properties_v11_t;

typedef struct {       /* of a connection (10) or of all (11) */
    int traffic_class; /* -1: not said */
} kolo_nccl_config_t;

/* ---- tables ---- */

/* What is alike in all versions, behind connect() and behind irecv(). */
typedef int (*kolo_nccl_devices_t)(int *count);
typedef int (*kolo_nccl_accept_t)(void *listener, void **receiver, void **offload);
typedef int (*kolo_nccl_register_t)(void *comm, void *data, size_t bytes, int pointer, void **memory);
typedef int (*kolo_nccl_register_fd_t)(void *comm, void *data, size_t bytes, int pointer, uint64_t offset, int fd,
                                       void **memory);
typedef int (*kolo_nccl_deregister_t)(void *comm, void *memory);
typedef int (*kolo_nccl_flush_t)(void *receiver, int n, void **data, int *bytes, void **memory, void **request);
typedef int (*kolo_nccl_test_t)(void *request, int *done, int *bytes);
typedef int (*kolo_nccl_close_t)(void *comm);
typedef int (*kolo_nccl_device_memory_t)(void *comm, void *memory, void **on_device);
typedef int (*kolo_nccl_consumed_t)(void *receiver, int n, void *request);
typedef int (*kolo_nccl_make_vdevice_t)(int *device, kolo_nccl_vdevice_t *parts);

typedef struct {
    const char *name;
    int (*init)(kolo_nccl_logger_t logger);
    kolo_nccl_devices_t devices;
    int (*properties)(int device, kolo_nccl_properties_v8_t *out);
    int (*listen)(int device, void *handle, void **listener);
    int (*connect)(int device, void *handle, void **sender, void **offload);
    kolo_nccl_accept_t accept;
    kolo_nccl_register_t register_memory;
    kolo_nccl_register_fd_t register_fd;
    kolo_nccl_deregister_t deregister;
    int (*isend)(void *sender, void *data, int bytes, int tag, void *memory, void **request);
    int (*irecv)(void *receiver, int n, void **data, int *bytes, int *tags, void **memory, void **request);
    kolo_nccl_flush_t flush;
    kolo_nccl_test_t test;
    kolo_nccl_close_t close_send, close_receive, close_listen;
    kolo_nccl_device_memory_t device_memory;
    kolo_nccl_consumed_t consumed;
} kolo_nccl_net_v8_t;

typedef struct {
    const char *name;
    int (*init)(kolo_nccl_logger_t logger);
    kolo_nccl_devices_t devices;
    int (*properties)(int device, kolo_nccl_properties_v9_t *out);
    int (*listen)(int device, void *handle, void **listener);
    int (*connect)(int device, void *handle, void **sender, void **offload);
    kolo_nccl_accept_t accept;
    kolo_nccl_register_t register_memory;
    kolo_nccl_register_fd_t register_fd;
    kolo_nccl_deregister_t deregister;
    int (*isend)(void *sender, void *data, size_t bytes, int tag, void *memory, void **request);
    int (*irecv)(void *receiver, int n, void **data, size_t *bytes, int *tags, void **memory, void **request);
    kolo_nccl_flush_t flush;
    kolo_nccl_test_t test;
    kolo_nccl_close_t close_send, close_receive, close_listen;
    kolo_nccl_device_memory_t device_memory;
    kolo_nccl_consumed_t consumed;
    kolo_nccl_make_vdevice_t make_vdevice;
} kolo_nccl_net_v9_t;

typedef struct {
    const char *name;
    int (*init)(kolo_nccl_logger_t logger, kolo_nccl_profiler_t profiler);
    kolo_nccl_devices_t devices;
    int (*properties)(int device, kolo_nccl_properties_v9_t *out);
    int (*listen)(int device, void *handle, void **listener);
    int (*connect)(int device, kolo_nccl_config_t *config, void *handle, void **sender, void **offload);
    kolo_nccl_accept_t accept;
    kolo_nccl_register_t register_memory;
    kolo_nccl_register_fd_t register_fd;
    kolo_nccl_deregister_t deregister;
    int (*isend)(void *sender, void *data, size_t bytes, int tag, void *memory, void *profile, void **request);
    int (*irecv)(void *receiver, int n, void **data, size_t *bytes, int *tags, void **memory, void **profiles,
                 void **request);
    kolo_nccl_flush_t flush;
    kolo_nccl_test_t test;
    kolo_nccl_close_t close_send, close_receive, close_listen;
    kolo_nccl_device_memory_t device_memory;
    kolo_nccl_consumed_t consumed;
    kolo_nccl_make_vdevice_t make_vdevice;
} kolo_nccl_net_v10_t;

typedef struct {
    const char *name;
    int (*init)(void **context, uint64_t comm_id, kolo_nccl_config_t *config, kolo_nccl_logger_t logger,
                kolo_nccl_profiler_t profiler);
    kolo_nccl_devices_t devices;
    int (*properties)(int device, kolo_nccl_properties_v11_t *out);
    int (*listen)(void *context, int device, void *handle, void **listener);
    int (*connect)(void *context, int device, void *handle, void **sender, void **offload);
    kolo_nccl_accept_t accept;
    kolo_nccl_register_t register_memory;
    kolo_nccl_register_fd_t register_fd;
    kolo_nccl_deregister_t deregister;
    int (*isend)(void *sender, void *data, size_t bytes, int tag, void *memory, void *profile, void **request);
    int (*irecv)(void *receiver, int n, void **data, size_t *bytes, int *tags, void **memory, void **profiles,
                 void **request);
    kolo_nccl_flush_t flush;
    kolo_nccl_test_t test;
    kolo_nccl_close_t close_send, close_receive, close_listen;
    kolo_nccl_device_memory_t device_memory;
    kolo_nccl_consumed_t consumed;
    kolo_nccl_make_vdevice_t make_vdevice;
    int (*finalize)(void *context);
    int (*set_attributes)(void *context, void *attributes);
} kolo_nccl_net_v11_t;

#endif
