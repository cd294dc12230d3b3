/* SPDX-License-Identifier: Apache-2.0
 *
 * Adaptor for plug-ins of version 10: a profiler may listen, a connection has a traffic class. The rest is as in 9.
 */
#include "remote/plugin/plugin.h"

typedef kolo_nccl_net_v10_t table_t;

int kolo_plugin_no_profile(void **event, int type, void *parent, int64_t id, void *more)
{
    (void)type;
    (void)parent;
    (void)id;
    (void)more;
    if (event) *event = NULL;
    return KOLO_NCCL_SUCCESS;
}

static int init(kolo_plugin_t *plugin, kolo_nccl_logger_t logger)
{
    const table_t *t = plugin->table;
    return t->init(logger, kolo_plugin_no_profile);
}

static int connect_to(const kolo_plugin_t *plugin, int device, void *handle, void **sender)
{
    const table_t *t = plugin->table;
    void *offload = NULL; /* none is wanted */
    kolo_nccl_config_t config = {.traffic_class = -1};
    return t->connect(device, &config, handle, sender, &offload);
}

int kolo_plugin_isend_10(const kolo_plugin_t *plugin, void *sender, void *data, uint32_t bytes, void *memory,
                         void **request)
{
    const table_t *t = plugin->table;
    return t->isend(sender, data, bytes, 0, memory, NULL, request);
}

int kolo_plugin_irecv_10(const kolo_plugin_t *plugin, void *receiver, void *data, uint32_t bytes, void *memory,
                         void **request)
{
    const table_t *t = plugin->table;
    size_t room = bytes;
    int tag = 0;
    void *profile = NULL;
    return t->irecv(receiver, 1, &data, &room, &tag, &memory, &profile, request);
}

const kolo_plugin_abi_t kolo_plugin_v10 = {
    .version = 10,
    .symbol = "ncclNetPlugin_v10",
    .table_bytes = sizeof(table_t),
    .init = init,
    .properties = kolo_plugin_properties_9,
    .listen = kolo_plugin_listen_8,
    .connect = connect_to,
    .isend = kolo_plugin_isend_10,
    .irecv = kolo_plugin_irecv_10,
};
