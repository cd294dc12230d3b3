/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a connection's end: a queue pair with its completion queue and its ring of offers, in the order
 * RESET, INIT (when the end makes itself known), RTR and RTS (when it knows the other), and away.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/process.h"
#include "remote/verbs/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RING_ALIGN   4096 /* a peer's ring that begins elsewhere is not one */
#define INLINE_BYTES 128  /* asked for; a message this short goes with its request */
#define TRIES        4    /* on the way to RTR the system asks the network for the peer, once, and waits a second */

/* ---- the queue pair ---- */

static kolo_status_t modify(const kolo_net_end_t *end, struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                            const char *state)
{
    char gid[64];
    int err = kolo_verbs.modify_qp(qp, attr, mask);
    if (err == 0) return KOLO_OK;
    kolo_verbs_gid_text(end->peer.gid, gid, sizeof gid);
    for (int tries = 1; err == ETIMEDOUT && tries < TRIES; tries++) {
        kolo_info("verbs", "%s: no answer to where GID %s is (a lost packet?); asked again", end->label, gid);
        err = kolo_verbs.modify_qp(qp, attr, mask);
    }
    if (err == 0) return KOLO_OK;
    return kolo_fail_errno(
        KOLO_ERR_SYSTEM, err,
        "verbs: %s: queue pair %u of device %s does not go to %s (peer: device %s, queue pair %u, LID %u, GID %s)",
        end->label, qp->qp_num, end->open->name, state, end->peer.device, end->peer.qpn, end->peer.lid, gid);
}

kolo_status_t kolo_verbs_qp_init(kolo_net_end_t *end, struct ibv_qp *qp, int access)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .pkey_index = (uint16_t)kolo_verbs_options.pkey_index,
                               .port_num = end->open->port,
                               .qp_access_flags = (unsigned)access};
    return modify(end, qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
}

kolo_status_t kolo_verbs_qp_ready(kolo_net_end_t *end, struct ibv_qp *qp, const kolo_verbs_hello_t *mine,
                                  const kolo_verbs_hello_t *peer)
{
    const kolo_verbs_options_t *o = &kolo_verbs_options;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = (enum ibv_mtu)KOLO_MIN(mine->mtu, peer->mtu),
        .dest_qp_num = peer->qpn,
        .rq_psn = peer->psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = (uint8_t)o->rnr_timer,
        .ah_attr = {.dlid = peer->lid,
                    .sl = (uint8_t)o->service_level,
                    .is_global = mine->link == IBV_LINK_LAYER_ETHERNET,
                    .port_num = end->open->port},
    };
    if (attr.ah_attr.is_global) {
        attr.ah_attr.grh = (struct ibv_global_route){.sgid_index = end->open->gid_index,
                                                     .hop_limit = (uint8_t)o->hop_limit,
                                                     .traffic_class = (uint8_t)o->traffic_class};
        memcpy(attr.ah_attr.grh.dgid.raw, peer->gid, sizeof peer->gid);
    }
    KOLO_FAIL_POINT_TRY("wire.verbs.rtr");
    KOLO_TRY(modify(end, qp, &attr,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                    "RTR"));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = (uint8_t)o->timeout,
                                .retry_cnt = (uint8_t)o->retry_count,
                                .rnr_retry = 7,
                                .sq_psn = mine->psn,
                                .max_rd_atomic = 1};
    KOLO_FAIL_POINT_TRY("wire.verbs.rts");
    return modify(end, qp, &attr,
                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                      IBV_QP_MAX_QP_RD_ATOMIC,
                  "RTS");
}

/* ---- any end ---- */

kolo_net_end_t *kolo_verbs_end_new(kolo_net_open_t *open, const char *label)
{
    kolo_net_end_t *end = calloc(1, sizeof *end);
    if (!end) {
        kolo_fail(KOLO_ERR_NO_MEMORY, "verbs: %s: no memory for a connection", label);
        return NULL;
    }
    end->open = open;
    end->losses = open->losses;
    snprintf(end->label, sizeof end->label, "%s", label);
    end->next = open->first;
    if (open->first) open->first->prev = end;
    open->first = end;
    return end;
}

