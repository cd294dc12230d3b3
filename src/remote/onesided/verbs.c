/* SPDX-License-Identifier: Apache-2.0
 *
 * One-sided transfers by RDMA. A write is one or several requests that the card carries out; its notice is the
 * immediate data of the last one, which uses up a receive of the peer. A card must never meet a peer without a
 * receive, so an end counts the peer's receives (credits) and the peer announces new ones.
 *
 * A receive that was used up is posted again before its notice is looked at. (verbs_setup.c: device and queue
 * pairs.)
 */
#include "remote/onesided/verbs.h"

#include "base/failpoint.h"

#include <arpa/inet.h>
#include <stdlib.h>

#define CHUNK       (4u << 20) /* bytes of one request; every device takes as many */
#define RETURN_AT   (KOLO_ONESIDED_RECEIVES / 4)
#define SIGNAL_EACH (KOLO_ONESIDED_SENDS / 4)
#define SENDS_SPARE 8u         /* room that writes leave to news of receives */
#define AHEAD       (1u << 31) /* immediate data of a send: chunks that come ahead of a notice; else receives */

/* ---- memory ---- */

static kolo_status_t expose(kolo_onesided_t *end, void *base, size_t bytes, uint64_t *address, uint32_t *salt,
                            void **pin)
{
    kolo_verbs_region_t *region;
    KOLO_TRY(kolo_verbs_memory_enter(&kolo_onesided_verbs_of(end)->memory, base, bytes, &region));
    *address = (uint64_t)(uintptr_t)base;
    *salt = region->mr->rkey;
    *pin = region;
    return KOLO_OK;
}

static void hide(kolo_onesided_t *end, void *pin)
{
    if (pin) kolo_verbs_memory_leave(&kolo_onesided_verbs_of(end)->memory, pin);
}

/* Tells whether to register pays: below this a copy costs less. */
static bool pays(const kolo_onesided_t *end, uint64_t bytes)
{
    (void)end;
    return bytes >= 64u << 10;
}

static kolo_status_t keep(kolo_onesided_t *end, void *base, size_t bytes)
{
    return kolo_verbs_memory_keep(&kolo_onesided_verbs_of(end)->memory, base, bytes);
}

/* ---- writing ---- */

static kolo_status_t post(kolo_onesided_t *end, struct ibv_send_wr *wr, const kolo_verbs_flight_t *flight)
{
    kolo_onesided_verbs_t *v = kolo_onesided_verbs_of(end);
    struct ibv_send_wr *bad;
    wr->wr_id = v->posted;
    if (flight->cookie || flight->source || ++v->unsignalled == SIGNAL_EACH) {
        wr->send_flags |= IBV_SEND_SIGNALED;
        v->unsignalled = 0;
    }
    KOLO_FAIL_POINT_TRY("wire.onesided.post");
    int err = ibv_post_send(v->link->qp, wr, &bad);
    if (err)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "onesided: the queue pair to %s takes no request", end->who);
    v->flights[v->posted++ % KOLO_ONESIDED_SENDS] = *flight;
    kolo_onesided_count_card(1, 0, 0);
    return KOLO_OK;
}

/* Posts immediate data alone: news of receives, or of what is ahead of a notice. */
static kolo_status_t post_word(kolo_onesided_t *end, uint32_t word)
{
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(word)};
    return post(end, &wr, &(kolo_verbs_flight_t){0});
}

/* Finds the key by which the card reads a write: of memory that it knows, or is told of while writes from there are
 * under way. */
static kolo_status_t find_source(kolo_onesided_t *end, kolo_pending_write_t *write)
{
    kolo_onesided_verbs_t *v = kolo_onesided_verbs_of(end);
    if (write->lkey != 0 || write->w.bytes <= v->link->inline_bytes) return KOLO_OK;
    const struct ibv_mr *mr = kolo_verbs_memory_find(&v->memory, write->w.data, (size_t)write->w.bytes);
    if (mr == NULL) {
        kolo_verbs_source_t *source = NULL;
        KOLO_TRY(kolo_verbs_source_enter(end, write->w.data, write->w.bytes, &source));
        write->registered = source;
        mr = source->mr;
    }
    write->lkey = mr->lkey;
    return KOLO_OK;
}

static bool has_room(const kolo_onesided_verbs_t *v, uint32_t requests, uint32_t credits)
{
    return v->posted - v->done + requests + SENDS_SPARE <= KOLO_ONESIDED_SENDS && v->credits >= credits;
}

