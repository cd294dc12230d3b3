/* SPDX-License-Identifier: Apache-2.0
 *
 * The coordinator's table (controller.c), its checks (check.c) and its patience (stall.c), on rank 0 of a set. What
 * it keeps and does depends on how many different things ranks say, not on how many ranks say them.
 */
#ifndef KOLO_ENGINE_CONTROLLER_CONTROLLER_H
#define KOLO_ENGINE_CONTROLLER_CONTROLLER_H

#include "engine/controller/ranks.h"
#include "engine/request.h"
#include "member/member.h"

typedef struct {             /* what some ranks mean by a name */
    kolo_request_t *request; /* of the lowest of those who sent it first */
    uint64_t hash, cycle;    /* the cycle in which the first of them sent it */
    kolo_ranks_t ranks;
} kolo_kind_t;

typedef struct kolo_row { /* one name that some ranks have sent */
    kolo_name_t name;
    struct kolo_row *next_in_group;
    kolo_ranks_t sent;
    kolo_kind_t *kinds; /* by cycle, then by lowest rank */
    int nkinds;
    uint64_t since_ns, warnings; /* since when somebody has waited; how often that was told */
} kolo_row_t;

typedef struct kolo_row_group { /* rows of a group that are ready */
    kolo_name_t name;           /* its text is the group's number */
    uint64_t number;
    uint32_t size, nready;
    kolo_row_t *first, **tail;
} kolo_row_group_t;

typedef struct {
    uint64_t warn_ns, limit_ns;    /* 0: never */
    uint64_t patience_ns;          /* the shorter of both; 0: nobody looks */
    uint64_t next_ns;              /* when a row is due to be told; UINT64_MAX: none */
    const kolo_peer_card_t *peers; /* where ranks are, by rank of the set; NULL: not known */
} kolo_stall_t;

typedef struct {
    int nranks, njoined, last_joined;
    uint64_t cycle;
    int set;          /* for sentences: which set it is, */
    const int *ranks; /* and how its ranks are called in the job; NULL: as here */
    bool *joined;
    kolo_names_t rows, groups;
    kolo_responses_t out;
    kolo_stall_t stall;
} kolo_controller_t;

kolo_status_t kolo_controller_init(kolo_controller_t *c, int nranks);
void kolo_controller_fini(kolo_controller_t *c);
/* A rank has sent this. Answers that are ready gather in c->out, in the order in which they became so. */
kolo_status_t kolo_controller_request(kolo_controller_t *c, int rank, const kolo_request_t *request);
/* All of these ranks have: the same as one by one, if calls come in the order of their last ranks (tree.h). */
kolo_status_t kolo_controller_shared(kolo_controller_t *c, const kolo_request_t *request,
                                     const kolo_ranks_t *ranks);
/* All requests of a cycle are in: have all ranks joined? */
kolo_status_t kolo_controller_finish(kolo_controller_t *c);
/* Which ranks have not sent it and have not joined. */
bool kolo_row_lacks(const kolo_controller_t *c, const kolo_row_t *row, int rank);
/* KOLO_OK: all ranks mean the same; else `text` says why not. */
kolo_status_t kolo_row_check(const kolo_controller_t *c, const kolo_row_t *row, char *text, size_t bytes);

/* Milliseconds until tensors that some ranks lack are told, and until they end the engine; 0: never. */
void kolo_stall_init(kolo_stall_t *stall, int64_t warn_ms, int64_t limit_ms);
void kolo_stall_new_row(kolo_stall_t *stall, kolo_row_t *row);
void kolo_stall_waited(kolo_stall_t *stall, kolo_row_t *row, uint32_t waited_ms);
/* Warns of what is due. True: a row has reached the limit, and text names it and the ranks that it lacks. ranks:
 * how the set's ranks are called in the job. */
bool kolo_stall_look(kolo_controller_t *c, const int *ranks, char *text, size_t bytes);

#endif
