/* SPDX-License-Identifier: Apache-2.0
 *
 * The progress thread (see progress.h): the loop, watches, calls from other threads, and the process singleton.
 *
 * Removing a watch: the descriptor leaves the epoll set at once, but the batch of events that the thread holds may
 * still name the watch. So it is only marked, and freed by the thread when the batch is through: whatever was
 * removed by then cannot be in the next batch.
 */
#include "base/clock.h"
#include "base/file/fds.h"
#include "base/log.h"
#include "base/process.h"
#include "progress/internal.h"

#include <errno.h>
#include <limits.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BATCH       64
#define STACK_BYTES (1u << 20)
#define LOOK_MS     5000 /* the thread looks so often whether it is to end, should nothing wake it */
#define BLIND_MS    10

struct kolo_watch {
    kolo_progress_t *progress;
    int fd;
    bool deleted;
    kolo_watch_fn_t fn;
    void *arg;
    kolo_watch_t *next_garbage;
};

struct kolo_progress_call {
    void (*fn)(void *);
    void *arg;
    sem_t done;
    kolo_progress_call_t *next;
};

static pthread_mutex_t singleton_lock = PTHREAD_MUTEX_INITIALIZER;
static kolo_progress_t *singleton;
static _Thread_local const kolo_progress_t *progress_of_thread;

bool kolo_progress_is_self(const kolo_progress_t *progress)
{
    return progress_of_thread == progress;
}

bool kolo_progress_is_stale(const kolo_progress_t *progress)
{
    return progress->pid != getpid();
}

void kolo_progress_wake_locked(kolo_progress_t *progress)
{
    if (progress->woken || kolo_progress_is_self(progress)) return;
    progress->woken = true;
    uint64_t one = 1;
    ssize_t n = write(progress->event_fd, &one, sizeof(one));
    (void)n; /* the counter cannot overflow: it is rung once per read */
}

void kolo_progress_wait_handler_locked(kolo_progress_t *progress, const void *object)
{
    if (kolo_progress_is_self(progress)) return;
    while (progress->running == object) {
        progress->waiting_for_handler++;
        pthread_cond_wait(&progress->handler_ended, &progress->lock);
        progress->waiting_for_handler--;
    }
}

/* ---- watches ---- */

static kolo_status_t watch_ctl(kolo_watch_t *watch, int op, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    if (epoll_ctl(watch->progress->epoll_fd, op, watch->fd, &event) == 0) return KOLO_OK;
    return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "the progress thread cannot watch descriptor %d", watch->fd);
}

