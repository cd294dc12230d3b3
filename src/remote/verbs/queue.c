/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests on a connected end. A writer's becomes an RDMA write into the oldest offer with immediate data that
 * carries the size; only the last of those that are handed over together is signalled, and covers those before
 * it. A reader's becomes an empty receive, which the immediate data of its message uses up, and an offer in the
 * writer's ring; offers are signalled now and then, to get their places in the send queue back.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "remote/verbs/verbs.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OFFER_MARK (1ull << 63) /* wr_id of offers: with it, how many places its completion frees */

/* ---- writer ---- */

typedef struct { /* memory of the peer, as it offered it */
    kolo_verbs_place_t at;
    bool line; /* a short message goes into its line */
} target_t;

/* Takes the offer for the next message, of `bytes`. */
static kolo_status_t take_offer(const kolo_net_end_t *end, uint32_t bytes, target_t *t)
{
    if (end->requests - end->completed >= end->depth) return KOLO_IN_PROGRESS;
    if (!kolo_verbs_offer_get(end->ring, end->depth, end->requests, &t->at)) return KOLO_IN_PROGRESS;
    t->line = t->at.bytes & KOLO_VERBS_LINE;
    t->at.bytes &= ~KOLO_VERBS_LINE;
    if (t->at.bytes >= bytes) return KOLO_OK;
    return kolo_fail(KOLO_ERR_PROTOCOL, "verbs: %s: the peer offers %u bytes for a message of %u", end->label,
                     t->at.bytes, bytes);
}

/* Queues a short message with its request for the reader's line. What is sent is what is there when it is pushed,
 * so its last word is written only then. */
static void queue_line(kolo_net_end_t *end, const void *data, uint32_t bytes)
{
    uint32_t at = end->queued++, place = (uint32_t)(end->requests & (end->depth - 1));
    struct ibv_sge *sge = &end->sge[2 * at];
    sge[0] = (struct ibv_sge){.addr = (uint64_t)(uintptr_t)data, .length = bytes};
    sge[1] = (struct ibv_sge){.addr = (uint64_t)(uintptr_t)&end->lasts[place], .length = sizeof *end->lasts};
    end->send_wr[at] = (struct ibv_send_wr){
        .wr_id = end->requests++,
        .sg_list = sge,
        .num_sge = 2,
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
        .send_flags = IBV_SEND_INLINE,
        .imm_data = htonl(bytes | KOLO_VERBS_LINE),
        .wr.rdma = {.remote_addr =
                        end->peer.fifo + place * sizeof(kolo_verbs_line_t) + KOLO_VERBS_LINE_MOST - bytes,
                    .rkey = end->peer.fifo_key},
    };
}

static void write_lasts(kolo_net_end_t *end)
{
    for (uint32_t i = 0; i < end->queued; i++) {
        const struct ibv_send_wr *wr = &end->send_wr[i];
        if (wr->opcode != IBV_WR_RDMA_WRITE_WITH_IMM || !(ntohl(wr->imm_data) & KOLO_VERBS_LINE)) continue;
        const void *data = (const void *)(uintptr_t)wr->sg_list[0].addr;
        end->lasts[wr->wr_id & (end->depth - 1)] = kolo_verbs_line_last(wr->wr_id, data, wr->sg_list[0].length);
    }
}

/* Queues a write of one or two pieces that lie in a row at the target; a message's last one carries its size. */
static void queue_write(kolo_net_end_t *end, const kolo_net_piece_t *pieces, int n, const target_t *to, bool last)
{
    uint32_t at = end->queued++, bytes = 0;
    struct ibv_sge *sge = &end->sge[2 * at];
    for (int i = 0; i < n; i++) {
        bytes += pieces[i].bytes;
        sge[i] = (struct ibv_sge){.addr = (uint64_t)(uintptr_t)pieces[i].data,
                                  .length = pieces[i].bytes,
                                  .lkey = pieces[i].region->mr->lkey};
    }
    end->send_wr[at] = (struct ibv_send_wr){
        .wr_id = end->requests,
        .sg_list = sge,
        .num_sge = n,
        .opcode = last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
        .send_flags = bytes <= end->inline_bytes ? IBV_SEND_INLINE : 0,
        .imm_data = last ? htonl(bytes) : 0,
        .wr.rdma = {.remote_addr = to->at.address, .rkey = to->at.key},
    };
    if (!last) return;
    end->requests++;
}

