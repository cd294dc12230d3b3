/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys: what is one, what is none, and that there is one text for each.
 */
#include "base/test.h"
#include "rendezvous/key.h"

#include <stdio.h>
#include <string.h>

#define SRC "/job:ps/task:0/device:cpu:0"
#define DST "/job:worker/replica:1/task:12/device:GPU:3"
#define INC "00000000deadbeef"

static void a_key_is_taken_apart(void **state)
{
    kolo_tensor_key_t key;
    (void)state;
    assert_int_equal(kolo_tensor_key_parse(SRC ";" INC ";" DST ";edge_3_w/read;2:17", &key), KOLO_OK);
    assert_string_equal(key.src_device, SRC);
    assert_int_equal(key.src_incarnation, 0xdeadbeef);
    assert_string_equal(key.dst_device, DST);
    assert_string_equal(key.edge_name, "edge_3_w/read");
    assert_int_equal(key.frame, 2);
    assert_int_equal(key.iteration, 17);
}

static void what_is_made_is_what_was_taken_apart(void **state)
{
    static const char *const keys[] = {SRC ";" INC ";" DST ";e;0:0", DST ";ffffffffffffffff;" SRC ";a b:c;7:0",
                                       SRC ";0000000000000000;" SRC ";\xc3\xa4;18446744073709551615:1"};
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        kolo_tensor_key_t key;
        char again[KOLO_TENSOR_KEY_MAX + 1];
        assert_int_equal(kolo_tensor_key_parse(keys[i], &key), KOLO_OK);
        assert_int_equal(kolo_tensor_key_make(&key, again, sizeof again), KOLO_OK);
        assert_string_equal(again, keys[i]);
        assert_int_equal(kolo_tensor_key_make(&key, again, strlen(keys[i])), KOLO_ERR_INVALID_ARGUMENT);
    }
}

static void everything_else_is_refused_with_its_reason(void **state)
{
    static const char *const bad[][2] = {
        {"", "five parts"},
        {SRC ";" INC ";" DST ";e", "five parts"},
        {SRC ";" INC ";" DST ";e;0:0;", "more than five parts"},
        {SRC ";" INC ";" DST ";e;f;0:0", "no name may have a ;"},
        {SRC ";deadbeef;" DST ";e;0:0", "incarnation"},
        {SRC ";00000000DEADBEEF;" DST ";e;0:0", "incarnation"},
        {SRC ";" INC ";" DST ";;0:0", "no name"},
        {SRC ";" INC ";" DST ";e\n;0:0", "control"},
        {SRC ";" INC ";" DST ";e;0:00", "iteration"},
        {SRC ";" INC ";" DST ";e;0:0 ", "follows"},
        {SRC ";" INC ";" DST ";e;-1:0", "frame"},
        {SRC ";" INC ";" DST ";e;18446744073709551616:0", "frame"},
        {"/job:/task:0/device:cpu:0;" INC ";" DST ";e;0:0", "job"},
        {"/job:ps/task:01/device:cpu:0;" INC ";" DST ";e;0:0", "task"},
        {"/job:ps/task:1234567890/device:cpu:0;" INC ";" DST ";e;0:0", "task"},
        {"/job:ps/task:0/cpu:0;" INC ";" DST ";e;0:0", "/device:"},
        {SRC ";" INC ";" DST "x;e;0:0", "follows"},
    };
    (void)state;
    for (size_t i = 0; i < 2 * (sizeof bad / sizeof *bad); i++) {
        kolo_tensor_key_t key, before;
        /* What the key before had may have been kept: that of the same tasks, or of others. */
        const char *first = i % 2 ? SRC ";" INC ";" DST ";e;0:0" : DST ";" INC ";" SRC ";f;1:1";
        assert_int_equal(kolo_tensor_key_parse(first, &before), KOLO_OK);
        assert_string_equal(before.edge_name, i % 2 ? "e" : "f");
        key = (kolo_tensor_key_t){.frame = 42};
        assert_int_equal(kolo_tensor_key_parse(bad[i / 2][0], &key), KOLO_ERR_INVALID_ARGUMENT);
        if (!strstr(kolo_error_text(), bad[i / 2][1])) fail_msg("%s: %s", bad[i / 2][0], kolo_error_text());
        assert_int_equal(key.frame, 42); /* outputs on success only */
    }
}

static void names_that_are_too_long_are_refused(void **state)
{
    kolo_tensor_key_t key = {.src_device = SRC, .dst_device = DST};
    char text[KOLO_TENSOR_KEY_MAX + 1], longest[1200];
    (void)state;
    memset(key.edge_name, 'e', KOLO_EDGE_NAME_MAX);
    assert_int_equal(kolo_tensor_key_make(&key, text, sizeof text), KOLO_OK);
    snprintf(longest, sizeof longest, "%s;%s;%s;e%s;0:0", SRC, INC, DST, key.edge_name);
    assert_int_equal(kolo_tensor_key_parse(longest, &key), KOLO_ERR_INVALID_ARGUMENT);
    memset(longest, 'e', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(kolo_tensor_key_parse(longest, &key), KOLO_ERR_INVALID_ARGUMENT);
}

static void a_device_belongs_to_one_task(void **state)
{
    char task[KOLO_TASK_NAME_MAX + 1];
    (void)state;
    assert_true(kolo_device_is_of(SRC, "/job:ps/task:0"));
    assert_false(kolo_device_is_of("/job:ps/task:01/device:cpu:0", "/job:ps/task:0"));
    assert_false(kolo_device_is_of(SRC, "/job:ps/task:1"));
    kolo_device_task(DST, task);
    assert_string_equal(task, "/job:worker/replica:1/task:12");
    assert_null(kolo_task_name_check(task));
    assert_non_null(kolo_task_name_check("/job:ps/task:0/device:cpu:0"));
    assert_non_null(kolo_task_name_check("ps:0"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_taken_apart),
        cmocka_unit_test(what_is_made_is_what_was_taken_apart),
        cmocka_unit_test(everything_else_is_refused_with_its_reason),
        cmocka_unit_test(names_that_are_too_long_are_refused),
        cmocka_unit_test(a_device_belongs_to_one_task),
    };
    return cmocka_run_group_tests_name("keys", tests, NULL, NULL);
}
