/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages with requests to wait for (kolo_pending_t). They are put aside by the call and run together, as a group,
 * with the next call that comes to the communicator or when one of them is waited for: so an exchange that is
 * written as two requests and a wait, or as a request and a receive, cannot wait for itself. Where that call comes
 * into an open group they come into it, too. Only who asks without waiting, or makes a window or a communicator,
 * has them run on a stream of the communicator's own.
 *
 * Who ends one. While it is aside that is its communicator's list, and then whoever takes the list, whole and in
 * one exchange: the call that it runs with, a group, or, once the handle is retired, the communicator's end. That
 * one moves its state on and never looks at it again. Behind that it is its user's, whose wait ends the handle
 * first.
 */
#include "base/slots.h"
#include "comm/call/call.h"

#include <stdio.h>

typedef enum {
    ASIDE,   /* in the list, or with who has taken that */
    GROUPED, /* in a group that is open */
    BEGUN,   /* its user's: runs on a stream or in the background */
    OVER     /* its user's: status and text say how it went */
} kolo_pending_state_t;

struct kolo_pending {
    kolo_slot_t slot;
    _Atomic int state;
    struct kolo_pending *next; /* put aside behind it */
    kolo_call_t call;
    uint64_t number;    /* of its communicator: another one may have the handle by now */
    bool connects;      /* goes on in the background, as a first use of a communicator that does not block */
    kolo_event_t event; /* runs on a stream: recorded behind it */
    kolo_status_t status;
    char text[KOLO_ERROR_TEXT_BYTES];
};
static kolo_slots_t requests = KOLO_SLOTS_OF(struct kolo_pending);

static void finish(struct kolo_pending *r, kolo_status_t status)
{
    r->status = status;
    if (status != KOLO_OK) snprintf(r->text, sizeof r->text, "%s", kolo_error_text());
    atomic_store(&r->state, OVER); /* and may be gone */
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

/* Gives one to its user: it runs on the stream, or, without one, has run or goes on in the background. */
static void begun(struct kolo_pending *r, kolo_status_t status, void *stream)
{
    r->connects = status == KOLO_IN_PROGRESS && !stream;
    kolo_status_t own = status == KOLO_IN_PROGRESS ? KOLO_OK : status;
    if (own == KOLO_OK && stream) own = follow(r, stream);
    if (own != KOLO_OK || (!stream && !r->connects))
        finish(r, own);
    else
        atomic_store(&r->state, BEGUN);
}

static void all_begun(struct kolo_pending *first, kolo_status_t status, void *stream)
{
    kolo_comm_t comm = first ? first->call.comm : NULL;
    for (struct kolo_pending *r = first, *next; r; r = next) {
        next = r->next;
        begun(r, status, stream);
    }
    if (comm) kolo_gate_open_if_joined(&comm->gate);
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
    KOLO_TRY(kolo_group_start());
    struct kolo_pending *first = take_all(comm);
    kolo_status_t status = collect(first, with, stream), ended = kolo_group_end();
    if (status == KOLO_OK) status = ended;
    all_begun(first, status, stream);
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
        atomic_store(&r->state, GROUPED);
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
        kolo_fail(KOLO_ERR_ABORTED, "the communicator ended before anybody waited for this message");
        finish(r, KOLO_ERR_ABORTED);
    }
    comm->aside_last = NULL;
    kolo_gate_open(&comm->gate);
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

static void describe_first_use(void *arg, char *buf, size_t bytes)
{
    const struct kolo_comm *h = arg;
    snprintf(buf, bytes, "the first use of %s rank %d", h->name, h->rank);
}

/* Waits for what connects in the background, since no ticket is given meanwhile. It has a deadline and the abort
 * flag. The caller is a visitor. */
static void await_connected(kolo_comm_t comm)
{
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, 0, describe_first_use, comm, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&comm->gate);
        if (atomic_load(&comm->state) != KOLO_COMM_CONNECTING) return;
        kolo_gate_wait(&comm->gate, ticket, &wait);
    }
}

kolo_status_t kolo_comm_synchronize(kolo_comm_t comm)
{
    if (!comm) return KOLO_OK;
    if (kolo_group_open())
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "comm_synchronize: not allowed between group_start and group_end");
    kolo_body_t *body = kolo_handle_visit(comm, "comm_synchronize");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    kolo_status_t status = KOLO_OK;
    await_connected(comm);
    if (kolo_comm_has_aside(comm)) status = comm->blocking ? run(comm, NULL, NULL) : begin(comm);
    if (status == KOLO_OK) status = drain_in_turn(body->handle);
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
    r->number = comm->number;
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

/* Tells whether its communicator is still the one that it was put aside on. */
static bool has_comm(const struct kolo_pending *r)
{
    return atomic_load(&r->call.comm->number) == r->number;
}

