/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank that is out of descriptors says so at once, says what a communicator needs and what to do, and says it
 * once. It does not keep the others waiting until the limit of their set-up, and they are told why. Several sockets
 * for each connection do not use all descriptors up. A hundred communicators of the same processes take few: what
 * belongs to a process or a peer is held once. A thread that has a table of descriptors of its own is told so.
 */
#include "kit/procs.h"

#include <dirent.h>
#include <kolo/message.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define RANKS   4
#define STARVED 2
#define TEXT    65536

/* Leaves room for so many descriptors; what is logged from here on goes into a file. */
static int starve(int more)
{
    const struct rlimit limit = {256, 256};
    int log = memfd_create("log", MFD_CLOEXEC), last[256], n = 0;
    if (log < 0 || dup2(log, STDERR_FILENO) < 0 || setrlimit(RLIMIT_NOFILE, &limit) != 0) abort();
    while ((last[n] = dup(log)) >= 0) n++;
    for (int i = 0; i < more; i++) close(last[--n]);
    return log;
}

static int count_lines(const char *text, const char *with)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, with)) != NULL; at += strlen(with)) n++;
    return n;
}

static void expect_words(int log, bool *told)
{
    static char text[TEXT];
    ssize_t n = pread(log, text, TEXT - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    const int accepts = count_lines(text, "rank 2 of 4 (comm) cannot accept a caller now: Too many open files"),
              calls = count_lines(text, "rank 2 cannot call ");
    *told = accepts + calls > 0 && accepts <= 1 && calls <= 1 &&
            strstr(text, "descriptors open (ulimit -n, RLIMIT_NOFILE)") != NULL &&
            strstr(text, accepts ? "kolo-info --memory 4 says how many"
                                 : "kolo-info --memory RANKS says how many") != NULL &&
            count_lines(text, "Too many open files") <= 4;
    if (!*told) printf("the log of rank 2:\n%s\n", text);
}

static void use_another_communicator(proc_t *p)
{
    rank_t *r = &p->r;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t child = NULL;
    bool told = true;
    char text[1024];
    float x = 1, y;
    int log = -1;
    EXPECT_OK(kolo_all_reduce(&x, &y, 1, KOLO_FLOAT32, KOLO_SUM, r->comm, NULL));
    proc_meet(p, 0);
    config.init_timeout_ms = 50000;
    if (r->rank == STARVED) log = starve(2); /* enough to listen */
    kolo_status_t status = kolo_comm_split(r->comm, 0, r->rank, &child, &config);
    if (status == KOLO_OK) status = kolo_all_reduce(&x, &y, 1, KOLO_FLOAT32, KOLO_SUM, child, NULL);
    snprintf(text, sizeof text, "%s", kolo_get_last_error(NULL));
    EXPECT(status == (r->rank == STARVED ? KOLO_ERR_SYSTEM : KOLO_ERR_REMOTE));
    EXPECT(strstr(text, "rank 2") != NULL);
    EXPECT(r->rank != STARVED || strstr(text, "descriptors open (ulimit -n, RLIMIT_NOFILE)") != NULL);
    kolo_comm_destroy(child);
    if (log >= 0) expect_words(log, &told);
    EXPECT(told);
    if (expect_failures() > 0) printf("rank %d: %s: %s\n", r->rank, kolo_status_string(status), text);
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
}

static void a_rank_without_descriptors_says_so_once(void **state)
{
    static const char *const tcp[] = {"KOLO_CMA_DISABLE=1", "KOLO_SHM_DISABLE=1", NULL};
    job_t job;
    (void)state;
    job_start(&job, RANKS, tcp, use_another_communicator, NULL);
    assert_int_equal(job_finish(&job, -1), 0);
}

/* ---- none to begin with ---- */

static void split_with(rank_t *r, int color, kolo_status_t expected)
{
    kolo_comm_t child = NULL;
    float x = 1, y;
    kolo_status_t status = kolo_comm_split(r->comm, color, r->rank, &child, NULL);
    EXPECT(status == expected);
    if (status != expected) printf("rank %d: %s\n", r->rank, kolo_get_last_error(NULL));
    EXPECT(status == KOLO_OK || strstr(kolo_get_last_error(NULL), "rank 2 of ") != NULL || r->rank == STARVED);
    if (child) EXPECT_OK(kolo_comm_destroy(child));
    EXPECT_OK(kolo_all_reduce(&x, &y, 1, KOLO_FLOAT32, KOLO_SUM, r->comm, NULL));
    EXPECT(y == RANKS);
}

static void split_from_a_parent_that_goes_on(proc_t *p)
{
    rank_t *r = &p->r;
    float x = 1, y;
    bool starved = r->rank == STARVED;
    int log = -1;
    EXPECT_OK(kolo_all_reduce(&x, &y, 1, KOLO_FLOAT32, KOLO_SUM, r->comm, NULL));
    proc_meet(p, 0);
    if (starved) log = starve(0);
    split_with(r, 0, starved ? KOLO_ERR_SYSTEM : KOLO_ERR_REMOTE);
    split_with(r, starved, starved ? KOLO_ERR_SYSTEM : KOLO_OK); /* no business of the others' */
    split_with(r, starved ? KOLO_SPLIT_NOCOLOR : 0, KOLO_OK);
    if (log >= 0) close(log);
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
}

static void a_split_that_cannot_begin_leaves_its_parent(void **state)
{
    job_t job;
    (void)state;
    job_start(&job, RANKS, NULL, split_from_a_parent_that_goes_on, NULL);
    assert_int_equal(job_finish(&job, -1), 0);
}

/* ---- grow and shrink ---- */

#define OLD (RANKS - 1) /* ranks of the one that grows; the last one joins it */

static void expect_child(rank_t *r, kolo_status_t status, bool starved, kolo_comm_t child, const char *what)
{
    char text[512];
    snprintf(text, sizeof text, "%s", kolo_get_last_error(NULL));
    bool fine = EXPECT(status == (starved ? KOLO_ERR_SYSTEM : KOLO_ERR_REMOTE)) &&
                EXPECT(starved ? strstr(text, "descriptors open") != NULL : strstr(text, "rank 2 of ") != NULL);
    if (!fine) printf("%s, rank %d: %s: %s\n", what, r->rank, kolo_status_string(status), text);
    if (child) EXPECT_OK(kolo_comm_destroy(child));
}

static void grow_from(proc_t *p, kolo_comm_t old)
{
    rank_t *r = &p->r;
    bool starved = r->rank == STARVED;
    kolo_comm_t child = NULL;
    kolo_unique_id_t id;
    if (r->rank == 0) EXPECT_OK(kolo_comm_get_grow_id(old, &id));
    EXPECT_OK(kolo_broadcast(&id, &id, sizeof id, KOLO_UINT8, 0, r->comm, NULL));
    proc_meet(p, 0);
    int log = starved ? starve(0) : -1;
    kolo_status_t status = r->rank == OLD ? kolo_comm_grow(NULL, RANKS, &id, OLD, &child, NULL)
                                          : kolo_comm_grow(old, RANKS, r->rank ? NULL : &id, -1, &child, NULL);
    expect_child(r, status, starved, child, "grow");
    child = NULL;
    status = kolo_comm_shrink(r->comm, NULL, 0, KOLO_SHRINK_DEFAULT, &child, NULL);
    expect_child(r, status, starved, child, "shrink");
    if (log >= 0) close(log);
}

static void grow_from_a_parent_that_goes_on(proc_t *p)
{
    rank_t *r = &p->r;
    kolo_comm_t old = NULL;
    float x = 1, y = 0;
    EXPECT_OK(kolo_comm_split(r->comm, r->rank < OLD ? 0 : KOLO_SPLIT_NOCOLOR, r->rank, &old, NULL));
    if (old) EXPECT_OK(kolo_all_reduce(&x, &y, 1, KOLO_FLOAT32, KOLO_SUM, old, NULL));
    EXPECT_OK(kolo_all_reduce(&x, &y, 1, KOLO_FLOAT32, KOLO_SUM, r->comm, NULL));
    grow_from(p, old);
    if (old) EXPECT_OK(kolo_all_reduce(&x, &y, 1, KOLO_FLOAT32, KOLO_SUM, old, NULL));
    EXPECT(!old || y == OLD);
    EXPECT_OK(kolo_all_reduce(&x, &y, 1, KOLO_FLOAT32, KOLO_SUM, r->comm, NULL));
    EXPECT(y == RANKS);
    if (old) EXPECT_OK(kolo_comm_destroy(old));
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
}

static void a_grow_or_shrink_that_cannot_begin_leaves_its_parent(void **state)
{
    job_t job;
    (void)state;
    job_start(&job, RANKS, NULL, grow_from_a_parent_that_goes_on, NULL);
    assert_int_equal(job_finish(&job, -1), 0);
}

/* ---- several sockets ---- */

/* With eight sockets for each connection they would take twice as many descriptors as there are. */
#define COMMS 3

static void use_all_connections(kolo_comm_t comm, int rank)
{
    float x[RANKS] = {1, 1, 1, 1}, y[RANKS] = {0};
    if (!EXPECT_OK(kolo_all_reduce(x, y, 1, KOLO_FLOAT32, KOLO_SUM, comm, NULL))) return;
    EXPECT(y[0] == RANKS);
    EXPECT_OK(kolo_all_to_all(x, y, 1, KOLO_FLOAT32, comm, NULL));
    EXPECT_OK(kolo_group_start());
    for (int r = 0; r < RANKS; r++) {
        if (r == rank) continue;
        EXPECT_OK(kolo_send(&x[r], 1, KOLO_FLOAT32, r, comm, NULL));
        EXPECT_OK(kolo_recv(&y[r], 1, KOLO_FLOAT32, r, comm, NULL));
    }
    EXPECT_OK(kolo_group_end());
}

static void use_three_communicators(proc_t *p)
{
    const struct rlimit limit = {256, 256};
    rank_t *r = &p->r;
    kolo_comm_t comms[COMMS] = {r->comm};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) abort();
    for (int i = 0; i < COMMS; i++) {
        if (i > 0) EXPECT_OK(kolo_comm_split(r->comm, 0, r->rank, &comms[i], NULL));
        if (comms[i]) use_all_connections(comms[i], r->rank);
    }
    for (int i = COMMS; i-- > 0;) EXPECT_OK(kolo_comm_destroy(comms[i]));
    r->comm = NULL;
}

