/* SPDX-License-Identifier: Apache-2.0
 *
 * The members of the job: one card per rank, all-gathered after the bootstrap and checked (versions, duplicate
 * devices), and the node map for algorithms and wires.
 */
#ifndef KOLO_MEMBER_MEMBER_H
#define KOLO_MEMBER_MEMBER_H

#include "oob/oob.h"

extern const kolo_param_table_t kolo_member_params;
typedef struct {
    const char *host_id;
    int64_t suspect_ms, verdict_ms;
} kolo_member_values_t;
extern kolo_member_values_t kolo_member_values;

/* The name of a wire (wire.h) on a card. The build decides which wires exist, so numbers would mean different wires
 * on different ranks. */
typedef struct {
    char name[7]; /* padded with zeros */
    uint8_t version;
} kolo_wire_id_t;
#define KOLO_CARD_VERSION 2u
#define KOLO_CARD_WIRES   8

/* Sent to other ranks: fixed layout, little endian, versioned, 192 bytes. */
typedef struct {
    uint32_t version;      /* KOLO_VERSION; all ranks must agree */
    uint32_t card_version; /* layout of this struct: KOLO_CARD_VERSION */
    int32_t rank;
    int32_t device;        /* -1 CPU */
    uint64_t host_hash;    /* boot id, host name, network and IPC namespaces; or KOLO_HOST_ID */
    uint64_t process_hash; /* host_hash, pid, start time: equal only within one process */
    uint64_t shm_hash; /* equal on ranks that can exchange descriptors: host_hash and network namespace (abstract
                          sockets) */
    int32_t pid;
    uint32_t uid;
    uint32_t cores;         /* cores its process may use */
    uint32_t nwires;        /* of `wires` below */
    uint64_t probe_address; /* of a word in its memory that holds process_hash (wire/cma); 0: none */
    uint8_t fd_address[16]; /* name of the process's descriptor-passing socket (share/fdpass.h) */
    char host_name[32];     /* truncated, always terminated */
    uint8_t core_mask[16];  /* these cores (kolo_cores_mask); the ranks of a host may share them or not */
    kolo_wire_id_t wires[KOLO_CARD_WIRES]; /* what this rank can use */
} kolo_peer_card_t;
_Static_assert(sizeof(kolo_peer_card_t) == 192, "a peer card travels: its size is part of the protocol");
/* Whose card it is, for messages: "rank 3 (host a, pid 7)". */
#define KOLO_WHO_BYTES 80
#define KOLO_WHO(card) kolo_member_card_print(card, (char[KOLO_WHO_BYTES]){0})
const char *kolo_member_card_print(const kolo_peer_card_t *card, char text[KOLO_WHO_BYTES]);

typedef struct {
    int rank, nranks;
    kolo_peer_card_t *peers; /* nranks */
    int nnodes;              /* hosts, numbered in the order of their lowest rank */
    int *node_of;            /* rank -> node */
    int *local_of;           /* rank -> index within its node, in rank order */
    int *node_size;          /* node -> ranks on it */
    int *node_first;         /* node -> index into node_ranks */
    int *node_ranks;         /* ranks grouped by node */
    int my_node;
    uint64_t job; /* as whose rank this one is listed (card.c); 0: it is not */
} kolo_member_t;

/* Fills the card of this rank (fd_address and wires are the caller's). */
kolo_status_t kolo_member_fill_card(kolo_peer_card_t *card, int rank, int device);
/* Returns the process_hash of process `pid` of this host; a later process with the same number has another one. */
uint64_t kolo_member_process_hash(uint64_t host_hash, int pid);
/* Notes that this rank of this job is in this process, before its card is shown to anybody: a card may say
 * anything, but what is here the process knows itself (card.c). Any thread. */
kolo_status_t kolo_member_own_add(uint64_t job, int rank);
void kolo_member_own_remove(uint64_t job, int rank);
bool kolo_member_own_has(uint64_t job, int rank);
/* Gathers all ranks' cards, checks them and builds the node map. Collective. */
kolo_status_t kolo_member_gather(kolo_oob_t *oob, const kolo_peer_card_t *mine, kolo_member_t *member);
/* Builds only the node map, from given cards (tests, plans for other machines). */
kolo_status_t kolo_member_build(kolo_member_t *member, int rank, int nranks, const kolo_peer_card_t *cards);
void kolo_member_fini(kolo_member_t *member);

/* Values that all ranks must share after topology search. kind MIN adopts the smallest, EQUAL is an error that
 * names rank, key and both values, MAX the largest. */
typedef enum { KOLO_AGREE_MIN, KOLO_AGREE_MAX, KOLO_AGREE_EQUAL } kolo_agree_kind_t;
typedef struct {
    const char *key;
    kolo_agree_kind_t kind;
    uint64_t *value; /* in: mine; out: common */
} kolo_agree_row_t;
kolo_status_t kolo_member_agree(kolo_oob_t *oob, const kolo_agree_row_t *rows, size_t count);

/* ---- news: who is lost (news.c, beat.c, pidwatch.c) ---- */

typedef enum {
    KOLO_NEWS_LOST,
    KOLO_NEWS_REVOKED,
    KOLO_NEWS_PARTITION,
    KOLO_NEWS_MISMATCH /* two ranks have made different calls: no rank goes on */
} kolo_news_kind_t;
/* Called on the progress thread, and for earlier news by kolo_news_set_handler(), with locks of this room held:
 * must not call into this room. Once per lost rank. rank: the lost one, the one that revoked, or this one. */
