/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves in levels, for any libraries that have groups: the ranks of a process set on one host are one group
 * (inside), those with the same place on their hosts another (across). levels.c has the moves; the groups of Kolo,
 * MPI and NCCL are beside their backends; backend_levels.c has who is combined with whom.
 */
#ifndef KOLO_ENGINE_BACKENDS_LEVELS_H
#define KOLO_ENGINE_BACKENDS_LEVELS_H

#include "engine/backends/backend.h"

enum { KOLO_LEVEL_LOCAL, KOLO_LEVEL_CROSS };
typedef struct {
    const char *name; /* local or cross */
    int purpose;      /* KOLO_LEVEL_... */
    int color, key;   /* as of a split; KOLO_SPLIT_NOCOLOR: this rank is in no group of this level */
    const int *ranks; /* this rank's group: ranks of the set, in the order of the group */
    int nranks, rank;
    bool on_gpus; /* its memory is that of the GPUs that ranks work on */
} kolo_level_t;

/* A library's groups. */
typedef struct {
    /* Of no group: *group stays NULL. Collective over the set. state: what the backend's open() has made. */
    kolo_status_t (*meet)(kolo_set_t *s, void *state, const kolo_level_t *level, void **group);
    void (*leave)(void *group, bool abort); /* as of backends */
    void (*free)(void *group);              /* NULL: nothing is left */
    /* Runs the move among the group's ranks, which its tables and its root number. need.bytes is not looked at. */
    kolo_status_t (*run)(void *group, const kolo_move_t *move);
    bool broadcasts;                      /* it takes them */
    kolo_status_t (*status)(void *group); /* as of backends; NULL: who ends what is queued has failed the engine */
} kolo_group_ops_t;

extern const kolo_group_ops_t kolo_group_kolo, kolo_group_mpi, kolo_group_nccl;
extern const kolo_group_ops_t kolo_group_mpi_staged; /* between GPUs, across hosts alone */

/* What a backend combines. */
typedef struct {
    const kolo_group_ops_t *inside, *across;
    bool on_gpus;    /* moves are of memory of GPUs */
    bool apart;      /* input and output, in host memory, must not overlap */
    bool no_average; /* KOLO_AVG is no operator of theirs, whose memory is the host's */
} kolo_backend_levels_t;

/* Tells whether there are several hosts, with several ranks on one of them. Else flat is as good. */
bool kolo_backend_levels_have_some(const kolo_set_t *s);
/* Does the set have hosts among which this can be done? Equal on all ranks. */
bool kolo_backend_levels_fit(const kolo_set_t *s, const kolo_backend_levels_t *levels, const kolo_need_t *need);
kolo_status_t kolo_backend_levels_meet(kolo_set_t *s, void *state, const kolo_backend_levels_t *levels,
                                       void **here);
void kolo_backend_levels_leave(void *here, bool abort);
void kolo_backend_levels_free(void *here);
kolo_status_t kolo_backend_levels_status(void *here);
kolo_status_t kolo_backend_levels_run(kolo_set_t *s, void *here, const kolo_move_t *move);

#endif
