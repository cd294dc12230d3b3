/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws the tree for people: one line per node with what distinguishes it, equal cores of one group drawn as one
 * line, and below it a table of distances between GPUs and NICs.
 */
#include "base/clock.h"
#include "topo/topo.h"

#include <stdlib.h>
#include <string.h>

#define MAX_INDENT  64 /* levels; the reader allows no more */
#define MAX_COLUMNS 64 /* devices in the table */

static void print_bytes(FILE *out, int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < KOLO_COUNTOF(units); unit++) value /= 1024;
    fprintf(out, " %.*f %s", value < 10 && unit ? 1 : 0, value, units[unit]);
}

static void print_speed(FILE *out, const char *what, int64_t mbps)
{
    if (mbps >= 1000)
        fprintf(out, " %s %.0f Gb/s", what, (double)mbps / 1000);
    else if (mbps > 0)
        fprintf(out, " %s %d Mb/s", what, (int)mbps);
}

static void print_device(const kolo_topo_node_t *node, FILE *out)
{
    fprintf(out, "%s %d", node->kind == KOLO_TOPO_GPU ? "GPU" : "NIC", node->index);
    if (node->bus_id[0]) fprintf(out, " %s", node->bus_id);
    fprintf(out, " %s", node->name);
    if (node->netdev[0] && strcmp(node->netdev, node->name) != 0) fprintf(out, " (%s)", node->netdev);
    print_speed(out, "link", node->link_mbps);
    print_speed(out, "PCI", node->pci_mbps);
}

static void print_links(const kolo_topo_t *topo, int gpu, FILE *out)
{
    const char *separator = " NVLink";
    if (topo->nodes[gpu].switch_links) {
        fprintf(out, "%s %d to switches", separator, topo->nodes[gpu].switch_links);
        separator = ",";
    }
    for (int i = 0; i < topo->nlinks; i++) {
        const kolo_topo_link_t *l = &topo->links[i];
        if (l->a != gpu && l->b != gpu) continue;
        fprintf(out, "%s %d to GPU %d", separator, l->count, topo->nodes[l->a == gpu ? l->b : l->a].index);
        separator = ",";
    }
}

static void print_node(const kolo_topo_t *topo, const kolo_topo_node_t *node, FILE *out)
{
    switch (node->kind) {
    case KOLO_TOPO_MACHINE:
        fprintf(out, "machine %s", node->name);
        break;
    case KOLO_TOPO_SOCKET:
        fprintf(out, "socket %d", node->index);
        if (strncmp(node->name, "socket ", 7) != 0) fprintf(out, " %s", node->name);
        break;
    case KOLO_TOPO_NUMA:
        fprintf(out, "NUMA %d", node->index);
        if (node->memory_bytes) print_bytes(out, node->memory_bytes);
        break;
    case KOLO_TOPO_L3:
        fprintf(out, "L3 %d", node->index);
        if (node->cache_bytes) print_bytes(out, node->cache_bytes);
        break;
    case KOLO_TOPO_CORE:
        fprintf(out, "core %d", node->index);
        break;
    case KOLO_TOPO_PCI_ROOT:
    case KOLO_TOPO_PCI_SWITCH:
        fprintf(out, "PCI %s %s", node->kind == KOLO_TOPO_PCI_ROOT ? "root" : "switch", node->bus_id);
        break;
    case KOLO_TOPO_GPU:
    case KOLO_TOPO_NIC:
        print_device(node, out);
        if (node->kind == KOLO_TOPO_GPU) print_links(topo, (int)(node - topo->nodes), out);
        break;
    case KOLO_TOPO_KIND_COUNT:
        break;
    }
}

/* Prints the CPUs of cores `first` to `last` (indices of the kind), as ranges. */
static void print_cpus(const kolo_topo_t *topo, int first, int last, FILE *out)
{
    const char *separator = " cpus ";
    for (int cpu = 0; cpu < topo->ncpus; cpu++) {
        int from = cpu;
        while (cpu < topo->ncpus && topo->core_of_cpu[cpu] >= 0 &&
               topo->nodes[topo->core_of_cpu[cpu]].index >= first &&
               topo->nodes[topo->core_of_cpu[cpu]].index <= last)
            cpu++;
        if (cpu == from) continue;
        fprintf(out, "%s%d", separator, from);
        if (cpu - from > 1) fprintf(out, "-%d", cpu - 1);
        separator = ",";
    }
}

