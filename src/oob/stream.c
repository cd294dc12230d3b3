/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams for wires: an authenticated TCP connection whose descriptor is handed over. The accepting side's progress
 * keeps streams that come before they are asked for; when too many do, callers are told to call again later.
 */
#include "base/failpoint.h"
#include "oob/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Of one rank, whatever others have opened: more than it dials before I accept. Else ranks that all dial, and
 * accept afterwards, would wait for room at each other. */
#define EARLY_OF_EACH 256

static size_t early_of(const kolo_oob_t *oob, int peer)
{
    size_t n = 0;
    for (const kolo_early_stream_t *s = oob->streams; s != NULL; s = s->next) n += s->peer == peer;
    return n;
}

/* Decides whether a stream from rank `peer` is let in, and takes the memory for it first: once let in, the peer
 * uses the stream. */
kolo_auth_verdict_t kolo_oob_stream_admit(kolo_oob_t *oob, int peer)
{
    bool room = oob->nstreams < (size_t)kolo_oob_values.early_max || early_of(oob, peer) < EARLY_OF_EACH;
    if (room && oob->next_stream == NULL) oob->next_stream = malloc(sizeof(*oob->next_stream));
    return room && oob->next_stream != NULL ? KOLO_VERDICT_OK : KOLO_VERDICT_BUSY;
}

void kolo_oob_stream_accepted(kolo_oob_t *oob, const kolo_claim_t *claim, kolo_socket_t socket)
{
    kolo_early_stream_t *stream = oob->next_stream;
    oob->next_stream = NULL;
    *stream = (kolo_early_stream_t){.peer = claim->from, .socket = socket, .tag = claim->tag};
    *oob->streams_tail = stream;
    oob->streams_tail = &stream->next;
    oob->nstreams++;
    kolo_oob_wake(oob);
}

/* ---- streams that are looked at ---- */