kolo_status_t kolo_verbs_end_make_queues(kolo_net_end_t *end, const kolo_verbs_room_t *room)
{
    const kolo_net_open_t *open = end->open;
    end->cq = kolo_verbs.create_cq(open->context, (int)room->completions, end, open->channel, 0);
    if (!end->cq)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno,
                               "verbs: %s: device %s gives no completion queue of %u entries", end->label,
                               open->name, room->completions);
    struct ibv_qp_init_attr attr = {.send_cq = end->cq,
                                    .recv_cq = end->cq,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = room->sends,
                                            .max_recv_wr = room->receives,
                                            .max_send_sge = room->pieces,
                                            .max_recv_sge = 1,
                                            .max_inline_data = INLINE_BYTES}};
    end->qp = kolo_verbs.create_qp(open->pd, &attr);
    if (!end->qp) { /* a device that has no room for data in requests */
        attr.cap.max_inline_data = 0;
        end->qp = kolo_verbs.create_qp(open->pd, &attr);
    }
    if (!end->qp)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno,
                               "verbs: %s: device %s gives no queue pair for %u sends and %u receives", end->label,
                               open->name, room->sends, room->receives);
    end->inline_bytes = attr.cap.max_inline_data;
    end->mine.qpn = end->qp->qp_num;
    return kolo_verbs_qp_init(end, end->qp, IBV_ACCESS_REMOTE_WRITE);
}

kolo_status_t kolo_verbs_end_introduce(kolo_net_end_t *end, kolo_net_hello_t *hello)
{
    const kolo_net_open_t *open = end->open;
    KOLO_TRY(kolo_random(&end->mine.psn, sizeof end->mine.psn));
    end->mine.psn &= 0xffffff;
    end->mine.lid = open->lid;
    end->mine.mtu = open->mtu;
    end->mine.port = open->port;
    end->mine.link = open->link;
    memcpy(end->mine.gid, open->gid, sizeof end->mine.gid);
    snprintf(end->mine.device, sizeof end->mine.device, "%.15s", open->name);
    kolo_verbs_hello_encode(&end->mine, hello);
    return KOLO_OK;
}

kolo_status_t kolo_verbs_end_meet(kolo_net_end_t *end, const kolo_net_hello_t *peer)
{
    KOLO_TRY(kolo_verbs_hello_decode(peer, &end->peer));
    if (end->peer.link == end->mine.link) return KOLO_OK;
    return kolo_fail(KOLO_ERR_UNSUPPORTED,
                     "verbs: %s: device %s here and %s there are not of one kind (InfiniBand, Ethernet); choose by "
                     "KOLO_IB_HCA, or " KOLO_VERBS_WITHOUT,
                     end->label, end->mine.device, end->peer.device);
}

/* ---- an end of a queue ---- */

static kolo_status_t make_lines(kolo_net_end_t *end)
{
    size_t bytes = end->depth * sizeof *end->lines;
    if (!kolo_verbs_options.lines) return KOLO_OK;
    end->lines = aligned_alloc(RING_ALIGN, KOLO_DIV_UP(bytes, RING_ALIGN) * RING_ALIGN);
    if (!end->lines)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "verbs: %s: no memory for %u lines", end->label, end->depth);
    memset(end->lines, 0, bytes);
    end->lines_mr =
        kolo_verbs.reg_mr(end->open->pd, end->lines, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    return end->lines_mr ? KOLO_OK : kolo_verbs_fail_register(end->open, end->label, bytes, errno);
}

static kolo_status_t allocate(kolo_net_end_t *end)
{
    size_t ring = 2 * end->depth * sizeof *end->ring;
    end->ring = aligned_alloc(RING_ALIGN, KOLO_DIV_UP(ring, RING_ALIGN) * RING_ALIGN);
    end->cookies = calloc(end->depth, sizeof *end->cookies);
    end->send_wr = calloc(2 * end->depth + 4, sizeof *end->send_wr); /* a message is two at most */
    end->recv_wr = calloc(end->depth, sizeof *end->recv_wr);
    end->sge = calloc(4 * end->depth + 8, sizeof *end->sge);
    end->sizes = calloc(end->depth, sizeof *end->sizes);
    if (!end->ring || !end->sizes || !end->cookies || !end->send_wr || !end->recv_wr || !end->sge)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "verbs: %s: no memory for %u requests", end->label, end->depth);
    memset(end->ring, 0, KOLO_DIV_UP(ring, RING_ALIGN) * RING_ALIGN);
    end->ring_mr =
        kolo_verbs.reg_mr(end->open->pd, end->ring, ring,
                          end->reads ? IBV_ACCESS_LOCAL_WRITE : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!end->ring_mr) return kolo_verbs_fail_register(end->open, end->label, ring, errno);
    if (end->reads)
        KOLO_TRY(make_lines(end));
    else if (!(end->lasts = calloc(end->depth, sizeof *end->lasts)))
        return kolo_fail(KOLO_ERR_NO_MEMORY, "verbs: %s: no memory for %u requests", end->label, end->depth);
    return KOLO_OK;
}

