/* SPDX-License-Identifier: Apache-2.0
 *
 * Queues a call on the caller's stream and does not wait. Operations of one communicator follow each other, on
 * whatever streams they were queued, so the operation whose first piece has arrived is the next one on all ranks.
 * In a captured stream a host function comes first, which announces the operation at each replay.
 */
#include "gpu/staged/staged.h"

#include <stdlib.h>
#include <string.h>

void kolo_staged_push(kolo_staged_queue_t *queue, kolo_staged_op_t *op)
{
    op->next = NULL;
    *queue->tail = op;
    queue->tail = &op->next;
}

kolo_staged_op_t *kolo_staged_pop(kolo_staged_queue_t *queue)
{
    kolo_staged_op_t *op = queue->head;
    if (!op) return NULL;
    queue->head = op->next;
    if (!queue->head) queue->tail = &queue->head;
    return op;
}

/* ---- onto the stream ---- */

static kolo_status_t copy(kolo_staged_t *s, const kolo_staged_op_t *op, uint32_t piece, bool from_device,
                          kolo_cu_stream_t stream)
{
    return kolo_staged_is_coll(op) ? kolo_staged_collective_copy(s, op, piece, from_device, stream)
                                   : kolo_staged_messages_copy(s, op, from_device, stream);
}

static kolo_cu_ptr_t word(const kolo_staged_t *s, uint32_t pair, uint32_t which)
{
    return s->words_device + (2 * pair + which) * sizeof(uint32_t);
}

/* Copies of as many pieces as there are slots go ahead of the first wait; a slot is filled again behind the copy
 * that empties it. */
static kolo_status_t put_pieces(kolo_staged_t *s, const kolo_staged_op_t *op, kolo_cu_stream_t stream)
{
    const uint32_t ahead = KOLO_STAGED_DEPTH - 1;
    for (uint64_t k = 0; k < (uint64_t)op->pieces + ahead; k++) {
        if (k < op->pieces) {
            KOLO_TRY(copy(s, op, (uint32_t)k, true, stream));
            kolo_cu_result_t r =
                s->api->stream_write_word(stream, word(s, op->pair, 0), op->base + 1 + (uint32_t)k, 0);
            KOLO_TRY(kolo_staged_done(s, r, "queue a mark"));
        }
        if (k < ahead) continue;
        uint32_t j = (uint32_t)(k - ahead);
        kolo_cu_result_t r =
            s->api->stream_wait_word(stream, word(s, op->pair, 1), op->base + 1 + j, KOLO_CU_WAIT_AT_LEAST);
        KOLO_TRY(kolo_staged_done(s, r, "queue a wait"));
        KOLO_TRY(copy(s, op, j, false, stream));
    }
    return KOLO_OK;
}

/* Announces a captured operation at each replay. Runs on a thread of the driver, which must not be held up, and
 * calls nothing of it. */
static void replay(void *arg)
{
    kolo_staged_op_t *op = arg;
    kolo_staged_t *s = op->state;
    __atomic_store_n(&s->words[2 * op->pair], 0, __ATOMIC_RELEASE);
    __atomic_store_n(&s->words[2 * op->pair + 1], 0, __ATOMIC_RELEASE);
    pthread_mutex_lock(&s->lock);
    bool ended = s->ended;
    if (ended)
        kolo_staged_let_go(s, op->pair, op->base + op->pieces);
    else
        kolo_staged_push(&s->replays, op);
    pthread_mutex_unlock(&s->lock);
    if (!ended) kolo_gate_open(&s->gate);
}

void kolo_staged_end_replays(kolo_staged_t *s)
{
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    for (kolo_staged_op_t *op; (op = kolo_staged_pop(&s->replays));)
        kolo_staged_let_go(s, op->pair, op->base + op->pieces);
    pthread_mutex_unlock(&s->lock);
}

static kolo_status_t has_pair(const kolo_staged_t *s)
{
    if (s->pairs_used < KOLO_STAGED_PAIRS) return KOLO_OK;
    return kolo_fail(KOLO_ERR_UNSUPPORTED,
                     "rank %d: %u operations of this communicator are captured in graphs, which is all there is "
                     "room for",
                     s->rank, s->pairs_used - 1);
}

/* Parts of one call on one stream: each begins behind the end of the one before it, so one pair does for all. */
static bool goes_on(const kolo_staged_t *s, const kolo_staged_op_t *op)
{
    const kolo_staged_op_t *last = s->captured;
    const kolo_exec_call_t *c = op->calls;
    return last && c->number && last->calls->number == c->number && last->calls->stream == c->stream;
}

static kolo_status_t put_captured(kolo_staged_t *s, kolo_staged_op_t *op, kolo_cu_stream_t stream)
{
    bool more = goes_on(s, op);
    kolo_status_t status = more ? KOLO_OK : has_pair(s);
    if (status != KOLO_OK) {
        free(op);
        return status;
    }
    op->pair = more ? s->captured->pair : s->pairs_used++;
    op->next_captured = s->captured;
    s->captured = op;
    KOLO_TRY(kolo_staged_done(s, s->api->stream_host_call(stream, replay, op), "capture an operation"));
    KOLO_TRY(put_pieces(s, op, stream));
    return kolo_cuda_order_behind(&s->order, stream);
}

