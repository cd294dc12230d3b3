/* SPDX-License-Identifier: Apache-2.0
 *
 * The objects of an XML file as they stand there, before import.c makes the tree of topo.h of them. Private to
 * src/topo.
 */
#ifndef KOLO_TOPO_RAW_H
#define KOLO_TOPO_RAW_H

#include "topo/topo.h"
#include "topo/xml.h"

#define KOLO_TOPO_MAX_BYTES   (16 << 20)
#define KOLO_TOPO_MAX_OBJECTS 65536
#define KOLO_TOPO_MAX_CPUS    65536
#define KOLO_TOPO_INFO_SPEED  "KoloLinkMbps" /* info of a NIC's OS device, added by load.c */

typedef enum {
    KOLO_RAW_OTHER, /* groups, dies, small caches: looked through */
    KOLO_RAW_MACHINE,
    KOLO_RAW_PACKAGE,
    KOLO_RAW_NUMA,
    KOLO_RAW_MEMCACHE,
    KOLO_RAW_L3,
    KOLO_RAW_CORE,
    KOLO_RAW_PU,
    KOLO_RAW_BRIDGE,
    KOLO_RAW_PCI,
    KOLO_RAW_OSDEV
} kolo_raw_type_t;

typedef enum { KOLO_RAW_NO_DEVICE, KOLO_RAW_GPU, KOLO_RAW_NIC } kolo_raw_device_t;

typedef struct {
    kolo_raw_type_t type;
    kolo_raw_device_t device;      /* PCI functions, and NICs without one */
    int parent, child, last, next; /* -1 none; a parent's index is smaller than its children's */
    int devices, branches;         /* GPUs and NICs in and below; children that have some */
    int os_index;                  /* -1 unknown */
    bool host_bridge;
    int64_t bytes; /* cache size or memory */
    int64_t link_mbps, pci_mbps;
    int osdev_type; /* hwloc_obj_osdev_type_t, -1 */
    unsigned pci_class, pci_vendor, pci_device;
    kolo_xml_text_t name, bus, label; /* label: host name, CPU model, PCI device's name */
} kolo_raw_object_t;

typedef struct {
    kolo_raw_object_t *objects;
    int count, capacity;
} kolo_raw_t;

/* Reads all objects; the texts point into the XML's bytes. On failure nothing is left to free. */
kolo_status_t kolo_topo_raw_read(kolo_raw_t *raw, kolo_xml_t *xml);
void kolo_topo_raw_fini(kolo_raw_t *raw);

#endif
