/* SPDX-License-Identifier: Apache-2.0
 *
 * The flat collectives. All have one pattern with three parameters: which ranks put a message, which read it, and
 * whether it has one part for all or one per rank. flat_step() is the pattern and each collective a constant shape
 * of it, so the compiler makes nine short loops from one text.
 *
 * Every rank gives back every slot of every writer, read or not: the queues of a node then advance together, and
 * the next operation finds its slots without counting. A slot may be given back before it was written.
 */
#include "exec/host/flat.h"

#define FLAT_INLINE static inline __attribute__((always_inline))

typedef enum { ALL, ROOT, OTHERS } who_t;
typedef struct {
    kolo_coll_t coll;
    who_t puts, reads;
    bool parted;    /* a part for each rank, each on fresh lines; the reader takes its own */
    bool by_writer; /* what came from rank r belongs to part r of dst */
    bool reduces;
} shape_t;

FLAT_INLINE bool is_one(const kolo_task_t *t, who_t who, uint32_t rank)
{
    return who == ALL || (who == ROOT) == (rank == t->flat.root);
}

/* ---- traces: the steps as the plan names them ---- */

static void trace(kolo_task_t *t, shape_t shape, kolo_dir_t dir, uint32_t rank)
{
    bool fan = !shape.parted && !(shape.puts == OTHERS); /* one message for all that read */
    kolo_trace_step_t step = {.peer = (int32_t)rank, .dir = (uint8_t)dir, .node = fan};
    if (dir == KOLO_DIR_TX) {
        step.buf = KOLO_BUF_SRC;
        step.chunk = shape.parted ? rank : 0;
        if (fan) step.peer = -1;
    } else {
        step.buf = KOLO_BUF_DST;
        step.chunk = shape.by_writer ? rank : 0;
    }
    if (shape.coll == KOLO_COLL_BARRIER) {
        step.buf = KOLO_BUF_SCRATCH;
        step.chunk = dir == KOLO_DIR_RX;
    }
    kolo_task_trace_step(t, &step);
}

static void trace_puts(kolo_task_t *t, shape_t shape)
{
    if (!shape.parted) {
        trace(t, shape, KOLO_DIR_TX, t->flat.root);
        return;
    }
    for (uint32_t p = 0; p < t->flat.nranks; p++)
        if (p != t->rank) trace(t, shape, KOLO_DIR_TX, p);
}

/* ---- putting ---- */

typedef struct {
    uint32_t first, parts; /* so many from number `first` on */
    size_t line;
} lying_t;

/* Puts parts of `bytes` each. */
FLAT_INLINE void put_parts(kolo_task_t *t, shape_t shape, lying_t at, size_t bytes, uint32_t sign)
{
    const char *from = (const char *)t->flat.src + at.first * bytes;
    if (shape.reduces && KOLO_UNLIKELY(t->reducer->pre)) {
        void *scaled = t->flat.ll_temp;
        kolo_reduce_load(t->reducer, scaled, from, t->flat.count * at.parts, true, false);
        from = scaled;
    }
    kolo_ll_put(t->flat.ll_tx, at.line, from, bytes * at.parts, sign);
}

FLAT_INLINE void put(kolo_task_t *t, shape_t shape, size_t bytes, uint32_t sign)
{
    kolo_ll_begin(t->flat.ll_tx, t->signature, t->operation);
    if (shape.parted) {
        const kolo_ll_layout_t lie = kolo_ll_layout(bytes, t->flat.nranks, t->flat.ll_tx->end.slot_bytes);
        for (uint32_t p = 0; p < t->flat.nranks; p += lie.fit)
            if (lie.fit > 1 || p != t->rank)
                put_parts(t, shape, (lying_t){p, KOLO_MIN(lie.fit, t->flat.nranks - p), kolo_ll_part_line(&lie, p)},
                          bytes, sign);
    } else {
        put_parts(t, shape, (lying_t){0, 1, 0}, bytes, sign);
    }
    kolo_ll_post(t->flat.ll_tx);
    if (KOLO_UNLIKELY(t->trace != NULL)) trace_puts(t, shape);
}

