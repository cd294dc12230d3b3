/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend that is always there: the collectives of Kolo's own communicator, over all ranks of the set at once.
 */
#include "engine/backends/backend.h"

static bool takes(const kolo_set_t *s, const kolo_need_t *need)
{
    (void)s;
    return need->memory == KOLO_MEMORY_HOST;
}

static kolo_status_t run(kolo_set_t *s, void *here, const kolo_move_t *m)
{
    const kolo_need_t *n = &m->need;
    (void)here;
    switch (n->work) {
    case KOLO_WORK_ALL_REDUCE:
        return kolo_all_reduce(m->in, m->out, m->count, n->type, n->op, s->comm, m->stream);
    case KOLO_WORK_ALL_GATHER:
        return kolo_all_gatherv(m->in, m->out, m->counts, m->displs, n->type, s->comm, m->stream);
    case KOLO_WORK_BROADCAST:
        return kolo_broadcast(m->in, m->out, m->count, n->type, m->root, s->comm, m->stream);
    case KOLO_WORK_ALL_TO_ALL:
        return kolo_all_to_allv(m->in, m->counts, m->displs, m->out, m->recv_counts, m->recv_displs, n->type,
                                s->comm, m->stream);
    case KOLO_WORK_REDUCE_SCATTER:
        return kolo_reduce_scatterv(m->in, m->out, m->counts, n->type, n->op, s->comm, m->stream);
    default:
        return kolo_fail(KOLO_ERR_INTERNAL, "engine: a %s moves no data", kolo_work_name(n->work));
    }
}

const kolo_backend_t kolo_backend_kolo = {.name = "kolo", .takes = takes, .run = run};
