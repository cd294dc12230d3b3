/* SPDX-License-Identifier: Apache-2.0
 *
 * The launcher's words: what is read of each, and that anything else is refused. And the way they go: files that
 * appear in a directory.
 */
#include "base/test.h"
#include "elastic/state.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static kolo_word_t word;

static bool reads(const char *line)
{
    return kolo_state_word_parse(line, strlen(line), &word);
}

static void words_are_read(void **state)
{
    (void)state;
    char text[2 * KOLO_UNIQUE_ID_BYTES + 1], line[512];
    kolo_unique_id_t id;
    assert_true(reads("found 7 2 3"));
    assert_true(word.kind == KOLO_WORD_FOUND && word.plan == 7 && word.min == 2 && word.add == 3);
    assert_true(reads("add 4294967295 12"));
    assert_true(word.kind == KOLO_WORD_ADD && word.plan == UINT32_MAX && word.add == 12);
    assert_true(reads("remove 9 4,0,4294967295"));
    assert_true(word.kind == KOLO_WORD_REMOVE && word.nremove == 3 && word.remove[0] == 4 && word.remove[1] == 0 &&
                word.remove[2] == UINT32_MAX);
    assert_true(reads("min 3"));
    assert_true(word.kind == KOLO_WORD_MIN && word.min == 3);
    assert_true(reads("leave"));
    for (int i = 0; i < KOLO_UNIQUE_ID_BYTES; i++) id.bytes[i] = (char)(i * 7);
    kolo_state_word_id(&id, text);
    snprintf(line, sizeof line, "join 1 2 3 4 %s", text);
    assert_true(reads(line));
    assert_true(word.kind == KOLO_WORD_JOIN && word.min == 2 && word.rank == 3 && word.nranks == 4);
    assert_memory_equal(&word.id, &id, sizeof id);
}

static void anything_else_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "found",
                                      "found 1",
                                      "found 1 2",
                                      "found 0 1 1",
                                      "found 1 0 1",
                                      "founds 1 2 3",
                                      "found 1 2 3 ",
                                      "found  1 2 3",
                                      "found 1 2 -3",
                                      "add 1 0",
                                      "add 1 2147483648",
                                      "add 4294967296 1",
                                      "add 99999999999 1",
                                      "remove 1",
                                      "remove 1 ",
                                      "remove 1 1,",
                                      "remove 1 ,1",
                                      "remove 1 1;2",
                                      "min 0",
                                      "min x",
                                      "leave now",
                                      "leaveleave",
                                      "join 1 1 1 2 abc",
                                      "join 1 1 2 2 00",
                                      "LEAVE"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (reads(bad[i])) fail_msg("\"%s\" is read", bad[i]);
    assert_false(kolo_state_word_parse("leave\0x", 7, &word));
    static char list[10 * KOLO_STATE_LIST_MAX];
    size_t n = (size_t)snprintf(list, sizeof list, "remove 1 1");
    for (int i = 1; i < KOLO_STATE_LIST_MAX; i++) n += (size_t)snprintf(list + n, sizeof list - n, ",1");
    assert_true(reads(list));
    snprintf(list + n, sizeof list - n, ",1");
    assert_false(reads(list));
}

/* ---- the way ---- */

static char dir[] = "/tmp/kolo-state-XXXXXX";
static kolo_state_link_t way;

static void appear(unsigned n, const char *line, size_t bytes)
{
    char path[64], hidden[64];
    snprintf(hidden, sizeof hidden, "%s/.new", dir);
    snprintf(path, sizeof path, "%s/to.5.%u", dir, n);
    int fd = open(hidden, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0 && write(fd, line, bytes) == (ssize_t)bytes);
    close(fd);
    assert_int_equal(link(hidden, path), 0);
    unlink(hidden);
}

static void words_come_in_order_and_are_heard_once(void **state)
{
    (void)state;
    bool got;
    char id_file[64], said[64], text[64] = "";
    snprintf(id_file, sizeof id_file, "%s/id", dir);
    appear(0, "min 4", 5); /* before we look */
    assert_int_equal(kolo_state_link_open(&way, id_file, 5), KOLO_OK);
    assert_int_equal(kolo_state_link_hear(&way, 0, &word, &got), KOLO_OK);
    assert_true(got && word.min == 4);
    assert_int_equal(kolo_state_link_hear(&way, 0, &word, &got), KOLO_OK);
    assert_false(got);
    appear(2, "min 6", 5);
    assert_int_equal(kolo_state_link_hear(&way, 1, &word, &got), KOLO_OK);
    assert_false(got);
    appear(1, "min 5", 5);
    for (int want = 5; want <= 6; want++) {
        assert_int_equal(kolo_state_link_hear(&way, -1, &word, &got), KOLO_OK);
        assert_true(got && word.min == want);
    }
    for (int i = 0; i < 20; i++) assert_int_equal(kolo_state_link_say(&way, "hello %d", i), KOLO_OK);
    snprintf(said, sizeof said, "%s/from.5.19", dir);
    int fd = open(said, O_RDONLY);
    assert_true(fd >= 0 && read(fd, text, sizeof text - 1) == 8);
    close(fd);
    assert_string_equal(text, "hello 19");
    snprintf(said, sizeof said, "%s/from.5.3", dir);
    assert_int_not_equal(access(said, F_OK), 0); /* old ones go */
}

static void nonsense_and_the_end_of_the_launcher_are_errors(void **state)
{
    (void)state;
    static char huge[KOLO_STATE_LINE_MAX + 1];
    bool got;
    appear(3, "mean 7", 6);
    assert_int_equal(kolo_state_link_hear(&way, -1, &word, &got), KOLO_ERR_PROTOCOL);
    memset(huge, '1', sizeof huge);
    appear(3, huge, sizeof huge);
    assert_int_equal(kolo_state_link_hear(&way, -1, &word, &got), KOLO_ERR_PROTOCOL);
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
    assert_int_equal(kolo_state_link_hear(&way, -1, &word, &got), KOLO_ERR_SYSTEM);
    kolo_state_link_close(&way);
    assert_int_equal(kolo_state_link_open(&way, NULL, 5), KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(kolo_state_link_open(&way, "/no/such/place/id", 5), KOLO_ERR_SYSTEM);
    kolo_state_link_close(&way);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_read),
        cmocka_unit_test(anything_else_is_refused),
        cmocka_unit_test(words_come_in_order_and_are_heard_once),
        cmocka_unit_test(nonsense_and_the_end_of_the_launcher_are_errors),
    };
    way.watch = -1;
    if (!mkdtemp(dir)) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
