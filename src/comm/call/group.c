/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups: calls are collected per thread; at the outermost end each communicator's calls become one share
 * (share.c). Shares without a stream run here, side by side, so that one thread may drive many ranks. Those with
 * one go to it: shares that have a stream in common go there together, for their order behind each other would be
 * this rank's own; all streams of such a lot meet before and after it.
 */
#include "comm/call/call.h"

#include "base/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What has grown stays for the thread's next group. */
static _Thread_local struct {
    int depth;
    kolo_call_t *calls;
    size_t count, capacity;
    kolo_comm_t *comms; /* by share */
    size_t ncomms, comm_capacity;
    struct kolo_batch *spare;
    void (*over)(kolo_status_t status, const char *why);
    kolo_status_t error; /* of collecting: a call was refused, or memory is short */
    char text[KOLO_ERROR_TEXT_BYTES];
} group;

bool kolo_group_open(void)
{
    return group.depth > 0;
}

bool kolo_group_has_calls(void)
{
    return group.count > 0;
}

kolo_status_t kolo_call_refused(kolo_status_t status)
{
    if (status == KOLO_OK || !group.depth || group.error != KOLO_OK) return status;
    group.error = status;
    snprintf(group.text, sizeof group.text, "%s", kolo_error_text());
    return status;
}

void kolo_group_when_over(void (*over)(kolo_status_t status, const char *why))
{
    group.over = over;
}

static void tell_over(kolo_status_t status, const char *why)
{
    if (KOLO_UNLIKELY(group.over != NULL)) group.over(status, why);
    group.over = NULL;
}

static pthread_key_t at_exit;
static bool at_exit_made;
static pthread_once_t at_exit_once = PTHREAD_ONCE_INIT;

static void forget(void *unused)
{
    (void)unused;
    tell_over(KOLO_ERR_ABORTED, "the thread ended before the group that this message was in");
    free(group.calls);
    free(group.comms);
    kolo_group_drop_life();
    free(group.spare);
    memset(&group, 0, sizeof group);
}

static void make_key(void)
{
    at_exit_made = pthread_key_create(&at_exit, forget) == 0;
}

kolo_status_t kolo_group_start(void)
{
    KOLO_TRY(kolo_comm_library_init());
    pthread_once(&at_exit_once, make_key);
    if (!at_exit_made)
        return kolo_fail(
            KOLO_ERR_SYSTEM,
            "group_start: the program has used up all keys of thread-specific data (PTHREAD_KEYS_MAX): "
            "call kolo_group_start() once before it does");
    if (!group.capacity && pthread_setspecific(at_exit, &at_exit) != 0)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "group_start: out of memory");
    if (group.depth >= 1 << 20) return kolo_fail(KOLO_ERR_INVALID_USAGE, "group_start: nested too deeply");
    group.depth++;
    return KOLO_OK;
}

static kolo_status_t grow(void **array, size_t *capacity, size_t count, size_t elem)
{
    if (count < *capacity) return KOLO_OK;
    size_t n = *capacity ? *capacity * 2 : 16;
    void *p = realloc(*array, n * elem);
    if (!p) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a group of %zu calls", n);
    *array = p;
    *capacity = n;
    return KOLO_OK;
}

/* Calls on one communicator mostly follow each other. */
static kolo_status_t find_share(kolo_call_t *call)
{
    size_t at = group.count ? group.calls[group.count - 1].share : 0;
    for (size_t i = 0; i < group.ncomms; i++, at = at + 1 < group.ncomms ? at + 1 : 0) {
        if (group.comms[at] != call->comm) continue;
        call->share = (uint32_t)at;
        return KOLO_OK;
    }
    KOLO_TRY(grow((void **)&group.comms, &group.comm_capacity, group.ncomms, sizeof(kolo_comm_t)));
    call->share = (uint32_t)group.ncomms;
    group.comms[group.ncomms++] = call->comm;
    return KOLO_OK;
}

