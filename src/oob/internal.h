/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of this room share, and the rooms that register with it (room.h) may see: parameters and the
 * object behind kolo_oob_t.
 *
 * Threads: an oob is shared by the rank's threads and the progress thread under oob->lock; the rank's threads wait
 * on oob->gate, which the progress thread opens when something has come. Tearing down happens by a call on the
 * progress thread, where no handler of ours can be running.
 */
#ifndef KOLO_OOB_INTERNAL_H
#define KOLO_OOB_INTERNAL_H

#include "base/clock.h"
#include "link/link.h"
#include "meet/checkin.h"
#include "meet/id.h"
#include "meet/lifeline.h"
#include "oob/room.h"

#include <pthread.h>

/* ---- parameters ---- */

typedef struct {
    int64_t early_max, queue_bytes;
} kolo_oob_values_t;
extern kolo_oob_values_t kolo_oob_values;

/* ---- the object ---- */

/* Of the frame of a KOLO_PURPOSE_PROBE: several packets of any usual length. */
#define KOLO_PROBE_BYTES 4096

/* How far the other end of a socket has acknowledged what was sent (member/paths/acks.c). */
typedef struct {
    uint64_t acked, since_ns; /* since when no more was, though more was sent; 0: nothing is outstanding */
} kolo_acks_t;

/* A stream that a wire has. */
typedef struct kolo_watched_stream {
    struct kolo_watched_stream *next;
    int fd;
    kolo_acks_t acks;
} kolo_watched_stream_t;

/* A message that is awaited (on the waiter's stack, pointing into its memory) or one that came early (own
 * memory). */
typedef struct kolo_inbound {
    struct kolo_inbound *next;
    kolo_frame_kind_t kind;
    int peer;
    uint64_t tag;
    uint32_t bytes, got;    /* got: arrived; with KOLO_ERR_MISMATCH: what the sender sent instead */
    struct kolo_conn *conn; /* it is being read from */
    uint8_t *part[2];       /* where it goes, in two parts */
    uint32_t part_bytes[2];
    bool started, done, early;
    kolo_status_t status; /* of a posted one that cannot come */
} kolo_inbound_t;

/* A message being written; on the sender's stack. */
typedef struct kolo_outbound {
    struct kolo_outbound *next;
    kolo_frame_kind_t kind;
    uint64_t tag;
    uint8_t head[KOLO_HEAD_BYTES];
    const uint8_t *part[2];
    size_t part_bytes[2];
    size_t sent, total; /* head included */
    bool done, failed;
    bool owned; /* freed when it is done: no thread waits for it */
} kolo_outbound_t;

struct kolo_conn {
    kolo_conn_t *next; /* of the same peer */
    kolo_oob_t *oob;
    kolo_peer_t *peer;
    kolo_socket_t socket;
    kolo_acks_t acks;
    bool dead, stalled; /* stalled: the next message has no place yet */
    bool mute;          /* nothing can be written any more; what has come is still to be read */
    bool farewell;      /* was sent */
    uint32_t events;
    kolo_watch_t *watch;
    uint8_t head[KOLO_HEAD_BYTES];
    uint32_t head_got;
    kolo_head_t frame;
    kolo_inbound_t *in; /* being read */
    kolo_outbound_t *out, **out_tail;
    kolo_outbound_t leave; /* the farewell of a rank that has left and still answers */
    uint8_t *stash;        /* bytes read behind a stalled head */
    size_t stash_bytes;
    kolo_inbound_t small; /* what a room takes at once always has a place: */
    uint8_t body[KOLO_FRAME_BODY_MAX];
};

