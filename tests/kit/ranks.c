/* SPDX-License-Identifier: Apache-2.0
 *
 * See ranks.h.
 */
#include "kit/ranks.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_MS 30000 /* of starts and meetings, so that a test that goes wrong ends */
#define AWAIT_S  60
#ifdef KOLO_SANITIZED
#define TIMES 4
#else
#define TIMES 1
#endif

static _Atomic int failures;
static struct {
    pthread_mutex_t lock;
    pthread_cond_t all_came;
    int ranks, here;
    unsigned round;
} meeting = {.lock = PTHREAD_MUTEX_INITIALIZER, .all_came = PTHREAD_COND_INITIALIZER};

/* ---- expectations ---- */

int expect_failures(void)
{
    return atomic_load(&failures);
}

bool expect_fact(const char *file, int line, const char *text, bool fact)
{
    if (fact) return true;
    atomic_fetch_add(&failures, 1);
    fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", file, line, text, kolo_get_last_error(NULL));
    return false;
}

bool expect_status(const char *file, int line, const char *text, kolo_status_t want, kolo_status_t got)
{
    if (got == want) return true;
    atomic_fetch_add(&failures, 1);
    fprintf(stderr, "%s:%d: %s\n    gave: %s\n    expected: %s\n    text: %s\n", file, line, text,
            kolo_status_string(got), kolo_status_string(want), got == KOLO_OK ? "-" : kolo_get_last_error(NULL));
    return false;
}

bool expect_error(const char *file, int line, const char *text, kolo_status_t want, kolo_status_t got,
                  const char *const *needles)
{
    if (!expect_status(file, line, text, want, got)) return false;
    for (; *needles; needles++) {
        if (strstr(kolo_get_last_error(NULL), *needles)) continue;
        atomic_fetch_add(&failures, 1);
        fprintf(stderr, "%s:%d: %s\n    the text lacks \"%s\": %s\n", file, line, text, *needles,
                kolo_get_last_error(NULL));
        return false;
    }
    return true;
}

/* ---- ranks ---- */

typedef struct {
    rank_t rank;
    bool with_comm;
    kolo_unique_id_t id;
    void (*fn)(rank_t *);
} worker_t;

static void *work(void *arg)
{
    worker_t *w = arg;
    rank_t *r = &w->rank;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.init_timeout_ms = LIMIT_MS;
    bool ready = !w->with_comm || EXPECT_OK(kolo_comm_init_rank(&r->comm, r->nranks, w->id, r->rank, &config));
    if (ready) w->fn(r);
    if (ready && w->with_comm) end_comm(&r->comm);
    return NULL;
}

static int run(int n, void (*fn)(rank_t *), void *arg, bool with_comm)
{
    worker_t workers[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    kolo_unique_id_t id = {{0}};
    int before = expect_failures();
    if (with_comm && !EXPECT_OK(kolo_get_unique_id(&id))) return 1;
    meeting.ranks = n;
    meeting.here = 0;
    for (int i = 0; i < n; i++) {
        workers[i] = (worker_t){{i, n, NULL, arg}, with_comm, id, fn};
        if (pthread_create(&threads[i], NULL, work, &workers[i])) abort();
    }
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    return expect_failures() - before;
}

int run_ranks(int n, void (*fn)(rank_t *), void *arg)
{
    return run(n, fn, arg, true);
}

int run_threads(int n, void (*fn)(rank_t *), void *arg)
{
    return run(n, fn, arg, false);
}

void meet(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += LIMIT_MS / 1000;
    pthread_mutex_lock(&meeting.lock);
    unsigned round = meeting.round;
    int late = 0;
    if (++meeting.here == meeting.ranks) {
        meeting.here = 0;
        meeting.round++;
        pthread_cond_broadcast(&meeting.all_came);
    }
    while (meeting.round == round && late == 0)
        late = pthread_cond_timedwait(&meeting.all_came, &meeting.lock, &end);
    bool came = meeting.round != round;
    pthread_mutex_unlock(&meeting.lock);
    EXPECT(came); /* a rank that failed before does not come: the test has failed, and goes on to its end */
}

kolo_status_t settled(kolo_comm_t comm, kolo_status_t status)
{
    for (uint64_t end = now_ms() + LIMIT_MS; status == KOLO_IN_PROGRESS && now_ms() < end; nap_ms(1))
        if (!EXPECT_OK(kolo_comm_get_async_error(comm, &status))) return KOLO_ERR_INTERNAL;
    return status;
}

bool works(kolo_comm_t comm)
{
    int32_t in[100], out[100];
    int rank, nranks;
    if (!EXPECT_OK(kolo_comm_user_rank(comm, &rank)) || !EXPECT_OK(kolo_comm_count(comm, &nranks))) return false;
    for (int i = 0; i < 100; i++) in[i] = (rank + 1) * (i + 1);
    kolo_status_t status = kolo_all_reduce(in, out, 100, KOLO_INT32, KOLO_SUM, comm, NULL);
    if (!EXPECT_OK(settled(comm, status))) return false;
    for (int i = 0; i < 100; i++)
        if (!EXPECT(out[i] == nranks * (nranks + 1) / 2 * (i + 1))) return false;
    return true;
}

void end_comm(kolo_comm_t *comm)
{
    kolo_status_t state;
    if (!*comm) return;
    if (EXPECT_OK(kolo_comm_get_async_error(*comm, &state)) && state == KOLO_OK)
        EXPECT_OK(kolo_comm_finalize(*comm));
    EXPECT_OK(kolo_comm_destroy(*comm));
    *comm = NULL;
}

/* ---- census ---- */

static int entries(const char *path)
{
    int n = 0;
    DIR *dir = opendir(path);
    if (!dir) abort();
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static int segments(void)
{
    char line[512];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    if (!f) abort();
    while (fgets(line, sizeof line, f)) n += strstr(line, "memfd:") || strstr(line, "/dev/shm/");
    fclose(f);
    return n;
}

census_t census_take(void)
{
    return (census_t){entries("/proc/self/fd"), entries("/proc/self/task"), segments()};
}

bool census_no_more_than(census_t then)
{
    census_t now = then;
    for (uint64_t end = now_ms() + 5000; now_ms() < end; nap_ms(2)) {
        now = census_take();
        if (now.fds <= then.fds && now.threads <= then.threads && now.segments <= then.segments) return true;
    }
    fprintf(stderr, "left behind: %d descriptors, %d threads, %d shared mappings\n", now.fds - then.fds,
            now.threads - then.threads, now.segments - then.segments);
    return false;
}

uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void nap_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

bool await_count(_Atomic int *counter, int n)
{
    for (uint64_t end = now_ms() + TIMES * AWAIT_S * 1000; now_ms() < end; nap_ms(1))
        if (atomic_load(counter) >= n) return true;
    return false;
}

void limit_s(unsigned seconds)
{
    alarm(TIMES * seconds);
}

void fill_ints(int32_t *data, size_t n, int seed)
{
    for (size_t i = 0; i < n; i++) data[i] = (int32_t)(i * 31 + (size_t)seed * 1000003);
}

bool ints_are(const int32_t *data, size_t n, int seed)
{
    for (size_t i = 0; i < n; i++)
        if (data[i] != (int32_t)(i * 31 + (size_t)seed * 1000003)) return false;
    return true;
}
