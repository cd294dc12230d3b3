/* SPDX-License-Identifier: Apache-2.0
 *
 * The serving side of descriptor passing, on the progress thread. Callers of another user are dropped at once; the
 * others have LIMIT_MS to say what they want, and at most MAX_PENDING of them are listened to at a
 * time: more wait in the kernel's backlog. An answered caller may keep its connection open (it tells it when this
 * process dies) but has nothing more to say. See fdpass.h.
 */
#include "base/file/fds.h"
#include "base/process.h"
#include "share/fdpass_frame.h"

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "progress/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#ifdef KOLO_HAVE_SODIUM
#include <sodium.h>
#endif

#define MAX_PENDING     128
#define MAX_CONNECTIONS 16384
#define LIMIT_MS        2000
#define TICK_MS         100
#define ACCEPTS_A_TURN  16

typedef struct offer {
    struct offer *next;
    uint8_t name[KOLO_FDPASS_NAME_BYTES];
    uint8_t key[KOLO_FDPASS_KEY_BYTES];
    int fds[KOLO_FDPASS_MAX], nfds;
    uint32_t uses; /* left; 0: no limit */
    bool lent;     /* the descriptors are whose offer it is */
} offer_t;

typedef struct caller {
    struct caller *next;
    int fd;
    kolo_watch_t *watch;
    uint8_t nonce[KOLO_FDPASS_NONCE_BYTES];
    uint64_t deadline_ns;
    bool answered;
} caller_t;

/* `life` orders start and stop and is held across calls to the progress thread; `lock` guards the rest and is what
 * handlers take. Callers, timer and pause are touched on the progress thread only (with `lock` held for the list
 * itself). */
static struct {
    pthread_mutex_t life, lock;
    uint32_t users;
    bool fork_handled;
    pid_t address_of; /* the process that chose the address: a fork needs another */
    uint8_t address[16];
    offer_t *offers;
    kolo_progress_t *progress;
    int listen_fd;
    kolo_watch_t *listen_watch;
    kolo_timer_t *timer;
    bool paused; /* the listener is not watched: too many are pending, or there is no descriptor for one more */
    caller_t *callers;
    kolo_fdpass_counters_t counters;
} server = {.life = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .listen_fd = -1};

/* ---- fork: the child has no progress thread, and nothing of the parent's must live on in it ---- */

static void before_fork(void)
{
    pthread_mutex_lock(&server.life);
    pthread_mutex_lock(&server.lock);
}

static void after_fork_parent(void)
{
    pthread_mutex_unlock(&server.lock);
    pthread_mutex_unlock(&server.life);
}

static void free_offer(offer_t *offer)
{
    for (int i = 0; i < offer->nfds && !offer->lent; i++) kolo_fd_close(offer->fds[i]);
    free(offer);
}

static void after_fork_child(void)
{
    while (server.offers) {
        offer_t *offer = server.offers;
        server.offers = offer->next;
        free_offer(offer);
    }
    while (server.callers) {
        caller_t *caller = server.callers;
        server.callers = caller->next;
        kolo_fd_close(caller->fd);
        free(caller);
    }
    if (server.listen_fd >= 0) kolo_fd_close(server.listen_fd);
    server.users = 0;
    server.progress = NULL;
    server.listen_fd = -1;
    server.listen_watch = NULL;
    server.timer = NULL;
    server.paused = false;
    memset(&server.counters, 0, sizeof server.counters);
    pthread_mutex_init(&server.lock, NULL);
    pthread_mutex_init(&server.life, NULL);
}

/* Registers handlers of fork(). `life` is taken before the progress thread's lock, so they must do the same: they
 * run in the reverse order of their registration, so the progress thread must be there (and have registered its
 * own) first. */
static kolo_status_t handle_forks(void)
{
    if (server.fork_handled) return KOLO_OK;
    int err = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    if (err) return kolo_fail_errno(KOLO_ERR_NO_MEMORY, err, "cannot prepare descriptor passing for fork");
    server.fork_handled = true;
    return KOLO_OK;
}

kolo_status_t kolo_fdpass_address(uint8_t address[16])
{
    kolo_status_t status = KOLO_OK;
    pthread_mutex_lock(&server.lock);
    if (server.address_of != getpid()) {
        status = kolo_random(server.address, sizeof server.address);
        if (status == KOLO_OK) server.address_of = getpid();
    }
    if (status == KOLO_OK) memcpy(address, server.address, sizeof server.address);
    pthread_mutex_unlock(&server.lock);
    return status;
}

/* ---- callers (progress thread) ---- */

