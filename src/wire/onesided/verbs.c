/* SPDX-License-Identifier: Apache-2.0
 *
 * One-sided transfers by RDMA. A write is one or several requests that the card carries out; its notice is the
 * immediate data of the last one, which uses up a receive of the peer. A card must never meet a peer without a
 * receive, so an end counts the peer's receives (credits) and the peer announces new ones.
 *
 * The domain opens a device once: context, protection domain, completion channel. Each end has a queue pair and a
 * completion queue. Its owner's thread sleeps on the channel; before it does it takes the channel's events,
 * acknowledges them, asks for the next ones (kolo_waker_t.arm), and polls once more. A receive that was used up is
 * posted again before its notice is looked at.
 */
#include "wire/onesided/verbs.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "oob/oob.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define CHUNK        (4u << 20) /* bytes of one request; every device takes as many */
#define RETURN_AT    (KOLO_ONESIDED_RECEIVES / 4)
#define SIGNAL_EACH  (KOLO_ONESIDED_SENDS / 4)
#define SENDS_SPARE  8u         /* room that writes leave to news of receives */
#define INLINE_BYTES 128u       /* asked for; so short a write goes with its request */
#define AHEAD        (1u << 31) /* immediate data of a send: chunks that come ahead of a notice; else receives */

static kolo_onesided_verbs_t *state_of(const kolo_onesided_t *end)
{
    return end->state[KOLO_ONESIDED_VERBS];
}

/* ---- the device: of the domain ---- */

static void arm(void *arg)
{
    kolo_verbs_arm(arg);
}

static kolo_status_t open_device(kolo_onesided_domain_t *domain)
{
    const char *why;
    int fds[2];
    if (domain->device) return KOLO_OK;
    if (domain->no_device || !kolo_onesided_param_verbs || kolo_seal_offer() != KOLO_SECURITY_NONE)
        return KOLO_ERR_UNSUPPORTED;
    domain->no_device = true;
    if (kolo_verbs_count(&why) == 0 || !kolo_verbs.fork_safe) {
        kolo_debug("onesided", "no RDMA: %s", kolo_verbs.fork_safe ? why : "pages may not stay ours at a fork");
        return KOLO_ERR_UNSUPPORTED;
    }
    kolo_status_t status = kolo_verbs_open(0, &domain->device);
    if (status != KOLO_OK) {
        kolo_warn("onesided", "no RDMA: %s", kolo_error_text());
        return KOLO_ERR_UNSUPPORTED;
    }
    int n = kolo_verbs_wake_fds(domain->device, fds);
    for (int i = 0; i < n; i++) KOLO_TRY(kolo_waker_add_fd(&domain->waker, fds[i]));
    domain->waker.arm = arm;
    domain->waker.arm_arg = domain->device;
    KOLO_TRY(kolo_verbs_sources_open(domain));
    kolo_trace("onesided", "set-up: device %s, its context, protection domain and completion channel",
               domain->device->name);
    return KOLO_OK;
}

void kolo_onesided_verbs_leave(kolo_onesided_domain_t *domain)
{
    if (domain->device == NULL) return;
    domain->waker.arm = NULL;
    kolo_verbs_sources_close(domain);
    kolo_verbs_close(domain->device);
    domain->device = NULL;
}

/* ---- set-up ---- */

static kolo_status_t post_receives(kolo_onesided_t *end, uint32_t n)
{
    struct ibv_recv_wr wr[KOLO_VERBS_BATCH], *bad;
    while (n > 0) {
        uint32_t now = KOLO_MIN(n, (uint32_t)KOLO_VERBS_BATCH);
        for (uint32_t i = 0; i < now; i++)
            wr[i] = (struct ibv_recv_wr){.wr_id = (uintptr_t)end, .next = i + 1 < now ? &wr[i + 1] : NULL};
        int err = ibv_post_recv(state_of(end)->link->qp, wr, &bad);
        if (err)
            return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "onesided: the queue pair to %s takes no receives",
                                   end->who);
        kolo_onesided_count_card(now, 0, 0);
        n -= now;
    }
    return KOLO_OK;
}

static kolo_status_t make_queue_pair(kolo_onesided_t *end, kolo_net_end_t *link)
{
    kolo_net_open_t *open = link->open;
    uint32_t receives = KOLO_ONESIDED_RECEIVES + KOLO_ONESIDED_SPARE;
    link->cq = kolo_verbs.create_cq(open->context, (int)(receives + KOLO_ONESIDED_SENDS), link, open->channel, 0);
    if (link->cq == NULL)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "onesided: device %s gives no completion queue for %s",
                               open->name, end->who);
    kolo_trace("onesided", "set-up: completion queue for %s", end->who);
    struct ibv_qp_init_attr attr = {.send_cq = link->cq,
                                    .recv_cq = link->cq,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = KOLO_ONESIDED_SENDS,
                                            .max_recv_wr = receives,
                                            .max_send_sge = 1,
                                            .max_recv_sge = 1,
                                            .max_inline_data = INLINE_BYTES}};
    link->qp = kolo_verbs.create_qp(open->pd, &attr);
    if (link->qp == NULL) { /* a device that has no room for data in requests */
        attr.cap.max_inline_data = 0;
        link->qp = kolo_verbs.create_qp(open->pd, &attr);
    }
    if (link->qp == NULL)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "onesided: device %s gives no queue pair for %s", open->name,
                               end->who);
    link->inline_bytes = attr.cap.max_inline_data;
    link->mine.qpn = link->qp->qp_num;
    KOLO_TRY(kolo_verbs_qp_init(link, link->qp, IBV_ACCESS_REMOTE_WRITE));
    kolo_trace("onesided", "set-up: queue pair %u for %s is in INIT", link->mine.qpn, end->who);
    return KOLO_OK;
}

