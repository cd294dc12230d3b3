/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel that interprets plans, on the fake driver: every algorithm that has a plan, with 2 to 8 ranks on one
 * host and on several, gives right answers, and the steps of each replica are those of the plan that the verifier
 * has proved. Ranks are streams; their regions are plain memory.
 */
#include "algo/test_shapes.h"
#include "base/test.h"
#include "exec/host/conformance.h"
#include "gpu/cuda/cuda.h"
#include "gpu/cuda/plan/plan.h"
#include "prove/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS    8u
#define RESIDENT 24u  /* blocks of a rank at once */
#define SLOT     2048 /* bytes of a slot, and of its lines: short, so that there are several tiles */
#define STEPS    16384u
#define PLANS_AT (1u << 20) /* in a region: before it are counters and meetings */

typedef struct {
    kolo_plan_t *plan[RANKS];
    kolo_cuda_lowered_t lowered[RANKS];
} form_t;
typedef struct { /* by references, and what is run where buffers are not reached; or one alone */
    form_t forms[2];
    int n;
} plans_t;

typedef struct {
    kolo_cuda_mailbox_t mailbox;
    void *region;
    kolo_cu_stream_t stream;
    case_buffers_t buffers;
    struct {
        kolo_cuda_trace_t head;
        kolo_cuda_step_t steps[STEPS];
    } trace;
} rank_t;

static const kolo_cuda_api_t *api;
static const kolo_cuda_kernels_t *kernels;
static rank_t ranks[RANKS];
static uint64_t region_bytes;
static uint32_t compared, runs, by_lines, by_lines_128, by_references, without;

static uint64_t slots_of(uint32_t nranks)
{
    return (uint64_t)nranks * KOLO_CUDA_PLAN_QUEUES * KOLO_CUDA_PLAN_DEPTH;
}

static int start(void **state)
{
    const kolo_cuda_device_t *device;
    bool pushed;
    const kolo_param_table_t *const tables[] = {&kolo_cuda_params, &kolo_exec_cuda_params};
    (void)state;
    if (kolo_params_load(tables, KOLO_COUNTOF(tables), NULL, NULL) != KOLO_OK) return 1;
    if (kolo_cuda_load(&api) != KOLO_OK || kolo_cuda_device(0, &device) != KOLO_OK) return 1;
    if (kolo_cuda_enter(device, &pushed) != KOLO_OK || kolo_cuda_kernels(device, 0, &kernels) != KOLO_OK) return 1;
    for (uint32_t n = 2; n <= RANKS; n++) {
        kolo_cuda_plan_layout_t l;
        kolo_cuda_plan_layout(n, PLANS_AT, &l);
        region_bytes = KOLO_MAX(region_bytes, l.slots + slots_of(n) * SLOT);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r].region = aligned_alloc(4096, KOLO_ROUND_UP(region_bytes, 4096u));
        if (!ranks[r].region || api->stream_create(&ranks[r].stream, 1)) return 1;
        memset(ranks[r].region, 0, region_bytes);
    }
    return 0;
}

static int stop(void **state)
{
    (void)state;
    for (uint32_t r = 0; r < RANKS; r++) {
        if (ranks[r].stream) api->stream_destroy(ranks[r].stream);
        free(ranks[r].region);
    }
    return 0;
}

/* ---- plans ---- */

static void plans_free(plans_t *p)
{
    for (int f = 0; f < p->n; f++)
        for (uint32_t r = 0; r < RANKS; r++) {
            kolo_plan_free(p->forms[f].plan[r]);
            free(p->forms[f].lowered[r].image);
        }
}

