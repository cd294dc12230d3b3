/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes news of a parent to children that are being set up. A child has few connections yet, no watched
 * processes and no heartbeats, and a member that never comes is only silent; the parent has all of these. So while
 * the set-up lasts:
 *
 *   - A member that the parent knows to be lost is lost to the child, too, by the same evidence. Ranks that are no
 *     members do not matter: a shrink is made because they are lost. A member that only gave the parent up, or
 *     left it, is not lost: it may have the child's start behind it as far as the parent is concerned. (If it gave
 *     up the child as well its socket is closed, which is seen at once.)
 *   - A partition of the parent that cuts this rank off from a member is the child's. The parent's quorum decides:
 *     who goes on, and who does not, is the same in both. Ranks that are cut off but no members do not matter.
 *   - That the parent is revoked ends the set-up of a split or grow, which are operations of it: some ranks may
 *     still be in their turn there, and never come. It does not end a shrink: ranks shrink what was revoked, and
 *     hear of that in any order.
 *
 * The end of the parent on this rank (abort, destroy) is not passed on: comm/life/child.c handles it. After the
 * set-up the child notices losses itself.
 *
 * Locks: `tree`, then the parent's, then the child's. A child's link to its parent is under `tree`, the parent's
 * list of children under its own lock.
 */
#include "base/log.h"
#include "base/process.h"
#include "member/life.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t tree = PTHREAD_MUTEX_INITIALIZER;
KOLO_FORK_RENEWS(tree)

static int rank_in(const kolo_oob_t *child, int parent_rank)
{
    for (int r = 0; r < child->nranks; r++)
        if (kolo_inherited(child)->members[r] == parent_rank) return r;
    return -1;
}

/* ---- passing on; with the parent's lock held, and the child's ---- */

/* Tells whether a peer is gone; who gave up, or left, may be well. */
static bool is_gone(const kolo_peer_t *peer)
{
    kolo_loss_how_t how = kolo_peer_life(peer)->loss.how;
    return how != KOLO_LOSS_GAVE_UP && how != KOLO_LOSS_LEFT;
}

/* Keeps the better word: a real loss explains more than that somebody gave up. */
static void keep_word(const kolo_oob_t *parent, kolo_inherited_t *child, const kolo_peer_t *peer)
{
    char who[KOLO_INHERITED_WHO_BYTES / 2] = "";
    bool is_loss = is_gone(peer);
    if (child->word[0] != '\0' && (child->word_is_loss || !is_loss)) return;
    if (kolo_life(parent)->who_fn != NULL)
        kolo_life(parent)->who_fn(kolo_life(parent)->who_arg, peer->rank, who, sizeof(who));
    snprintf(child->word, sizeof(child->word), "rank %d of %s%s was lost%s%.200s", peer->rank, parent->name, who,
             peer->rank == kolo_life(parent)->lost ? ": " : "",
             peer->rank == kolo_life(parent)->lost ? kolo_life(parent)->lost_why : "");
    child->word_is_loss = is_loss;
}

static void pass_loss(const kolo_oob_t *parent, kolo_oob_t *child, const kolo_peer_t *peer)
{
    int rank = rank_in(child, peer->rank), by = rank_in(child, kolo_peer_life(peer)->loss.noticed_by);
    char who[KOLO_INHERITED_WHO_BYTES / 2] = "";
    keep_word(parent, kolo_inherited(child), peer);
    kolo_oob_wake(child); /* it may wait for just that */
    if (rank < 0 || rank == child->rank || !is_gone(peer)) return;
    if (kolo_inherited(child)->lost < 0) {
        if (kolo_life(parent)->who_fn != NULL)
            kolo_life(parent)->who_fn(kolo_life(parent)->who_arg, peer->rank, who, sizeof(who));
        snprintf(kolo_inherited(child)->who, sizeof(kolo_inherited(child)->who), "it is rank %d of %s%s",
                 peer->rank, parent->name, who);
        kolo_inherited(child)->lost = rank;
    }
    kolo_news_lost(child, rank, kolo_peer_life(peer)->loss.how, by >= 0 ? by : child->rank);
}

