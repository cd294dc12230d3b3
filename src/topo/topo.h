/* SPDX-License-Identifier: Apache-2.0
 *
 * What the machine looks like: a tree of sockets, NUMA nodes, PCI switches, GPUs, NICs and cores, distances between
 * places on it, and the search for rings and trees over a set of ranks. hwloc looks at this machine and hands over
 * its XML; one bounded reader of our own turns XML into the tree, whether it comes from hwloc or from a file. Built
 * without hwloc this machine is one flat node and says so; files can be read all the same.
 */
#ifndef KOLO_TOPO_TOPO_H
#define KOLO_TOPO_TOPO_H

#include "base/params.h"

#include <stdio.h>

/* KOLO_TOPO_FILE: load XML instead of looking; KOLO_TOPO_DUMP; KOLO_NVML_LIBRARY */
extern const kolo_param_table_t kolo_topo_params;

typedef enum {
    KOLO_TOPO_MACHINE,
    KOLO_TOPO_SOCKET,
    KOLO_TOPO_NUMA,
    KOLO_TOPO_L3,
    KOLO_TOPO_CORE,
    KOLO_TOPO_PCI_ROOT,   /* a host bridge with GPUs or NICs below it */
    KOLO_TOPO_PCI_SWITCH, /* a PCI bridge with at least two branches that hold GPUs or NICs */
    KOLO_TOPO_GPU,
    KOLO_TOPO_NIC,
    KOLO_TOPO_KIND_COUNT
} kolo_topo_kind_t;
const char *kolo_topo_kind_name(kolo_topo_kind_t kind);

/* Ordered: a smaller class is closer. */
typedef enum {
    KOLO_DISTANCE_SELF = 0,
    KOLO_DISTANCE_NVLINK,     /* GPUs: NVLinks between them, or from both to switches */
    KOLO_DISTANCE_L3,         /* share a last-level cache */
    KOLO_DISTANCE_NUMA,       /* same NUMA node */
    KOLO_DISTANCE_PCI,        /* under one PCI switch (devices) */
    KOLO_DISTANCE_HOSTBRIDGE, /* same socket: devices by way of its root complex, cores of its other NUMA nodes */
    KOLO_DISTANCE_SOCKET,     /* across sockets */
    KOLO_DISTANCE_NETWORK     /* another machine */
} kolo_distance_t;
const char *kolo_topo_distance_name(kolo_distance_t distance);

typedef struct {
    kolo_topo_kind_t kind;
    int parent;   /* index, always smaller than the node's own; -1 for the machine */
    int index;    /* among its kind, in tree order */
    int os_index; /* sockets, NUMA nodes, cores: the system's number; -1 unknown */
    char name[48];
    char netdev[16];      /* NICs: network interface, "" unknown */
    int numa;             /* `index` of the NUMA node that it is attached to, or is, -1 unknown */
    int socket;           /* the same for the socket */
    char bus_id[16];      /* GPUs, NICs, PCI roots and switches */
    int64_t link_mbps;    /* NICs: link speed; 0 unknown */
    int64_t pci_mbps;     /* GPUs, NICs: speed of the PCI link; 0 unknown */
    int switch_links;     /* GPUs: NVLinks to switches */
    int64_t cache_bytes;  /* L3 */
    int64_t memory_bytes; /* NUMA */
} kolo_topo_node_t;

typedef struct { /* NVLinks between two GPUs */
    int a, b;    /* nodes, a < b */
    int count;
} kolo_topo_link_t;

typedef struct kolo_topo {
    kolo_topo_node_t *nodes; /* parents before children; [0] is the machine */
    int count;
    int *core_of_cpu; /* by the system's CPU number: the core's node, -1 none */
    int ncpus;
    kolo_topo_link_t *links;
    int nlinks;
    char source[64]; /* "hwloc, API 2.8", "file /x.xml", "flat (...)" */
} kolo_topo_t;

