/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages: matching what comes in (kind, peer, tag) with what is awaited, the bounded queue of what comes early,
 * and the blocking send and receive on top.
 */
#include "base/failpoint.h"
#include "oob/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define EARLY_GATHER_MAX (64u << 10) /* larger ones wait in the socket: their place is posted soon */

/* ---- memory of a message ---- */

void kolo_inbound_copy(kolo_inbound_t *to, uint32_t at, const uint8_t *bytes, uint32_t n)
{
    for (int i = 0; i < 2 && n > 0; i++) {
        if (at >= to->part_bytes[i]) {
            at -= to->part_bytes[i];
            continue;
        }
        uint32_t take = KOLO_MIN(n, to->part_bytes[i] - at);
        memcpy(to->part[i] + at, bytes, take);
        bytes += take;
        n -= take;
        at = 0;
    }
}

int kolo_inbound_iov(const kolo_inbound_t *in, struct iovec iov[2], size_t *bytes)
{
    uint32_t skip = in->got;
    int n = 0;
    *bytes = in->bytes - in->got;
    for (int i = 0; i < 2; i++) {
        if (skip >= in->part_bytes[i]) {
            skip -= in->part_bytes[i];
            continue;
        }
        iov[n++] = (struct iovec){in->part[i] + skip, in->part_bytes[i] - skip};
        skip = 0;
    }
    return n;
}

static kolo_inbound_t *early_new(kolo_oob_t *oob, kolo_peer_t *peer, const kolo_head_t *head)
{
    kolo_inbound_t *in = malloc(sizeof(*in) + head->bytes);
    if (in == NULL) return NULL;
    *in = (kolo_inbound_t){
        .kind = head->kind, .peer = peer->rank, .tag = head->tag, .bytes = head->bytes, .early = true};
    in->part[0] = (uint8_t *)(in + 1);
    in->part_bytes[0] = head->bytes;
    peer->queued_bytes += sizeof(*in) + head->bytes;
    *oob->early_tail = in;
    oob->early_tail = &in->next;
    return in;
}

void kolo_oob_early_remove(kolo_oob_t *oob, kolo_inbound_t *in)
{
    kolo_inbound_t **at = &oob->early;
    while (*at != in) at = &(*at)->next;
    *at = in->next;
    if (oob->early_tail == &in->next) oob->early_tail = at;
    kolo_peer_t *peer = kolo_peer_find(oob, in->peer);
    if (peer != NULL) peer->queued_bytes -= sizeof(*in) + in->bytes;
    free(in);
}

/* ---- matching ---- */

static bool matches(const kolo_inbound_t *in, kolo_frame_kind_t kind, int peer, uint64_t tag)
{
    return in->kind == kind && in->peer == peer && in->tag == tag;
}

kolo_inbound_t *kolo_inbound_place(kolo_oob_t *oob, kolo_peer_t *peer, const kolo_head_t *head)
{
    for (kolo_inbound_t *in = oob->posted; in != NULL; in = in->next) {
        if (in->started || in->done || !matches(in, head->kind, peer->rank, head->tag)) continue;
        if (in->bytes == head->bytes) return in;
        in->status = KOLO_ERR_MISMATCH; /* its waiter hears of it; the message is put aside */
        in->got = head->bytes;
        in->done = true;
        kolo_oob_wake(oob);
    }
    size_t room = (size_t)kolo_oob_values.queue_bytes;
    bool fits = peer->queued_bytes + head->bytes + sizeof(kolo_inbound_t) <= room;
    if (head->kind == KOLO_FRAME_GATHER && head->bytes > EARLY_GATHER_MAX) fits = false;
    return fits ? early_new(oob, peer, head) : NULL;
}

static void resume_peer(kolo_oob_t *oob, int rank)
{
    kolo_peer_t *peer = kolo_peer_find(oob, rank);
    for (kolo_conn_t *conn = peer != NULL ? peer->conns : NULL; conn != NULL; conn = conn->next)
        kolo_conn_resume(conn);
}

/* Fills `in` from a message that came early, or takes over one that is just coming. */
static void take_early(kolo_oob_t *oob, kolo_inbound_t *in, kolo_inbound_t *early)
{
    if (early->bytes != in->bytes) {
        in->status = KOLO_ERR_MISMATCH;
        in->got = early->bytes;
        in->done = true;
        return;
    }
    kolo_inbound_copy(in, 0, early->part[0], early->got);
    in->got = early->got;
    in->done = early->done;
    in->started = true;
    in->conn = early->conn;
    if (in->conn != NULL) in->conn->in = in;
    kolo_oob_early_remove(oob, early);
}

