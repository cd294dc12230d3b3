/* SPDX-License-Identifier: Apache-2.0
 *
 * The two listening sockets of an oob: one for the other ranks, one for the answer of the root while it joins. They
 * decide who is let in, and pass connections on to conn.c and stream.c.
 */
#include "base/log.h"
#include "base/process.h"
#include "oob/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kolo_auth_verdict_t peer_admit(void *owner, const kolo_claim_t *claim, size_t *frame_bytes)
{
    kolo_oob_t *oob = owner;
    kolo_auth_verdict_t verdict = KOLO_VERDICT_OK;
    *frame_bytes = 0;
    pthread_mutex_lock(&oob->lock);
    if (!oob->open)
        verdict = KOLO_VERDICT_BUSY;
    else if (oob->closed && claim->to == oob->rank)
        verdict = KOLO_VERDICT_GONE;
    else if (claim->to != oob->rank || claim->from < 0 || claim->from >= oob->nranks)
        verdict = KOLO_VERDICT_REFUSED;
    else if (claim->purpose == KOLO_PURPOSE_MESSAGE)
        verdict = claim->tag == (uint64_t)oob->nranks ? KOLO_VERDICT_OK : KOLO_VERDICT_REFUSED;
    else if (claim->purpose == KOLO_PURPOSE_PROBE)
        *frame_bytes = KOLO_PROBE_BYTES;
    else
        verdict =
            claim->purpose == KOLO_PURPOSE_STREAM ? kolo_oob_stream_admit(oob, claim->from) : KOLO_VERDICT_REFUSED;
    pthread_mutex_unlock(&oob->lock);
    return verdict;
}

static void peer_accepted(void *owner, const kolo_claim_t *claim, kolo_socket_t socket, const uint8_t *frame)
{
    kolo_oob_t *oob = owner;
    if (frame != NULL) return; /* a probe: it has arrived, which is all that it is for */
    pthread_mutex_lock(&oob->lock);
    if (claim->purpose == KOLO_PURPOSE_STREAM)
        kolo_oob_stream_accepted(oob, claim, socket);
    else if (kolo_conn_add(oob, claim->from, socket) != KOLO_OK)
        kolo_warn("oob", "%s: rank %d cannot keep a connection from rank %d: %s", oob->name, oob->rank, claim->from,
                  kolo_error_text());
    pthread_mutex_unlock(&oob->lock);
}

static int oob_who(void *owner, char *text, size_t bytes)
{
    kolo_oob_t *oob = owner;
    pthread_mutex_lock(&oob->lock);
    bool known = oob->nranks > 0;
    int rank = known ? oob->rank : oob->near_rank, nranks = known ? oob->nranks : oob->near_nranks;
    if (nranks > 0) snprintf(text, bytes, "rank %d of %d (%s)", rank, nranks, oob->name);
    pthread_mutex_unlock(&oob->lock);
    return nranks;
}

/* Fails the set-up of a rank that has had no room for callers: others could only wait for it until their limits,
 * and would not learn why. */
static void oob_starved(void *owner, uint64_t since_ns, int err)
{
    kolo_oob_t *oob = owner;
    const uint64_t now = kolo_now_ns(), limit_ns = KOLO_STARVED_MS * KOLO_NS_PER_MS;
    char who[128] = "this rank", open[128];
    if (now - since_ns < limit_ns) return;
    int nranks = oob_who(oob, who, sizeof(who));
    pthread_mutex_lock(&oob->lock);
    const kolo_awaiting_t *w = oob->awaiting;
    bool waits = w != NULL && now - w->since_ns >= limit_ns && oob->setup_failure == NULL;
    if (waits) oob->setup_failure = calloc(1, sizeof(*oob->setup_failure));
    if (waits && oob->setup_failure != NULL) {
        oob->setup_failure->status = KOLO_ERR_SYSTEM;
        snprintf(oob->setup_failure->text, sizeof(oob->setup_failure->text),
                 "%s has accepted no caller for %d s: %s; kolo-info --memory %d", who, KOLO_STARVED_MS / 1000,
                 err == EMFILE ? kolo_fd_print_all(open, sizeof(open)) : strerror(err), nranks);
        kolo_oob_wake(oob);
    }
    pthread_mutex_unlock(&oob->lock);
}

static const kolo_listener_ops_t peer_ops = {
    .admit = peer_admit, .accepted = peer_accepted, .who = oob_who, .starved = oob_starved};

static kolo_auth_verdict_t reply_admit(void *owner, const kolo_claim_t *claim, size_t *frame_bytes)
{
    kolo_oob_t *oob = owner;
    if (claim->purpose != KOLO_PURPOSE_REPLY || claim->from != KOLO_RANK_ROOT || claim->to != oob->rank)
        return KOLO_VERDICT_REFUSED;
    *frame_bytes = KOLO_REPLY_BYTES;
    return KOLO_VERDICT_OK;
}

static void reply_accepted(void *owner, const kolo_claim_t *claim, kolo_socket_t socket, const uint8_t *frame)
{
    (void)claim, (void)socket;
    kolo_oob_take_reply(owner, frame);
}

static const kolo_listener_ops_t reply_ops = {
    .admit = reply_admit, .accepted = reply_accepted, .who = oob_who, .starved = oob_starved};

static kolo_status_t listen_one(kolo_oob_t *oob, const kolo_address_t *address, const kolo_key_t *key,
                                const kolo_listener_ops_t *ops, kolo_listener_t **listener)
{
    kolo_address_t mine = *address;
    uint64_t cookie;
    KOLO_TRY(kolo_random(&cookie, sizeof(cookie)));
    kolo_address_set_cookie(&mine, cookie);
    return kolo_listener_open(oob->progress, &(kolo_listener_config_t){&mine, key, ops, oob, false}, listener);
}

kolo_status_t kolo_oob_listen(kolo_oob_t *oob, const kolo_address_t *address, const kolo_key_t *root_key)
{
    KOLO_TRY(listen_one(oob, address, &oob->key, &peer_ops, &oob->peer_listener));
    if (root_key != NULL) KOLO_TRY(listen_one(oob, address, root_key, &reply_ops, &oob->root_listener));
    return KOLO_OK;
}
