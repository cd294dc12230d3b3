/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of all wires: every connection is a bounded queue of slots from one writer to one reader (PAIR) or
 * to all other ranks of the writer's host (NODE). Whatever moves the bytes (a pointer, a shared segment, a socket),
 * both ends see slots with a header line and a payload, a number that says "slot n is full" and a count that says
 * "slot n is free again". The hot path below is inline and makes no call; a wire that has to move bytes itself
 * (tcp) does so in step(), which waiters call. end.h has the part of an end that does not depend on a process.
 */
#ifndef KOLO_WIRE_WIRE_H
#define KOLO_WIRE_WIRE_H

#include "base/clock.h"
#include "base/wait.h"
#include "member/member.h"
#include "share/fdpass.h"
#include "wire/end.h"

#include <string.h>

/* ---- kinds ---- */

typedef enum {
    KOLO_CONN_PAIR, /* one reader */
    KOLO_CONN_NODE  /* readers: all other ranks on the writer's host, in rank order */
} kolo_conn_kind_t;
typedef enum {
    KOLO_PROTO_SIMPLE, /* header line, then payload */
    /* Lines of 64 bytes with signature and sequence number: arrival is in each line (ll.h). */
    KOLO_PROTO_LL
} kolo_proto_t;

/* Capabilities of a connection. */
enum {
    KOLO_CAP_REF = 1u << 0,       /* slots may carry references, which the reader may copy from and to */
    KOLO_CAP_STEP = 1u << 1,      /* bytes move in step() only; kolo_tx_sent() must be awaited before returning */
    KOLO_CAP_POST_FROM = 1u << 2, /* tx_post_from and rx_expect: payload outside the slots */
    KOLO_CAP_FANOUT = 1u << 3,    /* NODE connections possible */
    KOLO_CAP_AHEAD = 1u << 4      /* rx_expect for slots ahead saves time, and must be called for each slot */
};

/* The description of a connection; both ends build the same one. */
typedef struct {
    kolo_conn_kind_t kind;
    kolo_proto_t proto;
    int writer; /* rank */
    int reader; /* rank; -1 for NODE */
    uint32_t lane;
    uint32_t depth;      /* slots, a power of two */
    uint32_t slot_bytes; /* payload bytes, a multiple of 64 */
    uint64_t start;      /* number of the first slot (tests start just below wrap-around) */
} kolo_conn_spec_t;

/* ---- slots (end.h) ---- */

_Static_assert(sizeof(kolo_slot_header_t) == 64 && sizeof(kolo_head_line_t) == 64, "one cache line each");
#define KOLO_SLOT_REF 1u

/* Payload of a KOLO_SLOT_REF slot: a reference to memory of the writer. Made by its wire (ref_make), valid until
 * the reader has released that slot; untrusted. */
typedef struct {
    uint64_t address, bytes;
    uint64_t key;        /* whose memory it is, as the wire knows it */
    uint64_t generation; /* number of its slot: a reference that is used too late is refused */
} kolo_ref_t;
/* A copy under way between my memory and the writer's. Kept by the caller, changed by the wire only. */
typedef struct {
    uint64_t theirs; /* what is left to copy, at both ends */
    char *mine;
    size_t left;
    bool write; /* from mine to theirs */
} kolo_ref_copy_t;
#define KOLO_REF_PIECE ((size_t)4 << 20) /* bytes that a wire copies in one call at most */

typedef struct {                    /* how to wake the rank at the other end */
    const _Atomic uint32_t *asleep; /* NULL: nothing to wake */
    int event_fd;
} kolo_bell_t;

struct kolo_wire_ops;
struct kolo_wire_ctx;

/* An end and the parts that only its process can use. The executor advances `end`; where the reader does not share
 * memory with the writer, the wire does, too. */
typedef struct kolo_tx {
    kolo_tx_end_t end;
    /* For kolo_tx_sent(); NULL: the source of a slot is free as soon as it is posted. */
    const _Atomic uint64_t *sent;
    uint32_t caps;
    kolo_bell_t *bells; /* nreaders */
    const struct kolo_wire_ops *ops;
    void *priv;
    kolo_conn_spec_t spec;
} kolo_tx_t;

