/* SPDX-License-Identifier: Apache-2.0
 *
 * Heartbeats between hosts. A process that dies closes its connections, but a host that vanishes, or a network that
 * drops everything, says nothing; and a rank that makes no call for minutes is alive. So progress threads send
 * beats, whatever the ranks' threads do: to all ranks on other hosts in small jobs, else to those at distances 1,
 * 2, 4, ..., so that some listeners are left if neighbours die (dissemination). Ranks of one host send none: the
 * kernel reports dead processes.
 *
 * Silence for suspect_ns is logged. Silence for verdict_ns is sent to all reachable ranks, and shortly after, when
 * the others' messages have arrived, each rank decides: the side with more than half of the ranks (of just half:
 * the one with the lowest) goes on without the silent ones; the other has a partition. In large jobs a rank decides
 * by the ranks that it listens to, a sample: an isolated host finds nearly all of them silent.
 *
 * A process that was stopped itself must not blame others for the time that it missed: what a tick comes late is
 * taken off, and the sockets are read before it judges. But a host that is starved has late ticks all the time, so
 * no silence is forgiven more than verdict_ns in all.
 *
 * Beats are short, and a path may lose what is longer: a tick looks at the acknowledgements, too (acks.c), and
 * before it gives somebody up for them, whether the fault is its own (probe.c).
 */
#include "base/failpoint.h"
#include "base/log.h"
#include "member/life.h"
#include "member/news_frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LISTEN_TO_ALL 64 /* up to this many ranks all remote ones are listened to */

typedef struct kolo_beats {
    kolo_timer_t *timer;
    uint64_t tick_ns, suspect_ns, verdict_ns, settle_ns;
    uint64_t due_ns, decide_ns; /* decide_ns 0: nothing to decide */
    unsigned ticks;
    bool *remote; /* by rank */
    bool sample;
    bool overdue; /* some data was, at this tick */
    bool spares;  /* this tick was late and judges nobody */
    bool spared;  /* so was one of those right before it */
} kolo_beats_t;

static void send_beat(kolo_oob_t *oob, kolo_peer_t *peer)
{
    kolo_conn_t *conn = kolo_peer_out(peer);
    if (conn == NULL) {
        if (kolo_peer_dial(oob, peer, kolo_deadline_ms(10000)) != KOLO_OK)
            kolo_debug("oob", "%s: rank %d cannot call rank %d: %s", oob->name, oob->rank, peer->rank,
                       kolo_error_text());
        return;
    }
    if (conn->out != NULL) return; /* more than a beat is on its way */
    kolo_outbound_t *out = malloc(sizeof(*out));
    if (out == NULL) return;
    kolo_outbound_init(out, KOLO_FRAME_BEAT, 0);
    out->owned = true;
    kolo_conn_send(conn, out);
}

static void note_silent(kolo_oob_t *oob, kolo_peer_t *peer, int by)
{
    kolo_beats_t *b = kolo_life(oob)->beats;
    if (kolo_peer_life(peer)->silent || kolo_peer_is_lost(peer) || peer->farewell) return;
    kolo_peer_life(peer)->silent = true;
    kolo_peer_life(peer)->silent_by = by;
    if (b->decide_ns == 0) b->decide_ns = kolo_now_ns() + b->settle_ns;
    kolo_warn("oob", "%s: rank %d: nothing was heard from rank %d for %llu ms (noticed by rank %d)", oob->name,
              oob->rank, peer->rank, (unsigned long long)(b->verdict_ns / KOLO_NS_PER_MS), by);
    kolo_news_silent(oob, peer->rank, by);
}

void kolo_beat_told(kolo_oob_t *oob, int rank, int noticed_by)
{
    kolo_peer_t *peer = kolo_peer_get(oob, rank);
    if (peer == NULL) return;
    if (kolo_life(oob)->beats == NULL)
        kolo_news_lost(oob, rank, KOLO_LOSS_SILENT, noticed_by); /* no view of our own to put against it */
    else
        note_silent(oob, peer, noticed_by);
}

