/* SPDX-License-Identifier: Apache-2.0
 *
 * Random calls and what they must give, to the bit: values are whole numbers that every type can hold, so that
 * float sums and products are exact in any order.
 */
#include "chaos/chaos.h"
#include "exec/host/reduce_types.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES (1u << 20)

typedef enum {
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    ALL_GATHER,
    ALL_GATHERV,
    REDUCE_SCATTER,
    REDUCE_SCATTERV,
    ALL_TO_ALL,
    ALL_TO_ALLV,
    GATHER,
    SCATTER,
    BARRIER,
    RING,
    GROUP,
    PAIRS,
    KINDS
} kind_t;
static const char *const kind_names[KINDS] = {
    "all_reduce",     "reduce",          "broadcast",  "all_gather",  "all_gatherv",
    "reduce_scatter", "reduce_scatterv", "all_to_all", "all_to_allv", "gather",
    "scatter",        "barrier",         "ring",       "group",       "pairs"};

typedef struct {
    kind_t kind;
    kolo_type_t type;
    kolo_op_t op;
    int root;
    size_t count, elem;
    bool in_place;
    uint64_t seed;
    char *src, *dst;
    size_t counts[CHAOS_PROCS], displs[CHAOS_PROCS], recv_counts[CHAOS_PROCS], recv_displs[CHAOS_PROCS];
} call_t;

/* ---- values ---- */

static bool is_float(kolo_type_t type)
{
    return type >= KOLO_FLOAT16 && type <= KOLO_FLOAT8_E5M2;
}

/* Whole numbers: any for integers; 0 and 1 for floats, 1 and 2 where they are multiplied. */
static uint64_t number(const call_t *c, int rank, size_t i)
{
    uint64_t h = (c->seed + (uint64_t)rank * 0x9e3779b97f4a7c15ull + i) * 0xd6e8feb86659fd93ull;
    h ^= h >> 32;
    if (c->type == KOLO_BOOL) return h & 1;
    if (!is_float(c->type)) return h;
    return (h & 1) + (c->op == KOLO_PROD);
}

static void store(const call_t *c, void *at, uint64_t v)
{
    float f = (float)v;
    double d = (double)v;
    uint16_t half = c->type == KOLO_FLOAT16 ? store_f16(f) : store_bf16(f);
    uint8_t byte = c->type == KOLO_FLOAT8_E4M3 ? store_e4m3(f) : store_e5m2(f);
    if (!is_float(c->type))
        memcpy(at, &v, c->elem);
    else if (c->elem == 8)
        memcpy(at, &d, 8);
    else if (c->elem == 4)
        memcpy(at, &f, 4);
    else if (c->elem == 2)
        memcpy(at, &half, 2);
    else
        *(uint8_t *)at = byte;
}

static uint64_t narrow_to(const call_t *c, uint64_t v)
{
    switch (c->type) {
    case KOLO_INT8:
        return (uint64_t)(int64_t)(int8_t)v;
    case KOLO_UINT8:
    case KOLO_BOOL:
        return (uint8_t)v;
    case KOLO_INT16:
        return (uint64_t)(int64_t)(int16_t)v;
    case KOLO_UINT16:
        return (uint16_t)v;
    case KOLO_INT32:
        return (uint64_t)(int64_t)(int32_t)v;
    case KOLO_UINT32:
        return (uint32_t)v;
    default:
        return v;
    }
}

static uint64_t reduced(const call_t *c, int nranks, size_t i)
{
    bool is_signed =
        c->type == KOLO_INT8 || c->type == KOLO_INT16 || c->type == KOLO_INT32 || c->type == KOLO_INT64;
    uint64_t acc = narrow_to(c, number(c, 0, i));
    for (int r = 1; r < nranks; r++) {
        uint64_t v = narrow_to(c, number(c, r, i));
        bool less = is_signed ? (int64_t)v < (int64_t)acc : v < acc;
        if (c->op == KOLO_SUM)
            acc = c->type == KOLO_BOOL ? acc | v : acc + v;
        else if (c->op == KOLO_PROD)
            acc *= v;
        else if (less == (c->op == KOLO_MIN))
            acc = v;
    }
    return acc;
}

static void fill(const call_t *c, int rank, size_t first, char *at, size_t count)
{
    for (size_t i = 0; i < count; i++) store(c, at + i * c->elem, number(c, rank, first + i));
}

