/* SPDX-License-Identifier: Apache-2.0
 *
 * The communicator: what the public calls work on. A kolo_comm_t points into a table of handles that is never
 * freed, so that a stale handle is recognised instead of followed; the handle points to the body.
 *
 * Order. Operations of one communicator run one after the other in the order of their calls, whatever streams they
 * were queued on: each call draws a ticket, an operation runs when its ticket is up. A synchronous call with
 * nothing queued before it takes no lock.
 */
#ifndef KOLO_COMM_COMM_H
#define KOLO_COMM_COMM_H

#include "algo/algo.h"
#include "base/type.h"
#include "comm/gpu/device.h"
#include "comm/params.h"
#include "comm/record.h"
#include "diag/diag.h"
#include "exec/host/exec.h"
#include "topo/topo.h"
#include "tune/tune.h"
#include "wire/control.h"

#include <pthread.h>

typedef enum {
    KOLO_COMM_STARTING, /* init or split under way in the background */
    KOLO_COMM_READY,
    KOLO_COMM_FINALIZING,
    KOLO_COMM_FINALIZED,
    KOLO_COMM_FAILED, /* an operation failed half way: only queries, shrink, abort and destroy are allowed */
    KOLO_COMM_ABORTED,
    KOLO_COMM_CONNECTING /* ready, and a first use goes on in the background: no other operation meanwhile */
} kolo_comm_state_t;

/* ---- one call, as the API functions fill it ---- */

typedef enum {
    KOLO_CALL_COLL,
    KOLO_CALL_SEND,
    KOLO_CALL_RECV,
    KOLO_CALL_PUT, /* from here on one-sided */
    KOLO_CALL_SIGNAL,
    KOLO_CALL_WAIT
} kolo_call_kind_t;

typedef struct {             /* further arguments of a one-sided call */
    uint64_t handle, offset; /* of a put: its window, and the offset in bytes */
    int signal;              /* the number of the signal that follows; -1: none */
    uint32_t nwaits;
    const kolo_signal_wait_t *waits;
} kolo_window_call_t;

typedef struct kolo_call {
    kolo_call_kind_t kind;
    kolo_coll_t coll;
    kolo_type_t type;
    kolo_op_t op;
    uint32_t root; /* or the peer of a message, put, signal; the first peer of a wait */
    const void *src;
    void *dst;
    uint64_t count; /* per part for all_gather and its like; the sum for v forms */
    size_t elem;
    bool in_place;
    uint32_t as;    /* 1 + the kolo_call_word_t of the call that its user made, whose part it is; 0: this one */
    uint32_t table; /* v forms: tells the tables apart that have to be the same on all ranks; 0: there is none */
    /* v forms: tables of nranks, else NULL. Owned by the call when `owned`. */
    const size_t *send_counts, *send_displs, *recv_counts, *recv_displs;
    void *owned;
    const kolo_window_call_t *window; /* of a one-sided call; owned likewise */
    kolo_reducer_t *reducer; /* a copy of a user operator, made at the call; owned. NULL: the communicator's */
    kolo_comm_t comm;
    void *stream;
    uint64_t record; /* 1 + index of its flight record entry, if that was made before its turn; else 0 */
    uint32_t share;  /* its share of a group (share.c) */
} kolo_call_t;

/* ---- connections and bound plans ---- */

typedef struct kolo_comm_conn {
    kolo_plan_conn_t key; /* dir, node, lane, peer */
    kolo_proto_t proto;
    union {
        kolo_tx_t tx;
        kolo_rx_t rx;
    } u;
    struct kolo_comm_conn *next;
} kolo_comm_conn_t;

/* A plan with its connections: made once per (collective, algorithm, root), found by the memo. */
typedef struct kolo_bound {
    kolo_plan_t *plan;
    kolo_tx_t **tx;
    kolo_rx_t **rx;
    void *state;
    bool exchange;     /* kolo_pair_is() */
    uint64_t ref_tile; /* tiles of this length; 0: as slots allow */
    size_t bounce;     /* kolo_task_bounce_bytes() */
    struct kolo_bound *next;
} kolo_bound_t;
/* Tiles of references: nearly any length; shorter where data is also reduced and passed on, so that it stays in
 * cache. */
#define KOLO_REF_TILE (1u << 26)
/* A message is one tile of any length: messages of a group follow each other whole, because the other end may have
 * grouped them differently. */
