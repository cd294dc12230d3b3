/* SPDX-License-Identifier: Apache-2.0
 *
 * The callers that have not proven themselves yet (listener.c accepts them). A caller is greeted with a nonce, has
 * to answer with one hello of fixed size, and is let in or closed; nothing else of what it sends is looked at. All
 * of it is a non-blocking state machine on the progress thread.
 *
 * All callers of the process are in one queue in the order of arrival, so one timer serves all deadlines. The queue
 * is bounded: when it is full, callers that have had GRACE_MS are dropped, and if there are none, listeners pause.
 * So strangers that connect and send nothing delay others by at most GRACE_MS a turn.
 */
#include "base/failpoint.h"
#include "base/file/fds.h"
#include "base/log.h"
#include "link/listener.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#define GRACE_MS         250
#define NO_DESCRIPTOR_MS 50

typedef struct caller caller_t;
struct caller {
    caller_t *prev, *next;
    kolo_listener_t *listener;
    int fd;
    kolo_address_t address; /* as it was at first: a caller that has gone has none */
    kolo_watch_t *watch;
    uint64_t since_ns;
    bool proven;
    kolo_claim_t claim;
    kolo_seal_t *seal; /* of one that is let in */
    uint8_t greeting[KOLO_GREETING_BYTES];
    uint8_t hello[KOLO_HELLO_BYTES];
    uint8_t *frame;
    size_t need, got; /* of the hello, then of the frame */
};

/* Progress thread only. */
static struct {
    caller_t *first, *last;
    int64_t count;
    kolo_listener_t *paused;
    kolo_timer_t *timer;
    uint64_t timer_due_ns;
} callers;

/* Strangers take no more than a quarter of the descriptors that this process may have. */
static int64_t most_pending(void)
{
    struct rlimit limit;
    int64_t most = __atomic_load_n(&kolo_link_values.pending_max, __ATOMIC_RELAXED); /* tests change it */
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur / 4 < (rlim_t)most)
        most = (int64_t)(limit.rlim_cur / 4);
    return KOLO_MAX(most, (int64_t)1);
}

static _Atomic uint64_t counts[KOLO_COUNT_KINDS];

void kolo_link_count(kolo_count_t what)
{
    atomic_fetch_add_explicit(&counts[what], 1, memory_order_relaxed);
}

void kolo_link_get_counters(kolo_link_counters_t *counters)
{
    uint64_t now[KOLO_COUNT_KINDS];
    for (int i = 0; i < KOLO_COUNT_KINDS; i++) now[i] = atomic_load_explicit(&counts[i], memory_order_relaxed);
    counters->accepted = now[KOLO_COUNT_ACCEPTED];
    counters->refused_magic = now[KOLO_COUNT_MAGIC];
    counters->refused_auth = now[KOLO_COUNT_AUTH];
    counters->refused_frame = now[KOLO_COUNT_FRAME];
    counters->refused_timeout = now[KOLO_COUNT_TIMEOUT];
    counters->refused_full = now[KOLO_COUNT_FULL];
}

/* ---- the queue and its timer ---- */

static void serve_queue(void *unused);

/* Sees to it that the timer fires when the next thing is due, and that there is none when nothing is. */
static void arm_timer(kolo_progress_t *progress)
{
    uint64_t due = 0;
    if (callers.first != NULL)
        due = callers.first->since_ns +
              (uint64_t)(callers.paused != NULL ? GRACE_MS : kolo_link_values.handshake_ms) * KOLO_NS_PER_MS;
    else if (callers.paused != NULL)
        due = kolo_now_ns() + NO_DESCRIPTOR_MS * KOLO_NS_PER_MS;
    if (callers.timer != NULL && due != 0 && callers.timer_due_ns <= due) return; /* early is fine: it re-arms */
    kolo_timer_cancel(callers.timer);
    callers.timer = NULL;
    if (due == 0) return;
    uint64_t now = kolo_now_ns();
    int64_t delay_ms = due > now ? (int64_t)KOLO_DIV_UP(due - now, KOLO_NS_PER_MS) : 0;
    callers.timer_due_ns = due;
    if (kolo_timer_add(progress, delay_ms, serve_queue, progress, &callers.timer) != KOLO_OK)
        kolo_warn("oob", "no timer for callers that say nothing: %s", kolo_error_text());
}

static void resume_listeners(void)
{
    while (callers.paused != NULL) {
        kolo_listener_t *listener = callers.paused;
        callers.paused = listener->next_paused;
        listener->paused = false;
        kolo_watch_mod(listener->watch, EPOLLIN);
    }
}

void kolo_listener_pause(kolo_listener_t *listener)
{
    if (listener->paused) return;
    listener->paused = true;
    listener->next_paused = callers.paused;
    callers.paused = listener;
    kolo_watch_mod(listener->watch, 0);
    arm_timer(listener->progress);
}