/* Posts the next request of a write; *more: it is not the last one. */
static kolo_status_t push_chunk(kolo_onesided_t *end, kolo_pending_write_t *write, bool *more)
{
    kolo_onesided_verbs_t *v = kolo_onesided_verbs_of(end);
    uint64_t left = write->w.bytes - write->done, n = KOLO_MIN(left, (uint64_t)CHUNK);
    bool last = n == left, notify = last && (write->w.flags & KOLO_ONESIDED_NOTIFY),
         long_one = notify && write->done > 0;
    *more = !last;
    if (!has_room(v, 1u + long_one, (uint32_t)notify + long_one)) return KOLO_IN_PROGRESS;
    if (long_one) KOLO_TRY(post_word(end, AHEAD | (uint32_t)(write->done / CHUNK)));
    bool inlined = write->w.bytes <= v->link->inline_bytes;
    struct ibv_sge sge = {
        .addr = (uint64_t)(uintptr_t)write->w.data + write->done, .length = (uint32_t)n, .lkey = write->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = n > 0,
                             .opcode = notify ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
                             .send_flags = inlined && n > 0 ? IBV_SEND_INLINE : 0,
                             .imm_data = notify ? htonl(write->w.number) : 0};
    if (n > 0) {
        wr.wr.rdma.remote_addr = write->to.address + write->w.offset + write->done;
        wr.wr.rdma.rkey = (uint32_t)(write->to.key >> 32);
    }
    kolo_verbs_flight_t flight = {0};
    if (last && !inlined) flight = (kolo_verbs_flight_t){write->w.cookie, write->registered};
    KOLO_TRY(post(end, &wr, &flight));
    v->credits -= (uint32_t)notify + long_one;
    if (last) write->registered = NULL; /* the flight's now */
    write->done += n;
    return last && inlined && write->w.cookie ? kolo_onesided_done(end, write->w.cookie) : KOLO_OK;
}

static kolo_status_t push(kolo_onesided_t *end, kolo_pending_write_t *write)
{
    KOLO_TRY(find_source(end, write));
    for (bool more = true; more;) KOLO_TRY(push_chunk(end, write, &more));
    return KOLO_OK;
}

static bool is_writing(const kolo_onesided_t *end)
{
    const kolo_onesided_verbs_t *v = kolo_onesided_verbs_of(end);
    return v->posted - v->done > v->unsignalled; /* the others' completions would never come */
}

/* ---- completions ---- */

static kolo_status_t failed(const kolo_onesided_t *end, const struct ibv_wc *wc)
{
    const kolo_onesided_verbs_t *v = kolo_onesided_verbs_of(end);
    const char *words = kolo_verbs.wc_status_str(wc->status);
    if (kolo_onesided_hung_up(end)) return kolo_onesided_broken(end, 0);
    if (wc->status == IBV_WC_REM_ACCESS_ERR || wc->status == IBV_WC_REM_INV_REQ_ERR) {
        kolo_onesided_count(0, 0, 0, 1);
        return kolo_fail(KOLO_ERR_PROTOCOL, "%s named a window that lies outside of its memory (%s)", end->who,
                         words);
    }
    if (wc->status == IBV_WC_WR_FLUSH_ERR)
        return kolo_fail(KOLO_ERR_PROTOCOL,
                         "the queue pair with %s has failed: it wrote outside of its windows, or the device gave "
                         "up (see the system's log)",
                         end->who);
    return kolo_fail(wc->status == IBV_WC_RETRY_EXC_ERR ? KOLO_ERR_REMOTE : KOLO_ERR_SYSTEM,
                     "RDMA with %s: completion with status %d (%s) on device %s, queue pair %u; peer: device %s, "
                     "queue pair %u%s",
                     end->who, (int)wc->status, words, v->link->mine.device, v->link->mine.qpn,
                     v->link->peer.device, v->link->peer.qpn,
                     v->link->open->down_since ? "; the port here is down" : "");
}

/* Completes a request, and all before it. */
static kolo_status_t sent(kolo_onesided_t *end, uint64_t number)
{
    kolo_onesided_verbs_t *v = kolo_onesided_verbs_of(end);
    while (v->done <= number) {
        kolo_verbs_flight_t *flight = &v->flights[v->done++ % KOLO_ONESIDED_SENDS];
        kolo_verbs_source_leave(v, flight->source);
        if (flight->cookie) KOLO_TRY(kolo_onesided_done(end, flight->cookie));
    }
    return KOLO_OK;
}

/* Takes a receive's completion; KOLO_OK if it is a notice. */
static kolo_status_t received(kolo_onesided_t *end, const struct ibv_wc *wc, kolo_onesided_event_t *event)
{
    kolo_onesided_verbs_t *v = kolo_onesided_verbs_of(end);
    uint32_t word = ntohl(wc->imm_data);
    if (wc->opcode == IBV_WC_RECV && !(word & AHEAD)) {
        if (word > KOLO_ONESIDED_RECEIVES || v->credits > UINT32_MAX - word)
            return kolo_fail(KOLO_ERR_PROTOCOL, "%s announced %u receives, more than it can have", end->who, word);
        v->credits += word;
        return KOLO_IN_PROGRESS;
    }
    v->taken++;
    if (wc->opcode == IBV_WC_RECV) {
        v->ahead = (uint64_t)(word & ~AHEAD) * CHUNK;
        return KOLO_IN_PROGRESS;
    }
    event->number = word;
    event->bytes = v->ahead + wc->byte_len;
    v->ahead = 0;
    return KOLO_OK;
}

