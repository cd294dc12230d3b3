/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the verifier. A cell is one piece of one chunk of one tile; SCRATCH cells are shared by all tiles.
 * Every access is checked against the accesses before it: two accesses of which one writes must be ordered by
 * clocks.
 */
#include "prove/model.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const buf_names[] = {"none", "SRC", "DST", "SCRATCH"};
static const char *const read_texts[] = {"", "it reads SRC chunk", "it reads DST chunk", "it reads SCRATCH chunk"};
static const char *const write_texts[] = {"", "", "it writes DST chunk", "it writes SCRATCH chunk"};
static const char *const get_texts[] = {"", "it gets SRC of rank", "it gets DST of rank", ""};

kolo_status_t kolo_model_fail(const kolo_actor_t *a, const char *fmt, ...)
{
    char what[512], where[160] = "";
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    const kolo_plan_t *p = a->r->plans[a->set];
    if (a->in)
        snprintf(where, sizeof(where),
                 ", lane %" PRIu32 ", instruction %td (%s), chunk %" PRIu32 " of it, call %" PRIu32
                 ", tile %" PRIu32 ", piece %" PRIu32,
                 a->l->lane, a->in - p->insns, kolo_plan_opcode_name((kolo_opcode_t)a->in->op), a->l->chunk,
                 a->r->call, a->l->tile, a->l->piece);
    return kolo_fail(KOLO_ERR_INTERNAL, "%s by %s, %" PRIu32 " ranks, root %" PRIu32 ": rank %" PRIu32 "%s: %s",
                     kolo_coll_name(p->coll), kolo_plan_algo_name(p->algo), p->nranks, p->root, p->rank, where,
                     what);
}

static uint32_t now_number(const kolo_actor_t *a)
{
    return (a->r->call * a->m->tiles + a->l->tile) * a->m->max_slices + a->l->piece;
}

static uint32_t chunk_of(const kolo_actor_t *a, const kolo_segment_t *s)
{
    return kolo_segment_chunk(s, kolo_cursor_i(&a->l->at), kolo_cursor_j(&a->l->at), a->l->chunk);
}

/* Returns a number that is equal exactly for chunks that are equally long in every call. */
uint64_t kolo_model_shape(const kolo_actor_t *a, const kolo_segment_t *s, uint32_t k)
{
    const kolo_model_t *m = a->m;
    const kolo_plan_t *p = a->r->plans[a->set];
    uint32_t i = kolo_cursor_i(&a->l->at), j = kolo_cursor_j(&a->l->at), nsubs = p->nsubs;
    bool grid = s->buf == KOLO_BUF_SCRATCH || s->buf == KOLO_BUF_NONE;
    uint32_t c = grid ? kolo_segment_shape(s, i, j, k, m->grid_chunks[a->set]) : kolo_segment_chunk(s, i, j, k);
    bool src = s->buf == KOLO_BUF_SRC;
    switch (p->coll) {
    case KOLO_COLL_BARRIER:
        return 0;
    case KOLO_COLL_ALL_GATHER:
    case KOLO_COLL_GATHER:
        return src ? (uint64_t)p->rank * nsubs + c : c;
    case KOLO_COLL_REDUCE_SCATTER:
    case KOLO_COLL_SCATTER:
        return s->buf == KOLO_BUF_DST ? (uint64_t)p->rank * nsubs + c : c;
    case KOLO_COLL_ALL_TO_ALL: {
        if (m->equal_only[a->set]) return c % nsubs;
        uint64_t n = m->nranks, part = c / nsubs;
        return (src ? p->rank * n + part : part * n + p->rank) * nsubs + c % nsubs;
    }
    case KOLO_COLL_P2P: {
        if (grid) return ~(uint64_t)0;
        uint32_t parts = src ? m->options_group[a->set][p->rank].nsends : m->options_group[a->set][p->rank].nrecvs;
        if (c / nsubs >= parts) return ~(uint64_t)0;
        return (src ? a->r->src_shape[a->set] : a->r->dst_shape[a->set])[c / nsubs] * nsubs + c % nsubs;
    }
    default:
        return c;
    }
}

uint32_t kolo_model_pieces(const kolo_model_t *m, uint32_t set, uint64_t shape, uint32_t tile)
{
    uint32_t slices = m->slices[set];
    if (m->coll[set] == KOLO_COLL_BARRIER) return 1;
    if (m->options->empty_parts && !m->equal_only[set]) {
        uint64_t part = shape / m->nsubs[set];
        if (m->options->empty_parts[part / 8] >> (part % 8) & 1) return 0;
    }
    if (tile + 1 < m->tiles || m->tiles == 1) return slices;
    /* The last tile is ragged: chunks end anywhere in it. */
    uint64_t h = (shape + 1) * 0x9e3779b97f4a7c15u ^ m->options->seed;
    h = (h ^ h >> 32) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)((h >> 40) % (slices + 1));
}

