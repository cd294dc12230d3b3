/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the net wire. A connection is the slot queue of every wire, kept in registered memory at each end, and
 * one end of a provider (net.h) at each. Slot n travels as one message: its payload, rounded up to 8 bytes, and a
 * tail of 32 bytes that says the rest. The reader offers a slot's payload as soon as the slot is free; what a
 * network card writes is never a slot's header: that is filled in, and the slot published, when the completion of
 * its message has been seen and its tail checked. At the writer a slot is free again, and counts as drained, when
 * its message is done.
 *
 * A connection has one or several rails: pairs of ends, on several cards or several of one card. Each offer says
 * for which slot it is, so the reader alone decides which rail carries what. A rail that fails is left out; what it
 * had not brought is offered again on the others, and it is made anew when its port works again (rail.c).
 *
 * Beside it there is one authenticated socket, dialled by the writer once its ends are up. It carries notes: the
 * farewell of each side, so that an end in good order differs from a death, which network cards do not report, and
 * what both sides have to agree on when a rail is lost or comes back.
 */
#ifndef KOLO_WIRE_NET_CONN_H
#define KOLO_WIRE_NET_CONN_H

#include "mem/range.h"
#include "remote/net.h"
#include "wire/wire.h"

#include <sched.h>

extern const kolo_wire_ops_t kolo_wire_net;

#define KOLO_NET_TAIL_BYTES 32u
#define KOLO_NET_SLOT_EXTRA 64u /* room for the tail behind each payload */
#define KOLO_NET_MAX_DEPTH  4096u
#define KOLO_NET_MAX_RAILS  4u
#define KOLO_NET_DONE_BATCH 16
#define KOLO_NET_IDLE       1024 /* steps without news, or before a sleep, after which all free slots are offered */
#define KOLO_NET_SHORT      4096 /* a payload up to this is a short message: an offer costs as much as it */

#define KOLO_NET_PLACED (1u << 31) /* of a tail's flags: the payload is where the reader wanted it */

#define KOLO_NET_PASSED (1u << 30) /* there is no payload: the offer is given back */

#define KOLO_NET_SLOT_FLAGS 15u /* those of the slot; between them and these, offers of the mate (mate.c) */

typedef struct { /* what follows the payload */
    uint32_t bytes, flags;
    uint64_t slot, signature, operation;
} kolo_net_tail_t;

/* ---- frame.c: what travels; fuzzed ---- */
static inline uint32_t kolo_net_message_bytes(uint32_t payload)
{
    return (payload + 7u) / 8u * 8u + KOLO_NET_TAIL_BYTES;
}
void kolo_net_tail_encode(const kolo_net_tail_t *tail, uint8_t out[KOLO_NET_TAIL_BYTES]);
/* Takes apart a message of `message_bytes` bytes that came for slot `slot`. KOLO_ERR_PROTOCOL: it is wrong. */
kolo_status_t kolo_net_tail_decode(const uint8_t *message, uint32_t message_bytes, uint64_t slot,
                                   uint32_t slot_bytes, kolo_net_tail_t *out);
/* Does the same for a message without its payload, which was invited to a place of `bytes` bytes (0: was not). */
kolo_status_t kolo_net_tail_decode_placed(const uint8_t *message, uint32_t message_bytes, uint64_t slot,
                                          uint32_t bytes, kolo_net_tail_t *out);
