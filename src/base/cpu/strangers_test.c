/* SPDX-License-Identifier: Apache-2.0
 *
 * A wait on a core that other programs use: it does not give the core away again and again, which costs a slice of
 * the scheduler's for each of them each time. And one whose core the machine below takes away, or whose process is
 * stopped: nobody else computes there.
 */
#include "base/clock.h"
#include "base/cpu/yield.h"
#include "base/test.h"
#include "base/wait.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STRANGERS 2
#define STOPS     6
#define STOP_NS   3000000
#define TRIES     20
#define FEW       500 /* yields; a wait that does not look goes through 10,000 */

static void share_one_core(void)
{
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int c = 0; c < CPU_SETSIZE && CPU_COUNT(&one) == 0; c++)
        if (CPU_ISSET(c, &all)) CPU_SET(c, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
}

static pid_t start_stranger(void)
{
    pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (volatile unsigned n = 0;;) n++;
}

/* Returns how often the core was given away before the wait slept. */
static uint32_t yields_of_a_wait(kolo_waker_t *waker)
{
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(100000), NULL, NULL, 1);
    wait.wakers[wait.nwakers++] = waker;
    while (!wait.armed) assert_int_equal(kolo_wait_pause(&wait), KOLO_OK);
    uint32_t yields = wait.polls - wait.spins;
    kolo_wait_end(&wait);
    return yields;
}

static void a_wait_among_strangers_soon_sleeps(void **state)
{
    kolo_waker_t waker;
    pid_t strangers[STRANGERS];
    (void)state;
    share_one_core();
    for (int i = 0; i < STRANGERS; i++) strangers[i] = start_stranger();
    assert_int_equal(kolo_waker_init(&waker, NULL), KOLO_OK);
    const uint32_t first = yields_of_a_wait(&waker), next = yields_of_a_wait(&waker);
    for (int i = 0; i < STRANGERS; i++) {
        kill(strangers[i], SIGKILL);
        waitpid(strangers[i], NULL, 0);
    }
    kolo_waker_fini(&waker);
    assert_in_range(first, 1, FEW);
    assert_in_range(next, 1, 2); /* it is known by then */
}

/* Returns the nanoseconds in which this thread could have run and others had its core; 0: the kernel does not count
 * them. */
static uint64_t waited_for_a_core(void)
{
    unsigned long long ran, waited = 0;
    FILE *f = fopen("/proc/thread-self/schedstat", "r");
    if (f && fscanf(f, "%llu %llu", &ran, &waited) != 2) waited = 0;
    if (f) fclose(f);
    return waited;
}

enum { NOBODY, STRANGERS_SEEN, OTHERS_RAN }; /* how the child ends */

/* Yields until it has been away so often for a while, and tells whether others were taken to compute on its core
 * though, since the last such time, they had it for less than a third of a millisecond. */
static int yield_through(int stops)
{
    uint64_t taken = waited_for_a_core();
    for (int seen = 0; seen < stops;) {
        uint64_t before = kolo_now_ns();
        kolo_yield();
        uint64_t away = kolo_now_ns() - before, now_taken = waited_for_a_core();
        if (kolo_yield_is_crowded()) return now_taken - taken < KOLO_NS_PER_MS / 3 ? STRANGERS_SEEN : OTHERS_RAN;
        if (away < STOP_NS / 2) continue;
        taken = now_taken; /* less often than the library looks it up */
        seen++;
    }
    return NOBODY;
}

/* Stops a child again and again, as the machine below does that takes the core of a rank. */
static int yield_and_be_stopped(void)
{
    const struct timespec away = {0, STOP_NS}, between = {0, STOP_NS / 2};
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(yield_through(STOPS));
    }
    while (waitpid(pid, &status, WNOHANG) == 0) {
        nanosleep(&between, NULL);
        kill(pid, SIGSTOP);
        nanosleep(&away, NULL);
        kill(pid, SIGCONT);
    }
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_core_that_the_machine_below_takes_has_no_strangers(void **state)
{
    int end = OTHERS_RAN;
    (void)state;
    for (int i = 0; i < TRIES && end == OTHERS_RAN; i++) end = yield_and_be_stopped();
    if (end == OTHERS_RAN || waited_for_a_core() == 0) skip();
    assert_int_equal(end, NOBODY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_core_that_the_machine_below_takes_has_no_strangers), /* before the core is shared */
        cmocka_unit_test(a_wait_among_strangers_soon_sleeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
