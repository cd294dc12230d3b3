/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages with requests to wait for (kolo_pending_t). They are put aside by the call and run together, as a group,
 * with the next call that comes to the communicator or when one of them is waited for: so an exchange that is
 * written as two requests and a wait, or as a request and a receive, cannot wait for itself. Where that call comes
 * into an open group they come into it, too. Only who asks without waiting, or makes a window or a communicator,
 * has them run on a stream of the communicator's own.
 */
#include "base/slots.h"
#include "comm/call/call.h"

#include <stdio.h>

struct kolo_pending {
    kolo_slot_t slot;
    struct kolo_pending *next; /* put aside behind it */
    kolo_call_t call;
    bool aside, taken, over; /* taken: by a group that is open */
    bool connects;           /* goes on in the background, as a first use of a communicator that does not block */
    kolo_event_t event;      /* runs on a stream: recorded behind it */
    kolo_status_t status;
    char text[KOLO_ERROR_TEXT_BYTES];
};
static kolo_slots_t requests = KOLO_SLOTS_OF(struct kolo_pending);

static void finish(struct kolo_pending *r, kolo_status_t status)
{
    r->over = true;
    r->status = status;
    if (status != KOLO_OK) snprintf(r->text, sizeof r->text, "%s", kolo_error_text());
}

/* Records an event of its own for each, so that none depends on another's life. */
static kolo_status_t follow(struct kolo_pending *r, void *stream)
{
    KOLO_TRY(kolo_event_create(&r->event));
    return kolo_event_record(r->event, stream);
}

static kolo_status_t collect(struct kolo_pending *first, kolo_call_t *with, void *stream)
{
    for (struct kolo_pending *r = first; r; r = r->next) {
        r->call.stream = stream;
        KOLO_TRY(kolo_group_add(&r->call));
    }
    return with ? kolo_group_add(with) : KOLO_OK;
}

/* Notes that they run on the stream, or, without one, have run or go on in the background. */
static void begun(struct kolo_pending *first, kolo_status_t status, void *stream)
{
    for (struct kolo_pending *r = first, *next; r; r = next) {
        next = r->next;
        r->aside = r->taken = false;
        r->next = NULL;
        r->connects = status == KOLO_IN_PROGRESS && !stream;
        kolo_status_t own = status == KOLO_IN_PROGRESS ? KOLO_OK : status;
        if (own == KOLO_OK && stream) own = follow(r, stream);
        if (own != KOLO_OK || (!stream && !r->connects)) finish(r, own);
    }
}

/* Takes none where another thread aborts the communicator: that one ends them. */
static struct kolo_pending *take_all(kolo_comm_t comm)
{
    if (!kolo_handle_visit(comm, "a message")) return NULL;
    struct kolo_pending *first = atomic_exchange(&comm->aside, NULL);
    comm->aside_last = NULL;
    kolo_handle_leave(comm);
    return first;
}

/* Runs what was put aside, and `with` beside it unless that is NULL, on the stream or, for NULL, here. */
static kolo_status_t run(kolo_comm_t comm, kolo_call_t *with, void *stream)
{
    struct kolo_pending *first = take_all(comm);
    KOLO_TRY(kolo_group_start());
    kolo_status_t status = collect(first, with, stream), ended = kolo_group_end();
    if (status == KOLO_OK) status = ended;
    begun(first, status, stream);
    return status;
}

kolo_status_t kolo_requests_join(kolo_call_t *call)
{
    return run(call->comm, call, call->stream);
}

/* Ends what the group had taken: it is over, or, if it has streams, queued. why: it did not come to its end. */
static void group_over(struct kolo_pending *first, kolo_status_t status, const char *why)
{
    if (why) kolo_fail(status, "%s", why);
    for (struct kolo_pending *r = first, *next; r; r = next) {
        next = r->next;
        r->next = NULL;
        begun(r, status, r->call.stream);
    }
}

kolo_status_t kolo_requests_join_group(kolo_comm_t comm, void *stream)
{
    struct kolo_pending *first = take_all(comm);
    kolo_taken_t *taken = kolo_group_taken();
    if (taken->last)
        taken->last->next = first;
    else
        taken->first = first;
    for (struct kolo_pending *r = first; r; r = r->next) {
        taken->last = r;
        r->aside = false;
        r->taken = true;
    }
    taken->over = group_over;
    return collect(first, NULL, stream);
}

