/* SPDX-License-Identifier: Apache-2.0
 *
 * How a communicator gets its messages with tags, at the first use, and how they end.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "comm/tagged/tagged.h"
#include "progress/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define FAREWELL_MS 200 /* until all others know that this rank has left */

static kolo_tagged_t *make(kolo_body_t *body)
{
    kolo_tagged_t *m = calloc(1, sizeof *m);
    kolo_tagged_peer_t **peers = calloc((size_t)body->nranks, sizeof(kolo_tagged_peer_t *));
    if (!m || !peers) {
        free(m);
        free(peers);
        kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for messages of %s rank %d", body->name, body->rank);
        return NULL;
    }
    m->body = body;
    m->peers = peers;
    return m;
}

kolo_status_t kolo_tagged_get(kolo_body_t *body, kolo_tagged_t **out)
{
    static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
    if ((*out = atomic_load_explicit(&body->tagged, memory_order_acquire))) return KOLO_OK;
    pthread_mutex_lock(&making);
    kolo_tagged_t *m = atomic_load(&body->tagged);
    kolo_status_t status = m ? KOLO_OK : kolo_progress_check_files();
    if (!m && status == KOLO_OK) {
        m = make(body);
        status = m ? kolo_courier_join(m) : KOLO_ERR_NO_MEMORY;
        if (status == KOLO_OK) {
            atomic_store_explicit(&body->tagged, m, memory_order_release);
        } else if (m) {
            free(m->peers);
            free(m);
        }
    }
    pthread_mutex_unlock(&making);
    if (status == KOLO_OK) *out = m;
    return status;
}

kolo_tagged_peer_t *kolo_tagged_peer(kolo_tagged_t *m, int rank)
{
    kolo_tagged_peer_t *p = m->peers[rank];
    if (p) return p;
    p = calloc(1, sizeof *p);
    if (!p) {
        kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for messages with rank %d", rank);
        return NULL;
    }
    p->messages = m;
    p->rank = rank;
    p->out.port = (kolo_tagged_port_t){.peer = p, .out = true, .socket = {.fd = -1}};
    p->in.port = (kolo_tagged_port_t){.peer = p, .socket = {.fd = -1}};
    m->peers[rank] = p;
    return p;
}

size_t kolo_tagged_open(kolo_body_t *body)
{
    kolo_tagged_t *m = atomic_load(&body->tagged);
    if (!m) return 0;
    kolo_tagged_lock();
    size_t n = m->nopen;
    kolo_tagged_unlock();
    return n;
}

void kolo_tagged_leave(kolo_body_t *body)
{
    kolo_tagged_t *m = atomic_load(&body->tagged);
    if (!m) return;
    kolo_tagged_lock();
    m->leaving = true;
    for (int r = 0; r < body->nranks; r++)
        if (m->peers[r]) kolo_tagged_out_step(m->peers[r], false);
    kolo_tagged_unlock();
}

void kolo_tagged_close(kolo_body_t *body)
{
    kolo_tagged_t *m = atomic_load(&body->tagged);
    if (!m) return;
    kolo_courier_leave(m);
    KOLO_FAIL_POINT("comm.tagged.left");
    uint64_t deadline = kolo_deadline_ms(FAREWELL_MS);
    for (int r = 0; r < body->nranks; r++)
        if (m->peers[r]) kolo_tagged_out_drain(m->peers[r], deadline);
    kolo_tagged_lock();
    for (int r = 0; r < body->nranks; r++) {
        if (!m->peers[r]) continue;
        kolo_tagged_out_close(m->peers[r]);
        kolo_tagged_in_close(m->peers[r]);
    }
    while (m->open) {
        char words[KOLO_TAGGED_WORDS_BYTES];
        kolo_tagged_describe(m->open, words, sizeof words);
        kolo_fail(KOLO_ERR_ABORTED, "%s: the communicator ended before it was complete", words);
        kolo_tagged_end(m->open, KOLO_ERR_ABORTED);
    }
    while (m->first) kolo_tagged_incoming_free(m->first);
    for (int r = 0; r < body->nranks; r++) {
        while (m->peers[r] && m->peers[r]->in.first) kolo_tagged_incoming_free(m->peers[r]->in.first);
        free(m->peers[r]);
    }
    atomic_store(&body->tagged, NULL);
    kolo_tagged_unlock();
    free(m->peers);
    free(m);
}

size_t kolo_tagged_memory(kolo_body_t *body)
{
    kolo_tagged_t *m = atomic_load(&body->tagged);
    if (!m) return 0;
    size_t bytes = sizeof *m + (size_t)body->nranks * sizeof(kolo_tagged_peer_t *);
    kolo_tagged_lock();
    for (int r = 0; r < body->nranks; r++)
        if (m->peers[r]) bytes += sizeof *m->peers[r] + m->peers[r]->in.held_bytes;
    kolo_tagged_unlock();
    return bytes;
}
