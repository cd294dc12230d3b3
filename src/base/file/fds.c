/* SPDX-License-Identifier: Apache-2.0
 *
 * See fds.h. One bit for each number, under a lock that is held from before a descriptor is made until its bit is
 * set, and around fork().
 *
 * The child does not close: objects that it has from its parent still hold the numbers, and would close whatever
 * the child had opened under them since. Each number gets a copy of one socket that leads nowhere instead.
 */
#include "base/file/fds.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#define MOST  (1 << 20) /* the system's own limit for a process, unless it was raised */
#define FIRST 3

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t owned[MOST / 64]; /* pages that are not used cost nothing */
static int end;                   /* no bit from here on was ever set */

static void set_bit(int fd, bool is)
{
    if (fd < 0 || fd >= MOST) return;
    if (is) owned[fd / 64] |= UINT64_C(1) << (fd % 64);
    if (!is) owned[fd / 64] &= ~(UINT64_C(1) << (fd % 64));
    if (is && fd >= end) end = fd + 1;
}

static bool is_owned(int fd)
{
    return (owned[fd / 64] >> (fd % 64)) & 1;
}

/* ---- fork ---- */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
    int nowhere = -1, first = -1;
    for (int fd = FIRST; fd < end; fd++) {
        if ((fd % 64 == 0 && owned[fd / 64] == 0) || !is_owned(fd)) continue;
        if (first < 0) { /* closed at once: there may be no room for one more */
            first = fd;
            close(fd);
            nowhere = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        }
        if (nowhere < 0)
            close(fd);
        else if (nowhere != fd)
            dup3(nowhere, fd, O_CLOEXEC);
    }
    if (nowhere >= 0 && nowhere != first) close(nowhere);
    pthread_mutex_unlock(&lock);
}

static void register_handlers(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void kolo_fd_watch_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_handlers);
}

/* ---- descriptors ---- */

int kolo_fd_above(int fd)
{
    if (fd < 0 || fd >= FIRST) return fd;
    int above = fcntl(fd, F_DUPFD_CLOEXEC, FIRST), err = errno;
    close(fd);
    errno = err;
    return above;
}

static int own_locked(int fd)
{
    fd = kolo_fd_above(fd);
    set_bit(fd, true);
    return fd;
}

static void enter(void)
{
    kolo_fd_watch_forks();
    pthread_mutex_lock(&lock);
}

static int leave(int fd)
{
    pthread_mutex_unlock(&lock);
    return fd;
}

int kolo_fd_own(int fd)
{
    if (fd < 0) return fd;
    enter();
    return leave(own_locked(fd));
}

int kolo_fd_socket(int domain, int type)
{
    enter();
    return leave(own_locked(socket(domain, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
}

int kolo_fd_accept(int listener, struct sockaddr *from, socklen_t *bytes)
{
    enter();
    return leave(own_locked(accept4(listener, from, bytes, SOCK_CLOEXEC | SOCK_NONBLOCK)));
}

int kolo_fd_copy(int fd)
{
    enter();
    return leave(own_locked(fcntl(fd, F_DUPFD_CLOEXEC, FIRST)));
}

void kolo_fd_mark(int fd)
{
    enter();
    if (fd >= FIRST) set_bit(fd, true);
    leave(fd);
}

void kolo_fd_unmark(int fd)
{
    pthread_mutex_lock(&lock);
    set_bit(fd, false);
    pthread_mutex_unlock(&lock);
}

void kolo_fd_close(int fd)
{
    int err = errno;
    pthread_mutex_lock(&lock);
    set_bit(fd, false);
    close(fd);
    pthread_mutex_unlock(&lock);
    errno = err;
}