/* Does a message of that length begin and end with its tail, and say that its payload was placed? */
bool kolo_net_tail_is_placed(const uint8_t *message, uint32_t message_bytes);
typedef enum {
    KOLO_NET_BYE,   /* value: number after the last slot */
    KOLO_NET_LOST,  /* the rail is; from the reader, value: all slots below have come */
    KOLO_NET_SAW,   /* reader: slot `value`, too, has come; before LOST */
    KOLO_NET_OPEN,  /* reader: the rail again, its hello */
    KOLO_NET_YES,   /* writer: to OPEN, its hello */
    KOLO_NET_NO,    /* writer: to OPEN, not now */
    KOLO_NET_READY, /* lazy writer: its ends can be reached now */
    KOLO_NET_NOTES
} kolo_net_note_kind_t;
typedef struct { /* what the socket carries */
    kolo_net_note_kind_t kind;
    uint32_t rail;
    uint64_t value;
    kolo_net_hello_t hello;
} kolo_net_note_t;
#define KOLO_NET_NOTE_BYTES (16u + KOLO_NET_HELLO_BYTES)
/* Tells whether it is a message that gives the offer of `slot` back. */
bool kolo_net_tail_is_passed(const uint8_t *message, uint32_t message_bytes, uint64_t slot);
void kolo_net_note_encode(const kolo_net_note_t *note, uint8_t out[KOLO_NET_NOTE_BYTES]);
bool kolo_net_note_decode(const uint8_t in[KOLO_NET_NOTE_BYTES], kolo_net_note_t *note);
typedef struct {
    uint32_t provider, depth, slot_bytes;
    bool invites;   /* the reader sends invitations: the writer may wait for them */
    bool lazy;      /* the writer says when its ends can be reached; until then nothing is offered to it */
    uint64_t nonce; /* of the writer: tag of its socket */
    uint32_t nrails;
    kolo_net_hello_t hellos[KOLO_NET_MAX_RAILS];
} kolo_net_card_t;
void kolo_net_card_encode(const kolo_net_card_t *card, kolo_wire_card_t *out);
/* Decodes a card; KOLO_ERR_PROTOCOL if it is none of this provider for this connection. */
kolo_status_t kolo_net_card_decode(const kolo_wire_card_t *in, const kolo_net_card_t *expected, int peer,
                                   kolo_net_card_t *out);

/* ---- the context's share ---- */
typedef struct kolo_net_conn kolo_net_conn_t;
typedef struct {
    const kolo_net_ops_t *ops;
    kolo_net_open_t *open; /* NULL: not yet */
    double gbps;           /* 0: unknown */
    kolo_mem_pinner_t pinner;
} kolo_net_device_state_t;
typedef struct kolo_net_state { /* one per context, while it has connections */
    kolo_wire_ctx_t *ctx;
    const kolo_net_ops_t *ops;
    kolo_net_device_state_t devices[KOLO_NET_MAX_DEVICES];
    int ndevices, nclose;            /* of `order`: as close to this process as the first */
    int order[KOLO_NET_MAX_DEVICES]; /* the closest first */
    kolo_net_conn_t *first;
} kolo_net_state_t;

typedef struct { /* payload of a slot in the caller's memory */
    char *data;  /* NULL: none */
    uint32_t bytes;
    bool came; /* reader: it is there, but the slot is not shown yet */
    kolo_mem_range_t *range;
} kolo_net_place_t;

typedef enum {
    KOLO_NET_RAIL_UNUSED, /* the peer has fewer; of a lazy writer: not yet */
    KOLO_NET_RAIL_UP,
    KOLO_NET_RAIL_LOST, /* writer: the reader has not yet said what had come by it */
    KOLO_NET_RAIL_GONE, /* may be made anew */
    KOLO_NET_RAIL_ASKED /* reader: the writer is asked to make it anew */
} kolo_net_rail_state_t;

typedef struct {
    kolo_net_rail_state_t state;
    int device;
    kolo_net_open_t *open;
    kolo_net_end_t *end;
    kolo_net_region_t *region; /* the slots, for this device */
    uint64_t requests, done;   /* of this end */
    double weight;             /* the speed of its device, compared with the others of the connection */
    uint64_t *slots;           /* slot of request r at r & mask */
    bool *passed;              /* writer: the request only gave its offer back */
    uint64_t again_ns;         /* not made anew before */
    uint64_t
        left_over_ns; /* writer: its offer is for what has come, which is a mistake from then on; 0: it is not */
    kolo_net_counts_t before; /* of ends that it had */
} kolo_net_rail_t;

enum { /* where a slot is; else number of its rail plus one: offered there, or sent there */
       KOLO_NET_SLOT_IDLE = 0,
       KOLO_NET_SLOT_DONE = 255
};

