/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of one end that the peer may write to: the mailbox, and windows that the owner exposes and hides. A
 * window's key holds its number and a random salt, so that a peer cannot write through a key that it was not told.
 */
#include "base/process.h"
#include "remote/onesided/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

kolo_status_t kolo_onesided_need_arena(kolo_onesided_t *end)
{
    if (end->arena) return KOLO_OK; /* but over shared memory it need not be one that others map */
    return kolo_arena_create(-1, 0, (size_t)kolo_onesided_param_arena, &end->arena);
}

kolo_status_t kolo_onesided_alloc(kolo_onesided_t *end, size_t bytes, kolo_onesided_memory_t *memory)
{
    KOLO_TRY(kolo_onesided_need_arena(end));
    return kolo_arena_alloc(end->arena, bytes, memory);
}

static kolo_status_t more_windows(kolo_onesided_t *end)
{
    uint32_t n = end->nexposed ? 2 * end->nexposed : 16;
    kolo_onesided_exposed_t *more = n <= 1u << 24 ? realloc(end->exposed, n * sizeof *more) : NULL;
    if (more == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for %u windows to %s", n, end->who);
    memset(more + end->nexposed, 0, (n - end->nexposed) * sizeof *more);
    end->exposed = more;
    end->nexposed = n;
    return KOLO_OK;
}

static kolo_status_t choose_salt(kolo_onesided_domain_t *domain, uint32_t *salt)
{
    if (domain->nsalts == 0) {
        KOLO_TRY(kolo_random(domain->salts, sizeof domain->salts));
        domain->nsalts = KOLO_COUNTOF(domain->salts);
    }
    *salt = domain->salts[--domain->nsalts];
    return KOLO_OK;
}

kolo_status_t kolo_onesided_add_window(kolo_onesided_t *end, const kolo_onesided_exposed_t *exposed, uint64_t *key)
{
    uint32_t i = end->free_exposed, salt = exposed->salt;
    while (i < end->nexposed && end->exposed[i].base) i++;
    if (i == end->nexposed) KOLO_TRY(more_windows(end));
    if (salt == 0) KOLO_TRY(choose_salt(end->domain, &salt));
    end->exposed[i] = *exposed;
    end->exposed[i].salt = salt;
    end->free_exposed = i + 1;
    *key = (uint64_t)salt << 32 | i;
    return KOLO_OK;
}

kolo_status_t kolo_onesided_expose(kolo_onesided_t *end, void *base, size_t bytes, kolo_onesided_window_t *window)
{
    kolo_onesided_exposed_t exposed = {.base = base, .bytes = bytes};
    uint64_t address, key;
    if (end->ops == NULL) return kolo_fail(KOLO_ERR_INVALID_USAGE, "onesided: %s is not connected yet", end->who);
    if (base == NULL || bytes == 0) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "onesided: nothing to expose");
    KOLO_TRY(end->ops->expose(end, base, bytes, &address, &exposed.salt, &exposed.pin));
    kolo_status_t status = kolo_onesided_add_window(end, &exposed, &key);
    if (status != KOLO_OK && end->ops->hide) end->ops->hide(end, exposed.pin);
    if (status != KOLO_OK) return status;
    *window = (kolo_onesided_window_t){.address = address, .bytes = bytes, .key = key};
    return KOLO_OK;
}

bool kolo_onesided_pays(const kolo_onesided_t *end, uint64_t bytes)
{
    return end->ops && (end->ops->pays == NULL || end->ops->pays(end, bytes));
}

kolo_status_t kolo_onesided_keep(kolo_onesided_t *end, void *base, size_t bytes)
{
    return end->ops && end->ops->keep ? end->ops->keep(end, base, bytes) : KOLO_OK;
}

void *kolo_onesided_mailbox(kolo_onesided_t *end)
{
    return end->mailbox.base;
}

const kolo_onesided_window_t *kolo_onesided_peer_mailbox(const kolo_onesided_t *end)
{
    return &end->peer_mailbox;
}

void kolo_onesided_hide(kolo_onesided_t *end, const kolo_onesided_window_t *window)
{
    uint32_t i = (uint32_t)window->key;
    if (i < end->nexposed && end->exposed[i].base && end->exposed[i].salt == (uint32_t)(window->key >> 32)) {
        if (end->ops->hide) end->ops->hide(end, end->exposed[i].pin);
        if (end->ops->forget) end->ops->forget(end, window->key);
        end->exposed[i].base = NULL;
        end->free_exposed = KOLO_MIN(end->free_exposed, i);
    }
}

char *kolo_onesided_find(kolo_onesided_t *end, uint64_t key, uint64_t address, uint64_t bytes)
{
    uint32_t i = (uint32_t)key;
    if (i >= end->nexposed || end->exposed[i].base == NULL || end->exposed[i].salt != (uint32_t)(key >> 32))
        return NULL;
    const kolo_onesided_exposed_t *e = &end->exposed[i];
    return address <= e->bytes && bytes <= e->bytes - address ? e->base + address : NULL;
}
