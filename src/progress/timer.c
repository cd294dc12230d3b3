/* SPDX-License-Identifier: Apache-2.0
 *
 * Timers of the progress thread: a binary heap by due time. A timer leaves the heap when it fires and lives on
 * until its owner cancels it, so that an owner never holds a dangling pointer.
 */
#include "base/clock.h"
#include "progress/internal.h"

#include <stdlib.h>

#define NOT_IN_HEAP SIZE_MAX

struct kolo_timer {
    kolo_progress_t *progress;
    uint64_t due_ns;
    kolo_timer_fn_t fn;
    void *arg;
    size_t index;
};

static void heap_put(kolo_progress_t *progress, size_t index, kolo_timer_t *timer)
{
    progress->heap[index] = timer;
    timer->index = index;
}

static void heap_up(kolo_progress_t *progress, size_t index)
{
    kolo_timer_t *timer = progress->heap[index];
    while (index > 0) {
        size_t parent = (index - 1) / 2;
        if (progress->heap[parent]->due_ns <= timer->due_ns) break;
        heap_put(progress, index, progress->heap[parent]);
        index = parent;
    }
    heap_put(progress, index, timer);
}

static void heap_down(kolo_progress_t *progress, size_t index)
{
    kolo_timer_t *timer = progress->heap[index];
    for (;;) {
        size_t child = 2 * index + 1;
        if (child >= progress->ntimers) break;
        if (child + 1 < progress->ntimers && progress->heap[child + 1]->due_ns < progress->heap[child]->due_ns)
            child++;
        if (timer->due_ns <= progress->heap[child]->due_ns) break;
        heap_put(progress, index, progress->heap[child]);
        index = child;
    }
    heap_put(progress, index, timer);
}

static void heap_remove(kolo_progress_t *progress, kolo_timer_t *timer)
{
    size_t index = timer->index;
    kolo_timer_t *last = progress->heap[--progress->ntimers];
    timer->index = NOT_IN_HEAP;
    if (last == timer) return;
    heap_put(progress, index, last);
    heap_up(progress, index);
    heap_down(progress, last->index);
}

kolo_status_t kolo_timer_add(kolo_progress_t *progress, int64_t delay_ms, kolo_timer_fn_t fn, void *arg,
                             kolo_timer_t **out)
{
    kolo_timer_t *timer = malloc(sizeof(*timer));
    if (timer == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a timer");
    *timer = (kolo_timer_t){.progress = progress, .fn = fn, .arg = arg};
    timer->due_ns = kolo_now_ns() + (uint64_t)KOLO_MAX(delay_ms, 0) * KOLO_NS_PER_MS;

    pthread_mutex_lock(&progress->lock);
    if (progress->timers_alive == progress->timers_cap) {
        size_t cap = KOLO_MAX(progress->timers_cap * 2, (size_t)16);
        kolo_timer_t **heap = realloc(progress->heap, cap * sizeof(kolo_timer_t *));
        if (heap == NULL) {
            pthread_mutex_unlock(&progress->lock);
            free(timer);
            return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for %zu timers", cap);
        }
        progress->heap = heap;
        progress->timers_cap = cap;
    }
    progress->timers_alive++;
    *out = timer; /* before the handler can run */
    progress->heap[progress->ntimers] = timer;
    heap_up(progress, progress->ntimers++);
    if (timer->index == 0) kolo_progress_wake_locked(progress);
    pthread_mutex_unlock(&progress->lock);
    return KOLO_OK;
}

void kolo_timer_restart(kolo_timer_t *timer, int64_t delay_ms)
{
    kolo_progress_t *progress = timer->progress;
    if (kolo_progress_is_stale(progress)) return;
    pthread_mutex_lock(&progress->lock);
    if (timer->index != NOT_IN_HEAP) heap_remove(progress, timer);
    timer->due_ns = kolo_now_ns() + (uint64_t)KOLO_MAX(delay_ms, 0) * KOLO_NS_PER_MS;
    progress->heap[progress->ntimers] = timer; /* there is room for every timer that exists */
    heap_up(progress, progress->ntimers++);
    if (timer->index == 0) kolo_progress_wake_locked(progress);
    pthread_mutex_unlock(&progress->lock);
}

void kolo_timer_cancel(kolo_timer_t *timer)
{
    if (timer == NULL) return;
    kolo_progress_t *progress = timer->progress;
    if (!kolo_progress_is_stale(progress)) {
        pthread_mutex_lock(&progress->lock);
        if (timer->index != NOT_IN_HEAP) heap_remove(progress, timer);
        kolo_progress_wait_handler_locked(progress, timer);
        if (timer->index != NOT_IN_HEAP) heap_remove(progress, timer); /* its handler has restarted it */
        progress->timers_alive--;
        pthread_mutex_unlock(&progress->lock);
    }
    free(timer);
}

int kolo_timer_next_ms_locked(const kolo_progress_t *progress)
{
    if (progress->ntimers == 0) return -1;
    uint64_t now = kolo_now_ns(), due = progress->heap[0]->due_ns;
    if (due <= now) return 0;
    return (int)KOLO_MIN(KOLO_DIV_UP(due - now, KOLO_NS_PER_MS), (uint64_t)60000);
}

kolo_timer_t *kolo_timer_take_due_locked(kolo_progress_t *progress, uint64_t now_ns)
{
    if (progress->ntimers == 0 || progress->heap[0]->due_ns > now_ns) return NULL;
    kolo_timer_t *timer = progress->heap[0];
    heap_remove(progress, timer);
    return timer;
}

void kolo_timer_run(kolo_timer_t *timer)
{
    timer->fn(timer->arg); /* may free the timer */
}
