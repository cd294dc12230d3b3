/* SPDX-License-Identifier: Apache-2.0
 *
 * From a checked call to a running task: tickets keep the order of calls, the memo finds the bound plan (or the
 * flat path) of a signature, the executor runs it.
 */
#include "base/failpoint.h"
#include "base/log.h"
#include "comm/call/call.h"
#include "comm/window/window.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- choice and binding ---- */

static kolo_status_t choose_v(kolo_body_t *body, const kolo_call_t *call, kolo_tune_choice_t *choice)
{
    bool direct = body->emit.fanout && body->emit.nnodes == 1;
    memset(choice, 0, sizeof *choice);
    choice->algo = call->coll == KOLO_COLL_ALL_TO_ALL       ? KOLO_ALGO_PAIRWISE
                   : direct || kolo_coll_rooted(call->coll) ? KOLO_ALGO_DIRECT
                                                            : KOLO_ALGO_RING;
    choice->piece_bytes = kolo_tune_slot_bytes(&body->tune, &body->sizes);
    choice->reason = "parts of unequal length";
    return KOLO_OK;
}

static kolo_bound_t *known_bound(const kolo_body_t *body, kolo_coll_t coll, kolo_algo_t algo, uint32_t root)
{
    for (kolo_bound_t *b = body->bounds; b; b = b->next)
        if (b->plan->coll == coll && b->plan->algo == algo && b->plan->root == root) return b;
    return NULL;
}

static uint32_t plan_root(const kolo_call_t *call)
{
    return kolo_coll_rooted(call->coll) ? call->root : 0;
}

static kolo_status_t find_bound(kolo_body_t *body, const kolo_call_t *call, kolo_algo_t algo, kolo_bound_t **out)
{
    uint32_t root = plan_root(call);
    *out = known_bound(body, call->coll, algo, root);
    if (*out) return KOLO_OK;
    kolo_emit_env_t env = body->emit;
    kolo_plan_t *plan;
    env.root = root;
    KOLO_TRY(kolo_algo_emit(call->coll, algo, &env, &plan));
    KOLO_TRY(kolo_body_bind(body, plan, out));
    (*out)->next = body->bounds;
    body->bounds = *out;
    return KOLO_OK;
}

static bool is_flat(kolo_algo_t algo)
{
    return algo == KOLO_ALGO_FLAT || algo == KOLO_ALGO_FLAT_TWO_STEP;
}

static kolo_status_t choose(kolo_body_t *body, const kolo_call_t *call, kolo_tune_choice_t *choice)
{
    kolo_emit_env_t env = body->emit;
    if (call->send_counts || call->recv_counts) return choose_v(body, call, choice);
    env.root = call->root;
    return kolo_tune_choose(&body->tune, &env, &body->sizes, call->coll, call->count, call->elem, choice);
}

bool kolo_call_connected(const kolo_call_t *call)
{
    kolo_body_t *body = call->comm->body;
    kolo_tune_choice_t choice;
    if (call->kind == KOLO_CALL_SEND || call->kind == KOLO_CALL_RECV) return kolo_p2p_connected(call);
    if (body->nranks == 1 || call->kind != KOLO_CALL_COLL) return true;
    if (choose(body, call, &choice) != KOLO_OK) return true; /* the call itself is to say why */
    return is_flat(choice.algo) ? body->ll_tx != NULL
                                : known_bound(body, call->coll, choice.algo, plan_root(call)) != NULL;
}

static kolo_status_t fill_memo(kolo_body_t *body, const kolo_call_t *call, uint64_t signature, kolo_memo_t *memo)
{
    kolo_tune_choice_t choice;
    kolo_bound_t *bound = NULL;
    bool v = call->send_counts || call->recv_counts;
    KOLO_TRY(choose(body, call, &choice));
    if (is_flat(choice.algo))
        KOLO_TRY(kolo_body_connect_flat(body));
    else
        KOLO_TRY(find_bound(body, call, choice.algo, &bound));
    kolo_debug("comm", "%s rank %d: %s of %llu elements of %zu bytes: %s in pieces of %u bytes (%s)", body->name,
               body->rank, kolo_coll_name(call->coll), (unsigned long long)call->count, call->elem,
               kolo_algo_name(choice.algo), choice.piece_bytes, choice.reason);
    *memo = (kolo_memo_t){signature, call->count, call->root, v, choice.algo, choice.piece_bytes, bound};
    return KOLO_OK;
}

