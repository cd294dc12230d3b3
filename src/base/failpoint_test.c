/* SPDX-License-Identifier: Apache-2.0
 *
 * Fail points: what a rule does, when, and what is said about a rule that is none. Faults that end or change the
 * process happen in children.
 */
#include "base/failpoint.h"

#include "base/clock.h"
#include "base/test.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static kolo_status_t place(void)
{
    KOLO_FAIL_POINT_TRY("test.place");
    return KOLO_OK;
}

static void another_place(void)
{
    KOLO_FAIL_POINT("test.other");
}

static void places_list_themselves(void **state)
{
    int found = 0;
    (void)state;
    for (size_t i = 0; kolo_fail_point_at(i); i++) {
        const kolo_fail_point_t *p = kolo_fail_point_at(i);
        assert_non_null(p->name);
        if (strcmp(p->name, "test.place") == 0) found += p->returns ? 1 : 100;
        if (strcmp(p->name, "test.other") == 0) found += p->returns ? 100 : 1;
    }
    assert_int_equal(found, 2);
}

static void a_rule_acts_once_at_its_hit(void **state)
{
    (void)state;
    assert_int_equal(place(), KOLO_OK);
    assert_int_equal(kolo_fail_points_arm("test.place:2:error"), KOLO_OK);
    assert_int_equal(place(), KOLO_OK);
    assert_int_equal(place(), KOLO_ERR_SYSTEM);
    assert_non_null(strstr(kolo_error_text(), "test.place"));
    assert_int_equal(place(), KOLO_OK);
    assert_int_equal(kolo_fail_points_arm(NULL), KOLO_OK);
}

static void a_delay_lasts_as_long_as_it_says(void **state)
{
    (void)state;
    assert_int_equal(kolo_fail_points_arm("test.other:1:delay:30"), KOLO_OK);
    uint64_t start = kolo_now_ns();
    another_place();
    assert_true(kolo_now_ns() - start >= 30 * KOLO_NS_PER_MS);
    assert_int_equal(kolo_fail_points_arm(""), KOLO_OK);
}

static void rules_that_are_none_are_refused(void **state)
{
    static const char *const bad[] = {"test.place",           "test.place:1",       "test.place:0:kill",
                                      "test.place:-1:kill",   "nowhere:1:kill",     "test.place:1:explode",
                                      "test.place:1:delay:x", "test.place:1:kill,", "test.place:1:delay:5:5"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        bool fine = i == 7; /* a comma at the end adds no rule */
        assert_int_equal(kolo_fail_points_arm(bad[i]), fine ? KOLO_OK : KOLO_ERR_INVALID_ARGUMENT);
        if (!fine) assert_non_null(strstr(kolo_error_text(), "KOLO_FAIL_POINT"));
    }
    assert_int_equal(kolo_fail_points_arm(NULL), KOLO_OK);
}

static const char *seen_name;
static kolo_fault_t seen_fault;
static void note(const char *name, kolo_fault_t fault)
{
    seen_name = name;
    seen_fault = fault;
}

static void the_hook_hears_of_passages(void **state)
{
    (void)state;
    kolo_fail_point_hook = note;
    kolo_fail_points_watch();
    another_place();
    assert_string_equal(seen_name, "test.other");
    assert_int_equal(seen_fault, KOLO_FAULT_NONE);
    assert_int_equal(kolo_fail_points_arm("test.other:1:nomem"), KOLO_OK);
    another_place();
    assert_int_equal(seen_fault, KOLO_FAULT_NOMEM);
    kolo_fail_point_hook = NULL;
    assert_int_equal(kolo_fail_points_arm(NULL), KOLO_OK);
}

static _Atomic bool passes;
static _Atomic int heard;

static void count(const char *name, kolo_fault_t fault)
{
    (void)name, (void)fault;
    atomic_fetch_add(&heard, 1);
}

static void *pass_on(void *arg)
{
    (void)arg;
    while (atomic_load(&passes)) another_place();
    return NULL;
}

