/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of buffers: the parts of the v forms lie in memory of their own, in any order, with other data between
 * them.
 */
#include "kit/ranks.h"

#include <stdlib.h>
#include <string.h>

#define RANKS 3
#define LARGE 70000u

typedef struct {
    int32_t *memory, *source, *out[RANKS], *in[RANKS];
    size_t counts[RANKS], out_at[RANKS], in_at[RANKS], room;
    int32_t *out_base, *in_base;
} lists_t;

/* Places, from the low addresses: out 2, source, in 0, out 1, in 2, out 0, in 1. */
static void lists_make(lists_t *l, size_t unit)
{
    l->room = 4 * unit;
    l->memory = malloc(7 * l->room * sizeof *l->memory);
    int32_t *places[7];
    for (int i = 0; i < 7; i++) places[i] = l->memory + (size_t)i * l->room;
    l->out[2] = l->out_base = places[0];
    l->source = places[1];
    l->in[0] = l->in_base = places[2];
    l->out[1] = places[3];
    l->in[2] = places[4];
    l->out[0] = places[5];
    l->in[1] = places[6];
    for (size_t i = 0; i < 7 * l->room; i++) l->memory[i] = -1;
    for (int r = 0; r < RANKS; r++) {
        l->counts[r] = unit * (size_t)(r + 1);
        l->out_at[r] = (size_t)(l->out[r] - l->out_base);
        l->in_at[r] = (size_t)(l->in[r] - l->in_base);
    }
}

static void fill(int32_t *at, size_t count, int value)
{
    for (size_t i = 0; i < count; i++) at[i] = value;
}

/* The part and nothing behind it. */
static bool holds(const lists_t *l, const int32_t *at, size_t count, int value)
{
    for (size_t i = 0; i < count; i++)
        if (at[i] != value) return false;
    return at + count == l->memory + 7 * l->room || at[count] == -1;
}

static void use_lists(rank_t *r)
{
    for (size_t unit = 1; unit <= LARGE; unit *= LARGE) {
        lists_t l;
        lists_make(&l, unit);
        size_t mine = l.counts[r->rank], same[RANKS] = {mine, mine, mine};
        fill(l.source, mine, 10 + r->rank);
        EXPECT_OK(kolo_all_gatherv(l.source, l.out_base, l.counts, l.out_at, KOLO_INT32, r->comm, NULL));
        for (int k = 0; k < RANKS; k++) EXPECT(holds(&l, l.out[k], l.counts[k], 10 + k));
        fill(l.source, mine, 20 + r->rank);
        EXPECT_OK(kolo_gatherv(l.source, l.out_base, l.counts, l.out_at, KOLO_INT32, 1, r->comm, NULL));
        for (int k = 0; k < RANKS && r->rank == 1; k++) EXPECT(holds(&l, l.out[k], l.counts[k], 20 + k));
        for (int k = 0; k < RANKS; k++) fill(l.out[k], l.counts[k], 30 + k);
        EXPECT_OK(kolo_scatterv(l.out_base, l.counts, l.out_at, l.source, KOLO_INT32, 0, r->comm, NULL));
        EXPECT(holds(&l, l.source, mine, 30 + r->rank));
        for (int k = 0; k < RANKS; k++) fill(l.out[k], l.counts[k], 10 * r->rank + k);
        EXPECT_OK(
            kolo_all_to_allv(l.out_base, l.counts, l.out_at, l.in_base, same, l.in_at, KOLO_INT32, r->comm, NULL));
        for (int k = 0; k < RANKS; k++) EXPECT(holds(&l, l.in[k], mine, 10 * k + r->rank));
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT,
                     kolo_all_gatherv(l.out[1] + 1, l.out_base, l.counts, l.out_at, KOLO_INT32, r->comm, NULL),
                     "source and destination overlap");
        free(l.memory);
    }
}

static void parts_may_lie_apart(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(RANKS, use_lists, NULL), 0);
}

int main(void)
{
    limit_s(60);
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_may_lie_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
