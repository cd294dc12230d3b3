/* SPDX-License-Identifier: Apache-2.0
 *
 * Heirs: children that are being set up hear what their parent knows. A child has few connections yet, no watched
 * processes and no heartbeats, and a member that never comes shows by nothing but its silence; the parent has all
 * of that. So while the set-up lasts:
 *
 *   - A member that the parent knows to be lost is lost to the child, too, by the same evidence. Ranks that are no
 *     members do not matter: a shrink is made because they are lost. A member that only gave the parent up is not
 *     lost: it may have the child's start behind it as far as the parent is concerned. (If it gave up the child as
 *     well its socket is closed, which is seen at once.)
 *   - A partition of the parent that cuts this rank off from a member is the child's. The parent's quorum decides:
 *     who goes on, and who does not, is the same in both. Ranks that are cut off but no members do not matter.
 *   - That the parent is revoked ends the set-up of a split or grow, which are operations of it: some ranks may
 *     still be in their turn there, and never come. It does not end a shrink: ranks shrink what was revoked, and
 *     hear of that in any order.
 *
 * How the parent ends here (abort, destroy) is not told: comm/child.c sees to that. What comes when the set-up is
 * over is the child's to find out.
 *
 * Locks: `tree`, then the parent's, then the heir's. An heir's link to its parent is under `tree`, the parent's
 * list of heirs under its own lock.
 */
#include "base/log.h"
#include "member/life.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t tree = PTHREAD_MUTEX_INITIALIZER;

static int rank_in(const kolo_oob_t *heir, int parent_rank)
{
    for (int r = 0; r < heir->nranks; r++)
        if (kolo_life(heir)->heir.members[r] == parent_rank) return r;
    return -1;
}

/* ---- passing on; with the parent's lock held, and the heir's ---- */

/* A real loss explains more than that somebody gave up. */
static void keep_word(const kolo_oob_t *parent, kolo_heir_t *heir, const kolo_peer_t *peer)
{
    char who[KOLO_HEIR_WHO_BYTES / 2] = "";
    bool is_loss = kolo_peer_life(peer)->loss.how != KOLO_LOSS_GAVE_UP;
    if (heir->word[0] != '\0' && (heir->word_is_loss || !is_loss)) return;
    if (kolo_life(parent)->who_fn != NULL)
        kolo_life(parent)->who_fn(kolo_life(parent)->who_arg, peer->rank, who, sizeof(who));
    snprintf(heir->word, sizeof(heir->word), "rank %d of %s%s was lost%s%.200s", peer->rank, parent->name, who,
             peer->rank == kolo_life(parent)->lost ? ": " : "",
             peer->rank == kolo_life(parent)->lost ? kolo_life(parent)->lost_why : "");
    heir->word_is_loss = is_loss;
}

static void pass_loss(const kolo_oob_t *parent, kolo_oob_t *heir, const kolo_peer_t *peer)
{
    int rank = rank_in(heir, peer->rank), by = rank_in(heir, kolo_peer_life(peer)->loss.noticed_by);
    char who[KOLO_HEIR_WHO_BYTES / 2] = "";
    keep_word(parent, &kolo_life(heir)->heir, peer);
    kolo_oob_wake(heir); /* it may wait for just that */
    if (rank < 0 || rank == heir->rank || kolo_peer_life(peer)->loss.how == KOLO_LOSS_GAVE_UP) return;
    if (kolo_life(heir)->heir.lost < 0) {
        if (kolo_life(parent)->who_fn != NULL)
            kolo_life(parent)->who_fn(kolo_life(parent)->who_arg, peer->rank, who, sizeof(who));
        snprintf(kolo_life(heir)->heir.who, sizeof(kolo_life(heir)->heir.who), "it is rank %d of %s%s", peer->rank,
                 parent->name, who);
        kolo_life(heir)->heir.lost = rank;
    }
    kolo_news_lost(heir, rank, kolo_peer_life(peer)->loss.how, by >= 0 ? by : heir->rank);
}

