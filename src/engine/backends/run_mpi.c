/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations of MPI that take any count and end when a rank is lost. See use_mpi.h.
 */
#include "engine/backends/use_mpi.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void describe(void *arg, char *buf, size_t bytes)
{
    const kolo_mpi_t *m = arg;
    snprintf(buf, bytes, "an operation of %s in process set %d", m->api->library, m->set->id);
}

static kolo_status_t look(void *arg)
{
    const struct kolo_tensor_engine *e = ((const kolo_mpi_t *)arg)->set->engine;
    if (atomic_load(&e->aborting)) return kolo_fail(KOLO_ERR_ABORTED, "engine: aborted");
    return kolo_engine_status(e);
}

/* Polls what was begun to its end; `failed`: it could not be begun. */
static kolo_status_t end(kolo_mpi_t *m, int failed, char *why)
{
    int64_t limit_ms = m->set->engine->config.stall_limit_ms;
    kolo_status_t status = KOLO_OK;
    kolo_wait_t wait;
    int done = 0;
    if (failed && !m->dirty) /* MPI refused it, and nothing is under way */
        return kolo_fail(KOLO_ERR_SYSTEM, "engine: %s: %s", m->api->library, why);
    kolo_wait_init(&wait, m->stop, limit_ms > 0 ? kolo_deadline_ms(limit_ms) : 0, describe, m, m->size);
    wait.look = look;
    m->dirty = true;
    while (!failed) {
        failed = m->api->poll(m->comm, &done, why);
        if (failed || done) break;
        status = kolo_wait_pause(&wait);
        if (status != KOLO_OK) break;
    }
    kolo_wait_end(&wait);
    if (!failed && status == KOLO_OK) {
        m->dirty = false;
        return KOLO_OK;
    }
    m->api->spoil(1);
    return failed ? kolo_fail(KOLO_ERR_REMOTE, "engine: %s: %s", m->api->library, why) : status;
}

static kolo_status_t run(kolo_mpi_t *m, const kolo_mpi_work_t *work)
{
    char why[KOLO_MPI_WHY_BYTES] = "";
    return end(m, m->api->begin(m->comm, work, why), why);
}

/* Runs an operation over `count` elements at w->in and w->out in pieces of as many as MPI takes. */
static kolo_status_t run_pieces(kolo_mpi_t *m, size_t count, kolo_mpi_work_t w)
{
    size_t step = (size_t)kolo_mpi_chunk, bytes = step * kolo_type_size((kolo_type_t)w.type);
    for (size_t at = 0; at < count; at += step) {
        w.count = (int)KOLO_MIN(count - at, step);
        KOLO_TRY(run(m, &w));
        if (w.in) w.in = (const char *)w.in + bytes;
        if (w.out) w.out = (char *)w.out + bytes;
    }
    return KOLO_OK;
}

kolo_status_t kolo_mpi_all_reduce(kolo_mpi_t *m, const void *in, void *out, size_t count, kolo_type_t type, int op)
{
    if (op == KOLO_AVG && count > 0) {
        kolo_values_scale(out, in, count, type, 1.0 / m->size);
        in = out;
        op = KOLO_SUM;
    }
    return run_pieces(
        m, count,
        (kolo_mpi_work_t){.what = KOLO_MPI_ALL_REDUCE, .in = in, .out = out, .type = (int)type, .op = op});
}

kolo_status_t kolo_mpi_broadcast(kolo_mpi_t *m, void *data, size_t count, kolo_type_t type, int root)
{
    return run_pieces(m, count,
                      (kolo_mpi_work_t){.what = KOLO_MPI_BROADCAST, .out = data, .type = (int)type, .peer = root});
}

/* Tells whether counts, and where their parts end, fit MPI; then they are as its tables say. */
static bool fits(const size_t *counts, const size_t *displs, int size, int *narrow, int *narrow_displs)
{
    for (int r = 0; r < size; r++) {
        size_t at = displs ? displs[r] : 0;
        if (counts[r] > (size_t)kolo_mpi_chunk || at > (size_t)kolo_mpi_chunk - counts[r]) return false;
        narrow[r] = (int)counts[r];
        if (displs) narrow_displs[r] = (int)at;
    }
    return true;
}

