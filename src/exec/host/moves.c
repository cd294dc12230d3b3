/* SPDX-License-Identifier: Apache-2.0
 *
 * What the interpreter does with one slot when everything that the slot needs is there: a handler for each kind of
 * instruction. It goes through the slot fragment by fragment, moves or reduces the bytes, releases the slot that it
 * has read and posts the one that it has filled. (References, which name memory instead of carrying it:
 * references.c.)
 */
#include "exec/host/interp.h"

#include <string.h>

static void trace_conn(const kolo_interp_slot_t *s, uint16_t conn, const kolo_segment_t *seg, uint32_t k)
{
    const kolo_plan_conn_t *c = &s->task->interp.plan->conns[conn];
    kolo_trace_step_t step = {.peer = c->peer,
                              .dir = c->dir,
                              .node = c->node,
                              .lane = c->lane,
                              .buf = seg->buf,
                              .chunk = kolo_segment_chunk(seg, s->lane->i, s->lane->j, k),
                              .tile = s->lane->tile};
    kolo_task_trace_step(s->task, &step);
}

void kolo_slot_trace(const kolo_interp_slot_t *s, uint32_t chunk)
{
    bool from_src = s->in->op == KOLO_OP_SEND || s->in->op == KOLO_OP_RECV_REDUCE_SEND ||
                    s->in->op == KOLO_OP_EXPOSE || s->in->op == KOLO_OP_PUT;
    const kolo_segment_t *payload = from_src ? &s->in->src : &s->in->dst;
    if (s->rx) trace_conn(s, s->rx_index, payload, chunk);
    for (uint32_t k = 0; s->in->op == KOLO_OP_REDUCE_MANY && k < s->in->list_count; k++)
        trace_conn(s, s->task->interp.plan->list[s->in->list_first + k], payload, chunk);
    if (s->tx) trace_conn(s, s->tx_index, payload, chunk);
}

static inline bool past_cache(const kolo_interp_slot_t *s)
{
    return s->task->interp.stream_out && s->in->dst.buf == KOLO_BUF_DST;
}

/* Finds where the slot may be posted from in place: memory that stays as it is until its wires have sent all. In a
 * collective that only moves data every chunk of SRC and DST does. In a reducing one SRC does unless the call is in
 * place (the result may be written while the wire still reads), and DST once it holds a finished value. */
static char *post_from(const kolo_interp_slot_t *s, const kolo_segment_t *seg, bool finished)
{
    if (KOLO_LIKELY(!(s->tx->caps & KOLO_CAP_POST_FROM)) || s->bytes < KOLO_POST_FROM_LEAST) return NULL;
    if (seg->buf != KOLO_BUF_SRC && seg->buf != KOLO_BUF_DST) return NULL;
    if (s->task->reducing && !(seg->buf == KOLO_BUF_SRC ? s->task->interp.src_stays : finished)) return NULL;
    return kolo_row_run(s->task, s->lane, s->in, seg, s->bytes);
}

/* Posts the slot whose payload is in the slot (data NULL) or at `data`. */
static inline kolo_status_t post(const kolo_interp_slot_t *s, const char *data)
{
    if (KOLO_UNLIKELY(data != NULL))
        return s->tx->ops->tx_post_from(s->tx, data, s->bytes, s->task->signature, s->task->operation);
    kolo_tx_post(s->tx, s->bytes, 0, s->task->signature, s->task->operation);
    return KOLO_OK;
}

/* ---- handlers: everything the slot needs is there ---- */

static kolo_status_t do_send(const kolo_interp_slot_t *s)
{
    const kolo_reducer_t *r = s->task->reducer;
    bool scale = kolo_slot_raw(s) && r->pre;
    char *data = scale ? NULL : post_from(s, &s->in->src, false), *to = kolo_tx_payload(s->tx);
    for (uint32_t done = 0; done < s->bytes;) {
        kolo_fragment_t f = kolo_slot_fragment(s, done);
        if (scale)
            kolo_reduce_load(r, to + done, f.src, kolo_reducer_elems(r, f.bytes), true, false);
        else if (!data)
            memcpy(to + done, f.src, f.bytes);
        kolo_row_advance(s->lane, f.bytes);
        done += f.bytes;
    }
    return post(s, data);
}

static kolo_status_t do_recv(const kolo_interp_slot_t *s)
{
    const char *from = kolo_rx_payload(s->rx);
    bool direct = s->rx->direct != NULL; /* the wire put it where it belongs */
    for (uint32_t done = 0; done < s->bytes;) {
        kolo_fragment_t f = kolo_slot_fragment(s, done);
        if (!direct || f.dst != from + done) kolo_copy(f.dst, from + done, f.bytes, past_cache(s));
        kolo_row_advance(s->lane, f.bytes);
        done += f.bytes;
    }
    kolo_rx_release(s->rx);
    return KOLO_OK;
}

static kolo_status_t do_recv_send(const kolo_interp_slot_t *s)
{
    const char *from = kolo_rx_payload(s->rx);
    char *data = s->in->dst.buf == KOLO_BUF_NONE ? NULL : post_from(s, &s->in->dst, true),
         *to = kolo_tx_payload(s->tx);
    for (uint32_t done = 0; done < s->bytes;) {
        kolo_fragment_t f = kolo_slot_fragment(s, done);
        if (f.dst && f.dst != from + done) memcpy(f.dst, from + done, f.bytes);
        if (!data) memcpy(to + done, f.dst ? f.dst : from + done, f.bytes);
        kolo_row_advance(s->lane, f.bytes);
        done += f.bytes;
    }
    kolo_rx_release(s->rx);
    return post(s, data);
}

