/* SPDX-License-Identifier: Apache-2.0
 *
 * A collective in pieces: each is the same collective over a stretch of the buffers, in a slot of its own.
 */
#include "gpu/staged/staged.h"

/* How a piece lies in a slot, in parts of its length. */
typedef struct {
    uint32_t in, out;       /* parts from and to the device; 0: none on this rank */
    uint32_t in_at, out_at; /* the first of them */
    uint32_t parts;         /* of a slot */
    bool receives;          /* the host's call has a destination */
} shape_t;

static shape_t shape_of(const kolo_staged_t *s, const kolo_exec_call_t *c)
{
    uint32_t n = (uint32_t)s->nranks, me = (uint32_t)s->rank;
    bool root = c->root == s->rank;
    uint32_t swapped = n - c->others; /* by all_to_all */
    switch (c->coll) {
    case KOLO_COLL_REDUCE:
        return (shape_t){.in = 1, .out = root, .parts = 1, .receives = root};
    case KOLO_COLL_BROADCAST:
        return (shape_t){.in = root, .out = !root || c->src != c->dst, .parts = 1, .receives = true};
    case KOLO_COLL_ALL_GATHER:
        return (shape_t){.in = 1, .in_at = me, .out = n, .parts = n, .receives = true};
    case KOLO_COLL_REDUCE_SCATTER:
        return (shape_t){.in = n, .out = 1, .out_at = me, .parts = n, .receives = true};
    case KOLO_COLL_ALL_TO_ALL:
        return (shape_t){.in = swapped, .out = swapped, .out_at = swapped, .parts = 2 * swapped, .receives = true};
    case KOLO_COLL_GATHER:
        return (shape_t){.in = 1, .in_at = root ? me : 0, .out = root ? n : 0, .parts = n, .receives = root};
    case KOLO_COLL_SCATTER:
        return (shape_t){.in = root ? n : 0, .out = 1, .out_at = root ? me : 0, .parts = n, .receives = true};
    default:
        return (shape_t){.in = 1, .out = 1, .parts = 1, .receives = true};
    }
}

kolo_status_t kolo_staged_collective_plan(kolo_staged_t *s, kolo_staged_op_t *op)
{
    const kolo_exec_call_t *c = op->calls;
    op->room = s->room;
    op->pieces = 1;
    if (c->coll == KOLO_COLL_BARRIER || c->count == 0) return KOLO_OK;
    op->each = s->slot_bytes / shape_of(s, c).parts / c->elem;
    if (op->each > 64) op->each = op->each / 64 * 64;
    uint64_t pieces = KOLO_DIV_UP(c->count, op->each);
    if (pieces > INT32_MAX / 2)
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "%llu pieces are too many for one operation: KOLO_GPU_STAGING_SIZE",
                         (unsigned long long)pieces);
    op->pieces = (uint32_t)pieces;
    return KOLO_OK;
}

static uint64_t length(const kolo_staged_op_t *op, uint32_t piece)
{
    return KOLO_MIN(op->calls->count - piece * op->each, op->each);
}

static char *base_of(const kolo_staged_t *s, const kolo_staged_op_t *op, uint32_t piece)
{
    return op->room + piece % KOLO_STAGED_DEPTH * s->slot_bytes;
}

/* Returns whose part is part p of the slot. */
static uint32_t rank_of(const kolo_staged_t *s, const kolo_exec_call_t *c, uint32_t p)
{
    bool behind = c->coll == KOLO_COLL_ALL_TO_ALL && c->others && p >= (uint32_t)s->rank;
    return p + behind;
}

/* Parts one by one: on the device they lie as far apart as the whole ones. */
kolo_status_t kolo_staged_collective_copy(kolo_staged_t *s, const kolo_staged_op_t *op, uint32_t piece,
                                          bool from_device, kolo_cu_stream_t stream)
{
    const kolo_exec_call_t *c = op->calls;
    if (c->coll == KOLO_COLL_BARRIER || c->count == 0) return KOLO_OK;
    shape_t shape = shape_of(s, c);
    uint64_t bytes = length(op, piece) * c->elem, offset = piece * op->each * c->elem, whole = c->count * c->elem;
    uint64_t from = c->src_stride ? c->src_stride : whole, to = c->dst_stride ? c->dst_stride : whole;
    uint32_t parts = from_device ? shape.in : shape.out, first = from_device ? shape.in_at : shape.out_at;
    for (uint32_t p = 0; p < parts; p++) {
        uint32_t r = rank_of(s, c, p);
        char *host = base_of(s, op, piece) + (first + p) * bytes;
        if (from_device)
            KOLO_TRY(kolo_staged_copy(s, stream, host, (const char *)c->src + r * from + offset, bytes));
        else if (!c->others || r != (uint32_t)s->rank)
            KOLO_TRY(kolo_staged_copy(s, stream, (char *)c->dst + r * to + offset, host, bytes));
    }
    return KOLO_OK;
}

kolo_status_t kolo_staged_collective_run(kolo_staged_t *s, const kolo_staged_op_t *op, uint32_t piece)
{
    kolo_exec_call_t call = *op->calls;
    shape_t shape = shape_of(s, &call);
    if (call.coll != KOLO_COLL_BARRIER) {
        call.count = length(op, piece);
        uint64_t bytes = call.count * call.elem;
        call.src = shape.in ? base_of(s, op, piece) + shape.in_at * bytes : NULL;
        call.dst = shape.receives ? base_of(s, op, piece) + shape.out_at * bytes : NULL;
    }
    if (call.coll == KOLO_COLL_ALL_TO_ALL && call.others) {
        for (int r = 0; r < s->nranks; r++) s->counts[r] = r == s->rank ? 0 : call.count;
        call.send_counts = call.recv_counts = s->counts;
    }
    return s->env.host->run(s->env.host_arg, &call);
}
