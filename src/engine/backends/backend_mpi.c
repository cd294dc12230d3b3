/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend that gives moves to a real MPI (use_mpi.h): all operations, on a communicator per process set.
 * Averages are sums whose inputs were scaled before, as Kolo's own are; those of integers, which Kolo divides at
 * the end, and of reduce_scatter in short floats, for which there is no room to scale in, are left to the next
 * backend.
 */
#include "engine/backends/use_mpi.h"
#include "exec/host/reduce.h"

#include <string.h>

static kolo_status_t meet(kolo_set_t *s, void *state, void **here)
{
    kolo_mpi_t *m = NULL;
    (void)state;
    KOLO_TRY(kolo_mpi_meet(s, KOLO_MPI_BACKEND, &m));
    *here = m;
    return KOLO_OK;
}

static bool takes(const kolo_set_t *s, const kolo_need_t *need)
{
    (void)s;
    if (need->memory != KOLO_MEMORY_HOST) return false;
    bool reduces = need->work == KOLO_WORK_ALL_REDUCE || need->work == KOLO_WORK_REDUCE_SCATTER;
    if (reduces && (need->op > KOLO_AVG || need->type == KOLO_BOOL)) return false;
    if (need->op != KOLO_AVG || need->work == KOLO_WORK_ALL_GATHER || need->work == KOLO_WORK_BROADCAST ||
        need->work == KOLO_WORK_ALL_TO_ALL)
        return true;
    bool wide = need->type == KOLO_FLOAT32 || need->type == KOLO_FLOAT64;
    return need->work == KOLO_WORK_ALL_REDUCE ? kolo_type_is_float(need->type) : wide;
}

static kolo_status_t reduce_scatter(kolo_mpi_t *m, const kolo_move_t *v)
{
    const kolo_need_t *n = &v->need;
    bool average = n->op == KOLO_AVG;
    KOLO_TRY(kolo_mpi_reduce_scatter(m, v->in, v->out, v->counts, n->type, average ? KOLO_SUM : n->op));
    if (average && v->counts[m->rank] > 0) kolo_scale(v->out, v->out, v->counts[m->rank], n->type, 1.0 / m->size);
    return KOLO_OK;
}

static kolo_status_t run(kolo_set_t *s, void *here, const kolo_move_t *v)
{
    const kolo_need_t *n = &v->need;
    kolo_mpi_t *m = here;
    switch (n->work) {
    case KOLO_WORK_ALL_REDUCE:
        return kolo_mpi_all_reduce(m, v->in, v->out, v->count, n->type, n->op);
    case KOLO_WORK_ALL_GATHER:
        return kolo_mpi_all_gather(m, v->in, v->out, v->counts, v->displs, n->type);
    case KOLO_WORK_BROADCAST:
        if (v->root == s->rank && v->in != v->out && v->count > 0) memcpy(v->out, v->in, n->bytes);
        return kolo_mpi_broadcast(m, v->out, v->count, n->type, v->root);
    case KOLO_WORK_ALL_TO_ALL:
        return kolo_mpi_all_to_all(m, v, n->bytes / kolo_type_size(n->type));
    case KOLO_WORK_REDUCE_SCATTER:
        return reduce_scatter(m, v);
    default:
        return kolo_fail(KOLO_ERR_INTERNAL, "engine: a %s moves no data", kolo_work_name(n->work));
    }
}

const kolo_backend_t kolo_backend_mpi = {.name = "mpi",
                                         .open = kolo_mpi_open_backend,
                                         .close = kolo_mpi_close_backend,
                                         .meet = meet,
                                         .leave = kolo_mpi_leave,
                                         .free = kolo_mpi_free,
                                         .takes = takes,
                                         .run = run};
