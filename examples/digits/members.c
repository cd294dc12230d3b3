/* SPDX-License-Identifier: Apache-2.0
 *
 * See members.h.
 */
#include "members.h"

#include <stdio.h>

#ifdef KOLO_SANITIZED
#define PATIENCE 3
#else
#define PATIENCE 1
#endif
#define INIT_MS (20000 * PATIENCE)
#define STEP_MS (20000 * PATIENCE) /* a rank that is alive and does not take part for so long is stuck */

static kolo_config_t config(void)
{
    kolo_config_t c = KOLO_CONFIG_INITIALIZER;
    c.init_timeout_ms = INIT_MS;
    c.op_timeout_ms = STEP_MS;
    c.name = "digits";
    return c;
}

/* Keeps the words of a failure, which the next call may replace. */
static kolo_status_t note(members_t *m, kolo_status_t status, kolo_comm_t comm)
{
    if (status != KOLO_OK) snprintf(m->error, sizeof m->error, "%s", kolo_get_last_error(comm));
    return status;
}

static kolo_status_t go_on_with(members_t *m, kolo_comm_t comm)
{
    m->comm = comm;
    kolo_status_t status = kolo_comm_count(comm, &m->nranks);
    if (status == KOLO_OK) status = kolo_comm_user_rank(comm, &m->rank);
    return note(m, status, comm);
}

kolo_status_t members_start(members_t *m, kolo_unique_id_t id, int nranks, int rank)
{
    kolo_comm_t comm;
    kolo_config_t c = config();
    kolo_status_t status = kolo_comm_init_rank(&comm, nranks, id, rank, &c);
    return status == KOLO_OK ? go_on_with(m, comm) : note(m, status, NULL);
}

kolo_status_t members_engage(members_t *m, const char *folder, uint64_t step)
{
    kolo_engine_config_t c = KOLO_ENGINE_CONFIG_INITIALIZER;
    char path[4096];
    c.stall_limit_ms = STEP_MS;
    kolo_status_t status = note(m, kolo_engine_init(&m->engine, m->comm, &c), NULL);
    if (status != KOLO_OK || !folder) return status;
    snprintf(path, sizeof path, "%s/%06llu-of-%d.%%r.json", folder, (unsigned long long)step, m->nranks);
    return note(m, kolo_engine_timeline_start(m->engine, path, 0), NULL);
}

/* What went wrong with it was told by the tensors already. */
static void disengage(members_t *m)
{
    kolo_engine_shutdown(m->engine);
    m->engine = NULL;
}

bool members_is_loss(kolo_status_t status)
{
    return status == KOLO_ERR_REMOTE || status == KOLO_ERR_ABORTED || status == KOLO_ERR_REVOKED;
}

kolo_status_t members_mend(members_t *m)
{
    kolo_comm_t rest;
    disengage(m);
    kolo_status_t status = kolo_comm_shrink(m->comm, NULL, 0, KOLO_SHRINK_ABORT, &rest, NULL);
    if (status != KOLO_OK) return note(m, status, NULL);
    kolo_comm_abort(m->comm);
    return go_on_with(m, rest);
}

/* ---- a newcomer ---- */

kolo_status_t members_make_id(members_t *m, kolo_unique_id_t *id)
{
    return note(m, kolo_comm_get_grow_id(m->comm, id), NULL);
}

kolo_status_t members_grow(members_t *m, const kolo_unique_id_t *id)
{
    kolo_comm_t old = m->comm, grown;
    disengage(m);
    kolo_status_t status = kolo_comm_grow(old, m->nranks + 1, m->rank == 0 ? id : NULL, -1, &grown, NULL);
    if (status != KOLO_OK) return note(m, status, NULL);
    kolo_comm_finalize(old);
    kolo_comm_destroy(old);
    return go_on_with(m, grown);
}

kolo_status_t members_join(members_t *m, kolo_unique_id_t id, int nranks)
{
    kolo_comm_t comm;
    kolo_config_t c = config();
    kolo_status_t status = kolo_comm_grow(NULL, nranks, &id, nranks - 1, &comm, &c);
    return status == KOLO_OK ? go_on_with(m, comm) : note(m, status, NULL);
}

/* ---- agreement ---- */

kolo_status_t members_agree(members_t *m, uint64_t step, uint64_t hash, uint64_t wish, agreement_t *agreement)
{
    uint64_t x[] = {step, ~step, hash, ~hash, wish}; /* the greatest complement is that of the least */
    kolo_status_t status = kolo_all_reduce(x, x, sizeof x / sizeof x[0], KOLO_UINT64, KOLO_MAX, m->comm, NULL);
    if (status != KOLO_OK) return note(m, status, m->comm);
    *agreement = (agreement_t){x[0] == ~x[1] && x[2] == ~x[3], x[4]};
    return KOLO_OK;
}

kolo_status_t members_settle(members_t *m, train_t *t, bool has_state, uint64_t *greatest, bool *equal)
{
    uint64_t mine = has_state ? t->now->step + 1 : 0;
    uint64_t x[] = {mine << 8 | (uint64_t)(UINT8_MAX - m->rank), *greatest};
    kolo_status_t status = kolo_all_reduce(x, x, 2, KOLO_UINT64, KOLO_MAX, m->comm, NULL);
    if (status != KOLO_OK) return note(m, status, m->comm);
    int source = UINT8_MAX - (int)(x[0] & UINT8_MAX); /* the lowest rank of those with the most steps */
    uint64_t newest = x[0] >> 8;
    *greatest = x[1];
    if (newest == 0) return KOLO_ERR_INVALID_USAGE; /* nobody has a state */
    if (mine + 1 == newest && t->has_next) {
        train_commit(t);
        mine = newest;
    }
    t->has_next = false; /* it is where the state arrives */
    state_t *from = m->rank == source ? t->now : t->next;
    status = kolo_broadcast(from, from, sizeof *from, KOLO_UINT8, source, m->comm, NULL);
    if (status != KOLO_OK) return note(m, status, m->comm);
    *equal = m->rank == source || mine != newest || train_hash(t->now) == train_hash(t->next);
    if (m->rank != source) train_commit(t);
    return KOLO_OK;
}

kolo_status_t members_end(members_t *m)
{
    disengage(m);
    kolo_status_t status = note(m, kolo_comm_finalize(m->comm), m->comm);
    kolo_status_t freed = kolo_comm_destroy(m->comm);
    m->comm = NULL;
    return status != KOLO_OK ? status : freed;
}

void members_abort(members_t *m)
{
    kolo_engine_abort(m->engine);
    if (m->comm) kolo_comm_abort(m->comm);
}