struct kolo_net_conn {
    kolo_net_state_t *state;
    const kolo_net_ops_t *ops;
    kolo_net_conn_t *prev, *next;
    kolo_net_conn_t *mate; /* the same lane of the same peer, the other way; NULL: none yet */
    kolo_tx_t *tx;         /* one of the two */
    kolo_rx_t *rx;
    int peer;
    bool up;                  /* may carry slots */
    bool ready;               /* and the writer can be reached: a lazy one only from its first slot on */
    kolo_net_hello_t *hellos; /* lazy writer: the reader's, until then */
    kolo_net_rail_t rails[KOLO_NET_MAX_RAILS];
    uint32_t nrails, turns;
    uint32_t idle;       /* reader: steps since something came */
    uint32_t last_bytes; /* reader: payload of what came last */
    uint8_t *states;     /* by slot & mask */
    uint64_t *requests;  /* reader: of the slot on its rail */
    bool reordered;      /* a rail was lost: on the others offers may be out of the order of slots */
    bool again;          /* reader: a slot below `handed` found no room for its offer, and is idle */
    char *slots;
    size_t slots_bytes;
    kolo_head_line_t *head;
    kolo_bell_t bell; /* of nobody */
    uint64_t nonce;
    uint64_t handed;              /* writer: slots sent so far; reader: slots below are offered */
    uint64_t arrived;             /* reader: slots below have come */
    uint64_t shown;               /* reader: slots below are published */
    uint64_t freed;               /* writer: slots below are done */
    uint64_t invited;             /* reader: slots below have invitations */
    bool invites;                 /* the reader sends invitations */
    uint32_t direct_bytes;        /* of rx->direct; the header lies where the peer can write */
    kolo_net_place_t *places;     /* by slot & mask; NULL: the provider has no such thing */
    uint64_t bytes, placed_bytes; /* payloads so far; those that were not in slots of this end */
    kolo_socket_t socket;         /* its descriptor -1: none yet */
    uint8_t inbox[KOLO_NET_NOTE_BYTES];
    uint32_t inbox_bytes;
    bool bye, ended;      /* the peer's farewell; the end of its stream */
    uint64_t last;        /* number after the last slot, from the farewell */
    kolo_status_t status; /* first failure; its text in `error` */
    bool orderly;         /* it is a farewell: reported by check, not by step */
    bool closed;          /* here */
    char error[1024];
};

static inline const kolo_conn_spec_t *kolo_net_spec(const kolo_net_conn_t *conn)
{
    return conn->tx ? &conn->tx->spec : &conn->rx->spec;
}

typedef struct {
    int64_t nics, queue_pairs;
    bool lazy;
} kolo_net_options_t;
extern kolo_net_options_t kolo_net_options;

/* ---- state.c: the devices and connections of a context ---- */
kolo_status_t kolo_net_state_join(kolo_wire_ctx_t *ctx, kolo_net_conn_t *conn);
void kolo_net_state_leave(kolo_net_conn_t *conn);
/* ---- near.c ---- */
struct kolo_topo;
/* Orders devices by their distance from the cores of a set; *nclose are as close as the first. */
void kolo_net_order(const struct kolo_topo *topo, const cpu_set_t *cores, const kolo_net_device_t *devices, int n,
                    int *order, int *nclose);
/* Returns the device of a rail of a connection on a lane. */
int kolo_net_device_for(const int *order, int n, int nclose, uint32_t lane, uint32_t rail);
/* Finds that for this process. */
void kolo_net_look_around(kolo_net_state_t *state);
/* ---- connect.c ---- */
kolo_status_t kolo_net_tx_connect(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, const kolo_wire_card_t *reader_cards);
kolo_status_t kolo_net_rx_connect(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, const kolo_wire_card_t *writer_card);
bool kolo_net_rx_can_connect(kolo_wire_ctx_t *ctx, const kolo_rx_t *rx, const kolo_wire_card_t *writer_card);
void kolo_net_conn_close(kolo_net_conn_t *conn);
/* Makes the ends of a lazy writer ready and tells the reader. */
kolo_status_t kolo_net_tx_ready(kolo_net_conn_t *conn);
/* Reads what the socket has brought; fails the connection when the peer has gone and all it sent has come. */
void kolo_net_conn_listen(kolo_net_conn_t *conn);
/* ---- rail.c ---- */
kolo_status_t kolo_net_rail_make(kolo_net_conn_t *conn, uint32_t index, kolo_net_hello_t *hello);
void kolo_net_rail_free(kolo_net_conn_t *conn, kolo_net_rail_t *rail);
/* Handles a rail whose calls have failed with `status` and the error text of this thread: goes on without it if
 * there is another. */