static void several_sockets_leave_room_for_more_communicators(void **state)
{
    static const char *const tcp[] = {"KOLO_CMA_DISABLE=1", "KOLO_SHM_DISABLE=1", "KOLO_TCP_SOCKETS=8", NULL};
    job_t job;
    (void)state;
    job_start(&job, RANKS, tcp, use_three_communicators, NULL);
    assert_int_equal(job_finish(&job, -1), 0);
}

/* ---- how many a communicator takes ---- */

#define MANY          100
#define FEW_FOR_TWO   550 /* a program with a hundred is allowed 600 */
#define FEW_FOR_EIGHT 1400

static int count_descriptors(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir)) n++;
    if (dir) closedir(dir);
    return n - 3; /* itself, . and .. */
}

static void use_many_communicators(proc_t *p)
{
    rank_t *r = &p->r;
    kolo_comm_t comms[MANY] = {NULL};
    const int few = r->nranks == 2 ? FEW_FOR_TWO : FEW_FOR_EIGHT;
    float x = 1, y;
    EXPECT_OK(kolo_all_reduce(&x, &y, 1, KOLO_FLOAT32, KOLO_SUM, r->comm, NULL));
    const int before = count_descriptors();
    for (int i = 0; i < MANY; i++) {
        if (!EXPECT_OK(kolo_comm_split(r->comm, 0, r->rank, &comms[i], NULL))) break;
        y = 0;
        EXPECT_OK(kolo_all_reduce(&x, &y, 1, KOLO_FLOAT32, KOLO_SUM, comms[i], NULL));
        EXPECT(y == (float)r->nranks);
    }
    proc_meet(p, 0);
    const int taken = count_descriptors() - before;
    if (!EXPECT(taken <= few)) printf("%d communicators of %d ranks took %d descriptors\n", MANY, r->nranks, taken);
    proc_meet(p, 1);
    for (int i = MANY; i-- > 0;) EXPECT_OK(kolo_comm_destroy(comms[i]));
    proc_meet(p, 2);
    const int left = count_descriptors() - before;
    if (!EXPECT(left <= 4)) printf("%d descriptors are left of communicators that have ended\n", left);
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
}

