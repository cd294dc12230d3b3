/* SPDX-License-Identifier: Apache-2.0
 *
 * Text from outside is made fit to be printed, and no error and no log line leads a terminal.
 */
#include "base/log.h"
#include "base/status.h"
#include "base/test.h"
#include "base/text/plain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void expect(const char *from, const char *want)
{
    char to[64];
    assert_string_equal(kolo_plain_copy(to, sizeof to, from, strlen(from)), want);
    snprintf(to, sizeof to, "%s", from);
    assert_string_equal(kolo_plain_copy(to, sizeof to, to, sizeof to), want); /* in place */
}

static void control_characters_become_question_marks(void **state)
{
    (void)state;
    expect("gpu-node-7", "gpu-node-7");
    expect("a\033[2Jb\r\n\177", "a?[2Jb???");
    expect("J\303\244ger \342\202\254 \360\237\230\200", "J\303\244ger \342\202\254 \360\237\230\200");
    expect("a\302\2332Jb\302\240c", "a??2Jb\302\240c"); /* U+009B begins a sequence, U+00A0 is a space */
    expect("\233\377 \303 \360\237 \300\257", "?? ? ?? ??");
}

static void a_text_is_cut_between_characters(void **state)
{
    char to[5];
    (void)state;
    assert_string_equal(kolo_plain_copy(to, sizeof to, "abc\303\244", 5), "abc");
    assert_string_equal(kolo_plain_copy(to, sizeof to, "abcdef", 6), "abcd");
    assert_string_equal(kolo_plain_copy(to, sizeof to, "abcdef", 2), "ab");
    assert_string_equal(kolo_plain_copy(to, sizeof to, "ab\303\244", 3), "ab?"); /* its second byte is not ours */
    assert_string_equal(kolo_plain_copy(to, 1, "ab", 2), "");
}

static void an_error_has_none(void **state)
{
    (void)state;
    kolo_fail(KOLO_ERR_REMOTE, "rank 3: %s\nand a second line", "\033]0;title\a");
    assert_string_equal(kolo_error_text(), "rank 3: ?]0;title?\nand a second line");
    kolo_fail_prefix(KOLO_ERR_REMOTE, "comm %s: ", "\033[1m");
    assert_string_equal(kolo_error_text(), "comm ?[1m: rank 3: ?]0;title?\nand a second line");
    kolo_fail_errno(KOLO_ERR_SYSTEM, 2, "file %s", "\033[1m");
    assert_null(strchr(kolo_error_text(), '\033'));
}

static void a_log_line_has_none(void **state)
{
    char path[] = "/tmp/kolo-plain-XXXXXX", text[1000] = "";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(kolo_log_open("warn", KOLO_LOG_TEXT, path), KOLO_OK);
    kolo_warn("test", "tensor %s", "\033[31mred\302\233");
    assert_int_equal(kolo_log_open("warn", KOLO_LOG_TEXT, "/dev/null"), KOLO_OK);
    assert_true(read(fd, text, sizeof text - 1) > 0);
    assert_non_null(strstr(text, "tensor ?[31mred??"));
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_characters_become_question_marks),
        cmocka_unit_test(a_text_is_cut_between_characters),
        cmocka_unit_test(an_error_has_none),
        cmocka_unit_test(a_log_line_has_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
