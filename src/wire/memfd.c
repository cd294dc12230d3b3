/* SPDX-License-Identifier: Apache-2.0
 *
 * Queues in sealed memfds, for the wires "shm" and "cma". See mapped.h.
 */
#include "share/memfd.h"
#include "base/failpoint.h"
#include "base/file/fds.h"
#include "wire/mapped.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static kolo_status_t map_fd(int fd, kolo_mapping_t *map)
{
    void *base = mmap(NULL, map->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return kolo_fail_errno(KOLO_ERR_NO_MEMORY, errno, "cannot map a shared segment of %zu bytes", map->bytes);
    if (kolo_mapped_huge_pages && map->bytes >= (2u << 20))
        madvise(base, map->bytes, MADV_HUGEPAGE); /* only a hint */
    map->base = base;
    return KOLO_OK;
}

static kolo_status_t memfd_make_queue(kolo_wire_ctx_t *ctx, uint32_t readers, kolo_mapping_t *map)
{
    int fd;
    KOLO_FAIL_POINT_TRY("wire.queue.make");
    KOLO_TRY(kolo_memfd_make("kolo-queue", map->bytes, &fd));
    kolo_status_t status = map_fd(fd, map);
    /* Each reader fetches once; then the memory lives by its mappings alone and the descriptor is closed. */
    if (status == KOLO_OK) status = kolo_fdpass_offer(map->id, ctx->key, &fd, 1, readers);
    kolo_fd_close(fd);
    if (status != KOLO_OK && map->base) {
        munmap(map->base, map->bytes);
        map->base = NULL;
    }
    map->owner = status == KOLO_OK;
    return status;
}

static kolo_status_t memfd_open_queue(kolo_wire_ctx_t *ctx, const kolo_peer_card_t *writer, kolo_mapping_t *map)
{
    int fd;
    KOLO_FAIL_POINT_TRY("wire.queue.fetch");
    KOLO_TRY(kolo_wire_fetch(ctx, writer, map->id, KOLO_FDPASS_MUST_BE_THERE, &fd, 1, NULL));
    kolo_status_t status = kolo_memfd_check(fd, map->bytes, KOLO_WHO(writer));
    if (status == KOLO_OK) status = map_fd(fd, map);
    kolo_fd_close(fd);
    return status;
}

static void memfd_release(kolo_mapping_t *map)
{
    if (map->owner) kolo_fdpass_withdraw(map->id);
    munmap(map->base, map->bytes);
    memset(map, 0, sizeof *map);
}

const kolo_mapped_memory_t kolo_memfd_memory = {
    .create = memfd_make_queue,
    .open = memfd_open_queue,
    .release = memfd_release,
};
