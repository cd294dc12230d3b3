/* SPDX-License-Identifier: Apache-2.0
 *
 * A fake of NVIDIA's management library: the GPUs whose bus ids FAKE_NVML_GPUS lists ("0000:13:00.0,..."), and
 * their NVLinks: FAKE_NVML_LINKS=switch: 18 of each to switches; =pairs: 4 between the first two, the next two, ...
 * FAKE_NVML_APART=1: none reaches another's memory.
 * FAKE_NVML_LOG names a file that gets a line for each start and end; between an end and a start it knows no GPUs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT  __attribute__((visibility("default")))
#define GPUS    16
#define MISSING 3 /* NVML_ERROR_NOT_SUPPORTED */
#define INVALID 2

typedef struct {
    char bus_id_short[16];
    unsigned domain, bus, device, vendor, subsystem;
    char bus_id[32];
} pci_t;
typedef struct gpu {
    char bus_id[32];
} gpu_t;

static gpu_t gpus[GPUS];
static unsigned n;

static int by_switch(void)
{
    const char *links = getenv("FAKE_NVML_LINKS");
    return links && strcmp(links, "switch") == 0;
}

static void note(const char *what)
{
    const char *path = getenv("FAKE_NVML_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    if (!log) return;
    fprintf(log, "%s\n", what);
    fclose(log);
}

EXPORT int nvmlInit_v2(void)
{
    note("start");
    const char *list = getenv("FAKE_NVML_GPUS");
    for (n = 0; list && *list && n < GPUS; n++) {
        size_t length = strcspn(list, ",");
        snprintf(gpus[n].bus_id, sizeof gpus[n].bus_id, "0000%.*s", (int)(length < 27 ? length : 27), list);
        list += length + (list[length] == ',');
    }
    return 0;
}

EXPORT int nvmlShutdown(void)
{
    note("end");
    n = 0;
    return 0;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = n;
    return 0;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t **device)
{
    if (index >= n) return INVALID;
    *device = &gpus[index];
    return 0;
}

EXPORT int nvmlDeviceGetPciInfo_v3(gpu_t *device, pci_t *pci)
{
    memset(pci, 0, sizeof *pci);
    memcpy(pci->bus_id, device->bus_id, sizeof pci->bus_id);
    return 0;
}

EXPORT int nvmlDeviceGetName(const gpu_t *device, char *name, unsigned bytes)
{
    snprintf(name, bytes, "Fake GPU %d", (int)(device - gpus));
    return 0;
}

EXPORT int nvmlDeviceGetNvLinkState(const gpu_t *device, unsigned link, int *active)
{
    unsigned i = (unsigned)(device - gpus);
    if (link >= 18) return INVALID;
    if (!getenv("FAKE_NVML_LINKS")) return MISSING;
    *active = by_switch() || (link < 4 && (i ^ 1) < n);
    return 0;
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(const gpu_t *device, unsigned link, pci_t *pci)
{
    unsigned i = (unsigned)(device - gpus);
    memset(pci, 0, sizeof *pci);
    if (by_switch())
        snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:FF:%02X.0", link % 4);
    else
        memcpy(pci->bus_id, gpus[i ^ 1].bus_id, sizeof pci->bus_id);
    return 0;
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(const gpu_t *device, unsigned link, int *type)
{
    (void)device;
    (void)link;
    *type = by_switch() ? 2 : 0;
    return 0;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, gpu_t **device)
{
    for (unsigned i = 0; i < n; i++) {
        if (!strstr(gpus[i].bus_id, bus_id)) continue;
        *device = &gpus[i];
        return 0;
    }
    return INVALID;
}

EXPORT int nvmlDeviceGetP2PStatus(const gpu_t *device, const gpu_t *peer, int what, int *status)
{
    if (what > 1) return INVALID;
    *status = device != peer && getenv("FAKE_NVML_APART") ? 1 : 0;
    return 0;
}
