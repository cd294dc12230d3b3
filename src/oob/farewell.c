/* SPDX-License-Identifier: Apache-2.0
 *
 * Farewells: the last frame of a rank on a connection. It says that the rank leaves in order, or which rank it
 * blames; a rank that gives up sends its reason in a frame of words before it.
 */
#include "oob/leave.h"

#include "base/text/plain.h"
#include "oob/internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define HAS_LEFT (UINT64_C(1) << 32) /* in the tag of a farewell, above the rank */

void kolo_oob_give_reason(kolo_oob_t *oob, const char *words)
{
    if (oob == NULL) return;
    pthread_mutex_lock(&oob->lock);
    if (oob->reason[0] == '\0') snprintf(oob->reason, sizeof(oob->reason), "%s", words);
    pthread_mutex_unlock(&oob->lock);
}

static int blamed_by(const kolo_oob_t *oob)
{
    if (!oob->failed) return KOLO_BLAMES_NOBODY;
    int rank = kolo_rooms_blame(oob);
    return rank >= 0 ? rank : oob->blames >= 0 ? oob->blames : oob->rank;
}

/* Says who is blamed, and whether it has left in order: then it was not lost in another way. */
static uint64_t farewell_tag(const kolo_oob_t *oob)
{
    int rank = blamed_by(oob);
    uint64_t tag = (uint32_t)rank;
    if (rank == KOLO_BLAMES_NOBODY) return tag;
    for (const kolo_peer_t *p = oob->peers[(unsigned)rank % KOLO_PEER_BUCKETS]; p != NULL; p = p->next)
        if (p->rank == rank && p->farewell && p->words[0] == '\0') tag |= HAS_LEFT;
    return tag;
}

/* Makes the frames of a farewell; returns how many bytes. */
static size_t farewell_frames(const kolo_oob_t *oob, uint8_t bytes[2 * KOLO_HEAD_BYTES + KOLO_WORDS_FRAME_MAX])
{
    size_t used = 0, length = strlen(oob->reason);
    kolo_head_t head = {KOLO_FRAME_FAREWELL, 0, farewell_tag(oob)};
    if (blamed_by(oob) == oob->rank && length > 0) {
        kolo_head_t words = {KOLO_FRAME_WORDS, (uint32_t)length, 0};
        kolo_oob_head_encode(&words, bytes);
        memcpy(bytes + KOLO_HEAD_BYTES, oob->reason, length);
        used = KOLO_HEAD_BYTES + length;
    }
    kolo_oob_head_encode(&head, bytes + used);
    return used + KOLO_HEAD_BYTES;
}

bool kolo_oob_has_left(kolo_oob_t *oob, int rank)
{
    pthread_mutex_lock(&oob->lock);
    const kolo_peer_t *peer = kolo_peer_find(oob, rank);
    bool left = peer != NULL && peer->farewell && peer->words[0] == '\0';
    pthread_mutex_unlock(&oob->lock);
    return left;
}

void kolo_farewell_say(const kolo_oob_t *oob, kolo_conn_t *conn)
{
    uint8_t bytes[2 * KOLO_HEAD_BYTES + KOLO_WORDS_FRAME_MAX];
    if (conn->dead || conn->out != NULL || conn->farewell) return;
    conn->farewell = true;
    ssize_t n = kolo_socket_send_bytes(&conn->socket, bytes, farewell_frames(oob, bytes));
    (void)n;
}

void kolo_farewell_queue(kolo_conn_t *conn)
{
    if (conn->dead || conn->farewell) return;
    conn->farewell = true;
    kolo_outbound_init(&conn->leave, KOLO_FRAME_FAREWELL, farewell_tag(conn->oob));
    kolo_conn_send(conn, &conn->leave);
}

/* Takes leave of one that was called and may have let us in, while its verdict is on the way: the end of this
 * connection would be the end of our process to it. It has not proven yet who it is, but the words are no secret
 * (nothing behind a handshake is, see auth.h), and without them it would blame us for what we have met. */
void kolo_farewell_call(const kolo_oob_t *oob, const kolo_dial_t *dial)
{
    uint8_t bytes[2 * KOLO_HEAD_BYTES + KOLO_WORDS_FRAME_MAX];
    kolo_dial_last_word(dial, bytes, farewell_frames(oob, bytes));
}

const char *kolo_farewell_words_arrived(kolo_conn_t *conn)
{
    kolo_peer_t *about = conn->peer;
    uint64_t tag = conn->frame.tag;
    uint32_t length = conn->frame.bytes;
    if (tag > (uint64_t)conn->oob->nranks) return "words about a rank that is none";
    if (tag != 0) {
        if ((int)tag - 1 == conn->oob->rank) return NULL;
        about = kolo_peer_get(conn->oob, (int)tag - 1);
        if (about == NULL || about->words[0] != '\0') return NULL;
    }
    kolo_plain_copy(about->words, sizeof(about->words), conn->body, length);
    return NULL;
}

const char *kolo_farewell_arrived(kolo_conn_t *conn)
{
    kolo_oob_t *oob = conn->oob;
    int blamed = (int)(uint32_t)conn->frame.tag;
    conn->peer->farewell = true;
    kolo_oob_wake(oob);
    if (blamed == KOLO_BLAMES_NOBODY || blamed == oob->rank) return NULL;
    if (blamed < 0 || blamed >= oob->nranks) blamed = conn->peer->rank;
    kolo_loss_how_t how = blamed == conn->peer->rank          ? KOLO_LOSS_GAVE_UP
                          : (conn->frame.tag & HAS_LEFT) != 0 ? KOLO_LOSS_LEFT
                                                              : KOLO_LOSS_BROKEN;
    kolo_rooms_lost(oob, blamed, how, conn->peer->rank);
    return NULL;
}
