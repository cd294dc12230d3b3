/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake driver's events: an event holds on to the mark of the work that it was recorded behind.
 */
#include "memory.h"
#include "stream.h"

#include <stdlib.h>

static struct CUevent_st *events;

struct CUevent_st *fake_event_locked(kolo_cu_event_t handle, const char *what)
{
    for (struct CUevent_st *e = events; e; e = e->next)
        if (e == handle) return e;
    fake_wrong(0, "%s: %p is no event, or was destroyed", what, (void *)handle);
    return NULL;
}

/* ---- exported ---- */

kolo_cu_result_t cuEventCreate(kolo_cu_event_t *event, unsigned flags)
{
    FAKE_CONTEXT(ctx);
    if (flags & ~7u) return fake_wrong(FAKE_INVALID_VALUE, "cuEventCreate(%u)", flags);
    struct CUevent_st *e = calloc(1, sizeof *e);
    if (!e) abort();
    e->ctx = ctx;
    e->timing = !(flags & KOLO_CU_EVENT_NO_TIMING);
    pthread_mutex_lock(&fake_lock);
    e->next = events;
    events = e;
    pthread_mutex_unlock(&fake_lock);
    *event = e;
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuEventRecord(kolo_cu_event_t event, kolo_cu_stream_t stream)
{
    FAKE_CONTEXT(ctx);
    kolo_cu_result_t why = FAKE_INVALID_HANDLE;
    fake_go_on(ctx);
    pthread_mutex_lock(&fake_lock);
    struct CUevent_st *e = fake_event_locked(event, "cuEventRecord");
    if (e && e->ctx != ctx) {
        fake_wrong(0, "cuEventRecord: the event belongs to device %d, the stream to %d", e->ctx->device,
                   ctx->device);
    } else if (e) {
        why = KOLO_CU_SUCCESS;
        struct CUstream_st *s = fake_taker_locked(stream, ctx, "cuEventRecord", &why);
        if (s) {
            e->capture = s->capture;
            mark_t *mark = s->capture.graph ? NULL : fake_hold(fake_push(s, (work_t){.kind = RECORD}));
            fake_drop(e->mark);
            e->mark = mark;
        }
    }
    pthread_mutex_unlock(&fake_lock);
    return why;
}

kolo_cu_result_t cuEventQuery(kolo_cu_event_t event)
{
    FAKE_READY();
    if (fake_capture_forbids(__func__)) return FAKE_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&fake_lock);
    struct CUevent_st *e = fake_event_locked(event, "cuEventQuery");
    kolo_cu_result_t r = !e                 ? FAKE_INVALID_HANDLE
                         : e->capture.graph ? fake_wrong(FAKE_CAPTURED_EVENT, "cuEventQuery: recorded in a capture")
                         : e->mark && !e->mark->done ? KOLO_CU_NOT_READY
                                                     : KOLO_CU_SUCCESS;
    pthread_mutex_unlock(&fake_lock);
    return r;
}

kolo_cu_result_t cuEventSynchronize(kolo_cu_event_t event)
{
    FAKE_READY();
    if (fake_capture_forbids(__func__)) return FAKE_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&fake_lock);
    struct CUevent_st *e = fake_event_locked(event, "cuEventSynchronize");
    if (e) fake_await(fake_hold(e->mark));
    pthread_mutex_unlock(&fake_lock);
    return e ? KOLO_CU_SUCCESS : FAKE_INVALID_HANDLE;
}

kolo_cu_result_t cuEventElapsedTime_v2(float *ms, kolo_cu_event_t start, kolo_cu_event_t end)
{
    FAKE_READY();
    kolo_cu_result_t r = FAKE_INVALID_HANDLE;
    pthread_mutex_lock(&fake_lock);
    struct CUevent_st *a = fake_event_locked(start, "cuEventElapsedTime"),
                      *b = fake_event_locked(end, "cuEventElapsedTime");
    if (a && b && a->timing && b->timing && a->mark && b->mark) {
        r = a->mark->done && b->mark->done ? KOLO_CU_SUCCESS : KOLO_CU_NOT_READY;
        if (!r) *ms = (float)(((double)b->mark->ns - (double)a->mark->ns) / 1e6);
    }
    pthread_mutex_unlock(&fake_lock);
    return r;
}

kolo_cu_result_t cuEventElapsedTime(float *ms, kolo_cu_event_t start, kolo_cu_event_t end)
{
    return cuEventElapsedTime_v2(ms, start, end);
}

kolo_cu_result_t cuEventDestroy_v2(kolo_cu_event_t event)
{
    FAKE_CONTEXT(ctx);
    (void)ctx;
    pthread_mutex_lock(&fake_lock);
    struct CUevent_st *e = fake_event_locked(event, "cuEventDestroy");
    for (struct CUevent_st **p = &events; e && *p; p = &(*p)->next) {
        if (*p != e) continue;
        *p = e->next;
        fake_drop(e->mark);
        free(e);
        break;
    }
    pthread_mutex_unlock(&fake_lock);
    return e ? KOLO_CU_SUCCESS : FAKE_INVALID_HANDLE;
}
