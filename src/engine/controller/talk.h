/* SPDX-License-Identifier: Apache-2.0
 *
 * How the ranks of a process set agree on what to do (backend.h does it): the few collective steps of negotiate.c
 * and slow.c. Two implementations: Kolo's communicators (talk.c), and MPI (talk_mpi.c), for machines whose
 * administrators want all traffic to be MPI's. KOLO_ENGINE_CONTROLLER chooses, equally on all ranks.
 *
 * All of it is the loop's. A step that fails ends the engine.
 */
#ifndef KOLO_ENGINE_CONTROLLER_TALK_H
#define KOLO_ENGINE_CONTROLLER_TALK_H

#include "engine/engine.h"

typedef struct kolo_talk {
    const char *name;
    /* At the start of an engine; collective over the job, also where it fails. NULL: nothing to do. */
    kolo_status_t (*open)(struct kolo_tensor_engine *e);
    /* Makes the state for a set of this rank in *here (may be NULL). Collective over the set's ranks. */
    kolo_status_t (*meet)(kolo_set_t *s, void **here);
    void (*leave)(void *here, bool abort); /* as kolo_backend_t's; NULL where meet leaves nothing */
    void (*free)(void *here);
    void (*close)(struct kolo_tensor_engine *e); /* NULL: nothing to do */
    /* all[i] = AND, or OR, of the ranks' mine[i]. */
    kolo_status_t (*and_bits)(kolo_set_t *s, const uint64_t *mine, uint64_t *all, size_t words);
    kolo_status_t (*or_bits)(kolo_set_t *s, const uint64_t *mine, uint64_t *all, size_t words);
    /* Rank 0 gets the bytes of all other ranks in rank order in `all`, and the length of each rank, also its own,
     * in lengths[0..size). Elsewhere both are NULL. A rank sends 0 to KOLO_ENGINE_MESSAGE_MAX bytes; rank 0 refuses
     * more. */
    kolo_status_t (*gather)(kolo_set_t *s, const kolo_bytes_t *mine, kolo_bytes_t *all, uint64_t *lengths);
    /* For the tree (tree.h). A rank sends its bytes to another, which receives from `count` ranks in that order, at
     * most limits[i] bytes from the i-th. */
    kolo_status_t (*send)(kolo_set_t *s, int to, const kolo_bytes_t *mine);
    kolo_status_t (*receive)(kolo_set_t *s, const int *from, const uint64_t *limits, int count, kolo_bytes_t *all,
                             uint64_t *lengths);
    /* Every rank gets rank 0's bytes in place of its own. */
    kolo_status_t (*broadcast)(kolo_set_t *s, kolo_bytes_t *bytes);
} kolo_talk_t;

extern int64_t kolo_talk_which; /* KOLO_ENGINE_CONTROLLER */
extern const kolo_talk_t kolo_talk_kolo, kolo_talk_mpi;

/* Opens the implementation that the parameters choose, for the engine and its set 0, and sets e->talk. Collective;
 * fails on all ranks or none. */
kolo_status_t kolo_talk_open(struct kolo_tensor_engine *e);
void kolo_talk_close(struct kolo_tensor_engine *e);
kolo_status_t kolo_talk_meet(kolo_set_t *s);
void kolo_talk_leave(kolo_set_t *s, bool abort);
void kolo_talk_free(kolo_set_t *s);

/* Sums lengths on rank 0, without rank 0's own; refuses those that are too large. */
kolo_status_t kolo_talk_sum(const kolo_set_t *s, const uint64_t *lengths, size_t *total);
/* Refuses a length of more than `limit` from one rank. */
kolo_status_t kolo_talk_check(int rank, uint64_t length, uint64_t limit);
/* Makes room on the other ranks of a broadcast, or refuses a length that is too large. */
kolo_status_t kolo_talk_room(kolo_bytes_t *bytes, uint64_t length);

#endif