/* ---- filling the task ---- */

static kolo_status_t room_for_parts(kolo_body_t *body, size_t n)
{
    if (n <= body->parts_capacity) return KOLO_OK;
    kolo_part_t *src = realloc(body->src_parts, n * sizeof *src);
    if (src) body->src_parts = src;
    kolo_part_t *dst = realloc(body->dst_parts, n * sizeof *dst);
    if (dst) body->dst_parts = dst;
    if (!src || !dst) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %zu parts", n);
    body->parts_capacity = n;
    return KOLO_OK;
}

/* Part p of an even cut, or of rank p, or the only one. */
static void fill_parts(kolo_part_t *parts, uint32_t n, const void *base, const kolo_call_t *call, bool split,
                       const size_t *counts, const size_t *displs)
{
    char *at = (char *)(uintptr_t)base;
    uint64_t running = 0;
    kolo_part_cut_t cut = kolo_part_cut(call->count, split ? n : 1);
    for (uint32_t p = 0; p < n; p++) {
        uint64_t offset = cut.each * p + KOLO_MIN((uint64_t)p, cut.more);
        uint64_t count = cut.each + (p < cut.more);
        if (counts) {
            count = counts[p];
            offset = displs ? displs[p] : running;
            running += count;
        }
        parts[p] = (kolo_part_t){at ? at + offset * call->elem : NULL, count};
    }
}

static kolo_status_t prepare_plan(const kolo_call_t *call, kolo_task_t *task, const kolo_memo_t *memo)
{
    kolo_body_t *body = call->comm->body;
    kolo_bound_t *b = memo->bound;
    const kolo_plan_t *plan = b->plan;
    uint32_t ns = plan->src_parts, nd = plan->dst_parts;
    bool split = kolo_coll_traits(call->coll)->whole;
    KOLO_TRY(room_for_parts(body, KOLO_MAX(ns, nd)));
    fill_parts(body->src_parts, ns, call->src, call, split, ns > 1 ? call->send_counts : NULL,
               ns > 1 ? call->send_displs : NULL);
    fill_parts(body->dst_parts, nd, call->dst, call, split, nd > 1 ? call->recv_counts : NULL,
               nd > 1 ? call->recv_displs : NULL);
    if (ns == 1 && call->recv_counts && call->coll != KOLO_COLL_ALL_TO_ALL)
        body->src_parts[0].count = call->recv_counts[body->rank];
    if (nd == 1 && call->send_counts && call->coll != KOLO_COLL_ALL_TO_ALL)
        body->dst_parts[0].count = call->send_counts[body->rank];
    if (b->exchange &&
        kolo_pair_start(task, plan, b->tx, b->rx, body->src_parts, body->dst_parts, memo->piece_bytes))
        return KOLO_OK;
    uint64_t tile = b->ref_tile ? b->ref_tile : plan->slices * memo->piece_bytes;
    size_t scratch = (size_t)plan->nscratch * tile + b->bounce;
    if (scratch > body->scratch_bytes) {
        void *p = NULL;
        if (posix_memalign(&p, 4096, scratch))
            return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %zu bytes of scratch", scratch);
        free(body->scratch);
        body->scratch = p;
        body->scratch_bytes = scratch;
    }
    uint64_t bytes = call->count * call->elem * (split ? 1 : body->emit.nranks);
    kolo_interp_t *in = &task->interp;
    in->plan = plan;
    in->tx = b->tx;
    in->rx = b->rx;
    in->src_parts = body->src_parts;
    in->dst_parts = body->dst_parts;
    in->scratch = body->scratch;
    in->piece_bytes = memo->piece_bytes;
    in->tile_bytes = tile;
    in->stream_out = body->tune.l3_bytes && bytes * 2 * body->tune.max_node_size > body->tune.l3_bytes;
    return kolo_task_start_plan(task, b->state);
}

