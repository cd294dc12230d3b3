/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks as threads for the tests of this room: each opens an oob, runs the body, and closes. After every test the
 * process must have the descriptors and threads that it had before.
 */
#ifndef KOLO_OOB_TEST_UTIL_H
#define KOLO_OOB_TEST_UTIL_H

#include "base/test.h"
#include "base/test_time.h"
#include "oob/internal.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct test_rank test_rank_t;
struct test_rank {
    int rank, nranks, nids;
    const kolo_unique_id_t *ids;
    void (*body)(test_rank_t *me);
    int timeout_ms;
    const _Atomic uint32_t *abort;
    kolo_oob_t *oob;
    kolo_status_t status; /* of the open */
    char text[KOLO_ERROR_TEXT_BYTES];
    uint64_t took_ms;
    pthread_t thread;
};

/* Ends the process with the reason: a rank's thread must not jump, as assert_* of cmocka does. */
static inline void test_fail_at(const char *text, const char *detail, const char *file, int line)
{
    fprintf(stderr, "%s:%d: %s %s\n", file, line, text, detail);
    abort();
}
#define test_true(x)  ((x) ? (void)0 : test_fail_at("false:", #x, __FILE__, __LINE__))
#define test_false(x) test_true(!(x))
#define test_says(text, part)                                                                                      \
    (strstr((text), (part)) != NULL ? (void)0 : test_fail_at("not said: " part " in:", (text), __FILE__, __LINE__))

static inline void test_equal_at(int64_t a, int64_t b, const char *text, const char *file, int line)
{
    if (a == b) return;
    fprintf(stderr, "%s:%d: %s: %lld != %lld; last error: %s\n", file, line, text, (long long)a, (long long)b,
            kolo_error_text());
    abort();
}
#define test_equal(a, b) test_equal_at((int64_t)(a), (int64_t)(b), #a, __FILE__, __LINE__)

static inline void test_ok_at(kolo_status_t status, const char *file, int line)
{
    if (status == KOLO_OK) return;
    fprintf(stderr, "%s:%d: status %d: %s\n", file, line, status, kolo_error_text());
    abort();
}
#define test_ok(expr) test_ok_at((expr), __FILE__, __LINE__)

static inline int test_count_entries(const char *path)
{
    DIR *dir = opendir(path);
    int count = 0;
    while (readdir(dir) != NULL) count++;
    closedir(dir);
    return count;
}

static int test_fds, test_threads;

static inline void *test_nothing(void *arg)
{
    return arg;
}

static inline int test_before(void **state)
{
    pthread_t thread; /* a sanitizer starts its own thread with the first of ours */
    (void)state;
    if (pthread_create(&thread, NULL, test_nothing, NULL) != 0) return -1;
    pthread_join(thread, NULL);
    test_fds = test_count_entries("/proc/self/fd");
    if (test_threads == 0)
        test_threads = test_count_entries("/proc/self/task"); /* later ones may see a dying one */
    return 0;
}

/* Orders what a progress thread did that nobody joined before what this thread does now. */
static inline int test_take_progress(void)
{
    kolo_progress_t *progress;
    test_ok(kolo_progress_get(&progress));
    kolo_progress_put(progress);
    return 0;
}

static inline int test_after(void **state)
{
    (void)state;
    kolo_root_stop_all();
    int fds = 0, threads = 0;
    for (int i = 0; i < 200; i++) { /* a detached progress thread may be on its last instructions */
        fds = test_count_entries("/proc/self/fd");
        threads = test_count_entries("/proc/self/task");
        if (fds <= test_fds && threads <= test_threads) return test_take_progress();
        poll(NULL, 0, 5);
    }
    fprintf(stderr, "descriptors %d -> %d, threads %d -> %d\n", test_fds, fds, test_threads, threads);
    return -1;
}

static inline void *test_rank_main(void *arg)
{
    test_rank_t *me = arg;
    kolo_oob_config_t config = {me->rank, me->nranks, me->nids, me->ids, me->timeout_ms, me->abort, "test"};
    uint64_t start = kolo_now_ns();
    me->status = kolo_oob_open(&config, &me->oob);
    me->took_ms = (kolo_now_ns() - start) / KOLO_NS_PER_MS;
    if (me->status != KOLO_OK) {
        snprintf(me->text, sizeof(me->text), "%s", kolo_error_text());
        return NULL;
    }
    if (me->body != NULL) me->body(me);
    kolo_oob_fini(me->oob);
    return NULL;
}

static inline void test_start(test_rank_t *rank)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 512 << 10);
    assert_int_equal(pthread_create(&rank->thread, &attr, test_rank_main, rank), 0);
    pthread_attr_destroy(&attr);
}

/* Runs nranks ranks with a body of asserts and test_ok; all must open. */
static inline void test_run_ids(int nranks, int nids, const kolo_unique_id_t *ids, void (*body)(test_rank_t *me))
{
    test_rank_t *ranks = calloc((size_t)nranks, sizeof(*ranks));
    for (int r = 0; r < nranks; r++) {
        ranks[r] =
            (test_rank_t){.rank = r, .nranks = nranks, .nids = nids, .ids = ids, .body = body, .timeout_ms = 20000};
        test_start(&ranks[r]);
    }
    for (int r = 0; r < nranks; r++) pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < nranks; r++) {
        if (ranks[r].status != KOLO_OK) fprintf(stderr, "rank %d of %d: %s\n", r, nranks, ranks[r].text);
        assert_int_equal(ranks[r].status, KOLO_OK);
    }
    free(ranks);
}

static inline void test_run_roots(int nranks, int nids, void (*body)(test_rank_t *me))
{
    kolo_unique_id_t ids[8];
    for (int i = 0; i < nids; i++) test_ok(kolo_id_create(&ids[i]));
    test_run_ids(nranks, nids, ids, body);
}

static inline void test_run(int nranks, void (*body)(test_rank_t *me))
{
    test_run_roots(nranks, 1, body);
}

#endif
