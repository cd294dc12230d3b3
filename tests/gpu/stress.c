/* SPDX-License-Identifier: Apache-2.0
 *
 * Random calls. See conform.h. All ranks draw the same numbers from the seed, which is printed with what goes
 * wrong.
 */
#include "cases.h"
#include "conform.h"

#include <stdio.h>
#include <string.h>

#define SLOTS 6

/* From 0 to `most`, small ones as often as large ones. */
static size_t draw_count(uint64_t *state, size_t most)
{
    int bits = 0;
    while (bits < 40 && (size_t)1 << bits < most) bits++;
    size_t n = kit_random(state) & (((size_t)1 << kit_random(state) % (uint64_t)(bits + 1)) - 1);
    return n < most ? n : most;
}

static case_t draw(kit_team_t *t, uint64_t *state, size_t room)
{
    int n = t->ranks[0].nranks;
    case_t c = {.kind = (case_kind_t)(kit_random(state) % CASE_KINDS),
                .type = (kolo_type_t)(kit_random(state) % VALUES_TYPES)};
    c.op = (int)(kit_random(state) % (VALUES_PREMUL + 1));
    c.root = (int)(kit_random(state) % (uint64_t)n);
    c.in_place = case_has_place(c.kind) && kit_random(state) & 1;
    c.skew = kit_random(state) % 4;
    c.stream = (int)(kit_random(state) % KIT_STREAMS);
    c.values = kit_random(state) & 1 ? VALUES_ROUGH : VALUES_EXACT;
    c.seed = kit_random(state);
    if (c.kind == CASE_RING && n == 1) c.kind = CASE_ALL_REDUCE;
    size_t most = (room - 8192) / 2 / kolo_type_size(c.type) / (size_t)n / 8 * 7;
    c.count = draw_count(state, most > 64 ? most - 64 : 0);
    if (t->options->quick && c.count > 20000) c.count = 20000 + c.count % 1000;
    return c;
}

static bool step(kit_team_t *t, uint64_t *state, size_t room)
{
    case_t cases[SLOTS];
    char text[256], all[64];
    int n = 1 + (int)(kit_random(state) % SLOTS);
    bool called = true;
    for (int i = 0; i < n; i++) cases[i] = draw(t, state, room);
    for (int i = 0; i < n && called; i++) called = case_queue(t, &cases[i], (size_t)i * room);
    bool good = called;
    for (int i = 0; i < n && good; i++) good = case_sync(t, &cases[i]);
    for (int i = 0; i < n && good; i++) good = case_check(t, &cases[i], (size_t)i * room);
    for (int i = 0; i < n && !good; i++) {
        case_describe(&cases[i], text, sizeof text);
        KIT_FAIL("rank %d: call %d of %d was %s", t->ranks[0].rank, i + 1, n, text);
    }
    if (!called) kit_give_up(t);
    snprintf(all, sizeof all, "step %d of seed %llu", t->number, (unsigned long long)t->options->seed);
    return kit_case_end(t, good, all) && good;
}

bool conform_stress(kit_team_t *t)
{
    uint64_t state = t->options->seed, end = kit_now_ms() + (uint64_t)(t->options->stress_s * 1000);
    size_t room = t->ranks[0].room / SLOTS / 512 * 512;
    atomic_store(&t->shared->last_step, -1);
    if (!kit_meet(t)) return false;
    for (int i = 0;; i++) {
        if (!step(t, &state, room)) return false;
        int last = atomic_load(&t->shared->last_step);
        if (last >= 0 && i >= last) return true;
        if (last < 0 && kit_leads(t) && kit_now_ms() > end) atomic_store(&t->shared->last_step, i + 2);
    }
}

/* ---- a chain of calls on the same memory ---- */

#define LINKS 24
#define CHAIN 40000 /* elements */

