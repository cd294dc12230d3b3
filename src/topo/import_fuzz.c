/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the import of topology XML, and whatever walks over an imported tree: printing and distances. Seeds:
 * tests/data/topo.
 */
#include "topo/topo.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static FILE *sink;
    kolo_topo_t topo;
    if (!sink) sink = fopen("/dev/null", "w");
    if (!sink || kolo_topo_import(&topo, (const char *)data, bytes, "fuzz") != KOLO_OK) return 0;
    for (int i = 0; i < topo.count; i++) {
        const kolo_topo_node_t *node = &topo.nodes[i];
        if ((i == 0) != (node->parent < 0) || node->parent >= i) abort();
        if (kolo_topo_distance(&topo, i, topo.count - 1) > KOLO_DISTANCE_SOCKET) abort();
    }
    for (int cpu = 0; cpu < topo.ncpus; cpu++)
        if (topo.core_of_cpu[cpu] >= topo.count) abort();
    kolo_topo_print(&topo, sink);
    kolo_topo_fini(&topo);
    return 0;
}
