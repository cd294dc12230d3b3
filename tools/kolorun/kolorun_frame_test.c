/* SPDX-License-Identifier: Apache-2.0
 *
 * What kolorun and its agents say to each other, and lists of hosts.
 */
#include "kolorun_frame.h"
#include "kolorun_hostlist.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void a_program_arrives_as_it_was_sent(void **state)
{
    (void)state;
    char *argv[] = {(char *)(uintptr_t) "prog", (char *)(uintptr_t) "", (char *)(uintptr_t) "a b", NULL};
    char *env[] = {(char *)(uintptr_t) "A=1", (char *)(uintptr_t) "B=", NULL};
    const kolorun_spec_t spec = {.dir = "/some where", .argv = argv, .env = env, .input = true};
    kolorun_spec_t got;
    uint32_t bytes;
    uint8_t *data = kolorun_spec_encode(&spec, &bytes);
    assert_non_null(data);
    assert_true(kolorun_spec_decode(data, bytes, &got));
    assert_string_equal(got.dir, "/some where");
    assert_true(got.input);
    for (int i = 0; i < 3; i++) assert_string_equal(got.argv[i], argv[i]);
    assert_null(got.argv[3]);
    for (int i = 0; i < 2; i++) assert_string_equal(got.env[i], env[i]);
    assert_null(got.env[2]);
    free(got.argv);
    /* cut anywhere it is none */
    for (uint32_t n = 0; n < bytes; n++) assert_false(kolorun_spec_decode(data, n, &got));
    free(data);
}

static void counts_that_lie_are_refused(void **state)
{
    (void)state;
    kolorun_spec_t got;
    const uint8_t good[] = {1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 'p', 0};
    const uint8_t none[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    const uint8_t many[] = {0, 0, 0, 0, 255, 255, 255, 255, 1, 0, 0, 0, 0, 'p', 0};
    const uint8_t more[] = {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 'p', 0, 'q', 0};
    const uint8_t nameless[] = {0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 'p', 0, '=', '1', 0};
    const uint8_t strange[] = {2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 'p', 0};
    assert_true(kolorun_spec_decode(good, sizeof good, &got));
    free(got.argv);
    assert_false(kolorun_spec_decode(strange, sizeof strange, &got));
    assert_false(kolorun_spec_decode(none, sizeof none, &got));
    assert_false(kolorun_spec_decode(many, sizeof many, &got));
    assert_false(kolorun_spec_decode(more, sizeof more, &got));
    assert_false(kolorun_spec_decode(nameless, sizeof nameless, &got));
}

static void a_frame_is_whole_or_refused(void **state)
{
    (void)state;
    uint8_t buf[KOLORUN_FRAME_HEADER + 4];
    kolorun_frame_t frame;
    int32_t number;
    kolorun_frame_header(buf, KOLORUN_ENDED, -7, 4);
    kolorun_put_i32(buf + KOLORUN_FRAME_HEADER, -2);
    for (size_t n = 0; n < sizeof buf; n++) assert_int_equal(kolorun_frame_parse(buf, n, &frame), 0);
    assert_int_equal(kolorun_frame_parse(buf, sizeof buf, &frame), sizeof buf);
    assert_int_equal(frame.id, -7);
    assert_true(kolorun_frame_number(&frame, &number) && number == -2);
    kolorun_frame_header(buf, KOLORUN_OUT, 0, KOLORUN_FRAME_MAX + 1);
    assert_int_equal(kolorun_frame_parse(buf, sizeof buf, &frame), -1);
    kolorun_frame_header(buf, (kolorun_frame_type_t)99, 0, 0);
    assert_int_equal(kolorun_frame_parse(buf, sizeof buf, &frame), -1);
}

static void files_stay_in_their_directory(void **state)
{
    (void)state;
    static const char *const bad[] = {"../id", "a/b", ".hidden", "", "a b", ".."};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(kolorun_file_name_ok(bad[i]));
    assert_true(kolorun_file_name_ok("id.0"));
    const char *name;
    const uint8_t *content;
    size_t bytes;
    const kolorun_frame_t unended = {.type = KOLORUN_FILE, .data = (const uint8_t *)"id.0", .bytes = 4};
    assert_false(kolorun_file_decode(&unended, &name, &content, &bytes));
    const kolorun_frame_t good = {.type = KOLORUN_FILE, .data = (const uint8_t *)"id.0\0xy", .bytes = 7};
    assert_true(kolorun_file_decode(&good, &name, &content, &bytes));
    assert_int_equal(bytes, 2);
}

static bool add(kolorun_hostlist_t *list, const char *text)
{
    char why[200];
    return kolorun_hostlist_add(list, text, strlen(text), why, sizeof why);
}

static void hosts_are_listed_in_their_order(void **state)
{
    (void)state;
    kolorun_hostlist_t list = {0};
    assert_true(add(&list, "a:2, b ,[fe80::1]:3,fe80::2,u@c:1"));
    assert_true(add(
        &list, "# file\nd slots=4 max_slots=8\n\te:1 # five\n\nb slots=2 max-slots=3\nf max_slots=4 slots=2\n"));
    static const struct {
        const char *name;
        int slots;
    } want[] = {{"a", 2}, {"b", 3}, {"fe80::1", 3}, {"fe80::2", 1}, {"u@c", 1}, {"d", 4}, {"e", 1}, {"f", 2}};
    assert_int_equal(list.count, sizeof want / sizeof *want);
    for (int i = 0; i < list.count; i++) {
        assert_string_equal(list.hosts[i].name, want[i].name);
        assert_int_equal(list.hosts[i].slots, want[i].slots);
    }
    assert_int_equal(list.slots, 17);
    kolorun_hostlist_fini(&list);
}

static void nonsense_is_no_host(void **state)
{
    (void)state;
    static const char *const bad[] = {"a:0",
                                      "a:",
                                      "a:x",
                                      "a:-1",
                                      "a:99999",
                                      "-oProxyCommand=x",
                                      "a;b",
                                      "[::1",
                                      "a slots=0",
                                      "a slots=",
                                      "a:2 slots=2",
                                      ":2",
                                      "a b",
                                      "[::1]2",
                                      "a\x01",
                                      "$(reboot):1",
                                      "a:65536,b:1",
                                      "a max_slots=",
                                      "a slots=1 slots=2",
                                      "a max_slots=x slots=2",
                                      "a slots=2 max"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kolorun_hostlist_t list = {0};
        if (add(&list, bad[i])) fail_msg("took \"%s\"", bad[i]);
        kolorun_hostlist_fini(&list);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_program_arrives_as_it_was_sent), cmocka_unit_test(counts_that_lie_are_refused),
        cmocka_unit_test(a_frame_is_whole_or_refused),      cmocka_unit_test(files_stay_in_their_directory),
        cmocka_unit_test(hosts_are_listed_in_their_order),  cmocka_unit_test(nonsense_is_no_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
