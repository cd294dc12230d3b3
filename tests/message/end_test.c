/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators with messages end beside each other, for ThreadSanitizer: the process has one thread that carries
 * messages. The last communicator ends it and the next one starts another, while other ranks still close their
 * connections or hear that one of them was lost. Ranks are threads; each round ends in another way. In the first
 * rounds fail points have the rank that leaves the thread first close its connections when the last one has ended
 * it.
 */
#include "kit/ranks.h"

#include <kolo/message.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS  4
#define ROUNDS 20
typedef enum { ABORT, REVOKE, FINALIZE, DESTROY, LEAVE, WAYS } way_t;

/* From all others, so that each has all connections. */
static void exchange(const rank_t *r, kolo_comm_t comm)
{
    int32_t out = r->rank, in;
    kolo_request_t sends[RANKS] = {NULL};
    for (int to = 0; to < RANKS; to++)
        EXPECT_OK(kolo_isend_tag(&out, 1, KOLO_INT32, to, 7, comm, NULL, &sends[to]));
    for (int n = 0; n < RANKS; n++) {
        kolo_received_t got = {0};
        EXPECT_OK(kolo_recv_tag(&in, 1, KOLO_INT32, KOLO_ANY_SOURCE, 7, comm, NULL, &got));
        EXPECT(in == got.source);
    }
    for (int to = 0; to < RANKS; to++) {
        EXPECT_OK(kolo_request_wait(sends[to], -1));
        EXPECT_OK(kolo_request_free(sends[to]));
    }
}

/* What nobody sends: the end of the communicator is the end of the request. */
static void await_the_end(const rank_t *r, kolo_comm_t comm, kolo_status_t end)
{
    int32_t in;
    EXPECT_IS(end, kolo_recv_tag(&in, 1, KOLO_INT32, (r->rank + 1) % RANKS, 8, comm, NULL, NULL));
}

static void end_in_a_way(const rank_t *r, kolo_comm_t comm, way_t way, bool first)
{
    if (way == ABORT && first) {
        EXPECT_OK(kolo_comm_abort(comm));
        return;
    }
    if (way == ABORT) await_the_end(r, comm, KOLO_ERR_REMOTE);
    if (way == REVOKE && first) EXPECT_OK(kolo_comm_revoke(comm));
    if (way == REVOKE && !first) await_the_end(r, comm, KOLO_ERR_REVOKED);
    if (way == LEAVE) EXPECT_OK(kolo_comm_leave(comm));
    if (way == FINALIZE) EXPECT_OK(kolo_comm_finalize(comm));
    EXPECT_OK(kolo_comm_destroy(comm)); /* with nothing before it: while others may hear that this rank goes */
}

static void make_and_end(rank_t *r)
{
    for (int i = 0; i < ROUNDS; i++) {
        kolo_comm_t comm = NULL;
        if (!EXPECT_OK(kolo_comm_dup(r->comm, &comm, NULL))) return;
        exchange(r, comm);
        meet();
        end_in_a_way(r, comm, (way_t)(i % WAYS), r->rank == i % RANKS);
    }
}

static void delay_the_first_and_the_last(void)
{
    char rules[512] = "";
    for (int i = 0; i < 2 * LEAVE; i++) {
        size_t at = strlen(rules);
        snprintf(rules + at, sizeof rules - at, "%scomm.tagged.left:%d:delay:%d", i ? "," : "",
                 i / 2 * RANKS + (i % 2 ? RANKS : 1), i % 2 ? 120 : 40);
    }
    setenv("KOLO_FAIL_POINT", rules, 1);
}

static void communicators_with_messages_end_beside_each_other(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(RANKS, make_and_end, NULL), 0);
    census_t before = census_take();
    assert_int_equal(run_ranks(RANKS, make_and_end, NULL), 0);
    assert_true(census_no_more_than(before));
}

int main(void)
{
    limit_s(50);
    delay_the_first_and_the_last();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(communicators_with_messages_end_beside_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
