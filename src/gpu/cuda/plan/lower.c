/* SPDX-License-Identifier: Apache-2.0
 *
 * From a plan to a program (program.h), and from a call to tiles and replicas. All ranks come to the same numbers,
 * because each looks at the plans of all.
 */
#include "gpu/cuda/plan/plan.h"

#include <stdlib.h>
#include <string.h>

#define SLOT_ROOM        (32u << 20) /* for the slots of all queues that end at a rank */
#define SLOT_MOST        (64u << 10)
#define SLOT_LEAST       1024u
#define LINE_ROOM        (8u << 20) /* for the lines of all queues that end at a rank */
#define LINE_MOST        (16u << 10)
#define LINE128_ROOM     (8u << 20)
#define LINE128_MOST     (16u << 10)
#define SCRATCH_ROOM     (8u << 20)
#define PROGRAM_ROOM     (2u << 20)
#define REPLICA_USUAL    16384u /* bytes of the longest chunk that are worth a replica */
#define LINE_REPLICA     4096u  /* by lines: 8 bytes for each thread */
#define LINE128_REPLICA  7680u  /* 120 for each 8 threads */
#define REPLICAS_UNKNOWN 16u    /* where no rank knows the longest chunk */
#define LINES_USUAL      32768u /* longest chunk by lines */
#define LINES128_USUAL   (256u << 10)

_Static_assert((int)KOLO_CUDA_OP_SEND == KOLO_OP_SEND && (int)KOLO_CUDA_OP_RECV == KOLO_OP_RECV &&
                   (int)KOLO_CUDA_OP_RECV_REDUCE == KOLO_OP_RECV_REDUCE &&
                   (int)KOLO_CUDA_OP_RECV_SEND == KOLO_OP_RECV_SEND &&
                   (int)KOLO_CUDA_OP_RECV_REDUCE_SEND == KOLO_OP_RECV_REDUCE_SEND &&
                   (int)KOLO_CUDA_OP_RECV_REDUCE_COPY_SEND == KOLO_OP_RECV_REDUCE_COPY_SEND &&
                   (int)KOLO_CUDA_OP_REDUCE_MANY == KOLO_OP_REDUCE_MANY && (int)KOLO_CUDA_OP_COPY == KOLO_OP_COPY &&
                   (int)KOLO_CUDA_OP_REDUCE == KOLO_OP_REDUCE && (int)KOLO_CUDA_OP_EXPOSE == KOLO_OP_EXPOSE &&
                   (int)KOLO_CUDA_OP_PUT == KOLO_OP_PUT && (int)KOLO_CUDA_OP_RELEASE == KOLO_OP_RELEASE &&
                   (int)KOLO_CUDA_OP_SIGNAL == KOLO_OP_SIGNAL && (int)KOLO_CUDA_OP_WAIT == KOLO_OP_WAIT &&
                   (int)KOLO_CUDA_OP_LOOP == KOLO_OP_LOOP && (int)KOLO_CUDA_OP_END == KOLO_OP_END,
               "the kernel's instructions have the plan's numbers");
_Static_assert((int)KOLO_CUDA_BUF_NONE == KOLO_BUF_NONE && (int)KOLO_CUDA_BUF_SRC == KOLO_BUF_SRC &&
                   (int)KOLO_CUDA_BUF_DST == KOLO_BUF_DST && (int)KOLO_CUDA_BUF_SCRATCH == KOLO_BUF_SCRATCH &&
                   KOLO_CUDA_FLAG_FINAL == KOLO_FLAG_FINAL && KOLO_CUDA_FLAG_DST_FIRST == KOLO_FLAG_DST_FIRST &&
                   KOLO_CUDA_FLAG_RX_FIRST == KOLO_FLAG_RX_FIRST && KOLO_CUDA_FLAG_RAW == KOLO_FLAG_RAW &&
                   KOLO_CUDA_NO_CONN == KOLO_NO_CONN,
               "and its buffers and flags");

