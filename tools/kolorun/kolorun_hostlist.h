/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of hosts with slots: "host:slots,host:slots" (-H, what a discovery script prints) and host files, a host a
 * line, as "host:slots" or "host slots=N", with # comments. Without a number it is one slot; "[...]" around an IPv6
 * address. A host named twice has the sum.
 */
#ifndef KOLO_TOOLS_KOLORUN_HOSTLIST_H
#define KOLO_TOOLS_KOLORUN_HOSTLIST_H

#include <stdbool.h>
#include <stddef.h>

#define KOLORUN_HOST_NAME_MAX 255
#define KOLORUN_SLOTS_MAX     65536
#define KOLORUN_HOSTS_MAX     65536

typedef struct {
    char name[KOLORUN_HOST_NAME_MAX + 1];
    int slots;
} kolorun_hostslots_t;

typedef struct {
    kolorun_hostslots_t *hosts; /* NULL when empty; kolorun_hostlist_fini() frees it */
    int count, slots;           /* slots: of all */
} kolorun_hostlist_t;

/* Adds what text[0..bytes) names, separated by commas or (in a file) line ends. false: a sentence in why; the list
 * then holds what came before the mistake. */
bool kolorun_hostlist_add(kolorun_hostlist_t *list, const char *text, size_t bytes, char *why, size_t why_bytes);
bool kolorun_hostlist_read(kolorun_hostlist_t *list, const char *path, char *why, size_t why_bytes);
void kolorun_hostlist_fini(kolorun_hostlist_t *list);

#endif