#define KOLO_P2P_TILE        ((uint64_t)1 << 62)
#define KOLO_REF_REDUCE_TILE (256u << 10)

#define KOLO_MEMO_BITS  5 /* of the number of a set of two entries */
#define KOLO_MEMO_SLOTS (2 << KOLO_MEMO_BITS)
typedef struct { /* how to run calls of one signature; the signature has root and count only modulo something, so
                    both are here, too */
    uint64_t signature, count;
    uint32_t root;
    bool v, reduces;
    uint8_t way; /* kolo_way_number() */
    uint32_t piece_bytes;
    kolo_bound_t *bound;      /* the plan; NULL: by lines */
    kolo_task_step_fn_t loop; /* over lines; NULL: by the plan */
    kolo_reducer_t reducer;   /* unless the operator is a user's: words have no number for those */
} kolo_memo_t;

#define KOLO_MAX_USER_OPS 64
typedef struct {
    bool used;
    kolo_type_t type;
    kolo_reducer_t reducer;
} kolo_user_op_t;

/* Why operations end early. The first reason stays, except that an abort replaces it. */
enum {
    KOLO_STOP_NONE,
    KOLO_STOP_ABORT,
    KOLO_STOP_LOST,
    KOLO_STOP_REVOKED,
    KOLO_STOP_PARTITION,
    KOLO_STOP_MISMATCH
};
/* The entry of an operation whose turn it is; ended by kolo_record_end(). */
static inline void kolo_record_begin(kolo_recording_t *r, const kolo_call_t *call, uint64_t number, uint64_t word,
                                     kolo_record_state_t state, uint32_t algo)
{
    if (KOLO_UNLIKELY(!r->at)) return;
    if (KOLO_UNLIKELY(call->record)) {
        kolo_record_resume(r, call, number, word, state, algo);
        return;
    }
    uint64_t index = r->next++, now = 0;
    kolo_record_entry_t *e = kolo_record_entry_begin(r->at, index);
    r->timed = call->count * call->elem >= KOLO_RECORD_TIMED_BYTES;
    if (KOLO_UNLIKELY(r->timed || index % KOLO_RECORD_TIMED_EACH == 0)) now = kolo_now_ns();
    kolo_record_fill(e, (kolo_record_first_t){
                            .number = number,
                            .word = word,
                            .count = call->count,
                            .begun_ns = now,
                            .root = call->root,
                            .what = kolo_record_what((kolo_record_kind_t)call->kind, call->elem, algo),
                            .state = state,
                        });
    kolo_record_entry_end(e, index);
    r->now = e;
}

/* Values that the ranks agree on: the smallest of each. */
typedef struct {
    uint64_t l3_bytes, local_slot_bytes, remote_slot_bytes, ll_slot_bytes;
    uint64_t fanout, refs, ll; /* 0 or 1 */
} kolo_agreed_t;

typedef struct { /* which rank to ask next and when, while an operation waits (mismatch.c) */
    uint64_t operation, ask_at_ns, pause_ns;
    uint32_t turn, asked;
} kolo_stalled_t;