/* ---- reading ---- */

/* What I keep of my own data. */
FLAT_INLINE void keep_mine(kolo_task_t *t, shape_t shape, size_t bytes)
{
    if (!bytes || shape.reduces || !is_one(t, shape.puts == shape.reads ? ALL : ROOT, t->rank)) return;
    const char *from = (const char *)t->flat.src + (shape.parted ? t->rank * bytes : 0);
    char *to = (char *)t->flat.dst + (shape.by_writer ? t->rank * bytes : 0);
    if (to != from) memcpy(to, from, bytes);
}

/* Where in a writer's message the part for me is. */
typedef struct {
    size_t line, offset; /* offset: bytes into the line */
} place_t;

FLAT_INLINE place_t my_place(const kolo_task_t *t, shape_t shape, size_t bytes)
{
    if (!shape.parted) return (place_t){0, 0};
    const kolo_ll_layout_t lie = kolo_ll_layout(bytes, t->flat.nranks, t->flat.ll_tx->end.slot_bytes);
    return (place_t){kolo_ll_part_line(&lie, t->rank), t->rank % lie.fit * bytes};
}

FLAT_INLINE void reduce(kolo_task_t *t, shape_t shape, place_t at, size_t bytes)
{
    const void *srcs[KOLO_REDUCE_MAX];
    if (!bytes) return;
    for (uint32_t r = 0; r < t->flat.nranks; r++) {
        if (r == t->rank)
            srcs[r] = (const char *)t->flat.src + (shape.parted ? r * bytes : 0);
        else
            srcs[r] = bytes <= KOLO_LL_DATA ? kolo_ll_rx_line(t->flat.ll_rx[r], at.line)->data + at.offset
                                            : kolo_flat_operand(t, r);
    }
    kolo_reduce_many_t what = {
        .dst = t->flat.dst, .srcs = srcs, .nsrcs = (int)t->flat.nranks, .raw = (int)t->rank, .final = true};
    kolo_reduce_many(t->reducer, &what, t->flat.count);
}

FLAT_INLINE kolo_status_t get_from(kolo_task_t *t, shape_t shape, uint32_t r, place_t at, size_t bytes,
                                   uint32_t sign)
{
    kolo_rx_t *rx = t->flat.ll_rx[r];
    if (shape.reduces && bytes <= KOLO_LL_DATA) {
        KOLO_TRY(kolo_flat_line(t, rx, at.line, bytes, sign));
    } else {
        void *to =
            shape.reduces ? kolo_flat_operand(t, r) : (char *)t->flat.dst + (shape.by_writer ? r * bytes : 0);
        if (shape.parted && bytes * 2 <= KOLO_LL_DATA) {
            KOLO_TRY(kolo_flat_line(t, rx, at.line, bytes, sign));
            if (bytes) memcpy(to, kolo_ll_rx_line(rx, at.line)->data + at.offset, bytes);
        } else {
            KOLO_TRY(kolo_flat_get(t, rx, at.line, to, bytes, sign));
        }
        if (!shape.reduces) kolo_rx_release(rx);
    }
    if (KOLO_UNLIKELY(t->trace != NULL)) trace(t, shape, KOLO_DIR_RX, r);
    return KOLO_OK;
}

