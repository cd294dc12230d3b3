/* SPDX-License-Identifier: Apache-2.0
 *
 * Movers: the threads of a domain that move the lanes of its ends (lanes.h). As many as a large write has
 * lanes, for all ends together; they start with the first lane and end with the domain.
 */
#include "base/cpu/yield.h"
#include "base/file/fds.h"
#include "remote/onesided/lanes.h"

#include "base/process.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EVENTS 32
#define YIELDS 20 /* looks that find nothing, before a mover sleeps */

struct kolo_movers {
    int n;
    uint32_t next; /* gets the next lane */
    kolo_mover_t mover[KOLO_LANES_MAX];
};

int kolo_movers_wanted(void)
{
    int64_t n = kolo_onesided_param_lanes;
    if (n == 0) n = kolo_cores() < 2 ? 1 : KOLO_MAX(2, KOLO_MIN(4, kolo_cores() / 2));
    return (int)KOLO_MIN(n, (int64_t)KOLO_LANES_MAX);
}

/* ---- the thread ---- */

static void enter(kolo_mover_t *mover)
{
    pthread_mutex_lock(&mover->gate);
    pthread_mutex_lock(&mover->lock);
    pthread_mutex_unlock(&mover->gate);
}

/* Takes the news of one look. A lane that was taken away meanwhile is not in the list any more. */
static void note(kolo_mover_t *mover, const struct epoll_event *events, int n)
{
    uint64_t word;
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == NULL && read(mover->event_fd, &word, sizeof word) < 0) continue;
        for (kolo_onesided_lane_t *lane = mover->lanes; lane; lane = lane->next)
            if (lane == events[i].data.ptr) lane->ready = true;
    }
}

static bool move_all(kolo_mover_t *mover, bool kicked)
{
    bool more = false;
    for (kolo_onesided_lane_t *lane = mover->lanes; lane; lane = lane->next) {
        if (!lane->ready && !kicked) continue;
        lane->ready = kolo_lanes_step(lane);
        more |= lane->ready;
    }
    return more;
}

static void *serve(void *arg)
{
    kolo_mover_t *mover = arg;
    struct epoll_event events[EVENTS];
    uint32_t seen = 0, quiet = 0;
    for (bool more = false, stop = false; !stop;) {
        bool sleep = !more && quiet > YIELDS;
        if (sleep) {
            atomic_store(&mover->asleep, 1);
            sleep = atomic_load(&mover->kicks) == seen; /* after that they ring */
        }
        int n = epoll_wait(mover->epoll_fd, events, EVENTS, sleep ? -1 : 0);
        atomic_store(&mover->asleep, 0);
        uint32_t kicks = atomic_load(&mover->kicks);
        bool kicked = kicks != seen;
        seen = kicks;
        quiet = more || n > 0 || kicked ? 0 : quiet + 1;
        if (quiet > 0) {
            if (!kolo_yield()) quiet = YIELDS + 1;
            continue;
        }
        enter(mover);
        note(mover, events, n);
        more = move_all(mover, kicked);
        stop = mover->stop;
        pthread_mutex_unlock(&mover->lock);
    }
    return NULL;
}

void kolo_movers_kick(kolo_mover_t *mover)
{
    atomic_fetch_add(&mover->kicks, 1);
    if (atomic_load(&mover->asleep)) kolo_waker_doorbell(mover->event_fd);
}

void kolo_movers_pass(kolo_mover_t *mover)
{
    enter(mover);
    pthread_mutex_unlock(&mover->lock);
}

/* ---- life ---- */

static kolo_status_t start(kolo_mover_t *mover)
{
    struct epoll_event event = {.events = EPOLLIN};
    pthread_mutex_init(&mover->gate, NULL);
    pthread_mutex_init(&mover->lock, NULL);
    mover->epoll_fd = kolo_fd_own(epoll_create1(EPOLL_CLOEXEC));
    mover->event_fd = kolo_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (mover->epoll_fd < 0 || mover->event_fd < 0 ||
        epoll_ctl(mover->epoll_fd, EPOLL_CTL_ADD, mover->event_fd, &event) != 0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "onesided: no descriptors for a thread that moves lanes");
    int err = kolo_thread_start(&mover->thread, 0, serve, mover);
    if (err) return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "onesided: cannot start a thread that moves lanes");
    mover->running = true;
    return KOLO_OK;
}

static void stop(kolo_mover_t *mover)
{
    if (mover->running) {
        enter(mover);
        mover->stop = true;
        pthread_mutex_unlock(&mover->lock);
        kolo_movers_kick(mover);
        pthread_join(mover->thread, NULL);
    }
    if (mover->epoll_fd >= 0) kolo_fd_close(mover->epoll_fd);
    if (mover->event_fd >= 0) kolo_fd_close(mover->event_fd);
    pthread_mutex_destroy(&mover->gate);
    pthread_mutex_destroy(&mover->lock);
}

void kolo_movers_destroy(kolo_onesided_domain_t *domain)
{
    for (int i = 0; domain->movers && i < domain->movers->n; i++) stop(&domain->movers->mover[i]);
    free(domain->movers);
    domain->movers = NULL;
}

static kolo_status_t create(kolo_onesided_domain_t *domain)
{
    domain->movers = calloc(1, sizeof *domain->movers);
    if (domain->movers == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for threads");
    kolo_status_t status = KOLO_OK;
    for (int n = kolo_movers_wanted(); status == KOLO_OK && domain->movers->n < n;)
        status = start(&domain->movers->mover[domain->movers->n++]);
    if (status != KOLO_OK) kolo_movers_destroy(domain);
    return status;
}

kolo_status_t kolo_movers_add(kolo_onesided_domain_t *domain, kolo_onesided_lane_t *lane)
{
    if (domain->movers == NULL) KOLO_TRY(create(domain));
    struct kolo_movers *movers = domain->movers;
    kolo_mover_t *mover = &movers->mover[movers->next++ % (uint32_t)movers->n];
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = lane};
    enter(mover);
    int failed = epoll_ctl(mover->epoll_fd, EPOLL_CTL_ADD, lane->socket.fd, &event);
    int err = errno;
    if (failed == 0) {
        lane->mover = mover;
        lane->ready = true;
        lane->next = mover->lanes;
        mover->lanes = lane;
    }
    pthread_mutex_unlock(&mover->lock);
    if (failed) return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "onesided: a connection cannot be watched");
    kolo_movers_kick(mover);
    return KOLO_OK;
}

void kolo_movers_remove(kolo_onesided_lane_t *lane)
{
    kolo_mover_t *mover = lane->mover;
    if (mover == NULL) return;
    enter(mover);
    kolo_onesided_lane_t **at = &mover->lanes;
    while (*at != lane) at = &(*at)->next;
    *at = lane->next;
    (void)epoll_ctl(mover->epoll_fd, EPOLL_CTL_DEL, lane->socket.fd, NULL);
    pthread_mutex_unlock(&mover->lock);
    lane->mover = NULL;
}
