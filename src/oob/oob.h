/* SPDX-License-Identifier: Apache-2.0
 *
 * Out of band: how the ranks of a job find each other and exchange small messages before and beside the wires.
 *
 * A rank checks in with the root that the unique id names, learns its ring neighbour, closes the ring, and
 * all-gathers the peers' addresses; afterwards any rank can reach any other. Every connection is authenticated in
 * both directions by a keyed hash over fresh nonces before any byte is trusted (link/auth.h). The progress thread
 * serves listeners, so a dialler never waits for a rank that computes.
 */
#ifndef KOLO_OOB_OOB_H
#define KOLO_OOB_OOB_H

#include "base/params.h"
#include "base/wait.h"
#include "link/seal.h"
#include "meet/meet.h"

extern const kolo_param_table_t kolo_oob_params;

typedef struct kolo_oob kolo_oob_t;

/* ---- joining ---- */

typedef struct {
    int rank, nranks;
    int nids;
    const kolo_unique_id_t *ids;
    int timeout_ms;                /* whole bootstrap */
    const _Atomic uint32_t *abort; /* ends every wait */
    const char *name;              /* for messages */
} kolo_oob_config_t;

/* Checks in, closes the ring and gathers addresses. Blocking; errors name the ranks that are missing and the last
 * step each reached, as far as the root knows. Any thread; many ranks of one process may do this at once. */
kolo_status_t kolo_oob_open(const kolo_oob_config_t *config, kolo_oob_t **oob);
/* Does the same. If the abort flag ends it, `why` sets the thread's error text and returns the status; the other
 * ranks get both, too. */
kolo_status_t kolo_oob_open_for(const kolo_oob_config_t *config, kolo_status_t (*why)(void *arg), void *arg,
                                kolo_oob_t **oob);
/* A child of `parent` made of parent ranks members[0..nmembers) in the child's rank order; I am members[rank].
 * `addresses` are those that the members published by kolo_oob_prepare_child() and exchanged over the parent.
 * No root is called; the child's keys derive from the parent's and `label` (equal on all members). */
typedef struct kolo_oob_child kolo_oob_child_t;
#define KOLO_OOB_ADDRESS_BYTES 32
kolo_status_t kolo_oob_prepare_child(kolo_oob_t *parent, kolo_oob_child_t **child,
                                     uint8_t address[KOLO_OOB_ADDRESS_BYTES]);
/* Does the same for members without a common parent: all have got the secret `key` in another way. `near` is any
 * object of this rank; its network address is used. */
kolo_status_t kolo_oob_prepare_joined(kolo_oob_t *near, const uint8_t key[32], kolo_oob_child_t **child,
                                      uint8_t address[KOLO_OOB_ADDRESS_BYTES]);
void kolo_oob_discard_child(kolo_oob_child_t *child); /* instead of kolo_oob_open_child() */
/* Takes over `child`, also on failure. */
kolo_status_t kolo_oob_open_child(kolo_oob_child_t *child, const kolo_oob_config_t *config, uint64_t label,
                                  const uint8_t *addresses /* nranks * KOLO_OOB_ADDRESS_BYTES */, kolo_oob_t **oob);

/* Ends an object in three steps. close: new calls fail, waits end (KOLO_ERR_ABORTED); never blocks. fini: frees. */
void kolo_oob_close(kolo_oob_t *oob);
/* Closes the object of a rank that gives up: notifies its peers before anything else of this rank ends. */
void kolo_oob_give_notice(kolo_oob_t *oob);
/* Tells the peers, those that connect later, too, that this rank is done: that its connections end from now on is
 * no loss. It sends nothing more of its own. */
void kolo_oob_take_leave(kolo_oob_t *oob);
/* Sets the reason that the peers get if this rank gives up. The first call counts. */
void kolo_oob_give_reason(kolo_oob_t *oob, const char *words);
void kolo_oob_fini(kolo_oob_t *oob);