/* Lets those that are aside begin without waiting for them. */
static kolo_status_t begin(kolo_comm_t comm)
{
    kolo_status_t status = KOLO_OK;
    if (!kolo_handle_visit(comm, "a message")) return KOLO_ERR_INVALID_ARGUMENT;
    if (!comm->own_stream) status = kolo_stream_create(&comm->own_stream);
    if (status == KOLO_OK) status = run(comm, NULL, comm->own_stream);
    kolo_handle_leave(comm);
    return status;
}

void kolo_requests_drop(kolo_comm_t comm)
{
    for (struct kolo_pending *r = atomic_exchange(&comm->aside, NULL), *next; r; r = next) {
        next = r->next;
        r->aside = false;
        kolo_fail(KOLO_ERR_ABORTED, "the communicator ended before anybody waited for this message");
        finish(r, KOLO_ERR_ABORTED);
    }
    comm->aside_last = NULL;
    kolo_stream_destroy(comm->own_stream);
    comm->own_stream = NULL;
}

/* Takes a turn of its own: what was called before is over when it comes, and what was queued on a GPU is waited
 * for. */
static kolo_status_t drain_in_turn(kolo_comm_t comm)
{
    uint64_t ticket;
    KOLO_TRY(kolo_ticket_draw(comm, &ticket));
    kolo_status_t status = kolo_ticket_wait(comm, ticket);
    if (status == KOLO_OK) status = kolo_lost_ends(comm->body, kolo_device_drain(comm->body));
    kolo_ticket_end(comm, ticket);
    return status;
}

/* Waits for what connects in the background, since no ticket is given meanwhile, and drains. */
static kolo_status_t drain(kolo_body_t *body)
{
    if (atomic_load(&body->handle->state) == KOLO_COMM_CONNECTING)
        KOLO_TRY(kolo_handle_quiet(body->handle, &body->stop.abort, false));
    return drain_in_turn(body->handle);
}

kolo_status_t kolo_comm_synchronize(kolo_comm_t comm)
{
    if (!comm) return KOLO_OK;
    if (kolo_group_open())
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "comm_synchronize: not allowed between group_start and group_end");
    kolo_body_t *body = kolo_handle_visit(comm, "comm_synchronize");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    kolo_status_t status = KOLO_OK;
    if (kolo_comm_has_aside(comm)) status = comm->blocking ? run(comm, NULL, NULL) : begin(comm);
    if (status == KOLO_OK) status = drain(body);
    kolo_handle_leave(comm);
    if (status != KOLO_OK) kolo_fail_prefix(status, "comm_synchronize: ");
    return status;
}

/* Begins what is aside; how that ends, each says itself. */
static kolo_status_t begin_before(kolo_comm_t comm, const char *what)
{
    if (kolo_group_open())
        return kolo_call_refused(kolo_fail(KOLO_ERR_INVALID_USAGE,
                                           "%s: %s rank %d has messages that nobody has waited for: "
                                           "kolo_pending_wait() comes before the group",
                                           what, comm->name, comm->rank));
    (void)begin(comm);
    return KOLO_OK;
}

static kolo_status_t put_aside(kolo_comm_t comm, struct kolo_pending *r, const char *what)
{
    if (!kolo_handle_visit(comm, what)) return KOLO_ERR_INVALID_ARGUMENT;
    r->aside = true;
    comm->begin_aside = begin_before;
    if (comm->aside_last)
        comm->aside_last->next = r;
    else
        atomic_store(&comm->aside, r);
    comm->aside_last = r;
    kolo_handle_leave(comm);
    return KOLO_OK;
}

/* ---- the public calls ---- */

static kolo_status_t ask(const kolo_call_t *call, const void *buf, kolo_pending_t *request, const char *what)
{
    kolo_comm_t comm = call->comm;
    KOLO_TRY(kolo_handle_check(comm, what));
    if (!request) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the request is NULL", what);
    if (kolo_group_open())
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "%s: between group_start and group_end use kolo_send and kolo_recv", what);
    if (comm->on_device)
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "%s: on a GPU a message is queued on its stream: use kolo_send and "
                         "kolo_recv, and an event behind them",
                         what);
    struct kolo_pending *r = kolo_slots_take(&requests);
    if (!r) return kolo_fail(KOLO_ERR_NO_MEMORY, "%s: out of memory", what);
    r->call = *call;
    kolo_status_t status = kolo_p2p_check_call(&r->call, buf, what);
    if (status == KOLO_OK) status = put_aside(comm, r, what);
    if (status != KOLO_OK) {
        kolo_slot_end(r);
        kolo_slots_give(&requests, r);
        return status;
    }
    *request = r;
    return KOLO_OK;
}

