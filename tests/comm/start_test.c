/* SPDX-License-Identifier: Apache-2.0
 *
 * Starts that cannot work: ids that are none, wrong options, and ranks that disagree about the job. Each rank gets
 * an error that says what is wrong; none waits longer than its limit, and nothing is left behind.
 */
#include "kit/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* In which two ranks must have checked in, and the bound of what must not wait for a far larger limit. */
#ifdef KOLO_SANITIZED
#define SHORT_MS 2100
#else
#define SHORT_MS 700
#endif
#define LONG_MS 20000
#define SOON_MS 15000

static kolo_config_t limit(int ms)
{
    kolo_config_t c = KOLO_CONFIG_INITIALIZER;
    c.init_timeout_ms = ms;
    return c;
}

static void null_pointers_are_refused(void **state)
{
    (void)state;
    kolo_unique_id_t id;
    kolo_comm_t comm = NULL;
    kolo_config_t config = limit(2000);
    int before = expect_failures();
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_get_version(NULL), "get_version", "output");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_get_unique_id(NULL), "get_unique_id", "id");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_unique_id_save(NULL, "/tmp/x"), "unique_id_save", "NULL");
    EXPECT_OK(kolo_get_unique_id(&id));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_unique_id_save(&id, NULL), "unique_id_save", "NULL");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_unique_id_load(NULL, "/tmp/x", 0), "unique_id_load", "NULL");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_unique_id_load(&id, NULL, 0), "unique_id_load", "NULL");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_unique_id_load(&id, "/tmp/x", -1), "unique_id_load", "timeout_ms");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_init_rank(NULL, 1, id, 0, &config), "init", "output");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_init_all(NULL, 1, &config), "init_all", "NULL");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_init_rank_scalable(&comm, 2, 0, 1, NULL, &config), "init",
                 "NULL");
    EXPECT(comm == NULL);
    EXPECT(kolo_type_size(KOLO_TYPE_COUNT) == 0 && kolo_type_size((kolo_type_t)-1) == 0);
    EXPECT(strlen(kolo_status_string((kolo_status_t)999)) > 0 && strlen(kolo_status_string((kolo_status_t)-1)) > 0);
    EXPECT_OK(kolo_comm_destroy(NULL));
    assert_int_equal(expect_failures() - before, 0);
}

static void sizes_and_ranks_out_of_range_are_refused(void **state)
{
    (void)state;
    kolo_unique_id_t ids[2];
    kolo_comm_t comm = NULL, all[2];
    kolo_config_t c = limit(2000);
    int before = expect_failures();
    EXPECT_OK(kolo_get_unique_id(&ids[0]));
    ids[1] = ids[0];
    for (int i = 0; i < 4; i++) {
        int n = (int[]){0, -1, INT32_MIN, INT32_MAX}[i], rank = (int[]){-1, 2, INT32_MIN, INT32_MAX}[i];
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_init_rank(&comm, n, ids[0], 0, &c), "init", "nranks");
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_init_rank(&comm, 2, ids[0], rank, &c), "init", "rank is");
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_init_all(all, n, &c), "init_all", "nranks");
        int nids = (int[]){0, -1, INT32_MIN, 3}[i];
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_init_rank_scalable(&comm, 2, 0, nids, ids, &c), "init",
                     "unique ids");
    }
    EXPECT(comm == NULL);
    assert_int_equal(expect_failures() - before, 0);
}

static void wrong_options_are_refused(void **state)
{
    (void)state;
    kolo_unique_id_t id;
    kolo_comm_t comm = NULL;
    int before = expect_failures();
    EXPECT_OK(kolo_get_unique_id(&id));
    for (int i = 0; i < 9; i++) {
        kolo_config_t c = limit(2000);
        const char *about = "config";
        if (i == 0) c.magic = 0;
        if (i == 1) c.size = 0;
        if (i == 2) c.size = 1u << 20;
        if (i == 3) memset(&c, 0, sizeof c);
        if (i == 4) c.blocking = 2, about = "blocking";
        if (i == 5) c.blocking = -1, about = "blocking";
        if (i == 6) c.init_timeout_ms = 0, about = "init_timeout_ms";
        if (i == 7) c.init_timeout_ms = -5, about = "init_timeout_ms";
        if (i == 8) c.op_timeout_ms = -1, about = "op_timeout_ms";
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_init_rank(&comm, 1, id, 0, &c), "init", "config", about);
    }
    EXPECT(comm == NULL);
    assert_int_equal(expect_failures() - before, 0);
}