int kolo_oob_rank(const kolo_oob_t *oob);
int kolo_oob_nranks(const kolo_oob_t *oob);
/* Returns an id of the job and epoch, equal on all ranks, not secret. */
uint64_t kolo_oob_job(const kolo_oob_t *oob);
/* Derives 32 bytes from the job's secret for a purpose (a label), equal on all ranks. */
void kolo_oob_derive_key(const kolo_oob_t *oob, const char *purpose, uint8_t key[32]);
/* Encrypts 32 bytes such that only ranks of `oob` can read them. KOLO_ERR_UNSUPPORTED without libsodium. */
#define KOLO_OOB_SEALED_BYTES 72
kolo_status_t kolo_oob_seal(const kolo_oob_t *oob, const uint8_t secret[32], uint8_t sealed[KOLO_OOB_SEALED_BYTES]);
kolo_status_t kolo_oob_unseal(const kolo_oob_t *oob, const uint8_t sealed[KOLO_OOB_SEALED_BYTES],
                              uint8_t secret[32]);
/* Returns the bytes that this object holds. */
size_t kolo_oob_memory(const kolo_oob_t *oob);

/* ---- messages ---- (deadline 0 = the job's default time-out. Any thread, if each has tags of its own; what all
 * ranks take part in, all-gather, broadcast and barrier, is for one thread per oob at a time) */

#define KOLO_OOB_MESSAGE_MAX (1u << 20)

/* Returns the caller's deadline; for 0 that of the job, its time limit from now on, as wherever a deadline of 0 is
 * passed. */
uint64_t kolo_oob_deadline(const kolo_oob_t *oob, uint64_t deadline_ns);

/* Sends a tagged message to one rank. Returns once the bytes are on their way; never waits for the peer's
 * receive. */
kolo_status_t kolo_oob_send(kolo_oob_t *oob, int peer, uint64_t tag, const void *data, size_t bytes);
/* Waits for the message with this tag from this peer; its length must be exactly `bytes`. Messages that arrive
 * before their receive wait in a queue (bounded per peer). */
kolo_status_t kolo_oob_recv(kolo_oob_t *oob, int peer, uint64_t tag, void *data, size_t bytes,
                            uint64_t deadline_ns);

/* The same without waiting. begin: `data` must stay until end. poll: KOLO_IN_PROGRESS, or the result. end: at any
 * time, also on NULL. */
typedef struct kolo_oob_receipt kolo_oob_receipt_t;
kolo_status_t kolo_oob_recv_begin(kolo_oob_t *oob, int peer, uint64_t tag, void *data, size_t bytes,
                                  kolo_oob_receipt_t **receipt);
kolo_status_t kolo_oob_recv_poll(kolo_oob_receipt_t *receipt);
void kolo_oob_recv_end(kolo_oob_receipt_t *receipt);
/* Returns a number that grows whenever a poll may find something new; the bell is rung then, too (NULL: none; it
 * must stay until it is replaced). Any thread. */
uint64_t kolo_oob_changes(const kolo_oob_t *oob);
void kolo_oob_set_bell(kolo_oob_t *oob, kolo_waker_t *waker);

/* Gathers a table of nranks rows of `bytes` bytes; in: row `rank`; out: all rows. A ring for few ranks, a
 * logarithmic pattern for many. */
kolo_status_t kolo_oob_all_gather(kolo_oob_t *oob, void *table, size_t bytes);
kolo_status_t kolo_oob_broadcast(kolo_oob_t *oob, int root, void *data, size_t bytes);
kolo_status_t kolo_oob_barrier(kolo_oob_t *oob);

/* How a rank was lost. The rooms above handle losses (member/member.h). */
typedef enum {
    KOLO_LOSS_CLOSED,  /* its connection ended without a farewell */
    KOLO_LOSS_BROKEN,  /* its connection failed */
    KOLO_LOSS_PROCESS, /* the system says that its process has ended */
    KOLO_LOSS_SILENT,  /* no heartbeat for the verdict time */
    KOLO_LOSS_ALTERED, /* bytes on its connection were changed (found by KOLO_TCP_SECURITY) */
    KOLO_LOSS_UNHEARD, /* what was sent to it was not acknowledged for the verdict time */
    KOLO_LOSS_GAVE_UP, /* it said itself that it failed, and left */
    KOLO_LOSS_LEFT,    /* it left in order while others needed it */
    KOLO_LOSS_KINDS
} kolo_loss_how_t;
/* Returns KOLO_ERR_REMOTE if that rank has left, or if any rank is lost. `doing`: what the caller was doing, for
 * the message. Any thread. */