kolo_status_t kolo_isend(const void *buf, size_t count, kolo_type_t type, int peer, kolo_comm_t comm,
                         kolo_pending_t *request)
{
    kolo_call_t call = KOLO_P2P_CALL(.kind = KOLO_CALL_SEND, .src = buf);
    return ask(&call, buf, request, "isend");
}

kolo_status_t kolo_irecv(void *buf, size_t count, kolo_type_t type, int peer, kolo_comm_t comm,
                         kolo_pending_t *request)
{
    kolo_call_t call = KOLO_P2P_CALL(.kind = KOLO_CALL_RECV, .dst = buf);
    return ask(&call, buf, request, "irecv");
}

/* Tells whether a message that began is complete. */
static bool has_passed(const struct kolo_pending *r)
{
    kolo_status_t state = KOLO_OK;
    if (!r->connects) return kolo_event_query(r->event) == KOLO_OK;
    return kolo_comm_get_async_error(r->call.comm, &state) != KOLO_OK || state != KOLO_IN_PROGRESS;
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const struct kolo_pending *r = arg;
    snprintf(buf, bytes, "the first use of %s rank %d, which took a message along", r->call.comm->name,
             r->call.comm->rank);
}

/* Waits until it is complete, also by an end of its communicator. What it waits for has a deadline and the abort
 * flag, and uses the buffers as long as it runs. */
static void await(struct kolo_pending *r)
{
    kolo_comm_t comm = r->call.comm;
    kolo_wait_t wait;
    if (!r->connects) {
        kolo_event_synchronize(r->event);
        return;
    }
    kolo_wait_init(&wait, NULL, 0, describe, r, 1);
    kolo_gate_join(&comm->gate);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&comm->gate);
        if (has_passed(r)) break;
        kolo_gate_wait(&comm->gate, ticket, &wait);
    }
    kolo_gate_quit(&comm->gate);
}

/* Concludes a message that is complete: what became of it is what became of the communicator. */
static void conclude(struct kolo_pending *r)
{
    kolo_comm_t comm = r->call.comm;
    kolo_status_t state = KOLO_OK;
    kolo_status_t status = kolo_comm_get_async_error(comm, &state);
    if (kolo_handle_check(comm, "pending_wait") != KOLO_OK)
        status = kolo_fail(KOLO_ERR_ABORTED, "the communicator ended before anybody waited for this message");
    else if (status == KOLO_OK && state != KOLO_OK && state != KOLO_IN_PROGRESS)
        status = kolo_fail(state, "%s", kolo_get_last_error(comm));
    finish(r, status);
}

static kolo_status_t refuse(kolo_pending_t request, const char *what)
{
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %p is not a request, or one that was waited for already", what,
                     (void *)request);
}

kolo_status_t kolo_pending_test(kolo_pending_t request, int *complete)
{
    if (!request || !complete)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "pending_test: the request or the output is NULL");
    if (!kolo_slot_lives(request)) return refuse(request, "pending_test");
    if (request->aside && kolo_group_open())
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "pending_test: between group_start and group_end a message cannot begin");
    if (request->aside) {
        KOLO_TRY(kolo_handle_check(request->call.comm, "pending_test"));
        kolo_status_t status = begin(request->call.comm);
        if (status != KOLO_OK && request->aside) return status;
    }
    if (!request->over && !request->taken && has_passed(request)) conclude(request);
    *complete = request->over;
    return KOLO_OK;
}

kolo_status_t kolo_pending_wait(kolo_pending_t request)
{
    if (!request) return KOLO_OK;
    if (!kolo_slot_lives(request)) return refuse(request, "pending_wait");
    kolo_comm_t comm = request->call.comm;
    if (kolo_group_open() || request->taken)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "pending_wait: not allowed between group_start and group_end");
    if (request->aside) { /* a first use of a communicator that does not block would go on behind our back */
        kolo_status_t status = comm->blocking ? run(comm, NULL, NULL) : begin(comm);
        if (status != KOLO_OK && request->aside) return status;
    }
    if (!request->over) {
        await(request);
        conclude(request);
    }
    kolo_status_t status = request->status;
    kolo_event_destroy(request->event);
    if (status != KOLO_OK) kolo_fail(status, "%s", request->text);
    kolo_slot_end(request);
    kolo_slots_give(&requests, request);
    return status;
}