/* Tells whether a message that began is complete. */
static bool has_passed(const struct kolo_pending *r)
{
    kolo_status_t state = KOLO_OK;
    if (!r->connects) return kolo_event_query(r->event) == KOLO_OK;
    return kolo_comm_get_async_error(r->call.comm, &state) != KOLO_OK || state != KOLO_IN_PROGRESS || !has_comm(r);
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const struct kolo_pending *r = arg;
    snprintf(buf, bytes, "the %s of %s rank %d, which took a message along", r->connects ? "first use" : "end",
             r->call.comm->name, r->call.comm->rank);
}

/* Waits at the gate. What it waits for has a deadline and the abort flag, and uses the buffers as long as it runs.
 */
static void await_until(struct kolo_pending *r, bool (*true_now)(const struct kolo_pending *r))
{
    kolo_comm_t comm = r->call.comm;
    kolo_wait_t wait;
    if (true_now(r)) return; /* mostly; joining takes long */
    kolo_wait_init(&wait, NULL, 0, describe, r, 1);
    kolo_gate_join(&comm->gate);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&comm->gate);
        if (true_now(r)) break;
        kolo_gate_wait(&comm->gate, ticket, &wait);
    }
    kolo_gate_quit(&comm->gate);
}

static bool is_ours(const struct kolo_pending *r)
{
    return atomic_load(&r->state) >= BEGUN;
}

/* Concludes a message that is complete: what became of it is what became of the communicator, which is held. */
static void conclude(struct kolo_pending *r)
{
    kolo_comm_t comm = r->call.comm;
    kolo_status_t state = KOLO_OK;
    bool held = kolo_handle_visit(comm, "pending_wait") != NULL;
    kolo_status_t status = held && has_comm(r) ? kolo_comm_get_async_error(comm, &state) : KOLO_ERR_ABORTED;
    if (status != KOLO_OK)
        kolo_fail(status, "the communicator ended before anybody waited for this message");
    else if (state != KOLO_OK && state != KOLO_IN_PROGRESS)
        status = kolo_fail(state, "%s", kolo_get_last_error(comm));
    if (held) kolo_handle_leave(comm);
    finish(r, status);
}

static kolo_status_t refuse(kolo_pending_t request, const char *what)
{
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %p is not a request, or one that was waited for already", what,
                     (void *)request);
}

/* Checks the handle; what has not ended is the parent's in a child of fork(). */
static kolo_status_t check(kolo_pending_t request, const char *what)
{
    if (!kolo_slot_lives(request)) return refuse(request, what);
    kolo_comm_t comm = request->call.comm;
    bool over = atomic_load(&request->state) == OVER;
    return over || atomic_load(&comm->magic) != KOLO_COMM_FOREIGN ? KOLO_OK : kolo_handle_check(comm, what);
}

/* Has one that is aside begin. Where another thread ends the communicator, or runs what is aside, it is with that
 * one, which will end it or give it to us: that is no error. */
static kolo_status_t begin_it(struct kolo_pending *r, bool wait)
{
    kolo_comm_t comm = r->call.comm;
    if (wait && atomic_load(&comm->state) == KOLO_COMM_CONNECTING && kolo_handle_visit(comm, "a message")) {
        await_connected(comm);
        kolo_handle_leave(comm);
    }
    kolo_status_t status = wait && comm->blocking ? run(comm, NULL, NULL) : begin(comm);
    bool waits_on = is_ours(r) || atomic_load(&comm->magic) != KOLO_COMM_MAGIC || !has_comm(r);
    return waits_on ? KOLO_OK : status;
}

kolo_status_t kolo_pending_test(kolo_pending_t request, int *complete)
{
    if (!request || !complete)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "pending_test: the request or the output is NULL");
    KOLO_TRY(check(request, "pending_test"));
    bool aside = atomic_load(&request->state) == ASIDE;
    if (aside && kolo_group_open())
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "pending_test: between group_start and group_end a message cannot begin");
    bool connecting = atomic_load(&request->call.comm->state) == KOLO_COMM_CONNECTING; /* it begins later */
    if (aside && !connecting) KOLO_TRY(begin_it(request, false));
    if (atomic_load(&request->state) == BEGUN && has_passed(request)) conclude(request);
    *complete = atomic_load(&request->state) == OVER;
    return KOLO_OK;
}

kolo_status_t kolo_pending_wait(kolo_pending_t request)
{
    if (!request) return KOLO_OK;
    KOLO_TRY(check(request, "pending_wait"));
    if (kolo_group_open() || atomic_load(&request->state) == GROUPED)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "pending_wait: not allowed between group_start and group_end");
    /* a first use of a communicator that does not block would go on behind our back */
    if (atomic_load(&request->state) == ASIDE) KOLO_TRY(begin_it(request, true));
    if (!kolo_slot_end(request)) return refuse(request, "pending_wait"); /* another thread waits for it */
    await_until(request, is_ours);
    if (atomic_load(&request->state) == BEGUN) {
        if (request->connects)
            await_until(request, has_passed);
        else
            kolo_event_synchronize(request->event);
        conclude(request);
    }
    kolo_status_t status = request->status;
    kolo_event_destroy(request->event);
    if (status != KOLO_OK) kolo_fail(status, "%s", request->text);
    kolo_slots_give(&requests, request);
    return status;
}
