/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML, as far as it is needed: see nvml.h. Types and values are those of nvml.h since CUDA 11.
 */
#include "topo/nvml.h"

#include "base/log.h"
#include "topo/params.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

typedef struct nvml_device *nvml_device_t;
typedef struct {
    char bus_id_short[16];
    unsigned domain, bus, device, vendor, subsystem;
    char bus_id[32];
} nvml_pci_t;
enum { NVML_P2P_READ = 0, NVML_P2P_WRITE = 1, NVML_P2P_OK = 0, NVML_P2P_UNKNOWN = 6 };
enum { NVML_OK = 0, NVML_ENABLED = 1, NVML_LINKS = 18, NVML_REMOTE_GPU = 0, NVML_REMOTE_SWITCH = 2 };

static struct {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *count);
    int (*by_index)(unsigned index, nvml_device_t *device);
    int (*pci)(nvml_device_t device, nvml_pci_t *pci);
    int (*name)(nvml_device_t device, char *name, unsigned bytes);
    int (*link_state)(nvml_device_t device, unsigned link, int *active);
    int (*link_remote)(nvml_device_t device, unsigned link, nvml_pci_t *pci);
    int (*link_remote_type)(nvml_device_t device, unsigned link, int *type); /* NULL in old libraries, as these: */
    int (*by_bus)(const char *bus_id, nvml_device_t *device);
    int (*peers)(nvml_device_t device, nvml_device_t peer, int what, int *status);
} nvml;

static const struct {
    const char *name;
    void **to;
    bool newer;
} functions[] = {
    {"nvmlInit_v2", (void **)&nvml.init, false},
    {"nvmlShutdown", (void **)&nvml.shutdown, false},
    {"nvmlDeviceGetCount_v2", (void **)&nvml.count, false},
    {"nvmlDeviceGetHandleByIndex_v2", (void **)&nvml.by_index, false},
    {"nvmlDeviceGetPciInfo_v3", (void **)&nvml.pci, false},
    {"nvmlDeviceGetName", (void **)&nvml.name, false},
    {"nvmlDeviceGetNvLinkState", (void **)&nvml.link_state, false},
    {"nvmlDeviceGetNvLinkRemotePciInfo_v2", (void **)&nvml.link_remote, false},
    {"nvmlDeviceGetNvLinkRemoteDeviceType", (void **)&nvml.link_remote_type, true},
    {"nvmlDeviceGetHandleByPciBusId_v2", (void **)&nvml.by_bus, true},
    {"nvmlDeviceGetP2PStatus", (void **)&nvml.peers, true},
};

static bool complete;

static void load(void)
{
    void *lib = dlopen(kolo_topo_param_nvml, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        kolo_debug("topo", "no NVML: %s", dlerror());
        return;
    }
    for (size_t i = 0; i < KOLO_COUNTOF(functions); i++) {
        *functions[i].to = dlsym(lib, functions[i].name);
        if (*functions[i].to || functions[i].newer) continue;
        kolo_info("topo", "NVLinks are not looked at: %s has no %s", kolo_topo_param_nvml, functions[i].name);
        return;
    }
    complete = true;
}

/* Starts NVML, which counts its starts; after as many ends it closes the devices' descriptors. */
static bool start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (!complete) return false;
    int r = nvml.init();
    if (r != NVML_OK) kolo_info("topo", "NVLinks are not looked at: NVML does not start (error %d)", r);
    return r == NVML_OK;
}

/* Adds a link, which ends at a GPU, at a switch, which all GPUs of the machine hang on, or at something else. */
static void add_link(kolo_topo_t *topo, int gpu, nvml_device_t device, unsigned link)
{
    nvml_pci_t remote;
    int active = 0, type = -1;
    if (nvml.link_state(device, link, &active) != NVML_OK || active != NVML_ENABLED) return;
    memset(&remote, 0, sizeof remote);
    if (nvml.link_remote(device, link, &remote) != NVML_OK) return;
    remote.bus_id[sizeof remote.bus_id - 1] = 0;
    int peer = kolo_topo_find_bus(topo, remote.bus_id);
    if (nvml.link_remote_type && nvml.link_remote_type(device, link, &type) != NVML_OK) type = -1;
    if (peer >= 0)
        kolo_topo_add_link(topo, gpu, peer);
    else if (type == NVML_REMOTE_SWITCH)
        topo->nodes[gpu].switch_links++;
}

static void add_devices(kolo_topo_t *topo)
{
    unsigned count = 0;
    if (nvml.count(&count) != NVML_OK) return;
    for (unsigned i = 0; i < count; i++) {
        nvml_device_t device;
        nvml_pci_t pci;
        memset(&pci, 0, sizeof pci);
        if (nvml.by_index(i, &device) != NVML_OK || nvml.pci(device, &pci) != NVML_OK) continue;
        pci.bus_id[sizeof pci.bus_id - 1] = 0;
        int gpu = kolo_topo_find_bus(topo, pci.bus_id);
        if (gpu < 0) continue;
        char name[96] = "";
        if (nvml.name(device, name, sizeof name - 1) == NVML_OK && *name)
            snprintf(topo->nodes[gpu].name, sizeof topo->nodes[gpu].name, "%.47s", name);
        for (unsigned link = 0; link < NVML_LINKS; link++) add_link(topo, gpu, device, link);
    }
}

void kolo_topo_nvml_fill(kolo_topo_t *topo)
{
    if (kolo_topo_find(topo, KOLO_TOPO_GPU, 0) < 0 || !start()) return;
    add_devices(topo);
    nvml.shutdown();
}

int kolo_topo_nvml_reaches(const char *a, const char *b)
{
    nvml_device_t from, to;
    int answer = -1;
    if (!start()) return -1;
    if (nvml.by_bus && nvml.peers && nvml.by_bus(a, &from) == NVML_OK && nvml.by_bus(b, &to) == NVML_OK) {
        int reads = NVML_P2P_UNKNOWN, writes = NVML_P2P_UNKNOWN;
        bool said = nvml.peers(from, to, NVML_P2P_READ, &reads) == NVML_OK &&
                    nvml.peers(from, to, NVML_P2P_WRITE, &writes) == NVML_OK;
        if (said && reads != NVML_P2P_UNKNOWN && writes != NVML_P2P_UNKNOWN)
            answer = reads == NVML_P2P_OK && writes == NVML_P2P_OK;
    }
    nvml.shutdown();
    return answer;
}
