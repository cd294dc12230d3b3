/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake driver's graphs: what is queued on a stream that is being captured becomes a node behind those before
 * it, and an event carries a capture from one stream to another. A replay runs the nodes on streams of its own,
 * each behind those that it depends on, and branches side by side.
 */
#include "memory.h"
#include "stream.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define NOT_SUPPORTED 801

struct CUgraphNode_st {
    kolo_cu_node_t next;
    struct CUctx_st *ctx;
    work_t work;              /* its launch is the graph's */
    struct CUevent_st *event; /* recorded there, or waited for */
    bool waits;
    kolo_cu_node_t *behind;
    size_t n, room;
    /* of the replay that is being queued */
    unsigned replay;
    struct CUstream_st *lane;
    mark_t *mark;
};

struct CUgraph_st {
    unsigned long long id;
    int refs;
    bool open;            /* a capture */
    _Atomic bool *broken; /* there: by a call that a capture forbids; of the thread that has begun it */
    unsigned replays;
    mark_t *replayed; /* the end of the last one */
    kolo_cu_object_t *objects;
    size_t nobjects;
    kolo_cu_node_t head, *tail;
};

static unsigned long long last_graph;
static _Thread_local int capture_mode, captures; /* captures: that this thread has begun */
static _Thread_local _Atomic bool broken;        /* all of them */

bool fake_capture_forbids(const char *function)
{
    if (!captures || capture_mode == KOLO_CU_CAPTURE_RELAXED) return false;
    fake_wrong(0, "%s while this thread captures a stream", function);
    atomic_store(&broken, true);
    return true;
}

bool fake_capture_break_locked(const struct CUctx_st *ctx)
{
    bool any = false;
    for (struct CUstream_st *s = fake_streams_locked(); s; s = s->next) {
        if (s->ctx != ctx || !s->capture.graph) continue;
        atomic_store(s->capture.graph->broken, true);
        any = true;
    }
    return any;
}

/* Tells what a stream's capture is to who asks. */
static int state_of(const struct CUstream_st *s)
{
    if (!s->capture.graph) return KOLO_CU_CAPTURE_NONE;
    return atomic_load(s->capture.graph->broken) ? KOLO_CU_CAPTURE_INVALIDATED : KOLO_CU_CAPTURE_ACTIVE;
}

/* A broken one takes nothing more. */
bool fake_capture_is_broken(const struct CUstream_st *s)
{
    return state_of(s) == KOLO_CU_CAPTURE_INVALIDATED;
}

/* ---- nodes ---- */

static void come_behind(kolo_cu_node_t node, kolo_cu_node_t other)
{
    for (size_t i = 0; i < node->n; i++)
        if (node->behind[i] == other) return;
    if (node->n == node->room) {
        node->room = node->room ? 2 * node->room : 4;
        node->behind = realloc(node->behind, node->room * sizeof(kolo_cu_node_t));
        if (!node->behind) abort();
    }
    node->behind[node->n++] = other;
}

static kolo_cu_node_t add_node(kolo_cu_graph_t graph, struct CUctx_st *ctx, const work_t *work,
                               const kolo_cu_node_t *behind, size_t n)
{
    kolo_cu_node_t node = calloc(1, sizeof *node);
    if (!node) abort();
    node->ctx = ctx;
    node->work = *work;
    for (size_t i = 0; i < n; i++) come_behind(node, behind[i]);
    *graph->tail = node;
    graph->tail = &node->next;
    return node;
}

static void leave_graph(kolo_cu_graph_t graph)
{
    if (--graph->refs) return;
    fake_objects_end_locked(graph->objects, graph->nobjects, graph->replayed);
    for (kolo_cu_node_t node = graph->head, next; node; node = next) {
        next = node->next;
        if (node->work.launch) fake_launch_free(node->work.launch);
        fake_drop(node->mark);
        free(node->behind);
        free(node);
    }
    free(graph);
}

static kolo_cu_node_t capture_node(struct CUstream_st *s, const work_t *work)
{
    kolo_cu_node_t node = add_node(s->capture.graph, s->ctx, work, s->capture.nodes, s->capture.n);
    s->capture.nodes[0] = node;
    s->capture.n = 1;
    return node;
}

