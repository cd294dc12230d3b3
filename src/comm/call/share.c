/* SPDX-License-Identifier: Apache-2.0
 *
 * A share is what one group has for one communicator. Its collectives run in the order of their calls; its sends
 * and receives run beside them, as all calls of a group do that have no order of their own. Nothing in a share
 * waits: it takes steps, so one thread runs the shares of several communicators, and what holds one up holds up no
 * other. A share begins when its communicator's earlier operations are over (its ticket is up).
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "comm/call/call.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLLS_PER_CHECK 1024

/* ---- one share ---- */

static kolo_status_t begin_messages(kolo_share_t *s)
{
    kolo_body_t *body = s->comm->body;
    s->nmessages = 0;
    for (size_t i = 0; i < s->count; i++)
        if (s->calls[i].kind != KOLO_CALL_COLL && !s->calls[i].window) s->messages[s->nmessages++] = s->calls[i];
    if (s->nmessages == 0) return KOLO_OK;
    kolo_record_begin_pairs(body, s->messages, s->nmessages);
    kolo_status_t status = kolo_p2p_begin(body, s->messages, s->nmessages, &s->p2p);
    s->pairing = status == KOLO_OK;
    KOLO_FAIL_POINT("comm.messages.run");
    if (status != KOLO_OK) kolo_record_end_pairs(body, s->messages, s->nmessages, status);
    return status;
}

static void end_messages(kolo_share_t *s, kolo_status_t status)
{
    if (!s->pairing) return;
    kolo_p2p_end(&s->p2p);
    kolo_record_end_pairs(s->comm->body, s->messages, s->nmessages, status);
    s->pairing = false;
}

static uint64_t operation_deadline(const kolo_body_t *body)
{
    return body->op_timeout_ms ? kolo_deadline_ms(body->op_timeout_ms) : 0;
}

static kolo_status_t step_messages(kolo_share_t *s, bool *moved)
{
    kolo_status_t status = kolo_p2p_step(&s->p2p, moved);
    if (status == KOLO_IN_PROGRESS) {
        /* connecting has a limit of its own */
        if (!s->pairs_deadline_ns && !s->p2p.connecting) s->pairs_deadline_ns = operation_deadline(s->comm->body);
        return status;
    }
    status = kolo_mismatch_end_pairs(s->messages, s->nmessages, status);
    if (status != KOLO_OK) return status;
    *moved = true;
    end_messages(s, KOLO_OK);
    return KOLO_OK;
}

/* Puts and signals are issued at once, in their order; waits are looked at from step to step. */
static kolo_status_t begin_windows(kolo_share_t *s)
{
    kolo_body_t *body = s->comm->body;
    kolo_call_t *ones = s->messages + s->nmessages;
    s->nonesided = 0;
    for (size_t i = 0; i < s->count; i++)
        if (s->calls[i].window) ones[s->nonesided++] = s->calls[i];
    if (s->nonesided == 0) return KOLO_OK;
    kolo_record_begin_pairs(body, ones, s->nonesided);
    s->in_onesided = true;
    return kolo_window_begin(&s->ones, body, ones, s->nonesided);
}

static void end_windows(kolo_share_t *s, kolo_status_t status)
{
    if (!s->in_onesided) return;
    kolo_window_end(&s->ones, status);
    kolo_record_end_pairs(s->comm->body, s->messages + s->nmessages, s->nonesided, status);
    s->in_onesided = false;
}

static kolo_status_t step_windows(kolo_share_t *s, bool *moved)
{
    kolo_status_t status = kolo_window_step(&s->ones, moved);
    if (status == KOLO_IN_PROGRESS && !s->ones_deadline_ns) s->ones_deadline_ns = operation_deadline(s->comm->body);
    if (status != KOLO_OK) return status;
    *moved = true;
    end_windows(s, KOLO_OK);
    return KOLO_OK;
}