static kolo_status_t add(kolo_call_t *call)
{
    if (kolo_group_has_life())
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "a group cannot hold both operations and calls that make or end communicators: is "
                         "kolo_group_end() missing?");
    if (group.count && group.calls[0].comm->blocking != call->comm->blocking)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s blocks and %s does not: a group holds communicators of one kind",
                         call->comm->blocking ? call->comm->name : group.calls[0].comm->name,
                         call->comm->blocking ? group.calls[0].comm->name : call->comm->name);
    if (group.count && group.calls[0].comm->on_device != call->comm->on_device)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s works on a GPU and %s on the CPU: a group holds communicators of one kind",
                         call->comm->on_device ? call->comm->name : group.calls[0].comm->name,
                         call->comm->on_device ? group.calls[0].comm->name : call->comm->name);
    KOLO_TRY(find_share(call));
    KOLO_TRY(kolo_call_own(call));
    kolo_status_t status = grow((void **)&group.calls, &group.capacity, group.count, sizeof *group.calls);
    if (status != KOLO_OK) {
        kolo_call_disown(call);
        return status;
    }
    group.calls[group.count++] = *call;
    return KOLO_OK;
}

kolo_status_t kolo_group_add(kolo_call_t *call)
{
    return kolo_call_refused(add(call));
}

/* ---- one group_end ---- */

typedef struct { /* shares that run together on a stream, or in the background */
    struct kolo_batch *batch;
    void *stream;
    kolo_share_t **shares;
    size_t count;
} part_t;

typedef struct {
    void *stream;
    int root; /* index of a stream of the same part; its own: the part's */
} meeting_t;

typedef struct kolo_batch {
    _Atomic int users;
    kolo_gate_t gate; /* opened when a share that group_end waits for is over */
    size_t bytes, ncalls, nshares, nstreams;
    kolo_share_t *shares;
    kolo_share_t **lots; /* room for the shares of parts, one behind the other */
    part_t *parts;
    size_t nparts;
    meeting_t *streams;
    kolo_call_t *calls; /* twice: those of the shares, then room for their messages */
} batch_t;

static void *cut(char **at, size_t count, size_t elem)
{
    void *p = *at;
    *at += (count * elem + 63) / 64 * 64;
    return p;
}

static batch_t *batch_new(void)
{
    size_t n = group.count, m = group.ncomms;
    size_t bytes = sizeof(batch_t) + m * (sizeof(kolo_share_t) + sizeof(kolo_share_t *) + sizeof(part_t)) +
                   n * (sizeof(meeting_t) + 2 * sizeof(kolo_call_t)) + 6 * 64;
    batch_t *b = group.spare;
    group.spare = NULL;
    if (!b || b->bytes < bytes) {
        free(b);
        if (posix_memalign((void **)&b, 64, bytes)) {
            kolo_fail(KOLO_ERR_NO_MEMORY, "group_end: out of memory for %zu calls", n);
            return NULL;
        }
        b->bytes = bytes;
    }
    char *at = (char *)b;
    bytes = b->bytes;
    cut(&at, 1, sizeof *b);
    *b = (batch_t){.users = 1, .bytes = bytes, .ncalls = n, .nshares = m};
    b->shares = cut(&at, m, sizeof *b->shares);
    b->lots = cut(&at, m, sizeof(kolo_share_t *));
    b->parts = cut(&at, m, sizeof *b->parts);
    b->streams = cut(&at, n, sizeof *b->streams);
    b->calls = cut(&at, 2 * n, sizeof *b->calls);
    return b;
}

/* Frees the batch with its last user; the thread whose group it was keeps it for the next one. */
static void batch_leave(batch_t *b, bool keep)
{
    if (atomic_fetch_sub(&b->users, 1) > 1) return;
    for (size_t i = 0; i < b->ncalls; i++) kolo_call_disown(&b->calls[i]);
    if (keep)
        group.spare = b;
    else
        free(b);
}

static int stream_index(batch_t *b, void *stream)
{
    for (size_t i = 0; i < b->nstreams; i++)
        if (b->streams[i].stream == stream) return (int)i;
    b->streams[b->nstreams] = (meeting_t){stream, (int)b->nstreams};
    return (int)b->nstreams++;
}

static int root_of(const batch_t *b, int i)
{
    while (b->streams[i].root != i) i = b->streams[i].root;
    return i;
}