static void drop(caller_t *caller)
{
    if (caller->watch) kolo_watch_del(caller->watch);
    pthread_mutex_lock(&server.lock);
    for (caller_t **at = &server.callers; *at; at = &(*at)->next) {
        if (*at != caller) continue;
        *at = caller->next;
        break;
    }
    server.counters.connections--;
    if (!caller->answered) server.counters.pending--;
    kolo_fd_close(caller->fd);
    pthread_mutex_unlock(&server.lock);
    free(caller);
}

static void send_answer(int fd, const kolo_fdpass_answer_t *answer, const int *fds, int nfds, bool *sent)
{
    union {
        char bytes[CMSG_SPACE(KOLO_FDPASS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {(void *)(uintptr_t)answer, sizeof *answer};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (nfds) {
        memset(&control, 0, sizeof control);
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, (size_t)nfds * sizeof(int));
    }
    *sent = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof *answer;
}

/* Looks the offer up, checks the proof, answers. `lock` is held. Returns whether descriptors were passed. */
static bool answer_locked(caller_t *caller, const kolo_fdpass_request_t *request)
{
    kolo_fdpass_answer_t answer = {.magic = KOLO_FDPASS_MAGIC, .result = KOLO_FDPASS_NO_SUCH_NAME};
    uint8_t proof[KOLO_FDPASS_PROOF_BYTES];
    offer_t **at = &server.offers;
    bool sent;
    while (*at && memcmp((*at)->name, request->name, sizeof request->name) != 0) at = &(*at)->next;
    offer_t *offer = *at;
    if (!offer) {
        server.counters.refused_name++;
        send_answer(caller->fd, &answer, NULL, 0, &sent);
        return false;
    }
    kolo_fdpass_prove(proof, KOLO_FDPASS_OF_CLIENT, offer->key, caller->nonce, request->nonce, request->name);
    if (!kolo_fdpass_equal(proof, request->proof) || request->nfds != (uint32_t)offer->nfds) {
        server.counters.refused_key++;
        answer.result = KOLO_FDPASS_WRONG_KEY;
        send_answer(caller->fd, &answer, NULL, 0, &sent);
        return false;
    }
    answer.result = KOLO_FDPASS_SERVED;
    kolo_fdpass_prove(answer.proof, KOLO_FDPASS_OF_SERVER, offer->key, caller->nonce, request->nonce,
                      request->name);
    send_answer(caller->fd, &answer, offer->fds, offer->nfds, &sent);
    if (!sent) return false;
    KOLO_FAIL_POINT("wire.fdpass.served");
    server.counters.served++;
    if (offer->uses && --offer->uses == 0) {
        *at = offer->next;
        server.counters.offers--;
        free_offer(offer);
    }
    return true;
}

static void on_caller(void *arg, int fd, uint32_t events)
{
    caller_t *caller = (caller_t *)arg;
    kolo_fdpass_request_t request;
    (void)events;
    ssize_t n = recv(fd, &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        drop(caller);
        return;
    }
    pthread_mutex_lock(&server.lock);
    bool good = !caller->answered && n == (ssize_t)sizeof request && request.magic == KOLO_FDPASS_MAGIC;
    if (!good) server.counters.refused_frame++;
    bool served = good && answer_locked(caller, &request);
    if (served) {
        caller->answered = true;
        server.counters.pending--;
    }
    pthread_mutex_unlock(&server.lock);
    if (!good) kolo_debug("wire", "descriptor server: a caller sent something else and was dropped");
    if (!served) drop(caller);
}

static bool same_user(int fd)
{
    struct ucred cred;
    socklen_t size = sizeof cred;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) == 0 && cred.uid == geteuid();
}

static void on_tick(void *arg);

static void keep_ticking(void)
{
    if (!server.timer && kolo_timer_add(server.progress, TICK_MS, on_tick, NULL, &server.timer) != KOLO_OK)
        server.timer = NULL;
}

static void welcome(int fd)
{
    kolo_fdpass_hello_t hello = {.magic = KOLO_FDPASS_MAGIC, .version = KOLO_FDPASS_VERSION};
    caller_t *caller = (caller_t *)calloc(1, sizeof *caller);
    if (!caller || kolo_random(caller->nonce, sizeof caller->nonce) != KOLO_OK) goto fail;
    caller->fd = fd;
    caller->deadline_ns = kolo_deadline_ms(LIMIT_MS);
    memcpy(hello.nonce, caller->nonce, sizeof hello.nonce);
    if (send(fd, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof hello) goto fail;
    pthread_mutex_lock(&server.lock);
    caller->next = server.callers;
    server.callers = caller;
    server.counters.pending++;
    server.counters.connections++;
    pthread_mutex_unlock(&server.lock);
    if (kolo_watch_add(server.progress, fd, EPOLLIN, on_caller, caller, &caller->watch) != KOLO_OK) {
        caller->watch = NULL;
        caller->deadline_ns = 1; /* the next tick drops it */
    }
    keep_ticking();
    return;
fail:
    free(caller);
    kolo_fd_close(fd);
}

/* Lets callers wait in the kernel's backlog until the next tick: there is no room for them, or no descriptor. */
static void pause_listening(void)
{
    pthread_mutex_lock(&server.lock);
    server.counters.refused_full++;
    pthread_mutex_unlock(&server.lock);
    server.paused = kolo_watch_mod(server.listen_watch, 0) == KOLO_OK;
    keep_ticking();
}

static void on_listener(void *arg, int listen_fd, uint32_t events)
{
    (void)arg;
    (void)events;
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        bool full = server.counters.pending >= MAX_PENDING || server.counters.connections >= MAX_CONNECTIONS;
        int fd = full ? -1 : kolo_fd_accept(listen_fd, NULL, NULL);
        if (full || (fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)) {
            pause_listening(); /* who waits keeps the socket readable: it would be tried without end */
            return;
        }
        if (fd < 0) return;
        KOLO_FAIL_POINT("wire.fdpass.caller");
        if (same_user(fd)) {
            welcome(fd);
            continue;
        }
        pthread_mutex_lock(&server.lock);
        uint64_t refused = ++server.counters.refused_user;
        pthread_mutex_unlock(&server.lock);
        kolo_fd_close(fd);                  /* once it is counted: who sees the end may ask for the count */
        if ((refused & (refused - 1)) == 0) /* whoever calls must not fill the log */
            kolo_warn("wire", "descriptor server: a process of another user called and was refused (%llu so far)",
                      (unsigned long long)refused);
    }
}

/* Drops callers who said nothing in time; listens again when there is room. */
static void on_tick(void *arg)
{
    uint64_t now = kolo_now_ns();
    (void)arg;
    kolo_timer_cancel(server.timer);
    server.timer = NULL;
    for (caller_t *caller = server.callers, *next; caller; caller = next) {
        next = caller->next;
        if (caller->answered || caller->deadline_ns > now) continue;
        pthread_mutex_lock(&server.lock);
        server.counters.refused_timeout++;
        pthread_mutex_unlock(&server.lock);
        kolo_debug("wire", "descriptor server: a caller said nothing for %d ms and was dropped", LIMIT_MS);
        drop(caller);
    }
    if (server.paused && server.counters.pending < MAX_PENDING && server.counters.connections < MAX_CONNECTIONS)
        server.paused = kolo_watch_mod(server.listen_watch, EPOLLIN) != KOLO_OK;
    if (server.counters.pending || server.paused) keep_ticking();
}

/* ---- start and stop ---- */

static kolo_status_t listen_at(const uint8_t address[16], int *out)
{
    struct sockaddr_un sun;
    socklen_t size = kolo_fdpass_sockaddr(address, &sun);
    int fd = kolo_fd_socket(AF_UNIX, SOCK_SEQPACKET);
    if (fd < 0) return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "no Unix socket for descriptor passing");
    if (bind(fd, (struct sockaddr *)&sun, size) != 0 || listen(fd, 4096) != 0) {
        int err = errno;
        kolo_fd_close(fd);
        return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "cannot listen on an abstract Unix socket");
    }
    *out = fd;
    return KOLO_OK;
}

