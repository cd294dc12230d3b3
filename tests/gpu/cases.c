/* SPDX-License-Identifier: Apache-2.0
 *
 * See cases.h. A rank's share of a buffer is two windows, source and destination (one, in place), each between
 * guards. The image of a window goes up to the device, the call is made in the stream's order, the window comes
 * back; then what must have come out is written into the image, and both must be equal to the last byte.
 */
#include "cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 512

const char *const case_names[CASE_KINDS] = {"all_reduce",  "reduce", "broadcast", "all_gather",  "reduce_scatter",
                                            "all_to_all",  "gather", "scatter",   "all_gatherv", "reduce_scatterv",
                                            "all_to_allv", "ring",   "messages",  "barrier"};

typedef struct {
    size_t at, count; /* in the destination */
    int rank;         /* whose values; -1: the reduction */
    size_t first;
} part_t;

typedef struct {
    size_t src_count, dst_count;
    size_t src_in_dst, dst_in_src; /* in place: where the one lies in the other; SIZE_MAX: not */
    size_t send_counts[KIT_RANKS], send_displs[KIT_RANKS], recv_counts[KIT_RANKS], recv_displs[KIT_RANKS];
    int n;
    part_t parts[3 * KIT_RANKS];
} plan_t;

bool case_reduces(case_kind_t kind)
{
    return kind == CASE_ALL_REDUCE || kind == CASE_REDUCE || kind == CASE_REDUCE_SCATTER ||
           kind == CASE_REDUCE_SCATTERV;
}

bool case_has_place(case_kind_t kind)
{
    return kind <= CASE_SCATTER && kind != CASE_ALL_TO_ALL;
}

void case_describe(const case_t *c, char *text, size_t bytes)
{
    static const char *const kinds[] = {"", " (rough)", " (special)"};
    snprintf(text, bytes, "%s %zu x %s%s%s%s, root %d%s, off by %zu, stream %d", case_names[c->kind], c->count,
             values_type_names[c->type], case_reduces(c->kind) ? " " : "",
             case_reduces(c->kind) ? values_op_names[c->op] : "", kinds[c->values], c->root,
             c->in_place ? ", in place" : "", c->skew, c->stream);
}

/* ---- what a rank passes and gets ---- */

/* Length of what `from` sends to `to`, or of rank `to`'s part; some are empty. */
static size_t uneven(size_t count, int from, int to, uint64_t seed)
{
    uint64_t state = seed ^ (uint64_t)(from * 1000 + to + 1) << 32;
    uint64_t v = kit_random(&state);
    return v % 5 == 0 ? 0 : (size_t)(v >> 8) % (count + 1);
}

static void add(plan_t *p, size_t at, size_t count, int rank, size_t first)
{
    p->parts[p->n++] = (part_t){at, count, rank, first};
}

static void plan_equal(plan_t *p, const case_t *c, int rank, int nranks)
{
    size_t n = c->count, me = (size_t)rank, all = n * (size_t)nranks;
    bool is_root = rank == c->root;
    switch (c->kind) {
    case CASE_ALL_REDUCE:
    case CASE_REDUCE:
        p->src_count = n;
        p->dst_count = is_root || c->kind == CASE_ALL_REDUCE ? n : 0;
        if (p->dst_count) add(p, 0, n, -1, 0);
        if (c->in_place && p->dst_count) p->src_in_dst = 0;
        return;
    case CASE_BROADCAST:
        p->src_count = is_root ? n : 0;
        p->dst_count = n;
        add(p, 0, n, c->root, 0);
        if (c->in_place && is_root) p->src_in_dst = 0;
        return;
    case CASE_ALL_GATHER:
    case CASE_GATHER:
        p->src_count = n;
        p->dst_count = is_root || c->kind == CASE_ALL_GATHER ? all : 0;
        for (int r = 0; r < nranks && p->dst_count; r++) add(p, (size_t)r * n, n, r, 0);
        if (c->in_place && p->dst_count) p->src_in_dst = me * n;
        return;
    case CASE_REDUCE_SCATTER:
        p->src_count = all;
        p->dst_count = n;
        add(p, 0, n, -1, me * n);
        if (c->in_place) p->dst_in_src = me * n;
        return;
    case CASE_SCATTER:
        p->src_count = is_root ? all : 0;
        p->dst_count = n;
        add(p, 0, n, c->root, me * n);
        if (c->in_place && is_root) p->dst_in_src = me * n;
        return;
    case CASE_ALL_TO_ALL:
        p->src_count = p->dst_count = all;
        for (int r = 0; r < nranks; r++) add(p, (size_t)r * n, n, r, me * n);
        return;
    default:
        p->src_count = p->dst_count = c->kind == CASE_BARRIER ? 0 : n;
        if (c->kind == CASE_RING) add(p, 0, n, (rank + nranks - 1) % nranks, 0);
    }
}