/* Gathers; one that is too long is a broadcast from each rank. The counts are the same on all ranks. */
kolo_status_t kolo_mpi_all_gather(kolo_mpi_t *m, const void *in, void *out, const size_t *counts,
                                  const size_t *displs, kolo_type_t type)
{
    size_t elem = kolo_type_size(type);
    int *narrow = m->tables, *at = narrow + m->size;
    char *mine = (char *)out + displs[m->rank] * elem;
    if (fits(counts, displs, m->size, narrow, at))
        return run(m, &(kolo_mpi_work_t){.what = KOLO_MPI_ALL_GATHER,
                                         .in = mine == in ? NULL : in,
                                         .count = narrow[m->rank],
                                         .out = out,
                                         .counts = narrow,
                                         .displs = at,
                                         .type = (int)type});
    if (mine != in && counts[m->rank] > 0) memcpy(mine, in, counts[m->rank] * elem);
    for (int r = 0; r < m->size; r++)
        KOLO_TRY(kolo_mpi_broadcast(m, (char *)out + displs[r] * elem, counts[r], type, r));
    return KOLO_OK;
}

/* Reduces and scatters; one that is too long is a reduction to each rank. */
static kolo_status_t reduce_scatter(kolo_mpi_t *m, const kolo_move_t *v)
{
    kolo_type_t type = v->need.type;
    size_t total = 0;
    bool average = v->need.op == KOLO_AVG;
    kolo_mpi_work_t w = {.in = v->in, .out = v->out, .type = (int)type, .op = average ? KOLO_SUM : (int)v->need.op};
    for (int r = 0; r < m->size; r++) total += v->counts[r];
    if (total <= (size_t)kolo_mpi_chunk && fits(v->counts, NULL, m->size, m->tables, NULL)) {
        w.what = KOLO_MPI_REDUCE_SCATTER;
        w.counts = m->tables;
        KOLO_TRY(run(m, &w));
    } else {
        w.what = KOLO_MPI_REDUCE;
        for (w.peer = 0; w.peer < m->size; w.peer++) {
            KOLO_TRY(run_pieces(m, v->counts[w.peer], w));
            w.in = (const char *)w.in + v->counts[w.peer] * kolo_type_size(type);
        }
    }
    if (average && v->counts[m->rank] > 0)
        kolo_values_scale(v->out, v->out, v->counts[m->rank], type, 1.0 / m->size);
    return KOLO_OK;
}

/* A part that goes to a rank while another comes from one, each in pieces. */
typedef struct {
    const char *in;
    char *out;
    size_t count, recv_count;
    int to, from;
    kolo_type_t type;
} swap_t;

static kolo_status_t exchange(kolo_mpi_t *m, swap_t s)
{
    char why[KOLO_MPI_WHY_BYTES] = "";
    size_t step = (size_t)kolo_mpi_chunk, elem = kolo_type_size(s.type);
    kolo_mpi_work_t send = {.what = KOLO_MPI_SEND, .type = (int)s.type, .peer = s.to};
    kolo_mpi_work_t receive = {.what = KOLO_MPI_RECEIVE, .type = (int)s.type, .peer = s.from};
    for (size_t at = 0; at < KOLO_MAX(s.count, s.recv_count); at += step) {
        int failed = 0;
        if (at < s.recv_count) {
            receive.out = s.out + at * elem;
            receive.count = (int)KOLO_MIN(s.recv_count - at, step);
            failed = m->api->begin(m->comm, &receive, why);
            m->dirty |= !failed; /* a send that is refused leaves it waiting */
        }
        if (at < s.count && !failed) {
            send.in = s.in + at * elem;
            send.count = (int)KOLO_MIN(s.count - at, step);
            failed = m->api->begin(m->comm, &send, why);
        }
        KOLO_TRY(end(m, failed, why));
    }
    return KOLO_OK;
}

