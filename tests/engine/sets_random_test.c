/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs over process sets that overlap: each seed makes sets, and epochs of tensors in all of them, some
 * in groups, some that only those submit who have not joined, and changes of the sets in the midst of it. Every
 * rank goes through its part in an order of its own and waits only at the end. All must complete, with the sums of
 * those who contributed. Arguments: the number of seeds, and the first
 * one.
 */
#include "engine/kit/engines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 7, SETS = 5, ITEMS = 8, EPOCHS = 25, STEPS = SETS * (ITEMS + 1) + 1, LENGTH = 40, GROUP = 3 };

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static int below(uint64_t *state, int n)
{
    return (int)(next_random(state) % (uint64_t)n);
}

typedef enum { SUM, ALIKE, BARRIER } kind_t; /* ALIKE: adasum of what is the same everywhere */

/* One set in one epoch: the same on all ranks. */
typedef struct {
    int id, size, members[RANKS]; /* id -1: not there */
    int nitems, length[ITEMS];
    kind_t kind[ITEMS];
    bool grouped;    /* the first GROUP items are one */
    bool joins;      /* every member joins at the end, after as many items as in: */
    int part[RANKS]; /* by member */
} scene_t;

typedef struct {
    int size;
    scene_t sets[SETS];
    int ids; /* given so far */
    enum { NOTHING, ADD, REMOVE } change;
    int which;
} program_t;

/* ---- programs ---- */

static void pick_members(uint64_t *s, scene_t *t, int size)
{
    t->size = 0;
    for (int r = 0; r < size; r++)
        if (below(s, 5) < 3) t->members[t->size++] = r;
    if (t->size == 0) t->members[t->size++] = below(s, size);
}

static bool same_members(const scene_t *a, const scene_t *b)
{
    return a->size == b->size && memcmp(a->members, b->members, (size_t)a->size * sizeof(int)) == 0;
}

/* Is there another set of these ranks? */
static bool is_there(const program_t *p, const scene_t *t)
{
    bool there = false;
    for (int i = 0; i < SETS; i++) there |= &p->sets[i] != t && p->sets[i].id >= 0 && same_members(&p->sets[i], t);
    return there;
}

static void make_items(uint64_t *s, scene_t *t)
{
    int barrier = below(s, 2 * ITEMS);
    t->nitems = below(s, ITEMS + 1);
    t->joins = below(s, 3) == 0;
    t->grouped = t->nitems >= GROUP && below(s, 2);
    for (int i = 0; i < t->nitems; i++) {
        bool in_group = t->grouped && i < GROUP;
        t->kind[i] = i == barrier && !in_group ? BARRIER : !in_group && below(s, 5) == 0 ? ALIKE : SUM;
        t->length[i] = 1 + below(s, LENGTH);
    }
    for (int m = 0; m < t->size; m++) {
        t->part[m] = t->joins ? below(s, t->nitems + 1) : t->nitems;
        if (t->grouped && t->part[m] < GROUP) t->part[m] = 0;
    }
}

static void make_plain(scene_t *t)
{
    t->joins = false;
    for (int m = 0; m < t->size; m++) t->part[m] = t->nitems;
}

/* Of the sets that are there, which change while the others work. */
static void make_epoch(uint64_t *s, program_t *p)
{
    p->change = NOTHING;
    p->which = 1 + below(s, SETS - 1);
    scene_t *t = &p->sets[p->which];
    if (t->id < 0) {
        p->change = ADD;
        pick_members(s, t, p->size);
    } else if (below(s, 3) == 0) {
        p->change = REMOVE;
    }
    for (int i = 0; i < SETS; i++)
        if (p->sets[i].id >= 0) make_items(s, &p->sets[i]);
    if (p->change == REMOVE) {
        t->nitems = 0;
        t->joins = false;
    }
    if (p->change != NOTHING && p->sets[0].joins) make_plain(&p->sets[0]); /* else it comes after a join */
}

/* ---- one rank ---- */

