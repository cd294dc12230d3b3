/* SPDX-License-Identifier: Apache-2.0
 *
 * What is written for people: the text of errors, the log's levels and forms.
 */
#include "base/log.h"
#include "base/params.h"
#include "base/status.h"
#include "base/test.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void error_text_keeps_prefix_and_reason(void **state)
{
    (void)state;
    assert_int_equal(kolo_fail_errno(KOLO_ERR_SYSTEM, 2, "open %s", "x"), KOLO_ERR_SYSTEM);
    assert_string_equal(kolo_error_text(), "open x: No such file or directory");
    kolo_fail_prefix(KOLO_ERR_SYSTEM, "rank %d: ", 3);
    assert_string_equal(kolo_error_text(), "rank 3: open x: No such file or directory");
}

/* Opens the log as told, writes, and returns what stands in the file. */
static const char *log_of(const char *levels, kolo_log_format_t format, void (*write_lines)(void))
{
    static char text[4096];
    char path[] = "/tmp/kolo-log-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(kolo_log_open(levels, format, path), KOLO_OK);
    write_lines();
    ssize_t n = read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    close(fd);
    unlink(path);
    assert_int_equal(kolo_log_open(NULL, KOLO_LOG_TEXT, "/dev/stderr"), KOLO_OK);
    return text;
}

static void write_some(void)
{
    kolo_info("wire", "quiet \"%s\"\n", "a\\b");
    kolo_info("comm", "unheard");
    kolo_error("comm", "loud");
}

static void levels_of_the_log_are_chosen_by_room(void **state)
{
    (void)state;
    const char *text = log_of("warn,wire=debug", KOLO_LOG_TEXT, write_some);
    assert_non_null(strstr(text, "[wire] quiet \"a\\b\""));
    assert_non_null(strstr(text, "[comm] loud"));
    assert_null(strstr(text, "unheard"));
    text = log_of("info,comm=none", KOLO_LOG_TEXT, write_some);
    assert_non_null(strstr(text, "quiet"));
    assert_null(strstr(text, "[comm]"));
    const char *const bad[] = {"", "loud", "info,", "wire=", "=info", "info,wire", "wire=loud", "wi re=info", ","};
    for (size_t i = 0; i < KOLO_COUNTOF(bad); i++) assert_false(kolo_log_levels_good(bad[i]));
    assert_true(kolo_log_levels_good("DEBUG") && kolo_log_levels_good("wire=trace"));
}

static void long_log_lines_have_time_version_rank_and_job(void **state)
{
    (void)state;
    const char *text = log_of("info", KOLO_LOG_LONG, write_some);
    assert_null(strstr(text, " rank "));
    kolo_log_identify(3, NULL);
    kolo_log_identify(3, "00ff");
    kolo_log_identify(4, "1111"); /* another communicator of the process */
    text = log_of("info", KOLO_LOG_LONG, write_some);
    assert_true(text[4] == '-' && text[10] == 'T' && text[26] == 'Z');
    assert_non_null(strstr(text, "Z kolo 0."));
    assert_non_null(strstr(text, " rank 3 of 00ff [comm] loud"));
    text = log_of("info", KOLO_LOG_JSON, write_some);
    assert_non_null(strstr(text, "\"level\": \"info\""));
    assert_non_null(strstr(text, "\"rank\": 3, \"job\": \"00ff\", \"room\": \"wire\", \"text\": "
                                 "\"quiet \\\"a\\\\b\\\"\\u000a\"}"));
}

/* The first test: the host's name is asked for once. */
static void a_host_s_name_does_not_lead_the_terminal(void **state)
{
    (void)state;
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        static const char name[] = "a\033[2J\nb";
        if (unshare(CLONE_NEWUTS) != 0 || sethostname(name, sizeof name - 1) != 0) _exit(77);
        const char *text = log_of("info", KOLO_LOG_LONG, write_some);
        _exit(strstr(text, "a?[2J?b") && !strchr(text, '\033') ? 0 : 1);
    }
    assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* A path that is cut names another file. */
static void a_path_is_whole_or_refused(void **state)
{
    char path[5000] = "/tmp", text[64] = "";
    int n = 4;
    (void)state;
    while (n < 2000) n += snprintf(path + n, sizeof path - (size_t)n, "/../tmp");
    snprintf(path + n, sizeof path - (size_t)n, "/kolo-log-deep-%d", (int)getpid());
    assert_int_equal(kolo_log_open(NULL, KOLO_LOG_TEXT, path), KOLO_OK);
    kolo_error("comm", "deep");
    assert_int_equal(kolo_log_open(NULL, KOLO_LOG_TEXT, "/dev/stderr"), KOLO_OK);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    unlink(path);
    memset(path + n, '/', sizeof path - (size_t)n - 1);
    assert_int_equal(kolo_log_open(NULL, KOLO_LOG_TEXT, path), KOLO_ERR_SYSTEM);
    assert_non_null(strstr(kolo_error_text(), "too long"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_s_name_does_not_lead_the_terminal),
        cmocka_unit_test(a_path_is_whole_or_refused),
        cmocka_unit_test(error_text_keeps_prefix_and_reason),
        cmocka_unit_test(levels_of_the_log_are_chosen_by_room),
        cmocka_unit_test(long_log_lines_have_time_version_rank_and_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