static void queue_append(caller_t *caller)
{
    caller->next = NULL;
    caller->prev = callers.last;
    *(callers.last != NULL ? &callers.last->next : &callers.first) = caller;
    callers.last = caller;
    callers.count++;
}

static void queue_remove(caller_t *caller)
{
    *(caller->prev != NULL ? &caller->prev->next : &callers.first) = caller->next;
    *(caller->next != NULL ? &caller->next->prev : &callers.last) = caller->prev;
    callers.count--;
}

/* Takes the caller out of the queue; its descriptor and memory are the function's caller's. */
static void caller_unlink(caller_t *caller)
{
    queue_remove(caller);
    kolo_watch_del(caller->watch);
    if (callers.count < most_pending()) resume_listeners();
    if (callers.first == NULL) arm_timer(caller->listener->progress);
}

static void caller_free(caller_t *caller)
{
    free(caller->frame);
    kolo_seal_destroy(caller->seal);
    free(caller);
}

static void caller_drop(caller_t *caller)
{
    caller_unlink(caller);
    kolo_socket_hang_up(caller->fd);
    caller_free(caller);
}

static void caller_refuse(caller_t *caller, kolo_count_t why, const char *text)
{
    static uint64_t refusals; /* progress thread only */
    kolo_address_t address = caller->address;
    char buf[KOLO_ADDRESS_TEXT_BYTES];
    kolo_link_count(why);
    refusals++;
    if (refusals <= 10 || (refusals & (refusals - 1)) == 0)
        kolo_warn("oob", "refused a caller from %s: %s (%llu refused so far)", kolo_address_print(&address, buf),
                  text, (unsigned long long)refusals);
    kolo_listener_t *listener = caller->listener;
    caller_drop(caller);
    if (listener->ops->refused != NULL) listener->ops->refused(listener->owner, &address, why);
}

static void serve_queue(void *arg)
{
    kolo_progress_t *progress = arg;
    kolo_timer_cancel(callers.timer);
    callers.timer = NULL;
    uint64_t now = kolo_now_ns();
    bool full = callers.count >= most_pending();
    if (!full) resume_listeners(); /* they had run out of descriptors */
    while (callers.first != NULL) {
        uint64_t age_ms = (now - callers.first->since_ns) / KOLO_NS_PER_MS;
        if (age_ms >= (uint64_t)kolo_link_values.handshake_ms)
            caller_refuse(callers.first, KOLO_COUNT_TIMEOUT, "it did not prove itself in time");
        else if (full && age_ms >= GRACE_MS && !callers.first->proven)
            caller_refuse(callers.first, KOLO_COUNT_FULL, "too many callers have not proven themselves");
        else
            break;
    }
    arm_timer(progress);
}

/* ---- one caller ---- */

static kolo_socket_t caller_take_socket(caller_t *caller)
{
    kolo_socket_t socket = {caller->fd, caller->seal};
    caller->seal = NULL;
    return socket;
}

static void caller_let_in(caller_t *caller, size_t frame_bytes)
{
    kolo_link_count(KOLO_COUNT_ACCEPTED);
    KOLO_FAIL_POINT("oob.accept.proven");
    if (frame_bytes > 0) {
        caller->frame = malloc(frame_bytes);
        if (caller->frame == NULL) {
            caller_refuse(caller, KOLO_COUNT_FULL, "no memory");
            return;
        }
        caller->proven = true;
        caller->since_ns = kolo_now_ns();
        queue_remove(caller); /* to the end: the queue is in the order of the clocks */
        queue_append(caller);
        caller->need = frame_bytes;
        caller->got = 0;
        return;
    }
    kolo_listener_t *listener = caller->listener;
    kolo_claim_t claim = caller->claim;
    kolo_socket_t socket = caller_take_socket(caller);
    caller_unlink(caller);
    caller_free(caller);
    listener->ops->accepted(listener->owner, &claim, socket, NULL);
}

