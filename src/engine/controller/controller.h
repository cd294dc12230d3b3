/* SPDX-License-Identifier: Apache-2.0
 *
 * The coordinator's table (controller.c), its checks (check.c) and its reports of stalls (stall.c), on rank 0 of a
 * set. Memory and time depend on the number of different requests, not on the number of ranks that send them.
 */
#ifndef KOLO_ENGINE_CONTROLLER_CONTROLLER_H
#define KOLO_ENGINE_CONTROLLER_CONTROLLER_H

#include "base/recorder.h"
#include "engine/controller/ranks.h"
#include "engine/request.h"
#include "member/member.h"

#include <pthread.h>

typedef struct {                    /* equal requests of some ranks for a name */
    kolo_tensor_request_t *request; /* of the lowest rank among the first senders */
    uint64_t hash, cycle;           /* the cycle in which the first of them sent it */
    kolo_ranks_t ranks;
} kolo_kind_t;

typedef struct kolo_row { /* one name that some ranks have sent */
    kolo_name_t name;
    struct kolo_row *next_in_group;
    kolo_ranks_t sent;
    kolo_kind_t *kinds; /* by cycle, then by lowest rank */
    int nkinds;
    uint64_t since_ns, warnings; /* when the first rank began to wait; number of warnings so far */
} kolo_row_t;

typedef struct kolo_row_group { /* rows of a group that are ready */
    kolo_name_t name;           /* its text is the group's number */
    uint64_t number;
    uint32_t size, nready;
    kolo_row_t *first, **tail;
} kolo_row_group_t;

/* Where kolo-top finds what tensors wait for: the flight record of the set's communicator, which another thread may
 * end while the loop runs. */
typedef struct {
    pthread_mutex_t lock;
    kolo_record_t *record; /* NULL: nowhere, or not any more */
} kolo_note_t;
void kolo_note_wait(kolo_note_t *note, uint64_t since_ns, bool blames, const char *text);
void kolo_note_last(kolo_note_t *note, const char *last);
void kolo_note_callback(kolo_note_t *note, uint64_t since_ns); /* as kolo_record_callback() */
void kolo_note_close(kolo_note_t *note);                       /* before the communicator ends */

typedef struct {
    uint64_t warn_ns, limit_ns;    /* 0: never */
    uint64_t patience_ns;          /* the shorter of both; 0: no checks */
    uint64_t next_ns;              /* when the next row is due; UINT64_MAX: none */
    const kolo_peer_card_t *peers; /* cards by rank of the set; NULL: not known */
    kolo_note_t *note;             /* who is missing is written there; NULL: nowhere */
} kolo_stall_t;

/* From then on kolo-top is told who has not submitted a tensor, long before a warning. */
#define KOLO_STALL_SHOWN_NS KOLO_NS_PER_S

typedef struct {
    int nranks, njoined, last_joined;
    uint64_t cycle;
    int set;          /* for messages: the set, */
    const int *ranks; /* and its ranks in the job; NULL: the same */
    bool *joined;
    kolo_names_t rows, groups;
    kolo_responses_t out;
    kolo_stall_t stall;
    /* The join, as a row that lacks who has not joined, for the stall inspector; it is in no table. It waits from
     * the first join on, anew after each operation: the others may have more input. */
    kolo_row_t join_row;
    kolo_kind_t join_kind;
    kolo_tensor_request_t join_request;
} kolo_controller_t;

kolo_status_t kolo_controller_init(kolo_controller_t *c, int nranks);
void kolo_controller_fini(kolo_controller_t *c);
/* Takes a request of a rank. Answers are appended to c->out when they become ready. */
kolo_status_t kolo_controller_request(kolo_controller_t *c, int rank, const kolo_tensor_request_t *request);
/* Operations have been agreed on: who has joined does not wait for a rank that is stuck. */
void kolo_controller_worked(kolo_controller_t *c);
/* Takes the same request of several ranks. Equal to single calls if calls come in the order of their last ranks
 * (tree.h). */
kolo_status_t kolo_controller_shared(kolo_controller_t *c, const kolo_tensor_request_t *request,
                                     const kolo_ranks_t *ranks);
/* Ends a cycle after all its requests: answers join if all ranks have joined. */
kolo_status_t kolo_controller_finish(kolo_controller_t *c);
/* Returns true if `rank` has neither sent the request nor joined. */
bool kolo_row_lacks(const kolo_controller_t *c, const kolo_row_t *row, int rank);
/* Returns KOLO_OK if all ranks sent equal requests; else `text` names the difference. */
kolo_status_t kolo_row_check(const kolo_controller_t *c, const kolo_row_t *row, char *text, size_t bytes);

/* Sets after how long a tensor that some ranks lack is reported, and ends the engine; 0: never. */
void kolo_stall_init(kolo_stall_t *stall, int64_t warn_ms, int64_t limit_ms);
void kolo_stall_new_row(kolo_stall_t *stall, kolo_row_t *row);
void kolo_stall_waited(kolo_stall_t *stall, kolo_row_t *row, uint32_t waited_ms);
/* Logs warnings that are due and writes down for kolo-top who is missing. True: a row has reached the limit, and
 * text names it and the ranks that lack it. ranks: the set's ranks in the job. */
bool kolo_stall_look(kolo_controller_t *c, const int *ranks, char *text, size_t bytes);

#endif