static void pass_partition(const kolo_oob_t *parent, kolo_oob_t *heir)
{
    bool cut = !kolo_beat_any_silent(parent); /* it is not the network: the others have given this rank up */
    for (int r = 0; r < heir->nranks && !cut; r++) {
        int rank = kolo_life(heir)->heir.members[r];
        cut = rank >= 0 && rank != parent->rank && kolo_beat_cut_off(parent, rank);
    }
    if (cut) kolo_news_partition(heir, kolo_life(parent)->partition_why);
}

static void pass_revoke(const kolo_oob_t *parent, kolo_oob_t *heir)
{
    if (!kolo_life(heir)->heir.revokes || heir->doom != NULL) return;
    heir->doom = calloc(1, sizeof(*heir->doom));
    if (heir->doom == NULL) {
        kolo_warn("oob", "%s: rank %d has no memory to end a set-up", heir->name, heir->rank);
        return;
    }
    heir->doom->status = KOLO_ERR_REVOKED;
    snprintf(heir->doom->text, sizeof(heir->doom->text), "rank %d revoked the communicator that it is made from",
             kolo_life(parent)->revoked_by);
    if (kolo_life(heir)->news_fn != NULL)
        kolo_life(heir)->news_fn(kolo_life(heir)->news_arg, KOLO_NEWS_REVOKED, heir->rank, heir->doom->text);
    kolo_oob_wake(heir);
}

static void pass_on(const kolo_oob_t *parent, kolo_oob_t *heir, kolo_news_kind_t kind, const kolo_peer_t *peer)
{
    pthread_mutex_lock(&heir->lock);
    if (heir->closed)
        ;
    else if (kind == KOLO_NEWS_LOST)
        pass_loss(parent, heir, peer);
    else if (kind == KOLO_NEWS_PARTITION)
        pass_partition(parent, heir);
    else
        pass_revoke(parent, heir);
    pthread_mutex_unlock(&heir->lock);
}

void kolo_heirs_tell(kolo_oob_t *parent, kolo_news_kind_t kind, int rank)
{
    const kolo_peer_t *peer = kind == KOLO_NEWS_LOST ? kolo_peer_find(parent, rank) : NULL;
    if (kind == KOLO_NEWS_LOST && peer == NULL) return;
    for (kolo_oob_t *heir = kolo_life(parent)->heirs; heir != NULL; heir = kolo_life(heir)->heir.next)
        pass_on(parent, heir, kind, peer);
}

static void tell_what_is_known(kolo_oob_t *parent, kolo_oob_t *heir)
{
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (const kolo_peer_t *peer = parent->peers[i]; peer != NULL; peer = peer->next)
            if (kolo_peer_is_lost(peer)) pass_on(parent, heir, KOLO_NEWS_LOST, peer);
    if (kolo_life(parent)->partition) pass_on(parent, heir, KOLO_NEWS_PARTITION, NULL);
    if (kolo_life(parent)->revoked) pass_on(parent, heir, KOLO_NEWS_REVOKED, NULL);
}

/* ---- links ---- */

/* With `tree` held. */
static void unlink_heir(kolo_oob_t *heir)
{
    kolo_oob_t *parent = kolo_life(heir)->heir.parent;
    if (parent == NULL) return;
    pthread_mutex_lock(&parent->lock);
    kolo_oob_t **at = &kolo_life(parent)->heirs;
    while (*at != heir) at = &kolo_life(*at)->heir.next;
    *at = kolo_life(heir)->heir.next;
    pthread_mutex_unlock(&parent->lock);
    kolo_life(heir)->heir.parent = NULL;
}

void kolo_heir_end(kolo_oob_t *oob)
{
    pthread_mutex_lock(&tree);
    unlink_heir(oob);
    pthread_mutex_lock(&oob->lock);
    for (kolo_oob_t *heir = kolo_life(oob)->heirs; heir != NULL; heir = kolo_life(heir)->heir.next)
        kolo_life(heir)->heir.parent = NULL;
    kolo_life(oob)->heirs = NULL;
    pthread_mutex_unlock(&oob->lock);
    pthread_mutex_unlock(&tree);
}

