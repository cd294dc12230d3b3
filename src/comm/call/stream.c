/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams and events on the CPU: an ordered queue of functions with a thread of its own. Errors of operations are
 * noted in the stream and handed out by synchronize. A call takes the lock of its stream alone, and a place in the
 * queue that an earlier one has left.
 */
#include "base/process.h"
#include "base/slots.h"
#include "comm/call/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct kolo_stream_item {
    void (*fn)(void *);
    void *arg;
    struct kolo_stream_item *next;
    _Alignas(16) unsigned char room[KOLO_STREAM_ROOM]; /* of what was pushed by copy */
} kolo_stream_item_t;

#define SPARE_MAX 256 /* items that a stream keeps for later calls */

struct kolo_cpu_stream {
    pthread_t thread;
    pthread_mutex_t lock;
    kolo_stream_item_t *head, *tail, *spare;
    uint32_t nspare;
    uint64_t pushed, ended; /* items */
    uint32_t forks;         /* kolo_process_forks() where it was made */
    bool stop;
    kolo_gate_t gate; /* opened on every change */
    kolo_status_t error;
    char error_text[KOLO_ERROR_TEXT_BYTES];
};

/* One recording of an event, on its way through a stream. Those of several streams are reached in any order. */
typedef struct record {
    struct kolo_cpu_event *event;
    uint64_t number;
    struct record *next;
} record_t;

struct kolo_cpu_event {
    kolo_slot_t slot;
    pthread_mutex_t lock;
    uint64_t recorded;     /* how often */
    record_t *open, *last; /* recordings that are not reached yet, by number */
    uint32_t forks;
    uint32_t references;
    kolo_gate_t gate;
};
static kolo_slots_t events = KOLO_SLOTS_OF(struct kolo_cpu_event);

/* All streams, so that a pointer to none is refused. Read without a lock; a block of places is never freed. */
typedef struct block {
    _Atomic(struct kolo_cpu_stream *) at[64];
    _Atomic(struct block *) next;
} block_t;
static block_t streams;
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER; /* of who writes */

/* Returns the place of a stream; NULL: of a free one. */
static _Atomic(struct kolo_cpu_stream *) *place_of(const void *stream)
{
    for (block_t *b = &streams; b; b = atomic_load_explicit(&b->next, memory_order_acquire))
        for (size_t i = 0; i < KOLO_COUNTOF(b->at); i++)
            if (atomic_load_explicit(&b->at[i], memory_order_relaxed) == stream) return &b->at[i];
    return NULL;
}

bool kolo_stream_valid(void *stream)
{
    return stream != NULL && place_of(stream) != NULL;
}

static bool enter_stream(struct kolo_cpu_stream *s)
{
    pthread_mutex_lock(&streams_lock);
    _Atomic(struct kolo_cpu_stream *) *place = place_of(NULL);
    if (!place) {
        block_t *last = &streams, *more = calloc(1, sizeof *more), *next;
        while ((next = atomic_load_explicit(&last->next, memory_order_relaxed)) != NULL) last = next;
        if (more) {
            place = &more->at[0];
            atomic_store_explicit(&last->next, more, memory_order_release);
        }
    }
    if (place) atomic_store_explicit(place, s, memory_order_relaxed);
    pthread_mutex_unlock(&streams_lock);
    return place != NULL;
}

static void leave_stream(struct kolo_cpu_stream *s)
{
    pthread_mutex_lock(&streams_lock);
    _Atomic(struct kolo_cpu_stream *) *place = place_of(s);
    if (place) atomic_store_explicit(place, NULL, memory_order_relaxed);
    pthread_mutex_unlock(&streams_lock);
}

static kolo_status_t check_stream(void *stream, const char *what)
{
    if (!stream) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the stream is NULL", what);
    if (kolo_stream_valid(stream))
        return kolo_process_check_own(((struct kolo_cpu_stream *)stream)->forks, what, "stream");
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %p is not a stream, or one that was destroyed", what, stream);
}

