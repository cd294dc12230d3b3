/* SPDX-License-Identifier: Apache-2.0
 *
 * Heartbeats end with the rank that sends them: one that has left, and may end at any time, calls nobody any more.
 * (Silence and verdicts are tested with whole communicators, tests/comm/lost_test.c.)
 */
#include "member/life.h"
#include "oob/oob_test_util.h"

#define TICKS_MS 300 /* thirty of them */

static atomic_int met, over;

/* Three places are no power of two: the exchanges of a start have not connected these. */
static void leave_and_tick(test_rank_t *me)
{
    bool remote[6];
    test_ok(kolo_oob_barrier(me->oob));
    atomic_fetch_add(&met, 1);
    while (atomic_load(&met) < me->nranks) poll(NULL, 0, 1);
    if (me->rank == 0) {
        for (int r = 0; r < 6; r++) remote[r] = r != 0;
        kolo_oob_take_leave(me->oob);
        test_ok(kolo_beat_start(me->oob, remote));
        poll(NULL, 0, TICKS_MS);
        test_false(kolo_oob_connected(me->oob, 3));
        atomic_store(&over, 1);
    }
    while (atomic_load(&over) == 0) poll(NULL, 0, 1);
}

static void a_rank_that_has_left_calls_nobody(void **state)
{
    int64_t before = kolo_member_values.verdict_ms;
    (void)state;
    kolo_member_values.verdict_ms = 200;
    test_run(6, leave_and_tick);
    kolo_member_values.verdict_ms = before;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_rank_that_has_left_calls_nobody, test_before, test_after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