static kolo_status_t fill_hello(kolo_net_end_t *link, uint8_t bytes[KOLO_ONESIDED_HELLO_BYTES])
{
    const kolo_net_open_t *open = link->open;
    kolo_net_hello_t hello;
    _Static_assert(KOLO_VERBS_HELLO_BYTES <= KOLO_ONESIDED_HELLO_BYTES, "it travels on the card");
    if (getrandom(&link->mine.psn, sizeof link->mine.psn, 0) != (ssize_t)sizeof link->mine.psn)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "onesided: no random bytes");
    link->mine.psn &= 0xffffff;
    link->mine.lid = open->lid;
    link->mine.mtu = open->mtu;
    link->mine.port = open->port;
    link->mine.link = open->link;
    link->mine.depth = KOLO_ONESIDED_RECEIVES;
    memcpy(link->mine.gid, open->gid, sizeof link->mine.gid);
    snprintf(link->mine.device, sizeof link->mine.device, "%.15s", open->name);
    kolo_verbs_hello_encode(&link->mine, &hello);
    memcpy(bytes, hello.bytes, KOLO_ONESIDED_HELLO_BYTES);
    return KOLO_OK;
}

static kolo_status_t offer(kolo_onesided_t *end, kolo_onesided_card_t *card)
{
    KOLO_TRY(open_device(end->domain));
    kolo_net_open_t *open = end->domain->device;
    kolo_onesided_verbs_t *v = calloc(1, sizeof *v);
    kolo_net_end_t *link = calloc(1, sizeof *link);
    if (v == NULL || link == NULL) {
        free(v);
        free(link);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for the connection with %s", end->who);
    }
    end->state[KOLO_ONESIDED_VERBS] = v;
    v->link = link;
    link->open = open;
    link->losses = open->losses;
    link->next = open->first;
    if (open->first) open->first->prev = link;
    open->first = link;
    snprintf(link->label, sizeof link->label, "one-sided, %.40s", end->who);
    KOLO_TRY(make_queue_pair(end, link));
    KOLO_TRY(kolo_onesided_need_arena(end));
    kolo_verbs_memory_init(&v->memory, open->pd, end->arena);
    KOLO_TRY(post_receives(end, KOLO_ONESIDED_RECEIVES + KOLO_ONESIDED_SPARE));
    kolo_trace("onesided", "set-up: %u receives for %s", KOLO_ONESIDED_RECEIVES + KOLO_ONESIDED_SPARE, end->who);
    return fill_hello(link, card->verbs);
}

static kolo_status_t offer_mailbox(kolo_onesided_t *end, kolo_onesided_card_t *card)
{
    kolo_verbs_region_t *region;
    KOLO_TRY(kolo_verbs_memory_enter(&state_of(end)->memory, end->mailbox.base, end->mailbox.bytes, &region));
    card->mailbox_address = (uint64_t)(uintptr_t)end->mailbox.base;
    card->mailbox_rkey = region->mr->rkey;
    return KOLO_OK;
}

static kolo_status_t connect_end(kolo_onesided_t *end, const kolo_onesided_card_t *peer)
{
    kolo_onesided_verbs_t *v = state_of(end);
    kolo_net_hello_t hello = {{0}};
    memcpy(hello.bytes, peer->verbs, sizeof peer->verbs);
    KOLO_TRY(kolo_verbs_hello_decode(&hello, &v->link->peer));
    if (v->link->peer.link != v->link->mine.link)
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "onesided: device %s here and %s at %s are not of one kind (InfiniBand, Ethernet); choose "
                         "by KOLO_IB_HCA, or set KOLO_ONESIDED_VERBS=0",
                         v->link->mine.device, v->link->peer.device, end->who);
    v->credits = v->link->peer.depth;
    KOLO_FAIL_POINT_TRY("wire.onesided.verbs");
    KOLO_TRY(kolo_verbs_qp_ready(v->link, v->link->qp, &v->link->mine, &v->link->peer));
    kolo_trace("onesided", "set-up: queue pair %u for %s is in RTR, then RTS, with queue pair %u of device %s",
               v->link->mine.qpn, end->who, v->link->peer.qpn, v->link->peer.device);
    return KOLO_OK;
}

