/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams that are being captured. Memory of such a graph: cuMemAllocAsync() there returns an address that has no
 * memory behind it before the graph runs, and that attributes of pointers do not know. The node that gets it tells
 * its length.
 */
#include "mem/cuda/cuda.h"

#include <stdlib.h>

#define CAPTURE_IMPLICIT 906

kolo_status_t kolo_cuda_capturing(const kolo_cuda_device_t *device, kolo_cu_stream_t stream, bool *capturing)
{
    int now = KOLO_CU_CAPTURE_NONE;
    kolo_cu_result_t r = kolo_cuda_loaded()->stream_capturing(stream, &now);
    *capturing = now != KOLO_CU_CAPTURE_NONE;
    if (KOLO_LIKELY(!r && now != KOLO_CU_CAPTURE_INVALIDATED)) return KOLO_OK;
    if (r == CAPTURE_IMPLICIT)
        return kolo_fail(
            KOLO_ERR_INVALID_USAGE,
            "nothing can be queued on the default stream while a stream is captured that waits for it: "
            "pass another stream, or capture one made with cudaStreamNonBlocking");
    if (r) return kolo_cuda_fail(r, device->ordinal, "ask a stream whether it is being captured");
    return kolo_fail(KOLO_ERR_INVALID_USAGE,
                     "the stream %p takes nothing, for its capture has failed (by a call that a capture forbids): "
                     "cudaStreamEndCapture() comes first",
                     (void *)stream);
}

static bool is_of(kolo_cu_node_t node, kolo_cu_ptr_t p, kolo_cu_get_node_t *get)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    int type = -1;
    return !api->graph_node_type(node, &type) && type == KOLO_CU_GRAPH_NODE_GETS &&
           !api->graph_node_get(node, get) && p - get->at < get->bytes;
}

static kolo_cu_graph_t graph_of(kolo_cu_stream_t stream)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    int status = KOLO_CU_CAPTURE_NONE;
    unsigned long long id;
    kolo_cu_graph_t graph = NULL;
    const kolo_cu_node_t *behind;
    size_t n;
    if (!stream || !api->capture_info || !api->graph_nodes || !api->graph_node_type || !api->graph_node_get)
        return NULL;
    if (api->capture_info(stream, &status, &id, &graph, &behind, &n) || status != KOLO_CU_CAPTURE_ACTIVE)
        return NULL;
    return graph;
}

bool kolo_cuda_find_captured(const kolo_cuda_device_t *device, kolo_cu_stream_t stream, const void *p,
                             kolo_mem_place_t *place)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_graph_t graph = graph_of(stream);
    kolo_cu_get_node_t get;
    size_t n = 0;
    bool found = false;
    if (!graph || api->graph_nodes(graph, NULL, &n) || !n) return false;
    kolo_cu_node_t *nodes = malloc(n * sizeof(kolo_cu_node_t));
    if (nodes && !api->graph_nodes(graph, nodes, &n))
        for (size_t i = 0; i < n && !found; i++) found = is_of(nodes[i], (kolo_cu_ptr_t)(uintptr_t)p, &get);
    free(nodes);
    if (found)
        *place = (kolo_mem_place_t){
            .ops = &kolo_mem_cuda, .device = device->ordinal, .base = (uintptr_t)get.at, .bytes = get.bytes};
    return found;
}
