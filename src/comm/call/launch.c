/* SPDX-License-Identifier: Apache-2.0
 *
 * From a checked call to a running task: tickets keep the order of calls, the memo finds what a call of this
 * signature is run by (bind.c), the executor runs it.
 */
#include "base/failpoint.h"
#include "comm/call/call.h"
#include "comm/window/window.h"

static inline bool memo_is(const kolo_memo_t *memo, const kolo_call_t *call, uint64_t signature, bool v)
{
    return memo->signature == signature && memo->v == v && memo->count == call->count && memo->root == call->root;
}

/* Returns the entry of a signature; where there is none, one of its pair, to be filled. Fibonacci hashing (Knuth,
 * TAOCP 6.4): counts are often multiples of a power of two, so low bits tell nothing. Two to a set: a barrier
 * between two calls of anything else must not push it out. */
static kolo_memo_t *find_memo(kolo_body_t *body, const kolo_call_t *call, uint64_t signature, bool v)
{
    kolo_memo_t *set = &body->plans.memo[(signature * 0x9e3779b97f4a7c15ull >> (64 - KOLO_MEMO_BITS)) * 2];
    if (KOLO_LIKELY(memo_is(&set[0], call, signature, v))) return &set[0];
    if (memo_is(&set[1], call, signature, v)) return &set[1];
    set[1] = set[0];
    set[0] = (kolo_memo_t){0};
    return &set[0];
}

/* Gives the collective its number and shows it. The entry of its signature: not `known` until it is filled. */
static kolo_memo_t *begin(const kolo_call_t *call, kolo_task_t *task, bool *known)
{
    kolo_body_t *body = call->comm->body;
    uint64_t signature = kolo_call_signature(call);
    bool v = call->send_counts || call->recv_counts;
    kolo_memo_t *memo = find_memo(body, call, signature, v);
    task->ctx = &body->ctx;
    task->rank = (uint32_t)body->rank;
    task->signature = signature;
    task->operation = body->track.operation++;
    kolo_board_publish(&body->track.board, task->operation, signature);
    *known = memo_is(memo, call, signature, v);
    kolo_record_begin(&body->track.record, call, task->operation, signature,
                      KOLO_LIKELY(*known) ? KOLO_RECORD_RUNNING : KOLO_RECORD_CONNECTING,
                      KOLO_LIKELY(*known) ? memo->way : KOLO_RECORD_NO_ALGO);
    return memo;
}

static inline kolo_status_t prepare(const kolo_call_t *call, kolo_task_t *task)
{
    bool known;
    kolo_memo_t *memo = begin(call, task, &known);
    return kolo_call_bind_task(call, task, memo, known);
}

/* Does what the collective's definition says for one rank. */
static kolo_status_t run_alone(const kolo_call_t *call)
{
    kolo_reducer_t r;
    kolo_body_t *body = call->comm->body;
    kolo_record_begin(&body->track.record, call, body->track.operation++, kolo_call_signature(call),
                      KOLO_RECORD_RUNNING, KOLO_RECORD_NO_ALGO);
    KOLO_TRY(kolo_call_reducer(call, &r));
    uint64_t count = call->coll == KOLO_COLL_ALL_TO_ALL && call->send_counts ? call->send_counts[0] : call->count;
    if (call->coll == KOLO_COLL_BARRIER || count == 0) return KOLO_OK;
    const char *src = call->src;
    char *dst = call->dst;
    if (call->send_displs) src += call->send_displs[0] * call->elem;
    if (call->recv_displs) dst += call->recv_displs[0] * call->elem;
    bool reduce = kolo_coll_reduces(call->coll);
    if (reduce || src != dst) kolo_reduce_load(&r, dst, src, count, reduce, reduce);
    return KOLO_OK;
}

static inline kolo_status_t run_coll(const kolo_call_t *call)
{
    kolo_body_t *body = call->comm->body;
    kolo_task_t task;
    kolo_wait_t wait;
    if (body->nranks == 1) return run_alone(call);
    if (kolo_deep()) KOLO_TRY(kolo_deep_check_ranks(call));
    KOLO_FAIL_POINT_TRY("comm.call.start");
    KOLO_TRY(prepare(call, &task));
    bool moved = false;
    kolo_status_t status = task.step(&task, &moved);
    if (KOLO_LIKELY(status == KOLO_OK)) return KOLO_OK;
    if (status == KOLO_IN_PROGRESS) {
        KOLO_FAIL_POINT("comm.call.wait");
        kolo_mismatch_wait_init(body, &wait, &task);
        wait.look = kolo_mismatch_look;
        status = kolo_task_run(&task, &wait);
    } else {
        kolo_task_cancel(&task);
    }
    if (KOLO_UNLIKELY(status == KOLO_ERR_MISMATCH)) kolo_mismatch_met(&task);
    return status;
}

/* ---- a collective in steps ---- */

kolo_status_t kolo_coll_step(kolo_coll_run_t *run, bool *moved)
{
    const kolo_call_t *call = run->call;
    kolo_body_t *body = call->comm->body;
    bool known = true;
    if (body->nranks == 1) return run_alone(call);
    if (!run->begun) {
        if (kolo_deep()) KOLO_TRY(kolo_deep_check_ranks(call));
        KOLO_FAIL_POINT_TRY("comm.call.start");
        run->memo = begin(call, &run->task, &known);
        run->connecting = !known;
        run->begun = true;
        if (known) KOLO_TRY(kolo_call_bind_task(call, &run->task, run->memo, true));
        run->running = known;
    }
    if (run->connecting) {
        KOLO_TRY(kolo_call_bind_in_steps(run));
        run->connecting = false;
        KOLO_TRY(kolo_call_bind_task(call, &run->task, run->memo, false));
        run->running = *moved = true;
    }
    kolo_status_t status = run->task.step(&run->task, moved);
    if (status == KOLO_IN_PROGRESS) return status;
    if (status != KOLO_OK) kolo_task_cancel(&run->task);
    if (status == KOLO_ERR_MISMATCH) kolo_mismatch_met(&run->task);
    run->running = false;
    return status;
}

void kolo_coll_end(kolo_coll_run_t *run, kolo_status_t status)
{
    kolo_body_t *body = run->call->comm->body;
    if (run->running) kolo_task_cancel(&run->task);
    kolo_making_end(run->making, KOLO_ERR_ABORTED);
    kolo_plan_free(run->plan);
    kolo_record_end(&body->track.record, status);
}

kolo_status_t kolo_call_run(const kolo_call_t *call)
{
    kolo_status_t status = KOLO_LIKELY(call->kind == KOLO_CALL_COLL) ? run_coll(call)
                           : call->window                            ? kolo_window_run_single(call)
                                                                     : kolo_p2p_run_single(call);
    kolo_record_end(&call->comm->body->track.record, status);
    return status;
}

kolo_status_t kolo_call_turn(const kolo_call_t *call, uint64_t ticket)
{
    kolo_comm_t comm = call->comm;
    kolo_status_t status = kolo_ticket_wait(comm, ticket);
    if (KOLO_LIKELY(status == KOLO_OK)) {
        status = kolo_call_run(call);
        if (KOLO_UNLIKELY(status != KOLO_OK)) {
            status = kolo_body_fail_operation(comm->body, status, call, 1);
        }
    } else {
        if (comm->error_is_news) kolo_lost_refused(comm->body, call, 1);
        kolo_record_drop(comm->body, call, status);
    }
    return status;
}
