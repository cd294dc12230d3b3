/* SPDX-License-Identifier: Apache-2.0
 *
 * Which devices a process should use for which lane: those closest to the cores that it may use, by the topology's
 * distances; lanes go round them, and further rails of a connection take the next ones, the close ones first.
 */
#include "wire/net/conn.h"

#include "base/log.h"
#include "topo/topo.h"

#include <sched.h>
#include <string.h>

/* Returns the node of a device: by where it is plugged in, else by the name of its network interface. */
static int find_node(const kolo_topo_t *topo, const kolo_net_device_t *device)
{
    int node = device->bus_id[0] ? kolo_topo_find_bus(topo, device->bus_id) : -1;
    for (int i = 0; i < topo->count && node < 0; i++)
        if (topo->nodes[i].kind == KOLO_TOPO_NIC && strcmp(topo->nodes[i].netdev, device->name) == 0) node = i;
    return node;
}

/* Returns the distance from the closest of the cores; far away when the topology does not know one of both. */
static kolo_distance_t distance_from(const kolo_topo_t *topo, const cpu_set_t *cores, int node)
{
    kolo_distance_t best = KOLO_DISTANCE_NETWORK;
    for (int cpu = 0; cpu < topo->ncpus && cpu < CPU_SETSIZE && node >= 0; cpu++) {
        if (!CPU_ISSET(cpu, cores) || topo->core_of_cpu[cpu] < 0) continue;
        kolo_distance_t d = kolo_topo_distance(topo, topo->core_of_cpu[cpu], node);
        if (d < best) best = d;
    }
    return best;
}

void kolo_net_order(const kolo_topo_t *topo, const cpu_set_t *cores, const kolo_net_device_t *devices, int n,
                    int *order, int *nclose)
{
    kolo_distance_t distance[KOLO_NET_MAX_DEVICES];
    for (int i = 0; i < n; i++) distance[i] = distance_from(topo, cores, find_node(topo, &devices[i]));
    for (int i = 0; i < n; i++) { /* those as close keep their order: equal lanes meet on equal rails */
        int at = i;
        for (; at > 0 && distance[order[at - 1]] > distance[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    *nclose = 0;
    while (*nclose < n && distance[order[*nclose]] == distance[order[0]]) ++*nclose;
}

int kolo_net_device_for(const int *order, int n, int nclose, uint32_t lane, uint32_t rail)
{
    uint32_t close = (uint32_t)nclose, r = rail % (uint32_t)n;
    return r < close ? order[(lane + r) % close] : order[close + (lane + r - close) % ((uint32_t)n - close)];
}

void kolo_net_look_around(kolo_net_state_t *state)
{
    kolo_net_device_t devices[KOLO_NET_MAX_DEVICES];
    kolo_topo_t topo;
    cpu_set_t cores;
    for (int i = 0; i < state->ndevices; i++) {
        state->ops->properties(i, &devices[i]);
        state->devices[i].gbps = devices[i].gbps;
        state->order[i] = i;
    }
    state->nclose = state->ndevices;
    if (state->ndevices < 2 || sched_getaffinity(0, sizeof cores, &cores) != 0) return;
    if (kolo_topo_load(&topo) != KOLO_OK) {
        kolo_info("net", "devices are taken in the system's order: %s", kolo_error_text());
        return;
    }
    kolo_net_order(&topo, &cores, devices, state->ndevices, state->order, &state->nclose);
    kolo_topo_fini(&topo);
    kolo_info("net", "%d of %d devices are close to this process, the first is %s", state->nclose, state->ndevices,
              devices[state->order[0]].name);
}
