/* SPDX-License-Identifier: Apache-2.0
 *
 * The communicator: what the public calls work on. A kolo_comm_t points into a table of handles that is never given
 * back to the system, so that a stale handle is recognised instead of followed; the handle points to the body.
 *
 * Order. Operations of one communicator run one after the other in the order of their calls, whatever streams they
 * were queued on: each call draws a ticket, an operation runs when its ticket is up. A synchronous call with
 * nothing queued before it takes no lock.
 */
#ifndef KOLO_COMM_COMM_H
#define KOLO_COMM_COMM_H

#include "algo/algo.h"
#include "base/type.h"
#include "comm/device.h"
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
    KOLO_COMM_FAILED, /* an operation failed half way: only queries, abort and destroy */
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

typedef struct {             /* what a one-sided call has besides */
    uint64_t handle, offset; /* of a put: its window, and where in it, in bytes */
    int signal;              /* that follows; -1: none */
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
    /* v forms: tables of nranks, else NULL. Owned by the call when `owned`. */
    const size_t *send_counts, *send_displs, *recv_counts, *recv_displs;
    void *owned;
    const kolo_window_call_t *window; /* of a one-sided call; owned likewise */
    kolo_reducer_t *reducer; /* of a user operator, as it was at the call; owned. NULL: the communicator's */
    kolo_comm_t comm;
    void *stream;
    uint64_t record; /* index of its entry in the flight record plus one, if that was claimed before its turn */
    uint32_t share;  /* of its group */
} kolo_call_t;

/* ---- connections and bound plans ---- */

typedef struct kolo_conn {
    kolo_plan_conn_t key; /* dir, node, lane, peer */
    kolo_proto_t proto;
    union {
        kolo_tx_t tx;
        kolo_rx_t rx;
    } u;
    struct kolo_conn *next;
} kolo_conn_t;

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
/* As long as one likes; where what was got is reduced and put on, short enough to stay in cache meanwhile. */
#define KOLO_REF_TILE (1u << 26)
/* A message is one tile, however long: those of a group follow each other whole, as the other end expects them
 * whatever it has in its own group. */
#define KOLO_P2P_TILE        ((uint64_t)1 << 62)
#define KOLO_REF_REDUCE_TILE (256u << 10)

#define KOLO_MEMO_BITS  5 /* of the number of a set of two entries */
#define KOLO_MEMO_SLOTS (2 << KOLO_MEMO_BITS)
typedef struct { /* what to do for one signature, which tells root and count only modulo something */
    uint64_t signature, count;
    uint32_t root;
    bool v;
    kolo_way_t way;
    uint32_t piece_bytes;
    kolo_bound_t *bound; /* NULL: by lines */
} kolo_memo_t;

#define KOLO_MAX_USER_OPS 64
typedef struct {
    bool used;
    kolo_type_t type;
    kolo_reducer_t reducer;
} kolo_user_op_t;

/* Why operations end before they are complete; the first reason stays, but an abort. */
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
    kolo_record_fill(e, number, word, call->count, now, call->root,
                     kolo_record_what((kolo_record_kind_t)call->kind, call->elem, algo), state);
    kolo_record_entry_end(e, index);
    r->now = e;
}

/* What the ranks of a communicator have in common; the least that suits each. */
typedef struct {
    uint64_t l3_bytes, local_slot_bytes, remote_slot_bytes, ll_slot_bytes;
    uint64_t fanout, refs, ll; /* 0 or 1 */
} kolo_agreed_t;

typedef struct { /* whom to ask when, while an operation waits (mismatch.c) */
    uint64_t operation, ask_at_ns, pause_ns;
    uint32_t turn, asked;
} kolo_stalled_t;

