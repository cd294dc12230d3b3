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

/* Fixed layout, little endian, versioned: it travels. 128 bytes. */
typedef struct {
    uint32_t version;      /* KOLO_VERSION; all ranks must agree */
    uint32_t card_version; /* layout of this struct: 1 */
    int32_t rank;
    int32_t device;        /* -1 CPU */
    uint64_t host_hash;    /* boot id, host name, network and IPC namespaces; or KOLO_HOST_ID */
    uint64_t process_hash; /* host_hash, pid, start time: equal only within one process */
    uint64_t shm_hash;     /* who can exchange descriptors: host_hash and network namespace (abstract sockets) */
    int32_t pid;
    uint32_t uid;
    uint32_t wires;         /* bit per wire kind that this rank has enabled */
    uint32_t cores;         /* cores its process may use */
    uint64_t probe_address; /* of a word in its memory that holds process_hash (wire/cma); 0: none */
    uint8_t fd_address[16]; /* name of the process's descriptor-passing socket (wire/fdpass.h) */
    char host_name[32];     /* cut, always terminated */
    uint8_t core_mask[16]; /* which cores those are (kolo_core_mask): the ranks of a host may share or split them */
} kolo_peer_card_t;
_Static_assert(sizeof(kolo_peer_card_t) == 128, "a peer card travels: its size is part of the protocol");

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

#endif
