/* SPDX-License-Identifier: Apache-2.0
 *
 * Events behind pieces of work, and edges between captured ones. See order.h.
 */
#include "mem/cuda/order.h"

#include <string.h>

#define NOT_SUPPORTED 801

static kolo_status_t failed(const kolo_cuda_device_t *device, kolo_cu_result_t r)
{
    return KOLO_LIKELY(!r) ? KOLO_OK : kolo_cuda_fail(r, device->ordinal, "order the streams of a communicator");
}

kolo_status_t kolo_cuda_order_open(kolo_cuda_order_t *o, const kolo_cuda_device_t *device)
{
    *o = (kolo_cuda_order_t){.device = device};
    kolo_cu_result_t r = kolo_cuda_loaded()->event_create(&o->event, KOLO_CU_EVENT_NO_TIMING);
    return r ? kolo_cuda_fail(r, device->ordinal, "make an event") : KOLO_OK;
}

void kolo_cuda_order_close(kolo_cuda_order_t *o)
{
    if (o->event) kolo_cuda_loaded()->event_destroy(o->event);
    *o = (kolo_cuda_order_t){0};
}

/* ---- captures ---- */

typedef struct {
    int status;
    unsigned long long id;
    kolo_cu_graph_t graph;
    const kolo_cu_node_t *nodes;
    size_t n;
} capture_t;

static kolo_cu_result_t ask(kolo_cu_stream_t stream, capture_t *c)
{
    return kolo_cuda_loaded()->capture_info(stream, &c->status, &c->id, &c->graph, &c->nodes, &c->n);
}

static bool holds(const capture_t *c, kolo_cu_node_t node)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->nodes[i] == node) return true;
    return false;
}

/* Makes the first piece in a graph wait for what comes before the replay; others for the one before them. */
static kolo_cu_result_t before_captured(kolo_cuda_order_t *o, kolo_cu_stream_t stream)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    capture_t c = {0};
    kolo_cu_result_t r = ask(stream, &c);
    if (r || c.status != KOLO_CU_CAPTURE_ACTIVE) return r;
    if (c.id != o->graph) {
        kolo_cuda_graphs_hold(o, c.graph);
        r = api->stream_wait(stream, o->event, KOLO_CU_EVENT_EXTERNAL);
        if (r) return r;
        o->graph = c.id;
        o->record = NULL;
        o->ntails = 0;
        o->captured = o->alone = true;
        return KOLO_CU_SUCCESS;
    }
    kolo_cu_node_t missing[KOLO_CUDA_TAILS];
    size_t n = 0;
    for (size_t i = 0; i < o->ntails; i++)
        if (!holds(&c, o->tails[i])) missing[n++] = o->tails[i];
    if (n) o->alone = true;
    return n ? api->capture_depend(stream, missing, n, KOLO_CU_CAPTURE_ADD) : KOLO_CU_SUCCESS;
}

/* Removes edges that the new ones make needless. A graph that gets memory keeps those that it has. */
static kolo_cu_result_t let_go(kolo_cuda_order_t *o, kolo_cu_graph_t graph, const kolo_cu_node_t *to)
{
    kolo_cu_result_t r = kolo_cuda_loaded()->graph_remove_edges(graph, o->tails, to, o->ntails);
    return r == NOT_SUPPORTED ? KOLO_CU_SUCCESS : r;
}

static kolo_cu_result_t behind_captured(kolo_cuda_order_t *o, kolo_cu_stream_t stream)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_node_t to[KOLO_CUDA_TAILS];
    capture_t c = {0};
    kolo_cu_result_t r = ask(stream, &c);
    if (r || c.status != KOLO_CU_CAPTURE_ACTIVE) return r;
    if (c.n > KOLO_CUDA_TAILS) c.n = KOLO_CUDA_TAILS; /* a piece is one node, behind which nothing stands yet */
    for (size_t i = 0; i < KOLO_CUDA_TAILS; i++) to[i] = o->record;
    if (!o->record)
        r = api->graph_add_record(&o->record, c.graph, c.nodes, c.n, o->event);
    else if (o->ntails)
        r = let_go(o, c.graph, to);
    if (!r && to[0]) r = api->graph_add_edges(c.graph, c.nodes, to, c.n);
    if (r) return r;
    memcpy(o->tails, c.nodes, c.n * sizeof c.nodes[0]);
    o->ntails = c.n;
    return KOLO_CU_SUCCESS;
}

/* ---- pieces ---- */