typedef struct kolo_body {
    int rank, nranks;
    const char *name; /* in the handle */
    int init_timeout_ms;
    _Atomic int op_timeout_ms; /* kolo_comm_set_op_timeout() */
    bool blocking, split_share;
    int device;                  /* -1: the CPU */
    int gpu_profile;             /* KOLO_GPU_LATENCY and others */
    int order;                   /* KOLO_ORDER_FREE, KOLO_ORDER_RANKS */
    const kolo_exec_ops_t *exec; /* of the device */
    void *_Atomic exec_state;
    kolo_host_side_t host_side, lane_side; /* what its operations on the host run on */
    /* Of a hierarchical communicator: the ranks of this host; those of this rank's lane, NULL if it has none. */
    struct kolo_body *inside, *across;
    struct kolo_body *owner; /* of such a part: the hierarchical communicator */
    int *owner_ranks;        /* of such a part: its ranks' numbers there */
    struct {
        _Atomic uint64_t calls;        /* user calls so far; their numbers are those of diag/diag.h's second row */
        uint64_t step;                 /* of a part: the last call whose kernels were launched */
        uint64_t next;                 /* the call after the messages under way; 0: not known */
        kolo_stalled_t stalled;        /* the call that takes long */
    } levels;                          /* of a hierarchical one */
    _Atomic uint32_t device_cancelled; /* its kernels must end */
    bool went;                         /* this rank has left; others may not have */
    kolo_call_word_t ends_as; /* the call that finalizes it, as its user knows it; 0: kolo_comm_finalize() */
    bool suspended;           /* has no device memory now; used by the operation whose turn it is */
    kolo_device_watch_t watch;

    kolo_oob_t *oob;
    kolo_member_t member;
    kolo_agreed_t agreed;
    struct {                     /* from the parent, until this one is set up */
        kolo_peer_card_t *cards; /* by rank; NULL: to be asked for */
        kolo_agreed_t agreed;
    } borrowed;
    kolo_wire_ctx_t ctx;
    bool ctx_open;
    kolo_tune_env_t tune;
    kolo_tune_sizes_t sizes;
    kolo_emit_env_t emit;
    int *ring;

    /* Called repeatedly by a collective that waits longer than it spins; a failure ends the wait. NULL: none. Set
     * only while no collective runs. */
    kolo_status_t (*on_wait)(void *arg);
    void *on_wait_arg;

    /* hot: the flat path */
    kolo_tx_t *ll_tx;  /* NODE LL of this rank; NULL until connected or when there is none */
    kolo_rx_t **ll_rx; /* by rank */
    uint8_t *ll_temp;
    uint64_t operation; /* collectives run so far */
    uint64_t apart;     /* calls that no plan runs so far, where operations run beside calls */
    kolo_recording_t record;
    kolo_memo_t memo[KOLO_MEMO_SLOTS]; /* sets: launch.c */
    kolo_bound_t *bounds;
    struct kolo_lane_to *lanes_to; /* single sends and receives, by peer */
    kolo_comm_conn_t **conns;      /* lists by peer; [nranks]: my NODE tx */
    size_t conn_bytes;
    void *scratch;
    size_t scratch_bytes;
    kolo_part_t *src_parts, *dst_parts;
    size_t parts_capacity;
    kolo_user_op_t ops[KOLO_MAX_USER_OPS];
    kolo_reducer_t user_reducer; /* of the collective that runs; its operator may be destroyed meanwhile */
    struct kolo_registration *registrations;
    struct kolo_windows *_Atomic windows; /* window/; NULL: none so far */
    struct kolo_tagged *_Atomic tagged;   /* tagged/; the same */
    kolo_waker_t *bell;                   /* of the thread that moves those; under the handle's error_lock */

    kolo_board_t board;       /* the last operations, for peers that ask */
    kolo_board_pair_t *pairs; /* the same as on the board */
    _Atomic(kolo_device_pairs_t *) device_pairs;
    kolo_stalled_t stalled, stalled_pairs; /* the collective, and the messages, that take long */

    /* life */
    struct kolo_comm *handle;
    uint8_t *agreed_lost;          /* bitmap of ranks agreed to be lost, NULL: none; under error_lock */
    struct kolo_body *next_making; /* the next child of the same parent that is being made */
    int nids;                      /* until init is over */
    kolo_unique_id_t *ids;
    _Atomic uint32_t abort; /* kolo_comm_abort(): every wait of this communicator looks at it */
    _Atomic uint32_t stop;  /* KOLO_STOP_*: every wait of an operation looks at it */
} kolo_body_t;

/* What a handle points to. Never freed, so that calls with a stale handle, and calls that race with an abort on
 * another thread, may read it. */
struct kolo_comm {
    _Atomic uint64_t magic;
    kolo_body_t *body;
    _Atomic uint64_t tickets, done; /* operations called, operations ended */
    _Atomic uint64_t last_ticket;   /* of finalize: earlier ones still run */
    _Atomic bool inside;            /* a thread is in a call that returns when its operations are complete */
    pthread_mutex_t queuing;        /* a ticket is drawn and queued: on one stream in the order of the tickets */
    _Atomic uint32_t visitors;      /* calls inside that are not operations */
    _Atomic int state;              /* kolo_comm_state_t */
    _Atomic uint32_t turns;         /* splits and the like in the background that have or await their turn */
    _Atomic bool in_background;     /* an operation without a stream runs in the background and uses its buffers,
                                       whatever the state */
    bool blocking, on_device;       /* as in the body */
    kolo_gate_t gate;               /* opened when one of the above changes */
    int rank, nranks;
    char name[48];
    pthread_mutex_t error_lock;
    kolo_body_t *making; /* children that are being made from this one; under error_lock */
    kolo_status_t error;
    _Atomic bool revoked_here;
    /* The error came with news; an operation that fails because of it may add details. */
    _Atomic bool error_is_news;
    struct kolo_pending *aside, *aside_last; /* call/request.c: messages that run with the next call */
    /* set while there are some: lets them begin */
    kolo_status_t (*begin_aside)(struct kolo_comm *comm, const char *what);
    kolo_stream_t own_stream; /* runs messages that kolo_pending_test() has started */
    char error_text[KOLO_ERROR_TEXT_BYTES];
    struct kolo_comm *next_free;
};
#define KOLO_COMM_MAGIC   0x6b6f6c6f636f6d6dull /* "kolocomm" */
#define KOLO_COMM_FOREIGN 0x6b6f6c6f666f726bull /* "kolofork": made before this process was forked */

