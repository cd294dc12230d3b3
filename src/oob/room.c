/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of the rooms that take part in every oob, and of all kinds of frames; this room's own are in kinds.c.
 * It calls what registered by these tables alone, so that it lies below all of them.
 */
#include "oob/internal.h"

#include <stdlib.h>

static const kolo_room_t *rooms[KOLO_ROOM_COUNT];

static const kolo_frame_rule_t *rules[KOLO_FRAME_KINDS];

void kolo_rooms_register_frames(const kolo_frame_rule_t *list, size_t n)
{
    for (size_t i = 0; i < n; i++) rules[list[i].kind] = &list[i];
}

void kolo_rooms_register(kolo_room_id_t id, const kolo_room_t *room)
{
    rooms[id] = room;
    kolo_rooms_register_frames(room->frames, room->nframes);
}

const kolo_frame_rule_t *kolo_rooms_frame_rule(uint32_t kind)
{
    return kind < KOLO_FRAME_KINDS ? rules[kind] : NULL;
}

/* ---- what they keep ---- */

static size_t rounded(size_t bytes)
{
    return KOLO_ROUND_UP(bytes, sizeof(max_align_t));
}

static size_t part(int i, bool of_peer)
{
    return rooms[i] != NULL ? rounded(of_peer ? rooms[i]->peer_bytes : rooms[i]->bytes) : 0;
}

size_t kolo_rooms_bytes(bool of_peer)
{
    size_t bytes = 0;
    for (int i = 0; i < KOLO_ROOM_COUNT; i++) bytes += part(i, of_peer);
    return bytes;
}

static void place(void *state[KOLO_ROOM_COUNT], void *memory, size_t bytes, bool of_peer)
{
    uint8_t *at = (uint8_t *)memory + rounded(bytes);
    for (int i = 0; i < KOLO_ROOM_COUNT; at += part(i++, of_peer)) state[i] = at;
}

kolo_oob_t *kolo_rooms_new_oob(size_t bytes)
{
    kolo_oob_t *oob = calloc(1, rounded(bytes) + kolo_rooms_bytes(false));
    if (oob != NULL) place(oob->state, oob, bytes, false);
    return oob;
}

kolo_peer_t *kolo_rooms_new_peer(size_t bytes)
{
    kolo_peer_t *peer = calloc(1, rounded(bytes) + kolo_rooms_bytes(true));
    if (peer != NULL) place(peer->state, peer, bytes, true);
    return peer;
}

/* ---- what they hear of ---- */

void kolo_rooms_opened(kolo_oob_t *oob)
{
    for (int i = 0; i < KOLO_ROOM_COUNT; i++)
        if (rooms[i] != NULL && rooms[i]->opened != NULL) rooms[i]->opened(oob);
}

void kolo_rooms_connected(kolo_conn_t *conn)
{
    for (int i = 0; i < KOLO_ROOM_COUNT; i++)
        if (rooms[i] != NULL && rooms[i]->connected != NULL) rooms[i]->connected(conn);
}

void kolo_rooms_lost(kolo_oob_t *oob, int rank, kolo_loss_how_t how, int noticed_by)
{
    for (int i = 0; i < KOLO_ROOM_COUNT; i++)
        if (rooms[i] != NULL && rooms[i]->lost != NULL) rooms[i]->lost(oob, rank, how, noticed_by);
}

int kolo_rooms_blame(const kolo_oob_t *oob)
{
    int rank = -1;
    for (int i = 0; i < KOLO_ROOM_COUNT && rank < 0; i++)
        if (rooms[i] != NULL && rooms[i]->blames != NULL) rank = rooms[i]->blames(oob);
    return rank;
}

bool kolo_rooms_end_waits(const kolo_oob_t *oob)
{
    bool end = false;
    for (int i = 0; i < KOLO_ROOM_COUNT && !end; i++)
        if (rooms[i] != NULL && rooms[i]->ends_waits != NULL) end = rooms[i]->ends_waits(oob);
    return end;
}

kolo_status_t kolo_rooms_why(kolo_oob_t *oob, const char *doing)
{
    for (int i = 0; i < KOLO_ROOM_COUNT; i++)
        if (rooms[i] != NULL && rooms[i]->why != NULL) KOLO_TRY(rooms[i]->why(oob, doing));
    return KOLO_OK;
}

void kolo_rooms_look(kolo_oob_t *oob, uint64_t now_ns)
{
    for (int i = 0; i < KOLO_ROOM_COUNT; i++)
        if (rooms[i] != NULL && rooms[i]->look != NULL) rooms[i]->look(oob, now_ns);
}

void kolo_rooms_leave(kolo_oob_t *oob)
{
    for (int i = 0; i < KOLO_ROOM_COUNT; i++)
        if (rooms[i] != NULL && rooms[i]->leave != NULL) rooms[i]->leave(oob);
}

void kolo_rooms_stop(kolo_oob_t *oob)
{
    for (int i = 0; i < KOLO_ROOM_COUNT; i++)
        if (rooms[i] != NULL && rooms[i]->stop != NULL) rooms[i]->stop(oob);
}

void kolo_rooms_fini(kolo_oob_t *oob)
{
    for (int i = 0; i < KOLO_ROOM_COUNT; i++)
        if (rooms[i] != NULL && rooms[i]->fini != NULL) rooms[i]->fini(oob);
}
