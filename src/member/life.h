/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of this room per oob and per peer: losses and their causes, silent ranks, agreements under way, and the
 * parent's news for a child that is set up. All under the oob's lock.
 */
#ifndef KOLO_MEMBER_LIFE_H
#define KOLO_MEMBER_LIFE_H

#include "member/member.h"
#include "oob/internal.h"

#define KOLO_NEWS_WORDS 600

typedef struct {
    int order; /* 0: not lost; else its place among the losses */
    kolo_loss_how_t how;
    int noticed_by;
    uint64_t at_ns;
} kolo_loss_t;

/* A series of agreements, with the results of the last two for ranks that still ask (agreement.c). */
#define KOLO_SERIES_SHIFT 24 /* a tag's bits below it are the number in the series, from 1 */
typedef struct {
    uint8_t *bytes; /* the message */
    size_t length;
} kolo_decision_t;
typedef struct kolo_series {
    struct kolo_series *next;
    uint64_t id, begun, ended;
    kolo_decision_t decisions[2]; /* by number */
} kolo_series_t;

/* What a child that is being set up knows of its parent (inherit.c). */
#define KOLO_INHERITED_WHO_BYTES 192
typedef struct {
    kolo_oob_t *parent, *next; /* next: of the same parent */
    int *members;              /* by rank: the parent's rank, -1: none. NULL: not a child, or set up */
    bool revokes;              /* a revoke of the parent counts */
    int lost;                  /* the first lost rank in the parent's news, if `who` is not empty */
    char who[KOLO_INHERITED_WHO_BYTES];
    bool word_is_loss;                       /* `word` is a loss, not a rank that gave up */
    char word[2 * KOLO_INHERITED_WHO_BYTES]; /* the parent's losses, members or not */
} kolo_inherited_t;

/* The state per oob. */
typedef struct {
    int lost; /* the first lost rank that ends every wait, -1: none */
    char lost_why[320];
    int nlost;
    bool revoked, partition;
    int revoked_by;
    char partition_why[192];
    int odd; /* a rank whose call differs from another rank's, -1: none; found by the room above */
    char odd_why[KOLO_NEWS_WORDS];

    kolo_news_fn_t news_fn;
    void *news_arg;
    struct kolo_pidwatch *pidwatches;
    _Atomic uint64_t look_ns;   /* when to check their processes again */
    struct kolo_beats *beats;   /* NULL: no heartbeats */
    struct kolo_probes *probes; /* NULL: no data is overdue (probe.c) */

    kolo_series_t *series;

    kolo_oob_t *children;       /* children that are being set up (inherit.c) */
    kolo_inherited_t inherited; /* while this one is being set up */
    kolo_inherit_who_fn_t who_fn;
    void *who_arg;
} kolo_life_t;

/* The state per peer. */
typedef struct {
    kolo_loss_t loss;
    bool watched, beaten; /* beats are expected from it, sent to it */
    bool suspected, silent;
    int silent_by;
    uint64_t spared_ns, spared_since; /* forgiven time of the present silence, and since when */
} kolo_peer_life_t;

static inline kolo_life_t *kolo_life(const kolo_oob_t *oob)
{
    return oob->state[KOLO_ROOM_MEMBER];
}

static inline kolo_inherited_t *kolo_inherited(const kolo_oob_t *oob)
{
    return &kolo_life(oob)->inherited;
}

static inline kolo_peer_life_t *kolo_peer_life(const kolo_peer_t *peer)
{
    return peer->state[KOLO_ROOM_MEMBER];
}

static inline bool kolo_peer_is_lost(const kolo_peer_t *peer)
{
    return kolo_peer_life(peer)->loss.order > 0;
}

/* ---- news (news.c, beat.c, pidwatch.c); with the lock held ---- */

void kolo_news_lost(kolo_oob_t *oob, int rank, kolo_loss_how_t how, int noticed_by);
void kolo_news_silent(kolo_oob_t *oob, int rank, int noticed_by);
void kolo_news_partition(kolo_oob_t *oob, const char *why);
/* Finds the loss that ends waits, after `members` has changed. */
void kolo_news_update(kolo_oob_t *oob);
void kolo_news_tell_all(kolo_conn_t *conn);
/* Sends a frame to all ranks, each of which forwards it once (flood), or to the rank at the other end (send). */
void kolo_news_flood(kolo_oob_t *oob, kolo_frame_kind_t kind, const void *bytes, size_t length);
void kolo_news_send(kolo_conn_t *conn, kolo_frame_kind_t kind, const void *bytes, size_t length);
/* Tells of two ranks that have made different calls, which ends this object's use; once. */
void kolo_news_mismatch(kolo_oob_t *oob, int rank, const char *why);
/* Takes a frame of news. */
const char *kolo_news_arrived(kolo_conn_t *conn);
void kolo_beat_told(kolo_oob_t *oob, int rank, int noticed_by);
/* Decides about silent ranks, if it is time. */
void kolo_beat_decide(kolo_oob_t *oob);
/* Tells, in a partition, whether silence has shown it; and whether `rank` is on the other side, as far as this rank
 * knows. */
bool kolo_beat_any_silent(const kolo_oob_t *oob);
bool kolo_beat_cut_off(const kolo_oob_t *oob, int rank);
/* Stops heartbeats. On the progress thread, without the lock. */
void kolo_beat_stop(kolo_oob_t *oob);
/* Tells whether bytes sent to this rank have waited longer than limit_ns for an acknowledgement (acks.c). */
bool kolo_peer_acks_missing(kolo_peer_t *peer, uint64_t now, uint64_t limit_ns);
void kolo_peer_acks_forgive(kolo_peer_t *peer, uint64_t late_ns);
/* Sends long packets to one rank of each host other than the suspect's, once, to see whether any arrives (start;
 * probe.c, on the progress thread). The end, also without the lock, says if none has though some were sent. */
void kolo_probes_start(kolo_oob_t *oob, int suspect, const bool *remote, uint64_t deadline_ns);
bool kolo_probes_blame_us(const kolo_oob_t *oob);
void kolo_probes_stop(kolo_oob_t *oob);
void kolo_pidwatch_stop(kolo_oob_t *oob);
/* ---- children (inherit.c) ---- */

/* Passes news of the parent to its children, with the parent's lock held. */
void kolo_inherit_tell(kolo_oob_t *parent, kolo_news_kind_t kind, int rank);
/* Unlinks an object from its parent and its children, before it is freed. Without a lock. */
void kolo_inherit_end(kolo_oob_t *oob);

/* ---- agreements (agreement.c); with the lock held, on the progress thread ---- */

/* Takes a complete message of an agreement: it waits for the rank's thread, or is answered and freed. Returns what
 * is wrong with it, or NULL. */
const char *kolo_agree_arrived(kolo_oob_t *oob, kolo_inbound_t *in);
/* Returns a series. NULL: there is none, or no memory. */
kolo_series_t *kolo_agree_series(kolo_oob_t *oob, uint64_t tag, bool make);
void kolo_agree_forget(kolo_oob_t *oob);

#endif
