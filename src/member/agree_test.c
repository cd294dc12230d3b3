/* SPDX-License-Identifier: Apache-2.0
 *
 * Agreements among ranks that are threads: the result is the same on all, named ranks need not come, ranks that
 * leave are out, and differences, lateness and impostors are told by name. Deaths at each step are in
 * agree_kill_test.c.
 */
#include "member/agree_frame.h"
#include "oob/oob_test_util.h"

#define ROW 24

typedef struct {
    uint8_t map[8], rows[64 * ROW];
    kolo_agreement_t a;
} vote_t;

static vote_t *vote_new(const test_rank_t *me, uint64_t key)
{
    vote_t *v = calloc(1, sizeof(*v));
    v->a = (kolo_agreement_t){.key = key,
                              .flags = ~0u,
                              .out = v->map,
                              .rows = v->rows,
                              .row_bytes = ROW,
                              .deadline_ns = kolo_deadline_ms(20000),
                              .what = "a vote"};
    memset(v->rows + me->rank * ROW, me->rank + 1, ROW);
    return v;
}

static bool row_is(const vote_t *v, int rank, int byte)
{
    for (int i = 0; i < ROW; i++)
        if (v->rows[rank * ROW + i] != byte) return false;
    return true;
}

static void all_vote(test_rank_t *me)
{
    for (int round = 0; round < 5; round++) {
        vote_t *v = vote_new(me, 7);
        v->a.flags = ~(1u << me->rank);
        test_ok(kolo_agree_survivors(me->oob, &v->a));
        test_equal(v->a.flags, (uint32_t)(~0ull << me->nranks));
        for (int r = 0; r < me->nranks; r++) test_true(!kolo_map_has(v->map, r) && row_is(v, r, r + 1));
        free(v);
    }
    test_ok(kolo_oob_barrier(me->oob));
    test_true(me->oob->early == NULL); /* nothing is left in the queues */
}

static void all_get_the_same(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 8, 13, 31};
    for (size_t i = 0; i < KOLO_COUNTOF(sizes); i++) test_run(sizes[i], all_vote);
}

static void leave_two_out(test_rank_t *me)
{
    if (me->rank != 0 && me->rank != 3) {
        vote_t *v = vote_new(me, 9);
        kolo_map_add(v->map, 0);
        kolo_map_add(v->map, 3);
        test_ok(kolo_agree_survivors(me->oob, &v->a));
        test_equal(v->map[0], 9);
        for (int r = 0; r < me->nranks; r++) test_true(row_is(v, r, r == 0 || r == 3 ? 0 : r + 1));
        free(v);
    }
    test_ok(kolo_oob_barrier(me->oob)); /* and the object serves on */
}

static void named_ranks_need_not_come(void **state)
{
    (void)state;
    test_run(6, leave_two_out);
}

static _Atomic int here;

static void meet_all(const test_rank_t *me, int point)
{
    atomic_fetch_add(&here, 1);
    while (atomic_load(&here) < point * me->nranks) poll(NULL, 0, 1);
}

static void some_leave(test_rank_t *me)
{
    bool leaves = me->rank == 0 || me->rank == 2; /* before, and while the others wait */
    test_ok(kolo_oob_barrier(me->oob));
    meet_all(me, 1);
    if (me->rank == 2) poll(NULL, 0, 60);
    if (leaves) return;
    vote_t *v = vote_new(me, 1);
    test_ok(kolo_agree_survivors(me->oob, &v->a));
    test_equal(v->map[0], 5);
    test_ok(kolo_agree_survivors(me->oob, &v->a)); /* again, with the lost named */
    test_equal(v->map[0], 5);
    free(v);
}

static void who_leaves_is_out(void **state)
{
    (void)state;
    atomic_store(&here, 0);
    test_run(6, some_leave);
}

/* Nobody else has a connection to rank 3 that could break: rank 0 has to call it, at a socket that still stands. */
static void one_has_closed(test_rank_t *me)
{
    test_ok(kolo_oob_barrier(me->oob));
    if (me->rank == 3) kolo_oob_close(me->oob);
    meet_all(me, 1);
    if (me->rank != 3) {
        vote_t *v = vote_new(me, 1);
        test_ok(kolo_agree_survivors(me->oob, &v->a));
        test_equal(v->map[0], 8);
        free(v);
    }
    meet_all(me, 2);
}

static void who_has_closed_is_out(void **state)
{
    (void)state;
    atomic_store(&here, 0);
    test_run(6, one_has_closed);
}