void fake_capture_work(struct CUstream_st *s, const work_t *work)
{
    capture_node(s, work);
}

kolo_cu_result_t fake_capture_get(kolo_cu_stream_t stream, struct CUctx_st *ctx, uintptr_t at, size_t bytes)
{
    kolo_cu_result_t why = KOLO_CU_SUCCESS;
    pthread_mutex_lock(&fake_lock);
    struct CUstream_st *s = fake_stream_locked(stream, ctx, "cuMemAllocAsync", &why);
    if (s) capture_node(s, &(work_t){.kind = GET, .to = at, .bytes = bytes});
    pthread_mutex_unlock(&fake_lock);
    return why;
}

static void join(fake_capture_t *to, const kolo_cu_node_t *nodes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < to->n && to->nodes[k] != nodes[i]) k++;
        if (k < to->n) continue;
        if (to->n == FAKE_NODES) fake_abort("a captured stream comes behind too many nodes");
        to->nodes[to->n++] = nodes[i];
    }
}

kolo_cu_result_t fake_capture_wait(struct CUstream_st *s, struct CUevent_st *e, bool external)
{
    if (external && s->capture.graph) {
        kolo_cu_node_t node = capture_node(s, &(work_t){.kind = RECORD});
        node->event = e;
        node->waits = true;
        return KOLO_CU_SUCCESS;
    }
    if (!e->capture.graph || (s->capture.graph && s->capture.graph != e->capture.graph))
        return fake_wrong(FAKE_CAPTURE_ISOLATION,
                          "cuStreamWaitEvent: a captured stream and work that is not captured");
    if (!e->capture.graph->open)
        return fake_wrong(FAKE_CAPTURE_ISOLATION, "cuStreamWaitEvent: the event's capture is over");
    if (!s->capture.graph) s->capture = (fake_capture_t){.graph = e->capture.graph};
    join(&s->capture, e->capture.nodes, e->capture.n);
    return KOLO_CU_SUCCESS;
}

/* ---- exported: captures ---- */

kolo_cu_result_t cuStreamIsCapturing(kolo_cu_stream_t stream, int *status)
{
    FAKE_CONTEXT(ctx);
    kolo_cu_result_t why = KOLO_CU_SUCCESS;
    pthread_mutex_lock(&fake_lock);
    const struct CUstream_st *s = fake_stream_locked(stream, ctx, "cuStreamIsCapturing", &why);
    if (s) *status = state_of(s);
    if (s && (uintptr_t)stream <= 1)
        for (const struct CUstream_st *o = fake_streams_locked(); o; o = o->next)
            if (o->ctx == ctx && o->blocking && o->capture.graph) why = FAKE_CAPTURE_IMPLICIT;
    pthread_mutex_unlock(&fake_lock);
    return why;
}

kolo_cu_result_t cuStreamBeginCapture_v2(kolo_cu_stream_t stream, int mode)
{
    FAKE_CONTEXT(ctx);
    kolo_cu_result_t why = KOLO_CU_SUCCESS;
    (void)mode;
    if ((uintptr_t)stream <= 1)
        return fake_wrong(FAKE_CAPTURE_UNSUPPORTED, "the default stream cannot be captured");
    pthread_mutex_lock(&fake_lock);
    struct CUstream_st *s = fake_stream_locked(stream, ctx, "cuStreamBeginCapture", &why);
    if (s && s->capture.graph) why = fake_wrong(FAKE_INVALID_VALUE, "cuStreamBeginCapture: it is being captured");
    if (s && !why) {
        kolo_cu_graph_t graph = calloc(1, sizeof *graph);
        if (!graph) abort();
        *graph = (struct CUgraph_st){
            .id = ++last_graph, .refs = 1, .open = true, .broken = &broken, .tail = &graph->head};
        s->capture = (fake_capture_t){.graph = graph, .origin = true};
        captures++;
    }
    pthread_mutex_unlock(&fake_lock);
    return why;
}

