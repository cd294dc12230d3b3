/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups: calls are collected per thread; at the outermost end each communicator's share becomes one job that runs
 * its collectives in the order of their calls and then its sends and receives together. Shares of several
 * communicators run side by side, each on a stream, so that one thread may drive many ranks.
 */
#include "base/failpoint.h"
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct kolo_share { /* one communicator's calls of one group */
    kolo_comm_t comm;
    uint64_t ticket;
    kolo_call_t *calls;
    size_t count;
    void *stream; /* where it runs; NULL: here */
    bool sync;    /* group_end waits for it */
    bool stream_is_ours;
    bool
        first_use; /* group_end does not wait, though it is not queued on a stream: it connects in the background */
    bool over;
    kolo_status_t status;
    char text[KOLO_ERROR_TEXT_BYTES];
    kolo_gate_t gate;
} kolo_share_t;

/* Asked in each call, so without the detour that a library loaded late may need for its thread-local memory; 64
 * bytes of what the loader keeps for such. */
static _Thread_local struct {
    int depth;
    kolo_call_t *calls;
    size_t count, capacity;
    kolo_body_t **inits;
    size_t ninits, init_capacity;
    kolo_status_t error; /* of collecting: out of memory */
} group __attribute__((tls_model("initial-exec")));

bool kolo_group_open(void)
{
    return group.depth > 0;
}

bool kolo_group_has_calls(void)
{
    return group.count > 0;
}

kolo_status_t kolo_group_start(void)
{
    KOLO_TRY(kolo_library_init());
    if (group.depth >= 1 << 20) return kolo_fail(KOLO_ERR_INVALID_USAGE, "group_start: nested too deeply");
    group.depth++;
    return KOLO_OK;
}

static kolo_status_t grow(void **array, size_t *capacity, size_t count, size_t elem)
{
    if (count < *capacity) return KOLO_OK;
    size_t n = *capacity ? *capacity * 2 : 16;
    void *p = realloc(*array, n * elem);
    if (!p) return group.error = kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a group of %zu calls", n);
    *array = p;
    *capacity = n;
    return KOLO_OK;
}

kolo_status_t kolo_group_add(kolo_call_t *call)
{
    if (group.ninits)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "a group cannot hold both initialisations and operations");
    if (group.count && group.calls[0].comm->blocking != call->comm->blocking)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s blocks and %s does not: a group holds communicators of one kind",
                         call->comm->blocking ? call->comm->name : group.calls[0].comm->name,
                         call->comm->blocking ? group.calls[0].comm->name : call->comm->name);
    KOLO_TRY(kolo_call_own(call));
    kolo_status_t status = grow((void **)&group.calls, &group.capacity, group.count, sizeof *group.calls);
    if (status != KOLO_OK) {
        kolo_call_disown(call);
        return status;
    }
    group.calls[group.count++] = *call;
    return KOLO_OK;
}

kolo_status_t kolo_group_add_init(kolo_body_t *body)
{
    KOLO_TRY(grow((void **)&group.inits, &group.init_capacity, group.ninits, sizeof *group.inits));
    group.inits[group.ninits++] = body;
    return KOLO_OK;
}

/* ---- running a share ---- */

static kolo_status_t run_messages(kolo_body_t *body, kolo_p2p_t *p2p)
{
    kolo_wait_t wait;
    uint64_t polls = 0;
    kolo_status_t status;
    kolo_body_wait_init(body, &wait, NULL);
    uint64_t limit_ns = wait.deadline_ns ? wait.deadline_ns - kolo_now_ns() : 0;
    bool connecting = p2p->connecting;
    if (connecting) wait.deadline_ns = 0; /* that has a limit of its own */
    wait.describe = kolo_p2p_describe;
    wait.look = kolo_mismatch_look_pairs;
    wait.arg = p2p;
    KOLO_FAIL_POINT("comm.messages.run");
    for (;;) {
        bool moved = false;
        status = kolo_p2p_step(p2p, &moved);
        if (status != KOLO_IN_PROGRESS) break;
        if (connecting && !p2p->connecting) {
            connecting = false;
            if (limit_ns) wait.deadline_ns = kolo_now_ns() + limit_ns;
        }
        if (moved) kolo_wait_end(&wait);
        if ((status = kolo_wire_pump(&body->ctx)) != KOLO_OK) break;
        if (moved) continue;
        if ((++polls % 1024 == 0 || wait.armed) && (status = kolo_p2p_check(p2p)) != KOLO_OK) break;
        if ((status = kolo_wait_pause(&wait)) != KOLO_OK) break;
    }
    kolo_wait_end(&wait);
    return status;
}