/* rank < 0: the reduction over -rank ranks. */
static bool holds(chaos_caller_t *caller, const call_t *c, const char *at, size_t count, int rank, size_t first)
{
    unsigned char want[8];
    for (size_t i = 0; i < count; i++) {
        store(c, want, rank < 0 ? reduced(c, -rank, first + i) : number(c, rank, first + i));
        if (memcmp(at + i * c->elem, want, c->elem) == 0) continue;
        uint64_t got = 0, wanted = 0;
        memcpy(&got, at + i * c->elem, c->elem);
        memcpy(&wanted, want, c->elem);
        chaos_wrong(caller->report, "%s: element %zu of %zu is %llx, not %llx", caller->report->doing, i, count,
                    (unsigned long long)got, (unsigned long long)wanted);
        return false;
    }
    return true;
}

/* ---- a call ---- */

static void choose(call_t *c, uint64_t seed, int k, int nranks)
{
    uint64_t state = chaos_mix(seed ^ (uint64_t)k * 0x632be59bd9b4e019ull);
    memset(c, 0, sizeof *c);
    c->kind = (kind_t)chaos_below(&state, KINDS);
    c->type = (kolo_type_t)chaos_below(&state, KOLO_TYPE_COUNT);
    c->op = (kolo_op_t)chaos_below(&state, KOLO_AVG);
    c->elem = kolo_type_size(c->type);
    c->root = chaos_below(&state, nranks);
    c->in_place = chaos_below(&state, 3) == 0;
    c->seed = chaos_draw(&state);
    /* mostly small, sometimes nothing, sometimes many slots */
    int bits = chaos_below(&state, 21);
    size_t most = MOST_BYTES / c->elem;
    c->count = chaos_draw(&state) % ((size_t)1 << bits);
    if (c->count > most) c->count = most;
    bool wide = c->kind != ALL_REDUCE && c->kind != REDUCE && c->kind != BROADCAST;
    if (wide && c->count > most / (size_t)nranks) c->count = most / (size_t)nranks;
}

/* What rank `a` has for rank `b` in the calls with unequal parts. */
static size_t part(const call_t *c, int a, int b)
{
    uint64_t h = chaos_mix(c->seed ^ (uint64_t)(a * 64 + b));
    return h % 5 == 0 ? 0 : h / 5 % (c->count + 1);
}

static void cut(call_t *c, int rank, int nranks, bool both)
{
    size_t at = 0, recv_at = 0;
    for (int r = 0; r < nranks; r++) {
        c->counts[r] = part(c, both ? rank : 0, r);
        c->recv_counts[r] = part(c, r, rank);
        c->displs[r] = at;
        c->recv_displs[r] = recv_at;
        at += c->counts[r];
        recv_at += c->recv_counts[r];
    }
}

static kolo_status_t rooted(chaos_caller_t *a, call_t *c)
{
    bool root = a->rank == c->root;
    size_t mine = (size_t)a->rank * c->count * c->elem, n = c->count;
    void *s = a->stream;
    char *in = c->in_place ? c->dst : c->src;
    switch (c->kind) {
    case REDUCE:
        fill(c, a->rank, 0, root ? in : c->src, n);
        return kolo_reduce(root ? in : c->src, root ? c->dst : NULL, n, c->type, c->op, c->root, a->comm, s);
    case BROADCAST:
        if (root) fill(c, c->root, 0, in, n);
        return kolo_broadcast(in, c->dst, n, c->type, c->root, a->comm, s);
    case GATHER:
        in = root && c->in_place ? c->dst + mine : c->src;
        fill(c, a->rank, 0, in, n);
        return kolo_gather(in, root ? c->dst : NULL, n, c->type, c->root, a->comm, s);
    default:
        if (root) fill(c, c->root, 0, c->src, n * (size_t)a->nranks);
        return kolo_scatter(root ? c->src : NULL, c->dst, n, c->type, c->root, a->comm, s);
    }
}

