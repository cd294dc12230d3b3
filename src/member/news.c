/* SPDX-License-Identifier: Apache-2.0
 *
 * News: which ranks are lost, and whether the communicator was revoked. A rank that notices it sends it over all
 * its connections, and dials the ranks at distances 1, 2, 4, ... that are not connected; a rank that gets news for
 * the first time does the same. So all ranks get it after about log2(ranks) hops, and dead neighbours in between do
 * not stop it. A new connection starts with all news.
 *
 * A lost rank stays lost: its connections are ended after the news was sent to it, so that a rank that was only
 * silent learns that the others go on without it.
 */
#include "base/bytes.h"
#include "base/log.h"
#include "member/life.h"
#include "member/map.h"
#include "member/news_frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIAL_MS 5000

typedef struct {
    kolo_outbound_t out;
    uint8_t bytes[];
} owned_frame_t;

/* ---- telling ---- */

static void tell_frame(kolo_conn_t *conn, kolo_frame_kind_t kind, uint64_t tag, const void *bytes, size_t length)
{
    owned_frame_t *f = malloc(sizeof(*f) + length);
    if (f == NULL) {
        kolo_warn("oob", "%s: rank %d has no memory to pass news on", conn->oob->name, conn->oob->rank);
        return;
    }
    memcpy(f->bytes, bytes, length);
    kolo_outbound_init(&f->out, kind, tag);
    kolo_outbound_add(&f->out, f->bytes, length);
    f->out.owned = true;
    kolo_conn_send(conn, &f->out);
}

/* Tells a peer news. That a rank gave up says little without what it gave up for, which most ranks have not heard
 * from itself. */
static void tell(kolo_conn_t *conn, const kolo_news_frame_t *news)
{
    uint8_t bytes[KOLO_NEWS_FRAME_BYTES];
    const kolo_peer_t *about = kolo_peer_find(conn->oob, news->rank);
    if (news->kind == KOLO_NEWS_LOST && news->how == KOLO_LOSS_GAVE_UP && about != NULL && about->words[0] != '\0')
        tell_frame(conn, KOLO_FRAME_WORDS, (uint64_t)news->rank + 1, about->words, strlen(about->words));
    kolo_news_encode(news, bytes);
    tell_frame(conn, KOLO_FRAME_NEWS, 0, bytes, sizeof(bytes));
}

static kolo_news_frame_t loss_news(const kolo_peer_t *peer)
{
    return (kolo_news_frame_t){KOLO_NEWS_LOST, peer->rank, kolo_peer_life(peer)->loss.how,
                               kolo_peer_life(peer)->loss.noticed_by};
}

void kolo_news_tell_all(kolo_conn_t *conn)
{
    kolo_oob_t *oob = conn->oob;
    for (int i = 0; kolo_life(oob)->nlost > 0 && i < KOLO_PEER_BUCKETS; i++)
        for (const kolo_peer_t *peer = oob->peers[i]; peer != NULL; peer = peer->next) {
            kolo_news_frame_t news = loss_news(peer);
            if (kolo_peer_is_lost(peer)) tell(conn, &news);
        }
    kolo_news_frame_t revoked = {KOLO_NEWS_REVOKED, kolo_life(oob)->revoked_by, 0, oob->rank};
    if (kolo_life(oob)->revoked) tell(conn, &revoked);
}

/* Calls ranks at growing distances where there is no connection; they are told all once they answer. */
static void reach_out(kolo_oob_t *oob)
{
    if (!oob->open || oob->closed) return;
    for (int64_t d = 1; d < oob->nranks; d *= 2) {
        int to = (int)((oob->rank + d) % oob->nranks);
        kolo_peer_t *peer = kolo_peer_get(oob, to);
        if (peer == NULL || kolo_peer_is_lost(peer) || peer->farewell) continue;
        if (kolo_peer_dial(oob, peer, kolo_deadline_ms(DIAL_MS)) != KOLO_OK)
            kolo_debug("oob", "%s: rank %d cannot call rank %d: %s", oob->name, oob->rank, to, kolo_error_text());
    }
}