/* Emitted, verified, lowered. */
static void form_make(form_t *p, const kolo_algo_row_t *row, const shape_env_t *shape, uint32_t root)
{
    kolo_emit_env_t env = shape->env;
    kolo_verify_options_t options = {.schedules = 1, .tiles = 2, .skip_races = true, .node_of = shape->node_of};
    env.root = root;
    for (env.rank = 0; env.rank < env.nranks; env.rank++) {
        assert_int_equal(kolo_algo_emit(row->coll, row->algo, &env, &p->plan[env.rank]), KOLO_OK);
        assert_int_equal(kolo_plan_check(p->plan[env.rank]), KOLO_OK);
    }
    if (kolo_prove_verify((const kolo_plan_t *const *)p->plan, env.nranks, &options) != KOLO_OK)
        fail_msg("%s", kolo_error_text());
    for (uint32_t r = 0; r < env.nranks; r++)
        if (kolo_cuda_lower((const kolo_plan_t *const *)p->plan, env.nranks, r, &p->lowered[r]) != KOLO_OK)
            fail_msg("%s", kolo_error_text());
}

static void plans_make(plans_t *p, const kolo_algo_row_t *row, const shape_env_t *shape, uint32_t root)
{
    bool refs = row->algo == KOLO_ALGO_SINGLE_COPY;
    memset(p, 0, sizeof *p);
    p->n = refs ? 2 : 1;
    form_make(&p->forms[0], row, shape, root);
    assert_int_equal(p->forms[0].lowered[0].refs, refs);
    if (refs) form_make(&p->forms[1], kolo_algo_find(row->coll, KOLO_ALGO_DIRECT), shape, root);
}

/* ---- one operation ---- */

static void fill_call(const case_t *c, const fixture_call_t *f, kolo_exec_call_t *call)
{
    *call = (kolo_exec_call_t){.kind = KOLO_EXEC_COLL,
                               .coll = f->coll,
                               .op = f->op,
                               .root = (int)f->root,
                               .src = f->src,
                               .dst = f->dst,
                               .count = f->count,
                               .number = f->operation,
                               .word = kolo_signature(f->coll, (int)f->type, (int)f->op, f->root, f->count)};
    assert_int_equal(kolo_reducer_init(&call->reducer, f->type, f->op, c->nranks), KOLO_OK);
    call->elem = call->reducer.elem;
}

/* What a communicator's own code has made before (launch.c, expose.c). */
static void fill_common(const case_t *c, uint32_t rank, kolo_cuda_plan_args_t *a)
{
    kolo_cuda_args_t *k = &a->l.c;
    k->layout.nranks = c->nranks;
    k->layout.meetings = 65536;
    assert_true(k->layout.meetings + (uint64_t)RANKS * KOLO_CUDA_GRID * KOLO_CUDA_FLAG <= PLANS_AT);
    k->rank = rank;
    k->mailbox = (uint64_t)(uintptr_t)&ranks[rank].mailbox;
    for (uint32_t r = 0; r < c->nranks; r++) k->regions[r] = (uint64_t)(uintptr_t)ranks[r].region;
    kolo_cuda_plan_layout(c->nranks, PLANS_AT, &a->plan);
    a->plan.slot_bytes = a->plan.line_bytes = a->plan.line128_bytes = SLOT;
    a->plan.lines_most = c->seed / 32 % 3 ? (c->seed / 32 % 3 - 1) * UINT64_MAX : 2048; /* none, all, some */
    a->plan.lines128_most = c->seed / 128 % 2 * UINT64_MAX;
}

