/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages with tags (kolo/message.h, decision 0076). One thread of the process, the courier, drives the
 * connections of all communicators; one lock guards everything here, and one gate wakes who waits for a request.
 *
 * courier.c: the thread, and how requests end. send.c: envelopes, data, and the answers to them. receive.c: what
 * comes, and answers. match.c: which receive takes which message. post.c: the calls that start requests. request.c:
 * those on them. life.c: how a communicator gets its messages, and their end. look.c: what ends requests from
 * outside. words.c: what errors say. frame.c: bytes.
 */
#ifndef KOLO_COMM_TAGGED_TAGGED_H
#define KOLO_COMM_TAGGED_TAGGED_H

#include "base/slots.h"
#include "comm/comm.h"
#include "comm/tagged/frame.h"
#include "oob/oob.h"

#include <kolo/message.h>

#define KOLO_TAGGED_IN_FLIGHT   1024u                 /* envelopes of a pair and direction without an answer */
#define KOLO_TAGGED_UNASKED     (1u << 20)            /* bytes of short ones among them */
#define KOLO_TAGGED_STREAM      0x6b6f6c6f6d657373ull /* "kolomess": the tag of its streams out of band */
#define KOLO_TAGGED_WORDS_BYTES 400

typedef struct kolo_tagged kolo_tagged_t;
typedef struct kolo_tagged_peer kolo_tagged_peer_t;
typedef struct kolo_incoming kolo_incoming_t;

typedef struct { /* requests by prev and next */
    struct kolo_request *first, *last;
} kolo_tagged_list_t;

struct kolo_request {
    kolo_slot_t slot;
    struct kolo_request *prev, *next;
    kolo_tagged_list_t *in;                     /* the list that it is in, or NULL */
    struct kolo_request *prev_open, *next_open; /* of those of a communicator that are not complete */
    kolo_tagged_t *messages;                    /* NULL: complete */
    const char *what;                           /* the call that has made it: "isend_tag" */
    bool sends;
    const uint8_t *src;
    uint8_t *dst;
    size_t bytes, moved; /* of a send: what has been written of a long one */
    int peer;            /* or KOLO_ANY_SOURCE */
    uint64_t tag;
    uint64_t id;     /* of a send, once it has been told */
    uint64_t number; /* of a receive: the order of the calls */
    uint64_t since_ns, deadline_ns;
    kolo_incoming_t *incoming; /* of a receive: the message that it takes; of one's own: the message that it is */
    kolo_status_t status;
    char *text; /* NULL: none */
    kolo_received_t got;
    pid_t pid;
};

/* A message on its way to this rank. */
struct kolo_incoming {
    kolo_incoming_t *prev, *next;           /* among those that no receive has taken, in the order of arrival */
    kolo_incoming_t *prev_here, *next_here; /* among those of its source that are not over */
    kolo_tagged_peer_t *peer;
    uint64_t id, tag;
    size_t total, have;
    bool is_long, unasked;        /* in the list of those that no receive has taken */
    bool lost;                    /* its receive has ended: the rest is thrown away */
    struct kolo_request *request; /* that takes it; or NULL */
    struct kolo_request *own;     /* of this rank's own: the send */
    uint8_t *data;                /* of a short one, until it is asked for */
};

typedef struct kolo_withdrawn { /* messages that were ended here after the receiver had heard of them */
    struct kolo_withdrawn *next;
    uint64_t id;
    bool told, answered;
} kolo_withdrawn_t;

typedef struct { /* one end of a connection, as epoll knows it */
    kolo_tagged_peer_t *peer;
    bool out;
    kolo_socket_t socket; /* fd -1: none */
    uint32_t events;
} kolo_tagged_port_t;

typedef enum { KOLO_OUT_NONE, KOLO_OUT_DIALLING, KOLO_OUT_OPEN, KOLO_OUT_ENDED } kolo_tagged_out_state_t;

typedef struct { /* to a rank */
    kolo_tagged_out_state_t state;
    kolo_oob_dialling_t *dialling;
    kolo_tagged_port_t port;
    kolo_tagged_list_t waiting; /* not told yet */
    kolo_tagged_list_t asked;   /* long ones whose answer is awaited */
    kolo_tagged_list_t clear;   /* long ones whose data goes out */
    kolo_withdrawn_t *withdrawn;
    uint64_t next_id;
    uint32_t in_flight;
    size_t unasked;
    /* the frame that is being written */
    bool busy;
    kolo_tagged_frame_t frame;
    uint8_t head[KOLO_TAGGED_FRAME_BYTES];
    const uint8_t *data;
    size_t done;              /* of head and data */
    uint8_t *copy;            /* owned: what `data` is once its request has ended */
    struct kolo_request *now; /* whose data it is */
    /* the answer that is being read */
    uint8_t answer[KOLO_TAGGED_FRAME_BYTES];
    size_t answer_have;
    bool hung_up;
} kolo_tagged_out_t;

typedef struct { /* from a rank */
    kolo_tagged_port_t port;
    bool ended;
    uint8_t head[KOLO_TAGGED_FRAME_BYTES];
    size_t head_have, left; /* left: of the data behind the head */
    kolo_incoming_t *now;   /* whose data that is */
    kolo_incoming_t *first; /* not over */
    uint64_t next_id;
    uint32_t held; /* envelopes without an answer */
    size_t held_bytes;
    uint8_t answers[KOLO_TAGGED_IN_FLIGHT * KOLO_TAGGED_FRAME_BYTES];
    size_t answers_bytes;
} kolo_tagged_in_t;

