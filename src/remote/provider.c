/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of providers, and which one this process uses. A new provider is a folder and a row here.
 */
#include "remote/net.h"

#include "base/clock.h"
#include "link/link.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

const kolo_net_ops_t *const kolo_net_providers[] = {
    &kolo_net_plugin,
#if defined(KOLO_HAVE_VERBS)
    &kolo_net_verbs,
#endif
    &kolo_net_sockets,
    NULL,
};

static const char *provider_name;
static const kolo_param_t rows[] = {
    {"KOLO_NET_PROVIDER", KOLO_PARAM_STR, NULL, 0, 0, NULL, false,
     "what the net wire works by: verbs, sockets or plugin (KOLO_NET_PLUGIN); unset: the first of plugin and verbs "
     "that has a device",
     &provider_name},
};
const kolo_param_table_t kolo_net_params = {"net provider", rows, KOLO_COUNTOF(rows), NULL};

const char *kolo_net_provider_name(void)
{
    return provider_name;
}

const char *kolo_net_card_name(const kolo_net_ops_t *ops)
{
    return ops->card_name ? ops->card_name : ops->name;
}

uint32_t kolo_net_provider_id(const kolo_net_ops_t *ops)
{
    const char *name = kolo_net_card_name(ops);
    return (uint32_t)kolo_hash_bytes(KOLO_HASH_INIT + ops->version, name, strlen(name));
}

void kolo_net_bus_of_path(kolo_net_device_t *device, const char *path)
{
    const char *slash = strrchr(path, '/'), *bus = slash ? slash + 1 : "";
    if (strlen(bus) < sizeof device->bus_id) snprintf(device->bus_id, sizeof device->bus_id, "%s", bus);
}

void kolo_net_bus_of_link(kolo_net_device_t *device, const char *link)
{
    char path[256];
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return;
    path[n] = '\0';
    kolo_net_bus_of_path(device, path);
}

static bool is_wanted(const kolo_net_ops_t *ops, const char *name)
{
    return name ? strcmp(name, ops->name) == 0 : !ops->only_if_named;
}

const kolo_net_ops_t *kolo_net_provider(const char **why, bool *demanded)
{
    const char *name = kolo_net_provider_name();
    *demanded = name != NULL;
    *why = "KOLO_TCP_SECURITY does not protect what network cards send";
    if (kolo_seal_offer() != KOLO_SECURITY_NONE) return NULL;
    *why = name ? "no provider of the name in KOLO_NET_PROVIDER was built in" : "no provider was built in";
    for (int i = 0; kolo_net_providers[i]; i++) {
        if (!is_wanted(kolo_net_providers[i], name)) continue;
        int n = kolo_net_providers[i]->count(why);
        if (n > 0) return kolo_net_providers[i];
        if (n < 0) *demanded = true;
        if (n < 0) return NULL;
    }
    return NULL;
}

bool kolo_net_has(const char *name, const char **why)
{
    *why = "it was not built in";
    for (int i = 0; kolo_net_providers[i]; i++)
        if (strcmp(name, kolo_net_providers[i]->name) == 0) return kolo_net_providers[i]->count(why) > 0;
    return false;
}
