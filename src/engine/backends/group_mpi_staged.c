/* SPDX-License-Identifier: Apache-2.0
 *
 * A lane of MPI between GPUs of several hosts (levels.h). MPI gets host memory: what the lane moves goes through
 * gpu/staged, in pieces, on the engine's stream, and the thread that runs the pieces there calls MPI. So no other
 * thread waits for MPI. Where MPI fails or a rank is lost, the stream is let go and status() says so.
 */
#include "base/log.h"
#include "comm/comm.h"
#include "engine/backends/levels.h"
#include "engine/backends/use_mpi.h"
#include "exec/exec.h"

#include <stdio.h>
#include <stdlib.h>

#define CANCEL_MS 10000 /* streams that are let go come to their ends */

typedef struct {
    kolo_mpi_t *mpi; /* its operations are the staging thread's */
    void *staged;
    size_t *counts, *displs;
    _Atomic uint32_t stop;
    _Atomic bool failed;
    kolo_status_t status; /* written once, before `failed` */
    char text[KOLO_ERROR_TEXT_BYTES];
} lane_t;

/* ---- on the staging thread ---- */

/* Parts of equal lengths lie one behind the other in what is pinned. */
static kolo_status_t gather_pieces(lane_t *l, const kolo_exec_call_t *c)
{
    for (int r = 0; r < l->mpi->size; r++) {
        l->counts[r] = c->count;
        l->displs[r] = (size_t)r * c->count;
    }
    return kolo_mpi_all_gather(l->mpi, c->src, c->dst, l->counts, l->displs, c->reducer.type);
}

static kolo_status_t run(void *arg, const kolo_exec_call_t *c)
{
    lane_t *l = arg;
    switch (c->coll) {
    case KOLO_COLL_ALL_REDUCE:
        return kolo_mpi_all_reduce(l->mpi, c->src, c->dst, c->count, c->reducer.type, c->op);
    case KOLO_COLL_BROADCAST:
        return kolo_mpi_broadcast(l->mpi, c->dst, c->count, c->reducer.type, c->root);
    case KOLO_COLL_ALL_GATHER:
        return gather_pieces(l, c);
    default:
        return kolo_fail(KOLO_ERR_INTERNAL, "engine: a lane of MPI has no such operation");
    }
}

static kolo_status_t exchange(void *arg, const kolo_exec_call_t *calls, size_t n)
{
    (void)arg, (void)calls;
    return kolo_fail(KOLO_ERR_INTERNAL, "engine: a lane of MPI was given %zu messages", n);
}

static void fail(void *arg, kolo_status_t status, const kolo_exec_call_t *call)
{
    lane_t *l = arg;
    (void)call;
    if (atomic_load(&l->failed)) return;
    l->status = status;
    snprintf(l->text, sizeof l->text, "%s", kolo_error_text());
    atomic_store(&l->failed, true);
}

static const kolo_exec_host_t host_side = {.run = run, .exchange = exchange, .fail = fail};

/* ---- the engine's side ---- */

/* Queues the move; `stride`: bytes from part to part of `out`, where it has some. */
static kolo_status_t put(const lane_t *l, kolo_coll_t coll, const kolo_move_t *m, size_t stride)
{
    kolo_exec_call_t call = {.kind = KOLO_EXEC_COLL,
                             .coll = coll,
                             .op = m->need.op,
                             .root = m->root,
                             .reducer.type = m->need.type,
                             .elem = kolo_type_size(m->need.type),
                             .src = m->in,
                             .dst = m->out,
                             .dst_stride = stride,
                             .count = m->count,
                             .stream = m->stream};
    return kolo_exec_staged.launch(l->staged, &call, 1);
}

/* Gathers parts: those of a lane lie equally far apart if all are equal; else each comes by a broadcast. */
static kolo_status_t all_gather(const lane_t *l, const kolo_move_t *m)
{
    const size_t *counts = m->counts, *displs = m->displs;
    size_t elem = kolo_type_size(m->need.type), step = displs[1] - displs[0];
    bool even = counts[0] > 0;
    kolo_move_t part = *m;
    for (int r = 1; r < l->mpi->size; r++)
        even = even && counts[r] == counts[0] && displs[r] - displs[r - 1] == step;
    if (even) {
        part.out = (char *)m->out + displs[0] * elem;
        part.count = counts[0];
        return put(l, KOLO_COLL_ALL_GATHER, &part, step * elem);
    }
    for (part.root = 0; part.root < l->mpi->size; part.root++) {
        part.in = part.root == l->mpi->rank ? m->in : NULL;
        part.out = (char *)m->out + displs[part.root] * elem;
        part.count = counts[part.root];
        if (part.count > 0) KOLO_TRY(put(l, KOLO_COLL_BROADCAST, &part, 0));
    }
    return KOLO_OK;
}

