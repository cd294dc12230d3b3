/* SPDX-License-Identifier: Apache-2.0
 *
 * The object: making it, joining a job with an id (child.c: from another object), and its end. Everything that the
 * progress thread could still touch is taken down on the progress thread itself, in one call, so that nothing has
 * to be waited for.
 */
#include "base/failpoint.h"
#include "base/log.h"
#include "oob/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kolo_status_t kolo_oob_new(const char *name, const _Atomic uint32_t *abort, int timeout_ms, kolo_oob_t **out)
{
    kolo_meet_process_init();
    kolo_oob_t *oob = kolo_rooms_new_oob(sizeof(*oob));
    if (oob == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for out-of-band connections");
    kolo_status_t status = kolo_progress_get(&oob->progress);
    if (status != KOLO_OK) {
        free(oob);
        return status;
    }
    snprintf(oob->name, sizeof(oob->name), "%s", name != NULL ? name : "comm");
    pthread_mutex_init(&oob->lock, NULL);
    oob->abort = abort;
    oob->timeout_ms = timeout_ms;
    oob->blames = -1;
    oob->early_tail = &oob->early;
    oob->streams_tail = &oob->streams;
    kolo_rooms_opened(oob);
    kolo_ticker_join(oob->progress);
    *out = oob;
    return KOLO_OK;
}

/* ---- joining ---- */

kolo_status_t kolo_oob_check_config(const kolo_oob_config_t *c, kolo_oob_t **out)
{
    if (c == NULL || out == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "config or oob is NULL");
    if (c->nranks < 1 || c->nranks > KOLO_NRANKS_MAX)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "nranks is %d, it must be from 1 to %d", c->nranks,
                         KOLO_NRANKS_MAX);
    if (c->rank < 0 || c->rank >= c->nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "rank is %d, it must be from 0 to nranks - 1 = %d", c->rank,
                         c->nranks - 1);
    return KOLO_OK;
}

/* Makes the key between ranks of all ids together, so that a rank with another list of ids stays outside. */
static kolo_status_t read_ids(const kolo_oob_config_t *c, kolo_id_t *ids, kolo_key_t *key)
{
    for (int i = 0; i < c->nids; i++) {
        const char *wrong = kolo_id_decode(&c->ids[i], &ids[i]);
        if (wrong != NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "ids[%d] is not a unique id: %s", i, wrong);
        if (i == 0)
            kolo_auth_derive(&ids[0].secret, "job", NULL, 0, key);
        else
            kolo_auth_derive(key, "job", ids[i].secret.bytes, sizeof(ids[i].secret.bytes), key);
    }
    return KOLO_OK;
}

/* Makes a number equal on all ranks, different in each job even if the secret is the same, from the cookie of rank
 * 0's socket. */
static void set_job(kolo_oob_t *oob)
{
    kolo_key_t out;
    kolo_auth_derive(&oob->key, "epoch", &oob->table[0], sizeof(oob->table[0]), &oob->epoch_key);
    kolo_auth_derive(&oob->epoch_key, "job number", NULL, 0, &out);
    memcpy(&oob->job, out.bytes, sizeof(oob->job));
}

static void close_root_listener(void *arg)
{
    kolo_oob_t *oob = arg;
    kolo_listener_close(oob->root_listener);
    oob->root_listener = NULL;
}

/* Warnings tell whom the root waits for, unless the caller has words of its own. */
static kolo_status_t meet(kolo_oob_t *oob, const kolo_oob_config_t *c, const kolo_id_t *ids, uint64_t deadline)
{
    kolo_wait_purpose_t before =
        kolo_wait_set_purpose((kolo_wait_purpose_t){.explain = kolo_oob_explain_join, .arg = oob});
    if (before.describe != NULL) kolo_wait_set_purpose(before);
    kolo_status_t status = kolo_oob_check_in(oob, c->nids, ids, deadline);
    if (status == KOLO_OK) {
        status = kolo_oob_gather_addresses(oob, deadline);
        if (status != KOLO_OK) status = kolo_oob_hear_root(oob, status, deadline);
    }
    kolo_wait_set_purpose(before);
    return status;
}

