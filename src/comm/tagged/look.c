/* SPDX-License-Identifier: Apache-2.0
 *
 * What comes from outside: streams that other ranks have opened or accepted, and what ends requests that are not
 * complete: time limits, the end of the communicator, and ranks that have left.
 */
#include "base/clock.h"
#include "comm/tagged/tagged.h"
#include "diag/diag.h"

#include <stdio.h>
#include <sys/epoll.h>

#define VERDICT_MS 10000 /* for the word of who was lost, when a connection has ended */
#define ALONE_MS   2000  /* for streams of ranks that have left and were never met */

/* ---- streams ---- */

static void take_streams(kolo_tagged_t *m)
{
    int rank;
    kolo_socket_t socket;
    while (kolo_oob_take_stream(m->body->oob, KOLO_TAGGED_STREAM, &rank, &socket)) {
        kolo_tagged_peer_t *p = kolo_tagged_peer(m, rank);
        if (!p || p->in.ended || p->in.port.socket.fd >= 0) { /* none is opened twice */
            kolo_socket_close(&socket);
            continue;
        }
        p->in.port.socket = socket;
        if (kolo_courier_watch(&p->in.port, EPOLLIN) != KOLO_OK)
            kolo_tagged_broken(p, false, KOLO_ERR_SYSTEM);
        else
            kolo_tagged_in_step(p);
    }
}

/* ---- connections that have ended ---- */

static bool needs(const struct kolo_request *r, const kolo_tagged_peer_t *p)
{
    if (r->sends) return r->peer == p->rank && p->out.state == KOLO_OUT_ENDED;
    if (!p->in.ended) return false;
    return r->incoming ? r->incoming->peer == p : r->peer == p->rank;
}

/* Ends all messages of a peer with the thread's last error. */
static void end_those_of(kolo_tagged_peer_t *p, kolo_status_t status)
{
    kolo_tagged_t *m = p->messages;
    char words[KOLO_TAGGED_WORDS_BYTES];
    for (struct kolo_request *r = m->open, *next; r; r = next) {
        next = r->next_open;
        if (!needs(r, p)) continue;
        kolo_tagged_describe(r, words, sizeof words);
        kolo_fail(status, "%s: the connection with rank %d has ended: %s", words, p->rank, p->why);
        kolo_tagged_end(r, status);
    }
}

void kolo_tagged_broken(kolo_tagged_peer_t *p, bool out, kolo_status_t status)
{
    if (p->ended_ns == 0 || status != KOLO_OK) snprintf(p->why, sizeof p->why, "%s", kolo_error_text());
    if (p->ended_ns == 0) p->ended_ns = kolo_now_ns();
    if (out || status != KOLO_OK) kolo_tagged_out_close(p);
    if (!out || status != KOLO_OK) kolo_tagged_in_close(p);
    if (status != KOLO_OK)
        end_those_of(p, status);
    else
        kolo_courier_expect(0);
}

/* ---- requests ---- */

/* Tells whether nothing more is to come from this rank, or to go to it: a rank that has left has said so behind its
 * data. */
static bool may_have_left(const kolo_tagged_peer_t *p, bool sends)
{
    return sends || p->in.ended || p->in.port.socket.fd < 0;
}

/* Tells for a receive from any source whether somebody can still send. kolo_oob_check_peer() knows of a farewell,
 * which follows all that was sent; of a rank that was never met it is only known that it leaves. */