static void flood(kolo_oob_t *oob, const kolo_news_frame_t *news)
{
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (kolo_peer_t *peer = oob->peers[i]; peer != NULL; peer = peer->next) {
            kolo_conn_t *conn = kolo_peer_out(peer);
            if (conn != NULL) tell(conn, news);
        }
    reach_out(oob);
}

void kolo_news_send(kolo_conn_t *conn, kolo_frame_kind_t kind, const void *bytes, size_t length)
{
    tell_frame(conn, kind, 0, bytes, length);
}

void kolo_news_flood(kolo_oob_t *oob, kolo_frame_kind_t kind, const void *bytes, size_t length)
{
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (kolo_peer_t *peer = oob->peers[i]; peer != NULL; peer = peer->next) {
            kolo_conn_t *conn = kolo_peer_out(peer);
            if (conn != NULL) tell_frame(conn, kind, 0, bytes, length);
        }
    reach_out(oob);
}

/* Tells whoever works with this object; at most once per rank and once for the rest. */
static void announce(kolo_oob_t *oob, kolo_news_kind_t kind, int rank, const char *why)
{
    if (kolo_life(oob)->news_fn != NULL) kolo_life(oob)->news_fn(kolo_life(oob)->news_arg, kind, rank, why);
    kolo_inherit_tell(oob, kind, rank);
    kolo_oob_wake(oob);
}

/* ---- losses ---- */

static const char *const how_texts[KOLO_LOSS_KINDS] = {
    [KOLO_LOSS_CLOSED] = "its connection was closed: the process was killed, or ended without kolo_comm_finalize() "
                         "or kolo_comm_destroy() (an engine: kolo_engine_shutdown())",
    [KOLO_LOSS_BROKEN] = "its connection broke: the process died or the network failed",
    [KOLO_LOSS_PROCESS] = "its process ended",
    [KOLO_LOSS_SILENT] = ("nothing was heard from it for KOLO_VERDICT_MS: its host or the network is down, or its "
                          "process is stopped"),
    [KOLO_LOSS_ALTERED] = "bytes between it and us were changed on the way (found by KOLO_TCP_SECURITY): check "
                          "what is between these hosts",
    [KOLO_LOSS_UNHEARD] =
        "it has not acknowledged data for KOLO_VERDICT_MS though its heartbeats come: the path loses long packets "
        "(another MTU on the way?)",
    [KOLO_LOSS_GAVE_UP] = "it gave up",
    [KOLO_LOSS_LEFT] = "it closed its communicator while other ranks still needed it",
};

static void loss_text(const kolo_oob_t *oob, const kolo_peer_t *peer, char *buf, size_t bytes)
{
    const kolo_loss_t *loss = &kolo_peer_life(peer)->loss;
    bool told = loss->how == KOLO_LOSS_GAVE_UP && peer->words[0] != '\0';
    const char *how =
        loss->how == KOLO_LOSS_UNHEARD && loss->noticed_by == peer->rank
            ? "no other host acknowledges its data, as it says itself: its link loses long packets (another "
              "MTU on the way?)"
            : how_texts[loss->how];
    int n = snprintf(buf, bytes, "%s%s%s", how, told ? ": " : "", told ? peer->words : "");
    if (loss->noticed_by != oob->rank && loss->noticed_by != peer->rank && n > 0 && (size_t)n < bytes)
        n += snprintf(buf + n, bytes - (size_t)n, " (noticed by rank %d)", loss->noticed_by);
    if (kolo_inherited(oob)->who[0] != '\0' && peer->rank == kolo_inherited(oob)->lost && n > 0 &&
        (size_t)n < bytes)
        snprintf(buf + n, bytes - (size_t)n, "; %s", kolo_inherited(oob)->who);
}

