/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the tcp wire. A connection is the slot queue of every wire, kept in private memory at each end, and a
 * few sockets between them; slot n travels as one frame (frame.h) on socket n % sockets. At the writer a slot is
 * free again, and counts as drained, when the kernel has taken all bytes of its frame. step() moves whatever can be
 * moved on all connections of a context; it runs on the thread that waits, never blocks, and remembers the first
 * failure of each connection so that every later call reports it again.
 *
 * Two connections between the same ranks, one each way, are mates: small frames of both travel on one socket, the
 * first one of the lower rank's connection (the carrier), because there an answer carries the acknowledgement
 * (pair.c).
 */
#ifndef KOLO_WIRE_TCP_TCP_H
#define KOLO_WIRE_TCP_TCP_H

#include "link/address.h"
#include "wire/tcp/frame.h"

#define KOLO_TCP_MAX_SOCKETS 16
#define KOLO_TCP_WRITTEN     0xff
/* Up to this many sockets each is tried on every step; with more, epoll says which are worth a system call. */
#define KOLO_TCP_TRY_SOCKETS 4

typedef struct kolo_tcp_conn kolo_tcp_conn_t;

typedef struct {
    kolo_tcp_conn_t *conn;
    kolo_socket_t socket;
    bool readable, writable; /* worth a system call; always true up to KOLO_TCP_TRY_SOCKETS */
    bool hung_up;            /* the peer's end was seen: stays readable */
    bool ended;              /* the peer's farewell and the end of the stream have come */
    bool cut;                /* ends in the middle of a frame: no farewell may follow */
    bool quiet;              /* the last look found nothing */
    uint32_t peeked;         /* bytes that are taken apart already and still lie in the kernel */
} kolo_tcp_sock_t;

typedef struct { /* writer: what goes out on one socket */
    kolo_tcp_sock_t *sock;
    uint64_t slot; /* whose frame is being written, or the first that may be for this socket */
    uint32_t sent; /* bytes of that frame which the kernel has */
} kolo_tcp_out_t;

typedef struct kolo_tcp_state { /* one per context */
    kolo_wire_ctx_t *ctx;
    kolo_tcp_conn_t *first;
    uint32_t nsocks;
    uint32_t calls;
    int epoll_fd; /* -1 until there are more than KOLO_TCP_TRY_SOCKETS */
} kolo_tcp_state_t;

struct kolo_tcp_conn {
    kolo_tcp_state_t *state;
    kolo_tcp_conn_t *prev, *next; /* connected ones of the context */
    kolo_tx_t *tx;                /* one of the two */
    kolo_rx_t *rx;
    int peer;
    uint32_t nsocks;
    uint32_t offered; /* sockets at most, from this end */
    uint64_t nonce;   /* of the writer: makes the tags of its sockets */
    char *slots;      /* mapped; pages come with first use */
    size_t slots_bytes;
    kolo_head_line_t *head;
    kolo_tcp_sock_t *socks;
    kolo_status_t status;  /* first failure; its text in `error` */
    uint64_t failed_ns;    /* when it failed */
    bool orderly;          /* it is a farewell: reported by check, not by step */
    bool closed;           /* here */
    const void **external; /* writer: per slot, payload outside the slot, or NULL */
    uint8_t *routes;       /* writer: per slot, index in outs; KOLO_TCP_WRITTEN: the kernel has it */
    uint64_t routed;       /* writer: slots below have a route */
    kolo_tcp_out_t *outs;  /* writer: per socket, and one more for the carrier */
    uint32_t nouts;
    kolo_bell_t bell;     /* of nobody */
    kolo_tcp_sink_t sink; /* reader */
    kolo_tcp_stream_t *streams;
    kolo_tcp_conn_t *mate;  /* between the same ranks in the other direction, or NULL */
    uint32_t carried_bytes; /* payloads up to this length go by the carrier; 0: this connection has none */
    bool by_carrier;        /* reader: the next slot is expected there */
    char address[KOLO_ADDRESS_TEXT_BYTES];
    char error[320];
};

static inline const kolo_conn_spec_t *kolo_tcp_spec(const kolo_tcp_conn_t *conn)
{
    return conn->tx ? &conn->tx->spec : &conn->rx->spec;
}

/* ---- params.c ---- */
extern int64_t kolo_tcp_param_sockets; /* log2 */
extern int64_t kolo_tcp_param_sndbuf, kolo_tcp_param_rcvbuf, kolo_tcp_param_busy_poll_us;
extern const char *kolo_tcp_param_congestion;

