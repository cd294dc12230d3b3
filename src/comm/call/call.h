/* SPDX-License-Identifier: Apache-2.0
 *
 * A call, from its arguments to its end: its checks (enqueue.c, deep_check.c), its path (submit.c; group.c,
 * stream.c and on_device.c put it aside), its turn (launch.c), its plan and connections (bind.c, p2p*.c), running
 * alone or beside others (share.c), and questions to peers when it takes long (mismatch.c, leftover.c,
 * ask_around.c).
 */
#ifndef KOLO_COMM_CALL_CALL_H
#define KOLO_COMM_CALL_CALL_H

#include "comm/comm.h"
#include "comm/window/window.h"

/* ---- enqueue.c ---- */
/* Checks communicator, type, count and stream; fills in `elem`. */
kolo_status_t kolo_check_call(kolo_call_t *call, const char *what);
kolo_status_t kolo_check_buffer(const void *buf, uint64_t bytes, bool on_device, const char *name,
                                const char *what);
kolo_status_t kolo_check_op(const kolo_call_t *call, const char *what);

/* Sets a call up as a message of the caller's count, type, peer and comm. No function does it: what one returns is
 * copied, which a short message feels. */
#define KOLO_P2P_CALL(...)                                                                                         \
    {                                                                                                              \
        .coll = KOLO_COLL_P2P, .type = type, .root = (uint32_t)peer, .count = count, .comm = comm, __VA_ARGS__     \
    }
/* Checks the arguments of a send or receive; fills in `elem`. */
kolo_status_t kolo_p2p_check_call(kolo_call_t *call, const void *buf, const char *what);

/* ---- request.c ---- */
/* Runs the messages that kolo_isend() and kolo_irecv() put aside, and this call, as one group. */
kolo_status_t kolo_requests_join(kolo_call_t *call);
/* Takes a call into this thread's open group. Messages on its communicator that were put aside are taken in before
 * it, on the call's stream. */
kolo_status_t kolo_requests_join_group(kolo_comm_t comm, void *stream);
/* Fails the messages that are still put aside when the communicator ends. Nothing of it runs. */
void kolo_requests_drop(kolo_comm_t comm);

/* ---- deep_check.c: for KOLO_CHECK=deep ---- */
/* Checks that the buffers of a call (these bytes; of a v form its parts) are readable, writable, and of this
 * process. */
kolo_status_t kolo_deep_check(const kolo_call_t *call, uint64_t src_bytes, uint64_t dst_bytes, const char *what);
/* Checks that no message of a group is received into a buffer of another. */
kolo_status_t kolo_deep_check_group(const kolo_call_t *calls, size_t count);
/* Compares the arguments of the collective whose turn it is among all ranks. Waits for all ranks. */
kolo_status_t kolo_deep_check_ranks(const kolo_call_t *call);
static inline bool kolo_deep(void)
{
    return KOLO_UNLIKELY(kolo_comm_options.check == KOLO_CHECK_DEEP);
}

/* ---- submit.c ---- */
/* Checks done: runs the call now, queues it on its stream, or adds it to the open group. */
kolo_status_t kolo_call_submit(kolo_call_t *call);

/* ---- launch.c ---- */
/* Waits for the turn of a call, runs it and notes a failure. The caller ends the ticket. */
kolo_status_t kolo_call_turn(const kolo_call_t *call, uint64_t ticket);
/* A collective whose turn it is, in steps that do not wait. The caller sets `call`, which must stay, and zeroes the
 * rest. step: as of a task. end: with the result of step, or to cancel it. */
typedef struct {
    const kolo_call_t *call;
    bool begun, connecting, running;
    kolo_memo_t *memo;
    kolo_plan_t *plan; /* whose connections are being made */
    kolo_making_t *making;
    kolo_task_t task;
} kolo_coll_run_t;
kolo_status_t kolo_coll_step(kolo_coll_run_t *run, bool *moved);
void kolo_coll_end(kolo_coll_run_t *run, kolo_status_t status);
/* Runs a collective whose turn it is. */
kolo_status_t kolo_call_run(const kolo_call_t *call);

