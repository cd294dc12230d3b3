/* SPDX-License-Identifier: Apache-2.0
 *
 * The plug-in's tables, one for each version of the interface, and what is different in each.
 */
#include "nccl_net/export.h"

#define EXPORTED __attribute__((visibility("default")))

/* The functions of a table that no version has changed. */
#define SAME_IN_ALL                                                                                                \
    .name = "Kolo", .devices = kolo_export_devices, .accept = kolo_export_accept,                                  \
    .register_memory = kolo_export_register, .deregister = kolo_export_deregister, .flush = kolo_export_flush,     \
    .test = kolo_export_test, .close_send = kolo_export_close, .close_receive = kolo_export_close,                 \
    .close_listen = kolo_export_close_listener

/* ---- properties ---- */

#define PROPERTIES(d)                                                                                              \
    .name = (d).name, .pci_path = (d).pci_path, .guid = (d).guid, .pointers = KOLO_NCCL_PTR_HOST,                  \
    .mbps = (d).mbps, .port = (d).port, .max_comms = KOLO_EXPORT_CONNECTIONS, .max_receives = 1

static int properties8(int device, kolo_nccl_properties_v8_t *out)
{
    kolo_export_device_t d;
    int result = kolo_export_device(device, &d);
    if (result == KOLO_NCCL_SUCCESS) *out = (kolo_nccl_properties_v8_t){PROPERTIES(d)};
    return result;
}

static int properties9(int device, kolo_nccl_properties_v9_t *out)
{
    kolo_export_device_t d;
    int result = kolo_export_device(device, &d);
    if (result == KOLO_NCCL_SUCCESS)
        *out = (kolo_nccl_properties_v9_t){PROPERTIES(d), .vdevice = {.count = 1, .devices = {device}},
                                           .max_p2p_bytes = KOLO_EXPORT_MESSAGE_BYTES,
                                           .max_collective_bytes = KOLO_EXPORT_MESSAGE_BYTES};
    return result;
}

static int properties11(int device, kolo_nccl_properties_v11_t *out)
{
    out->max_multi_request = 1;
    return properties9(device, &out->v9);
}

/* ---- 8 ---- */

static int connect8(int device, void *handle, void **sender, void **offload)
{
    (void)offload;
    return kolo_export_connect(device, handle, sender);
}

static int isend8(void *sender, void *data, int bytes, int tag, void *memory, void **request)
{
    return bytes < 0 ? KOLO_NCCL_INVALID_ARGUMENT
                     : kolo_export_isend(sender, data, (size_t)bytes, tag, memory, request);
}

static int irecv8(void *receiver, int n, void **data, int *bytes, int *tags, void **memory, void **request)
{
    return bytes[0] < 0 ? KOLO_NCCL_INVALID_ARGUMENT
                        : kolo_export_irecv(receiver, n, data[0], (size_t)bytes[0], tags[0], memory[0], request);
}

extern const kolo_nccl_net_v8_t ncclNetPlugin_v8;
EXPORTED const kolo_nccl_net_v8_t ncclNetPlugin_v8 = {
    SAME_IN_ALL,         .init = kolo_export_init, .properties = properties8, .listen = kolo_export_listen,
    .connect = connect8, .isend = isend8,          .irecv = irecv8,
};

/* ---- 9 ---- */

static int irecv9(void *receiver, int n, void **data, size_t *bytes, int *tags, void **memory, void **request)
{
    return kolo_export_irecv(receiver, n, data[0], bytes[0], tags[0], memory[0], request);
}

extern const kolo_nccl_net_v9_t ncclNetPlugin_v9;
EXPORTED const kolo_nccl_net_v9_t ncclNetPlugin_v9 = {
    SAME_IN_ALL,         .init = kolo_export_init,   .properties = properties9, .listen = kolo_export_listen,
    .connect = connect8, .isend = kolo_export_isend, .irecv = irecv9,
};

/* ---- 10 ---- */

static int init10(kolo_nccl_logger_t logger, kolo_nccl_profiler_t profiler)
{
    (void)profiler;
    return kolo_export_init(logger);
}

static int connect10(int device, kolo_nccl_config_t *config, void *handle, void **sender, void **offload)
{
    (void)config;
    (void)offload;
    return kolo_export_connect(device, handle, sender);
}

static int isend10(void *sender, void *data, size_t bytes, int tag, void *memory, void *profile, void **request)
{
    (void)profile;
    return kolo_export_isend(sender, data, bytes, tag, memory, request);
}

static int irecv10(void *receiver, int n, void **data, size_t *bytes, int *tags, void **memory, void **profiles,
                   void **request)
{
    (void)profiles;
    return kolo_export_irecv(receiver, n, data[0], bytes[0], tags[0], memory[0], request);
}

extern const kolo_nccl_net_v10_t ncclNetPlugin_v10;
EXPORTED const kolo_nccl_net_v10_t ncclNetPlugin_v10 = {
    SAME_IN_ALL,          .init = init10,   .properties = properties9, .listen = kolo_export_listen,
    .connect = connect10, .isend = isend10, .irecv = irecv10,
};

/* ---- 11 ---- */

static int init11(void **context, uint64_t comm_id, kolo_nccl_config_t *config, kolo_nccl_logger_t logger,
                  kolo_nccl_profiler_t profiler)
{
    static int all; /* connections have nothing in common */
    (void)comm_id;
    (void)config;
    (void)profiler;
    *context = &all;
    return kolo_export_init(logger);
}

static int listen11(void *context, int device, void *handle, void **listener)
{
    (void)context;
    return kolo_export_listen(device, handle, listener);
}

static int connect11(void *context, int device, void *handle, void **sender, void **offload)
{
    (void)context;
    (void)offload;
    return kolo_export_connect(device, handle, sender);
}

static int finalize(void *context)
{
    (void)context;
    return KOLO_NCCL_SUCCESS;
}

static int set_attributes(void *context, void *attributes)
{
    (void)context;
    (void)attributes;
    return KOLO_NCCL_SUCCESS;
}

extern const kolo_nccl_net_v11_t ncclNetPlugin_v11;
EXPORTED const kolo_nccl_net_v11_t ncclNetPlugin_v11 = {
    SAME_IN_ALL,        .init = init11,       .properties = properties11,
    .listen = listen11, .connect = connect11, .isend = isend10,
    .irecv = irecv10,   .finalize = finalize, .set_attributes = set_attributes,
};
