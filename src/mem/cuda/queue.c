/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue of a CUDA device: a stream, and rings of events behind its work. A mark is the number of an event; a
 * slot of the ring that was recorded again marks later work, so a late query may answer too late, never too early.
 *
 * Times: an event of the device's clock is as many milliseconds after an anchor, whose time by the host's clock is
 * known. The anchor moves along, because a float counts milliseconds and loses the small ones.
 */
#include "base/clock.h"
#include "base/type.h"
#include "mem/cuda/beside.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MARKS        256u
#define STAMPS       256u
#define ANCHOR_MS    250.0f /* a float tells a hundredth of a microsecond there */
#define COPIES       4u     /* lifts that are plain copies: so many go without a kernel */
#define ADDRESS(p)   ((kolo_cu_ptr_t)(uintptr_t)(p))
#define EVENT_GENTLE 1u /* who sleeps on it does not spin */

typedef struct {
    const kolo_cuda_api_t *api;
    const kolo_cuda_device_t *device;
    kolo_cu_stream_t stream;
    kolo_cu_event_t marks[MARKS], stamps[STAMPS], anchor;
    uint64_t nmarks, nstamps; /* that were given: numbers from 1 on */
    _Atomic uint64_t done;    /* marks up to here are known to be reached */
    uint64_t anchor_ns;       /* 0: no stamp was ever asked for */
    pthread_mutex_t notes;    /* of what follows */
    kolo_cu_event_t *spare;
    size_t nspare, notes_room;
    uint64_t nnotes;
} queue_t;

static const kolo_cuda_tensor_fns_t *fns;

void kolo_cuda_set_tensor_fns(const kolo_cuda_tensor_fns_t *given)
{
    fns = given;
}

static kolo_status_t ended(const queue_t *q, kolo_cu_result_t r, bool pushed, const char *what)
{
    kolo_cuda_leave(pushed);
    return r ? kolo_cuda_fail(r, q->device->ordinal, what) : KOLO_OK;
}

/* ---- life ---- */

static void free_events(const queue_t *q, kolo_cu_event_t *events, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (events[i]) q->api->event_destroy(events[i]);
}

static void close_queue(void *queue)
{
    queue_t *q = queue;
    bool pushed = false;
    if (kolo_cuda_enter(q->device, &pushed) == KOLO_OK) {
        free_events(q, q->marks, MARKS);
        free_events(q, q->stamps, STAMPS);
        free_events(q, &q->anchor, 1);
        free_events(q, q->spare, q->nspare);
        if (q->stream) q->api->stream_destroy(q->stream);
        kolo_cuda_leave(pushed);
    }
    pthread_mutex_destroy(&q->notes);
    free(q->spare);
    free(q);
}

static kolo_status_t open_queue(int device, void (*tell)(void *arg), void *arg, void **queue)
{
    const kolo_cuda_device_t *d;
    bool pushed;
    (void)tell, (void)arg; /* the driver could only tell from within the stream, which costs it microseconds */
    KOLO_TRY(kolo_cuda_device(device, &d));
    queue_t *q = calloc(1, sizeof *q);
    if (!q) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a queue of GPU %d", device);
    q->api = kolo_cuda_loaded();
    q->device = d;
    pthread_mutex_init(&q->notes, NULL);
    kolo_status_t status = kolo_cuda_enter(d, &pushed);
    if (status == KOLO_OK) {
        kolo_cu_result_t r = q->api->stream_create(&q->stream, KOLO_CU_STREAM_NON_BLOCKING);
        status = ended(q, r, pushed, "make a stream");
    }
    if (status == KOLO_OK)
        *queue = q;
    else
        close_queue(q);
    return status;
}

/* ---- memory ---- */

static kolo_status_t pin(void *queue, void *host, size_t bytes)
{
    queue_t *q = queue;
    bool pushed;
    if (!bytes) return KOLO_OK;
    KOLO_TRY(kolo_cuda_enter(q->device, &pushed));
    return ended(q, q->api->host_register(host, bytes, KOLO_CU_HOST_PORTABLE), pushed, "pin host memory");
}

static void unpin_idle(void *host)
{
    kolo_cuda_loaded()->host_unregister(host);
}

static void unpin(void *queue, void *host)
{
    queue_t *q = queue;
    bool pushed;
    if (kolo_cuda_enter(q->device, &pushed) != KOLO_OK) return;
    kolo_cuda_when_idle(q->device, unpin_idle, host);
    kolo_cuda_leave(pushed);
}

static kolo_status_t copy(queue_t *q, kolo_cu_ptr_t to, kolo_cu_ptr_t from, size_t bytes)
{
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(q->device, &pushed));
    return ended(q, q->api->memcpy_async(to, from, bytes, q->stream), pushed, "queue a copy");
}

