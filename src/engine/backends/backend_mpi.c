/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend that gives moves to a real MPI (use_mpi.h): all operations, on a communicator per process set.
 * Averages are sums whose inputs were scaled before, as Kolo's own are; those of integers, which Kolo divides at
 * the end, and of reduce_scatter in short floats, for which there is no room to scale in, are left to the next
 * backend. Groups of MPI in host memory (levels.h): which ranks share a host is what Kolo found out, so it is the
 * same for all backends, also where MPI_COMM_TYPE_SHARED would say otherwise (KOLO_HOST_ID).
 */
#include "engine/backends/levels.h"
#include "engine/backends/use_mpi.h"
#include "exec/host/reduce.h"

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

static kolo_status_t run(kolo_set_t *s, void *here, const kolo_move_t *move)
{
    (void)s;
    return kolo_mpi_run(here, move);
}

const kolo_backend_t kolo_backend_mpi = {.name = "mpi",
                                         .open = kolo_mpi_open_backend,
                                         .close = kolo_mpi_close_backend,
                                         .meet = meet,
                                         .leave = kolo_mpi_leave,
                                         .free = kolo_mpi_free,
                                         .takes = takes,
                                         .run = run};

/* ---- groups ---- */

static kolo_status_t meet_group(kolo_set_t *s, void *state, const kolo_level_t *level, void **group)
{
    kolo_mpi_t *m = NULL;
    (void)state;
    if (level->color == KOLO_SPLIT_NOCOLOR) return KOLO_OK;
    KOLO_TRY(kolo_mpi_meet_some(s, level->ranks, level->nranks, level->rank, KOLO_MPI_LEVELS + level->purpose, &m));
    *group = m;
    return KOLO_OK;
}

const kolo_group_ops_t kolo_group_mpi = {
    .meet = meet_group, .leave = kolo_mpi_leave, .free = kolo_mpi_free, .run = kolo_mpi_run};