static kolo_status_t everywhere(chaos_caller_t *a, call_t *c)
{
    size_t mine = (size_t)a->rank * c->count * c->elem, n = c->count, all = n * (size_t)a->nranks;
    void *s = a->stream;
    char *in = c->in_place ? c->dst : c->src;
    switch (c->kind) {
    case ALL_REDUCE:
        fill(c, a->rank, 0, in, n);
        return kolo_all_reduce(in, c->dst, n, c->type, c->op, a->comm, s);
    case ALL_GATHER:
        in = c->in_place ? c->dst + mine : c->src;
        fill(c, a->rank, 0, in, n);
        return kolo_all_gather(in, c->dst, n, c->type, a->comm, s);
    case ALL_GATHERV:
        cut(c, a->rank, a->nranks, false);
        fill(c, a->rank, 0, c->src, c->counts[a->rank]);
        return kolo_all_gatherv(c->src, c->dst, c->counts, c->displs, c->type, a->comm, s);
    case REDUCE_SCATTER:
        fill(c, a->rank, 0, c->src, all);
        return kolo_reduce_scatter(c->src, c->dst, n, c->type, c->op, a->comm, s);
    case REDUCE_SCATTERV:
        cut(c, a->rank, a->nranks, false);
        fill(c, a->rank, 0, c->src, c->displs[a->nranks - 1] + c->counts[a->nranks - 1]);
        return kolo_reduce_scatterv(c->src, c->dst, c->counts, NULL, c->type, c->op, a->comm, s);
    case ALL_TO_ALL:
        fill(c, a->rank, 0, c->src, all);
        return kolo_all_to_all(c->src, c->dst, n, c->type, a->comm, s);
    case ALL_TO_ALLV:
        cut(c, a->rank, a->nranks, true);
        for (int r = 0; r < a->nranks; r++)
            fill(c, a->rank, (size_t)r << 20, c->src + c->displs[r] * c->elem, c->counts[r]);
        return kolo_all_to_allv(c->src, c->counts, c->displs, c->dst, c->recv_counts, c->recv_displs, c->type,
                                a->comm, s);
    default:
        return kolo_barrier(a->comm, s);
    }
}

static kolo_status_t first_of(kolo_status_t a, kolo_status_t b)
{
    return a != KOLO_OK ? a : b;
}

static kolo_status_t messages(chaos_caller_t *a, call_t *c)
{
    int n = a->nranks, next = (a->rank + 1) % n, prev = (a->rank + n - 1) % n, other = n - 1 - a->rank;
    size_t bytes = c->count * c->elem;
    kolo_status_t status = KOLO_OK;
    if (c->kind == PAIRS) { /* single calls: the lower rank sends first */
        if (other == a->rank) return KOLO_OK;
        fill(c, a->rank, 0, c->src, c->count);
        for (int turn = 0; turn < 2 && status == KOLO_OK; turn++) {
            bool sends = (turn == 0) == (a->rank < other);
            status = sends ? kolo_send(c->src, c->count, c->type, other, a->comm, a->stream)
                           : kolo_recv(c->dst, c->count, c->type, other, a->comm, a->stream);
            status = chaos_settle(a->comm, status); /* a first use may go on in the background */
        }
        return status;
    }
    kolo_status_t started = kolo_group_start();
    if (started != KOLO_OK) return started;
    if (c->kind == RING) {
        fill(c, a->rank, 0, c->src, c->count);
        status = kolo_send(c->src, c->count, c->type, next, a->comm, a->stream);
        if (status == KOLO_OK) status = kolo_recv(c->dst, c->count, c->type, prev, a->comm, a->stream);
    }
    for (int r = 0; c->kind == GROUP && r < n && status == KOLO_OK; r++) {
        fill(c, a->rank, (size_t)r << 20, c->src + (size_t)r * bytes, c->count);
        status = kolo_send(c->src + (size_t)r * bytes, c->count, c->type, r, a->comm, a->stream);
        if (status == KOLO_OK)
            status = kolo_recv(c->dst + (size_t)r * bytes, c->count, c->type, r, a->comm, a->stream);
    }
    return first_of(status, kolo_group_end());
}

/* ---- what it must give ---- */

static bool check_rooted(chaos_caller_t *a, const call_t *c)
{
    bool fine = true;
    if (c->kind == REDUCE) return a->rank != c->root || holds(a, c, c->dst, c->count, -a->nranks, 0);
    if (c->kind == BROADCAST) return holds(a, c, c->dst, c->count, c->root, 0);
    if (c->kind == SCATTER) return holds(a, c, c->dst, c->count, c->root, (size_t)a->rank * c->count);
    for (int r = 0; r < a->nranks && a->rank == c->root && fine; r++)
        fine = holds(a, c, c->dst + (size_t)r * c->count * c->elem, c->count, r, 0);
    return fine;
}