static void launch(const plans_t *p, const case_t *c, uint32_t rank, kolo_cuda_plan_args_t *a)
{
    rank_t *me = &ranks[rank];
    fixture_call_t f;
    kolo_exec_call_t call;
    uint32_t blocks = 0;
    case_open(c, rank, &me->buffers, &f);
    fill_call(c, &f, &call);
    memset(a, 0, sizeof *a);
    fill_common(c, rank, a);
    assert_int_equal(kolo_cuda_fill(&call, &a->l.c), KOLO_OK);
    for (int i = 0; i < p->n; i++) {
        const form_t *form = &p->forms[i];
        if (kolo_cuda_plan_cut(&form->lowered[rank], form->plan[rank], &call, RESIDENT, a, &a->runs[i]) != KOLO_OK)
            fail_msg("%s", kolo_error_text());
        a->runs[i].program = (uint64_t)(uintptr_t)form->lowered[rank].image;
        blocks = KOLO_MAX(blocks,
                          a->runs[i].replicas * (p->n > 1 ? form->lowered[rank].lanes : form->plan[rank]->nlanes));
    }
    assert_true(blocks <= RESIDENT);
    a->l.c.reachable = c->seed / 128 % 4 || rank != c->seed % c->nranks ? KOLO_CUDA_REACHABLE : 0;
    for (uint32_t r = 0; r < c->nranks; r++) {
        a->l.src[r] = a->l.c.src;
        a->l.dst[r] = a->l.c.dst;
    }
    a->trace = (uint64_t)(uintptr_t)&me->trace;
    me->trace.head = (kolo_cuda_trace_t){0, STEPS};
    void *params[] = {a};
    if (blocks)
        assert_int_equal(api->launch(kernels->collective[KOLO_CUDA_PLAN][c->call.type], blocks, 1, 1, 32, 1, 1, 0,
                                     me->stream, params, NULL),
                         0);
}

/* The steps of one replica, whose tiles are counted anew. */
static size_t steps_of(const rank_t *me, uint32_t replica, uint32_t replicas, kolo_trace_step_t *steps)
{
    size_t n = 0;
    for (uint32_t i = 0; i < me->trace.head.count; i++) {
        const kolo_cuda_step_t *s = &me->trace.steps[i];
        if (s->replica != replica) continue;
        steps[n++] = (kolo_trace_step_t){.peer = s->peer,
                                         .dir = s->dir,
                                         .node = s->node,
                                         .lane = s->lane,
                                         .buf = s->buf,
                                         .chunk = s->chunk,
                                         .tile = s->tile / replicas};
    }
    return n;
}

static void compare_steps(const form_t *p, uint32_t rank, const kolo_cuda_plan_run_t *run)
{
    static kolo_trace_step_t steps[STEPS];
    const rank_t *me = &ranks[rank];
    assert_true(me->trace.head.count <= STEPS);
    for (uint32_t k = 0; k < run->replicas; k++) {
        uint32_t tiles = run->tiles > k ? (run->tiles - k - 1) / run->replicas + 1 : 0;
        size_t n = steps_of(me, k, run->replicas, steps);
        if (kolo_prove_verify_trace(p->plan[rank], tiles, steps, n) != KOLO_OK)
            fail_msg("replica %u of %u: %s", k, run->replicas, kolo_error_text());
        compared++;
    }
}

/* Does every chunk have bytes in every tile? Else a trace has fewer steps than the plan. */
static bool is_traceable(const kolo_cuda_plan_run_t *run)
{
    return !run->parts.more && !run->subs[0].more && run->subs[0].each;
}

/* Which of its plans the case was run by: all ranks' buffers were reached, or not all. */
static int form_of(const plans_t *p, const case_t *c)
{
    return p->n > 1 && c->seed / 128 % 4 == 0;
}

static void run_case(const plans_t *p, const case_t *c, const char *name)
{
    kolo_cuda_plan_args_t args[RANKS];
    for (uint32_t r = 0; r < c->nranks; r++) launch(p, c, r, &args[r]);
    for (uint32_t r = 0; r < c->nranks; r++) assert_int_equal(api->stream_sync(ranks[r].stream), 0);
    for (uint32_t r = 0; r < c->nranks; r++) {
        const char *wrong = case_check(c, r, &ranks[r].buffers);
        if (wrong)
            fail_msg("%s %s, %u ranks, count %llu, type %d, op %d, root %u, %s, seed %u: %s", name,
                     kolo_coll_name(c->call.coll), c->nranks, (unsigned long long)c->call.count, (int)c->call.type,
                     (int)c->call.op, c->call.root, c->in_place ? "in place" : "out of place", c->seed, wrong);
        case_close(&ranks[r].buffers);
        int f = form_of(p, c);
        if (is_traceable(&args[r].runs[f])) compare_steps(&p->forms[f], r, &args[r].runs[f]);
    }
    runs++;
    bool turns = args[0].runs[0].tiles > args[0].runs[0].replicas;
    by_lines += args[0].runs[0].way == KOLO_CUDA_BY_LINES && turns;
    by_lines_128 += args[0].runs[0].way == KOLO_CUDA_BY_LINES_128 && turns;
    by_references += p->n > 1 && !form_of(p, c);
    without += p->n > 1 && form_of(p, c);
}

