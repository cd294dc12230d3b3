/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor of GPU communicators over several hosts on each of which GPUs reach each other: a long collective is
 * cut into a part for each GPU of a host. The kernels of a host make or spread the parts, and each part goes from
 * host to host by itself, through host memory. It consists of three other executors, which comm opens: one for the
 * ranks of this host, one for the ranks with this rank's place on the other hosts (a lane), one for all ranks.
 */
#ifndef KOLO_EXEC_LEVELS_LEVELS_H
#define KOLO_EXEC_LEVELS_LEVELS_H

#include "exec/exec.h"

typedef struct {
    const kolo_exec_ops_t *ops;
    void *state;
} kolo_exec_part_t;

/* Ranks are numbered host by host, `per_host` on each. */
typedef struct {
    int rank, hosts, per_host, device;
    kolo_exec_part_t inside, across, whole;
    /* A kernel of an operation, `number` and `word` as in exec.h, is about to be launched inside: its number there.
     */
    uint64_t (*enter)(void *arg, uint64_t number, uint64_t word);
    void *enter_arg;
} kolo_levels_env_t;

/* Takes the parts over on success. */
kolo_status_t kolo_levels_make(const kolo_levels_env_t *env, void **state);
/* Its open() has comm open the parts (env->levels), which then comes to kolo_levels_make(). */
extern const kolo_exec_ops_t kolo_exec_levels;

#endif