typedef void (*kolo_news_fn_t)(void *arg, kolo_news_kind_t kind, int rank, const char *why);
void kolo_news_set_handler(kolo_oob_t *oob, kolo_news_fn_t fn,
                           void *arg); /* fn NULL: none; it is not running then */
/* Tells, inside such a call, whether a lost rank itself said so, with its reason (an abort), or has left. */
bool kolo_news_gave_up(kolo_oob_t *oob, int rank);
/* Revokes the communicator on all ranks: waits of this room end with KOLO_ERR_REVOKED, except those of a shrink.
 * Never blocks. Any thread. */
void kolo_news_revoke(kolo_oob_t *oob);
/* Reports a loss that another room has noticed. Any thread. */
void kolo_news_report_lost(kolo_oob_t *oob, int rank, kolo_loss_how_t how);
/* Gets the known losses: bit r % 8 of byte r / 8 for rank r (bitmap may be NULL). Returns how many. Any thread.
 */
int kolo_news_get_lost(kolo_oob_t *oob, uint8_t *bitmap);
bool kolo_news_rank_lost(kolo_oob_t *oob, int rank, char *why /* or NULL */, size_t bytes);
/* Waits up to wait_ms, after an operation on a wire has failed because a peer went away, for the news which rank
 * was lost first or has revoked. Returns it, or -1; `why` says more, also about a partition. From now on this
 * rank's farewells name that rank, too. */
int kolo_member_first_lost(kolo_oob_t *oob, int wait_ms, char *why, size_t bytes);

/* Watches process `pid` of `rank`: if it ends before the rank has sent a farewell, the rank is lost. Uses one
 * descriptor. KOLO_ERR_UNSUPPORTED without pidfd_open(2). */
kolo_status_t kolo_pidwatch_add(kolo_oob_t *oob, int rank, int pid);
/* Finds watched processes that were killed but have not ended yet, for a rank that waits. Never blocks; may be
 * called often. */
void kolo_pidwatch_look_out(kolo_oob_t *oob);
/* Starts heartbeats with the ranks that `remote` marks (those on other hosts; consistent on all ranks). Silence for
 * KOLO_SUSPECT_MS is logged; silence for KOLO_VERDICT_MS is a loss, or a partition on the smaller side. */
kolo_status_t kolo_beat_start(kolo_oob_t *oob, const bool *remote);

/* ---- news of the parent while a child is set up (inherit.c) ---- */

/* Passes the parent's news to a child until it is set up, since the child's own connections notice less: losses of
 * members, a partition between members, with `revokes` a revoke (inherit.c has the rules). members[r]: rank r's
 * rank in `from`, -1: none. `from` may be a child that was never set up; its parent is used then. Call it right
 * after kolo_oob_open_child(). The parent may end meanwhile. */
kolo_status_t kolo_inherit_failures(kolo_oob_t *oob, kolo_oob_t *from, const int *members, bool revokes);
/* Ends that: the set-up is complete. KOLO_ERR_REVOKED: the child was revoked before. */
kolo_status_t kolo_inherit_setup_done(kolo_oob_t *oob);
/* Waits up to wait_ms for news of the parent, after a set-up has failed because a member left, perhaps since the
 * parent lost a rank. Returns false if there is none. */
bool kolo_inherit_failure(kolo_oob_t *oob, int wait_ms, char *word, size_t bytes);
/* Does this text say which rank of the parent was lost? */
bool kolo_inherit_names(kolo_oob_t *oob, const char *text);
/* Tells whether the parent's news, other than a loss, have ended the set-up. */
bool kolo_inherit_setup_failed(kolo_oob_t *oob);
/* Writes which rank of the parent it is: " (host a, process 12)". Called with locks held. */
typedef void (*kolo_inherit_who_fn_t)(void *arg, int rank, char *buf, size_t bytes);
void kolo_inherit_set_who(kolo_oob_t *oob, kolo_inherit_who_fn_t fn,
                          void *arg); /* NULL: none; it is not running then */

/* ---- agreement (agreement.c) ---- */

#define KOLO_OOB_SERIES_LAST ((1ull << 40) - 1)
typedef struct {
    uint64_t series; /* agreements of one series are numbered together, and all ranks call each of them; 40 bits. A
                        rank in series KOLO_OOB_SERIES_LAST has left all other series, which end then */
    uint64_t key;    /* a hash of the arguments; if ranks differ: KOLO_ERR_MISMATCH */
    uint32_t flags;  /* out: the AND of the flags of all ranks that are left */
    uint8_t *out; /* bit r % 8 of byte r / 8, in whole words of 8 bytes. In: ranks that take no part; out: these and
                     the lost ones */
    uint8_t *rows;    /* nranks rows of row_bytes. In: mine; out: those of all ranks that are left */
    size_t row_bytes; /* at most 4096; all rows fit twice into a message */
    uint64_t deadline_ns;
    const _Atomic uint32_t
        *cancel;      /* non-zero ends it on this rank (KOLO_ERR_ABORTED), like the abort flag; may be NULL */
    const char *what; /* for messages */
} kolo_agreement_t;
/* Agrees with all ranks that are left, which call it equally often in each series. All that get KOLO_OK have the
 * same result, whichever ranks are lost meanwhile. KOLO_ERR_PARTITION: the others consider this rank lost. Losses
 * and revokes do not end it. */
kolo_status_t kolo_agree_survivors(kolo_oob_t *oob, kolo_agreement_t *agreement);

#endif
