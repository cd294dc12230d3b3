/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors that some ranks submit and others do not: who is told, after what time, in which words, and how the
 * engine ends when that lasts. The log goes into a file that the test reads.
 */
#include "engine/kit/engines.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WARN_MS  150
#define LIMIT_MS 2000 /* no rank is ever that late by itself */

static char log_path[64];
static size_t log_from; /* where this test's lines begin */

/* ---- the log ---- */

static char *log_read(void)
{
    FILE *f = fopen(log_path, "r");
    char *text = calloc(1, 1 << 20);
    if (!f || !text) abort();
    size_t n = fread(text, 1, (1 << 20) - 1, f);
    fclose(f);
    memmove(text, text + (log_from < n ? log_from : n), n - (log_from < n ? log_from : n) + 1);
    return text;
}

static void log_begin(void)
{
    log_from = 0;
    char *text = log_read();
    log_from = strlen(text);
    free(text);
}

/* Does one line hold all of these? Ends with NULL. */
static bool line_has(const char *const *needles)
{
    char *text = log_read(), *save = NULL;
    bool found = false;
    for (char *line = strtok_r(text, "\n", &save); line && !found; line = strtok_r(NULL, "\n", &save)) {
        found = true;
        for (const char *const *n = needles; *n; n++) found = found && strstr(line, *n);
    }
    free(text);
    return found;
}
#define LOGGED(...) line_has((const char *const[]){__VA_ARGS__, NULL})

static bool await_line(const char *const *needles)
{
    for (uint64_t until = now_ms() + WAIT_MS; now_ms() < until; nap_ms(5))
        if (line_has(needles)) return true;
    char *text = log_read();
    fprintf(stderr, "not logged: %s; the log is:\n%s", needles[0], text);
    free(text);
    return false;
}
#define AWAIT_LOGGED(...) await_line((const char *const[]){__VA_ARGS__, NULL})

static int run(int n, int warn_ms, int limit_ms, void (*fn)(erank_t *))
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    config.stall_warn_ms = warn_ms;
    config.stall_limit_ms = limit_ms;
    log_begin();
    return run_engines(n, &config, fn, NULL);
}

static void submit(erank_t *r, const char *name, float *x, int64_t *handle)
{
    static const int64_t one = 1;
    kolo_tensor_t t = float_tensor(name, x, &one);
    EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, handle));
}

static void finish(erank_t *r, int64_t handle, const float *x, float sum)
{
    if (EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL))) EXPECT(*x == sum);
}

/* ---- a wait that ends ---- */

/* On the coordinator, and on a rank that has to ask it. */
static void a_wait_with_a_limit(erank_t *r)
{
    float x = 1;
    int64_t handle;
    if (r->rank != 1) {
        submit(r, "alone", &x, &handle);
        EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_engine_wait(r->engine, handle, 10, NULL), "tensor alone", "kolo-top");
        EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_engine_wait(r->engine, handle, 2500, NULL), "for tensor alone",
                     "rank 1 has not submitted tensor alone, for which 2 ranks have waited");
    }
    meet();
    if (r->rank == 1) submit(r, "alone", &x, &handle);
    finish(r, handle, &x, 3);
}

static void a_time_out_names_the_missing_rank(void **state)
{
    (void)state;
    assert_int_equal(run(3, 0, 0, a_wait_with_a_limit), 0);
}

/* ---- warnings ---- */

static void one_rank_lacks(erank_t *r)
{
    float x[2] = {1, 1};
    int64_t one = 1, handles[2];
    kolo_tensor_t pair[2] = {float_tensor("late.a", &x[0], &one), float_tensor("late.b", &x[1], &one)};
    if (r->rank != 2) EXPECT_OK(kolo_engine_all_reduce_group(r->engine, pair, 2, KOLO_SUM, 1, 1, NULL, handles));
    if (r->rank == 0) {
        EXPECT(AWAIT_LOGGED(" warn ", "[engine]", "rank 2 has not submitted tensor late.a, tensor late.b",
                            "for which 3 ranks have waited", "; rank 2 is process ", " on host ", "kolo-top"));
    }
    meet();
    if (r->rank == 2) EXPECT_OK(kolo_engine_all_reduce_group(r->engine, pair, 2, KOLO_SUM, 1, 1, NULL, handles));
    finish(r, handles[0], &x[0], 4);
    finish(r, handles[1], &x[1], 4);
}