static void other_keys(test_rank_t *me)
{
    for (int odd = 0; odd < me->nranks; odd++) {
        vote_t *v = vote_new(me, me->rank == odd);
        if (odd == me->nranks - 1) v->a.row_bytes = me->rank == odd ? 8 : ROW;
        test_equal(kolo_agree_survivors(me->oob, &v->a), KOLO_ERR_MISMATCH);
        test_says(kolo_error_text(), "must name the same");
        free(v);
        meet_all(me, odd + 1);
    }
}

static void a_difference_is_told(void **state)
{
    (void)state;
    atomic_store(&here, 0);
    test_run(4, other_keys);
}

static void name_each_other(test_rank_t *me)
{
    if (me->rank > 1) return; /* rank 0 waits for 3, rank 1 for 2 */
    vote_t *v = vote_new(me, (uint64_t)me->rank);
    v->a.series = (uint64_t)me->rank; /* counted apart, and noticed all the same */
    kolo_map_add(v->map, me->rank == 0 ? 2 : 3);
    test_equal(kolo_agree_survivors(me->oob, &v->a), KOLO_ERR_MISMATCH);
    free(v);
}

/* Nobody's coordinator is in both: rank 1 waits for 0 and 2, rank 2 for 1. */
static void go_separate_ways(test_rank_t *me)
{
    vote_t *v = vote_new(me, 1);
    v->a.series = me->rank == 2;
    if (me->rank == 2) kolo_map_add(v->map, 0);
    test_equal(kolo_agree_survivors(me->oob, &v->a), KOLO_ERR_MISMATCH);
    free(v);
    meet_all(me, 1);
}

static void different_series_are_told(void **state)
{
    (void)state;
    atomic_store(&here, 0);
    test_run(3, go_separate_ways);
}

/* Each round leaves another one out, which then waits in the next round already. */
static void take_turns(test_rank_t *me)
{
    for (int round = 0; round < 3 * me->nranks; round++) {
        int idle = round % me->nranks;
        if (me->rank == idle) continue;
        vote_t *v = vote_new(me, (uint64_t)idle);
        v->a.series = (uint64_t)idle;
        kolo_map_add(v->map, idle);
        test_ok(kolo_agree_survivors(me->oob, &v->a));
        test_equal(v->map[0], 1 << idle);
        free(v);
    }
    meet_all(me, 1);
}

static void lists_may_change(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        atomic_store(&here, 0);
        test_run(4, take_turns);
    }
}

/* Some have begun an agreement when others hear of a loss and give the communicator up: all meet in the last
 * series. */
static void follow_those_who_gave_up(test_rank_t *me)
{
    vote_t *v = vote_new(me, 3);
    if (me->rank % 2) {
        v->a.series = 5;
        test_equal(kolo_agree_survivors(me->oob, &v->a), KOLO_ERR_REMOTE);
        free(v);
        v = vote_new(me, 4);
    }
    v->a.key = 4;
    v->a.series = KOLO_OOB_SERIES_LAST;
    test_ok(kolo_agree_survivors(me->oob, &v->a));
    for (int r = 0; r < me->nranks; r++) test_true(!kolo_map_has(v->map, r) && row_is(v, r, r + 1));
    free(v);
    meet_all(me, 1);
}

static void who_gives_up_takes_the_others_along(void **state)
{
    (void)state;
    for (int n = 2; n <= 5; n++) {
        atomic_store(&here, 0);
        test_run(n, follow_those_who_gave_up);
    }
}

static void different_lists_are_told(void **state)
{
    (void)state;
    test_run(4, name_each_other);
}

/* Rank 1 is named by the others and calls all the same. */
static void come_uninvited(test_rank_t *me)
{
    vote_t *v = vote_new(me, me->rank == 1);
    kolo_map_add(v->map, me->rank == 1 ? 2 : 1);
    kolo_status_t status = kolo_agree_survivors(me->oob, &v->a);
    test_equal(status, me->rank == 1 ? KOLO_ERR_MISMATCH : KOLO_OK);
    meet_all(me, 1);
    free(v);
}

static void who_is_named_and_comes_is_told(void **state)
{
    (void)state;
    atomic_store(&here, 0);
    test_run(3, come_uninvited);
}

