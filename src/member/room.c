/* SPDX-License-Identifier: Apache-2.0
 *
 * How this room takes part in every oob.
 */
#include "member/life.h"
#include "member/news_frame.h"

#include <stdlib.h>

static void opened(kolo_oob_t *oob)
{
    kolo_life(oob)->lost = kolo_life(oob)->odd = -1;
}

static void connected(kolo_conn_t *conn)
{
    kolo_news_tell_all(conn);
    if (kolo_peer_is_lost(conn->peer)) kolo_conn_condemn(conn, "was ended: the rank is lost"); /* now it knows */
}

static int blames(const kolo_oob_t *oob)
{
    return kolo_life(oob)->partition ? oob->rank : kolo_life(oob)->lost;
}

static bool ends_waits(const kolo_oob_t *oob)
{
    const kolo_life_t *l = kolo_life(oob);
    return l->lost >= 0 || l->partition || l->revoked;
}

static kolo_status_t why(kolo_oob_t *oob, const char *doing)
{
    const kolo_life_t *l = kolo_life(oob);
    if (l->partition)
        return kolo_fail(KOLO_ERR_PARTITION, "%s: rank %d was %s when it was cut off: %s", oob->name, oob->rank,
                         doing, l->partition_why);
    if (l->revoked)
        return kolo_fail(KOLO_ERR_REVOKED, "%s: rank %d was %s when rank %d revoked the communicator", oob->name,
                         oob->rank, doing, l->revoked_by);
    if (l->lost < 0) return KOLO_OK;
    oob->failed = true;
    return kolo_fail(KOLO_ERR_REMOTE, "%s: rank %d was %s when rank %d was lost: %s", oob->name, oob->rank, doing,
                     l->lost, l->lost_why);
}

static void look(kolo_oob_t *oob, uint64_t now_ns)
{
    (void)now_ns;
    kolo_pidwatch_look_out(oob);
}

static void stop(kolo_oob_t *oob)
{
    kolo_beat_stop(oob);
    kolo_pidwatch_stop(oob);
}

static void fini(kolo_oob_t *oob)
{
    free(kolo_inherited(oob)->members);
    kolo_agree_forget(oob);
}

static const char *beat_arrived(kolo_conn_t *conn)
{
    (void)conn; /* that something came is all it says */
    return NULL;
}

static const kolo_frame_rule_t frames[] = {
    {KOLO_FRAME_NEWS, KOLO_NEWS_FRAME_BYTES, KOLO_NEWS_FRAME_BYTES, .arrived = kolo_news_arrived},
    {KOLO_FRAME_BEAT, 0, 0, .arrived = beat_arrived},
    {KOLO_FRAME_AGREE, 0, KOLO_OOB_MESSAGE_MAX, .queued = kolo_agree_arrived},
};

static const kolo_room_t room = {.frames = frames,
                                 .nframes = KOLO_COUNTOF(frames),
                                 .bytes = sizeof(kolo_life_t),
                                 .peer_bytes = sizeof(kolo_peer_life_t),
                                 .opened = opened,
                                 .connected = connected,
                                 .lost = kolo_news_lost,
                                 .blames = blames,
                                 .ends_waits = ends_waits,
                                 .why = why,
                                 .look = look,
                                 .leave = kolo_inherit_end,
                                 .stop = stop,
                                 .fini = fini};

__attribute__((constructor)) static void enter(void)
{
    kolo_rooms_register(KOLO_ROOM_MEMBER, &room);
}