static kolo_status_t run_calls(kolo_share_t *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->count; i++)
        if (s->calls[i].kind == KOLO_CALL_COLL) KOLO_TRY(kolo_call_run(&s->calls[i]));
    for (size_t i = 0; i < s->count; i++)
        if (s->calls[i].kind != KOLO_CALL_COLL) s->calls[n++] = s->calls[i];
    if (n == 0) return KOLO_OK;
    kolo_p2p_t p2p;
    kolo_body_t *body = s->comm->body;
    kolo_record_begin_pairs(body, s->calls, n);
    kolo_status_t status = kolo_p2p_begin(body, s->calls, n, &p2p);
    if (status == KOLO_OK) {
        status = run_messages(body, &p2p);
        kolo_p2p_end(&p2p);
        status = kolo_mismatch_end_pairs(s->calls, n, status);
    }
    kolo_record_end_pairs(body, s->calls, n, status);
    return status;
}

static void run_share(kolo_share_t *s)
{
    kolo_status_t status = kolo_ticket_wait(s->comm, s->ticket);
    if (status == KOLO_OK) {
        status = run_calls(s);
        if (status != KOLO_OK) {
            status = kolo_body_fail_operation(s->comm->body, status, s->calls, s->count);
        }
    } else if (s->comm->error_is_news) {
        kolo_lost_refused(s->comm->body, s->calls, s->count);
    }
    if (status != KOLO_OK) {
        snprintf(s->text, sizeof s->text, "%s", kolo_error_text());
        for (size_t i = 0; i < s->count; i++) kolo_record_drop(s->comm->body, &s->calls[i], status);
    }
    s->status = status;
    kolo_ticket_end(s->comm, s->ticket);
}

static void share_free(kolo_share_t *s)
{
    for (size_t i = 0; i < s->count; i++) kolo_call_disown(&s->calls[i]);
    free(s->calls);
    free(s);
}

static void *run_share_in_background(void *arg)
{
    kolo_share_t *s = arg;
    kolo_comm_t comm = s->comm;
    run_share(s);
    kolo_first_use_over(comm);
    share_free(s);
    kolo_handle_leave(comm);
    return NULL;
}

static void run_share_on_stream(void *arg)
{
    kolo_share_t *s = arg;
    if (s->first_use) {
        run_share_in_background(s);
        return;
    }
    run_share(s);
    if (!s->sync) {
        if (s->status != KOLO_OK) kolo_stream_note(s->stream, s->status);
        share_free(s);
        return;
    }
    __atomic_store_n(&s->over, true, __ATOMIC_RELEASE);
    kolo_gate_open(&s->gate);
}

/* ---- streams of a group: all of a communicator's streams meet before and after its share ---- */

static kolo_status_t join_streams(const kolo_share_t *s, bool after)
{
    kolo_event_t event;
    if (!s->stream || s->stream_is_ours) return KOLO_OK;
    for (size_t i = 0; i < s->count; i++) {
        kolo_stream_t other = s->calls[i].stream;
        if (!other || other == s->stream) continue;
        KOLO_TRY(kolo_event_create(&event));
        kolo_status_t status = kolo_event_record(event, after ? s->stream : other);
        if (status == KOLO_OK) status = kolo_stream_wait_event(after ? other : s->stream, event);
        kolo_event_destroy(event);
        KOLO_TRY(status);
    }
    return KOLO_OK;
}

static void describe_share(void *arg, char *buf, size_t bytes)
{
    const kolo_share_t *s = arg;
    snprintf(buf, bytes, "the group's calls on %s rank %d", s->comm->name, s->comm->rank);
}