static void shut_on_progress_thread(void *arg)
{
    (void)arg;
    if (server.listen_watch) kolo_watch_del(server.listen_watch);
    server.listen_watch = NULL;
    if (server.timer) kolo_timer_cancel(server.timer);
    server.timer = NULL;
    server.paused = false;
    while (server.callers) drop(server.callers);
    if (server.listen_fd >= 0) kolo_fd_close(server.listen_fd);
    server.listen_fd = -1;
}

static kolo_status_t start_locked(void)
{
#ifdef KOLO_HAVE_SODIUM
    if (sodium_init() < 0) return kolo_fail(KOLO_ERR_SYSTEM, "libsodium does not start");
#endif
    KOLO_TRY(kolo_progress_get(&server.progress));
    kolo_status_t status = handle_forks();
    if (status == KOLO_OK) status = listen_at(server.address, &server.listen_fd);
    if (status == KOLO_OK)
        status =
            kolo_watch_add(server.progress, server.listen_fd, EPOLLIN, on_listener, NULL, &server.listen_watch);
    if (status == KOLO_OK) return KOLO_OK;
    kolo_progress_call(server.progress, shut_on_progress_thread, NULL);
    kolo_progress_put(server.progress);
    server.progress = NULL;
    return status;
}

kolo_status_t kolo_fdpass_start(void)
{
    uint8_t address[16];
    KOLO_TRY(kolo_fdpass_address(address));
    pthread_mutex_lock(&server.life);
    kolo_status_t status = server.users ? KOLO_OK : start_locked();
    if (status == KOLO_OK) server.users++;
    pthread_mutex_unlock(&server.life);
    return status;
}

