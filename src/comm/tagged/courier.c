/* SPDX-License-Identifier: Apache-2.0
 *
 * The courier: the thread that sends and receives messages with tags for all communicators of the process. It lives
 * as long as one of them has used any. It sleeps on one epoll set: the connections, and a bell that is rung when a
 * stream comes or was opened, when ranks are lost, and when time limits change.
 */
#include "base/clock.h"
#include "base/process.h"
#include "comm/tagged/tagged.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define BATCH   64
#define LOOK_MS 100 /* how often losses and farewells are looked for while requests wait */

static struct {
    pthread_mutex_t life; /* held to start and end the thread; taken before `lock` */
    pthread_mutex_t lock; /* of all here, the bell too: who has left may still close connections */
    kolo_tagged_t *first;
    bool running, stop;
    bool looking; /* the thread looks at all, and reckons anew then how long it may sleep */
    pthread_t thread;
    kolo_waker_t bell; /* never asleep to its ringers: every ring is heard */
    uint64_t closed;   /* connections so far */
    uint64_t due_ns;   /* 0: never */
} courier = {.life = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER};

kolo_gate_t kolo_tagged_gate;

void kolo_tagged_lock(void)
{
    pthread_mutex_lock(&courier.lock);
}

void kolo_tagged_unlock(void)
{
    pthread_mutex_unlock(&courier.lock);
}

/* ---- connections ---- */

kolo_status_t kolo_courier_watch(kolo_tagged_port_t *port, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = port};
    if (port->events == events) return KOLO_OK;
    if (epoll_ctl(courier.bell.epoll_fd, port->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, port->socket.fd, &event) !=
        0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot watch a connection of messages");
    port->events = events;
    return KOLO_OK;
}

void kolo_courier_close(kolo_tagged_port_t *port)
{
    if (port->socket.fd < 0) return;
    if (port->events) epoll_ctl(courier.bell.epoll_fd, EPOLL_CTL_DEL, port->socket.fd, NULL);
    port->events = 0;
    kolo_socket_close(&port->socket);
    port->socket.fd = -1;
    courier.closed++; /* events that were taken before are of no use any more */
}

void kolo_courier_expect(uint64_t at_ns)
{
    uint64_t look = kolo_deadline_ms(LOOK_MS);
    at_ns = at_ns ? KOLO_MIN(at_ns, look) : look;
    if (courier.due_ns && courier.due_ns <= at_ns) return;
    courier.due_ns = at_ns;
    if (!courier.looking) kolo_waker_wake(&courier.bell);
}

/* ---- requests that end ---- */

void kolo_tagged_add(kolo_tagged_list_t *list, struct kolo_request *r)
{
    r->in = list;
    r->next = NULL;
    r->prev = list->last;
    if (list->last)
        list->last->next = r;
    else
        list->first = r;
    list->last = r;
}

void kolo_tagged_remove(struct kolo_request *r)
{
    if (!r->in) return;
    if (r->prev)
        r->prev->next = r->next;
    else
        r->in->first = r->next;
    if (r->next)
        r->next->prev = r->prev;
    else
        r->in->last = r->prev;
    r->in = NULL;
    r->prev = r->next = NULL;
}

static void finish(struct kolo_request *r, kolo_status_t status, char *text)
{
    kolo_tagged_t *m = r->messages;
    kolo_tagged_remove(r);
    if (r->prev_open)
        r->prev_open->next_open = r->next_open;
    else
        m->open = r->next_open;
    if (r->next_open) r->next_open->prev_open = r->prev_open;
    if (m->ahead == r) m->ahead = r->next_open;
    m->nopen--;
    r->messages = NULL;
    r->status = status;
    r->text = text;
    if (m->noted) kolo_tagged_show(m, kolo_now_ns()); /* who looks now is not told of what is over */
    kolo_gate_open(&kolo_tagged_gate);
}

void kolo_tagged_complete(struct kolo_request *r, kolo_status_t status)
{
    finish(r, status, status != KOLO_OK ? strdup(kolo_error_text()) : NULL);
}

void kolo_tagged_end(struct kolo_request *r, kolo_status_t status)
{
    char *text = strdup(kolo_error_text());
    if (r->sends)
        kolo_tagged_send_end(r);
    else
        kolo_tagged_receive_end(r);
    if (r->messages) /* else the connection broke over it, and it has an end already */
        finish(r, status, text);
    else
        free(text);
}