/* ---- races ---- */

static kolo_status_t race(const kolo_actor_t *a, kolo_epoch_t e, const char *did, const char *what, uint32_t number)
{
    const kolo_vlane_t *other = &a->m->lanes[e.thread];
    char which[16] = "";
    if (number != KOLO_NO_NUMBER) snprintf(which, sizeof(which), " %" PRIu32, number);
    return kolo_model_fail(a, "%s%s, which lane %" PRIu32 " of rank %" PRIu32 " %s at no ordered time", what, which,
                           other->lane, other->rank, did);
}

static kolo_status_t add_read(kolo_model_t *m, kolo_cell_t *cell, kolo_epoch_t e)
{
    uint32_t i = m->reads_free;
    if (i) {
        m->reads_free = m->reads[i - 1].next;
    } else {
        if (m->nreads == m->reads_cap) {
            uint32_t cap = m->reads_cap ? m->reads_cap * 2 : 64;
            kolo_read_t *p = realloc(m->reads, cap * sizeof(*p));
            if (!p) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the verifier's read sets");
            m->reads = p;
            m->reads_cap = cap;
        }
        i = ++m->nreads;
    }
    m->reads[i - 1] = (kolo_read_t){.read = e, .next = cell->more};
    cell->more = i;
    return KOLO_OK;
}

static kolo_status_t note_read(const kolo_actor_t *a, kolo_cell_t *cell)
{
    kolo_model_t *m = a->m;
    kolo_epoch_t now = kolo_clock_now(&m->clocks, a->l->thread);
    if (cell->read.thread == now.thread || kolo_clock_after(&m->clocks, now.thread, cell->read)) {
        cell->read = now; /* whoever comes after me comes after that one too */
        return KOLO_OK;
    }
    for (uint32_t i = cell->more; i; i = m->reads[i - 1].next)
        if (m->reads[i - 1].read.thread == now.thread) {
            m->reads[i - 1].read = now;
            return KOLO_OK;
        }
    return add_read(m, cell, now);
}

kolo_status_t kolo_model_touch(const kolo_actor_t *a, kolo_cell_t *cell, bool write, const char *what,
                               uint32_t number)
{
    kolo_model_t *m = a->m;
    if (!m->clocks.nthreads) return KOLO_OK;
    uint32_t me = a->l->thread;
    if (!kolo_clock_after(&m->clocks, me, cell->write)) return race(a, cell->write, "writes", what, number);
    if (!write) return note_read(a, cell);
    if (!kolo_clock_after(&m->clocks, me, cell->read)) return race(a, cell->read, "reads", what, number);
    while (cell->more) {
        uint32_t i = cell->more;
        if (!kolo_clock_after(&m->clocks, me, m->reads[i - 1].read))
            return race(a, m->reads[i - 1].read, "reads", what, number);
        cell->more = m->reads[i - 1].next;
        m->reads[i - 1].next = m->reads_free;
        m->reads_free = i;
    }
    cell->read = (kolo_epoch_t){0};
    cell->write = kolo_clock_now(&m->clocks, me);
    return KOLO_OK;
}

/* ---- local accesses ---- */

static kolo_status_t find_cell(const kolo_actor_t *a, const kolo_segment_t *s, uint32_t *chunk, kolo_cell_t **cell)
{
    kolo_model_t *m = a->m;
    kolo_vrank_t *r = a->r;
    *chunk = chunk_of(a, s);
    if (s->buf == KOLO_BUF_SCRATCH) {
        *cell = &r->scratch[(uint64_t)*chunk * m->max_slices + a->l->piece];
        return KOLO_OK;
    }
    bool src = s->buf == KOLO_BUF_SRC;
    if (src ? !r->has_src[a->set] : !r->has_dst[a->set])
        return kolo_model_fail(a, "it uses %s, which only the root has", buf_names[s->buf]);
    uint64_t u = *chunk + (src ? r->src_at[a->set] : r->dst_at[a->set]);
    *cell = &r->user[(u * m->tiles + a->l->tile) * m->max_slices + a->l->piece];
    return KOLO_OK;
}

kolo_status_t kolo_model_locate(const kolo_actor_t *a, const kolo_segment_t *s, uint64_t *index)
{
    uint32_t chunk;
    kolo_cell_t *cell = NULL;
    KOLO_TRY(find_cell(a, s, &chunk, &cell));
    *index = (uint64_t)(cell - a->r->user);
    return KOLO_OK;
}

