/* SPDX-License-Identifier: Apache-2.0
 *
 * Revoke: one rank ends a communicator's operations on all ranks, so that all come out of them and can shrink. The
 * news floods over the out-of-band connections (member/news.c); what it does on a rank is in lost.c. And the
 * question who is lost.
 */
#include "comm/call/call.h"
#include "member/map.h"

#include <stdlib.h>

static kolo_status_t revoke(kolo_body_t *body)
{
    kolo_comm_t h = body->handle;
    int state = atomic_load(&h->state);
    if (state == KOLO_COMM_STARTING || state == KOLO_COMM_FINALIZED)
        return kolo_fail_prefix(kolo_handle_refuse(h, state), "comm_revoke: ");
    if (atomic_exchange(&h->revoked_here, true))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "comm_revoke: rank %d has revoked %s already", h->rank,
                         h->name);
    kolo_news_revoke(body->oob);
    return KOLO_OK;
}

kolo_status_t kolo_comm_revoke(kolo_comm_t comm)
{
    if (!comm) return KOLO_OK;
    kolo_body_t *body = kolo_handle_visit(comm, "comm_revoke");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    kolo_status_t status = revoke(body);
    kolo_handle_leave(comm);
    return status;
}

void kolo_body_note_lost(kolo_body_t *body, const uint8_t *out, const uint8_t *named)
{
    pthread_mutex_lock(&body->handle->error_lock);
    if (!body->life.agreed_lost)
        body->life.agreed_lost = calloc(1, kolo_map_bytes(body->nranks)); /* without memory only news tell */
    for (size_t i = 0; body->life.agreed_lost && i < kolo_map_bytes(body->nranks); i++)
        body->life.agreed_lost[i] |= (uint8_t)(out[i] & ~named[i]);
    pthread_mutex_unlock(&body->handle->error_lock);
}

static kolo_status_t list_lost(kolo_body_t *body, int *ranks, int *count)
{
    int room = ranks ? *count : 0, n = 0;
    uint8_t *map = calloc(1, kolo_map_bytes(body->nranks));
    if (!map) return kolo_fail(KOLO_ERR_NO_MEMORY, "comm_lost: out of memory for %d ranks", body->nranks);
    kolo_news_get_lost(body->oob, map);
    pthread_mutex_lock(&body->handle->error_lock);
    for (size_t i = 0; body->life.agreed_lost && i < kolo_map_bytes(body->nranks); i++)
        map[i] |= body->life.agreed_lost[i];
    pthread_mutex_unlock(&body->handle->error_lock);
    for (int r = 0; r < body->nranks; r++) {
        if (!kolo_map_has(map, r)) continue;
        if (n < room) ranks[n] = r;
        n++;
    }
    *count = n;
    free(map);
    return KOLO_OK;
}

kolo_status_t kolo_comm_lost(kolo_comm_t comm, int *ranks, int *count)
{
    if (!count || *count < 0)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "comm_lost: the count is %s", count ? "negative" : "NULL");
    kolo_body_t *body = kolo_handle_visit(comm, "comm_lost");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    kolo_status_t status = KOLO_OK;
    if (atomic_load(&comm->state) == KOLO_COMM_STARTING || !body->oob)
        status = kolo_fail_prefix(kolo_handle_refuse(comm, KOLO_COMM_STARTING), "comm_lost: ");
    else
        status = list_lost(body, ranks, count);
    kolo_handle_leave(comm);
    return status;
}