struct kolo_peer {
    kolo_peer_t *next; /* in its bucket */
    kolo_oob_t *oob;
    int rank;
    int live;      /* connections */
    bool farewell; /* it said that it leaves: what follows is no surprise */
    bool gone;
    bool absent;                          /* nobody answers a call, and no connection is there */
    char why[128];                        /* when gone */
    char words[KOLO_WORDS_FRAME_MAX + 1]; /* its own, when it gave up */
    uint64_t heard_ns;                    /* 0: never */
    kolo_conn_t *conns;
    kolo_conn_t *out; /* the connection that we send on: the first one used, so that order is kept */
    kolo_watched_stream_t *watched;
    kolo_dial_t *dial;
    bool dialling;
    kolo_status_t dial_status;
    char *dial_text;
    size_t queued_bytes;
    void *state[KOLO_ROOM_COUNT]; /* what the rooms above keep of it */
};

/* A wait in kolo_oob_await(), on the stack of its thread. */
typedef bool (*kolo_ready_fn_t)(kolo_oob_t *oob, void *arg);
typedef struct kolo_awaiting {
    struct kolo_awaiting *next;
    kolo_ready_fn_t ready;
    void *arg;
    int rank; /* that it waits for, -1: none, or several */
    uint64_t since_ns;
} kolo_awaiting_t;

/* A stream that was dialled before kolo_oob_accept() asked for it. */
typedef struct kolo_early_stream {
    struct kolo_early_stream *next;
    int peer;
    kolo_socket_t socket;
    uint64_t tag;
} kolo_early_stream_t;

#define KOLO_PEER_BUCKETS 64

struct kolo_oob {
    kolo_progress_t *progress;
    int rank, nranks;
    char name[40];
    const _Atomic uint32_t *abort;
    int timeout_ms;
    kolo_key_t key;       /* between the ranks */
    kolo_key_t epoch_key; /* the same, for this job only; other rooms' keys come from it */
    uint64_t job;

    void *state[KOLO_ROOM_COUNT]; /* what the rooms above keep of it */

    pthread_mutex_t lock;
    kolo_gate_t gate;
    kolo_awaiting_t *awaiting; /* what the rank's threads wait for, the latest first */
    _Atomic uint64_t changes;  /* times that something has come or gone */
    kolo_waker_t *bell;        /* rung with each; NULL: none */
    kolo_waker_t *stream_bell;
    bool closed;
    bool failed;                           /* a call failed: peers must not take our leaving for an orderly one */
    bool left;                             /* in order: whoever calls now hears so */
    bool leaving;                          /* that has been said: what peers do about it is no loss of theirs */
    int blames;                            /* the rank that a failure of ours was put down to, -1 none */
    char reason[KOLO_WORDS_FRAME_MAX + 1]; /* why this rank gives up */
    kolo_notify_fn_t notify_fn;
    void *notify_arg;
    int near_rank, near_nranks; /* of what a child is made from: for words while it has no rank */
    kolo_address_t *table;      /* nranks rows; during the bootstrap as many as are known */
    kolo_listener_t *peer_listener, *root_listener;
    kolo_address_t mine;
    kolo_peer_t *peers[KOLO_PEER_BUCKETS];
    kolo_inbound_t *posted, *early, **early_tail;
    kolo_early_stream_t *streams, **streams_tail;
    kolo_early_stream_t *next_stream; /* memory for the next one */
    size_t nstreams;
    uint64_t gathers, broadcasts;

    struct kolo_bootstrap *boot; /* while the check-in lasts */
    kolo_lifeline_t *line;       /* to the root, until the ring is closed; NULL also if it keeps none */
    kolo_address_t root_at;
    char root_waits[400];        /* who is missing, by the root's last news; "": it has told nothing yet */
    kolo_reply_t *setup_failure; /* the root's, or the parent's, word that there will be no job; ends every wait */
    bool open;                   /* rank, nranks and table are final: peers may call */

    /* in the list of objects with a thread that waits (await.c) */
    kolo_oob_t *next_waiting, **prev_waiting;
};

#define KOLO_BLAMES_NOBODY INT32_MAX /* in a farewell: an orderly one */

/* ---- waiting (await.c) ---- */