/* ---- bind.c ---- */
/* Tells whether all connections of the call are made. It must be its turn. */
bool kolo_call_connected(const kolo_call_t *call);
/* Fills in what the call reduces by; elem is set for all collectives. */
kolo_status_t kolo_call_reducer(const kolo_call_t *call, kolo_reducer_t *r);
/* Makes the missing connections of the run's collective, in steps that do not wait. */
kolo_status_t kolo_call_bind_in_steps(kolo_coll_run_t *run);
/* Starts the task as the memo says. The caller has filled in what the task is (ctx, rank, signature, operation).
 * Not `known`: the memo is filled first, which makes plan and connections, and waits for peers. */
kolo_status_t kolo_call_bind_task(const kolo_call_t *call, kolo_task_t *task, kolo_memo_t *memo, bool known);

/* ---- on_device.c ---- */
/* Returns the plan that KOLO_ALGO means on GPUs. Where it names one of the CPU's loops over lines, this is the plan
 * that spreads alike. */
kolo_way_t kolo_device_way(kolo_coll_t coll, bool uneven);

/* Calls of one communicator whose turn it is, in the executor's words. */
typedef struct {
    kolo_body_t *body;
    const kolo_call_t *calls;
    size_t count;
    kolo_exec_call_t one, *list;
    size_t n;
} kolo_device_work_t;
/* Fills (prepare), or examines (check), the list of what queue() would take. Neither queues anything. */
kolo_status_t kolo_device_prepare(kolo_device_work_t *work);
kolo_status_t kolo_device_check(const kolo_device_work_t *work);
kolo_status_t kolo_device_queue(const kolo_device_work_t *work);
/* Tells whether what queue() returned fails the communicator: a part of it is queued, or a part has been ended. */
bool kolo_device_fails(kolo_status_t status);
kolo_status_t kolo_device_fail(const kolo_device_work_t *work, kolo_status_t status);
void kolo_device_work_end(kolo_device_work_t *work);
/* Notes that this rank takes no part in these calls, for the others: they would wait for it. */
void kolo_device_refuse(const kolo_device_work_t *work);

/* ---- queued.c ---- */
/* Queues a call on its stream. */
kolo_status_t kolo_call_queue(kolo_call_t *call);
/* Copies the caller's count arrays and the user operator into the call; disown frees them. */
kolo_status_t kolo_call_own(kolo_call_t *call);
void kolo_call_disown(kolo_call_t *call);

/* ---- first_use.c ---- */
/* Tells whether these calls of a non-blocking communicator, which have a ticket, must go on in the background. */
bool kolo_first_use_needed(kolo_comm_t comm, uint64_t ticket, const kolo_call_t *calls, size_t count);
/* Moves the communicator from READY to CONNECTING (begin), and back when the operation is complete and its ticket
 * has ended (over; called as a visitor). */
kolo_status_t kolo_first_use_begin(kolo_comm_t comm);
void kolo_first_use_over(kolo_comm_t comm);
/* Runs a call without a stream: on this thread if it is connected, else in the background (KOLO_IN_PROGRESS). Ends
 * the ticket. */
kolo_status_t kolo_first_use_submit(const kolo_call_t *call, uint64_t ticket);

/* ---- group.c: collecting ---- */
/* Refuses a call: the group that is open, if one is, will not run. Returns the status. */
kolo_status_t kolo_call_refused(kolo_status_t status);
#define KOLO_CALL_TRY(expr)                                                                                        \
    do {                                                                                                           \
        kolo_status_t call_try_status = (expr);                                                                    \
        if (KOLO_UNLIKELY(call_try_status != KOLO_OK)) return kolo_call_refused(call_try_status);                  \
    } while (0)
bool kolo_group_open(void);
/* Messages that were put aside and came into a group. */
typedef struct {
    struct kolo_pending *first, *last;
    /* Called once the group has ended or, where it has streams, is queued on them. why: the reason if it was given
     * up. */
    void (*over)(struct kolo_pending *first, kolo_status_t status, const char *why);
} kolo_taken_t;
/* Returns those of this thread's open group. */
kolo_taken_t *kolo_group_taken(void);
bool kolo_group_has_calls(void);
#define KOLO_GROUP_MIXED                                                                                           \
    "a group cannot hold both operations and calls that make or end communicators: is kolo_group_end() missing?"
kolo_status_t kolo_group_add(kolo_call_t *call);

/* ---- batch.c: running what was collected ---- */
typedef struct kolo_batch kolo_batch_t;
/* Makes a batch of a group's calls, which own what they point at from then on; each has the index of its
 * communicator. NULL with a message: no memory, and they are still the caller's. */