FLAT_INLINE kolo_status_t flat_step(kolo_task_t *t, bool *moved, shape_t shape)
{
    size_t bytes = shape.coll == KOLO_COLL_BARRIER ? 0 : t->flat.count * t->reducer->elem;
    uint32_t sign = kolo_ll_signature(t->signature, t->operation);
    if (t->flat.state == KOLO_FLAT_PUT) {
        if (is_one(t, shape.puts, t->rank)) {
            if (!kolo_tx_ready(t->flat.ll_tx)) return KOLO_IN_PROGRESS;
            put(t, shape, bytes, sign);
        }
        keep_mine(t, shape, bytes);
        t->flat.state = KOLO_FLAT_GET;
        *moved = true;
    }
    bool read = is_one(t, shape.reads, t->rank);
    place_t at = my_place(t, shape, bytes);
    for (; t->flat.at + 1 < t->flat.nranks; t->flat.at++) {
        uint32_t r = kolo_flat_turn(t, t->flat.at);
        if (!is_one(t, shape.puts, r)) continue;
        if (!read) {
            kolo_rx_release(t->flat.ll_rx[r]);
            continue;
        }
        if (t->flat.at + KOLO_FLAT_AHEAD + 1 < t->flat.nranks)
            __builtin_prefetch(
                kolo_ll_rx_line(t->flat.ll_rx[kolo_flat_turn(t, t->flat.at + KOLO_FLAT_AHEAD)], at.line));
        KOLO_TRY(get_from(t, shape, r, at, bytes, sign));
        *moved = true;
    }
    if (!shape.reduces || !read) return KOLO_OK;
    reduce(t, shape, at, bytes);
    for (uint32_t r = 0; r < t->flat.nranks; r++)
        if (r != t->rank && is_one(t, shape.puts, r)) kolo_rx_release(t->flat.ll_rx[r]);
    return KOLO_OK;
}

/* ---- the collectives ---- */

static kolo_status_t all_reduce(kolo_task_t *t, bool *moved)
{
    return flat_step(t, moved, (shape_t){.coll = KOLO_COLL_ALL_REDUCE, .reduces = true});
}
static kolo_status_t reduce_to_root(kolo_task_t *t, bool *moved)
{
    return flat_step(t, moved, (shape_t){.coll = KOLO_COLL_REDUCE, .puts = OTHERS, .reads = ROOT, .reduces = true});
}
static kolo_status_t reduce_scatter(kolo_task_t *t, bool *moved)
{
    return flat_step(t, moved, (shape_t){.coll = KOLO_COLL_REDUCE_SCATTER, .parted = true, .reduces = true});
}
static kolo_status_t broadcast(kolo_task_t *t, bool *moved)
{
    return flat_step(t, moved, (shape_t){.coll = KOLO_COLL_BROADCAST, .puts = ROOT, .reads = OTHERS});
}
static kolo_status_t all_gather(kolo_task_t *t, bool *moved)
{
    return flat_step(t, moved, (shape_t){.coll = KOLO_COLL_ALL_GATHER, .by_writer = true});
}
static kolo_status_t all_to_all(kolo_task_t *t, bool *moved)
{
    return flat_step(t, moved, (shape_t){.coll = KOLO_COLL_ALL_TO_ALL, .parted = true, .by_writer = true});
}
static kolo_status_t gather(kolo_task_t *t, bool *moved)
{
    return flat_step(t, moved,
                     (shape_t){.coll = KOLO_COLL_GATHER, .puts = OTHERS, .reads = ROOT, .by_writer = true});
}
static kolo_status_t scatter(kolo_task_t *t, bool *moved)
{
    return flat_step(t, moved, (shape_t){.coll = KOLO_COLL_SCATTER, .puts = ROOT, .reads = OTHERS, .parted = true});
}
static kolo_status_t barrier(kolo_task_t *t, bool *moved)
{
    return flat_step(t, moved, (shape_t){.coll = KOLO_COLL_BARRIER});
}

kolo_task_step_fn_t kolo_flat_step(kolo_coll_t coll)
{
    static const kolo_task_step_fn_t steps[KOLO_COLL_COUNT] = {
        [KOLO_COLL_ALL_REDUCE] = all_reduce,
        [KOLO_COLL_REDUCE] = reduce_to_root,
        [KOLO_COLL_BROADCAST] = broadcast,
        [KOLO_COLL_ALL_GATHER] = all_gather,
        [KOLO_COLL_REDUCE_SCATTER] = reduce_scatter,
        [KOLO_COLL_ALL_TO_ALL] = all_to_all,
        [KOLO_COLL_GATHER] = gather,
        [KOLO_COLL_SCATTER] = scatter,
        [KOLO_COLL_BARRIER] = barrier,
    };
    return (unsigned)coll < KOLO_COLL_COUNT ? steps[coll] : NULL;
}