/* Exchanges parts. total: elements of all ranks together, by which all decide alike. */
static kolo_status_t all_to_all(kolo_mpi_t *m, const kolo_move_t *v, size_t total)
{
    kolo_type_t type = v->need.type;
    size_t elem = kolo_type_size(type), n = (size_t)m->size;
    int *narrow = m->tables;
    if (total <= (size_t)kolo_mpi_chunk && fits(v->counts, v->displs, m->size, narrow, narrow + n) &&
        fits(v->recv_counts, v->recv_displs, m->size, narrow + 2 * n, narrow + 3 * n))
        return run(m, &(kolo_mpi_work_t){.what = KOLO_MPI_ALL_TO_ALL,
                                         .in = v->in,
                                         .counts = narrow,
                                         .displs = narrow + n,
                                         .out = v->out,
                                         .recv_counts = narrow + 2 * n,
                                         .recv_displs = narrow + 3 * n,
                                         .type = (int)type});
    for (size_t i = 0; i < n; i++) {
        size_t to = ((size_t)m->rank + i) % n, from = ((size_t)m->rank + n - i) % n;
        swap_t s = {.in = (const char *)v->in + v->displs[to] * elem,
                    .out = (char *)v->out + v->recv_displs[from] * elem,
                    .count = v->counts[to],
                    .recv_count = v->recv_counts[from],
                    .to = (int)to,
                    .from = (int)from,
                    .type = type};
        if (i > 0)
            KOLO_TRY(exchange(m, s));
        else if (s.count > 0)
            memcpy(s.out, s.in, s.count * elem);
    }
    return KOLO_OK;
}

kolo_status_t kolo_mpi_run(void *mpi, const kolo_move_t *v)
{
    const kolo_need_t *n = &v->need;
    kolo_mpi_t *m = mpi;
    switch (n->work) {
    case KOLO_WORK_ALL_REDUCE:
        return kolo_mpi_all_reduce(m, v->in, v->out, v->count, n->type, (int)n->op);
    case KOLO_WORK_ALL_GATHER:
        return kolo_mpi_all_gather(m, v->in, v->out, v->counts, v->displs, n->type);
    case KOLO_WORK_BROADCAST:
        if (v->root == m->rank && v->in != v->out && v->count > 0)
            memcpy(v->out, v->in, v->count * kolo_type_size(n->type));
        return kolo_mpi_broadcast(m, v->out, v->count, n->type, v->root);
    case KOLO_WORK_ALL_TO_ALL:
        return all_to_all(m, v, n->bytes / kolo_type_size(n->type));
    case KOLO_WORK_REDUCE_SCATTER:
        return reduce_scatter(m, v);
    default:
        return kolo_fail(KOLO_ERR_INTERNAL, "engine: a %s moves no data", kolo_tensor_request_work_name(n->work));
    }
}

kolo_status_t kolo_mpi_send(kolo_mpi_t *m, const void *in, size_t bytes, int to)
{
    return run_pieces(m, bytes, (kolo_mpi_work_t){.what = KOLO_MPI_SEND, .in = in, .type = KOLO_UINT8, .peer = to});
}

kolo_status_t kolo_mpi_receive(kolo_mpi_t *m, void *out, size_t bytes, int from)
{
    return run_pieces(m, bytes,
                      (kolo_mpi_work_t){.what = KOLO_MPI_RECEIVE, .out = out, .type = KOLO_UINT8, .peer = from});
}

kolo_status_t kolo_mpi_gather(kolo_mpi_t *m, const void *in, void *out, const uint64_t *lengths)
{
    int *narrow = m->tables, *displs = narrow + m->size;
    size_t total = 0;
    for (int r = 1; r < m->size; r++) total += lengths[r];
    if (total > (size_t)kolo_mpi_chunk) {
        char *at = out;
        for (int r = 1; r < m->size; at += m->rank == 0 ? lengths[r] : 0, r++) {
            if (m->rank == 0) KOLO_TRY(kolo_mpi_receive(m, at, lengths[r], r));
            if (m->rank == r) KOLO_TRY(kolo_mpi_send(m, in, lengths[r], 0));
        }
        return KOLO_OK;
    }
    narrow[0] = displs[0] = 0;
    for (int r = 1; r < m->size; r++) {
        displs[r] = displs[r - 1] + narrow[r - 1];
        narrow[r] = (int)lengths[r];
    }
    return run(m, &(kolo_mpi_work_t){.what = KOLO_MPI_GATHER,
                                     .in = in,
                                     .count = narrow[m->rank],
                                     .out = out,
                                     .counts = narrow,
                                     .displs = displs,
                                     .type = KOLO_UINT8});
}
