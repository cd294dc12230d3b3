/* SPDX-License-Identifier: Apache-2.0
 *
 * What a group runs at its end: each communicator's calls become one share (share.c). Shares without a stream run
 * here, side by side, so that one thread may drive many ranks. Those with one go to it: shares that have a stream
 * in common go there together, for their order behind each other would be this rank's own; all streams of such a
 * lot meet before and after it.
 */
#include "comm/call/call.h"

#include "base/process.h"

#include <stdio.h>
#include <stdlib.h>

static _Thread_local kolo_batch_t *spare; /* of the thread's last group, for its next one */

typedef struct { /* shares that run together on a stream, or in the background */
    kolo_batch_t *batch;
    void *stream;
    kolo_share_t **shares;
    size_t count;
} part_t;

typedef struct {
    void *stream;
    int root; /* index of a stream of the same part; its own: the part's */
} meeting_t;

struct kolo_batch {
    _Atomic int users;
    kolo_gate_t gate; /* opened when a share that group_end waits for is over */
    size_t bytes, ncalls, nshares, nstreams;
    kolo_share_t *shares;
    kolo_share_t **lots; /* room for the shares of parts, one behind the other */
    part_t *parts;
    size_t nparts;
    meeting_t *streams;
    kolo_call_t *calls; /* twice: those of the shares, then room for their messages */
};

static void *cut(char **at, size_t count, size_t elem)
{
    void *p = *at;
    *at += KOLO_ROUND_UP(count * elem, 64);
    return p;
}

static kolo_batch_t *batch_new(size_t n, size_t m)
{
    size_t bytes = sizeof(kolo_batch_t) + m * (sizeof(kolo_share_t) + sizeof(kolo_share_t *) + sizeof(part_t)) +
                   n * (sizeof(meeting_t) + 2 * sizeof(kolo_call_t)) + 6 * 64;
    kolo_batch_t *b = spare;
    spare = NULL;
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
    *b = (kolo_batch_t){.users = 1, .bytes = bytes, .ncalls = n, .nshares = m};
    b->shares = cut(&at, m, sizeof *b->shares);
    b->lots = cut(&at, m, sizeof(kolo_share_t *));
    b->parts = cut(&at, m, sizeof *b->parts);
    b->streams = cut(&at, n, sizeof *b->streams);
    b->calls = cut(&at, 2 * n, sizeof *b->calls);
    return b;
}

/* Frees the batch with its last user; the thread whose group it was keeps it for the next one. */
static void batch_leave(kolo_batch_t *b, bool keep)
{
    if (atomic_fetch_sub(&b->users, 1) > 1) return;
    for (size_t i = 0; i < b->ncalls; i++) kolo_call_disown(&b->calls[i]);
    if (keep && !spare) /* a user's function may have run a group within this one */
        spare = b;
    else
        free(b);
}

static int stream_index(kolo_batch_t *b, void *stream)
{
    for (size_t i = 0; i < b->nstreams; i++)
        if (b->streams[i].stream == stream) return (int)i;
    b->streams[b->nstreams] = (meeting_t){stream, (int)b->nstreams};
    return (int)b->nstreams++;
}

static int root_of(const kolo_batch_t *b, int i)
{
    while (b->streams[i].root != i) i = b->streams[i].root;
    return i;
}

/* Hands the calls out to the shares. */
static void fill(kolo_batch_t *b, const kolo_call_t *calls, const kolo_comm_t *comms)
{
    kolo_call_t *at = b->calls;
    for (size_t i = 0; i < b->nshares; i++) b->shares[i] = (kolo_share_t){.comm = comms[i], .stream = -1};
    for (size_t i = 0; i < b->ncalls; i++) b->shares[calls[i].share].capacity++;
    for (size_t i = 0; i < b->nshares; i++) {
        b->shares[i].calls = at;
        b->shares[i].messages = at + b->ncalls;
        at += b->shares[i].capacity;
    }
    for (size_t i = 0; i < b->ncalls; i++) {
        const kolo_call_t *call = &calls[i];
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
}

kolo_batch_t *kolo_group_batch(const kolo_call_t *calls, size_t count, const kolo_comm_t *comms, size_t ncomms)
{
    kolo_batch_t *b = batch_new(count, ncomms);
    if (b) fill(b, calls, comms);
    return b;
}

void kolo_group_forget(void)
{
    free(spare);
    spare = NULL;
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

static kolo_status_t join_streams(const kolo_batch_t *b, const part_t *part, int root, bool after)
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
static kolo_status_t push_part(kolo_batch_t *b, part_t *part, int root)
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
    kolo_batch_t *batch;
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
        kolo_status_t status = kolo_p2p_check_own(s->calls, s->count, s->comm->rank);
        if (status == KOLO_OK && kolo_deep()) status = kolo_deep_check_group(s->calls, s->count);
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
    kolo_batch_t *b = e->batch;
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
    kolo_batch_t *b = e->batch;
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

static void wait_share(kolo_batch_t *b, kolo_share_t *s)
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
    kolo_batch_t *b = e->batch;
    kolo_share_t **mine = &b->lots[e->nlots];
    size_t n = 0;
    for (size_t i = 0; i < b->nshares; i++) {
        kolo_share_t *s = &b->shares[i];
        if (s->drawn && !s->first_use && s->stream < 0) mine[n++] = s;
    }
    if (n) run_shares(mine, n, NULL, NULL);
}

kolo_status_t kolo_group_run(kolo_batch_t *b)
{
    ending_t e = {.first = KOLO_OK, .batch = b};
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