typedef struct kolo_body {
    int rank, nranks;
    const char *name; /* in the handle */
    int init_timeout_ms, op_timeout_ms;
    bool blocking, split_share;
    int device;                  /* -1: the CPU */
    int gpu_profile;             /* KOLO_GPU_LATENCY, KOLO_GPU_COMPUTE */
    const kolo_exec_ops_t *exec; /* of the device */
    void *_Atomic exec_state;
    kolo_host_side_t host_side, lane_side; /* what its operations on the host run on */
    struct kolo_body *inside, *across;     /* of a hierarchical one: the ranks of this host; those of its lane */
    struct kolo_body *owner;               /* of such a part: what it is a part of; the rank that is 0 here has */
    struct {
        uint64_t calls;          /* of the user, so far; their numbers are those of diag/diag.h's second row */
        uint64_t step;           /* of a part: the last one that its kernels were given */
        uint64_t next;           /* the call after the messages that are under way; 0: not known */
        kolo_stalled_t stalled;  /* the call that is long in coming */
    } levels;                    /* of a hierarchical one */
    int owner_first, owner_step; /* number owner_first there, and the next ones are owner_step apart */
    _Atomic uint32_t device_cancelled; /* its kernels are told to end */
    bool suspended;                    /* without its device memory; whose turn it is reads and writes */
    kolo_device_watch_t watch;

    kolo_oob_t *oob;
    kolo_member_t member;
    kolo_agreed_t agreed;
    struct {                     /* until it is set up */
        kolo_peer_card_t *cards; /* by rank; NULL: to be asked for */
        kolo_agreed_t agreed;
    } borrowed;
    kolo_wire_ctx_t ctx;
    bool ctx_open;
    kolo_tune_env_t tune;
    kolo_tune_sizes_t sizes;
    kolo_emit_env_t emit;
    int *ring;

    /* Called, again and again, by who has waited in a collective for longer than it spins; a failure ends the wait.
     * NULL: nobody wants to know. Set while none runs. */
    kolo_status_t (*on_wait)(void *arg);
    void *on_wait_arg;

    /* hot: the flat path */
    kolo_tx_t *ll_tx;  /* NODE LL of this rank; NULL until connected or when there is none */
    kolo_rx_t **ll_rx; /* by rank */
    uint8_t *ll_temp;
    uint64_t operation; /* collectives run so far */
    uint64_t splits;    /* of a communicator whose operations run beside its calls */
    kolo_recording_t record;
    kolo_memo_t memo[KOLO_MEMO_SLOTS]; /* sets: launch.c */
    kolo_bound_t *bounds;
    struct kolo_lane_to *lanes_to; /* single sends and receives, by peer */
    kolo_conn_t **conns;           /* lists by peer; [nranks]: my NODE tx */
    size_t conn_bytes;
    void *scratch;
    size_t scratch_bytes;
    kolo_part_t *src_parts, *dst_parts;
    size_t parts_capacity;
    kolo_user_op_t ops[KOLO_MAX_USER_OPS];
    struct kolo_registration *registrations;
    struct kolo_windows *_Atomic windows; /* window/; NULL: there have been none */

    kolo_board_t board;       /* the last operations, for peers who ask */
    kolo_board_pair_t *pairs; /* the same as on the board */
    _Atomic(kolo_device_pairs_t *) device_pairs;
    kolo_stalled_t stalled, stalled_pairs; /* the collective, and the messages, that are long in coming */

    /* life */
    struct kolo_comm *handle;
    uint8_t *agreed_lost;          /* map of whom the ranks have agreed to be lost, NULL: none; under error_lock */
    struct kolo_body *next_making; /* being made from the same communicator */
    int nids;                      /* until init is over */
    kolo_unique_id_t *ids;
    _Atomic uint32_t abort; /* kolo_comm_abort(): every wait of this communicator looks at it */
    _Atomic uint32_t stop;  /* KOLO_STOP_*: every wait of an operation looks at it */
} kolo_body_t;

/* What a handle points to: lives for ever, so that calls with a stale handle, and calls that race with an abort on
 * another thread, find memory that is theirs to read. */
