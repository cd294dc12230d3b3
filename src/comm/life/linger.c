/* SPDX-License-Identifier: Apache-2.0
 *
 * What is left of a communicator whose rank has left it (kolo_comm_leave) and destroyed it: others may still be in
 * operations that this rank has completed, and find their data in its queues, on its connections and in the memory
 * of its GPU. So all of that stays until they have left, too, or are lost. One thread of the process takes down
 * what is over; it lives as long as anything lingers.
 */
#include "base/process.h"
#include "comm/call/call.h"
#include "comm/life/life.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    kolo_body_t *first; /* by next_making: they make nothing any more */
    size_t count;
    bool running;
    kolo_waker_t waker; /* while it runs; rung when a rank leaves or is lost */
} lingering = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Forgets the communicators in a child of fork(): they are its parent's. */
static void forget(void)
{
    pthread_mutex_init(&lingering.lock, NULL);
    lingering.first = NULL;
    lingering.count = 0;
    if (lingering.running) kolo_waker_fini(&lingering.waker);
    lingering.running = false;
}

/* Closes connections in good order when the process ends, so that late ranks read what is on its way to them. */
static void end_all(void)
{
    pthread_mutex_lock(&lingering.lock);
    kolo_body_t *body = lingering.first;
    lingering.first = NULL;
    pthread_mutex_unlock(&lingering.lock);
    for (kolo_body_t *next; body; body = next) {
        next = body->life.next_making;
        kolo_body_free(body);
    }
}

static void watch_ends(void)
{
    pthread_atfork(NULL, NULL, forget);
    atexit(end_all);
}

static bool is_over(const kolo_body_t *body)
{
    return body->nranks == 1 || kolo_diag_all_left(body->oob);
}

/* Takes one that is over out of the list; NULL: there is none. */
static kolo_body_t *take_over(void)
{
    pthread_mutex_lock(&lingering.lock);
    kolo_body_t **at = &lingering.first;
    while (*at && !is_over(*at)) at = &(*at)->life.next_making;
    kolo_body_t *body = *at;
    if (body) *at = body->life.next_making;
    pthread_mutex_unlock(&lingering.lock);
    return body;
}

/* Has all gone? Then the thread does, and who comes later starts another one. */
static bool end(void)
{
    pthread_mutex_lock(&lingering.lock);
    bool none = lingering.count == 0;
    if (none) {
        kolo_waker_fini(&lingering.waker);
        lingering.running = false;
    }
    pthread_mutex_unlock(&lingering.lock);
    return none;
}

static void describe(void *arg, char *buf, size_t bytes)
{
    (void)arg;
    snprintf(buf, bytes, "the other ranks of communicators that this process has left");
}

static void *run(void *arg)
{
    kolo_wait_t wait;
    (void)arg;
    kolo_wait_init(&wait, NULL, 0, describe, NULL, INT_MAX);
    wait.spins = wait.yields = 0;
    wait.wakers[wait.nwakers++] = &lingering.waker;
    for (;;) {
        kolo_body_t *body = take_over();
        if (!body) {
            (void)kolo_wait_pause(&wait);
            wait.stall_ns = 0; /* that they take their time is no stall */
            continue;
        }
        kolo_wait_end(&wait);
        kolo_body_free(body);
        pthread_mutex_lock(&lingering.lock);
        lingering.count--;
        pthread_mutex_unlock(&lingering.lock);
        if (end()) return NULL;
    }
}

static kolo_status_t start(void)
{
    if (lingering.running) return KOLO_OK;
    KOLO_TRY(kolo_waker_init(&lingering.waker, NULL));
    int err = kolo_thread_start(NULL, 0, run, NULL);
    if (err == 0) {
        lingering.running = true;
        return KOLO_OK;
    }
    kolo_waker_fini(&lingering.waker);
    return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "cannot start the thread that ends communicators");
}

void kolo_body_linger(kolo_body_t *body)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_ends);
    kolo_call_registrations_free(body); /* the caller's memory: no operation of this rank needs it any more */
    if (is_over(body)) {
        kolo_body_free(body);
        return;
    }
    pthread_mutex_lock(&lingering.lock);
    kolo_status_t status = start();
    if (status == KOLO_OK) {
        body->life.next_making = lingering.first;
        lingering.first = body;
        lingering.count++;
        kolo_oob_set_bell(body->oob, &lingering.waker);
        kolo_waker_wake(&lingering.waker);
    }
    pthread_mutex_unlock(&lingering.lock);
    if (status != KOLO_OK)
        kolo_body_free(body); /* late ranks may miss something: better than to keep it for ever */
}
