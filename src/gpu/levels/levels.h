/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor of GPU communicators over several hosts on each of which GPUs reach each other: a long collective is
 * cut into a part for each lane. The kernels of a host make or spread the parts, and each part goes from host to
 * host by itself, through host memory. A lane joins the ranks that have the same place on their hosts. There are as
 * many as the smallest host has ranks; the ranks with later places have none, and only take part inside their host.
 * The executor consists of three others, which comm opens: one for the ranks of this host, one for this rank's
 * lane, one for all ranks.
 */
#ifndef KOLO_GPU_LEVELS_LEVELS_H
#define KOLO_GPU_LEVELS_LEVELS_H

#include "exec/exec.h"

typedef struct {
    const kolo_exec_ops_t *ops;
    void *state;
} kolo_exec_part_t;

/* Ranks are numbered host by host: host h has size[h] ranks, from first[h] on. */
typedef struct {
    int rank, hosts, device;
    const int *first, *size;                /* live as long as the executor */
    kolo_exec_part_t inside, across, whole; /* across: ops is NULL on a rank without a lane */
    /* A kernel of an operation, `number` and `word` as in exec.h, is about to be launched inside: its number
     * there. */
    uint64_t (*enter)(void *arg, uint64_t number, uint64_t word);
    void *enter_arg;
} kolo_levels_env_t;

/* Returns how many lanes there are. */
int kolo_levels_lanes(const int *size, int hosts);
/* Takes the parts over on success. */
kolo_status_t kolo_levels_make(const kolo_levels_env_t *env, void **state);
/* Its open() has comm open the parts (env->levels), which then comes to kolo_levels_make(). */
extern const kolo_exec_ops_t kolo_exec_levels;

#endif
