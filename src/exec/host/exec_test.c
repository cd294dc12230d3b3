/* SPDX-License-Identifier: Apache-2.0
 *
 * The flat loops and every plan algorithm, run by ranks as threads: right answers for all collectives, and errors
 * in words when ranks disagree, die or are told to stop.
 */
#include "algo/algo.h"
#include "base/test.h"
#include "base/test_time.h"
#include "exec/host/conformance.h"
#include "exec/host/task.h"
#include "prove/verify.h"
#include "wire/ll.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECONDS 20

/* ---- one case on all ranks ---- */

#define MOST_STEPS 512
static _Atomic uint32_t traced; /* runs whose steps were compared with the plan's */

typedef struct {
    fixture_t *fixture;
    case_t c;
    bool flat;  /* by the loops, not by the plan */
    bool tight; /* in slots that just have room for the lines */
    bool mixed; /* rank 0 as an exchange of two ranks, rank 1 by the interpreter */
    uint32_t
        late; /* 0: nobody; rank late - 1 has put its inputs, and does not go on before all others are through */
    _Atomic uint32_t put, through; /* how often */
    kolo_algo_t algo;
    bool fanout;
    uint32_t piece_bytes;
    char failure[FIXTURE_MAX_RANKS][1200];
} run_t;

static void plan_env(kolo_emit_env_t *env, int *zeros, int *ranks, const run_t *r, uint32_t rank)
{
    static const int first = 0;
    memset(env, 0, sizeof(*env));
    for (uint32_t i = 0; i < r->c.nranks; i++) zeros[i] = 0, ranks[i] = (int)i;
    ranks[FIXTURE_MAX_RANKS] = (int)r->c.nranks;
    env->nranks = r->c.nranks;
    env->rank = rank;
    env->root = r->c.call.root;
    env->nnodes = 1;
    env->node_of = zeros;
    env->node_first = &first;
    env->node_size = ranks + FIXTURE_MAX_RANKS;
    env->node_ranks = ranks;
    env->fanout = r->fanout;
    env->refs = true;
    env->lanes = 1;
}

static kolo_status_t bind(run_t *r, fixture_task_t *t, uint32_t rank, const fixture_call_t *call)
{
    if (r->flat) return fixture_bind_flat(r->fixture, t, rank, r->algo, call);
    kolo_emit_env_t env;
    int zeros[FIXTURE_MAX_RANKS], ranks[FIXTURE_MAX_RANKS + 1];
    kolo_plan_t *plan;
    plan_env(&env, zeros, ranks, r, rank);
    KOLO_TRY(kolo_algo_emit(call->coll, r->algo, &env, &plan));
    KOLO_TRY(kolo_plan_check(plan));
    return fixture_bind_plan(r->fixture, t, plan, call, r->piece_bytes);
}

/* Is every chunk of the plan there, and in one tile? Else a trace cannot be compared step by step. */
static bool is_traceable(const run_t *r)
{
    uint64_t count = r->c.call.count;
    if (r->c.nranks == 1) return false;
    if (r->flat) return r->c.call.coll == KOLO_COLL_BARRIER || (count && count % r->c.nranks == 0);
    return count >= 2 * (uint64_t)r->c.nranks && count * kolo_type_size(r->c.call.type) <= r->piece_bytes;
}

static const char *check_steps(run_t *r, uint32_t rank, const kolo_exec_trace_t *trace)
{
    kolo_emit_env_t env;
    int zeros[FIXTURE_MAX_RANKS], ranks[FIXTURE_MAX_RANKS + 1];
    kolo_plan_t *plan;
    plan_env(&env, zeros, ranks, r, rank);
    if (r->flat) env.fanout = true;
    if (kolo_algo_emit(r->c.call.coll, r->algo, &env, &plan) != KOLO_OK) return kolo_error_text();
    kolo_status_t status = kolo_prove_verify_trace(plan, 1, trace->steps, trace->count);
    kolo_plan_free(plan);
    if (status != KOLO_OK) return kolo_error_text();
    atomic_fetch_add(&traced, 1);
    return NULL;
}

