/* SPDX-License-Identifier: Apache-2.0
 *
 * What the control groups of this process permit it: its own and all above it, in the unified hierarchy and in the
 * older one of a controller, which some hosts still have.
 */
#ifndef KOLO_BASE_CPU_GROUP_H
#define KOLO_BASE_CPU_GROUP_H

#include <stdint.h>

typedef struct {
    const char *file;                            /* in the unified hierarchy */
    const char *controller, *older, *older_then; /* the same in one or two (or NULL) of the controller's own */
} kolo_group_word_t;
/* Calls look with the first line of the file, for each group that has it; of two files with both lines, a space
 * between. */
void kolo_group_each(const kolo_group_word_t *word, void (*look)(void *arg, const char *line), void *arg);
/* Returns how many bytes of memory this process can have: those of the machine, or fewer if a group of its
 * (memory.max) or RLIMIT_AS says so. */
uint64_t kolo_memory_limit(void);

#endif