static void who_lacks_a_tensor_is_named(void **state)
{
    (void)state;
    assert_int_equal(run(4, WARN_MS, 0, one_rank_lacks), 0);
}

static _Atomic uint64_t given_up;

/* The coordinator knows nothing of what is cached; some rank has to give it up first. */
static void cached_is_lacked(erank_t *r)
{
    kolo_engine_counters_t c;
    float x = 1;
    int64_t handle;
    for (int i = 0; i < 3; i++) EXPECT_OK(reduce_now(r, "cached", &x, 1, KOLO_MAX));
    uint64_t since = now_ms();
    meet();
    kolo_tensor_t t = float_tensor("cached", &x, &(int64_t){1});
    if (r->rank != 1) EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_MAX, 1, 1, NULL, &handle));
    if (r->rank == 1) {
        EXPECT(AWAIT_LOGGED("rank 1 has not submitted tensor cached", "2 ranks have waited"));
        EXPECT(now_ms() - since >= WARN_MS);
    }
    meet();
    if (r->rank == 1) EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_MAX, 1, 1, NULL, &handle));
    EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
    for (int i = 0; i < 3; i++) EXPECT_OK(reduce_now(r, "cached", &x, 1, KOLO_MAX));
    EXPECT_OK(kolo_engine_get_counters(r->engine, &c));
    EXPECT(c.hits >= 1);
    atomic_fetch_add(&given_up, c.invalid);
}

static void cached_tensors_are_told_too(void **state)
{
    (void)state;
    assert_int_equal(run(3, WARN_MS, 0, cached_is_lacked), 0);
    assert_true(given_up > 0);
}

/* A whole group of cached tensors, and a barrier; the coordinator's own program is the one that is late. */
static void groups_are_lacked(erank_t *r)
{
    float x[2] = {1, 1};
    int64_t one = 1, handles[2], barrier;
    kolo_tensor_t group[2] = {float_tensor("group.0", &x[0], &one), float_tensor("group.1", &x[1], &one)};
    for (int i = 0; i < 3; i++) {
        if (i == 2 && r->rank == 0) {
            EXPECT(AWAIT_LOGGED("rank 0 has not submitted", "tensor group.0, tensor group.1"));
            EXPECT(AWAIT_LOGGED("rank 0 has not submitted the barrier"));
        }
        EXPECT_OK(kolo_engine_all_reduce_group(r->engine, group, 2, KOLO_MIN, 1, 1, NULL, handles));
        EXPECT_OK(kolo_engine_wait(r->engine, handles[0], WAIT_MS, NULL));
        EXPECT_OK(kolo_engine_wait(r->engine, handles[1], WAIT_MS, NULL));
        if (i == 1 && r->rank > 0) EXPECT_OK(kolo_engine_barrier(r->engine, NULL, &barrier));
    }
    if (r->rank == 0) EXPECT_OK(kolo_engine_barrier(r->engine, NULL, &barrier));
    EXPECT_OK(kolo_engine_wait(r->engine, barrier, WAIT_MS, NULL));
}

static void groups_and_barriers_are_told(void **state)
{
    (void)state;
    assert_int_equal(run(3, WARN_MS, 0, groups_are_lacked), 0);
}

/* Each rank waits for what another has not come to; and work goes on meanwhile, so that no engine ever sleeps
 * long. */
