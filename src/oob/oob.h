/* SPDX-License-Identifier: Apache-2.0
 *
 * Out of band: how the ranks of a job find each other and exchange small messages before and beside the wires.
 *
 * A rank checks in with the root that the unique id names, learns its ring neighbour, closes the ring, and
 * all-gathers the peers' addresses; afterwards any rank can reach any other. Every connection is authenticated in
 * both directions by a keyed hash over fresh nonces before a byte of it is believed (link/auth.h); listeners are
 * served by the engine thread, so a dialler never waits for a rank that computes.
 */
#ifndef KOLO_OOB_OOB_H
#define KOLO_OOB_OOB_H

#include "base/params.h"
#include "base/recorder.h"
#include "base/wait.h"
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

/* Check-in, ring, addresses. Blocking; errors name the ranks that are missing and the last step each reached, as
 * far as the root knows. Any thread; many ranks of one process may do this at once. */
kolo_status_t kolo_oob_open(const kolo_oob_config_t *config, kolo_oob_t **oob);
/* The same; when the flag has ended it `why` says what that means, to the caller and to the other ranks: it sets
 * the thread's error text and returns the status. */
kolo_status_t kolo_oob_open_for(const kolo_oob_config_t *config, kolo_status_t (*why)(void *arg), void *arg,
                                kolo_oob_t **oob);
/* A child of `parent` made of parent ranks members[0..nmembers) in the child's rank order; I am members[rank].
 * `addresses` are those that the members published by kolo_oob_prepare_child() and exchanged over the parent.
 * No root is called; the child's keys derive from the parent's and `label` (equal on all members). */
typedef struct kolo_oob_child kolo_oob_child_t;
#define KOLO_OOB_ADDRESS_BYTES 32
kolo_status_t kolo_oob_prepare_child(kolo_oob_t *parent, kolo_oob_child_t **child,
                                     uint8_t address[KOLO_OOB_ADDRESS_BYTES]);
/* The same for members that have no parent in common: all bring `key` (secret) by ways of their own; `near` is any
 * object of this rank, whose network address is taken. */
kolo_status_t kolo_oob_prepare_joined(kolo_oob_t *near, const uint8_t key[32], kolo_oob_child_t **child,
                                      uint8_t address[KOLO_OOB_ADDRESS_BYTES]);
void kolo_oob_discard_child(kolo_oob_child_t *child); /* if open_child is not called */
/* Takes child, also when it fails. */
kolo_status_t kolo_oob_open_child(kolo_oob_child_t *child, const kolo_oob_config_t *config, uint64_t label,
                                  const uint8_t *addresses /* nranks * KOLO_OOB_ADDRESS_BYTES */, kolo_oob_t **oob);

/* A child is set up over connections of its own, which tell less than the parent's. From here on until it comes of
 * age it hears what its parent knows: losses of members, a partition between members, with `revokes` a revoke
 * (heir.c has the rules). members[r]: rank r's rank in `from`, -1: none. `from` may be a child that never came of
 * age: then its parent is meant. Right after kolo_oob_open_child(). The parent may go meanwhile. */
kolo_status_t kolo_oob_inherit(kolo_oob_t *oob, kolo_oob_t *from, const int *members, bool revokes);
/* The set-up is over. KOLO_ERR_REVOKED: the parent was revoked before; with this it is forgotten. */
kolo_status_t kolo_oob_come_of_age(kolo_oob_t *oob);
/* The set-up failed by a member that went, which may have left because the parent lost somebody: waits up to
 * wait_ms for the parent's word of that. False: none came. */
bool kolo_oob_parents_word(kolo_oob_t *oob, int wait_ms, char *word, size_t bytes);
/* Has the parent's word (not a loss) put an end to the set-up? */
bool kolo_oob_is_doomed(kolo_oob_t *oob);
/* Adds to the words about a rank of a parent who that is: " (host a, process 12)". Called with locks held. */
typedef void (*kolo_oob_who_fn_t)(void *arg, int rank, char *buf, size_t bytes);
void kolo_oob_set_who(kolo_oob_t *oob, kolo_oob_who_fn_t fn, void *arg); /* NULL: none; it is not running then */