kolo_status_t kolo_oob_inherit(kolo_oob_t *oob, kolo_oob_t *from, const int *members, bool revokes)
{
    int *own = malloc((size_t)oob->nranks * sizeof(*own));
    if (own == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "%s: no memory for %d ranks", oob->name, oob->nranks);
    pthread_mutex_lock(&tree);
    const int *through =
        kolo_life(from)->heir.members; /* an heir itself, never set up: its parent is the one that knows */
    kolo_oob_t *parent = through != NULL ? kolo_life(from)->heir.parent : from;
    for (int r = 0; r < oob->nranks; r++)
        own[r] = members[r] >= 0 && through != NULL ? through[members[r]] : members[r];
    kolo_life(oob)->heir.members = own;
    kolo_life(oob)->heir.revokes = revokes;
    kolo_life(oob)->heir.lost = -1;
    if (parent != NULL) { /* else it has ended */
        pthread_mutex_lock(&parent->lock);
        kolo_life(oob)->heir.parent = parent;
        kolo_life(oob)->heir.next = kolo_life(parent)->heirs;
        kolo_life(parent)->heirs = oob;
        tell_what_is_known(parent, oob);
        pthread_mutex_unlock(&parent->lock);
    }
    pthread_mutex_unlock(&tree);
    return KOLO_OK;
}

kolo_status_t kolo_oob_come_of_age(kolo_oob_t *oob)
{
    kolo_status_t status = KOLO_OK;
    pthread_mutex_lock(&tree);
    unlink_heir(oob);
    pthread_mutex_unlock(&tree);
    pthread_mutex_lock(&oob->lock);
    if (oob->doom != NULL) status = kolo_fail(oob->doom->status, "%s: %s", oob->name, oob->doom->text);
    free(oob->doom);
    oob->doom = NULL;
    free(kolo_life(oob)->heir.members);
    kolo_life(oob)->heir.members = NULL;
    kolo_life(oob)->heir.word[0] = '\0'; /* what happens from now on has other reasons */
    pthread_mutex_unlock(&oob->lock);
    return status;
}

static bool word_has_come(kolo_oob_t *oob, void *arg)
{
    (void)arg;
    return kolo_life(oob)->heir.word[0] != '\0' || kolo_life(oob)->heir.lost >= 0;
}

static void describe_word(void *arg, char *buf, size_t bytes)
{
    const kolo_oob_t *oob = arg;
    snprintf(buf, bytes, "the parent's word of who was lost, as %s rank %d", oob->name, oob->rank);
}

bool kolo_oob_parents_word(kolo_oob_t *oob, int wait_ms, char *word, size_t bytes)
{
    pthread_mutex_lock(&oob->lock);
    if (kolo_life(oob)->heir.members != NULL && !oob->closed && wait_ms > 0)
        (void)kolo_oob_await(oob, word_has_come, NULL, kolo_deadline_ms(wait_ms), describe_word, oob);
    bool told = kolo_life(oob)->heir.word[0] != '\0';
    if (told) snprintf(word, bytes, "%s", kolo_life(oob)->heir.word);
    pthread_mutex_unlock(&oob->lock);
    return told;
}

bool kolo_oob_is_doomed(kolo_oob_t *oob)
{
    pthread_mutex_lock(&oob->lock);
    bool doomed = oob->doom != NULL;
    pthread_mutex_unlock(&oob->lock);
    return doomed;
}

void kolo_oob_set_who(kolo_oob_t *oob, kolo_oob_who_fn_t fn, void *arg)
{
    pthread_mutex_lock(&oob->lock);
    kolo_life(oob)->who_fn = fn;
    kolo_life(oob)->who_arg = arg;
    pthread_mutex_unlock(&oob->lock);
}