static kolo_status_t tell_of_receives(kolo_onesided_t *end)
{
    kolo_onesided_verbs_t *v = kolo_onesided_verbs_of(end);
    if (v->taken < RETURN_AT || v->posted - v->done == KOLO_ONESIDED_SENDS) return KOLO_OK;
    uint32_t n = v->taken;
    v->taken = 0;
    return post_word(end, n);
}

/* Polls a batch; *again: there was something. Receives are posted again before what they say is looked at. */
static kolo_status_t poll_queue(kolo_onesided_t *end, bool *again)
{
    kolo_onesided_verbs_t *v = kolo_onesided_verbs_of(end);
    uint32_t receives = 0;
    v->at = 0;
    v->nwc = ibv_poll_cq(v->link->cq, KOLO_VERBS_BATCH, v->wc);
    if (v->nwc < 0)
        return kolo_fail(KOLO_ERR_SYSTEM, "onesided: the completion queue with %s cannot be read", end->who);
    if (v->nwc == 0) return KOLO_OK;
    kolo_onesided_count_card(0, (uint64_t)v->nwc, 0);
    for (int i = 0; i < v->nwc; i++)
        receives += v->wc[i].status == IBV_WC_SUCCESS && (v->wc[i].opcode & IBV_WC_RECV) != 0;
    *again = true;
    return kolo_verbs_post_receives(end, receives);
}

static kolo_status_t look_around(kolo_onesided_t *end, bool *again)
{
    kolo_onesided_verbs_t *v = kolo_onesided_verbs_of(end);
    if (v->hung_up) return kolo_onesided_broken(end, 0);
    bool sleepy = atomic_load_explicit(end->domain->waker.asleep, memory_order_relaxed) != 0;
    if (!sleepy && ++v->looks % 64 != 0) return KOLO_OK;
    v->hung_up = *again = kolo_onesided_hung_up(end); /* what has come meanwhile is first */
    KOLO_TRY(kolo_verbs_look(end->domain->device));
    return kolo_verbs_check_events(v->link);
}

static kolo_status_t pull(kolo_onesided_t *end, kolo_onesided_event_t *event)
{
    kolo_onesided_verbs_t *v = kolo_onesided_verbs_of(end);
    for (bool again = true; again;) {
        while (v->at < v->nwc) {
            const struct ibv_wc *wc = &v->wc[v->at++];
            if (wc->status != IBV_WC_SUCCESS) return failed(end, wc);
            kolo_status_t status = KOLO_IN_PROGRESS;
            if (wc->opcode & IBV_WC_RECV)
                status = received(end, wc, event);
            else
                KOLO_TRY(sent(end, wc->wr_id));
            if (status != KOLO_IN_PROGRESS) return status;
        }
        again = false;
        KOLO_TRY(poll_queue(end, &again));
        if (!again) KOLO_TRY(look_around(end, &again));
        KOLO_TRY(tell_of_receives(end));
    }
    return KOLO_IN_PROGRESS;
}

/* ---- the end ---- */

static void close_end(kolo_onesided_t *end)
{
    kolo_onesided_verbs_t *v = kolo_onesided_verbs_of(end);
    if (v == NULL) return;
    kolo_verbs_shut(v->link); /* nothing is read or written any more */
    while (v->sources) {
        v->sources->writes = 1;
        kolo_verbs_source_leave(v, v->sources);
    }
    kolo_verbs_memory_fini(&v->memory);
    free(v);
    end->state[KOLO_ONESIDED_VERBS] = NULL;
}

static size_t memory(const kolo_onesided_t *end)
{
    (void)end;
    return sizeof(kolo_onesided_verbs_t) + sizeof(kolo_net_end_t);
}

const kolo_onesided_ops_t kolo_onesided_verbs = {
    .kind = KOLO_ONESIDED_VERBS,
    .later = true,
    .shakes = true,
    .offer = kolo_verbs_offer,
    .offer_mailbox = kolo_verbs_offer_mailbox,
    .connect = kolo_verbs_connect_end,
    .find_mailbox = kolo_verbs_find_mailbox,
    .expose = expose,
    .hide = hide,
    .pays = pays,
    .keep = keep,
    .push = push,
    .pull = pull,
    .is_writing = is_writing,
    .close = close_end,
    .memory = memory,
};
