/* SPDX-License-Identifier: Apache-2.0
 *
 * What a verdict finds: in which operation a rank is, which operation keeps the others waiting and where each rank
 * is with regard to it, and whether two calls of a pair of ranks belong together. No words (verdict_words.c).
 */
#include "diag/verdict_parts.h"

void kolo_verdict_take(kolo_verdict_rank_t *rank, const kolo_record_op_t *ops, size_t count, uint64_t now_ns)
{
    size_t skip = count > KOLO_VERDICT_OPS ? count - KOLO_VERDICT_OPS : 0;
    rank->nops = 0;
    for (size_t i = 0; i < skip; i++) /* a device may be far behind what it was given */
        if (ops[i].state == KOLO_RECORD_RUNNING) skip = i;
    for (size_t i = skip; i < count && rank->nops < KOLO_VERDICT_OPS; i++) {
        const kolo_record_op_t *o = &ops[i];
        bool over = o->state == KOLO_RECORD_DONE || o->state == KOLO_RECORD_FAILED;
        uint64_t since = over && o->ended_ns ? o->ended_ns : o->begun_ns;
        kolo_verdict_op_t *to = &rank->ops[rank->nops++];
        *to = (kolo_verdict_op_t){o->number, o->word, KOLO_AGE_UNKNOWN, o->root, o->kind, o->state};
        if (since && since <= now_ns) to->age_ns = now_ns - since;
    }
}

bool kolo_verdict_op_runs(const kolo_verdict_op_t *op)
{
    return op->state == KOLO_RECORD_CONNECTING || op->state == KOLO_RECORD_RUNNING;
}

bool kolo_verdict_is_before(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) < 0;
}

const kolo_verdict_op_t *kolo_verdict_last_coll(const kolo_verdict_rank_t *r)
{
    for (uint32_t i = 0; i < r->nops && r->waits.count; i++)
        if (r->ops[i].kind == KOLO_RECORD_COLL && kolo_verdict_op_runs(&r->ops[i])) return &r->ops[i];
    for (uint32_t i = r->nops; i-- > 0;)
        if (r->ops[i].kind == KOLO_RECORD_COLL && r->ops[i].state != KOLO_RECORD_QUEUED) return &r->ops[i];
    return NULL;
}

const kolo_verdict_op_t *kolo_verdict_coll(const kolo_verdict_rank_t *r, uint64_t number)
{
    for (uint32_t i = r->nops; i-- > 0;)
        if (r->ops[i].kind == KOLO_RECORD_COLL && r->ops[i].state != KOLO_RECORD_QUEUED &&
            r->ops[i].number == number)
            return &r->ops[i];
    return NULL;
}

const kolo_verdict_op_t *kolo_verdict_pair_op(const kolo_verdict_rank_t *r)
{
    for (uint32_t i = r->nops; r->presence == KOLO_RANK_HEARD && i-- > 0;) {
        bool late = r->ops[i].state == KOLO_RECORD_FAILED && r->failed == KOLO_OK;
        if (r->ops[i].kind != KOLO_RECORD_COLL && (late || kolo_verdict_op_runs(&r->ops[i]))) return &r->ops[i];
    }
    return NULL;
}

kolo_position_t kolo_verdict_position(const kolo_verdict_t *v, const kolo_verdict_rank_t *r)
{
    if (r->presence != KOLO_RANK_HEARD) return KOLO_POSITION_UNKNOWN;
    const kolo_verdict_op_t *last = kolo_verdict_last_coll(r), *op = kolo_verdict_coll(r, v->stuck);
    if (op && op->word != v->word) return KOLO_POSITION_DIFFERENT;
    if (op && op->state == KOLO_RECORD_LAUNCHED) return KOLO_POSITION_GIVEN;
    if (op)
        return kolo_verdict_op_runs(op)          ? KOLO_POSITION_INSIDE
               : op->state == KOLO_RECORD_FAILED ? KOLO_POSITION_FAILED
                                                 : KOLO_POSITION_PAST;
    return !last || kolo_verdict_is_before(last->number, v->stuck) ? KOLO_POSITION_BEHIND : KOLO_POSITION_PAST;
}

void kolo_verdict_find_stuck(kolo_verdict_t *v)
{
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_op_t *op =
            v->ranks[i].presence == KOLO_RANK_HEARD ? kolo_verdict_last_coll(&v->ranks[i]) : NULL;
        if (!op || (!kolo_verdict_op_runs(op) && op->state != KOLO_RECORD_FAILED)) continue;
        if (v->any && !kolo_verdict_is_before(op->number, v->stuck)) continue;
        v->stuck = op->number;
        v->any = true;
    }
    int most = 0;
    for (int i = 0; i < v->count && v->any; i++) { /* at most count squared, of a bounded count */
        const kolo_verdict_op_t *op = kolo_verdict_coll(&v->ranks[i], v->stuck);
        int same = 0;
        if (!op || (i > 0 && most > 0 && op->word == v->word)) continue;
        for (int k = 0; k < v->count; k++) {
            const kolo_verdict_op_t *other = kolo_verdict_coll(&v->ranks[k], v->stuck);
            same += other && other->word == op->word;
        }
        if (same <= most) continue;
        most = same;
        v->word = op->word;
    }
}

const kolo_verdict_rank_t *kolo_verdict_find_rank(const kolo_verdict_t *v, uint32_t rank)
{
    for (int i = 0; i < v->count; i++)
        if ((uint32_t)v->ranks[i].rank == rank) return &v->ranks[i];
    return NULL;
}

/* Tells whether one sends and the other receives, or one waits for what the other is about to signal. */
static bool belong_together(const kolo_verdict_op_t *op, const kolo_verdict_op_t *other)
{
    if (op->kind == KOLO_RECORD_WAIT) return other->kind == KOLO_RECORD_PUT || other->kind == KOLO_RECORD_SIGNAL;
    return (op->kind == KOLO_RECORD_SEND && other->kind == KOLO_RECORD_RECV) ||
           (op->kind == KOLO_RECORD_RECV && other->kind == KOLO_RECORD_SEND);
}

bool kolo_verdict_is_met(const kolo_verdict_t *v, const kolo_verdict_rank_t *r, const kolo_verdict_op_t *op)
{
    const kolo_verdict_rank_t *peer = kolo_verdict_find_rank(v, op->peer);
    for (uint32_t i = 0; peer && peer->presence == KOLO_RANK_HEARD && i < peer->nops; i++) {
        const kolo_verdict_op_t *o = &peer->ops[i];
        if (kolo_verdict_op_runs(o) && belong_together(op, o) && (int)o->peer == r->rank) return true;
    }
    return false;
}
