/* SPDX-License-Identifier: Apache-2.0
 *
 * Two ranks have called different things, found out by their boards (board.c) or by what one has sent to the other
 * (comm/call/mismatch.c). Then nobody goes on: who is not told would wait for one of them, take its leaving for a
 * death, or go on with what it should not have got. So the first difference that a rank learns of goes round like
 * the loss of a rank, ahead of it on each connection.
 */
#include "diag/state.h"
#include "member/life.h"

static bool is_known(const kolo_oob_t *oob)
{
    return atomic_load_explicit(&kolo_diag(oob)->difference.found, memory_order_acquire);
}

void kolo_difference_note(kolo_oob_t *oob, const kolo_difference_t *found)
{
    kolo_diag_t *d = kolo_diag(oob);
    uint8_t bytes[KOLO_DIFFERENCE_FRAME_BYTES];
    char why[KOLO_NEWS_WORDS];
    if (is_known(oob) || d->board == NULL || oob->closed) return;
    d->difference.what = *found;
    atomic_store_explicit(&d->difference.found, true, memory_order_release);
    kolo_difference_encode(found, bytes);
    kolo_news_flood(oob, KOLO_FRAME_DIFFERENCE, bytes, sizeof(bytes));
    d->board_tell(found, why, sizeof(why));
    kolo_news_mismatch(oob, found->rank, why);
}

void kolo_difference_tell(kolo_conn_t *conn)
{
    uint8_t bytes[KOLO_DIFFERENCE_FRAME_BYTES];
    if (!is_known(conn->oob)) return;
    kolo_difference_encode(&kolo_diag(conn->oob)->difference.what, bytes);
    kolo_news_send(conn, KOLO_FRAME_DIFFERENCE, bytes, sizeof(bytes));
}

const char *kolo_difference_arrived(kolo_conn_t *conn)
{
    kolo_oob_t *oob = conn->oob;
    kolo_difference_t d;
    const char *wrong = kolo_difference_decode(conn->body, conn->frame.bytes, oob->nranks, &d);
    if (wrong != NULL) return wrong;
    if (d.other == oob->rank) /* each rank speaks of itself first */
        d = (kolo_difference_t){d.other, d.rank, d.other_number, d.other_word, d.number, d.word};
    kolo_difference_note(oob, &d);
    return NULL;
}

void kolo_diag_note_difference(kolo_oob_t *oob, const kolo_difference_t *difference)
{
    pthread_mutex_lock(&oob->lock);
    kolo_difference_note(oob, difference);
    pthread_mutex_unlock(&oob->lock);
}

bool kolo_diag_found_difference(kolo_oob_t *oob, kolo_difference_t *difference)
{
    if (!is_known(oob)) return false;
    *difference = kolo_diag(oob)->difference.what;
    return true;
}

kolo_status_t kolo_diag_difference(kolo_oob_t *oob)
{
    const kolo_diag_t *d = kolo_diag(oob);
    char text[KOLO_NEWS_WORDS];
    if (KOLO_UNLIKELY(is_known(oob))) {
        d->board_tell(&d->difference.what, text, sizeof(text));
        return kolo_fail(KOLO_ERR_MISMATCH, "%s", text);
    }
    if (KOLO_LIKELY(!atomic_load_explicit(&d->quitter.found, memory_order_acquire))) return KOLO_OK;
    return kolo_fail(KOLO_ERR_REMOTE,
                     "rank %d has given up after an error of its own and takes no part in operation %llu; what "
                     "kolo_get_last_error() says there comes first",
                     d->quitter.what.other, (unsigned long long)d->quitter.what.number);
}