/* Hands the group's calls out to the shares. */
static void fill(batch_t *b)
{
    kolo_call_t *at = b->calls;
    for (size_t i = 0; i < b->nshares; i++) b->shares[i] = (kolo_share_t){.comm = group.comms[i], .stream = -1};
    for (size_t i = 0; i < b->ncalls; i++) b->shares[group.calls[i].share].capacity++;
    for (size_t i = 0; i < b->nshares; i++) {
        b->shares[i].calls = at;
        b->shares[i].messages = at + b->ncalls;
        at += b->shares[i].capacity;
    }
    for (size_t i = 0; i < b->ncalls; i++) {
        const kolo_call_t *call = &group.calls[i];
        kolo_share_t *s = &b->shares[call->share];
        s->calls[s->count++] = *call;
        if (!call->stream) {
            s->sync = true;
            continue;
        }
        int stream = stream_index(b, call->stream);
        if (s->stream < 0)
            s->stream = stream;
        else
            b->streams[root_of(b, stream)].root = root_of(b, s->stream);
    }
    group.count = group.ncomms = 0;
}

/* ---- running ---- */

typedef struct {
    kolo_share_t *share;
    void (*ended)(kolo_share_t *share, void *arg);
    void *arg;
    pthread_t thread;
    bool started;
} alone_t;

static void *run_alone(void *arg)
{
    alone_t *a = arg;
    kolo_call_shares_run(&a->share, 1, a->ended, a->arg);
    return NULL;
}

/* Gives every share a thread: with the deep check a collective waits for all ranks, so none may wait behind
 * another. */
static void run_apart(kolo_share_t **shares, size_t count, void (*ended)(kolo_share_t *share, void *arg), void *arg)
{
    alone_t *all = calloc(count, sizeof *all);
    for (size_t i = 0; all && i < count; i++) {
        all[i] = (alone_t){.share = shares[i], .ended = ended, .arg = arg};
        all[i].started = kolo_thread_start(&all[i].thread, 0, run_alone, &all[i]) == 0;
    }
    for (size_t i = 0; i < count; i++) {
        if (!all || !all[i].started)
            kolo_call_shares_run(&shares[i], 1, ended, arg);
        else
            pthread_join(all[i].thread, NULL);
    }
    free(all);
}

static void run_shares(kolo_share_t **shares, size_t count, void (*ended)(kolo_share_t *share, void *arg),
                       void *arg)
{
    if (kolo_deep() && count > 1)
        run_apart(shares, count, ended, arg);
    else
        kolo_call_shares_run(shares, count, ended, arg);
}

static void share_ended(kolo_share_t *s, void *arg)
{
    const part_t *part = arg;
    kolo_comm_t comm = s->comm;
    bool first_use = s->first_use;
    if (s->status != KOLO_OK && !s->sync) kolo_stream_note(part->stream, kolo_fail(s->status, "%s", s->text));
    kolo_gate_open(&part->batch->gate); /* the batch stays: its part is not over */
    if (!first_use) return;
    kolo_first_use_over(comm);
    kolo_handle_leave(comm);
}

static void run_part(void *arg)
{
    part_t *part = arg;
    run_shares(part->shares, part->count, share_ended, part);
    batch_leave(part->batch, false);
}

static void *run_part_in_background(void *arg)
{
    run_part(arg);
    return NULL;
}

/* ---- streams ---- */

static kolo_status_t join_streams(const batch_t *b, const part_t *part, int root, bool after)
{
    kolo_event_t event;
    for (size_t i = 0; i < b->nstreams; i++) {
        kolo_stream_t other = b->streams[i].stream;
        if (other == part->stream || root_of(b, (int)i) != root) continue;
        KOLO_TRY(kolo_event_create(&event));
        kolo_status_t status = kolo_event_record(event, after ? part->stream : other);
        if (status == KOLO_OK) status = kolo_stream_wait_event(after ? other : part->stream, event);
        kolo_event_destroy(event);
        KOLO_TRY(status);
    }
    return KOLO_OK;
}

