/* SPDX-License-Identifier: Apache-2.0
 *
 * The table file: what is read, what is refused and in which words, that what is written can be read again, and
 * that the tuner follows it.
 */
#include "base/test.h"
#include "tune/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static kolo_tune_table_t table;

static const char whole[] = "kolo-tune 1\n"
                            "# made by hand\n"
                            "cpu all_reduce ranks=4 from=0 algo=ring\n"
                            "cpu all_reduce ranks=4 from=1000 algo=tree   # a comment\n"
                            "\n"
                            "cpu broadcast ranks=2 from=0 algo=tree\r\n"
                            "gpu ranks=2 ll_all_reduce=1 ll_others=2 ll128_all_reduce=3 ll128_others=4 "
                            "message_lines=5 give=6\n"
                            "gpu ranks=8 ll_all_reduce=1 ll_others=2 ll128_all_reduce=3 ll128_others=4 "
                            "message_lines=5 give=6 ll128_two=7 pipe=8\n"
                            "machine launch_ns=1 gap_ns=2 begin_ns=3 hop_ns=4 meet_ns=5 message_ns=6 ll_mbps=7 "
                            "ll128_mbps=8 store_mbps=9 load_mbps=10\n"
                            "end 6\n";

static void test_reads(void **s)
{
    (void)s;
    assert_int_equal(kolo_tune_table_parse(whole, strlen(whole), "t", &table), KOLO_OK);
    assert_int_equal(table.nrows, 3);
    assert_int_equal(table.ngpus, 2);
    assert_true(table.has_machine);
    assert_int_equal(table.gpus[0].give, 6);
    assert_int_equal(table.gpus[0].pipe, 0); /* a file of before */
    assert_int_equal(table.gpus[1].ll128_two, 7);
    assert_int_equal(table.gpus[1].pipe, 8);
    assert_int_equal(table.machine.load_mbps, 10);
    assert_int_equal(kolo_tune_table_find(&table, KOLO_COLL_ALL_REDUCE, 4, 999)->way.algo, KOLO_ALGO_RING);
    assert_int_equal(kolo_tune_table_find(&table, KOLO_COLL_ALL_REDUCE, 4, 1000)->way.algo, KOLO_ALGO_TREE);
    assert_null(kolo_tune_table_find(&table, KOLO_COLL_ALL_REDUCE, 3, 1000));
    assert_null(kolo_tune_table_find(&table, KOLO_COLL_REDUCE, 4, 1000));
}

static char *text_of(const kolo_tune_table_t *t, const char *comment, size_t *bytes)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);
    assert_non_null(out);
    kolo_tune_table_write(t, comment, out);
    fclose(out);
    return text;
}

static void test_written_is_read(void **s)
{
    (void)s;
    size_t bytes, more;
    assert_int_equal(kolo_tune_table_parse(whole, strlen(whole), "t", &table), KOLO_OK);
    uint64_t hash = table.hash;
    char *text = text_of(&table, "a comment", &bytes);
    assert_int_equal(kolo_tune_table_parse(text, bytes, "t", &table), KOLO_OK);
    assert_int_not_equal(table.hash, hash); /* of the bytes */
    assert_int_equal(table.nrows + table.ngpus + table.has_machine, 6);
    char *again = text_of(&table, "a comment", &more);
    assert_string_equal(text, again);
    free(again);
    free(text);
}

static void refused(const char *text, const char *word)
{
    if (kolo_tune_table_parse(text, strlen(text), "t", &table) == KOLO_OK) fail_msg("accepted: %s", text);
    if (!strstr(kolo_error_text(), word)) fail_msg("\"%s\" has no \"%s\"", kolo_error_text(), word);
}

static void test_refuses(void **s)
{
    (void)s;
    refused("", "no line \"end\"");
    refused("hello\n", "not a table of kolo-tune");
    refused("kolo-tune 2\nend 0\n", "version 2");
    refused("kolo-tune 1\n", "cut off");
    refused("kolo-tune 1\nend 1\n", "wrong number of lines");
    refused("kolo-tune 1\nend 0\nend 0\n", "after the end");
    refused("kolo-tune 1\nend 0 0\n", "unexpected word");
    refused("kolo-tune 1\nnpu x\nend 1\n", "line 2: expected cpu");
    refused("kolo-tune 1\ncpu all_reduc ranks=2 from=0 algo=ring\nend 1\n", "all_reduc");
    refused("kolo-tune 1\ncpu all_reduce ranks=1 from=0 algo=ring\nend 1\n", "ranks=");
    refused("kolo-tune 1\ncpu all_reduce ranks=99999999999999999999 from=0 algo=ring\nend 1\n", "ranks=");
    refused("kolo-tune 1\ncpu all_reduce ranks=2 from=-1 algo=ring\nend 1\n", "from=");
    refused("kolo-tune 1\ncpu all_reduce ranks=2 from=0 algo=pairwise\nend 1\n", "algo=");
    refused(
        "kolo-tune 1\ncpu all_reduce ranks=2 from=9 algo=ring\ncpu all_reduce ranks=2 from=9 algo=ring\nend 2\n",
        "rise");
    refused("kolo-tune 1\ngpu ranks=33 ll_all_reduce=1\nend 1\n", "ranks=");
    refused("kolo-tune 1\ngpu ranks=2 ll_all_reduce=9999999\nend 1\n", "ll_all_reduce=");
    refused("kolo-tune 1\nmachine launch_ns=1\nend 1\n", "gap_ns=");
    refused("kolo-tune 1\ncpu all_reduce ranks=2 fr", "cut off in its last line");
    char line[KOLO_TUNE_TABLE_LINE + 2];
    memset(line, '#', sizeof line);
    line[sizeof line - 1] = '\0';
    refused(line, "too long");
}

