/* SPDX-License-Identifier: Apache-2.0
 *
 * Timers of the engine: a binary heap by due time. A timer leaves the heap when it fires and lives on until its
 * owner cancels it, so that an owner never holds a dangling pointer.
 */
#include "base/clock.h"
#include "progress/engine_internal.h"

#include <stdlib.h>

#define NOT_IN_HEAP SIZE_MAX

struct kolo_timer {
    kolo_engine_t *engine;
    uint64_t due_ns;
    kolo_timer_fn_t fn;
    void *arg;
    size_t index;
};

static void heap_put(kolo_engine_t *engine, size_t index, kolo_timer_t *timer)
{
    engine->heap[index] = timer;
    timer->index = index;
}

static void heap_up(kolo_engine_t *engine, size_t index)
{
    kolo_timer_t *timer = engine->heap[index];
    while (index > 0) {
        size_t parent = (index - 1) / 2;
        if (engine->heap[parent]->due_ns <= timer->due_ns) break;
        heap_put(engine, index, engine->heap[parent]);
        index = parent;
    }
    heap_put(engine, index, timer);
}

static void heap_down(kolo_engine_t *engine, size_t index)
{
    kolo_timer_t *timer = engine->heap[index];
    for (;;) {
        size_t child = 2 * index + 1;
        if (child >= engine->ntimers) break;
        if (child + 1 < engine->ntimers && engine->heap[child + 1]->due_ns < engine->heap[child]->due_ns) child++;
        if (timer->due_ns <= engine->heap[child]->due_ns) break;
        heap_put(engine, index, engine->heap[child]);
        index = child;
    }
    heap_put(engine, index, timer);
}

static void heap_remove(kolo_engine_t *engine, kolo_timer_t *timer)
{
    size_t index = timer->index;
    kolo_timer_t *last = engine->heap[--engine->ntimers];
    timer->index = NOT_IN_HEAP;
    if (last == timer) return;
    heap_put(engine, index, last);
    heap_up(engine, index);
    heap_down(engine, last->index);
}

kolo_status_t kolo_timer_add(kolo_engine_t *engine, int64_t delay_ms, kolo_timer_fn_t fn, void *arg,
                             kolo_timer_t **out)
{
    kolo_timer_t *timer = malloc(sizeof(*timer));
    if (timer == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for an engine timer");
    *timer = (kolo_timer_t){.engine = engine, .fn = fn, .arg = arg};
    timer->due_ns = kolo_now_ns() + (uint64_t)KOLO_MAX(delay_ms, 0) * KOLO_NS_PER_MS;

    pthread_mutex_lock(&engine->lock);
    if (engine->timers_alive == engine->timers_cap) {
        size_t cap = KOLO_MAX(engine->timers_cap * 2, (size_t)16);
        kolo_timer_t **heap = realloc(engine->heap, cap * sizeof(kolo_timer_t *));
        if (heap == NULL) {
            pthread_mutex_unlock(&engine->lock);
            free(timer);
            return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for %zu engine timers", cap);
        }
        engine->heap = heap;
        engine->timers_cap = cap;
    }
    engine->timers_alive++;
    *out = timer; /* before the handler can run */
    engine->heap[engine->ntimers] = timer;
    heap_up(engine, engine->ntimers++);
    if (timer->index == 0) kolo_engine_wake_locked(engine);
    pthread_mutex_unlock(&engine->lock);
    return KOLO_OK;
}

void kolo_timer_restart(kolo_timer_t *timer, int64_t delay_ms)
{
    kolo_engine_t *engine = timer->engine;
    if (kolo_engine_is_stale(engine)) return;
    pthread_mutex_lock(&engine->lock);
    if (timer->index != NOT_IN_HEAP) heap_remove(engine, timer);
    timer->due_ns = kolo_now_ns() + (uint64_t)KOLO_MAX(delay_ms, 0) * KOLO_NS_PER_MS;
    engine->heap[engine->ntimers] = timer; /* there is room for every timer that exists */
    heap_up(engine, engine->ntimers++);
    if (timer->index == 0) kolo_engine_wake_locked(engine);
    pthread_mutex_unlock(&engine->lock);
}

void kolo_timer_cancel(kolo_timer_t *timer)
{
    if (timer == NULL) return;
    kolo_engine_t *engine = timer->engine;
    if (!kolo_engine_is_stale(engine)) {
        pthread_mutex_lock(&engine->lock);
        if (timer->index != NOT_IN_HEAP) heap_remove(engine, timer);
        kolo_engine_wait_handler_locked(engine, timer);
        engine->timers_alive--;
        pthread_mutex_unlock(&engine->lock);
    }
    free(timer);
}

int kolo_timer_next_ms_locked(const kolo_engine_t *engine)
{
    if (engine->ntimers == 0) return -1;
    uint64_t now = kolo_now_ns(), due = engine->heap[0]->due_ns;
    if (due <= now) return 0;
    return (int)KOLO_MIN(KOLO_DIV_UP(due - now, KOLO_NS_PER_MS), (uint64_t)60000);
}

kolo_timer_t *kolo_timer_take_due_locked(kolo_engine_t *engine, uint64_t now_ns)
{
    if (engine->ntimers == 0 || engine->heap[0]->due_ns > now_ns) return NULL;
    kolo_timer_t *timer = engine->heap[0];
    heap_remove(engine, timer);
    return timer;
}

void kolo_timer_run(kolo_timer_t *timer)
{
    timer->fn(timer->arg); /* may free the timer */
}
