/* SPDX-License-Identifier: Apache-2.0
 *
 * What a collective is run by: the choice of an algorithm, its plan over connections that are made at first use (or
 * the queues of lines), and the task that the executor gets of them.
 */
#include "base/failpoint.h"
#include "base/log.h"
#include "comm/call/call.h"

#include <stdlib.h>
#include <string.h>

/* ---- choice ---- */

static kolo_status_t choose_v(kolo_body_t *body, const kolo_call_t *call, kolo_tune_choice_t *choice)
{
    bool folds = body->choice.emit.one_fold && kolo_coll_reduces(call->coll);
    bool direct = (body->choice.emit.fanout && body->choice.emit.nnodes == 1) || folds;
    memset(choice, 0, sizeof *choice);
    choice->way.algo = call->coll == KOLO_COLL_ALL_TO_ALL       ? KOLO_ALGO_PAIRWISE
                       : direct || kolo_coll_rooted(call->coll) ? KOLO_ALGO_DIRECT
                                                                : KOLO_ALGO_RING;
    choice->piece_bytes = kolo_tune_slot_bytes(&body->choice.tune, &body->choice.sizes);
    choice->reason = "parts of unequal length";
    return KOLO_OK;
}

static kolo_bound_t *known_bound(const kolo_body_t *body, kolo_coll_t coll, kolo_algo_t algo, uint32_t root)
{
    for (kolo_bound_t *b = body->plans.bounds; b; b = b->next)
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
    kolo_emit_env_t env = body->choice.emit;
    kolo_plan_t *plan;
    env.root = root;
    KOLO_TRY(kolo_algo_emit(call->coll, algo, &env, &plan));
    KOLO_TRY(kolo_body_bind(body, plan, out));
    (*out)->next = body->plans.bounds;
    body->plans.bounds = *out;
    return KOLO_OK;
}

static kolo_status_t choose(kolo_body_t *body, const kolo_call_t *call, kolo_tune_choice_t *choice)
{
    kolo_emit_env_t env = body->choice.emit;
    if (call->send_counts || call->recv_counts) return choose_v(body, call, choice);
    env.root = call->root;
    return kolo_tune_choose(
        &(kolo_tune_ask_t){&body->choice.tune, &env, &body->choice.sizes, call->coll, call->count, call->elem},
        choice);
}

bool kolo_call_connected(const kolo_call_t *call)
{
    kolo_body_t *body = call->comm->body;
    kolo_tune_choice_t choice;
    if (call->kind == KOLO_CALL_SEND || call->kind == KOLO_CALL_RECV) return kolo_p2p_connected(call);
    if (body->nranks == 1 || call->kind != KOLO_CALL_COLL) return true;
    if (choose(body, call, &choice) != KOLO_OK) return true; /* the call itself is to say why */
    return choice.way.lines ? body->conns.ll_tx != NULL
                            : known_bound(body, call->coll, choice.way.algo, plan_root(call)) != NULL;
}

static bool has_user_op(const kolo_call_t *call)
{
    return call->op >= KOLO_OP_BUILTIN_COUNT && kolo_coll_reduces(call->coll);
}

kolo_status_t kolo_call_reducer(const kolo_call_t *call, kolo_reducer_t *r)
{
    const kolo_body_t *body = call->comm->body;
    if (!has_user_op(call)) {
        KOLO_TRY(kolo_reducer_init(r, call->type, kolo_coll_reduces(call->coll) ? call->op : KOLO_SUM,
                                   body->choice.emit.nranks));
        if (body->choice.emit.one_fold && kolo_coll_reduces(call->coll))
            kolo_reducer_one_fold(r, call->op, body->choice.emit.nranks);
        return KOLO_OK;
    }
    *r = call->reducer ? *call->reducer : kolo_call_user_op(call->comm->body, (int)call->op)->reducer;
    return KOLO_OK;
}