void kolo_fdpass_stop(void)
{
    pthread_mutex_lock(&server.life);
    if (server.users && --server.users == 0) { /* 0 in the child of a fork that inherited a context */
        kolo_progress_call(server.progress, shut_on_progress_thread, NULL);
        kolo_progress_put(server.progress);
        server.progress = NULL;
    }
    pthread_mutex_unlock(&server.life);
}

/* ---- offers (any thread) ---- */

static kolo_status_t add_offer(const uint8_t *name, const uint8_t *key, const int *fds, int nfds, uint32_t uses,
                               bool lent)
{
    offer_t *offer = (offer_t *)calloc(1, sizeof *offer);
    if (!offer) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to offer descriptors");
    offer->lent = lent;
    for (; offer->nfds < nfds; offer->nfds++) {
        int fd = lent ? fds[offer->nfds] : kolo_fd_copy(fds[offer->nfds]);
        if (fd < 0) {
            int err = errno;
            free_offer(offer);
            return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "cannot duplicate a descriptor to pass on");
        }
        offer->fds[offer->nfds] = fd;
    }
    memcpy(offer->name, name, sizeof offer->name);
    memcpy(offer->key, key, sizeof offer->key);
    offer->uses = uses;
    pthread_mutex_lock(&server.lock);
    offer->next = server.offers;
    server.offers = offer;
    server.counters.offers++;
    pthread_mutex_unlock(&server.lock);
    return KOLO_OK;
}

kolo_status_t kolo_fdpass_offer(const uint8_t name[KOLO_FDPASS_NAME_BYTES],
                                const uint8_t key[KOLO_FDPASS_KEY_BYTES], const int *fds, int nfds, uint32_t uses)
{
    return add_offer(name, key, fds, nfds, uses, false);
}

kolo_status_t kolo_fdpass_lend(const uint8_t name[KOLO_FDPASS_NAME_BYTES], const uint8_t key[KOLO_FDPASS_KEY_BYTES],
                               const int *fds, int nfds)
{
    return add_offer(name, key, fds, nfds, 0, true);
}

void kolo_fdpass_withdraw(const uint8_t name[KOLO_FDPASS_NAME_BYTES])
{
    pthread_mutex_lock(&server.lock);
    for (offer_t **at = &server.offers; *at; at = &(*at)->next) {
        if (memcmp((*at)->name, name, KOLO_FDPASS_NAME_BYTES) != 0) continue;
        offer_t *offer = *at;
        *at = offer->next;
        server.counters.offers--;
        free_offer(offer);
        break;
    }
    pthread_mutex_unlock(&server.lock);
}

bool kolo_fdpass_fetch_own(const uint8_t address[16], const uint8_t name[KOLO_FDPASS_NAME_BYTES],
                           const uint8_t key[KOLO_FDPASS_KEY_BYTES], int *fds, int nfds,
                           kolo_fdpass_result_t *result)
{
    pthread_mutex_lock(&server.lock);
    bool own = server.address_of == getpid() && memcmp(address, server.address, sizeof server.address) == 0;
    offer_t **at = &server.offers;
    while (*at && memcmp((*at)->name, name, KOLO_FDPASS_NAME_BYTES) != 0) at = &(*at)->next;
    offer_t *offer = *at;
    *result = KOLO_FDPASS_NO_SUCH_NAME;
    if (own && offer) {
        bool good = nfds == offer->nfds && kolo_fdpass_equal(key, offer->key);
        int done = 0;
        while (good && done < nfds) {
            fds[done] = kolo_fd_copy(offer->fds[done]);
            good = fds[done] >= 0;
            done += good;
        }
        while (!good && done > 0) kolo_fd_close(fds[--done]);
        *result = good ? KOLO_FDPASS_SERVED : KOLO_FDPASS_WRONG_KEY;
        if (good && offer->uses && --offer->uses == 0) {
            *at = offer->next;
            server.counters.offers--;
            free_offer(offer);
        }
    }
    pthread_mutex_unlock(&server.lock);
    return own;
}

void kolo_fdpass_get_counters(kolo_fdpass_counters_t *counters)
{
    pthread_mutex_lock(&server.lock);
    *counters = server.counters;
    pthread_mutex_unlock(&server.lock);
}
