/* SPDX-License-Identifier: Apache-2.0
 *
 * Which cores the processes of a host run on (--bind-to). The ranks of a host divide its cores among themselves:
 * each gets as many whole cores as there are for it, with all their hardware threads, neighbours side by side. Only
 * cores that the agent itself may use count (its affinity, the cpuset of its cgroup). With more ranks than cores
 * nothing is bound. Both ends know this file: kolorun writes the wish into a process's environment, the agent takes
 * it out there and does it.
 */
#ifndef KOLO_TOOLS_KOLORUN_BIND_H
#define KOLO_TOOLS_KOLORUN_BIND_H

#include <stdbool.h>
#include <stddef.h>

typedef enum {
    KOLORUN_BIND_AUTO, /* not asked for: as CORE, and nothing is said where it cannot be */
    KOLORUN_BIND_CORE,
    KOLORUN_BIND_NUMA, /* to the whole NUMA nodes of the share */
    KOLORUN_BIND_NONE
} kolorun_bind_t;

/* The user's default for --bind-to; and what kolorun asks of its agents, which take it out of the ranks'
 * environment. */
#define KOLORUN_BIND_VARIABLE "KOLORUN_BIND_TO"

/* "core", "numa", "none"; false: another word. */
bool kolorun_bind_parse(const char *text, kolorun_bind_t *how);
/* The variable with its value, for the environment of a process. */
void kolorun_bind_variable(kolorun_bind_t how, bool report, char *text, size_t bytes);

/* The cores of this host that may be used. */
typedef struct kolorun_places kolorun_places_t;
/* Before the fork, for a process with this environment: looks at the machine when that is needed the first time. */
void kolorun_places_need(kolorun_places_t **places, char *const *env);
void kolorun_places_free(kolorun_places_t *places);
/* In the process, whose environment is set: takes the variable out, binds, and says where to `fd` if that is
 * wanted. */
void kolorun_bind_self(const kolorun_places_t *places, int fd);

#endif
