/* SPDX-License-Identifier: Apache-2.0
 *
 * The images: bad files are refused with a sentence, what is for testing; and the sharing out of samples.
 */
#include "data.h"
#include "shards.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static digits_t digits;
static char message[400];

/* ---- files ---- */

static void refuse(const char *text, const char *word)
{
    char path[] = "/tmp/digits_test_XXXXXX";
    digits_t none;
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
    assert_false(digits_load(&none, path, message, sizeof message));
    unlink(path);
    if (!strstr(message, word)) fail_msg("\"%s\" does not say \"%s\"", message, word);
}

static void bad_files_are_refused(void **state)
{
    static const struct {
        const char *first, *last, *word;
    } cases[] = {
        {"16,", "9\n", "1 images"}, /* sound, but alone */
        {"16,", "\n", "line 1"},    {"16,", "10\n", "line 1"}, {"17,", "9\n", "line 1"},   {"-1,", "9\n", "line 1"},
        {"16;", "9\n", "line 1"},   {"", "9\n", "line 1"},     {"16,", "9,1\n", "line 1"}, {"1e,", "9\n", "line 1"},
    };
    char line[4 * PIXELS + 16];
    digits_t none;
    (void)state;
    refuse("", "0 images");
    refuse("hello\n", "line 1");
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int at = snprintf(line, sizeof line, "%s", cases[c].first);
        for (int i = 1; i < PIXELS; i++) at += snprintf(line + at, sizeof line - (size_t)at, "16,");
        snprintf(line + at, sizeof line - (size_t)at, "%s", cases[c].last);
        refuse(line, cases[c].word);
    }
    assert_false(digits_load(&none, "/nowhere/digits.csv", message, sizeof message));
    assert_non_null(strstr(message, "--data"));
}

static void the_split_is_three_to_one_in_each_class(void **state)
{
    int train[CLASSES] = {0}, test[CLASSES] = {0};
    (void)state;
    assert_int_equal(digits.train.count + digits.test.count, 1797);
    for (int i = 0; i < digits.train.count; i++) train[digits.train.label[i]]++;
    for (int i = 0; i < digits.test.count; i++) test[digits.test.label[i]]++;
    for (int c = 0; c < CLASSES; c++) assert_int_equal(test[c], (train[c] + test[c]) / 4);
}

/* ---- samples ---- */

static void steps_cut_an_epoch_without_gap_or_overlap(void **state)
{
    (void)state;
    for (int count = 1; count < 300; count++) {
        int next = 0;
        for (int step = 0; step < shards_steps(count); step++) {
            span_t s = shards_step(count, step);
            assert_true(s.first == next && s.end > s.first && s.end - s.first <= STEP_SAMPLES);
            next = s.end;
            for (int nranks = 1; nranks <= 20; nranks++) {
                int at = s.first;
                for (int rank = 0; rank < nranks; rank++) {
                    span_t mine = shards_of_rank(count, step, rank, nranks);
                    assert_true(mine.first == at || mine.first == mine.end);
                    assert_true(mine.first == mine.end || (mine.first - s.first) % BLOCK_SAMPLES == 0);
                    if (mine.first < mine.end) at = mine.end;
                }
                assert_int_equal(at, s.end);
            }
        }
        assert_int_equal(next, count);
    }
}

static void each_epoch_has_an_order_of_its_own(void **state)
{
    int first[100], again[100], other[100], seen[100] = {0};
    (void)state;
    shards_order(first, 100, 9, 4);
    shards_order(again, 100, 9, 4);
    shards_order(other, 100, 9, 5);
    assert_memory_equal(first, again, sizeof first);
    assert_memory_not_equal(first, other, sizeof first);
    for (int i = 0; i < 100; i++) seen[first[i]]++;
    for (int i = 0; i < 100; i++) assert_int_equal(seen[i], 1);
}

static void the_ledger_notices(void **state)
{
    const int order[] = {4, 2, 0, 1, 3};
    uint8_t ledger[5] = {0}, used[5] = {1, 1, 1, 1, 1};
    (void)state;
    assert_false(shards_complete(ledger, 5));
    assert_true(shards_book(ledger, used, 5, order, 0));
    assert_true(shards_complete(ledger, 5));
    assert_false(shards_book(ledger, used, 5, order, 0)); /* the same step again */
    memset(ledger, 0, sizeof ledger);
    used[3] = 0; /* left out */
    assert_false(shards_book(ledger, used, 5, order, 0));
    memset(ledger, 0, sizeof ledger);
    used[3] = 2; /* two ranks had it */
    assert_false(shards_book(ledger, used, 5, order, 0));
    memset(ledger, 0, sizeof ledger);
    used[3] = 1;
    assert_true(shards_book(ledger, used, 4, (const int[]){0, 1, 2, 3}, 0));
    assert_false(shards_complete(ledger, 5));
}

int main(void)
{
    alarm(110);
    if (!digits_load(&digits, DIGITS_DATA, message, sizeof message)) {
        fprintf(stderr, "%s\n", message);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(the_split_is_three_to_one_in_each_class),
        cmocka_unit_test(steps_cut_an_epoch_without_gap_or_overlap),
        cmocka_unit_test(each_epoch_has_an_order_of_its_own),
        cmocka_unit_test(the_ledger_notices),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    digits_free(&digits);
    return failed;
}
