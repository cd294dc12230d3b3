/* SPDX-License-Identifier: Apache-2.0
 *
 * The flat loops in two steps, for more ranks or bytes than the one-step loops suit: rank r reduces part r of all
 * inputs, then sends it to all (all_reduce) or to the root (reduce). Two slots of every queue, 2n lines read per
 * rank where the one-step loop reads n times the message. They follow the plan of algo/direct.c; parts are
 * blocks of ceil(count / nranks) elements, the last ones short or empty.
 *
 * Each rank can read all inputs. So a part that its rank does not reduce for long, since a host has taken its core
 * or the scheduler, is reduced by whoever waits for it, with the same bits. Each operation then waits once for all
 * ranks, not twice. Slots are given back at the end: until then the inputs stay. A result that comes later is
 * passed over.
 */
#include "base/clock.h"
#include "exec/host/flat.h"

typedef struct {
    uint64_t elems; /* of a full part */
    size_t bytes;
    kolo_ll_layout_t lie; /* how parts lie in a slot */
} cut_t;

static inline cut_t cut(const kolo_task_t *t)
{
    cut_t c = {.elems = KOLO_DIV_UP(t->flat.count, t->flat.nranks)};
    c.bytes = c.elems * t->reducer->elem;
    c.lie = kolo_ll_layout(c.bytes, t->flat.nranks, t->flat.ll_tx->end.slot_bytes);
    return c;
}

static inline uint64_t part_start(const kolo_task_t *t, const cut_t *c, uint32_t p)
{
    return KOLO_MIN(p * c->elems, t->flat.count);
}

static inline uint64_t part_elems(const kolo_task_t *t, const cut_t *c, uint32_t p)
{
    return KOLO_MIN(c->elems, t->flat.count - part_start(t, c, p));
}

static inline void *part_of(const kolo_task_t *t, const cut_t *c, const void *base, uint32_t p)
{
    return (char *)(uintptr_t)base + part_start(t, c, p) * t->reducer->elem;
}

/* ---- traces ---- */

static void trace(kolo_task_t *t, kolo_dir_t dir, uint32_t rank, uint32_t chunk, kolo_buf_t buf, bool fan)
{
    kolo_trace_step_t step = {
        .peer = fan && dir == KOLO_DIR_TX ? -1 : (int32_t)rank, .dir = (uint8_t)dir, .node = fan};
    step.buf = (uint8_t)buf;
    step.chunk = chunk;
    kolo_task_trace(t, &step);
}

/* ---- step one: inputs ---- */

static void put_inputs(kolo_task_t *t, const cut_t *c, uint32_t sign)
{
    const char *src = t->flat.src;
    if (KOLO_UNLIKELY(t->reducer->pre) && t->flat.count) {
        kolo_reduce_load(t->reducer, t->flat.ll_temp, src, t->flat.count, true, false);
        src = (const char *)t->flat.ll_temp;
    }
    kolo_ll_begin(t->flat.ll_tx, t->signature, t->operation);
    for (uint32_t p = 0; p < t->flat.nranks; p += c->lie.fit) {
        uint64_t start = part_start(t, c, p), left = t->flat.count - start;
        if (!left) break; /* who has an empty part reads nothing */
        uint64_t n = KOLO_MIN(c->elems * c->lie.fit, left);
        kolo_ll_put(t->flat.ll_tx, kolo_ll_part_line(&c->lie, p), src + start * t->reducer->elem,
                    n * t->reducer->elem, sign);
    }
    kolo_ll_post(t->flat.ll_tx);
    for (uint32_t p = 0; KOLO_UNLIKELY(t->trace != NULL) && p < t->flat.nranks; p++)
        if (p != t->rank) trace(t, KOLO_DIR_TX, p, p, KOLO_BUF_SRC, false);
}

/* Copies the line in which my part lies as soon as it is there. Reading it again later, where it lies, is slow
 * with many ranks: 1000 bytes between 32 ranks took 8.4 us so, 4.0 with the copy; up to 16 ranks it makes no
 * difference. */
