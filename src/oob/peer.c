/* SPDX-License-Identifier: Apache-2.0
 *
 * What a rank knows of another rank: the connections to it, whether one is being made, and whether it has gone.
 * Connections are used in both directions; a sender stays on the one that it used first, so that its messages keep
 * their order, while the receiver reads from all.
 */
#include "oob/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kolo_peer_t *kolo_peer_find(kolo_oob_t *oob, int rank)
{
    kolo_peer_t *peer = oob->peers[(unsigned)rank % KOLO_PEER_BUCKETS];
    while (peer != NULL && peer->rank != rank) peer = peer->next;
    return peer;
}

kolo_peer_t *kolo_peer_get(kolo_oob_t *oob, int rank)
{
    kolo_peer_t *peer = kolo_peer_find(oob, rank);
    if (peer != NULL) return peer;
    peer = kolo_rooms_new_peer(sizeof(*peer));
    if (peer == NULL) {
        kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the connection to rank %d", rank);
        return NULL;
    }
    peer->rank = rank;
    peer->oob = oob;
    peer->next = oob->peers[(unsigned)rank % KOLO_PEER_BUCKETS];
    oob->peers[(unsigned)rank % KOLO_PEER_BUCKETS] = peer;
    return peer;
}

static void peer_dialled(void *arg, kolo_status_t status, kolo_socket_t socket, const char *text)
{
    kolo_peer_t *peer = arg;
    kolo_oob_t *oob = peer->oob;
    pthread_mutex_lock(&oob->lock);
    peer->dialling = false;
    if (status == KOLO_OK) {
        status = kolo_conn_add(oob, peer->rank, socket);
        text = kolo_error_text();
    }
    if (status != KOLO_OK) {
        peer->dial_status = status;
        free(peer->dial_text);
        peer->dial_text = strdup(text);
    }
    kolo_oob_wake(oob);
    pthread_mutex_unlock(&oob->lock);
}

kolo_status_t kolo_peer_dial(kolo_oob_t *oob, kolo_peer_t *peer, uint64_t deadline_ns)
{
    if (peer->live > 0 || peer->dialling || peer->gone || peer->dial_status != KOLO_OK) return KOLO_OK;
    kolo_dial_config_t config = {.address = oob->table[peer->rank],
                                 .key = oob->key,
                                 .claim = {.purpose = KOLO_PURPOSE_MESSAGE,
                                           .from = oob->rank,
                                           .to = peer->rank,
                                           .tag = (uint64_t)oob->nranks},
                                 .deadline_ns = deadline_ns,
                                 .done = peer_dialled,
                                 .arg = peer};
    snprintf(config.who, sizeof(config.who), "rank %d", peer->rank);
    peer->dialling = true;
    kolo_status_t status = kolo_dial_start(oob->progress, &config, &peer->dial);
    if (status != KOLO_OK) peer->dialling = false;
    return status;
}

void kolo_peer_absent(kolo_peer_t *peer)
{
    if (peer->live > 0 || peer->dialling || peer->dial_status == KOLO_OK) return;
    peer->absent = true;
    kolo_oob_wake(peer->oob);
}

kolo_conn_t *kolo_peer_out(kolo_peer_t *peer)
{
    if (peer->out == NULL)
        for (kolo_conn_t *conn = peer->conns; conn != NULL; conn = conn->next)
            if (!conn->dead) peer->out = conn;
    return peer->out;
}

bool kolo_oob_is_lost(const kolo_oob_t *oob)
{
    return oob->setup_failure != NULL || kolo_rooms_end_waits(oob);
}

kolo_status_t kolo_oob_lost(kolo_oob_t *oob, const char *doing)
{
    if (oob->leaving) /* that the peers go now is our doing */
        return kolo_fail(KOLO_ERR_ABORTED, "%s: rank %d was %s when it gave up", oob->name, oob->rank, doing);
    if (oob->setup_failure != NULL) {
        oob->failed = true;
        return kolo_fail(oob->setup_failure->status, "%s: %s", oob->name, oob->setup_failure->text);
    }
    return kolo_rooms_why(oob, doing);
}

kolo_status_t kolo_peer_check(kolo_oob_t *oob, kolo_peer_t *peer, const char *doing)
{
    KOLO_TRY(kolo_oob_lost(oob, doing));
    if (peer->dial_status != KOLO_OK && peer->live == 0) {
        oob->failed = true;
        if (peer->dial_status == KOLO_ERR_REMOTE) oob->blames = peer->rank;
        return kolo_fail(peer->dial_status, "%s: rank %d was %s and cannot call %s", oob->name, oob->rank, doing,
                         peer->dial_text != NULL ? peer->dial_text : "a peer");
    }
    if (peer->gone) {
        oob->failed = true;
        oob->blames = peer->rank;
        return kolo_fail(KOLO_ERR_REMOTE, "%s: rank %d was %s, but rank %d %s", oob->name, oob->rank, doing,
                         peer->rank, peer->why);
    }
    return KOLO_OK;
}

kolo_status_t kolo_oob_check_peer(kolo_oob_t *oob, int rank, const char *doing)
{
    pthread_mutex_lock(&oob->lock);
    kolo_peer_t *peer = kolo_peer_find(oob, rank);
    kolo_status_t status = peer ? kolo_peer_check(oob, peer, doing) : kolo_oob_lost(oob, doing);
    pthread_mutex_unlock(&oob->lock);
    return status;
}

bool kolo_oob_seek_peer(kolo_oob_t *oob, int rank)
{
    pthread_mutex_lock(&oob->lock);
    kolo_peer_t *peer = oob->closed ? NULL : kolo_peer_get(oob, rank);
    bool called = peer != NULL && kolo_peer_dial(oob, peer, kolo_oob_deadline(oob, 0)) == KOLO_OK;
    pthread_mutex_unlock(&oob->lock);
    return called;
}

bool kolo_oob_connected(kolo_oob_t *oob, int rank)
{
    pthread_mutex_lock(&oob->lock);
    const kolo_peer_t *peer = kolo_peer_find(oob, rank);
    bool live = peer != NULL && peer->live > 0;
    pthread_mutex_unlock(&oob->lock);
    return live;
}