/* All that was forked from it has to be joined: no stream of the capture has a node that this one is not behind. */
static bool joined(const struct CUstream_st *s, const struct CUstream_st *other)
{
    for (size_t i = 0; i < other->capture.n; i++) {
        bool behind = false;
        for (size_t k = 0; k < s->capture.n; k++) behind = behind || s->capture.nodes[k] == other->capture.nodes[i];
        for (kolo_cu_node_t node = s->capture.graph->head; node && !behind; node = node->next)
            for (size_t k = 0; k < node->n; k++) behind = behind || node->behind[k] == other->capture.nodes[i];
        if (!behind) return false;
    }
    return true;
}

kolo_cu_result_t cuStreamEndCapture(kolo_cu_stream_t stream, kolo_cu_graph_t *graph)
{
    FAKE_CONTEXT(ctx);
    kolo_cu_result_t why = KOLO_CU_SUCCESS;
    *graph = NULL;
    pthread_mutex_lock(&fake_lock);
    struct CUstream_st *s = fake_stream_locked(stream, ctx, "cuStreamEndCapture", &why);
    if (s && !s->capture.origin) why = fake_wrong(FAKE_INVALID_VALUE, "cuStreamEndCapture: no capture began there");
    if (s && !why) {
        *graph = s->capture.graph;
        for (struct CUstream_st *o = fake_streams_locked(); o; o = o->next) {
            if (o == s || o->capture.graph != *graph) continue;
            if (!joined(s, o)) why = fake_wrong(904, "cuStreamEndCapture: a forked stream was not joined");
            o->capture = (fake_capture_t){0};
        }
        s->capture = (fake_capture_t){0};
        captures--;
        (*graph)->open = false;
        if (atomic_load(&broken)) {
            leave_graph(*graph);
            *graph = NULL;
            why = FAKE_CAPTURE_INVALIDATED;
        }
        if (!captures) atomic_store(&broken, false);
    }
    pthread_mutex_unlock(&fake_lock);
    return why;
}

kolo_cu_result_t cuStreamGetCaptureInfo_v2(kolo_cu_stream_t stream, int *status, unsigned long long *id,
                                           kolo_cu_graph_t *graph, const kolo_cu_node_t **nodes, size_t *n)
{
    FAKE_CONTEXT(ctx);
    kolo_cu_result_t why = KOLO_CU_SUCCESS;
    pthread_mutex_lock(&fake_lock);
    const struct CUstream_st *s = fake_stream_locked(stream, ctx, "cuStreamGetCaptureInfo", &why);
    if (s) *status = state_of(s);
    if (s && *status == KOLO_CU_CAPTURE_ACTIVE) {
        *id = s->capture.graph->id;
        *graph = s->capture.graph;
        *nodes = s->capture.nodes;
        *n = s->capture.n;
    }
    pthread_mutex_unlock(&fake_lock);
    return why;
}

kolo_cu_result_t cuStreamUpdateCaptureDependencies(kolo_cu_stream_t stream, kolo_cu_node_t *nodes, size_t n,
                                                   unsigned flags)
{
    FAKE_CONTEXT(ctx);
    kolo_cu_result_t why = KOLO_CU_SUCCESS;
    pthread_mutex_lock(&fake_lock);
    struct CUstream_st *s = fake_stream_locked(stream, ctx, "cuStreamUpdateCaptureDependencies", &why);
    if (s && (!s->capture.graph || flags != KOLO_CU_CAPTURE_ADD))
        why = fake_wrong(FAKE_INVALID_VALUE, "cuStreamUpdateCaptureDependencies: no capture, or flags %u", flags);
    if (s && !why) join(&s->capture, nodes, n);
    pthread_mutex_unlock(&fake_lock);
    return why;
}

kolo_cu_result_t cuThreadExchangeStreamCaptureMode(int *mode)
{
    int old = capture_mode;
    FAKE_READY();
    capture_mode = *mode;
    *mode = old;
    return KOLO_CU_SUCCESS;
}

/* ---- exported: graphs ---- */