static inline kolo_status_t take_line(kolo_task_t *t, uint32_t r, size_t line, size_t bytes, uint32_t sign)
{
    const kolo_rx_t *rx = t->flat.ll_rx[r];
    KOLO_TRY(kolo_flat_line(t, rx, line, bytes, sign));
    memcpy(kolo_flat_operand(t, r), kolo_ll_rx_line(rx, line)->data, KOLO_LL_DATA);
    return KOLO_OK;
}

/* Reduces part `p`; `offset` is where it lies in what was copied of each rank. */
static void reduce_part(kolo_task_t *t, const cut_t *c, uint32_t p, size_t offset)
{
    const void *srcs[KOLO_REDUCE_MAX];
    for (uint32_t r = 0; r < t->flat.nranks; r++)
        srcs[r] = r == t->rank ? part_of(t, c, t->flat.src, p) : (const char *)kolo_flat_operand(t, r) + offset;
    kolo_reduce_many_t what = {.dst = part_of(t, c, t->flat.dst, p),
                               .srcs = srcs,
                               .nsrcs = (int)t->flat.nranks,
                               .raw = (int)t->rank,
                               .final = true};
    kolo_reduce_many(t->reducer, &what, part_elems(t, c, p));
}

/* Tells whether inputs stay until the end: a queue of one slot has no room for a result meanwhile. */
static inline bool keeps_inputs(const kolo_task_t *t)
{
    return t->flat.ll_tx->end.depth > 1;
}

static kolo_status_t get_inputs(kolo_task_t *t, bool *moved, const cut_t *c, uint32_t sign)
{
    size_t bytes = part_elems(t, c, t->rank) * t->reducer->elem;
    size_t line = kolo_ll_part_line(&c->lie, t->rank), offset = t->rank % c->lie.fit * c->bytes;
    for (; bytes && t->flat.at + 1 < t->flat.nranks; t->flat.at++) {
        uint32_t r = kolo_flat_turn(t, t->flat.at);
        kolo_rx_t *rx = t->flat.ll_rx[r];
        if (t->flat.at + KOLO_FLAT_AHEAD + 1 < t->flat.nranks)
            __builtin_prefetch(
                kolo_ll_rx_line(t->flat.ll_rx[kolo_flat_turn(t, t->flat.at + KOLO_FLAT_AHEAD)], line));
        if (c->bytes <= KOLO_LL_DATA)
            KOLO_TRY(take_line(t, r, line, bytes, sign));
        else
            KOLO_TRY(kolo_flat_get(t, rx, line, kolo_flat_operand(t, r), bytes, sign));
        trace(t, KOLO_DIR_RX, r, t->rank, KOLO_BUF_DST, false);
        *moved = true;
    }
    if (bytes) reduce_part(t, c, t->rank, offset);
    for (uint32_t r = 0; r < t->flat.nranks; r++) {
        if (r == t->rank) continue;
        if (keeps_inputs(t))
            t->flat.ll_rx[r]->end.next++;
        else
            kolo_rx_release(t->flat.ll_rx[r]);
    }
    t->flat.at = 0;
    return KOLO_OK;
}

/* ---- step two: results ---- */

static void put_result(kolo_task_t *t, const cut_t *c, uint32_t sign)
{
    kolo_ll_begin(t->flat.ll_tx, t->signature, t->operation);
    kolo_ll_put(t->flat.ll_tx, 0, part_of(t, c, t->flat.dst, t->rank), part_elems(t, c, t->rank) * t->reducer->elem,
                sign);
    kolo_ll_post(t->flat.ll_tx);
    trace(t, KOLO_DIR_TX, t->flat.root, t->rank, KOLO_BUF_DST, true);
}

/* How long a result is waited for in vain: longer than between ranks that run. The clock is not read at first. */
#define HELP_NS    20000
#define HELP_POLLS 16

static bool is_overdue(kolo_flat_t *f)
{
    if (KOLO_LIKELY(++f->polls < HELP_POLLS)) return false;
    uint64_t now = kolo_now_ns();
    if (f->polls == HELP_POLLS) f->help_ns = now + HELP_NS;
    return now >= f->help_ns;
}