typedef struct kolo_rx {
    kolo_rx_end_t end;
    void *direct; /* payload of the current slot when it was received elsewhere (rx_expect), else NULL */
    uint32_t caps;
    kolo_bell_t bell; /* of the writer */
    const struct kolo_wire_ops *ops;
    void *priv;
    kolo_conn_spec_t spec;
} kolo_rx_t;

/* ---- hot path (SIMPLE; for LL see ll.h) ---- */

static inline kolo_slot_header_t *kolo_tx_header(const kolo_tx_t *tx)
{
    return kolo_tx_end_header(&tx->end);
}
static inline void *kolo_tx_payload(const kolo_tx_t *tx)
{
    return kolo_tx_header(tx) + 1;
}
static inline bool kolo_tx_ready(kolo_tx_t *tx)
{
    return kolo_tx_end_ready(&tx->end);
}
/* Tells whether the readers have given back every slot. Until then they may use the memory that references in them
 * name. */
static inline bool kolo_tx_released(const kolo_tx_t *tx)
{
    return kolo_tx_end_consumed(&tx->end) == tx->end.next;
}
/* Tells whether the memory of all posted slots is free, with nothing left for step(). Where both ends share memory
 * this is true long before the readers give the slots back. */
static inline bool kolo_tx_sent(const kolo_tx_t *tx)
{
    return !tx->sent || kolo_end_load(tx->sent) == tx->end.next;
}
static inline void kolo_tx_ring(const kolo_tx_t *tx)
{
    for (uint32_t i = 0; i < tx->end.nreaders; i++)
        if (tx->bells[i].asleep) kolo_doorbell_ring(tx->bells[i].asleep, tx->bells[i].event_fd);
}
static inline void kolo_tx_post(kolo_tx_t *tx, uint32_t bytes, uint32_t flags, uint64_t signature,
                                uint64_t operation)
{
    kolo_tx_end_post(&tx->end, bytes, flags, signature, operation);
    kolo_tx_ring(tx);
}
static inline kolo_slot_header_t *kolo_rx_header(const kolo_rx_t *rx)
{
    return kolo_rx_end_header(&rx->end);
}
static inline bool kolo_rx_ready(const kolo_rx_t *rx)
{
    return kolo_rx_end_ready(&rx->end);
}
static inline const void *kolo_rx_payload(const kolo_rx_t *rx)
{
    return KOLO_UNLIKELY(rx->direct != NULL) ? rx->direct : (void *)(kolo_rx_header(rx) + 1);
}
static inline void kolo_rx_release(kolo_rx_t *rx)
{
    rx->direct = NULL;
    kolo_rx_end_release(&rx->end);
    if (rx->bell.asleep) kolo_doorbell_ring(rx->bell.asleep, rx->bell.event_fd);
}

/* ---- what a wire implements ---- */

#define KOLO_WIRE_CARD_BYTES 768
typedef struct { /* travels out of band between the two ends; untrusted, except `length`, which is in range */
    uint32_t length;
    uint8_t bytes[KOLO_WIRE_CARD_BYTES];
} kolo_wire_card_t;
static inline void kolo_wire_card_put(kolo_wire_card_t *card, const void *data, uint32_t length)
{
    card->length = length;
    memcpy(card->bytes, data, length);
}
/* Reads the card's data; returns false, with *data zeroed, if the card has another length. */
static inline bool kolo_wire_card_get(const kolo_wire_card_t *card, void *data, uint32_t length)
{
    memset(data, 0, length);
    if (card->length != length) return false;
    memcpy(data, card->bytes, length);
    return true;
}

/* No member but `fallback` and `rx_can_connect` is NULL: a function that a wire does not have is one of the
 * kolo_wire_no_... below.
 *
 * Set-up order over all connections of one request list (wire/connect.c): every rx_setup and its card to the
 * writer; every tx_setup and its card to the readers; every tx_connect; every rx_connect. All run on the caller's
 * thread and may block within the context's deadline; after a failure close + fini are called on what was set up.
 * Before set-up spec, next, room, mask, stride, slot_bytes, depth, nreaders, caps (= ops->caps) and ops are filled
 * in. rx_setup may clear bits of rx->caps; both ends then get the bits that all readers have left. Outputs are
 * slots, heads, sent, bells, priv. */