/* A struct of an older program, which ends before the fields it does not know. */
static void shorter_options_take_defaults(void **state)
{
    (void)state;
    kolo_unique_id_t id;
    kolo_comm_t comm = NULL;
    kolo_config_t c = limit(2000);
    int before = expect_failures(), n = 0;
    c.size = offsetof(kolo_config_t, init_timeout_ms);
    c.init_timeout_ms = -7; /* lies behind what the caller knows */
    EXPECT_OK(kolo_get_unique_id(&id));
    if (EXPECT_OK(kolo_comm_init_rank(&comm, 1, id, 0, &c))) EXPECT_OK(kolo_comm_count(comm, &n));
    EXPECT(n == 1);
    end_comm(&comm);
    assert_int_equal(expect_failures() - before, 0);
}

static void what_is_no_id_is_refused(void **state)
{
    (void)state;
    kolo_unique_id_t id, bad;
    kolo_comm_t comm = NULL;
    kolo_config_t c = limit(2000);
    int before = expect_failures();
    EXPECT_OK(kolo_get_unique_id(&id));
    for (int i = 0; i < 5; i++) {
        bad = id;
        if (i == 0) memset(&bad, 0, sizeof bad);
        if (i == 1) memset(&bad, 0xa5, sizeof bad);
        if (i == 2) bad.bytes[60] ^= 1; /* the secret */
        if (i == 3) bad.bytes[20] ^= 1; /* the address */
        if (i == 4) memset(bad.bytes + 64, 0, 64);
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_init_rank(&comm, 2, bad, 0, &c), "init", "id");
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_unique_id_save(&bad, "/nonexistent/x"), "unique_id_save",
                     "id");
    }
    EXPECT(comm == NULL);
    assert_int_equal(expect_failures() - before, 0);
}

static void write_text(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "w");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f)) abort();
}

