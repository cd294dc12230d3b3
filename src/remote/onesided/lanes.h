/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes: further connections of an end of kind tcp, by which large writes go in pieces. The first connection
 * announces such a write with its own frame, so the order of all writes is that of the first connection; the pieces
 * say which announced write they are of, and where in it they lie. One thread is as fast as the kernel copies, so
 * several threads of the domain (movers.c) move the pieces, those of a write side by side.
 */
#ifndef KOLO_REMOTE_ONESIDED_LANES_H
#define KOLO_REMOTE_ONESIDED_LANES_H

#include "remote/onesided/internal.h"

#define KOLO_LANES_MAX 16

/* A large write; of who sends or of who receives. Both number theirs in the order of the announcements. */
typedef struct kolo_transfer {
    struct kolo_transfer *next;
    uint64_t id;
    char *data; /* it comes from, or goes to */
    uint64_t bytes, piece;
    uint64_t taken;         /* bytes that some lane has begun with; with the lock */
    _Atomic uint64_t done;  /* that have been moved */
    _Atomic bool cancelled; /* its window was hidden: nothing more goes there */
    uint64_t key, cookie;
    uint32_t flags, number;
} kolo_transfer_t;

typedef struct kolo_lane {
    struct kolo_lane *next; /* of its mover */
    struct kolo_lanes *of;
    struct kolo_mover *mover;
    kolo_socket_t socket;
    bool ready, ended; /* there may be something to do; there never will be. The mover's */
    /* Out: a piece of `from`, its head first. */
    kolo_transfer_t *from;
    uint64_t out_at, out_bytes, out_sent; /* sent: with the head */
    uint8_t out_head[KOLO_ONESIDED_FRAME_BYTES];
    /* In: head_got bytes of a head; or the whole, and in_done bytes of its piece. */
    kolo_transfer_t *to; /* NULL: not looked up yet */
    size_t head_got;
    uint64_t in_done;
    uint8_t head[KOLO_ONESIDED_FRAME_BYTES];
    kolo_onesided_frame_t frame;
} kolo_onesided_lane_t;

struct kolo_lanes {
    kolo_onesided_domain_t *domain;
    const char *who;
    pthread_mutex_t lock;
    kolo_transfer_t *out, **last_out, *in, **last_in; /* the end's; movers look through them with the lock */
    uint32_t nin;
    uint64_t next_out, next_in;
    uint32_t waiting; /* pieces that have come ahead of their announcement */
    kolo_onesided_lane_t *all[KOLO_LANES_MAX];
    uint32_t n;
    _Atomic int failed;    /* a kolo_status_t, of the first lane that has ended; `why` is set before */
    _Atomic bool hopeless; /* all have, or one for another reason than that the peer has gone */
    uint32_t nended;
    char why[300];
};
typedef struct kolo_lanes kolo_lanes_t;

/* ---- lanes.c: on the end's thread ---- */

kolo_status_t kolo_lanes_create(kolo_onesided_t *end, kolo_lanes_t **lanes);
void kolo_lanes_destroy(kolo_lanes_t *lanes); /* nothing of it is read or written any more; NULL is fine */
kolo_status_t kolo_lanes_add(kolo_lanes_t *lanes, kolo_socket_t socket); /* takes the socket in any case */
size_t kolo_lanes_memory(const kolo_lanes_t *lanes);
/* Sends the bytes of a write in pieces. False: it has to go by the first connection. */
bool kolo_lanes_send(kolo_lanes_t *lanes, const kolo_onesided_write_t *write);
/* Finds the cookie of the next write whose bytes have all been sent; false: there is none. */
bool kolo_lanes_sent(kolo_lanes_t *lanes, uint64_t *cookie);
/* Tells whether another write may be announced: not beyond a number of them, nor to where one is that is under way,
 * since what is written later there is to stay. */
bool kolo_lanes_can_expect(const kolo_lanes_t *lanes, const char *to, uint64_t bytes);
/* Takes a write that was announced and goes to `to`. */
kolo_status_t kolo_lanes_expect(kolo_lanes_t *lanes, const kolo_onesided_frame_t *frame, char *to);
/* Takes the first of those that were announced, with a notice or without. KOLO_IN_PROGRESS: it is not there. */
kolo_status_t kolo_lanes_next(kolo_lanes_t *lanes, kolo_onesided_event_t *event, bool *notify);
void kolo_lanes_forget(kolo_lanes_t *lanes, uint64_t key); /* of a window that is not exposed any more */

/* ---- lanes.c: on a mover's thread ---- */

bool kolo_lanes_step(kolo_onesided_lane_t *lane); /* true: there is more to do */

/* ---- movers.c ---- */

typedef struct kolo_mover {
    pthread_t thread;
    /* The lock is held while lanes are moved. A thread that removes a lane takes the gate first, then the lock; a
     * mover passes the gate before it takes the lock again, so that a busy mover lets the other thread in. */
    pthread_mutex_t gate, lock;
    int epoll_fd, event_fd;
    _Atomic uint32_t asleep, kicks;
    kolo_onesided_lane_t *lanes;
    bool stop, running;
} kolo_mover_t;

kolo_status_t kolo_movers_add(kolo_onesided_domain_t *domain, kolo_onesided_lane_t *lane);
void kolo_movers_remove(kolo_onesided_lane_t *lane); /* it is not being moved any more */
void kolo_movers_kick(kolo_mover_t *mover);          /* its lanes may have something to do; any thread */
void kolo_movers_pass(kolo_mover_t *mover);          /* returns when it has left off what it was at */
void kolo_movers_destroy(kolo_onesided_domain_t *domain);
int kolo_movers_wanted(void); /* KOLO_ONESIDED_LANES */

#endif
