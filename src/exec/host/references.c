/* SPDX-License-Identifier: Apache-2.0
 *
 * The interpreter's handlers of references: a slot names the writer's memory, and the reader copies from or to it,
 * or reduces it block by block. A long copy goes in pieces: between two pieces the other lanes have a turn, and the
 * waiting thread checks the stop word.
 */
#include "exec/host/interp.h"

#include <string.h>

#define GET_BLOCK_BYTES (256u << 10)

kolo_status_t kolo_slot_expose(const kolo_interp_slot_t *s)
{
    const kolo_reducer_t *r = s->task->reducer;
    kolo_fragment_t f = kolo_slot_fragment(s, 0);
    kolo_exposed_t e = {.pre_float = r->pre_float, .pre_int = r->pre_int};
    KOLO_TRY(s->tx->ops->ref_make(s->tx, f.src, f.bytes, &e.ref));
    memcpy(kolo_tx_payload(s->tx), &e, sizeof(e));
    kolo_tx_post(s->tx, sizeof(e), KOLO_SLOT_REF, s->task->signature, s->task->operation);
    kolo_row_advance(s->lane, f.bytes);
    return KOLO_OK;
}

/* Multiplies what was got of the peer's raw input by the peer's scalar. */
static void scale_got(const kolo_interp_slot_t *s, const kolo_exposed_t *e, char *got, size_t bytes)
{
    kolo_reducer_t theirs = *s->task->reducer;
    if (!(s->in->flags & KOLO_FLAG_RAW) || !theirs.pre) return;
    theirs.pre_float = e->pre_float;
    theirs.pre_int = e->pre_int;
    kolo_reduce_load(&theirs, got, got, kolo_reducer_elems(&theirs, bytes), true, false);
}

/* Copies `bytes` from where the lane stands; starts that if it has not been. */
static kolo_status_t copy(const kolo_interp_slot_t *s, void *mine, uint32_t bytes, bool write)
{
    kolo_lane_state_t *lane = s->lane;
    if (!lane->copying) {
        lane->copy = (kolo_ref_copy_t){lane->copied, mine, bytes, write};
        KOLO_TRY(s->rx->ops->ref_start(s->rx, &lane->exposed.ref, &lane->copy));
    }
    lane->copying = true;
    KOLO_TRY(s->rx->ops->ref_done(s->rx, &lane->copy));
    lane->copying = false;
    lane->copied += bytes;
    return KOLO_OK;
}

static kolo_status_t get(const kolo_interp_slot_t *s, const kolo_fragment_t *f)
{
    KOLO_TRY(copy(s, f->dst, f->bytes, false));
    scale_got(s, &s->lane->exposed, f->dst, f->bytes);
    return KOLO_OK;
}

/* Reads one block, which is in cache still when it is reduced: in dst itself, or, where that is src, in the bounce
 * buffer (a third buffer costs cache; at 256 KB it made the call a quarter slower). */
static kolo_status_t get_reduce(const kolo_interp_slot_t *s, const kolo_fragment_t *f)
{
    kolo_interp_t *task = &s->task->interp;
    kolo_lane_state_t *lane = s->lane;
    const kolo_reducer_t *r = s->task->reducer;
    bool first = s->in->flags & KOLO_FLAG_RX_FIRST, own = f->dst == f->src;
    unsigned flags =
        (kolo_slot_raw(s) ? first ? KOLO_RAW_B : KOLO_RAW_A : 0u) | (kolo_slot_final(s) ? KOLO_FINAL : 0u);
    uint32_t done = lane->copied, n = KOLO_MIN(f->bytes - done, own ? KOLO_BOUNCE_BYTES : GET_BLOCK_BYTES);
    char *dst = f->dst + done, *mine = f->src + done, *got = own ? task->bounce : dst;
    if (own && task->bouncing && task->bouncing != lane) return KOLO_IN_PROGRESS;
    if (own) task->bouncing = lane;
    KOLO_TRY(copy(s, got, n, false));
    scale_got(s, &lane->exposed, got, n);
    kolo_reduce_pair(r, dst, first ? got : mine, first ? mine : got, kolo_reducer_elems(r, n), flags);
    task->bouncing = NULL;
    return KOLO_OK;
}

/* Puts a fragment; what is scaled on the way goes in short blocks, each of which is waited for. */
static kolo_status_t put(const kolo_interp_slot_t *s, const kolo_fragment_t *f)
{
    const kolo_reducer_t *r = s->task->reducer;
    kolo_status_t status;
    char temp[4096];
    if (!kolo_slot_raw(s) || !r->pre) return copy(s, f->src, f->bytes, true);
    uint32_t n = KOLO_MIN(f->bytes - s->lane->copied, (uint32_t)sizeof(temp));
    kolo_reduce_load(r, temp, f->src + s->lane->copied, kolo_reducer_elems(r, n), true, false);
    do {
        status = copy(s, temp, n, true);
    } while (status == KOLO_IN_PROGRESS);
    return status;
}

/* Moves block by block, as far as one turn goes. */
static kolo_status_t move(const kolo_interp_slot_t *s, const kolo_fragment_t *f)
{
    uint32_t before = s->lane->copied;
    do {
        KOLO_TRY(s->in->op == KOLO_OP_GET_REDUCE ? get_reduce(s, f)
                 : s->in->op == KOLO_OP_GET      ? get(s, f)
                                                 : put(s, f));
        if (s->lane->copied == f->bytes) return KOLO_OK;
    } while (s->lane->copied - before < KOLO_REF_PIECE);
    return KOLO_IN_PROGRESS;
}

kolo_status_t kolo_slot_get_put(const kolo_interp_slot_t *s)
{
    kolo_lane_state_t *lane = s->lane;
    kolo_fragment_t f;
    if (!lane->shown) {
        f = kolo_slot_fragment(s, 0);
        /* once: the other side could change it meanwhile */
        memcpy(&lane->exposed, kolo_rx_payload(s->rx), sizeof(lane->exposed));
        if (lane->exposed.ref.bytes != f.bytes)
            return kolo_task_mismatch(s->task, s->rx, f.bytes, lane->exposed.ref.bytes);
        lane->shown = true;
        lane->copied = 0;
    } else {
        f = kolo_row_fragment(s->task, lane, s->in, s->bytes);
    }
    kolo_status_t status = move(s, &f);
    if (status == KOLO_IN_PROGRESS) s->task->interp.in_pieces = true;
    if (status != KOLO_OK) return status;
    lane->shown = false;
    kolo_rx_release(s->rx);
    kolo_row_advance(lane, f.bytes);
    return KOLO_OK;
}
