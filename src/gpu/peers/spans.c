/* SPDX-License-Identifier: Apache-2.0
 *
 * Mappings of other processes' allocations, and the threads that close them. See spans.h.
 *
 * CUDA leaves open what becomes of memory that its owner frees while others have it mapped. So a process maps
 * nothing that shares pages with other memory of the same owner that it still has mapped.
 */
#include "gpu/peers/spans.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process.h"
#include "base/wait.h"
#include "mem/cuda/beside.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define END_MS 1000

typedef struct kolo_span {
    struct kolo_span *next, *behind; /* of all; in a closer's list */
    kolo_cu_ptr_t at;
    uint64_t process, id, base, bytes;
    bool closing;
} span_t;
struct kolo_spans_closer {
    const kolo_cuda_device_t *device;
    pthread_t thread;
    bool started, busy;     /* the thread is to be joined; it still looks into the list */
    bool left;              /* nobody will join it: it frees this */
    struct kolo_span *list; /* to be closed */
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* also of the closers' lists */
static span_t *spans;

/* Tells whether two allocations of one process share pages. Short ones lie in pages of 2 MB with others. */
static bool share_pages(const span_t *a, const kolo_spans_what_t *b)
{
    const uint64_t page = a->bytes < 2 << 20 || b->bytes < 2 << 20 ? 2 << 20 : 1;
    uint64_t a_end = KOLO_ROUND_UP(a->base + a->bytes, page), b_end = KOLO_ROUND_UP(b->base + b->bytes, page);
    return a->base / page * page < b_end && b->base / page * page < a_end;
}

static const char *map_locked(const kolo_spans_what_t *what, kolo_cu_ptr_t *at, bool *later)
{
    for (const span_t *s = spans; s; s = s->next) {
        if (s->process != what->process || (s->id == what->id && !s->closing)) continue;
        if (s->id != what->id && !share_pages(s, what)) continue;
        *later = s->closing;
        return "it shares pages with other memory that is mapped, maybe freed";
    }
    return kolo_cuda_loaded()->ipc_open(at, what->handle, KOLO_CU_IPC_PEER_ACCESS) ? "refused by the driver" : NULL;
}

const char *kolo_spans_map(const kolo_spans_what_t *what, kolo_cu_ptr_t *at, bool *later)
{
    span_t *span = malloc(sizeof *span);
    *at = 0;
    *later = false;
    if (!span) return "out of memory";
    pthread_mutex_lock(&lock);
    const char *why = map_locked(what, at, later);
    if (!why) {
        *span = (span_t){.next = spans,
                         .at = *at,
                         .process = what->process,
                         .id = what->id,
                         .base = what->base,
                         .bytes = what->bytes};
        spans = span;
    }
    pthread_mutex_unlock(&lock);
    if (!why) return NULL;
    *at = 0;
    free(span);
    return why;
}

/* ---- closing ---- */

/* Closes it, without the lock. What could not be closed stays in the list: nothing is mapped beside it. */
static void close_span(span_t *span)
{
    kolo_cu_result_t r = kolo_cuda_loaded()->ipc_close(span->at);
    if (r) {
        kolo_info("wire", "memory of another process cannot be unmapped: CUDA error %d", (int)r);
        return;
    }
    pthread_mutex_lock(&lock);
    span_t **link = &spans;
    while (*link != span) link = &(*link)->next;
    *link = span->next;
    pthread_mutex_unlock(&lock);
    free(span);
}

static void close_listed(void *closer)
{
    kolo_spans_closer_t *c = closer;
    pthread_mutex_lock(&lock);
    for (span_t *span; (span = c->list);) {
        c->list = span->behind;
        pthread_mutex_unlock(&lock);
        close_span(span);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
}

/* Returns false if the closer was left meanwhile. */
static bool drain(kolo_spans_closer_t *c)
{
    bool more = true, left = false;
    while (more) {
        kolo_cuda_when_idle(c->device, close_listed, c);
        pthread_mutex_lock(&lock);
        more = c->busy = c->list;
        left = c->left;
        pthread_mutex_unlock(&lock);
    }
    return !left;
}

static void *work(void *arg)
{
    kolo_spans_closer_t *c = arg;
    int mode = KOLO_CU_CAPTURE_RELAXED; /* another thread may be capturing */
    bool pushed = false;
    if (kolo_cuda_enter(c->device, &pushed) != KOLO_OK) kolo_error_clear();
    kolo_cuda_loaded()->capture_mode(&mode);
    if (!drain(c)) free(c);
    kolo_cuda_leave(pushed);
    return NULL;
}

static void join(kolo_spans_closer_t *c)
{
    if (c->started) pthread_join(c->thread, NULL);
    c->started = false;
}

/* Sees that its thread looks into the list, or looks itself. */
static void wake(kolo_spans_closer_t *c)
{
    pthread_mutex_lock(&lock);
    bool busy = c->busy;
    c->busy = true;
    pthread_mutex_unlock(&lock);
    if (busy) return;
    join(c); /* a thread that has nothing left to do */
    c->started = !kolo_thread_start(&c->thread, 0, work, c);
    if (!c->started) (void)drain(c);
}

void kolo_spans_unmap(kolo_cu_ptr_t at, kolo_spans_closer_t *closer)
{
    if (!at) return;
    pthread_mutex_lock(&lock);
    span_t *span = spans;
    while (span && (span->at != at || span->closing)) span = span->next;
    if (span) span->closing = true;
    if (span && closer) {
        span->behind = closer->list;
        closer->list = span;
    }
    pthread_mutex_unlock(&lock);
    if (span && closer)
        wake(closer);
    else if (span)
        close_span(span);
}

kolo_spans_closer_t *kolo_spans_closer_open(const kolo_cuda_device_t *device)
{
    kolo_spans_closer_t *c = calloc(1, sizeof *c);
    if (c) c->device = device;
    return c;
}

static bool is_busy(const kolo_spans_closer_t *c)
{
    pthread_mutex_lock(&lock);
    bool busy = c->busy;
    pthread_mutex_unlock(&lock);
    return busy;
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const kolo_spans_closer_t *c = arg;
    snprintf(buf, bytes, "GPU %d" KOLO_WAIT_FOR "the driver to unmap memory of other processes",
             c->device->ordinal);
}

void kolo_spans_closer_end(kolo_spans_closer_t *c)
{
    kolo_wait_t wait;
    if (!c) return;
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(END_MS), describe, c, 1);
    while (is_busy(c) && kolo_wait_pause(&wait) == KOLO_OK) {
    }
    kolo_wait_end(&wait);
    pthread_mutex_lock(&lock);
    bool left = c->left = c->busy;
    pthread_t thread = c->thread; /* it may free what it has, once the lock is open */
    int ordinal = c->device->ordinal;
    pthread_mutex_unlock(&lock);
    if (left) {
        pthread_detach(thread);
        kolo_error_clear();
        kolo_info("wire", "GPU %d: memory of other processes stays mapped until the GPU has done what is queued",
                  ordinal);
        return;
    }
    join(c);
    free(c);
}