void kolo_cuda_plan_layout(uint32_t nranks, uint64_t at, kolo_cuda_plan_layout_t *l)
{
    uint64_t queues = (uint64_t)nranks * KOLO_CUDA_PLAN_QUEUES, slots = queues * KOLO_CUDA_PLAN_DEPTH;
    uint64_t slot = SLOT_ROOM / slots / 128 * 128, line = LINE_ROOM / slots / 256 * 256;
    uint64_t line128 = LINE128_ROOM / slots / 128 * 128;
    *l = (kolo_cuda_plan_layout_t){
        .slot_bytes = (uint32_t)KOLO_MAX(SLOT_LEAST, KOLO_MIN(slot, (uint64_t)SLOT_MOST)),
        .line_bytes = (uint32_t)KOLO_MAX(SLOT_LEAST, KOLO_MIN(line, (uint64_t)LINE_MOST)),
        .line128_bytes = (uint32_t)KOLO_MAX(SLOT_LEAST, KOLO_MIN(line128, (uint64_t)LINE128_MOST)),
        .lines_most = LINES_USUAL,
        .lines128_most = LINES128_USUAL};
    at = KOLO_ROUND_UP(at, (uint64_t)4096);
    l->steps = at;
    at = KOLO_ROUND_UP(at + KOLO_CUDA_PLAN_WAYS * 2 * queues * sizeof(uint32_t), (uint64_t)4096);
    l->ready = at;
    at += slots * KOLO_CUDA_FLAG;
    l->credit = at;
    at += KOLO_CUDA_PLAN_WAYS * queues * KOLO_CUDA_FLAG;
    l->events = at;
    at = KOLO_ROUND_UP(at + (1 + (uint64_t)KOLO_CUDA_PLAN_QUEUES * KOLO_CUDA_PLAN_EVENTS) * sizeof(uint32_t),
                       (uint64_t)4096);
    l->programs = at;
    l->programs_bytes = PROGRAM_ROOM;
    at += l->programs_bytes;
    l->scratch = at;
    l->scratch_bytes = SCRATCH_ROOM;
    at += l->scratch_bytes;
    l->lines = at;
    at += slots * l->line_bytes;
    l->lines128 = at;
    at += slots * l->line128_bytes;
    l->slots = at;
    l->bytes = at + slots * l->slot_bytes;
}

/* ---- from a plan to a program ---- */

static bool is_reference(const kolo_insn_t *in)
{
    return in->op >= KOLO_OP_EXPOSE && in->op <= KOLO_OP_PUT;
}

static bool has_references(const kolo_plan_t *p)
{
    for (uint32_t i = 0; i < p->ninsns; i++)
        if (is_reference(&p->insns[i])) return true;
    return false;
}

static kolo_status_t check(const kolo_plan_t *p)
{
    if (p->nconns > KOLO_CUDA_PLAN_CONNS || p->nevents > KOLO_CUDA_PLAN_EVENTS || p->depth > KOLO_CUDA_PLAN_DEPTH ||
        p->nranks > KOLO_CUDA_RANKS)
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "the %s plan for %s of %u ranks has %u connections, %u events and queues of %u slots; a "
                         "kernel has room for %u, %u and %u",
                         kolo_plan_algo_name(p->algo), kolo_coll_name(p->coll), p->nranks, p->nconns, p->nevents,
                         p->depth, KOLO_CUDA_PLAN_CONNS, KOLO_CUDA_PLAN_EVENTS, KOLO_CUDA_PLAN_DEPTH);
    return KOLO_OK;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Lists the connection lanes of one kind that any rank uses, in order; returns how many. */
static uint32_t list_lanes(const kolo_plan_t *const *plans, uint32_t nranks, bool node, uint32_t *lanes)
{
    uint32_t n = 0, different = 0;
    for (uint32_t r = 0; r < nranks; r++)
        for (uint32_t i = 0; i < plans[r]->nconns; i++)
            if (plans[r]->conns[i].node == node) lanes[n++] = plans[r]->conns[i].lane;
    qsort(lanes, n, sizeof *lanes, by_number);
    for (uint32_t i = 0; i < n; i++)
        if (!different || lanes[different - 1] != lanes[i]) lanes[different++] = lanes[i];
    return different;
}

static kolo_cuda_segment_t segment(const kolo_segment_t *s)
{
    return (kolo_cuda_segment_t){.base = s->base,
                                 .stride = {s->stride[0], s->stride[1]},
                                 .mod = s->mod,
                                 .n = s->n,
                                 .shape = s->shape,
                                 .shape_stride = {s->shape_stride[0], s->shape_stride[1]},
                                 .buf = s->buf};
}

static kolo_cuda_insn_t instruction(const kolo_insn_t *in)
{
    return (kolo_cuda_insn_t){.op = in->op,
                              .flags = in->flags,
                              .tx = in->tx,
                              .rx = in->rx,
                              .tx_stride = in->tx_stride,
                              .rx_stride = in->rx_stride,
                              .event = in->event,
                              .list_first = in->list_first,
                              .list_count = in->list_count,
                              .own_place = in->own_place,
                              .count = in->count,
                              .dst = segment(&in->dst),
                              .src = segment(&in->src)};
}