/* Copies what all ranks have put for part `p`, so many bytes of its line; false: not all of it has come. */
static bool take_inputs(kolo_task_t *t, const cut_t *c, uint32_t p, size_t bytes, uint32_t sign)
{
    const size_t line = kolo_ll_part_line(&c->lie, p);
    bool mismatch = false;
    for (uint32_t r = 0; r < t->flat.nranks; r++) {
        if (r == t->rank) continue;
        kolo_rx_t before = *t->flat.ll_rx[r];
        before.end.next--;
        if (kolo_ll_get(&before, line, kolo_flat_operand(t, r), bytes, 0, sign, &mismatch) < bytes) return false;
    }
    return true;
}

/* Tells whether I have reduced part `p` myself, for want of its rank. Nothing of the result may be in dst yet,
 * which may be src. */
static bool help(kolo_task_t *t, const cut_t *c, uint32_t p, size_t bytes, uint32_t sign)
{
    if (!keeps_inputs(t) || t->flat.done || !is_overdue(&t->flat)) return false;
    const size_t offset = p % c->lie.fit * c->bytes;
    if (!take_inputs(t, c, p, offset + bytes, sign)) {
        t->flat.polls = 0;
        return false;
    }
    reduce_part(t, c, p, offset);
    return true;
}

static kolo_status_t get_results(kolo_task_t *t, bool *moved, const cut_t *c, uint32_t sign)
{
    for (; t->flat.at + 1 < t->flat.nranks; t->flat.at++) {
        uint32_t r = kolo_flat_turn(t, t->flat.at);
        size_t bytes = part_elems(t, c, r) * t->reducer->elem;
        kolo_rx_t *rx = t->flat.ll_rx[r];
        if (t->flat.at + KOLO_FLAT_AHEAD + 1 < t->flat.nranks)
            __builtin_prefetch(kolo_ll_rx_line(t->flat.ll_rx[kolo_flat_turn(t, t->flat.at + KOLO_FLAT_AHEAD)], 0));
        if (bytes) {
            kolo_status_t status = kolo_flat_get(t, rx, 0, part_of(t, c, t->flat.dst, r), bytes, sign);
            if (status != KOLO_OK && !(status == KOLO_IN_PROGRESS && help(t, c, r, bytes, sign))) return status;
            trace(t, KOLO_DIR_RX, r, r, KOLO_BUF_DST, true);
        }
        *moved = true;
    }
    for (uint32_t r = 0; r < t->flat.nranks; r++)
        if (r != t->rank) kolo_rx_release(t->flat.ll_rx[r]);
    return KOLO_OK;
}

static kolo_status_t all_reduce(kolo_task_t *t, bool *moved)
{
    const cut_t c = cut(t);
    const uint32_t sign = kolo_ll_signature(t->signature, t->operation);
    if (t->flat.state == KOLO_FLAT_PUT) {
        if (!kolo_tx_ready(t->flat.ll_tx)) return KOLO_IN_PROGRESS;
        put_inputs(t, &c, sign);
        t->flat.state = KOLO_FLAT_GET;
        *moved = true;
    }
    if (t->flat.state == KOLO_FLAT_GET) {
        KOLO_TRY(get_inputs(t, moved, &c, sign));
        t->flat.state = KOLO_FLAT_PUT_RESULT;
        *moved = true;
    }
    if (t->flat.state == KOLO_FLAT_PUT_RESULT) {
        if (!kolo_tx_ready(t->flat.ll_tx)) return KOLO_IN_PROGRESS;
        put_result(t, &c, sign);
        t->flat.state = KOLO_FLAT_GET_RESULT;
        *moved = true;
    }
    return get_results(t, moved, &c, sign);
}

kolo_task_step_fn_t kolo_flat_two_step(kolo_coll_t coll)
{
    return coll == KOLO_COLL_ALL_REDUCE ? all_reduce : NULL;
}
