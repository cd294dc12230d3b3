/* SPDX-License-Identifier: Apache-2.0
 *
 * The set-up of one-sided transfers by RDMA. The domain opens a device once: context, protection domain, completion
 * channel. Each end has a queue pair and a completion queue. Its owner's thread sleeps on the channel; before it
 * does it takes the channel's events, acknowledges them, asks for the next ones (kolo_waker_t.arm), and polls once
 * more.
 */
#include "base/process.h"
#include "remote/onesided/verbs.h"

#include "base/failpoint.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INLINE_BYTES 128u /* asked for; so short a write goes with its request */

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

kolo_status_t kolo_verbs_post_receives(kolo_onesided_t *end, uint32_t n)
{
    struct ibv_recv_wr wr[KOLO_VERBS_BATCH], *bad;
    while (n > 0) {
        uint32_t now = KOLO_MIN(n, (uint32_t)KOLO_VERBS_BATCH);
        for (uint32_t i = 0; i < now; i++)
            wr[i] = (struct ibv_recv_wr){.wr_id = (uintptr_t)end, .next = i + 1 < now ? &wr[i + 1] : NULL};
        int err = ibv_post_recv(kolo_onesided_verbs_of(end)->link->qp, wr, &bad);
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
    KOLO_TRY(kolo_random(&link->mine.psn, sizeof link->mine.psn));
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

kolo_status_t kolo_verbs_offer(kolo_onesided_t *end, kolo_onesided_card_t *card)
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
    KOLO_TRY(kolo_verbs_post_receives(end, KOLO_ONESIDED_RECEIVES + KOLO_ONESIDED_SPARE));
    kolo_trace("onesided", "set-up: %u receives for %s", KOLO_ONESIDED_RECEIVES + KOLO_ONESIDED_SPARE, end->who);
    return fill_hello(link, card->verbs);
}

kolo_status_t kolo_verbs_offer_mailbox(kolo_onesided_t *end, kolo_onesided_card_t *card)
{
    kolo_verbs_region_t *region;
    KOLO_TRY(kolo_verbs_memory_enter(&kolo_onesided_verbs_of(end)->memory, end->mailbox.base, end->mailbox.bytes,
                                     &region));
    card->mailbox_address = (uint64_t)(uintptr_t)end->mailbox.base;
    card->mailbox_rkey = region->mr->rkey;
    return KOLO_OK;
}

kolo_status_t kolo_verbs_connect_end(kolo_onesided_t *end, const kolo_onesided_card_t *peer)
{
    kolo_onesided_verbs_t *v = kolo_onesided_verbs_of(end);
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

void kolo_verbs_find_mailbox(const kolo_onesided_card_t *peer, kolo_onesided_window_t *mailbox)
{
    mailbox->address = peer->mailbox_address;
    mailbox->key = peer->mailbox_rkey << 32;
}
