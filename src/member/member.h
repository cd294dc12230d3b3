/* SPDX-License-Identifier: Apache-2.0
 *
 * Who is in the job: one card per rank, all-gathered after the bootstrap, checked (versions, duplicate devices),
 * and the node map that algorithms and wires work with.
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

/* A wire (wire.h) as it is named to others: what a program was built with decides which it has, so that numbers
 * mean nothing between ranks. */
typedef struct {
    char name[7]; /* filled up with zeros */
    uint8_t version;
} kolo_wire_id_t;
#define KOLO_CARD_VERSION 2u
#define KOLO_CARD_WIRES   8

/* Fixed layout, little endian, versioned: it travels. 192 bytes. */
typedef struct {
    uint32_t version;      /* KOLO_VERSION; all ranks must agree */
    uint32_t card_version; /* layout of this struct: KOLO_CARD_VERSION */
    int32_t rank;
    int32_t device;        /* -1 CPU */
    uint64_t host_hash;    /* boot id, host name, network and IPC namespaces; or KOLO_HOST_ID */
    uint64_t process_hash; /* host_hash, pid, start time: equal only within one process */
    uint64_t shm_hash;     /* who can exchange descriptors: host_hash and network namespace (abstract sockets) */
    int32_t pid;
    uint32_t uid;
    uint32_t cores;         /* cores its process may use */
    uint32_t nwires;        /* of `wires` below */
    uint64_t probe_address; /* of a word in its memory that holds process_hash (wire/cma); 0: none */
    uint8_t fd_address[16]; /* name of the process's descriptor-passing socket (wire/fdpass.h) */
    char host_name[32];     /* cut, always terminated */
    uint8_t core_mask[16]; /* which cores those are (kolo_core_mask): the ranks of a host may share or split them */
    kolo_wire_id_t wires[KOLO_CARD_WIRES]; /* what this rank can use */
} kolo_peer_card_t;
_Static_assert(sizeof(kolo_peer_card_t) == 192, "a peer card travels: its size is part of the protocol");

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
} kolo_member_t;

/* Fills the card of this rank (fd_address and wires are the caller's). */
kolo_status_t kolo_member_fill_card(kolo_peer_card_t *card, int rank, int device);
/* What the card of process `pid` of this host says; another process of the same number has another hash. */
uint64_t kolo_member_process_hash(uint64_t host_hash, int pid);
/* All-gathers cards, checks them, builds the node map. Collective. */
kolo_status_t kolo_member_gather(kolo_oob_t *oob, const kolo_peer_card_t *mine, kolo_member_t *member);
/* The node map alone, from cards that are already there (tests, plans for machines that are not here). */
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
    KOLO_NEWS_MISMATCH /* two ranks have called different things: nobody goes on */
} kolo_news_kind_t;
/* Called on the progress thread (or, for what is known already, by kolo_oob_set_news) with locks of this room held:
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
/* An operation on a wire has failed because a peer went: waits up to wait_ms for word of the rank that was lost
 * first, or that revoked (-1: none came; `why` says more, also of a partition). From now on this rank's own
 * farewells pass the blame on. */
int kolo_oob_first_lost(kolo_oob_t *oob, int wait_ms, char *why, size_t bytes);

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

/* ---- what a child hears of its parent while it is set up (inherit.c) ---- */

/* A child is set up over connections of its own, which tell less than the parent's. From here on until it is
 * set up it hears what its parent knows: losses of members, a partition between members, with `revokes` a revoke
 * (inherit.c has the rules). members[r]: rank r's rank in `from`, -1: none. `from` may be a child that was never
 * set up: then its parent is meant. Right after kolo_oob_open_child(). The parent may go meanwhile. */
kolo_status_t kolo_oob_inherit_failures(kolo_oob_t *oob, kolo_oob_t *from, const int *members, bool revokes);
/* The set-up is over. KOLO_ERR_REVOKED: the parent was revoked before; with this it is forgotten. */
kolo_status_t kolo_oob_setup_done(kolo_oob_t *oob);
/* The set-up failed by a member that went, which may have left because the parent lost somebody: waits up to
 * wait_ms for the parent's word of that. False: none came. */
bool kolo_oob_inherited_failure(kolo_oob_t *oob, int wait_ms, char *word, size_t bytes);
/* Has the parent's word (not a loss) put an end to the set-up? */
bool kolo_oob_setup_failed(kolo_oob_t *oob);
/* Adds to the words about a rank of a parent who that is: " (host a, process 12)". Called with locks held. */
typedef void (*kolo_oob_who_fn_t)(void *arg, int rank, char *buf, size_t bytes);
void kolo_oob_set_who(kolo_oob_t *oob, kolo_oob_who_fn_t fn, void *arg); /* NULL: none; it is not running then */

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

#endif
