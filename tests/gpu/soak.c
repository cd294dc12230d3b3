/* SPDX-License-Identifier: Apache-2.0
 *
 * Millions of calls of mixed kinds and lengths, checked on the GPU (soak.h): batches of calls on one of the
 * streams, one behind the other, or captured once in a graph that is replayed with other values each time. All
 * ranks draw the same calls from the seed.
 */
#include "soak.h"
#include "conform.h"

#include <stdio.h>
#include <string.h>

#define BATCH       256 /* calls from wait to wait */
#define REPLAYS     64  /* of a graph */
#define MOST_BYTES  ((size_t)4 << 20)
#define LATE_NS     20000
#define MOST_BLOCKS 64 /* of the checking kernel */

extern const unsigned char soak_image[];

static const kolo_type_t types[SOAK_TYPES] = {KOLO_UINT8, KOLO_UINT32, KOLO_UINT64, KOLO_FLOAT32};
static const size_t elems[SOAK_TYPES] = {1, 4, 8, 4};

typedef enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, RING, KINDS } kind_t;
static const char *const kinds[KINDS] = {"all_reduce",     "reduce",     "broadcast", "all_gather",
                                         "reduce_scatter", "all_to_all", "ring"};

/* What all ranks draw alike. */
typedef struct {
    kind_t kind;
    uint32_t type, op;
    size_t count, skew;
    int root, late; /* late: a rank, or -1 */
    bool in_place;
    uint64_t seed;
} draw_t;

typedef struct {
    kolo_cu_func_t turn;
    kolo_cu_ptr_t round, found; /* device memory */
    soak_call_t last;
} side_t;

typedef struct {
    kit_team_t *t;
    side_t sides[KIT_RANKS];
    draw_t draws[BATCH];
    size_t most; /* bytes of a source or destination */
    void *streams[KIT_RANKS];
    uint64_t done;
} soak_t;

static draw_t draw(const soak_t *s, uint64_t *state)
{
    int n = s->t->ranks[0].nranks;
    draw_t d = {.kind = (kind_t)(kit_random(state) % KINDS), .type = (uint32_t)(kit_random(state) % SOAK_TYPES)};
    uint64_t size = kit_random(state) % 256;
    size_t most = size < 2 ? s->most : size < 12 ? (size_t)512 << 10 : size < 64 ? (size_t)64 << 10 : 4096;
    if (d.kind == RING && n == 1) d.kind = ALL_REDUCE;
    if (kit_random(state) & 1) d.kind = ALL_REDUCE;
    most = (most < s->most ? most : s->most) / (size_t)n / elems[d.type];
    int bits = 1;
    while ((size_t)1 << bits < most) bits++;
    d.count = 1 + (size_t)kit_random(state) % (((size_t)1 << kit_random(state) % (uint64_t)bits) + 1);
    d.count = d.count < most ? d.count : most;
    d.op = kit_random(state) % 4 ? SOAK_SUM : SOAK_MAX;
    d.skew = kit_random(state) % 4;
    d.root = (int)(kit_random(state) % (uint64_t)n);
    d.late = kit_random(state) % 128 ? -1 : (int)(kit_random(state) % (uint64_t)n);
    d.in_place = d.kind == ALL_REDUCE && kit_random(state) & 1;
    d.seed = kit_random(state);
    return d;
}

/* One of two places in turn: the one is looked at while the other is filled. */
static soak_call_t call_of(const soak_t *s, const kit_rank_t *r, int i)
{
    const draw_t *d = &s->draws[i];
    size_t n = (size_t)r->nranks, elem = elems[d->type], half = r->room / 2 / 4096 * 4096;
    bool root = r->rank == d->root, blocks = d->kind == ALL_GATHER || d->kind == ALL_TO_ALL;
    bool cut = d->kind == REDUCE_SCATTER || d->kind == ALL_TO_ALL;
    uint64_t at = (uint64_t)(uintptr_t)r->buffer + (size_t)(i & 1) * half + 4096;
    soak_call_t c = {.src = at + d->skew * elem,
                     .dst = at + half / 2 + (d->skew * 7 % 4) * elem,
                     .seed = d->seed,
                     .count = d->count,
                     .base = cut ? (uint64_t)r->rank * d->count : 0,
                     .src_count = d->count * (cut ? n : 1),
                     .dst_count = d->count * (blocks ? n : 1),
                     .type = d->type,
                     .op = d->kind == ALL_REDUCE || d->kind == REDUCE || d->kind == REDUCE_SCATTER ? d->op
                                                                                                   : SOAK_COPY,
                     .from = d->kind == BROADCAST ? d->root
                             : d->kind == RING    ? (r->rank + r->nranks - 1) % r->nranks
                                                  : SOAK_BY_BLOCK,
                     .in_place = d->in_place,
                     .number = (uint32_t)i,
                     .late_ns = d->late == r->rank ? LATE_NS : 0};
    if (d->in_place) c.src = c.dst;
    if (d->kind == REDUCE && !root) c.dst = 0;
    if (d->kind == BROADCAST && !root) c.src = 0;
    return c;
}

