/* SPDX-License-Identifier: Apache-2.0
 *
 * Sending: envelopes in the order of the calls, short data with them, long data when the receiver has said where it
 * wants it, in pieces. A frame that has begun goes out to its end; if its request ends meanwhile, from a copy.
 */
#include "base/clock.h"
#include "comm/tagged/tagged.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/* ---- what is withdrawn ---- */

static bool withdraw(kolo_tagged_out_t *out, uint64_t id, bool answered)
{
    kolo_withdrawn_t *w = malloc(sizeof *w);
    if (!w) return false;
    *w = (kolo_withdrawn_t){.next = out->withdrawn, .id = id, .answered = answered};
    out->withdrawn = w;
    return true;
}

static kolo_withdrawn_t **find_withdrawn(kolo_tagged_out_t *out, uint64_t id)
{
    kolo_withdrawn_t **at = &out->withdrawn;
    while (*at && (*at)->id != id) at = &(*at)->next;
    return at;
}

static void forget(kolo_withdrawn_t **at)
{
    kolo_withdrawn_t *w = *at;
    *at = w->next;
    free(w);
}

/* ---- writing ---- */

static void begin(kolo_tagged_out_t *out, kolo_tagged_frame_t frame, struct kolo_request *r, const uint8_t *data)
{
    out->busy = true;
    out->frame = frame;
    out->now = r;
    out->data = data;
    out->done = 0;
    kolo_tagged_encode(&frame, out->head);
}

static bool begin_withdrawn(kolo_tagged_out_t *out)
{
    kolo_withdrawn_t **at = &out->withdrawn;
    while (*at && (*at)->told) at = &(*at)->next;
    if (!*at) return false;
    begin(out, (kolo_tagged_frame_t){.kind = KOLO_TAGGED_WITHDRAWN, .id = (*at)->id}, NULL, NULL);
    (*at)->told = true;
    if ((*at)->answered) forget(at);
    return true;
}

static bool begin_envelope(kolo_tagged_out_t *out)
{
    struct kolo_request *r = out->waiting.first;
    if (!r || out->in_flight >= KOLO_TAGGED_IN_FLIGHT) return false;
    bool is_short = r->bytes <= KOLO_TAGGED_SHORT_MAX && r->bytes <= KOLO_TAGGED_UNASKED - out->unasked;
    kolo_tagged_frame_t frame = {.kind = is_short ? KOLO_TAGGED_SHORT : KOLO_TAGGED_LONG,
                                 .bytes = is_short ? (uint32_t)r->bytes : 0,
                                 .id = r->id = out->next_id++,
                                 .tag = r->tag,
                                 .total = r->bytes};
    out->in_flight++;
    kolo_tagged_remove(r);
    if (is_short)
        out->unasked += r->bytes;
    else
        kolo_tagged_add(&out->asked, r);
    begin(out, frame, is_short ? r : NULL, r->src);
    return true;
}

static bool begin_piece(kolo_tagged_out_t *out)
{
    struct kolo_request *r = out->clear.first;
    if (!r) return false;
    uint32_t bytes = (uint32_t)KOLO_MIN(r->bytes - r->moved, (size_t)KOLO_TAGGED_PIECE_MAX);
    begin(out, (kolo_tagged_frame_t){.kind = KOLO_TAGGED_PIECE, .bytes = bytes, .id = r->id}, r, r->src + r->moved);
    return true;
}

static void frame_done(kolo_tagged_out_t *out)
{
    struct kolo_request *r = out->now;
    out->busy = false;
    out->now = NULL;
    free(out->copy);
    out->copy = NULL;
    if (!r) return;
    r->moved += out->frame.bytes;
    if (r->moved == r->bytes) kolo_tagged_complete(r, KOLO_OK);
}

/* Writes what fits into the socket; false: the connection has ended, errno says why. */
static bool write_all(kolo_tagged_out_t *out)
{
    for (;;) {
        if (!out->busy && !begin_withdrawn(out) && !begin_envelope(out) && !begin_piece(out)) return true;
        size_t whole = KOLO_TAGGED_FRAME_BYTES + out->frame.bytes;
        while (out->done < whole) {
            struct iovec iov[2];
            int n = 0;
            size_t in_data = out->done > KOLO_TAGGED_FRAME_BYTES ? out->done - KOLO_TAGGED_FRAME_BYTES : 0;
            if (out->done < KOLO_TAGGED_FRAME_BYTES)
                iov[n++] = (struct iovec){out->head + out->done, KOLO_TAGGED_FRAME_BYTES - out->done};
            if (out->frame.bytes > in_data)
                iov[n++] = (struct iovec){(void *)(uintptr_t)(out->data + in_data), out->frame.bytes - in_data};
            ssize_t sent = kolo_socket_send(&out->port.socket, iov, n);
            if (sent < 0 && errno == EINTR) continue;
            if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
            out->done += (size_t)sent;
        }
        frame_done(out);
    }
}

