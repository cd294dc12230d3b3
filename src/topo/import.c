/* SPDX-License-Identifier: Apache-2.0
 *
 * Second half of the import: raw objects to the tree of topo.h. Memory becomes a level of the tree (whatever stands
 * beside a NUMA node in the file hangs below it here), bridges that lead to a single device are looked through, and
 * every node learns its socket and NUMA node.
 */
#include "base/clock.h"
#include "topo/raw.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct { /* where the walk is */
    int parent, socket, numa, core;
} spot_t;

typedef struct {
    kolo_topo_t *topo;
    const kolo_raw_t *raw;
    int capacity;
    int seen[KOLO_TOPO_KIND_COUNT];
} walk_t;

static int add_node(walk_t *walk, kolo_topo_kind_t kind, const spot_t *spot, const kolo_raw_object_t *from)
{
    kolo_topo_t *topo = walk->topo; /* there is room: at most one node per object */
    kolo_topo_node_t *node = &topo->nodes[topo->count];
    *node = (kolo_topo_node_t){.kind = kind,
                               .parent = spot->parent,
                               .index = walk->seen[kind]++,
                               .os_index = from->os_index,
                               .numa = spot->numa,
                               .socket = spot->socket};
    if (kind == KOLO_TOPO_SOCKET) node->socket = node->index;
    if (kind == KOLO_TOPO_NUMA) node->numa = node->index;
    if (kind == KOLO_TOPO_NUMA) node->memory_bytes = from->bytes;
    if (kind == KOLO_TOPO_L3) node->cache_bytes = from->bytes;
    kolo_xml_copy(from->bus, node->bus_id, sizeof node->bus_id);
    kolo_xml_copy(from->label, node->name, sizeof node->name);
    if (!node->name[0]) snprintf(node->name, sizeof node->name, "%s %d", kolo_topo_kind_name(kind), node->index);
    return topo->count++;
}

static int add_device(walk_t *walk, const kolo_raw_object_t *from, const spot_t *spot)
{
    bool nic = from->device == KOLO_RAW_NIC;
    int index = add_node(walk, nic ? KOLO_TOPO_NIC : KOLO_TOPO_GPU, spot, from);
    kolo_topo_node_t *node = &walk->topo->nodes[index];
    node->pci_mbps = from->pci_mbps;
    node->link_mbps = from->link_mbps;
    if (from->type == KOLO_RAW_OSDEV) kolo_xml_copy(from->name, node->netdev, sizeof node->netdev);
    if (!from->label.bytes && from->pci_vendor)
        snprintf(node->name, sizeof node->name, "%04x:%04x", from->pci_vendor, from->pci_device);
    if (!nic) return index;
    if (node->netdev[0]) memcpy(node->name, node->netdev, sizeof node->netdev);
    bool verbs = false;
    for (int c = from->child; c >= 0; c = walk->raw->objects[c].next) {
        const kolo_raw_object_t *os = &walk->raw->objects[c];
        if (os->type != KOLO_RAW_OSDEV || (os->osdev_type != 2 && os->osdev_type != 3)) continue;
        node->link_mbps = KOLO_MAX(node->link_mbps, os->link_mbps);
        if (os->osdev_type == 2 && !node->netdev[0]) kolo_xml_copy(os->name, node->netdev, sizeof node->netdev);
        if (!verbs) kolo_xml_copy(os->name, node->name, sizeof node->name); /* the verbs name wins over eth0 */
        verbs |= os->osdev_type == 3;
    }
    return index;
}

/* Adds NUMA nodes attached to `object`, by way of memory-side caches too. The first is its cores' home. */
static void add_memory(walk_t *walk, const kolo_raw_object_t *object, const spot_t *outer, spot_t *inner)
{
    for (int c = object->child; c >= 0; c = walk->raw->objects[c].next) {
        const kolo_raw_object_t *child = &walk->raw->objects[c];
        if (child->type == KOLO_RAW_MEMCACHE) add_memory(walk, child, outer, inner);
        if (child->type != KOLO_RAW_NUMA) continue;
        int node = add_node(walk, KOLO_TOPO_NUMA, outer, child);
        if (inner->parent != outer->parent) continue;
        inner->parent = node;
        inner->numa = walk->topo->nodes[node].index;
    }
}

static void add_cpu(walk_t *walk, const kolo_raw_object_t *pu, const spot_t *spot)
{
    int core = spot->core >= 0 ? spot->core : add_node(walk, KOLO_TOPO_CORE, spot, pu);
    if (pu->os_index < 0 || pu->os_index >= walk->topo->ncpus) return;
    walk->topo->core_of_cpu[pu->os_index] = core;
}