/* Gives the lane what the instruction uses in every turn of the loops around it. */
static void own_strided(kolo_cuda_conn_t *conns, uint16_t first, int16_t stride, uint32_t turns, uint16_t lane)
{
    if (first == KOLO_NO_CONN) return;
    for (uint32_t i = 0; i < (stride ? turns : 1); i++) conns[first + stride * (int)i].owner = lane;
}

/* Notes which lane uses which end; a lane's counters are kept by its block. */
static void own_conns(const kolo_plan_t *p, uint16_t lane, kolo_cuda_conn_t *conns)
{
    uint32_t turns[2] = {1, 1}, depth = 0;
    for (uint32_t k = 0; k < p->lanes[lane].count; k++) {
        const kolo_insn_t *in = &p->insns[p->lanes[lane].first + k];
        if (in->op == KOLO_OP_LOOP) turns[depth++] = in->count;
        if (in->op == KOLO_OP_END) depth--;
        uint32_t n = depth ? turns[depth - 1] : 1;
        own_strided(conns, in->tx, in->tx_stride, n, lane);
        own_strided(conns, in->rx, in->rx_stride, n, lane);
        for (uint32_t e = 0; in->op == KOLO_OP_REDUCE_MANY && e < in->list_count; e++)
            conns[p->list[in->list_first + e]].owner = lane;
    }
}

static size_t place(size_t *at, size_t bytes)
{
    size_t here = *at;
    *at = KOLO_ROUND_UP(here + bytes, (size_t)16);
    return here;
}

static void fill_conns(const kolo_plan_t *p, const uint32_t *const lanes[2], const uint32_t nlanes[2],
                       kolo_cuda_conn_t *conns)
{
    for (uint32_t i = 0; i < p->nconns; i++) {
        const kolo_plan_conn_t *c = &p->conns[i];
        uint32_t lane = c->lane;
        const uint32_t *found = bsearch(&lane, lanes[c->node], nlanes[c->node], sizeof lane, by_number);
        conns[i] = (kolo_cuda_conn_t){.peer = c->node && c->dir == KOLO_DIR_TX ? -1 : c->peer,
                                      .number = (uint16_t)(found - lanes[c->node]),
                                      .lane = c->lane,
                                      .dir = c->dir,
                                      .node = c->node};
    }
    for (uint32_t l = 0; l < p->nlanes; l++) own_conns(p, (uint16_t)l, conns);
}

static kolo_status_t build(const kolo_plan_t *p, const uint32_t *const lanes[2], kolo_cuda_lowered_t *out)
{
    size_t at = 0;
    kolo_cuda_program_t head = {.nlanes = p->nlanes,
                                .nconns = p->nconns,
                                .nevents = p->nevents,
                                .nsubs = p->nsubs,
                                .chunks = p->nparts * p->nsubs,
                                .nscratch = p->nscratch,
                                .barrier = p->coll == KOLO_COLL_BARRIER,
                                .refs = out->refs,
                                .grid_buf = p->dst_parts == p->nparts ? KOLO_BUF_DST : KOLO_BUF_SRC};
    place(&at, sizeof head);
    head.insns = (uint32_t)place(&at, p->ninsns * sizeof(kolo_cuda_insn_t));
    head.conns = (uint32_t)place(&at, p->nconns * sizeof(kolo_cuda_conn_t));
    head.lanes = (uint32_t)place(&at, p->nlanes * sizeof(kolo_cuda_lane_t));
    head.list = (uint32_t)place(&at, p->nlist * sizeof(uint16_t));
    char *image = calloc(1, at);
    if (!image) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a plan's program");
    memcpy(image, &head, sizeof head);
    for (uint32_t i = 0; i < p->ninsns; i++)
        ((kolo_cuda_insn_t *)(void *)(image + head.insns))[i] = instruction(&p->insns[i]);
    for (uint32_t i = 0; i < p->nlanes; i++)
        ((kolo_cuda_lane_t *)(void *)(image + head.lanes))[i] =
            (kolo_cuda_lane_t){p->lanes[i].first, p->lanes[i].count};
    if (p->nlist) memcpy(image + head.list, p->list, p->nlist * sizeof(uint16_t));
    fill_conns(p, lanes, (const uint32_t[]){out->pairs, out->nodes}, (void *)(image + head.conns));
    out->image = (void *)image;
    out->bytes = at;
    return KOLO_OK;
}

