/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of one step: one queue per key, which holds only sends or only receives, since each send takes the
 * first waiting receive and each receive the first waiting send. See internal.h.
 */
#include "rendezvous/internal.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_BUCKETS 16 /* a power of two */

static kolo_queue_of_key_t **find(kolo_key_table_t *table, uint64_t hash, const char *text)
{
    kolo_queue_of_key_t **at = &table->buckets[hash & (table->nbuckets - 1)];
    while (*at && ((*at)->hash != hash || strcmp((*at)->text, text) != 0)) at = &(*at)->next;
    return at;
}

static kolo_status_t grow(kolo_key_table_t *table)
{
    size_t n = table->nbuckets ? 2 * table->nbuckets : FIRST_BUCKETS;
    kolo_queue_of_key_t **buckets = calloc(n, sizeof *buckets);
    if (buckets == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for %zu keys", n);
    for (size_t i = 0; i < table->nbuckets; i++) {
        while (table->buckets[i]) {
            kolo_queue_of_key_t *queue = table->buckets[i], **at = &buckets[queue->hash & (n - 1)];
            table->buckets[i] = queue->next;
            queue->next = *at;
            *at = queue;
        }
    }
    free(table->buckets);
    table->buckets = buckets;
    table->nbuckets = n;
    return KOLO_OK;
}

static void drop_if_empty(kolo_key_table_t *table, kolo_queue_of_key_t *queue)
{
    if (queue->first) return;
    kolo_queue_of_key_t **at = &table->buckets[queue->hash & (table->nbuckets - 1)];
    while (*at != queue) at = &(*at)->next;
    *at = queue->next;
    table->nqueues--;
    free(queue);
}

kolo_item_t *kolo_table_first_receive(kolo_key_table_t *table, const char *text)
{
    if (table->nqueues == 0) return NULL;
    kolo_queue_of_key_t *queue = *find(table, kolo_key_hash(text), text);
    return queue && queue->first->receive ? queue->first : NULL;
}

kolo_item_t *kolo_table_first_send(kolo_key_table_t *table, const char *text)
{
    if (table->nqueues == 0) return NULL;
    kolo_queue_of_key_t *queue = *find(table, kolo_key_hash(text), text);
    return queue && queue->first->receive == NULL ? queue->first : NULL;
}

kolo_status_t kolo_table_add(kolo_key_table_t *table, const char *text, kolo_item_t *item)
{
    size_t n = strlen(text);
    uint64_t hash = kolo_key_hash(text);
    if (table->nqueues >= table->nbuckets) KOLO_TRY(grow(table));
    kolo_queue_of_key_t **at = find(table, hash, text);
    if (*at == NULL) {
        kolo_queue_of_key_t *queue = malloc(sizeof *queue + n + 1);
        if (queue == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for a key");
        *queue = (kolo_queue_of_key_t){.hash = hash, .last = &queue->first};
        memcpy(queue->text, text, n + 1);
        *at = queue;
        table->nqueues++;
    }
    item->next = NULL;
    item->queue = *at;
    *(*at)->last = item;
    (*at)->last = &item->next;
    table->nitems++;
    if (item->receive) item->receive->item = item;
    return KOLO_OK;
}

void kolo_table_remove(kolo_key_table_t *table, kolo_item_t *item)
{
    kolo_queue_of_key_t *queue = item->queue;
    kolo_item_t **at = &queue->first;
    while (*at != item) at = &(*at)->next;
    *at = item->next;
    if (queue->last == &item->next) queue->last = at;
    table->nitems--;
    item->next = NULL;
    item->queue = NULL;
    if (item->receive) item->receive->item = NULL;
    drop_if_empty(table, queue);
}

kolo_item_t *kolo_table_take_all(kolo_key_table_t *table)
{
    kolo_item_t *all = NULL, **last = &all;
    for (size_t i = 0; i < table->nbuckets; i++) {
        for (kolo_queue_of_key_t *queue = table->buckets[i], *next; queue; queue = next) {
            next = queue->next;
            *last = queue->first;
            last = queue->last;
            free(queue);
        }
    }
    for (kolo_item_t *item = all; item; item = item->next) {
        item->queue = NULL;
        if (item->receive) item->receive->item = NULL;
    }
    free(table->buckets);
    memset(table, 0, sizeof *table);
    return all;
}
