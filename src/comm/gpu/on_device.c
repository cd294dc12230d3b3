/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of a communicator on a device: a call takes its turn, is put into the executor's words, queued, and has
 * ended for its caller.
 */
#include "base/failpoint.h"
#include "comm/call/call.h"

#include <stdlib.h>

static kolo_status_t fill(const kolo_call_t *call, uint64_t number, kolo_exec_call_t *e)
{
    *e = (kolo_exec_call_t){.kind = call->kind == KOLO_CALL_COLL   ? KOLO_EXEC_COLL
                                    : call->kind == KOLO_CALL_SEND ? KOLO_EXEC_SEND
                                                                   : KOLO_EXEC_RECV,
                            .coll = call->coll,
                            .op = call->op,
                            .root = (int)call->root,
                            .src = call->src,
                            .dst = call->dst,
                            .count = call->count,
                            .send_counts = call->send_counts,
                            .send_displs = call->send_displs,
                            .recv_counts = call->recv_counts,
                            .recv_displs = call->recv_displs,
                            .elem = call->elem,
                            .stream = call->stream,
                            .number = number,
                            .word = kolo_mismatch_word(call)};
    return kolo_call_reducer(call, &e->reducer);
}

/* Returns a part of a v form: `count` elements at `at`, from or to `peer`. */
static kolo_exec_call_t message(const kolo_call_t *c, const kolo_exec_call_t *base, kolo_exec_kind_t kind, int peer,
                                const void *at, size_t count)
{
    kolo_exec_call_t e = {.kind = kind, .coll = KOLO_COLL_P2P, .root = peer, .count = count, .elem = c->elem};
    e.stream = c->stream;
    e.reducer.type = c->type;
    e.number = base->number;
    e.word = base->word;
    if (kind == KOLO_EXEC_SEND)
        e.src = at;
    else
        e.dst = (void *)(uintptr_t)at;
    return e;
}

/* Makes the v forms messages, or a reduction to each rank. Returns how many calls. */
static size_t unfold(const kolo_call_t *c, const kolo_exec_call_t *base, kolo_exec_call_t *out)
{
    const kolo_body_t *body = c->comm->body;
    size_t n = 0, from = 0, to = 0;
    for (int r = 0; r < body->nranks; r++) {
        size_t sends = c->send_counts ? c->send_counts[r] : c->recv_counts[body->rank];
        size_t recvs = c->recv_counts ? c->recv_counts[r] : 0;
        if (c->send_counts) from = c->send_displs ? c->send_displs[r] : from;
        to = c->recv_displs ? c->recv_displs[r] : c->coll == KOLO_COLL_SCATTER ? 0 : to;
        if (c->coll == KOLO_COLL_REDUCE_SCATTER) {
            out[n] = *base;
            out[n].send_counts = NULL;
            out[n].coll = KOLO_COLL_REDUCE;
            out[n].root = r;
            out[n].src = (const char *)c->src + from * c->elem;
            out[n].dst = r == body->rank ? c->dst : NULL;
            out[n++].count = sends;
            from += sends;
            continue;
        }
        bool own = r == body->rank, rooted = kolo_coll_rooted(c->coll), root = (int)c->root == body->rank;
        bool gathers = c->coll == KOLO_COLL_GATHER, sender = !rooted || (gathers ? r == (int)c->root : root);
        bool receiver = !rooted || (gathers ? root : r == (int)c->root);
        if (c->coll == KOLO_COLL_SCATTER) recvs = c->send_counts[body->rank];
        if (!own || !c->in_place) {
            const char *src = (const char *)c->src + from * c->elem, *dst = (const char *)c->dst + to * c->elem;
            if (sender) out[n++] = message(c, base, KOLO_EXEC_SEND, r, src, sends);
            if (receiver) out[n++] = message(c, base, KOLO_EXEC_RECV, r, dst, recvs);
        }
        if (c->send_counts) from += sends;
        to += recvs;
    }
    return n;
}

kolo_way_t kolo_device_way(kolo_coll_t coll, bool uneven)
{
    kolo_way_t way = kolo_tune_forced(coll);
    if (uneven && coll == KOLO_COLL_ALL_TO_ALL && way.algo == KOLO_ALGO_BRUCK)
        way.algo = KOLO_ALGO_PAIRWISE; /* Bruck's moves parts in the places of others */
    return way;
}