/* ---- answers ---- */

static struct kolo_request *find_asked(const kolo_tagged_out_t *out, uint64_t id)
{
    struct kolo_request *r = out->asked.first;
    while (r && r->id != id) r = r->next;
    return r;
}

static const char *take_long_answer(kolo_tagged_peer_t *p, const kolo_tagged_frame_t *f)
{
    kolo_tagged_out_t *out = &p->out;
    struct kolo_request *r = find_asked(out, f->id);
    kolo_withdrawn_t **at = find_withdrawn(out, f->id);
    if (r && f->kind == KOLO_TAGGED_CLEAR) {
        kolo_tagged_remove(r);
        kolo_tagged_add(&out->clear, r);
    } else if (r && f->kind == KOLO_TAGGED_REFUSED) {
        kolo_fail(KOLO_ERR_MISMATCH,
                  "%s: rank %d has room for %llu bytes in its receive for tag %llu, and %s rank %d sent %zu",
                  r->what, p->rank, (unsigned long long)f->total, (unsigned long long)r->tag,
                  p->messages->body->name, p->messages->body->rank, r->bytes);
        kolo_tagged_complete(r, KOLO_ERR_MISMATCH);
    } else if (!r && *at && !(*at)->answered) {
        (*at)->answered = true;
        if ((*at)->told || f->kind == KOLO_TAGGED_REFUSED) forget(at);
    } else {
        return "an answer to nothing";
    }
    out->in_flight--;
    return NULL;
}

static const char *take_answer(kolo_tagged_peer_t *p)
{
    kolo_tagged_out_t *out = &p->out;
    kolo_tagged_frame_t f;
    const char *what = kolo_tagged_decode(out->answer, true, &f);
    out->answer_have = 0;
    if (what) return what;
    if (f.id >= out->next_id || out->in_flight == 0) return "an answer to nothing";
    if (f.kind != KOLO_TAGGED_TAKEN) return take_long_answer(p, &f);
    if (f.total > out->unasked) return "an answer about too much";
    out->unasked -= f.total;
    out->in_flight--;
    return NULL;
}

/* Reads answers. KOLO_IN_PROGRESS: there is no more for now. */
static kolo_status_t read_answers(kolo_tagged_peer_t *p)
{
    kolo_tagged_out_t *out = &p->out;
    for (;;) {
        ssize_t n = kolo_socket_recv_bytes(&out->port.socket, out->answer + out->answer_have,
                                           KOLO_TAGGED_FRAME_BYTES - out->answer_have);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return KOLO_IN_PROGRESS;
        if (n < 0 && errno == EBADMSG)
            return kolo_fail(KOLO_ERR_PROTOCOL, "rank %d: %s", p->rank, KOLO_SEAL_ALTERED);
        if (n <= 0)
            return kolo_fail_errno(KOLO_ERR_REMOTE, n < 0 ? errno : ECONNRESET, "it takes no more messages");
        out->answer_have += (size_t)n;
        if (out->answer_have < KOLO_TAGGED_FRAME_BYTES) continue;
        const char *what = take_answer(p);
        if (what) return kolo_fail(KOLO_ERR_PROTOCOL, "rank %d answers messages wrongly: %s", p->rank, what);
    }
}

void kolo_tagged_out_step(kolo_tagged_peer_t *p, bool may_read)
{
    kolo_tagged_out_t *out = &p->out;
    if (out->state != KOLO_OUT_OPEN) return;
    kolo_status_t status = may_read ? read_answers(p) : KOLO_IN_PROGRESS;
    if (status == KOLO_IN_PROGRESS && !write_all(out))
        status = kolo_fail_errno(KOLO_ERR_REMOTE, errno, "nothing can be sent to it");
    if (status == KOLO_IN_PROGRESS)
        status = kolo_courier_watch(&out->port, EPOLLIN | (out->busy ? (uint32_t)EPOLLOUT : 0));
    if (status != KOLO_OK) {
        kolo_tagged_broken(p, true, status == KOLO_ERR_PROTOCOL ? status : KOLO_OK);
        return;
    }
    if (p->messages->leaving && !out->busy && !out->hung_up) {
        out->hung_up = true;
        shutdown(out->port.socket.fd, SHUT_WR);
    }
}

/* ---- requests ---- */

static kolo_status_t dial(kolo_tagged_peer_t *p)
{
    kolo_body_t *body = p->messages->body;
    KOLO_TRY(kolo_oob_dial_begin(body->oob, p->rank, KOLO_TAGGED_STREAM, kolo_deadline_ms(body->init_timeout_ms),
                                 &p->out.dialling));
    p->out.state = KOLO_OUT_DIALLING;
    return KOLO_OK;
}