/* Rank r's element i is r + i; each sum multiplies what it covers by the number of ranks. */
static bool chain(kit_team_t *t, uint64_t *state)
{
    size_t counts[LINKS];
    void *stream[KIT_RANKS];
    bool good = true;
    int links = 1 + (int)(kit_random(state) % LINKS), which = (int)(kit_random(state) % KIT_STREAMS);
    uint64_t n = (uint64_t)t->ranks[0].nranks;
    for (int i = 0; i < links; i++) counts[i] = draw_count(state, kit_random(state) % 8 ? 600 : CHAIN);
    for (int i = 0; i < t->n; i++) {
        kit_rank_t *r = &t->ranks[i];
        uint64_t *data = (uint64_t *)(void *)r->image;
        stream[i] = r->streams[which];
        for (size_t k = 0; k < CHAIN; k++) data[k] = (uint64_t)r->rank + k;
        good = kit_upload(r, 0, CHAIN * 8, stream[i]) && good;
    }
    for (int l = 0; l < links; l++) {
        if (t->n > 1) good = KIT_OK(kolo_group_start()) && good;
        for (int i = 0; i < t->n; i++) {
            kit_rank_t *r = &t->ranks[i];
            good = KIT_OK(kolo_all_reduce(r->buffer, r->buffer, counts[l], KOLO_UINT64, KOLO_SUM, r->comm,
                                          stream[i])) &&
                   good;
        }
        if (t->n > 1) good = KIT_OK(kolo_group_end()) && good;
    }
    if (!good) kit_give_up(t);
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        const uint64_t *back = (const uint64_t *)(const void *)r->back;
        good = kit_download(r, 0, CHAIN * 8, stream[i]) && kit_sync(r, stream[i]);
        for (size_t k = 0; k < CHAIN && good; k++) {
            uint64_t want = (uint64_t)r->rank + k;
            bool first = true;
            for (int l = 0; l < links; l++) {
                if (k >= counts[l]) continue;
                want = first ? n * (n - 1) / 2 + n * k : want * n;
                first = false;
            }
            if (back[k] != want) good = KIT_FAIL("rank %d: element %zu is wrong after %d calls", r->rank, k, links);
        }
    }
    return good;
}

bool conform_chain(kit_team_t *t)
{
    uint64_t state = t->options->seed;
    char text[64];
    for (uint64_t done = 0; done < t->options->calls; done += LINKS / 2) {
        bool good = chain(t, &state);
        snprintf(text, sizeof text, "chain %d of seed %llu", t->number, (unsigned long long)t->options->seed);
        if (!kit_case_end(t, good, text)) return false;
    }
    return true;
}

/* ---- memory that comes and goes ---- */

#define ALLOCATIONS 24
#define FRESH_BYTES ((size_t)256 << 10)

/* Every other call is on memory that is new, longer or shorter than what was there before, at an address that
 * others may have seen; the rest on what was used some calls ago. */
static bool fresh(kit_team_t *t, uint64_t *state, void *buffers[KIT_RANKS][ALLOCATIONS])
{
    int which = (int)(kit_random(state) % ALLOCATIONS);
    bool new = kit_random(state) & 1, good = true;
    size_t bytes = FRESH_BYTES << kit_random(state) % 6;
    case_t c = draw(t, state, FRESH_BYTES);
    for (int i = 0; i < t->n; i++) {
        kit_rank_t *r = &t->ranks[i];
        if (new) {
            kit_free(r, buffers[i][which]);
            buffers[i][which] = NULL;
        }
        if (!buffers[i][which]) buffers[i][which] = kit_alloc(r, bytes);
        r->buffer = buffers[i][which];
        good = r->buffer && good;
    }
    return good && case_run(t, &c);
}

/* After short calls nobody keeps what others have freed. */
static bool forgets(kit_team_t *t)
{
    case_t c = {.kind = CASE_ALL_REDUCE, .count = 4, .type = KOLO_INT32, .op = KOLO_SUM, .seed = 5};
    bool good = true;
    for (int i = 0; i < 200 && good; i++) good = case_run(t, &c);
    int mapped = kit_foreign();
    if (mapped > 0) good = KIT_FAIL("rank %d still maps %d allocations that were freed", t->ranks[0].rank, mapped);
    return kit_case_end(t, good, "freed memory is given up by those who had mapped it") && good;
}

bool conform_fresh(kit_team_t *t)
{
    static void *all[KIT_RANKS][KIT_RANKS][ALLOCATIONS]; /* by the team's first rank */
    void *(*buffers)[ALLOCATIONS] = all[t->ranks[0].rank];
    char *was[KIT_RANKS];
    size_t room = t->ranks[0].room;
    uint64_t state = t->options->seed;
    bool good = true;
    for (int i = 0; i < t->n; i++) {
        was[i] = t->ranks[i].buffer;
        t->ranks[i].room = FRESH_BYTES;
    }
    for (int k = 0; k < t->options->fresh && good; k++) good = fresh(t, &state, buffers);
    for (int i = 0; i < t->n; i++) {
        for (int k = 0; k < ALLOCATIONS; k++) kit_free(&t->ranks[i], buffers[i][k]);
        t->ranks[i].buffer = was[i];
        t->ranks[i].room = room;
    }
    return good && forgets(t);
}