static void skip_part(const part_t *part, kolo_status_t status)
{
    for (size_t i = 0; i < part->count; i++) {
        kolo_share_t *s = part->shares[i];
        kolo_call_share_skip(s, status);
        if (s->first_use) {
            kolo_first_use_over(s->comm);
            kolo_handle_leave(s->comm);
        }
        s->over = true;
    }
}

/* Pushes a part onto its stream, whose thread owns the shares from then on. */
static kolo_status_t push_part(batch_t *b, part_t *part, int root)
{
    for (size_t i = 0; i < part->count; i++) {
        kolo_share_t *s = part->shares[i];
        for (size_t k = 0; k < s->count && (!s->sync || s->first_use); k++)
            kolo_record_queued(s->comm->body, &s->calls[k]);
    }
    kolo_status_t status = join_streams(b, part, root, false);
    atomic_fetch_add(&b->users, 1);
    if (status == KOLO_OK) status = kolo_stream_push(part->stream, run_part, part);
    if (status == KOLO_OK) return join_streams(b, part, root, true);
    atomic_fetch_sub(&b->users, 1);
    skip_part(part, status);
    return status;
}

/* ---- starting ---- */

typedef struct {
    batch_t *batch;
    size_t nlots; /* of batch->lots, in use */
    kolo_status_t first;
    bool background;
    char text[KOLO_ERROR_TEXT_BYTES];
} ending_t;

static void note_first(ending_t *e, kolo_status_t status)
{
    if (status == KOLO_OK || e->first != KOLO_OK) return;
    e->first = status;
    snprintf(e->text, sizeof e->text, "%s", kolo_error_text());
}

/* Tickets, up to the first that is refused: what comes behind it does not run. */
static void draw_tickets(ending_t *e)
{
    for (size_t i = 0; i < e->batch->nshares && e->first == KOLO_OK; i++) {
        kolo_share_t *s = &e->batch->shares[i];
        kolo_status_t status = kolo_deep() ? kolo_deep_check_group(s->calls, s->count) : KOLO_OK;
        if (status == KOLO_OK && s->sync) {
            status = kolo_handle_enter(s->comm);
            s->entered = status == KOLO_OK;
        }
        if (status == KOLO_OK) status = kolo_ticket_draw(s->comm, &s->ticket);
        s->drawn = status == KOLO_OK;
        note_first(e, status);
    }
}

/* Lets a share go on in the background; the communicator tells when it is complete. */
static void start_first_use(ending_t *e, kolo_share_t *s)
{
    batch_t *b = e->batch;
    kolo_status_t status = kolo_first_use_begin(s->comm);
    s->first_use = status == KOLO_OK;
    if (s->first_use) e->background = true;
    if (s->first_use && s->stream >= 0) {
        atomic_fetch_add(&s->comm->visitors, 1); /* and is pushed with the others of its stream */
        return;
    }
    if (status == KOLO_OK) {
        part_t *part = &b->parts[b->nparts++];
        *part = (part_t){b, NULL, &b->lots[e->nlots], 1};
        b->lots[e->nlots++] = s;
        for (size_t k = 0; k < s->count; k++) kolo_record_queued(s->comm->body, &s->calls[k]);
        atomic_fetch_add(&b->users, 1);
        status = kolo_body_background(s->comm->body, run_part_in_background, part);
        if (status == KOLO_OK) return;
        atomic_fetch_sub(&b->users, 1);
    }
    note_first(e, status);
    kolo_call_share_skip(s, status);
    if (s->first_use) kolo_first_use_over(s->comm);
    s->first_use = false;
    s->drawn = false;
}

static void start_first_uses(ending_t *e)
{
    for (size_t i = 0; i < e->batch->nshares; i++) {
        kolo_share_t *s = &e->batch->shares[i];
        if (s->drawn && s->sync && kolo_first_use_needed(s->comm, s->ticket, s->calls, s->count))
            start_first_use(e, s);
    }
}

