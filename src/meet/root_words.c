/* SPDX-License-Identifier: Apache-2.0
 *
 * The error text of a root whose time is over: which ranks have checked in and which have not.
 */
#include "meet/root.h"

#include <stdio.h>

int kolo_root_shown(const root_t *root, int rank)
{
    return root->id.first_rank > 0 && rank > 0 ? rank + root->id.first_rank - 1 : rank;
}

typedef struct {
    char *at, *end;
    int parts;
} list_t;

static void list_range(list_t *list, int from, int to, const char *note)
{
    if (list->parts++ == 12) list->at += snprintf(list->at, (size_t)(list->end - list->at), ", ...");
    if (list->parts > 12) return;
    char range[64];
    snprintf(range, sizeof(range), from == to ? "%d" : "%d-%d", from, to);
    int n = snprintf(list->at, (size_t)(list->end - list->at), "%s%s%s", list->parts > 1 ? ", " : "", range, note);
    list->at += KOLO_MIN((size_t)n, (size_t)(list->end - list->at - 1));
}

/* Returns the next rank. */
static int list_old(list_t *list)
{
    list->parts++;
    list->at += snprintf(list->at, (size_t)(list->end - list->at), "the old rank that has the id");
    return 1;
}

void kolo_root_missing(const root_t *root, char *text, size_t bytes)
{
    char *end = text + bytes - 8;
    list_t list = {text, end, 0};
    text[0] = '\0';
    for (int i = 0, from = 0; i <= root->count; i++) {
        if (i < root->count && i > from && root->entries[i].step == root->entries[from].step) continue;
        if (i > from && root->entries[from].step < STEP_CHECKED_IN) {
            const char *note =
                root->entries[from].step == STEP_NEVER ? " (never called)" : " (proved itself, sent nothing)";
            if (root->id.first_rank > 0 && from == 0) from = list_old(&list);
            if (i > from)
                list_range(&list, kolo_root_shown(root, root->first + from),
                           kolo_root_shown(root, root->first + i - 1), note);
        }
        from = i;
    }
    if (root->nids > 1 && root->seen == root->count && !root->neighbour_seen)
        snprintf(text, bytes, "%d (first rank of the next root)", (root->first + root->count) % root->nranks);
}
