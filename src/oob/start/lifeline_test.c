/* SPDX-License-Identifier: Apache-2.0
 *
 * Who waits for a job to come about hears at once, and by name, of whom it waits for in vain: a root whose process
 * dies, a rank that dies or gives up after it has checked in. And a root has an end: when nobody calls it, and when
 * memory runs out under it. Time limits are far away in all of these.
 */
#include "base/failpoint.h"
#include "oob/oob_test_util.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAR_MS 60000

static _Atomic int checked_in;
static int tell_fd = -1; /* of a process that tells another one */

static void note_check_in(const char *name, kolo_fault_t fault)
{
    (void)fault;
    if (strcmp(name, "oob.checkin.sent") != 0) return;
    atomic_fetch_add(&checked_in, 1);
    if (tell_fd >= 0 && write(tell_fd, "c", 1) != 1) _exit(10);
}

static void open_alone(int in, int out, int rank, int nranks, const char *const *says)
{
    kolo_unique_id_t id;
    kolo_oob_t *oob;
    alarm(40);
    if (read(in, &id, sizeof(id)) != sizeof(id)) _exit(9);
    kolo_oob_config_t config = {rank, nranks, 1, &id, FAR_MS, NULL, "test"};
    tell_fd = out;
    kolo_status_t status = kolo_oob_open(&config, &oob);
    bool fine = status == KOLO_ERR_REMOTE;
    for (; *says != NULL; says++) fine = fine && strstr(kolo_error_text(), *says) != NULL;
    if (!fine) fprintf(stderr, "rank %d: status %d: %s\n", rank, status, kolo_error_text());
    _exit(fine ? 0 : 11);
}

static void serve_root(int out)
{
    kolo_unique_id_t id;
    alarm(40);
    if (kolo_id_create(&id) != KOLO_OK) _exit(9);
    for (int i = 0; i < 3; i++)
        if (write(out, &id, sizeof(id)) != sizeof(id)) _exit(10);
    for (;;) pause();
}

static void await_all(const pid_t *children, int count)
{
    for (int i = 0; i < count; i++) {
        int result;
        test_equal(waitpid(children[i], &result, 0), children[i]);
        test_true(WIFEXITED(result));
        test_equal(WEXITSTATUS(result), 0);
    }
}

/* Ranks 0 to 2 of 4 as processes; the one at the other end of the pipe `ids` makes the id. */
static void fork_ranks(int ids, int out, pid_t *children, int from, const char *const *says)
{
    int n = 3 - from;
    for (int i = 0; i < n; i++)
        if ((children[i] = fork()) == 0) open_alone(ids, out, from + i, 4, says);
}

static void ranks_hear_that_their_root_has_died(void **state)
{
    static const char *const says[] = {"the root at ", "is gone", "new id", NULL};
    pid_t root, ranks[3];
    int ids[2], called[2];
    char c;
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* TSan has no threads after a fork of a process that has some */
#endif
    test_true(pipe(ids) == 0 && pipe(called) == 0);
    if ((root = fork()) == 0) serve_root(ids[1]);
    fork_ranks(ids[0], called[1], ranks, 0, says);
    for (int i = 0; i < 3; i++) test_equal(read(called[0], &c, 1), 1);
    uint64_t start = kolo_now_ns();
    kill(root, SIGKILL);
    await_all(ranks, 3);
    test_true(IN_TIME(kolo_now_ns() - start < FAR_MS / 2 * KOLO_NS_PER_MS));
    test_equal(waitpid(root, NULL, 0), root);
    for (int i = 0; i < 2; i++) close(ids[i]), close(called[i]);
}

