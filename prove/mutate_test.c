/* SPDX-License-Identifier: Apache-2.0
 *
 * The verifier's own test: right plans are damaged in one place, and none of the damaged ones may pass unless it is
 * proved to be no damage. The proof compares what the rank executes as a partial order of steps: test_order.h.
 *
 * Where lanes or ranks share memory, an order may be changed without harm though the partial orders differ (one of
 * two sends to different ranks goes first, say). Such a mutant is tried on an oracle that does not know of clocks:
 * many random schedules, one piece at a time, with queues as long as stated and much longer, in which a lost order
 * shows as a wrong value. It counts as harmless if none of them goes wrong.
 */
#include "algo/algo.h"
#include "algo/test_shapes.h"
#include "prove/model.h"
#include "prove/test_mutate.h"
#include "prove/test_order.h"
#include "prove/test_plans.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>

#define MUTANTS 3000
#define MOST    12 /* ranks */
#define ORACLES 100

/* ---- originals ---- */

typedef struct {
    kolo_plan_t *plans[MOST];
    uint32_t n;
    bool in_place, any_order;
    int node_of[MOST];
    char name[128];
} original_t;

static kolo_status_t verify(const original_t *o, kolo_plan_t *const *plans)
{
    static const uint8_t empty[MOST * MOST / 8 + 1] = {0x52, 0x29, 0x94};
    kolo_verify_options_t v = {
        .rank_order = !o->any_order && kolo_coll_reduces(plans[0]->coll), .schedules = 1, .node_of = o->node_of};
    const kolo_plan_t *const *p = (const kolo_plan_t *const *)plans;
    KOLO_TRY(kolo_prove_verify(p, o->n, &v));
    if (plans[0]->coll == KOLO_COLL_BARRIER) return KOLO_OK;
    v.empty_parts = empty;
    KOLO_TRY(kolo_prove_verify(p, o->n, &v));
    v.empty_parts = NULL;
    v.tiles = 1;
    KOLO_TRY(kolo_prove_verify(p, o->n, &v));
    v.in_place = o->in_place;
    v.tiles = 0;
    return o->in_place ? kolo_prove_verify(p, o->n, &v) : KOLO_OK;
}

static void set_depth(original_t *o, uint32_t depth)
{
    for (uint32_t r = 0; r < o->n; r++) o->plans[r]->depth = depth;
}

/* The shortest queue with which it passes, so that a shorter one must not. */
static void tighten(original_t *o)
{
    uint32_t depth = o->plans[0]->depth;
    for (uint32_t d = 1; d < depth; d++) {
        set_depth(o, d);
        if (verify(o, o->plans) == KOLO_OK) return;
    }
    set_depth(o, depth);
}

static void free_original(original_t *o)
{
    for (uint32_t r = 0; r < o->n; r++) kolo_plan_free(o->plans[r]);
}

static void own_original(original_t *o)
{
    static const test_emit_fn_t emits[] = {emit_ring, emit_direct, emit_chain, emit_references, emit_barrier};
    uint32_t which = mutate_random(5);
    *o = (original_t){.n = 3 + mutate_random(5), .in_place = true, .any_order = which != 1};
    uint32_t root = mutate_random(o->n);
    snprintf(o->name, sizeof(o->name), "test plan %u, %u ranks, root %u", which, o->n, root);
    for (uint32_t r = 0; r < o->n; r++) {
        kolo_emit_env_t env = {.nranks = o->n, .rank = r, .root = root};
        assert_int_equal(emits[which](&env, &o->plans[r]), KOLO_OK);
    }
}

static bool table_original(original_t *o)
{
    static shape_env_t s;
    const kolo_algo_row_t *row = &kolo_algos[mutate_random((uint32_t)kolo_algo_rows)];
    uint32_t n = 3 + mutate_random(MOST - 4);
    if (row->coll == KOLO_COLL_P2P || !shape_make(&s, (shape_t)mutate_random(SHAPE_COUNT), n)) return false;
    s.env.root = mutate_random(n);
    s.env.fanout = mutate_random(2);
    if (!row->usable(&s.env)) return false;
    *o = (original_t){
        .n = n, .in_place = row->in_place, .any_order = row->commutative || !kolo_coll_reduces(row->coll)};
    memcpy(o->node_of, s.node_of, n * sizeof(*o->node_of));
    snprintf(o->name, sizeof(o->name), "%s/%s, %u ranks on %u nodes, root %u%s", kolo_coll_name(row->coll),
             kolo_plan_algo_name(row->algo), n, s.env.nnodes, s.env.root, s.env.fanout ? ", fanout" : "");
    for (uint32_t r = 0; r < n; r++) {
        s.env.rank = r;
        assert_int_equal(kolo_algo_emit(row->coll, row->algo, &s.env, &o->plans[r]), KOLO_OK);
    }
    return true;
}

/* ---- mutants ---- */

typedef struct {
    uint32_t made, found, equal, harmless, passed;
} count_t;

/* memcmp() wants no NULL even for nothing. */
static bool same_bytes(const void *a, const void *b, size_t bytes)
{
    return bytes == 0 || memcmp(a, b, bytes) == 0;
}