/* Shutdown in three words. close: new calls fail, waits end (KOLO_ERR_ABORTED); never blocks. fini: frees. */
void kolo_oob_close(kolo_oob_t *oob);
/* close, of a rank that gives up: its peers are told, ahead of whatever else of it ends. */
void kolo_oob_give_notice(kolo_oob_t *oob);
/* Should this rank be about to give up by itself, its peers will be told why, in these words. The first ones count.
 */
void kolo_oob_give_reason(kolo_oob_t *oob, const char *words);
void kolo_oob_fini(kolo_oob_t *oob);

int kolo_oob_rank(const kolo_oob_t *oob);
int kolo_oob_nranks(const kolo_oob_t *oob);
/* An id of the job and epoch, equal on all ranks, not secret. */
uint64_t kolo_oob_job(const kolo_oob_t *oob);
/* Derives 32 bytes from the job's secret for a purpose (a label), equal on all ranks. */
void kolo_oob_derive_key(const kolo_oob_t *oob, const char *purpose, uint8_t key[32]);
/* A secret of 32 bytes for all ranks of `oob` to read and nobody else. KOLO_ERR_UNSUPPORTED without libsodium. */
#define KOLO_OOB_SEALED_BYTES 72
kolo_status_t kolo_oob_seal(const kolo_oob_t *oob, const uint8_t secret[32], uint8_t sealed[KOLO_OOB_SEALED_BYTES]);
kolo_status_t kolo_oob_unseal(const kolo_oob_t *oob, const uint8_t sealed[KOLO_OOB_SEALED_BYTES],
                              uint8_t secret[32]);
/* Bytes this object holds. */
size_t kolo_oob_memory(const kolo_oob_t *oob);

/* ---- messages ---- (one thread per oob at a time; deadline 0 = the job's default time-out) */

#define KOLO_OOB_MESSAGE_MAX (1u << 20)

/* Tagged message to one rank. Returns once the bytes are on their way; never waits for the peer to ask. */
kolo_status_t kolo_oob_send(kolo_oob_t *oob, int peer, uint64_t tag, const void *data, size_t bytes);
/* Waits for the message with this tag from this peer; its length must be exactly `bytes`. Messages that come before
 * they are expected wait in a queue (bounded per peer). */
kolo_status_t kolo_oob_recv(kolo_oob_t *oob, int peer, uint64_t tag, void *data, size_t bytes,
                            uint64_t deadline_ns);

/* The same without waiting, for who drives several things at once: begin says what is expected, `data` must stay
 * until end. poll: KOLO_IN_PROGRESS, or how it came out. end: at any time, also on NULL. */
typedef struct kolo_oob_receipt kolo_oob_receipt_t;
kolo_status_t kolo_oob_recv_begin(kolo_oob_t *oob, int peer, uint64_t tag, void *data, size_t bytes,
                                  kolo_oob_receipt_t **receipt);
kolo_status_t kolo_oob_recv_poll(kolo_oob_receipt_t *receipt);
void kolo_oob_recv_end(kolo_oob_receipt_t *receipt);
/* A number that grows whenever polling may find something new; then the bell is rung, too (NULL: none; it must
 * outlive its use here). Any thread. */
uint64_t kolo_oob_changes(const kolo_oob_t *oob);
void kolo_oob_set_bell(kolo_oob_t *oob, kolo_waker_t *waker);

/* table holds nranks rows of `bytes`; row `rank` is mine on entry, all are there on return. Ring for few ranks,
 * logarithmic pattern for many. */
kolo_status_t kolo_oob_all_gather(kolo_oob_t *oob, void *table, size_t bytes);
kolo_status_t kolo_oob_broadcast(kolo_oob_t *oob, int root, void *data, size_t bytes);
kolo_status_t kolo_oob_barrier(kolo_oob_t *oob);

/* An operation on a wire has failed because a peer went: waits up to wait_ms for word of the rank that was lost
 * first, or that revoked (-1: none came; `why` says more, also of a partition). From now on this rank's own
 * farewells pass the blame on. */