static void each_lacks_another(erank_t *r)
{
    static _Atomic bool told;
    float x[3] = {1, 1, 1}, y;
    int64_t handles[3];
    char name[16];
    if (r->rank == 0) atomic_store(&told, false);
    meet();
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "of.%d", i);
        if (i != r->rank) submit(r, name, &x[i], &handles[i]);
    }
    for (bool on = true; on;) {
        y = atomic_load(&told);
        EXPECT_OK(reduce_now(r, "work", &y, 1, KOLO_MAX));
        on = y == 0;
        if (r->rank == 0 && LOGGED("rank 0 has not submitted tensor of.0,", "2 ranks") &&
            LOGGED("rank 1 has not submitted tensor of.1,") && LOGGED("rank 2 has not submitted tensor of.2,"))
            atomic_store(&told, true);
    }
    snprintf(name, sizeof name, "of.%d", r->rank);
    submit(r, name, &x[r->rank], &handles[r->rank]);
    for (int i = 0; i < 3; i++) finish(r, handles[i], &x[i], 3);
}

static void ranks_that_wait_for_each_other_are_all_told(void **state)
{
    (void)state;
    assert_int_equal(run(3, WARN_MS, 0, each_lacks_another), 0);
}

static void one_has_joined(erank_t *r)
{
    float x = 1;
    int64_t handle, join;
    if (r->rank == 1) EXPECT_OK(kolo_engine_join(r->engine, NULL, &join));
    if (r->rank == 0) {
        submit(r, "alone", &x, &handle);
        EXPECT(AWAIT_LOGGED("rank 2 has not submitted tensor alone, for which 1 rank has waited"));
    }
    meet();
    if (r->rank == 2) submit(r, "alone", &x, &handle);
    if (r->rank != 1) {
        finish(r, handle, &x, 2);
        EXPECT_OK(kolo_engine_join(r->engine, NULL, &join));
    }
    EXPECT_OK(kolo_engine_wait(r->engine, join, WAIT_MS, NULL));
}

static void who_has_joined_lacks_nothing(void **state)
{
    (void)state;
    assert_int_equal(run(3, WARN_MS, 0, one_has_joined), 0);
}

/* A set has a coordinator of its own; ranks are called as in the job. */
static void a_set_is_lacked(erank_t *r)
{
    const int ranks[] = {1, 3};
    int64_t one = 1, handle;
    float x = 1;
    kolo_tensor_t t = float_tensor("part", &x, &one);
    kolo_submission_t how = {0};
    EXPECT_OK(kolo_engine_add_set(r->engine, ranks, 2, &how.set));
    for (int i = 0; i < 3 && r->rank % 2; i++) { /* cached the last time */
        if (i == 2 && r->rank == 3)
            EXPECT(AWAIT_LOGGED("rank 3 has not submitted tensor part of process set 1, for which 1 rank has"));
        EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_MAX, 1, 1, &how, &handle));
        EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
    }
}

static void sets_are_told_by_their_own_coordinator(void **state)
{
    (void)state;
    assert_int_equal(run(4, WARN_MS, 0, a_set_is_lacked), 0);
}

static void set_over_the_limit(erank_t *r)
{
    const int ranks[] = {0, 2};
    int64_t one = 1, handle;
    float x = 1;
    kolo_tensor_t t = float_tensor("part", &x, &one);
    kolo_submission_t how = {0};
    EXPECT_OK(kolo_engine_add_set(r->engine, ranks, 2, &how.set));
    if (r->rank == 0) {
        EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_MAX, 1, 1, &how, &handle));
        EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_engine_wait(r->engine, handle, WAIT_MS, NULL),
                     "rank 2 has not submitted tensor part of process set 1");
    }
    meet();
    EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_engine_shutdown(r->engine), "rank 2 has not submitted tensor part");
    r->engine = NULL;
}

static void warn_never(erank_t *r)
{
    float x = 1;
    int64_t handle;
    if (r->rank == 0) {
        submit(r, "slow", &x, &handle);
        nap_ms(2 * WARN_MS);
        EXPECT(!LOGGED("slow"));
    }
    meet();
    if (r->rank > 0) submit(r, "slow", &x, &handle);
    finish(r, handle, &x, 2);
}

static void nothing_is_told_when_nobody_asks(void **state)
{
    (void)state;
    assert_int_equal(run(2, 0, 0, warn_never), 0);
}

