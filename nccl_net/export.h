/* SPDX-License-Identifier: Apache-2.0
 *
 * Kolo as a network plug-in for NCCL (libnccl-net-kolo.so): its providers behind the interface that NCCL loads
 * (plugin/abi.h). The calls are alike for all versions; tables.c gives each version its own table.
 *
 * A connection begins with a socket over which both ends exchange their hellos, each with a proof that it knows the
 * key in the listener's handle, and at the end of which the death of the peer's process is seen.
 */
#ifndef KOLO_NCCL_NET_EXPORT_H
#define KOLO_NCCL_NET_EXPORT_H

#include "remote/plugin/abi.h"

typedef struct { /* properties of a device, for all versions */
    char *name, *pci_path;
    uint64_t guid;
    int mbps, port;
} kolo_export_device_t;

#define KOLO_EXPORT_MESSAGE_BYTES (1u << 30)
#define KOLO_EXPORT_CONNECTIONS   65536

int kolo_export_init(kolo_nccl_logger_t logger);
int kolo_export_devices(int *count);
int kolo_export_device(int device, kolo_export_device_t *out);
int kolo_export_listen(int device, void *handle, void **listener);
int kolo_export_connect(int device, void *handle, void **sender);
int kolo_export_accept(void *listener, void **receiver, void **offload);
int kolo_export_register(void *comm, void *data, size_t bytes, int pointer, void **memory);
int kolo_export_deregister(void *comm, void *memory);
int kolo_export_isend(void *sender, void *data, size_t bytes, int tag, void *memory, void **request);
int kolo_export_irecv(void *receiver, int n, void *data, size_t bytes, int tag, void *memory, void **request);
int kolo_export_flush(void *receiver, int n, void **data, int *bytes, void **memory, void **request);
int kolo_export_test(void *request, int *done, int *bytes);
int kolo_export_close(void *comm);
int kolo_export_close_listener(void *listener);

/* ---- inside ---- */
#include "remote/net.h"

/* Logs why, and gives the number for it. */
int kolo_export_fail(kolo_status_t status);
const kolo_net_ops_t *kolo_export_provider(void);

#endif
