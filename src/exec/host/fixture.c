/* SPDX-License-Identifier: Apache-2.0
 *
 * Queues between threads (fixture.h).
 */
#include "exec/host/fixture.h"

#include "base/test.h"
#include "wire/ll.h"
#include "wire/queue.h"

#include <stdlib.h>

static kolo_status_t check(const fixture_end_t *e, int peer)
{
    (void)e;
    return kolo_fail(KOLO_ERR_REMOTE, "rank %d has gone", peer);
}

static fixture_t *current; /* one fixture at a time */

static kolo_status_t tx_check(kolo_tx_t *tx)
{
    int reader = tx->spec.reader;
    return reader >= 0 && atomic_load(&current->dead[reader]) ? check(tx->priv, reader) : KOLO_OK;
}

static kolo_status_t rx_check(kolo_rx_t *rx)
{
    return atomic_load(&current->dead[rx->spec.writer]) ? check(rx->priv, rx->spec.writer) : KOLO_OK;
}

static kolo_status_t ref_make(kolo_tx_t *tx, const void *data, uint64_t bytes, kolo_ref_t *ref)
{
    *ref = (kolo_ref_t){(uint64_t)(uintptr_t)data, bytes, 0, tx->end.next};
    return KOLO_OK;
}

static kolo_status_t ref_start(kolo_rx_t *rx, const kolo_ref_t *ref, kolo_ref_copy_t *copy)
{
    assert_true(ref->generation == rx->end.next);
    copy->theirs += ref->address;
    return KOLO_OK;
}

/* A wire that takes its time: a third at a turn, and nothing in between; or it never ends. */
static kolo_status_t ref_done(kolo_rx_t *rx, kolo_ref_copy_t *copy)
{
    void *theirs = (void *)(uintptr_t)copy->theirs;
    size_t n = (copy->left + 2) / 3;
    (void)rx;
    if (atomic_load(&current->endless)) return KOLO_IN_PROGRESS;
    memcpy(copy->write ? theirs : copy->mine, copy->write ? copy->mine : theirs, n);
    copy->theirs += n;
    copy->mine += n;
    copy->left -= n;
    return copy->left ? KOLO_IN_PROGRESS : KOLO_OK;
}

static kolo_status_t tx_post_from(kolo_tx_t *tx, const void *data, uint32_t bytes, uint64_t signature,
                                  uint64_t operation)
{
    fixture_queue_t *q = ((fixture_end_t *)tx->priv)->queue;
    pthread_mutex_lock(&q->lock);
    bool place = q->expecting && q->expected_slot == tx->end.next && q->expected_bytes == bytes;
    if (place) {
        memcpy(q->expected_at, data, bytes);
        q->expecting->direct = q->expected_at;
        q->expecting = NULL;
        atomic_fetch_add(&q->placed, 1);
    }
    pthread_mutex_unlock(&q->lock);
    if (!place) memcpy(kolo_tx_payload(tx), data, bytes);
    kolo_tx_post(tx, bytes, 0, signature, operation);
    return KOLO_OK;
}

static void rx_expect(kolo_rx_t *rx, uint32_t ahead, void *data, uint32_t bytes)
{
    (void)ahead;
    fixture_queue_t *q = ((fixture_end_t *)rx->priv)->queue;
    pthread_mutex_lock(&q->lock);
    q->expecting = rx;
    q->expected_at = data;
    q->expected_slot = rx->end.next;
    q->expected_bytes = bytes;
    pthread_mutex_unlock(&q->lock);
}

static void rx_unexpect(kolo_rx_t *rx)
{
    fixture_queue_t *q = ((fixture_end_t *)rx->priv)->queue;
    pthread_mutex_lock(&q->lock);
    q->expecting = NULL;
    pthread_mutex_unlock(&q->lock);
}