/* ---- the limit ---- */

static void a_stall_of_a_set_ends_the_engine_everywhere(void **state)
{
    (void)state;
    assert_int_equal(run(3, 0, LIMIT_MS, set_over_the_limit), 0);
}

static void over_the_limit(erank_t *r)
{
    float x = 1, y = 1;
    int64_t handle = -1, late;
    EXPECT_OK(reduce_now(r, "common", &y, 1, KOLO_SUM));
    if (r->rank != 1) {
        submit(r, "never", &x, &handle);
        EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_engine_wait(r->engine, handle, WAIT_MS, NULL), "tensor never",
                     "rank 1 has not submitted tensor never", "2 ranks have waited", "KOLO_ENGINE_STALL_LIMIT_MS");
    }
    meet();
    kolo_tensor_t t = float_tensor("after", &y, &(int64_t){1});
    kolo_status_t status;
    do status = kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, &late);
    while (status == KOLO_OK && kolo_engine_wait(r->engine, late, WAIT_MS, NULL) == KOLO_OK);
    EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_engine_shutdown(r->engine), "rank 1 has not submitted tensor never");
    r->engine = NULL;
}

static void a_stall_over_the_limit_ends_the_engine_everywhere(void **state)
{
    (void)state;
    assert_int_equal(run(3, 0, LIMIT_MS, over_the_limit), 0);
    assert_false(LOGGED("never")); /* that it is near the limit is no reason to warn when warnings are off */
    assert_int_equal(run(3, WARN_MS, LIMIT_MS, over_the_limit), 0);
    assert_true(LOGGED("rank 1 has not submitted tensor never"));
}

static _Atomic bool others_know;

static void hang(void *arg, const kolo_completion_t *completion)
{
    (void)arg, (void)completion;
    for (uint64_t until = now_ms() + WAIT_MS; now_ms() < until && !atomic_load(&others_know);) nap_ms(5);
}

static void one_hangs_in_a_callback(erank_t *r)
{
    float x = 1, y = 1;
    int64_t handle;
    kolo_submission_t how = {.done = r->rank == 1 ? hang : NULL};
    kolo_tensor_t t = float_tensor("hangs", &x, &(int64_t){1});
    EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, &handle));
    if (r->rank == 0) {
        EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
        submit(r, "next", &y, &handle);
        EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_engine_wait(r->engine, handle, WAIT_MS, NULL), "next", "time-out",
                     "rank 1");
        atomic_store(&others_know, true);
        EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_engine_shutdown(r->engine), "rank 1");
        r->engine = NULL;
    }
    meet();
    if (r->rank == 1) EXPECT(kolo_engine_shutdown(r->engine) != KOLO_OK);
    r->engine = NULL;
}

static void the_limit_also_ends_waits_for_a_thread_that_hangs(void **state)
{
    (void)state;
    assert_int_equal(run(2, 0, LIMIT_MS, one_hangs_in_a_callback), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_time_out_names_the_missing_rank),
        cmocka_unit_test(who_lacks_a_tensor_is_named),
        cmocka_unit_test(cached_tensors_are_told_too),
        cmocka_unit_test(groups_and_barriers_are_told),
        cmocka_unit_test(ranks_that_wait_for_each_other_are_all_told),
        cmocka_unit_test(who_has_joined_lacks_nothing),
        cmocka_unit_test(sets_are_told_by_their_own_coordinator),
        cmocka_unit_test(nothing_is_told_when_nobody_asks),
        cmocka_unit_test(a_stall_over_the_limit_ends_the_engine_everywhere),
        cmocka_unit_test(a_stall_of_a_set_ends_the_engine_everywhere),
        cmocka_unit_test(the_limit_also_ends_waits_for_a_thread_that_hangs),
    };
    snprintf(log_path, sizeof log_path, "/tmp/kolo-stall-XXXXXX");
    int fd = mkstemp(log_path);
    if (fd < 0 || setenv("KOLO_LOG_FILE", log_path, 1)) abort();
    close(fd);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(log_path);
    return failed;
}