kolo_status_t kolo_verbs_isend(kolo_net_end_t *end, const void *data, uint32_t bytes,
                               const kolo_net_region_t *region, uint64_t cookie)
{
    const kolo_net_piece_t piece = {data, bytes, region};
    target_t slot;
    kolo_status_t status = take_offer(end, bytes, &slot);
    if (status != KOLO_OK) return status;
    end->cookies[end->requests & (end->depth - 1)] = cookie;
    if (slot.line && end->peer.fifo && kolo_verbs_line_takes(bytes) &&
        bytes + sizeof *end->lasts <= end->inline_bytes)
        queue_line(end, data, bytes);
    else
        queue_write(end, &piece, 1, &slot, true);
    return KOLO_OK;
}

kolo_net_invitation_t kolo_verbs_invited(const kolo_net_end_t *end, uint32_t bytes)
{
    kolo_verbs_place_t place;
    if (!kolo_verbs_offer_get(end->ring + end->depth, end->depth, end->requests, &place)) return KOLO_NET_NOT_YET;
    return place.bytes == bytes && bytes > 0 ? KOLO_NET_IN_PLACE : KOLO_NET_WITH_THE_REST;
}

kolo_status_t kolo_verbs_isend_from(kolo_net_end_t *end, const kolo_net_piece_t *payload,
                                    const kolo_net_piece_t *rest, bool in_place, uint64_t cookie)
{
    const kolo_net_piece_t pieces[2] = {*payload, *rest};
    target_t slot, place = {0};
    kolo_status_t status = take_offer(end, in_place ? rest->bytes : payload->bytes + rest->bytes, &slot);
    if (status != KOLO_OK) return status;
    if (in_place && (!kolo_verbs_offer_get(end->ring + end->depth, end->depth, end->requests, &place.at) ||
                     place.at.bytes != payload->bytes))
        return kolo_fail(KOLO_ERR_INTERNAL, "verbs: %s: no place for %u bytes", end->label, payload->bytes);
    end->cookies[end->requests & (end->depth - 1)] = cookie;
    if (in_place) {
        queue_write(end, &pieces[0], 1, &place, false);
        queue_write(end, &pieces[1], 1, &slot, true);
    } else {
        queue_write(end, pieces, 2, &slot, true);
    }
    return KOLO_OK;
}

bool kolo_verbs_offered(const kolo_net_end_t *end, uint64_t *tag)
{
    kolo_verbs_place_t place;
    if (!kolo_verbs_offer_get(end->ring, end->depth, end->requests, &place)) return false;
    *tag = place.tag;
    return true;
}

/* Brings the queue pair into its error state, for tests, as if the card had failed. */
static kolo_status_t fault_at_queue_pair(void)
{
    KOLO_FAIL_POINT_TRY("wire.verbs.queue_pair");
    return KOLO_OK;
}

static void stop_queue_pair(const kolo_net_end_t *end)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    (void)kolo_verbs.modify_qp(end->qp, &attr, IBV_QP_STATE);
}

static kolo_status_t post_sends(kolo_net_end_t *end, uint32_t n)
{
    struct ibv_send_wr *bad;
    for (uint32_t i = 0; i < n; i++) end->send_wr[i].next = i + 1 < n ? &end->send_wr[i + 1] : NULL;
    KOLO_FAIL_POINT_TRY("wire.verbs.post");
    int err = ibv_post_send(end->qp, end->send_wr, &bad);
    if (err) return kolo_verbs_fail_post(end, err);
    if (fault_at_queue_pair() != KOLO_OK) stop_queue_pair(end);
    end->counts.requests += n;
    end->counts.doorbells++;
    return KOLO_OK;
}

static kolo_status_t push_messages(kolo_net_end_t *end)
{
    uint32_t n = end->queued;
    write_lasts(end);
    end->send_wr[n - 1].send_flags |= IBV_SEND_SIGNALED;
    end->queued = 0;
    return post_sends(end, n);
}

/* ---- reader ---- */

