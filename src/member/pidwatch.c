/* SPDX-License-Identifier: Apache-2.0
 *
 * The processes of neighbours on this host, watched by pidfd: the kernel says at once when one has ended, also
 * where a child that it left behind keeps its sockets open. A rank that left in order has said so on its
 * connection, so that is read to its end first.
 *
 * All communicators share one descriptor for each process: it tells each of them.
 *
 * A process with gigabytes of memory is dead long before the kernel says so: it frees the memory first. While
 * somebody waits, /proc is looked at as well (base/process.h).
 */
#include "base/file/fds.h"
#include "base/log.h"
#include "base/process.h"
#include "member/life.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOK_EACH_MS 20

/* A process that some communicator watches. */
typedef struct process {
    struct process *next;
    int pid, fd;
    uint32_t forks;      /* its watcher's: a child of fork() takes over none (base/process.h) */
    kolo_watch_t *watch; /* NULL: it has ended */
    struct kolo_pidwatch *watchers;
} process_t;

typedef struct kolo_pidwatch {
    struct kolo_pidwatch *next;  /* of the same communicator */
    struct kolo_pidwatch *other; /* of the same process */
    kolo_oob_t *oob;
    int rank;
    process_t *process;
    bool told;           /* that it has ended */
    kolo_timer_t *timer; /* NULL: it was not seen to end */
} kolo_pidwatch_t;

/* Watchers are freed on the progress thread only, where handlers run, too; they are added on any. */
static struct {
    pthread_mutex_t lock;
    process_t *first;
} watched = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void before_fork(void)
{
    pthread_mutex_lock(&watched.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&watched.lock);
}

