/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend that is always there: the collectives of Kolo's own communicators, over all ranks of the set at once:
 * that of the set, and, for moves of device memory, that of the ranks' GPUs (batch/native.c).
 */
#include "engine/backends/backend.h"

static bool takes(const kolo_set_t *s, const kolo_need_t *need)
{
    return need->memory == KOLO_MEMORY_HOST || !s->gpu_missing;
}

/* Equal parts, one behind the other: which all ranks see alike where they have the same tables. */
static bool is_even(const kolo_set_t *s, const size_t *counts)
{
    for (int r = 1; r < s->size; r++)
        if (counts[r] != counts[0]) return false;
    return true;
}

static kolo_status_t run(kolo_set_t *s, void *here, const kolo_move_t *m)
{
    const kolo_need_t *n = &m->need;
    bool device = n->memory == KOLO_MEMORY_DEVICE;
    kolo_comm_t comm = device ? atomic_load(&s->gpu) : s->comm;
    (void)here;
    switch (n->work) {
    case KOLO_WORK_ALL_REDUCE:
        return kolo_all_reduce(m->in, m->out, m->count, n->type, n->op, comm, m->stream);
    case KOLO_WORK_ALL_GATHER:
        if (device && is_even(s, m->counts))
            return kolo_all_gather(m->in, m->out, m->counts[0], n->type, comm, m->stream);
        return kolo_all_gatherv(m->in, m->out, m->counts, m->displs, n->type, comm, m->stream);
    case KOLO_WORK_BROADCAST:
        return kolo_broadcast(m->in, m->out, m->count, n->type, m->root, comm, m->stream);
    case KOLO_WORK_ALL_TO_ALL:
        return kolo_all_to_allv(m->in, m->counts, m->displs, m->out, m->recv_counts, m->recv_displs, n->type, comm,
                                m->stream);
    case KOLO_WORK_REDUCE_SCATTER:
        if (device && is_even(s, m->counts))
            return kolo_reduce_scatter(m->in, m->out, m->counts[0], n->type, n->op, comm, m->stream);
        return kolo_reduce_scatterv(m->in, m->out, m->counts, n->type, n->op, comm, m->stream);
    default:
        return kolo_fail(KOLO_ERR_INTERNAL, "engine: a %s moves no data", kolo_work_name(n->work));
    }
}

const kolo_backend_t kolo_backend_kolo = {.name = "kolo", .takes = takes, .run = run};