static bool same_struct(const kolo_plan_t *a, const kolo_plan_t *b)
{
    kolo_plan_t x = *a, y = *b;
    x.insns = y.insns = NULL;
    x.conns = y.conns = NULL;
    x.lanes = y.lanes = NULL;
    x.list = y.list = NULL;
    return same_bytes(&x, &y, sizeof(x)) && same_bytes(a->insns, b->insns, a->ninsns * sizeof(*a->insns)) &&
           same_bytes(a->conns, b->conns, a->nconns * sizeof(*a->conns)) &&
           same_bytes(a->lanes, b->lanes, a->nlanes * sizeof(*a->lanes)) &&
           same_bytes(a->list, b->list, a->nlist * sizeof(*a->list));
}

static kolo_status_t run_without_clocks(const original_t *o, kolo_verify_options_t *v, uint32_t seed)
{
    const kolo_plan_t *const *p = (const kolo_plan_t *const *)o->plans;
    kolo_model_t m;
    KOLO_TRY(kolo_model_init(&m, p, p, o->n, v));
    kolo_clock_fini(&m.clocks);
    kolo_status_t status = kolo_model_run(&m, KOLO_ORDER_RANDOM, seed);
    kolo_model_fini(&m);
    return status;
}

static bool harmless(original_t *o)
{
    uint32_t depth = o->plans[0]->depth;
    bool right = true;
    if (o->plans[0]->coll == KOLO_COLL_BARRIER) return false; /* what a barrier is for shows in clocks only */
    for (uint32_t k = 0; k < ORACLES && right; k++) {
        kolo_verify_options_t v = {
            .in_place = o->in_place && k % 2, .tiles = depth + 3, .seed = k, .node_of = o->node_of};
        set_depth(o, k % 4 < 2 ? depth : depth + 8);
        right = run_without_clocks(o, &v, k) == KOLO_OK;
    }
    set_depth(o, depth);
    return right;
}

static void report(const original_t *o, const kolo_plan_t *was, const kolo_plan_t *is, const char *damage)
{
    printf("PASSED with %s: %s\n", damage, o->name);
    kolo_plan_print(was, stdout);
    kolo_plan_print(is, stdout);
}

/* One mutant; false when the damage found nothing to change. */
static bool mutate(original_t *o, const damage_kind_t *kind, count_t *count)
{
    if (!kind->change) { /* shorter queue */
        uint32_t depth = o->plans[0]->depth;
        if (depth == 1) return false;
        set_depth(o, depth - 1);
        bool found = verify(o, o->plans) != KOLO_OK;
        set_depth(o, depth);
        count->made++;
        found ? count->found++ : count->passed++;
        return true;
    }
    uint32_t rank = mutate_random(o->n);
    kolo_plan_t *was = o->plans[rank], *is = mutate_copy(was);
    if (!kind->change(is) || same_struct(was, is)) {
        kolo_plan_free(is);
        return false;
    }
    o->plans[rank] = is;
    bool found = verify(o, o->plans) != KOLO_OK;
    count->made++;
    if (found) {
        count->found++;
    } else if (order_equal(was, is, o->any_order, o->in_place)) {
        count->equal++;
    } else if (harmless(o)) {
        count->harmless++;
    } else {
        count->passed++;
        report(o, was, is, kind->name);
    }
    o->plans[rank] = was;
    kolo_plan_free(is);
    return true;
}

static void no_damage_passes(void **state)
{
    (void)state;
    count_t counts[DAMAGE_KINDS] = {0}, all = {0};
    for (uint32_t made = 0; made < MUTANTS;) {
        original_t o;
        if (mutate_random(4) == 0)
            own_original(&o);
        else if (!table_original(&o))
            continue;
        if (verify(&o, o.plans) != KOLO_OK) fail_msg("%s: %s", o.name, kolo_error_text());
        tighten(&o);
        for (uint32_t k = 0; k < 40 && made < MUTANTS; k++) {
            uint32_t kind = mutate_random(DAMAGE_KINDS);
            made += mutate(&o, &damage_kinds[kind], &counts[kind]);
        }
        free_original(&o);
    }
    printf("%-22s %6s %6s %6s %8s %6s\n", "damage", "made", "found", "equal", "harmless", "passed");
    for (size_t k = 0; k < DAMAGE_KINDS; k++) {
        printf("%-22s %6u %6u %6u %8u %6u\n", damage_kinds[k].name, counts[k].made, counts[k].found,
               counts[k].equal, counts[k].harmless, counts[k].passed);
        all.made += counts[k].made;
        all.found += counts[k].found;
        all.equal += counts[k].equal;
        all.harmless += counts[k].harmless;
        all.passed += counts[k].passed;
    }
    printf("%-22s %6u %6u %6u %8u %6u\n", "all", all.made, all.found, all.equal, all.harmless, all.passed);
    assert_int_equal(all.passed, 0);
    assert_true(all.found > MUTANTS / 2);
    assert_true(all.harmless < MUTANTS / 20); /* the exception, not the rule */
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_damage_passes)};
    if (argc > 1) mutate_state ^= strtoull(argv[1], NULL, 0) * 0x9e3779b97f4a7c15u; /* another seed */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
