/* SPDX-License-Identifier: Apache-2.0
 *
 * The relay: connections to the ranks that cannot write to this rank's memory directly, or to whose memory this
 * rank cannot, and a thread that stores what arrives. A caller writes at once on its own thread; the relay's thread
 * sends what did not fit into the socket. One lock makes both a single user of the ends (remote/onesided.h).
 */
#include "base/log.h"
#include "base/process.h"
#include "comm/window/window.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS 64
#define FENCE  0x80000000u /* a notice that is not a signal: all earlier writes have arrived */

typedef struct {
    kolo_onesided_t *end;   /* NULL: none, or it was dropped */
    _Atomic bool connected; /* there is an end, or was one */
    _Atomic bool open;
    uint64_t writing;        /* data of writes that is still needed; under the lock */
    _Atomic uint32_t fences; /* that came */
    uint32_t fenced;         /* that were sent; by whose turn it is */
    kolo_status_t failed;    /* under the lock */
    char why[300];
} peer_t;

struct kolo_relay {
    kolo_windows_t *windows;
    kolo_onesided_domain_t *domain;
    pthread_mutex_t lock;
    pthread_t thread;
    bool running;
    _Atomic uint32_t stop;
    _Atomic uint64_t pending; /* the sum of `writing` */
    peer_t *peers;            /* by rank */
};

static void note(peer_t *p, kolo_status_t status)
{
    if (p->failed != KOLO_OK) return;
    p->failed = status;
    snprintf(p->why, sizeof p->why, "%s", kolo_error_text());
}

static kolo_status_t take_notice(kolo_relay_t *relay, int from, uint32_t number)
{
    if (number == FENCE) {
        atomic_fetch_add_explicit(&relay->peers[from].fences, 1, memory_order_release);
        return KOLO_OK;
    }
    if (number >= KOLO_SIGNALS)
        return kolo_fail(KOLO_ERR_PROTOCOL, "rank %d sent a signal with number %u", from, number);
    atomic_fetch_add_explicit(&relay->windows->lines[from].words[number], 1, memory_order_release);
    return KOLO_OK;
}

/* Does what can be done now and wakes who waits; true: something was. The lock is held. */
static bool step(kolo_relay_t *relay, int rank)
{
    peer_t *p = &relay->peers[rank];
    kolo_onesided_event_t events[EVENTS];
    int n = 0;
    if (!p->end || p->failed != KOLO_OK) return false;
    kolo_status_t status = kolo_onesided_step(p->end, events, EVENTS, &n);
    for (int i = 0; i < n; i++) {
        if (events[i].kind == KOLO_ONESIDED_OPENED) atomic_store_explicit(&p->open, true, memory_order_release);
        if (events[i].kind == KOLO_ONESIDED_WRITTEN) {
            p->writing--;
            atomic_fetch_sub_explicit(&relay->pending, 1, memory_order_release);
        }
        if (events[i].kind == KOLO_ONESIDED_NOTIFIED && status == KOLO_OK)
            status = take_notice(relay, rank, events[i].number);
    }
    if (status != KOLO_OK) note(p, status);
    if (n > 0 || status != KOLO_OK) kolo_waker_wake(&relay->windows->body->ctx.waker);
    return n > 0;
}

static bool step_all(kolo_relay_t *relay)
{
    bool moved = false;
    for (int r = 0; r < relay->windows->body->nranks; r++) {
        if (!relay->peers[r].connected) continue; /* set before the thread could be told */
        pthread_mutex_lock(&relay->lock);
        moved |= step(relay, r);
        pthread_mutex_unlock(&relay->lock);
    }
    return moved;
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const kolo_relay_t *relay = arg;
    snprintf(buf, bytes, "what others write into the windows of %s rank %d", relay->windows->body->name,
             relay->windows->body->rank);
}

static void *run(void *arg)
{
    kolo_relay_t *relay = arg;
    kolo_wait_t wait;
    kolo_wait_init(&wait, &relay->stop, 0, describe, relay, INT_MAX);
    wait.spins = wait.yields = 0; /* it is not to take a core from those who compute */
    wait.wakers[wait.nwakers++] = kolo_onesided_domain_waker(relay->domain);
    while (!atomic_load_explicit(&relay->stop, memory_order_acquire)) {
        if (step_all(relay)) {
            kolo_wait_end(&wait);
            continue;
        }
        (void)kolo_wait_pause(&wait);
        wait.stall_ns = 0; /* to have nothing to do is no stall */
    }
    kolo_wait_end(&wait);
    return NULL;
}