static const kolo_wire_ops_t fixture_wire = {
    .name = "fixture",
    .tx_check = tx_check,
    .rx_check = rx_check,
    .ref_make = ref_make,
    .ref_start = ref_start,
    .ref_done = ref_done,
    .tx_post_from = tx_post_from,
    .rx_expect = rx_expect,
    .rx_unexpect = rx_unexpect,
};

void fixture_init(fixture_t *f, uint32_t nranks, uint32_t depth, uint32_t slot_bytes, uint64_t start, bool posting)
{
    memset(f, 0, sizeof(*f));
    f->nranks = nranks;
    f->depth = depth;
    f->slot_bytes = slot_bytes;
    f->ll_slot_bytes = 16384;
    f->start = start;
    f->posting = posting;
    f->pumped = f->interprets = -1;
    pthread_mutex_init(&f->lock, NULL);
    current = f;
}

void fixture_fini(fixture_t *f)
{
    for (fixture_end_t *e = f->ends, *next; e; e = next) {
        next = e->next;
        free(e->tx.bells);
        free(e);
    }
    for (fixture_queue_t *q = f->queues, *next; q; q = next) {
        next = q->next;
        pthread_mutex_destroy(&q->lock);
        free(q->memory);
        free(q);
    }
    pthread_mutex_destroy(&f->lock);
}

uint32_t fixture_placed(fixture_t *f)
{
    uint32_t n = 0;
    for (fixture_queue_t *q = f->queues; q; q = q->next) n += atomic_load(&q->placed);
    return n;
}

static uint32_t readers(const fixture_t *f, const kolo_conn_spec_t *spec)
{
    return spec->kind == KOLO_CONN_NODE ? f->nranks - 1 : 1;
}

static bool same_queue(const kolo_conn_spec_t *a, const kolo_conn_spec_t *b)
{
    return a->kind == b->kind && a->proto == b->proto && a->lane == b->lane && a->writer == b->writer &&
           a->reader == b->reader;
}

static fixture_queue_t *queue_of(fixture_t *f, const kolo_conn_spec_t *spec)
{
    for (fixture_queue_t *q = f->queues; q; q = q->next)
        if (same_queue(&q->spec, spec)) return q;
    fixture_queue_t *q = calloc(1, sizeof(*q));
    assert_non_null(q);
    size_t bytes = KOLO_ROUND_UP(kolo_queue_bytes(spec, readers(f, spec)), (size_t)4096);
    q->memory = aligned_alloc(4096, bytes);
    assert_non_null(q->memory);
    memset(q->memory, 0, bytes);
    q->spec = *spec;
    pthread_mutex_init(&q->lock, NULL);
    kolo_queue_format(q->memory, spec, readers(f, spec), 1);
    q->next = f->queues;
    f->queues = q;
    return q;
}

static fixture_end_t *end_of(fixture_t *f, int rank, bool is_tx, const kolo_conn_spec_t *spec)
{
    fixture_end_t *e;
    uint32_t caps = KOLO_CAP_REF | (rank == f->pumped ? KOLO_CAP_STEP : 0) |
                    (f->posting && spec->kind == KOLO_CONN_PAIR ? KOLO_CAP_POST_FROM : 0);
    pthread_mutex_lock(&f->lock);
    fixture_queue_t *q = queue_of(f, spec);
    for (e = f->ends; e; e = e->next)
        if (e->queue == q && e->rank == rank && e->is_tx == is_tx) break;
    if (!e) {
        e = calloc(1, sizeof(*e));
        assert_non_null(e);
        e->queue = q;
        e->rank = rank;
        e->is_tx = is_tx;
        uint32_t n = readers(f, spec),
                 mine = spec->kind == KOLO_CONN_NODE ? (uint32_t)(rank - (rank > spec->writer)) : 0;
        e->tx = kolo_queue_tx(spec, n, &fixture_wire);
        e->rx = kolo_queue_rx(spec, &fixture_wire);
        e->tx.caps = e->rx.caps = caps;
        e->tx.priv = e->rx.priv = e;
        e->tx.bells = calloc(n + 1, sizeof(kolo_bell_t));
        assert_non_null(e->tx.bells);
        if (is_tx)
            kolo_queue_bind_tx(q->memory, &e->tx);
        else
            kolo_queue_bind_rx(q->memory, &e->rx, n, mine);
        if (is_tx && caps & (KOLO_CAP_STEP | KOLO_CAP_POST_FROM)) e->tx.sent = &e->tx.end.heads[0].consumed;
        e->next = f->ends;
        f->ends = e;
    }
    pthread_mutex_unlock(&f->lock);
    return e;
}