static void files_that_hold_no_id_are_refused(void **state)
{
    (void)state;
    char dir[] = "/tmp/kolo-start-test-XXXXXX", path[64];
    kolo_unique_id_t id, back;
    struct stat st;
    int before = expect_failures();
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/id", dir);
    memset(&back, 7, sizeof back);
    uint64_t start = now_ms();
    EXPECT_IS(KOLO_ERR_TIMEOUT, kolo_unique_id_load(&back, path, 50));
    EXPECT(now_ms() - start >= 50 && IN_TIME(now_ms() - start < 5000));
    EXPECT_OK(kolo_get_unique_id(&id));
    EXPECT_OK(kolo_unique_id_save(&id, path));
    EXPECT(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    EXPECT_OK(kolo_unique_id_load(&back, path, 0));
    EXPECT(memcmp(&id, &back, sizeof id) == 0);
    memset(&back, 7, sizeof back);
    for (size_t bytes = 0; bytes < sizeof id; bytes += 21) {
        write_text(path, &id, bytes);
        EXPECT(kolo_unique_id_load(&back, path, 0) != KOLO_OK);
    }
    id.bytes[100] ^= 1;
    write_text(path, &id, sizeof id);
    EXPECT(kolo_unique_id_load(&back, path, 0) != KOLO_OK);
    EXPECT(kolo_unique_id_load(&back, dir, 0) != KOLO_OK);
    EXPECT(back.bytes[0] == 7 && back.bytes[127] == 7);
    EXPECT(kolo_unique_id_save(&id, "/nonexistent/id") != KOLO_OK);
    unlink(path);
    rmdir(dir);
    assert_int_equal(expect_failures() - before, 0);
}

/* ---- ranks that disagree ---- */

typedef struct {
    kolo_unique_id_t id;
    int nranks[4], ranks[4]; /* what each thread says */
    int timeout_ms;
    kolo_status_t got[4];
    char text[4][512];
} start_t;

static void start_as_told(rank_t *r)
{
    start_t *s = r->arg;
    kolo_config_t c = limit(s->timeout_ms);
    kolo_comm_t comm = NULL;
    s->got[r->rank] = kolo_comm_init_rank(&comm, s->nranks[r->rank], s->id, s->ranks[r->rank], &c);
    snprintf(s->text[r->rank], sizeof s->text[0], "%s", kolo_get_last_error(NULL));
    meet();
    EXPECT(comm == NULL || s->got[r->rank] == KOLO_OK);
    EXPECT_OK(kolo_comm_destroy(comm));
}

static bool some_text_has(const start_t *s, int n, const char *needle)
{
    for (int i = 0; i < n; i++)
        if (strstr(s->text[i], needle)) return true;
    for (int i = 0; i < n; i++) fprintf(stderr, "rank %d: %s\n", i, s->text[i]);
    return false;
}

static int start_together(start_t *s, int n)
{
    int before = expect_failures();
    EXPECT_OK(kolo_get_unique_id(&s->id));
    uint64_t start = now_ms();
    run_threads(n, start_as_told, s);
    EXPECT(IN_TIME(now_ms() - start < SOON_MS));
    return expect_failures() - before;
}

static void a_rank_that_two_claim_is_named(void **state)
{
    (void)state;
    start_t s = {.nranks = {3, 3, 3}, .ranks = {0, 1, 1}, .timeout_ms = LONG_MS};
    assert_int_equal(start_together(&s, 3), 0);
    for (int i = 0; i < 3; i++) assert_int_not_equal(s.got[i], KOLO_OK);
    assert_true(some_text_has(&s, 3, "rank 1"));
}

static void ranks_that_disagree_on_their_number_are_told(void **state)
{
    (void)state;
    start_t s = {.nranks = {2, 3}, .ranks = {0, 1}, .timeout_ms = LONG_MS};
    assert_int_equal(start_together(&s, 2), 0);
    for (int i = 0; i < 2; i++) assert_int_not_equal(s.got[i], KOLO_OK);
    assert_true(some_text_has(&s, 2, "3"));
}

static void missing_ranks_are_named_when_the_limit_passes(void **state)
{
    (void)state;
    start_t s = {.nranks = {4, 4}, .ranks = {0, 3}, .timeout_ms = SHORT_MS};
    uint64_t start = now_ms();
    assert_int_equal(start_together(&s, 2), 0);
    assert_true(now_ms() - start >= SHORT_MS * 4 / 5 - 2); /* when the root speaks */
    for (int i = 0; i < 2; i++) assert_int_equal(s.got[i], KOLO_ERR_TIMEOUT);
    assert_true(some_text_has(&s, 2, "ranks 1-2 (never called) are missing"));
}

/* One job per id: who comes again with it finds the root gone or busy, and is told within its limit. */
static void an_id_serves_one_job(void **state)
{
    (void)state;
    start_t s = {.nranks = {2, 2}, .ranks = {0, 1}, .timeout_ms = LONG_MS};
    assert_int_equal(start_together(&s, 2), 0);
    assert_int_equal(s.got[0], KOLO_OK);
    assert_int_equal(s.got[1], KOLO_OK);
    s.timeout_ms = SHORT_MS;
    int before = expect_failures();
    uint64_t start = now_ms();
    run_threads(2, start_as_told, &s);
    assert_true(IN_TIME(now_ms() - start < SOON_MS));
    assert_int_equal(expect_failures() - before, 0);
    for (int i = 0; i < 2; i++) assert_int_not_equal(s.got[i], KOLO_OK);
    for (int i = 0; i < 2; i++) assert_true(strlen(s.text[i]) > 20);
}

static void failed_starts_leave_nothing(void **state)
{
    census_t before = census_take();
    a_rank_that_two_claim_is_named(state);
    ranks_that_disagree_on_their_number_are_told(state);
    missing_ranks_are_named_when_the_limit_passes(state);
    an_id_serves_one_job(state);
    /* the ids that nobody finished keep their root: at most one listener each for the first three */
    before.fds += 3;
    assert_true(census_no_more_than(before));
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_pointers_are_refused),
        cmocka_unit_test(sizes_and_ranks_out_of_range_are_refused),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(shorter_options_take_defaults),
        cmocka_unit_test(what_is_no_id_is_refused),
        cmocka_unit_test(files_that_hold_no_id_are_refused),
        cmocka_unit_test(a_rank_that_two_claim_is_named),
        cmocka_unit_test(ranks_that_disagree_on_their_number_are_told),
        cmocka_unit_test(missing_ranks_are_named_when_the_limit_passes),
        cmocka_unit_test(an_id_serves_one_job),
        cmocka_unit_test(failed_starts_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
