/* SPDX-License-Identifier: Apache-2.0
 *
 * What a sleeper sleeps on: epoll over a doorbell eventfd and sockets. See wait.h.
 */
#include "base/file/doorbell.h"
#include "base/file/fds.h"
#include "base/wait.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static kolo_status_t init(kolo_waker_t *waker, _Atomic uint32_t *asleep, bool shared)
{
    waker->epoll_fd = waker->event_fd = -1;
    waker->bell = NULL;
    atomic_init(&waker->own_asleep, 0);
    waker->asleep = asleep ? asleep : &waker->own_asleep;
    waker->arm = NULL;
    waker->arm_arg = NULL;
    waker->outlasts = waker->quiet = false;
    waker->epoll_fd = kolo_fd_own(epoll_create1(EPOLL_CLOEXEC));
    if (shared) {
        kolo_status_t status = kolo_doorbell_make(&waker->bell);
        if (status != KOLO_OK) {
            kolo_waker_fini(waker);
            return status;
        }
        waker->event_fd = waker->bell->event_fd;
    } else {
        waker->event_fd = kolo_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    }
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET};
    if (waker->epoll_fd < 0 || waker->event_fd < 0 ||
        epoll_ctl(waker->epoll_fd, EPOLL_CTL_ADD, waker->event_fd, &ev) != 0) {
        int err = errno;
        kolo_waker_fini(waker);
        return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "cannot make a doorbell (epoll, eventfd); descriptor limit?");
    }
    return KOLO_OK;
}

kolo_status_t kolo_waker_init(kolo_waker_t *waker, _Atomic uint32_t *asleep)
{
    return init(waker, asleep, false);
}

kolo_status_t kolo_waker_init_shared(kolo_waker_t *waker, _Atomic uint32_t *asleep)
{
    return init(waker, asleep, true);
}

void kolo_waker_fini(kolo_waker_t *waker)
{
    if (waker->epoll_fd >= 0) kolo_fd_close(waker->epoll_fd);
    if (waker->event_fd >= 0 && !waker->bell) kolo_fd_close(waker->event_fd);
    kolo_doorbell_put(waker->bell);
    waker->bell = NULL;
    waker->epoll_fd = waker->event_fd = -1;
}

kolo_status_t kolo_waker_add_fd(kolo_waker_t *waker, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u32 = 1};
    if (epoll_ctl(waker->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot watch descriptor %d", fd);
    return KOLO_OK;
}

void kolo_waker_del_fd(kolo_waker_t *waker, int fd)
{
    epoll_ctl(waker->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

void kolo_waker_doorbell(int event_fd)
{
    uint64_t one = 1;
    ssize_t n = write(event_fd, &one, sizeof one);
    (void)n; /* full counter: the sleeper is awake already; closed: it has gone */
}

void kolo_waker_wake(kolo_waker_t *waker)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(waker->asleep, memory_order_relaxed)) kolo_waker_doorbell(waker->event_fd);
}
