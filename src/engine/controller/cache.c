/* SPDX-License-Identifier: Apache-2.0
 *
 * The response cache: which tensors all ranks have agreed on before, each in a slot whose number is its bit in the
 * vector that ranks reduce. All ranks put, touch and erase in the same order, so the same tensor has the same slot
 * everywhere; what differs is only this rank's own request (its first dimension of an all_gather). Slots keep their
 * numbers until they are erased or pushed out, and the lowest unused one is taken first.
 *
 * Groups count as cached when all of their tensors are: else some ranks might send bits for one half while the
 * coordinator waits for the whole.
 */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

typedef struct kolo_cache_group {
    kolo_name_t name; /* text: the bytes of `number` */
    uint64_t number;
    uint32_t cached, counted;
} group_t;

kolo_status_t kolo_cache_init(kolo_cache_t *cache, int capacity, int nranks)
{
    *cache = (kolo_cache_t){.capacity = capacity, .nranks = nranks, .oldest = -1, .newest = -1};
    if (capacity == 0) return KOLO_OK;
    cache->slots = calloc((size_t)capacity, sizeof *cache->slots);
    if (!cache->slots) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a cache of %d", capacity);
    return KOLO_OK;
}

static void erase_all(kolo_cache_t *cache)
{
    for (int i = 0; i < cache->top; i++) kolo_cache_erase(cache, i);
}

void kolo_cache_switch(kolo_cache_t *cache, bool on)
{
    cache->off = !on;
    if (!on) erase_all(cache);
}

void kolo_cache_fini(kolo_cache_t *cache)
{
    erase_all(cache);
    free(cache->slots);
    kolo_names_fini(&cache->names);
    kolo_names_fini(&cache->groups);
    cache->slots = NULL;
}

/* ---- groups ---- */

static group_t *find_group(const kolo_cache_t *cache, uint64_t number)
{
    kolo_name_t like;
    kolo_name_init(&like, (const char *)&number, sizeof number);
    return (group_t *)kolo_names_find(&cache->groups, &like);
}

static kolo_status_t enter_group(kolo_cache_t *cache, const kolo_tensor_request_t *request, group_t **out)
{
    group_t *g = find_group(cache, request->group);
    if (!g) {
        g = calloc(1, sizeof *g);
        if (!g) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a group");
        g->number = request->group;
        kolo_name_init(&g->name, (const char *)&g->number, sizeof g->number);
        kolo_status_t status = kolo_names_add(&cache->groups, &g->name);
        if (status != KOLO_OK) {
            free(g);
            return status;
        }
    }
    g->cached++;
    *out = g;
    return KOLO_OK;
}

static void leave_group(kolo_cache_t *cache, group_t *g)
{
    if (--g->cached > 0) return;
    kolo_names_remove(&cache->groups, &g->name);
    free(g);
}

void kolo_cache_keep_whole(kolo_cache_t *cache, uint64_t *bits)
{
    enum { CLEAR, COUNT, KEEP };
    if (cache->groups.count == 0) return;
    for (int pass = CLEAR; pass <= KEEP; pass++) {
        for (int i = 0; i < cache->top; i++) {
            group_t *g = cache->slots[i].group;
            if (!g || !(bits[i / 64] >> i % 64 & 1)) continue;
            if (pass == CLEAR) g->counted = 0;
            if (pass == COUNT) g->counted++;
            if (pass == KEEP && g->counted < cache->slots[i].request.group_size)
                bits[i / 64] &= ~(UINT64_C(1) << i % 64);
        }
    }
}

/* ---- order of use ---- */

static void unlink_slot(kolo_cache_t *cache, int i)
{
    const kolo_cache_slot_t *s = &cache->slots[i];
    if (s->older >= 0) cache->slots[s->older].newer = s->newer;
    if (s->newer >= 0) cache->slots[s->newer].older = s->older;
    if (cache->oldest == i) cache->oldest = s->newer;
    if (cache->newest == i) cache->newest = s->older;
}

