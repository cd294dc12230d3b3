/* SPDX-License-Identifier: Apache-2.0
 *
 * Receives into the memory of a device. The completion of a message says that the card has written it, not that
 * the device would see it: the writes may still be on their way through the machine. A read by the same card from
 * the same memory comes behind them. So a queue pair whose peer is itself reads back a word of the last message
 * that has come into each memory, and messages count only when that has ended. Never run on a GPU so far; tests run
 * it on host memory.
 */
#include "base/clock.h"
#include "remote/verbs/verbs.h"

#include <errno.h>
#include <stdlib.h>

#define REST_MS 100 /* for those of an end that is given up */

static kolo_status_t make_qp(kolo_net_end_t *end, kolo_verbs_flush_t *f)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = end->cq,
        .recv_cq = end->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = KOLO_VERBS_FLUSH_MOST, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    f->mr = kolo_verbs.reg_mr(end->open->pd, &f->word, sizeof f->word, IBV_ACCESS_LOCAL_WRITE);
    if (!f->mr) return kolo_verbs_fail_register(end->open, end->label, sizeof f->word, errno);
    f->qp = kolo_verbs.create_qp(end->open->pd, &attr);
    if (!f->qp)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno,
                               "verbs: %s: device %s gives no queue pair to read back what it writes", end->label,
                               end->open->name);
    kolo_verbs_hello_t self = end->mine;
    self.qpn = f->qp->qp_num;
    KOLO_TRY(kolo_verbs_qp_init(end, f->qp, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
    return kolo_verbs_qp_ready(end, f->qp, &self, &self);
}

static kolo_status_t begin(kolo_net_end_t *end)
{
    kolo_verbs_flush_t *f = calloc(1, sizeof *f);
    if (f) f->at = calloc(end->depth, sizeof *f->at);
    if (!f || !f->at) {
        free(f);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "verbs: %s: no memory to flush %u requests", end->label, end->depth);
    }
    f->asked = end->safe;
    end->flush = f;
    kolo_status_t status = make_qp(end, f);
    if (status != KOLO_OK) kolo_verbs_flush_fini(end);
    return status;
}

kolo_status_t kolo_verbs_flush_want(kolo_net_end_t *end, uint64_t request, uint64_t address,
                                    const kolo_net_region_t *region)
{
    if (!end->flush) KOLO_TRY(begin(end));
    end->flush->at[request & (end->depth - 1)] =
        (struct kolo_verbs_flush_at){address, region->mr->rkey, region->flushed};
    return KOLO_OK;
}

static kolo_status_t read_back(kolo_net_end_t *end, const struct kolo_verbs_flush_at *at, uint64_t until)
{
    kolo_verbs_flush_t *f = end->flush;
    struct ibv_send_wr *bad;
    struct ibv_sge sge = {.addr = (uint64_t)(uintptr_t)&f->word, .length = sizeof f->word, .lkey = f->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = KOLO_VERBS_FLUSH_MARK | until,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_READ,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {.remote_addr = at->address, .rkey = at->key}};
    int err = ibv_post_send(f->qp, &wr, &bad);
    if (err) return kolo_verbs_fail_post(end, err);
    end->counts.requests++;
    end->counts.doorbells++;
    f->reads++;
    f->out++;
    return KOLO_OK;
}

/* Returns the last request that one read covers: a read comes behind the writes into the same memory, not behind
 * those into another device's. NULL: none of those that have come needs one. *until: the requests below are
 * covered. */
static const struct kolo_verbs_flush_at *next_to_read(const kolo_net_end_t *end, uint64_t *until)
{
    const kolo_verbs_flush_t *f = end->flush;
    const struct kolo_verbs_flush_at *last = NULL;
    for (*until = f->asked; *until < end->came; ++*until) {
        const struct kolo_verbs_flush_at *at = &f->at[*until & (end->depth - 1)];
        if (last && at->wanted && at->key != last->key) break;
        if (at->wanted) last = at;
    }
    return last;
}

kolo_status_t kolo_verbs_flush_step(kolo_net_end_t *end)
{
    kolo_verbs_flush_t *f = end->flush;
    const struct kolo_verbs_flush_at *last;
    uint64_t until;
    while ((last = next_to_read(end, &until)) != NULL && f->out < KOLO_VERBS_FLUSH_MOST) {
        KOLO_TRY(read_back(end, last, until));
        f->asked = until;
    }
    if (!last && f->out == 0) f->asked = end->safe = end->came;
    return KOLO_OK;
}

void kolo_verbs_flush_done(kolo_net_end_t *end, uint64_t until)
{
    end->flush->out--;
    if (until > end->safe) end->safe = until;
}

/* Waits a moment for the reads of an end whose queue pair is gone: this is the last look at what it brought. */
kolo_status_t kolo_verbs_flush_rest(kolo_net_end_t *end)
{
    uint64_t deadline = kolo_deadline_ms(REST_MS);
    while (end->safe < end->came && !end->failed && kolo_now_ns() < deadline) {
        KOLO_TRY(kolo_verbs_flush_step(end));
        KOLO_TRY(kolo_verbs_poll(end, KOLO_VERBS_BATCH));
    }
    return KOLO_OK;
}

void kolo_verbs_flush_fini(kolo_net_end_t *end)
{
    kolo_verbs_flush_t *f = end->flush;
    if (!f) return;
    if (f->qp) kolo_verbs.destroy_qp(f->qp);
    if (f->mr) kolo_verbs.dereg_mr(f->mr);
    free(f->at);
    free(f);
    end->flush = NULL;
}
