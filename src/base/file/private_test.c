/* SPDX-License-Identifier: Apache-2.0
 *
 * Files that others have prepared, and memory that core files leave out.
 */
#include "base/file/output.h"
#include "base/file/private.h"
#include "base/log.h"
#include "base/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64], target[80], link_file[80];

static int set_up(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/kolo-private-test-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    snprintf(target, sizeof target, "%s/target", dir);
    snprintf(link_file, sizeof link_file, "%s/link", dir);
    return symlink(target, link_file);
}

static int tear_down(void **state)
{
    (void)state;
    unlink(target);
    unlink(link_file);
    return rmdir(dir);
}

static void a_log_does_not_follow_the_link_of_another_user(void **state)
{
    char why[300];
    (void)state;
    int fd = kolo_output_open(link_file, O_APPEND, why, sizeof why); /* this user's own */
    assert_true(fd > 2);
    close(fd);
    assert_int_equal(access(target, F_OK), 0);
    if (geteuid() != 0) return; /* only root can give a link away */
    unlink(target);
    assert_int_equal(lchown(link_file, 12345, 12345), 0);
    assert_int_equal(kolo_output_open(link_file, O_APPEND, why, sizeof why), -1);
    assert_non_null(strstr(why, "symbolic link of another user"));
    assert_int_equal(kolo_log_open(NULL, KOLO_LOG_TEXT, link_file), KOLO_ERR_SYSTEM);
    assert_non_null(strstr(kolo_error_text(), "symbolic link of another user"));
    assert_int_equal(access(target, F_OK), -1);
}

static void a_pipe_that_nobody_reads_holds_nobody_up(void **state)
{
    char why[300];
    (void)state;
    assert_int_equal(mkfifo(target, 0600), 0);
    assert_int_equal(kolo_output_open(target, O_TRUNC, why, sizeof why), -1);
    assert_non_null(strstr(why, "nobody reads"));
    int reader = open(target, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int fd = kolo_output_open(target, O_TRUNC, why, sizeof why);
    assert_true(fd > 2);
    assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    close(fd);
    close(reader);
}

/* "dd" among the flags of its mapping: not dumped. */
static bool is_left_out(const void *at)
{
    char line[400];
    bool here = false, left_out = false;
    FILE *maps = fopen("/proc/self/smaps", "re");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) here = (uintptr_t)at >= from && (uintptr_t)at < to;
        if (here && strncmp(line, "VmFlags:", 8) == 0) left_out = strstr(line, " dd") != NULL;
    }
    fclose(maps);
    return left_out;
}

static void core_files_leave_keys_out(void **state)
{
    enum { BYTES = 10000 };
    (void)state;
    char *keys = kolo_private_alloc(BYTES);
    assert_non_null(keys);
    memset(keys, 7, BYTES);
    assert_true(is_left_out(keys) && is_left_out(keys + BYTES - 1));
    kolo_private_free(keys, BYTES);
    assert_false(is_left_out(keys));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_log_does_not_follow_the_link_of_another_user, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_pipe_that_nobody_reads_holds_nobody_up, set_up, tear_down),
        cmocka_unit_test(core_files_leave_keys_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
