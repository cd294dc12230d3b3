/* SPDX-License-Identifier: Apache-2.0
 *
 * The doorbells of this process and those of others that it knows: eventfds that end a sleep of whoever watches
 * them. See doorbell.h.
 */
#include "base/file/doorbell.h"
#include "base/file/fds.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

static struct {
    pthread_mutex_t lock;
    kolo_doorbell_t *first;
    uint64_t numbers;
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- fork: what the parent has leads nowhere here (fds.h), so nothing new may come to share it ---- */

static void before_fork(void)
{
    pthread_mutex_lock(&known.lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&known.lock);
}

static void after_fork_in_child(void)
{
    for (kolo_doorbell_t *bell = known.first; bell; bell = bell->next) bell->stale = true;
    pthread_mutex_init(&known.lock, NULL);
}

static void register_handlers(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void enter(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    kolo_fd_watch_forks(); /* first: descriptors are closed under the lock */
    pthread_once(&once, register_handlers);
    pthread_mutex_lock(&known.lock);
}

static void leave(void)
{
    pthread_mutex_unlock(&known.lock);
}

/* ---- the list, under the lock ---- */

static void close_fd(int fd)
{
    if (fd >= 0) kolo_fd_close(fd);
}

static kolo_status_t add(kolo_doorbell_t like, kolo_doorbell_t **out)
{
    kolo_doorbell_t *bell = malloc(sizeof *bell);
    if (!bell) {
        close_fd(like.event_fd);
        close_fd(like.alive_fd);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a doorbell");
    }
    *bell = like;
    bell->users = 1;
    bell->next = known.first;
    known.first = *out = bell;
    return KOLO_OK;
}

static kolo_doorbell_t *find_own(void)
{
    kolo_doorbell_t *bell = known.first;
    while (bell && (!bell->own || bell->stale || bell->users >= KOLO_DOORBELL_SHARERS ||
                    !pthread_equal(bell->maker, pthread_self())))
        bell = bell->next;
    return bell;
}

static kolo_status_t make_own(kolo_doorbell_t **out)
{
    int fd = kolo_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (fd < 0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot make a doorbell (eventfd); descriptor limit?");
    return add(
        (kolo_doorbell_t){
            .own = true, .maker = pthread_self(), .number = ++known.numbers, .event_fd = fd, .alive_fd = -1},
        out);
}

kolo_status_t kolo_doorbell_make(kolo_doorbell_t **out)
{
    kolo_status_t status = KOLO_OK;
    enter();
    kolo_doorbell_t *bell = find_own();
    if (bell) {
        bell->users++;
        *out = bell;
    } else {
        status = make_own(out);
    }
    leave();
    return status;
}

kolo_status_t kolo_doorbell_meet(const uint8_t process[16], uint64_t number, int event_fd, int alive_fd,
                                 kolo_doorbell_t **out)
{
    kolo_doorbell_t like = {.number = number, .event_fd = event_fd, .alive_fd = alive_fd};
    kolo_status_t status = KOLO_OK;
    memcpy(like.process, process, sizeof like.process);
    enter();
    kolo_doorbell_t *bell = known.first;
    while (bell && (bell->own || bell->stale || bell->number != number ||
                    memcmp(bell->process, process, sizeof bell->process) != 0))
        bell = bell->next;
    if (bell) {
        bell->users++;
        *out = bell;
        close_fd(event_fd);
        close_fd(alive_fd);
    } else {
        status = add(like, out);
    }
    leave();
    return status;
}

void kolo_doorbell_put(kolo_doorbell_t *bell)
{
    if (!bell) return;
    enter();
    if (--bell->users == 0) {
        kolo_doorbell_t **at = &known.first;
        while (*at != bell) at = &(*at)->next;
        *at = bell->next;
        close_fd(bell->event_fd);
        close_fd(bell->alive_fd);
        free(bell);
    }
    leave();
}