/* ---- cases ---- */

static uint32_t seed;

static uint32_t draw(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

/* Varies type, operator, place and alignment from case to case. */
static case_t next_case(const kolo_algo_row_t *row, uint32_t nranks, uint32_t root, uint64_t count)
{
    uint32_t h = draw();
    bool barrier = row->coll == KOLO_COLL_BARRIER;
    case_t c = {.nranks = nranks, .seed = h, .in_place = (h & 1) && row->in_place, .shift = h / 3 % 7};
    c.call = (fixture_call_t){.coll = row->coll, .count = barrier ? 0 : count, .root = root, .operation = h};
    c.call.type = barrier ? KOLO_UINT8 : (kolo_type_t)(h % KOLO_EXEC_DEVICE_TYPES);
    c.call.op = kolo_coll_reduces(row->coll) ? (kolo_op_t)(h / 16 % 5) : KOLO_SUM;
    return c;
}

/* No slot is under way; the numbers of slots begin at 0, or just below a wrap-around. */
static void renew_queues(uint32_t nranks)
{
    kolo_cuda_plan_layout_t l;
    uint32_t from = draw() % 2 ? 0 : UINT32_MAX - 9, queues = nranks * KOLO_CUDA_PLAN_QUEUES;
    kolo_cuda_plan_layout(nranks, PLANS_AT, &l);
    for (uint32_t r = 0; r < nranks; r++) {
        char *region = ranks[r].region;
        memset(region, 0, l.programs);
        memset(region + l.lines, 0, slots_of(nranks) * SLOT);
        memset(region + l.lines128, 0, slots_of(nranks) * SLOT);
        for (uint32_t q = 0; q < KOLO_CUDA_PLAN_WAYS * 2 * queues; q++)
            ((uint32_t *)(void *)(region + l.steps))[q] = from;
        for (uint32_t q = 0; q < KOLO_CUDA_PLAN_WAYS * queues; q++)
            *(uint32_t *)(void *)(region + l.credit + q * KOLO_CUDA_FLAG) = from;
    }
}

/* A count with which all chunks are equal, and so long that two replicas have several tiles each; then odd ones. */
static void run_row(const kolo_algo_row_t *row, const shape_env_t *shape)
{
    uint32_t n = shape->env.nranks, root = shape_has_root(row->coll) ? draw() % n : 0;
    plans_t p;
    plans_make(&p, row, shape, root);
    assert_true(p.forms[0].lowered[0].lines);
    uint64_t whole = kolo_coll_traits(row->coll)->whole ? p.forms[0].plan[0]->nparts : 1;
    case_t c = next_case(row, n, root, 0);
    c.call.count = row->coll == KOLO_COLL_BARRIER
                       ? 0
                       : whole * p.forms[0].plan[0]->nsubs * (17000 / kolo_type_size(c.call.type) + draw() % 64);
    run_case(&p, &c, kolo_plan_algo_name(row->algo));
    static const uint64_t odd[] = {0, 1, 7, 1003};
    for (size_t i = 0; i < KOLO_COUNTOF(odd); i++) {
        c = next_case(row, n, root, odd[i]);
        run_case(&p, &c, kolo_plan_algo_name(row->algo));
    }
    plans_free(&p);
}

/* One plan after another on the same queues, as in a communicator. */
static void run_rows(const shape_env_t *shape, bool fanout, bool *was_run)
{
    renew_queues(shape->env.nranks);
    for (size_t i = 0; i < kolo_algo_rows; i++) {
        const kolo_algo_row_t *row = &kolo_algos[i];
        shape_env_t s = *shape;
        if (row->coll == KOLO_COLL_P2P) continue;
        s.env.refs = shape->env.nnodes == 1;
        s.env.fanout = fanout;
        if (!row->usable(&s.env)) continue;
        run_row(row, &s);
        was_run[i] = true;
    }
}

static void run_all(shape_t first, shape_t last, bool fanout)
{
    bool *was_run = calloc(kolo_algo_rows, sizeof *was_run);
    assert_non_null(was_run);
    for (int shape = (int)first; shape <= (int)last; shape++)
        for (uint32_t n = 2; n <= RANKS; n += n < 4 ? 1 : 4) { /* 2, 3, 4, 8 */
            shape_env_t s;
            if (shape_make(&s, (shape_t)shape, n)) run_rows(&s, fanout, was_run);
        }
    for (size_t i = 0; i < kolo_algo_rows && first == SHAPE_ONE_NODE; i++)
        if (!was_run[i] && kolo_algos[i].coll != KOLO_COLL_P2P && kolo_algos[i].algo != KOLO_ALGO_HIERARCHICAL)
            fail_msg("%s for %s was never run", kolo_plan_algo_name(kolo_algos[i].algo),
                     kolo_coll_name(kolo_algos[i].coll));
    free(was_run);
}

static void every_plan_of_one_host_runs_as_it_was_verified(void **state)
{
    (void)state;
    compared = runs = by_lines = by_lines_128 = by_references = without = 0;
    run_all(SHAPE_ONE_NODE, SHAPE_ONE_NODE, false);
    assert_true(runs > 500);
    assert_true(by_lines > 20 && by_lines_128 > 20);
    assert_true(by_references > 20 && without > 5);
    assert_true(compared > 1000);
}

static void plans_that_spread_run_as_they_were_verified(void **state)
{
    (void)state;
    compared = 0;
    run_all(SHAPE_ONE_NODE, SHAPE_ONE_NODE, true);
    assert_true(compared > 1000);
}

/* Several lanes and deeper queues: what plans of several hosts have, here with every rank in reach. */
static void plans_of_several_hosts_run_as_they_were_verified(void **state)
{
    (void)state;
    compared = 0;
    run_all(SHAPE_PAIRS, SHAPE_UNEVEN, false);
    assert_true(compared > 1000);
}

/* One lane takes chunks 0 and 1 of DST, another hands on chunk `reads`; the turns of a loop count. */
static bool takes_lines(int32_t reads, bool same_lane)
{
    kolo_emit_env_t env = {.nranks = 2, .nnodes = 1};
    kolo_builder_t *b = kolo_builder_open(KOLO_COLL_ALL_REDUCE, KOLO_ALGO_RING, &env);
    kolo_plan_t *plan;
    bool takes;
    assert_non_null(b);
    kolo_builder_grid(b, 4, 1, 4, 4);
    kolo_builder_queue(b, 1, 2);
    kolo_builder_lane(b);
    kolo_builder_loop(b, 2);
    kolo_builder_recv(b, kolo_builder_rx(b, 1, 0), kolo_seg_loop(KOLO_BUF_DST, 0, 1, 4));
    kolo_builder_end(b);
    if (!same_lane) kolo_builder_lane(b);
    kolo_builder_send(b, kolo_builder_tx(b, 1, 0), kolo_seg(KOLO_BUF_DST, reads, 1));
    assert_int_equal(kolo_builder_finish(b, &plan), KOLO_OK);
    assert_int_equal(kolo_cuda_plan_takes_lines(plan, &takes), KOLO_OK);
    kolo_plan_free(plan);
    return takes;
}

static void no_lane_reads_by_lines_what_another_wrote(void **state)
{
    (void)state;
    assert_false(takes_lines(0, false));
    assert_false(takes_lines(1, false));
    assert_true(takes_lines(2, false));
    assert_true(takes_lines(1, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_plan_of_one_host_runs_as_it_was_verified),
        cmocka_unit_test(plans_that_spread_run_as_they_were_verified),
        cmocka_unit_test(plans_of_several_hosts_run_as_they_were_verified),
        cmocka_unit_test(no_lane_reads_by_lines_what_another_wrote),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