kolo_status_t kolo_net_rail_lost(kolo_net_conn_t *conn, uint32_t index, kolo_status_t status);
void kolo_net_take_note(kolo_net_conn_t *conn, const kolo_net_note_t *note);
/* Tries to make rails anew, now and then. */
void kolo_net_rails_look(kolo_net_conn_t *conn);
bool kolo_net_send_note(kolo_net_conn_t *conn, const kolo_net_note_t *note);
/* Returns the rail that slot `slot` is to be offered on. */
uint32_t kolo_net_rail_for(const kolo_net_conn_t *conn, uint64_t slot);
/* ---- place.c: payloads in the caller's memory ---- */
kolo_status_t kolo_net_tx_post_from(kolo_tx_t *tx, const void *data, uint32_t bytes, uint64_t signature,
                                    uint64_t operation);
void kolo_net_rx_expect(kolo_rx_t *rx, uint32_t ahead, void *data, uint32_t bytes);
void kolo_net_rx_unexpect(kolo_rx_t *rx);
void kolo_net_place_clear(kolo_net_place_t *place);
/* Sends a slot whose payload is at `place` by the rail, once the reader has invited it. */
kolo_status_t kolo_net_send_placed(kolo_net_conn_t *conn, kolo_net_rail_t *rail, uint64_t slot,
                                   kolo_net_place_t *place, kolo_net_tail_t *tail);
/* Tells the writer where the payload of an offered slot goes. */
kolo_status_t kolo_net_invite(kolo_net_conn_t *conn, uint64_t slot);
/* ---- mate.c: offers that travel with a message the other way ---- */
/* Finds the mate of a connection that joins the list (find), and parts from it when it leaves (leave). */
void kolo_net_mate_find(kolo_net_conn_t *conn);
void kolo_net_mate_lose(kolo_net_conn_t *conn);
/* Returns, for a writer, the flags of a tail by which its mate's free slots are offered; nothing else offers them.
 * The message that has them must go out with the next push. */
uint32_t kolo_net_mate_offers(const kolo_net_conn_t *conn);
/* Takes, for a reader, what such flags offer. KOLO_ERR_PROTOCOL: they make no sense. */
kolo_status_t kolo_net_mate_take(const kolo_net_conn_t *conn, uint32_t flags);
/* ---- progress.c ---- */
/* Ends a connection one of whose calls has failed with `status` and the error text of this thread: with that, or
 * with the peer's farewell. */
void kolo_net_conn_broke(kolo_net_conn_t *conn, kolo_status_t status);
kolo_status_t kolo_net_conn_fail(kolo_net_conn_t *conn, kolo_status_t status, const char *fmt, ...)
    KOLO_PRINTF(3, 4);
/* Offers a slot on rail `index`. */
kolo_status_t kolo_net_offer(kolo_net_conn_t *conn, uint32_t index, uint64_t slot);
/* Does the same on a connection that is up, with the slot's invitation if it has one. What fails is said of that
 * rail, or of the connection. */
void kolo_net_offer_again(kolo_net_conn_t *conn, uint64_t slot);
/* Takes what the rail has brought (reader), or what it is done with (writer). */
kolo_status_t kolo_net_harvest(kolo_net_conn_t *conn, uint32_t index, bool *any);
void kolo_net_free_slots(kolo_net_conn_t *conn);
kolo_status_t kolo_net_step(void *state);
/* Moves what can be moved on one connection and looks after its peer. */
kolo_status_t kolo_net_conn_check(kolo_net_conn_t *conn);
kolo_status_t kolo_net_tx_check(kolo_tx_t *tx);
kolo_status_t kolo_net_rx_check(kolo_rx_t *rx);

#endif