kolo_status_t kolo_verbs_irecv(kolo_net_end_t *end, void *data, uint32_t bytes, const kolo_net_region_t *region,
                               uint64_t cookie, uint64_t tag)
{
    if (end->requests - end->completed >= end->depth) return KOLO_IN_PROGRESS;
    if (end->requests - end->confirmed >= 2 * end->depth) {
        KOLO_TRY(kolo_verbs_poll(end, KOLO_VERBS_BATCH));
        if (end->requests - end->confirmed >= 2 * end->depth) return KOLO_IN_PROGRESS;
    }
    bool line = end->lines && region->here && !region->flushed && !end->flush;
    end->recv_wr[end->queued] = (struct ibv_recv_wr){.wr_id = end->requests};
    const kolo_verbs_place_t place = {(uint64_t)(uintptr_t)data, region->mr->rkey,
                                      line ? bytes | KOLO_VERBS_LINE : bytes, tag};
    kolo_verbs_offer_put(end->ring, end->depth, end->requests, &place);
    if (region->flushed || end->flush)
        KOLO_TRY(kolo_verbs_flush_want(end, end->requests, (uint64_t)(uintptr_t)data, region));
    end->cookies[end->requests & (end->depth - 1)] = cookie;
    end->requests++;
    end->queued++;
    return KOLO_OK;
}

static kolo_status_t post_receives(kolo_net_end_t *end)
{
    struct ibv_recv_wr *bad;
    uint32_t n = end->queued;
    if (n == 0) return KOLO_OK;
    for (uint32_t i = 0; i < n; i++) end->recv_wr[i].next = i + 1 < n ? &end->recv_wr[i + 1] : NULL;
    end->queued = 0;
    int err = ibv_post_recv(end->qp, end->recv_wr, &bad);
    if (err) return kolo_verbs_fail_post(end, err);
    end->counts.requests += n;
    end->counts.doorbells++;
    return KOLO_OK;
}

kolo_status_t kolo_verbs_invite(kolo_net_end_t *end, uint64_t request, void *data, uint32_t bytes,
                                const kolo_net_region_t *region)
{
    if (end->invite_from != end->invite_to &&
        (request != end->invite_to || request - end->invite_from >= end->depth))
        return KOLO_IN_PROGRESS;
    if (data && region->flushed) KOLO_TRY(kolo_verbs_flush_want(end, request, (uint64_t)(uintptr_t)data, region));
    if (end->invite_from == end->invite_to) end->invite_from = request;
    end->invite_to = request + 1;
    const kolo_verbs_place_t place = {(uint64_t)(uintptr_t)data, data ? region->mr->rkey : 0, data ? bytes : 0, 0};
    kolo_verbs_offer_put(end->ring + end->depth, end->depth, request, &place);
    end->counts.invitations++;
    return KOLO_OK;
}

/* Queues writes of entries [*from, to) of a ring, `base` entries into the two: one for those that lie in a row, two
 * where the ring ends between them. Invitations that nobody took may be written over at any time, so they go with
 * their requests. */
static void queue_entries(kolo_net_end_t *end, uint32_t *n, uint64_t *from, uint64_t to, uint32_t base)
{
    uint32_t most = base && end->inline_bytes >= sizeof *end->ring ? end->inline_bytes / (uint32_t)sizeof *end->ring
                                                                   : UINT32_MAX;
    while (*from < to && end->sends_out < end->send_room) {
        uint32_t run = KOLO_MIN(kolo_verbs_fifo_run(*from, to, end->depth), most),
                 first = base + (uint32_t)(*from & (end->depth - 1)), bytes = run * (uint32_t)sizeof *end->ring;
        end->sge[*n] = (struct ibv_sge){
            .addr = (uint64_t)(uintptr_t)&end->ring[first], .length = bytes, .lkey = end->ring_mr->lkey};
        end->send_wr[*n] = (struct ibv_send_wr){
            .sg_list = &end->sge[*n],
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_WRITE,
            .send_flags = bytes <= end->inline_bytes ? IBV_SEND_INLINE : 0,
            .wr.rdma = {.remote_addr = end->peer.fifo + first * sizeof *end->ring, .rkey = end->peer.fifo_key},
        };
        end->sends_out++;
        if (++end->sends_unsignalled >= end->depth) {
            end->send_wr[*n].wr_id = OFFER_MARK | end->sends_unsignalled;
            end->send_wr[*n].send_flags |= IBV_SEND_SIGNALED;
            end->sends_unsignalled = 0;
        }
        *from += run;
        ++*n;
    }
}