static kolo_status_t check_all(const struct kolo_request *r, uint64_t now)
{
    kolo_tagged_t *m = r->messages;
    const kolo_body_t *body = m->body;
    char words[KOLO_TAGGED_WORDS_BYTES], text[KOLO_ERROR_TEXT_BYTES];
    kolo_status_t status = KOLO_ERR_REMOTE, last = KOLO_OK;
    bool certain = true;
    if (body->nranks == 1) return KOLO_OK;
    for (int rank = 0; rank < body->nranks; rank++) {
        if (rank == body->rank) continue;
        if (m->peers[rank] && !may_have_left(m->peers[rank], false)) return KOLO_OK;
        if (certain) last = kolo_oob_check_peer(body->oob, rank, "receiving from it");
        certain = certain && last != KOLO_OK;
    }
    if (certain && last == KOLO_ERR_MISMATCH) status = last; /* for which they have left */
    if (!certain && !kolo_diag_all_left(body->oob)) return KOLO_OK;
    if (m->alone_ns == 0) m->alone_ns = now;
    if (!certain && now - m->alone_ns < ALONE_MS * KOLO_NS_PER_MS) return KOLO_OK;
    kolo_tagged_describe(r, words, sizeof words);
    snprintf(text, sizeof text, "%s", certain ? kolo_error_text() : "");
    return kolo_fail(
        status,
        "%s: all %d other ranks have left or are lost, so nobody can send it; it was not sent before%s%.300s",
        words, body->nranks - 1, text[0] ? ". Of the last of them: " : "", text);
}

static kolo_status_t check_peer(const struct kolo_request *r, uint64_t now)
{
    kolo_tagged_t *m = r->messages;
    int rank = r->incoming ? r->incoming->peer->rank : r->peer;
    char words[KOLO_TAGGED_WORDS_BYTES];
    if (rank < 0) return check_all(r, now);
    if (rank == m->body->rank || !m->peers[rank]) return KOLO_OK;
    const kolo_tagged_peer_t *p = m->peers[rank];
    if (may_have_left(p, r->sends)) {
        kolo_status_t status =
            kolo_oob_check_peer(m->body->oob, rank, r->sends ? "sending to it" : "receiving from it");
        kolo_tagged_describe(r, words, sizeof words);
        if (status != KOLO_OK) return kolo_fail_prefix(status, "%s: ", words);
    }
    if (!needs(r, p) || now - p->ended_ns < VERDICT_MS * KOLO_NS_PER_MS) return KOLO_OK;
    kolo_tagged_describe(r, words, sizeof words);
    return kolo_fail(KOLO_ERR_REMOTE, "%s: the connection with rank %d has ended: %s", words, rank, p->why);
}

/* Returns KOLO_OK while the communicator is alive. */
static kolo_status_t check_comm(const kolo_tagged_t *m, char *text, size_t bytes)
{
    kolo_comm_t h = m->body->handle;
    int state = atomic_load(&h->state);
    if (state != KOLO_COMM_FAILED && state != KOLO_COMM_ABORTED) return KOLO_OK;
    kolo_status_t status = kolo_handle_error(h, text, bytes);
    return status != KOLO_OK ? status : KOLO_ERR_ABORTED;
}

static kolo_status_t check(const struct kolo_request *r, uint64_t now)
{
    char words[KOLO_TAGGED_WORDS_BYTES], text[KOLO_ERROR_TEXT_BYTES];
    kolo_status_t status = check_comm(r->messages, text, sizeof text);
    if (status != KOLO_OK) {
        kolo_tagged_describe(r, words, sizeof words);
        return kolo_fail(status, "%s: %.600s", words, text);
    }
    if (r->deadline_ns && now >= r->deadline_ns) {
        kolo_tagged_fail_late(r, now);
        return KOLO_ERR_TIMEOUT;
    }
    return check_peer(r, now);
}

void kolo_tagged_look(kolo_tagged_t *m, uint64_t now)
{
    take_streams(m);
    for (int r = 0; r < m->body->nranks; r++)
        if (m->peers[r]) kolo_tagged_out_dialled(m->peers[r]);
    uint64_t due = 0;
    for (struct kolo_request *r = m->open; r; r = m->ahead) {
        m->ahead = r->next_open; /* moves on if the end of r completes it: what waited behind r goes out */
        kolo_status_t status = check(r, now);
        if (status != KOLO_OK)
            kolo_tagged_end(r, status);
        else if (r->deadline_ns)
            due = due ? KOLO_MIN(due, r->deadline_ns) : r->deadline_ns;
    }
    kolo_tagged_show(m, now);
    if (m->open) kolo_courier_expect(due);
}
