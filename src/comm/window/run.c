/* SPDX-License-Identifier: Apache-2.0
 *
 * Puts, signals and waits whose turn it is. A put into memory that this rank reaches is over when it has been
 * called; one that travels, when its source is not needed any more. A signal is counted up behind what it follows:
 * by an atomic addition after the copies, or by a notice after the bytes on the same connection. A wait takes the
 * signals that it waited for; it needs nothing of the other rank but these.
 */
#include "base/clock.h"
#include "comm/window/window.h"
#include "wire/cma/cma.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define PIECE_BYTES     ((size_t)4 << 20) /* so that a rank that fails need not wait for long */
#define POLLS_PER_CHECK 1024u

/* ---- puts ---- */

/* Copies into memory of a rank of this process, which may fail meanwhile and want it back. */
static kolo_status_t copy_here(kolo_body_t *body, kolo_control_peer_t *control, char *to, const char *from,
                               size_t bytes)
{
    for (size_t done = 0, n; done < bytes; done += n) {
        n = KOLO_MIN(bytes - done, PIECE_BYTES);
        KOLO_TRY(kolo_control_begin_copy(&body->ctx, control));
        memcpy(to + done, from + done, n);
        KOLO_TRY(kolo_control_end_copy(&body->ctx, control));
    }
    return KOLO_OK;
}

static kolo_status_t put(kolo_body_t *body, const kolo_call_t *call)
{
    kolo_windows_t *w = body->windows;
    const kolo_window_call_t *more = call->window;
    int peer = (int)call->root;
    size_t bytes = call->count * call->elem;
    if (bytes == 0) return KOLO_OK;
    kolo_window_peers_t *window = kolo_window_find(w, more->handle);
    if (!window) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "the window of a put to rank %d is gone", peer);
    char *at = window->peers[peer].at;
    if (peer == body->rank) {
        memmove(at + more->offset, call->src, bytes);
        return KOLO_OK;
    }
    if (at && !window->peers[peer].mapped)
        return copy_here(body, w->ranks[peer].control, at + more->offset, call->src, bytes);
    if (at) {
        memcpy(at + more->offset, call->src, bytes);
        return KOLO_OK;
    }
    if (!window->peers[peer].relayed)
        return kolo_cma_put(&body->ctx, w->ranks[peer].control, window->peers[peer].address + more->offset,
                            call->src, bytes);
    return kolo_relay_write(w->relay, peer, call->src, bytes, &window->peers[peer].there, more->offset);
}

/* Signals a rank by the way on which something travels to it, so that the signal comes after it. */
static kolo_status_t signal_to(kolo_body_t *body, int peer, int number)
{
    kolo_windows_t *w = body->windows;
    kolo_window_rank_t *r = &w->ranks[peer];
    if (kolo_relay_has(w->relay, peer)) return kolo_relay_signal(w->relay, peer, (uint32_t)number);
    if (r->control && kolo_control_gone(r->control)) KOLO_TRY(kolo_control_check(&body->ctx, r->control));
    atomic_fetch_add_explicit(&r->line->words[number], 1, memory_order_release);
    if (r->control) kolo_doorbell_ring(&r->control->page->asleep, r->control->event_fd);
    return KOLO_OK;
}

static kolo_status_t issue(kolo_body_t *body, const kolo_call_t *call)
{
    if (call->kind == KOLO_CALL_PUT) KOLO_TRY(put(body, call));
    if (call->window->signal < 0) return KOLO_OK;
    return signal_to(body, (int)call->root, call->window->signal);
}

/* ---- waits ---- */

static const kolo_signal_wait_t *awaited(const kolo_window_run_t *run)
{
    return run->at < run->count ? &run->calls[run->at].window->waits[run->part] : NULL;
}

static void next_call(kolo_window_run_t *run)
{
    while (run->at < run->count &&
           (run->calls[run->at].kind != KOLO_CALL_WAIT || run->calls[run->at].window->nwaits == 0))
        run->at++;
    run->part = 0;
}

static uint32_t come(const kolo_window_run_t *run, const kolo_signal_wait_t *wait)
{
    const kolo_windows_t *w = run->body->windows;
    uint32_t now = atomic_load_explicit(&w->lines[wait->peer].words[wait->signal], memory_order_acquire);
    return now - w->ranks[wait->peer].taken[wait->signal];
}

static kolo_status_t take(kolo_window_run_t *run, bool *moved)
{
    const kolo_signal_wait_t *wait;
    while ((wait = awaited(run)) != NULL) {
        uint32_t n = come(run, wait);
        if (n > KOLO_SIGNALS_MOST)
            return kolo_fail(KOLO_ERR_INVALID_USAGE,
                             "rank %d has more than %u signals with number %d that rank %d has not waited for",
                             wait->peer, KOLO_SIGNALS_MOST, wait->signal, run->body->rank);
        if (n < wait->count) return KOLO_IN_PROGRESS;
        run->body->windows->ranks[wait->peer].taken[wait->signal] += wait->count;
        *moved = true;
        if (++run->part < run->calls[run->at].window->nwaits) continue;
        run->at++;
        next_call(run);
    }
    return KOLO_OK;
}

/* ---- steps ---- */

