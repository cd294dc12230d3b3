/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine on GPUs with several process sets from the start on: their operations are on streams of their own, so
 * one that a rank keeps from going on holds up no other set's.
 */
#include "engine_kit.h"

#include <stdio.h>
#include <stdlib.h>

/* Between two ranks each has a set of its own; among more, rank 0 has one with each of the others. */
static int pairs[KIT_RANKS][2];
static kolo_rank_list_t lists[KIT_RANKS];

void name_sets(kolo_engine_config_t *config, int nranks)
{
    int n = nranks > 2 ? nranks - 1 : nranks;
    for (int i = 0; i < n; i++) {
        pairs[i][0] = nranks > 2 ? 0 : i;
        pairs[i][1] = i + 1;
        lists[i] = (kolo_rank_list_t){pairs[i], nranks > 2 ? 2 : 1};
    }
    config->nsets = n;
    config->sets = lists;
}

/* The ids are in the order of the config. */
static bool is_in(int set)
{
    const kolo_rank_list_t *l = set ? &lists[set - 1] : NULL;
    return !l || l->ranks[0] == me.rank || l->ranks[l->count - 1] == me.rank;
}

static void meet_in(int set)
{
    int64_t handle;
    kolo_submission_t how = {.set = set};
    KIT_OK(kolo_engine_barrier(engine, &how, &handle));
    KIT_OK(kolo_engine_wait(engine, handle, WAIT_MS, NULL));
}

/* Rank 1's stream is held, and with it an operation of `held`, which waits on the others' GPUs: that of `free` is
 * complete all the same. */
static void hold_one(int held, int free, int64_t rows)
{
    twin_t a, b;
    int64_t handle, other, here;
    kolo_tensor_memory_t memory = {gpu.device, NULL, gpu.streams[1]};
    bool holds = me.rank == 1;
    used = 0;
    make_twin(&a, KOLO_FLOAT32, rows, 1, rows);
    make_twin(&b, KOLO_INT32, rows, 1, rows);
    CHECK(upload(&a) && upload(&b));
    kolo_tensor_t x = tensor(&a, "held", true), y = tensor(&b, "free", true);
    kolo_tensor_t xh = tensor(&a, "held.here", false), yh = tensor(&b, "free.here", false);
    kolo_submission_t how = {.set = held, .memory = holds ? &memory : NULL};
    if (holds) CHECK(kit_hold(&gpu, gpu.streams[1]));
    if (is_in(held)) {
        KIT_OK(kolo_engine_all_reduce(engine, &x, KOLO_SUM, 1, 1, &how, &handle));
        meet_in(held); /* it has been queued */
    }
    how = (kolo_submission_t){.set = free};
    if (is_in(free)) {
        KIT_OK(kolo_engine_all_reduce(engine, &y, KOLO_SUM, 1, 1, &how, &other));
        CHECK(wait_for(other, true));
    }
    meet_in(0);
    if (holds) kit_let_go(&gpu);
    if (is_in(held)) CHECK(wait_for(handle, true));
    if (is_in(held)) {
        how.set = held;
        KIT_OK(kolo_engine_all_reduce(engine, &xh, KOLO_SUM, 1, 1, &how, &here));
        CHECK(wait_for(here, false) && kit_sync(&gpu, gpu.streams[1]) && fetch(&a) && same(&a));
    }
    if (is_in(free)) {
        how.set = free;
        KIT_OK(kolo_engine_all_reduce(engine, &yh, KOLO_SUM, 1, 1, &how, &here));
        CHECK(wait_for(here, false) && fetch(&b) && same(&b));
    }
    free_twin(&a), free_twin(&b);
}

/* Tensors of all sets by turns, short and long, packed and alone, before any of them is waited for. */
static void mix_sets(int nsets)
{
    enum { MANY = 60 };
    static const kolo_type_t types[] = {KOLO_FLOAT32, KOLO_INT32, KOLO_INT8};
    static twin_t t[MANY];
    static char names[MANY][2][24];
    int64_t handles[MANY][2];
    for (int round = 0; round < 4; round++) {
        used = 0;
        for (int i = 0; i < MANY; i++) {
            int64_t rows = i % 10 == 9 ? 60000 : i % 3 == 0 ? 3000 : 1 + i;
            make_twin(&t[i], types[i / nsets % 3], rows, 1, rows);
            CHECK(upload(&t[i]));
        }
        for (int i = 0; i < MANY; i++) {
            kolo_submission_t how = {.set = i % nsets};
            if (!is_in(how.set)) continue;
            for (int there = 0; there < 2; there++) {
                snprintf(names[i][there], sizeof names[i][there], "sets.%d.%d", there, i);
                kolo_tensor_t x = tensor(&t[i], names[i][there], there);
                KIT_OK(kolo_engine_all_reduce(engine, &x, KOLO_SUM, 1, 1, &how, &handles[i][there]));
            }
        }
        for (int i = 0; i < MANY; i++) {
            if (is_in(i % nsets)) {
                CHECK(wait_for(handles[i][0], false));
                CHECK(wait_for(handles[i][1], true));
                if (!fetch(&t[i]) || !same(&t[i])) KIT_FAIL("tensor %d of set %d: wrong", i, i % nsets);
            }
            free_twin(&t[i]);
        }
    }
}

void run_sets(void)
{
    int free = me.size > 2 ? 2 : 1, held = me.size > 2; /* two ranks: of both, and rank 0's own */
    mix_sets(me.size > 2 ? me.size : me.size + 1);      /* communicators are made while nothing is held */
    hold_one(held, free, 1000);
    hold_one(held, free, 200000);
    if (me.size > 2) hold_one(0, free, 1000);
    meet_in(0); /* nobody shuts the engine down before */
}
