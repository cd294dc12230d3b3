/* SPDX-License-Identifier: Apache-2.0
 *
 * What was agreed on before (cache.c), in the same slots on all ranks, so that a bit tells of it.
 */
#ifndef KOLO_ENGINE_CONTROLLER_CACHE_H
#define KOLO_ENGINE_CONTROLLER_CACHE_H

#include "engine/request.h"

typedef struct {
    bool used;
    kolo_tensor_request_t request; /* as this rank sent it */
    char *name;
    int64_t *rows; /* of the response */
    bool device;   /* of the response */
    struct kolo_cache_group *group;
    int older, newer;
} kolo_cache_slot_t;

typedef struct {
    int capacity, nranks;
    bool off; /* nothing is kept */
    int top;  /* slots from here on have never been used */
    int count, oldest, newest;
    kolo_cache_slot_t *slots;
    kolo_names_t names, groups;
    uint64_t version; /* changes when a slot has other contents than before */
} kolo_cache_t;

typedef enum { KOLO_CACHE_MISS, KOLO_CACHE_HIT, KOLO_CACHE_INVALID } kolo_cache_found_t;
kolo_status_t kolo_cache_init(kolo_cache_t *cache, int capacity, int nranks);
void kolo_cache_fini(kolo_cache_t *cache);
/* Switches it on, or off: it forgets all, and keeps nothing. */
void kolo_cache_switch(kolo_cache_t *cache, bool on);
/* Finds a request; a group counts as cached when all of it is. *slot is set unless it is a miss. */
kolo_cache_found_t kolo_cache_find(const kolo_cache_t *cache, const kolo_tensor_request_t *request, int *slot);
/* Remembers an agreement; pushes the one out that was used longest ago if there is no room. Called in the same
 * order on all ranks, so that all have the same slots. */
kolo_status_t kolo_cache_put(kolo_cache_t *cache, const kolo_tensor_request_t *request, const int64_t *rows,
                             bool device);
void kolo_cache_touch(kolo_cache_t *cache, int slot);
void kolo_cache_erase(kolo_cache_t *cache, int slot);
/* Takes those slots out of `bits` whose group is not in it as a whole. */
void kolo_cache_keep_whole(kolo_cache_t *cache, uint64_t *bits);

#endif