void kolo_inbound_post(kolo_oob_t *oob, kolo_inbound_t *in)
{
    kolo_inbound_t *early = oob->early;
    while (early != NULL && !matches(early, in->kind, in->peer, in->tag)) early = early->next;
    in->next = oob->posted;
    oob->posted = in;
    if (early != NULL) take_early(oob, in, early);
    resume_peer(oob, in->peer);
}

void kolo_inbound_withdraw(kolo_oob_t *oob, kolo_inbound_t *in)
{
    kolo_inbound_t **at = &oob->posted;
    while (*at != in) at = &(*at)->next;
    *at = in->next;
    if (in->conn == NULL) return;
    /* Given up in the middle of the message: the rest goes to memory of our own. */
    kolo_conn_t *conn = in->conn;
    kolo_inbound_t *rest = early_new(oob, conn->peer, &conn->frame);
    conn->in = NULL;
    if (rest == NULL) {
        kolo_conn_condemn(conn, "ran out of memory");
        return;
    }
    for (int i = 0, done = 0; i < 2 && done < (int)in->got; done += (int)in->part_bytes[i], i++)
        memcpy(rest->part[0] + done, in->part[i], KOLO_MIN(in->part_bytes[i], in->got - (uint32_t)done));
    rest->got = in->got;
    rest->started = true;
    rest->conn = conn;
    conn->in = rest;
}

/* ---- receive ---- */

static kolo_status_t check_message(const kolo_oob_t *oob, int peer, const void *data, size_t bytes)
{
    if (oob == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "oob is NULL");
    if (peer < 0 || peer >= oob->nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: peer %d is not a rank of 0..%d", oob->name, peer,
                         oob->nranks - 1);
    if (bytes > KOLO_OOB_MESSAGE_MAX)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: a message of %zu bytes is larger than %u", oob->name,
                         bytes, KOLO_OOB_MESSAGE_MAX);
    if (data == NULL && bytes > 0) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: data is NULL", oob->name);
    return KOLO_OK;
}

typedef struct {
    kolo_oob_t *oob;
    kolo_peer_t *peer;
    kolo_inbound_t *in;
    kolo_outbound_t *out;
} transfer_t;

static bool stalled_by_another(const transfer_t *t)
{
    if (t->in->started) return false;
    for (kolo_conn_t *conn = t->peer->conns; conn != NULL; conn = conn->next)
        if (conn->stalled && !conn->dead) return true;
    return false;
}

static bool receive_over(kolo_oob_t *oob, void *arg)
{
    transfer_t *t = arg;
    return t->in->done || kolo_oob_is_lost(oob) || t->peer->gone || t->peer->absent || stalled_by_another(t);
}

static const char *kind_name(kolo_frame_kind_t kind)
{
    static const char *const names[] = {[KOLO_FRAME_MESSAGE] = "message",
                                        [KOLO_FRAME_GATHER] = "all-gather part",
                                        [KOLO_FRAME_BROADCAST] = "broadcast part"};
    return names[kind];
}

static void describe_receive(void *arg, char *buf, size_t bytes)
{
    transfer_t *t = arg;
    pthread_mutex_lock(&t->oob->lock);
    char got[48] = "nothing came yet";
    if (t->in->got > 0) snprintf(got, sizeof got, "%u of %u bytes came", t->in->got, t->in->bytes);
    snprintf(buf, bytes, "the %s from rank %d to rank %d of %s: %s, %s", kind_name(t->in->kind), t->in->peer,
             t->oob->rank, t->oob->name, t->peer->live > 0 ? "connected" : "not connected", got);
    pthread_mutex_unlock(&t->oob->lock);
}

kolo_status_t kolo_inbound_result(kolo_oob_t *oob, kolo_peer_t *peer, const kolo_inbound_t *in, const char *doing)
{
    if (in->status == KOLO_ERR_MISMATCH) {
        oob->failed = true;
        return kolo_fail(KOLO_ERR_MISMATCH,
                         "%s: rank %d waited for %u bytes (%s, tag %#llx) from rank %d, which sent %u", oob->name,
                         oob->rank, in->bytes, kind_name(in->kind), (unsigned long long)in->tag, in->peer, in->got);
    }
    if (in->done) return KOLO_OK;
    KOLO_TRY(kolo_peer_check(oob, peer, doing));
    oob->failed = true;
    return kolo_fail(KOLO_ERR_INVALID_USAGE,
                     "%s: rank %d waits for the %s with tag %#llx from rank %d, but messages "
                     "that nobody has asked for fill the queue from there (KOLO_OOB_QUEUE_BYTES=%lld)",
                     oob->name, oob->rank, kind_name(in->kind), (unsigned long long)in->tag, in->peer,
                     (long long)kolo_oob_values.queue_bytes);
}