static kolo_status_t prepare_flat(const kolo_call_t *call, kolo_task_t *task, kolo_algo_t algo)
{
    const kolo_body_t *body = call->comm->body;
    kolo_flat_t *flat = &task->flat;
    flat->src = call->src;
    flat->dst = call->dst;
    flat->count = call->count;
    flat->nranks = (uint32_t)body->nranks;
    flat->root = call->root;
    flat->ll_tx = body->ll_tx;
    flat->ll_rx = body->ll_rx;
    flat->ll_temp = body->ll_temp;
    KOLO_FAIL_POINT_TRY("exec.flat.start");
    return kolo_flat_start(task, algo, call->coll);
}

static kolo_status_t fill_reducer(const kolo_call_t *call, kolo_reducer_t *r)
{
    kolo_body_t *body = call->comm->body;
    if (call->op >= KOLO_OP_BUILTIN_COUNT && kolo_coll_reduces(call->coll)) {
        *r = call->reducer ? *call->reducer : body->ops[call->op - KOLO_OP_BUILTIN_COUNT].reducer;
        return KOLO_OK;
    }
    return kolo_reducer_init(r, call->type, kolo_coll_reduces(call->coll) ? call->op : KOLO_SUM, body->emit.nranks);
}

static inline bool memo_is(const kolo_memo_t *memo, const kolo_call_t *call, uint64_t signature, bool v)
{
    return memo->signature == signature && memo->v == v && memo->count == call->count && memo->root == call->root;
}

/* The entry of a signature; where there is none, one of its pair, to be filled. Fibonacci hashing (Knuth,
 * TAOCP 6.4): counts are often multiples of a power of two, so low bits tell nothing. Two to a set: a barrier
 * between two calls of anything else must not push it out. */
static kolo_memo_t *find_memo(kolo_body_t *body, const kolo_call_t *call, uint64_t signature, bool v)
{
    kolo_memo_t *set = &body->memo[(signature * 0x9e3779b97f4a7c15ull >> (64 - KOLO_MEMO_BITS)) * 2];
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
    uint64_t signature = kolo_signature(call->coll, (int)call->type, (int)call->op, call->root, call->count);
    bool v = call->send_counts || call->recv_counts;
    kolo_memo_t *memo = find_memo(body, call, signature, v);
    task->ctx = &body->ctx;
    task->rank = (uint32_t)body->rank;
    task->signature = signature;
    task->operation = body->operation++;
    kolo_board_publish(&body->board, task->operation, signature);
    *known = memo_is(memo, call, signature, v);
    kolo_record_begin(&body->record, call, task->operation, signature,
                      KOLO_LIKELY(*known) ? KOLO_RECORD_RUNNING : KOLO_RECORD_CONNECTING,
                      KOLO_LIKELY(*known) ? (uint32_t)memo->algo : KOLO_RECORD_NO_ALGO);
    return memo;
}

static kolo_status_t bind(const kolo_call_t *call, kolo_task_t *task, kolo_memo_t *memo, bool known)
{
    kolo_body_t *body = call->comm->body;
    if (KOLO_UNLIKELY(!known)) {
        atomic_store_explicit(&body->board.connecting, task->operation, memory_order_relaxed);
        kolo_status_t status = fill_memo(body, call, task->signature, memo);
        atomic_store_explicit(&body->board.connecting, KOLO_BOARD_NONE, memory_order_relaxed);
        KOLO_TRY(status);
        kolo_record_state(&body->record, KOLO_RECORD_RUNNING, (uint32_t)memo->algo);
    }
    task->reducing = kolo_coll_reduces(call->coll);
    task->trace = NULL;
    task->met = false;
    KOLO_TRY(fill_reducer(call, &task->reducer));
    return memo->bound ? prepare_plan(call, task, memo) : prepare_flat(call, task, memo->algo);
}

static inline kolo_status_t prepare(const kolo_call_t *call, kolo_task_t *task)
{
    bool known;
    kolo_memo_t *memo = begin(call, task, &known);
    return bind(call, task, memo, known);
}