void kolo_tagged_out_dialled(kolo_tagged_peer_t *p)
{
    kolo_tagged_out_t *out = &p->out;
    if (out->state != KOLO_OUT_DIALLING) return;
    kolo_status_t status = kolo_oob_dial_poll(out->dialling, &out->port.socket);
    if (status == KOLO_IN_PROGRESS) return;
    kolo_oob_dial_end(out->dialling);
    out->dialling = NULL;
    if (status != KOLO_OK) {
        kolo_tagged_broken(p, true, KOLO_OK);
        return;
    }
    out->state = KOLO_OUT_OPEN;
    kolo_tagged_out_step(p, true);
}

static void send_own(struct kolo_request *r, kolo_tagged_peer_t *p)
{
    kolo_incoming_t *m = calloc(1, sizeof *m);
    if (!m) {
        kolo_tagged_complete(r, kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a message to this rank itself"));
        return;
    }
    *m = (kolo_incoming_t){.peer = p, .tag = r->tag, .total = r->bytes, .have = r->bytes, .own = r};
    r->incoming = m;
    kolo_tagged_arrive(m);
}

void kolo_tagged_send(struct kolo_request *r)
{
    kolo_tagged_peer_t *p = r->messages->peers[r->peer];
    if (p->rank == p->messages->body->rank) {
        send_own(r, p);
        return;
    }
    kolo_tagged_add(&p->out.waiting, r);
    if (p->out.state == KOLO_OUT_NONE && dial(p) != KOLO_OK) kolo_tagged_broken(p, true, KOLO_OK);
    kolo_tagged_out_step(p, false);
}

/* Copies the rest of the frame under way, which is of this request, and goes out from the copy. */
static bool copy_rest(kolo_tagged_out_t *out)
{
    out->now = NULL;
    if (out->frame.bytes == 0) return true;
    out->copy = malloc(out->frame.bytes);
    if (!out->copy) return false;
    memcpy(out->copy, out->data, out->frame.bytes);
    out->data = out->copy;
    return true;
}

void kolo_tagged_send_end(struct kolo_request *r)
{
    kolo_tagged_peer_t *p = r->messages->peers[r->peer];
    kolo_tagged_out_t *out = &p->out;
    bool asked = r->in == &out->asked, told = asked || r->in == &out->clear || out->now == r, good = true;
    if (r->incoming) kolo_tagged_incoming_free(r->incoming);
    kolo_tagged_remove(r);
    if (!told || out->state != KOLO_OUT_OPEN) return;
    if (out->now == r) good = copy_rest(out);
    if (!good || !withdraw(out, r->id, !asked)) {
        kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to withdraw a message");
        kolo_tagged_broken(p, true, KOLO_ERR_NO_MEMORY);
        return;
    }
    kolo_tagged_out_step(p, false);
}

/* Reads what has come: to close a socket with something to be read in it would take away what the system still has
 * to deliver. */
static void read_rest(kolo_tagged_out_t *out)
{
    uint8_t answers[64 * KOLO_TAGGED_FRAME_BYTES];
    if (out->port.socket.fd < 0) return;
    while (recv(out->port.socket.fd, answers, sizeof answers, MSG_DONTWAIT) > 0) continue;
}

/* Does everything but the pause with the lock: the courier may close the socket at any moment. */
void kolo_tagged_out_drain(kolo_tagged_peer_t *p, uint64_t deadline_ns)
{
    kolo_tagged_out_t *out = &p->out;
    for (;;) {
        int unsent = 0;
        kolo_tagged_lock();
        struct pollfd poll_fd = {.fd = out->hung_up ? out->port.socket.fd : -1, .events = POLLIN};
        bool more = poll_fd.fd >= 0 && ioctl(poll_fd.fd, SIOCOUTQ, &unsent) == 0 && unsent > 0 &&
                    kolo_now_ns() < deadline_ns;
        if (more) read_rest(out);
        kolo_tagged_unlock();
        if (!more) return;
        (void)poll(&poll_fd, 1, 5);
        if (poll_fd.revents & (POLLERR | POLLHUP | POLLNVAL)) return;
    }
}

void kolo_tagged_out_close(kolo_tagged_peer_t *p)
{
    kolo_tagged_out_t *out = &p->out;
    kolo_oob_dial_end(out->dialling);
    out->dialling = NULL;
    out->state = KOLO_OUT_ENDED;
    out->busy = false;
    out->now = NULL;
    while (out->withdrawn) forget(&out->withdrawn);
    free(out->copy);
    out->copy = NULL;
    read_rest(out);
    kolo_courier_close(&out->port);
}
