/* SPDX-License-Identifier: Apache-2.0
 *
 * Managed memory of the fake driver, that of pools and graphs, and the program's own, registered. See memory.c.
 */
#include "memory.h"

/* The host's, too; here it does not move. */
kolo_cu_result_t cuMemAllocManaged(kolo_cu_ptr_t *p, size_t bytes, unsigned flags)
{
    uintptr_t at = 0;
    FAKE_CONTEXT(ctx);
    if (!bytes || flags != 1)
        return fake_wrong(FAKE_INVALID_VALUE, "cuMemAllocManaged(%zu, flags %u)", bytes, flags);
    if (fake_capture_forbids(__func__)) return FAKE_CAPTURE_UNSUPPORTED;
    kolo_cu_result_t r = fake_map_new(MANAGED, bytes, ctx->device, 0, &at);
    if (!r) *p = at;
    return r;
}

/* Of the device's pool, in a stream's order; in a capture the graph's, which stays for good here. No other device,
 * and no other process, reaches it. */
kolo_cu_result_t cuMemAllocAsync(kolo_cu_ptr_t *p, size_t bytes, kolo_cu_stream_t stream)
{
    uintptr_t at = 0;
    int capturing = 0;
    FAKE_CONTEXT(ctx);
    if (!bytes) return fake_wrong(FAKE_INVALID_VALUE, "cuMemAllocAsync of nothing");
    kolo_cu_result_t r = cuStreamIsCapturing(stream, &capturing);
    if (!r) r = fake_map_new(capturing ? OF_GRAPH : POOL, bytes, ctx->device, 0, &at);
    if (!r && capturing) r = fake_capture_get(stream, ctx, at, bytes);
    if (!r) *p = at;
    return r;
}

static void free_queued(void *at)
{
    if (!fake_unmap_old(POOL, (uintptr_t)at)) fake_abort("cuMemFreeAsync: nothing was allocated at %p", at);
}

kolo_cu_result_t cuMemFreeAsync(kolo_cu_ptr_t p, kolo_cu_stream_t stream)
{
    int capturing = 0;
    FAKE_CONTEXT(ctx);
    (void)ctx;
    kolo_cu_result_t r = cuStreamIsCapturing(stream, &capturing);
    if (r || capturing) return r;
    return cuLaunchHostFunc(stream, free_queued, (void *)(uintptr_t)p); /* NOLINT: a driver's address */
}

/* The program's own memory, which stays its own. */
kolo_cu_result_t cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags)
{
    FAKE_CONTEXT(ctx);
    (void)ctx;
    if (!p || !bytes || flags > 7)
        return fake_wrong(FAKE_INVALID_VALUE, "cuMemHostRegister(%p, %zu, flags %u)", p, bytes, flags);
    if (fake_capture_forbids(__func__)) return FAKE_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&fake_lock);
    bool again = fake_find_locked((uintptr_t)p, true) || fake_find_locked((uintptr_t)p + bytes - 1, true);
    if (!again) fake_add_locked(REGISTERED, (uintptr_t)p, bytes)->flags = flags;
    pthread_mutex_unlock(&fake_lock);
    return again ? fake_wrong(FAKE_ALREADY_REGISTERED, "cuMemHostRegister: %p is registered already", p)
                 : KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuMemHostUnregister(void *p)
{
    FAKE_CONTEXT(ctx);
    if (fake_capture_forbids(__func__)) return FAKE_CAPTURE_UNSUPPORTED;
    fake_await_and_stop(ctx, true); /* all devices have it mapped */
    pthread_mutex_lock(&fake_lock);
    range_t *r = fake_exact_locked(REGISTERED, (uintptr_t)p);
    if (r) fake_remove_locked(r);
    pthread_mutex_unlock(&fake_lock);
    return r ? KOLO_CU_SUCCESS : fake_wrong(FAKE_NOT_REGISTERED, "cuMemHostUnregister: %p is not registered", p);
}