static kolo_status_t fetch(void *queue, void *host, const void *memory, size_t bytes)
{
    return copy(queue, ADDRESS(host), ADDRESS(memory), bytes);
}

static kolo_status_t store(void *queue, void *memory, const void *host, size_t bytes)
{
    return copy(queue, ADDRESS(memory), ADDRESS(host), bytes);
}

static kolo_status_t lift(void *queue, const kolo_lift_t *list, size_t n)
{
    queue_t *q = queue;
    bool plain = n <= COPIES, pushed;
    for (size_t i = 0; i < n; i++) plain = plain && list[i].from && list[i].factor == 1.0;
    for (size_t i = 0; plain && i < n; i++)
        if (list[i].count > 0 && list[i].to != list[i].from)
            KOLO_TRY(
                copy(q, ADDRESS(list[i].to), ADDRESS(list[i].from), list[i].count * kolo_type_bytes(list[i].type)));
    if (plain) return KOLO_OK;
    if (!fns) return kolo_fail(KOLO_ERR_UNSUPPORTED, "there is no kernel that packs tensors");
    KOLO_TRY(kolo_cuda_enter(q->device, &pushed));
    kolo_status_t status = fns->lift(q->device, list, n, q->stream);
    kolo_cuda_leave(pushed);
    return status;
}

static kolo_status_t products(void *queue, const kolo_blend_t *list, size_t n, kolo_type_t type, double *room)
{
    queue_t *q = queue;
    bool pushed;
    if (!fns) return kolo_fail(KOLO_ERR_UNSUPPORTED, "there is no kernel for Adasum");
    KOLO_TRY(kolo_cuda_enter(q->device, &pushed));
    kolo_status_t status = fns->blend(q->device, list, n, type, room, q->stream);
    kolo_cuda_leave(pushed);
    return status;
}

static kolo_status_t blend(void *queue, const kolo_blend_t *list, size_t n, kolo_type_t type)
{
    return products(queue, list, n, type, NULL);
}

/* ---- events ---- */

static kolo_status_t passed(void *queue, void *event)
{
    const queue_t *q = queue;
    kolo_cu_result_t r = kolo_cuda_event_query(event);
    if (r == KOLO_CU_NOT_READY) return KOLO_IN_PROGRESS;
    return r ? kolo_cuda_fail(r, q->device->ordinal, "ask for an event") : KOLO_OK;
}

/* Records the next one of a ring, which is made when it is first used. */
static kolo_cu_result_t record(queue_t *q, kolo_cu_event_t *slot, unsigned flags)
{
    kolo_cu_result_t r = *slot ? KOLO_CU_SUCCESS : q->api->event_create(slot, flags);
    return r ? r : q->api->event_record(*slot, q->stream);
}

static kolo_status_t mark(void *queue, uint64_t *at)
{
    queue_t *q = queue;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(q->device, &pushed));
    kolo_cu_result_t r = record(q, &q->marks[(q->nmarks + 1) % MARKS], KOLO_CU_EVENT_NO_TIMING | EVENT_GENTLE);
    if (!r) *at = ++q->nmarks;
    return ended(q, r, pushed, "record an event");
}

static void *event_of(void *queue, uint64_t at)
{
    return ((queue_t *)queue)->marks[at % MARKS];
}

static kolo_status_t reached(void *queue, uint64_t at)
{
    queue_t *q = queue;
    uint64_t done = atomic_load(&q->done);
    if (at <= done) return KOLO_OK;
    KOLO_TRY(passed(q, event_of(q, at)));
    while (done < at && !atomic_compare_exchange_weak(&q->done, &done, at)) continue;
    return KOLO_OK;
}

static void *stream_of(void *queue)
{
    return ((queue_t *)queue)->stream;
}

static kolo_status_t wait_event(void *queue, void *event)
{
    queue_t *q = queue;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(q->device, &pushed));
    return ended(q, q->api->stream_wait(q->stream, event, 0), pushed, "let a stream wait");
}

/* ---- the program's streams ---- */

/* Records an event behind what stands in the stream. One after the other, so that numbers tell the order. */
static kolo_cu_result_t record_note(queue_t *q, void *stream, kolo_queue_note_t *note)
{
    unsigned long long id = 0;
    pthread_mutex_lock(&q->notes);
    kolo_cu_event_t e = q->nspare > 0 ? q->spare[--q->nspare] : NULL;
    kolo_cu_result_t r = e ? KOLO_CU_SUCCESS : q->api->event_create(&e, KOLO_CU_EVENT_NO_TIMING);
    if (!r) r = q->api->event_record(e, stream);
    if (!r) *note = (kolo_queue_note_t){.event = e, .number = ++q->nnotes};
    pthread_mutex_unlock(&q->notes);
    if (r && e) q->api->event_destroy(e);
    if (!r && q->api->stream_id && q->api->stream_id(stream, &id) == KOLO_CU_SUCCESS) note->stream = id;
    return r;
}