static void describe_item(void *arg, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "stream %p", arg);
}

/* Takes the next item, or waits for one; NULL when the stream ends. */
static kolo_stream_item_t *next_item(struct kolo_cpu_stream *s)
{
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, 0, describe_item, s, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&s->gate);
        pthread_mutex_lock(&s->lock);
        kolo_stream_item_t *item = s->head;
        bool stop = s->stop;
        if (item) {
            s->head = item->next;
            if (!s->head) s->tail = NULL;
        }
        pthread_mutex_unlock(&s->lock);
        if (item || stop) return item;
        kolo_gate_wait(&s->gate, ticket, &wait);
    }
}

static void *stream_main(void *arg)
{
    struct kolo_cpu_stream *s = arg;
    for (kolo_stream_item_t *item; (item = next_item(s));) {
        item->fn(item->arg);
        pthread_mutex_lock(&s->lock);
        s->ended++;
        const bool keep = s->nspare < SPARE_MAX;
        if (keep) {
            item->next = s->spare;
            s->spare = item;
            s->nspare++;
        }
        pthread_mutex_unlock(&s->lock);
        if (!keep) free(item);
        kolo_gate_open(&s->gate);
    }
    return NULL;
}

kolo_status_t kolo_stream_create(kolo_stream_t *stream)
{
    if (!stream) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "stream_create: the output is NULL");
    KOLO_TRY(kolo_comm_library_init());
    struct kolo_cpu_stream *s = calloc(1, sizeof *s);
    if (!s) return kolo_fail(KOLO_ERR_NO_MEMORY, "stream_create: out of memory");
    if (!enter_stream(s)) {
        free(s);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "stream_create: out of memory");
    }
    s->forks = kolo_process_forks();
    pthread_mutex_init(&s->lock, NULL);
    int err = kolo_thread_start(&s->thread, 0, stream_main, s);
    if (err) {
        leave_stream(s);
        pthread_mutex_destroy(&s->lock);
        free(s);
        return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "stream_create: cannot start a thread");
    }
    *stream = s;
    return KOLO_OK;
}

/* Takes a spare item, with the lock held. */
static kolo_stream_item_t *take_spare(struct kolo_cpu_stream *s)
{
    kolo_stream_item_t *item = s->spare;
    if (!item) return malloc(sizeof *item);
    s->spare = item->next;
    s->nspare--;
    return item;
}

/* Queues an item. bytes 0: arg itself, else a copy of what it points at. */
static kolo_status_t push(struct kolo_cpu_stream *s, void (*fn)(void *), void *arg, size_t bytes)
{
    KOLO_TRY(kolo_process_check_own(s->forks, "an operation on a stream", "stream"));
    pthread_mutex_lock(&s->lock);
    kolo_stream_item_t *item = take_spare(s);
    if (!item) {
        pthread_mutex_unlock(&s->lock);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a stream's queue");
    }
    item->fn = fn;
    item->arg = bytes ? memcpy(item->room, arg, bytes) : arg;
    item->next = NULL;
    if (s->tail)
        s->tail->next = item;
    else
        s->head = item;
    s->tail = item;
    s->pushed++;
    pthread_mutex_unlock(&s->lock);
    kolo_gate_open(&s->gate);
    return KOLO_OK;
}

kolo_status_t kolo_stream_push(void *stream, void (*fn)(void *), void *arg)
{
    return push(stream, fn, arg, 0);
}

kolo_status_t kolo_stream_push_copy(void *stream, void (*fn)(void *), void *data, size_t bytes)
{
    return push(stream, fn, data, bytes);
}

void kolo_stream_note(void *stream, kolo_status_t status)
{
    struct kolo_cpu_stream *s = stream;
    pthread_mutex_lock(&s->lock);
    if (s->error == KOLO_OK) {
        s->error = status;
        snprintf(s->error_text, sizeof s->error_text, "%s", kolo_error_text());
    }
    pthread_mutex_unlock(&s->lock);
}