static kolo_status_t step_collectives(kolo_share_t *s, bool *moved)
{
    for (; s->at < s->count; s->at++) {
        if (s->calls[s->at].kind != KOLO_CALL_COLL) continue;
        if (!s->in_collective) s->coll = (kolo_coll_run_t){.call = &s->calls[s->at]};
        s->in_collective = true;
        kolo_status_t status = kolo_coll_step(&s->coll, moved);
        if (status == KOLO_IN_PROGRESS) {
            if (!s->coll_deadline_ns && !s->coll.connecting)
                s->coll_deadline_ns = operation_deadline(s->comm->body);
            return status;
        }
        if (status != KOLO_OK) return status;
        kolo_coll_end(&s->coll, KOLO_OK);
        s->in_collective = false;
        s->coll_deadline_ns = 0;
        *moved = true;
    }
    return KOLO_OK;
}

static kolo_status_t begin(kolo_share_t *s)
{
    kolo_status_t status = kolo_ticket_wait(s->comm, s->ticket); /* does not wait: it is up */
    s->turn = true;
    s->comm->body->waits.stalled.operation = s->comm->body->waits.stalled_pairs.operation = KOLO_BOARD_NONE;
    if (status == KOLO_OK) {
        KOLO_TRY(begin_messages(s));
        return begin_windows(s);
    }
    if (s->comm->error_is_news) kolo_lost_refused(s->comm->body, s->calls, s->count);
    s->refused = true; /* the communicator has its error already */
    return status;
}

/* Moves a share on; KOLO_IN_PROGRESS while it is not over. */
static kolo_status_t step(kolo_share_t *s, bool *moved)
{
    if (s->status != KOLO_OK) return kolo_fail(s->status, "%s", s->text); /* found while it waited */
    if (!s->turn) {
        if (atomic_load_explicit(&s->comm->done, memory_order_acquire) != s->ticket) return KOLO_IN_PROGRESS;
        KOLO_TRY(begin(s));
    }
    kolo_status_t messages = s->pairing ? step_messages(s, moved) : KOLO_OK;
    if (messages != KOLO_OK && messages != KOLO_IN_PROGRESS) return messages;
    kolo_status_t windows = s->in_onesided ? step_windows(s, moved) : KOLO_OK;
    if (windows != KOLO_OK && windows != KOLO_IN_PROGRESS) return windows;
    kolo_status_t collectives = step_collectives(s, moved);
    if (collectives != KOLO_OK && collectives != KOLO_IN_PROGRESS) return collectives;
    KOLO_TRY(kolo_wire_step(&s->comm->body->ctx));
    return messages != KOLO_OK ? messages : windows != KOLO_OK ? windows : collectives;
}

/* Ends a share but for its turn. */
static void end(kolo_share_t *s, kolo_status_t status)
{
    kolo_body_t *body = s->comm->body;
    s->status = status;
    if (status == KOLO_OK) return;    /* each part has ended */
    char text[KOLO_ERROR_TEXT_BYTES]; /* giving up what runs says things of its own */
    snprintf(text, sizeof text, "%s", kolo_error_text());
    if (s->in_collective) kolo_coll_end(&s->coll, status);
    end_messages(s, status);
    end_windows(s, status);
    s->in_collective = false;
    (void)kolo_fail(status, "%s", text);
    if (!s->refused) s->status = kolo_body_fail_operation(body, status, s->calls, s->count);
    snprintf(s->text, sizeof s->text, "%s", kolo_error_text());
    for (size_t i = 0; i < s->count; i++) kolo_record_drop(body, &s->calls[i], s->status);
}

void kolo_call_share_skip(kolo_share_t *s, kolo_status_t status)
{
    s->status = status;
    snprintf(s->text, sizeof s->text, "%s", kolo_error_text());
    kolo_ticket_wait(s->comm, s->ticket);
    for (size_t i = 0; i < s->count; i++) kolo_record_drop(s->comm->body, &s->calls[i], status);
    kolo_ticket_end(s->comm, s->ticket);
}

/* ---- several ---- */