/* Returns the algorithm whose plan kernels interpret for this call; none where kernels made for the collective run.
 */
static kolo_way_t forced_way(const kolo_body_t *body, const kolo_call_t *call)
{
    if (call->kind != KOLO_CALL_COLL || !body->gpu.exec->by_plans || body->nranks == 1) return KOLO_WAY_NONE;
    if (body->choice.emit.one_fold && kolo_coll_reduces(call->coll))
        return KOLO_WAY_NONE; /* the others fold in rank order */
    return kolo_device_way(call->coll, call->send_counts || call->recv_counts);
}
static uint32_t recorded_algo(const kolo_body_t *body, const kolo_call_t *call)
{
    kolo_way_t way = forced_way(body, call);
    return way.algo == KOLO_ALGO_COUNT ? KOLO_RECORD_NO_ALGO : kolo_way_number(way);
}

/* Returns the number of the next collective. Where the host runs it, its thread counts; of parts each for itself,
 * so there calls count. */
static uint64_t next_number(const kolo_body_t *body)
{
    if (body->levels.inside) return KOLO_BOARD_CALLS + body->levels.calls * KOLO_BOARD_STEPS;
    return body->gpu.exec->by_host ? 0 : body->track.operation;
}

static void show_call(kolo_body_t *body, uint64_t word)
{
    kolo_board_publish_call(&body->track.board, next_number(body), word);
    body->levels.calls++;
}

void kolo_device_show_end(kolo_body_t *body, uint64_t word)
{
    if (!body->levels.inside) return;
    atomic_store(&body->track.board.in[KOLO_BOARD_WHOLE], next_number(body));
    show_call(body, word);
}

/* Calls of a hierarchical communicator that are queued, for peers who ask. */
static void publish_calls(kolo_body_t *body, const kolo_call_t *calls, size_t count)
{
    for (size_t i = 0; i < count && body->levels.inside; i++)
        if (calls[i].kind == KOLO_CALL_COLL) show_call(body, kolo_mismatch_word(&calls[i]));
}

/* ---- calls of one communicator, in its turn ---- */

kolo_status_t kolo_device_prepare(kolo_device_work_t *w)
{
    kolo_body_t *body = w->body;
    uint64_t number = next_number(body), each = body->levels.inside ? KOLO_BOARD_STEPS : 1;
    size_t room = 0;
    if (KOLO_UNLIKELY(body->gpu.suspended))
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "%s rank %d is suspended: kolo_comm_resume() comes first",
                         body->name, body->rank);
    for (size_t i = 0; i < w->count; i++)
        room += w->calls[i].send_counts || w->calls[i].recv_counts ? 2 * (size_t)body->nranks : 1;
    w->n = 0;
    w->list = room > 1 ? malloc(room * sizeof *w->list) : &w->one;
    if (!w->list) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %zu operations on a GPU", room);
    for (size_t i = 0; i < w->count; i++) {
        const kolo_call_t *call = &w->calls[i];
        kolo_exec_call_t *here = &w->list[w->n]; /* filled in where it stays: a copy costs as much */
        if (call->window) continue;
        KOLO_TRY(fill(call, number, here));
        if (call->kind != KOLO_CALL_COLL && !body->gpu.exec->by_host) KOLO_TRY(kolo_device_pairs_open(body));
        if (call->kind == KOLO_CALL_COLL) number += each;
        bool uneven = call->send_counts || call->recv_counts;
        if (KOLO_UNLIKELY(uneven && forced_way(body, call).algo == KOLO_ALGO_COUNT)) {
            kolo_exec_call_t base = *here;
            w->n += unfold(call, &base, here);
        } else {
            w->n++;
        }
    }
    return KOLO_OK;
}

/* Refuses everything that can be refused, before anything is queued. */
kolo_status_t kolo_device_check(const kolo_device_work_t *w)
{
    const kolo_body_t *body = w->body;
    void *state = atomic_load(&body->gpu.state);
    kolo_status_t status = w->n && body->gpu.exec->check ? body->gpu.exec->check(state, w->list, w->n) : KOLO_OK;
    if (status == KOLO_ERR_ABORTED) return kolo_device_fail(w, status);
    return status == KOLO_OK ? kolo_window_device_check(w->body, w->calls, w->count) : status;
}