/* Waits until ready(oob, arg), called with the lock held, is true. Called and returns with the lock held. Ends with
 * KOLO_ERR_ABORTED when the oob is closed. `describe` is called without the lock. Several threads may wait at a
 * time, each for something of its own. */
kolo_status_t kolo_oob_await(kolo_oob_t *oob, kolo_ready_fn_t ready, void *arg, uint64_t deadline_ns,
                             kolo_describe_fn_t describe, void *describe_arg);
/* Does the same for something that comes from this rank. `arg` is that of both functions. */
kolo_status_t kolo_oob_await_rank(kolo_oob_t *oob, int rank, kolo_ready_fn_t ready, kolo_describe_fn_t describe,
                                  void *arg, uint64_t deadline_ns);
/* Returns a wait for this rank, for -1 one for any single rank; NULL: there is none. With the lock held. */
const kolo_awaiting_t *kolo_oob_awaiting(const kolo_oob_t *oob, int rank);
/* Wakes the rank's threads if one waits for what has changed. With the lock held. */
void kolo_oob_wake(kolo_oob_t *oob);
/* Joins the ticker that looks at abort flags, and leaves it: it lives as long as any object has joined. */
void kolo_ticker_join(kolo_progress_t *progress);
void kolo_ticker_leave(void);

/* ---- peers and connections (peer.c, conn.c); all with the lock held ---- */

kolo_peer_t *kolo_peer_find(kolo_oob_t *oob, int rank);
kolo_peer_t *kolo_peer_get(kolo_oob_t *oob, int rank); /* makes it; NULL: no memory, with its message */
/* Starts calling the peer unless a connection is there or under way. Its address must be known. */
kolo_status_t kolo_peer_dial(kolo_oob_t *oob, kolo_peer_t *peer, uint64_t deadline_ns);
/* Ends waits for a peer that was called in vain a while ago and has not come itself. */
void kolo_peer_absent(kolo_peer_t *peer);
/* Returns the connection to send on; NULL if there is none yet. */
kolo_conn_t *kolo_peer_out(kolo_peer_t *peer);
/* Returns KOLO_OK while the peer may still be reached (or: while no rank is lost), else the failure, with its
 * message. */
kolo_status_t kolo_peer_check(kolo_oob_t *oob, kolo_peer_t *peer, const char *doing);
bool kolo_oob_is_lost(const kolo_oob_t *oob);
kolo_status_t kolo_oob_lost(kolo_oob_t *oob, const char *doing);

kolo_status_t kolo_conn_add(kolo_oob_t *oob, int rank, kolo_socket_t socket); /* takes it in any case */
void kolo_outbound_init(kolo_outbound_t *out, kolo_frame_kind_t kind, uint64_t tag);
void kolo_outbound_add(kolo_outbound_t *out, const void *part, size_t bytes); /* at most two parts */
/* Starts writing; what the socket does not take at once the progress thread writes later. */
void kolo_conn_send(kolo_conn_t *conn, kolo_outbound_t *out);
/* Takes out what has not been written, so that its memory may go. */
void kolo_outbound_withdraw(kolo_conn_t *conn, kolo_outbound_t *out);
/* Reads on where the connection had no place for a message. */
void kolo_conn_resume(kolo_conn_t *conn);
void kolo_conn_condemn(kolo_conn_t *conn, const char *why);
/* Reads what has come and not been read. On the progress thread. */
void kolo_conn_drain(kolo_conn_t *conn);
void kolo_conn_free(kolo_conn_t *conn); /* on the progress thread */

/* ---- messages (message.c); with the lock held ---- */