static void listen_to(kolo_oob_t *oob, kolo_peer_t *peer, uint64_t now)
{
    const kolo_beats_t *b = kolo_life(oob)->beats;
    if (kolo_peer_is_lost(peer) || peer->farewell || peer->heard_ns == 0 || peer->heard_ns >= now) return;
    uint64_t age = now - peer->heard_ns;
    if (age < b->suspect_ns) {
        if (kolo_peer_life(peer)->suspected)
            kolo_info("oob", "%s: rank %d hears rank %d again", oob->name, oob->rank, peer->rank);
        kolo_peer_life(peer)->suspected = false;
        return;
    }
    if (!kolo_peer_life(peer)->suspected)
        kolo_warn("oob", "%s: rank %d has not heard rank %d for %llu ms", oob->name, oob->rank, peer->rank,
                  (unsigned long long)(age / KOLO_NS_PER_MS));
    kolo_peer_life(peer)->suspected = true;
    if (age >= b->verdict_ns) note_silent(oob, peer, oob->rank);
}

/* ---- the decision ---- */

typedef struct {
    int total, silent;
    bool lowest_silent; /* of those counted */
} count_t;

static void count_one(const kolo_oob_t *oob, int rank, count_t *c)
{
    const kolo_peer_t *peer = kolo_peer_find((kolo_oob_t *)(uintptr_t)oob, rank);
    bool silent = peer != NULL && kolo_peer_life(peer)->silent;
    if (peer != NULL && !silent && (kolo_peer_is_lost(peer) || (peer->farewell && peer->gone))) return;
    if (kolo_life(oob)->beats->sample && rank != oob->rank && !(peer != NULL && kolo_peer_life(peer)->watched))
        return;
    if (c->total++ == 0) c->lowest_silent = silent;
    c->silent += silent;
}

static void decide(kolo_oob_t *oob)
{
    count_t c = {0};
    for (int r = 0; r < oob->nranks; r++) count_one(oob, r, &c);
    int here = c.total - c.silent;
    kolo_life(oob)->beats->decide_ns = 0;
    if (here * 2 > c.total || (here * 2 == c.total && !c.lowest_silent)) {
        for (int r = 0; r < oob->nranks; r++) {
            kolo_peer_t *peer = kolo_peer_find(oob, r);
            if (peer != NULL && kolo_peer_life(peer)->silent)
                kolo_news_lost(oob, r, KOLO_LOSS_SILENT, kolo_peer_life(peer)->silent_by);
        }
        return;
    }
    char why[sizeof(kolo_life(oob)->partition_why)];
    snprintf(why, sizeof(why),
             "%d of %d ranks have not been heard for KOLO_VERDICT_MS; the larger side of the network goes on "
             "without this one",
             c.silent, c.total);
    kolo_news_partition(oob, why);
}

void kolo_beat_decide(kolo_oob_t *oob)
{
    if (kolo_life(oob)->beats != NULL && kolo_life(oob)->beats->decide_ns != 0) decide(oob);
}

bool kolo_beat_any_silent(const kolo_oob_t *oob)
{
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (const kolo_peer_t *peer = oob->peers[i]; peer != NULL; peer = peer->next)
            if (kolo_peer_life(peer)->silent) return true;
    return false;
}

bool kolo_beat_cut_off(const kolo_oob_t *oob, int rank)
{
    const kolo_peer_t *peer = kolo_peer_find((kolo_oob_t *)(uintptr_t)oob, rank);
    if (peer != NULL && kolo_peer_life(peer)->silent) return true;
    return kolo_life(oob)->beats != NULL && kolo_life(oob)->beats->sample &&
           (peer == NULL || !kolo_peer_life(peer)->watched); /* nobody knows */
}