/* ---- the thread ---- */

static void look_at_all(void)
{
    uint64_t now = kolo_now_ns();
    courier.due_ns = 0;
    courier.looking = true;
    for (kolo_tagged_t *m = courier.first; m; m = m->next) kolo_tagged_look(m, now);
    courier.looking = false;
}

/* Waits without the lock, which the caller holds. */
static int sleep_until_due(struct epoll_event *events)
{
    uint64_t now = kolo_now_ns(), due = courier.due_ns;
    int epoll_fd = courier.bell.epoll_fd;
    int ms = !due ? -1 : due <= now ? 0 : (int)KOLO_DIV_UP(due - now, KOLO_NS_PER_MS);
    pthread_mutex_unlock(&courier.lock);
    int n = epoll_wait(epoll_fd, events, BATCH, ms);
    pthread_mutex_lock(&courier.lock);
    return n;
}

static void *run(void *arg)
{
    struct epoll_event events[BATCH];
    (void)arg;
    pthread_setname_np(pthread_self(), "kolo-courier");
    pthread_mutex_lock(&courier.lock);
    while (!courier.stop) {
        uint64_t closed = courier.closed;
        bool rung = false;
        int n = sleep_until_due(events);
        for (int i = 0; i < n && !courier.stop; i++) {
            kolo_tagged_port_t *port = events[i].data.ptr;
            if (!port) {
                uint64_t count;
                ssize_t got = read(courier.bell.event_fd, &count, sizeof count);
                (void)got;
                rung = true;
            } else if (courier.closed == closed) { /* else the others are told of again */
                if (port->out)
                    kolo_tagged_out_step(port->peer, true);
                else
                    kolo_tagged_in_step(port->peer);
            }
        }
        if (rung || (courier.due_ns && kolo_now_ns() >= courier.due_ns)) look_at_all();
    }
    pthread_mutex_unlock(&courier.lock);
    return NULL;
}

/* ---- life ---- */

/* Forgets all in a child of fork(), which has neither the thread nor its parent's communicators. */
static void forget(void)
{
    pthread_mutex_init(&courier.life, NULL);
    pthread_mutex_init(&courier.lock, NULL);
    if (courier.running) kolo_waker_fini(&courier.bell);
    courier.running = courier.stop = false;
    courier.first = NULL;
    courier.due_ns = 0;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget);
}

/* Starts the thread, with both locks. */
static kolo_status_t start(void)
{
    if (courier.running) return KOLO_OK;
    KOLO_TRY(kolo_waker_init(&courier.bell, NULL));
    atomic_store(&courier.bell.own_asleep, 1);
    courier.stop = false;
    courier.due_ns = 0;
    int err = kolo_thread_start(&courier.thread, 0, run, NULL);
    if (err == 0) {
        courier.running = true;
        return KOLO_OK;
    }
    kolo_waker_fini(&courier.bell);
    return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "cannot start the thread for messages");
}

kolo_status_t kolo_courier_join(kolo_tagged_t *m)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&courier.life);
    pthread_mutex_lock(&courier.lock);
    kolo_status_t status = start();
    if (status == KOLO_OK) {
        m->next = courier.first;
        courier.first = m;
        kolo_body_set_bell(m->body, &courier.bell);
        kolo_oob_set_stream_bell(m->body->oob, &courier.bell);
        kolo_waker_wake(&courier.bell);
    }
    pthread_mutex_unlock(&courier.lock);
    pthread_mutex_unlock(&courier.life);
    return status;
}

void kolo_courier_leave(kolo_tagged_t *m)
{
    pthread_mutex_lock(&courier.life);
    pthread_mutex_lock(&courier.lock);
    kolo_tagged_t **at = &courier.first;
    while (*at && *at != m) at = &(*at)->next;
    if (*at) *at = m->next;
    kolo_body_set_bell(m->body, NULL);
    kolo_oob_set_stream_bell(m->body->oob, NULL);
    bool last = courier.running && !courier.first;
    courier.stop = last;
    if (last) kolo_waker_wake(&courier.bell);
    pthread_mutex_unlock(&courier.lock);
    if (last) {
        pthread_join(courier.thread, NULL);
        pthread_mutex_lock(&courier.lock);
        kolo_waker_fini(&courier.bell);
        courier.running = false;
        pthread_mutex_unlock(&courier.lock);
    }
    pthread_mutex_unlock(&courier.life);
}