kolo_status_t kolo_window_begin(kolo_window_run_t *run, kolo_body_t *body, const kolo_call_t *calls, size_t count)
{
    *run = (kolo_window_run_t){.body = body, .calls = calls, .count = count};
    for (size_t i = 0; i < count; i++) {
        if (calls[i].kind != KOLO_CALL_PUT && calls[i].kind != KOLO_CALL_SIGNAL) continue;
        run->issued = true;
        KOLO_TRY(issue(body, &calls[i]));
    }
    next_call(run);
    return KOLO_OK;
}

kolo_status_t kolo_window_step(kolo_window_run_t *run, bool *moved)
{
    kolo_relay_t *relay = run->body->windows->relay;
    kolo_status_t status = take(run, moved);
    if (status != KOLO_OK && status != KOLO_IN_PROGRESS) return status;
    bool sent = !run->issued || !relay || kolo_relay_pending(relay) == 0;
    if (status == KOLO_OK && sent) return KOLO_OK;
    if (relay && status == KOLO_IN_PROGRESS && kolo_relay_has(relay, awaited(run)->peer))
        *moved |= kolo_relay_step(relay, awaited(run)->peer);
    if (relay && !sent) *moved |= kolo_relay_step(relay, -1);
    return KOLO_IN_PROGRESS;
}

kolo_status_t kolo_window_check(kolo_window_run_t *run)
{
    kolo_windows_t *w = run->body->windows;
    const kolo_signal_wait_t *wait = awaited(run);
    kolo_status_t status = KOLO_OK;
    if (wait && w->ranks[wait->peer].control && kolo_control_gone(w->ranks[wait->peer].control))
        status = kolo_control_check(&run->body->ctx, w->ranks[wait->peer].control);
    if (status == KOLO_OK && wait && kolo_relay_has(w->relay, wait->peer))
        status = kolo_relay_check(w->relay, wait->peer);
    if (status != KOLO_OK && come(run, wait) >= wait->count) status = KOLO_OK; /* it did so before it went */
    if (status == KOLO_OK && w->relay && run->issued) status = kolo_relay_check(w->relay, -1);
    return status;
}

void kolo_window_describe(void *arg, char *buf, size_t bytes)
{
    const kolo_window_run_t *run = arg;
    const kolo_signal_wait_t *wait = awaited(run);
    if (wait)
        snprintf(buf, bytes,
                 "rank %d, in a wait for signals" KOLO_WAIT_FOR
                 "rank %d to signal: %u of %u signals with number %d "
                 "have come",
                 run->body->rank, wait->peer, come(run, wait), wait->count, wait->signal);
    else
        snprintf(buf, bytes, "rank %d, in a put" KOLO_WAIT_FOR "its data to be sent", run->body->rank);
}

void kolo_window_end(kolo_window_run_t *run, kolo_status_t status)
{
    kolo_windows_t *w = run->body->windows;
    if (status != KOLO_OK && run->issued && w && w->relay) kolo_relay_drop(w->relay);
}

/* ---- one call ---- */

static kolo_status_t look(void *arg)
{
    kolo_window_run_t *run = arg;
    kolo_record_waits(&run->body->track.record);
    const kolo_signal_wait_t *wait = awaited(run);
    if (wait)
        kolo_record_awaits(
            &run->body->track.record, (uint32_t)wait->peer,
            kolo_signature(KOLO_COLL_P2P, KOLO_UINT8, KOLO_P2P_WORD_WAIT, (uint32_t)wait->peer, wait->count));
    kolo_pidwatch_look_out(run->body->oob);
    return KOLO_OK;
}

static void explain(void *arg, char *buf, size_t bytes)
{
    kolo_ask_around_stalled(((const kolo_window_run_t *)arg)->body, buf, bytes);
}

static kolo_status_t run_slowly(kolo_window_run_t *run)
{
    kolo_body_t *body = run->body;
    uint64_t deadline = body->op_timeout_ms ? kolo_deadline_ms(body->op_timeout_ms) : 0;
    bool crowded = body->choice.tune.max_node_size > body->choice.tune.cores;
    uint32_t polls = 0;
    kolo_wait_t wait;
    kolo_status_t status;
    kolo_wait_init(&wait, &body->stop.reason, deadline, kolo_window_describe, run, crowded ? INT_MAX : 1);
    wait.wakers[wait.nwakers++] = &body->ctx.waker;
    wait.look = look;
    wait.explain = explain;
    for (;;) {
        bool moved = false;
        status = kolo_window_step(run, &moved);
        if (status != KOLO_IN_PROGRESS) break;
        if (moved) {
            kolo_wait_end(&wait);
            polls = 0;
            continue;
        }
        if (KOLO_UNLIKELY(++polls % POLLS_PER_CHECK == 0 || wait.armed) &&
            (status = kolo_window_check(run)) != KOLO_OK)
            break;
        if ((status = kolo_wait_pause(&wait)) != KOLO_OK) break;
    }
    kolo_wait_end(&wait);
    return status;
}

kolo_status_t kolo_window_run_single(const kolo_call_t *call)
{
    kolo_body_t *body = call->comm->body;
    kolo_window_run_t run;
    bool moved = false;
    kolo_record_begin(&body->track.record, call, body->track.operation, kolo_mismatch_word(call),
                      KOLO_RECORD_RUNNING, KOLO_RECORD_NO_ALGO);
    kolo_status_t status = kolo_window_begin(&run, body, call, 1);
    if (status == KOLO_OK) status = kolo_window_step(&run, &moved);
    if (status == KOLO_IN_PROGRESS) status = run_slowly(&run);
    kolo_window_end(&run, status);
    return status;
}