int kolo_oob_culprit(kolo_oob_t *oob, int wait_ms, char *why, size_t bytes);

/* ---- news: who is lost (news.c, beat.c, pidwatch.c) ---- */

typedef enum { KOLO_NEWS_LOST, KOLO_NEWS_REVOKED, KOLO_NEWS_PARTITION } kolo_news_kind_t;
typedef enum {
    KOLO_LOSS_CLOSED,  /* its connection ended without a farewell */
    KOLO_LOSS_BROKEN,  /* its connection failed */
    KOLO_LOSS_PROCESS, /* the system says that its process has ended */
    KOLO_LOSS_SILENT,  /* no heartbeat for the verdict time */
    KOLO_LOSS_GAVE_UP, /* it said itself that it failed, and left */
    KOLO_LOSS_KINDS
} kolo_loss_how_t;
/* Called on the engine thread (or, for what is known already, by kolo_oob_set_news) with locks of this room held:
 * it must not call into it. Once per rank that is lost; rank: the lost one, or who revoked, or me. */
typedef void (*kolo_news_fn_t)(void *arg, kolo_news_kind_t kind, int rank, const char *why);
void kolo_oob_set_news(kolo_oob_t *oob, kolo_news_fn_t fn, void *arg); /* fn NULL: none; it is not running then */
/* Tells all ranks that the communicator is revoked; waits of this room end with KOLO_ERR_REVOKED, except while it
 * is being mended. Never blocks. Any thread. */
void kolo_oob_revoke(kolo_oob_t *oob);
/* Somebody else has noticed a loss. Any thread. */
void kolo_oob_report_lost(kolo_oob_t *oob, int rank, kolo_loss_how_t how);
/* Who is known to be lost: bit r % 8 of byte r / 8 (bitmap may be NULL). Returns how many. Any thread. */
int kolo_oob_get_lost(kolo_oob_t *oob, uint8_t *bitmap);
bool kolo_oob_rank_lost(kolo_oob_t *oob, int rank, char *why /* or NULL */, size_t bytes);
/* Is there a connection to this rank that lives? Any thread. */
bool kolo_oob_connected(kolo_oob_t *oob, int rank);
/* From now on this process `pid` of `rank` is watched: when it ends before the rank has said farewell, the rank is
 * lost. Keeps a descriptor. KOLO_ERR_UNSUPPORTED where the system has no pidfd_open(2). */
kolo_status_t kolo_oob_watch_process(kolo_oob_t *oob, int rank, int pid);
/* I wait: has one of those processes been killed, though it has not ended yet? Never blocks; may be called often.
 */
void kolo_oob_look_out(kolo_oob_t *oob);
/* From now on heartbeats are exchanged with the ranks that `remote` marks (equal on all ranks: who is on another
 * host). Silence for KOLO_SUSPECT_MS is logged, for KOLO_VERDICT_MS it is a loss, or a partition for the side that
 * is smaller. */
kolo_status_t kolo_oob_start_beats(kolo_oob_t *oob, const bool *remote);

/* ---- agreement (agreement.c) ---- */

#define KOLO_OOB_SERIES_LAST ((1ull << 40) - 1)
typedef struct {
    uint64_t series;  /* agreements of one series are counted together: its members call each of them; 40 bits.
                         Who is in one of KOLO_OOB_SERIES_LAST has given up all others, which end by it */
    uint64_t key;     /* stands for what all must mean alike, else KOLO_ERR_MISMATCH */
    uint32_t flags;   /* on return: the AND of what those who are left have set */
    uint8_t *out;     /* bit r % 8 of byte r / 8, in whole words of 8 bytes: in: ranks that take no part; out: who
                         takes none or is lost */
    uint8_t *rows;    /* nranks of row_bytes; in: mine; out: those of all that are left */
    size_t row_bytes; /* at most 4096; all rows fit twice into a message */
    uint64_t deadline_ns;
    const _Atomic uint32_t
        *cancel;      /* non-zero ends it here (KOLO_ERR_ABORTED), as the abort flag does; may be NULL */
    const char *what; /* for messages */
} kolo_oob_agreement_t;
/* All ranks that are left call it, the same number of times in each series. Uniform: who gets KOLO_OK has the same
 * result, whoever is lost meanwhile. KOLO_ERR_PARTITION: the others hold this rank to be lost. Not ended by losses
 * and revokes. */
