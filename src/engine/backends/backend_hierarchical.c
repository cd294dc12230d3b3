/* SPDX-License-Identifier: Apache-2.0
 *
 * Kolo in levels (levels.h): the groups are communicators that are split off the set's.
 */
#include "engine/backends/levels.h"

#include <stdio.h>

static kolo_status_t meet_group(kolo_set_t *s, void *state, const kolo_level_t *level, void **group)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t comm = NULL;
    char name[48];
    (void)state;
    snprintf(name, sizeof name, "engine set %d %s", s->id, level->name);
    config.blocking = 1;
    config.op_timeout_ms = (int)s->engine->config.stall_limit_ms;
    config.name = name;
    KOLO_TRY(kolo_comm_split(s->comm, level->color, level->key, &comm, &config));
    *group = comm;
    return KOLO_OK;
}

static void leave_group(void *group, bool abort)
{
    if (!abort) kolo_comm_finalize(group);
    if (abort)
        kolo_comm_abort(group);
    else
        kolo_comm_destroy(group);
}

static kolo_status_t reduce_scatter(void *group, const void *in, void *out, const size_t *counts, kolo_type_t type,
                                    kolo_op_t op, void *stream)
{
    return kolo_reduce_scatterv(in, out, counts, type, op, group, stream);
}

static kolo_status_t all_reduce(void *group, void *data, size_t count, kolo_type_t type, kolo_op_t op, void *stream)
{
    return kolo_all_reduce(data, data, count, type, op, group, stream);
}

static kolo_status_t all_gather(void *group, const void *in, void *out, const size_t *counts, const size_t *displs,
                                kolo_type_t type, void *stream)
{
    return kolo_all_gatherv(in, out, counts, displs, type, group, stream);
}

static const kolo_level_ops_t level_ops = {.meet = meet_group,
                                           .leave = leave_group,
                                           .reduce_scatter = reduce_scatter,
                                           .all_reduce = all_reduce,
                                           .all_gather = all_gather};

static kolo_status_t meet(kolo_set_t *s, void *state, void **here)
{
    return kolo_levels_meet(s, state, &level_ops, here);
}

static bool takes(const kolo_set_t *s, const kolo_need_t *need)
{
    return need->memory == KOLO_MEMORY_HOST && kolo_levels_have_some(s) && kolo_levels_fit(s, &level_ops, need);
}

const kolo_backend_t kolo_backend_hierarchical = {.name = "hierarchical",
                                                  .meet = meet,
                                                  .leave = kolo_levels_leave,
                                                  .free = kolo_levels_free,
                                                  .takes = takes,
                                                  .run = kolo_levels_run};