typedef struct {
    erank_t *r;
    const program_t *p;
    int mine[SETS]; /* this rank's place in each set, -1: not in it */
    float data[SETS][ITEMS][LENGTH];
    int64_t handles[SETS][ITEMS + 1]; /* the last one of a join */
    int64_t lengths[SETS][ITEMS];
    char names[ITEMS][8];
} run_t;

static float value(kind_t kind, int member, int item, int k)
{
    return (float)(kind == ALIKE ? 1 + (item + k) % 7 : 1 + (member * 5 + item + k) % 9);
}

static kolo_tensor_t make_tensor(run_t *run, int set, int i)
{
    const scene_t *t = &run->p->sets[set];
    run->lengths[set][i] = t->length[i];
    for (int k = 0; k < t->length[i]; k++) run->data[set][i][k] = value(t->kind[i], run->mine[set], i, k);
    return float_tensor(run->names[i], run->data[set][i], &run->lengths[set][i]);
}

static void submit(run_t *run, int set, int i)
{
    const scene_t *t = &run->p->sets[set];
    const kolo_submission_t how = {.set = t->id};
    kolo_tensor_engine_t e = run->r->engine;
    int64_t *handle = &run->handles[set][i];
    kolo_tensor_t tensors[GROUP];
    if (i == ITEMS) {
        EXPECT_OK(kolo_engine_join(e, &how, handle));
    } else if (t->kind[i] == BARRIER) {
        EXPECT_OK(kolo_engine_barrier(e, &how, handle));
    } else if (t->grouped && i < GROUP) {
        for (int k = 0; k < GROUP; k++) tensors[k] = make_tensor(run, set, k);
        EXPECT_OK(kolo_engine_all_reduce_group(e, tensors, GROUP, KOLO_SUM, 1, 1, &how, handle));
    } else {
        tensors[0] = make_tensor(run, set, i);
        EXPECT_OK(
            kolo_engine_all_reduce(e, tensors, t->kind[i] == ALIKE ? KOLO_ADASUM : KOLO_SUM, 1, 1, &how, handle));
    }
}

static void change_sets(run_t *run)
{
    const program_t *p = run->p;
    const scene_t *t = &p->sets[p->which];
    int shuffled[RANKS], id = -1;
    if (p->change == REMOVE) EXPECT_OK(kolo_engine_remove_set(run->r->engine, t->id));
    if (p->change != ADD) return;
    for (int i = 0; i < t->size; i++) shuffled[i] = t->members[(i + run->r->rank) % t->size];
    kolo_status_t status = kolo_engine_add_set(run->r->engine, shuffled, t->size, &id);
    if (is_there(p, t))
        EXPECT_IS(KOLO_ERR_INVALID_USAGE, status);
    else
        EXPECT(status == KOLO_OK && id == p->ids + 1);
}

typedef struct {
    int set, item; /* set -1: the change */
} step_t;

/* This rank's part, but for joins: they come last in their set. */
static int list_steps(const run_t *run, step_t *steps)
{
    int n = 0;
    if (run->p->change != NOTHING) steps[n++] = (step_t){-1, 0};
    for (int set = 0; set < SETS; set++) {
        const scene_t *t = &run->p->sets[set];
        if (t->id < 0 || run->mine[set] < 0) continue;
        for (int i = 0; i < t->part[run->mine[set]] && i < t->nitems; i++)
            if (!t->grouped || i == 0 || i >= GROUP) steps[n++] = (step_t){set, i};
    }
    return n;
}

static void take_steps(run_t *run, uint64_t *s)
{
    step_t steps[STEPS];
    int n = list_steps(run, steps), left[SETS] = {0};
    for (int i = 0; i < n; i++)
        if (steps[i].set >= 0) left[steps[i].set]++;
    for (int set = 0; set < SETS; set++) {
        const scene_t *t = &run->p->sets[set];
        if (t->id >= 0 && run->mine[set] >= 0 && t->joins && left[set] == 0) submit(run, set, ITEMS);
    }
    while (n > 0) {
        int i = below(s, n), set = steps[i].set, item = steps[i].item;
        steps[i] = steps[--n];
        if (below(s, 60) == 0) nap_ms(1);
        if (set < 0) {
            change_sets(run);
            continue;
        }
        submit(run, set, item);
        if (--left[set] == 0 && run->p->sets[set].joins) submit(run, set, ITEMS);
    }
}

