/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine thread (see progress.h): the loop, watches, calls from other threads, and the process singleton.
 *
 * Removing a watch: the descriptor leaves the epoll set at once, but the batch of events that the thread holds may
 * still name the watch. So it is only marked, and freed by the thread when the batch is through: whatever was
 * removed by then cannot be in the next batch.
 */
#include "base/clock.h"
#include "base/log.h"
#include "progress/engine_internal.h"

#include <errno.h>
#include <limits.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define BATCH       64
#define STACK_BYTES (1u << 20)

struct kolo_watch {
    kolo_engine_t *engine;
    int fd;
    bool deleted;
    kolo_watch_fn_t fn;
    void *arg;
    kolo_watch_t *next_garbage;
};

struct kolo_engine_job {
    void (*fn)(void *);
    void *arg;
    sem_t done;
    kolo_engine_job_t *next;
};

static pthread_mutex_t singleton_lock = PTHREAD_MUTEX_INITIALIZER;
static kolo_engine_t *singleton;
static _Thread_local const kolo_engine_t *engine_of_thread;

bool kolo_engine_is_self(const kolo_engine_t *engine)
{
    return engine_of_thread == engine;
}

bool kolo_engine_is_stale(const kolo_engine_t *engine)
{
    return engine->pid != getpid();
}

void kolo_engine_wake_locked(kolo_engine_t *engine)
{
    if (engine->woken || kolo_engine_is_self(engine)) return;
    engine->woken = true;
    uint64_t one = 1;
    ssize_t n = write(engine->event_fd, &one, sizeof(one));
    (void)n; /* the counter cannot overflow: it is rung once per read */
}

void kolo_engine_wait_handler_locked(kolo_engine_t *engine, const void *object)
{
    if (kolo_engine_is_self(engine)) return;
    while (engine->running == object) {
        engine->waiting_for_handler++;
        pthread_cond_wait(&engine->handler_ended, &engine->lock);
        engine->waiting_for_handler--;
    }
}

/* ---- watches ---- */

static kolo_status_t watch_ctl(kolo_watch_t *watch, int op, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    if (epoll_ctl(watch->engine->epoll_fd, op, watch->fd, &event) == 0) return KOLO_OK;
    return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "the engine cannot watch descriptor %d", watch->fd);
}

kolo_status_t kolo_watch_add(kolo_engine_t *engine, int fd, uint32_t events, kolo_watch_fn_t fn, void *arg,
                             kolo_watch_t **out)
{
    kolo_watch_t *watch = calloc(1, sizeof(*watch));
    if (watch == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to watch descriptor %d", fd);
    *watch = (kolo_watch_t){.engine = engine, .fd = fd, .fn = fn, .arg = arg};
    pthread_mutex_lock(&engine->lock);
    kolo_watch_t *before = *out;
    *out = watch; /* before the handler can run: it waits for the lock */
    kolo_status_t status = watch_ctl(watch, EPOLL_CTL_ADD, events);
    if (status != KOLO_OK) *out = before;
    pthread_mutex_unlock(&engine->lock);
    if (status != KOLO_OK) free(watch);
    return status;
}

kolo_status_t kolo_watch_mod(kolo_watch_t *watch, uint32_t events)
{
    if (kolo_engine_is_stale(watch->engine)) return KOLO_OK;
    return watch_ctl(watch, EPOLL_CTL_MOD, events);
}

void kolo_watch_del(kolo_watch_t *watch)
{
    if (watch == NULL) return;
    kolo_engine_t *engine = watch->engine;
    if (kolo_engine_is_stale(engine)) {
        free(watch);
        return;
    }
    pthread_mutex_lock(&engine->lock);
    struct epoll_event unused = {0};
    epoll_ctl(engine->epoll_fd, EPOLL_CTL_DEL, watch->fd, &unused);
    watch->deleted = true;
    kolo_engine_wait_handler_locked(engine, watch);
    watch->next_garbage = engine->garbage;
    engine->garbage = watch;
    pthread_mutex_unlock(&engine->lock);
}

/* ---- the thread ---- */

static void run_handler_begin_locked(kolo_engine_t *engine, void *object)
{
    engine->running = object;
    pthread_mutex_unlock(&engine->lock);
}

static void run_handler_end(kolo_engine_t *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->running = NULL;
    if (engine->waiting_for_handler > 0) pthread_cond_broadcast(&engine->handler_ended);
}

static void run_watch_locked(kolo_engine_t *engine, kolo_watch_t *watch, uint32_t events)
{
    if (watch->deleted) return;
    run_handler_begin_locked(engine, watch);
    watch->fn(watch->arg, watch->fd, events);
    run_handler_end(engine);
}

static void run_jobs_locked(kolo_engine_t *engine)
{
    while (engine->jobs != NULL) {
        kolo_engine_job_t *job = engine->jobs;
        engine->jobs = job->next;
        if (engine->jobs == NULL) engine->jobs_tail = &engine->jobs;
        pthread_mutex_unlock(&engine->lock);
        job->fn(job->arg);
        sem_post(&job->done); /* the job is on its caller's stack and gone from here on */
        pthread_mutex_lock(&engine->lock);
    }
}

static void run_timers_locked(kolo_engine_t *engine)
{
    uint64_t now = kolo_now_ns();
    kolo_timer_t *timer;
    while ((timer = kolo_timer_take_due_locked(engine, now)) != NULL) {
        run_handler_begin_locked(engine, timer);
        kolo_timer_run(timer);
        run_handler_end(engine);
    }
}

static void free_garbage_locked(kolo_engine_t *engine)
{
    while (engine->garbage != NULL) {
        kolo_watch_t *watch = engine->garbage;
        engine->garbage = watch->next_garbage;
        free(watch);
    }
}

static void engine_free(kolo_engine_t *engine)
{
    free_garbage_locked(engine);
    if (engine->epoll_fd >= 0) close(engine->epoll_fd);
    if (engine->event_fd >= 0) close(engine->event_fd);
    pthread_mutex_destroy(&engine->lock);
    pthread_cond_destroy(&engine->handler_ended);
    free(engine->heap);
    free(engine);
}

static void *engine_main(void *arg)
{
    kolo_engine_t *engine = arg;
    struct epoll_event events[BATCH];
    engine_of_thread = engine;
    pthread_setname_np(pthread_self(), "kolo-engine");
    pthread_mutex_lock(&engine->lock);
    while (!engine->stop) {
        int timeout_ms = kolo_timer_next_ms_locked(engine);
        pthread_mutex_unlock(&engine->lock);
        int n = epoll_wait(engine->epoll_fd, events, BATCH, timeout_ms);
        pthread_mutex_lock(&engine->lock);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr != NULL) {
                run_watch_locked(engine, events[i].data.ptr, events[i].events);
                continue;
            }
            uint64_t rung;
            ssize_t got = read(engine->event_fd, &rung, sizeof(rung));
            (void)got;
            engine->woken = false;
        }
        run_jobs_locked(engine);
        run_timers_locked(engine);
        free_garbage_locked(engine);
    }
    bool detached = engine->detached;
    pthread_mutex_unlock(&engine->lock);
    if (detached) engine_free(engine);
    return NULL;
}