bool kolo_relay_step(kolo_relay_t *relay, int peer)
{
    bool moved = false;
    if (pthread_mutex_trylock(&relay->lock) != 0) return false; /* another thread is moving the ends */
    for (int r = 0; r < relay->windows->body->nranks; r++)
        if (r == peer || (peer < 0 && relay->peers[r].writing > 0)) moved |= step(relay, r);
    pthread_mutex_unlock(&relay->lock);
    return moved;
}

/* ---- life ---- */

static kolo_status_t start(kolo_relay_t *relay)
{
    kolo_body_t *body = relay->windows->body;
    uint8_t key[32];
    kolo_oob_derive_key(body->oob, "windows", key);
    KOLO_TRY(kolo_onesided_domain_create(key, &relay->domain));
    int err = kolo_thread_start(&relay->thread, 0, run, relay);
    if (err) return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "cannot start a thread for windows");
    relay->running = true;
    return KOLO_OK;
}

kolo_status_t kolo_relay_create(kolo_windows_t *windows)
{
    if (windows->relay) return KOLO_OK;
    kolo_relay_t *relay = calloc(1, sizeof *relay);
    peer_t *peers = calloc((size_t)windows->body->nranks, sizeof *peers);
    if (!relay || !peers) {
        free(relay);
        free(peers);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for what travels between windows");
    }
    relay->windows = windows;
    relay->peers = peers;
    pthread_mutex_init(&relay->lock, NULL);
    windows->relay = relay;
    kolo_status_t status = start(relay);
    if (status == KOLO_OK) return KOLO_OK;
    kolo_relay_close(relay);
    windows->relay = NULL;
    return status;
}

void kolo_relay_close(kolo_relay_t *relay)
{
    if (!relay) return;
    atomic_store(&relay->stop, 1);
    if (relay->running) {
        kolo_waker_wake(kolo_onesided_domain_waker(relay->domain));
        pthread_join(relay->thread, NULL);
    }
    for (int r = 0; r < relay->windows->body->nranks; r++) kolo_onesided_close(relay->peers[r].end);
    kolo_onesided_domain_destroy(relay->domain);
    pthread_mutex_destroy(&relay->lock);
    free(relay->peers);
    free(relay);
}

kolo_status_t kolo_relay_connect(kolo_relay_t *relay, int peer, kolo_socket_t socket)
{
    const kolo_body_t *body = relay->windows->body;
    kolo_onesided_config_t config = {.socket = socket, .kinds = 1u << KOLO_ONESIDED_TCP};
    peer_t *p = &relay->peers[peer];
    snprintf(config.who, sizeof config.who, "rank %d (host %.32s, process %d)", peer,
             body->member.peers[peer].host_name, (int)body->member.peers[peer].pid);
    pthread_mutex_lock(&relay->lock);
    kolo_status_t status = kolo_onesided_open(relay->domain, &config, &p->end);
    if (status == KOLO_OK) p->connected = true;
    pthread_mutex_unlock(&relay->lock);
    kolo_waker_wake(kolo_onesided_domain_waker(relay->domain));
    return status;
}

bool kolo_relay_has(const kolo_relay_t *relay, int peer)
{
    return relay && relay->peers[peer].connected;
}

/* ---- what callers ask ---- */

static kolo_status_t ended(const kolo_relay_t *relay, int peer)
{
    const peer_t *p = &relay->peers[peer];
    return p->failed == KOLO_OK ? KOLO_OK
                                : kolo_fail(p->failed, "windows: the connection with rank %d: %s", peer, p->why);
}

kolo_status_t kolo_relay_settled(kolo_relay_t *relay, int peer)
{
    peer_t *p = &relay->peers[peer];
    if (atomic_load_explicit(&p->open, memory_order_acquire)) return KOLO_OK;
    pthread_mutex_lock(&relay->lock);
    kolo_status_t status = ended(relay, peer);
    pthread_mutex_unlock(&relay->lock);
    return status == KOLO_OK ? KOLO_IN_PROGRESS : status;
}

kolo_status_t kolo_relay_expose(kolo_relay_t *relay, int peer, void *base, size_t bytes,
                                kolo_onesided_window_t *window)
{
    pthread_mutex_lock(&relay->lock);
    kolo_status_t status = ended(relay, peer);
    if (status == KOLO_OK) status = kolo_onesided_expose(relay->peers[peer].end, base, bytes, window);
    pthread_mutex_unlock(&relay->lock);
    return status;
}

