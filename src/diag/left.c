/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that have left in order without meeting anybody (decision 0064). Each says up to which operation it has
 * come, and the sum of all up to that one; it goes round like the loss of a rank. Who is still inside compares: it
 * has called the same up to there, and nothing after it, for that would need the one that has left. On GPUs ranks
 * do not count alike; there the all-gathers are compared, without which no communicator is made of this one.
 */
#include "diag/state.h"
#include "member/life.h"

#include <stdlib.h>

#define ANSWER_NS (200 * KOLO_NS_PER_MS) /* within which the leaver, if it still lives, tells what differs */

static kolo_left_t *left_of(kolo_oob_t *oob, int rank)
{
    kolo_diag_t *d = kolo_diag(oob);
    if (d->left == NULL) d->left = calloc((size_t)oob->nranks, sizeof(*d->left));
    return d->left != NULL ? &d->left[rank] : NULL;
}

static void fill(const kolo_left_t *left, int rank, uint8_t bytes[KOLO_LEFT_FRAME_BYTES])
{
    kolo_left_encode(
        &(kolo_left_frame_t){
            .last = left->last, .sum = left->sum, .gathers = left->gathers, .rank = rank, .counts = left->counts},
        bytes);
}

/* ---- comparing; with the lock held ---- */

static void note(kolo_oob_t *oob, int rank, uint64_t number, uint64_t mine, uint64_t theirs)
{
    kolo_difference_note(oob, &(kolo_difference_t){oob->rank, rank, number, mine, number, theirs});
}

/* Notes that we differ up to where it has come. If it still answers it finds out in what. */
static void note_sum(kolo_oob_t *oob, int rank, kolo_left_t *left)
{
    kolo_peer_t *peer = kolo_peer_find(oob, rank);
    uint64_t now = kolo_now_ns();
    if (left->asked_ns == 0 && peer != NULL && kolo_sums_show(peer, left->last, KOLO_SUMS_STEP))
        left->asked_ns = now;
    else if (left->asked_ns == 0 || now - left->asked_ns > ANSWER_NS)
        note(oob, rank, left->last, 0, 0);
}

/* Notes that this rank waits in an all-gather to which that one never comes. */
static void note_gather(kolo_oob_t *oob, int rank, const kolo_left_t *left, uint64_t mine)
{
    const kolo_diag_t *d = kolo_diag(oob);
    uint64_t word = 0;
    (void)kolo_sums_word(d->board, mine, &word);
    kolo_difference_note(
        oob, &(kolo_difference_t){oob->rank, rank, mine, word, left->last + 1, word ? d->leave_word : 0});
}

/* Compares how far we have come. leaving: nothing follows. Until it has left a rank may be behind. */
static void compare(kolo_oob_t *oob, int rank, bool leaving)
{
    kolo_diag_t *d = kolo_diag(oob);
    kolo_left_t *left = &d->left[rank];
    uint64_t sum, word, mine = d->board != NULL ? kolo_board_last(d->board) : KOLO_BOARD_NONE;
    if (!left->known || d->board == NULL || d->went) return;
    if (mine == KOLO_BOARD_NONE) mine = d->board->first - 1;
    if (left->gathers < oob->gathers) note_gather(oob, rank, left, mine);
    if (!left->counts) return;
    int64_t ahead = (int64_t)(mine - left->last);
    if (ahead < 0 && leaving) note(oob, rank, left->last, 0, 0);
    if (ahead < 0) return;
    if (kolo_sums_at(d->board, left->last, &sum) && sum != left->sum)
        note_sum(oob, rank, left);
    else if (ahead > 0 && kolo_sums_word(d->board, left->last + 1, &word))
        note(oob, rank, left->last + 1, word, d->leave_word);
    else if (ahead > 0)
        note(oob, rank, left->last + 1, 0, 0);
}

static void compare_all(kolo_oob_t *oob, bool leaving)
{
    for (int r = 0; kolo_diag(oob)->left != NULL && r < oob->nranks; r++) compare(oob, r, leaving);
}