/* ---- handle.c ---- */
kolo_status_t kolo_handle_new(kolo_body_t *body, kolo_comm_t *comm);
void kolo_handle_drop(kolo_comm_t comm);
/* Returns KOLO_OK for a live communicator; else an error with a message. `what` names the function. */
kolo_status_t kolo_handle_check_slow(kolo_comm_t comm, const char *what);
static inline kolo_status_t kolo_handle_check(kolo_comm_t comm, const char *what)
{
    bool live = comm && atomic_load_explicit(&comm->magic, memory_order_acquire) == KOLO_COMM_MAGIC;
    return KOLO_LIKELY(live) ? KOLO_OK : kolo_handle_check_slow(comm, what);
}
/* Begins messages that were put aside, before a call that is no operation (windows, communicators), which comes
 * after them. */
static inline kolo_status_t kolo_comm_begin_aside(kolo_comm_t comm, const char *what)
{
    return KOLO_LIKELY(!comm->aside) ? KOLO_OK : comm->begin_aside(comm, what);
}
/* Returns the error of a call that another one on the same communicator, without a stream, leaves no room for. */
kolo_status_t kolo_handle_overlaps(kolo_comm_t comm);
/* Stands around a call that returns when its operations are complete, with exit behind it. Two threads that enter
 * in the same nanoseconds are not told of each other; their operations then follow one another. */
static inline kolo_status_t kolo_handle_enter(kolo_comm_t comm)
{
    if (KOLO_UNLIKELY(atomic_load_explicit(&comm->inside, memory_order_relaxed))) return kolo_handle_overlaps(comm);
    atomic_store_explicit(&comm->inside, true, memory_order_relaxed);
    return KOLO_OK;
}
static inline void kolo_handle_exit(kolo_comm_t comm)
{
    atomic_store_explicit(&comm->inside, false, memory_order_relaxed);
}
/* Returns true for a handle whose communicator was or is being aborted, until the handle is reused. */
bool kolo_handle_was_aborted(kolo_comm_t comm);
/* Returns the body, for a call that is not an operation; held until kolo_handle_leave(). NULL: an error is set. */
kolo_body_t *kolo_handle_visit(kolo_comm_t comm, const char *what);
void kolo_handle_leave(kolo_comm_t comm);
/* Runs fn(arg) on a detached thread that counts as a visitor: fn ends with kolo_handle_leave(body->handle). */
kolo_status_t kolo_body_background(kolo_body_t *body, void *(*fn)(void *), void *arg);
/* Invalidates the handle for new calls and waits until calls inside have left. */
kolo_status_t kolo_handle_retire(kolo_comm_t comm, const char *what, bool abort);
/* Waits until init or split is over. */
void kolo_handle_started(kolo_comm_t comm);
/* Waits until init or split is over and no operation is inside or queued; with `visitors` until no call at all is
 *
 * inside. */
kolo_status_t kolo_handle_quiet(kolo_comm_t comm, const _Atomic uint32_t *abort, bool visitors);
/* The error of a call that this state does not allow: not ready, finalized, failed. */
kolo_status_t kolo_handle_refuse(kolo_comm_t comm, int state);