static void start_parts(ending_t *e)
{
    batch_t *b = e->batch;
    for (int root = 0; root < (int)b->nstreams; root++) {
        if (b->streams[root].root != root) continue;
        part_t *part = &b->parts[b->nparts];
        *part = (part_t){b, b->streams[root].stream, &b->lots[e->nlots], 0};
        for (size_t i = 0; i < b->nshares; i++) {
            kolo_share_t *s = &b->shares[i];
            if (s->drawn && s->stream >= 0 && root_of(b, s->stream) == root) part->shares[part->count++] = s;
        }
        if (part->count == 0) continue;
        e->nlots += part->count;
        b->nparts++;
        note_first(e, push_part(b, part, root));
    }
}

static void describe_share(void *arg, char *buf, size_t bytes)
{
    const kolo_share_t *s = arg;
    snprintf(buf, bytes, "the group's calls on %s rank %d", s->comm->name, s->comm->rank);
}

static void wait_share(batch_t *b, kolo_share_t *s)
{
    kolo_wait_t wait; /* the operations inside have deadline and abort flag */
    kolo_wait_init(&wait, NULL, 0, describe_share, s, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&b->gate);
        if (s->over) return;
        kolo_gate_wait(&b->gate, ticket, &wait);
    }
}

static void run_here(ending_t *e)
{
    batch_t *b = e->batch;
    kolo_share_t **mine = &b->lots[e->nlots];
    size_t n = 0;
    for (size_t i = 0; i < b->nshares; i++) {
        kolo_share_t *s = &b->shares[i];
        if (s->drawn && !s->first_use && s->stream < 0) mine[n++] = s;
    }
    if (n) run_shares(mine, n, NULL, NULL);
}

static void drop_calls(void)
{
    for (size_t i = 0; i < group.count; i++) kolo_call_disown(&group.calls[i]);
}

static kolo_status_t end_calls(void)
{
    ending_t e = {.first = KOLO_OK};
    if (!group.count) return KOLO_OK;
    batch_t *b = e.batch = batch_new();
    if (!b) {
        drop_calls();
        return KOLO_ERR_NO_MEMORY;
    }
    fill(b);
    draw_tickets(&e);
    start_first_uses(&e);
    start_parts(&e);
    run_here(&e);
    for (size_t i = 0; i < b->nshares; i++) {
        kolo_share_t *s = &b->shares[i];
        if (!s->drawn || !s->sync || s->first_use) continue;
        wait_share(b, s);
        if (s->status != KOLO_OK) note_first(&e, kolo_fail(s->status, "%s", s->text));
    }
    for (size_t i = 0; i < b->nshares; i++)
        if (b->shares[i].entered) kolo_handle_exit(b->shares[i].comm);
    batch_leave(b, true);
    if (e.first != KOLO_OK) return kolo_fail(e.first, "%s", e.text);
    return e.background ? KOLO_IN_PROGRESS : KOLO_OK;
}

/* Ends a group in which a call was refused. What it makes has begun already, and is made before this returns. */
static kolo_status_t end_refused(void)
{
    drop_calls();
    if (kolo_group_has_life()) kolo_group_end_life();
    return kolo_fail(group.error, "group_end: nothing of the group has run, since a call in it was refused: %.900s",
                     group.text);
}

static void close_group(void)
{
    group.count = group.ncomms = 0;
    group.error = KOLO_OK;
}

kolo_status_t kolo_group_end(void)
{
    if (group.depth == 0) return kolo_fail(KOLO_ERR_INVALID_USAGE, "group_end without group_start");
    if (--group.depth > 0) return KOLO_OK;
    kolo_status_t status;
    if (group.error != KOLO_OK)
        status = end_refused();
    else if (group.count && group.calls[0].comm->on_device)
        status = kolo_device_submit_group(group.calls, group.count);
    else
        status = kolo_group_has_life() ? kolo_group_end_life() : end_calls();
    tell_over(status, NULL);
    close_group();
    return status;
}

kolo_status_t kolo_group_drop(void)
{
    if (group.depth == 0) return kolo_fail(KOLO_ERR_INVALID_USAGE, "group_drop without group_start");
    group.depth = 0;
    drop_calls();
    kolo_group_drop_life();
    tell_over(KOLO_ERR_ABORTED, "group_drop: the group that this message was in was dropped");
    close_group();
    return KOLO_OK;
}