static kolo_conn_spec_t spec_of(const fixture_t *f, int writer, int reader, uint32_t lane, kolo_proto_t proto)
{
    kolo_conn_spec_t s;
    memset(&s, 0, sizeof(s)); /* compared as bytes */
    s.kind = reader < 0 ? KOLO_CONN_NODE : KOLO_CONN_PAIR;
    s.proto = proto;
    s.writer = writer;
    s.reader = reader;
    s.lane = lane;
    s.depth = proto == KOLO_PROTO_LL ? 4 : f->depth;
    s.slot_bytes = proto == KOLO_PROTO_LL ? f->ll_slot_bytes : f->slot_bytes;
    s.start = f->start;
    return s;
}

kolo_tx_t *fixture_tx(fixture_t *f, int rank, int reader, uint32_t lane, kolo_proto_t proto)
{
    kolo_conn_spec_t s = spec_of(f, rank, reader, lane, proto);
    return &end_of(f, rank, true, &s)->tx;
}

kolo_rx_t *fixture_rx(fixture_t *f, int rank, int writer, bool node, uint32_t lane, kolo_proto_t proto)
{
    kolo_conn_spec_t s = spec_of(f, writer, node ? -1 : rank, lane, proto);
    return &end_of(f, rank, false, &s)->rx;
}

/* ---- tasks ---- */

static void *zeroed(size_t bytes)
{
    void *p = calloc(1, bytes + 64);
    assert_non_null(p);
    return p;
}

static kolo_status_t fill(fixture_t *f, fixture_task_t *t, const fixture_call_t *call)
{
    kolo_task_t *task = &t->task;
    memset(t, 0, sizeof(*t));
    KOLO_TRY(kolo_reducer_init(&t->reducer, call->type, call->op, f->nranks));
    task->reducer = &t->reducer;
    task->signature = kolo_signature(call->coll, (int)call->type, (int)call->op, call->root, call->count);
    task->operation = call->operation;
    task->reducing = kolo_coll_reduces(call->coll);
    return KOLO_OK;
}

static kolo_part_t *parts(uint32_t n, bool split, const void *base, uint64_t count, size_t elem)
{
    kolo_part_t *p = zeroed(n * sizeof(*p));
    for (uint32_t i = 0; i < n; i++) {
        uint64_t at = split ? kolo_part_offset(count, n, i) : i * count;
        p[i].base = base ? (char *)(uintptr_t)base + at * elem : NULL;
        p[i].count = split ? kolo_part_count(count, n, i) : count;
    }
    return p;
}