static kolo_status_t push_offers(kolo_net_end_t *end)
{
    uint32_t n = 0;
    KOLO_TRY(post_receives(end)); /* what is offered must find a receive */
    queue_entries(end, &n, &end->offered, end->requests, 0);
    end->counts.trips += end->invite_from < end->invite_to;
    queue_entries(end, &n, &end->invite_from, end->invite_to, end->depth);
    return n ? post_sends(end, n) : KOLO_OK;
}

kolo_status_t kolo_verbs_push(kolo_net_end_t *end)
{
    if (!end->qp) return kolo_fail(KOLO_ERR_ABORTED, "verbs: %s: its queue pair was given up", end->label);
    if (!end->reads) return end->queued ? push_messages(end) : KOLO_OK;
    return end->offered < end->requests || end->invite_from < end->invite_to ? push_offers(end) : KOLO_OK;
}

kolo_status_t kolo_verbs_take_offers(kolo_net_end_t *end, uint32_t most, uint64_t *from, uint32_t *n)
{
    *from = end->offered;
    *n = 0;
    if (!end->qp || end->offered < end->depth) return KOLO_OK;
    KOLO_TRY(post_receives(end));
    *n = (uint32_t)KOLO_MIN(end->requests - end->offered, (uint64_t)most);
    end->offered += *n;
    return KOLO_OK;
}

bool kolo_verbs_repeat_offers(kolo_net_end_t *end, uint64_t from, uint32_t n)
{
    return kolo_verbs_offer_repeat(end->ring, end->depth, end->requests, from, n);
}

/* Destroys the queue pair, which is sure to end all that the card does with it but may take completions along; so
 * these are taken first, once there will be no more good ones. */
void kolo_verbs_revoke(kolo_net_end_t *end)
{
    if (!end->qp) return;
    stop_queue_pair(end);
    uint32_t most = end->send_room + 2 * end->depth;
    end->late = calloc(most, sizeof *end->late);
    for (int got = 1; end->late && got > 0 && end->nlate < most; end->nlate += (uint32_t)KOLO_MAX(got, 0))
        got = ibv_poll_cq(end->cq, (int)(most - end->nlate), end->late + end->nlate);
    kolo_verbs.destroy_qp(end->qp);
    end->qp = NULL;
}

/* ---- completions ---- */

/* Takes the message of a request from its line, if it is there. */
static bool take_line(kolo_net_end_t *end, uint64_t request)
{
    kolo_verbs_place_t place;
    if (!kolo_verbs_offer_get(end->ring, end->depth, request, &place) || !(place.bytes & KOLO_VERBS_LINE))
        return false;
    return kolo_verbs_line_get(end->lines, end->depth, request, (void *)(uintptr_t)place.address,
                               place.bytes & ~KOLO_VERBS_LINE, &end->sizes[request & (end->depth - 1)]);
}

/* Finds, at a reader, the messages that are there though their completions have not been seen. */
static bool look_at_lines(kolo_net_end_t *end)
{
    uint64_t before = end->came;
    while (end->came < end->offered && take_line(end, end->came)) end->came++;
    return end->came != before;
}

static kolo_status_t take_message(kolo_net_end_t *end, const struct ibv_wc *wc)
{
    uint32_t word = ntohl(wc->imm_data), bytes = word & ~KOLO_VERBS_LINE;
    if (wc->wr_id != end->confirmed || wc->wr_id >= end->requests)
        return kolo_fail(KOLO_ERR_INTERNAL, "verbs: %s: completion of request %llu, expected %llu", end->label,
                         (unsigned long long)wc->wr_id, (unsigned long long)end->confirmed);
    if (wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM || bytes > end->message_bytes)
        return kolo_fail(KOLO_ERR_PROTOCOL, "verbs: %s: a message of %u bytes (kind %d), at most %u are due",
                         end->label, bytes, (int)wc->opcode, end->message_bytes);
    end->confirmed++;
    if (wc->wr_id < end->came) return KOLO_OK; /* found in its line */
    if (!(word & KOLO_VERBS_LINE))
        end->sizes[wc->wr_id & (end->depth - 1)] = bytes;
    else if (!take_line(end, wc->wr_id))
        return kolo_fail(KOLO_ERR_PROTOCOL, "verbs: %s: a message of %u bytes is not in its line", end->label,
                         bytes);
    end->came = wc->wr_id + 1;
    return KOLO_OK;
}

