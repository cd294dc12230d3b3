/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that has other rights than its caller does not let the caller's environment name files or libraries: a
 * copy of this program that belongs to root, with the set-user-id bit, is run by another user.
 */
#include "comm/params.h"

#include "base/params.h"
#include "base/test.h"
#include "topo/topo.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define OTHER_USER 65534
#define SKIPPED    77
#define CORES      77                 /* that the caller's machine is made up of */
#define INSIDE     "KOLO_TEST_INSIDE" /* the name of the directory: this is the copy */

static const kolo_param_t *each_row(size_t n)
{
    size_t ntables;
    const kolo_param_table_t *const *tables = kolo_param_tables(&ntables);
    for (size_t t = 0; t < ntables; n -= tables[t++]->count)
        if (n < tables[t]->count) return &tables[t]->rows[n];
    return NULL;
}

/* ---- the copy ---- */

/* hwloc has variables of its own; others of them name libraries, which it loads. */
static bool hwloc_was_led(void)
{
    kolo_topo_t topo;
    int cores = 0;
    if (kolo_topo_load(&topo) != KOLO_OK) return true;
    for (int i = 0; i < topo.count; i++) cores += topo.nodes[i].kind == KOLO_TOPO_CORE;
    fprintf(stderr, "topology: %s, %d cores\n", topo.source, cores);
    kolo_topo_fini(&topo);
    return cores == CORES;
}

static int be_the_copy(const char *dir)
{
    if (getauxval(AT_SECURE) == 0) return SKIPPED; /* a file system without set-user-id */
    if (kolo_comm_library_init() != KOLO_OK) {
        fprintf(stderr, "%s\n", kolo_error_text());
        return 2;
    }
    int wrong = 0;
    const kolo_param_t *row;
    for (size_t n = 0; (row = each_row(n)) != NULL; n++) {
        char text[PATH_MAX];
        kolo_param_print(row, text, sizeof text);
        if (strncmp(text, dir, strlen(dir)) != 0) continue;
        fprintf(stderr, "believed: %s=%s\n", row->key, text);
        wrong++;
    }
    return wrong == 0 && !hwloc_was_led() ? 0 : 1;
}

/* ---- the test ---- */

static void copy_self(const char *path)
{
    char bytes[65536];
    ssize_t n;
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), to = open(path, O_WRONLY | O_CREAT | O_EXCL, 0755);
    assert_true(from >= 0 && to >= 0);
    while ((n = read(from, bytes, sizeof bytes)) > 0) assert_int_equal(write(to, bytes, (size_t)n), n);
    assert_int_equal(n, 0);
    assert_int_equal(fchmod(to, 04755), 0);
    close(from);
    close(to);
}

static bool names_a_file(const kolo_param_t *row)
{
    return row->kind == KOLO_PARAM_FILE;
}

static void set_environment(const char *dir)
{
    char text[PATH_MAX];
    const kolo_param_t *row;
    for (size_t n = 0; (row = each_row(n)) != NULL; n++) {
        if (!names_a_file(row)) continue;
        snprintf(text, sizeof text, "%s/open/%s", dir, row->key);
        setenv(row->key, text, 1);
    }
    setenv("HWLOC_SYNTHETIC", "package:1 core:77 pu:1", 1);
    setenv(INSIDE, dir, 1);
}

/* Runs the copy as another user; what it printed comes in `said`. */
static int run_copy(const char *dir, const char *program, char *said, size_t bytes)
{
    int out[2], status = 0;
    size_t used = 0;
    assert_int_equal(pipe(out), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(30);
        set_environment(dir);
        if (dup2(out[1], 2) < 0 || setresgid(OTHER_USER, OTHER_USER, OTHER_USER) != 0 ||
            setresuid(OTHER_USER, OTHER_USER, OTHER_USER) != 0)
            _exit(SKIPPED);
        execl(program, program, (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    for (ssize_t n; (n = read(out[0], said + used, bytes - 1 - used)) > 0;) used += (size_t)n;
    said[used] = '\0';
    close(out[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static void a_set_user_id_program_lets_its_caller_name_no_file(void **state)
{
    char dir[] = "/tmp/kolo-privilege.XXXXXX", open_dir[64], program[64], left[128];
    static char said[65536];
    (void)state;
    if (geteuid() != 0) skip();
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chmod(dir, 0755), 0);
    snprintf(open_dir, sizeof open_dir, "%s/open", dir);
    snprintf(program, sizeof program, "%s/program", dir);
    snprintf(left, sizeof left, "%s/KOLO_LOG_FILE", open_dir);
    assert_int_equal(mkdir(open_dir, 0777), 0);
    copy_self(program);
    int result = run_copy(dir, program, said, sizeof said);
    bool wrote = access(left, F_OK) == 0;
    unlink(left);
    unlink(program);
    rmdir(open_dir);
    rmdir(dir);
    if (result == SKIPPED) skip();
    if (result != 0) print_error("%s", said);
    assert_int_equal(result, 0);
    assert_false(wrote);
    assert_non_null(strstr(said, "KOLO_LOG_FILE is ignored"));
    assert_non_null(strstr(said, "KOLO_NET_PLUGIN is ignored"));
#ifdef KOLO_HAVE_HWLOC
    assert_non_null(strstr(said, "HWLOC_SYNTHETIC: hwloc is not asked"));
#endif
}

/* Whoever adds a row reads this. */
static void a_row_whose_help_speaks_of_a_file_is_of_that_kind(void **state)
{
    static const char *const words[] = {"file for",     "file with",    "this file", "library,",
                                        "library;",     "plug-in made", "directory", "where rank 0 leaves",
                                        "table of what"};
    const kolo_param_t *row;
    (void)state;
    for (size_t n = 0; (row = each_row(n)) != NULL; n++)
        for (size_t w = 0; w < KOLO_COUNTOF(words); w++) {
            if (row->kind != KOLO_PARAM_STR || !strstr(row->help, words[w])) continue;
            fail_msg("%s says \"%s\", but is no KOLO_PARAM_FILE", row->key, words[w]);
        }
}

int main(void)
{
    const char *inside = getenv(INSIDE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_set_user_id_program_lets_its_caller_name_no_file),
        cmocka_unit_test(a_row_whose_help_speaks_of_a_file_is_of_that_kind),
    };
    if (inside) return be_the_copy(inside);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