static bool comes_to(_Atomic uint32_t *count, uint32_t number)
{
    uint64_t limit = kolo_deadline_ms(SECONDS * 1000);
    while (atomic_load(count) < number)
        if (kolo_now_ns() > limit || sched_yield() != 0) return false;
    return true;
}

/* Begins the operation on the late rank; the others wait until it has. */
static kolo_status_t begin(run_t *r, kolo_task_t *task, uint32_t rank, uint32_t round)
{
    bool moved;
    if (r->late != rank + 1)
        return comes_to(&r->put, round + 1) ? KOLO_OK : kolo_fail(KOLO_ERR_TIMEOUT, "no inputs");
    kolo_status_t status = task->step(task, &moved);
    atomic_fetch_add(&r->put, 1);
    if (status != KOLO_IN_PROGRESS) return kolo_fail(KOLO_ERR_INTERNAL, "rank %u did not wait", rank);
    if (comes_to(&r->through, (round + 1) * (r->c.nranks - 1))) return KOLO_OK;
    return kolo_fail(KOLO_ERR_TIMEOUT, "the others wait for rank %u, whose inputs they have", rank);
}

/* Two calls one after another on the same queues: what one leaves behind must not disturb the next. */
static void run_rank(void *arg, uint32_t rank)
{
    run_t *r = arg;
    r->failure[rank][0] = 0;
    for (uint64_t round = 0; round < 3; round++) {
        case_t c = r->c;
        case_buffers_t b;
        fixture_call_t call;
        fixture_task_t t = {0};
        c.seed += (uint32_t)round;
        c.call.operation = 100 + round;
        case_open(&c, rank, &b, &call);
        const char *wrong = NULL;
        kolo_trace_step_t steps[MOST_STEPS];
        kolo_exec_trace_t trace = {steps, 0, MOST_STEPS};
        kolo_status_t status = bind(r, &t, rank, &call);
        if (r->mixed && status == KOLO_OK && t.exchanged != (rank == 0))
            status = kolo_fail(KOLO_ERR_INTERNAL, "rank %u is on the wrong path", rank);
        if (is_traceable(r)) t.task.trace = &trace;
        if (r->late && status == KOLO_OK) status = begin(r, &t.task, rank, (uint32_t)round);
        if (status == KOLO_OK) status = fixture_run(r->fixture, &t, SECONDS);
        if (status != KOLO_OK)
            wrong = kolo_error_text();
        else
            wrong = case_check(&c, rank, &b);
        if (r->late != rank + 1) atomic_fetch_add(&r->through, 1);
        if (!wrong && is_traceable(r)) wrong = check_steps(r, rank, &trace);
        if (wrong) snprintf(r->failure[rank], sizeof(r->failure[rank]), "round %d: %s", (int)round, wrong);
        fixture_release(&t);
        case_close(&b);
        if (wrong) return;
    }
}

/* The lines of the longest message, side by side. */
static uint32_t least_slot(const run_t *r)
{
    uint64_t n = r->c.nranks, elem = kolo_type_size(r->c.call.type), bytes = r->c.call.count * elem;
    if (r->algo == KOLO_ALGO_DIRECT && r->c.call.coll == KOLO_COLL_ALL_REDUCE)
        bytes = KOLO_DIV_UP(r->c.call.count, n) * elem;
    else if (!kolo_coll_traits(r->c.call.coll)->src_by_rank)
        n = 1;
    return (uint32_t)(n * kolo_ll_lines(bytes) * sizeof(kolo_ll_line_t));
}

