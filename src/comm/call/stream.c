/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams and events on the CPU: an ordered queue of functions with a thread of its own. Errors of operations are
 * noted in the stream and handed out by synchronize.
 */
#include "comm/call/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct kolo_item {
    void (*fn)(void *);
    void *arg;
    struct kolo_item *next;
} kolo_item_t;

struct kolo_cpu_stream {
    pthread_t thread;
    pthread_mutex_t lock;
    kolo_item_t *head, *tail;
    uint64_t pushed, ended; /* items */
    bool stop;
    kolo_gate_t gate; /* opened on every change */
    kolo_status_t error;
    char error_text[KOLO_ERROR_TEXT_BYTES];
    struct kolo_cpu_stream *next;
};

struct kolo_cpu_event {
    pthread_mutex_t lock;
    uint64_t recorded, reached; /* how often */
    uint32_t references;
    kolo_gate_t gate;
};

static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kolo_cpu_stream *streams;

bool kolo_stream_valid(void *stream)
{
    pthread_mutex_lock(&streams_lock);
    struct kolo_cpu_stream *s = streams;
    while (s && s != stream) s = s->next;
    pthread_mutex_unlock(&streams_lock);
    return s != NULL;
}

static kolo_status_t check_stream(void *stream, const char *what)
{
    if (stream && kolo_stream_valid(stream)) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %p is not a stream, or one that was destroyed", what, stream);
}

static void describe_item(void *arg, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "stream %p", arg);
}

/* Takes the next item, or waits for one; NULL when the stream ends. */
static kolo_item_t *next_item(struct kolo_cpu_stream *s)
{
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, 0, describe_item, s, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&s->gate);
        pthread_mutex_lock(&s->lock);
        kolo_item_t *item = s->head;
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
    for (kolo_item_t *item; (item = next_item(s));) {
        item->fn(item->arg);
        free(item);
        pthread_mutex_lock(&s->lock);
        s->ended++;
        pthread_mutex_unlock(&s->lock);
        kolo_gate_open(&s->gate);
    }
    return NULL;
}

kolo_status_t kolo_stream_create(kolo_stream_t *stream)
{
    if (!stream) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "stream_create: the output is NULL");
    KOLO_TRY(kolo_library_init());
    struct kolo_cpu_stream *s = calloc(1, sizeof *s);
    if (!s) return kolo_fail(KOLO_ERR_NO_MEMORY, "stream_create: out of memory");
    pthread_mutex_init(&s->lock, NULL);
    int err = pthread_create(&s->thread, NULL, stream_main, s);
    if (err) {
        pthread_mutex_destroy(&s->lock);
        free(s);
        return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "stream_create: cannot start a thread");
    }
    pthread_mutex_lock(&streams_lock);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&streams_lock);
    *stream = s;
    return KOLO_OK;
}

kolo_status_t kolo_stream_push(void *stream, void (*fn)(void *), void *arg)
{
    struct kolo_cpu_stream *s = stream;
    kolo_item_t *item = malloc(sizeof *item);
    if (!item) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a stream's queue");
    *item = (kolo_item_t){fn, arg, NULL};
    pthread_mutex_lock(&s->lock);
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
    pthread_mutex_lock(&streams_lock);
    struct kolo_cpu_stream **at = &streams;
    while (*at && *at != stream) at = &(*at)->next;
    if (*at) *at = stream->next;
    pthread_mutex_unlock(&streams_lock);
    pthread_mutex_lock(&stream->lock);
    stream->stop = true;
    pthread_mutex_unlock(&stream->lock);
    kolo_gate_open(&stream->gate);
    pthread_join(stream->thread, NULL);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
    return KOLO_OK;
}

/* ---- events ---- */

kolo_status_t kolo_event_create(kolo_event_t *event)
{
    if (!event) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "event_create: the output is NULL");
    struct kolo_cpu_event *e = calloc(1, sizeof *e);
    if (!e) return kolo_fail(KOLO_ERR_NO_MEMORY, "event_create: out of memory");
    pthread_mutex_init(&e->lock, NULL);
    e->references = 1;
    *event = e;
    return KOLO_OK;
}

static void event_unref(struct kolo_cpu_event *e)
{
    pthread_mutex_lock(&e->lock);
    bool last = --e->references == 0;
    pthread_mutex_unlock(&e->lock);
    if (!last) return;
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static void event_reach(void *arg)
{
    struct kolo_cpu_event *e = arg;
    pthread_mutex_lock(&e->lock);
    e->reached++;
    pthread_mutex_unlock(&e->lock);
    kolo_gate_open(&e->gate);
    event_unref(e);
}

static bool event_done(struct kolo_cpu_event *e, uint64_t target)
{
    pthread_mutex_lock(&e->lock);
    bool done = e->reached >= target;
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

static uint64_t event_target(struct kolo_cpu_event *e, bool record)
{
    pthread_mutex_lock(&e->lock);
    if (record) {
        e->recorded++;
        e->references++;
    }
    uint64_t target = e->recorded;
    pthread_mutex_unlock(&e->lock);
    return target;
}

kolo_status_t kolo_event_record(kolo_event_t event, kolo_stream_t stream)
{
    if (!event) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "event_record: the event is NULL");
    KOLO_TRY(check_stream(stream, "event_record"));
    event_target(event, true);
    kolo_status_t status = kolo_stream_push(stream, event_reach, event);
    if (status != KOLO_OK) event_reach(event); /* nobody may wait for what will not come */
    return status;
}

kolo_status_t kolo_event_query(kolo_event_t event)
{
    if (!event) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "event_query: the event is NULL");
    return event_done(event, event_target(event, false)) ? KOLO_OK : KOLO_IN_PROGRESS;
}

kolo_status_t kolo_event_synchronize(kolo_event_t event)
{
    if (!event) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "event_synchronize: the event is NULL");
    event_wait(event, event_target(event, false));
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
    free(w);
}

kolo_status_t kolo_stream_wait_event(kolo_stream_t stream, kolo_event_t event)
{
    if (!event) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "stream_wait_event: the event is NULL");
    KOLO_TRY(check_stream(stream, "stream_wait_event"));
    kolo_event_wait_t *w = malloc(sizeof *w);
    if (!w) return kolo_fail(KOLO_ERR_NO_MEMORY, "stream_wait_event: out of memory");
    pthread_mutex_lock(&event->lock);
    *w = (kolo_event_wait_t){event, event->recorded};
    event->references++;
    pthread_mutex_unlock(&event->lock);
    kolo_status_t status = kolo_stream_push(stream, event_wait_item, w);
    if (status != KOLO_OK) {
        event_unref(event);
        free(w);
    }
    return status;
}

kolo_status_t kolo_event_destroy(kolo_event_t event)
{
    if (event) event_unref(event);
    return KOLO_OK;
}
