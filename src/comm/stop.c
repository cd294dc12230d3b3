/* SPDX-License-Identifier: Apache-2.0
 *
 * What ends the work of a communicator before it is done: an error that stays, an abort, kernels that are told to
 * end. It lies below calls, life and devices, for all of them come here, and so do the news of a loss.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "comm/window/window.h"

#include <stdio.h>
#include <string.h>

/* ---- the last failure of this process ---- */

#define FOLLOWS_MS 1000 /* a failure this soon after another follows from it, as a rule: the first is kept */
#define AGE_WORDS  " ms before that: "
#define RECENT_MS  30000 /* an older failure is not why a program aborts now */

/* A program that meets a loss in one communicator aborts its others, too. Their peers need not know the lost rank,
 * or have not heard of it yet: the abort tells them. */
static struct {
    pthread_mutex_t lock;
    uint64_t at_ns; /* 0: none */
    char text[KOLO_ERROR_TEXT_BYTES];
} last_failure = {.lock = PTHREAD_MUTEX_INITIALIZER};

void kolo_comm_failure_note(kolo_status_t status, const char *text)
{
    uint64_t now = kolo_now_ns();
    bool loss = status == KOLO_ERR_REMOTE || status == KOLO_ERR_PARTITION;
    if (!loss || (strstr(text, "gave up") && !strstr(text, AGE_WORDS))) return; /* who gave up is not the cause */
    pthread_mutex_lock(&last_failure.lock);
    if (!last_failure.at_ns || now - last_failure.at_ns > FOLLOWS_MS * KOLO_NS_PER_MS) {
        last_failure.at_ns = now;
        snprintf(last_failure.text, sizeof last_failure.text, "%s", text);
    }
    pthread_mutex_unlock(&last_failure.lock);
}

void kolo_comm_failure_forget(void)
{
    pthread_mutex_init(&last_failure.lock, NULL); /* another thread of the parent may have held it */
    last_failure.at_ns = 0;
}

/* Returns its age in ms, -1: none. */
static int64_t recent_failure(char *text, size_t bytes)
{
    int64_t age_ms = -1;
    pthread_mutex_lock(&last_failure.lock);
    if (last_failure.at_ns) age_ms = (int64_t)((kolo_now_ns() - last_failure.at_ns) / KOLO_NS_PER_MS);
    if (age_ms > RECENT_MS) age_ms = -1;
    if (age_ms >= 0) snprintf(text, bytes, "%.*s", (int)bytes - 1, last_failure.text);
    pthread_mutex_unlock(&last_failure.lock);
    return age_ms;
}

/* ---- errors ---- */

kolo_status_t kolo_body_fail(kolo_body_t *body, kolo_status_t status)
{
    return kolo_body_fail_as(body, status, kolo_error_text());
}

void kolo_body_ring(kolo_body_t *body)
{
    kolo_comm_t h = body->handle;
    pthread_mutex_lock(&h->error_lock);
    if (body->stop.bell) kolo_waker_wake(body->stop.bell);
    pthread_mutex_unlock(&h->error_lock);
}

void kolo_body_set_bell(kolo_body_t *body, kolo_waker_t *bell)
{
    kolo_comm_t h = body->handle;
    pthread_mutex_lock(&h->error_lock);
    body->stop.bell = bell;
    pthread_mutex_unlock(&h->error_lock);
}

/* Tells whether an error takes the place of the one that is kept. Of what came with news an operation knows more;
 * and that ranks differ is why one of them gave up, whichever was heard first. */
static bool replaces(const struct kolo_comm *h, kolo_status_t status)
{
    return h->error == KOLO_OK || (h->error_is_news && (h->error == status || status == KOLO_ERR_MISMATCH));
}

kolo_status_t kolo_body_fail_as(kolo_body_t *body, kolo_status_t status, const char *text)
{
    kolo_comm_t h = body->handle;
    pthread_mutex_lock(&h->error_lock);
    if (replaces(h, status)) {
        h->error = status;
        h->error_is_news = false;
        snprintf(h->error_text, sizeof h->error_text, "%s", text);
        kolo_record_failed(body);
        kolo_comm_failure_note(status, text);
    }
    pthread_mutex_unlock(&h->error_lock);
    atomic_store(&h->quiet, false); /* what the program now hears is no longer kept from it */
    /* while init runs only init ends STARTING, so that nothing is freed that it still uses */
    if (atomic_load(&h->state) != KOLO_COMM_STARTING)
        atomic_store(&h->state, atomic_load(&body->stop.abort) ? KOLO_COMM_ABORTED : KOLO_COMM_FAILED);
    if (body->oob) kolo_diag_give_up(body->oob);
    kolo_device_cancel(body);
    if (body->life.ctx_open) kolo_control_fail(&body->ctx); /* before the caller has its buffers back */
    kolo_gate_open(&h->gate);
    kolo_body_ring(body);
    return status;
}

