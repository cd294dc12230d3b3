/* SPDX-License-Identifier: Apache-2.0
 *
 * The processes of neighbours on this host, watched by pidfd: the kernel says at once when one has ended, also
 * where a child that it left behind keeps its sockets open. A rank that left in order has said so on its
 * connection, so that is read to its end first.
 */
#include "oob/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct kolo_pidwatch {
    struct kolo_pidwatch *next;
    kolo_oob_t *oob;
    int rank, fd;
    kolo_watch_t *watch; /* NULL: it has ended */
} kolo_pidwatch_t;

static void process_ended(void *arg, int fd, uint32_t events)
{
    kolo_pidwatch_t *w = arg;
    kolo_oob_t *oob = w->oob;
    (void)fd, (void)events;
    kolo_watch_del(w->watch); /* it stays readable for ever */
    w->watch = NULL;
    pthread_mutex_lock(&oob->lock);
    kolo_peer_t *peer = kolo_peer_find(oob, w->rank);
    for (kolo_conn_t *conn = peer != NULL ? peer->conns : NULL; conn != NULL; conn = conn->next)
        kolo_conn_drain(conn);
    if (peer != NULL && !peer->farewell && !oob->closed) kolo_news_lost(oob, w->rank, KOLO_LOSS_PROCESS, oob->rank);
    pthread_mutex_unlock(&oob->lock);
}

kolo_status_t kolo_oob_watch_process(kolo_oob_t *oob, int rank, int pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return kolo_fail_errno(errno == ENOSYS ? KOLO_ERR_UNSUPPORTED : KOLO_ERR_SYSTEM, errno,
                               "cannot watch process %d of rank %d", pid, rank);
    kolo_pidwatch_t *w = malloc(sizeof(*w));
    if (w == NULL) {
        close(fd);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to watch process %d", pid);
    }
    *w = (kolo_pidwatch_t){.oob = oob, .rank = rank, .fd = fd};
    kolo_status_t status = kolo_watch_add(oob->engine, fd, EPOLLIN, process_ended, w, &w->watch);
    if (status != KOLO_OK) {
        close(fd);
        free(w);
        return status;
    }
    pthread_mutex_lock(&oob->lock);
    w->next = oob->pidwatches;
    oob->pidwatches = w;
    pthread_mutex_unlock(&oob->lock);
    return KOLO_OK;
}

void kolo_pidwatch_stop(kolo_oob_t *oob)
{
    while (oob->pidwatches != NULL) {
        kolo_pidwatch_t *w = oob->pidwatches;
        oob->pidwatches = w->next;
        kolo_watch_del(w->watch);
        close(w->fd);
        free(w);
    }
}