/* The path of a file with this text; to be removed. */
static const char *file_with(const char *text)
{
    static char path[] = "/tmp/kolo_table_XXXXXX";
    memcpy(strrchr(path, '_') + 1, "XXXXXX", 6);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return path;
}

static kolo_algo_t chosen(uint32_t ranks, uint64_t bytes, const char **reason)
{
    const int zeros[8] = {0}, order[8] = {0, 1, 2, 3, 4, 5, 6, 7}, size = (int)ranks;
    kolo_tune_env_t env = {.nranks = ranks,
                           .nnodes = 1,
                           .max_node_size = ranks,
                           .min_node_size = ranks,
                           .cores = 64,
                           .fanout = true,
                           .ll = true};
    kolo_emit_env_t emit = {.nranks = ranks,
                            .nnodes = 1,
                            .node_of = zeros,
                            .node_first = zeros,
                            .node_size = &size,
                            .node_ranks = order,
                            .fanout = true,
                            .lanes = 1};
    kolo_tune_sizes_t sizes;
    kolo_tune_choice_t choice;
    kolo_tune_sizes(&env, &sizes);
    assert_int_equal(
        kolo_tune_choose(&(kolo_tune_ask_t){&env, &emit, &sizes, KOLO_COLL_ALL_REDUCE, bytes, 1}, &choice),
        KOLO_OK);
    *reason = choice.reason;
    return choice.way.algo;
}

static void test_tuner_follows(void **s)
{
    (void)s;
    const char *reason;
    const kolo_param_table_t *tables[] = {&kolo_tune_params};
    assert_int_equal(kolo_params_load(tables, 1, NULL, NULL), KOLO_OK);
    assert_int_not_equal(chosen(4, 500, &reason), KOLO_ALGO_RING);
    uint64_t hash = kolo_tune_hash();
    const char *path = file_with(whole);
    kolo_tune_config.file = path;
    assert_int_equal(kolo_tune_load(), KOLO_OK);
    unlink(path);
    assert_int_equal(chosen(4, 500, &reason), KOLO_ALGO_RING);
    assert_non_null(strstr(reason, "table file"));
    assert_int_equal(chosen(4, 100000, &reason), KOLO_ALGO_TREE);
    chosen(3, 500, &reason); /* not in the table */
    assert_null(strstr(reason, "table file"));
    const char *before = kolo_tune_force("direct");
    assert_int_equal(chosen(4, 500, &reason), KOLO_ALGO_DIRECT); /* KOLO_ALGO comes first */
    kolo_tune_force(before);
    assert_int_not_equal(kolo_tune_hash(), hash);
    kolo_tune_gpu_t gpu;
    kolo_tune_gpu(2, &gpu);
    assert_int_equal(gpu.ll128_others, 4);
    kolo_tune_gpu(4, &gpu);
    assert_int_equal(gpu.ll128_others, 0);
    assert_int_equal(kolo_tune_machine()->hop_ns, 4);
    kolo_tune_unload();
    assert_int_equal(kolo_tune_hash(), hash);
    assert_null(kolo_tune_machine());
}

static void test_load_says_what_is_wrong(void **s)
{
    (void)s;
    kolo_tune_config.file = "/nowhere/table";
    assert_int_equal(kolo_tune_load(), KOLO_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(kolo_error_text(), "KOLO_TUNE_FILE: cannot read the table file /nowhere/table"));
    const char *path = file_with("kolo-tune 1\nend 3\n");
    kolo_tune_config.file = path;
    assert_int_equal(kolo_tune_load(), KOLO_ERR_INVALID_ARGUMENT);
    unlink(path);
    assert_non_null(strstr(kolo_error_text(), "line 2"));
    assert_int_equal(mkfifo(path, 0600), 0); /* nobody writes to it: a start waited for ever */
    alarm(20);
    assert_int_equal(kolo_tune_load(), KOLO_ERR_INVALID_ARGUMENT);
    alarm(0);
    unlink(path);
    assert_non_null(strstr(kolo_error_text(), "is not a regular file"));
    kolo_tune_config.file = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_written_is_read),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_tuner_follows),
        cmocka_unit_test(test_load_says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