/* The end of a ticket that was drawn while the communicator was aborted or destroyed; the error. */
kolo_status_t kolo_ticket_refuse(kolo_comm_t comm, uint64_t ticket);
/* Draws the next ticket; fails if the communicator is being aborted or destroyed. */
static inline kolo_status_t kolo_ticket_draw(kolo_comm_t comm, uint64_t *ticket)
{
    *ticket = 0;
    if (KOLO_UNLIKELY(atomic_load_explicit(&comm->state, memory_order_acquire) == KOLO_COMM_CONNECTING))
        return kolo_handle_refuse(comm, KOLO_COMM_CONNECTING);
    uint64_t t = *ticket = atomic_fetch_add_explicit(&comm->tickets, 1, memory_order_acq_rel);
    kolo_fence_light(); /* the other half is kolo_fence_cores() in kolo_handle_retire() */
    bool live = atomic_load_explicit(&comm->magic, memory_order_acquire) == KOLO_COMM_MAGIC;
    return KOLO_LIKELY(live) ? KOLO_OK : kolo_ticket_refuse(comm, t);
}
/* Waits for the ticket's turn. Fails if the communicator cannot run operations; kolo_ticket_end() is still due.
 * Until then this thread owns the communicator. */
kolo_status_t kolo_ticket_wait_slow(kolo_comm_t comm, uint64_t ticket);
static inline kolo_status_t kolo_ticket_wait(kolo_comm_t comm, uint64_t ticket)
{
    bool mine = atomic_load_explicit(&comm->done, memory_order_acquire) == ticket &&
                atomic_load_explicit(&comm->state, memory_order_acquire) == KOLO_COMM_READY;
    return KOLO_LIKELY(mine) ? KOLO_OK : kolo_ticket_wait_slow(comm, ticket);
}
static inline void kolo_ticket_end(kolo_comm_t comm, uint64_t ticket)
{
    atomic_store_explicit(&comm->done, ticket + 1, memory_order_release);
    kolo_gate_open_if_joined(&comm->gate);
}

/* ---- stop.c ---- */
/* Rings for the thread of messages with tags: something has ended the communicator, and that thread waits neither
 * for its wires nor at its gate. */
void kolo_body_ring(kolo_body_t *body);
/* Sets whom kolo_body_ring() wakes; NULL: nobody, and when this returns no ring is under way. */
void kolo_body_set_bell(kolo_body_t *body, kolo_waker_t *bell);
/* Wakes all waits after the abort flag was set. last_error not NULL: also notifies the peers that this rank gave
 * up, with this error before it (may be empty). */
void kolo_body_interrupt(kolo_body_t *body, const char *last_error);
/* Notes the calling thread's last error as the communicator's and moves it to FAILED (or ABORTED). */
kolo_status_t kolo_body_fail(kolo_body_t *body, kolo_status_t status);
/* The same with this text. */
kolo_status_t kolo_body_fail_as(kolo_body_t *body, kolo_status_t status, const char *text);
/* Keeps a failure of a communicator: the peers of another one that the program aborts next hear of it. */
void kolo_failure_note(kolo_status_t status, const char *text);
/* In a child of fork(). */
void kolo_failure_forget(void);

/* Aborts all communicators that are being made from this one, for kolo_comm_abort(). */
void kolo_start_abort_all(kolo_comm_t parent);

/* ---- lost.c ---- */
/* The same for operations that failed while they ran. The message names the operation and, if a peer was lost, that
 * rank. Returns the status for the caller. */
kolo_status_t kolo_body_fail_operation(kolo_body_t *body, kolo_status_t status, const kolo_call_t *calls,
                                       size_t count);
void kolo_lost_refused(kolo_body_t *body, const kolo_call_t *calls, size_t count);
/* The last step of a start: heartbeats, processes, news. */
kolo_status_t kolo_lost_watch(kolo_body_t *body);
/* Makes the error of a wait that is no operation's, and that news have ended, say which. */
kolo_status_t kolo_lost_ends(kolo_body_t *body, kolo_status_t status);
void kolo_lost_started(kolo_body_t *body);

/* ---- revoke.c ---- */
/* The ranks have agreed that those in `out`, but not those in `named` (maps), are lost. */
void kolo_body_note_lost(kolo_body_t *body, const uint8_t *out, const uint8_t *named);

/* ---- crowded.c ---- */
/* Cores that the ranks of one host have together (launchers may bind each to cores of its own), at least 1. */
uint32_t kolo_cores_of_node(const kolo_member_t *m, int node);
/* Do ranks of this host share cores? If so, `text` says which. */
bool kolo_cores_shared(const kolo_member_t *m, int node, char *text, size_t bytes);
/* Warns about shared cores, once per process and host. */
void kolo_cores_warn(const kolo_body_t *body);

