/* SPDX-License-Identifier: Apache-2.0
 *
 * A job of processes that is tuned while it works: all results are right under every setting, every rank writes
 * down the same settings from the same cycles on, the number of samples is bounded, and at the end the best one
 * stays.
 */
#include "kit/procs.h"

#include <kolo/engine.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS   3
#define TENSORS 12
#define COUNT   3000 /* floats: several settings of the threshold cut a step into operations */
#define STEPS   220
#define WAIT_MS 60000

static char folder[64];

/* ---- the job ---- */

static kolo_status_t submit(kolo_tensor_engine_t e, int set, int i, float *x, int64_t *handle)
{
    char name[32];
    int64_t count = COUNT + i;
    kolo_submission_t how = {.set = set};
    snprintf(name, sizeof name, "layer.%d", i);
    kolo_tensor_t t = {name, KOLO_FLOAT32, 1, &count, x, x};
    return kolo_engine_all_reduce(e, &t, KOLO_SUM, 1, 1, &how, handle);
}

static bool step(proc_t *p, kolo_tensor_engine_t e, int number, float (*x)[COUNT + TENSORS])
{
    int64_t handles[TENSORS], other = -1;
    float few[COUNT + TENSORS];
    int first = (number * 5 + p->r.rank * 7) % TENSORS; /* each rank in an order of its own */
    for (int k = 0; k < COUNT; k++) few[k] = 1;
    if (p->r.rank != 1 && !EXPECT_OK(submit(e, 1, 0, few, &other))) return false;
    for (int i = 0; i < TENSORS; i++) {
        int at = (first + i * 5) % TENSORS;
        for (int k = 0; k < COUNT + at; k++) x[at][k] = (float)(number + at + p->r.rank);
        if (!EXPECT_OK(submit(e, 0, at, x[at], &handles[at]))) return false;
    }
    for (int i = 0; i < TENSORS; i++) {
        int sum = RANKS * (number + i) + RANKS * (RANKS - 1) / 2;
        float want = (float)sum;
        if (!EXPECT_OK(kolo_engine_wait(e, handles[i], WAIT_MS, NULL))) return false;
        if (!EXPECT(x[i][0] == want && x[i][COUNT + i - 1] == want)) return false;
    }
    return other < 0 || (EXPECT_OK(kolo_engine_wait(e, other, WAIT_MS, NULL)) && EXPECT(few[0] == 2));
}

static void train(proc_t *p)
{
    static const int pair[] = {0, 2};
    const kolo_rank_list_t sets[] = {{pair, 2}};
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    kolo_tensor_engine_t e;
    float(*x)[COUNT + TENSORS] = calloc(TENSORS, sizeof *x);
    config.nsets = 1;
    config.sets = sets;
    if (!x) abort();
    if (!EXPECT_OK(kolo_engine_init(&e, p->r.comm, &config))) {
        free(x);
        return;
    }
    for (int i = 0; i < STEPS && step(p, e, i, x); i++) continue;
    proc_meet(p, 0);
    EXPECT_OK(kolo_engine_shutdown(e));
    free(x);
}

/* ---- what it leaves ---- */

typedef struct {
    int lines, settings, best;
    char *text; /* without the last column, which only rank 0 knows */
} log_t;

#define LOG_BYTES 100000 /* more than 300 lines have */

static log_t read_log(int rank)
{
    char path[128], line[300];
    log_t log = {.text = calloc(1, LOG_BYTES)};
    size_t used = 0;
    snprintf(path, sizeof path, "%s/tune.%d", folder, rank);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) && log.lines < 300) {
        char *comma = strrchr(line, ',');
        assert_non_null(comma);
        if (rank > 0 && log.lines > 0) assert_string_equal(comma, ",\n");
        *comma = '\0';
        used += (size_t)snprintf(log.text + used, LOG_BYTES - used, "%s\n", line);
        log.lines++;
        log.settings += strncmp(line, "search,", 7) == 0;
        log.best += strncmp(line, "best,", 5) == 0;
    }
    fclose(f);
    unlink(path);
    return log;
}

static void run_job(log_t *logs, const char *const *more)
{
    char where[128];
    job_t job;
    strcpy(folder, "/tmp/kolo-autotune-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(where, sizeof where, "KOLO_AUTOTUNE_LOG=%s/tune.%%r", folder);
    const char *env[12] = {
        "KOLO_AUTOTUNE=1",         "KOLO_AUTOTUNE_WARMUP_SAMPLES=2", "KOLO_AUTOTUNE_STEPS_PER_SAMPLE=3",
        "KOLO_AUTOTUNE_SAMPLES=2", "KOLO_AUTOTUNE_SETTINGS=9",       where};
    for (int i = 6; *more; i++) env[i] = *more++;
    job_start(&job, RANKS, env, train, NULL);
    assert_int_equal(job_finish(&job, -1), 0);
    for (int r = 0; r < RANKS; r++) logs[r] = read_log(r);
    rmdir(folder);
    printf("%s", logs[0].text);
    for (int r = 1; r < RANKS; r++) assert_string_equal(logs[r].text, logs[0].text);
}

static void free_logs(log_t *logs)
{
    for (int r = 0; r < RANKS; r++) free(logs[r].text);
}

static void all_ranks_use_the_same_setting_in_each_cycle(void **state)
{
    static const char *const none[] = {NULL};
    log_t logs[RANKS];
    (void)state;
    run_job(logs, none);
    assert_in_range(logs[0].settings, 6, 9);
    assert_int_equal(logs[0].best, 1);
    assert_true(strstr(logs[0].text, ",0\n") && strstr(logs[0].text, ",1\n")); /* with and without a cache */
    free_logs(logs);
}

/* Every line has these values in these columns. */
static void what_is_fixed_stays(void **state)
{
    static const char *const fixed[] = {"KOLO_FUSION_THRESHOLD=20000", "KOLO_CACHE_CAPACITY=0",
                                        "KOLO_ENGINE_BACKENDS=kolo", NULL};
    log_t logs[RANKS];
    int n = 0;
    (void)state;
    run_job(logs, fixed);
    for (const char *line = strchr(logs[0].text, '\n') + 1; *line; line = strchr(line, '\n') + 1, n++) {
        const char *end = strchr(line, '\n'), *third = line;
        for (int commas = 0; commas < 3; third++) commas += *third == ',';
        assert_int_equal(strncmp(third, "20000,", 6), 0);
        assert_int_equal(strncmp(end - 6, ",0,0,0", 6), 0);
    }
    assert_true(n > 6);
    assert_int_equal(logs[0].best, 1);
    free_logs(logs);
}

/* What was taken from the cache is measured before new tensors push it out of there (ASan would see it). */
static void a_cache_that_is_too_small_is_measured_in_time(void **state)
{
    static const char *const small[] = {"KOLO_CACHE_CAPACITY=4", NULL};
    log_t logs[RANKS];
    (void)state;
    run_job(logs, small);
    assert_int_equal(logs[0].best, 1);
    free_logs(logs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_use_the_same_setting_in_each_cycle),
        cmocka_unit_test(what_is_fixed_stays),
        cmocka_unit_test(a_cache_that_is_too_small_is_measured_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
