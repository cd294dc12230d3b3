/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the net wire. A connection is the slot queue of every wire, kept in registered memory at each end, and
 * one end of a provider (net.h) at each. Slot n travels as one message: its payload, rounded up to 8 bytes, and a
 * tail of 32 bytes that says the rest. The reader offers a slot's payload as soon as the slot is free; what a
 * network card writes is never a slot's header: that is filled in, and the slot published, when the completion of
 * its message has been seen and its tail checked. At the writer a slot is free again, and counts as drained, when
 * its message is done.
 *
 * Beside it there is one authenticated socket, dialled by the writer once its end is up. It carries nothing but the
 * farewell of each side: so an end in good order is told from a death, which network cards do not tell.
 */
#ifndef KOLO_WIRE_NET_CONN_H
#define KOLO_WIRE_NET_CONN_H

#include "mem/range.h"
#include "wire/net/net.h"
#include "wire/wire.h"

extern const kolo_wire_ops_t kolo_wire_net;

#define KOLO_NET_TAIL_BYTES 32u
#define KOLO_NET_SLOT_EXTRA 64u /* room for the tail behind each payload */
#define KOLO_NET_MAX_DEPTH  4096u
#define KOLO_NET_FAREWELL   16u
#define KOLO_NET_DONE_BATCH 16

#define KOLO_NET_PLACED (1u << 31) /* of a tail's flags: the payload is where the reader wanted it */

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
/* Takes apart a message of `message_bytes` bytes that came for slot `slot`. KOLO_ERR_PROTOCOL with what is wrong.
 */
kolo_status_t kolo_net_tail_decode(const uint8_t *message, uint32_t message_bytes, uint64_t slot,
                                   uint32_t slot_bytes, kolo_net_tail_t *out);
/* The same for a message without its payload, which was invited to a place of `bytes` bytes (0: it was not). */
kolo_status_t kolo_net_tail_decode_placed(const uint8_t *message, uint32_t message_bytes, uint64_t slot,
                                          uint32_t bytes, kolo_net_tail_t *out);
/* Does a message of that length begin and end with its tail, and say that its payload was placed? */
bool kolo_net_tail_is_placed(const uint8_t *message, uint32_t message_bytes);
void kolo_net_farewell_encode(uint64_t last, uint8_t out[KOLO_NET_FAREWELL]);
bool kolo_net_farewell_decode(const uint8_t in[KOLO_NET_FAREWELL], uint64_t *last);
typedef struct {
    uint32_t provider, depth, slot_bytes;
    bool invites;   /* the reader sends invitations: the writer may wait for them */
    uint64_t nonce; /* of the writer: tag of its socket */
    kolo_net_hello_t hello;
} kolo_net_card_t;
void kolo_net_card_encode(const kolo_net_card_t *card, kolo_wire_card_t *out);
/* KOLO_ERR_PROTOCOL for what is no card of this provider for this connection. */
kolo_status_t kolo_net_card_decode(const kolo_wire_card_t *in, const kolo_net_card_t *expected, int peer,
                                   kolo_net_card_t *out);

/* ---- the context's share ---- */
typedef struct kolo_net_conn kolo_net_conn_t;
typedef struct {
    const kolo_net_ops_t *ops;
    kolo_net_open_t *open; /* NULL: not yet */
    kolo_mem_pinner_t pinner;
} kolo_net_device_state_t;
typedef struct kolo_net_state { /* one per context, while it has connections */
    kolo_wire_ctx_t *ctx;
    const kolo_net_ops_t *ops;
    kolo_net_device_state_t devices[KOLO_NET_MAX_DEVICES];
    int ndevices;
    kolo_net_conn_t *first;
} kolo_net_state_t;

typedef struct { /* payload of a slot in the caller's memory */
    char *data;  /* NULL: none */
    uint32_t bytes;
    bool came; /* reader: it is there, but the slot is not shown yet */
    kolo_mem_range_t *range;
    kolo_net_region_t *region;
} kolo_net_place_t;

