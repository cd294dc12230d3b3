/* SPDX-License-Identifier: Apache-2.0
 *
 * The interpreter's handlers of references: a slot tells where the writer's memory is, and the reader copies from
 * or to it by itself, or reduces what it copies block by block.
 */
#include "exec/host/interp.h"

#include <string.h>

#define GET_BLOCK_BYTES (256u << 10)

kolo_status_t kolo_slot_expose(const kolo_slot_t *s)
{
    const kolo_reducer_t *r = &s->task->reducer;
    kolo_fragment_t f = kolo_slot_fragment(s, 0);
    kolo_exposed_t e = {{.address = (uint64_t)(uintptr_t)f.src, .bytes = f.bytes}, r->pre_float, r->pre_int};
    memcpy(kolo_tx_payload(s->tx), &e, sizeof(e));
    kolo_tx_post(s->tx, sizeof(e), KOLO_SLOT_REF, s->task->signature, s->task->operation);
    kolo_row_advance(s->lane, f.bytes);
    return KOLO_OK;
}

/* Multiplies what was got of the peer's raw input by the peer's scalar. */
static void scale_got(const kolo_slot_t *s, const kolo_exposed_t *e, char *got, size_t bytes)
{
    kolo_reducer_t theirs = s->task->reducer;
    if (!(s->in->flags & KOLO_FLAG_RAW) || !theirs.pre) return;
    theirs.pre_float = e->pre_float;
    theirs.pre_int = e->pre_int;
    kolo_reduce_load(&theirs, got, got, kolo_reducer_elems(&theirs, bytes), true, false);
}

static kolo_status_t get(const kolo_slot_t *s, const kolo_exposed_t *e, const kolo_fragment_t *f)
{
    KOLO_TRY(s->rx->ops->ref_read(s->rx, &e->ref, 0, f->dst, f->bytes));
    scale_got(s, e, f->dst, f->bytes);
    return KOLO_OK;
}

/* In blocks that are in cache still when they are reduced: in dst itself, or, where that is src, in the bounce
 * buffer (a third buffer costs cache; at 256 KB it made the call a quarter slower). */
static kolo_status_t get_reduce(const kolo_slot_t *s, const kolo_exposed_t *e, const kolo_fragment_t *f)
{
    const kolo_reducer_t *r = &s->task->reducer;
    bool first = s->in->flags & KOLO_FLAG_RX_FIRST, own = f->dst == f->src;
    unsigned flags =
        (kolo_slot_raw(s) ? first ? KOLO_RAW_B : KOLO_RAW_A : 0u) | (kolo_slot_final(s) ? KOLO_FINAL : 0u);
    uint32_t block = own ? KOLO_BOUNCE_BYTES : GET_BLOCK_BYTES;
    for (uint32_t done = 0, n; done < f->bytes; done += n) {
        char *dst = f->dst + done, *mine = f->src + done, *got = own ? s->task->interp.bounce : dst;
        n = KOLO_MIN(f->bytes - done, block);
        KOLO_TRY(s->rx->ops->ref_read(s->rx, &e->ref, done, got, n));
        scale_got(s, e, got, n);
        kolo_reduce_pair(r, dst, first ? got : mine, first ? mine : got, kolo_reducer_elems(r, n), flags);
    }
    return KOLO_OK;
}

static kolo_status_t put(const kolo_slot_t *s, const kolo_ref_t *ref, const kolo_fragment_t *f)
{
    const kolo_reducer_t *r = &s->task->reducer;
    if (!kolo_slot_raw(s) || !r->pre) return s->rx->ops->ref_write(s->rx, ref, 0, f->src, f->bytes);
    char temp[4096];
    for (uint32_t done = 0, n; done < f->bytes; done += n) {
        n = KOLO_MIN(f->bytes - done, (uint32_t)sizeof(temp));
        kolo_reduce_load(r, temp, f->src + done, kolo_reducer_elems(r, n), true, false);
        KOLO_TRY(s->rx->ops->ref_write(s->rx, ref, done, temp, n));
    }
    return KOLO_OK;
}

kolo_status_t kolo_slot_get_put(const kolo_slot_t *s)
{
    kolo_exposed_t e;
    kolo_fragment_t f = kolo_slot_fragment(s, 0);
    memcpy(&e, kolo_rx_payload(s->rx), sizeof(e)); /* once: the other side could change it meanwhile */
    if (e.ref.bytes != f.bytes) return kolo_task_mismatch(s->task, s->rx, f.bytes, e.ref.bytes);
    if (s->in->op == KOLO_OP_GET_REDUCE)
        KOLO_TRY(get_reduce(s, &e, &f));
    else
        KOLO_TRY(s->in->op == KOLO_OP_GET ? get(s, &e, &f) : put(s, &e.ref, &f));
    kolo_rx_release(s->rx);
    kolo_row_advance(s->lane, f.bytes);
    return KOLO_OK;
}