kolo_status_t fixture_bind_plan(fixture_t *f, fixture_task_t *t, kolo_plan_t *plan, const fixture_call_t *call,
                                uint32_t piece_bytes)
{
    KOLO_TRY(fill(f, t, call));
    kolo_task_t *task = &t->task;
    size_t elem = t->reducer.elem;
    t->plan = plan;
    kolo_interp_t *in = &task->interp;
    task->rank = plan->rank;
    in->plan = plan;
    bool split = kolo_coll_traits(call->coll)->whole;
    in->src_parts = t->src_parts = parts(plan->src_parts, split, call->src, call->count, elem);
    in->dst_parts = t->dst_parts = parts(plan->dst_parts, split, call->dst, call->count, elem);
    in->piece_bytes = piece_bytes;
    in->tile_bytes = piece_bytes * plan->slices;
    in->scratch = zeroed((size_t)plan->nscratch * in->tile_bytes + kolo_task_bounce_bytes(plan));
    in->tx = zeroed(plan->nconns * sizeof(void *));
    in->rx = zeroed(plan->nconns * sizeof(void *));
    for (uint32_t i = 0; i < plan->nconns; i++) {
        const kolo_plan_conn_t *c = &plan->conns[i];
        if (c->dir == KOLO_DIR_TX)
            in->tx[i] = fixture_tx(f, (int)plan->rank, c->node ? -1 : c->peer, c->lane, KOLO_PROTO_SIMPLE);
        else
            in->rx[i] = fixture_rx(f, (int)plan->rank, c->peer, c->node, c->lane, KOLO_PROTO_SIMPLE);
    }
    t->tx = in->tx;
    t->rx = in->rx;
    t->scratch = in->scratch;
    t->state = zeroed(kolo_task_plan_state_bytes(plan));
    t->exchanged = (int)plan->rank != f->interprets && kolo_pair_is(plan) && kolo_pair_start(task);
    if (t->exchanged) return KOLO_OK;
    return kolo_task_start_plan(task, t->state);
}

kolo_status_t fixture_bind_flat(fixture_t *f, fixture_task_t *t, uint32_t rank, kolo_algo_t algo,
                                const fixture_call_t *call)
{
    KOLO_TRY(fill(f, t, call));
    kolo_task_t *task = &t->task;
    task->flat.src = call->src;
    task->flat.dst = call->dst;
    task->flat.count = call->count;
    task->rank = rank;
    task->flat.nranks = f->nranks;
    task->flat.root = call->root;
    task->flat.ll_tx = fixture_tx(f, (int)rank, -1, 0, KOLO_PROTO_LL);
    task->flat.ll_rx = zeroed(f->nranks * sizeof(void *));
    for (uint32_t r = 0; r < f->nranks; r++)
        if (r != rank) task->flat.ll_rx[r] = fixture_rx(f, (int)rank, (int)r, true, 0, KOLO_PROTO_LL);
    task->flat.ll_temp = zeroed((size_t)f->nranks * KOLO_FLAT_MAX);
    t->rx = task->flat.ll_rx;
    t->scratch = task->flat.ll_temp;
    kolo_task_step_fn_t loop;
    KOLO_TRY(kolo_flat_loop(algo, call->coll, &loop));
    kolo_flat_start(task, loop);
    return KOLO_OK;
}

void fixture_release(fixture_task_t *t)
{
    free(t->src_parts);
    free(t->dst_parts);
    free(t->scratch);
    free(t->tx);
    free(t->rx);
    free(t->state);
    kolo_plan_free(t->plan);
    memset(t, 0, sizeof(*t));
}

kolo_status_t fixture_run(fixture_t *f, fixture_task_t *t, int seconds)
{
    kolo_wait_t wait;
    kolo_wait_init(&wait, &f->abort, kolo_deadline_ms(seconds * 1000), kolo_task_describe, &t->task,
                   (int)f->nranks);
    return kolo_task_run(&t->task, &wait);
}

/* ---- ranks ---- */

typedef struct {
    void (*fn)(void *arg, uint32_t rank);
    void *arg;
    uint32_t rank;
} start_t;

static void *run_rank(void *arg)
{
    start_t *s = arg;
    s->fn(s->arg, s->rank);
    return NULL;
}

void fixture_ranks(uint32_t nranks, void (*fn)(void *arg, uint32_t rank), void *arg)
{
    pthread_t threads[FIXTURE_MAX_RANKS];
    start_t starts[FIXTURE_MAX_RANKS];
    assert_true(nranks <= FIXTURE_MAX_RANKS);
    for (uint32_t r = 0; r < nranks; r++) {
        starts[r] = (start_t){fn, arg, r};
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &starts[r]), 0);
    }
    for (uint32_t r = 0; r < nranks; r++) pthread_join(threads[r], NULL);
}