/* A test sets its hook while threads of the library, which it cannot stop, come through places. */
static void the_hook_changes_while_threads_pass(void **state)
{
    pthread_t threads[2];
    (void)state;
    atomic_store(&passes, true);
    kolo_fail_points_watch();
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, pass_on, NULL), 0);
    for (int i = 0; i < 2000 || (atomic_load(&heard) < 100 && i < 10000000); i++)
        kolo_fail_point_hook = i % 2 ? NULL : count;
    atomic_store(&passes, false);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_true(atomic_load(&heard) >= 100);
    kolo_fail_point_hook = NULL;
    assert_int_equal(kolo_fail_points_arm(NULL), KOLO_OK);
}

/* ---- faults of a process ---- */

static int status_of(void (*fn)(void))
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        alarm(10);
        fn();
        _exit(0);
    }
    assert_true(pid > 0 && waitpid(pid, &status, WUNTRACED) == pid);
    if (WIFSTOPPED(status)) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    return status;
}

static void arm_and_pass(const char *rule)
{
    if (kolo_fail_points_arm(rule) != KOLO_OK) _exit(9);
    another_place();
}
static void be_killed(void)
{
    arm_and_pass("test.other:1:kill");
}
static void be_stopped(void)
{
    arm_and_pass("test.other:1:stop");
}
static void exit_now(void)
{
    arm_and_pass("test.other:1:exit");
}
static void be_out_of_descriptors(void)
{
    arm_and_pass("test.other:1:nofile");
    if (open("/dev/null", O_RDONLY) >= 0 || errno != EMFILE) _exit(1);
}

static void the_process_meets_its_fault(void **state)
{
    (void)state;
    int status = status_of(be_killed);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    status = status_of(be_stopped);
    assert_true(WIFSTOPPED(status));
    status = status_of(exit_now);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    status = status_of(be_out_of_descriptors);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The child's copies of the writing end outlive its parent for a while. */
static void an_orphan_holds_the_descriptors(void **state)
{
    int pipes[2], status;
    char byte;
    (void)state;
    assert_int_equal(pipe(pipes), 0);
    uint64_t start = kolo_now_ns();
    pid_t pid = fork();
    if (pid == 0) {
        close(pipes[0]);
        arm_and_pass("test.other:1:orphan:300");
        _exit(0);
    }
    close(pipes[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(read(pipes[0], &byte, 1), 0);
    assert_true(kolo_now_ns() - start >= 300 * KOLO_NS_PER_MS);
    close(pipes[0]);
}

static void connected_sockets_are_reset(void **state)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof sa;
    char byte;
    (void)state;
    int listener = socket(AF_INET, SOCK_STREAM, 0), there = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&sa, sizeof sa), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&sa, &bytes), 0);
    assert_int_equal(connect(there, (struct sockaddr *)&sa, sizeof sa), 0);
    int here = accept(listener, NULL, NULL);
    assert_true(here >= 0);
    pid_t pid = fork();
    if (pid == 0) {
        arm_and_pass("test.other:1:reset");
        _exit(0);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(recv(here, &byte, 1, 0) <= 0);
    int again = socket(AF_INET, SOCK_STREAM, 0); /* listeners are left alone */
    assert_int_equal(connect(again, (struct sockaddr *)&sa, sizeof sa), 0);
    close(again);
    close(here);
    close(there);
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_list_themselves),           cmocka_unit_test(a_rule_acts_once_at_its_hit),
        cmocka_unit_test(a_delay_lasts_as_long_as_it_says), cmocka_unit_test(rules_that_are_none_are_refused),
        cmocka_unit_test(the_hook_hears_of_passages),       cmocka_unit_test(the_hook_changes_while_threads_pass),
        cmocka_unit_test(the_process_meets_its_fault),      cmocka_unit_test(an_orphan_holds_the_descriptors),
        cmocka_unit_test(connected_sockets_are_reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
