/* SPDX-License-Identifier: Apache-2.0
 *
 * The progress thread: watches, timers, calls, what removing guarantees, and that nothing remains.
 */
#include "base/clock.h"
#include "base/test.h"
#include "progress/test_fork.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NUMBERS 256

static _Atomic int hits;

static void wait_hits(int count)
{
    for (int i = 0; i < 4000 && atomic_load(&hits) < count; i++) poll(NULL, 0, 1);
    assert_true(atomic_load(&hits) >= count);
}

static int count_threads(void)
{
    DIR *dir = opendir("/proc/self/task");
    int count = 0;
    while (readdir(dir) != NULL) count++;
    closedir(dir);
    return count;
}

/* A thread of an earlier test that was joined may be on its last instructions for the kernel. */
static int count_settled_threads(void)
{
    int count = count_threads();
    for (int same = 0; same < 20; same++) {
        poll(NULL, 0, 1);
        int now = count_threads();
        if (now != count) same = 0;
        count = now;
    }
    return count;
}

static void read_event(void *arg, int fd, uint32_t events)
{
    uint64_t value;
    (void)arg;
    if ((events & EPOLLIN) && read(fd, &value, sizeof(value)) == sizeof(value)) atomic_fetch_add(&hits, 1);
}

static void a_watch_hears_of_its_descriptor_until_it_is_removed(void **state)
{
    kolo_progress_t *progress;
    kolo_watch_t *watch;
    uint64_t one = 1;
    (void)state;
    atomic_store(&hits, 0);
    assert_int_equal(kolo_progress_get(&progress), KOLO_OK);
    int fd = eventfd(0, EFD_NONBLOCK);
    assert_int_equal(kolo_watch_add(progress, fd, EPOLLIN, read_event, NULL, &watch), KOLO_OK);
    assert_int_equal(write(fd, &one, 8), 8);
    wait_hits(1);
    assert_int_equal(kolo_watch_mod(watch, 0), KOLO_OK);
    assert_int_equal(write(fd, &one, 8), 8);
    poll(NULL, 0, 20);
    assert_int_equal(atomic_load(&hits), 1);
    assert_int_equal(kolo_watch_mod(watch, EPOLLIN), KOLO_OK);
    wait_hits(2);
    kolo_watch_del(watch);
    assert_int_equal(write(fd, &one, 8), 8);
    poll(NULL, 0, 20);
    assert_int_equal(atomic_load(&hits), 2);
    close(fd);
    assert_int_equal(kolo_watch_add(progress, fd, EPOLLIN, read_event, NULL, &watch), KOLO_ERR_SYSTEM);
    kolo_progress_put(progress);
}

static _Atomic int in_handler;

static void slow_handler(void *arg, int fd, uint32_t events)
{
    uint64_t value;
    (void)arg, (void)events;
    if (read(fd, &value, sizeof(value)) < 0) return;
    atomic_store(&in_handler, 1);
    poll(NULL, 0, 50);
    atomic_store(&in_handler, 0);
    atomic_fetch_add(&hits, 1);
}

static void removing_waits_for_a_running_handler(void **state)
{
    kolo_progress_t *progress;
    kolo_watch_t *watch;
    uint64_t one = 1;
    (void)state;
    atomic_store(&hits, 0);
    assert_int_equal(kolo_progress_get(&progress), KOLO_OK);
    int fd = eventfd(0, EFD_NONBLOCK);
    assert_int_equal(kolo_watch_add(progress, fd, EPOLLIN, slow_handler, NULL, &watch), KOLO_OK);
    assert_int_equal(write(fd, &one, 8), 8);
    while (atomic_load(&in_handler) == 0) poll(NULL, 0, 1);
    kolo_watch_del(watch);
    assert_int_equal(atomic_load(&in_handler), 0);
    assert_int_equal(atomic_load(&hits), 1);
    close(fd);
    kolo_progress_put(progress);
}

typedef struct {
    kolo_watch_t *watch, *other;
    int fd;
    _Atomic bool set; /* the two above are known */
} self_t;

static void remove_both(void *arg, int fd, uint32_t events)
{
    self_t *self = arg;
    (void)fd, (void)events;
    while (!atomic_load(&self->set)) continue;
    kolo_watch_del(self->watch);
    kolo_watch_del(self->other); /* its event may be in the same batch */
    atomic_fetch_add(&hits, 1);
}

