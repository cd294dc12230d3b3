/* SPDX-License-Identifier: Apache-2.0
 *
 * What kolo-top draws on screens of any size: whole characters, rows that fit, and sentences to their end.
 */
#include "kolo-top.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROWS 2000

static char *page;
static unsigned seed = 1;

/* Draws a text; returns what is on the screen above the row of keys. */
static const char *drawn(const char *text, size_t columns)
{
    static const top_view_t view = {.order = TOP_BY_STUCK};
    size_t bytes;
    free(page);
    FILE *out = open_memstream(&page, &bytes);
    top_fit(out, text, ROWS, columns, &view);
    fclose(out);
    char *keys = strrchr(page, '\n');
    if (keys) *keys = '\0';
    return page;
}

static void test_sentence_goes_on_in_the_next_row(void **state)
{
    (void)state;
    assert_string_equal(drawn(" one two\n", 5), " one\ntwo");
    assert_string_equal(drawn(" one two\n", 80), " one two");
}

static void test_line_of_the_list_is_cut(void **state)
{
    (void)state;
    assert_string_equal(drawn("one two\n", 5), "one t");
    assert_string_equal(drawn("ab\u00e9\n", 3), "ab");
}

static void test_character_wider_than_the_screen_is_drawn(void **state)
{
    (void)state;
    assert_string_equal(drawn("task \u6e2c\u8a66\n", 2), "ta\nsk\n\u6e2c\n\u8a66");
    assert_string_equal(drawn("\u6e2c\u8a66\n", 2), "\u6e2c");
    assert_string_equal(drawn("task \U0001f600\n", 1), "t\na\ns\nk\n\U0001f600");
    assert_string_equal(drawn("task \x80\x80\x80\x80\x80\x80\n", 1),
                        "t\na\ns\nk\n\x80\x80\x80\x80\n\x80\x80"); /* no text */
}

/* Puts words of random characters into a sentence, of up to `most` bytes. */
static void make_sentence(char *text, size_t most)
{
    static const char *const pieces[] = {"a", "b", " ", "\u00e9", "\u6e2c", "\U0001f600"};
    size_t at = (size_t)snprintf(text, most, "task ");
    while (at + 8 < most) at += (size_t)snprintf(text + at, most - at, "%s", pieces[rand_r(&seed) % 6]);
    snprintf(text + at, most - at, "z");
}

/* Takes blanks and ends of rows away. */
static void squeeze(const char *text, char *to)
{
    for (; *text; text++)
        if (*text != ' ' && *text != '\n') *to++ = *text;
    *to = '\0';
}

static void test_all_of_a_sentence_is_drawn_on_screens_of_any_width(void **state)
{
    char text[400], want[400], got[ROWS * 8];
    (void)state;
    for (size_t columns = 1; columns < 100; columns++) {
        make_sentence(text, 20 + (size_t)rand_r(&seed) % 380);
        squeeze(text, want);
        squeeze(drawn(text, columns), got);
        assert_string_equal(got, want);
        for (const char *row = drawn(text, columns), *end; *row; row = end + (*end == '\n')) {
            end = strchrnul(row, '\n');
            assert_true((size_t)(end - row) <= (columns > 4 ? columns : 4));
            assert_true(((unsigned char)*row & 0xc0) != 0x80);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sentence_goes_on_in_the_next_row),
        cmocka_unit_test(test_line_of_the_list_is_cut),
        cmocka_unit_test(test_character_wider_than_the_screen_is_drawn),
        cmocka_unit_test(test_all_of_a_sentence_is_drawn_on_screens_of_any_width),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(page);
    return failed;
}