/* Adds a tree, whose depth is bounded by the reader's. */
static void add_tree(walk_t *walk, int at, spot_t spot)
{
    const kolo_raw_object_t *object = &walk->raw->objects[at];
    switch (object->type) {
    case KOLO_RAW_MACHINE:
        spot.parent = add_node(walk, KOLO_TOPO_MACHINE, &spot, object);
        break;
    case KOLO_RAW_PACKAGE:
        spot.parent = add_node(walk, KOLO_TOPO_SOCKET, &spot, object);
        spot.socket = walk->topo->nodes[spot.parent].index;
        break;
    case KOLO_RAW_L3:
        spot.parent = add_node(walk, KOLO_TOPO_L3, &spot, object);
        break;
    case KOLO_RAW_CORE:
        spot.core = spot.parent = add_node(walk, KOLO_TOPO_CORE, &spot, object);
        break;
    case KOLO_RAW_PU:
        add_cpu(walk, object, &spot);
        return;
    case KOLO_RAW_BRIDGE:
        if (object->devices == 0) return;
        if (object->host_bridge)
            spot.parent = add_node(walk, KOLO_TOPO_PCI_ROOT, &spot, object);
        else if (object->branches > 1)
            spot.parent = add_node(walk, KOLO_TOPO_PCI_SWITCH, &spot, object);
        break;
    case KOLO_RAW_PCI:
    case KOLO_RAW_OSDEV:
        if (object->device != KOLO_RAW_NO_DEVICE) add_device(walk, object, &spot);
        return;
    case KOLO_RAW_NUMA:
    case KOLO_RAW_MEMCACHE: /* add_memory() of the parent took them */
        return;
    case KOLO_RAW_OTHER:
        break;
    }
    spot_t inner = spot;
    add_memory(walk, object, &spot, &inner);
    for (int c = object->child; c >= 0; c = walk->raw->objects[c].next) add_tree(walk, c, inner);
}

/* Puts everything into the only socket or NUMA node, even what the file hangs on the machine. */
static void fill_single(walk_t *walk)
{
    for (int i = 1; i < walk->topo->count; i++) {
        kolo_topo_node_t *node = &walk->topo->nodes[i];
        if (walk->seen[KOLO_TOPO_SOCKET] == 1) node->socket = 0;
        if (walk->seen[KOLO_TOPO_NUMA] == 1 && node->kind != KOLO_TOPO_SOCKET) node->numa = 0;
    }
}

static kolo_status_t build(kolo_topo_t *topo, const kolo_raw_t *raw)
{
    int ncpus = 0, pus = 0;
    for (int i = 0; i < raw->count; i++) {
        if (raw->objects[i].type != KOLO_RAW_PU) continue;
        pus++;
        if (raw->objects[i].os_index < KOLO_TOPO_MAX_CPUS) ncpus = KOLO_MAX(ncpus, raw->objects[i].os_index + 1);
    }
    if (pus == 0) return kolo_fail(KOLO_ERR_PROTOCOL, "topology XML %s: no PU in it", topo->source);
    topo->nodes = calloc((size_t)raw->count, sizeof *topo->nodes);
    topo->core_of_cpu = malloc((size_t)KOLO_MAX(ncpus, 1) * sizeof *topo->core_of_cpu);
    if (!topo->nodes || !topo->core_of_cpu)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "topology: no memory for %d nodes", raw->count);
    topo->ncpus = ncpus;
    for (int i = 0; i < ncpus; i++) topo->core_of_cpu[i] = -1;
    walk_t walk = {.topo = topo, .raw = raw};
    add_tree(&walk, 0, (spot_t){-1, -1, -1, -1});
    fill_single(&walk);
    return KOLO_OK;
}

kolo_status_t kolo_topo_import(kolo_topo_t *topo, const char *xml, size_t bytes, const char *origin)
{
    if (bytes > KOLO_TOPO_MAX_BYTES)
        return kolo_fail(KOLO_ERR_PROTOCOL, "topology XML %s: %zu bytes, more than the %d allowed", origin, bytes,
                         KOLO_TOPO_MAX_BYTES);
    kolo_xml_t reader;
    kolo_raw_t raw;
    kolo_topo_t made;
    memset(&made, 0, sizeof made);
    snprintf(made.source, sizeof made.source, "%s", origin);
    kolo_xml_init(&reader, xml, bytes, made.source);
    KOLO_TRY(kolo_topo_raw_read(&raw, &reader));
    kolo_status_t status = build(&made, &raw);
    kolo_topo_raw_fini(&raw);
    if (status != KOLO_OK) {
        kolo_topo_fini(&made);
        return status;
    }
    *topo = made;
    return KOLO_OK;
}

static kolo_status_t read_file(FILE *file, const char *path, char **data, size_t *bytes)
{
    struct stat stat;
    if (fstat(fileno(file), &stat) != 0 || !S_ISREG(stat.st_mode))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "topology file %s is not a regular file", path);
    if (stat.st_size > KOLO_TOPO_MAX_BYTES)
        return kolo_fail(KOLO_ERR_PROTOCOL, "topology file %s has %lld bytes, more than the %d allowed", path,
                         (long long)stat.st_size, KOLO_TOPO_MAX_BYTES);
    size_t room = (size_t)stat.st_size + 1;
    char *buffer = malloc(room);
    if (!buffer) return kolo_fail(KOLO_ERR_NO_MEMORY, "topology file %s: no memory for %zu bytes", path, room);
    *bytes = fread(buffer, 1, room, file);
    if (ferror(file)) {
        int err = errno;
        free(buffer);
        return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "topology file %s cannot be read", path);
    }
    *data = buffer;
    return KOLO_OK;
}

kolo_status_t kolo_topo_import_file(kolo_topo_t *topo, const char *path)
{
    char *data = NULL, origin[64];
    size_t bytes = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us up */
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (!file) {
        int err = errno;
        if (fd >= 0) close(fd);
        return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "topology file %s cannot be opened", path);
    }
    kolo_status_t status = read_file(file, path, &data, &bytes);
    fclose(file);
    KOLO_TRY(status);
    snprintf(origin, sizeof origin, "file %.58s", path);
    status = kolo_topo_import(topo, data, bytes, origin);
    free(data);
    return status;
}

void kolo_topo_fini(kolo_topo_t *topo)
{
    free(topo->nodes);
    free(topo->core_of_cpu);
    free(topo->links);
    memset(topo, 0, sizeof *topo);
}
