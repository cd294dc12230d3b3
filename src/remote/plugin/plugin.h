/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the plug-in provider: a network plug-in made for NCCL (KOLO_NET_PLUGIN), seen through one set of calls
 * whatever its version. An adaptor (v8.c to v11.c) turns a plug-in's table into these calls.
 *
 * A plug-in's connection has no offers that carry a word of ours, and its own way of joining network cards; so each
 * connection of the wire is one end at each side, and messages match by their order. The two ends may come up long
 * after set-up: what is not there yet is asked for again by every later call, until KOLO_NET_PLUGIN_TIMEOUT_MS.
 */
#ifndef KOLO_REMOTE_PLUGIN_PLUGIN_H
#define KOLO_REMOTE_PLUGIN_PLUGIN_H

#include "remote/net.h"
#include "remote/plugin/abi.h"

typedef struct {
    const char *name, *pci_path;
    int pointers, mbps, max_comms, max_receives, offload_kind;
} kolo_plugin_properties_t;

typedef struct kolo_plugin kolo_plugin_t;
typedef struct {
    int version;
    const char *symbol;
    size_t table_bytes;
    /* The calls that are not alike in all versions. What they return is the plug-in's own. */
    int (*init)(kolo_plugin_t *plugin, kolo_nccl_logger_t logger);
    int (*properties)(const kolo_plugin_t *plugin, int device, kolo_plugin_properties_t *out);
    int (*listen)(const kolo_plugin_t *plugin, int device, void *handle, void **listener);
    int (*connect)(const kolo_plugin_t *plugin, int device, void *handle, void **sender);
    int (*isend)(const kolo_plugin_t *plugin, void *sender, void *data, uint32_t bytes, void *memory,
                 void **request);
    int (*irecv)(const kolo_plugin_t *plugin, void *receiver, void *data, uint32_t bytes, void *memory,
                 void **request);
} kolo_plugin_abi_t;
extern const kolo_plugin_abi_t kolo_plugin_v8, kolo_plugin_v9, kolo_plugin_v10, kolo_plugin_v11;

struct kolo_plugin {
    const kolo_plugin_abi_t *abi;
    void *library, *table, *context;
    char file[128], name[64]; /* as it was asked for, as it calls itself */
    const char *own_name;
    kolo_nccl_devices_t devices;
    kolo_nccl_accept_t accept;
    kolo_nccl_register_t register_memory;
    kolo_nccl_deregister_t deregister;
    kolo_nccl_test_t test;
    kolo_nccl_close_t close_send, close_receive, close_listen;
    int ndevices;
    kolo_net_device_t device[KOLO_NET_MAX_DEVICES];
};
extern kolo_plugin_t kolo_plugin; /* once it is loaded */

/* Takes the place of a profiler, for version 10 and later: none listens. */
int kolo_plugin_no_profile(void **event, int type, void *parent, int64_t id, void *more);
/* Puts an earlier version's calls, as later ones have them, at the same place of the table (v8.c, v9.c, v10.c). */
int kolo_plugin_init_8(kolo_plugin_t *plugin, kolo_nccl_logger_t logger);
int kolo_plugin_listen_8(const kolo_plugin_t *plugin, int device, void *handle, void **listener);
int kolo_plugin_connect_8(const kolo_plugin_t *plugin, int device, void *handle, void **sender);
int kolo_plugin_properties_9(const kolo_plugin_t *plugin, int device, kolo_plugin_properties_t *out);
int kolo_plugin_isend_10(const kolo_plugin_t *plugin, void *sender, void *data, uint32_t bytes, void *memory,
                         void **request);
int kolo_plugin_irecv_10(const kolo_plugin_t *plugin, void *receiver, void *data, uint32_t bytes, void *memory,
                         void **request);
/* For the adaptors: what is in the properties of every version, though they are other types. */
#define KOLO_PLUGIN_PROPERTIES(p)                                                                                  \
    ((kolo_plugin_properties_t){.name = (p).name,                                                                  \
                                .pci_path = (p).pci_path,                                                          \
                                .pointers = (p).pointers,                                                          \
                                .mbps = (p).mbps,                                                                  \
                                .max_comms = (p).max_comms,                                                        \
                                .max_receives = (p).max_receives,                                                  \
                                .offload_kind = (p).offload_kind})

typedef struct {
    const char *file;
    int64_t timeout_ms;
} kolo_plugin_options_t;
extern kolo_plugin_options_t kolo_plugin_options;

/* ---- load.c ---- */
/* Loads and asks `file` what it is. All errors name it. */
kolo_status_t kolo_plugin_load(kolo_plugin_t *plugin, const char *file, int64_t timeout_ms);
/* Takes from its table the calls that are alike in all versions. */
void kolo_plugin_take(kolo_plugin_t *plugin);
/* Fails with "it returned 3 (internal error)" and the like. */
kolo_status_t kolo_plugin_fail(const kolo_plugin_t *plugin, int result, const char *call, const char *label);

/* ---- end.c ---- */
struct kolo_net_region {
    void *data;
    size_t bytes;
};
struct kolo_net_open {
    int device, timer_fd;
    uint64_t moved, moved_before; /* requests that are done, now and when a sleeper last asked */
    uint32_t wait_us;
};
typedef struct {
    void *request;
    uint64_t cookie;
    bool done;
    uint32_t bytes;
} kolo_plugin_request_t;
struct kolo_net_end {
    kolo_net_open_t *open;
    bool reads, revoked, named;
    uint32_t depth, message_bytes;
    _Alignas(64) uint8_t handle[KOLO_NCCL_HANDLE_BYTES]; /* plug-ins keep how far they are in it */
    void *listener, *comm;
    uint64_t limit_ns; /* of its set-up */
    const kolo_net_region_t *region;
    void *memory; /* what the plug-in knows the region as */
    uint64_t next, completed;
    kolo_plugin_request_t *requests;
    kolo_net_counts_t counts;
    char label[80];
};
kolo_status_t kolo_plugin_listen(kolo_net_open_t *open, const kolo_net_end_config_t *config,
                                 kolo_net_hello_t *hello, kolo_net_end_t **end);
kolo_status_t kolo_plugin_start(kolo_net_open_t *open, const kolo_net_end_config_t *config, kolo_net_hello_t *hello,
                                kolo_net_end_t **end);
kolo_status_t kolo_plugin_connect(kolo_net_end_t *end, const kolo_net_hello_t *peer);
void kolo_plugin_revoke(kolo_net_end_t *end);
void kolo_plugin_shut(kolo_net_end_t *end);
kolo_status_t kolo_plugin_isend(kolo_net_end_t *end, const void *data, uint32_t bytes,
                                const kolo_net_region_t *region, uint64_t cookie);
kolo_status_t kolo_plugin_irecv(kolo_net_end_t *end, void *data, uint32_t bytes, const kolo_net_region_t *region,
                                uint64_t cookie, uint64_t tag);
kolo_status_t kolo_plugin_push(kolo_net_end_t *end);
kolo_status_t kolo_plugin_test(kolo_net_end_t *end, kolo_net_done_t *done, int most, int *n);

#endif
