/* SPDX-License-Identifier: Apache-2.0
 *
 * The set-up of one-sided transfers by RDMA. The domain opens a device once: context, protection domain, completion
 * channel. Each end has a queue pair and a completion queue. Its owner's thread sleeps on the channel; before it
 * does it takes the channel's events, acknowledges them, asks for the next ones (kolo_waker_t.arm), and polls once
 * more.
 */
#include "remote/onesided/verbs.h"

#include "base/failpoint.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the device: of the domain ---- */

static void arm(void *arg)
{
    kolo_verbs_arm(arg);
}

/* Lets the domain's sleeper hear the device, which is open. */
static kolo_status_t attach(kolo_onesided_domain_t *domain)
{
    int fds[2], n = kolo_verbs_wake_fds(domain->device, fds);
    for (int i = 0; i < n; i++) KOLO_TRY(kolo_waker_add_fd(&domain->waker, fds[i]));
    domain->waker.arm = arm;
    domain->waker.arm_arg = domain->device;
    return kolo_verbs_sources_open(domain);
}

static kolo_status_t open_device(kolo_onesided_domain_t *domain)
{
    const char *why;
    if (domain->device) return KOLO_OK;
    if (domain->no_device || !kolo_onesided_param_verbs || kolo_seal_offer() != KOLO_SECURITY_NONE)
        return KOLO_ERR_UNSUPPORTED;
    domain->no_device = true;
    int devices = kolo_verbs_count(&why);
    if (devices == 0 || !kolo_verbs.fork_safe) {
        kolo_debug("onesided", "no RDMA: %s", devices == 0 ? why : "pages may not stay ours at a fork");
        return KOLO_ERR_UNSUPPORTED;
    }
    kolo_status_t status = kolo_verbs_open(0, &domain->device);
    if (status != KOLO_OK) {
        kolo_warn("onesided", "no RDMA: %s", kolo_error_text());
        return KOLO_ERR_UNSUPPORTED;
    }
    status = attach(domain);
    if (status != KOLO_OK) {
        kolo_onesided_verbs_leave(domain);
        return status;
    }
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

kolo_status_t kolo_verbs_offer(kolo_onesided_t *end, kolo_onesided_card_t *card)
{
    KOLO_TRY(open_device(end->domain));
    const uint32_t receives = KOLO_ONESIDED_RECEIVES + KOLO_ONESIDED_SPARE;
    const kolo_verbs_room_t room = {.sends = KOLO_ONESIDED_SENDS,
                                    .receives = receives,
                                    .completions = receives + KOLO_ONESIDED_SENDS,
                                    .pieces = 1};
    kolo_net_hello_t hello;
    char label[64];
    kolo_onesided_verbs_t *v = calloc(1, sizeof *v);
    if (v == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for the connection with %s", end->who);
    snprintf(label, sizeof label, "one-sided, %.40s", end->who);
    v->link = kolo_verbs_end_new(end->domain->device, label);
    if (v->link == NULL) {
        free(v);
        return KOLO_ERR_NO_MEMORY;
    }
    end->state[KOLO_ONESIDED_VERBS] = v;
    KOLO_TRY(kolo_verbs_end_make_queues(v->link, &room));
    kolo_trace("onesided", "set-up: completion queue for %s", end->who);
    kolo_trace("onesided", "set-up: queue pair %u for %s is in INIT", v->link->mine.qpn, end->who);
    KOLO_TRY(kolo_onesided_need_arena(end));
    kolo_verbs_memory_init(&v->memory, end->domain->device, end->arena);
    KOLO_TRY(kolo_verbs_post_receives(end, receives));
    kolo_trace("onesided", "set-up: %u receives for %s", receives, end->who);
    v->link->mine.depth = KOLO_ONESIDED_RECEIVES;
    KOLO_TRY(kolo_verbs_end_introduce(v->link, &hello));
    _Static_assert(KOLO_VERBS_HELLO_BYTES <= KOLO_ONESIDED_HELLO_BYTES, "it travels on the card");
    memcpy(card->verbs, hello.bytes, sizeof card->verbs);
    return KOLO_OK;
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
    KOLO_TRY(kolo_verbs_end_meet(v->link, &hello));
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