typedef struct kolo_wire_ops {
    const char *name;                 /* at most 7 letters; cards carry it with `version` */
    uint8_t version;                  /* of cards, slots and messages; ends of different versions do not connect */
    const char *what;                 /* which ranks it connects and how, for kolo-info */
    const kolo_param_table_t *params; /* its parameters; the first row is the switch that disables it, a BOOL */
    uint32_t caps;
    /* The wire that takes over an end between set-up and connect if this wire proves impossible on this machine
     * (cma without permission becomes shm). It must accept this wire's priv and cards. rx_setup requests it by
     * setting rx->ops. NULL: none. */
    const struct kolo_wire_ops *fallback;
    /* Can this wire connect `a` and `b` (cards of the job)? false: disabled by a parameter, or not possible.
     * Pure. */
    bool (*can_connect)(const struct kolo_wire_ctx *ctx, const kolo_peer_card_t *a, const kolo_peer_card_t *b);
    /* Can this rank use it? KOLO_ERR_UNSUPPORTED: it is left off the card; another error ends the set-up of the
     * communicator. Adds to the card what peers need for may_copy, and permits them to copy, as far as this process
     * can. */
    kolo_status_t (*fill_card)(kolo_peer_card_t *card);
    /* May my process copy from and to the memory of `peer`? Tries it, since the kernel may refuse what a card
     * announces, and may answer differently in the other direction. */
    bool (*may_copy)(const struct kolo_wire_ctx *ctx, const kolo_peer_card_t *peer);
    kolo_status_t (*rx_setup)(struct kolo_wire_ctx *ctx, kolo_rx_t *rx, kolo_wire_card_t *card);
    kolo_status_t (*tx_setup)(struct kolo_wire_ctx *ctx, kolo_tx_t *tx, kolo_wire_card_t *card);
    kolo_status_t (*tx_connect)(struct kolo_wire_ctx *ctx, kolo_tx_t *tx, const kolo_wire_card_t *reader_cards);
    kolo_status_t (*rx_connect)(struct kolo_wire_ctx *ctx, kolo_rx_t *rx, const kolo_wire_card_t *writer_card);
    /* True: rx_connect will not wait for the writer's thread. Asked before it in a set-up in steps, which may only
     * wait for other threads of the peer's process. NULL: it never waits. */
    bool (*rx_can_connect)(struct kolo_wire_ctx *ctx, const kolo_rx_t *rx, const kolo_wire_card_t *writer_card);
    /* KOLO_OK, or KOLO_ERR_REMOTE with a message if the peer has died or closed. Waiters call it now and then, and
     * poll before each call. The first call that finds the peer gone returns KOLO_OK, so that a waiter still sees
     * what the peer did before; the next call fails. */
    kolo_status_t (*tx_check)(kolo_tx_t *tx);
    kolo_status_t (*rx_check)(kolo_rx_t *rx);
    /* KOLO_CAP_REF. Makes a reference to memory of mine, for the slot that is posted next. */
    kolo_status_t (*ref_make)(kolo_tx_t *tx, const void *data, uint64_t bytes, kolo_ref_t *ref);
    /* Starts a copy whose `theirs` is an offset yet, into `ref`, which is that of slot rx->end.next.
     * KOLO_ERR_PROTOCOL: it is not, or it is shorter. */
    kolo_status_t (*ref_start)(kolo_rx_t *rx, const kolo_ref_t *ref, kolo_ref_copy_t *copy);
    /* KOLO_OK: all is copied. KOLO_IN_PROGRESS: call again. Does not wait; if this process itself copies, it copies
     * at most KOLO_REF_PIECE per call. After rx_unexpect an unfinished copy stops. */
    kolo_status_t (*ref_done)(kolo_rx_t *rx, kolo_ref_copy_t *copy);
    /* KOLO_CAP_POST_FROM. Like kolo_tx_post with the payload at `data`, which must stay until kolo_tx_sent(). */
    kolo_status_t (*tx_post_from)(kolo_tx_t *tx, const void *data, uint32_t bytes, uint64_t signature,
                                  uint64_t operation);
    /* The payload of slot rx->end.next + ahead, of exactly `bytes`, should be received at `data` (NULL: in the
     * slot). Only a hint: when the slot is ready, rx->direct shows whether it was. `data` must stay until then or
     * until rx_unexpect. ahead is 0 without KOLO_CAP_AHEAD; with it slots are announced in order, repeats are fine.
     * rx_unexpect may fail a connection that was to write into such memory. */
    void (*rx_expect)(kolo_rx_t *rx, uint32_t ahead, void *data, uint32_t bytes);
    void (*rx_unexpect)(kolo_rx_t *rx);
    /* close: peers and waiters notice; never blocks. fini: frees; safe after a failed setup. */
    void (*tx_close)(kolo_tx_t *tx);
    void (*rx_close)(kolo_rx_t *rx);
    void (*tx_fini)(kolo_tx_t *tx);
    void (*rx_fini)(kolo_rx_t *rx);
    /* Bytes this end holds (mapped or allocated). */
    size_t (*tx_memory)(const kolo_tx_t *tx);
    size_t (*rx_memory)(const kolo_rx_t *rx);
} kolo_wire_ops_t;

