/* SPDX-License-Identifier: Apache-2.0
 *
 * The host side of a GPU communicator whose executor works through host memory (exec.h, kolo_exec_host_t): its
 * operations run here as those of a CPU communicator do, with the same algorithms, wires, limits and words. The
 * executor's thread is the only one that runs them, so they take no turns.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "comm/call/call.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLLS_PER_CHECK 1024

static kolo_call_t call_of(kolo_body_t *body, const kolo_exec_call_t *c)
{
    kolo_call_t call = {.kind = c->kind == KOLO_EXEC_COLL   ? KOLO_CALL_COLL
                                : c->kind == KOLO_EXEC_SEND ? KOLO_CALL_SEND
                                                            : KOLO_CALL_RECV,
                        .coll = c->coll,
                        .type = c->reducer.type,
                        .op = c->op,
                        .root = (uint32_t)c->root,
                        .src = c->src,
                        .dst = c->dst,
                        .count = c->count,
                        .send_counts = c->send_counts,
                        .send_displs = c->send_displs,
                        .recv_counts = c->recv_counts,
                        .recv_displs = c->recv_displs,
                        .elem = c->elem,
                        .comm = body->handle};
    return call;
}

static kolo_status_t run(void *arg, const kolo_exec_call_t *c)
{
    kolo_host_side_t *side = arg;
    kolo_reducer_t reducer = c->reducer;
    kolo_call_t call = call_of(side->body, c);
    _Atomic uint64_t *in =
        &side->owner->track.board.in[side->body == side->owner ? KOLO_BOARD_WHOLE : KOLO_BOARD_LANE];
    call.reducer = &reducer; /* looked at for operators that users have made, which may be gone by now */
    atomic_store(in, kolo_board_is_call(c->number) ? c->number : 0);
    kolo_status_t status = kolo_call_run(&call);
    atomic_store(in, 0);
    return status;
}

/* ---- messages ---- */

static kolo_status_t step(kolo_p2p_t *p2p, kolo_wait_t *wait)
{
    kolo_body_t *body = p2p->body;
    bool moved = false;
    kolo_status_t status = kolo_p2p_step(p2p, &moved);
    if (status != KOLO_IN_PROGRESS) return status;
    if (!wait->deadline_ns &&
        body->op_timeout_ms) /* also while it connects: nothing else tells who does not come */
        wait->deadline_ns = kolo_deadline_ms(body->op_timeout_ms);
    KOLO_TRY(kolo_wire_step(&body->ctx));
    if (moved) {
        kolo_wait_end(wait);
        return KOLO_IN_PROGRESS;
    }
    if (wait->polls % POLLS_PER_CHECK == POLLS_PER_CHECK - 1) KOLO_TRY(kolo_p2p_check(p2p));
    KOLO_TRY(kolo_wait_pause(wait));
    return KOLO_IN_PROGRESS;
}

/* Tells all ranks of a difference that one end alone may see. */
static void tell_both(kolo_body_t *body, const kolo_p2p_t *p2p)
{
    const kolo_call_t *call = NULL;
    const kolo_task_t *task = kolo_p2p_met(p2p, &call);
    if (!task) return;
    kolo_signature_fields_t f = kolo_signature_fields(task->met_signature);
    int way = call->kind == KOLO_CALL_SEND ? KOLO_P2P_WORD_RECV : KOLO_P2P_WORD_SEND;
    uint64_t theirs = kolo_signature(KOLO_COLL_P2P, (int)f.type, way, (uint32_t)body->rank, f.count);
    kolo_diag_note_difference(body->oob, &(kolo_difference_t){.rank = body->rank,
                                                              .other = (int)call->root,
                                                              .number = body->track.operation,
                                                              .word = kolo_mismatch_word(call),
                                                              .other_number = body->track.operation,
                                                              .other_word = theirs});
}

/* Pieces of collectives are not run beside messages here. */
static kolo_status_t look(void *arg)
{
    return kolo_mismatch_look_pairs(arg, 0);
}

static kolo_status_t exchange_calls(kolo_body_t *body, kolo_call_t *calls, size_t n)
{
    kolo_p2p_t p2p;
    kolo_wait_t wait;
    bool crowded = body->choice.tune.max_node_size > body->choice.tune.cores;
    KOLO_TRY(kolo_p2p_begin(body, calls, n, &p2p));
    kolo_wait_init(&wait, &body->stop.reason, 0, kolo_p2p_describe, &p2p, crowded ? INT_MAX : 1);
    wait.wakers[0] = &body->ctx.waker;
    wait.nwakers = 1;
    wait.look = look;
    body->waits.stalled_pairs.operation = KOLO_BOARD_NONE;
    kolo_status_t status;
    do {
        status = step(&p2p, &wait);
    } while (status == KOLO_IN_PROGRESS);
    kolo_wait_end(&wait);
    if (status == KOLO_ERR_MISMATCH) tell_both(body, &p2p);
    status = kolo_mismatch_end_pairs(calls, n, status);
    kolo_p2p_end(&p2p);
    return status;
}

static kolo_status_t exchange(void *arg, const kolo_exec_call_t *list, size_t n)
{
    kolo_body_t *body = ((kolo_host_side_t *)arg)->body;
    kolo_call_t *calls = calloc(n, sizeof *calls);
    if (!calls) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %zu messages", n);
    for (size_t i = 0; i < n; i++) calls[i] = call_of(body, &list[i]);
    body->levels.next = kolo_board_is_call(list->number) ? list->number : 0;
    kolo_record_begin_pairs(body, calls, n);
    kolo_status_t status = exchange_calls(body, calls, n);
    kolo_record_end_pairs(body, calls, n, status);
    free(calls);
    return status;
}

/* Puts the words of a part, which has its own numbers of the ranks, into those of the owner, where a mismatch can
 * be told in them. */
static void translate(kolo_body_t *part, kolo_status_t status)
{
    char ranks[64] = "";
    if (status == KOLO_ERR_MISMATCH) {
        kolo_device_levels_tell(part);
        (void)kolo_diag_difference(part->levels.owner->oob);
        return;
    }
    for (int r = 0; r < part->nranks; r++) {
        size_t at = strlen(ranks);
        if (at + 16 > sizeof ranks) {
            snprintf(ranks + at, sizeof ranks - at, ", ...");
            break;
        }
        snprintf(ranks + at, sizeof ranks - at, "%s%d", r ? ", " : "", kolo_device_levels_rank(part, r));
    }
    if (status == KOLO_ERR_TIMEOUT)
        kolo_fail_prefix(status, "in the lane of ranks %s, which it counts from 0 on: ", ranks);
}

static void fail(void *arg, kolo_status_t status, const kolo_exec_call_t *c)
{
    kolo_body_t *body = ((kolo_host_side_t *)arg)->owner, *part = ((kolo_host_side_t *)arg)->body;
    KOLO_FAIL_POINT("comm.device.host_fails");
    if (part->levels.owner) translate(part, status);
    status = kolo_device_levels_hear(body, status);
    if (!c) {
        kolo_body_fail(body, status);
        return;
    }
    kolo_call_t call = call_of(body, c);
    kolo_body_fail_operation(body, status, &call, 1);
}

const kolo_exec_host_t kolo_device_host = {.run = run, .exchange = exchange, .fail = fail};
