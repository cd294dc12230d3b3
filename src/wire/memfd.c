/* SPDX-License-Identifier: Apache-2.0
 *
 * Queues in sealed memfds, for the wires "shm" and "cma". See mapped.h.
 */
#include "share/memfd.h"
#include "base/failpoint.h"
#include "base/file/fds.h"
#include "base/file/limit.h"
#include "base/log.h"
#include "wire/mapped.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#define LEAST_LIMIT (64u << 20) /* queues are smaller */

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
    KOLO_TRY(kolo_wire_fetch(ctx, writer, map->id, KOLO_FDPASS_MUST_BE_THERE, &fd, 1));
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

kolo_status_t kolo_memfd_card(kolo_peer_card_t *card)
{
    static atomic_bool told;
    (void)card;
    if (kolo_memfd_may(LEAST_LIMIT)) return KOLO_OK;
    if (atomic_exchange(&told, true)) return KOLO_ERR_UNSUPPORTED;
    if (kolo_file_fits(LEAST_LIMIT))
        kolo_warn(
            "wire",
            "memfd_create(2) is refused here (by a sandbox?), so there is no memory shared between processes: "
            "ranks of this host exchange data over TCP");
    else
        kolo_warn("wire",
                  "ulimit -f (RLIMIT_FSIZE) leaves no room for memory shared between processes: ranks of this host "
                  "exchange data over TCP; raise it above %u MB",
                  LEAST_LIMIT >> 20);
    return KOLO_ERR_UNSUPPORTED;
}

static const kolo_mapped_memory_t memory = {
    .create = memfd_make_queue,
    .open = memfd_open_queue,
    .release = memfd_release,
};

kolo_status_t kolo_memfd_rx_setup(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, kolo_wire_card_t *card)
{
    return kolo_mapped_rx_setup(ctx, rx, &memory, card);
}

kolo_status_t kolo_memfd_tx_setup(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, kolo_wire_card_t *card)
{
    return kolo_mapped_tx_setup(ctx, tx, &memory, card);
}