/* Stands for a function that a wire does not have (unsupported.c): copies and posts fail with KOLO_ERR_UNSUPPORTED
 * and the names of both ends, the others do nothing. */
kolo_status_t kolo_wire_no_card(kolo_peer_card_t *card);
/* Adds a name that both ends must have to a card (false: no room); and whether a card has it. */
bool kolo_wire_card_name(kolo_peer_card_t *card, const char *name, uint8_t version);
bool kolo_wire_card_names(const kolo_peer_card_t *card, const char *name, uint8_t version);
bool kolo_wire_no_copies(const struct kolo_wire_ctx *ctx, const kolo_peer_card_t *peer);
kolo_status_t kolo_wire_no_ref_make(kolo_tx_t *tx, const void *data, uint64_t bytes, kolo_ref_t *ref);
kolo_status_t kolo_wire_no_ref_start(kolo_rx_t *rx, const kolo_ref_t *ref, kolo_ref_copy_t *copy);
kolo_status_t kolo_wire_no_ref_done(kolo_rx_t *rx, kolo_ref_copy_t *copy);
kolo_status_t kolo_wire_no_post_from(kolo_tx_t *tx, const void *data, uint32_t bytes, uint64_t signature,
                                     uint64_t operation);
bool kolo_wire_no_wait(struct kolo_wire_ctx *ctx, const kolo_rx_t *rx, const kolo_wire_card_t *writer_card);
void kolo_wire_no_expect(kolo_rx_t *rx, uint32_t ahead, void *data, uint32_t bytes);
void kolo_wire_no_unexpect(kolo_rx_t *rx);

/* All wires in order of preference, NULL behind the last (wires.c, the only place that names them). */
#define KOLO_WIRES_MAX KOLO_CARD_WIRES
extern const kolo_wire_ops_t *const kolo_wires[];
static inline const char *kolo_wire_switch(const kolo_wire_ops_t *wire)
{
    return wire->params->rows[0].key;
}
static inline bool kolo_wire_disabled(const kolo_wire_ops_t *wire)
{
    return *(const bool *)wire->params->rows[0].value;
}
kolo_wire_id_t kolo_wire_id(const kolo_wire_ops_t *wire);
/* Does the card name the wire, in my version? */
bool kolo_wire_on_card(const kolo_peer_card_t *card, const kolo_wire_ops_t *wire);

extern const kolo_param_table_t kolo_wire_params; /* of several wires (mapped.c) */

/* ---- context: what the wires of one communicator share ---- */

struct kolo_control; /* control.h: my control page and descriptor-passing entry */
typedef kolo_status_t (*kolo_wire_step_fn_t)(void *arg);
#define KOLO_WIRE_MAX_STEPS 4

typedef struct kolo_wire_ctx {
    kolo_oob_t *oob;
    const kolo_member_t *member;
    const _Atomic uint32_t *abort;
    uint64_t deadline_ns; /* of the set-up under way; 0: each wait for a thread of the library has its own limit */
    uint64_t job;         /* kolo_oob_job */
    uint8_t key[32];      /* proves to the descriptor-passing server that a caller belongs to the job */
    kolo_waker_t waker;   /* waits of this communicator sleep on it; its asleep word is in the control page */
    struct kolo_control *control;
    struct {
        kolo_wire_step_fn_t fn;
        void *arg;
    } steps[KOLO_WIRE_MAX_STEPS]; /* registered by wires with KOLO_CAP_STEP on first use */
    uint32_t nsteps;
    void *wire_state[KOLO_WIRES_MAX + 1]; /* kolo_wire_state() */
} kolo_wire_ctx_t;