struct kolo_net_conn {
    kolo_net_state_t *state;
    const kolo_net_ops_t *ops;
    kolo_net_conn_t *prev, *next;
    kolo_tx_t *tx; /* one of the two */
    kolo_rx_t *rx;
    int peer, device;
    bool up; /* may carry slots */
    kolo_net_open_t *open;
    kolo_net_end_t *end;
    kolo_net_region_t *region;
    char *slots;
    size_t slots_bytes;
    kolo_head_line_t *head;
    kolo_bell_t bell; /* of nobody */
    uint64_t nonce;
    uint64_t handed;              /* slots below: given to the provider, as message (writer) or as offer (reader) */
    uint64_t arrived;             /* reader: slots below have come */
    uint64_t shown;               /* reader: slots below are published */
    uint64_t freed;               /* writer: slots below are done */
    uint64_t invited;             /* reader: slots below have invitations */
    bool invites;                 /* the reader sends invitations */
    kolo_net_place_t *places;     /* by slot & mask; NULL: the provider has no such thing */
    uint64_t bytes, placed_bytes; /* payloads so far; those that were not in slots of this end */
    kolo_socket_t socket;         /* its descriptor -1: none yet */
    uint8_t farewell[KOLO_NET_FAREWELL];
    uint32_t farewell_bytes;
    bool bye, ended;      /* the peer's farewell; the end of its stream */
    uint64_t last;        /* number after the last slot, as the farewell tells */
    kolo_status_t status; /* first failure; its text in `error` */
    bool orderly;         /* it is a farewell: reported by check, not by pump */
    bool closed;          /* here */
    char error[512];
};

/* ---- state.c: the devices and connections of a context ---- */
kolo_status_t kolo_net_state_join(kolo_wire_ctx_t *ctx, kolo_net_conn_t *conn);
void kolo_net_state_leave(kolo_net_conn_t *conn);
/* ---- connect.c ---- */
kolo_status_t kolo_net_tx_connect(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, const kolo_wire_card_t *reader_cards);
kolo_status_t kolo_net_rx_connect(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, const kolo_wire_card_t *writer_card);
bool kolo_net_rx_can_connect(kolo_wire_ctx_t *ctx, const kolo_rx_t *rx, const kolo_wire_card_t *writer_card);
void kolo_net_conn_close(kolo_net_conn_t *conn);
/* Reads what the socket has brought; fails the connection when the peer has gone and all it sent has come. */
void kolo_net_conn_listen(kolo_net_conn_t *conn);
/* ---- place.c: payloads in the caller's memory ---- */
kolo_status_t kolo_net_tx_post_from(kolo_tx_t *tx, const void *data, uint32_t bytes, uint64_t signature,
                                    uint64_t operation);
void kolo_net_rx_expect(kolo_rx_t *rx, uint32_t ahead, void *data, uint32_t bytes);
void kolo_net_rx_unexpect(kolo_rx_t *rx);
void kolo_net_place_clear(kolo_net_place_t *place);
/* Sends slot conn->handed, whose payload is at `place`, once the reader has invited it. */
kolo_status_t kolo_net_send_placed(kolo_net_conn_t *conn, const kolo_net_place_t *place, kolo_net_tail_t *tail);
/* ---- progress.c ---- */
kolo_status_t kolo_net_conn_fail(kolo_net_conn_t *conn, kolo_status_t status, const char *fmt, ...)
    KOLO_PRINTF(3, 4);
kolo_status_t kolo_net_pump(void *state);
/* Moves what can be moved on one connection and looks after its peer. */
kolo_status_t kolo_net_conn_check(kolo_net_conn_t *conn);
kolo_status_t kolo_net_tx_check(kolo_tx_t *tx);
kolo_status_t kolo_net_rx_check(kolo_rx_t *rx);

#endif