static void run_case(run_t *r, uint32_t depth)
{
    fixture_t f;
    if ((int)(r->c.seed / 13 % 100) >= kolo_test_steps(100)) return;
    /* Odd starts, some of them just below a wrap-around of the line and the slot numbers. */
    static const uint64_t starts[] = {0, (1ull << 32) - 4, UINT64_MAX - 3, 77};
    fixture_init(&f, r->c.nranks, depth, KOLO_ROUND_UP(r->piece_bytes ? r->piece_bytes : 64, 64u),
                 starts[r->c.seed % 4], !r->flat && !r->mixed && r->c.seed % 3 == 1);
    if (r->tight) f.ll_slot_bytes = least_slot(r);
    if (r->mixed) f.interprets = 1;
    if (r->mixed) f.pumped = (int)(r->c.seed % 3) - 1;
    r->fixture = &f;
    fixture_ranks(r->c.nranks, run_rank, r);
    fixture_fini(&f);
    for (uint32_t k = 0; k < r->c.nranks; k++)
        if (r->failure[k][0])
            fail_msg("%s %s, %u ranks, count %llu, type %d, op %d, root %u, %s, seed %u: %s",
                     kolo_plan_algo_name(r->algo), kolo_coll_name(r->c.call.coll), r->c.nranks,
                     (unsigned long long)r->c.call.count, (int)r->c.call.type, (int)r->c.call.op, r->c.call.root,
                     r->c.in_place ? "in place" : "out of place", r->c.seed, r->failure[k]);
}

static const uint32_t rank_counts[] = {1, 2, 3, 5, 8};
static uint32_t seed;

/* Varies type, operator, root, place and alignment from case to case. */
static void next_case(run_t *r, kolo_coll_t coll, uint32_t nranks, uint64_t count)
{
    seed = seed * 1664525u + 1013904223u;
    uint32_t h = seed >> 8;
    memset(r, 0, sizeof(*r));
    r->c.nranks = nranks;
    r->c.seed = h;
    r->c.call = (fixture_call_t){.coll = coll, .count = coll == KOLO_COLL_BARRIER ? 0 : count};
    r->c.call.type = coll == KOLO_COLL_BARRIER ? KOLO_INT8 : (kolo_type_t)(h % KOLO_TYPE_COUNT);
    r->c.call.op = kolo_coll_reduces(coll) ? (kolo_op_t)(h / 16 % KOLO_OP_BUILTIN_COUNT) : KOLO_SUM;
    if (!kolo_op_fits(r->c.call.op, r->c.call.type)) r->c.call.op = KOLO_SUM;
    /* Truth values are made where operands meet; of one rank the communicator makes them, without a plan. */
    if (nranks == 1 && (r->c.call.type == KOLO_BOOL || r->c.call.op >= KOLO_LAND)) {
        r->c.call.type = KOLO_UINT16;
        r->c.call.op = KOLO_BXOR;
    }
    r->c.call.root = coll == KOLO_COLL_REDUCE || coll == KOLO_COLL_BROADCAST || coll == KOLO_COLL_GATHER ||
                             coll == KOLO_COLL_SCATTER
                         ? h / 7 % nranks
                         : 0;
    r->c.in_place = h & 1;
    r->c.shift = h / 3 % 7;
}

static void flat_loops_give_right_answers(void **state)
{
    static const uint64_t counts[] = {0, 1, 2, 7, 9, 50, 111, 120};
    (void)state;
    for (int coll = 0; coll <= KOLO_COLL_BARRIER; coll++)
        for (size_t n = 1; n < KOLO_COUNTOF(rank_counts); n++)
            for (size_t k = 0; k < KOLO_COUNTOF(counts); k++) {
                run_t r;
                next_case(&r, (kolo_coll_t)coll, rank_counts[n], counts[k]);
                r.flat = true;
                for (size_t row = 0; row < kolo_algo_rows; row++) {
                    if (!kolo_algos[row].lines || kolo_algos[row].coll != (kolo_coll_t)coll) continue;
                    r.algo = kolo_algos[row].algo;
                    for (int tight = 0; tight < 2; tight++) {
                        r.tight = tight;
                        run_case(&r, 4);
                    }
                }
            }
    assert_true(atomic_exchange(&traced, 0) > 300);
}