static void run_many(int ranks)
{
    job_t job;
    job_start(&job, ranks, NULL, use_many_communicators, NULL);
    assert_int_equal(job_finish(&job, -1), 0);
}

static void a_hundred_communicators_of_two_processes_take_few_descriptors(void **state)
{
    (void)state;
    run_many(2);
}

static void a_hundred_communicators_of_eight_processes_take_few_descriptors(void **state)
{
    (void)state;
    run_many(8);
}

/* ---- a table of descriptors of one's own ---- */

static void expect_apart(const char *what, kolo_status_t status)
{
    const char *text = kolo_get_last_error(NULL);
    if (!EXPECT(status == KOLO_ERR_INVALID_USAGE && strstr(text, "unshare(CLONE_FILES)")))
        printf("%s: %s: %s\n", what, kolo_status_string(status), text);
}

/* Calls from a thread that no longer shares its descriptors with the library's threads: the first use of
 * connections fails; those that there are go on. */
static void call_apart(proc_t *p)
{
    static float all[2], x[1];
    kolo_comm_t comm = p->r.comm, child;
    kolo_window_t window;
    kolo_request_t request;
    bool connected = p->r.arg != NULL;
    EXPECT(!connected || works(comm));
    proc_meet(p, 0);
    EXPECT(unshare(CLONE_FILES) == 0);
    expect_apart("isend_tag", kolo_isend_tag(x, 1, KOLO_FLOAT32, 0, 1, comm, NULL, &request));
    expect_apart("dup", kolo_comm_dup(comm, &child, NULL));
    proc_meet(p, 1);
    EXPECT(!connected || works(comm));
    proc_meet(p, 2);
    if (p->r.rank == 0 && connected)
        expect_apart("window_register", kolo_window_register(comm, x, sizeof x, &window));
    if (p->r.rank == 0 && !connected) expect_apart("gather", kolo_gather(x, all, 1, KOLO_FLOAT32, 0, comm, NULL));
    proc_meet(p, 3);
    EXPECT_OK(kolo_comm_destroy(comm));
    p->r.comm = NULL;
}

static void a_thread_with_a_table_of_its_own_is_told(void **state)
{
    job_t job;
    (void)state;
    for (int w = 0; w < 2 * ALL_WIRES; w++) {
        job_start(&job, 2, kit_wires[w / 2].env, call_apart, w % 2 ? &job : NULL);
        assert_int_equal(job_finish(&job, -1), 0);
    }
}

int main(void)
{
    limit_s(100);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_that_cannot_begin_leaves_its_parent),
        cmocka_unit_test(a_grow_or_shrink_that_cannot_begin_leaves_its_parent),
        cmocka_unit_test(a_rank_without_descriptors_says_so_once),
        cmocka_unit_test(several_sockets_leave_room_for_more_communicators),
        cmocka_unit_test(a_hundred_communicators_of_two_processes_take_few_descriptors),
        cmocka_unit_test(a_hundred_communicators_of_eight_processes_take_few_descriptors),
        cmocka_unit_test(a_thread_with_a_table_of_its_own_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
