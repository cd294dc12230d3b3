/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL inside each host and Kolo across (levels.h): a group inside a host is a communicator of NCCL; a lane across
 * hosts is one of Kolo over the GPUs with the same place on their hosts, which reach each other by nothing but host
 * memory (exec/staged). Both queue what they do on the engine's stream, so no thread waits between the levels.
 */
#include "engine/backends/levels.h"
#include "engine/backends/use_nccl.h"

#include <stdlib.h>

typedef struct {
    kolo_nccl_t *nccl; /* inside; NULL: it is a lane */
    kolo_comm_t lane;
    int size;
} group_t;

static kolo_status_t meet_lane(kolo_set_t *s, const kolo_level_t *level, kolo_comm_t *lane)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.blocking = 1;
    config.op_timeout_ms = s->id == 0 ? (int)s->engine->config.stall_limit_ms : 0;
    config.name = "engine's lane across hosts";
    config.device = atomic_load(&s->engine->device);
    return kolo_comm_split(s->comm, level->color, level->key, lane, &config);
}

static kolo_status_t meet_group(kolo_set_t *s, void *state, const kolo_level_t *level, void **group)
{
    group_t *g = calloc(1, sizeof *g);
    if (!g) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a group of NCCL");
    g->size = level->nranks;
    kolo_status_t status = level->purpose == KOLO_LEVEL_LOCAL
                               ? kolo_nccl_meet(s, state, level->ranks, level->nranks, level->rank, &g->nccl)
                               : meet_lane(s, level, &g->lane);
    if (status == KOLO_OK && (g->nccl || g->lane))
        *group = g;
    else
        free(g);
    return status;
}

static void leave_group(void *group, bool abort)
{
    const group_t *g = group;
    if (g->nccl)
        kolo_nccl_leave(g->nccl, abort);
    else if (abort)
        kolo_comm_abort(g->lane);
    else
        kolo_comm_finalize(g->lane), kolo_comm_destroy(g->lane);
}

static void free_group(void *group)
{
    group_t *g = group;
    kolo_nccl_free(g->nccl);
    free(g);
}

static kolo_status_t reduce_scatter(void *group, const void *in, void *out, const size_t *counts, kolo_type_t type,
                                    kolo_op_t op, void *stream)
{
    const group_t *g = group;
    return kolo_nccl_reduce_scatter(g->nccl, in, out, counts, type, op, stream);
}

static kolo_status_t all_reduce(void *group, void *data, size_t count, kolo_type_t type, kolo_op_t op, void *stream)
{
    const group_t *g = group;
    return kolo_all_reduce(data, data, count, type, op, g->lane, stream);
}

static kolo_status_t all_gather(void *group, const void *in, void *out, const size_t *counts, const size_t *displs,
                                kolo_type_t type, void *stream)
{
    const group_t *g = group;
    return g->nccl ? kolo_nccl_all_gather(g->nccl, in, out, counts, displs, type, stream)
                   : kolo_all_gatherv(in, out, counts, displs, type, g->lane, stream);
}

static kolo_status_t broadcast(void *group, const void *in, void *out, size_t count, kolo_type_t type, int root,
                               void *stream)
{
    const group_t *g = group;
    return g->nccl ? kolo_nccl_broadcast(g->nccl, in, out, count, type, root, stream)
                   : kolo_broadcast(in, out, count, type, root, g->lane, stream);
}

/* A lane whose ranks were lost lets its stream go on. */
static kolo_status_t status_of(void *group)
{
    const group_t *g = group;
    kolo_status_t status = KOLO_OK;
    if (g->nccl) return KOLO_OK;
    KOLO_TRY(kolo_comm_get_async_error(g->lane, &status));
    return status == KOLO_OK || status == KOLO_IN_PROGRESS ? KOLO_OK
                                                           : kolo_fail(status, "%s", kolo_get_last_error(g->lane));
}

static const kolo_level_ops_t level_ops = {.meet = meet_group,
                                           .leave = leave_group,
                                           .free = free_group,
                                           .reduce_scatter = reduce_scatter,
                                           .all_reduce = all_reduce,
                                           .all_gather = all_gather,
                                           .broadcast = broadcast,
                                           .status = status_of};

static kolo_status_t meet(kolo_set_t *s, void *state, void **here)
{
    return kolo_levels_meet(s, state, &level_ops, here);
}

static bool takes(const kolo_set_t *s, const kolo_need_t *need)
{
    return kolo_nccl_knows(need) && kolo_levels_fit(s, &level_ops, need);
}

const kolo_backend_t kolo_backend_nccl_levels = {.name = "nccl_hierarchical",
                                                 .open = kolo_nccl_open_backend,
                                                 .close = kolo_nccl_close_backend,
                                                 .meet = meet,
                                                 .leave = kolo_levels_leave,
                                                 .free = kolo_levels_free,
                                                 .takes = takes,
                                                 .status = kolo_levels_status,
                                                 .run = kolo_levels_run};
