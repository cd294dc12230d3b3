/* SPDX-License-Identifier: Apache-2.0
 *
 * An idle GPU, waited for without stopping anybody. See beside.h.
 *
 * Of the driver's calls that wait for all that is queued in a context, those that close and free memory hold a lock
 * which other threads' launches need; a context that is synchronized ends every capture. One that unloads a module
 * does neither (driver 580, asked on H200; while a stream was held). So modules of one empty kernel are kept
 * for that. If a driver does not wait there, or cannot load it, nothing is lost but that.
 */
#include "base/log.h"
#include "mem/cuda/beside.h"

#include <pthread.h>

static const char empty[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry kolo_cuda_idle()\n{ ret; }\n";

/* To load one waits, too, and stops others: so there is a stock, which is filled when the kernels are loaded, and
 * then all at once when it is empty. A stream that is held between the unloading and what follows would still stop
 * all. */
enum { STOCK = 8 };

static struct {
    pthread_mutex_t lock; /* one is in `fn` at a time: who comes in between would find the GPU busy, anyway */
    kolo_cu_module_t stock[STOCK];
    int n;
} idles[KOLO_CUDA_DEVICES] = {[0 ... KOLO_CUDA_DEVICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static void fill_locked(int ordinal)
{
    kolo_cu_result_t r = KOLO_CU_SUCCESS;
    while (idles[ordinal].n < STOCK && !r) {
        r = kolo_cuda_loaded()->module_load(&idles[ordinal].stock[idles[ordinal].n], empty);
        idles[ordinal].n += !r;
    }
    if (r) kolo_info("cuda", "GPU %d: no module to wait with for an idle GPU: CUDA error %d", ordinal, (int)r);
}

void kolo_cuda_idle_prepare(const kolo_cuda_device_t *device)
{
    pthread_mutex_lock(&idles[device->ordinal].lock);
    fill_locked(device->ordinal);
    pthread_mutex_unlock(&idles[device->ordinal].lock);
}

bool kolo_cuda_when_idle(const kolo_cuda_device_t *device, void (*fn)(void *arg), void *arg)
{
    int i = device->ordinal, mode = kolo_cuda_uncaptured();
    pthread_mutex_lock(&idles[i].lock);
    if (idles[i].n == 0) fill_locked(i);
    bool waits = idles[i].n > 0 && !kolo_cuda_loaded()->module_unload(idles[i].stock[--idles[i].n]);
    fn(arg);
    pthread_mutex_unlock(&idles[i].lock);
    kolo_cuda_captured(mode);
    return waits;
}

static void nothing(void *arg)
{
    (void)arg;
}

kolo_cu_result_t kolo_cuda_await_idle(const kolo_cuda_device_t *device)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    return kolo_cuda_when_idle(device, nothing, NULL) || !api->ctx_sync ? KOLO_CU_SUCCESS : api->ctx_sync();
}