/* An all_reduce in two steps waits once for a rank whose core is away, not for its result as well. */
static void what_a_late_rank_would_reduce_others_reduce(void **state)
{
    static const uint64_t counts[] = {7, 50, 120};
    (void)state;
    for (size_t n = 2; n < KOLO_COUNTOF(rank_counts); n++)
        for (size_t k = 0; k < KOLO_COUNTOF(counts); k++)
            for (uint32_t late = 1; late <= 2; late++) {
                run_t r;
                next_case(&r, KOLO_COLL_ALL_REDUCE, rank_counts[n], counts[k]);
                r.flat = true;
                r.algo = KOLO_ALGO_DIRECT;
                r.late = late;
                r.tight = k % 2;
                run_case(&r, 2);
            }
}

static uint32_t plan_depth(const run_t *r)
{
    kolo_emit_env_t env;
    int zeros[FIXTURE_MAX_RANKS], ranks[FIXTURE_MAX_RANKS + 1];
    kolo_plan_t *plan;
    plan_env(&env, zeros, ranks, r, 0);
    assert_int_equal(kolo_algo_emit(r->c.call.coll, r->algo, &env, &plan), KOLO_OK);
    uint32_t depth = 1;
    while (depth < plan->depth) depth *= 2;
    kolo_plan_free(plan);
    return depth;
}

/* Slots of 192 bytes: hundreds of elements make several tiles. */
static void every_plan_gives_right_answers(void **state)
{
    static const uint64_t counts[] = {0, 1, 7, 20, 301, 1000};
    (void)state;
    for (size_t row = 0; row < kolo_algo_rows; row++) {
        const kolo_algo_row_t *a = &kolo_algos[row];
        if (a->coll == KOLO_COLL_P2P) continue;
        for (size_t n = 0; n < KOLO_COUNTOF(rank_counts); n++)
            for (size_t k = 0; k < KOLO_COUNTOF(counts) * 2; k++) {
                run_t r;
                next_case(&r, a->coll, rank_counts[n], counts[k / 2]);
                r.algo = a->algo;
                r.fanout = k % 2;
                r.piece_bytes = 192;
                r.c.in_place &= a->in_place;
                kolo_emit_env_t env;
                int zeros[FIXTURE_MAX_RANKS], ranks[FIXTURE_MAX_RANKS + 1];
                plan_env(&env, zeros, ranks, &r, 0);
                if (!a->usable(&env)) continue;
                run_case(&r, plan_depth(&r));
            }
    }
    assert_true(atomic_exchange(&traced, 0) > 300);
}

/* The same slots go over the connections, so each end may do it its own way. */
static void an_exchange_of_two_ranks_may_be_interpreted_at_one_end(void **state)
{
    static const struct {
        kolo_coll_t coll;
        kolo_algo_t algo;
    } exchanges[] = {{KOLO_COLL_ALL_REDUCE, KOLO_ALGO_ONE_STEP},   {KOLO_COLL_ALL_GATHER, KOLO_ALGO_ONE_STEP},
                     {KOLO_COLL_ALL_GATHER, KOLO_ALGO_DIRECT},     {KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_ONE_STEP},
                     {KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_DIRECT}, {KOLO_COLL_ALL_TO_ALL, KOLO_ALGO_DIRECT}};
    (void)state;
    for (size_t row = 0; row < KOLO_COUNTOF(exchanges); row++)
        for (int k = 0; k < 150; k++) {
            run_t r;
            next_case(&r, exchanges[row].coll, 2, (uint64_t)k * 2);
            r.algo = exchanges[row].algo;
            r.fanout = k % 2;
            r.mixed = true;
            r.piece_bytes = 2432; /* of 8 bytes each at most 298 */
            run_case(&r, plan_depth(&r));
        }
    assert_true(atomic_exchange(&traced, 0) > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flat_loops_give_right_answers),
        cmocka_unit_test(what_a_late_rank_would_reduce_others_reduce),
        cmocka_unit_test(every_plan_gives_right_answers),
        cmocka_unit_test(an_exchange_of_two_ranks_may_be_interpreted_at_one_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
