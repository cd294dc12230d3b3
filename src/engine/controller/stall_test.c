/* SPDX-License-Identifier: Apache-2.0
 *
 * What the stall inspector says of a coordinator's table: rows that lack the same ranks in one sentence, long lists
 * cut short, and nothing of rows whose time has not come. No rank has waited longer than ten seconds, since nobody
 * waits longer than the machine is up.
 */
#include "base/test.h"
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

static int job[64]; /* ranks of the job, by rank of the set */

static void submit(kolo_controller_t *c, const char *name, uint32_t waited_ms, const char *ranks)
{
    kolo_tensor_request_t r = {.work = KOLO_WORK_ALL_REDUCE, .type = KOLO_FLOAT32, .waited_ms = waited_ms};
    r.prescale = r.postscale = 1.0;
    kolo_name_init(&r.name, name, (uint32_t)strlen(name));
    for (int rank = 0; ranks[rank]; rank++)
        if (ranks[rank] == 'x') assert_int_equal(kolo_controller_request(c, rank, &r), KOLO_OK);
}

static void rows_that_lack_the_same_ranks_are_one_sentence(void **state)
{
    kolo_controller_t c;
    char name[16], text[KOLO_ERROR_TEXT_BYTES] = "";
    (void)state;
    assert_int_equal(kolo_controller_init(&c, 12), KOLO_OK);
    kolo_stall_init(&c.stall, 0, 6000);
    for (int i = 0; i < 9; i++) {
        snprintf(name, sizeof name, "grad.%d", i);
        submit(&c, name, 6001, "xxx---x-xx-x");
    }
    submit(&c, "young", 1000, "xxxxxxxxxxx-");
    assert_true(kolo_stall_look(&c, job, text, sizeof text));
    assert_non_null(strstr(text,
                           "ranks 3 to 5, 7, 10 have not submitted tensor grad.0, tensor grad.1, tensor grad.2, "
                           "tensor grad.3, tensor grad.4, tensor grad.5 and 3 more, for which 7 ranks have "
                           "waited 6.0 s"));
    assert_null(strstr(text, "young"));
    kolo_controller_fini(&c);
}

static void long_names_and_many_runs_are_cut(void **state)
{
    kolo_controller_t c;
    char name[KOLO_TENSOR_NAME_MAX + 1], ranks[41], text[KOLO_ERROR_TEXT_BYTES] = "";
    (void)state;
    memset(ranks, 0, sizeof ranks);
    for (int i = 0; i < 40; i++) ranks[i] = i % 2 ? '-' : 'x';
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_int_equal(kolo_controller_init(&c, 40), KOLO_OK);
    kolo_stall_init(&c.stall, 0, 1000);
    for (int i = 0; i < 7; i++) {
        name[0] = (char)('a' + i);
        submit(&c, name, 2000, ranks);
    }
    assert_true(kolo_stall_look(&c, job, text, sizeof text));
    assert_non_null(strstr(text, "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 12 more have not submitted tensor annnn"));
    assert_non_null(strstr(
        text, "nnn... and 1 more, for which 20 ranks have waited 2.0 s, KOLO_ENGINE_STALL_LIMIT_MS is over"));
    kolo_controller_fini(&c);
}

static void looks_only_when_something_is_due(void **state)
{
    kolo_controller_t c;
    char text[KOLO_ERROR_TEXT_BYTES] = "";
    (void)state;
    assert_int_equal(kolo_controller_init(&c, 2), KOLO_OK);
    submit(&c, "off", UINT32_MAX, "x-");
    assert_true(c.stall.next_ns == UINT64_MAX);
    assert_false(kolo_stall_look(&c, job, text, sizeof text));
    kolo_controller_fini(&c);
    assert_int_equal(kolo_controller_init(&c, 2), KOLO_OK);
    kolo_stall_init(&c.stall, 5000, 10000);
    submit(&c, "first", 4000, "x-");
    uint64_t next = c.stall.next_ns, now = kolo_now_ns();
    assert_true(next > now && next < now + 11 * KOLO_NS_PER_S / 10);
    submit(&c, "second", 0, "-x");
    assert_true(c.stall.next_ns == next); /* of the older */
    submit(&c, "third", 9900, "x-"); /* told once for all the times that it was due, and due again by its limit */
    assert_false(kolo_stall_look(&c, job, text, sizeof text));
    assert_true(c.stall.next_ns > now && c.stall.next_ns < now + 2 * KOLO_NS_PER_S / 10);
    kolo_controller_fini(&c);
}

static void who_is_missing_is_in_the_flight_record_after_a_second(void **state)
{
    kolo_controller_t c;
    char text[KOLO_ERROR_TEXT_BYTES] = "";
    kolo_record_t *record = kolo_recorder_take();
    (void)state;
    assert_non_null(record);
    const kolo_record_note_t *note = &record->head.note;
    kolo_note_t where = {PTHREAD_MUTEX_INITIALIZER, record};
    assert_int_equal(kolo_controller_init(&c, 3), KOLO_OK);
    kolo_stall_init(&c.stall, 0, 0); /* nothing is logged, and nothing ends */
    c.stall.note = &where;
    submit(&c, "young", 100, "x--");
    submit(&c, "old", 3000, "x-x");
    assert_false(kolo_stall_look(&c, job, text, sizeof text));
    assert_non_null(strstr(note->text, "rank 1 has not submitted tensor old, for which 2 ranks have waited 3.0 s"));
    assert_null(strstr(note->text, "young"));
    assert_true(note->blames == 1 && note->since_ns > 0 && note->since_ns < kolo_now_ns());
    assert_true(c.stall.next_ns < kolo_now_ns() + KOLO_STALL_SHOWN_NS); /* of the young one */
    submit(&c, "old", 0, "-x-");
    kolo_record_note_last(record, "tensor old");
    assert_true(note->since_ns == 0);
    assert_string_equal(note->last, "tensor old");
    c.stall.next_ns = 0;
    assert_false(kolo_stall_look(&c, job, text, sizeof text));
    assert_true(note->since_ns == 0);
    kolo_note_close(&where);
    kolo_note_last(&where, "too late");
    assert_string_equal(note->last, "tensor old");
    kolo_controller_fini(&c);
    kolo_recorder_release(record);
}

static int number_ranks(void **state)
{
    (void)state;
    for (int i = 0; i < 64; i++) job[i] = i;
    return 0;
}

static void ranks_are_called_as_in_the_job(void **state)
{
    const int ranks[] = {2, 3, 7, 8, 11};
    kolo_controller_t c;
    char text[KOLO_ERROR_TEXT_BYTES] = "";
    (void)state;
    assert_int_equal(kolo_controller_init(&c, 5), KOLO_OK);
    kolo_stall_init(&c.stall, 0, 1000);
    submit(&c, "x", 1000, "----x");
    assert_true(kolo_stall_look(&c, ranks, text, sizeof text));
    assert_non_null(strstr(text, "ranks 2 to 3, 7 to 8 have not submitted tensor x, for which 1 rank has"));
    kolo_controller_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_called_as_in_the_job),
        cmocka_unit_test(rows_that_lack_the_same_ranks_are_one_sentence),
        cmocka_unit_test(long_names_and_many_runs_are_cut),
        cmocka_unit_test(looks_only_when_something_is_due),
        cmocka_unit_test(who_is_missing_is_in_the_flight_record_after_a_second),
    };
    return cmocka_run_group_tests(tests, number_ranks, NULL);
}