kolo_status_t kolo_oob_recv_kind(kolo_oob_t *oob, const kolo_message_to_t *l, void *data, size_t bytes)
{
    kolo_inbound_t in = {.kind = l->kind, .peer = l->rank, .tag = l->tag, .bytes = (uint32_t)bytes};
    in.part[0] = data;
    in.part_bytes[0] = (uint32_t)bytes;
    pthread_mutex_lock(&oob->lock);
    transfer_t t = {oob, kolo_peer_get(oob, l->rank), &in, NULL};
    kolo_status_t status = t.peer != NULL ? KOLO_OK : KOLO_ERR_NO_MEMORY;
    if (status == KOLO_OK) {
        kolo_inbound_post(oob, &in);
        status = kolo_oob_await_rank(oob, l->rank, receive_over, describe_receive, &t, l->deadline_ns);
        kolo_inbound_withdraw(oob, &in);
        if (status == KOLO_OK) status = kolo_inbound_result(oob, t.peer, &in, "receiving");
    }
    pthread_mutex_unlock(&oob->lock);
    return status;
}

/* ---- receive without waiting ---- */

struct kolo_oob_receipt {
    kolo_oob_t *oob;
    kolo_peer_t *peer;
    kolo_inbound_t in;
};

kolo_status_t kolo_oob_recv_begin(kolo_oob_t *oob, int peer, uint64_t tag, void *data, size_t bytes,
                                  kolo_oob_receipt_t **receipt)
{
    KOLO_TRY(check_message(oob, peer, data, bytes));
    KOLO_FAIL_POINT_TRY("oob.message.recv");
    kolo_oob_receipt_t *r = calloc(1, sizeof(*r));
    if (r == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a message from rank %d", peer);
    r->oob = oob;
    r->in = (kolo_inbound_t){.kind = KOLO_FRAME_MESSAGE, .peer = peer, .tag = tag, .bytes = (uint32_t)bytes};
    r->in.part[0] = data;
    r->in.part_bytes[0] = (uint32_t)bytes;
    pthread_mutex_lock(&oob->lock);
    r->peer = kolo_peer_get(oob, peer);
    if (r->peer != NULL) kolo_inbound_post(oob, &r->in);
    pthread_mutex_unlock(&oob->lock);
    if (r->peer == NULL) {
        free(r);
        return KOLO_ERR_NO_MEMORY;
    }
    *receipt = r;
    return KOLO_OK;
}

kolo_status_t kolo_oob_recv_poll(kolo_oob_receipt_t *r)
{
    kolo_oob_t *oob = r->oob;
    transfer_t t = {oob, r->peer, &r->in, NULL};
    kolo_status_t status = KOLO_IN_PROGRESS;
    pthread_mutex_lock(&oob->lock);
    if (receive_over(oob, &t))
        status = kolo_inbound_result(oob, r->peer, &r->in, "receiving");
    else if (oob->closed)
        status = kolo_fail(KOLO_ERR_ABORTED, "%s: rank %d was closed while it waited", oob->name, oob->rank);
    pthread_mutex_unlock(&oob->lock);
    return status;
}

void kolo_oob_recv_end(kolo_oob_receipt_t *r)
{
    if (r == NULL) return;
    pthread_mutex_lock(&r->oob->lock);
    kolo_inbound_withdraw(r->oob, &r->in);
    pthread_mutex_unlock(&r->oob->lock);
    free(r);
}

/* ---- send ---- */

static bool can_send(kolo_oob_t *oob, void *arg)
{
    transfer_t *t = arg;
    return kolo_peer_out(t->peer) != NULL || kolo_oob_is_lost(oob) ||
           (!t->peer->dialling && t->peer->dial_status != KOLO_OK);
}

static bool send_over(kolo_oob_t *oob, void *arg)
{
    (void)oob;
    return ((transfer_t *)arg)->out->done;
}

static void describe_send(void *arg, char *buf, size_t bytes)
{
    transfer_t *t = arg;
    pthread_mutex_lock(&t->oob->lock);
    snprintf(buf, bytes, "rank %d to take the message with tag %#llx (%s, %zu of %zu bytes went; %s, rank %d)",
             t->peer->rank, (unsigned long long)t->out->tag, t->peer->live > 0 ? "connected" : "not connected",
             t->out->sent, t->out->total, t->oob->name, t->oob->rank);
    pthread_mutex_unlock(&t->oob->lock);
}

void kolo_outbound_withdraw(kolo_conn_t *conn, kolo_outbound_t *out)
{
    if (out->done || conn == NULL) return;
    if (out->sent > 0 ||
        (conn->out == out &&
         kolo_socket_within(&conn->socket))) { /* half a message: the stream is of no use any more */
        kolo_conn_condemn(conn, "was given up in the middle of a message");
        return;
    }
    kolo_outbound_t **at = &conn->out;
    while (*at != NULL && *at != out) at = &(*at)->next;
    if (*at == NULL) return;
    *at = out->next;
    if (conn->out_tail == &out->next) conn->out_tail = at;
}

static kolo_status_t send_to_self(kolo_oob_t *oob, kolo_peer_t *peer, const kolo_outbound_t *out)
{
    kolo_head_t head = {out->kind, (uint32_t)out->part_bytes[0], out->tag};
    kolo_inbound_t *in = kolo_inbound_place(oob, peer, &head);
    if (in == NULL)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "%s: rank %d has too many messages to itself in its queue", oob->name,
                         oob->rank);
    kolo_inbound_copy(in, 0, out->part[0], head.bytes);
    in->got = in->bytes;
    in->done = true;
    kolo_oob_wake(oob); /* another thread of this rank may wait for it */
    return KOLO_OK;
}

