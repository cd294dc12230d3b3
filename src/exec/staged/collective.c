/* SPDX-License-Identifier: Apache-2.0
 *
 * A collective in pieces: each is the same collective over a stretch of the buffers. While the host runs one piece,
 * the next ones come from the device and the last ones go there.
 */
#include "exec/staged/staged.h"

/* How a piece lies in a slot, in parts of its length. */
typedef struct {
    uint32_t in, out;       /* parts from and to the device; 0: none on this rank */
    uint32_t in_at, out_at; /* the first of them */
    uint32_t parts;         /* of a slot */
} shape_t;

static shape_t shape_of(const kolo_staged_t *s, const kolo_exec_call_t *c)
{
    uint32_t n = (uint32_t)s->nranks, me = (uint32_t)s->rank;
    bool is_root = c->root == s->rank;
    switch (c->coll) {
    case KOLO_COLL_REDUCE:
        return (shape_t){.in = 1, .out = is_root, .parts = 1};
    case KOLO_COLL_BROADCAST:
        return (shape_t){.in = is_root, .out = !is_root || c->src != c->dst, .parts = 1};
    case KOLO_COLL_ALL_GATHER:
        return (shape_t){.in = 1, .in_at = me, .out = n, .parts = n};
    case KOLO_COLL_REDUCE_SCATTER:
        return (shape_t){.in = n, .out = 1, .out_at = me, .parts = n};
    case KOLO_COLL_ALL_TO_ALL:
        return (shape_t){.in = n, .out = n, .out_at = n, .parts = 2 * n};
    case KOLO_COLL_GATHER:
        return (shape_t){.in = 1, .in_at = is_root ? me : 0, .out = is_root ? n : 0, .parts = n};
    case KOLO_COLL_SCATTER:
        return (shape_t){.in = is_root ? n : 0, .out = 1, .out_at = is_root ? me : 0, .parts = n};
    default:
        return (shape_t){.in = 1, .out = 1, .parts = 1};
    }
}

typedef struct {
    kolo_staged_t *s;
    const kolo_exec_call_t *call;
    shape_t shape;
    uint64_t each, pieces; /* elements of a part in a piece */
    uint64_t come, run;    /* pieces whose copies from the device are queued; that were run */
} run_t;

static uint64_t length(const run_t *r, uint64_t piece)
{
    uint64_t left = r->call->count - piece * r->each;
    return left < r->each ? left : r->each;
}

static unsigned slot_of(const run_t *r, uint64_t piece)
{
    return (unsigned)((r->s->turn + piece) % KOLO_STAGED_DEPTH);
}

static char *base_of(const run_t *r, uint64_t piece)
{
    return r->s->room + slot_of(r, piece) * r->s->slot_bytes;
}

/* Parts of a piece, one by one: on the device they lie as far apart as the whole parts. */
static kolo_status_t move(const run_t *r, uint64_t piece, bool from_device)
{
    const kolo_exec_call_t *c = r->call;
    uint64_t bytes = length(r, piece) * c->elem, offset = piece * r->each * c->elem, whole = c->count * c->elem;
    uint64_t from = c->src_stride ? c->src_stride : whole, to = c->dst_stride ? c->dst_stride : whole;
    uint32_t parts = from_device ? r->shape.in : r->shape.out;
    uint32_t first = from_device ? r->shape.in_at : r->shape.out_at;
    for (uint32_t p = 0; p < parts; p++) {
        char *host = base_of(r, piece) + (first + p) * bytes;
        kolo_status_t status =
            from_device ? kolo_staged_copy(r->s, r->s->down, host, (const char *)c->src + p * from + offset, bytes)
                        : kolo_staged_copy(r->s, r->s->up, (char *)c->dst + p * to + offset, host, bytes);
        KOLO_TRY(status);
    }
    return KOLO_OK;
}

/* Queues copies from the device as far ahead as there are slots; waits for the one that is needed next. */
static kolo_status_t fetch(run_t *r)
{
    for (; r->come < r->pieces && r->come < r->run + KOLO_STAGED_DEPTH; r->come++) {
        kolo_staged_slot_t *slot = &r->s->slots[slot_of(r, r->come)];
        kolo_status_t status = r->come == r->run ? kolo_staged_await(r->s, slot->left, &slot->leaving)
                                                 : kolo_staged_look(r->s, slot->left, &slot->leaving);
        if (status == KOLO_IN_PROGRESS) return KOLO_OK;
        KOLO_TRY(status);
        KOLO_TRY(move(r, r->come, true));
        if (r->shape.in) KOLO_TRY(kolo_staged_mark(r->s, r->s->down, slot->came, &slot->coming));
    }
    return KOLO_OK;
}

static kolo_status_t run_piece(const run_t *r, uint64_t piece)
{
    kolo_exec_call_t call = *r->call;
    bool receives = r->call->coll == KOLO_COLL_BROADCAST || r->shape.out;
    uint64_t bytes = length(r, piece) * call.elem;
    call.count = length(r, piece);
    call.src = r->shape.in ? base_of(r, piece) + r->shape.in_at * bytes : NULL;
    call.dst = receives ? base_of(r, piece) + r->shape.out_at * bytes : NULL;
    return r->s->env.host->run(r->s->env.host_arg, &call);
}

kolo_status_t kolo_staged_collective(kolo_staged_t *s, const kolo_exec_call_t *call)
{
    if (call->coll == KOLO_COLL_BARRIER) return s->env.host->run(s->env.host_arg, call);
    run_t r = {.s = s, .call = call, .shape = shape_of(s, call)};
    r.each = s->slot_bytes / r.shape.parts / call->elem;
    if (r.each > 64) r.each = r.each / 64 * 64;
    r.pieces = call->count ? (call->count + r.each - 1) / r.each : 1;
    for (; r.run < r.pieces; r.run++) {
        kolo_staged_slot_t *slot = &s->slots[slot_of(&r, r.run)];
        KOLO_TRY(fetch(&r));
        KOLO_TRY(kolo_staged_await(s, slot->came, &slot->coming));
        KOLO_TRY(run_piece(&r, r.run));
        KOLO_TRY(move(&r, r.run, false));
        if (r.shape.out) KOLO_TRY(kolo_staged_mark(s, s->up, slot->left, &slot->leaving));
    }
    s->turn += r.pieces;
    return KOLO_OK;
}
