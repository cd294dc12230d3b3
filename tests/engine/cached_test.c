/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step of one cached tensor takes, in counts: a cycle and an operation, nothing of the coordinator, and,
 * where all ranks submit, no notification. Ranks have patience here, so that a busy machine changes nothing.
 */
#include "engine/engine.h"
#include "engine/kit/engines.h"

enum { STEPS = 50, FLOATS = 256 };

static void one_tensor(erank_t *r)
{
    float data[FLOATS] = {0};
    kolo_engine_counters_t before, after;
    for (int i = 0; i < 5; i++) EXPECT_OK(reduce_now(r, "one", data, FLOATS, KOLO_SUM));
    meet();
    EXPECT_OK(kolo_engine_get_counters(r->engine, &before));
    uint64_t sent = atomic_load(&r->engine->wake.sent);
    meet();
    for (int i = 0; i < STEPS; i++) EXPECT_OK(reduce_now(r, "one", data, FLOATS, KOLO_SUM));
    meet();
    EXPECT_OK(kolo_engine_get_counters(r->engine, &after));
    EXPECT(after.cycles - before.cycles == STEPS);
    EXPECT(after.operations - before.operations == STEPS);
    EXPECT(after.hits - before.hits == STEPS);
    EXPECT(after.slow_cycles == before.slow_cycles);
    EXPECT(atomic_load(&r->engine->wake.sent) == sent);
    meet();
}

static void a_step_of_all_ranks_needs_no_notification(void **state)
{
    (void)state;
    for (int n = 2; n <= 4; n++) assert_int_equal(run_engines(n, NULL, one_tensor, NULL), 0);
    assert_int_equal(run_engines(11, NULL, one_tensor, NULL), 0); /* by a tree */
}

int main(void)
{
    kolo_wake_patience_ns = 60 * KOLO_NS_PER_S;
    limit_s(200);
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_of_all_ranks_needs_no_notification)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