static void plan_uneven(plan_t *p, const case_t *c, int rank, int nranks)
{
    size_t from = 0, to = 0, me = (size_t)rank;
    for (int r = 0; r < nranks; r++) {
        size_t part = uneven(c->count, 0, r, c->seed);
        p->recv_counts[r] = p->send_counts[r] = part;
        if (c->kind == CASE_ALL_TO_ALLV) {
            p->send_counts[r] = uneven(c->count, rank, r, c->seed);
            p->recv_counts[r] = uneven(c->count, r, rank, c->seed);
        }
        p->send_displs[r] = from;
        p->recv_displs[r] = to + 1; /* gaps stay untouched */
        from += p->send_counts[r] + (c->kind == CASE_ALL_TO_ALLV ? 1 : 0);
        to += 1 + p->recv_counts[r];
    }
    if (c->kind == CASE_REDUCE_SCATTERV) {
        p->src_count = from;
        p->dst_count = p->recv_counts[me];
        add(p, 0, p->dst_count, -1, p->send_displs[me]);
        return;
    }
    p->src_count = c->kind == CASE_ALL_TO_ALLV ? from : p->recv_counts[me];
    p->dst_count = to;
    for (int r = 0; r < nranks; r++) {
        size_t first = 0; /* in the sender's source */
        for (int i = 0; i < rank && c->kind == CASE_ALL_TO_ALLV; i++) first += uneven(c->count, r, i, c->seed) + 1;
        add(p, p->recv_displs[r], p->recv_counts[r], r, first);
    }
}

/* Three messages to every rank, itself included: count, a seventh, none. */
static size_t message(const case_t *c, int i)
{
    return i == 0 ? c->count : i == 1 ? c->count / 7 : 0;
}

static void plan_messages(plan_t *p, const case_t *c, int rank, int nranks)
{
    size_t each = message(c, 0) + message(c, 1);
    p->src_count = p->dst_count = each * (size_t)nranks;
    for (int r = 0; r < nranks; r++) add(p, (size_t)r * each, each, r, (size_t)rank * each);
}

static plan_t plan_of(const case_t *c, int rank, int nranks)
{
    plan_t p = {.src_in_dst = SIZE_MAX, .dst_in_src = SIZE_MAX};
    if (c->kind == CASE_MESSAGES)
        plan_messages(&p, c, rank, nranks);
    else if (c->kind == CASE_ALL_GATHERV || c->kind == CASE_REDUCE_SCATTERV || c->kind == CASE_ALL_TO_ALLV)
        plan_uneven(&p, c, rank, nranks);
    else
        plan_equal(&p, c, rank, nranks);
    return p;
}

/* ---- where it lies ---- */

typedef struct {
    size_t from, bytes; /* of the window, guards included; 0: none */
    size_t data;
} window_t;
typedef struct {
    window_t src, dst; /* in place one window is both, and the other has no bytes */
} windows_t;

static size_t up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static window_t window(size_t at, size_t count, size_t skew, size_t elem)
{
    window_t w = {.from = at, .data = at + CASE_GUARD + skew * elem};
    w.bytes = CASE_GUARD + skew * elem + count * elem + CASE_GUARD;
    return w;
}

static windows_t windows_of(const case_t *c, const plan_t *p, size_t at)
{
    size_t elem = kolo_type_size(c->type);
    windows_t w;
    w.src = window(at, p->src_count, c->skew, elem);
    w.dst = window(at + up(w.src.bytes), p->dst_count, c->skew, elem);
    if (p->src_in_dst != SIZE_MAX) {
        w.src.bytes = 0;
        w.src.data = w.dst.data + p->src_in_dst * elem;
    } else if (p->dst_in_src != SIZE_MAX) {
        w.dst.bytes = 0;
        w.dst.data = w.src.data + p->dst_in_src * elem;
    }
    return w;
}

size_t case_room(const case_t *c, int nranks)
{
    size_t room = 0;
    for (int r = 0; r < nranks; r++) {
        plan_t p = plan_of(c, r, nranks);
        size_t elem = kolo_type_size(c->type);
        size_t need =
            up(window(0, p.src_count, c->skew, elem).bytes) + up(window(0, p.dst_count, c->skew, elem).bytes);
        if (need > room) room = need;
    }
    return room;
}

/* ---- the call ---- */