kolo_status_t kolo_cuda_lower(const kolo_plan_t *const *plans, uint32_t nranks, uint32_t rank,
                              kolo_cuda_lowered_t *out)
{
    kolo_cuda_lowered_t l = {.lines = true};
    uint32_t all = 0;
    for (uint32_t r = 0; r < nranks; r++) {
        bool lines;
        KOLO_TRY(check(plans[r]));
        KOLO_TRY(kolo_cuda_plan_takes_lines(plans[r], &lines));
        l.lines = l.lines && lines;
        all += plans[r]->nconns;
        l.refs = l.refs || has_references(plans[r]);
        l.lanes = KOLO_MAX(l.lanes, plans[r]->nlanes);
        l.events = KOLO_MAX(l.events, plans[r]->nevents);
        l.scratch = KOLO_MAX(l.scratch, plans[r]->nscratch);
    }
    uint32_t *lanes = malloc(2 * ((size_t)all + 1) * sizeof *lanes);
    if (!lanes) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a plan's connections");
    l.pairs = list_lanes(plans, nranks, false, lanes);
    l.nodes = list_lanes(plans, nranks, true, lanes + all);
    kolo_status_t status = build(plans[rank], (const uint32_t *const[]){lanes, lanes + all}, &l);
    free(lanes);
    if (status == KOLO_OK) *out = l;
    return status;
}

/* ---- from a call to tiles ---- */

static kolo_cuda_cut_t cut_of(uint64_t count, uint32_t n)
{
    kolo_part_cut_t c = kolo_part_cut(count, n);
    return (kolo_cuda_cut_t){c.each, c.more};
}

/* Fills in one buffer's parts in a v form: as many as it has, or this rank's alone. Returns the longest, in
 * elements. */
static uint64_t fill_parts(kolo_cuda_parts_t *out, uint32_t n, const size_t *counts, const size_t *displs,
                           uint64_t alone, size_t elem)
{
    uint64_t at = 0, longest = 0;
    if (n == 1) {
        *out = (kolo_cuda_parts_t){.count = {alone}};
        return alone;
    }
    for (uint32_t p = 0; p < n; p++) {
        out->count[p] = counts[p];
        out->at[p] = (displs ? displs[p] : at) * elem;
        at += counts[p];
        longest = KOLO_MAX(longest, (uint64_t)counts[p]);
    }
    return longest;
}

/* Returns the longest chunk that this rank knows of, in bytes. */
static uint64_t fill_uneven(const kolo_plan_t *p, const kolo_exec_call_t *call, kolo_cuda_plan_args_t *a)
{
    const size_t *all = call->recv_counts ? call->recv_counts : call->send_counts;
    uint64_t src =
        fill_parts(&a->src, p->src_parts, call->send_counts, call->send_displs, all[p->rank], call->elem);
    uint64_t dst =
        fill_parts(&a->dst, p->dst_parts, call->recv_counts, call->recv_displs, all[p->rank], call->elem);
    return KOLO_DIV_UP(KOLO_MAX(src, dst), (uint64_t)p->nsubs) * a->elem;
}

/* Returns the longest chunk in bytes. */
static uint64_t fill_even(const kolo_plan_t *p, const kolo_exec_call_t *call, const kolo_cuda_plan_args_t *a,
                          kolo_cuda_plan_run_t *run)
{
    bool whole = kolo_coll_traits(call->coll)->whole;
    uint64_t count = call->coll == KOLO_COLL_BARRIER ? 1 : call->count;
    run->parts = whole ? cut_of(count, p->nparts) : (kolo_cuda_cut_t){count, 0};
    if (whole) run->src_stride = run->dst_stride = run->parts.each * a->elem;
    run->subs[0] = cut_of(run->parts.each, p->nsubs);
    run->subs[1] = cut_of(run->parts.each + 1, p->nsubs);
    const kolo_cuda_cut_t *longer = &run->subs[run->parts.more > 0];
    return (longer->each + (longer->more > 0)) * a->elem;
}

static uint32_t way_of(const kolo_cuda_lowered_t *l, const kolo_cuda_plan_layout_t *plan, uint64_t longest)
{
    if (!l->lines || l->refs) return KOLO_CUDA_BY_SLOTS;
    return longest <= plan->lines_most      ? KOLO_CUDA_BY_LINES
           : longest <= plan->lines128_most ? KOLO_CUDA_BY_LINES_128
                                            : KOLO_CUDA_BY_SLOTS;
}

