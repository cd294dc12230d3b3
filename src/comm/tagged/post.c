/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls that start messages with tags. Any thread: the lock makes the order of the calls.
 */
#include "base/clock.h"
#include "comm/tagged/tagged.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    bool sends;
    const char *what;
    const void *buf;
    size_t count;
    kolo_type_t type;
    int peer;
    uint64_t tag;
    kolo_comm_t comm;
    const kolo_call_opts_t *opts;
} ask_t;

static kolo_slots_t requests = KOLO_SLOTS_OF(struct kolo_request);

static kolo_status_t check_opts(const ask_t *a, int *timeout_ms)
{
    kolo_call_opts_t opts = KOLO_CALL_OPTS_INITIALIZER;
    if (a->opts) {
        if (a->opts->size < sizeof opts.size || a->opts->size > 4096)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                             "%s: opts->size is %u: start from KOLO_CALL_OPTS_INITIALIZER", a->what, a->opts->size);
        memcpy(&opts, a->opts, KOLO_MIN(sizeof opts, (size_t)a->opts->size));
    }
    if (opts.timeout_ms < 0 && opts.timeout_ms != KOLO_UNDEFINED_INT)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: opts->timeout_ms is %d, and must be 0 or more", a->what,
                         opts.timeout_ms);
    *timeout_ms = opts.timeout_ms;
    return KOLO_OK;
}

static kolo_status_t check(const ask_t *a)
{
    size_t elem = kolo_type_size(a->type);
    kolo_comm_t comm = a->comm;
    int least = a->sends ? 0 : KOLO_ANY_SOURCE;
    if (elem == 0) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %d is not a type", a->what, (int)a->type);
    if (a->count > INT64_MAX / elem)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %zu elements are too many", a->what, a->count);
    if (!a->buf && a->count > 0) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the buffer is NULL", a->what);
    if (a->peer < least || a->peer >= comm->nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %d is not a rank of %s (0 to %d)%s", a->what, a->peer,
                         comm->name, comm->nranks - 1, a->sends ? "" : " or KOLO_ANY_SOURCE");
    if (comm->on_device)
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "%s: %s is a communicator of GPUs: use kolo_send() and kolo_recv() on a stream, or a "
                         "communicator with device -1 beside it",
                         a->what, comm->name);
    return KOLO_OK;
}

static void fill(struct kolo_request *r, const ask_t *a, kolo_tagged_t *m, int timeout_ms)
{
    if (timeout_ms == KOLO_UNDEFINED_INT) timeout_ms = m->body->op_timeout_ms;
    r->messages = m;
    r->what = a->what;
    r->sends = a->sends;
    r->src = a->sends ? a->buf : NULL;
    r->dst = a->sends ? NULL : (uint8_t *)(uintptr_t)a->buf;
    r->bytes = a->count * kolo_type_size(a->type);
    r->peer = a->peer;
    r->tag = a->tag;
    r->pid = getpid();
    r->since_ns = kolo_now_ns();
    r->deadline_ns = timeout_ms > 0 ? r->since_ns + (uint64_t)timeout_ms * KOLO_NS_PER_MS : 0;
}

/* Starts a request; the lock is held. */
static void start(struct kolo_request *r)
{
    kolo_tagged_t *m = r->messages;
    r->number = m->numbers++;
    r->next_open = m->open;
    if (m->open) m->open->prev_open = r;
    m->open = r;
    m->nopen++;
    if (r->sends)
        kolo_tagged_send(r);
    else
        kolo_tagged_receive(r);
    if (r->messages) kolo_courier_expect(r->deadline_ns);
}

/* Posts a request from inside, so that the communicator stays. */
static kolo_status_t post(const ask_t *a, kolo_body_t *body, int timeout_ms, kolo_request_t *out)
{
    kolo_tagged_t *m;
    int state = atomic_load(&body->handle->state);
    bool usable = state == KOLO_COMM_READY || state == KOLO_COMM_CONNECTING;
    if (!usable) return kolo_fail_prefix(kolo_handle_refuse(body->handle, state), "%s: ", a->what);
    KOLO_TRY(kolo_tagged_get(body, &m));
    struct kolo_request *r = kolo_slots_take(&requests);
    if (!r) return kolo_fail(KOLO_ERR_NO_MEMORY, "%s: out of memory for a request", a->what);
    fill(r, a, m, timeout_ms);
    kolo_tagged_lock();
    bool good = a->peer < 0 || kolo_tagged_peer(m, a->peer);
    if (good) start(r);
    kolo_tagged_unlock();
    if (good) {
        *out = r;
        return KOLO_OK;
    }
    kolo_slot_end(r);
    kolo_slots_give(&requests, r);
    return KOLO_ERR_NO_MEMORY;
}

static kolo_status_t ask(const ask_t *a, kolo_request_t *request)
{
    int timeout_ms = KOLO_UNDEFINED_INT;
    KOLO_TRY(kolo_handle_check(a->comm, a->what));
    if (!request) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the request is NULL", a->what);
    KOLO_TRY(check(a));
    KOLO_TRY(check_opts(a, &timeout_ms));
    kolo_body_t *body = kolo_handle_visit(a->comm, a->what);
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    kolo_status_t status = post(a, body, timeout_ms, request);
    kolo_handle_leave(a->comm);
    return status;
}

/* ---- the public calls ---- */

kolo_status_t kolo_isend_tag(const void *buf, size_t count, kolo_type_t type, int peer, uint64_t tag,
                             kolo_comm_t comm, const kolo_call_opts_t *opts, kolo_request_t *request)
{
    return ask(&(ask_t){true, "isend_tag", buf, count, type, peer, tag, comm, opts}, request);
}

kolo_status_t kolo_irecv_tag(void *buf, size_t count, kolo_type_t type, int source, uint64_t tag, kolo_comm_t comm,
                             const kolo_call_opts_t *opts, kolo_request_t *request)
{
    return ask(&(ask_t){false, "irecv_tag", buf, count, type, source, tag, comm, opts}, request);
}

kolo_status_t kolo_send_tag(const void *buf, size_t count, kolo_type_t type, int peer, uint64_t tag,
                            kolo_comm_t comm, const kolo_call_opts_t *opts)
{
    kolo_request_t request;
    KOLO_TRY(ask(&(ask_t){true, "send_tag", buf, count, type, peer, tag, comm, opts}, &request));
    kolo_status_t status = kolo_request_wait(request, -1);
    kolo_request_free(request);
    return status;
}

kolo_status_t kolo_recv_tag(void *buf, size_t count, kolo_type_t type, int source, uint64_t tag, kolo_comm_t comm,
                            const kolo_call_opts_t *opts, kolo_received_t *received)
{
    kolo_request_t request;
    KOLO_TRY(ask(&(ask_t){false, "recv_tag", buf, count, type, source, tag, comm, opts}, &request));
    kolo_status_t status = kolo_request_wait(request, -1);
    if (status == KOLO_OK && received) *received = request->got;
    kolo_request_free(request);
    return status;
}

void kolo_tagged_give_back(struct kolo_request *r)
{
    kolo_slots_give(&requests, r);
}
