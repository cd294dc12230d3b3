/* SPDX-License-Identifier: Apache-2.0
 *
 * The watch over registered pages (watch.h).
 */
#include "mem/watch.h"
#include "base/file/fds.h"
#include "base/log.h"
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

static int watch_fd = -1, stop_fd = -1;
static pthread_t thread;
static kolo_mem_watch_hooks_t hooks;

static void take_news(void)
{
    struct uffd_msg news;
    pthread_mutex_lock(hooks.lock);
    while (read(watch_fd, &news, sizeof news) == (ssize_t)sizeof news) {
        if (news.event == UFFD_EVENT_REMAP)
            hooks.lost(news.arg.remap.from, news.arg.remap.from + news.arg.remap.len);
        else if (news.event == UFFD_EVENT_REMOVE || news.event == UFFD_EVENT_UNMAP)
            hooks.lost(news.arg.remove.start, news.arg.remove.end);
    }
    pthread_mutex_unlock(hooks.lock);
}

static void *listen_for_news(void *arg)
{
    (void)arg;
    struct pollfd fds[2] = {{.fd = watch_fd, .events = POLLIN}, {.fd = stop_fd, .events = POLLIN}};
    for (;;) { /* ends by stop_fd */
        if (poll(fds, 2, -1) < 0 && errno != EINTR) break;
        if (fds[0].revents & POLLIN) take_news();
        if (fds[1].revents) break;
    }
    return NULL;
}

static int open_watch(void)
{
    struct uffdio_api api = {.api = UFFD_API,
                             .features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE |
                                         UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_PAGEFAULT_FLAG_WP};
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (fd < 0 && errno == EINVAL) fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 && ioctl(fd, UFFDIO_API, &api) != 0) {
        int err = errno;
        kolo_fd_close(fd);
        errno = err;
        return -1;
    }
    return kolo_fd_own(fd);
}

static void close_both(void)
{
    if (watch_fd >= 0) kolo_fd_close(watch_fd);
    if (stop_fd >= 0) kolo_fd_close(stop_fd);
    watch_fd = stop_fd = -1;
}

kolo_status_t kolo_mem_watch_start(const kolo_mem_watch_hooks_t *h)
{
    hooks = *h;
    watch_fd = open_watch();
    if (watch_fd < 0)
        return kolo_fail_errno(KOLO_ERR_UNSUPPORTED, errno,
                               "this kernel does not report memory that goes away (userfaultfd)");
    stop_fd = kolo_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    int err = stop_fd < 0 ? errno : kolo_thread_start(&thread, 0, listen_for_news, NULL);
    if (err == 0) return KOLO_OK;
    close_both();
    return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "no thread can watch registered memory");
}

void kolo_mem_watch_stop(void)
{
    uint64_t one = 1;
    if (watch_fd < 0) return;
    ssize_t n = write(stop_fd, &one, sizeof one);
    (void)n; /* an empty eventfd takes it */
    pthread_join(thread, NULL);
    close_both(); /* who waits for news to be read goes on */
}

kolo_status_t kolo_mem_watch_add(uintptr_t from, uintptr_t to)
{
    struct uffdio_register r = {.range = {from, to - from}, .mode = UFFDIO_REGISTER_MODE_WP};
    if (ioctl(watch_fd, UFFDIO_REGISTER, &r) == 0) return KOLO_OK;
    return kolo_fail_errno(KOLO_ERR_UNSUPPORTED, errno,
                           "the kernel cannot watch %zu bytes at %#zx (mapped from a file?)", to - from, from);
}

void kolo_mem_watch_remove(uintptr_t from, uintptr_t to)
{
    struct uffdio_range r = {from, to - from};
    if (ioctl(watch_fd, UFFDIO_UNREGISTER, &r) != 0) /* parts may be gone */
        kolo_debug("mem", "%zu bytes at %#zx stay watched: %s", to - from, from, strerror(errno));
}

void kolo_mem_watch_forget(void)
{
    close_both();
}
