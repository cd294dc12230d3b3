/* SPDX-License-Identifier: Apache-2.0
 *
 * How the rooms above take part in every oob. Each registers one table: the kinds of frames that are its own, what
 * it keeps of an object and of each peer, and what it wants to hear of. This room calls them by the table alone, in
 * the order of kolo_room_id_t. Unless said otherwise with the object's lock held.
 */
#ifndef KOLO_OOB_ROOM_H
#define KOLO_OOB_ROOM_H

#include "oob/frame.h"
#include "oob/oob.h"

typedef struct kolo_conn kolo_conn_t;
typedef struct kolo_peer kolo_peer_t;
struct kolo_inbound;

#define KOLO_FRAME_BODY_MAX 208 /* of a frame that a room takes at once */

typedef struct {
    kolo_frame_kind_t kind;
    uint32_t least, most; /* bytes that follow its head */
    /* A frame is complete (conn->frame, and conn->body has its bytes): it is taken on the progress thread. Returns
     * NULL, or what is wrong with it. NULL: frames of this kind are matched with what the rank's thread awaits
     * (message.c), */
    const char *(*arrived)(kolo_conn_t *conn);
    /* and if this is not NULL either, it is told when one of those is complete. */
    const char *(*queued)(kolo_oob_t *oob, struct kolo_inbound *in);
} kolo_frame_rule_t;

typedef enum { KOLO_ROOM_DIAG, KOLO_ROOM_MEMBER, KOLO_ROOM_COUNT } kolo_room_id_t;

/* All functions may be NULL. */
typedef struct {
    const kolo_frame_rule_t *frames;
    size_t nframes;
    size_t bytes, peer_bytes; /* of what it keeps, zeros at first: oob->state[id], peer->state[id] */
    void (*opened)(kolo_oob_t *oob);
    void (*connected)(kolo_conn_t *conn); /* a new connection */
    /* A connection ended without a farewell, or somebody's farewell blames that rank. */
    void (*lost)(kolo_oob_t *oob, int rank, kolo_loss_how_t how, int noticed_by);
    /* Which rank a failure of this one is to be put down to, -1: it does not know. */
    int (*blames)(const kolo_oob_t *oob);
    /* Does it know something that ends every wait? And what, as an error with its message. */
    bool (*ends_waits)(const kolo_oob_t *oob);
    kolo_status_t (*why)(kolo_oob_t *oob, const char *doing);
    /* On the progress thread, without the lock, now and then while the rank's thread waits. */
    void (*look)(kolo_oob_t *oob, uint64_t now_ns);
    /* The end: without the lock, before anything else goes; on the progress thread, without the lock; of its
     * memory.
     */
    void (*leave)(kolo_oob_t *oob);
    void (*stop)(kolo_oob_t *oob);
    void (*fini)(kolo_oob_t *oob);
} kolo_room_t;

/* Before main(), from a constructor; the table stays. */
void kolo_room_register(kolo_room_id_t id, const kolo_room_t *room);
void kolo_frames_register(const kolo_frame_rule_t *list, size_t n); /* kinds of frames alone */

/* NULL: there is no such kind. */
const kolo_frame_rule_t *kolo_frame_rule(uint32_t kind);
/* What all rooms keep of an object and of a peer lies behind it: `bytes` and that, zeros. */
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
