/* SPDX-License-Identifier: Apache-2.0
 *
 * Where an operation may go by lines: whenever its parts fit a slot side by side. Room between them, which the
 * layout of lines takes where there is some (wire/ll.h), takes no operation away from lines.
 */
#include "base/test.h"
#include "tune/internal.h"

static const kolo_param_table_t *const tables[] = {&kolo_tune_params};

static kolo_tune_env_t env_of(uint32_t nranks)
{
    return (kolo_tune_env_t){.nranks = nranks,
                             .nnodes = 1,
                             .max_node_size = nranks,
                             .min_node_size = nranks,
                             .cores = 256,
                             .fanout = true,
                             .refs = true,
                             .ll = true};
}

static bool fits(uint32_t nranks, kolo_coll_t coll, uint64_t count, size_t elem)
{
    kolo_tune_env_t env = env_of(nranks);
    kolo_tune_sizes_t sizes;
    kolo_tune_sizes(&env, &sizes);
    return kolo_tune_fits(&(kolo_tune_ask_t){&env, NULL, &sizes, coll, count, elem}, KOLO_ALGO_DIRECT);
}

static void parts_side_by_side_fit(void **state)
{
    static const struct {
        uint32_t nranks, bytes; /* of an all_reduce of float32 */
    } rows[] = {{2, 8064},  {3, 8192},  {8, 8064},  {15, 7560}, {16, 8064},  {32, 7168},
                {48, 8064}, {64, 7168}, {73, 8176}, {74, 4144}, {100, 5600}, {128, 7168}};
    (void)state;
    for (size_t i = 0; i < KOLO_COUNTOF(rows); i++) {
        uint32_t n = rows[i].nranks, part = rows[i].bytes / n / 4 * 4;
        if (!fits(n, KOLO_COLL_ALL_REDUCE, rows[i].bytes / 4, 4))
            fail_msg("%u bytes on %u ranks", rows[i].bytes, n);
        if (n * part <= 8192 && !fits(n, KOLO_COLL_ALL_TO_ALL, part, 1)) fail_msg("%u ranks, parts of %u", n, part);
    }
    assert_false(fits(16, KOLO_COLL_ALL_REDUCE, 8068 / 4, 4)); /* 16 parts of 10 lines, a slot has 147 */
    assert_false(fits(74, KOLO_COLL_ALL_TO_ALL, 57, 1));
}

static int start(void **state)
{
    (void)state;
    return kolo_params_load(tables, 1, NULL, NULL) != KOLO_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_side_by_side_fit)};
    return cmocka_run_group_tests(tests, start, NULL);
}
