/* SPDX-License-Identifier: Apache-2.0
 *
 * The plug-in's beginning: parameters, which provider (KOLO_NET_PROVIDER, else verbs where it has a device, else
 * sockets), and its devices.
 */
#include "nccl_net/export.h"

#include "base/log.h"
#include "link/link.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kolo_nccl_logger_t log_line;
static const kolo_net_ops_t *provider;
static int ndevices;
static kolo_net_device_t devices[KOLO_NET_MAX_DEVICES];
static char paths[KOLO_NET_MAX_DEVICES][256];

const kolo_net_ops_t *kolo_export_provider(void)
{
    return provider;
}

int kolo_export_fail(kolo_status_t status)
{
    if (log_line) log_line(KOLO_NCCL_LOG_WARN, ~0ul, __FILE__, __LINE__, "Kolo: %s", kolo_error_text());
    switch (status) {
    case KOLO_ERR_INVALID_ARGUMENT:
        return KOLO_NCCL_INVALID_ARGUMENT;
    case KOLO_ERR_INVALID_USAGE:
        return KOLO_NCCL_INVALID_USAGE;
    case KOLO_ERR_REMOTE:
        return KOLO_NCCL_REMOTE_ERROR;
    case KOLO_ERR_NO_MEMORY:
    case KOLO_ERR_SYSTEM:
        return KOLO_NCCL_SYSTEM_ERROR;
    default:
        return KOLO_NCCL_INTERNAL_ERROR;
    }
}

/* Chooses what carries the data; a plug-in loads no plug-ins. */
static const kolo_net_ops_t *choose(const char **why)
{
    const char *name = kolo_net_provider_name();
    *why = "KOLO_NET_PROVIDER names no provider that was built in";
    for (int i = 0; kolo_net_providers[i]; i++) {
        const kolo_net_ops_t *ops = kolo_net_providers[i];
        if (ops == &kolo_net_plugin || (name && strcmp(name, ops->name) != 0)) continue;
        if (ops->count(why) > 0) return ops;
    }
    return NULL;
}

static kolo_status_t begin(void)
{
    const kolo_param_table_t *const tables[] = {&kolo_base_params, &kolo_link_params, &kolo_ib_params,
                                                &kolo_sockets_params, &kolo_net_params};
    const char *why = "";
    KOLO_TRY(kolo_params_load(tables, KOLO_COUNTOF(tables), NULL, NULL));
    KOLO_TRY(kolo_params_apply_base());
    const kolo_net_ops_t *ops = choose(&why);
    if (!ops) return kolo_fail(KOLO_ERR_UNSUPPORTED, "no network device: %s", why);
    ndevices = ops->count(&why);
    for (int i = 0; i < ndevices; i++) {
        char link[64];
        ops->properties(i, &devices[i]);
        snprintf(link, sizeof link, "/sys/bus/pci/devices/%s", devices[i].bus_id);
        char *path = devices[i].bus_id[0] ? realpath(link, NULL) : NULL;
        if (path) snprintf(paths[i], sizeof paths[i], "%s", path);
        free(path);
    }
    provider = ops;
    return KOLO_OK;
}

int kolo_export_init(kolo_nccl_logger_t logger)
{
    pthread_mutex_lock(&lock);
    log_line = logger;
    kolo_status_t status = provider ? KOLO_OK : begin();
    if (status == KOLO_OK && logger)
        logger(KOLO_NCCL_LOG_INFO, ~0ul, __FILE__, __LINE__, "Kolo: %d devices by %s", ndevices, provider->name);
    pthread_mutex_unlock(&lock);
    return status == KOLO_OK ? KOLO_NCCL_SUCCESS : kolo_export_fail(status);
}

int kolo_export_devices(int *count)
{
    *count = ndevices;
    return KOLO_NCCL_SUCCESS;
}

int kolo_export_device(int device, kolo_export_device_t *out)
{
    if (device < 0 || device >= ndevices) return KOLO_NCCL_INVALID_ARGUMENT;
    *out = (kolo_export_device_t){.name = devices[device].name,
                                  .pci_path = paths[device][0] ? paths[device] : NULL,
                                  .guid = (uint64_t)device,
                                  .mbps = devices[device].gbps > 0 ? (int)(devices[device].gbps * 8000) : 10000};
    return KOLO_NCCL_SUCCESS;
}