/* Returns -1: nobody knows. */
static int device_of(kolo_cu_ctx_t ctx)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_device_t device = -1;
    kolo_cu_ctx_t old;
    if (!api->ctx_device || api->ctx_push(ctx)) return -1;
    if (api->ctx_device(&device)) device = -1;
    api->ctx_pop(&old);
    return device;
}

/* Refuses one of another GPU. Default streams are those of the context that is current. */
static kolo_status_t check_stream(kolo_cuda_order_t *o, kolo_cu_stream_t stream)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_ctx_t ctx = NULL;
    if (stream == o->checked || (uintptr_t)stream <= 2 || !api->stream_ctx) return KOLO_OK;
    if (!api->stream_ctx(stream, &ctx) && ctx != o->device->ctx) {
        int device = device_of(ctx);
        if (device >= 0 && device != o->device->device)
            return kolo_fail(
                KOLO_ERR_INVALID_ARGUMENT,
                "the stream %p is one of GPU %d, the communicator is on GPU %d: pass a stream of that GPU",
                (void *)stream, device, o->device->ordinal);
    }
    o->checked = stream;
    return KOLO_OK;
}

kolo_status_t kolo_cuda_order_look(kolo_cuda_order_t *o, kolo_cu_stream_t stream)
{
    bool captured;
    KOLO_TRY(check_stream(o, stream));
    return kolo_cuda_capturing(o->device, stream, &captured);
}

kolo_status_t kolo_cuda_order_before(kolo_cuda_order_t *o, kolo_cu_stream_t stream)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_result_t r = KOLO_CU_SUCCESS;
    if (KOLO_UNLIKELY(stream != o->checked)) KOLO_TRY(check_stream(o, stream));
    KOLO_TRY(kolo_cuda_capturing(o->device, stream, &o->capturing));
    o->alone = false;
    if (KOLO_UNLIKELY(o->capturing)) return failed(o->device, api->capture_info ? before_captured(o, stream) : r);
    o->now = 0; /* a handle may be that of another stream than it was at the last call; 0: nobody knows */
    if (KOLO_LIKELY(api->stream_id != NULL) && api->stream_id(stream, &o->now)) o->now = 0;
    if (KOLO_UNLIKELY(o->captured || (o->any && (!o->now || o->last != o->now)))) {
        r = api->stream_wait(stream, o->event, 0);
        o->alone = true;
    }
    return failed(o->device, r);
}

kolo_status_t kolo_cuda_order_behind(kolo_cuda_order_t *o, kolo_cu_stream_t stream)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    if (KOLO_UNLIKELY(o->capturing))
        return failed(o->device, api->capture_info ? behind_captured(o, stream) : KOLO_CU_SUCCESS);
    o->last = o->now;
    o->any = true;
    return failed(o->device, api->event_record(o->event, stream));
}

kolo_status_t kolo_cuda_order_poll(kolo_cuda_order_t *o)
{
    if (!o->any && !o->captured) return KOLO_OK;
    kolo_cu_result_t r = kolo_cuda_event_query(o->event);
    if (r == KOLO_CU_NOT_READY) return KOLO_IN_PROGRESS;
    return r ? kolo_cuda_fail(r, o->device->ordinal, "ask for the end of the operations") : KOLO_OK;
}

/* ---- streams of a group ---- */

kolo_status_t kolo_cuda_streams_alike(const kolo_cuda_device_t *device, void *one, void *other, bool *alike)
{
    bool pushed, here = false, there = false;
    KOLO_TRY(kolo_cuda_enter(device, &pushed));
    kolo_status_t status = kolo_cuda_capturing(device, one, &here);
    if (status == KOLO_OK) status = kolo_cuda_capturing(device, other, &there);
    *alike = here == there;
    kolo_cuda_leave(pushed);
    return status;
}

kolo_status_t kolo_cuda_streams_follow(const kolo_cuda_device_t *device, void *const *streams, size_t n)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_event_t event;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(device, &pushed));
    kolo_status_t status = KOLO_OK;
    kolo_cu_result_t r = api->event_create(&event, KOLO_CU_EVENT_NO_TIMING);
    if (!r) {
        r = api->event_record(event, streams[0]);
        for (size_t i = 1; i < n && !r; i++) r = api->stream_wait(streams[i], event, 0);
        api->event_destroy(event);
    }
    if (r) status = kolo_cuda_fail(r, device->ordinal, "make the streams of a group meet");
    kolo_cuda_leave(pushed);
    return status;
}