static kolo_status_t fill(kolo_net_end_t *end, kolo_net_hello_t *hello)
{
    /* Receives: what came by line may be ahead of its completion. */
    const kolo_verbs_room_t room = {.sends = end->send_room,
                                    .receives = end->reads ? 2 * end->depth : 1,
                                    .completions = end->send_room + 2 * end->depth + KOLO_VERBS_FLUSH_MOST,
                                    .pieces = 2};
    KOLO_TRY(allocate(end));
    KOLO_TRY(kolo_verbs_end_make_queues(end, &room));
    end->mine.depth = end->depth;
    if (!end->reads) {
        end->mine.fifo = (uint64_t)(uintptr_t)end->ring;
        end->mine.fifo_key = end->ring_mr->rkey;
    } else if (end->lines) {
        end->mine.fifo = (uint64_t)(uintptr_t)end->lines;
        end->mine.fifo_key = end->lines_mr->rkey;
    }
    return kolo_verbs_end_introduce(end, hello);
}

static kolo_status_t begin(kolo_net_open_t *open, const kolo_net_end_config_t *config, bool reads,
                           kolo_net_hello_t *hello, kolo_net_end_t **result)
{
    kolo_net_end_t *end = kolo_verbs_end_new(open, config->label);
    if (!end) return KOLO_ERR_NO_MEMORY;
    end->reads = reads;
    end->depth = config->depth;
    end->message_bytes = config->message_bytes;
    end->send_room = 4 * config->depth + 2;
    kolo_status_t status = fill(end, hello);
    if (status != KOLO_OK) {
        kolo_verbs_shut(end);
        return status;
    }
    *result = end;
    return KOLO_OK;
}

kolo_status_t kolo_verbs_listen(kolo_net_open_t *open, const kolo_net_end_config_t *config, kolo_net_hello_t *hello,
                                kolo_net_end_t **end)
{
    return begin(open, config, true, hello, end);
}

kolo_status_t kolo_verbs_start(kolo_net_open_t *open, const kolo_net_end_config_t *config, kolo_net_hello_t *hello,
                               kolo_net_end_t **end)
{
    return begin(open, config, false, hello, end);
}

static void log_connection(const kolo_net_end_t *end)
{
    char mine[64], peers[64];
    kolo_verbs_gid_text(end->mine.gid, mine, sizeof mine);
    kolo_verbs_gid_text(end->peer.gid, peers, sizeof peers);
    kolo_info("verbs",
              "%s: %s by device %s, queue pair %u, LID %u, GID %s; peer: %s, %u, %u, %s; MTU %u, inline %u",
              end->label, end->reads ? "receives" : "sends", end->mine.device, end->mine.qpn, end->mine.lid, mine,
              end->peer.device, end->peer.qpn, end->peer.lid, peers, 128u << KOLO_MIN(end->mine.mtu, end->peer.mtu),
              end->inline_bytes);
}

kolo_status_t kolo_verbs_connect(kolo_net_end_t *end, const kolo_net_hello_t *peer)
{
    KOLO_TRY(kolo_verbs_end_meet(end, peer));
    if (end->peer.depth != end->depth || end->peer.fifo % RING_ALIGN != 0)
        return kolo_fail(KOLO_ERR_PROTOCOL, "verbs: %s: %u requests here, %u there, ring at %llx", end->label,
                         end->depth, end->peer.depth, (unsigned long long)end->peer.fifo);
    KOLO_TRY(kolo_verbs_qp_ready(end, end->qp, &end->mine, &end->peer));
    log_connection(end);
    return KOLO_OK;
}

void kolo_verbs_shut(kolo_net_end_t *end)
{
    kolo_net_open_t *open = end->open;
    if (end->prev) end->prev->next = end->next;
    if (end->next) end->next->prev = end->prev;
    if (open->first == end) open->first = end->next;
    if (end->qp) kolo_verbs.destroy_qp(end->qp);
    kolo_verbs_flush_fini(end);
    if (end->cq) {
        kolo_verbs_drop_events(open); /* those not acknowledged would be waited for */
        kolo_verbs.destroy_cq(end->cq);
    }
    if (end->ring_mr) kolo_verbs.dereg_mr(end->ring_mr);
    if (end->lines_mr) kolo_verbs.dereg_mr(end->lines_mr);
    free(end->ring);
    free(end->lines);
    free(end->lasts);
    free(end->cookies);
    free(end->sizes);
    free(end->send_wr);
    free(end->recv_wr);
    free(end->sge);
    free(end->late);
    free(end);
}
