/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of an end that is registered with its network card. Memory of the arena is registered in grains of 256
 * KB at first use, and stays so: the next tensor of that size is mostly at the same place. Before the arena returns
 * pages to the system they are deregistered, since the card would otherwise write to the wrong pages.
 */
#include "remote/onesided/verbs.h"

#include <errno.h>
#include <stdlib.h>

#define GRAIN (256u << 10)

static void forget(kolo_verbs_region_t **at)
{
    kolo_verbs_region_t *region = *at;
    *at = region->next;
    kolo_verbs.dereg_mr(region->mr);
    free(region);
}

/* Gives up the registrations of pages that the arena is about to return. False: a window lies there, so they
 * stay. */
static bool give_up(void *arg, const char *base, size_t bytes)
{
    kolo_verbs_memory_t *m = arg;
    bool free_all = true;
    pthread_mutex_lock(&m->lock);
    for (kolo_verbs_region_t **at = &m->regions; *at;) {
        bool meets = (*at)->base < base + bytes && base < (*at)->base + (*at)->bytes;
        if (meets && (*at)->uses > 0) free_all = false;
        if (meets && (*at)->uses == 0)
            forget(at);
        else
            at = &(*at)->next;
    }
    pthread_mutex_unlock(&m->lock);
    return free_all;
}

void kolo_verbs_memory_init(kolo_verbs_memory_t *m, kolo_net_open_t *device, kolo_onesided_arena_t *arena)
{
    pthread_mutex_init(&m->lock, NULL);
    m->device = device;
    m->arena = arena;
    kolo_arena_ask(arena, give_up, m);
}

void kolo_verbs_memory_fini(kolo_verbs_memory_t *m)
{
    if (m->device == NULL) return;
    kolo_arena_ask(m->arena, NULL, NULL);
    while (m->regions) forget(&m->regions);
    pthread_mutex_destroy(&m->lock);
    m->device = NULL;
}

/* Finds the region around some memory. With the lock held. */
static kolo_verbs_region_t *find(kolo_verbs_memory_t *m, const char *base, size_t bytes, bool to_write)
{
    for (kolo_verbs_region_t **at = &m->regions; *at; at = &(*at)->next) {
        kolo_verbs_region_t *region = *at;
        if (region->own || (to_write && region->kept) || base < region->base || bytes > region->bytes ||
            (size_t)(base - region->base) > region->bytes - bytes)
            continue;
        *at = region->next; /* to the front: what was used last is used next */
        region->next = m->regions;
        m->regions = region;
        return region;
    }
    return NULL;
}

/* Registers memory, in whole grains if it is of the arena. With the lock held. */
static kolo_status_t add(kolo_verbs_memory_t *m, char *base, size_t bytes, int access, kolo_verbs_region_t **out)
{
    char *first = kolo_arena_base(m->arena);
    size_t all = kolo_arena_size(m->arena), at = (size_t)((uintptr_t)base - (uintptr_t)first);
    kolo_verbs_region_t *region = calloc(1, sizeof *region);
    if (region == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for a registration");
    region->own = at >= all;
    if (!region->own) {
        size_t end = KOLO_MIN(KOLO_ROUND_UP(at + bytes, GRAIN), all);
        base = first + at / GRAIN * GRAIN;
        bytes = end - at / GRAIN * GRAIN;
    }
    region->base = base;
    region->bytes = bytes;
    region->mr = kolo_verbs.reg_mr(m->device->pd, base, bytes, access);
    if (region->mr == NULL) {
        int err = errno;
        free(region);
        return kolo_verbs_fail_register(m->device, "one-sided", bytes, err);
    }
    region->next = m->regions;
    m->regions = region;
    kolo_onesided_count_card(0, 0, 1);
    *out = region;
    return KOLO_OK;
}

kolo_status_t kolo_verbs_memory_enter(kolo_verbs_memory_t *m, void *base, size_t bytes, kolo_verbs_region_t **out)
{
    kolo_status_t status = KOLO_OK;
    pthread_mutex_lock(&m->lock);
    kolo_verbs_region_t *region = find(m, base, bytes, true);
    if (region == NULL) status = add(m, base, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, &region);
    if (status == KOLO_OK) {
        region->uses++;
        *out = region;
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

void kolo_verbs_memory_leave(kolo_verbs_memory_t *m, kolo_verbs_region_t *region)
{
    pthread_mutex_lock(&m->lock);
    region->uses--;
    kolo_verbs_region_t **at = &m->regions;
    while (*at != region) at = &(*at)->next;
    if (region->own) forget(at);
    pthread_mutex_unlock(&m->lock);
}

kolo_status_t kolo_verbs_memory_keep(kolo_verbs_memory_t *m, void *base, size_t bytes)
{
    kolo_verbs_region_t *region;
    pthread_mutex_lock(&m->lock);
    kolo_status_t status = add(m, base, bytes, 0, &region);
    if (status == KOLO_OK) {
        region->uses = 1;
        region->own = false;
        region->kept = true;
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

struct ibv_mr *kolo_verbs_memory_find(kolo_verbs_memory_t *m, const void *base, size_t bytes)
{
    pthread_mutex_lock(&m->lock);
    const kolo_verbs_region_t *region = find(m, base, bytes, false);
    struct ibv_mr *mr = region ? region->mr : NULL;
    pthread_mutex_unlock(&m->lock);
    return mr;
}
