/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that share their cores: who waits gives the core away at once, so that the one it waits for runs. Counted
 * by this program's own sched_yield().
 */
#include "base/cpu/yield.h"
#include "comm/call/call.h"
#include "kit/ranks.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { RANKS = 4, ROUNDS = 200, MOST_POLLS = 8 };

static _Thread_local uint64_t yields;

int sched_yield(void)
{
    yields++;
    return (int)syscall(SYS_sched_yield);
}

/* One core for all: no rank but the root has anything before the root has run. */
static void broadcast_sizes(rank_t *r)
{
    static const size_t sizes[] = {8, 64, 512, 1000};
    char data[1000];
    kolo_task_t task = {.ctx = &r->comm->body->ctx};
    kolo_wait_t wait;
    kolo_mismatch_wait_init(r->comm->body, &wait, &task);
    EXPECT(wait.spins <= MOST_POLLS);
    for (size_t i = 0; i < 4; i++) {
        uint64_t before = yields;
        for (int round = 0; round < ROUNDS; round++) {
            memset(data, r->rank == 0 ? round : -1, sizes[i]);
            EXPECT_OK(kolo_broadcast(data, data, sizes[i], KOLO_INT8, 0, r->comm, NULL));
            EXPECT(data[0] == (char)round && data[sizes[i] - 1] == (char)round);
            EXPECT_OK(kolo_barrier(r->comm, NULL));
        }
        /* Of a broadcast and a barrier somebody waits in each round, and the core is another's by a yield; by a
         * sleep where other programs compute on it. */
        uint64_t mine[] = {yields - before, kolo_yield_is_crowded()}, all[] = {0, 0};
        EXPECT_OK(kolo_all_reduce(mine, all, 2, KOLO_UINT64, KOLO_SUM, r->comm, NULL));
        EXPECT(all[0] >= ROUNDS || all[1] > 0);
    }
}

static void who_waits_on_a_shared_core_gives_it_away(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(RANKS, broadcast_sizes, NULL), 0);
}

int main(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_waits_on_a_shared_core_gives_it_away)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