struct kolo_comm {
    _Atomic uint64_t magic;
    kolo_body_t *body;
    _Atomic uint64_t tickets, done; /* operations called, operations ended */
    _Atomic uint64_t last_ticket;   /* of finalize: earlier ones still run */
    _Atomic uint32_t visitors;      /* calls inside that are not operations */
    _Atomic int state;              /* kolo_comm_state_t */
    _Atomic uint32_t turns;         /* splits and the like in the background that are, or wait, for their turn */
    _Atomic bool in_background; /* an operation without a stream has its buffers there, whatever the state says */
    bool blocking, on_device;   /* as in the body */
    kolo_gate_t gate;           /* opened when one of the above changes for somebody who waits */
    int rank, nranks;
    char name[48];
    pthread_mutex_t error_lock;
    kolo_body_t *making; /* children that are being made from this one; under error_lock */
    kolo_status_t error;
    _Atomic bool revoked_here;
    _Atomic bool error_is_news;              /* an operation that fails by the same has more to say */
    struct kolo_pending *aside, *aside_last; /* call/request.c: messages that the next call takes along */
    kolo_stream_t own_stream;                /* of messages that were asked about before they were waited for */
    char error_text[KOLO_ERROR_TEXT_BYTES];
    char last_text[KOLO_ERROR_TEXT_BYTES]; /* copy handed out by kolo_get_last_error */
    struct kolo_comm *next_free;
};
#define KOLO_COMM_MAGIC   0x6b6f6c6f636f6d6dull /* "kolocomm" */
#define KOLO_COMM_FOREIGN 0x6b6f6c6f666f726bull /* "kolofork": of the process that this one was forked from */

/* ---- handle.c ---- */
kolo_status_t kolo_handle_new(kolo_body_t *body, kolo_comm_t *comm);
void kolo_handle_drop(kolo_comm_t comm);
/* Is it a live communicator? Else the message is set; `what` names the function. */
kolo_status_t kolo_handle_check_slow(kolo_comm_t comm, const char *what);
static inline kolo_status_t kolo_handle_check(kolo_comm_t comm, const char *what)
{
    bool live = comm && atomic_load_explicit(&comm->magic, memory_order_acquire) == KOLO_COMM_MAGIC;
    return KOLO_LIKELY(live) ? KOLO_OK : kolo_handle_check_slow(comm, what);
}
/* A dead handle whose communicator was aborted, or is being; until the handle is given out again. */
bool kolo_handle_was_aborted(kolo_comm_t comm);
/* The body for a call that is no operation, held until kolo_handle_leave(); NULL with the message set. */
kolo_body_t *kolo_handle_visit(kolo_comm_t comm, const char *what);
void kolo_handle_leave(kolo_comm_t comm);
/* Runs fn(arg) on a detached thread that counts as a visitor: fn ends with kolo_handle_leave(body->handle). */
kolo_status_t kolo_body_background(kolo_body_t *body, void *(*fn)(void *), void *arg);
/* Ends the handle's life for new calls and waits until those inside have left. */
kolo_status_t kolo_handle_retire(kolo_comm_t comm, const char *what, bool abort);
/* Until init or split is over. */
void kolo_handle_started(kolo_comm_t comm);
/* Until no operation is inside or queued, and init or split is over; with `visitors` until nobody is inside at all.
 */
kolo_status_t kolo_handle_quiet(kolo_comm_t comm, const _Atomic uint32_t *abort, bool visitors);
/* The error of a call that this state does not allow: not ready, finalized, failed. */
kolo_status_t kolo_handle_refuse(kolo_comm_t comm, int state);

/* Draws the next ticket of the communicator; fails when it is being aborted or destroyed. */
kolo_status_t kolo_ticket_draw(kolo_comm_t comm, uint64_t *ticket);
/* Waits for the ticket's turn; fails when the communicator cannot run operations (the turn must be ended all the
 * same). Until kolo_ticket_end() this thread owns the communicator. */
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
/* The abort flag is set: wakes whoever waits. last_error, if not NULL: and peers hear that this rank gave up, and
 * that this was said before (may be empty). */
void kolo_body_interrupt(kolo_body_t *body, const char *last_error);
/* Notes the calling thread's last error as the communicator's and moves it to FAILED (or ABORTED). */
kolo_status_t kolo_body_fail(kolo_body_t *body, kolo_status_t status);

/* kolo_comm_abort(): whoever is being made from this communicator is aborted, too. */
void kolo_start_abort_all(kolo_comm_t parent);

/* ---- lost.c ---- */
/* The same for operations that failed while they ran: says what was under way and, if a peer was lost, which one.
 * Returns the status that the caller gets. */