static kolo_status_t exchange(const case_t *c, const kit_rank_t *r, const char *src, char *dst, void *stream)
{
    size_t elem = kolo_type_size(c->type), at = 0;
    int next = (r->rank + 1) % r->nranks, before = (r->rank + r->nranks - 1) % r->nranks;
    kolo_status_t s = kolo_group_start();
    if (c->kind == CASE_RING) {
        if (s == KOLO_OK) s = kolo_send(src, c->count, c->type, next, r->comm, stream);
        if (s == KOLO_OK) s = kolo_recv(dst, c->count, c->type, before, r->comm, stream);
    }
    for (int p = 0; p < r->nranks && c->kind == CASE_MESSAGES; p++) {
        for (int i = 0; i < 3; i++) {
            size_t n = message(c, i);
            if (s == KOLO_OK) s = kolo_send(src + at, n, c->type, p, r->comm, stream);
            if (s == KOLO_OK) s = kolo_recv(dst + at, n, c->type, p, r->comm, stream);
            at += n * elem;
        }
    }
    kolo_status_t end = kolo_group_end();
    return s != KOLO_OK ? s : end;
}

static kolo_status_t call(const case_t *c, const kit_rank_t *r, const plan_t *p, const char *src, char *dst,
                          kolo_op_t op)
{
    void *stream = r->streams[c->stream];
    bool is_root = r->rank == c->root;
    switch (c->kind) {
    case CASE_ALL_REDUCE:
        return kolo_all_reduce(src, dst, c->count, c->type, op, r->comm, stream);
    case CASE_REDUCE:
        return kolo_reduce(src, is_root ? dst : NULL, c->count, c->type, op, c->root, r->comm, stream);
    case CASE_BROADCAST:
        return kolo_broadcast(is_root ? src : NULL, dst, c->count, c->type, c->root, r->comm, stream);
    case CASE_ALL_GATHER:
        return kolo_all_gather(src, dst, c->count, c->type, r->comm, stream);
    case CASE_REDUCE_SCATTER:
        return kolo_reduce_scatter(src, dst, c->count, c->type, op, r->comm, stream);
    case CASE_ALL_TO_ALL:
        return kolo_all_to_all(src, dst, c->count, c->type, r->comm, stream);
    case CASE_GATHER:
        return kolo_gather(src, is_root ? dst : NULL, c->count, c->type, c->root, r->comm, stream);
    case CASE_SCATTER:
        return kolo_scatter(is_root ? src : NULL, dst, c->count, c->type, c->root, r->comm, stream);
    case CASE_ALL_GATHERV:
        return kolo_all_gatherv(src, dst, p->recv_counts, p->recv_displs, c->type, r->comm, stream);
    case CASE_REDUCE_SCATTERV:
        return kolo_reduce_scatterv(src, dst, p->recv_counts, NULL, c->type, op, r->comm, stream);
    case CASE_ALL_TO_ALLV:
        return kolo_all_to_allv(src, p->send_counts, p->send_displs, dst, p->recv_counts, p->recv_displs, c->type,
                                r->comm, stream);
    case CASE_BARRIER:
        return kolo_barrier(r->comm, stream);
    default:
        return exchange(c, r, src, dst, stream);
    }
}

/* ---- going up, coming down ---- */

static values_t values_of(const case_t *c)
{
    return (values_t){c->type, c->op, c->values, c->seed};
}

static bool prepare(const case_t *c, kit_rank_t *r, const plan_t *p, const windows_t *w)
{
    values_t v = values_of(c);
    if (w->src.bytes) memset(r->image + w->src.from, 0x5a, w->src.bytes);
    if (w->dst.bytes) memset(r->image + w->dst.from, 0xa5, w->dst.bytes);
    values_fill(&v, r->image + w->src.data, p->src_count, r->rank, 0);
    void *stream = r->streams[c->stream];
    return kit_upload(r, w->src.from, w->src.bytes, stream) && kit_upload(r, w->dst.from, w->dst.bytes, stream);
}

static bool make_op(const case_t *c, const kit_rank_t *r, kolo_op_t *op)
{
    uint64_t scalar = 0;
    *op = (kolo_op_t)c->op;
    if (c->op != VALUES_PREMUL || !case_reduces(c->kind)) return true;
    values_scalar(c->type, r->rank, &scalar);
    return KIT_OK(kolo_op_create_premul_sum(op, &scalar, c->type, r->comm));
}

bool case_queue(kit_team_t *t, const case_t *c, size_t at)
{
    plan_t p[KIT_RANKS];
    windows_t w[KIT_RANKS];
    kolo_op_t ops[KIT_RANKS];
    bool good = true;
    if (at + case_room(c, t->ranks[0].nranks) > t->ranks[0].room) return KIT_FAIL("there is no room for the case");
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        p[i] = plan_of(c, r->rank, r->nranks);
        w[i] = windows_of(c, &p[i], at);
        good = prepare(c, r, &p[i], &w[i]) && make_op(c, r, &ops[i]);
    }
    if (!good) return false;
    if (t->n > 1 && !KIT_OK(kolo_group_start())) return false;
    for (int i = 0; i < t->n; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = KIT_OK(call(c, r, &p[i], r->buffer + w[i].src.data, r->buffer + w[i].dst.data, ops[i])) && good;
    }
    if (t->n > 1) good = KIT_OK(kolo_group_end()) && good;
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        void *stream = r->streams[c->stream];
        good = kit_download(r, w[i].src.from, w[i].src.bytes, stream) &&
               kit_download(r, w[i].dst.from, w[i].dst.bytes, stream);
        if (ops[i] != (kolo_op_t)c->op) good = KIT_OK(kolo_op_destroy(ops[i], r->comm)) && good;
    }
    return good;
}