/* Loads this machine (looked at once per process), or KOLO_TOPO_FILE. With KOLO_TOPO_DUMP set, what is found by
 * looking is written there as XML. Any thread. */
kolo_status_t kolo_topo_load(kolo_topo_t *topo);

/* Loads the GPUs' names and NVLinks, too, which costs a start of NVML once per process: for those who use GPUs. */
kolo_status_t kolo_topo_load_gpus(kolo_topo_t *topo);
/* Reads hwloc XML (version 2), and writes it; bytes from outside: bounded and fuzzed. `origin` becomes source. The
 * bytes need no terminating zero. */
kolo_status_t kolo_topo_import(kolo_topo_t *topo, const char *xml, size_t bytes, const char *origin);
kolo_status_t kolo_topo_import_file(kolo_topo_t *topo, const char *path);
/* Writes this machine as XML. KOLO_ERR_UNSUPPORTED without hwloc. */
kolo_status_t kolo_topo_export(const char *path);
void kolo_topo_fini(kolo_topo_t *topo); /* safe on a zeroed struct and twice */
/* Draws the tree with indentation, distances between devices below it. */
void kolo_topo_print(const kolo_topo_t *topo, FILE *out);
kolo_distance_t kolo_topo_distance(const kolo_topo_t *topo, int a, int b);
/* Adds an NVLink from GPU `a` to GPU `b`; each end tells of it, and it is counted for the one with the smaller
 * number. */
void kolo_topo_add_link(kolo_topo_t *topo, int a, int b);
/* Returns how many NVLinks lead from one to the other, directly or by switches. */
int kolo_topo_nvlinks(const kolo_topo_t *topo, int a, int b);
/* Returns the GPU or NIC at a bus id, whatever way its domain is written; -1: none. */
int kolo_topo_find_bus(const kolo_topo_t *topo, const char *bus_id);
/* Returns the node with this kind and index, or -1. */
int kolo_topo_find(const kolo_topo_t *topo, kolo_topo_kind_t kind, int index);

/* ---- search ---- */

/* Where a rank or a NIC sits; made from all ranks' cards, so every rank computes the same result. -1: unknown;
 * ranks whose fields are all unknown count as close to each other. */
typedef struct {
    int node; /* host number, 0..hosts-1, every host has a rank */
    int socket;
    int numa;
    int slot; /* core or device index inside the host */
    int l3;   /* cores */
    int pci;  /* devices: the topmost switch above it, else the device itself; a number unique within the host */
} kolo_topo_place_t;

/* Returns the place of a node (core, GPU, NIC) on host `host`. */
kolo_topo_place_t kolo_topo_place(const kolo_topo_t *topo, int node, int host);
kolo_distance_t kolo_topo_place_distance(const kolo_topo_place_t *a, const kolo_topo_place_t *b);

typedef struct {
    int nranks, nlanes, nhosts;
    int *
        ring; /* nlanes x nranks: ranks in ring order. Ranks of a host are contiguous; a host is entered at the rank
                 closest to the lane's NIC and left from the next closest; neighbours inside follow distance */
    int *tree_parent; /* nlanes x nranks, -1 root: chain inside a host, in ring order; between the chains' heads,
                         even and odd lanes use the two trees of a pair: a host that is a leaf in one is inner in
                         the other */
    int *nic;         /* nlanes x hosts: `slot` of the NIC that the lane uses on that host, -1 none */
} kolo_topo_search_t;

/* Searches; `nics` may be NULL with nnics 0. Lane l uses NIC l mod (NICs of the host), in order of their slots. */
kolo_status_t kolo_topo_search(const kolo_topo_place_t *places, int nranks, int nlanes,
                               const kolo_topo_place_t *nics, int nnics, kolo_topo_search_t *result);
void kolo_topo_search_fini(kolo_topo_search_t *result);

/* Parents of `n` hosts in tree 0 or 1 of the pair, -1 for the root. */
void kolo_topo_tree_pair(int n, int which, int *parent);

#endif