/* Returns the bytes of payload that a slot holds; a multiple of 128, as tiles are. */
static uint64_t room_of(const kolo_cuda_plan_layout_t *plan, uint32_t way)
{
    return way == KOLO_CUDA_BY_LINES       ? plan->line_bytes / 2
           : way == KOLO_CUDA_BY_LINES_128 ? plan->line128_bytes / 128 * 120 / 128 * 128
                                           : plan->slot_bytes;
}

/* Cuts a call into tiles. Of an all_to_all of unequal parts no rank knows the longest: pieces and replicas are then
 * those of long ones, and each rank has as many tiles as its own parts need; beyond them both ends skip. */
static kolo_status_t cut_tiles(const kolo_cuda_lowered_t *l, const kolo_plan_t *p, uint64_t longest, uint32_t most,
                               const kolo_cuda_plan_args_t *a, kolo_cuda_plan_run_t *run)
{
    bool known = !a->uneven || p->coll != KOLO_COLL_ALL_TO_ALL;
    static const uint32_t usually[] = {[KOLO_CUDA_BY_SLOTS] = REPLICA_USUAL,
                                       [KOLO_CUDA_BY_LINES] = LINE_REPLICA,
                                       [KOLO_CUDA_BY_LINES_128] = LINE128_REPLICA};
    run->way = known ? way_of(l, &a->plan, longest) : KOLO_CUDA_BY_SLOTS;
    uint64_t usual = usually[run->way], room = room_of(&a->plan, run->way);
    uint64_t replicas = known ? KOLO_MAX(KOLO_DIV_UP(longest, usual), 1u) : REPLICAS_UNKNOWN;
    replicas = KOLO_MIN(replicas, (uint64_t)most);
    uint64_t tile = known ? KOLO_ROUND_UP(KOLO_DIV_UP(longest, replicas), (uint64_t)128) : room;
    if (l->scratch) tile = KOLO_MIN(tile, a->plan.scratch_bytes / (replicas * l->scratch) / 128 * 128);
    tile = KOLO_MIN(KOLO_MAX(tile, 128u), room);
    if (replicas * l->scratch * tile > a->plan.scratch_bytes)
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "the %s plan for %s of %u ranks needs %u chunks of scratch",
                         kolo_plan_algo_name(p->algo), kolo_coll_name(p->coll), p->nranks, l->scratch);
    uint64_t tiles = KOLO_MAX(KOLO_DIV_UP(longest, tile), 1u);
    if (tiles > UINT32_MAX) return kolo_fail(KOLO_ERR_UNSUPPORTED, "an operation of too many tiles");
    run->replicas = (uint32_t)replicas;
    run->tile_bytes = (uint32_t)tile;
    run->tiles = (uint32_t)tiles;
    return KOLO_OK;
}

kolo_status_t kolo_cuda_plan_cut(const kolo_cuda_lowered_t *l, const kolo_plan_t *p, const kolo_exec_call_t *call,
                                 uint32_t resident, kolo_cuda_plan_args_t *a, kolo_cuda_plan_run_t *run)
{
    uint32_t most = KOLO_CUDA_PLAN_PAIRS / KOLO_MAX(l->pairs, 1u);
    a->elem = call->coll == KOLO_COLL_BARRIER ? 1 : (uint32_t)call->elem;
    a->uneven = call->send_counts || call->recv_counts;
    run->src_stride = a->l.c.src_stride;
    run->dst_stride = a->l.c.dst_stride;
    uint64_t longest = a->uneven ? fill_uneven(p, call, a) : fill_even(p, call, a, run);
    if (l->nodes) most = KOLO_MIN(most, KOLO_CUDA_PLAN_NODES / l->nodes);
    if (l->lanes) most = KOLO_MIN(most, KOLO_MIN(resident ? resident : KOLO_CUDA_GRID, KOLO_CUDA_GRID) / l->lanes);
    if (!most)
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "the %s plan for %s of %u ranks has %u lanes and %u queues to a rank: a GPU holds %u "
                         "blocks of a rank at once, and there are %u such queues",
                         kolo_plan_algo_name(p->algo), kolo_coll_name(p->coll), p->nranks, l->lanes,
                         l->pairs + l->nodes, resident, KOLO_CUDA_PLAN_QUEUES);
    return cut_tiles(l, p, longest, most, a, run);
}
