/* SPDX-License-Identifier: Apache-2.0
 *
 * What comes from a rank, and the answers to it. Data is read to where its receive wants it, where that is known.
 */
#include "comm/tagged/tagged.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define BUDGET (4u << 20) /* bytes of one source before others have their turn */

/* ---- answers ---- */

/* Writes what fits into the socket. If the sender has left nobody needs answers, and one that meets a closed socket
 * would take away what the system still has to deliver. */
static kolo_status_t flush(kolo_tagged_peer_t *p)
{
    kolo_tagged_in_t *in = &p->in;
    if (in->answers_bytes > 0 && kolo_oob_check_peer(p->messages->body->oob, p->rank, "answering it") != KOLO_OK)
        in->answers_bytes = 0;
    while (in->answers_bytes > 0) {
        ssize_t n = kolo_socket_send_bytes(&in->port.socket, in->answers, in->answers_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        size_t gone = n < 0 ? in->answers_bytes : (size_t)n;
        in->answers_bytes -= gone;
        memmove(in->answers, in->answers + gone, in->answers_bytes);
    }
    return kolo_courier_watch(&in->port, EPOLLIN | (in->answers_bytes ? (uint32_t)EPOLLOUT : 0));
}

void kolo_tagged_answer(kolo_incoming_t *m, kolo_tagged_kind_t kind, uint64_t total)
{
    kolo_tagged_in_t *in = &m->peer->in;
    kolo_tagged_frame_t frame = {.kind = kind, .id = m->id, .total = total};
    in->held--;
    if (!m->is_long) in->held_bytes -= m->total;
    /* as many frames have room as envelopes may be unanswered: a sender that keeps to that reads the answers */
    if (in->ended || in->answers_bytes + KOLO_TAGGED_FRAME_BYTES > sizeof in->answers) return;
    kolo_tagged_encode(&frame, in->answers + in->answers_bytes);
    in->answers_bytes += KOLO_TAGGED_FRAME_BYTES;
    if (in->answers_bytes == KOLO_TAGGED_FRAME_BYTES) (void)flush(m->peer); /* an end is seen when it is read */
}

/* ---- frames ---- */

static kolo_incoming_t *find(const kolo_tagged_in_t *in, uint64_t id)
{
    kolo_incoming_t *m = in->first;
    while (m && m->id != id) m = m->next_here;
    return m;
}

static kolo_status_t wrong(const kolo_tagged_peer_t *p, const char *what)
{
    return kolo_fail(KOLO_ERR_PROTOCOL, "messages from rank %d to %s rank %d: %s", p->rank, p->messages->body->name,
                     p->messages->body->rank, what);
}

static kolo_status_t take_envelope(kolo_tagged_peer_t *p, const kolo_tagged_frame_t *f)
{
    kolo_tagged_in_t *in = &p->in;
    bool is_long = f->kind == KOLO_TAGGED_LONG;
    if (f->id != in->next_id) return wrong(p, "a message is missing, or came twice");
    if (in->held >= KOLO_TAGGED_IN_FLIGHT || in->answers_bytes + KOLO_TAGGED_FRAME_BYTES > sizeof in->answers ||
        (!is_long && f->total > KOLO_TAGGED_UNASKED - in->held_bytes))
        return wrong(p, "more than it may send unasked");
    kolo_incoming_t *m = calloc(1, sizeof *m);
    if (!m) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a message from rank %d", p->rank);
    *m = (kolo_incoming_t){.peer = p, .id = f->id, .tag = f->tag, .total = f->total, .is_long = is_long};
    m->next_here = in->first;
    if (in->first) in->first->prev_here = m;
    in->first = m;
    in->next_id++;
    in->held++;
    if (!is_long) in->held_bytes += f->total;
    in->left = f->bytes;
    in->now = in->left > 0 ? m : NULL;
    kolo_tagged_arrive(m);
    if (in->now && !m->request && !m->lost) {
        m->data = malloc(m->total);
        if (!m->data) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a message from rank %d", p->rank);
    }
    return KOLO_OK;
}

static kolo_status_t take_frame(kolo_tagged_peer_t *p)
{
    kolo_tagged_in_t *in = &p->in;
    kolo_tagged_frame_t f;
    const char *what = kolo_tagged_decode(in->head, false, &f);
    in->head_have = 0;
    if (what) return wrong(p, what);
    if (f.kind == KOLO_TAGGED_SHORT || f.kind == KOLO_TAGGED_LONG) return take_envelope(p, &f);
    if (f.id >= in->next_id) return wrong(p, "a message that was not announced");
    kolo_incoming_t *m = find(in, f.id);
    if (f.kind == KOLO_TAGGED_WITHDRAWN) {
        if (m) kolo_tagged_withdraw(m); /* else it is over */
        return KOLO_OK;
    }
    if (!m || !m->is_long || m->unasked || f.bytes > m->total - m->have)
        return wrong(p, "data that nobody has asked for");
    in->now = m;
    in->left = f.bytes;
    return KOLO_OK;
}

/* Returns where the data that comes now goes: at most *room bytes of it. */
static uint8_t *place_of(const kolo_tagged_in_t *in, size_t *room)
{
    static uint8_t nowhere[64u << 10]; /* under the lock, like all here */
    const kolo_incoming_t *m = in->now;
    if (m && m->request && !m->data) return m->request->dst + m->have;
    if (m && m->data) return m->data + m->have;
    *room = KOLO_MIN(*room, sizeof nowhere);
    return nowhere;
}

static ssize_t read_some(kolo_tagged_in_t *in)
{
    size_t room = in->left;
    if (in->left == 0)
        return kolo_socket_recv_bytes(&in->port.socket, in->head + in->head_have,
                                      KOLO_TAGGED_FRAME_BYTES - in->head_have);
    uint8_t *to = place_of(in, &room);
    return kolo_socket_recv_bytes(&in->port.socket, to, room);
}

static kolo_status_t took(kolo_tagged_peer_t *p, size_t n)
{
    kolo_tagged_in_t *in = &p->in;
    if (in->left == 0) {
        in->head_have += n;
        kolo_status_t status = in->head_have == KOLO_TAGGED_FRAME_BYTES ? take_frame(p) : KOLO_OK;
        return status;
    }
    kolo_incoming_t *m = in->now;
    in->left -= n;
    m->have += n; /* it stays until its last byte has come */
    if (in->left == 0) in->now = NULL;
    if (m->have == m->total) kolo_tagged_whole(m);
    return KOLO_OK;
}

/* Reads what there is. KOLO_IN_PROGRESS: there is no more for now. */
static kolo_status_t read_all(kolo_tagged_peer_t *p)
{
    kolo_tagged_in_t *in = &p->in;
    size_t budget = BUDGET;
    for (;;) {
        ssize_t n = read_some(in);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return KOLO_IN_PROGRESS;
        if (n < 0 && errno == EBADMSG) return wrong(p, KOLO_SEAL_ALTERED);
        if (n <= 0) return kolo_fail_errno(KOLO_ERR_REMOTE, n < 0 ? errno : ECONNRESET, "its messages ended");
        KOLO_TRY(took(p, (size_t)n));
        /* a protected stream keeps what it has deciphered, and no event tells of that: it is read to its end */
        budget -= KOLO_MIN(budget, (size_t)n);
        if (budget == 0 && !in->port.socket.seal) return KOLO_IN_PROGRESS;
    }
}

void kolo_tagged_in_step(kolo_tagged_peer_t *p)
{
    if (p->in.port.socket.fd < 0) return;
    kolo_status_t status = flush(p);
    if (status == KOLO_OK) status = read_all(p);
    if (status != KOLO_IN_PROGRESS) kolo_tagged_broken(p, false, status == KOLO_ERR_REMOTE ? KOLO_OK : status);
}

void kolo_tagged_in_close(kolo_tagged_peer_t *p)
{
    p->in.ended = true;
    p->in.now = NULL;
    p->in.left = 0;
    kolo_courier_close(&p->in.port);
}