typedef struct {
    const kolo_topo_t *topo;
    FILE *out;
    const int *child, *next; /* first child, next sibling; -1 none */
    bool last[MAX_INDENT];   /* by level: is the branch drawn there its parent's last? */
} drawing_t;

static void draw(drawing_t *d, int node, int level);

static void draw_indent(const drawing_t *d, int level)
{
    for (int i = 1; i < level; i++) fputs(d->last[i] ? "   " : "│  ", d->out);
    if (level) fputs(d->last[level] ? "└─ " : "├─ ", d->out);
}

static void draw_children(drawing_t *d, int node, int level)
{
    const kolo_topo_node_t *nodes = d->topo->nodes;
    for (int c = d->child[node]; c >= 0;) {
        int end = c; /* the last of a run of cores */
        while (nodes[c].kind == KOLO_TOPO_CORE && d->next[end] >= 0 && nodes[d->next[end]].kind == KOLO_TOPO_CORE)
            end = d->next[end];
        d->last[level] = d->next[end] < 0;
        if (nodes[c].kind == KOLO_TOPO_CORE) {
            draw_indent(d, level);
            if (end == c)
                fprintf(d->out, "core %d", nodes[c].index);
            else
                fprintf(d->out, "cores %d-%d", nodes[c].index, nodes[end].index);
            print_cpus(d->topo, nodes[c].index, nodes[end].index, d->out);
            fputc('\n', d->out);
        } else {
            draw(d, c, level);
        }
        c = d->next[end];
    }
}

static void draw(drawing_t *d, int node, int level)
{
    draw_indent(d, level);
    print_node(d->topo, &d->topo->nodes[node], d->out);
    fputc('\n', d->out);
    if (level + 1 < MAX_INDENT) draw_children(d, node, level + 1);
}

static void print_distances(const kolo_topo_t *topo, FILE *out)
{
    int devices[MAX_COLUMNS], count = 0, left = 0;
    for (int kind = KOLO_TOPO_GPU; kind <= KOLO_TOPO_NIC; kind++) {
        for (int i = 0; i < topo->count; i++) {
            if ((int)topo->nodes[i].kind != kind) continue;
            if (count < MAX_COLUMNS)
                devices[count++] = i;
            else
                left++;
        }
    }
    if (count == 0) {
        fprintf(out, "no GPU and no NIC found\n");
        return;
    }
    fprintf(out, "\ndistances\n      ");
    for (int pass = -1; pass < count; pass++) {
        const kolo_topo_node_t *row = pass < 0 ? NULL : &topo->nodes[devices[pass]];
        if (row) fprintf(out, "%s%-3d", row->kind == KOLO_TOPO_GPU ? "GPU" : "NIC", row->index);
        for (int i = 0; i < count; i++) {
            const kolo_topo_node_t *column = &topo->nodes[devices[i]];
            if (row)
                fprintf(out, " %-10s",
                        kolo_topo_distance_name(kolo_topo_distance(topo, devices[pass], devices[i])));
            else
                fprintf(out, " %s%-7d", column->kind == KOLO_TOPO_GPU ? "GPU" : "NIC", column->index);
        }
        fprintf(out, row ? " NUMA " : " at\n");
        if (row && row->numa >= 0) fprintf(out, "%d\n", row->numa);
        if (row && row->numa < 0) fprintf(out, "unknown\n");
    }
    if (left) fprintf(out, "(%d more devices not shown)\n", left);
}

void kolo_topo_print(const kolo_topo_t *topo, FILE *out)
{
    int *links = malloc((size_t)topo->count * 2 * sizeof *links), *child = links, *next = links + topo->count;
    if (!links) {
        fprintf(out, "(no memory to draw %d nodes)\n", topo->count);
        return;
    }
    for (int i = 0; i < 2 * topo->count; i++) links[i] = -1;
    for (int i = topo->count - 1; i > 0; i--) { /* backwards: each becomes the head of its parent's list */
        next[i] = child[topo->nodes[i].parent];
        child[topo->nodes[i].parent] = i;
    }
    drawing_t drawing = {.topo = topo, .out = out, .child = child, .next = next};
    fprintf(out, "source: %s\n", topo->source);
    draw(&drawing, 0, 0);
    print_distances(topo, out);
    free(links);
}