/* One rank: the definition itself. */
static kolo_status_t run_alone(const kolo_call_t *call)
{
    kolo_reducer_t r;
    kolo_body_t *body = call->comm->body;
    kolo_record_begin(&body->record, call, body->operation++,
                      kolo_signature(call->coll, (int)call->type, (int)call->op, call->root, call->count),
                      KOLO_RECORD_RUNNING, KOLO_RECORD_NO_ALGO);
    KOLO_TRY(fill_reducer(call, &r));
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

void kolo_body_wait_init(kolo_body_t *body, kolo_wait_t *wait, kolo_task_t *task)
{
    uint64_t deadline = KOLO_UNLIKELY(body->op_timeout_ms) ? kolo_deadline_ms(body->op_timeout_ms) : 0;
    bool crowded = body->tune.max_node_size > body->tune.cores;
    kolo_wait_init(wait, &body->stop, deadline, kolo_task_describe, task, crowded ? INT_MAX : 1);
    wait->wakers[0] = &body->ctx.waker;
    wait->nwakers = 1;
    body->stalled.operation = body->stalled_pairs.operation = KOLO_BOARD_NONE;
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
        kolo_body_wait_init(body, &wait, &task);
        wait.look = kolo_mismatch_look;
        status = kolo_task_run(&task, &wait);
    } else {
        kolo_task_cancel(&task);
    }
    if (KOLO_UNLIKELY(status == KOLO_ERR_MISMATCH)) kolo_mismatch_met(&task);
    return status;
}

/* ---- a collective in steps ---- */

/* Begins to make what the collective does not find. */
static kolo_status_t make_connections(kolo_coll_run_t *run)
{
    const kolo_call_t *call = run->call;
    kolo_body_t *body = call->comm->body;
    kolo_tune_choice_t choice;
    KOLO_TRY(choose(body, call, &choice));
    if (is_flat(choice.algo)) return kolo_making_begin_flat(body, &run->making);
    if (known_bound(body, call->coll, choice.algo, plan_root(call))) return KOLO_OK;
    kolo_emit_env_t env = body->emit;
    env.root = plan_root(call);
    KOLO_TRY(kolo_algo_emit(call->coll, choice.algo, &env, &run->plan));
    return kolo_making_begin(body, run->plan->conns, NULL, run->plan->nconns, &run->making);
}

static kolo_status_t connect_in_steps(kolo_coll_run_t *run)
{
    kolo_body_t *body = run->call->comm->body;
    if (!run->making) KOLO_TRY(make_connections(run));
    kolo_status_t status = run->making ? kolo_making_step(run->making) : KOLO_OK;
    if (status == KOLO_IN_PROGRESS) return status;
    kolo_making_end(run->making, status);
    run->making = NULL;
    KOLO_TRY(status);
    if (!run->plan) return KOLO_OK;
    kolo_bound_t *bound = NULL;
    kolo_plan_t *plan = run->plan;
    run->plan = NULL;
    KOLO_TRY(kolo_body_bind(body, plan, &bound)); /* nothing is missing: it does not wait */
    bound->next = body->bounds;
    body->bounds = bound;
    return KOLO_OK;
}

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
        if (known) KOLO_TRY(bind(call, &run->task, run->memo, true));
        run->running = known;
    }
    if (run->connecting) {
        KOLO_TRY(connect_in_steps(run));
        run->connecting = false;
        KOLO_TRY(bind(call, &run->task, run->memo, false));
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
    kolo_record_end(&body->record, status);
}