kolo_status_t kolo_watch_add(kolo_progress_t *progress, int fd, uint32_t events, kolo_watch_fn_t fn, void *arg,
                             kolo_watch_t **out)
{
    kolo_watch_t *watch = calloc(1, sizeof(*watch));
    if (watch == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to watch descriptor %d", fd);
    *watch = (kolo_watch_t){.progress = progress, .fd = fd, .fn = fn, .arg = arg};
    pthread_mutex_lock(&progress->lock);
    kolo_watch_t *before = *out;
    *out = watch; /* before the handler can run: it waits for the lock */
    kolo_status_t status = watch_ctl(watch, EPOLL_CTL_ADD, events);
    if (status != KOLO_OK) *out = before;
    pthread_mutex_unlock(&progress->lock);
    if (status != KOLO_OK) free(watch);
    return status;
}

kolo_status_t kolo_watch_mod(kolo_watch_t *watch, uint32_t events)
{
    if (kolo_progress_is_stale(watch->progress)) return KOLO_OK;
    return watch_ctl(watch, EPOLL_CTL_MOD, events);
}

void kolo_watch_del(kolo_watch_t *watch)
{
    if (watch == NULL) return;
    kolo_progress_t *progress = watch->progress;
    if (kolo_progress_is_stale(progress)) {
        free(watch);
        return;
    }
    pthread_mutex_lock(&progress->lock);
    struct epoll_event unused = {0};
    epoll_ctl(progress->epoll_fd, EPOLL_CTL_DEL, watch->fd, &unused);
    watch->deleted = true;
    kolo_progress_wait_handler_locked(progress, watch);
    watch->next_garbage = progress->garbage;
    progress->garbage = watch;
    pthread_mutex_unlock(&progress->lock);
}

/* ---- the thread ---- */

static void run_handler_begin_locked(kolo_progress_t *progress, void *object)
{
    progress->running = object;
    pthread_mutex_unlock(&progress->lock);
}

static void run_handler_end(kolo_progress_t *progress)
{
    pthread_mutex_lock(&progress->lock);
    progress->running = NULL;
    if (progress->waiting_for_handler > 0) pthread_cond_broadcast(&progress->handler_ended);
}

static void run_watch_locked(kolo_progress_t *progress, kolo_watch_t *watch, uint32_t events)
{
    if (watch->deleted) return;
    run_handler_begin_locked(progress, watch);
    watch->fn(watch->arg, watch->fd, events);
    run_handler_end(progress);
}

static void run_jobs_locked(kolo_progress_t *progress)
{
    while (progress->jobs != NULL) {
        kolo_progress_call_t *job = progress->jobs;
        progress->jobs = job->next;
        if (progress->jobs == NULL) progress->jobs_tail = &progress->jobs;
        pthread_mutex_unlock(&progress->lock);
        job->fn(job->arg);
        sem_post(&job->done); /* the job is on its caller's stack and gone from here on */
        pthread_mutex_lock(&progress->lock);
    }
}

static void run_timers_locked(kolo_progress_t *progress)
{
    uint64_t now = kolo_now_ns();
    kolo_timer_t *timer;
    while ((timer = kolo_timer_take_due_locked(progress, now)) != NULL) {
        run_handler_begin_locked(progress, timer);
        kolo_timer_run(timer);
        run_handler_end(progress);
    }
}

static void free_garbage_locked(kolo_progress_t *progress)
{
    while (progress->garbage != NULL) {
        kolo_watch_t *watch = progress->garbage;
        progress->garbage = watch->next_garbage;
        free(watch);
    }
}

static void progress_free(kolo_progress_t *progress)
{
    free_garbage_locked(progress);
    if (progress->epoll_fd >= 0) kolo_fd_close(progress->epoll_fd);
    if (progress->event_fd >= 0) kolo_fd_close(progress->event_fd);
    pthread_mutex_destroy(&progress->lock);
    pthread_cond_destroy(&progress->handler_ended);
    free(progress->heap);
    free(progress);
}

/* Waits as epoll_wait() does. A program that closes all descriptors it does not know, as daemon programs do, closes
 * these, too: then nothing wakes the thread any more, or the number means something else. Timers and the end must
 * still come. */
static int await_events(const kolo_progress_t *progress, struct epoll_event *events, int timeout_ms)
{
    static _Atomic bool told;
    int most = timeout_ms < 0 || timeout_ms > LOOK_MS ? LOOK_MS : timeout_ms;
    int n = epoll_wait(progress->epoll_fd, events, BATCH, most);
    if (KOLO_LIKELY(n >= 0 || errno == EINTR)) return n;
    if (!atomic_exchange(&told, true))
        kolo_error("progress",
                   "a descriptor of Kolo's (%d) was closed by the program: its communicators can no longer hear of "
                   "the other ranks. Close only descriptors that the program has opened (%s)",
                   progress->epoll_fd, strerror(errno));
    poll(NULL, 0, BLIND_MS);
    return 0;
}

static void *progress_main(void *arg)
{
    kolo_progress_t *progress = arg;
    struct epoll_event events[BATCH];
    progress_of_thread = progress;
    atomic_store(&progress->tid, (pid_t)syscall(SYS_gettid));
    pthread_setname_np(pthread_self(), "kolo-progress");
    pthread_mutex_lock(&progress->lock);
    while (!progress->stop) {
        int timeout_ms = kolo_timer_next_ms_locked(progress);
        pthread_mutex_unlock(&progress->lock);
        int n = await_events(progress, events, timeout_ms);
        pthread_mutex_lock(&progress->lock);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr != NULL) {
                run_watch_locked(progress, events[i].data.ptr, events[i].events);
                continue;
            }
            uint64_t rung;
            ssize_t got = read(progress->event_fd, &rung, sizeof(rung));
            (void)got;
            progress->woken = false;
        }
        run_jobs_locked(progress);
        run_timers_locked(progress);
        free_garbage_locked(progress);
    }
    bool detached = progress->detached;
    pthread_mutex_unlock(&progress->lock);
    if (detached) progress_free(progress);
    return NULL;
}

static kolo_status_t progress_start_thread(kolo_progress_t *progress)
{
    int err = kolo_thread_start(&progress->thread, STACK_BYTES, progress_main, progress);
    if (err != 0) return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "cannot start the progress thread");
    return KOLO_OK;
}