static void ranks_hear_who_died_after_its_check_in(void **state)
{
    static const char *const says[] = {"rank 0, at ", "died after it had checked in", NULL};
    pid_t root, victim, ranks[2];
    int ids[2], called[2];
    char c;
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* as above */
#endif
    test_true(pipe(ids) == 0 && pipe(called) == 0);
    if ((root = fork()) == 0) serve_root(ids[1]);
    if ((victim = fork()) == 0) open_alone(ids[0], called[1], 0, 4, (const char *const[]){NULL});
    fork_ranks(ids[0], called[1], ranks, 1, says);
    for (int i = 0; i < 3; i++) test_equal(read(called[0], &c, 1), 1);
    kill(victim, SIGKILL);
    await_all(ranks, 2);
    test_equal(waitpid(victim, NULL, 0), victim);
    kill(root, SIGKILL);
    test_equal(waitpid(root, NULL, 0), root);
    for (int i = 0; i < 2; i++) close(ids[i]), close(called[i]);
}

static kolo_status_t why_not(void *arg)
{
    return kolo_fail(KOLO_ERR_REMOTE, "the dog ate %s", (const char *)arg);
}

static void *give_up(void *arg)
{
    kolo_oob_t *oob;
    test_equal(kolo_oob_open_for(arg, why_not, "the cable", &oob), KOLO_ERR_REMOTE);
    test_says(kolo_error_text(), "the dog ate the cable");
    return NULL;
}

static void ranks_hear_why_another_gave_up(void **state)
{
    _Atomic uint32_t stop = 0;
    kolo_unique_id_t id;
    test_rank_t others[2];
    pthread_t thread;
    (void)state;
    atomic_store(&checked_in, 0);
    test_ok(kolo_id_create(&id));
    kolo_oob_config_t config = {3, 4, 1, &id, FAR_MS, &stop, "test"};
    test_equal(pthread_create(&thread, NULL, give_up, &config), 0);
    for (int r = 0; r < 2; r++) {
        others[r] = (test_rank_t){.rank = r, .nranks = 4, .nids = 1, .ids = &id, .timeout_ms = FAR_MS};
        test_start(&others[r]);
    }
    for (int i = 0; i < 20000 && atomic_load(&checked_in) < 3; i++) poll(NULL, 0, 1);
    test_equal(atomic_load(&checked_in), 3);
    atomic_store(&stop, 1);
    pthread_join(thread, NULL);
    for (int r = 0; r < 2; r++) {
        pthread_join(others[r].thread, NULL);
        test_equal(others[r].status, KOLO_ERR_REMOTE);
        test_says(others[r].text, "rank 3, at ");
        test_says(others[r].text, "the dog ate the cable");
        test_true(others[r].took_ms < FAR_MS / 2);
    }
}

/* ---- the end of a root ---- */

static bool roots_end(int fds)
{
    for (int i = 0; i < 4000 && test_count_entries("/proc/self/fd") > fds; i++) poll(NULL, 0, 5);
    return test_count_entries("/proc/self/fd") <= fds;
}

static void a_root_that_nobody_calls_ends(void **state)
{
    kolo_unique_id_t id;
    int64_t before = kolo_meet_values.root_idle_ms;
    (void)state;
    kolo_meet_values.root_idle_ms = 400;
    test_ok(kolo_id_create(&id));
    test_true(test_count_entries("/proc/self/fd") > test_fds);
    test_true(roots_end(test_fds));
    test_rank_t late = {.rank = 0, .nranks = 2, .nids = 1, .ids = &id, .timeout_ms = FAR_MS};
    test_start(&late);
    pthread_join(late.thread, NULL);
    test_equal(late.status, KOLO_ERR_REMOTE);
    kolo_meet_values.root_idle_ms = 0; /* never */
    test_ok(kolo_id_create(&id));
    poll(NULL, 0, 50);
    test_run_ids(2, 1, &id, NULL);
    kolo_meet_values.root_idle_ms = before;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ranks_hear_that_their_root_has_died, test_before, test_after),
        cmocka_unit_test_setup_teardown(ranks_hear_who_died_after_its_check_in, test_before, test_after),
        cmocka_unit_test_setup_teardown(ranks_hear_why_another_gave_up, test_before, test_after),
        cmocka_unit_test_setup_teardown(a_root_that_nobody_calls_ends, test_before, test_after),
    };
    kolo_fail_point_hook = note_check_in;
    kolo_fail_points_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
