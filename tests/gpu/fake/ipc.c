/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain memory of the fake driver for other processes. See memory.c.
 */
#include "memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {         /* in the 64 bytes of a handle */
    int pid, fd, device; /* device: of the machine */
    size_t bytes;
} ticket_t;

kolo_cu_result_t cuIpcGetMemHandle(kolo_cu_ipc_t *handle, kolo_cu_ptr_t p)
{
    ticket_t t = {0};
    FAKE_READY();
    pthread_mutex_lock(&fake_lock);
    const range_t *r = fake_exact_locked(PLAIN, (uintptr_t)p);
    if (r) t = (ticket_t){getpid(), r->fd, fake_device_of_machine(r->device), r->bytes};
    pthread_mutex_unlock(&fake_lock);
    memcpy(handle, &t, sizeof t);
    return t.pid ? KOLO_CU_SUCCESS : FAKE_INVALID_VALUE; /* asked of any memory: no reason for words */
}

__attribute__((visibility("default"))) _Atomic int fake_ipc_opened; /* for tests */
kolo_cu_result_t cuIpcOpenMemHandle_v2(kolo_cu_ptr_t *p, kolo_cu_ipc_t handle, unsigned flags)
{
    char path[64], name[128] = "", *at = MAP_FAILED;
    ticket_t t;
    FAKE_READY();
    memcpy(&t, &handle, sizeof t);
    size_t room = (t.bytes + PAGE - 1) / PAGE * PAGE;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", t.pid, t.fd);
    bool plain = readlink(path, name, sizeof name - 1) > 0 && strstr(name, IPC_NAME);
    int fd = plain && t.pid != getpid() && flags == KOLO_CU_IPC_PEER_ACCESS ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) at = mmap(NULL, room, PROT_NONE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (at == MAP_FAILED || fake_protect(at, room))
        return fake_wrong(FAKE_INVALID_VALUE, "cuIpcOpenMemHandle: %s (flags %u)", path, flags);
    pthread_mutex_lock(&fake_lock);
    range_t *r = fake_add_locked(OPENED, (uintptr_t)at, t.bytes);
    r->room = room;
    r->device = fake_device_here(t.device);
    fake_ipc_opened++;
    pthread_mutex_unlock(&fake_lock);
    *p = (uintptr_t)at;
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuIpcCloseMemHandle(kolo_cu_ptr_t p)
{
    FAKE_CONTEXT(ctx);
    if (fake_capture_forbids(__func__)) return FAKE_CAPTURE_UNSUPPORTED;
    fake_await_and_stop(ctx, false);
    if (!fake_unmap_old(OPENED, (uintptr_t)p)) return fake_wrong(FAKE_INVALID_VALUE, "cuIpcCloseMemHandle");
    fake_ipc_opened--;
    return KOLO_CU_SUCCESS;
}