static kolo_status_t progress_new(kolo_progress_t **out)
{
    kolo_progress_t *progress = calloc(1, sizeof(*progress));
    if (progress == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the progress thread");
    pthread_mutex_init(&progress->lock, NULL);
    pthread_cond_init(&progress->handler_ended, NULL);
    progress->pid = getpid();
    progress->jobs_tail = &progress->jobs;
    progress->epoll_fd = kolo_fd_own(epoll_create1(EPOLL_CLOEXEC));
    progress->event_fd = kolo_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    kolo_status_t status = KOLO_OK;
    if (progress->epoll_fd < 0 || progress->event_fd < 0 ||
        epoll_ctl(progress->epoll_fd, EPOLL_CTL_ADD, progress->event_fd, &event) != 0)
        status = kolo_fail_errno(KOLO_ERR_SYSTEM, errno,
                                 "cannot open the progress thread's epoll and event descriptors");
    if (status == KOLO_OK) status = progress_start_thread(progress);
    if (status != KOLO_OK) {
        progress_free(progress);
        return status;
    }
    *out = progress;
    return KOLO_OK;
}

/* ---- singleton ---- */

static void before_fork(void)
{
    pthread_mutex_lock(&singleton_lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&singleton_lock);
}

/* Leaves the thread, which did not come along. Its epoll set is shared with the parent, so only our copies of the
 * descriptors are closed; the memory stays, since objects of the parent that the child still frees point at it. */
static void after_fork_in_child(void)
{
    if (singleton != NULL) {
        kolo_fd_close(singleton->epoll_fd);
        kolo_fd_close(singleton->event_fd);
        singleton = NULL;
    }
    pthread_mutex_unlock(&singleton_lock);
}

static void register_fork_handlers(void)
{
    kolo_fd_watch_forks(); /* first: its lock is taken last */
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static kolo_status_t check_files_locked(void)
{
    pid_t its = singleton ? atomic_load(&singleton->tid) : 0, mine = (pid_t)syscall(SYS_gettid);
    if (its == 0 || syscall(SYS_kcmp, mine, its, KCMP_FILES, 0, 0) <= 0) return KOLO_OK; /* -1: not to be known */
    return kolo_fail(
        KOLO_ERR_INVALID_USAGE,
        "this thread has a table of descriptors of its own (unshare(CLONE_FILES), "
        "close_range(CLOSE_RANGE_UNSHARE)), in which Kolo's threads open nothing: make it before Kolo's "
        "first communicator, or in a thread that does not call Kolo");
}

kolo_status_t kolo_progress_check_files(void)
{
    pthread_mutex_lock(&singleton_lock);
    kolo_status_t status = check_files_locked();
    pthread_mutex_unlock(&singleton_lock);
    return status;
}

kolo_status_t kolo_progress_get(kolo_progress_t **progress)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_fork_handlers);
    pthread_mutex_lock(&singleton_lock);
    kolo_status_t status = singleton == NULL ? progress_new(&singleton) : check_files_locked();
    if (status == KOLO_OK) {
        singleton->refs++;
        *progress = singleton;
    }
    pthread_mutex_unlock(&singleton_lock);
    return status;
}

void kolo_progress_put(kolo_progress_t *progress)
{
    if (progress == NULL || kolo_progress_is_stale(progress)) return;
    pthread_mutex_lock(&singleton_lock);
    bool last = --progress->refs == 0;
    if (last) singleton = NULL;
    pthread_mutex_unlock(&singleton_lock);
    if (!last) return;

    bool self = kolo_progress_is_self(progress);
    pthread_t thread = progress->thread;
    pthread_mutex_lock(&progress->lock);
    progress->stop = true;
    progress->detached = self;
    kolo_progress_wake_locked(progress);
    pthread_mutex_unlock(&progress->lock);
    if (self) {
        pthread_detach(thread);
        return;
    }
    pthread_join(thread, NULL);
    progress_free(progress);
}

void kolo_progress_call(kolo_progress_t *progress, void (*fn)(void *), void *arg)
{
    if (kolo_progress_is_stale(progress) || kolo_progress_is_self(progress)) {
        fn(arg);
        return;
    }
    kolo_progress_call_t job = {.fn = fn, .arg = arg};
    sem_init(&job.done, 0, 0);
    pthread_mutex_lock(&progress->lock);
    *progress->jobs_tail = &job;
    progress->jobs_tail = &job.next;
    kolo_progress_wake_locked(progress);
    pthread_mutex_unlock(&progress->lock);
    while (sem_wait(&job.done) != 0) continue; /* EINTR */
    sem_destroy(&job.done);
}