/* Ends waits by the first loss that matters. */
void kolo_news_update(kolo_oob_t *oob)
{
    const kolo_peer_t *first = NULL;
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (const kolo_peer_t *peer = oob->peers[i]; peer != NULL; peer = peer->next)
            if (kolo_peer_is_lost(peer) &&
                (first == NULL || kolo_peer_life(peer)->loss.order < kolo_peer_life(first)->loss.order))
                first = peer;
    kolo_life(oob)->lost = first != NULL ? first->rank : -1;
    if (first != NULL) loss_text(oob, first, kolo_life(oob)->lost_why, sizeof(kolo_life(oob)->lost_why));
}

void kolo_news_lost(kolo_oob_t *oob, int rank, kolo_loss_how_t how, int noticed_by)
{
    if (kolo_life(oob)->partition || oob->leaving)
        return; /* the others end their connections to us: that is not their death */
    kolo_peer_t *peer = kolo_peer_get(oob, rank);
    if (peer == NULL) { /* no memory to say more; waits must end all the same */
        if (kolo_life(oob)->lost < 0) kolo_life(oob)->lost = rank;
        return;
    }
    if (kolo_peer_is_lost(peer)) return;
    kolo_peer_life(peer)->loss = (kolo_loss_t){++kolo_life(oob)->nlost, how, noticed_by, kolo_now_ns()};
    kolo_news_update(oob);
    kolo_info("oob", "%s: rank %d knows that rank %d is lost: %s, noticed by rank %d", oob->name, oob->rank, rank,
              how_texts[how], noticed_by);
    kolo_news_frame_t news = loss_news(peer);
    flood(oob, &news);
    for (kolo_conn_t *conn = peer->conns; conn != NULL; conn = conn->next)
        if (!conn->dead) kolo_conn_condemn(conn, "was ended: the rank is lost");
    char why[sizeof(kolo_life(oob)->lost_why)];
    loss_text(oob, peer, why, sizeof(why));
    announce(oob, KOLO_NEWS_LOST, rank, why);
}

bool kolo_news_gave_up(kolo_oob_t *oob, int rank)
{
    const kolo_peer_t *peer = kolo_peer_get(oob, rank);
    if (peer == NULL || !kolo_peer_is_lost(peer)) return false;
    kolo_loss_how_t how = kolo_peer_life(peer)->loss.how;
    return how == KOLO_LOSS_GAVE_UP || how == KOLO_LOSS_LEFT;
}

static void revoked(kolo_oob_t *oob, int by)
{
    if (kolo_life(oob)->revoked) return;
    kolo_news_frame_t news = {KOLO_NEWS_REVOKED, by, 0, oob->rank};
    kolo_life(oob)->revoked = true;
    kolo_life(oob)->revoked_by = by;
    flood(oob, &news);
    announce(oob, KOLO_NEWS_REVOKED, by, "");
}

void kolo_news_partition(kolo_oob_t *oob, const char *why)
{
    if (kolo_life(oob)->partition || oob->leaving) return;
    kolo_life(oob)->partition = true;
    oob->failed = true;
    snprintf(kolo_life(oob)->partition_why, sizeof(kolo_life(oob)->partition_why), "%s", why);
    kolo_warn("oob", "%s: rank %d is cut off: %s", oob->name, oob->rank, why);
    kolo_news_frame_t news = {KOLO_NEWS_PARTITION, oob->rank, 0, oob->rank};
    flood(oob, &news); /* those who share its fate would come to the same end, but maybe after it has left */
    announce(oob, KOLO_NEWS_PARTITION, oob->rank, kolo_life(oob)->partition_why);
}

/* Tells of ranks that differ, here alone: what the ranks of a parent have called is nothing to its children. */
void kolo_news_mismatch(kolo_oob_t *oob, int rank, const char *why)
{
    kolo_life_t *l = kolo_life(oob);
    l->odd = rank;
    snprintf(l->odd_why, sizeof(l->odd_why), "%s", why);
    if (l->news_fn != NULL) l->news_fn(l->news_arg, KOLO_NEWS_MISMATCH, rank, l->odd_why);
    kolo_oob_wake(oob);
}

