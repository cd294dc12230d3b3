/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake driver's plain device memory and pinned host memory. It has a guard page behind it, and stays unreadable
 * for a while after it was freed; other processes may open plain device memory by a handle that names the process
 * and its descriptor (ipc.c).
 */
#include "memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRAVES 256 /* freed ranges that are kept unreadable */
static struct {
    void *at;
    size_t bytes;
} graves[GRAVES];
static unsigned grave;

kolo_cu_result_t fake_map_new(kind_t kind, size_t bytes, int device, unsigned flags, uintptr_t *at)
{
    size_t room = (bytes + PAGE - 1) / PAGE * PAGE;
    int fd = kind == PLAIN ? memfd_create(IPC_NAME, MFD_CLOEXEC) : -1;
    char *p = mmap(NULL, room + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || (kind == PLAIN && (fd < 0 || ftruncate(fd, (off_t)room) != 0)))
        return fake_wrong(FAKE_NO_MEMORY, "no %zu bytes: %s", bytes, strerror(errno));
    if (kind == PLAIN && mmap(p, room, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        fake_abort("cannot map plain memory: %s", strerror(errno));
    if (kind == PLAIN || kind == POOL || kind == OF_GRAPH ? fake_protect(p, room)
                                                          : mprotect(p, room, PROT_READ | PROT_WRITE))
        fake_abort("cannot change the protection: %s", strerror(errno));
    pthread_mutex_lock(&fake_lock);
    range_t *r = fake_add_locked(kind, (uintptr_t)p, bytes);
    r->room = room + PAGE;
    r->device = device;
    r->flags = flags;
    r->fd = fd;
    pthread_mutex_unlock(&fake_lock);
    *at = (uintptr_t)p;
    return KOLO_CU_SUCCESS;
}

bool fake_unmap_old(kind_t kind, uintptr_t p)
{
    pthread_mutex_lock(&fake_lock);
    range_t *r = fake_exact_locked(kind, p);
    if (r) {
        void *at = (void *)p; /* NOLINT */
        if (mmap(at, r->room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
            MAP_FAILED)
            fake_abort("cannot free: %s", strerror(errno));
        if (graves[grave].at) munmap(graves[grave].at, graves[grave].bytes);
        graves[grave].at = at;
        graves[grave].bytes = r->room;
        grave = (grave + 1) % GRAVES;
        if (kind == PLAIN) close(r->fd);
        fake_remove_locked(r);
    }
    pthread_mutex_unlock(&fake_lock);
    return r != NULL;
}

kolo_cu_result_t cuMemAlloc_v2(kolo_cu_ptr_t *p, size_t bytes)
{
    uintptr_t at = 0;
    FAKE_CONTEXT(ctx);
    if (!bytes) return fake_wrong(FAKE_INVALID_VALUE, "cuMemAlloc of nothing");
    if (fake_capture_forbids(__func__)) return FAKE_CAPTURE_UNSUPPORTED;
    kolo_cu_result_t r = fake_map_new(PLAIN, bytes, ctx->device, 0, &at);
    if (!r) *p = at;
    return r;
}

kolo_cu_result_t cuMemFree_v2(kolo_cu_ptr_t p)
{
    FAKE_CONTEXT(ctx);
    if (fake_capture_forbids(__func__)) return FAKE_CAPTURE_UNSUPPORTED;
    fake_await_and_stop(ctx, false);
    return !p || fake_unmap_old(PLAIN, (uintptr_t)p) || fake_unmap_old(MANAGED, (uintptr_t)p) ||
                   fake_unmap_old(POOL, (uintptr_t)p)
               ? KOLO_CU_SUCCESS
               : fake_wrong(FAKE_INVALID_VALUE, "cuMemFree: nothing was allocated at %#llx", p);
}

kolo_cu_result_t cuMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    uintptr_t at = 0;
    FAKE_CONTEXT(ctx);
    (void)ctx;
    if (!bytes || flags > 7) return fake_wrong(FAKE_INVALID_VALUE, "cuMemHostAlloc(%zu, flags %u)", bytes, flags);
    if (fake_capture_forbids(__func__)) return FAKE_CAPTURE_UNSUPPORTED;
    kolo_cu_result_t r = fake_map_new(PINNED, bytes, -1, flags, &at);
    if (!r) *p = (void *)at; /* NOLINT */
    return r;
}

kolo_cu_result_t cuMemFreeHost(void *p)
{
    FAKE_CONTEXT(ctx);
    if (fake_capture_forbids(__func__)) return FAKE_CAPTURE_UNSUPPORTED;
    fake_await_and_stop(ctx, true); /* all devices have it mapped */
    return fake_unmap_old(PINNED, (uintptr_t)p)
               ? KOLO_CU_SUCCESS
               : fake_wrong(FAKE_INVALID_VALUE, "cuMemFreeHost: nothing was allocated at %p", p);
}

kolo_cu_result_t cuMemHostGetDevicePointer_v2(kolo_cu_ptr_t *p, void *host, unsigned flags)
{
    FAKE_CONTEXT(ctx);
    (void)ctx;
    pthread_mutex_lock(&fake_lock);
    range_t *r = fake_find_locked((uintptr_t)host, false);
    bool good = r && (r->kind == PINNED || r->kind == REGISTERED) && r->flags & KOLO_CU_HOST_MAPPED && !flags;
    pthread_mutex_unlock(&fake_lock);
    if (!good) return fake_wrong(FAKE_INVALID_VALUE, "%p is no host memory that devices have mapped", host);
    *p = (uintptr_t)host;
    return KOLO_CU_SUCCESS;
}