static kolo_status_t engine_start_thread(kolo_engine_t *engine)
{
    pthread_attr_t attr;
    sigset_t all, before;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* signals belong to the program's threads */
    int err = pthread_create(&engine->thread, &attr, engine_main, engine);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (err != 0) return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "cannot start the engine thread");
    return KOLO_OK;
}

static kolo_status_t engine_new(kolo_engine_t **out)
{
    kolo_engine_t *engine = calloc(1, sizeof(*engine));
    if (engine == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the engine");
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->handler_ended, NULL);
    engine->pid = getpid();
    engine->jobs_tail = &engine->jobs;
    engine->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    engine->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    kolo_status_t status = KOLO_OK;
    if (engine->epoll_fd < 0 || engine->event_fd < 0 ||
        epoll_ctl(engine->epoll_fd, EPOLL_CTL_ADD, engine->event_fd, &event) != 0)
        status = kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot open the engine's epoll and event descriptors");
    if (status == KOLO_OK) status = engine_start_thread(engine);
    if (status != KOLO_OK) {
        engine_free(engine);
        return status;
    }
    *out = engine;
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

/* The thread did not come along. Its epoll set is shared with the parent, so only our copies of the descriptors are
 * closed; the memory stays, because objects of the parent that the child still frees point at it. */
static void after_fork_in_child(void)
{
    if (singleton != NULL) {
        close(singleton->epoll_fd);
        close(singleton->event_fd);
        singleton = NULL;
    }
    pthread_mutex_unlock(&singleton_lock);
}

static void register_fork_handlers(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

kolo_status_t kolo_engine_get(kolo_engine_t **engine)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_fork_handlers);
    pthread_mutex_lock(&singleton_lock);
    kolo_status_t status = singleton == NULL ? engine_new(&singleton) : KOLO_OK;
    if (status == KOLO_OK) {
        singleton->refs++;
        *engine = singleton;
    }
    pthread_mutex_unlock(&singleton_lock);
    return status;
}

void kolo_engine_put(kolo_engine_t *engine)
{
    if (engine == NULL || kolo_engine_is_stale(engine)) return;
    pthread_mutex_lock(&singleton_lock);
    bool last = --engine->refs == 0;
    if (last) singleton = NULL;
    pthread_mutex_unlock(&singleton_lock);
    if (!last) return;

    bool self = kolo_engine_is_self(engine);
    pthread_t thread = engine->thread;
    pthread_mutex_lock(&engine->lock);
    engine->stop = true;
    engine->detached = self;
    kolo_engine_wake_locked(engine);
    pthread_mutex_unlock(&engine->lock);
    if (self) {
        pthread_detach(thread);
        return;
    }
    pthread_join(thread, NULL);
    engine_free(engine);
}

void kolo_engine_call(kolo_engine_t *engine, void (*fn)(void *), void *arg)
{
    if (kolo_engine_is_stale(engine) || kolo_engine_is_self(engine)) {
        fn(arg);
        return;
    }
    kolo_engine_job_t job = {.fn = fn, .arg = arg};
    sem_init(&job.done, 0, 0);
    pthread_mutex_lock(&engine->lock);
    *engine->jobs_tail = &job;
    engine->jobs_tail = &job.next;
    kolo_engine_wake_locked(engine);
    pthread_mutex_unlock(&engine->lock);
    while (sem_wait(&job.done) != 0) continue; /* EINTR */
    sem_destroy(&job.done);
}