kolo_cu_result_t cuGraphAddEventRecordNode(kolo_cu_node_t *node, kolo_cu_graph_t graph,
                                           const kolo_cu_node_t *behind, size_t n, kolo_cu_event_t event)
{
    FAKE_CONTEXT(ctx);
    pthread_mutex_lock(&fake_lock);
    struct CUevent_st *e = fake_event_locked(event, "cuGraphAddEventRecordNode");
    if (e) {
        *node = add_node(graph, ctx, &(work_t){.kind = RECORD}, behind, n);
        (*node)->event = e;
    }
    pthread_mutex_unlock(&fake_lock);
    return e ? KOLO_CU_SUCCESS : FAKE_INVALID_HANDLE;
}

kolo_cu_result_t cuGraphAddDependencies(kolo_cu_graph_t graph, const kolo_cu_node_t *from, const kolo_cu_node_t *to,
                                        size_t n)
{
    FAKE_READY();
    (void)graph;
    pthread_mutex_lock(&fake_lock);
    for (size_t i = 0; i < n; i++) come_behind(to[i], from[i]);
    pthread_mutex_unlock(&fake_lock);
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuGraphRemoveDependencies(kolo_cu_graph_t graph, const kolo_cu_node_t *from,
                                           const kolo_cu_node_t *to, size_t n)
{
    FAKE_READY();
    kolo_cu_result_t why = KOLO_CU_SUCCESS;
    pthread_mutex_lock(&fake_lock);
    for (kolo_cu_node_t node = graph->head; node; node = node->next)
        if (node->work.kind == GET) why = NOT_SUPPORTED; /* as the real one has it */
    for (size_t i = 0; i < n && !why; i++) {
        size_t k = 0;
        while (k < to[i]->n && to[i]->behind[k] != from[i]) k++;
        if (k == to[i]->n)
            why = fake_wrong(FAKE_INVALID_VALUE, "cuGraphRemoveDependencies: there is no such edge");
        else
            to[i]->behind[k] = to[i]->behind[--to[i]->n];
    }
    pthread_mutex_unlock(&fake_lock);
    return why;
}

kolo_cu_result_t cuGraphInstantiateWithFlags(kolo_cu_graph_t *exec, kolo_cu_graph_t graph, unsigned long long flags)
{
    FAKE_READY();
    if (!graph || flags) return fake_wrong(FAKE_INVALID_VALUE, "cuGraphInstantiate with flags %llu", flags);
    pthread_mutex_lock(&fake_lock);
    graph->refs++;
    *exec = graph;
    pthread_mutex_unlock(&fake_lock);
    return KOLO_CU_SUCCESS;
}

static kolo_cu_result_t destroy(kolo_cu_graph_t graph)
{
    FAKE_READY();
    pthread_mutex_lock(&fake_lock);
    leave_graph(graph);
    pthread_mutex_unlock(&fake_lock);
    return KOLO_CU_SUCCESS;
}
kolo_cu_result_t cuGraphExecDestroy(kolo_cu_graph_t exec)
{
    return destroy(exec);
}
kolo_cu_result_t cuGraphDestroy(kolo_cu_graph_t graph)
{
    return destroy(graph);
}

kolo_cu_result_t cuGraphRetainUserObject(kolo_cu_graph_t graph, kolo_cu_object_t object, unsigned refs,
                                         unsigned flags)
{
    FAKE_READY();
    if (!object || refs != 1 || flags != KOLO_CU_OBJECT_MOVE)
        return fake_wrong(FAKE_INVALID_VALUE, "cuGraphRetainUserObject(%u, %u)", refs, flags);
    pthread_mutex_lock(&fake_lock);
    graph->objects = realloc(graph->objects, (graph->nobjects + 1) * sizeof(kolo_cu_object_t));
    if (!graph->objects) abort();
    graph->objects[graph->nobjects++] = object;
    pthread_mutex_unlock(&fake_lock);
    return KOLO_CU_SUCCESS;
}

/* ---- exported: what is in a graph ---- */

kolo_cu_result_t cuGraphGetNodes(kolo_cu_graph_t graph, kolo_cu_node_t *nodes, size_t *n)
{
    size_t there = 0;
    FAKE_READY();
    pthread_mutex_lock(&fake_lock);
    for (kolo_cu_node_t node = graph->head; node; node = node->next, there++)
        if (nodes && there < *n) nodes[there] = node;
    pthread_mutex_unlock(&fake_lock);
    if (!nodes || there < *n) *n = there;
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuGraphNodeGetType(kolo_cu_node_t node, int *type)
{
    FAKE_READY();
    *type = node->work.kind == GET ? KOLO_CU_GRAPH_NODE_GETS : 0;
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuGraphMemAllocNodeGetParams(kolo_cu_node_t node, kolo_cu_get_node_t *get)
{
    FAKE_READY();
    if (node->work.kind != GET) return fake_wrong(FAKE_INVALID_VALUE, "%p gets no memory", (void *)node);
    *get = (kolo_cu_get_node_t){.bytes = node->work.bytes, .at = node->work.to};
    return KOLO_CU_SUCCESS;
}

/* ---- replays ---- */

/* On the stream of a node before it, if that one has no work behind it yet; else on one of its own. */
static struct CUstream_st *lane_of(kolo_cu_node_t node, mark_t *begin, struct CUstream_st **all, size_t *n)
{
    for (size_t i = 0; i < node->n; i++)
        if (node->behind[i]->lane->last == node->behind[i]->mark) return node->behind[i]->lane;
    struct CUstream_st *lane = all[(*n)++] = fake_new_stream_locked(node->ctx, false);
    fake_push_wait(lane, begin);
    return lane;
}

static void replay(kolo_cu_node_t node, mark_t *begin, struct CUstream_st **all, size_t *n)
{
    node->lane = lane_of(node, begin, all, n);
    for (size_t i = 0; i < node->n; i++)
        if (node->behind[i]->lane != node->lane) fake_push_wait(node->lane, node->behind[i]->mark);
    if (node->waits) fake_push_wait(node->lane, node->event->mark);
    work_t work = node->work;
    if (work.launch) work.launch = fake_launch_again(work.launch);
    fake_drop(node->mark);
    node->mark = fake_hold(fake_push_one(node->lane, work));
    if (!node->event || node->waits) return;
    fake_drop(node->event->mark);
    node->event->mark = fake_hold(node->mark);
    node->event->capture = (fake_capture_t){0};
}

static bool ready(const struct CUgraphNode_st *node, unsigned number)
{
    for (size_t i = 0; i < node->n; i++)
        if (node->behind[i]->replay != number) return false;
    return true;
}

static void run(kolo_cu_graph_t graph, struct CUstream_st *s)
{
    size_t nodes = 0, lanes = 0, left;
    for (kolo_cu_node_t node = graph->head; node; node = node->next) nodes++;
    struct CUstream_st **all = calloc(nodes ? nodes : 1, sizeof(struct CUstream_st *));
    if (!all) abort();
    unsigned number = ++graph->replays;
    mark_t *begin = fake_hold(s->last);
    for (left = nodes; left;) { /* one that was added early may come behind later ones */
        size_t before = left;
        for (kolo_cu_node_t node = graph->head; node; node = node->next) {
            if (node->replay == number || !ready(node, number)) continue;
            replay(node, begin, all, &lanes);
            node->replay = number;
            left--;
        }
        if (left == before) fake_abort("a graph that is a circle");
    }
    for (size_t i = 0; i < lanes; i++) {
        fake_push_wait(s, all[i]->last);
        all[i]->destroyed = true;
        pthread_cond_signal(&all[i]->more);
    }
    fake_drop(begin);
    fake_drop(graph->replayed);
    graph->replayed = fake_hold(s->last);
    free(all);
}

kolo_cu_result_t cuGraphLaunch(kolo_cu_graph_t exec, kolo_cu_stream_t stream)
{
    FAKE_CONTEXT(ctx);
    kolo_cu_result_t why = KOLO_CU_SUCCESS;
    pthread_mutex_lock(&fake_lock);
    struct CUstream_st *s = fake_stream_locked(stream, ctx, "cuGraphLaunch", &why);
    if (s) run(exec, s);
    pthread_mutex_unlock(&fake_lock);
    return why;
}