kolo_status_t kolo_oob_check_peer(kolo_oob_t *oob, int rank, const char *doing);
/* Calls this rank unless it is connected: that nobody answers any more shows in kolo_oob_check_peer(). false: it is
 * not called, for want of memory or because the object closes; the caller may ask again. Any thread. */
bool kolo_oob_seek_peer(kolo_oob_t *oob, int rank);
/* Tells whether this rank is connected. Any thread. */
bool kolo_oob_connected(kolo_oob_t *oob, int rank);
/* ---- notifications: numbers, sent without waiting (notify.c) ---- */

/* Called on the progress thread with locks of this room held: must not wait; may call kolo_oob_notify_more(). */
typedef void (*kolo_notify_fn_t)(void *arg, int from, uint64_t number);
void kolo_oob_set_notify(kolo_oob_t *oob, kolo_notify_fn_t fn,
                         void *arg); /* NULL: none; when this returns fn is not running */
/* Sends a number to a connected rank (one that has sent or got a message before); never blocks. The caller limits
 * how many are on their way. KOLO_ERR_REMOTE: not connected. Any thread. To itself: calls the handler on this
 * thread. */
kolo_status_t kolo_oob_notify(kolo_oob_t *oob, int rank, uint64_t number);
kolo_status_t kolo_oob_notify_more(kolo_oob_t *oob, int rank,
                                   uint64_t number); /* the same, from a notification's handler */

/* ---- streams for wires ---- */

/* Opens an authenticated TCP connection to `peer` and returns it: non-blocking, TCP_NODELAY, owned by the caller.
 * Use kolo_socket_send() and _recv() on it, because its bytes may be protected. The other side calls
 * kolo_oob_accept() with the same tag; early connections wait in a bounded queue. */
kolo_status_t kolo_oob_dial(kolo_oob_t *oob, int peer, uint64_t tag, uint64_t deadline_ns, kolo_socket_t *socket);
kolo_status_t kolo_oob_accept(kolo_oob_t *oob, int peer, uint64_t tag, uint64_t deadline_ns, kolo_socket_t *socket);
/* The same without waiting. begin: the waker of kolo_oob_set_stream_bell() is rung when it is over. poll:
 * KOLO_IN_PROGRESS, or the result, once. end: at any time, also on NULL. */
typedef struct kolo_oob_dialling kolo_oob_dialling_t;
kolo_status_t kolo_oob_dial_begin(kolo_oob_t *oob, int peer, uint64_t tag, uint64_t deadline_ns,
                                  kolo_oob_dialling_t **dialling);
kolo_status_t kolo_oob_dial_poll(kolo_oob_dialling_t *dialling, kolo_socket_t *socket);
void kolo_oob_dial_end(kolo_oob_dialling_t *dialling);
/* Takes a stream with this tag that has come, from whatever peer. false: there is none. Any thread. */
bool kolo_oob_take_stream(kolo_oob_t *oob, uint64_t tag, int *peer, kolo_socket_t *socket);
/* Sets a second bell, rung like the first, for a thread that waits for streams (NULL: none). Any thread. */
void kolo_oob_set_stream_bell(kolo_oob_t *oob, kolo_waker_t *waker);
/* Watches the stream until it is closed: if its peer does not acknowledge bytes for the verdict time, that rank is
 * lost. Not for ranks of the same host. Any thread. */
kolo_status_t kolo_oob_watch_stream(kolo_oob_t *oob, int peer, int fd);
void kolo_oob_unwatch_stream(kolo_oob_t *oob, int peer, int fd);
/* Returns true if accepting the streams tag ... tag + count - 1 would return at once, with success or an error. */
bool kolo_oob_can_accept(kolo_oob_t *oob, int peer, uint64_t tag, uint32_t count);

#endif