/* Gives the peers the reason of an abort. A child that is aborted while it is being set up mostly is so because its
 * program has seen the parent fail; one that is aborted later, because its program has seen another communicator
 * fail. */
static void give_reason(kolo_oob_t *oob, const char *last_error)
{
    char words[512] = "its program aborted the communicator", word[400];
    const size_t used = strlen(words);
    if (kolo_inherit_failure(oob, 0, word, sizeof word)) {
        snprintf(words + used, sizeof words - used, "; before that, %s", word);
    } else {
        int64_t age_ms = recent_failure(word, sizeof word);
        if (age_ms >= 0)
            snprintf(words + used, sizeof words - used, "; %lld" AGE_WORDS "%s", (long long)age_ms, word);
        else if (*last_error)
            snprintf(words + used, sizeof words - used, "; its last error was: %s", last_error);
    }
    kolo_oob_give_reason(oob, words);
}

void kolo_body_interrupt(kolo_body_t *body, const char *last_error)
{
    if (body->life.ctx_open) kolo_waker_wake(&body->ctx.waker);
    if (body->oob && last_error) {
        give_reason(body->oob, last_error);
        kolo_oob_give_notice(body->oob);
    }
    if (body->oob) kolo_oob_close(body->oob);
    kolo_gate_open(&body->handle->gate);
    kolo_body_ring(body);
}

/* Aborts those that are being made: their waits look at the flags at least every 50 ms. */
void kolo_start_abort_all(kolo_comm_t parent)
{
    pthread_mutex_lock(&parent->error_lock);
    for (kolo_body_t *child = parent->making; child; child = child->life.next_making) {
        atomic_store(&child->stop.abort, 1);
        atomic_store(&child->stop.reason, KOLO_STOP_ABORT);
    }
    pthread_mutex_unlock(&parent->error_lock);
}

/* ---- devices ---- */

void kolo_device_levels_stop(kolo_body_t *body)
{
    kolo_body_t *children[] = {body->levels.inside, body->levels.across};
    for (int i = 0; i < 2; i++) {
        uint32_t none = KOLO_STOP_NONE;
        if (!children[i]) continue;
        atomic_compare_exchange_strong(&children[i]->stop.reason, &none, KOLO_STOP_ABORT);
        /* Connections that are being made wait in the room below (oob): */
        atomic_store(&children[i]->stop.abort, 1);
        if (children[i]->life.ctx_open) kolo_waker_wake(&children[i]->ctx.waker);
    }
}

static void end_kernels(kolo_body_t *body)
{
    void *state = atomic_load(&body->gpu.state);
    if (!state) return;
    kolo_device_levels_stop(body);
    body->gpu.exec->cancel(state);
    kolo_window_device_release(body);
}

static void held_for_long(void *arg)
{
    kolo_device_let_go(arg);
}

/* Leaves kernels on their streams: programs look whether a stream is through, and then take what it computed; the
 * error they ask for later. Parts of several hosts are not held, nor what the host runs; nor what the program
 * itself has ended. */
static bool hold(kolo_body_t *body)
{
    kolo_comm_t h = body->handle;
    if (!kolo_comm_options.hold_ms || body->levels.owner || body->levels.inside || body->gpu.exec->by_host)
        return false;
    kolo_device_watch_t *watch = &body->gpu.watch;
    pthread_mutex_lock(&h->error_lock);
    if (atomic_load(&body->stop.abort) || atomic_load(&h->revoked_here)) body->gpu.held = KOLO_HELD_NEVER_MORE;
    if (body->gpu.held == KOLO_HELD_NOT && watch->progress &&
        kolo_timer_add(watch->progress, kolo_comm_options.hold_ms, held_for_long, body, &watch->hold) == KOLO_OK)
        body->gpu.held = KOLO_HELD;
    bool held = body->gpu.held == KOLO_HELD;
    pthread_mutex_unlock(&h->error_lock);
    return held;
}

void kolo_device_let_go(kolo_body_t *body)
{
    if (!kolo_comm_options.hold_ms || !atomic_load(&body->gpu.state)) return;
    pthread_mutex_lock(&body->handle->error_lock);
    int held = atomic_exchange(&body->gpu.held, KOLO_HELD_NEVER_MORE);
    pthread_mutex_unlock(&body->handle->error_lock);
    if (held == KOLO_HELD) end_kernels(body);
}

void kolo_device_cancel(kolo_body_t *body)
{
    if (!atomic_load(&body->gpu.state)) return;
    if (body->levels.owner) KOLO_FAIL_POINT("comm.device.cancel_part");
    atomic_store(&body->gpu.cancelled, 1);
    if (!hold(body)) end_kernels(body);
}