static float expected(const scene_t *t, int i, int k)
{
    float sum = 0;
    if (t->kind[i] == ALIKE) return value(ALIKE, 0, i, k);
    for (int m = 0; m < t->size; m++)
        if (i < t->part[m]) sum += value(SUM, m, i, k);
    return sum;
}

static void check_set(run_t *run, int set)
{
    const scene_t *t = &run->p->sets[set];
    kolo_completion_t c;
    for (int i = 0; i < t->part[run->mine[set]] && i < t->nitems; i++) {
        if (!EXPECT_OK(kolo_engine_wait(run->r->engine, run->handles[set][i], WAIT_MS, NULL))) return;
        for (int k = 0; k < t->length[i] && t->kind[i] != BARRIER; k++)
            if (run->data[set][i][k] != expected(t, i, k)) {
                fprintf(stderr, "set %d item %d element %d: %g, expected %g\n", t->id, i, k,
                        (double)run->data[set][i][k], (double)expected(t, i, k));
                EXPECT(!"the sum is right");
                return;
            }
    }
    if (!t->joins) return;
    EXPECT_OK(kolo_engine_wait(run->r->engine, run->handles[set][ITEMS], WAIT_MS, &c));
    EXPECT(c.last_joined >= 0 && c.last_joined < t->size);
}

static void settle_change(program_t *p)
{
    scene_t *t = &p->sets[p->which];
    if (p->change == REMOVE) t->id = -1;
    if (p->change == ADD && !is_there(p, t)) t->id = ++p->ids;
}

static void run_epoch(run_t *run, uint64_t *mine)
{
    for (int set = 0; set < SETS; set++) {
        const scene_t *t = &run->p->sets[set];
        run->mine[set] = -1;
        for (int m = 0; m < t->size; m++)
            if (t->members[m] == run->r->rank) run->mine[set] = m;
    }
    take_steps(run, mine);
    for (int k = 0, first = below(mine, SETS); k < SETS; k++) {
        int set = (first + k) % SETS;
        if (run->p->sets[set].id >= 0 && run->mine[set] >= 0) check_set(run, set);
    }
}

static void run_program(erank_t *r)
{
    uint64_t seed = *(const uint64_t *)r->arg, common = seed * 2654435761u + 88172645463325252ull;
    uint64_t mine = common ^ (uint64_t)(r->rank + 1) << 32;
    run_t *run = calloc(1, sizeof *run);
    program_t *p = calloc(1, sizeof *p);
    p->size = p->sets[0].size = r->size;
    for (int i = 0; i < r->size; i++) p->sets[0].members[i] = i;
    for (int i = 1; i < SETS; i++) p->sets[i].id = -1;
    run->r = r;
    run->p = p;
    for (int i = 0; i < ITEMS; i++) snprintf(run->names[i], sizeof run->names[i], "t%d", i);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        make_epoch(&common, p);
        run_epoch(run, &mine);
        settle_change(p);
    }
    free(p);
    free(run);
}

static uint64_t seeds = 12, first_seed = 1;

static void random_programs_over_sets_that_overlap(void **state)
{
    static const int64_t capacities[] = {1024, 0, 3}, thresholds[] = {128 << 20, 100};
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + seeds; seed++) {
        kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
        config.cache_capacity = capacities[seed % 3];
        config.fusion_threshold = thresholds[seed / 3 % 2];
        int failures = run_engines(2 + (int)(seed % (RANKS - 1)), &config, run_program, &seed);
        if (failures) fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        assert_int_equal(failures, 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_programs_over_sets_that_overlap)};
    if (argc > 1) seeds = strtoull(argv[1], NULL, 10);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    seeds = (uint64_t)kolo_test_steps((int)seeds);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
