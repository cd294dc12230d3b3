/* SPDX-License-Identifier: Apache-2.0
 *
 * Adaptor for plug-ins of version 8: sizes are ints.
 */
#include "remote/plugin/plugin.h"

typedef kolo_nccl_net_v8_t table_t;

int kolo_plugin_init_8(kolo_plugin_t *plugin, kolo_nccl_logger_t logger)
{
    const table_t *t = plugin->table;
    return t->init(logger);
}

static int properties(const kolo_plugin_t *plugin, int device, kolo_plugin_properties_t *out)
{
    const table_t *t = plugin->table;
    kolo_nccl_properties_v8_t p = {0};
    int result = t->properties(device, &p);
    *out = KOLO_PLUGIN_PROPERTIES(p);
    return result;
}

int kolo_plugin_listen_8(const kolo_plugin_t *plugin, int device, void *handle, void **listener)
{
    const table_t *t = plugin->table;
    return t->listen(device, handle, listener);
}

int kolo_plugin_connect_8(const kolo_plugin_t *plugin, int device, void *handle, void **sender)
{
    const table_t *t = plugin->table;
    void *offload = NULL; /* none is wanted */
    return t->connect(device, handle, sender, &offload);
}

static int isend(const kolo_plugin_t *plugin, void *sender, void *data, uint32_t bytes, void *memory,
                 void **request)
{
    const table_t *t = plugin->table;
    return t->isend(sender, data, (int)bytes, 0, memory, request);
}

static int irecv(const kolo_plugin_t *plugin, void *receiver, void *data, uint32_t bytes, void *memory,
                 void **request)
{
    const table_t *t = plugin->table;
    int room = (int)bytes;
    int tag = 0;
    return t->irecv(receiver, 1, &data, &room, &tag, &memory, request);
}

const kolo_plugin_abi_t kolo_plugin_v8 = {
    .version = 8,
    .symbol = "ncclNetPlugin_v8",
    .table_bytes = sizeof(table_t),
    .init = kolo_plugin_init_8,
    .properties = properties,
    .listen = kolo_plugin_listen_8,
    .connect = kolo_plugin_connect_8,
    .isend = isend,
    .irecv = irecv,
};
