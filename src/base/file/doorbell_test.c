/* SPDX-License-Identifier: Apache-2.0
 *
 * Doorbells that several sleepers share: each of them hears a ring, once; what is known already is not kept twice.
 */
#include "base/file/doorbell.h"
#include "base/file/fds.h"
#include "base/test.h"
#include "base/wait.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

static bool is_rung(const kolo_waker_t *waker)
{
    struct epoll_event event;
    return epoll_wait(waker->epoll_fd, &event, 1, 0) == 1;
}

static void a_ring_is_heard_once_by_each_who_shares_the_doorbell(void **state)
{
    (void)state;
    kolo_waker_t wakers[3];
    for (int i = 0; i < 3; i++) assert_int_equal(kolo_waker_init_shared(&wakers[i], NULL), KOLO_OK);
    assert_int_equal(wakers[0].event_fd, wakers[2].event_fd);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) assert_false(is_rung(&wakers[i]));
        kolo_waker_doorbell(wakers[round].event_fd);
        for (int i = 0; i < 3; i++) assert_true(is_rung(&wakers[i])); /* though others have heard it before */
    }
    kolo_waker_fini(&wakers[0]);
    kolo_waker_doorbell(wakers[1].event_fd); /* it is still there */
    assert_true(is_rung(&wakers[2]));
    for (int i = 1; i < 3; i++) kolo_waker_fini(&wakers[i]);
}

static void *make_on_another_thread(void *arg)
{
    assert_int_equal(kolo_waker_init_shared(arg, NULL), KOLO_OK);
    return NULL;
}

static void a_doorbell_has_few_sharers_and_they_are_of_one_thread(void **state)
{
    (void)state;
    kolo_waker_t wakers[KOLO_DOORBELL_SHARERS + 1], other;
    pthread_t thread;
    for (int i = 0; i <= KOLO_DOORBELL_SHARERS; i++)
        assert_int_equal(kolo_waker_init_shared(&wakers[i], NULL), KOLO_OK);
    assert_int_equal(wakers[0].event_fd, wakers[KOLO_DOORBELL_SHARERS - 1].event_fd);
    assert_int_not_equal(wakers[0].event_fd, wakers[KOLO_DOORBELL_SHARERS].event_fd);
    kolo_waker_fini(&wakers[0]);
    assert_int_equal(pthread_create(&thread, NULL, make_on_another_thread, &other), 0);
    pthread_join(thread, NULL);
    for (int i = 1; i <= KOLO_DOORBELL_SHARERS; i++) assert_int_not_equal(other.event_fd, wakers[i].event_fd);
    for (int i = 1; i <= KOLO_DOORBELL_SHARERS; i++) kolo_waker_fini(&wakers[i]);
    kolo_waker_fini(&other);
}

static void a_doorbell_that_comes_again_is_kept_once(void **state)
{
    (void)state;
    const uint8_t here[16] = {1}, there[16] = {2};
    kolo_doorbell_t *bells[4];
    int fds[4];
    for (int i = 0; i < 4; i++) fds[i] = kolo_fd_own(eventfd(0, EFD_CLOEXEC));
    assert_int_equal(kolo_doorbell_meet(here, 1, fds[0], -1, &bells[0]), KOLO_OK);
    assert_int_equal(kolo_doorbell_meet(here, 1, fds[1], -1, &bells[1]), KOLO_OK);
    assert_int_equal(kolo_doorbell_meet(here, 2, fds[2], -1, &bells[2]), KOLO_OK);
    assert_int_equal(kolo_doorbell_meet(there, 1, fds[3], -1, &bells[3]), KOLO_OK);
    assert_ptr_equal(bells[0], bells[1]);
    assert_ptr_not_equal(bells[0], bells[2]);
    assert_ptr_not_equal(bells[0], bells[3]);
    assert_int_equal(fcntl(fds[1], F_GETFD), -1);
    kolo_doorbell_put(bells[0]);
    assert_int_not_equal(fcntl(fds[0], F_GETFD), -1);
    for (int i = 1; i < 4; i++) kolo_doorbell_put(bells[i]);
    for (int i = 0; i < 4; i++) assert_int_equal(fcntl(fds[i], F_GETFD), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_is_heard_once_by_each_who_shares_the_doorbell),
        cmocka_unit_test(a_doorbell_has_few_sharers_and_they_are_of_one_thread),
        cmocka_unit_test(a_doorbell_that_comes_again_is_kept_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