static bool check_parts(chaos_caller_t *a, const call_t *c)
{
    bool fine = true;
    size_t step = c->count * c->elem, me = (size_t)a->rank;
    for (int r = 0; r < a->nranks && fine; r++) {
        const char *at = c->dst + (size_t)r * step;
        if (c->kind == ALL_GATHER) fine = holds(a, c, at, c->count, r, 0);
        if (c->kind == ALL_GATHERV) fine = holds(a, c, c->dst + c->displs[r] * c->elem, c->counts[r], r, 0);
        if (c->kind == ALL_TO_ALL) fine = holds(a, c, at, c->count, r, me * c->count);
        if (c->kind == GROUP) fine = holds(a, c, at, c->count, r, me << 20);
        if (c->kind == ALL_TO_ALLV)
            fine = holds(a, c, c->dst + c->recv_displs[r] * c->elem, c->recv_counts[r], r, me << 20);
    }
    return fine;
}

static void check(chaos_caller_t *a, const call_t *c)
{
    int n = a->nranks, other = n - 1 - a->rank;
    size_t me = (size_t)a->rank;
    switch (c->kind) {
    case ALL_REDUCE:
        holds(a, c, c->dst, c->count, -n, 0);
        break;
    case REDUCE_SCATTER:
        holds(a, c, c->dst, c->count, -n, me * c->count);
        break;
    case REDUCE_SCATTERV:
        holds(a, c, c->dst, c->counts[me], -n, c->displs[me]);
        break;
    case RING:
        holds(a, c, c->dst, c->count, (a->rank + n - 1) % n, 0);
        break;
    case PAIRS:
        if (other != a->rank) holds(a, c, c->dst, c->count, other, 0);
        break;
    case BARRIER:
        break;
    case REDUCE:
    case BROADCAST:
    case GATHER:
    case SCATTER:
        check_rooted(a, c);
        break;
    default:
        check_parts(a, c);
        break;
    }
}

/* ---- calling ---- */

kolo_status_t chaos_settle(kolo_comm_t comm, kolo_status_t status)
{
    while (status == KOLO_IN_PROGRESS) {
        kolo_status_t asked = kolo_comm_get_async_error(comm, &status);
        if (asked != KOLO_OK) return asked;
        if (status == KOLO_IN_PROGRESS) chaos_nap_us(100);
    }
    return status;
}

kolo_status_t chaos_call(chaos_caller_t *a, uint64_t seed, int k)
{
    call_t c;
    choose(&c, seed, k, a->nranks);
    size_t room = (c.count + 1) * c.elem * (size_t)a->nranks;
    snprintf(a->report->doing, sizeof a->report->doing, "call %d: %s of %zu elements of %zu bytes, root %d%s%s", k,
             kind_names[c.kind], c.count, c.elem, c.root, c.in_place ? ", in place" : "",
             a->stream ? ", queued" : "");
    c.src = chaos_alloc(room);
    c.dst = chaos_alloc(room);
    kolo_status_t status;
    if (c.kind == REDUCE || c.kind == BROADCAST || c.kind == GATHER || c.kind == SCATTER)
        status = rooted(a, &c);
    else if (c.kind == RING || c.kind == GROUP || c.kind == PAIRS)
        status = messages(a, &c);
    else
        status = everywhere(a, &c);
    if (a->stream) {
        kolo_status_t queued = kolo_stream_synchronize(a->stream);
        status = status == KOLO_IN_PROGRESS ? first_of(queued, status) : first_of(status, queued);
    }
    status = chaos_settle(a->comm, status);
    if (status == KOLO_OK) check(a, &c);
    chaos_free(c.src);
    chaos_free(c.dst);
    return status;
}

void chaos_wrong(chaos_report_t *report, const char *fmt, ...)
{
    va_list args;
    if (atomic_fetch_add(&report->wrong, 1)) return; /* the first one says it */
    va_start(args, fmt);
    vsnprintf(report->wrong_text, sizeof report->wrong_text, fmt, args);
    va_end(args);
}