static kolo_status_t send_locked(kolo_oob_t *oob, kolo_peer_t *peer, kolo_outbound_t *out, uint64_t deadline_ns)
{
    transfer_t t = {oob, peer, NULL, out};
    if (peer->rank == oob->rank) return send_to_self(oob, peer, out);
    KOLO_TRY(kolo_oob_lost(oob, "sending"));
    if (kolo_peer_out(peer) == NULL) KOLO_TRY(kolo_peer_dial(oob, peer, deadline_ns));
    KOLO_TRY(kolo_oob_await(oob, can_send, &t, deadline_ns, describe_send, &t));
    kolo_conn_t *conn = kolo_peer_out(peer);
    if (conn == NULL) return kolo_peer_check(oob, peer, "sending");
    kolo_conn_send(conn, out);
    kolo_status_t status = kolo_oob_await(oob, send_over, &t, deadline_ns, describe_send, &t);
    kolo_outbound_withdraw(conn, out);
    if (status != KOLO_OK || !out->failed) return status;
    KOLO_TRY(kolo_peer_check(oob, peer, "sending"));
    oob->failed = true;
    oob->blames = peer->rank;
    return kolo_fail(KOLO_ERR_REMOTE, "%s: rank %d cannot send to rank %d: its connection broke", oob->name,
                     oob->rank, peer->rank);
}

kolo_status_t kolo_oob_send_kind(kolo_oob_t *oob, const kolo_message_to_t *l, const void *data, size_t bytes)
{
    kolo_outbound_t out;
    kolo_outbound_init(&out, l->kind, l->tag);
    kolo_outbound_add(&out, data, bytes);
    pthread_mutex_lock(&oob->lock);
    kolo_peer_t *peer = kolo_peer_get(oob, l->rank);
    kolo_status_t status = peer != NULL ? send_locked(oob, peer, &out, l->deadline_ns) : KOLO_ERR_NO_MEMORY;
    pthread_mutex_unlock(&oob->lock);
    return status;
}

kolo_status_t kolo_oob_send(kolo_oob_t *oob, int peer, uint64_t tag, const void *data, size_t bytes)
{
    KOLO_TRY(check_message(oob, peer, data, bytes));
    KOLO_FAIL_POINT_TRY("oob.message.send");
    const kolo_message_to_t letter = {KOLO_FRAME_MESSAGE, peer, tag, kolo_oob_deadline(oob, 0)};
    return kolo_oob_send_kind(oob, &letter, data, bytes);
}

kolo_status_t kolo_oob_recv(kolo_oob_t *oob, int peer, uint64_t tag, void *data, size_t bytes, uint64_t deadline_ns)
{
    KOLO_TRY(check_message(oob, peer, data, bytes));
    KOLO_FAIL_POINT_TRY("oob.message.recv");
    const kolo_message_to_t letter = {KOLO_FRAME_MESSAGE, peer, tag, kolo_oob_deadline(oob, deadline_ns)};
    kolo_status_t status = kolo_oob_recv_kind(oob, &letter, data, bytes);
    if (status == KOLO_ERR_TIMEOUT && deadline_ns == 0) {
        pthread_mutex_lock(&oob->lock);
        oob->failed = true;
        pthread_mutex_unlock(&oob->lock);
    }
    return status;
}