static void caller_said_hello(caller_t *caller)
{
    kolo_listener_t *listener = caller->listener;
    uint8_t verdict[KOLO_VERDICT_BYTES];
    const kolo_shake_t shake = {&listener->key, kolo_address_cookie(&listener->address), caller->greeting,
                                caller->hello};
    KOLO_FAIL_POINT("oob.accept.hello");
    kolo_hello_result_t result = kolo_auth_check_hello(&shake, &caller->claim);
    if (result != KOLO_HELLO_OK) {
        static const char *const texts[] = {[KOLO_HELLO_BAD_MAGIC] = "it does not speak this protocol",
                                            [KOLO_HELLO_BAD_VERSION] = "it speaks another version of the protocol",
                                            [KOLO_HELLO_BAD_PROOF] =
                                                "wrong secret, a replay, or it means another job's socket"};
        if (result != KOLO_HELLO_BAD_MAGIC) {
            kolo_auth_unproven_refusal(verdict);
            send(caller->fd, verdict, sizeof(verdict), MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        caller_refuse(caller, result == KOLO_HELLO_BAD_PROOF ? KOLO_COUNT_AUTH : KOLO_COUNT_MAGIC, texts[result]);
        return;
    }
    size_t frame_bytes = 0;
    kolo_auth_verdict_t code = listener->ops->admit(listener->owner, &caller->claim, &frame_bytes);
    bool fits = kolo_seal_fits(caller->claim.security);
    if (!fits && code == KOLO_VERDICT_OK) code = KOLO_VERDICT_REFUSED;
    if (code == KOLO_VERDICT_OK &&
        kolo_seal_create(&listener->key, caller->greeting, caller->hello, false, &caller->seal) != KOLO_OK)
        code = KOLO_VERDICT_BUSY;
    kolo_auth_verdict(&shake, code, verdict);
    const bool sent =
        send(caller->fd, verdict, sizeof(verdict), MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(verdict);
    if (!sent) /* one of ours, whose communicator has ended meanwhile: no stranger gets here */
        kolo_debug("oob", "rank %d has taken its call back before the verdict", caller->claim.from);
    if (!sent || code == KOLO_VERDICT_BUSY || code == KOLO_VERDICT_GONE)
        caller_drop(caller); /* one of ours, which will call again, or knows now */
    else if (code != KOLO_VERDICT_OK)
        caller_refuse(caller, KOLO_COUNT_FRAME,
                      fits ? "it knows the secret but asks for something that is not here"
                           : "it knows the secret but has another KOLO_TCP_SECURITY");
    else
        caller_let_in(caller, frame_bytes);
}

static void caller_sent_frame(caller_t *caller)
{
    static const uint8_t ack = KOLO_FRAME_ACK;
    const kolo_listener_t *listener = caller->listener;
    const kolo_listener_ops_t *ops = listener->ops;
    kolo_socket_t socket = caller_take_socket(caller);
    caller_unlink(caller); /* first: the owner may close the listener */
    ops->accepted(listener->owner, &caller->claim, socket, caller->frame);
    caller_free(caller);
    if (ops->keeps) return;
    send(socket.fd, &ack, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    kolo_socket_leave(&socket);
}

static void caller_readable(void *arg, int fd, uint32_t events)
{
    caller_t *caller = arg;
    (void)events;
    uint8_t *at = caller->proven ? caller->frame : caller->hello;
    kolo_socket_t socket = {fd, caller->proven ? caller->seal : NULL};
    ssize_t n = kolo_socket_recv_bytes(&socket, at + caller->got, caller->need - caller->got);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        caller_refuse(caller, caller->proven ? KOLO_COUNT_FRAME : KOLO_COUNT_MAGIC,
                      caller->proven ? "it went away in the middle of its frame"
                                     : "it went away without a word that we know");
        return;
    }
    caller->got += (size_t)n;
    if (!caller->proven && caller->got >= 4 && memcmp(caller->hello, "kkh1", 4) != 0) {
        caller_refuse(caller, KOLO_COUNT_MAGIC, "it does not speak this protocol");
        return;
    }
    if (caller->got < caller->need) return;
    if (caller->proven)
        caller_sent_frame(caller);
    else
        caller_said_hello(caller);
}

void kolo_caller_greet(kolo_listener_t *listener, int fd, const struct sockaddr *from)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    caller_t *caller = calloc(1, sizeof(*caller));
    if (caller == NULL || kolo_auth_greeting(kolo_seal_offer(), caller->greeting) != KOLO_OK ||
        send(fd, caller->greeting, KOLO_GREETING_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) != KOLO_GREETING_BYTES ||
        kolo_watch_add(listener->progress, fd, EPOLLIN, caller_readable, caller, &caller->watch) != KOLO_OK) {
        kolo_link_count(KOLO_COUNT_FULL);
        kolo_fd_close(fd);
        free(caller);
        return;
    }
    caller->listener = listener;
    caller->fd = fd;
    kolo_address_from_sockaddr(&caller->address, from);
    caller->need = KOLO_HELLO_BYTES;
    caller->since_ns = kolo_now_ns();
    queue_append(caller);
    if (callers.timer == NULL) arm_timer(listener->progress);
}

/* ---- for the listeners ---- */

bool kolo_caller_full(void)
{
    return callers.count >= most_pending();
}

void kolo_caller_drop_all(kolo_listener_t *listener)
{
    for (kolo_listener_t **at = &callers.paused; *at != NULL; at = &(*at)->next_paused)
        if (*at == listener) {
            *at = listener->next_paused;
            break;
        }
    listener->paused = true; /* keeps it out of resume_listeners() */
    for (caller_t *caller = callers.first, *next; caller != NULL; caller = next) {
        next = caller->next;
        if (caller->listener == listener) caller_drop(caller);
    }
    arm_timer(listener->progress);
}
