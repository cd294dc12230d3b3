/* SPDX-License-Identifier: Apache-2.0
 *
 * Adaptor for plug-ins of version 9: sizes are bytes of any number, devices may be joined. The rest is as in 8.
 */
#include "remote/plugin/plugin.h"

typedef kolo_nccl_net_v9_t table_t;

int kolo_plugin_properties_9(const kolo_plugin_t *plugin, int device, kolo_plugin_properties_t *out)
{
    const table_t *t = plugin->table;
    kolo_nccl_properties_v9_t p = {0};
    int result = t->properties(device, &p);
    *out = KOLO_PLUGIN_PROPERTIES(p);
    return result;
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
    .init = kolo_plugin_init_8,
    .properties = kolo_plugin_properties_9,
    .listen = kolo_plugin_listen_8,
    .connect = kolo_plugin_connect_8,
    .isend = isend,
    .irecv = irecv,
};