static void pass_partition(const kolo_oob_t *parent, kolo_oob_t *child)
{
    bool cut = !kolo_beat_any_silent(parent); /* it is not the network: the others have given this rank up */
    for (int r = 0; r < child->nranks && !cut; r++) {
        int rank = kolo_inherited(child)->members[r];
        cut = rank >= 0 && rank != parent->rank && kolo_beat_cut_off(parent, rank);
    }
    if (cut) kolo_news_partition(child, kolo_life(parent)->partition_why);
}

static void pass_revoke(const kolo_oob_t *parent, kolo_oob_t *child)
{
    if (!kolo_inherited(child)->revokes || child->setup_failure != NULL) return;
    child->setup_failure = calloc(1, sizeof(*child->setup_failure));
    if (child->setup_failure == NULL) {
        kolo_warn("oob", "%s: rank %d has no memory to end a set-up", child->name, child->rank);
        return;
    }
    child->setup_failure->status = KOLO_ERR_REVOKED;
    snprintf(child->setup_failure->text, sizeof(child->setup_failure->text),
             "rank %d revoked the communicator that it is made from", kolo_life(parent)->revoked_by);
    if (kolo_life(child)->news_fn != NULL)
        kolo_life(child)->news_fn(kolo_life(child)->news_arg, KOLO_NEWS_REVOKED, child->rank,
                                  child->setup_failure->text);
    kolo_oob_wake(child);
}

static void pass_on(const kolo_oob_t *parent, kolo_oob_t *child, kolo_news_kind_t kind, const kolo_peer_t *peer)
{
    pthread_mutex_lock(&child->lock);
    if (!child->closed && kind == KOLO_NEWS_LOST)
        pass_loss(parent, child, peer);
    else if (!child->closed && kind == KOLO_NEWS_PARTITION)
        pass_partition(parent, child);
    else if (!child->closed)
        pass_revoke(parent, child);
    pthread_mutex_unlock(&child->lock);
}

void kolo_inherit_tell(kolo_oob_t *parent, kolo_news_kind_t kind, int rank)
{
    const kolo_peer_t *peer = kind == KOLO_NEWS_LOST ? kolo_peer_find(parent, rank) : NULL;
    if (kind == KOLO_NEWS_LOST && peer == NULL) return;
    for (kolo_oob_t *child = kolo_life(parent)->children; child != NULL; child = kolo_inherited(child)->next)
        pass_on(parent, child, kind, peer);
}

static void tell_what_is_known(kolo_oob_t *parent, kolo_oob_t *child)
{
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (const kolo_peer_t *peer = parent->peers[i]; peer != NULL; peer = peer->next)
            if (kolo_peer_is_lost(peer)) pass_on(parent, child, KOLO_NEWS_LOST, peer);
    if (kolo_life(parent)->partition) pass_on(parent, child, KOLO_NEWS_PARTITION, NULL);
    if (kolo_life(parent)->revoked) pass_on(parent, child, KOLO_NEWS_REVOKED, NULL);
}

/* ---- links ---- */

/* Unlinks a child, with `tree` held. */
static void unlink_child(kolo_oob_t *child)
{
    kolo_oob_t *parent = kolo_inherited(child)->parent;
    if (parent == NULL) return;
    pthread_mutex_lock(&parent->lock);
    kolo_oob_t **at = &kolo_life(parent)->children;
    while (*at != child) at = &kolo_inherited(*at)->next;
    *at = kolo_inherited(child)->next;
    pthread_mutex_unlock(&parent->lock);
    kolo_inherited(child)->parent = NULL;
}

void kolo_inherit_end(kolo_oob_t *oob)
{
    pthread_mutex_lock(&tree);
    unlink_child(oob);
    pthread_mutex_lock(&oob->lock);
    for (kolo_oob_t *child = kolo_life(oob)->children; child != NULL; child = kolo_inherited(child)->next)
        kolo_inherited(child)->parent = NULL;
    kolo_life(oob)->children = NULL;
    pthread_mutex_unlock(&oob->lock);
    pthread_mutex_unlock(&tree);
}

