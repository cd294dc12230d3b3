/* SPDX-License-Identifier: Apache-2.0
 *
 * How the rooms above take part in every oob. Each registers one table: its kinds of frames, the size of its state
 * per object and per peer, and the events that it handles. This room calls them only through the table, in the
 * order of kolo_room_id_t; with the object's lock held, unless said otherwise.
 */
#ifndef KOLO_OOB_ROOM_H
#define KOLO_OOB_ROOM_H

#include "oob/frame.h"
#include "oob/oob.h"

typedef struct kolo_conn kolo_conn_t;
typedef struct kolo_peer kolo_peer_t;
struct kolo_inbound;

#define KOLO_FRAME_BODY_MAX 272 /* the longest frame that `arrived` takes */

typedef struct {
    kolo_frame_kind_t kind;
    uint32_t least, most; /* bytes that follow its head */
    /* Takes a complete frame (conn->frame, its bytes in conn->body) on the progress thread. Returns NULL, or what
     * is wrong with it. If the function is NULL, frames of this kind are matched with the receives of the rank's
     * thread (message.c), */
    const char *(*arrived)(kolo_conn_t *conn);
    /* and this function, if not NULL, is called when such a message is complete. */
    const char *(*queued)(kolo_oob_t *oob, struct kolo_inbound *in);
} kolo_frame_rule_t;

typedef enum { KOLO_ROOM_DIAG, KOLO_ROOM_MEMBER, KOLO_ROOM_COUNT } kolo_room_id_t;

/* All functions may be NULL. */
typedef struct {
    const kolo_frame_rule_t *frames;
    size_t nframes;
    size_t bytes, peer_bytes; /* of its state, zeroed: oob->state[id], peer->state[id] */
    void (*opened)(kolo_oob_t *oob);
    void (*connected)(kolo_conn_t *conn); /* a new connection */
    /* A connection ended without a farewell, or another rank's farewell blames that rank. */
    void (*lost)(kolo_oob_t *oob, int rank, kolo_loss_how_t how, int noticed_by);
    /* The rank that caused a failure of this one, -1: not known. */
    int (*blames)(const kolo_oob_t *oob);
    /* Must every wait end? And why: an error with its message. */
    bool (*ends_waits)(const kolo_oob_t *oob);
    kolo_status_t (*why)(kolo_oob_t *oob, const char *doing);
    /* On the progress thread, without the lock, now and then while the rank's thread waits. */
    void (*look)(kolo_oob_t *oob, uint64_t now_ns);
    /* The end. leave: first, without the lock. stop: on the progress thread, without the lock. fini: frees. */
    void (*leave)(kolo_oob_t *oob);
    void (*stop)(kolo_oob_t *oob);
    void (*fini)(kolo_oob_t *oob);
} kolo_room_t;

/* Registers a table, which must stay: before main(), from a constructor. */
void kolo_rooms_register(kolo_room_id_t id, const kolo_room_t *room);
void kolo_rooms_register_frames(const kolo_frame_rule_t *list, size_t n); /* kinds of frames alone */

/* Returns NULL for an unknown kind. */
const kolo_frame_rule_t *kolo_rooms_frame_rule(uint32_t kind);
/* Allocates an object, or a peer, of `bytes` bytes followed by the state of all rooms, all zeroed. */
kolo_oob_t *kolo_rooms_new_oob(size_t bytes);
kolo_peer_t *kolo_rooms_new_peer(size_t bytes);
size_t kolo_rooms_bytes(bool of_peer);
void kolo_rooms_opened(kolo_oob_t *oob);
void kolo_rooms_connected(kolo_conn_t *conn);
void kolo_rooms_lost(kolo_oob_t *oob, int rank, kolo_loss_how_t how, int noticed_by);
int kolo_rooms_blame(const kolo_oob_t *oob);
bool kolo_rooms_end_waits(const kolo_oob_t *oob);
kolo_status_t kolo_rooms_why(kolo_oob_t *oob, const char *doing);
void kolo_rooms_look(kolo_oob_t *oob, uint64_t now_ns);
void kolo_rooms_leave(kolo_oob_t *oob);
void kolo_rooms_stop(kolo_oob_t *oob);
void kolo_rooms_fini(kolo_oob_t *oob);

#endif
