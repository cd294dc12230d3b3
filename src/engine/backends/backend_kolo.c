/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend that is always there: the collectives of Kolo's own communicators, over all ranks of the set at once:
 * that of the set, and, for moves of device memory, that of the ranks' GPUs (batch/native.c).
 *
 * Groups of Kolo (levels.h) are communicators that are split off the set's; in host memory, or of the GPUs that the
 * ranks work on. GPUs of several hosts reach each other through host memory (gpu/staged), queued like all else.
 */
#include "comm/comm.h"
#include "engine/backends/levels.h"

#include <stdio.h>

/* Runs the move on a communicator. */
static kolo_status_t run(void *comm, const kolo_move_t *m)
{
    const kolo_need_t *n = &m->need;
    bool device = n->memory == KOLO_MEMORY_DEVICE;
    int ranks = 0;
    if (device) KOLO_TRY(kolo_comm_count(comm, &ranks));
    switch (n->work) {
    case KOLO_WORK_ALL_REDUCE:
        return kolo_all_reduce(m->in, m->out, m->count, n->type, n->op, comm, m->stream);
    case KOLO_WORK_ALL_GATHER:
        if (device && kolo_backend_is_even(m->counts, m->displs, ranks))
            return kolo_all_gather(m->in, (char *)m->out + m->displs[0] * kolo_type_size(n->type), m->counts[0],
                                   n->type, comm, m->stream);
        return kolo_all_gatherv(m->in, m->out, m->counts, m->displs, n->type, comm, m->stream);
    case KOLO_WORK_BROADCAST:
        return kolo_broadcast(m->in, m->out, m->count, n->type, m->root, comm, m->stream);
    case KOLO_WORK_ALL_TO_ALL:
        return kolo_all_to_allv(m->in, m->counts, m->displs, m->out, m->recv_counts, m->recv_displs, n->type, comm,
                                m->stream);
    case KOLO_WORK_REDUCE_SCATTER:
        if (device && kolo_backend_is_even(m->counts, NULL, ranks))
            return kolo_reduce_scatter(m->in, m->out, m->counts[0], n->type, n->op, comm, m->stream);
        return kolo_reduce_scatterv(m->in, m->out, m->counts, NULL, n->type, n->op, comm, m->stream);
    default:
        return kolo_fail(KOLO_ERR_INTERNAL, "engine: a %s moves no data", kolo_tensor_request_work_name(n->work));
    }
}

static bool takes(const kolo_set_t *s, const kolo_need_t *need)
{
    return need->memory == KOLO_MEMORY_HOST || !s->gpu_missing;
}

static kolo_status_t run_set(kolo_set_t *s, void *here, const kolo_move_t *m)
{
    (void)here;
    return run(m->need.memory == KOLO_MEMORY_DEVICE ? atomic_load(&s->gpu) : s->comm, m);
}

const kolo_backend_t kolo_backend_kolo = {.name = "kolo", .takes = takes, .run = run_set};

/* ---- groups ---- */

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

/* Returns how it went: one whose ranks were lost lets its stream go on. */
static kolo_status_t status_of(void *group)
{
    kolo_status_t status = KOLO_OK;
    KOLO_TRY(kolo_comm_get_async_error(group, &status));
    return status == KOLO_OK || status == KOLO_IN_PROGRESS ? KOLO_OK
                                                           : kolo_fail(status, "%s", kolo_get_last_error(group));
}

const kolo_group_ops_t kolo_group_kolo = {
    .meet = meet, .leave = leave, .run = run, .broadcasts = true, .status = status_of};