/* Reads the value in a user cell of rank `owner`, as seen under the name `buf`. */
static kolo_status_t user_value(const kolo_actor_t *a, kolo_vrank_t *owner, const kolo_cell_t *cell, uint8_t buf,
                                uint32_t *value)
{
    const kolo_model_t *m = a->m;
    uint32_t u = (uint32_t)((uint64_t)(cell - owner->user) / m->max_slices / m->tiles);
    if (m->coll[a->set] == KOLO_COLL_BARRIER) {
        *value = KOLO_VALUE_INITIAL;
        return KOLO_OK;
    }
    if (cell->value == KOLO_VALUE_NONE)
        return kolo_model_fail(a, "it reads %s chunk %" PRIu32 ", which nothing was written to", buf_names[buf],
                               u - (buf == KOLO_BUF_SRC ? owner->src_at : owner->dst_at)[a->set]);
    bool raw = cell->value == KOLO_VALUE_INITIAL;
    if (m->reduces[a->set] && raw != (buf == KOLO_BUF_SRC))
        return kolo_model_fail(a,
                               raw ? "it reads raw input by the name DST, so the pre-scale is missed"
                                   : "it reads SRC chunk %" PRIu32 " raw, but that was written before (in place)",
                               u - owner->src_at[a->set]);
    *value = cell->value;
    if (!raw) return KOLO_OK;
    const char *why = NULL;
    *value =
        kolo_values_leaf(&a->m->values, owner->plans[a->set]->rank, u - owner->src_at[a->set], now_number(a), &why);
    return *value ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "%s", why);
}

kolo_status_t kolo_model_read(const kolo_actor_t *a, const kolo_segment_t *s, uint32_t *value)
{
    uint32_t chunk;
    kolo_cell_t *cell = NULL;
    KOLO_TRY(find_cell(a, s, &chunk, &cell));
    KOLO_TRY(kolo_model_touch(a, cell, false, read_texts[s->buf], chunk));
    if (s->buf != KOLO_BUF_SCRATCH) return user_value(a, a->r, cell, s->buf, value);
    *value = cell->value;
    if (a->m->coll[a->set] == KOLO_COLL_BARRIER) {
        *value = KOLO_VALUE_INITIAL;
        return KOLO_OK;
    }
    if (cell->value == KOLO_VALUE_NONE || cell->tag != a->r->call * a->m->tiles + a->l->tile)
        return kolo_model_fail(a, "it reads SCRATCH chunk %" PRIu32 ", which was not written in this tile", chunk);
    return KOLO_OK;
}

kolo_status_t kolo_model_write(const kolo_actor_t *a, const kolo_segment_t *s, uint32_t value)
{
    uint32_t chunk;
    kolo_cell_t *cell = NULL;
    if (s->buf == KOLO_BUF_SRC) return kolo_model_fail(a, "it writes SRC, which belongs to the user");
    KOLO_TRY(find_cell(a, s, &chunk, &cell));
    KOLO_TRY(kolo_model_touch(a, cell, true, write_texts[s->buf], chunk));
    cell->value = value;
    if (s->buf == KOLO_BUF_SCRATCH) cell->tag = a->r->call * a->m->tiles + a->l->tile;
    return KOLO_OK;
}

/* ---- the memory of others ---- */

kolo_status_t kolo_model_get(const kolo_actor_t *a, const kolo_vslot_t *slot, uint32_t owner, uint32_t *value)
{
    kolo_vrank_t *o = &a->m->ranks[owner];
    kolo_cell_t *cell = &o->user[slot->ref_cell];
    KOLO_TRY(kolo_model_touch(a, cell, false, get_texts[slot->ref_buf], owner));
    bool raw = slot->ref_buf == KOLO_BUF_SRC && a->m->reduces[a->set];
    if (raw != !!(a->in->flags & KOLO_FLAG_RAW))
        return kolo_model_fail(a,
                               raw ? "it gets raw input without the flag RAW" : "RAW is set for what is not raw");
    return user_value(a, o, cell, slot->ref_buf, value);
}

kolo_status_t kolo_model_put(const kolo_actor_t *a, const kolo_vslot_t *slot, uint32_t owner, uint32_t value)
{
    kolo_vrank_t *o = &a->m->ranks[owner];
    kolo_cell_t *cell = &o->user[slot->ref_cell];
    if (slot->ref_buf != KOLO_BUF_DST)
        return kolo_model_fail(a, "it puts into SRC of rank %" PRIu32 ", which belongs to the user", owner);
    KOLO_TRY(kolo_model_touch(a, cell, true, "it puts into DST of rank", owner));
    cell->value = value;
    return KOLO_OK;
}