static kolo_status_t join(kolo_oob_t *oob, const kolo_oob_config_t *c, kolo_id_t *ids)
{
    kolo_address_t local;
    uint64_t deadline = kolo_deadline_ms(c->timeout_ms);
    KOLO_TRY(read_ids(c, ids, &oob->key));
    int mine = kolo_root_of_rank(c->nranks, c->nids, c->rank);
    KOLO_TRY(kolo_address_choose_local(&ids[mine].address, &local));
    KOLO_FAIL_POINT_TRY("oob.join.listen");
    oob->table = calloc((size_t)c->nranks, sizeof(*oob->table));
    if (oob->table == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for %d addresses", c->nranks);
    oob->rank = c->rank;
    oob->nranks = c->nranks;
    oob->open = true;
    kolo_listener_reserve(kolo_address_port(&ids[mine].address));
    KOLO_TRY(kolo_oob_listen(oob, &local, &ids[mine].secret));
    oob->table[c->rank] = kolo_listener_address(oob->peer_listener);
    KOLO_TRY(meet(oob, c, ids, deadline));
    KOLO_FAIL_POINT("oob.join.done");
    kolo_oob_leave_root(oob, KOLO_OK);
    kolo_progress_call(oob->progress, close_root_listener,
                       oob); /* all have been told: it will not be called again */
    set_job(oob);
    return KOLO_OK;
}

kolo_status_t kolo_oob_open(const kolo_oob_config_t *config, kolo_oob_t **out)
{
    return kolo_oob_open_for(config, NULL, NULL, out);
}

kolo_status_t kolo_oob_open_for(const kolo_oob_config_t *config, kolo_status_t (*why)(void *arg), void *arg,
                                kolo_oob_t **out)
{
    kolo_oob_t *oob;
    KOLO_TRY(kolo_oob_check_config(config, out));
    if (config->ids == NULL || config->nids < 1 || config->nids > config->nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "nids is %d, it must be from 1 to nranks, and ids not NULL",
                         config->nids);
    KOLO_TRY(kolo_oob_new(config->name, config->abort, config->timeout_ms, &oob));
    kolo_id_t *ids = calloc((size_t)config->nids, sizeof(*ids));
    kolo_status_t status = ids != NULL ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for ids");
    if (status == KOLO_OK) status = join(oob, config, ids);
    if (ids != NULL) kolo_auth_wipe(ids, (size_t)config->nids * sizeof(*ids));
    free(ids);
    if (status == KOLO_ERR_ABORTED && why != NULL) status = why(arg);
    if (status != KOLO_OK) {
        oob->failed = true;
        kolo_oob_give_reason(oob, kolo_error_text());
        kolo_oob_leave_root(oob, status);
        kolo_oob_fini(oob);
        return status;
    }
    kolo_debug("oob", "%s: rank %d of %d is in, job %016llx", oob->name, oob->rank, oob->nranks,
               (unsigned long long)oob->job);
    *out = oob;
    return KOLO_OK;
}

/* ---- the end ---- */

void kolo_oob_close(kolo_oob_t *oob)
{
    if (oob == NULL) return;
    pthread_mutex_lock(&oob->lock);
    oob->closed = true;
    kolo_gate_open(&oob->gate);
    pthread_mutex_unlock(&oob->lock);
}

static void say_farewells(const kolo_oob_t *oob)
{
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (kolo_peer_t *peer = oob->peers[i]; peer != NULL; peer = peer->next)
            for (kolo_conn_t *conn = peer->conns; conn != NULL; conn = conn->next) kolo_farewell_say(oob, conn);
}

/* Leaves: the process may end at any time from now on, so a call that is under way has its last word, too. */
static void leave(void *arg)
{
    kolo_oob_t *oob = arg;
    pthread_mutex_lock(&oob->lock);
    oob->left = true;
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (kolo_peer_t *peer = oob->peers[i]; peer != NULL; peer = peer->next) {
            for (kolo_conn_t *conn = peer->conns; conn != NULL; conn = conn->next) kolo_farewell_queue(conn);
            kolo_farewell_call(oob, peer->dial);
        }
    pthread_mutex_unlock(&oob->lock);
}

void kolo_oob_take_leave(kolo_oob_t *oob)
{
    kolo_progress_call(oob->progress, leave, oob);
}

void kolo_oob_give_notice(kolo_oob_t *oob)
{
    pthread_mutex_lock(&oob->lock);
    oob->failed = oob->leaving = oob->closed = true;
    say_farewells(oob);
    kolo_gate_open(&oob->gate);
    pthread_mutex_unlock(&oob->lock);
}

/* Frees the peers. A farewell may tell of another one: all are said before any of them is freed. */
static void free_peers(kolo_oob_t *oob)
{
    say_farewells(oob);
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (kolo_peer_t *peer = oob->peers[i]; peer != NULL; peer = peer->next)
            kolo_farewell_call(oob, peer->dial);
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (kolo_peer_t *peer = oob->peers[i], *next; peer != NULL; peer = next) {
            next = peer->next;
            kolo_dial_cancel(oob->progress, &peer->dial);
            while (peer->conns != NULL) {
                kolo_conn_t *conn = peer->conns;
                peer->conns = conn->next;
                kolo_conn_free(conn);
            }
            free(peer->dial_text);
            kolo_oob_watched_free(peer);
            free(peer);
        }
}

static void take_down(void *arg)
{
    kolo_oob_t *oob = arg;
    kolo_rooms_stop(oob);
    kolo_listener_close(oob->root_listener);
    kolo_listener_close(oob->peer_listener);
    free_peers(oob);
    while (oob->early != NULL) {
        kolo_inbound_t *in = oob->early;
        oob->early = in->next;
        free(in);
    }
    free(oob->next_stream);
    while (oob->streams != NULL) {
        kolo_early_stream_t *stream = oob->streams;
        oob->streams = stream->next;
        kolo_socket_close(&stream->socket);
        free(stream);
    }
}

void kolo_oob_fini(kolo_oob_t *oob)
{
    if (oob == NULL) return;
    kolo_oob_close(oob);
    kolo_rooms_leave(oob);
    KOLO_FAIL_POINT("oob.end");
    kolo_progress_call(oob->progress, take_down, oob);
    kolo_ticker_leave();
    kolo_progress_put(oob->progress);
    pthread_mutex_destroy(&oob->lock);
    kolo_auth_wipe(&oob->key, sizeof(oob->key));
    kolo_auth_wipe(&oob->epoch_key, sizeof(oob->epoch_key));
    free(oob->setup_failure);
    free(oob->table);
    kolo_rooms_fini(oob);
    free(oob);
}

/* ---- queries ---- */

int kolo_oob_rank(const kolo_oob_t *oob)
{
    return oob->rank;
}

int kolo_oob_nranks(const kolo_oob_t *oob)
{
    return oob->nranks;
}

uint64_t kolo_oob_job(const kolo_oob_t *oob)
{
    return oob->job;
}

void kolo_oob_derive_key(const kolo_oob_t *oob, const char *purpose, uint8_t key[32])
{
    kolo_key_t out;
    kolo_auth_derive(&oob->epoch_key, "room", purpose, strlen(purpose), &out);
    memcpy(key, out.bytes, sizeof(out.bytes));
    kolo_auth_wipe(&out, sizeof(out));
}

kolo_status_t kolo_oob_seal(const kolo_oob_t *oob, const uint8_t secret[32], uint8_t sealed[KOLO_OOB_SEALED_BYTES])
{
    kolo_key_t key;
    kolo_auth_derive(&oob->epoch_key, "seal", NULL, 0, &key);
    kolo_status_t status = kolo_auth_seal(&key, secret, sealed);
    kolo_auth_wipe(&key, sizeof(key));
    return status;
}

kolo_status_t kolo_oob_unseal(const kolo_oob_t *oob, const uint8_t sealed[KOLO_OOB_SEALED_BYTES],
                              uint8_t secret[32])
{
    kolo_key_t key;
    kolo_auth_derive(&oob->epoch_key, "seal", NULL, 0, &key);
    kolo_status_t status = kolo_auth_unseal(&key, sealed, secret);
    kolo_auth_wipe(&key, sizeof(key));
    return status;
}

size_t kolo_oob_memory(const kolo_oob_t *oob)
{
    size_t bytes = sizeof(*oob) + kolo_rooms_bytes(false) + (size_t)oob->nranks * sizeof(*oob->table);
    pthread_mutex_lock((pthread_mutex_t *)(uintptr_t)&oob->lock);
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (const kolo_peer_t *peer = oob->peers[i]; peer != NULL; peer = peer->next) {
            bytes += sizeof(*peer) + kolo_rooms_bytes(true) + peer->queued_bytes;
            for (const kolo_conn_t *conn = peer->conns; conn != NULL; conn = conn->next)
                bytes += sizeof(*conn) + conn->stash_bytes + kolo_seal_memory(conn->socket.seal);
        }
    bytes += oob->nstreams * sizeof(kolo_early_stream_t);
    pthread_mutex_unlock((pthread_mutex_t *)(uintptr_t)&oob->lock);
    return bytes;
}