static void wait_share(kolo_share_t *s)
{
    kolo_wait_t wait; /* the operations inside have deadline and abort flag */
    kolo_wait_init(&wait, NULL, 0, describe_share, s, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&s->gate);
        if (__atomic_load_n(&s->over, __ATOMIC_ACQUIRE)) return;
        kolo_gate_wait(&s->gate, ticket, &wait);
    }
}

/* Collects the calls of the first communicator that is left. */
static kolo_share_t *take_share(void)
{
    kolo_comm_t comm = NULL;
    size_t n = 0;
    for (size_t i = 0; i < group.count; i++) {
        if (!comm) comm = group.calls[i].comm;
        n += group.calls[i].comm == comm;
    }
    kolo_share_t *s = calloc(1, sizeof *s);
    if (s) s->calls = calloc(n ? n : 1, sizeof *s->calls);
    if (!s || !s->calls) {
        free(s);
        kolo_fail(KOLO_ERR_NO_MEMORY, "group_end: out of memory for %zu calls", n);
        return NULL;
    }
    size_t left = 0;
    s->comm = comm;
    for (size_t i = 0; i < group.count; i++) {
        if (group.calls[i].comm != comm) {
            group.calls[left++] = group.calls[i];
            continue;
        }
        s->calls[s->count++] = group.calls[i];
        if (!group.calls[i].stream)
            s->sync = true;
        else if (!s->stream)
            s->stream = group.calls[i].stream;
    }
    group.count = left;
    return s;
}

/* The share frees itself: streams that must wait for it are joined by a copy of what join needs. */
static kolo_status_t push_share(kolo_share_t *s)
{
    kolo_share_t view = *s;
    view.calls = malloc(s->count * sizeof *view.calls);
    if (!view.calls) return kolo_fail(KOLO_ERR_NO_MEMORY, "group_end: out of memory");
    memcpy(view.calls, s->calls, s->count * sizeof *view.calls);
    kolo_status_t status = kolo_stream_push(s->stream, run_share_on_stream, s);
    if (status == KOLO_OK) join_streams(&view, true);
    free(view.calls);
    return status;
}

/* The share frees itself here too, and the communicator tells when it is complete. KOLO_IN_PROGRESS if all is well.
 */
static kolo_status_t start_first_use(kolo_share_t *s)
{
    kolo_comm_t comm = s->comm;
    kolo_status_t status = kolo_first_use_begin(comm);
    uint64_t ticket = s->ticket;
    s->first_use = status == KOLO_OK;
    if (status == KOLO_OK) {
        for (size_t i = 0; i < s->count; i++) kolo_record_queued(comm->body, &s->calls[i]);
        if (s->stream) {
            atomic_fetch_add(&comm->visitors, 1);
            status = join_streams(s, false);
            if (status == KOLO_OK) status = push_share(s);
            if (status != KOLO_OK) kolo_handle_leave(comm);
        } else {
            status = kolo_body_background(comm->body, run_share_in_background, s);
        }
        if (status == KOLO_OK) return KOLO_IN_PROGRESS;
    }
    kolo_ticket_wait(comm, ticket);
    if (s->first_use) kolo_first_use_over(comm);
    kolo_ticket_end(comm, ticket);
    return status;
}

/* KOLO_IN_PROGRESS: it has gone to the background, and *share is NULL. */
static kolo_status_t start_share(kolo_share_t **share, bool alone)
{
    kolo_share_t *s = *share;
    kolo_status_t status = KOLO_OK;
    if (kolo_deep()) KOLO_TRY(kolo_deep_check_group(s->calls, s->count));
    KOLO_TRY(kolo_ticket_draw(s->comm, &s->ticket));
    if (s->sync && kolo_first_use_needed(s->comm, s->ticket, s->calls, s->count)) {
        status = start_first_use(s);
        if (status == KOLO_IN_PROGRESS) *share = NULL;
        return status;
    }
    if (!s->stream && alone) {
        run_share(s);
        s->over = true;
        return KOLO_OK;
    }
    if (!s->stream) {
        status = kolo_stream_create((kolo_stream_t *)&s->stream);
        s->stream_is_ours = status == KOLO_OK;
    }
    if (status == KOLO_OK) status = join_streams(s, false);
    if (status == KOLO_OK) {
        for (size_t i = 0; i < s->count && !s->sync; i++) kolo_record_queued(s->comm->body, &s->calls[i]);
        if (s->sync) return kolo_stream_push(s->stream, run_share_on_stream, s);
        status = push_share(s);
        if (status == KOLO_OK) return KOLO_OK;
    }
    kolo_ticket_wait(s->comm, s->ticket);
    kolo_ticket_end(s->comm, s->ticket);
    return status;
}

