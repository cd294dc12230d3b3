/* SPDX-License-Identifier: Apache-2.0
 *
 * What the control groups of this process permit it: those of the unified hierarchy, its own and all above it.
 */
#ifndef KOLO_BASE_CPU_GROUP_H
#define KOLO_BASE_CPU_GROUP_H

#include <stdint.h>

/* Calls look with the first line of the group's `file`, for each group that has it. */
void kolo_group_each(const char *file, void (*look)(void *arg, const char *line), void *arg);
/* Returns how many bytes of memory this process can have: those of the machine, or fewer if a group of its
 * (memory.max) or RLIMIT_AS says so. */
uint64_t kolo_memory_limit(void);

#endif
