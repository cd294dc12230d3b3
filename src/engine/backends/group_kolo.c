/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups of Kolo (levels.h): communicators that are split off the set's; in host memory, or of the GPUs that the
 * ranks work on. GPUs of several hosts reach each other through host memory (gpu/staged), queued like all else.
 */
#include "comm/comm.h"
#include "engine/backends/levels.h"

#include <stdio.h>

static kolo_status_t meet(kolo_set_t *s, void *state, const kolo_level_t *level, void **group)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t comm = NULL;
    char name[48];
    (void)state;
    snprintf(name, sizeof name, "engine set %d %s", s->id, level->name);
    config.blocking = 1;
    config.op_timeout_ms = level->on_gpus && s->id != 0 ? 0 : (int)s->engine->config.stall_limit_ms;
    config.name = name;
    if (level->on_gpus) config.device = atomic_load(&s->engine->device);
    KOLO_TRY(kolo_comm_split(s->comm, level->color, level->key, &comm, &config));
    *group = comm;
    return KOLO_OK;
}

static void leave(void *group, bool abort)
{
    if (!abort) kolo_call_finalize(KOLO_CALL_WORD_ENGINE_END, group);
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

static kolo_status_t all_reduce(void *group, const void *in, void *out, size_t count, kolo_type_t type,
                                kolo_op_t op, void *stream)
{
    return kolo_all_reduce(in, out, count, type, op, group, stream);
}

static kolo_status_t all_gather(void *group, const void *in, void *out, const size_t *counts, const size_t *displs,
                                kolo_type_t type, void *stream)
{
    return kolo_all_gatherv(in, out, counts, displs, type, group, stream);
}

static kolo_status_t broadcast(void *group, const void *in, void *out, size_t count, kolo_type_t type, int root,
                               void *stream)
{
    return kolo_broadcast(in, out, count, type, root, group, stream);
}

/* One whose ranks were lost lets its stream go on. */
static kolo_status_t status_of(void *group)
{
    kolo_status_t status = KOLO_OK;
    KOLO_TRY(kolo_comm_get_async_error(group, &status));
    return status == KOLO_OK || status == KOLO_IN_PROGRESS ? KOLO_OK
                                                           : kolo_fail(status, "%s", kolo_get_last_error(group));
}

const kolo_group_ops_t kolo_group_kolo = {.meet = meet,
                                          .leave = leave,
                                          .reduce_scatter = reduce_scatter,
                                          .all_reduce = all_reduce,
                                          .all_gather = all_gather,
                                          .broadcast = broadcast,
                                          .status = status_of};