static void find_mailbox(const kolo_onesided_card_t *peer, kolo_onesided_window_t *mailbox)
{
    mailbox->address = peer->mailbox_address;
    mailbox->key = peer->mailbox_rkey << 32;
}

/* ---- memory ---- */

static kolo_status_t expose(kolo_onesided_t *end, void *base, size_t bytes, uint64_t *address, uint32_t *salt,
                            void **pin)
{
    kolo_verbs_region_t *region;
    KOLO_TRY(kolo_verbs_memory_enter(&state_of(end)->memory, base, bytes, &region));
    *address = (uint64_t)(uintptr_t)base;
    *salt = region->mr->rkey;
    *pin = region;
    return KOLO_OK;
}

static void hide(kolo_onesided_t *end, void *pin)
{
    if (pin) kolo_verbs_memory_leave(&state_of(end)->memory, pin);
}

/* Below it a copy costs less than to register. */
static bool pays(const kolo_onesided_t *end, uint64_t bytes)
{
    (void)end;
    return bytes >= 64u << 10;
}

static kolo_status_t keep(kolo_onesided_t *end, void *base, size_t bytes)
{
    return kolo_verbs_memory_keep(&state_of(end)->memory, base, bytes);
}

/* ---- writing ---- */

static kolo_status_t post(kolo_onesided_t *end, struct ibv_send_wr *wr, const kolo_verbs_flight_t *flight)
{
    kolo_onesided_verbs_t *v = state_of(end);
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

/* Only immediate data: news of receives, or of what is ahead of a notice. */
static kolo_status_t post_word(kolo_onesided_t *end, uint32_t word)
{
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(word)};
    return post(end, &wr, &(kolo_verbs_flight_t){0});
}

/* Where the card reads it: memory that it knows, or that it is told of while writes from there are under way. */
static kolo_status_t find_source(kolo_onesided_t *end, kolo_pending_write_t *write)
{
    kolo_onesided_verbs_t *v = state_of(end);
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

/* The next request of a write; *more: it is not the last one. */
static kolo_status_t push_chunk(kolo_onesided_t *end, kolo_pending_write_t *write, bool *more)
{
    kolo_onesided_verbs_t *v = state_of(end);
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
    const kolo_onesided_verbs_t *v = state_of(end);
    return v->posted - v->done > v->unsignalled; /* the others' completions would never come */
}

/* ---- completions ---- */

static kolo_status_t failed(const kolo_onesided_t *end, const struct ibv_wc *wc)
{
    const kolo_onesided_verbs_t *v = state_of(end);
    const char *words = kolo_verbs.wc_status_str(wc->status);
    if (kolo_onesided_hung_up(end))
        return kolo_fail(KOLO_ERR_REMOTE, "%s has closed the connection, or has died", end->who);
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

/* A request is done, and all before it. */
static kolo_status_t sent(kolo_onesided_t *end, uint64_t number)
{
    kolo_onesided_verbs_t *v = state_of(end);
    while (v->done <= number) {
        kolo_verbs_flight_t *flight = &v->flights[v->done++ % KOLO_ONESIDED_SENDS];
        kolo_verbs_source_leave(v, flight->source);
        if (flight->cookie) KOLO_TRY(kolo_onesided_done(end, flight->cookie));
    }
    return KOLO_OK;
}

/* KOLO_OK: it is a notice. */
static kolo_status_t received(kolo_onesided_t *end, const struct ibv_wc *wc, kolo_onesided_event_t *event)
{
    kolo_onesided_verbs_t *v = state_of(end);
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
    kolo_onesided_verbs_t *v = state_of(end);
    if (v->taken < RETURN_AT || v->posted - v->done == KOLO_ONESIDED_SENDS) return KOLO_OK;
    uint32_t n = v->taken;
    v->taken = 0;
    return post_word(end, n);
}

/* Polls a batch; *again: there was something. Receives are posted again before what they say is looked at. */
static kolo_status_t poll_queue(kolo_onesided_t *end, bool *again)
{
    kolo_onesided_verbs_t *v = state_of(end);
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
    return post_receives(end, receives);
}

static kolo_status_t look_around(kolo_onesided_t *end, bool *again)
{
    kolo_onesided_verbs_t *v = state_of(end);
    if (v->hung_up) return kolo_fail(KOLO_ERR_REMOTE, "%s has closed the connection, or has died", end->who);
    bool sleepy = atomic_load_explicit(end->domain->waker.asleep, memory_order_relaxed) != 0;
    if (!sleepy && ++v->looks % 64 != 0) return KOLO_OK;
    v->hung_up = *again = kolo_onesided_hung_up(end); /* what has come meanwhile is first */
    KOLO_TRY(kolo_verbs_look(end->domain->device));
    return kolo_verbs_check_events(v->link);
}

static kolo_status_t pull(kolo_onesided_t *end, kolo_onesided_event_t *event)
{
    kolo_onesided_verbs_t *v = state_of(end);
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
    kolo_onesided_verbs_t *v = state_of(end);
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
    .offer = offer,
    .offer_mailbox = offer_mailbox,
    .connect = connect_end,
    .find_mailbox = find_mailbox,
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