kolo_batch_t *kolo_group_batch(const kolo_call_t *calls, size_t count, const kolo_comm_t *comms, size_t ncomms);
/* Runs it, and gives it back. KOLO_IN_PROGRESS: a part of it goes on in the background. */
kolo_status_t kolo_group_run(kolo_batch_t *batch);
/* Frees what this thread keeps for its next group. */
void kolo_group_forget(void);

/* ---- group_life.c ---- */
/* MAKES: its making has begun in the background. ENDS, DESTROYS: at the end of the group. */
typedef enum { KOLO_GROUP_MAKES, KOLO_GROUP_ENDS, KOLO_GROUP_DESTROYS } kolo_group_life_t;
/* Refuses, with the group, a call that makes or ends a communicator where the open group has operations. Once it is
 * admitted, adding it cannot fail. */
kolo_status_t kolo_group_admit_life(const char *what);
kolo_status_t kolo_group_add_life(kolo_comm_t comm, kolo_group_life_t what,
                                  kolo_status_t (*begin)(kolo_comm_t comm));
bool kolo_group_has_life(void);
kolo_status_t kolo_group_end_life(void);
void kolo_group_drop_life(void);

/* ---- p2p.c ---- */
/* Sends and receives of one communicator that run together, in lanes: one per peer and direction, in which the
 * messages follow each other in the order of the calls. Lanes do not wait for each other, not even to connect. */
typedef struct kolo_p2p {
    kolo_body_t *body;
    const kolo_call_t *calls;
    size_t count, nlanes, open; /* open: lanes that are not over */
    struct kolo_p2p_lane *lanes;
    size_t *next;    /* by call: the next one of its lane */
    bool connecting; /* some lane still makes its connections */
} kolo_p2p_t;
/* Refuses messages of a group to this rank itself that lack their other half, before anything of the group runs. */
kolo_status_t kolo_p2p_check_own(const kolo_call_t *calls, size_t count, int rank);
/* Copies messages to this rank itself and starts the rest. `calls` must not change until end. */
kolo_status_t kolo_p2p_begin(kolo_body_t *body, const kolo_call_t *calls, size_t count, kolo_p2p_t *p2p);
/* Returns KOLO_OK when all are complete; KOLO_IN_PROGRESS else, with *moved set if anything was done. */
kolo_status_t kolo_p2p_step(kolo_p2p_t *p2p, bool *moved);
/* Checks, while it waits, that the peers live. */
kolo_status_t kolo_p2p_check(kolo_p2p_t *p2p);
/* Writes what a message waits for: "rank 0, in recv 4 float32 from rank 1, for rank 1 to send it". */
void kolo_p2p_describe_call(int rank, const kolo_call_t *call, char *buf, size_t bytes);
void kolo_p2p_describe(void *p2p, char *buf, size_t bytes);
/* Returns the message that has met one with another signature; NULL: none. */
const kolo_task_t *kolo_p2p_met(const kolo_p2p_t *p2p, const kolo_call_t **call);
/* Puts up to `most` ranks that the group waits for into `ranks`, in turn if there are more; returns how many. */
size_t kolo_p2p_awaited(kolo_p2p_t *p2p, int *ranks, size_t most);
/* Cancels messages that are not complete, and frees. Not after a failed begin. */
void kolo_p2p_end(kolo_p2p_t *p2p);
/* All connections that messages to (send) or from a peer may need, whatever their size; returns how many. */
#define KOLO_P2P_CONNECTIONS 3
uint32_t kolo_p2p_connections(const kolo_body_t *body, uint32_t peer, bool send, kolo_plan_conn_t *keys,
                              kolo_proto_t *protos);
kolo_status_t kolo_p2p_start_plan(kolo_body_t *body, kolo_bound_t *bound, const kolo_part_t *src,
                                  const kolo_part_t *dst, uint64_t signature, kolo_task_t *task);
/* Starts a message that fits one slot, without the interpreter. Returns false if it does not fit one. */
bool kolo_p2p_start_message(kolo_body_t *body, kolo_bound_t *b, const kolo_part_t *part, uint64_t signature,
                            kolo_task_t *task);