kolo_status_t kolo_inherit_failures(kolo_oob_t *oob, kolo_oob_t *from, const int *members, bool revokes)
{
    int *own = malloc((size_t)oob->nranks * sizeof(*own));
    if (own == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "%s: no memory for %d ranks", oob->name, oob->nranks);
    pthread_mutex_lock(&tree);
    const int *through =
        kolo_inherited(from)->members; /* a child itself, never set up: its parent is the one that knows */
    kolo_oob_t *parent = through != NULL ? kolo_inherited(from)->parent : from;
    for (int r = 0; r < oob->nranks; r++)
        own[r] = members[r] >= 0 && through != NULL ? through[members[r]] : members[r];
    kolo_inherited(oob)->members = own;
    kolo_inherited(oob)->revokes = revokes;
    kolo_inherited(oob)->lost = -1;
    if (parent != NULL) { /* else it has ended */
        pthread_mutex_lock(&parent->lock);
        kolo_inherited(oob)->parent = parent;
        kolo_inherited(oob)->next = kolo_life(parent)->children;
        kolo_life(parent)->children = oob;
        tell_what_is_known(parent, oob);
        pthread_mutex_unlock(&parent->lock);
    }
    pthread_mutex_unlock(&tree);
    return KOLO_OK;
}

kolo_status_t kolo_inherit_setup_done(kolo_oob_t *oob)
{
    kolo_status_t status = KOLO_OK;
    pthread_mutex_lock(&tree);
    unlink_child(oob);
    pthread_mutex_unlock(&tree);
    pthread_mutex_lock(&oob->lock);
    if (oob->setup_failure != NULL)
        status = kolo_fail(oob->setup_failure->status, "%s: %s", oob->name, oob->setup_failure->text);
    free(oob->setup_failure);
    oob->setup_failure = NULL;
    free(kolo_inherited(oob)->members);
    kolo_inherited(oob)->members = NULL;
    kolo_inherited(oob)->word[0] = '\0'; /* what happens from now on has other reasons */
    pthread_mutex_unlock(&oob->lock);
    return status;
}

static bool word_has_come(kolo_oob_t *oob, void *arg)
{
    (void)arg;
    return kolo_inherited(oob)->word[0] != '\0' || kolo_inherited(oob)->lost >= 0;
}

static void describe_word(void *arg, char *buf, size_t bytes)
{
    const kolo_oob_t *oob = arg;
    snprintf(buf, bytes, "the parent's word of who was lost, as %s rank %d", oob->name, oob->rank);
}

bool kolo_inherit_failure(kolo_oob_t *oob, int wait_ms, char *word, size_t bytes)
{
    pthread_mutex_lock(&oob->lock);
    if (kolo_inherited(oob)->members != NULL && !oob->closed && wait_ms > 0)
        (void)kolo_oob_await(oob, word_has_come, NULL, kolo_deadline_ms(wait_ms), describe_word, oob);
    bool told = kolo_inherited(oob)->word[0] != '\0';
    if (told) snprintf(word, bytes, "%s", kolo_inherited(oob)->word);
    pthread_mutex_unlock(&oob->lock);
    return told;
}

bool kolo_inherit_names(kolo_oob_t *oob, const char *text)
{
    pthread_mutex_lock(&oob->lock);
    const char *who = kolo_inherited(oob)->who;
    bool names = who[0] != '\0' && strstr(text, who) != NULL;
    pthread_mutex_unlock(&oob->lock);
    return names;
}

bool kolo_inherit_setup_failed(kolo_oob_t *oob)
{
    pthread_mutex_lock(&oob->lock);
    bool failed = oob->setup_failure != NULL;
    pthread_mutex_unlock(&oob->lock);
    return failed;
}

void kolo_inherit_set_who(kolo_oob_t *oob, kolo_inherit_who_fn_t fn, void *arg)
{
    pthread_mutex_lock(&oob->lock);
    kolo_life(oob)->who_fn = fn;
    kolo_life(oob)->who_arg = arg;
    pthread_mutex_unlock(&oob->lock);
}