typedef struct {
    kolo_share_t **shares;
    size_t count, open;
    kolo_wait_t wait;
    bool wait_set; /* for those that are open and have their turn now */
} run_t;

static void describe_share(kolo_share_t *s, char *buf, size_t bytes)
{
    if (!s->turn)
        snprintf(buf, bytes, "the operations called before a group on %s rank %d", s->comm->name, s->comm->rank);
    else if (s->in_collective && s->coll.running)
        kolo_task_describe(&s->coll.task, buf, bytes);
    else if (s->in_collective && s->coll.making)
        snprintf(buf, bytes, "rank %d, in operation %llu" KOLO_WAIT_FOR "rank %d to come and connect",
                 s->comm->rank, (unsigned long long)s->coll.task.operation, kolo_making_awaits(s->coll.making));
    else if (!s->pairing && s->in_onesided)
        kolo_window_describe(&s->ones, buf, bytes);
    else
        kolo_p2p_describe(&s->p2p, buf, bytes);
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const run_t *run = arg;
    for (size_t i = 0; i < run->count; i++) {
        if (run->shares[i]->over) continue;
        describe_share(run->shares[i], buf, bytes);
        return;
    }
    snprintf(buf, bytes, "a group that is over");
}

/* Collectives that this rank comes to without another call. */
static uint64_t behind(const kolo_share_t *s)
{
    uint64_t n = 0;
    for (size_t i = s->at; i < s->count; i++) n += s->calls[i].kind == KOLO_CALL_COLL;
    return s->in_collective && s->coll.begun ? n - 1 : n;
}

static kolo_status_t look_at(kolo_share_t *s, uint64_t now)
{
    kolo_body_t *body = s->comm->body;
    char text[512], words[600];
    if (!s->turn) return KOLO_OK; /* those before it have flags and limits of their own, and end in order */
    bool late = (s->coll_deadline_ns && now >= s->coll_deadline_ns) ||
                (s->pairing && s->pairs_deadline_ns && now >= s->pairs_deadline_ns) ||
                (s->in_onesided && s->ones_deadline_ns && now >= s->ones_deadline_ns);
    bool stopped = atomic_load_explicit(&body->stop.reason, memory_order_acquire) != 0;
    if (late || stopped) describe_share(s, text, sizeof text);
    if (stopped) return kolo_fail(KOLO_ERR_ABORTED, "aborted while waiting for %s", text);
    if (s->in_collective && s->coll.running) KOLO_TRY(kolo_mismatch_look(&s->coll.task));
    if (s->in_collective && s->coll.making)
        KOLO_TRY(kolo_mismatch_look_connecting(body, s->coll.task.operation, kolo_making_awaits(s->coll.making)));
    if (s->pairing)
        KOLO_TRY(kolo_mismatch_end_pairs(s->messages, s->nmessages, kolo_mismatch_look_pairs(&s->p2p, behind(s))));
    if (!late) return KOLO_OK;
    kolo_wait_words(text, (uint64_t)body->op_timeout_ms * KOLO_NS_PER_MS, words, sizeof words);
    return kolo_fail(KOLO_ERR_TIMEOUT, "time-out: %s", words);
}

static void note(kolo_share_t *s, kolo_status_t status)
{
    if (status == KOLO_OK) return;
    s->status = status;
    snprintf(s->text, sizeof s->text, "%s", kolo_error_text());
}

/* Looks at all shares, for the wait. What ends one must not end the others' wait, so it is noted for the next
 * step. */
static kolo_status_t look(void *arg)
{
    const run_t *run = arg;
    uint64_t now = kolo_now_ns();
    for (size_t i = 0; i < run->count; i++) {
        kolo_share_t *s = run->shares[i];
        if (!s->over && s->status == KOLO_OK) note(s, look_at(s, now));
    }
    return KOLO_OK;
}

static kolo_status_t check_collective(kolo_task_t *task)
{
    kolo_status_t status = kolo_task_check_peers(task);
    if (status == KOLO_ERR_MISMATCH) kolo_mismatch_met(task);
    return status;
}

