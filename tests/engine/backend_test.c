/* SPDX-License-Identifier: Apache-2.0
 *
 * Who moves the data: what an order of backends may say, that all ranks must say the same, and that each operation
 * is counted where it ran.
 */
#include "engine/kit/engines.h"

#include <string.h>

static kolo_engine_config_t with_order(const char *order)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    config.backends = order;
    return config;
}

static uint64_t ran(kolo_tensor_engine_t e, const char *name)
{
    kolo_backend_info_t info;
    for (int i = 0; kolo_engine_get_backend(e, i, &info) == KOLO_OK; i++)
        if (strcmp(info.name, name) == 0) return info.operations;
    return UINT64_MAX;
}

static void refuse_nonsense(rank_t *r)
{
    static const struct {
        const char *order, *word;
    } bad[] = {{"kolo,nobody", "nobody"},
               {"kolo;all_reduc=kolo", "all_reduc"},
               {"kolo, kolo", "' kolo'"},
               {",", "''"},
               {"barrier=kolo", "barrier"},
               {"=kolo", "''"},
               {"kolo,", "''"},
               {"kolo;;all_gather=kolo", "''"},
               {"kolo;all_gather=", "''"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kolo_engine_config_t config = with_order(bad[i].order);
        kolo_tensor_engine_t e;
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_init(&e, r->comm, &config), bad[i].word, "kolo");
    }
    EXPECT(works(r->comm));
}

static void an_order_with_unknown_words_is_refused_with_the_word(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, refuse_nonsense, NULL), 0);
}

static void differ(rank_t *r)
{
    kolo_engine_config_t config = with_order(r->rank == 1 ? "kolo;all_gather=kolo" : "kolo");
    kolo_tensor_engine_t e;
    EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_engine_init(&e, r->comm, &config), "backends", "rank 1");
    EXPECT(works(r->comm));
}

static void ranks_with_different_orders_are_refused_alike(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, differ, NULL), 0);
}

/* It needs a driver for GPUs; the test's environment hides one that is there. */
static void ask_for_nccl(rank_t *r)
{
    kolo_engine_config_t config = with_order("nccl");
    kolo_tensor_engine_t e;
    EXPECT_ERROR(KOLO_ERR_UNSUPPORTED, kolo_engine_init(&e, r->comm, &config), "nccl");
    EXPECT(works(r->comm));
}

static void a_backend_that_is_not_there_is_refused_by_all(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, ask_for_nccl, NULL), 0);
}

static void count_moves(erank_t *r)
{
    float x[4] = {1, 2, 3, 4};
    kolo_backend_info_t info;
    uint64_t before = ran(r->engine, "kolo");
    EXPECT_OK(reduce_now(r, "counted", x, 4, KOLO_SUM));
    EXPECT_OK(barrier_now(r)); /* moves nothing */
    EXPECT(ran(r->engine, "kolo") == before + 1);
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_get_backend(r->engine, -1, &info));
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_get_backend(r->engine, 0, NULL));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_get_backend(r->engine, 99, &info), "99");
}

static void operations_are_counted_where_they_ran(void **state)
{
    (void)state;
    assert_int_equal(run_engines(3, NULL, count_moves, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_order_with_unknown_words_is_refused_with_the_word),
                                       cmocka_unit_test(ranks_with_different_orders_are_refused_alike),
                                       cmocka_unit_test(a_backend_that_is_not_there_is_refused_by_all),
                                       cmocka_unit_test(operations_are_counted_where_they_ran)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
