/* SPDX-License-Identifier: Apache-2.0
 *
 * The registry behind wire "local". A block is counted: it lives until its writer and all its readers have let go,
 * in whatever order they end; it can be found only until its writer lets go.
 */
#include "base/process.h"
#include "wire/local/local.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct block {
    struct block *next; /* of those that can be found */
    kolo_mapping_t map;
    uint64_t job;
    uint32_t users;
} block_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
KOLO_FORK_RENEWS(lock)
static block_t *blocks;

static kolo_status_t local_create(kolo_wire_ctx_t *ctx, uint32_t readers, kolo_mapping_t *map)
{
    (void)readers;
    block_t *block = (block_t *)calloc(1, sizeof *block);
    if (!block) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a local connection");
    /* Anonymous pages cost nothing until they are written. */
    void *base = mmap(NULL, map->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        int err = errno;
        free(block);
        return kolo_fail_errno(KOLO_ERR_NO_MEMORY, err, "cannot map %zu bytes for a local connection", map->bytes);
    }
    if (!kolo_mapped_huge_pages) madvise(base, map->bytes, MADV_NOHUGEPAGE);
    map->base = base;
    map->owner = true;
    map->handle = block;
    block->map = *map;
    block->job = ctx->job;
    block->users = 1;
    pthread_mutex_lock(&lock);
    block->next = blocks;
    blocks = block;
    pthread_mutex_unlock(&lock);
    return KOLO_OK;
}

static kolo_status_t local_open(kolo_wire_ctx_t *ctx, const kolo_peer_card_t *writer, kolo_mapping_t *map)
{
    block_t *block;
    pthread_mutex_lock(&lock);
    for (block = blocks; block; block = block->next)
        if (memcmp(block->map.id, map->id, sizeof map->id) == 0) break;
    if (block && block->job == ctx->job && block->map.bytes == map->bytes) {
        block->users++;
        map->base = block->map.base;
        map->handle = block;
    }
    pthread_mutex_unlock(&lock);
    if (map->base) return KOLO_OK;
    return kolo_fail(KOLO_ERR_REMOTE, "rank %d's queue is %s; it may have failed meanwhile", writer->rank,
                     block ? "of another job or size" : "not to be found in this process");
}

static void local_release(kolo_mapping_t *map)
{
    block_t *block = (block_t *)map->handle;
    pthread_mutex_lock(&lock);
    for (block_t **at = &blocks; map->owner && *at; at = &(*at)->next) {
        if (*at != block) continue;
        *at = block->next;
        break;
    }
    bool last = --block->users == 0;
    pthread_mutex_unlock(&lock);
    if (last) {
        munmap(block->map.base, block->map.bytes);
        free(block);
    }
    memset(map, 0, sizeof *map);
}

const kolo_mapped_memory_t kolo_local_memory = {
    .create = local_create,
    .open = local_open,
    .release = local_release,
};

kolo_status_t kolo_wire_local_ref_done(kolo_rx_t *rx, kolo_ref_copy_t *copy)
{
    const kolo_mapped_t *end = kolo_mapped_of_rx(rx);
    size_t n = KOLO_MIN(copy->left, KOLO_REF_PIECE);
    void *theirs = (void *)(uintptr_t)copy->theirs;
    KOLO_TRY(kolo_control_begin_copy(end->ctx, end->peers[0]));
    memcpy(copy->write ? theirs : copy->mine, copy->write ? copy->mine : theirs, n);
    KOLO_TRY(kolo_control_end_copy(end->ctx, end->peers[0]));
    return kolo_mapped_ref_copied(copy, n);
}