const char *kolo_news_arrived(kolo_conn_t *conn)
{
    kolo_oob_t *oob = conn->oob;
    kolo_news_frame_t news;
    const char *wrong = kolo_news_decode(conn->body, conn->frame.bytes, oob->nranks, &news);
    if (wrong != NULL) return wrong;
    if (news.kind == KOLO_NEWS_REVOKED) {
        revoked(oob, news.rank);
    } else if (news.kind == KOLO_NEWS_PARTITION) {
        kolo_beat_decide(oob);
    } else if (news.rank == oob->rank) {
        char why[sizeof(kolo_life(oob)->partition_why)];
        snprintf(why, sizeof(why), "rank %d says that this rank was given up: %s", conn->peer->rank,
                 how_texts[news.how]);
        kolo_news_partition(oob, why);
    } else if (news.how == KOLO_LOSS_SILENT) {
        kolo_beat_told(oob, news.rank, news.noticed_by);
    } else {
        kolo_news_lost(oob, news.rank, news.how, news.noticed_by);
    }
    return NULL;
}

/* Tells all of a rank that is silent before it is decided what that means. */
void kolo_news_silent(kolo_oob_t *oob, int rank, int noticed_by)
{
    kolo_news_frame_t news = {KOLO_NEWS_LOST, rank, KOLO_LOSS_SILENT, noticed_by};
    flood(oob, &news);
}

/* ---- for the rooms above ---- */

void kolo_news_set_handler(kolo_oob_t *oob, kolo_news_fn_t fn, void *arg)
{
    pthread_mutex_lock(&oob->lock);
    kolo_life(oob)->news_fn = fn;
    kolo_life(oob)->news_arg = arg;
    if (fn != NULL) { /* what has come before */
        if (kolo_life(oob)->lost >= 0) fn(arg, KOLO_NEWS_LOST, kolo_life(oob)->lost, kolo_life(oob)->lost_why);
        if (kolo_life(oob)->revoked) fn(arg, KOLO_NEWS_REVOKED, kolo_life(oob)->revoked_by, "");
        if (kolo_life(oob)->partition) fn(arg, KOLO_NEWS_PARTITION, oob->rank, kolo_life(oob)->partition_why);
        if (kolo_life(oob)->odd >= 0) fn(arg, KOLO_NEWS_MISMATCH, kolo_life(oob)->odd, kolo_life(oob)->odd_why);
    }
    pthread_mutex_unlock(&oob->lock);
}

void kolo_news_revoke(kolo_oob_t *oob)
{
    pthread_mutex_lock(&oob->lock);
    if (!oob->closed) revoked(oob, oob->rank);
    pthread_mutex_unlock(&oob->lock);
}

void kolo_news_report_lost(kolo_oob_t *oob, int rank, kolo_loss_how_t how)
{
    pthread_mutex_lock(&oob->lock);
    if (!oob->closed && rank != oob->rank) kolo_news_lost(oob, rank, how, oob->rank);
    pthread_mutex_unlock(&oob->lock);
}

int kolo_news_get_lost(kolo_oob_t *oob, uint8_t *bitmap)
{
    int count = 0;
    if (bitmap != NULL) memset(bitmap, 0, ((size_t)oob->nranks + 7) / 8);
    pthread_mutex_lock(&oob->lock);
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (const kolo_peer_t *peer = oob->peers[i]; peer != NULL; peer = peer->next) {
            if (kolo_peer_life(peer)->loss.order == 0) continue;
            count++;
            if (bitmap != NULL) kolo_map_add(bitmap, peer->rank);
        }
    pthread_mutex_unlock(&oob->lock);
    return count;
}

bool kolo_news_rank_lost(kolo_oob_t *oob, int rank, char *why, size_t bytes)
{
    pthread_mutex_lock(&oob->lock);
    const kolo_peer_t *peer = kolo_peer_find(oob, rank);
    bool lost = peer != NULL && kolo_peer_is_lost(peer);
    if (lost && why != NULL) {
        char text[160];
        loss_text(oob, peer, text, sizeof(text));
        snprintf(why, bytes, "%s", text);
    }
    pthread_mutex_unlock(&oob->lock);
    return lost;
}