/* Returns where the message that begins with `head` goes; NULL: it has to wait in the socket. */
kolo_inbound_t *kolo_inbound_place(kolo_oob_t *oob, kolo_peer_t *peer, const kolo_head_t *head);
/* Puts a message that is awaited into the list, or fills it from one that came early. */
void kolo_inbound_post(kolo_oob_t *oob, kolo_inbound_t *in);
/* Takes it out again (done or given up), so that its memory may go. */
void kolo_inbound_withdraw(kolo_oob_t *oob, kolo_inbound_t *in);
/* Returns, after a wait for a message, KOLO_OK if it is complete, else why it cannot come. */
kolo_status_t kolo_inbound_result(kolo_oob_t *oob, kolo_peer_t *peer, const kolo_inbound_t *in, const char *doing);
void kolo_inbound_copy(kolo_inbound_t *to, uint32_t at, const uint8_t *bytes, uint32_t n);
struct iovec;
int kolo_inbound_iov(const kolo_inbound_t *in, struct iovec iov[2], size_t *bytes);
void kolo_oob_early_remove(kolo_oob_t *oob, kolo_inbound_t *in);

/* Without the lock. A send returns when the bytes are with the system. */
typedef struct {
    kolo_frame_kind_t kind;
    int rank; /* the other one */
    uint64_t tag, deadline_ns;
} kolo_message_to_t;
kolo_status_t kolo_oob_send_kind(kolo_oob_t *oob, const kolo_message_to_t *letter, const void *data, size_t bytes);
kolo_status_t kolo_oob_recv_kind(kolo_oob_t *oob, const kolo_message_to_t *letter, void *data, size_t bytes);

/* Takes a notification that has come. On the progress thread, with the lock held. */
const char *kolo_oob_notify_arrived(kolo_conn_t *conn); /* notify.c */

/* ---- farewell.c, with the lock held ---- */

/* Tells the peer whether we leave in order, or whom we blame, or why we give up. A hint: if it does not fit, the
 * peer sees the end. */
void kolo_farewell_call(const kolo_oob_t *oob, const kolo_dial_t *dial);
void kolo_farewell_say(const kolo_oob_t *oob, kolo_conn_t *conn);
/* Queues the farewell of a rank that goes on answering: whole, and behind what is still to be written. */
void kolo_farewell_queue(kolo_conn_t *conn);
const char *kolo_farewell_arrived(kolo_conn_t *conn);
const char *kolo_farewell_words_arrived(kolo_conn_t *conn);

/* ---- the rest ---- */

kolo_status_t kolo_oob_new(const char *name, const _Atomic uint32_t *abort, int timeout_ms, kolo_oob_t **oob);
kolo_status_t kolo_oob_check_config(const kolo_oob_config_t *config,
                                    kolo_oob_t **out); /* ranks, and out is not NULL */
/* Opens the listening socket for peers on this local address, and the one for the root if there is a key for it
 * (listen.c). */
kolo_status_t kolo_oob_listen(kolo_oob_t *oob, const kolo_address_t *address, const kolo_key_t *root_key);
/* Calls the root(s) and waits for the address of the next rank (bootstrap.c). */
kolo_status_t kolo_oob_check_in(kolo_oob_t *oob, int nids, const kolo_id_t *ids, uint64_t deadline_ns);
void kolo_oob_take_reply(kolo_oob_t *oob, const uint8_t *frame); /* progress thread */
/* Says whom the root waits for, as kolo_describe_fn_t; arg is the oob. */
void kolo_oob_explain_join(void *arg, char *buf, size_t bytes);
/* Gives the root, which may know better why joining failed, a moment to say so. Returns `status` or its word. */
kolo_status_t kolo_oob_hear_root(kolo_oob_t *oob, kolo_status_t status, uint64_t deadline_ns);
/* Tells the root that the bootstrap is over, with this status and, if it failed, the thread's last error. */
void kolo_oob_leave_root(kolo_oob_t *oob, kolo_status_t status);
kolo_status_t kolo_oob_gather_addresses(kolo_oob_t *oob, uint64_t deadline_ns); /* gather.c */
kolo_auth_verdict_t kolo_oob_stream_admit(kolo_oob_t *oob, int peer);           /* stream.c */
void kolo_oob_watched_free(kolo_peer_t *peer);
void kolo_oob_stream_accepted(kolo_oob_t *oob, const kolo_claim_t *claim, kolo_socket_t socket);

#endif