kolo_status_t kolo_stream_call(kolo_stream_t stream, void (*fn)(void *), void *arg)
{
    KOLO_TRY(check_stream(stream, "stream_call"));
    if (!fn) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "stream_call: the function is NULL");
    return kolo_stream_push(stream, fn, arg);
}

static bool stream_empty(struct kolo_cpu_stream *s, uint64_t until)
{
    pthread_mutex_lock(&s->lock);
    bool empty = s->ended >= until;
    pthread_mutex_unlock(&s->lock);
    return empty;
}

static void wait_until(struct kolo_cpu_stream *s, uint64_t until)
{
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, 0, describe_item, s, 1);
    for (;;) { /* every operation in the queue has its own deadline and abort flag */
        uint32_t ticket = kolo_gate_ticket(&s->gate);
        if (stream_empty(s, until)) return;
        kolo_gate_wait(&s->gate, ticket, &wait);
    }
}

static uint64_t stream_pushed(struct kolo_cpu_stream *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t pushed = s->pushed;
    pthread_mutex_unlock(&s->lock);
    return pushed;
}

kolo_status_t kolo_stream_synchronize(kolo_stream_t stream)
{
    KOLO_TRY(check_stream(stream, "stream_synchronize"));
    if (pthread_equal(stream->thread, pthread_self()))
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "stream_synchronize: called from the stream itself");
    wait_until(stream, stream_pushed(stream));
    char text[KOLO_ERROR_TEXT_BYTES];
    pthread_mutex_lock(&stream->lock);
    kolo_status_t status = stream->error;
    memcpy(text, stream->error_text, sizeof text);
    stream->error = KOLO_OK;
    pthread_mutex_unlock(&stream->lock);
    return status == KOLO_OK ? KOLO_OK : kolo_fail(status, "%s", text);
}

kolo_status_t kolo_stream_query(kolo_stream_t stream)
{
    KOLO_TRY(check_stream(stream, "stream_query"));
    return stream_empty(stream, stream_pushed(stream)) ? KOLO_OK : KOLO_IN_PROGRESS;
}

kolo_status_t kolo_stream_destroy(kolo_stream_t stream)
{
    if (!stream) return KOLO_OK;
    KOLO_TRY(check_stream(stream, "stream_destroy"));
    if (pthread_equal(stream->thread, pthread_self()))
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "stream_destroy: called from the stream itself");
    leave_stream(stream);
    pthread_mutex_lock(&stream->lock);
    stream->stop = true;
    pthread_mutex_unlock(&stream->lock);
    kolo_gate_open(&stream->gate);
    pthread_join(stream->thread, NULL);
    pthread_mutex_destroy(&stream->lock);
    for (kolo_stream_item_t *item; (item = stream->spare) != NULL; free(item)) stream->spare = item->next;
    free(stream);
    return KOLO_OK;
}

/* ---- events ---- */

kolo_status_t kolo_event_create(kolo_event_t *event)
{
    if (!event) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "event_create: the output is NULL");
    struct kolo_cpu_event *e = kolo_slots_take(&events);
    if (!e) return kolo_fail(KOLO_ERR_NO_MEMORY, "event_create: out of memory");
    e->forks = kolo_process_forks();
    pthread_mutex_init(&e->lock, NULL);
    e->references = 1;
    *event = e;
    return KOLO_OK;
}

static kolo_status_t check_event(kolo_event_t event, const char *what)
{
    if (!event) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the event is NULL", what);
    if (kolo_slot_lives(event)) return kolo_process_check_own(event->forks, what, "event");
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %p is not an event, or one that was destroyed", what,
                     (void *)event);
}

