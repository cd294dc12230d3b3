/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread of a staged communicator: takes the operation that a stream has come to, runs it, and lets the stream
 * go on. After a failure or a cancel it lets all streams go on at once, once its own copies are over.
 */
#include "base/log.h"
#include "exec/staged/staged.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- copies ---- */

kolo_status_t kolo_staged_look(kolo_staged_t *s, kolo_cu_event_t event, bool *set)
{
    if (!*set) return KOLO_OK;
    kolo_cu_result_t r = s->api->event_query(event);
    if (r == KOLO_CU_NOT_READY) return KOLO_IN_PROGRESS;
    *set = false;
    return r ? kolo_cuda_fail(r, s->device->ordinal, "copy to or from host memory") : KOLO_OK;
}

static void describe_copy(void *arg, char *buf, size_t bytes)
{
    const kolo_staged_t *s = arg;
    snprintf(buf, bytes, "rank %d" KOLO_WAIT_FOR "a copy between GPU %d and host memory", s->rank,
             s->device->ordinal);
}

kolo_status_t kolo_staged_await(kolo_staged_t *s, kolo_cu_event_t event, bool *set)
{
    kolo_wait_t wait;
    kolo_status_t status;
    kolo_wait_init(&wait, &s->cancelled, 0, describe_copy, s, 1);
    while ((status = kolo_staged_look(s, event, set)) == KOLO_IN_PROGRESS)
        if ((status = kolo_wait_pause(&wait)) != KOLO_OK) break;
    kolo_wait_end(&wait);
    return status;
}

kolo_status_t kolo_staged_copy(kolo_staged_t *s, kolo_cu_stream_t stream, void *to, const void *from, size_t bytes)
{
    if (!bytes) return KOLO_OK;
    kolo_cu_result_t r = s->api->memcpy_async((uintptr_t)to, (uintptr_t)from, bytes, stream);
    return r ? kolo_cuda_fail(r, s->device->ordinal, "copy to or from host memory") : KOLO_OK;
}

kolo_status_t kolo_staged_mark(kolo_staged_t *s, kolo_cu_stream_t stream, kolo_cu_event_t event, bool *set)
{
    kolo_cu_result_t r = s->api->event_record(event, stream);
    if (r) return kolo_cuda_fail(r, s->device->ordinal, "record an event");
    *set = true;
    return KOLO_OK;
}

kolo_status_t kolo_staged_settle(kolo_staged_t *s)
{
    return kolo_staged_await(s, s->tail, &s->tail_set);
}

/* ---- operations ---- */

static kolo_status_t run(kolo_staged_t *s, const kolo_staged_op_t *op)
{
    bool messages = op->calls[0].kind != KOLO_EXEC_COLL;
    if (messages || s->messages) KOLO_TRY(kolo_staged_settle(s));
    s->messages = messages;
    if (messages)
        KOLO_TRY(kolo_staged_messages(s, op->calls, op->n));
    else
        KOLO_TRY(kolo_staged_collective(s, op->calls));
    return kolo_staged_mark(s, s->up, s->tail, &s->tail_set);
}

/* Behind the last copies to the device. */
static kolo_status_t let_go(kolo_staged_t *s, const kolo_staged_op_t *op)
{
    uint32_t word = op->word ? op->word : KOLO_STAGED_DONE, value = op->word ? 1 : op->number;
    kolo_cu_result_t r = s->api->stream_write_word(s->up, kolo_staged_word_device(s, word), value, 0);
    return r ? kolo_cuda_fail(r, s->device->ordinal, "end an operation") : KOLO_OK;
}

/* Nothing will run any more: streams go on with what is in their buffers. */
static void let_all_go(kolo_staged_t *s)
{
    if (s->api->stream_sync(s->down) || s->api->stream_sync(s->up))
        kolo_warn("exec", "rank %d: copies of GPU %d did not end well", s->rank, s->device->ordinal);
    pthread_mutex_lock(&s->lock);
    for (kolo_staged_op_t *op; (op = kolo_staged_pop(&s->queue));) free(op);
    for (kolo_staged_op_t *op; (op = kolo_staged_pop(&s->replays));) kolo_staged_set_word(s, op->word, 1);
    kolo_staged_set_word(s, KOLO_STAGED_DONE, s->number);
    pthread_mutex_unlock(&s->lock);
}

static void run_and_end(kolo_staged_t *s, kolo_staged_op_t *op)
{
    kolo_status_t status = run(s, op);
    if (status == KOLO_OK) status = let_go(s, op);
    if (status != KOLO_OK) {
        s->env.host->fail(s->env.host_arg, status, op->calls);
        atomic_store(&s->cancelled, 1);
    }
    pthread_mutex_lock(&s->lock);
    if (status != KOLO_OK && op->word) kolo_staged_push(&s->replays, op); /* its stream is let go with the others */
    s->running = false;
    pthread_mutex_unlock(&s->lock);
    if (!op->word) free(op);
}

/* The operation that a stream has come to; *idle: nothing is queued at all. */
static kolo_staged_op_t *take(kolo_staged_t *s, bool *idle)
{
    kolo_staged_op_t *op = NULL;
    pthread_mutex_lock(&s->lock);
    const kolo_staged_op_t *first = s->queue.head;
    bool cancelled = atomic_load(&s->cancelled);
    if (s->replays.head && !cancelled)
        op = kolo_staged_pop(&s->replays);
    else if (first && !cancelled && (int32_t)(kolo_staged_word(s, KOLO_STAGED_READY) - first->number) >= 0)
        op = kolo_staged_pop(&s->queue);
    s->running = op != NULL;
    *idle = !s->replays.head && (!first || cancelled);
    pthread_mutex_unlock(&s->lock);
    return op;
}

static void describe_next(void *arg, char *buf, size_t bytes)
{
    const kolo_staged_t *s = arg;
    snprintf(buf, bytes, "rank %d" KOLO_WAIT_FOR "a stream of GPU %d to come to the next operation", s->rank,
             s->device->ordinal);
}

void *kolo_staged_work(void *state)
{
    kolo_staged_t *s = state;
    kolo_wait_t wait;
    bool pushed, idle;
    if (kolo_cuda_enter(s->device, &pushed) != KOLO_OK) {
        s->env.host->fail(s->env.host_arg, KOLO_ERR_SYSTEM, NULL);
        return NULL;
    }
    kolo_wait_init(&wait, NULL, 0, describe_next, s, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&s->gate);
        bool stopping = atomic_load(&s->stopping);
        if (atomic_load(&s->cancelled)) let_all_go(s);
        kolo_staged_op_t *op = take(s, &idle);
        if (op) {
            kolo_wait_end(&wait);
            run_and_end(s, op);
        } else if (idle && stopping) {
            break;
        } else if (idle) {
            kolo_wait_end(&wait);
            kolo_gate_wait(&s->gate, ticket, &wait);
        } else {
            kolo_wait_pause(&wait); /* cannot fail: neither flag nor limit */
        }
    }
    kolo_wait_end(&wait);
    kolo_cuda_leave(pushed);
    return NULL;
}