kolo_status_t kolo_oob_agree(kolo_oob_t *oob, kolo_oob_agreement_t *agreement);

/* ---- boards: who is in which operation ---- */

#define KOLO_BOARD_ENTRIES 8 /* operations of which a rank can still be asked */
#define KOLO_BOARD_NONE    UINT64_MAX
typedef struct {
    _Atomic uint64_t number, word; /* word: what the operation is; equal on all ranks if all call the same */
} kolo_board_entry_t;
/* Sends and receives have no numbers that all ranks share; both ends of a pair count them instead, each way for
 * itself and without empty messages. Counted before anything else is done. */
enum { KOLO_BOARD_RECV, KOLO_BOARD_SEND };
enum { KOLO_BOARD_LINES, KOLO_BOARD_SLOTS };
typedef struct {
    _Atomic uint64_t begun[2][2]; /* by direction and way */
    _Atomic uint64_t firm[2];     /* by way: the last send that cannot end before its receive has begun */
    _Atomic uint64_t word[2];     /* by direction: what the last one is */
} kolo_board_pair_t;
typedef struct {
    kolo_board_entry_t entries[KOLO_BOARD_ENTRIES]; /* by number modulo; all KOLO_BOARD_NONE at first */
    _Atomic uint64_t connecting;                    /* the operation whose connections are being made */
    _Atomic uint64_t pairing;           /* those of sends and receives are: the number of the next operation */
    _Atomic(kolo_board_pair_t *) pairs; /* by rank; NULL until there is a send or receive */
} kolo_board_t;
/* One thread at a time writes; any reads. Readers see the counts at the latest with the next operation. */
static inline void kolo_board_begin(kolo_board_pair_t *pair, int direction, int way, uint64_t word, bool firm)
{
    uint64_t n = atomic_load_explicit(&pair->begun[direction][way], memory_order_relaxed) + 1;
    atomic_store_explicit(&pair->word[direction], word, memory_order_relaxed);
    atomic_store_explicit(&pair->begun[direction][way], n, memory_order_relaxed);
    if (firm) atomic_store_explicit(&pair->firm[way], n, memory_order_relaxed);
}
/* One thread at a time writes; any reads. */
static inline void kolo_board_publish(kolo_board_t *board, uint64_t number, uint64_t word)
{
    kolo_board_entry_t *e = &board->entries[number % KOLO_BOARD_ENTRIES];
    atomic_store_explicit(&e->number, KOLO_BOARD_NONE, memory_order_relaxed);
    atomic_store_explicit(&e->word, word, memory_order_release);
    atomic_store_explicit(&e->number, number, memory_order_release);
}
/* Words for two ranks that are in different operations of the same number. */
typedef void (*kolo_board_tell_fn_t)(int rank, uint64_t mine, int other, uint64_t theirs, uint64_t number,
                                     char *buf, size_t bytes);
/* Can `rank` not leave the operation `word` before `other` has entered it? Only if that is certain. */
typedef bool (*kolo_board_needs_fn_t)(uint64_t word, int rank, int other, int nranks);
/* The board must outlive the oob. From now on peers' questions are answered, and waits of this room that last
 * longer than stalled_ms ask on behalf of board->connecting, or board->pairing. */
void kolo_oob_set_board(kolo_oob_t *oob, const kolo_board_t *board, int stalled_ms, kolo_board_tell_fn_t tell,
                        kolo_board_needs_fn_t needs);
/* I wait for `peer` in operation `number`, and have for long: shows it my entry. Never blocks; an answer that
 * differs is found by kolo_oob_difference(). */
