/* SPDX-License-Identifier: Apache-2.0
 *
 * The processes of neighbours on this host, watched by pidfd: the kernel says at once when one has ended, also
 * where a child that it left behind keeps its sockets open. A rank that left in order has said so on its
 * connection, so that is read to its end first.
 *
 * A process with gigabytes of memory is dead long before the kernel says so: it frees the memory first. While
 * somebody waits, /proc is looked at as well (base/process.h).
 */
#include "base/file/fds.h"
#include "base/log.h"
#include "base/process.h"
#include "member/life.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOK_EACH_MS 20

typedef struct kolo_pidwatch {
    struct kolo_pidwatch *next;
    kolo_oob_t *oob;
    int rank, fd, pid;
    kolo_watch_t *watch; /* NULL: it has ended */
    kolo_timer_t *timer; /* NULL: it was not seen to end */
} kolo_pidwatch_t;

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

static void process_ended(void *arg, int fd, uint32_t events)
{
    kolo_pidwatch_t *w = arg;
    (void)fd, (void)events;
    kolo_watch_del(w->watch); /* it stays readable for ever */
    w->watch = NULL;
    note_end(w);
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
        if (w->timer != NULL || kolo_process_end(w->pid) == KOLO_PROCESS_LIVES) continue;
        /* What the process has said before is read by the progress thread, like everything that comes. */
        if (kolo_timer_add(oob->progress, 0, process_ends, w, &w->timer) != KOLO_OK)
            kolo_debug("oob", "%s: rank %d waits for the end of process %d: %s", oob->name, oob->rank, w->pid,
                       kolo_error_text());
    }
    pthread_mutex_unlock(&oob->lock);
}

kolo_status_t kolo_pidwatch_add(kolo_oob_t *oob, int rank, int pid)
{
    int fd = kolo_fd_own((int)syscall(SYS_pidfd_open, pid, 0));
    if (fd < 0)
        return kolo_fail_errno(errno == ENOSYS ? KOLO_ERR_UNSUPPORTED : KOLO_ERR_SYSTEM, errno,
                               "cannot watch process %d of rank %d", pid, rank);
    kolo_pidwatch_t *w = malloc(sizeof(*w));
    if (w == NULL) {
        kolo_fd_close(fd);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to watch process %d", pid);
    }
    *w = (kolo_pidwatch_t){.oob = oob, .rank = rank, .fd = fd, .pid = pid};
    kolo_status_t status = kolo_watch_add(oob->progress, fd, EPOLLIN, process_ended, w, &w->watch);
    if (status != KOLO_OK) {
        kolo_fd_close(fd);
        free(w);
        return status;
    }
    pthread_mutex_lock(&oob->lock);
    w->next = kolo_life(oob)->pidwatches;
    kolo_life(oob)->pidwatches = w;
    pthread_mutex_unlock(&oob->lock);
    return KOLO_OK;
}

void kolo_pidwatch_stop(kolo_oob_t *oob)
{
    while (kolo_life(oob)->pidwatches != NULL) {
        kolo_pidwatch_t *w = kolo_life(oob)->pidwatches;
        kolo_life(oob)->pidwatches = w->next;
        kolo_watch_del(w->watch);
        kolo_timer_cancel(w->timer);
        kolo_fd_close(w->fd);
        free(w);
    }
}
