/* SPDX-License-Identifier: Apache-2.0
 *
 * A hash table of things that have a name, threaded through the things themselves. See engine.h.
 */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

void kolo_name_init(kolo_name_t *name, const char *text, uint32_t length)
{
    *name = (kolo_name_t){NULL, kolo_hash_bytes(KOLO_HASH_INIT, text, length), length, text};
}

static kolo_name_t **place(const kolo_names_t *names, const kolo_name_t *like)
{
    kolo_name_t **at = &names->buckets[like->hash & (names->nbuckets - 1)];
    while (*at != NULL && ((*at)->hash != like->hash || (*at)->length != like->length ||
                           memcmp((*at)->text, like->text, like->length) != 0))
        at = &(*at)->next;
    return at;
}

kolo_name_t *kolo_names_find(const kolo_names_t *names, const kolo_name_t *like)
{
    return names->nbuckets ? *place(names, like) : NULL;
}

static kolo_status_t grow(kolo_names_t *names)
{
    size_t n = names->nbuckets ? names->nbuckets * 2 : 64;
    kolo_name_t **buckets = calloc(n, sizeof *buckets);
    if (!buckets) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %zu names", n);
    for (size_t i = 0; i < names->nbuckets; i++) {
        for (kolo_name_t *name = names->buckets[i], *next; name; name = next) {
            next = name->next;
            name->next = buckets[name->hash & (n - 1)];
            buckets[name->hash & (n - 1)] = name;
        }
    }
    free(names->buckets);
    names->buckets = buckets;
    names->nbuckets = n;
    return KOLO_OK;
}

kolo_status_t kolo_names_add(kolo_names_t *names, kolo_name_t *name)
{
    if (names->count >= names->nbuckets) KOLO_TRY(grow(names));
    kolo_name_t **head = &names->buckets[name->hash & (names->nbuckets - 1)];
    name->next = *head;
    *head = name;
    names->count++;
    return KOLO_OK;
}

void kolo_names_remove(kolo_names_t *names, kolo_name_t *name)
{
    kolo_name_t **at = place(names, name);
    *at = name->next;
    name->next = NULL;
    names->count--;
}

void kolo_names_fini(kolo_names_t *names)
{
    free(names->buckets);
    *names = (kolo_names_t){NULL, 0, 0};
}