/* Chooses how calls of this signature run, and makes the plan and its connections. Waits for peers. */
static kolo_status_t fill_memo(kolo_body_t *body, const kolo_call_t *call, uint64_t signature, kolo_memo_t *memo)
{
    kolo_tune_choice_t choice;
    kolo_memo_t m = {.signature = signature,
                     .count = call->count,
                     .root = call->root,
                     .v = call->send_counts || call->recv_counts,
                     .reduces = kolo_coll_reduces(call->coll)};
    KOLO_TRY(choose(body, call, &choice));
    KOLO_TRY(kolo_call_reducer(call, &m.reducer));
    if (choice.way.lines) {
        KOLO_TRY(kolo_flat_loop(choice.way.algo, call->coll, &m.loop));
        KOLO_TRY(kolo_body_connect_flat(body));
    } else {
        KOLO_TRY(find_bound(body, call, choice.way.algo, &m.bound));
    }
    kolo_debug("comm", "%s rank %d: %s of %llu elements of %zu bytes: %s in pieces of %u bytes (%s)", body->name,
               body->rank, kolo_coll_name(call->coll), (unsigned long long)call->count, call->elem,
               kolo_way_name(call->coll, choice.way), choice.piece_bytes, choice.reason);
    m.way = (uint8_t)kolo_way_number(choice.way);
    m.piece_bytes = choice.piece_bytes;
    *memo = m;
    return KOLO_OK;
}

/* ---- in steps ---- */

/* Begins to make what the collective does not find. */
static kolo_status_t make_connections(kolo_coll_run_t *run)
{
    const kolo_call_t *call = run->call;
    kolo_body_t *body = call->comm->body;
    kolo_tune_choice_t choice;
    KOLO_TRY(choose(body, call, &choice));
    if (choice.way.lines) return kolo_making_begin_flat(body, &run->making);
    if (known_bound(body, call->coll, choice.way.algo, plan_root(call))) return KOLO_OK;
    kolo_emit_env_t env = body->choice.emit;
    env.root = plan_root(call);
    KOLO_TRY(kolo_algo_emit(call->coll, choice.way.algo, &env, &run->plan));
    return kolo_making_begin(body, run->plan->conns, NULL, run->plan->nconns, &run->making);
}

kolo_status_t kolo_call_bind_in_steps(kolo_coll_run_t *run)
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
    bound->next = body->plans.bounds;
    body->plans.bounds = bound;
    return KOLO_OK;
}

/* ---- filling the task ---- */

static kolo_status_t room_for_parts(kolo_body_t *body, size_t n)
{
    if (n <= body->plans.parts_capacity) return KOLO_OK;
    kolo_part_t *src = realloc(body->plans.src_parts, n * sizeof *src);
    if (src) body->plans.src_parts = src;
    kolo_part_t *dst = realloc(body->plans.dst_parts, n * sizeof *dst);
    if (dst) body->plans.dst_parts = dst;
    if (!src || !dst) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %zu parts", n);
    body->plans.parts_capacity = n;
    return KOLO_OK;
}

typedef struct {
    const void *base;
    const size_t *counts, *displs; /* of v forms */
} side_t;

/* Fills in parts: p is that of an even cut, or of rank p, or the only one. */
static void fill_parts(kolo_part_t *parts, uint32_t n, const kolo_call_t *call, side_t side)
{
    char *at = (char *)(uintptr_t)side.base;
    const size_t *counts = n > 1 ? side.counts : NULL, *displs = side.displs;
    uint64_t running = 0;
    kolo_part_cut_t cut = kolo_part_cut(call->count, kolo_coll_traits(call->coll)->whole ? n : 1);
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
    fill_parts(body->plans.src_parts, ns, call, (side_t){call->src, call->send_counts, call->send_displs});
    fill_parts(body->plans.dst_parts, nd, call, (side_t){call->dst, call->recv_counts, call->recv_displs});
    if (ns == 1 && call->recv_counts && call->coll != KOLO_COLL_ALL_TO_ALL)
        body->plans.src_parts[0].count = call->recv_counts[body->rank];
    if (nd == 1 && call->send_counts && call->coll != KOLO_COLL_ALL_TO_ALL)
        body->plans.dst_parts[0].count = call->send_counts[body->rank];
    kolo_interp_t *in = &task->interp;
    in->plan = plan;
    in->tx = b->tx;
    in->rx = b->rx;
    in->src_parts = body->plans.src_parts;
    in->dst_parts = body->plans.dst_parts;
    in->piece_bytes = memo->piece_bytes;
    if (b->exchange && kolo_pair_start(task)) return KOLO_OK;
    uint64_t tile = b->ref_tile ? b->ref_tile : plan->slices * memo->piece_bytes;
    size_t scratch = (size_t)plan->nscratch * tile + b->bounce;
    if (scratch > body->plans.scratch_bytes) {
        void *p = NULL;
        if (posix_memalign(&p, 4096, scratch))
            return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %zu bytes of scratch", scratch);
        free(body->plans.scratch);
        body->plans.scratch = p;
        body->plans.scratch_bytes = scratch;
    }
    uint64_t bytes = call->count * call->elem * (split ? 1 : body->choice.emit.nranks);
    in->scratch = body->plans.scratch;
    in->tile_bytes = tile;
    in->stream_out =
        body->choice.tune.l3_bytes && bytes * 2 * body->choice.tune.max_node_size > body->choice.tune.l3_bytes;
    return kolo_task_start_plan(task, b->state);
}

