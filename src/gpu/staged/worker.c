/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread of a staged communicator: takes the operation that a stream has come to, has its pieces run on the
 * host, and lets the stream go on. It calls nothing of the driver. After a failure or a cancel all streams go on at
 * once.
 */
#include "gpu/staged/staged.h"

#include <stdio.h>
#include <stdlib.h>

static void describe(void *arg, char *buf, size_t bytes)
{
    const kolo_staged_t *s = arg;
    snprintf(buf, bytes, "rank %d" KOLO_WAIT_FOR "a stream of GPU %d to come to the next operation", s->rank,
             s->device->ordinal);
}

/* Copies from the device are under way: the piece comes soon. */
static kolo_status_t await_piece(kolo_staged_t *s, const kolo_staged_op_t *op, uint32_t number)
{
    kolo_wait_t wait;
    kolo_status_t status = KOLO_OK;
    kolo_wait_init(&wait, &s->cancelled, 0, describe, s, 1);
    while (status == KOLO_OK && !kolo_staged_came(s, op->pair, number)) status = kolo_wait_pause(&wait);
    kolo_wait_end(&wait);
    return status;
}

static void has_run(kolo_staged_t *s)
{
    pthread_mutex_lock(&s->lock);
    s->running = false;
    pthread_mutex_unlock(&s->lock);
}

static kolo_status_t run(kolo_staged_t *s, const kolo_staged_op_t *op)
{
    for (uint32_t p = 0; p < op->pieces; p++) {
        uint32_t number = op->base + 1 + p;
        KOLO_TRY(await_piece(s, op, number));
        if (kolo_staged_is_coll(op))
            KOLO_TRY(kolo_staged_collective_run(s, op, p));
        else
            KOLO_TRY(kolo_staged_messages_run(s, op));
        if (p + 1 == op->pieces) has_run(s); /* what a stream shows as complete is so, also to who polls */
        kolo_staged_let_go(s, op->pair, number);
    }
    return KOLO_OK;
}

/* Lets all streams go on with what is in their buffers: nothing will run any more. */
static void let_all_go(kolo_staged_t *s)
{
    pthread_mutex_lock(&s->lock);
    if (s->queue.head || s->replays.head) atomic_store(&s->dropped, true);
    for (kolo_staged_op_t *op; (op = kolo_staged_pop(&s->queue));) free(op);
    for (kolo_staged_op_t *op; (op = kolo_staged_pop(&s->replays));)
        kolo_staged_let_go(s, op->pair, op->base + op->pieces);
    kolo_staged_let_go(s, 0, s->number);
    pthread_mutex_unlock(&s->lock);
}

static void run_and_end(kolo_staged_t *s, kolo_staged_op_t *op)
{
    kolo_status_t status = run(s, op);
    if (status != KOLO_OK) {
        atomic_store(&s->dropped, true);
        s->env.host->fail(s->env.host_arg, status, op->calls);
        atomic_store(&s->cancelled, 1); /* last: a call that sees it asks why */
    }
    pthread_mutex_lock(&s->lock);
    if (status != KOLO_OK && op->pair) kolo_staged_push(&s->replays, op); /* its stream is let go with the others */
    s->running = false;
    pthread_mutex_unlock(&s->lock);
    if (!op->pair) free(op);
}

/* Takes the operation that a stream has come to; *idle: nothing is queued at all. */
static kolo_staged_op_t *take(kolo_staged_t *s, bool *idle)
{
    kolo_staged_op_t *op = NULL;
    pthread_mutex_lock(&s->lock);
    const kolo_staged_op_t *first = s->queue.head;
    bool cancelled = atomic_load(&s->cancelled);
    if (s->replays.head && !cancelled)
        op = kolo_staged_pop(&s->replays);
    else if (first && !cancelled && kolo_staged_came(s, 0, first->base + 1))
        op = kolo_staged_pop(&s->queue);
    s->running = op != NULL;
    *idle = !s->replays.head && (!first || cancelled);
    pthread_mutex_unlock(&s->lock);
    return op;
}

void *kolo_staged_work(void *state)
{
    kolo_staged_t *s = state;
    kolo_wait_t wait;
    bool idle;
    kolo_wait_init(&wait, NULL, 0, describe, s, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&s->gate);
        bool stopping = atomic_load(&s->stopping);
        if (atomic_load(&s->cancelled)) let_all_go(s);
        kolo_staged_op_t *op = take(s, &idle);
        if (op) {
            kolo_wait_renew(&wait);
            run_and_end(s, op);
        } else if (idle && stopping) {
            break;
        } else if (idle) {
            kolo_wait_renew(&wait); /* to have nothing to do is no stall */
            kolo_gate_wait(&s->gate, ticket, &wait);
        } else {
            kolo_wait_pause(&wait); /* cannot fail: neither flag nor limit */
        }
    }
    kolo_wait_end(&wait);
    return NULL;
}