static void one_is_late(test_rank_t *me)
{
    test_ok(kolo_oob_barrier(me->oob));
    if (me->rank != 2) {
        uint64_t start = kolo_now_ns();
        vote_t *v = vote_new(me, 3);
        v->a.deadline_ns = kolo_deadline_ms(300);
        test_equal(kolo_agree_survivors(me->oob, &v->a), KOLO_ERR_TIMEOUT);
        if (me->rank == 0) test_says(kolo_error_text(), "rank 2");
        if (me->rank != 0) test_says(kolo_error_text(), "rank 2");
        test_true(IN_TIME(kolo_now_ns() - start < 5000 * KOLO_NS_PER_MS));
        free(v);
        meet_all(me, 1);
    } else {
        meet_all(me, 1);
        vote_t *v = vote_new(me, 3); /* it comes when all is over, and is told so */
        test_equal(kolo_agree_survivors(me->oob, &v->a), KOLO_ERR_TIMEOUT);
        free(v);
    }
    meet_all(me, 2);
    vote_t *v = vote_new(me, 4); /* all are in step again */
    test_ok(kolo_agree_survivors(me->oob, &v->a));
    free(v);
}

static void who_does_not_come_is_named(void **state)
{
    (void)state;
    atomic_store(&here, 0);
    test_run(4, one_is_late);
}

static _Atomic uint32_t stop_word;

static void stop_waiting(test_rank_t *me)
{
    test_ok(kolo_oob_barrier(me->oob));
    if (me->rank == 1) {
        poll(NULL, 0, 50);
        atomic_store(&stop_word, 1);
        meet_all(me, 1);
        return;
    }
    vote_t *v = vote_new(me, 3);
    me->oob->abort = &stop_word;
    test_equal(kolo_agree_survivors(me->oob, &v->a), KOLO_ERR_ABORTED);
    me->oob->abort = NULL;
    meet_all(me, 1);
    free(v);
}

static void abort_ends_it(void **state)
{
    (void)state;
    atomic_store(&here, 0);
    test_run(2, stop_waiting);
}

static void one_gives_up(test_rank_t *me)
{
    static _Atomic uint32_t cancelled = 1;
    vote_t *v = vote_new(me, 3);
    test_ok(kolo_oob_barrier(me->oob));
    if (me->rank == 1) {
        kolo_oob_give_reason(me->oob, "its program saw\nrank 9 fail");
        v->a.cancel = &cancelled;
    }
    test_equal(kolo_agree_survivors(me->oob, &v->a), KOLO_ERR_ABORTED);
    if (me->rank != 1) test_says(kolo_error_text(), "rank 1 gave up: its program saw?rank 9 fail");
    meet_all(me, 1);
    free(v);
}

static void who_gives_up_says_why(void **state)
{
    (void)state;
    atomic_store(&here, 0);
    test_run(3, one_gives_up);
}

/* ---- the layout ---- */

static void what_is_encoded_decodes(void **state)
{
    (void)state;
    uint8_t map[16] = {3}, value[16 + 16 + 70 * 4] = {0}, row[4] = {1, 2, 3, 4}, bytes[1024];
    kolo_ballot_t b = {KOLO_BALLOT_REPORT, 2, 77, 5, 4, 1, 0, map, row, value}, out;
    size_t n = kolo_ballot_bytes(&b, 70);
    kolo_ballot_encode(&b, 70, bytes);
    assert_null(kolo_ballot_decode(bytes, n, 70, &out));
    assert_int_equal(out.key, 77);
    assert_int_equal(out.accepted, 1);
    assert_memory_equal(out.row, row, 4);
    for (size_t cut = 0; cut < n; cut++) assert_non_null(kolo_ballot_decode(bytes, cut, 70, &out));
    map[15] = 0x80; /* rank 127 of 70 */
    kolo_ballot_encode(&b, 70, bytes);
    assert_non_null(kolo_ballot_decode(bytes, n, 70, &out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_get_the_same, test_before, test_after),
        cmocka_unit_test_setup_teardown(named_ranks_need_not_come, test_before, test_after),
        cmocka_unit_test_setup_teardown(who_leaves_is_out, test_before, test_after),
        cmocka_unit_test_setup_teardown(who_has_closed_is_out, test_before, test_after),
        cmocka_unit_test_setup_teardown(who_gives_up_says_why, test_before, test_after),
        cmocka_unit_test_setup_teardown(a_difference_is_told, test_before, test_after),
        cmocka_unit_test_setup_teardown(different_lists_are_told, test_before, test_after),
        cmocka_unit_test_setup_teardown(who_gives_up_takes_the_others_along, test_before, test_after),
        cmocka_unit_test_setup_teardown(different_series_are_told, test_before, test_after),
        cmocka_unit_test_setup_teardown(lists_may_change, test_before, test_after),
        cmocka_unit_test_setup_teardown(who_is_named_and_comes_is_told, test_before, test_after),
        cmocka_unit_test_setup_teardown(who_does_not_come_is_named, test_before, test_after),
        cmocka_unit_test_setup_teardown(abort_ends_it, test_before, test_after),
        cmocka_unit_test(what_is_encoded_decodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