static void a_handler_may_remove_itself_and_others(void **state)
{
    kolo_progress_t *progress;
    self_t a = {0}, b = {0};
    uint64_t one = 1;
    (void)state;
    assert_int_equal(kolo_progress_get(&progress), KOLO_OK);
    for (int i = 0; i < 50; i++) {
        atomic_store(&hits, 0);
        a.fd = eventfd(0, 0);
        b.fd = eventfd(0, 0);
        assert_int_equal(kolo_watch_add(progress, a.fd, EPOLLIN, remove_both, &a, &a.watch), KOLO_OK);
        assert_int_equal(kolo_watch_add(progress, b.fd, EPOLLIN, remove_both, &b, &b.watch), KOLO_OK);
        a.other = b.watch;
        b.other = a.watch;
        atomic_store(&a.set, true);
        atomic_store(&b.set, true);
        assert_int_equal(write(a.fd, &one, 8), 8);
        wait_hits(1);
        close(a.fd);
        close(b.fd);
    }
    kolo_progress_put(progress);
}

/* ---- timers ---- */

static _Atomic int order[64];

static void note_order(void *arg)
{
    atomic_store(&order[atomic_fetch_add(&hits, 1)], (int)(intptr_t)arg);
}

enum { COUNT = 40 };

/* Each second of them is cancelled. False if that took so long that the times are not in the order of the
 * places. */
static bool add_timers(kolo_progress_t *progress, kolo_timer_t **timers)
{
    uint64_t start = kolo_now_ns();
    for (int i = 0; i < COUNT; i++) {
        int place = (i * 17) % COUNT;
        assert_int_equal(
            kolo_timer_add(progress, 30 + place * 5, note_order, (void *)(intptr_t)place, &timers[place]), KOLO_OK);
    }
    for (int i = 1; i < COUNT; i += 2) kolo_timer_cancel(timers[i]);
    if (kolo_now_ns() - start < 5 * KOLO_NS_PER_MS) return true;
    for (int i = 0; i < COUNT; i += 2) kolo_timer_cancel(timers[i]);
    atomic_store(&hits, 0);
    return false;
}

static void timers_fire_in_the_order_of_their_times(void **state)
{
    kolo_progress_t *progress;
    kolo_timer_t *timers[COUNT];
    uint64_t start;
    int tries = 0;
    (void)state;
    atomic_store(&hits, 0);
    assert_int_equal(kolo_progress_get(&progress), KOLO_OK);
    do {
        start = kolo_now_ns();
        assert_true(tries++ < 200);
    } while (!add_timers(progress, timers));
    wait_hits(COUNT / 2);
    assert_true(kolo_now_ns() - start >= (30 + (COUNT - 2) * 5) * KOLO_NS_PER_MS);
    for (int i = 0; i < COUNT / 2; i++) assert_int_equal(atomic_load(&order[i]), i * 2);
    for (int i = 0; i < COUNT; i += 2) kolo_timer_cancel(timers[i]);
    assert_int_equal(atomic_load(&hits), COUNT / 2);
    kolo_progress_put(progress);
}

static kolo_timer_t *repeating;
static kolo_progress_t *repeating_progress;

static void again(void *arg)
{
    (void)arg;
    kolo_timer_cancel(repeating);
    repeating = NULL;
    if (atomic_fetch_add(&hits, 1) < 9) kolo_timer_add(repeating_progress, 1, again, NULL, &repeating);
}

static void a_timer_may_start_the_next_one(void **state)
{
    (void)state;
    atomic_store(&hits, 0);
    assert_int_equal(kolo_progress_get(&repeating_progress), KOLO_OK);
    assert_int_equal(kolo_timer_add(repeating_progress, 1, again, NULL, &repeating), KOLO_OK);
    wait_hits(10);
    kolo_progress_put(repeating_progress);
}

/* ---- calls and life ---- */

static void note_thread(void *arg)
{
    *(pthread_t *)arg = pthread_self();
}

static void *call_often(void *arg)
{
    pthread_t where;
    for (int i = 0; i < 300; i++) {
        where = pthread_self();
        kolo_progress_call(arg, note_thread, &where);
        if (pthread_equal(where, pthread_self())) abort();
    }
    return NULL;
}