static void *address(uint64_t at)
{
    return (void *)(uintptr_t)at; /* NOLINT: device memory */
}

static kolo_status_t call(const draw_t *d, const soak_call_t *c, const kit_rank_t *r, void *stream)
{
    kolo_type_t type = types[d->type];
    kolo_op_t op = d->op == SOAK_SUM ? KOLO_SUM : KOLO_MAX;
    void *src = address(c->src), *dst = address(c->dst);
    switch (d->kind) {
    case ALL_REDUCE:
        return kolo_all_reduce(src, dst, d->count, type, op, r->comm, stream);
    case REDUCE:
        return kolo_reduce(src, dst, d->count, type, op, d->root, r->comm, stream);
    case BROADCAST:
        return kolo_broadcast(src, dst, d->count, type, d->root, r->comm, stream);
    case ALL_GATHER:
        return kolo_all_gather(src, dst, d->count, type, r->comm, stream);
    case REDUCE_SCATTER:
        return kolo_reduce_scatter(src, dst, d->count, type, op, r->comm, stream);
    case ALL_TO_ALL:
        return kolo_all_to_all(src, dst, d->count, type, r->comm, stream);
    default:
        break;
    }
    kolo_status_t status = kolo_group_start();
    if (status == KOLO_OK) status = kolo_send(src, d->count, type, (r->rank + 1) % r->nranks, r->comm, stream);
    if (status == KOLO_OK)
        status = kolo_recv(dst, d->count, type, (r->rank + r->nranks - 1) % r->nranks, r->comm, stream);
    kolo_status_t end = kolo_group_end();
    return status == KOLO_OK ? end : status;
}

/* Looks at what the last call left and makes what `next` needs, or NULL. */
static bool turn(soak_t *s, int i, const soak_call_t *next)
{
    const kit_rank_t *r = &s->t->ranks[i];
    side_t *side = &s->sides[i];
    soak_args_t a = {.round = side->round,
                     .found = side->found,
                     .rank = (uint32_t)r->rank,
                     .nranks = (uint32_t)r->nranks,
                     .last = side->last,
                     .next = {.type = SOAK_TYPES}};
    uint64_t most = a.last.type < SOAK_TYPES ? a.last.dst_count : 1;
    if (next) {
        a.next = *next;
        if (next->src_count > most) most = next->src_count;
        if (next->dst_count > most) most = next->dst_count;
    }
    uint64_t blocks = (most + 2047) / 2048;
    side->last = a.next;
    return kit_launch(r, side->turn, blocks < MOST_BLOCKS ? (unsigned)blocks : MOST_BLOCKS, &a, s->streams[i]);
}

static bool end_round(soak_t *s, int i)
{
    side_t *side = &s->sides[i];
    soak_args_t a = {.round = side->round, .last = {.type = SOAK_TYPES}, .next = {.type = SOAK_TYPES}, .ends = 1};
    return turn(s, i, NULL) && kit_launch(&s->t->ranks[i], side->turn, 1, &a, s->streams[i]);
}

/* All calls of a batch, by every rank of this team. */
static bool queue(soak_t *s)
{
    kit_team_t *t = s->t;
    bool good = true;
    for (int b = 0; b < BATCH && good; b++) {
        soak_call_t calls[KIT_RANKS];
        for (int i = 0; i < t->n && good; i++) {
            calls[i] = call_of(s, &t->ranks[i], b);
            good = turn(s, i, &calls[i]);
        }
        if (t->n > 1) good = good && KIT_OK(kolo_group_start());
        for (int i = 0; i < t->n && good; i++)
            good = KIT_OK(call(&s->draws[b], &calls[i], &t->ranks[i], s->streams[i]));
        if (t->n > 1) good = KIT_OK(kolo_group_end()) && good;
    }
    for (int i = 0; i < t->n && good; i++) good = end_round(s, i);
    return good;
}

