/* SPDX-License-Identifier: Apache-2.0
 *
 * A wait on a core that other programs use: it does not give the core away again and again, which costs a slice of
 * the scheduler's for each of them each time.
 */
#include "base/clock.h"
#include "base/test.h"
#include "base/wait.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define STRANGERS 2
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_wait_among_strangers_soon_sleeps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