/* Returns where a wire keeps what its connections of one context share; the last connection frees it and stores
 * NULL. */
void **kolo_wire_state(kolo_wire_ctx_t *ctx, const kolo_wire_ops_t *wire);

/* Fills in the usable wires and the descriptor-passing address. (The server at that address runs while a context of
 * this process is open.) */
kolo_status_t kolo_wire_fill_card(kolo_peer_card_t *card);
kolo_status_t kolo_wire_ctx_init(kolo_wire_ctx_t *ctx, kolo_oob_t *oob, const kolo_member_t *member,
                                 const _Atomic uint32_t *abort);
void kolo_wire_ctx_close(kolo_wire_ctx_t *ctx); /* peers see that this rank has gone */
void kolo_wire_ctx_fini(kolo_wire_ctx_t *ctx);

/* Fetches descriptors that the process of `card` offers to this job (share/fdpass.h), within the context's
 * deadline. */
kolo_status_t kolo_wire_fetch(kolo_wire_ctx_t *ctx, const kolo_peer_card_t *card, const uint8_t name[16],
                              kolo_fdpass_patience_t patience, int *fds, int nfds);
/* Fetches two of a process that may still come, and who it is. */
kolo_status_t kolo_wire_fetch_peer(kolo_wire_ctx_t *ctx, const kolo_peer_card_t *card, const uint8_t name[16],
                                   int fds[2], kolo_fdpass_peer_t *peer);

static inline kolo_status_t kolo_wire_step(kolo_wire_ctx_t *ctx)
{
    for (uint32_t i = 0; i < ctx->nsteps; i++) KOLO_TRY(ctx->steps[i].fn(ctx->steps[i].arg));
    return KOLO_OK;
}

/* Tells whether all connections of this rank within its host, and the kernel, permit references. Each rank tries it
 * alone; the ranks of a communicator must agree on the answer before they choose a plan. */
bool kolo_wire_may_copy(const kolo_wire_ctx_t *ctx);

/* Returns the first wire in the order of preference that connects writer and all readers; NULL if none does. */
const kolo_wire_ops_t *kolo_wire_choose(const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec);

/* Counts the readers of a connection. The next two: which rank is reader i; which reader is a rank (-1: none)? */
uint32_t kolo_wire_readers(const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec);
int kolo_wire_reader_at(const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec, uint32_t index);
int kolo_wire_reader_index(const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec, int rank);

typedef struct {
    kolo_conn_spec_t spec;
    kolo_tx_t *tx; /* filled when I am the writer, else NULL */
    kolo_rx_t *rx; /* filled when I am a reader, else NULL */
} kolo_conn_request_t;

/* Sets up and connects all requests. Collective over the ranks named in them: each of them passes its side at the
 * same point of its program. On failure nothing stays connected. One info log line per connection says its wire. */
kolo_status_t kolo_wire_connect(kolo_wire_ctx_t *ctx, kolo_conn_request_t *requests, int count);

/* The same in steps that do not wait for peers: a rank can work on several lists at once, and no list delays
 * another (docs/decisions/0022). The two lists of a pair of ranks must have the same connections between the two.
 * step: returns KOLO_IN_PROGRESS until it is done, at most until ctx->deadline_ns as it was at begin (0: no limit).
 * kolo_oob_changes() changes when there may be more to do, and ctx->waker is woken. end: any time, also on NULL;
 * unfinished connections are dropped, and the peers are notified. */
typedef struct kolo_connecting kolo_connecting_t;
kolo_status_t kolo_connecting_begin(kolo_wire_ctx_t *ctx, const kolo_conn_request_t *requests, int count,
                                    kolo_connecting_t **connecting);
kolo_status_t kolo_connecting_step(kolo_connecting_t *connecting);
void kolo_connecting_end(kolo_connecting_t *connecting);
/* Returns the rank that it waits for next, -1: none. */
int kolo_connecting_awaits(const kolo_connecting_t *connecting);
/* Closes an end, or frees it: all are safe on a zeroed end, and twice. */
void kolo_tx_close(kolo_tx_t *tx);
void kolo_rx_close(kolo_rx_t *rx);
void kolo_tx_fini(kolo_tx_t *tx);
void kolo_rx_fini(kolo_rx_t *rx);

#endif
