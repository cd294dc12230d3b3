/* SPDX-License-Identifier: Apache-2.0
 *
 * How the ranks of a process set talk about what to do, as opposed to doing it (backend.h): the few collective
 * steps that negotiate.c and slow.c are made of. Two implementations: Kolo's communicators (talk.c), and
 * MPI (talk_mpi.c), for machines whose administrators want all traffic to be MPI's. KOLO_ENGINE_CONTROLLER
 * chooses, equally on all ranks.
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
    /* For a set that this rank belongs to, collective over its ranks; *here is the set's, NULL is fine. */
    kolo_status_t (*meet)(kolo_set_t *s, void **here);
    void (*leave)(void *here, bool abort); /* as kolo_backend_t's; NULL where meet leaves nothing */
    void (*free)(void *here);
    void (*close)(struct kolo_tensor_engine *e); /* NULL: nothing to do */
    /* all[i] = AND, or OR, of the ranks' mine[i]. */
    kolo_status_t (*and_bits)(kolo_set_t *s, const uint64_t *mine, uint64_t *all, size_t words);
    kolo_status_t (*or_bits)(kolo_set_t *s, const uint64_t *mine, uint64_t *all, size_t words);
    /* Rank 0 gets every other rank's bytes, one behind the other in rank order, in `all`, and each rank's length in
     * lengths[0..size), its own included. Elsewhere both are NULL. A rank may have 0 bytes and at most
     * KOLO_ENGINE_MESSAGE_MAX: rank 0 refuses more. */
    kolo_status_t (*gather)(kolo_set_t *s, const kolo_bytes_t *mine, kolo_bytes_t *all, uint64_t *lengths);
    /* For the tree (tree.h). A rank sends its bytes to another, which receives from `count` ranks, one behind the
     * other in that order, at most limits[i] of the i-th. */
    kolo_status_t (*send)(kolo_set_t *s, int to, const kolo_bytes_t *mine);
    kolo_status_t (*receive)(kolo_set_t *s, const int *from, const uint64_t *limits, int count, kolo_bytes_t *all,
                             uint64_t *lengths);
    /* Every rank gets rank 0's bytes in place of its own. */
    kolo_status_t (*broadcast)(kolo_set_t *s, kolo_bytes_t *bytes);
} kolo_talk_t;

extern int64_t kolo_talk_which; /* KOLO_ENGINE_CONTROLLER */
extern const kolo_talk_t kolo_talk_kolo, kolo_talk_mpi;

/* Opens the one that the parameters choose, for the engine and its set 0; e->talk is it only then. Collective;
 * it fails alike on all ranks. */
kolo_status_t kolo_talk_open(struct kolo_tensor_engine *e);
void kolo_talk_close(struct kolo_tensor_engine *e);
kolo_status_t kolo_talk_meet(kolo_set_t *s);
void kolo_talk_leave(kolo_set_t *s, bool abort);
void kolo_talk_free(kolo_set_t *s);

/* Rank 0's half of the lengths: refuses what is too long; the sum of all but rank 0's own. */
kolo_status_t kolo_talk_sum(const kolo_set_t *s, const uint64_t *lengths, size_t *total);
/* Of one rank, from which at most `limit` may come. */
kolo_status_t kolo_talk_check(int rank, uint64_t length, uint64_t limit);
/* The other ranks' half of a broadcast: refuses what is too long, and makes room. */
kolo_status_t kolo_talk_room(kolo_bytes_t *bytes, uint64_t length);

#endif