kolo_status_t kolo_oob_watch_stream(kolo_oob_t *oob, int rank, int fd)
{
    kolo_watched_stream_t *stream = calloc(1, sizeof(*stream));
    if (stream == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to watch a stream");
    stream->fd = fd;
    pthread_mutex_lock(&oob->lock);
    kolo_peer_t *peer = kolo_peer_get(oob, rank);
    if (peer != NULL) {
        stream->next = peer->watched;
        peer->watched = stream;
    }
    pthread_mutex_unlock(&oob->lock);
    if (peer == NULL) free(stream);
    return peer != NULL ? KOLO_OK : KOLO_ERR_NO_MEMORY;
}

void kolo_oob_unwatch_stream(kolo_oob_t *oob, int rank, int fd)
{
    kolo_watched_stream_t *found = NULL;
    pthread_mutex_lock(&oob->lock);
    kolo_peer_t *peer = kolo_peer_find(oob, rank);
    for (kolo_watched_stream_t **at = peer != NULL ? &peer->watched : NULL; at != NULL && *at != NULL;
         at = &(*at)->next)
        if ((*at)->fd == fd) {
            found = *at;
            *at = found->next;
            break;
        }
    pthread_mutex_unlock(&oob->lock);
    free(found);
}

void kolo_oob_watched_free(kolo_peer_t *peer)
{
    for (kolo_watched_stream_t *next; peer->watched != NULL; peer->watched = next) {
        next = peer->watched->next;
        free(peer->watched);
    }
}

/* ---- accept ---- */

static void remove_stream(kolo_oob_t *oob, kolo_early_stream_t **at, kolo_socket_t *socket)
{
    kolo_early_stream_t *stream = *at;
    *at = stream->next;
    if (oob->streams_tail == &stream->next) oob->streams_tail = at;
    oob->nstreams--;
    *socket = stream->socket;
    free(stream);
}

typedef struct {
    kolo_oob_t *oob;
    int rank;
    uint64_t tag;
    kolo_peer_t *peer; /* NULL if there are no messages with it */
    kolo_early_stream_t **found;
} accept_t;

static bool stream_came(kolo_oob_t *oob, void *arg)
{
    accept_t *a = arg;
    for (a->found = &oob->streams; *a->found != NULL; a->found = &(*a->found)->next)
        if ((*a->found)->peer == a->rank && (*a->found)->tag == a->tag) return true;
    a->peer = kolo_peer_find(oob, a->rank);
    return kolo_oob_is_lost(oob) || (a->peer != NULL && (a->peer->gone || a->peer->absent));
}

bool kolo_oob_can_accept(kolo_oob_t *oob, int peer, uint64_t tag, uint32_t count)
{
    accept_t a = {.oob = oob, .rank = peer};
    bool all = true;
    pthread_mutex_lock(&oob->lock);
    for (uint32_t i = 0; i < count && all; i++) {
        a.tag = tag + i;
        all = oob->closed || stream_came(oob, &a);
    }
    pthread_mutex_unlock(&oob->lock);
    return all;
}

static void describe_accept(void *arg, char *buf, size_t bytes)
{
    accept_t *a = arg;
    snprintf(buf, bytes, "rank %d to open stream %#llx (%s, rank %d)", a->rank, (unsigned long long)a->tag,
             a->oob->name, a->oob->rank);
}

static kolo_status_t check_stream(const kolo_oob_t *oob, int peer, const kolo_socket_t *socket)
{
    if (oob == NULL || socket == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "oob or socket is NULL");
    if (peer < 0 || peer >= oob->nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: peer %d is not a rank of 0..%d", oob->name, peer,
                         oob->nranks - 1);
    return KOLO_OK;
}

kolo_status_t kolo_oob_accept(kolo_oob_t *oob, int peer, uint64_t tag, uint64_t deadline_ns, kolo_socket_t *socket)
{
    accept_t a = {.oob = oob, .rank = peer, .tag = tag};
    KOLO_TRY(check_stream(oob, peer, socket));
    KOLO_FAIL_POINT_TRY("oob.stream.accept");
    pthread_mutex_lock(&oob->lock);
    deadline_ns = kolo_oob_deadline(oob, deadline_ns);
    kolo_status_t status = kolo_oob_await_rank(oob, peer, stream_came, describe_accept, &a, deadline_ns);
    if (status == KOLO_OK && *a.found == NULL) {
        status = a.peer != NULL ? kolo_peer_check(oob, a.peer, "waiting for a stream")
                                : kolo_oob_lost(oob, "waiting for a stream");
    } else if (status == KOLO_OK) {
        remove_stream(oob, a.found, socket);
    }
    pthread_mutex_unlock(&oob->lock);
    return status;
}

bool kolo_oob_take_stream(kolo_oob_t *oob, uint64_t tag, int *peer, kolo_socket_t *socket)
{
    pthread_mutex_lock(&oob->lock);
    kolo_early_stream_t **at = &oob->streams;
    while (*at != NULL && (*at)->tag != tag) at = &(*at)->next;
    bool found = *at != NULL;
    if (found) {
        *peer = (*at)->peer;
        remove_stream(oob, at, socket);
    }
    pthread_mutex_unlock(&oob->lock);
    return found;
}

/* ---- dial ---- */

struct kolo_oob_dialling {
    kolo_oob_t *oob;
    int rank;
    uint64_t tag;
    kolo_dial_t *dial;
    bool over;
    kolo_status_t status;
    kolo_socket_t socket;
    char text[400];
};

static void stream_dialled(void *arg, kolo_status_t status, kolo_socket_t socket, const char *text)
{
    kolo_oob_dialling_t *d = arg;
    KOLO_FAIL_POINT("oob.stream.dialled");
    pthread_mutex_lock(&d->oob->lock);
    d->status = status;
    d->socket = socket;
    if (status != KOLO_OK) snprintf(d->text, sizeof(d->text), "%s", text);
    d->over = true;
    kolo_oob_wake(d->oob);
    pthread_mutex_unlock(&d->oob->lock);
}

static bool stream_dial_over(kolo_oob_t *oob, void *arg)
{
    return ((kolo_oob_dialling_t *)arg)->over || kolo_oob_is_lost(oob);
}

static void describe_dial(void *arg, char *buf, size_t bytes)
{
    kolo_oob_dialling_t *d = arg;
    char address[KOLO_ADDRESS_TEXT_BYTES];
    snprintf(buf, bytes, "rank %d at %s to take stream %#llx (%s, rank %d)", d->rank,
             kolo_address_print(&d->oob->table[d->rank], address), (unsigned long long)d->tag, d->oob->name,
             d->oob->rank);
}

/* Starts a dial; `d` stays where it is until it is over or cancelled. */
static kolo_status_t start_dial(kolo_oob_dialling_t *d, uint64_t deadline_ns)
{
    kolo_oob_t *oob = d->oob;
    kolo_dial_config_t config = {
        .address = oob->table[d->rank],
        .key = oob->key,
        .claim = {.purpose = KOLO_PURPOSE_STREAM, .from = oob->rank, .to = d->rank, .tag = d->tag},
        .deadline_ns = deadline_ns,
        .done = stream_dialled,
        .arg = d};
    snprintf(config.who, sizeof(config.who), "rank %d", d->rank);
    return kolo_dial_start(oob->progress, &config, &d->dial);
}

static kolo_status_t dial_result(kolo_oob_dialling_t *d, kolo_socket_t *socket)
{
    kolo_oob_t *oob = d->oob;
    if (d->status != KOLO_OK)
        return kolo_fail(d->status, "%s: rank %d cannot open a stream to %s", oob->name, oob->rank, d->text);
    *socket = d->socket;
    d->socket = (kolo_socket_t){.fd = -1};
    return KOLO_OK;
}

kolo_status_t kolo_oob_dial(kolo_oob_t *oob, int peer, uint64_t tag, uint64_t deadline_ns, kolo_socket_t *socket)
{
    KOLO_TRY(check_stream(oob, peer, socket));
    KOLO_FAIL_POINT_TRY("oob.stream.dial");
    deadline_ns = kolo_oob_deadline(oob, deadline_ns);
    kolo_oob_dialling_t d = {.oob = oob, .rank = peer, .tag = tag, .socket = {.fd = -1}};
    KOLO_TRY(start_dial(&d, deadline_ns));
    pthread_mutex_lock(&oob->lock);
    kolo_status_t status = kolo_oob_await(oob, stream_dial_over, &d, deadline_ns, describe_dial, &d);
    bool over = d.over;
    pthread_mutex_unlock(&oob->lock);
    if (!over) kolo_dial_cancel(oob->progress, &d.dial); /* d is on our stack */
    if (status == KOLO_OK && !d.over) {
        pthread_mutex_lock(&oob->lock);
        status = kolo_oob_lost(oob, "opening a stream");
        pthread_mutex_unlock(&oob->lock);
    } else if (status == KOLO_OK) {
        status = dial_result(&d, socket);
    }
    if (status != KOLO_OK) kolo_socket_close(&d.socket);
    return status;
}

kolo_status_t kolo_oob_dial_begin(kolo_oob_t *oob, int peer, uint64_t tag, uint64_t deadline_ns,
                                  kolo_oob_dialling_t **dialling)
{
    kolo_socket_t unused;
    KOLO_TRY(check_stream(oob, peer, &unused));
    kolo_oob_dialling_t *d = malloc(sizeof *d);
    if (d == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to call rank %d", peer);
    *d = (kolo_oob_dialling_t){.oob = oob, .rank = peer, .tag = tag, .socket = {.fd = -1}};
    kolo_status_t status = start_dial(d, kolo_oob_deadline(oob, deadline_ns));
    if (status != KOLO_OK)
        free(d);
    else
        *dialling = d;
    return status;
}

kolo_status_t kolo_oob_dial_poll(kolo_oob_dialling_t *d, kolo_socket_t *socket)
{
    pthread_mutex_lock(&d->oob->lock);
    bool over = d->over;
    pthread_mutex_unlock(&d->oob->lock);
    return over ? dial_result(d, socket) : KOLO_IN_PROGRESS;
}

void kolo_oob_dial_end(kolo_oob_dialling_t *d)
{
    if (d == NULL) return;
    kolo_dial_cancel(d->oob->progress, &d->dial);
    kolo_socket_close(&d->socket);
    free(d);
}