/* Gives this rank up: nothing that it sends arrives anywhere, so it goes, and not those who do not hear it. */
static void give_up_self(kolo_oob_t *oob)
{
    uint8_t bytes[KOLO_NEWS_FRAME_BYTES];
    kolo_news_encode(&(kolo_news_frame_t){KOLO_NEWS_LOST, oob->rank, KOLO_LOSS_UNHEARD, oob->rank}, bytes);
    kolo_news_flood(oob, KOLO_FRAME_NEWS, bytes, sizeof(bytes));
    kolo_news_partition(oob,
                        "no other host acknowledges data of this rank, though heartbeats pass: its own link loses "
                        "long packets (another MTU on the way?); the others go on without it");
}

/* Judges a path. Both ends may find this at the same time: the lower rank speaks first, so that all hear one story.
 * */
static void look_at_acks(kolo_oob_t *oob, kolo_peer_t *peer, uint64_t now)
{
    const kolo_beats_t *b = kolo_life(oob)->beats;
    uint64_t limit = b->verdict_ns + (oob->rank > peer->rank ? b->settle_ns : 0);
    if (kolo_peer_is_lost(peer) || kolo_peer_life(peer)->silent || peer->farewell) return;
    if (!kolo_peer_acks_missing(peer, now, limit / 2)) return;
    kolo_life(oob)->beats->overdue = true;
    kolo_probes_start(oob, peer->rank, b->remote, now + limit);
    if (!kolo_peer_acks_missing(peer, now, limit)) return;
    if (kolo_probes_blame_us(oob))
        give_up_self(oob);
    else
        kolo_news_lost(oob, peer->rank, KOLO_LOSS_UNHEARD, oob->rank);
}

/* ---- the clock ---- */

/* Forgives lateness; false: for one at least that was not all of it. */
static bool forgive(kolo_oob_t *oob, uint64_t late_ns)
{
    bool all = true;
    uint64_t most = kolo_life(oob)->beats->verdict_ns;
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (kolo_peer_t *peer = oob->peers[i]; peer != NULL; peer = peer->next) {
            kolo_peer_life_t *life = kolo_peer_life(peer);
            if (peer->heard_ns == 0) continue;
            if (peer->heard_ns != life->spared_since) life->spared_ns = 0; /* heard since: another silence */
            uint64_t now = KOLO_MIN(late_ns, most - life->spared_ns);
            life->spared_ns += now;
            peer->heard_ns += now;
            life->spared_since = peer->heard_ns;
            kolo_peer_acks_forgive(peer, now);
            all = all && now == late_ns;
        }
    return all;
}

static void tick(void *arg);

static void arm(kolo_oob_t *oob)
{
    kolo_beats_t *b = kolo_life(oob)->beats;
    b->due_ns = kolo_now_ns() + b->tick_ns;
    if (kolo_timer_add(oob->progress, (int64_t)(b->tick_ns / KOLO_NS_PER_MS), tick, oob, &b->timer) != KOLO_OK)
        kolo_warn("oob", "%s: rank %d has no heartbeats any more: %s", oob->name, oob->rank, kolo_error_text());
}

static void tick(void *arg)
{
    kolo_oob_t *oob = arg;
    KOLO_FAIL_POINT("member.beat.tick");
    pthread_mutex_lock(&oob->lock);
    kolo_beats_t *b = kolo_life(oob)->beats;
    uint64_t now = kolo_now_ns();
    kolo_timer_cancel(b->timer);
    b->timer = NULL;
    if (oob->left) { /* nobody listens any more, and it judges nobody */
        pthread_mutex_unlock(&oob->lock);
        return;
    }
    bool late = now > b->due_ns + b->tick_ns;
    /* What has come meanwhile is read before the next tick, which then judges. */
    b->spares = late && !forgive(oob, now - b->due_ns) && !b->spared;
    b->spared = late && (b->spared || b->spares);
    bool send = b->ticks++ % 2 == 0;
    b->overdue = false;
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (kolo_peer_t *peer = oob->peers[i]; peer != NULL; peer = peer->next) {
            if (kolo_peer_life(peer)->watched && !b->spares) listen_to(oob, peer, now);
            if (b->remote[peer->rank] && !b->spares) look_at_acks(oob, peer, now);
            if (send && kolo_peer_life(peer)->beaten && kolo_peer_life(peer)->loss.order == 0 && !peer->farewell)
                send_beat(oob, peer);
        }
    if (!b->overdue && !b->spares) kolo_probes_stop(oob);
    if (b->decide_ns != 0 && now >= b->decide_ns && !b->spares) decide(oob);
    if (!oob->closed) arm(oob);
    pthread_mutex_unlock(&oob->lock);
}