static void event_unref(struct kolo_cpu_event *e)
{
    pthread_mutex_lock(&e->lock);
    bool last = --e->references == 0;
    pthread_mutex_unlock(&e->lock);
    if (!last) return;
    pthread_mutex_destroy(&e->lock);
    kolo_slots_give(&events, e);
}

static void event_reach(void *arg)
{
    record_t *r = arg, *before = NULL;
    struct kolo_cpu_event *e = r->event;
    pthread_mutex_lock(&e->lock);
    for (record_t *at = e->open; at != r; at = at->next) before = at;
    *(before ? &before->next : &e->open) = r->next;
    if (e->last == r) e->last = before;
    pthread_mutex_unlock(&e->lock);
    free(r);
    kolo_gate_open(&e->gate);
    event_unref(e);
}

/* Tells whether all recordings up to that one are reached. */
static bool event_done(struct kolo_cpu_event *e, uint64_t target)
{
    pthread_mutex_lock(&e->lock);
    bool done = !e->open || e->open->number > target;
    pthread_mutex_unlock(&e->lock);
    return done;
}

static void describe_event(void *arg, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "event %p to be reached by its stream", arg);
}

static void event_wait(struct kolo_cpu_event *e, uint64_t target)
{
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, 0, describe_event, e, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&e->gate);
        if (event_done(e, target)) return;
        kolo_gate_wait(&e->gate, ticket, &wait);
    }
}

static uint64_t event_target(struct kolo_cpu_event *e)
{
    pthread_mutex_lock(&e->lock);
    uint64_t target = e->recorded;
    pthread_mutex_unlock(&e->lock);
    return target;
}

kolo_status_t kolo_event_record(kolo_event_t event, kolo_stream_t stream)
{
    KOLO_TRY(check_event(event, "event_record"));
    KOLO_TRY(check_stream(stream, "event_record"));
    record_t *r = malloc(sizeof *r);
    if (!r) return kolo_fail(KOLO_ERR_NO_MEMORY, "event_record: out of memory");
    pthread_mutex_lock(&event->lock);
    *r = (record_t){.event = event, .number = ++event->recorded};
    *(event->last ? &event->last->next : &event->open) = r;
    event->last = r;
    event->references++;
    pthread_mutex_unlock(&event->lock);
    kolo_status_t status = kolo_stream_push(stream, event_reach, r);
    if (status != KOLO_OK) event_reach(r); /* no thread may wait for an event that will not come */
    return status;
}

kolo_status_t kolo_event_query(kolo_event_t event)
{
    KOLO_TRY(check_event(event, "event_query"));
    return event_done(event, event_target(event)) ? KOLO_OK : KOLO_IN_PROGRESS;
}

kolo_status_t kolo_event_synchronize(kolo_event_t event)
{
    KOLO_TRY(check_event(event, "event_synchronize"));
    event_wait(event, event_target(event));
    return KOLO_OK;
}

typedef struct {
    struct kolo_cpu_event *event;
    uint64_t target;
} kolo_event_wait_t;

static void event_wait_item(void *arg)
{
    kolo_event_wait_t *w = arg;
    event_wait(w->event, w->target);
    event_unref(w->event);
}

kolo_status_t kolo_stream_wait_event(kolo_stream_t stream, kolo_event_t event)
{
    KOLO_TRY(check_event(event, "stream_wait_event"));
    KOLO_TRY(check_stream(stream, "stream_wait_event"));
    pthread_mutex_lock(&event->lock);
    kolo_event_wait_t w = {event, event->recorded};
    event->references++;
    pthread_mutex_unlock(&event->lock);
    kolo_status_t status = kolo_stream_push_copy(stream, event_wait_item, &w, sizeof w);
    if (status != KOLO_OK) event_unref(event);
    return status;
}

kolo_status_t kolo_event_destroy(kolo_event_t event)
{
    if (!event) return KOLO_OK;
    KOLO_TRY(check_event(event, "event_destroy"));
    if (kolo_slot_end(event)) event_unref(event);
    return KOLO_OK;
}