/* ---- connect.c ---- */
/* Binds and, where needed, connects a plan. Takes ownership of the plan, also on failure. */
kolo_status_t kolo_body_bind(kolo_body_t *body, kolo_plan_t *plan, kolo_bound_t **bound);
void kolo_bound_free(kolo_bound_t *bound);
/* NODE LL connections of the flat path. Collective over the node. */
kolo_status_t kolo_body_connect_flat(kolo_body_t *body);
/* Returns the bytes that its connections hold; call only while no operation is under way. */
size_t kolo_body_conn_memory(const kolo_body_t *body);
/* Makes the missing connections of keys[0..count); protos NULL: all SIMPLE. */
kolo_status_t kolo_body_connect(kolo_body_t *body, const kolo_plan_conn_t *keys, const kolo_proto_t *protos,
                                uint32_t count);
/* The same in steps (wire.h, kolo_connecting_t). end: with the status that step returned; unfinished connections
 * are dropped. Safe on NULL. */
typedef struct kolo_making kolo_making_t;
kolo_status_t kolo_making_begin(kolo_body_t *body, const kolo_plan_conn_t *keys, const kolo_proto_t *protos,
                                uint32_t count, kolo_making_t **making);
kolo_status_t kolo_making_begin_flat(kolo_body_t *body, kolo_making_t **making); /* for connect_flat */
kolo_status_t kolo_making_step(kolo_making_t *making);
void kolo_making_end(kolo_making_t *making, kolo_status_t status);
int kolo_making_awaits(const kolo_making_t *making); /* the rank that it waits for next, -1: none */
kolo_comm_conn_t *kolo_body_find_conn(kolo_body_t *body, const kolo_plan_conn_t *key, kolo_proto_t proto);
void kolo_body_disconnect(kolo_body_t *body);
/* Tells whether both ends of a pair can use references (KOLO_CAP_REF); lines (LL). */
bool kolo_body_pair_refs(const kolo_body_t *body, uint32_t peer);
bool kolo_body_pair_ll(const kolo_body_t *body, uint32_t peer);

/* ---- parts of other calls ---- */

/* kolo_all_reduce() and kolo_comm_split() as a part of another public call, which messages then name. */
kolo_status_t kolo_call_all_reduce(kolo_call_word_t as, void *data, size_t count, kolo_type_t type, kolo_op_t op,
                                   kolo_comm_t comm);
/* Makes an operator like kolo_op_create_callback(), for 64-bit words, with the number by which messages know it:
 * KOLO_SIGNATURE_AGREE or the one behind it. */
kolo_status_t kolo_op_create_agreement(kolo_op_t *op, kolo_user_op_fn_t fn, int number, kolo_comm_t comm);
kolo_status_t kolo_call_finalize(kolo_call_word_t as, kolo_comm_t comm);
kolo_status_t kolo_call_split(kolo_call_word_t as, kolo_comm_t comm, int color, int key, kolo_comm_t *newcomm,
                              const kolo_config_t *config);

/* ---- words ---- */

/* Writes who keeps an operation waiting that has waited for long, as the error at its time limit would say it; ""
 * if nobody is found. Asks the other ranks, for some tenths of a second at most (call/ask_around.c). */
void kolo_ask_around_stalled(kolo_body_t *body, char *buf, size_t bytes);

/* Kind, type, operator, root and count of a call as one word, for comparison between ranks. */
static inline uint64_t kolo_call_signature(const kolo_call_t *call)
{
    if (KOLO_UNLIKELY(call->as)) return kolo_signature_of_call((kolo_call_word_t)(call->as - 1));
    uint64_t count = KOLO_UNLIKELY(call->table) ? kolo_signature_table(call->count, call->table) : call->count;
    return kolo_signature(call->coll, (int)call->type, (int)call->op, call->root, count);
}
static inline uint64_t kolo_mismatch_word(const kolo_call_t *call)
{
    if (call->kind == KOLO_CALL_COLL) return kolo_call_signature(call);
    static const int ways[] = {[KOLO_CALL_SEND] = KOLO_P2P_WORD_SEND,
                               [KOLO_CALL_RECV] = KOLO_P2P_WORD_RECV,
                               [KOLO_CALL_PUT] = KOLO_P2P_WORD_PUT,
                               [KOLO_CALL_SIGNAL] = KOLO_P2P_WORD_SIGNAL,
                               [KOLO_CALL_WAIT] = KOLO_P2P_WORD_WAIT};
    int way = ways[call->kind];
    return kolo_signature(KOLO_COLL_P2P, (int)call->type, way, call->root, call->count);
}

#endif