/* ---- what arrives; on the progress thread, with the lock held ---- */

const char *kolo_left_arrived(kolo_conn_t *conn)
{
    kolo_oob_t *oob = conn->oob;
    kolo_left_frame_t f;
    const char *wrong = kolo_left_decode(conn->body, conn->frame.bytes, oob->nranks, &f);
    if (wrong != NULL || f.rank == oob->rank) return wrong;
    kolo_left_t *left = left_of(oob, f.rank);
    if (left == NULL || left->known) return NULL;
    *left = (kolo_left_t){.known = true, .counts = f.counts, .last = f.last, .sum = f.sum, .gathers = f.gathers};
    kolo_news_flood(oob, KOLO_FRAME_LEFT, conn->body, KOLO_LEFT_FRAME_BYTES);
    compare(oob, f.rank, false);
    kolo_oob_wake(oob);
    return NULL;
}

void kolo_left_tell(kolo_conn_t *conn)
{
    const kolo_oob_t *oob = conn->oob;
    uint8_t bytes[KOLO_LEFT_FRAME_BYTES];
    for (int r = 0; kolo_diag(oob)->left != NULL && r < oob->nranks; r++) {
        if (!kolo_diag(oob)->left[r].known) continue;
        fill(&kolo_diag(oob)->left[r], r, bytes);
        kolo_news_send(conn, KOLO_FRAME_LEFT, bytes, sizeof(bytes));
    }
}

void kolo_left_look(kolo_oob_t *oob)
{
    if (kolo_diag(oob)->left != NULL) compare_all(oob, false);
}

/* ---- for the rooms above ---- */

void kolo_diag_set_leave_word(kolo_oob_t *oob, uint64_t word)
{
    kolo_diag(oob)->leave_word = word; /* before anybody is called */
}

void kolo_diag_look_left(kolo_oob_t *oob)
{
    pthread_mutex_lock(&oob->lock);
    compare_all(oob, false);
    pthread_mutex_unlock(&oob->lock);
}

bool kolo_diag_compare_left(kolo_oob_t *oob)
{
    bool pending = false;
    pthread_mutex_lock(&oob->lock);
    compare_all(oob, true);
    const kolo_diag_t *d = kolo_diag(oob);
    for (int r = 0; d->left != NULL && r < oob->nranks; r++) pending |= d->left[r].asked_ns != 0;
    pending = pending && !atomic_load(&d->difference.found);
    pthread_mutex_unlock(&oob->lock);
    return !pending;
}

void kolo_diag_leave_at(kolo_oob_t *oob, uint64_t last, uint64_t sum, bool counts)
{
    uint8_t bytes[KOLO_LEFT_FRAME_BYTES];
    pthread_mutex_lock(&oob->lock);
    kolo_left_t *mine = left_of(oob, oob->rank);
    kolo_diag(oob)->went = true;
    if (mine != NULL) {
        if (last == KOLO_BOARD_NONE) last = kolo_diag(oob)->board->first - 1;
        *mine = (kolo_left_t){.known = true, .counts = counts, .last = last, .sum = sum, .gathers = oob->gathers};
        fill(mine, oob->rank, bytes);
        kolo_news_flood(oob, KOLO_FRAME_LEFT, bytes, sizeof(bytes));
    }
    pthread_mutex_unlock(&oob->lock);
}

bool kolo_diag_all_left(kolo_oob_t *oob)
{
    bool all = true;
    pthread_mutex_lock(&oob->lock);
    const kolo_left_t *left = kolo_diag(oob)->left;
    for (int r = 0; r < oob->nranks && all; r++) {
        const kolo_peer_t *peer = kolo_peer_find(oob, r);
        all = r == oob->rank || (left != NULL && left[r].known) ||
              (peer != NULL && (peer->farewell || kolo_peer_is_lost(peer)));
    }
    pthread_mutex_unlock(&oob->lock);
    return all;
}