/* Takes the operation, also on failure. It is listed before its marks are queued: they are never reached else. */
static kolo_status_t put(kolo_staged_t *s, kolo_staged_op_t *op, kolo_cu_stream_t stream)
{
    kolo_status_t status = kolo_cuda_order_before(&s->order, stream);
    if (status == KOLO_OK && s->order.capturing) return put_captured(s, op, stream);
    if (status != KOLO_OK) {
        free(op);
        return status;
    }
    size_t bytes = sizeof *op + op->n * sizeof op->calls[0];
    kolo_staged_op_t *mine = malloc(bytes); /* the thread frees the other when it is through */
    if (!mine) {
        free(op);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for an operation on a GPU");
    }
    pthread_mutex_lock(&s->lock);
    op->base = s->number;
    s->number += op->pieces;
    memcpy(mine, op, bytes);
    kolo_staged_push(&s->queue, op);
    pthread_mutex_unlock(&s->lock);
    kolo_gate_open(
        &s->gate); /* now: a driver whose queue is full waits until the thread has let the stream go on */
    status = put_pieces(s, mine, stream);
    free(mine);
    return status == KOLO_OK ? kolo_cuda_order_behind(&s->order, stream) : status;
}

/* ---- operations ---- */

/* Copies on the device what this rank sends to itself. The calls have been checked. */
static kolo_status_t copy_own(kolo_staged_t *s, const kolo_exec_call_t *calls, size_t n)
{
    size_t r = 0;
    KOLO_TRY(kolo_cuda_order_before(&s->order, calls->stream));
    for (size_t i = 0; i < n; i++) {
        if (calls[i].kind != KOLO_EXEC_SEND || calls[i].root != s->rank) continue;
        while (!(calls[r].kind == KOLO_EXEC_RECV && calls[r].root == s->rank)) r++;
        KOLO_TRY(kolo_staged_copy(s, calls->stream, calls[r].dst, calls[i].src, calls[i].count * calls[i].elem));
        r++;
    }
    return kolo_cuda_order_behind(&s->order, calls->stream);
}

static kolo_status_t put_calls(kolo_staged_t *s, const kolo_exec_call_t *calls, size_t n)
{
    kolo_staged_op_t *op = calloc(1, sizeof *op + n * sizeof *calls);
    if (!op) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %zu operations on a GPU", n);
    op->state = s;
    for (size_t i = 0; i < n; i++) {
        bool own = calls[i].kind != KOLO_EXEC_COLL && calls[i].root == s->rank;
        if (!own) op->calls[op->n++] = calls[i];
    }
    kolo_status_t status = op->n < n ? copy_own(s, calls, n) : KOLO_OK;
    if (status == KOLO_OK && op->n)
        status = kolo_staged_is_coll(op) ? kolo_staged_collective_plan(s, op) : kolo_staged_messages_plan(s, op);
    if (status == KOLO_OK && op->n) return put(s, op, calls[0].stream);
    free(op);
    return status;
}

static kolo_status_t check_calls(kolo_staged_t *s, const kolo_exec_call_t *calls, size_t n)
{
    for (size_t i = 0; i < n; i++) KOLO_TRY(kolo_exec_check(&calls[i], s->rank, s->nranks, s->device->ordinal));
    KOLO_TRY(kolo_exec_check_own(calls, n, s->rank));
    if (atomic_load(&s->cancelled))
        return kolo_fail(KOLO_ERR_ABORTED, "rank %d: the communicator's operations were ended", s->rank);
    return KOLO_OK;
}

kolo_status_t kolo_staged_check(void *state, const kolo_exec_call_t *calls, size_t n)
{
    kolo_staged_t *s = state;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(s->device, &pushed));
    kolo_status_t status = n ? kolo_cuda_order_look(&s->order, calls->stream) : KOLO_OK;
    if (status == KOLO_OK) status = check_calls(s, calls, n);
    kolo_cuda_leave(pushed);
    return status;
}

static kolo_status_t launch_entered(kolo_staged_t *s, const kolo_exec_call_t *calls, size_t n)
{
    KOLO_TRY(check_calls(s, calls, n));
    for (size_t i = 0; i < n;) {
        size_t end = i + 1;
        while (calls[i].kind != KOLO_EXEC_COLL && end < n && calls[end].kind != KOLO_EXEC_COLL) end++;
        KOLO_TRY(put_calls(s, &calls[i], end - i));
        i = end;
    }
    return KOLO_OK;
}

kolo_status_t kolo_staged_launch(void *state, const kolo_exec_call_t *calls, size_t n)
{
    kolo_staged_t *s = state;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(s->device, &pushed));
    kolo_status_t status = launch_entered(s, calls, n);
    kolo_cuda_leave(pushed);
    return status;
}

kolo_status_t kolo_staged_follow(void *state, void *stream)
{
    kolo_staged_t *s = state;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(s->device, &pushed));
    kolo_status_t status = kolo_cuda_order_before(&s->order, stream);
    if (status == KOLO_OK && s->order.capturing) status = has_pair(s);
    kolo_cuda_leave(pushed);
    return status;
}

/* Asks whether all is over: what the thread has not ended is not; then the end of the last stream counts, since
 * copies and waits on it hold on to the memory. */
kolo_status_t kolo_staged_poll(void *state)
{
    kolo_staged_t *s = state;
    bool pushed;
    pthread_mutex_lock(&s->lock);
    bool busy = s->running || s->queue.head || s->replays.head;
    pthread_mutex_unlock(&s->lock);
    if (busy) return KOLO_IN_PROGRESS;
    KOLO_TRY(kolo_cuda_enter(s->device, &pushed));
    kolo_status_t status = kolo_cuda_order_poll(&s->order);
    kolo_cuda_leave(pushed);
    return status;
}