static void prepare_loop(const kolo_call_t *call, kolo_task_t *task, const kolo_memo_t *memo)
{
    const kolo_body_t *body = call->comm->body;
    kolo_flat_t *flat = &task->flat;
    flat->src = call->src;
    flat->dst = call->dst;
    flat->count = call->count;
    flat->nranks = (uint32_t)body->nranks;
    flat->root = call->root;
    flat->ll_tx = body->conns.ll_tx;
    flat->ll_rx = body->conns.ll_rx;
    flat->ll_temp = body->conns.ll_temp;
    kolo_flat_start(task, memo->loop);
}

typedef struct {
    kolo_body_t *body;
    uint64_t operation, signature;
} first_use_t;

static void describe_first_use(void *arg, char *buf, size_t bytes)
{
    const first_use_t *f = arg;
    char words[160];
    kolo_signature_print(f->signature, words, sizeof words);
    snprintf(buf, bytes, "rank %d, in operation %llu (%s)" KOLO_WAIT_FOR "the others to come to it and connect",
             f->body->rank, (unsigned long long)f->operation, words);
}

static void explain_first_use(void *arg, char *buf, size_t bytes)
{
    kolo_ask_around_stalled(((const first_use_t *)arg)->body, buf, bytes);
}

/* Binds the first call of a signature, which may wait for the others to connect. */
static kolo_status_t bind_memo(const kolo_call_t *call, uint64_t operation, uint64_t signature, kolo_memo_t *memo)
{
    kolo_body_t *body = call->comm->body;
    kolo_record_waits(&body->track.record); /* a rank that does not come is first missed here */
    atomic_store_explicit(&body->track.board.connecting, operation, memory_order_relaxed);
    first_use_t first = {body, operation, signature};
    kolo_wait_purpose_t before = kolo_wait_set_purpose(
        (kolo_wait_purpose_t){.describe = describe_first_use, .arg = &first, .explain = explain_first_use});
    kolo_status_t status = fill_memo(body, call, signature, memo);
    kolo_wait_set_purpose(before);
    atomic_store_explicit(&body->track.board.connecting, KOLO_BOARD_NONE, memory_order_relaxed);
    KOLO_TRY(status);
    kolo_record_state(&body->track.record, KOLO_RECORD_RUNNING, memo->way);
    return KOLO_OK;
}

kolo_status_t kolo_call_bind_task(const kolo_call_t *call, kolo_task_t *task, kolo_memo_t *memo, bool known)
{
    kolo_body_t *body = call->comm->body;
    if (KOLO_UNLIKELY(!known)) KOLO_TRY(bind_memo(call, task->operation, task->signature, memo));
    task->reducer = &memo->reducer;
    if (KOLO_UNLIKELY(has_user_op(call))) {
        KOLO_TRY(kolo_call_reducer(call, &body->user.reducer));
        task->reducer = &body->user.reducer;
    }
    task->reducing = memo->reduces;
    task->trace = NULL;
    task->met = false;
    if (!memo->loop) return prepare_plan(call, task, memo);
    KOLO_FAIL_POINT_TRY("exec.flat.start");
    prepare_loop(call, task, memo);
    return KOLO_OK;
}
