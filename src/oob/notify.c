/* SPDX-License-Identifier: Apache-2.0
 *
 * Notifications: a number from rank to rank, without a receive. The receiver's progress thread passes it to the
 * registered handler, whatever the rank's thread does: so ranks that sleep learn that another has work.
 */
#include "oob/internal.h"

#include <stdlib.h>

void kolo_oob_set_notify(kolo_oob_t *oob, kolo_notify_fn_t fn, void *arg)
{
    pthread_mutex_lock(&oob->lock);
    oob->notify_fn = fn;
    oob->notify_arg = arg;
    pthread_mutex_unlock(&oob->lock);
}

const char *kolo_oob_notify_arrived(kolo_conn_t *conn)
{
    kolo_oob_t *oob = conn->oob;
    if (oob->notify_fn != NULL) oob->notify_fn(oob->notify_arg, conn->peer->rank, conn->frame.tag);
    return NULL;
}

kolo_status_t kolo_oob_notify_more(kolo_oob_t *oob, int rank, uint64_t number)
{
    kolo_peer_t *peer = kolo_peer_find(oob, rank);
    kolo_conn_t *conn = peer != NULL && !oob->closed ? kolo_peer_out(peer) : NULL;
    if (conn == NULL)
        return kolo_fail(KOLO_ERR_REMOTE, "%s: rank %d has no connection to rank %d to notify it", oob->name,
                         oob->rank, rank);
    kolo_outbound_t *out = malloc(sizeof(*out));
    if (out == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "%s: no memory for a notification", oob->name);
    kolo_outbound_init(out, KOLO_FRAME_NOTIFY, number);
    out->owned = true;
    kolo_conn_send(conn, out);
    return KOLO_OK;
}

kolo_status_t kolo_oob_notify(kolo_oob_t *oob, int rank, uint64_t number)
{
    kolo_status_t status = KOLO_OK;
    pthread_mutex_lock(&oob->lock);
    if (rank != oob->rank)
        status = kolo_oob_notify_more(oob, rank, number);
    else if (oob->notify_fn != NULL)
        oob->notify_fn(oob->notify_arg, rank, number);
    pthread_mutex_unlock(&oob->lock);
    return status;
}
