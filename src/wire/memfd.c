/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory shared between processes through sealed memfds. See memfd.h.
 */
#include "wire/memfd.h"
#include "base/failpoint.h"
#include "base/file/fds.h"
#include "wire/fdpass.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

kolo_status_t kolo_memfd_make(const char *name, size_t bytes, int *fd)
{
    int f = kolo_fd_own(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
    if (f < 0 && errno == EINVAL)
        f = kolo_fd_own(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)); /* before Linux 6.3 */
    if (f < 0)
        return kolo_fail_errno(errno == EMFILE || errno == ENFILE ? KOLO_ERR_SYSTEM : KOLO_ERR_UNSUPPORTED, errno,
                               "cannot make a memfd for shared memory (KOLO_SHM_DISABLE=1 goes without)");
    if (ftruncate(f, (off_t)bytes) != 0 || fcntl(f, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        int err = errno;
        kolo_fd_close(f);
        return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "cannot size and seal a memfd of %zu bytes", bytes);
    }
    *fd = f;
    return KOLO_OK;
}

kolo_status_t kolo_memfd_check(int fd, size_t bytes, const kolo_peer_card_t *owner)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &st) == 0 && (uint64_t)st.st_size == bytes)
        return KOLO_OK;
    return kolo_fail(KOLO_ERR_PROTOCOL,
                     "rank %d (pid %d) handed over a descriptor that is no sealed segment of %zu bytes",
                     owner->rank, owner->pid, bytes);
}

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
    KOLO_TRY(kolo_fdpass_fetch(ctx, writer, map->id, KOLO_FDPASS_MUST_BE_THERE, &fd, 1, NULL));
    kolo_status_t status = kolo_memfd_check(fd, map->bytes, writer);
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
