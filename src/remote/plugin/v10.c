/* SPDX-License-Identifier: Apache-2.0
 *
 * Adaptor for plug-ins of version 10: a profiler may listen, a connection has a traffic class.
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

static void take(kolo_plugin_t *plugin)
{
    const table_t *t = plugin->table;
    KOLO_PLUGIN_TAKE(plugin, t);
}

static int init(kolo_plugin_t *plugin, kolo_nccl_logger_t logger)
{
    const table_t *t = plugin->table;
    return t->init(logger, kolo_plugin_no_profile);
}

static int properties(const kolo_plugin_t *plugin, int device, kolo_plugin_properties_t *out)
{
    const table_t *t = plugin->table;
    kolo_nccl_properties_v9_t p = {0};
    int result = t->properties(device, &p);
    *out = KOLO_PLUGIN_PROPERTIES(p);
    return result;
}

static int listen_on(const kolo_plugin_t *plugin, int device, void *handle, void **listener)
{
    const table_t *t = plugin->table;
    return t->listen(device, handle, listener);
}

static int connect_to(const kolo_plugin_t *plugin, int device, void *handle, void **sender)
{
    const table_t *t = plugin->table;
    void *offload = NULL; /* none is wanted */
    kolo_nccl_config_t config = {.traffic_class = -1};
    return t->connect(device, &config, handle, sender, &offload);
}

static int isend(const kolo_plugin_t *plugin, void *sender, void *data, uint32_t bytes, void *memory,
                 void **request)
{
    const table_t *t = plugin->table;
    return t->isend(sender, data, bytes, 0, memory, NULL, request);
}

static int irecv(const kolo_plugin_t *plugin, void *receiver, void *data, uint32_t bytes, void *memory,
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
    .take = take,
    .init = init,
    .properties = properties,
    .listen = listen_on,
    .connect = connect_to,
    .isend = isend,
    .irecv = irecv,
};