void kolo_oob_ask(kolo_oob_t *oob, int peer, uint64_t number);
/* I wait for `peer` in a send or receive; my next operation has this number. What comes of it shows likewise. */
void kolo_oob_ask_pair(kolo_oob_t *oob, int peer, uint64_t number);
/* Data of `rank` has shown that it is in another operation of the same number: peers who ask are told. */
void kolo_oob_note_difference(kolo_oob_t *oob, uint64_t number, uint64_t mine, int rank, uint64_t theirs);
/* This rank has failed: from now on who asks is told so. */
void kolo_oob_give_up(kolo_oob_t *oob);
/* It is about to fail because a send or receive, `word`, met something else. Who asks about its next operation,
 * which has this number, or a later one, is told of that. */
void kolo_oob_give_up_pair(kolo_oob_t *oob, uint64_t number, uint64_t word);
/* KOLO_ERR_REMOTE when a peer has failed; KOLO_ERR_MISMATCH, with its message, once a peer is known to be in
 * another operation of the same number. Any thread; one load while there is nothing. */
kolo_status_t kolo_oob_difference(kolo_oob_t *oob);

/* ---- surveys: what do the others do? (survey.c) ---- */

#define KOLO_SURVEY_OPS   4
#define KOLO_SURVEY_RANKS 64 /* asked at once, at most */
typedef struct {
    uint64_t number, word,
        age_ns; /* as in a flight record; the age is since its begin or, if it is over, its end */
    uint32_t peer;
    kolo_record_kind_t kind;
    kolo_record_state_t state;
} kolo_survey_op_t;
typedef struct {
    int rank;
    bool heard, recorded; /* recorded: the rank keeps a record; else there are no ops */
    kolo_status_t failed; /* what ended the use of its communicator */
    uint32_t nops;
    kolo_survey_op_t ops[KOLO_SURVEY_OPS]; /* its last operations, in the order of their calls */
} kolo_finding_t;
/* Fills in what this rank answers to others. Called on the engine thread with locks held: it does not wait and
 * calls nothing of this room. */
typedef void (*kolo_survey_fn_t)(void *arg, kolo_finding_t *mine);
void kolo_oob_set_survey(kolo_oob_t *oob, kolo_survey_fn_t fn, void *arg); /* NULL: none; it is not running then */
/* Asks the ranks findings[i].rank and waits wait_ms at most for those that may still answer. Sets the thread's
 * error text. */
void kolo_oob_survey(kolo_oob_t *oob, kolo_finding_t *findings, int count, int wait_ms);

/* ---- nudges: numbers that never wait (nudge.c) ---- */

/* Called on the engine thread with locks of this room held: it must not wait; it may call kolo_oob_nudge_more(). */
typedef void (*kolo_nudge_fn_t)(void *arg, int from, uint64_t number);
void kolo_oob_set_nudge(kolo_oob_t *oob, kolo_nudge_fn_t fn, void *arg); /* NULL: none; it is not running then */
/* Sends a number to a rank that is connected already (a message went to or came from it); never blocks. The caller
 * bounds how many may be on their way. KOLO_ERR_REMOTE: no connection. Any thread. To itself: the handler is
 * called before this returns, by this thread. */
kolo_status_t kolo_oob_nudge(kolo_oob_t *oob, int rank, uint64_t number);
kolo_status_t kolo_oob_nudge_more(kolo_oob_t *oob, int rank,
                                  uint64_t number); /* the same, from a nudge's handler */

/* ---- streams for wires ---- */

/* Opens an authenticated TCP connection to `peer` and hands its descriptor over (non-blocking, TCP_NODELAY, owned
 * by the caller). The accepting side takes it by kolo_oob_accept() with the same tag; a connection that comes
 * before it is expected waits in a bounded queue. */
kolo_status_t kolo_oob_dial(kolo_oob_t *oob, int peer, uint64_t tag, uint64_t deadline_ns, int *fd);
kolo_status_t kolo_oob_accept(kolo_oob_t *oob, int peer, uint64_t tag, uint64_t deadline_ns, int *fd);
/* Would accepting the streams tag ... tag + count - 1 not have to wait (or fail at once)? */
bool kolo_oob_can_accept(kolo_oob_t *oob, int peer, uint64_t tag, uint32_t count);

#endif