/* Takes one completion of any kind. */
static kolo_status_t take(kolo_net_end_t *end, const struct ibv_wc *wc)
{
    if (wc->status != IBV_WC_SUCCESS) { /* those before it come first */
        if (!end->failed) {
            end->bad = *wc;
            end->failed_ns = kolo_now_ns();
        }
        end->failed = true;
        return KOLO_OK;
    }
    if (wc->wr_id & OFFER_MARK) {
        end->sends_out -= (uint32_t)(wc->wr_id & ~OFFER_MARK);
        return KOLO_OK;
    }
    if (wc->wr_id & KOLO_VERBS_FLUSH_MARK) {
        kolo_verbs_flush_done(end, wc->wr_id & ~KOLO_VERBS_FLUSH_MARK);
        return KOLO_OK;
    }
    if (end->reads) return take_message(end, wc);
    if (wc->wr_id < end->came || wc->wr_id >= end->requests)
        return kolo_fail(KOLO_ERR_INTERNAL, "verbs: %s: completion of request %llu, expected %llu to %llu",
                         end->label, (unsigned long long)wc->wr_id, (unsigned long long)end->came,
                         (unsigned long long)end->requests);
    end->came = wc->wr_id + 1;
    return KOLO_OK;
}

kolo_status_t kolo_verbs_poll(kolo_net_end_t *end, int most)
{
    struct ibv_wc wc[KOLO_VERBS_BATCH];
    int got = ibv_poll_cq(end->cq, KOLO_MIN(most, KOLO_VERBS_BATCH), wc);
    if (got < 0)
        return kolo_fail(KOLO_ERR_SYSTEM, "verbs: %s: the completion queue of device %s cannot be read", end->label,
                         end->mine.device);
    end->counts.completions += (uint64_t)got;
    for (int i = 0; i < got; i++) KOLO_TRY(take(end, &wc[i]));
    return KOLO_OK;
}

/* Returns what is safe: of a writer each message by its last piece, of a reader each. */
static void tell(kolo_net_end_t *end, kolo_net_done_t *done, int most, int *n)
{
    if (!end->reads && end->completed < end->safe) end->completed = end->safe - 1;
    for (; end->completed < end->safe && *n < most; end->completed++) {
        uint64_t at = end->completed & (end->depth - 1);
        done[(*n)++] = (kolo_net_done_t){end->cookies[at], end->reads ? end->sizes[at] : 0};
    }
}

/* Takes what had come to a revoked end, and is safe. */
static kolo_status_t take_late(kolo_net_end_t *end)
{
    for (; end->late_at < end->nlate; end->late_at++)
        if (end->late[end->late_at].status == IBV_WC_SUCCESS) KOLO_TRY(take(end, &end->late[end->late_at]));
    return end->flush ? kolo_verbs_flush_rest(end) : KOLO_OK;
}

kolo_status_t kolo_verbs_test(kolo_net_end_t *end, kolo_net_done_t *done, int most, int *n)
{
    *n = 0;
    bool found = end->lines && end->qp && !end->flush && look_at_lines(end); /* completions can wait, then */
    if (!found) KOLO_TRY(end->qp ? kolo_verbs_poll(end, most) : take_late(end));
    if (end->flush && end->qp) KOLO_TRY(kolo_verbs_flush_step(end));
    if (!end->flush) end->safe = end->came;
    tell(end, done, most, n);
    if (*n > 0 || !end->qp) return KOLO_OK;
    if (!end->failed) return kolo_verbs_check_events(end);
    return kolo_verbs_failure_is_clear(end) ? kolo_verbs_fail_completion(end, &end->bad) : KOLO_OK;
}
