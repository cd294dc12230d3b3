/* SPDX-License-Identifier: Apache-2.0
 *
 * How far apart two places are: on the tree of one machine, and between the places of a search, which are all that
 * other hosts know of it. Both give the same classes.
 */
#include "topo/topo.h"

#include <stdlib.h>
#include <string.h>

static const char *const kind_names[KOLO_TOPO_KIND_COUNT] = {[KOLO_TOPO_MACHINE] = "machine",
                                                             [KOLO_TOPO_SOCKET] = "socket",
                                                             [KOLO_TOPO_NUMA] = "numa",
                                                             [KOLO_TOPO_L3] = "l3",
                                                             [KOLO_TOPO_CORE] = "core",
                                                             [KOLO_TOPO_PCI_ROOT] = "pci-root",
                                                             [KOLO_TOPO_PCI_SWITCH] = "pci-switch",
                                                             [KOLO_TOPO_GPU] = "gpu",
                                                             [KOLO_TOPO_NIC] = "nic"};

const char *kolo_topo_kind_name(kolo_topo_kind_t kind)
{
    return (unsigned)kind < KOLO_TOPO_KIND_COUNT ? kind_names[kind] : "?";
}

const char *kolo_topo_distance_name(kolo_distance_t distance)
{
    static const char *const names[] = {"self", "nvlink", "l3", "numa", "pci", "hostbridge", "socket", "network"};
    return (unsigned)distance < KOLO_COUNTOF(names) ? names[distance] : "?";
}

/* Returns the nearest node of `kind` that is `at` or above it; the topmost one with `top`. -1 if none. */
static int above(const kolo_topo_t *topo, int at, kolo_topo_kind_t kind, bool top)
{
    int found = -1;
    for (; at >= 0; at = topo->nodes[at].parent) {
        if (topo->nodes[at].kind != kind) continue;
        if (!top) return at;
        found = at;
    }
    return found;
}

kolo_topo_place_t kolo_topo_place(const kolo_topo_t *topo, int node, int host)
{
    const kolo_topo_node_t *n = &topo->nodes[node];
    bool device = n->kind == KOLO_TOPO_GPU || n->kind == KOLO_TOPO_NIC;
    kolo_topo_place_t place = {host, n->socket, n->numa, n->index, -1, -1};
    if (!device) {
        place.l3 = above(topo, node, KOLO_TOPO_L3, false);
        return place;
    }
    int top = above(topo, node, KOLO_TOPO_PCI_SWITCH, true);
    place.pci = top >= 0 ? top : node;
    return place;
}

kolo_distance_t kolo_topo_place_distance(const kolo_topo_place_t *a, const kolo_topo_place_t *b)
{
    if (a->node != b->node) return KOLO_DISTANCE_NETWORK;
    bool devices = a->pci >= 0 && b->pci >= 0;
    if (a->socket != b->socket) return KOLO_DISTANCE_SOCKET;
    if (devices) return a->pci == b->pci ? KOLO_DISTANCE_PCI : KOLO_DISTANCE_HOSTBRIDGE;
    if (a->numa != b->numa) return KOLO_DISTANCE_HOSTBRIDGE;
    return a->l3 >= 0 && a->l3 == b->l3 ? KOLO_DISTANCE_L3 : KOLO_DISTANCE_NUMA;
}

void kolo_topo_add_link(kolo_topo_t *topo, int a, int b)
{
    if (a >= b) return;
    for (int i = 0; i < topo->nlinks; i++) {
        if (topo->links[i].a != a || topo->links[i].b != b) continue;
        topo->links[i].count++;
        return;
    }
    kolo_topo_link_t *links = realloc(topo->links, (size_t)(topo->nlinks + 1) * sizeof *links);
    if (!links) return; /* the drawing is poorer by one */
    topo->links = links;
    topo->links[topo->nlinks++] = (kolo_topo_link_t){a, b, 1};
}

int kolo_topo_nvlinks(const kolo_topo_t *topo, int a, int b)
{
    int low = a < b ? a : b, high = a < b ? b : a;
    for (int i = 0; i < topo->nlinks; i++)
        if (topo->links[i].a == low && topo->links[i].b == high) return topo->links[i].count;
    int x = topo->nodes[a].switch_links, y = topo->nodes[b].switch_links;
    return x < y ? x : y;
}

/* Compares addresses on the bus: NVML writes eight digits of domain, Linux four. */
static bool same_bus(const char *a, const char *b)
{
    unsigned x[4], y[4];
    if (sscanf(a, "%x:%x:%x.%x", &x[0], &x[1], &x[2], &x[3]) != 4) return false;
    if (sscanf(b, "%x:%x:%x.%x", &y[0], &y[1], &y[2], &y[3]) != 4) return false;
    return memcmp(x, y, sizeof x) == 0;
}

int kolo_topo_find_bus(const kolo_topo_t *topo, const char *bus_id)
{
    for (int i = 0; i < topo->count; i++)
        if ((topo->nodes[i].kind == KOLO_TOPO_GPU || topo->nodes[i].kind == KOLO_TOPO_NIC) &&
            same_bus(topo->nodes[i].bus_id, bus_id))
            return i;
    return -1;
}

kolo_distance_t kolo_topo_distance(const kolo_topo_t *topo, int a, int b)
{
    if (a == b) return KOLO_DISTANCE_SELF;
    if (kolo_topo_nvlinks(topo, a, b) > 0) return KOLO_DISTANCE_NVLINK;
    kolo_topo_place_t pa = kolo_topo_place(topo, a, 0), pb = kolo_topo_place(topo, b, 0);
    return kolo_topo_place_distance(&pa, &pb);
}

int kolo_topo_find(const kolo_topo_t *topo, kolo_topo_kind_t kind, int index)
{
    for (int i = 0; i < topo->count; i++)
        if (topo->nodes[i].kind == kind && topo->nodes[i].index == index) return i;
    return -1;
}
