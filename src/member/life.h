/* SPDX-License-Identifier: Apache-2.0
 *
 * What this room keeps of an oob and of each of its peers: who is lost, by what, who is silent, which agreements
 * are under way, and what a child that is set up hears of its parent. All under the oob's lock.
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

/* Agreements that are counted together, and how the last ones ended, for those who still ask (agreement.c). */
#define KOLO_SERIES_SHIFT 24 /* below it in a tag: the number in the series, from 1 */
typedef struct {
    uint8_t *bytes; /* the message */
    size_t length;
} kolo_decision_t;
typedef struct kolo_series {
    struct kolo_series *next;
    uint64_t id, begun, ended;
    kolo_decision_t decisions[2]; /* by number */
} kolo_series_t;

/* What a child that is being set up has of its parent (inherit.c). */
#define KOLO_INHERITED_WHO_BYTES 192
typedef struct {
    kolo_oob_t *parent, *next; /* next: of the same parent */
    int *members;              /* rank of the parent by rank, -1: none; NULL: no child, or not any more */
    bool revokes;              /* a revoke of the parent counts */
    int lost;                  /* the first rank that was lost by the parent's word, if `who` says anything */
    char who[KOLO_INHERITED_WHO_BYTES];
    bool word_is_loss;                       /* and not that somebody gave up */
    char word[2 * KOLO_INHERITED_WHO_BYTES]; /* whom the parent has lost, member or not */
} kolo_inherited_t;

/* Of an oob. */
typedef struct {
    int lost; /* the first rank that was lost and matters, -1 none: ends every wait */
    char lost_why[320];
    int nlost;
    bool revoked, partition;
    int revoked_by;
    char partition_why[192];
    int odd; /* a rank that has called something else than another one, -1 none: found out by the room above */
    char odd_why[KOLO_NEWS_WORDS];

    kolo_news_fn_t news_fn;
    void *news_arg;
    struct kolo_pidwatch *pidwatches;
    _Atomic uint64_t look_ns; /* when to look at their processes again */
    struct kolo_beats *beats; /* NULL: no heartbeats */

    kolo_series_t *series;

    kolo_oob_t *children;       /* children that are being set up (inherit.c) */
    kolo_inherited_t inherited; /* if this one is being set up */
    kolo_oob_who_fn_t who_fn;
    void *who_arg;
} kolo_life_t;

/* Of a peer. */
typedef struct {
    kolo_loss_t loss;
    bool watched, beaten; /* beats are expected from it, sent to it */
    bool suspected, silent;
    int silent_by;
    uint64_t spared_ns, spared_since; /* of this silence: what was forgiven since it was heard then */
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
/* Which loss ends waits, after `members` has changed. */
void kolo_news_update(kolo_oob_t *oob);
void kolo_news_tell_all(kolo_conn_t *conn);
/* A frame for all ranks, who pass it on when they hear it first; and one for the rank at the other end. */
void kolo_news_flood(kolo_oob_t *oob, kolo_frame_kind_t kind, const void *bytes, size_t length);
void kolo_news_send(kolo_conn_t *conn, kolo_frame_kind_t kind, const void *bytes, size_t length);
/* Two ranks have called different things, which ends this object's use; once. */
void kolo_news_mismatch(kolo_oob_t *oob, int rank, const char *why);
/* News has come in. */
const char *kolo_news_arrived(kolo_conn_t *conn);
void kolo_beat_told(kolo_oob_t *oob, int rank, int noticed_by);
/* If there is something to decide, now. */
void kolo_beat_decide(kolo_oob_t *oob);
/* In a partition: has silence led to it? Is this rank on the other side, as far as is known? */
bool kolo_beat_any_silent(const kolo_oob_t *oob);
bool kolo_beat_cut_off(const kolo_oob_t *oob, int rank);
/* On the progress thread, without the lock. */
void kolo_beat_stop(kolo_oob_t *oob);
/* acks.c: has anything that was sent to this rank waited for an acknowledgement for so long? */
bool kolo_acks_missing(kolo_peer_t *peer, uint64_t now, uint64_t limit_ns);
void kolo_acks_forgive(kolo_peer_t *peer, uint64_t late_ns);
void kolo_pidwatch_stop(kolo_oob_t *oob);
/* ---- children (inherit.c) ---- */

/* News of the parent, with its lock held: its children hear it. */
void kolo_children_tell(kolo_oob_t *parent, kolo_news_kind_t kind, int rank);
/* The object is about to go: it is nobody's child and has none. Without a lock. */
void kolo_inherit_end(kolo_oob_t *oob);

/* ---- agreements (agreement.c); with the lock held, on the progress thread ---- */

/* A message of an agreement is complete: it waits for the rank's thread, or is answered and freed. Returns what is
 * wrong with it, or NULL. */
const char *kolo_agree_arrived(kolo_oob_t *oob, kolo_inbound_t *in);
/* NULL: there is none, or no memory. */
kolo_series_t *kolo_agree_series(kolo_oob_t *oob, uint64_t tag, bool make);
void kolo_agree_forget(kolo_oob_t *oob);

#endif