static kolo_status_t note(void *queue, void *stream, kolo_queue_note_t *note)
{
    queue_t *q = queue;
    bool captured, pushed;
    KOLO_TRY(kolo_cuda_enter(q->device, &pushed));
    kolo_status_t status = kolo_cuda_capturing(q->device, stream, &captured);
    if (status == KOLO_OK && !captured)
        return ended(q, record_note(q, stream, note), pushed, "record an event in the program's stream");
    kolo_cuda_leave(pushed); /* its event would become a part of the graph, and no other stream could wait */
    if (status != KOLO_OK) return status;
    return kolo_fail(
        KOLO_ERR_UNSUPPORTED,
        "the stream is being captured: what ranks agree on by name cannot be a part of a graph (submit "
        "before the capture, or capture calls of a communicator)");
}

/* Gives an event back: the stream keeps what it stood for when it was told to wait. */
static void drop_note(void *queue, void *event)
{
    queue_t *q = queue;
    pthread_mutex_lock(&q->notes);
    if (q->nspare == q->notes_room) {
        size_t room = q->notes_room ? 2 * q->notes_room : 64;
        kolo_cu_event_t *spare = realloc(q->spare, room * sizeof(kolo_cu_event_t));
        if (spare) q->spare = spare;
        if (spare) q->notes_room = room;
    }
    bool kept = q->nspare < q->notes_room;
    if (kept) q->spare[q->nspare++] = event;
    pthread_mutex_unlock(&q->notes);
    if (!kept) q->api->event_destroy(event);
}

static kolo_status_t wait_note(void *queue, void *event)
{
    kolo_status_t status = wait_event(queue, event);
    drop_note(queue, event);
    return status;
}

static kolo_status_t lead(void *queue, uint64_t at, void *stream)
{
    queue_t *q = queue;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(q->device, &pushed));
    return ended(q, q->api->stream_wait(stream, event_of(q, at), 0), pushed, "let the program's stream wait");
}

/* ---- times ---- */

/* Sets the device's clock beside the host's by an event that is recorded and waited for. Once, when nothing is
 * queued. */
static kolo_status_t drop_anchor(queue_t *q)
{
    kolo_cu_result_t r = record(q, &q->anchor, 0);
    if (r) return kolo_cuda_fail(r, q->device->ordinal, "record an event with a time");
    KOLO_TRY(kolo_cuda_drain(q->device, q->stream, kolo_deadline_ms(KOLO_CUDA_COPY_MS), "tell its time"));
    q->anchor_ns = kolo_now_ns();
    return KOLO_OK;
}

static kolo_status_t stamp(void *queue, uint64_t *at)
{
    queue_t *q = queue;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(q->device, &pushed));
    kolo_status_t status = q->anchor_ns ? KOLO_OK : drop_anchor(q);
    if (status != KOLO_OK) {
        kolo_cuda_leave(pushed);
        return status;
    }
    kolo_cu_result_t r = record(q, &q->stamps[(q->nstamps + 1) % STAMPS], 0);
    if (!r) *at = ++q->nstamps;
    return ended(q, r, pushed, "record an event with a time");
}

static kolo_status_t time_of(void *queue, uint64_t at, uint64_t *ns)
{
    queue_t *q = queue;
    float ms = 0;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(q->device, &pushed));
    kolo_cu_event_t *slot = &q->stamps[at % STAMPS];
    kolo_cu_result_t r = q->api->event_elapsed(&ms, q->anchor, *slot);
    if (!r) *ns = KOLO_MIN((uint64_t)((int64_t)q->anchor_ns + (int64_t)((double)ms * 1e6)), kolo_now_ns());
    if (!r && ms > ANCHOR_MS) { /* it takes the anchor's place, and its slot the old one */
        kolo_cu_event_t old = q->anchor;
        q->anchor = *slot;
        *slot = old;
        q->anchor_ns = *ns;
    }
    return ended(q, r, pushed, "ask for the time of an event");
}

const kolo_mem_queue_ops_t kolo_cuda_queues = {.tells = false,
                                               .open = open_queue,
                                               .close = close_queue,
                                               .pin = pin,
                                               .unpin = unpin,
                                               .passed = passed,
                                               .lift = lift,
                                               .products = products,
                                               .blend = blend,
                                               .fetch = fetch,
                                               .store = store,
                                               .mark = mark,
                                               .reached = reached,
                                               .stream = stream_of,
                                               .wait = wait_event,
                                               .note = note,
                                               .wait_note = wait_note,
                                               .drop_note = drop_note,
                                               .event_of = event_of,
                                               .lead = lead,
                                               .stamp = stamp,
                                               .time_of = time_of};