static void link_newest(kolo_cache_t *cache, int i)
{
    cache->slots[i].older = cache->newest;
    cache->slots[i].newer = -1;
    if (cache->newest >= 0) cache->slots[cache->newest].newer = i;
    cache->newest = i;
    if (cache->oldest < 0) cache->oldest = i;
}

void kolo_cache_touch(kolo_cache_t *cache, int slot)
{
    if (cache->newest == slot) return;
    unlink_slot(cache, slot);
    link_newest(cache, slot);
}

/* ---- slots ---- */

kolo_cache_found_t kolo_cache_find(const kolo_cache_t *cache, const kolo_tensor_request_t *request, int *slot)
{
    kolo_name_t *found = kolo_names_find(&cache->names, &request->name);
    if (!found) return KOLO_CACHE_MISS;
    const kolo_cache_slot_t *s =
        (const kolo_cache_slot_t *)(const void *)((const char *)found - offsetof(kolo_cache_slot_t, request));
    *slot = (int)(s - cache->slots);
    if (!kolo_tensor_request_equal(&s->request, request)) return KOLO_CACHE_INVALID;
    return !s->group || s->group->cached == request->group_size ? KOLO_CACHE_HIT : KOLO_CACHE_MISS;
}

void kolo_cache_erase(kolo_cache_t *cache, int slot)
{
    kolo_cache_slot_t *s = &cache->slots[slot];
    if (!s->used) return;
    unlink_slot(cache, slot);
    kolo_names_remove(&cache->names, &s->request.name);
    if (s->group) leave_group(cache, s->group);
    free(s->name);
    free(s->rows);
    memset(s, 0, sizeof *s);
    cache->count--;
    cache->version++;
}

static int pick_slot(kolo_cache_t *cache)
{
    if (cache->count == cache->capacity) {
        int victim = cache->oldest;
        kolo_cache_erase(cache, victim);
        return victim;
    }
    if (cache->count == cache->top) return cache->top++;
    int i = 0;
    while (cache->slots[i].used) i++;
    return i;
}

static kolo_status_t fill(kolo_cache_t *cache, kolo_cache_slot_t *s, const kolo_tensor_request_t *request,
                          const int64_t *rows)
{
    s->name = malloc(request->name.length + 1);
    s->rows = rows ? malloc((size_t)cache->nranks * sizeof *rows) : NULL;
    if (!s->name || (rows && !s->rows)) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for the cache");
    if (rows) memcpy(s->rows, rows, (size_t)cache->nranks * sizeof *rows);
    kolo_tensor_request_copy(&s->request, request, s->name);
    return kolo_names_add(&cache->names, &s->request.name);
}

kolo_status_t kolo_cache_put(kolo_cache_t *cache, const kolo_tensor_request_t *request, const int64_t *rows,
                             bool device)
{
    if (cache->capacity == 0 || cache->off) return KOLO_OK;
    kolo_name_t *found = kolo_names_find(&cache->names, &request->name);
    if (found) {
        int same = (int)((kolo_cache_slot_t *)(void *)((char *)found - offsetof(kolo_cache_slot_t, request)) -
                         cache->slots);
        kolo_cache_erase(cache, same);
    }
    int slot = pick_slot(cache);
    kolo_cache_slot_t *s = &cache->slots[slot];
    kolo_status_t status = fill(cache, s, request, rows);
    if (status == KOLO_OK && request->group) {
        status = enter_group(cache, request, &s->group);
        if (status != KOLO_OK) kolo_names_remove(&cache->names, &s->request.name);
    }
    if (status != KOLO_OK) {
        free(s->name);
        free(s->rows);
        memset(s, 0, sizeof *s);
        return status;
    }
    s->used = true;
    s->device = device;
    link_newest(cache, slot);
    cache->count++;
    cache->version++;
    return KOLO_OK;
}