/* ---- setup.c ---- */
extern const kolo_wire_ops_t kolo_wire_tcp;
extern const kolo_param_table_t kolo_tcp_params;

kolo_status_t kolo_tcp_rx_setup(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, kolo_wire_card_t *card);
kolo_status_t kolo_tcp_tx_setup(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, kolo_wire_card_t *card);
void kolo_tcp_conn_fini(kolo_tcp_conn_t *conn);
size_t kolo_tcp_tx_memory(const kolo_tx_t *tx);
size_t kolo_tcp_rx_memory(const kolo_rx_t *rx);
typedef struct {
    uint32_t sockets;
    uint64_t nonce;
} kolo_tcp_card_t;
void kolo_tcp_card_encode(kolo_wire_card_t *card, uint32_t sockets, uint64_t nonce);
/* Decodes a card; KOLO_ERR_PROTOCOL for one that is none. */
kolo_status_t kolo_tcp_card_decode(const kolo_wire_card_t *card, int peer, kolo_tcp_card_t *out);

/* ---- connect.c ---- */
kolo_status_t kolo_tcp_tx_connect(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, const kolo_wire_card_t *reader_cards);
kolo_status_t kolo_tcp_rx_connect(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, const kolo_wire_card_t *writer_card);
bool kolo_tcp_rx_can_connect(kolo_wire_ctx_t *ctx, const kolo_rx_t *rx, const kolo_wire_card_t *writer_card);
/* Takes `nsocks` connected sockets (owned from here on, also on failure) and puts the connection to work. */
kolo_status_t kolo_tcp_conn_attach(kolo_tcp_conn_t *conn, kolo_wire_ctx_t *ctx, const kolo_socket_t *sockets,
                                   uint32_t nsocks);
void kolo_tcp_conn_close(kolo_tcp_conn_t *conn);
/* Releases the sockets and leaves the context's list. */
void kolo_tcp_conn_detach(kolo_tcp_conn_t *conn);
const char *kolo_tcp_host_name(const kolo_wire_ctx_t *ctx, int rank);

/* ---- pair.c ---- */
/* Finds the connection's mate among those of its context, if it is there already. */
void kolo_tcp_pair(kolo_tcp_conn_t *conn);
void kolo_tcp_unpair(kolo_tcp_conn_t *conn);
/* Fails with KOLO_ERR_PROTOCOL if no socket can bring the slot that the reader is at any more. */
kolo_status_t kolo_tcp_check_order(const kolo_tcp_conn_t *conn);
/* Does `conn` carry small frames of its mate? */
static inline bool kolo_tcp_is_carrier(const kolo_tcp_conn_t *conn)
{
    return conn->mate && conn->mate->carried_bytes > 0;
}

/* ---- write.c ---- */
/* Sets *done when slots were written and the kernel has all that were posted now. */
kolo_status_t kolo_tcp_write(kolo_tcp_conn_t *conn, bool *done);
/* Tells whether there is anything that the kernel has not taken. */
bool kolo_tcp_unsent(kolo_tcp_conn_t *conn);

/* ---- progress.c ---- */
kolo_status_t kolo_tcp_conn_fail(kolo_tcp_conn_t *conn, kolo_status_t status, const char *fmt, ...)
    KOLO_PRINTF(3, 4);
/* Ends the connection after a call on a socket that has failed with this errno. */
kolo_status_t kolo_tcp_conn_lost(kolo_tcp_conn_t *conn, int err, const char *what, uint64_t slot);
kolo_status_t kolo_tcp_step(void *state);
/* Takes out of the kernel what was peeked at. false: it is not there, the connection is broken (errno). */
bool kolo_tcp_take_peeked(kolo_tcp_sock_t *sock);
kolo_status_t kolo_tcp_tx_check(kolo_tx_t *tx);
kolo_status_t kolo_tcp_rx_check(kolo_rx_t *rx);
kolo_status_t kolo_tcp_tx_post_from(kolo_tx_t *tx, const void *data, uint32_t bytes, uint64_t signature,
                                    uint64_t operation);
void kolo_tcp_rx_expect(kolo_rx_t *rx, uint32_t ahead, void *data, uint32_t bytes);
void kolo_tcp_rx_unexpect(kolo_rx_t *rx);

#endif
