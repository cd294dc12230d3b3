/* SPDX-License-Identifier: Apache-2.0
 *
 * config.order = KOLO_ORDER_RANKS: each element is ((r0 + r1) + r2) + ..., summed in float32 where its type is
 * shorter, rounded once, divided last. Random counts, offsets and splits of one vector give the bits of a loop over
 * ranks, whatever algorithm is chosen or forced. TEST_SEED repeats a run.
 */
#include "coll/ordered.h"
#include "kit/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CASES 10000 /* (count, offset, split): over all numbers of ranks and this many steps of each */

typedef struct {
    uint64_t seed;
    int steps;
} program_t;

static void run_cases(rank_t *r)
{
    const program_t *p = r->arg;
    uint64_t seed = p->seed;
    int before = expect_failures();
    kolo_comm_t given_comm = r->comm, ordered = NULL;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.order = KOLO_ORDER_RANKS;
    if (!EXPECT_OK(kolo_comm_dup(r->comm, &ordered, &config))) return;
    r->comm = ordered;
    char *src = malloc(ORDERED_MOST * ORDERED_BYTES), *dst = malloc(ORDERED_MOST * ORDERED_BYTES);
    for (int k = 0; k < p->steps && expect_failures() == before; k++) {
        ordered_case_t c = ordered_make(&seed, r->nranks);
        ordered_fill(&c, r->rank, src);
        EXPECT_OK(ordered_call(&c, r->nranks, src, dst, r->comm, NULL));
        EXPECT(ordered_check(&c, r->rank, r->nranks, src, dst));
    }
    free(src);
    free(dst);
    end_comm(&ordered);
    r->comm = given_comm;
}

static void any_count_offset_and_split_gives_the_same_bits(void **state)
{
    (void)state;
    const char *text = getenv("TEST_SEED");
    program_t p = {text ? strtoull(text, NULL, 0) : (now_ms() << 16 ^ (uint64_t)getpid()) | 1,
                   kolo_test_steps(CASES / 5)};
    for (int n = 1; n <= 5; n++) {
        print_message("%d ranks, TEST_SEED=%llu\n", n, (unsigned long long)p.seed);
        assert_int_equal(run_ranks(n, run_cases, &p), 0);
    }
}

/* The parent's is the child's; ranks that differ are told; a number that is none is refused. */
static void one_order_for_all(rank_t *r)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t child = NULL;
    config.order = 7;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_dup(r->comm, &child, &config), "config.order is 7");
    config.order = r->rank ? KOLO_ORDER_RANKS : KOLO_ORDER_FREE;
    config.split_share = 0;
    EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_comm_split(r->comm, 0, r->rank, &child, &config), "config.order");
    end_comm(&child);
}

static void ranks_that_ask_for_different_orders_are_told(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, one_order_for_all, NULL), 0);
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_count_offset_and_split_gives_the_same_bits),
        cmocka_unit_test(ranks_that_ask_for_different_orders_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