static void calls_run_on_the_progress_thread(void **state)
{
    kolo_progress_t *progress;
    pthread_t threads[4];
    (void)state;
    assert_int_equal(kolo_progress_get(&progress), KOLO_OK);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, call_often, progress), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    kolo_progress_put(progress);
}

static void put_there(void *arg)
{
    kolo_progress_put(arg);
}

static void the_last_user_stops_the_thread(void **state)
{
    kolo_progress_t *a, *b;
    (void)state;
    int before = count_settled_threads();
    for (int i = 0; i < 30; i++) {
        assert_int_equal(kolo_progress_get(&a), KOLO_OK);
        assert_int_equal(kolo_progress_get(&b), KOLO_OK);
        assert_ptr_equal(a, b);
        assert_int_equal(count_threads(), before + 1);
        kolo_progress_put(a);
        if (i % 2 == 0)
            kolo_progress_put(b);
        else
            kolo_progress_call(b, put_there, b); /* from within: it ends by itself */
        for (int k = 0; k < 2000 && count_threads() != before; k++) poll(NULL, 0, 1);
        assert_int_equal(count_threads(), before);
    }
}

static void a_child_of_fork_gets_a_fresh_progress_thread(void **state)
{
    kolo_progress_t *progress;
    kolo_watch_t *watch;
    int result;
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* TSan has no threads after a fork of a process that has some */
#endif
    assert_int_equal(kolo_progress_get(&progress), KOLO_OK);
    int fd = eventfd(0, EFD_NONBLOCK);
    assert_int_equal(kolo_watch_add(progress, fd, EPOLLIN, read_event, NULL, &watch), KOLO_OK);
    pid_t child = kolo_test_fork(progress);
    if (child == 0) {
        kolo_progress_t *own;
        pthread_t where = pthread_self();
        kolo_watch_del(watch);
        kolo_progress_put(progress);
        if (kolo_progress_get(&own) != KOLO_OK || own == progress) _exit(1);
        kolo_progress_call(own, note_thread, &where);
        _exit(pthread_equal(where, pthread_self()) ? 2 : 0);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(WEXITSTATUS(result), 0);
    atomic_store(&hits, 0); /* ours still works */
    uint64_t one = 1;
    assert_int_equal(write(fd, &one, 8), 8);
    wait_hits(1);
    kolo_watch_del(watch);
    close(fd);
    kolo_progress_put(progress);
}

static int open_descriptors(bool open[NUMBERS])
{
    int count = 0;
    for (int fd = 0; fd < NUMBERS; fd++) count += open[fd] = fcntl(fd, F_GETFD) >= 0;
    return count;
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Closes its descriptors, as a program does that closes all but its own. */
static void a_thread_whose_descriptors_were_closed_still_ends(void **state)
{
    static bool before[NUMBERS], after[NUMBERS];
    kolo_progress_t *progress;
    (void)state;
    open_descriptors(before);
    int threads = count_settled_threads();
    assert_int_equal(kolo_progress_get(&progress), KOLO_OK);
    poll(NULL, 0, 50); /* it waits by now */
    open_descriptors(after);
    for (int fd = 0; fd < NUMBERS; fd++)
        if (after[fd] && !before[fd]) syscall(SYS_close, fd); /* no order is meant: the sanitizer is not asked */
    double used = cpu_seconds();
    alarm(30);
    kolo_progress_put(progress);
    alarm(0);
    assert_int_equal(count_settled_threads(), threads);
    assert_true(cpu_seconds() - used < 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_watch_hears_of_its_descriptor_until_it_is_removed),
        cmocka_unit_test(removing_waits_for_a_running_handler),
        cmocka_unit_test(a_handler_may_remove_itself_and_others),
        cmocka_unit_test(timers_fire_in_the_order_of_their_times),
        cmocka_unit_test(a_timer_may_start_the_next_one),
        cmocka_unit_test(calls_run_on_the_progress_thread),
        cmocka_unit_test(the_last_user_stops_the_thread),
        cmocka_unit_test(a_child_of_fork_gets_a_fresh_progress_thread),
        cmocka_unit_test(a_thread_whose_descriptors_were_closed_still_ends), /* last: some numbers are free now */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