kolo_status_t kolo_body_fail_operation(kolo_body_t *body, kolo_status_t status, const kolo_call_t *calls,
                                       size_t count);
void kolo_lost_refused(kolo_body_t *body, const kolo_call_t *calls, size_t count);
/* The last step of a start: heartbeats, processes, news. */
kolo_status_t kolo_lost_watch(kolo_body_t *body);
void kolo_lost_started(kolo_body_t *body);

/* ---- revoke.c ---- */
/* The ranks have agreed that those in `out`, but not those in `named` (maps), are lost. */
void kolo_body_note_lost(kolo_body_t *body, const uint8_t *out, const uint8_t *named);

/* ---- crowded.c ---- */
/* Cores that the ranks of one host have together (launchers may bind each to cores of its own), at least 1. */
uint32_t kolo_cores_of_node(const kolo_member_t *m, int node);
/* Must ranks of this host share cores? Then `text` says which. */
bool kolo_cores_shared(const kolo_member_t *m, int node, char *text, size_t bytes);
/* Logs it, once per process and host. */
void kolo_cores_warn(const kolo_body_t *body);

/* ---- connect.c ---- */
/* Binds and, where needed, connects a plan. Takes ownership of the plan, also on failure. */
kolo_status_t kolo_body_bind(kolo_body_t *body, kolo_plan_t *plan, kolo_bound_t **bound);
void kolo_bound_free(kolo_bound_t *bound);
/* NODE LL connections of the flat path. Collective over the node. */
kolo_status_t kolo_body_connect_flat(kolo_body_t *body);
/* Bytes that its connections hold now; while no operation is under way. */
size_t kolo_body_conn_memory(const kolo_body_t *body);
/* Connects what is not connected yet of keys[0..count); protos NULL: all SIMPLE. */
kolo_status_t kolo_body_connect(kolo_body_t *body, const kolo_plan_conn_t *keys, const kolo_proto_t *protos,
                                uint32_t count);
/* The same in steps (wire.h, kolo_connecting_t). end: with KOLO_OK after step has said so; else what is not over is
 * given up. Safe on NULL. */
typedef struct kolo_making kolo_making_t;
kolo_status_t kolo_making_begin(kolo_body_t *body, const kolo_plan_conn_t *keys, const kolo_proto_t *protos,
                                uint32_t count, kolo_making_t **making);
kolo_status_t kolo_making_begin_flat(kolo_body_t *body, kolo_making_t **making); /* for connect_flat */
kolo_status_t kolo_making_step(kolo_making_t *making);
void kolo_making_end(kolo_making_t *making, kolo_status_t status);
int kolo_making_awaits(const kolo_making_t *making); /* the rank that has to come next, -1: none */
kolo_conn_t *kolo_body_find_conn(kolo_body_t *body, const kolo_plan_conn_t *key, kolo_proto_t proto);
void kolo_body_disconnect(kolo_body_t *body);
/* Do both ends of a pair reach each other's memory (KOLO_CAP_REF)? And LL? */
bool kolo_body_pair_refs(const kolo_body_t *body, uint32_t peer);
bool kolo_body_pair_ll(const kolo_body_t *body, uint32_t peer);

/* ---- words ---- */

/* What a call is, as a word. */
static inline uint64_t kolo_mismatch_word(const kolo_call_t *call)
{
    if (call->kind == KOLO_CALL_COLL)
        return kolo_signature(call->coll, (int)call->type, (int)call->op, call->root, call->count);
    static const int ways[] = {[KOLO_CALL_SEND] = KOLO_P2P_WORD_SEND,
                               [KOLO_CALL_RECV] = KOLO_P2P_WORD_RECV,
                               [KOLO_CALL_PUT] = KOLO_P2P_WORD_PUT,
                               [KOLO_CALL_SIGNAL] = KOLO_P2P_WORD_SIGNAL,
                               [KOLO_CALL_WAIT] = KOLO_P2P_WORD_WAIT};
    int way = ways[call->kind];
    return kolo_signature(KOLO_COLL_P2P, (int)call->type, way, call->root, call->count);
}

#endif