static kolo_status_t finish_share(kolo_share_t *s)
{
    wait_share(s);
    kolo_status_t status = s->status == KOLO_OK ? KOLO_OK : kolo_fail(s->status, "%s", s->text);
    if (s->stream_is_ours)
        kolo_stream_destroy(s->stream);
    else
        join_streams(s, true);
    share_free(s);
    return status;
}

static void note_first(kolo_status_t *first, char *text, kolo_status_t status)
{
    if (status == KOLO_OK || *first != KOLO_OK) return;
    *first = status;
    snprintf(text, KOLO_ERROR_TEXT_BYTES, "%s", kolo_error_text());
}

static kolo_status_t end_calls(void)
{
    kolo_share_t *waiting[64], **list = waiting;
    size_t n = 0, capacity = KOLO_COUNTOF(waiting);
    kolo_status_t first = group.error;
    bool background = false;
    char text[KOLO_ERROR_TEXT_BYTES] = "group_end: out of memory while the group was collected";
    bool alone = true;
    for (size_t i = 1; i < group.count; i++) alone = alone && group.calls[i].comm == group.calls[0].comm;
    while (group.count && first == KOLO_OK) {
        if (n == capacity) {
            kolo_share_t **more = malloc(2 * capacity * sizeof(kolo_share_t *));
            if (!more) {
                note_first(&first, text, kolo_fail(KOLO_ERR_NO_MEMORY, "group_end: out of memory"));
                break;
            }
            memcpy(more, list, n * sizeof(kolo_share_t *));
            if (list != waiting) free(list);
            list = more;
            capacity *= 2;
        }
        kolo_share_t *s = take_share();
        kolo_status_t status = s ? KOLO_OK : KOLO_ERR_NO_MEMORY;
        bool sync = s && s->sync;
        if (s) status = start_share(&s, alone);
        if (!s && status == KOLO_IN_PROGRESS) {
            background = true;
            continue;
        }
        note_first(&first, text, status);
        if (s && status != KOLO_OK)
            share_free(s);
        else if (sync)
            list[n++] = s;
    }
    for (size_t i = 0; i < group.count; i++) kolo_call_disown(&group.calls[i]);
    group.count = 0;
    for (size_t i = 0; i < n; i++) note_first(&first, text, finish_share(list[i]));
    if (list != waiting) free(list);
    if (first != KOLO_OK) return kolo_fail(first, "%s", text);
    return background ? KOLO_IN_PROGRESS : KOLO_OK;
}

static kolo_status_t end_inits(void)
{
    kolo_status_t first = KOLO_OK;
    char text[KOLO_ERROR_TEXT_BYTES];
    bool pending = false;
    for (size_t i = 0; i < group.ninits; i++) {
        kolo_body_t *body = group.inits[i];
        if (!body->blocking) {
            pending = true;
            continue;
        }
        kolo_handle_started(body->handle);
        if (body->handle->error != KOLO_OK) {
            kolo_fail(body->handle->error, "%s", body->handle->error_text);
            note_first(&first, text, body->handle->error);
        }
    }
    group.ninits = 0;
    if (first != KOLO_OK) return kolo_fail(first, "%s", text);
    return pending ? KOLO_IN_PROGRESS : KOLO_OK;
}

kolo_status_t kolo_group_end(void)
{
    if (group.depth == 0) return kolo_fail(KOLO_ERR_INVALID_USAGE, "group_end without group_start");
    if (--group.depth > 0) return KOLO_OK;
    kolo_status_t status = group.ninits ? end_inits() : end_calls();
    free(group.calls);
    free(group.inits);
    memset(&group, 0, sizeof group);
    return status;
}