void kolo_relay_hide(kolo_relay_t *relay, int peer, const kolo_onesided_window_t *window)
{
    pthread_mutex_lock(&relay->lock);
    if (relay->peers[peer].end) kolo_onesided_hide(relay->peers[peer].end, window);
    pthread_mutex_unlock(&relay->lock);
}

static kolo_status_t put_out(kolo_relay_t *relay, int peer, kolo_onesided_write_t *write)
{
    peer_t *p = &relay->peers[peer];
    pthread_mutex_lock(&relay->lock);
    kolo_status_t status = ended(relay, peer);
    if (status == KOLO_OK) status = kolo_onesided_write(p->end, write);
    if (status == KOLO_OK) {
        p->writing += write->cookie;
        atomic_fetch_add_explicit(&relay->pending, write->cookie, memory_order_relaxed);
        (void)step(relay, peer);
    }
    pthread_mutex_unlock(&relay->lock);
    return status;
}

kolo_status_t kolo_relay_write(kolo_relay_t *relay, int peer, const void *data, uint64_t bytes,
                               const kolo_onesided_window_t *to, uint64_t offset)
{
    kolo_onesided_write_t write = {.data = data, .bytes = bytes, .to = to, .offset = offset, .cookie = 1};
    return put_out(relay, peer, &write);
}

kolo_status_t kolo_relay_signal(kolo_relay_t *relay, int peer, uint32_t number)
{
    kolo_onesided_write_t write = {.flags = KOLO_ONESIDED_NOTIFY, .number = number};
    return put_out(relay, peer, &write);
}

kolo_status_t kolo_relay_fence(kolo_relay_t *relay, int peer)
{
    kolo_onesided_write_t write = {.flags = KOLO_ONESIDED_NOTIFY, .number = FENCE};
    KOLO_TRY(put_out(relay, peer, &write));
    relay->peers[peer].fenced++;
    return KOLO_OK;
}

bool kolo_relay_fence_passed(const kolo_relay_t *relay, int peer)
{
    const peer_t *p = &relay->peers[peer];
    return (int32_t)(atomic_load_explicit(&p->fences, memory_order_acquire) - p->fenced) >= 0;
}

void kolo_relay_give_up(kolo_relay_t *relay, int peer)
{
    peer_t *p = &relay->peers[peer];
    pthread_mutex_lock(&relay->lock);
    kolo_onesided_close(p->end);
    p->end = NULL;
    p->failed = KOLO_OK;
    atomic_store(&p->connected, false);
    atomic_store(&p->open, false);
    atomic_store(&p->fences, 0);
    p->fenced = 0;
    pthread_mutex_unlock(&relay->lock);
}

uint64_t kolo_relay_pending(const kolo_relay_t *relay)
{
    return atomic_load_explicit(&relay->pending, memory_order_acquire);
}

kolo_status_t kolo_relay_check(kolo_relay_t *relay, int peer)
{
    kolo_status_t status = KOLO_OK;
    pthread_mutex_lock(&relay->lock);
    for (int r = 0; r < relay->windows->body->nranks && status == KOLO_OK; r++)
        if (r == peer || (peer < 0 && relay->peers[r].writing > 0)) status = ended(relay, r);
    pthread_mutex_unlock(&relay->lock);
    return status;
}

void kolo_relay_drop(kolo_relay_t *relay)
{
    pthread_mutex_lock(&relay->lock);
    for (int r = 0; r < relay->windows->body->nranks; r++) {
        peer_t *p = &relay->peers[r];
        if (p->writing == 0) continue;
        (void)kolo_fail(KOLO_ERR_ABORTED, "an operation that wrote to it has ended before its data was sent");
        note(p, KOLO_ERR_ABORTED);
        kolo_onesided_close(p->end);
        p->end = NULL;
        atomic_fetch_sub_explicit(&relay->pending, p->writing, memory_order_relaxed);
        p->writing = 0;
    }
    pthread_mutex_unlock(&relay->lock);
}

size_t kolo_relay_memory(kolo_relay_t *relay)
{
    size_t bytes = sizeof *relay + (size_t)relay->windows->body->nranks * sizeof *relay->peers;
    pthread_mutex_lock(&relay->lock);
    for (int r = 0; r < relay->windows->body->nranks; r++)
        if (relay->peers[r].end) bytes += kolo_onesided_memory(relay->peers[r].end);
    pthread_mutex_unlock(&relay->lock);
    return bytes;
}
