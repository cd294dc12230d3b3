/* SPDX-License-Identifier: Apache-2.0
 *
 * The hierarchical executor, for its own files. levels.c: the executor, and which collective goes in levels;
 * parts.c: launches in one of its parts; vectors.c: collectives over one vector; blocks.c and uneven.c: collectives
 * with a block for each rank.
 */
#ifndef KOLO_GPU_LEVELS_PARTS_H
#define KOLO_GPU_LEVELS_PARTS_H

#include "gpu/levels/levels.h"
#include "mem/mem.h"

typedef struct {
    kolo_levels_env_t env;
    int host, local; /* this rank's host, its place there */
    int here, most;  /* ranks on this host, on the largest one */
    int lanes;
    bool even;          /* all hosts have equally many ranks: each rank has a lane */
    kolo_mem_t scratch; /* between what is done inside and what is done across */
    size_t room_bytes;  /* as much of it as all ranks use; a device may have given more */
    bool begun;         /* something of the call that is being queued is */
} kolo_levels_t;

/* Does each rank of this host have a lane? */
static inline bool kolo_levels_all_lead(const kolo_levels_t *s)
{
    return s->here == s->lanes;
}
static inline char *kolo_levels_at(const void *p, uint64_t elements, size_t elem)
{
    return (char *)(uintptr_t)p + elements * elem; /* NOLINT: device memory */
}

/* Returns the host of a rank. */
int kolo_levels_host_of(const kolo_levels_t *s, int rank);
/* Elements of each of `parts` parts that the scratch memory has room for at a time. At least 64. */
uint64_t kolo_levels_room(const kolo_levels_t *s, const kolo_exec_call_t *c, uint64_t parts);

/* Makes of c the collective `coll` among the ranks of a host, or in a lane. Inputs are scaled, once, where they are
 * reduced inside a host; results are divided between hosts. */
kolo_exec_call_t kolo_levels_inside(const kolo_exec_call_t *c, kolo_coll_t coll);
kolo_exec_call_t kolo_levels_across(const kolo_exec_call_t *c, kolo_coll_t coll);
/* Launches such a call. A rank without a lane does nothing across. */
kolo_status_t kolo_levels_launch_inside(kolo_levels_t *s, const kolo_exec_call_t *call);
kolo_status_t kolo_levels_launch_across(kolo_levels_t *s, const kolo_exec_call_t *call);
kolo_status_t kolo_levels_launch_whole(kolo_levels_t *s, const kolo_exec_call_t *calls, size_t n);

typedef kolo_status_t (*kolo_levels_fn_t)(kolo_levels_t *s, const kolo_exec_call_t *c);
/* Reduces at least as many elements as there are lanes (vectors.c). What does not divide by the lanes goes
 * whole. */
kolo_status_t kolo_levels_all_reduce(kolo_levels_t *s, const kolo_exec_call_t *c);
kolo_status_t kolo_levels_broadcast(kolo_levels_t *s, const kolo_exec_call_t *c);
kolo_status_t kolo_levels_reduce(kolo_levels_t *s, const kolo_exec_call_t *c);
/* Runs where hosts have equally many ranks, as the next ones do (blocks.c). gather, scatter: the scratch memory has
 * room for a block of each host. */
kolo_status_t kolo_levels_all_gather(kolo_levels_t *s, const kolo_exec_call_t *c);
kolo_status_t kolo_levels_reduce_scatter(kolo_levels_t *s, const kolo_exec_call_t *c);
kolo_status_t kolo_levels_all_to_all(kolo_levels_t *s, const kolo_exec_call_t *c);
kolo_status_t kolo_levels_gather(kolo_levels_t *s, const kolo_exec_call_t *c);
kolo_status_t kolo_levels_scatter(kolo_levels_t *s, const kolo_exec_call_t *c);
/* Does the same where they do not (uneven.c). */
kolo_status_t kolo_levels_all_gather_uneven(kolo_levels_t *s, const kolo_exec_call_t *c);
kolo_status_t kolo_levels_reduce_scatter_uneven(kolo_levels_t *s, const kolo_exec_call_t *c);

#endif