/* Does RECV_REDUCE, RECV_REDUCE_SEND and RECV_REDUCE_COPY_SEND. */
static kolo_status_t do_recv_reduce(const kolo_interp_slot_t *s)
{
    const kolo_reducer_t *r = s->task->reducer;
    bool rx_first = s->in->flags & KOLO_FLAG_RX_FIRST, store = s->in->op != KOLO_OP_RECV_REDUCE_SEND;
    const char *from = kolo_rx_payload(s->rx);
    char *data = s->tx && store ? post_from(s, &s->in->dst, kolo_slot_final(s)) : NULL;
    char *to = s->tx && !data ? kolo_tx_payload(s->tx) : NULL;
    for (uint32_t done = 0; done < s->bytes;) {
        kolo_fragment_t f = kolo_slot_fragment(s, done);
        const void *srcs[2] = {rx_first ? from + done : f.src, rx_first ? f.src : from + done};
        kolo_reduce_many_t what = {.dst = store ? f.dst : to + done,
                                   .dst2 = store && to ? to + done : NULL,
                                   .srcs = srcs,
                                   .nsrcs = 2,
                                   .raw = kolo_slot_raw(s) ? rx_first : -1,
                                   .final = kolo_slot_final(s),
                                   .stream = store && to && past_cache(s)};
        kolo_reduce_many(r, &what, kolo_reducer_elems(r, f.bytes));
        kolo_row_advance(s->lane, f.bytes);
        done += f.bytes;
    }
    kolo_rx_release(s->rx);
    return s->tx ? post(s, data) : KOLO_OK;
}

static kolo_status_t do_reduce_many(const kolo_interp_slot_t *s)
{
    const kolo_reducer_t *r = s->task->reducer;
    const kolo_insn_t *in = s->in;
    const uint16_t *list = s->task->interp.plan->list + in->list_first;
    const void *srcs[KOLO_REDUCE_MAX];
    bool own = in->own_place != 0xffff;
    int nsrcs = (int)in->list_count + own;
    char *data = s->tx ? post_from(s, &in->dst, kolo_slot_final(s)) : NULL,
         *to = s->tx && !data ? kolo_tx_payload(s->tx) : NULL;
    for (uint32_t done = 0; done < s->bytes;) {
        kolo_fragment_t f = kolo_slot_fragment(s, done);
        int n = 0;
        for (uint32_t k = 0; k <= in->list_count; k++) {
            if (own && k == in->own_place) srcs[n++] = f.src;
            if (k < in->list_count) srcs[n++] = (const char *)kolo_rx_payload(s->task->interp.rx[list[k]]) + done;
        }
        kolo_reduce_many_t what = {.dst = f.dst,
                                   .dst2 = to ? to + done : NULL,
                                   .srcs = srcs,
                                   .nsrcs = nsrcs,
                                   .raw = own && kolo_slot_raw(s) ? in->own_place : -1,
                                   .final = kolo_slot_final(s),
                                   .stream = to && past_cache(s)};
        kolo_reduce_many(r, &what, kolo_reducer_elems(r, f.bytes));
        kolo_row_advance(s->lane, f.bytes);
        done += f.bytes;
    }
    for (uint32_t k = 0; k < in->list_count; k++) kolo_rx_release(s->task->interp.rx[list[k]]);
    s->lane->list_at = 0;
    return s->tx ? post(s, data) : KOLO_OK;
}

static kolo_status_t do_local(const kolo_interp_slot_t *s)
{
    const kolo_reducer_t *r = s->task->reducer;
    bool raw = kolo_slot_raw(s), dst_first = s->in->flags & KOLO_FLAG_DST_FIRST;
    for (uint32_t done = 0; done < s->bytes;) {
        kolo_fragment_t f = kolo_slot_fragment(s, done);
        if (s->in->op == KOLO_OP_REDUCE)
            kolo_reduce_pair(
                r, f.dst, dst_first ? f.dst : f.src, dst_first ? f.src : f.dst, kolo_reducer_elems(r, f.bytes),
                (raw ? dst_first ? KOLO_RAW_B : KOLO_RAW_A : 0u) | (kolo_slot_final(s) ? KOLO_FINAL : 0u));
        else if ((raw && r->pre) || (kolo_slot_final(s) && r->post_div > 1))
            kolo_reduce_load(r, f.dst, f.src, kolo_reducer_elems(r, f.bytes), raw, kolo_slot_final(s));
        else if (f.dst != f.src)
            kolo_copy(f.dst, f.src, f.bytes, past_cache(s));
        kolo_row_advance(s->lane, f.bytes);
        done += f.bytes;
    }
    return KOLO_OK;
}

const kolo_slot_handler_t kolo_slot_handlers[KOLO_OP_COUNT] = {
    [KOLO_OP_SEND] = do_send,
    [KOLO_OP_RECV] = do_recv,
    [KOLO_OP_RECV_REDUCE] = do_recv_reduce,
    [KOLO_OP_RECV_SEND] = do_recv_send,
    [KOLO_OP_RECV_REDUCE_SEND] = do_recv_reduce,
    [KOLO_OP_RECV_REDUCE_COPY_SEND] = do_recv_reduce,
    [KOLO_OP_REDUCE_MANY] = do_reduce_many,
    [KOLO_OP_COPY] = do_local,
    [KOLO_OP_REDUCE] = do_local,
    [KOLO_OP_EXPOSE] = kolo_slot_expose,
    [KOLO_OP_GET] = kolo_slot_get_put,
    [KOLO_OP_GET_REDUCE] = kolo_slot_get_put,
    [KOLO_OP_PUT] = kolo_slot_get_put,
};