kolo_status_t kolo_call_run(const kolo_call_t *call)
{
    kolo_status_t status = KOLO_LIKELY(call->kind == KOLO_CALL_COLL) ? run_coll(call)
                           : call->window                            ? kolo_window_run_single(call)
                                                                     : kolo_p2p_run_single(call);
    kolo_record_end(&call->comm->body->record, status);
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

static kolo_status_t take_turn(const kolo_call_t *call, uint64_t ticket)
{
    kolo_status_t status = kolo_call_turn(call, ticket);
    kolo_ticket_end(call->comm, ticket);
    return status;
}

/* ---- queued calls ---- */

typedef struct {
    kolo_call_t call;
    uint64_t ticket;
} kolo_queued_t;

static void run_queued(void *arg)
{
    kolo_queued_t *q = arg;
    kolo_status_t status = take_turn(&q->call, q->ticket);
    if (status != KOLO_OK) kolo_stream_note(q->call.stream, status);
    kolo_call_disown(&q->call);
    free(q);
}

static kolo_status_t own_tables(kolo_call_t *call)
{
    const size_t **tables[] = {&call->send_counts, &call->send_displs, &call->recv_counts, &call->recv_displs};
    size_t n = (size_t)call->comm->nranks;
    if (call->owned || (!call->send_counts && !call->recv_counts)) return KOLO_OK;
    size_t *all = call->owned = malloc(4 * n * sizeof(size_t));
    if (!call->owned) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for the counts of %zu ranks", n);
    for (size_t i = 0; i < KOLO_COUNTOF(tables); i++) {
        if (!*tables[i]) continue;
        memcpy(all + i * n, *tables[i], n * sizeof(size_t));
        *tables[i] = all + i * n;
    }
    return KOLO_OK;
}

static kolo_status_t own_window(kolo_call_t *call)
{
    const kolo_window_call_t *from = call->window;
    if (call->owned || !from) return KOLO_OK;
    kolo_window_call_t *to = malloc(sizeof *to + from->nwaits * sizeof *from->waits);
    if (!to) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a queued call");
    *to = *from;
    if (from->nwaits) to->waits = memcpy(to + 1, from->waits, from->nwaits * sizeof *from->waits);
    call->window = call->owned = to;
    return KOLO_OK;
}

/* The operator may be destroyed, and its place taken by another, before the call runs. */
static kolo_status_t own_operator(kolo_call_t *call)
{
    if (call->reducer || call->op < KOLO_OP_BUILTIN_COUNT || !kolo_coll_reduces(call->coll)) return KOLO_OK;
    kolo_body_t *body = kolo_handle_visit(call->comm, "a queued call");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    call->reducer = malloc(sizeof *call->reducer);
    if (call->reducer) *call->reducer = body->ops[call->op - KOLO_OP_BUILTIN_COUNT].reducer;
    kolo_handle_leave(call->comm);
    return call->reducer ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a queued call's operator");
}

kolo_status_t kolo_call_own(kolo_call_t *call)
{
    kolo_status_t status = own_tables(call);
    if (status == KOLO_OK) status = own_window(call);
    if (status == KOLO_OK) status = own_operator(call);
    if (status != KOLO_OK) kolo_call_disown(call);
    return status;
}

void kolo_call_disown(kolo_call_t *call)
{
    free(call->owned);
    free(call->reducer);
    call->owned = NULL;
    call->reducer = NULL;
}

static kolo_status_t queue(kolo_call_t *call)
{
    kolo_queued_t *q = malloc(sizeof *q);
    if (!q) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a queued call");
    q->call = *call;
    kolo_status_t status = kolo_call_own(&q->call);
    if (status == KOLO_OK) status = kolo_ticket_draw(call->comm, &q->ticket);
    if (status == KOLO_OK) {
        kolo_record_queued(call->comm->body, &q->call);
        status = kolo_stream_push(call->stream, run_queued, q);
        if (status == KOLO_OK) return KOLO_OK;
        kolo_record_drop(call->comm->body, &q->call, status);
        kolo_ticket_wait(call->comm, q->ticket);
        kolo_ticket_end(call->comm, q->ticket);
    }
    kolo_call_disown(&q->call);
    free(q);
    return status;
}

kolo_status_t kolo_call_submit(kolo_call_t *call)
{
    uint64_t ticket;
    if (KOLO_UNLIKELY(kolo_group_open())) return kolo_group_add(call);
    if (KOLO_UNLIKELY(call->comm->on_device)) return kolo_device_submit(call);
    if (KOLO_UNLIKELY(call->comm->aside != NULL)) return kolo_requests_join(call);
    if (KOLO_UNLIKELY(call->stream != NULL)) return queue(call);
    KOLO_TRY(kolo_ticket_draw(call->comm, &ticket));
    if (KOLO_UNLIKELY(!call->comm->blocking)) return kolo_first_use_submit(call, ticket);
    return take_turn(call, ticket);
}