/* The whole batch is waited for; what its kernels have found. */
static bool check(soak_t *s)
{
    kit_team_t *t = s->t;
    bool good = true;
    for (int i = 0; i < t->n; i++) {
        kit_rank_t *r = &t->ranks[i];
        const soak_found_t *found = (const soak_found_t *)(const void *)r->back;
        kolo_status_t state = KOLO_OK;
        good = kit_fetch(r, s->sides[i].found, sizeof *found, s->streams[i]) && kit_sync(r, s->streams[i]) && good;
        good = KIT_OK(kolo_comm_get_async_error(r->comm, &state)) && good;
        if (state != KOLO_OK) good = KIT_FAIL("rank %d: %s", r->rank, kolo_get_last_error(r->comm));
        if (!found->wrong) continue;
        const draw_t *d = &s->draws[found->number % BATCH];
        good = KIT_FAIL(
            "rank %d: %u elements are wrong; the first: batch of call %llu, round %u, call %u (%s of %zu of "
            "type %u, operator %u, root %d): %s %llu is %#llx instead of %#llx",
            r->rank, found->wrong, (unsigned long long)s->done, found->round, found->number, kinds[d->kind],
            d->count, d->type, d->op, d->root, found->guard ? "beside it, element" : "element",
            (unsigned long long)found->at, (unsigned long long)found->is, (unsigned long long)found->should);
    }
    return good;
}

static bool begin(soak_t *s, uint64_t *state)
{
    int which = (int)(kit_random(state) % KIT_STREAMS);
    if (s->t->options->graph) which %= 2; /* a default stream cannot be captured */
    for (int b = 0; b < BATCH; b++) s->draws[b] = draw(s, state);
    for (int i = 0; i < s->t->n; i++) {
        s->streams[i] = s->t->ranks[i].streams[which];
        s->sides[i].last.type = SOAK_TYPES;
    }
    return true;
}

static bool replay(soak_t *s)
{
    kit_team_t *t = s->t;
    void *plans[KIT_RANKS] = {NULL}, *graphs[KIT_RANKS] = {NULL};
    bool good = true;
    for (int i = 0; i < t->n && good; i++) good = kit_capture(&t->ranks[i], s->streams[i]);
    good = good && queue(s);
    for (int i = 0; i < t->n; i++) good = kit_captured(&t->ranks[i], s->streams[i], &plans[i]) && good;
    for (int i = 0; i < t->n && good; i++) good = kit_graph(&t->ranks[i], plans[i], &graphs[i]);
    for (int k = 0; k < REPLAYS && good; k++)
        for (int i = 0; i < t->n && good; i++) good = kit_replay(&t->ranks[i], graphs[i], s->streams[i]);
    good = good && check(s);
    for (int i = 0; i < t->n; i++) kit_graph_end(graphs[i]);
    s->done += (uint64_t)BATCH * REPLAYS;
    return good;
}

static bool prepare(soak_t *s)
{
    bool good = true;
    for (int i = 0; i < s->t->n && good; i++) {
        kit_rank_t *r = &s->t->ranks[i];
        side_t *side = &s->sides[i];
        char *words = kit_alloc(r, 4096);
        memset(r->image, 0, 4096);
        good = words && kit_kernel(r, soak_image, "soak_turn", &side->turn);
        side->round = (uintptr_t)words;
        side->found = side->round + 2048;
        good = good && kit_put(r, side->round, 4096, r->streams[0]) && kit_sync(r, r->streams[0]);
        if (r->room / 4 - 3 * 4096 < s->most) s->most = r->room / 4 - 3 * 4096;
    }
    return good;
}

bool conform_soak(kit_team_t *t)
{
    static soak_t all[KIT_RANKS]; /* by the team's first rank */
    soak_t *s = &all[t->ranks[0].rank];
    uint64_t state = t->options->seed, start = kit_now_ms();
    char text[96];
    *s = (soak_t){.t = t, .most = t->options->quick ? (size_t)256 << 10 : MOST_BYTES};
    if (t->options->host) return KIT_FAIL("--soak needs GPUs");
    bool good = prepare(s);
    while (good && s->done < t->options->soak) {
        good = begin(s, &state);
        if (t->options->graph) {
            good = good && replay(s);
        } else {
            good = good && queue(s) && check(s);
            s->done += BATCH;
        }
        if (!good) kit_give_up(t);
        snprintf(text, sizeof text, "soak up to call %llu of seed %llu", (unsigned long long)s->done,
                 (unsigned long long)t->options->seed);
        if (!kit_case_end(t, good, text)) return false;
    }
    if (kit_leads(t))
        printf("%llu calls in %llu ms\n", (unsigned long long)s->done, (unsigned long long)(kit_now_ms() - start));
    return good;
}