/* Queues the calls, which get their numbers by which the ranks compare them if all are queued. */
kolo_status_t kolo_device_queue(const kolo_device_work_t *w)
{
    kolo_body_t *body = w->body;
    bool windows = body->windows != NULL; /* else there are no such calls */
    if (windows)
        KOLO_TRY(kolo_window_device_launch(body, w->calls, w->count, false)); /* puts and signals go first */
    if (w->n) KOLO_TRY(body->gpu.exec->launch(atomic_load(&body->gpu.state), w->list, w->n));
    if (windows) KOLO_TRY(kolo_window_device_launch(body, w->calls, w->count, true)); /* waits come last */
    publish_calls(body, w->calls, w->count);
    for (size_t i = 0; i < w->count && !body->gpu.exec->by_host; i++) {
        const kolo_call_t *call = &w->calls[i];
        uint64_t word = kolo_mismatch_word(call);
        kolo_record_launched(body, call, body->track.operation, word, recorded_algo(body, call));
        if (call->kind == KOLO_CALL_COLL)
            kolo_board_publish(&body->track.board, body->track.operation++, word);
        else if (!call->window) /* puts, signals and waits for them are no messages */
            kolo_device_pairs_count(body, call, body->track.operation);
    }
    return KOLO_OK;
}

bool kolo_device_fails(kolo_status_t status)
{
    return status == KOLO_ERR_SYSTEM || status == KOLO_ERR_ABORTED;
}

/* Fails the communicator. Where its operations were ended meanwhile, its error is there: whoever ends them sets it
 * first. A part of a hierarchical one may end before the whole hears of it. */
kolo_status_t kolo_device_fail(const kolo_device_work_t *w, kolo_status_t status)
{
    kolo_body_t *body = w->body;
    int state = atomic_load(&body->handle->state);
    bool ended = state == KOLO_COMM_FAILED || state == KOLO_COMM_ABORTED;
    if (status == KOLO_ERR_ABORTED && ended) return kolo_handle_refuse(body->handle, state);
    if (status == KOLO_ERR_ABORTED && !body->levels.inside) return kolo_lost_ends(body, status);
    return kolo_body_fail_operation(body, kolo_device_levels_hear(body, status), w->calls, w->count);
}

void kolo_device_work_end(kolo_device_work_t *w)
{
    if (w->list != &w->one) free(w->list);
    w->list = NULL;
}

/* Notes calls that are refused: whoever waits for one of them asks (mismatch.c). Where the host runs the operations
 * it is not known which number this one would have had. */
void kolo_device_refuse(const kolo_device_work_t *w)
{
    kolo_body_t *body = w->body;
    bool noted = body->gpu.exec->by_host;
    for (size_t i = 0; i < w->count; i++) {
        const kolo_call_t *call = &w->calls[i];
        if (call->window) continue;
        if (call->kind == KOLO_CALL_COLL) {
            if (!noted) kolo_board_refuse(&body->track.board, next_number(body), kolo_mismatch_word(call));
            noted = true;
        } else if (body->track.pairs && call->count && (int)call->root != body->rank &&
                   (int)call->root < body->nranks) {
            kolo_board_refuse_message(&body->track.pairs[call->root],
                                      call->kind == KOLO_CALL_SEND ? KOLO_BOARD_SEND : KOLO_BOARD_RECV);
        }
    }
}

/* Takes a turn for a call. Bad arguments leave the communicator as it was. */
kolo_status_t kolo_device_submit(kolo_call_t *call)
{
    kolo_comm_t comm = call->comm;
    uint64_t ticket;
    KOLO_TRY(kolo_ticket_draw(comm, &ticket));
    kolo_status_t status = kolo_ticket_wait(comm, ticket);
    if (status == KOLO_OK) {
        KOLO_FAIL_POINT("comm.device.turn");
        kolo_device_work_t w = {.body = comm->body, .calls = call, .count = 1};
        status = kolo_device_prepare(&w);
        if (status == KOLO_OK) status = kolo_device_queue(&w); /* which looks at all that it has first */
        kolo_device_work_end(&w);
        bool fails = kolo_device_fails(status);
        if (status != KOLO_OK && !fails) kolo_device_refuse(&w);
        if (fails) status = kolo_device_fail(&w, status);
    } else if (comm->error_is_news) {
        kolo_lost_refused(comm->body, call, 1);
    }
    kolo_ticket_end(comm, ticket);
    return status;
}
