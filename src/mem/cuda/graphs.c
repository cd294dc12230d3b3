/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs that outlive the communicator whose calls were captured in them: a replay would touch memory that is gone.
 * Each such graph holds an object of the driver's, whose end counts. It must not call the driver, so the memory is
 * freed by whoever makes or ends the next communicator. See order.h.
 */
#include "base/log.h"
#include "mem/cuda/order.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kolo_cuda_order_t *left; /* by their owners, with graphs */

/* Runs on a thread of the driver. Touches nothing behind the count: the order may be freed then. */
static void let_go(void *graphs)
{
    atomic_fetch_sub_explicit((_Atomic uint32_t *)graphs, 1, memory_order_release);
}

void kolo_cuda_graphs_hold(kolo_cuda_order_t *o, kolo_cu_graph_t graph)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_object_t object;
    if (!api->object_create || !api->object_release || !api->graph_retain) return;
    kolo_cu_result_t r = api->object_create(&object, &o->graphs, let_go, 1, KOLO_CU_OBJECT_NO_WAIT);
    if (!r) {
        atomic_fetch_add_explicit(&o->graphs, 1, memory_order_relaxed);
        r = api->graph_retain(graph, object, 1, KOLO_CU_OBJECT_MOVE);
        if (r) api->object_release(object, 1);
    }
    if (r) kolo_info("exec", "GPU %d: a graph cannot hold what its operations use (%d)", o->device->ordinal, r);
}

bool kolo_cuda_graphs_any(const kolo_cuda_order_t *o)
{
    return atomic_load_explicit(&o->graphs, memory_order_acquire) != 0;
}

void kolo_cuda_graphs_leave(kolo_cuda_order_t *o, void (*end)(void *arg), void *arg)
{
    if (!kolo_cuda_graphs_any(o)) {
        end(arg);
        return;
    }
    o->end = end;
    o->arg = arg;
    pthread_mutex_lock(&lock);
    o->next_left = left;
    left = o;
    pthread_mutex_unlock(&lock);
}

static kolo_cuda_order_t *take(void)
{
    pthread_mutex_lock(&lock);
    kolo_cuda_order_t **at = &left;
    while (*at && kolo_cuda_graphs_any(*at)) at = &(*at)->next_left;
    kolo_cuda_order_t *o = *at;
    if (o) *at = o->next_left;
    pthread_mutex_unlock(&lock);
    return o;
}

void kolo_cuda_graphs_sweep(void)
{
    for (kolo_cuda_order_t *o; (o = take()) != NULL;) o->end(o->arg);
}