/* Comes after the progress thread has registered its own handlers, whose lock is taken under this one. */
static void register_handlers(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

static void note_end(const kolo_pidwatch_t *w)
{
    kolo_oob_t *oob = w->oob;
    pthread_mutex_lock(&oob->lock);
    kolo_peer_t *peer = kolo_peer_find(oob, w->rank);
    for (kolo_conn_t *conn = peer != NULL ? peer->conns : NULL; conn != NULL; conn = conn->next)
        kolo_conn_drain(conn);
    if (peer != NULL && !peer->farewell && !oob->closed) kolo_news_lost(oob, w->rank, KOLO_LOSS_PROCESS, oob->rank);
    pthread_mutex_unlock(&oob->lock);
}

static kolo_pidwatch_t *next_untold(const process_t *process)
{
    pthread_mutex_lock(&watched.lock);
    kolo_pidwatch_t *w = process->watchers;
    while (w != NULL && w->told) w = w->other;
    if (w != NULL) w->told = true;
    pthread_mutex_unlock(&watched.lock);
    return w;
}

static void process_ended(void *arg, int fd, uint32_t events)
{
    process_t *process = arg;
    (void)fd, (void)events;
    pthread_mutex_lock(&watched.lock);
    kolo_watch_del(process->watch); /* it stays readable for ever */
    process->watch = NULL;          /* nobody joins the watchers from here on */
    pthread_mutex_unlock(&watched.lock);
    for (kolo_pidwatch_t *w; (w = next_untold(process)) != NULL;) note_end(w);
}

static void process_ends(void *arg)
{
    note_end(arg);
}

void kolo_pidwatch_look_out(kolo_oob_t *oob)
{
    uint64_t now = kolo_now_ns();
    if (now < atomic_load_explicit(&kolo_life(oob)->look_ns, memory_order_relaxed)) return;
    if (pthread_mutex_trylock(&oob->lock) != 0) return; /* the next time, then */
    atomic_store_explicit(&kolo_life(oob)->look_ns, now + LOOK_EACH_MS * KOLO_NS_PER_MS, memory_order_relaxed);
    for (kolo_pidwatch_t *w = oob->closed ? NULL : kolo_life(oob)->pidwatches; w != NULL; w = w->next) {
        if (w->timer != NULL || kolo_process_end(w->process->pid) == KOLO_PROCESS_LIVES) continue;
        /* What the process has said before is read by the progress thread, like everything that comes. */
        if (kolo_timer_add(oob->progress, 0, process_ends, w, &w->timer) != KOLO_OK)
            kolo_debug("oob", "%s: rank %d waits for the end of process %d: %s", oob->name, oob->rank,
                       w->process->pid, kolo_error_text());
    }
    pthread_mutex_unlock(&oob->lock);
}

static bool has_ended(const process_t *process)
{
    struct pollfd pfd = {.fd = process->fd, .events = POLLIN};
    return process->watch == NULL || poll(&pfd, 1, 0) > 0;
}

static kolo_status_t watch_process(kolo_progress_t *progress, int rank, int pid, process_t **out)
{
    process_t *process = calloc(1, sizeof(*process));
    if (process == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to watch process %d", pid);
    process->pid = pid;
    process->forks = kolo_process_forks();
    process->fd = kolo_fd_own((int)syscall(SYS_pidfd_open, pid, 0));
    if (process->fd < 0) {
        int err = errno;
        free(process);
        return kolo_fail_errno(err == ENOSYS ? KOLO_ERR_UNSUPPORTED : KOLO_ERR_SYSTEM, err,
                               "cannot watch process %d of rank %d", pid, rank);
    }
    kolo_status_t status = kolo_watch_add(progress, process->fd, EPOLLIN, process_ended, process, &process->watch);
    if (status != KOLO_OK) {
        kolo_fd_close(process->fd);
        free(process);
        return status;
    }
    process->next = watched.first;
    watched.first = *out = process;
    return KOLO_OK;
}

/* Finds the process, or watches it from here on. One that has ended is another than the one of that number which
 * lives now. */
static kolo_status_t join(kolo_pidwatch_t *w, int pid)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    kolo_status_t status = KOLO_OK;
    pthread_once(&once, register_handlers);
    pthread_mutex_lock(&watched.lock);
    process_t *process = watched.first;
    while (process != NULL && (process->pid != pid || process->forks != kolo_process_forks() || has_ended(process)))
        process = process->next;
    if (process == NULL) status = watch_process(w->oob->progress, w->rank, pid, &process);
    if (status == KOLO_OK) {
        w->process = process;
        w->other = process->watchers;
        process->watchers = w;
    }
    pthread_mutex_unlock(&watched.lock);
    return status;
}

static void leave(kolo_pidwatch_t *w)
{
    process_t *process = w->process;
    pthread_mutex_lock(&watched.lock);
    kolo_pidwatch_t **at = &process->watchers;
    while (*at != w) at = &(*at)->other;
    *at = w->other;
    if (process->watchers == NULL) {
        process_t **p = &watched.first;
        while (*p != process) p = &(*p)->next;
        *p = process->next;
        if (process->watch != NULL) kolo_watch_del(process->watch);
        kolo_fd_close(process->fd);
        free(process);
    }
    pthread_mutex_unlock(&watched.lock);
}

kolo_status_t kolo_pidwatch_add(kolo_oob_t *oob, int rank, int pid)
{
    kolo_pidwatch_t *w = calloc(1, sizeof(*w));
    if (w == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to watch process %d", pid);
    w->oob = oob;
    w->rank = rank;
    kolo_status_t status = join(w, pid);
    if (status != KOLO_OK) {
        free(w);
        return status;
    }
    pthread_mutex_lock(&oob->lock);
    w->next = kolo_life(oob)->pidwatches;
    kolo_life(oob)->pidwatches = w;
    pthread_mutex_unlock(&oob->lock);
    return KOLO_OK;
}

/* Runs on the progress thread. */
void kolo_pidwatch_stop(kolo_oob_t *oob)
{
    while (kolo_life(oob)->pidwatches != NULL) {
        kolo_pidwatch_t *w = kolo_life(oob)->pidwatches;
        kolo_life(oob)->pidwatches = w->next;
        kolo_timer_cancel(w->timer);
        leave(w);
        free(w);
    }
}
