/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups of MPI in host memory (levels.h). Which ranks share a host is what Kolo found out, so it is the same for
 * all backends, also where MPI_COMM_TYPE_SHARED would say otherwise (KOLO_HOST_ID).
 */
#include "engine/backends/levels.h"
#include "engine/backends/use_mpi.h"

static kolo_status_t meet(kolo_set_t *s, void *state, const kolo_level_t *level, void **group)
{
    kolo_mpi_t *m = NULL;
    (void)state;
    if (level->color == KOLO_SPLIT_NOCOLOR) return KOLO_OK;
    KOLO_TRY(kolo_mpi_meet_some(s, level->ranks, level->nranks, level->rank, KOLO_MPI_LEVELS + level->purpose, &m));
    *group = m;
    return KOLO_OK;
}

static kolo_status_t reduce_scatter(void *group, const void *in, void *out, const size_t *counts, kolo_type_t type,
                                    kolo_op_t op, void *stream)
{
    (void)stream;
    return kolo_mpi_reduce_scatter(group, in, out, counts, type, op);
}

static kolo_status_t all_reduce(void *group, const void *in, void *out, size_t count, kolo_type_t type,
                                kolo_op_t op, void *stream)
{
    (void)stream;
    return kolo_mpi_all_reduce(group, in, out, count, type, op);
}

static kolo_status_t all_gather(void *group, const void *in, void *out, const size_t *counts, const size_t *displs,
                                kolo_type_t type, void *stream)
{
    (void)stream;
    return kolo_mpi_all_gather(group, in, out, counts, displs, type);
}

const kolo_group_ops_t kolo_group_mpi = {.meet = meet,
                                         .leave = kolo_mpi_leave,
                                         .free = kolo_mpi_free,
                                         .reduce_scatter = reduce_scatter,
                                         .all_reduce = all_reduce,
                                         .all_gather = all_gather};
