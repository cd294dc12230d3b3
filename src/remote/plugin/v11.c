/* SPDX-License-Identifier: Apache-2.0
 *
 * Adaptor for plug-ins of version 11: a context goes before the calls that make something. The rest is as in 10.
 */
#include "remote/plugin/plugin.h"

typedef kolo_nccl_net_v11_t table_t;

static int init(kolo_plugin_t *plugin, kolo_nccl_logger_t logger)
{
    const table_t *t = plugin->table;
    kolo_nccl_config_t config = {.traffic_class = -1};
    return t->init(&plugin->context, 0, &config, logger, kolo_plugin_no_profile);
}

static int properties(const kolo_plugin_t *plugin, int device, kolo_plugin_properties_t *out)
{
    const table_t *t = plugin->table;
    kolo_nccl_properties_v11_t of = {0};
    int result = t->properties(device, &of);
    *out = KOLO_PLUGIN_PROPERTIES(of.v9);
    return result;
}

static int listen_on(const kolo_plugin_t *plugin, int device, void *handle, void **listener)
{
    const table_t *t = plugin->table;
    return t->listen(plugin->context, device, handle, listener);
}

static int connect_to(const kolo_plugin_t *plugin, int device, void *handle, void **sender)
{
    const table_t *t = plugin->table;
    void *offload = NULL; /* none is wanted */
    return t->connect(plugin->context, device, handle, sender, &offload);
}

const kolo_plugin_abi_t kolo_plugin_v11 = {
    .version = 11,
    .symbol = "ncclNetPlugin_v11",
    .table_bytes = sizeof(table_t),
    .init = init,
    .properties = properties,
    .listen = listen_on,
    .connect = connect_to,
    .isend = kolo_plugin_isend_10,
    .irecv = kolo_plugin_irecv_10,
};