static kolo_status_t run_move(void *group, const kolo_move_t *m)
{
    if (m->need.work == KOLO_WORK_ALL_GATHER) return all_gather(group, m);
    return put(group, m->need.work == KOLO_WORK_BROADCAST ? KOLO_COLL_BROADCAST : KOLO_COLL_ALL_REDUCE, m, 0);
}

static kolo_status_t status_of(void *group)
{
    const lane_t *l = group;
    return atomic_load(&l->failed) ? kolo_fail(l->status, "%s", l->text) : KOLO_OK;
}

/* ---- life ---- */

static void describe(void *arg, char *buf, size_t bytes)
{
    (void)arg;
    snprintf(buf, bytes, "a stream to come to the end of the operations of a lane of MPI");
}

/* Waits until all that was queued has ended; `stop`: that ends the wait. */
static kolo_status_t settle(lane_t *l, const _Atomic uint32_t *stop)
{
    kolo_wait_t wait;
    kolo_status_t status;
    kolo_wait_init(&wait, stop, kolo_deadline_ms(CANCEL_MS), describe, l, 1);
    while ((status = kolo_exec_staged.poll(l->staged)) == KOLO_IN_PROGRESS)
        if ((status = kolo_wait_pause(&wait)) != KOLO_OK) break;
    kolo_wait_end(&wait);
    return status;
}

static void leave(void *group, bool abort)
{
    lane_t *l = group;
    if (!abort && settle(l, &l->stop) != KOLO_OK) abort = true;
    if (abort) {
        atomic_store(&l->stop, 1);
        kolo_exec_staged.cancel(l->staged);
    }
    kolo_mpi_leave(l->mpi, abort);
}

static void free_lane(void *group)
{
    lane_t *l = group;
    if (l->staged && settle(l, NULL) != KOLO_OK) { /* what a stream may still read stays */
        kolo_warn("engine", "a lane of MPI keeps its memory: %s", kolo_error_text());
        return;
    }
    kolo_exec_staged.close(l->staged);
    kolo_mpi_free(l->mpi);
    free(l->counts);
    free(l);
}

/* Opens the staging, which needs to know its ranks and to meet them once: a communicator of Kolo does that. */
static kolo_status_t open_staged(kolo_set_t *s, lane_t *l, kolo_comm_t meeting)
{
    kolo_body_t *body = meeting->body;
    kolo_exec_env_t env = {
        .ctx = &body->ctx, .device = atomic_load(&s->engine->device), .host = &host_side, .host_arg = l};
    body->ctx.deadline_ns = kolo_deadline_ms(body->init_timeout_ms);
    kolo_status_t status = kolo_exec_staged.open(&env, &l->staged);
    body->ctx.deadline_ns = 0;
    return status;
}

static kolo_status_t open_lane(kolo_set_t *s, const kolo_level_t *level, kolo_comm_t meeting, lane_t *l)
{
    l->counts = calloc(2 * (size_t)level->nranks, sizeof *l->counts);
    if (!l->counts) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a lane of MPI");
    l->displs = l->counts + level->nranks;
    KOLO_TRY(open_staged(s, l, meeting));
    KOLO_TRY(
        kolo_mpi_meet_some(s, level->ranks, level->nranks, level->rank, KOLO_MPI_LEVELS + level->purpose, &l->mpi));
    l->mpi->stop = &l->stop;
    return KOLO_OK;
}

static kolo_status_t meet(kolo_set_t *s, void *state, const kolo_level_t *level, void **group)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t meeting = NULL;
    (void)state;
    config.blocking = 1;
    config.name = "engine's lane of MPI";
    KOLO_TRY(kolo_comm_split(s->comm, level->color, level->key, &meeting, &config));
    if (!meeting) return KOLO_OK;
    lane_t *l = calloc(1, sizeof *l);
    kolo_status_t status =
        l ? open_lane(s, level, meeting, l) : kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a lane");
    if (status != KOLO_OK) {
        char text[KOLO_ERROR_TEXT_BYTES]; /* ending has words of its own */
        snprintf(text, sizeof text, "%s", kolo_error_text());
        kolo_comm_abort(meeting);
        if (l) free_lane(l);
        return kolo_fail(status, "%s", text);
    }
    *group = l;
    KOLO_TRY(kolo_comm_finalize(meeting));
    return kolo_comm_destroy(meeting);
}

const kolo_group_ops_t kolo_group_mpi_staged = {
    .meet = meet, .leave = leave, .free = free_lane, .run = run_move, .broadcasts = true, .status = status_of};