void kolo_beat_stop(kolo_oob_t *oob)
{
    if (kolo_life(oob)->beats == NULL) return;
    kolo_probes_stop(oob);
    kolo_timer_cancel(kolo_life(oob)->beats->timer);
    free(kolo_life(oob)->beats->remote);
    free(kolo_life(oob)->beats);
    kolo_life(oob)->beats = NULL;
}

/* ---- start ---- */

static kolo_status_t choose_peers(kolo_oob_t *oob, const bool *remote, int *count)
{
    int n = oob->nranks;
    for (int64_t d = 1; d < n; d = n <= LISTEN_TO_ALL ? d + 1 : d * 2) {
        int to = (int)((oob->rank + d) % n), from = (int)((oob->rank + n - d) % n);
        kolo_peer_t *peer = remote[to] ? kolo_peer_get(oob, to) : NULL;
        if (remote[to] && peer == NULL) return KOLO_ERR_NO_MEMORY;
        if (peer != NULL) kolo_peer_life(peer)->beaten = true;
        *count += remote[to];
        peer = remote[from] ? kolo_peer_get(oob, from) : NULL;
        if (remote[from] && peer == NULL) return KOLO_ERR_NO_MEMORY;
        if (peer != NULL) kolo_peer_life(peer)->watched = true;
        *count += remote[from];
    }
    return KOLO_OK;
}

static uint64_t clamp(uint64_t value, uint64_t low, uint64_t high)
{
    return value < low ? low : value > high ? high : value;
}

kolo_status_t kolo_beat_start(kolo_oob_t *oob, const bool *remote)
{
    int count = 0;
    if (kolo_member_values.verdict_ms == 0) return KOLO_OK;
    uint64_t verdict = (uint64_t)KOLO_MAX(kolo_member_values.verdict_ms, 100) * KOLO_NS_PER_MS;
    uint64_t suspect = KOLO_MIN((uint64_t)kolo_member_values.suspect_ms * KOLO_NS_PER_MS, verdict / 2);
    kolo_beats_t *b = calloc(1, sizeof(*b));
    if (b != NULL) b->remote = malloc((size_t)oob->nranks * sizeof(*b->remote));
    if (b == NULL || b->remote == NULL) {
        free(b);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for heartbeats");
    }
    memcpy(b->remote, remote, (size_t)oob->nranks * sizeof(*remote));
    /* Beats go out at every second tick. Others notice within a tick of us, and tell within the settling time. */
    b->tick_ns = clamp(KOLO_MIN(suspect / 8, verdict / 20), 5 * KOLO_NS_PER_MS, 500 * KOLO_NS_PER_MS);
    b->verdict_ns = verdict;
    b->suspect_ns = suspect;
    b->settle_ns = 4 * b->tick_ns;
    b->sample = oob->nranks > LISTEN_TO_ALL;
    pthread_mutex_lock(&oob->lock);
    kolo_status_t status = choose_peers(oob, remote, &count);
    if (status == KOLO_OK && count > 0 && kolo_life(oob)->beats == NULL) {
        kolo_life(oob)->beats = b;
        b = NULL;
        arm(oob);
    }
    pthread_mutex_unlock(&oob->lock);
    if (b != NULL) free(b->remote);
    free(b);
    return status;
}