bool case_sync(kit_team_t *t, const case_t *c)
{
    bool good = true;
    for (int i = 0; i < t->n; i++) {
        kolo_status_t state = KOLO_OK;
        good = kit_sync(&t->ranks[i], t->ranks[i].streams[c->stream]) && good;
        good = KIT_OK(kolo_comm_get_async_error(t->ranks[i].comm, &state)) && good;
        if (state != KOLO_OK)
            good = KIT_FAIL("rank %d: %s", t->ranks[i].rank, kolo_get_last_error(t->ranks[i].comm));
    }
    return good;
}

/* ---- what came ---- */

static bool equal(const kit_rank_t *r, const case_t *c, const window_t *w, size_t count, const char *what)
{
    const unsigned char *want = (const unsigned char *)r->image + w->from,
                        *got = (const unsigned char *)r->back + w->from;
    size_t elem = kolo_type_size(c->type), i = 0;
    char text[256];
    if (memcmp(want, got, w->bytes) == 0) return true;
    while (want[i] == got[i]) i++;
    size_t data = w->data - w->from;
    case_describe(c, text, sizeof text);
    if (i < data) return KIT_FAIL("rank %d: %s: byte %zu before the %s was written", r->rank, text, data - i, what);
    if (i >= data + count * elem)
        return KIT_FAIL("rank %d: %s: byte %zu after the %s was written", r->rank, text, i - data - count * elem,
                        what);
    size_t e = (i - data) / elem;
    uint64_t bits[2] = {0, 0};
    memcpy(&bits[0], want + data + e * elem, elem);
    memcpy(&bits[1], got + data + e * elem, elem);
    return KIT_FAIL("rank %d: %s: element %zu of the %s is %#llx instead of %#llx", r->rank, text, e, what,
                    (unsigned long long)bits[1], (unsigned long long)bits[0]);
}

static uint64_t hash_of(const char *p, size_t bytes)
{
    uint64_t h = 0xcbf29ce484222325ull, x;
    for (; bytes >= 8; p += 8, bytes -= 8) {
        memcpy(&x, p, 8);
        h = (h ^ x) * 0x100000001b3ull;
        h ^= h >> 32;
    }
    for (; bytes; p++, bytes--) h = (h ^ (unsigned char)*p) * 0x100000001b3ull;
    return h;
}

bool case_check(kit_team_t *t, const case_t *c, size_t at)
{
    values_t v = values_of(c);
    size_t elem = kolo_type_size(c->type);
    bool good = true;
    for (int i = 0; i < t->n; i++) {
        kit_rank_t *r = &t->ranks[i];
        plan_t p = plan_of(c, r->rank, r->nranks);
        windows_t w = windows_of(c, &p, at);
        for (int k = 0; k < p.n; k++) {
            const part_t *part = &p.parts[k];
            size_t to = w.dst.data + part->at * elem;
            if (part->rank < 0)
                values_reduce(&v, r->image + to, r->back + to, part->count, r->nranks, part->first);
            else
                values_fill(&v, r->image + to, part->count, part->rank, part->first);
        }
        good = (!w.src.bytes || equal(r, c, &w.src, p.src_count, "source")) && good;
        good = (!w.dst.bytes || equal(r, c, &w.dst, p.dst_count, "destination")) && good;
        t->shared->hash[t->number & 1][r->rank] = hash_of(r->back + w.dst.data, p.dst_count * elem);
    }
    return good;
}

bool case_run(kit_team_t *t, const case_t *c)
{
    char text[256];
    int slot = t->number & 1;
    case_describe(c, text, sizeof text);
    bool called = case_queue(t, c, 0), good = called && case_sync(t, c) && case_check(t, c, 0);
    if (!called) kit_give_up(t); /* the others wait for this call */
    bool go_on = kit_case_end(t, good, text);
    bool same = c->kind == CASE_ALL_REDUCE || c->kind == CASE_BROADCAST || c->kind == CASE_ALL_GATHER;
    if (!go_on || !same || !kit_leads(t)) return go_on;
    for (int r = 1; r < t->ranks[0].nranks; r++) {
        if (t->shared->hash[slot][r] == t->shared->hash[slot][0]) continue;
        KIT_FAIL("%s: ranks 0 and %d have different bits", text, r);
        atomic_fetch_add(&t->shared->failed, 1);
        break;
    }
    return go_on;
}