static void check_peers(const run_t *run)
{
    for (size_t i = 0; i < run->count; i++) {
        kolo_share_t *s = run->shares[i];
        if (s->over || s->status != KOLO_OK) continue;
        if (s->in_collective && s->coll.running) note(s, check_collective(&s->coll.task));
        if (s->status == KOLO_OK && s->in_onesided) note(s, kolo_window_check(&s->ones));
        if (s->status == KOLO_OK && s->pairing)
            note(s, kolo_mismatch_end_pairs(s->messages, s->nmessages, kolo_p2p_check(&s->p2p)));
    }
}

/* Asks for the first that is not over, which speaks for all, as in describe(). */
static void explain(void *arg, char *buf, size_t bytes)
{
    const run_t *run = arg;
    for (size_t i = 0; i < run->count; i++) {
        if (run->shares[i]->over || !run->shares[i]->turn) continue;
        kolo_ask_around_stalled(run->shares[i]->comm->body, buf, bytes);
        return;
    }
}

/* Sets the wait up for the shares that have their turn: before it another thread may sleep on that waker. Where
 * there are none, or more than one can sleep on, it takes short naps. */
static void set_wait(run_t *run)
{
    bool crowded = false;
    kolo_waker_t *wakers[KOLO_WAIT_MAX_WAKERS];
    uint32_t n = 0;
    for (size_t i = 0; i < run->count; i++) {
        if (run->shares[i]->over || !run->shares[i]->turn) continue;
        kolo_body_t *body = run->shares[i]->comm->body;
        if (n < KOLO_WAIT_MAX_WAKERS) wakers[n] = &body->ctx.waker;
        n++;
        crowded |= body->choice.tune.max_node_size > body->choice.tune.cores;
    }
    run->wait_set = true;
    kolo_wait_init(&run->wait, NULL, 0, describe, run, crowded ? INT_MAX : 1);
    run->wait.look = look;
    run->wait.explain = explain;
    if (n > KOLO_WAIT_MAX_WAKERS) return;
    run->wait.nwakers = n;
    memcpy(run->wait.wakers, wakers, n * sizeof(kolo_waker_t *));
}

/* Ends a wait because other shares than before may sleep from now on. */
static void end_wait(run_t *run)
{
    kolo_wait_end(&run->wait);
    run->wait_set = false;
}

static bool step_all(run_t *run, void (*ended)(kolo_share_t *share, void *arg), void *arg)
{
    bool moved = false;
    for (size_t i = 0; i < run->count; i++) {
        kolo_share_t *s = run->shares[i];
        if (s->over) continue;
        bool had_turn = s->turn;
        kolo_status_t status = step(s, &moved);
        if (had_turn != s->turn) end_wait(run);
        if (status == KOLO_IN_PROGRESS) continue;
        end(s, status);
        end_wait(run); /* with the turn may go the communicator, and its waker */
        s->over = true;
        kolo_ticket_end(s->comm, s->ticket);
        run->open--;
        if (ended) ended(s, arg);
        moved = true;
    }
    return moved;
}

void kolo_call_shares_run(kolo_share_t **shares, size_t count, void (*ended)(kolo_share_t *share, void *arg),
                          void *arg)
{
    run_t run = {.shares = shares, .count = count, .open = count};
    uint64_t polls = 0;
    if (count == 1) kolo_ticket_wait(shares[0]->comm, shares[0]->ticket); /* sleeps until the one before is over */
    for (;;) {
        bool moved = step_all(&run, ended, arg);
        if (run.open == 0) break;
        if (moved) {
            kolo_wait_end(&run.wait);
            continue;
        }
        if (!run.wait_set) set_wait(&run);
        if (++polls % POLLS_PER_CHECK == 0 || run.wait.armed) check_peers(&run);
        (void)kolo_wait_pause(&run.wait); /* cannot fail: limits and flags are each share's own */
    }
    kolo_wait_end(&run.wait);
}
