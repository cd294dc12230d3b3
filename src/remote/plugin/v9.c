/* SPDX-License-Identifier: Apache-2.0
 *
 * Adaptor for plug-ins of version 9: sizes are bytes of any number, devices may be joined.
 */
#include "remote/plugin/plugin.h"

typedef kolo_nccl_net_v9_t table_t;

static void take(kolo_plugin_t *plugin)
{
    const table_t *t = plugin->table;
    KOLO_PLUGIN_TAKE(plugin, t);
}

static int init(kolo_plugin_t *plugin, kolo_nccl_logger_t logger)
{
    const table_t *t = plugin->table;
    return t->init(logger);
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
    return t->connect(device, handle, sender, &offload);
}

static int isend(const kolo_plugin_t *plugin, void *sender, void *data, uint32_t bytes, void *memory,
                 void **request)
{
    const table_t *t = plugin->table;
    return t->isend(sender, data, bytes, 0, memory, request);
}

static int irecv(const kolo_plugin_t *plugin, void *receiver, void *data, uint32_t bytes, void *memory,
                 void **request)
{
    const table_t *t = plugin->table;
    size_t room = bytes;
    int tag = 0;
    return t->irecv(receiver, 1, &data, &room, &tag, &memory, request);
}

const kolo_plugin_abi_t kolo_plugin_v9 = {
    .version = 9,
    .symbol = "ncclNetPlugin_v9",
    .table_bytes = sizeof(table_t),
    .take = take,
    .init = init,
    .properties = properties,
    .listen = listen_on,
    .connect = connect_to,
    .isend = isend,
    .irecv = irecv,
};
