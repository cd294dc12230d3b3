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

#include "base/type.h"
#include "comm/call/plans.h"
#include "comm/call/track.h"
#include "comm/connect.h"
#include "comm/gpu/device.h"
#include "comm/life/state.h"
#include "comm/params.h"
#include "topo/topo.h"

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

/* Why operations end early. The first reason stays, except that an abort replaces it. */
enum {
    KOLO_STOP_NONE,
    KOLO_STOP_ABORT,
    KOLO_STOP_LOST,
    KOLO_STOP_REVOKED,
    KOLO_STOP_PARTITION,
    KOLO_STOP_MISMATCH
};
/* Begins the entry of an operation whose turn it is; kolo_record_end() ends it. */
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

typedef struct {             /* how its operations end early (stop.c) */
    _Atomic uint32_t abort;  /* kolo_comm_abort(): every wait of this communicator looks at it */
    _Atomic uint32_t reason; /* KOLO_STOP_*: every wait of an operation looks at it */
    kolo_waker_t *bell;      /* of the thread that moves messages with tags; under the handle's error_lock */
} kolo_body_stop_t;

/* Each room's part is one member, whose type is in that room's header. */
typedef struct kolo_body {
    int rank, nranks;
    const char *name; /* in the handle */
    int init_timeout_ms;
    _Atomic int op_timeout_ms; /* kolo_comm_set_op_timeout() */
    struct kolo_comm *handle;
    kolo_oob_t *oob;
    kolo_member_t member;
    kolo_wire_ctx_t ctx;

    kolo_body_waits_t waits;              /* call/: those that take long */
    kolo_body_conns_t conns;              /* connect.c */
    kolo_body_choice_t choice;            /* call/: how a plan is chosen */
    kolo_body_plans_t plans;              /* call/: and kept */
    kolo_body_user_t user;                /* call/: what the user has made with it */
    kolo_body_gpu_t gpu;                  /* gpu/ */
    kolo_body_levels_t levels;            /* gpu/levels.c */
    kolo_body_life_t life;                /* life/ */
    kolo_body_stop_t stop;                /* stop.c */
    struct kolo_lane_to *lanes_to;        /* call/p2p_single.c: single sends and receives, by peer */
    struct kolo_windows *_Atomic windows; /* window/; NULL: none so far */
    struct kolo_tagged *_Atomic tagged;   /* tagged/; the same */
    kolo_body_track_t track; /* call/: the operations that run and have run; last, for its board is long */
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
    _Atomic uint64_t number;        /* of the communicator, in this process: the handle may be another one's next */
    bool blocking, on_device;       /* as in the body */
    kolo_gate_t gate;               /* opened when one of the above changes */
    int rank, nranks;
    char name[48];
    pthread_mutex_t error_lock;
    kolo_body_t *making; /* children that are being made from this one; under error_lock */
    kolo_status_t error;
    _Atomic bool revoked_here;
    _Atomic bool quiet; /* it has failed, and nobody is to know before it is used: lost.c */
    /* The error came with news; an operation that fails because of it may add details. */
    _Atomic bool error_is_news;
    /* call/request.c: messages that run with the next call; changed by visitors, whom an abort waits for */
    struct kolo_pending *_Atomic aside;
    struct kolo_pending *aside_last;
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
static inline bool kolo_comm_has_aside(kolo_comm_t comm)
{
    return atomic_load_explicit(&comm->aside, memory_order_relaxed) != NULL;
}
/* Begins messages that were put aside, before a call that is no operation (windows, communicators), which comes
 * after them. */
static inline kolo_status_t kolo_comm_begin_aside(kolo_comm_t comm, const char *what)
{
    return KOLO_LIKELY(!kolo_comm_has_aside(comm)) ? KOLO_OK : comm->begin_aside(comm, what);
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
/* Waits until init or split is over and no operation is inside or queued; with `visitors`: no call at all. */
kolo_status_t kolo_handle_quiet(kolo_comm_t comm, const _Atomic uint32_t *abort, bool visitors);
/* Returns the communicator's error, KOLO_OK if it has none, and its words, unless text is NULL. */
kolo_status_t kolo_handle_error(kolo_comm_t comm, char *text, size_t bytes);
/* Returns the error of a call that this state does not allow: not ready, finalized, failed. */
kolo_status_t kolo_handle_refuse(kolo_comm_t comm, int state);

/* Ends a ticket that was drawn while the communicator was aborted or destroyed; returns the error. */
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
/* Does the same with this text. */
kolo_status_t kolo_body_fail_as(kolo_body_t *body, kolo_status_t status, const char *text);
/* Keeps a failure of a communicator: the peers of another one that the program aborts next hear of it. */
void kolo_comm_failure_note(kolo_status_t status, const char *text);
/* Forgets kept failures, in a child of fork(). */
void kolo_comm_failure_forget(void);

/* Aborts all communicators that are being made from this one, for kolo_comm_abort(). */
void kolo_start_abort_all(kolo_comm_t parent);

/* ---- lost.c ---- */
/* Does the same for operations that failed while they ran. The message names the operation and, if a peer was lost,
 * that rank. Returns the status for the caller. */
kolo_status_t kolo_body_fail_operation(kolo_body_t *body, kolo_status_t status, const kolo_call_t *calls,
                                       size_t count);
void kolo_lost_refused(kolo_body_t *body, const kolo_call_t *calls, size_t count);
/* Starts heartbeats, the watch on processes, and news: the last step of a start. */
kolo_status_t kolo_lost_watch(kolo_body_t *body);
/* Makes the error of a wait that is no operation's, and that news have ended, say which. */
kolo_status_t kolo_lost_ends(kolo_body_t *body, kolo_status_t status);
void kolo_lost_started(kolo_body_t *body);
/* Ends what waits for a rank that has gone quietly (KOLO_QUIET_EXIT): from now on the loss is an error. Any thread.
 */
void kolo_lost_tell(kolo_body_t *body);

/* ---- revoke.c ---- */
/* Notes that the ranks have agreed that those in `out`, but not those in `named` (maps), are lost. */
void kolo_body_note_lost(kolo_body_t *body, const uint8_t *out, const uint8_t *named);

/* ---- crowded.c ---- */
/* Cores that the ranks of one host have together (launchers may bind each to cores of its own), at least 1. */
uint32_t kolo_cores_of_node(const kolo_member_t *m, int node);
/* Tells whether ranks of this host share cores; if so, `text` says which. */
bool kolo_cores_shared(const kolo_member_t *m, int node, char *text, size_t bytes);
/* Warns about shared cores, once per process and host. */
void kolo_cores_warn(const kolo_body_t *body);

/* ---- parts of other calls ---- */

/* Runs kolo_all_reduce() or kolo_comm_split() as a part of another public call, which messages then name. */
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
/* Writes the sentence of a rank's engine that says who is missing; "" if it has none, or does not answer within
 * some tenths of a second. Any thread. */
void kolo_ask_around_note(kolo_comm_t comm, int rank, char *text, size_t bytes);
/* Has errors of this thread's operations call them `words`, until that is set back; NULL: what they are. Returns
 * what was set. */
const char *kolo_call_set_purpose(const char *words);

/* Packs kind, type, operator, root and count of a call into one word, for comparison between ranks. */
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