void kolo_p2p_fill_small(kolo_body_t *body, kolo_task_t *task, uint64_t bytes, uint64_t signature);
/* Runs one send or receive with another rank, when its turn has come (p2p_single.c). */
kolo_status_t kolo_p2p_run_single(const kolo_call_t *call);
bool kolo_p2p_connected(const kolo_call_t *call);
/* Frees what is kept of the connections of messages. Call it before they go (kolo_body_disconnect()). */
void kolo_p2p_forget(kolo_body_t *body);
/* Begins one message whose turn it is, and makes what it needs to have connections. `part` stays while it runs. */
kolo_status_t kolo_p2p_start(const kolo_call_t *call, kolo_part_t *part, kolo_task_t *task);
/* Returns where a group notes the lane to or from a peer; zero stands there while the group takes none in. */
kolo_status_t kolo_p2p_lane_of(kolo_body_t *body, uint32_t peer, bool send, uint32_t **lane);
/* Returns how so many bytes go between this rank and a peer that kolo_p2p_lane_of() was asked about. */
kolo_p2p_way_t kolo_p2p_way(const kolo_body_t *body, uint32_t peer, uint64_t bytes);
/* Tells whether the connections of messages to or from this peer are made. */
bool kolo_p2p_pair_is_up(kolo_body_t *body, uint32_t peer, bool send);

/* ---- share.c: running ---- */
/* One communicator's calls of one group: a machine in steps, so that one thread drives many. */
typedef struct kolo_share {
    kolo_comm_t comm;
    uint64_t ticket;
    kolo_call_t *calls, *messages;                /* all of them, in order; copies of the others than collectives */
    size_t count, nmessages, nonesided, capacity; /* one-sided calls stand behind the messages */
    bool sync;                                    /* group_end waits for it */
    bool first_use; /* of a communicator that does not block: it connects, and tells so itself */
    int stream;     /* index of one of its streams among those of the group, -1: none */
    /* while it runs */
    bool entered, drawn, turn, refused, pairing, in_collective, in_onesided;
    size_t at; /* the collective that runs, or is next */
    kolo_coll_run_t coll;
    kolo_p2p_t p2p;
    kolo_window_run_t ones;
    uint64_t coll_deadline_ns, pairs_deadline_ns, ones_deadline_ns;
    /* then */
    _Atomic bool over;
    kolo_status_t status; /* not KOLO_OK before it is over: it is to end so */
    char text[KOLO_ERROR_TEXT_BYTES];
} kolo_share_t;
/* Runs them side by side until all are over; `ended` is called for each that is. */
void kolo_call_shares_run(kolo_share_t **shares, size_t count, void (*ended)(kolo_share_t *share, void *arg),
                          void *arg);
/* Ends the turn of a share whose ticket will not be used, with the thread's last error. */
void kolo_call_share_skip(kolo_share_t *share, kolo_status_t status);

/* ---- mismatch.c ---- */
/* Lets peers ask, from now on, which operation this rank is in. Call it once body->oob is open. */
void kolo_mismatch_open(kolo_body_t *body);
/* Gives a number among the operations to a call of all ranks that no plan runs, and shows it, so that a rank that
 * calls something else is told. Returns the number. Call it in its turn. Where operations run beside calls it is
 * counted apart and not shown. Its entry in the flight record is ended by kolo_record_end(). */
uint64_t kolo_mismatch_count(kolo_body_t *body, kolo_call_word_t which);
/* Such a call while it runs: its waits tell of it (kolo_wait_set_purpose). _begin counts it as above; _name is for
 * one that has its number. */
typedef struct {
    kolo_body_t *body;
    kolo_call_word_t which;
    uint64_t number;
    char in[64];
    kolo_wait_purpose_t before;
} kolo_whole_t;
uint64_t kolo_whole_begin(kolo_whole_t *whole, kolo_body_t *body, kolo_call_word_t which);
void kolo_whole_name(kolo_whole_t *whole, kolo_body_t *body, kolo_call_word_t which, uint64_t number);
void kolo_whole_end(kolo_whole_t *whole, kolo_status_t status);
/* Fills in a wait for `task` with the time limit of operations; the caller sets `look`. */
void kolo_mismatch_wait_init(kolo_body_t *body, kolo_wait_t *wait, kolo_task_t *task);
/* Finds out whether a peer is in another operation, as the `look` of a collective's wait (arg: its task). Asks the
 * ranks that the task waits for after KOLO_MISMATCH_MS, then at growing intervals. */