struct kolo_tagged_peer {
    kolo_tagged_t *messages;
    int rank;
    uint64_t ended_ns; /* when one of its connections has ended; 0: not yet */
    char why[KOLO_TAGGED_WORDS_BYTES];
    kolo_tagged_out_t out;
    kolo_tagged_in_t in;
};

struct kolo_tagged {
    kolo_body_t *body;
    kolo_tagged_t *next;
    kolo_tagged_peer_t **peers;    /* by rank, made as they are needed */
    kolo_tagged_list_t posted;     /* receives that have no message yet */
    kolo_incoming_t *first, *last; /* messages that no receive has taken */
    struct kolo_request *open;     /* not complete */
    struct kolo_request *ahead;    /* of these, whom kolo_tagged_look() comes to next */
    size_t nopen;
    uint64_t numbers;
    bool leaving;      /* nothing more will be sent */
    uint64_t alone_ns; /* since when all others are known to have left, or to be lost; 0: they are not */
    bool noted;        /* kolo-top is shown a wait */
};

/* ---- courier.c ---- all but the first two with the lock held */
void kolo_tagged_lock(void);
void kolo_tagged_unlock(void);
extern kolo_gate_t kolo_tagged_gate; /* opened whenever a request is complete */
/* Starts the courier before the first communicator (join), and ends it after the last one (leave). */
kolo_status_t kolo_courier_join(kolo_tagged_t *messages);
void kolo_courier_leave(kolo_tagged_t *messages); /* without the lock */
/* Tells the courier that something is due at this time. */
void kolo_courier_expect(uint64_t at_ns);
kolo_status_t kolo_courier_watch(kolo_tagged_port_t *port, uint32_t events);
void kolo_courier_close(kolo_tagged_port_t *port);
/* Completes a request, with the thread's last error unless status is KOLO_OK. */
void kolo_tagged_complete(struct kolo_request *r, kolo_status_t status);
/* Ends it before it is complete, for the reason that is the thread's last error. */
void kolo_tagged_end(struct kolo_request *r, kolo_status_t status);

void kolo_tagged_add(kolo_tagged_list_t *list, struct kolo_request *r);
void kolo_tagged_remove(struct kolo_request *r);

/* ---- post.c ---- */
void kolo_tagged_give_back(struct kolo_request *r); /* its memory */

/* ---- life.c ---- */
/* Returns the messages of a communicator, made at the first call; takes and leaves the lock. */
kolo_status_t kolo_tagged_get(kolo_body_t *body, kolo_tagged_t **messages);
/* Counts the requests that are not complete. Any thread. */
size_t kolo_tagged_open(kolo_body_t *body);
/* Ends the stream behind what this rank, which leaves, has sent. */
void kolo_tagged_leave(kolo_body_t *body);
void kolo_tagged_close(kolo_body_t *body); /* ends all requests */
size_t kolo_tagged_memory(kolo_body_t *body);
/* Returns what is kept of a peer. NULL: no memory, with its message. */
kolo_tagged_peer_t *kolo_tagged_peer(kolo_tagged_t *messages, int rank);
/* Ends a connection, the one to that rank (out) or the one from it; the thread's last error says how. With a status
 * that is not KOLO_OK both end, and the requests with them: what came is not right. Else the reason is looked for
 * later. */
void kolo_tagged_broken(kolo_tagged_peer_t *peer, bool out, kolo_status_t status);
/* ---- look.c ---- */
/* Looks whether streams have come or were opened, and at what may end requests. */
void kolo_tagged_look(kolo_tagged_t *messages, uint64_t now_ns);

/* ---- words.c ---- for errors: of a request that has waited too long; and who has sent it to whom */
void kolo_tagged_fail_late(const struct kolo_request *r, uint64_t now_ns);
void kolo_tagged_describe(const struct kolo_request *r, char *buf, size_t bytes);
/* Shows the request that has waited longest in kolo-top, or takes it away. */
void kolo_tagged_show(kolo_tagged_t *messages, uint64_t now_ns);

/* ---- send.c ---- */
void kolo_tagged_send(struct kolo_request *r);
void kolo_tagged_out_dialled(kolo_tagged_peer_t *peer);
void kolo_tagged_out_step(kolo_tagged_peer_t *peer, bool may_read);
void kolo_tagged_send_end(struct kolo_request *r); /* takes it out of everything here */
/* Waits until what a rank that has left has sent is delivered: the peer may not know yet that answers would meet a
 * closed socket. */
void kolo_tagged_out_drain(kolo_tagged_peer_t *peer, uint64_t deadline_ns);
void kolo_tagged_out_close(kolo_tagged_peer_t *peer);

/* ---- receive.c ---- */
void kolo_tagged_in_step(kolo_tagged_peer_t *peer);
void kolo_tagged_answer(kolo_incoming_t *incoming, kolo_tagged_kind_t kind, uint64_t total);
void kolo_tagged_in_close(kolo_tagged_peer_t *peer);

/* ---- match.c ---- */
void kolo_tagged_receive(struct kolo_request *r);
void kolo_tagged_arrive(kolo_incoming_t *incoming);
void kolo_tagged_receive_end(struct kolo_request *r);
/* Notes that all of a message is here. */
void kolo_tagged_whole(kolo_incoming_t *incoming);
/* Withdraws a message as its sender asked: its receive looks for another. */
void kolo_tagged_withdraw(kolo_incoming_t *incoming);
void kolo_tagged_incoming_free(kolo_incoming_t *incoming);

#endif