kolo_status_t kolo_mismatch_look(void *arg);
/* Does the same for an operation that still makes its connections and waits for `rank` (-1: nobody). */
kolo_status_t kolo_mismatch_look_connecting(kolo_body_t *body, uint64_t operation, int rank);
/* Tells the others that a collective has failed by what a slot brought, since they may wait for this rank. */
void kolo_mismatch_met(const kolo_task_t *task);
/* Finds out whether peers are in another operation, as the `look` of a send or receive (arg: its task) or of those
 * of a group. behind: collectives of the group that have no number yet. */
kolo_status_t kolo_mismatch_look_pair(void *arg);
kolo_status_t kolo_mismatch_look_pairs(kolo_p2p_t *p2p, uint64_t behind);
/* Asks the ranks that the kernels of operation `number` wait for, when it is time to (KOLO_MISMATCH_MS). Any status
 * but KOLO_OK: the operation will not end. */
kolo_status_t kolo_mismatch_look_device(kolo_body_t *body, uint64_t number, const int *ranks, int count);
/* Does the same for kernels of sends and receives. `anew`: they did not wait when they were last looked at. */
kolo_status_t kolo_mismatch_look_device_pairs(kolo_body_t *body, const kolo_exec_waits_t *waits, bool anew);
/* Asks the other ranks, some at a time, about a call that a part of this communicator has been in for long. */
void kolo_mismatch_look_call(kolo_body_t *body, uint64_t call);
/* Puts a send or receive on the board, before it connects or waits; kolo_mismatch_open_pairs() was called once. */
kolo_status_t kolo_mismatch_open_pairs(kolo_body_t *body);
/* Ends sends and receives: puts a mismatch that data brought into words, and shows it to the ranks that wait for
 * this one. */
kolo_status_t kolo_mismatch_end_pairs(const kolo_call_t *calls, size_t count, kolo_status_t status);
void kolo_mismatch_begin_pair(kolo_body_t *body, const kolo_call_t *call, kolo_p2p_way_t way);
/* Tells whether a send is firm: it cannot end without its receive, because it has to connect, to have its memory
 * read, or to get room in the queue. For a caller that knows the word and shows it itself. */
bool kolo_mismatch_is_firm(kolo_body_t *body, int peer, kolo_p2p_way_t way, uint64_t bytes);
static inline void kolo_mismatch_show_pair(kolo_body_t *body, const kolo_call_t *call, kolo_p2p_way_t way,
                                           uint64_t word, bool firm)
{
    bool send = call->kind == KOLO_CALL_SEND;
    if (call->count == 0) return; /* such a message may end without the other side */
    kolo_board_begin(&body->track.pairs[call->root], send ? KOLO_BOARD_SEND : KOLO_BOARD_RECV,
                     way == KOLO_P2P_LL ? KOLO_BOARD_LINES : KOLO_BOARD_SLOTS, word, firm);
}

/* ---- leftover.c ---- */
/* Looks into the queues for proof that another rank has called something else, while the caller waits in operation
 * `number`, or before it (word 0). Returns KOLO_ERR_MISMATCH, and tells all ranks, if there is some. */
kolo_status_t kolo_call_leftover_look(kolo_body_t *body, uint64_t number, uint64_t word);

/* ---- ask_around.c ---- */
/* Answers peers who ask what is in the flight record, until it is closed. */
void kolo_ask_around_open(kolo_body_t *body);
void kolo_ask_around_close(kolo_body_t *body);
/* Asks the others, after an operation has reached its time limit, and adds to the thread's error text who keeps it
 * waiting. */
void kolo_ask_around_time_out(kolo_body_t *body);

/* ---- userop.c ---- */
void kolo_call_registrations_free(kolo_body_t *body);
/* Finds the place of a created operator, which may have been destroyed; NULL: there never was one. */
kolo_user_op_t *kolo_call_user_op(kolo_body_t *body, int op);
void kolo_call_user_ops_free(kolo_body_t *body);

/* ---- stream.c ---- */
#define KOLO_STREAM_ROOM 256
kolo_status_t kolo_stream_push(void *stream, void (*fn)(void *), void *arg);
/* Queues fn with a copy of the data, at most KOLO_STREAM_ROOM bytes, which is gone when fn returns. */
kolo_status_t kolo_stream_push_copy(void *stream, void (*fn)(void *), void *data, size_t bytes);
/* Keeps the first error of the queue, for synchronize to report. */
void kolo_stream_note(void *stream, kolo_status_t status);
bool kolo_stream_valid(void *stream);

#endif
