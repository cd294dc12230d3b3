/* SPDX-License-Identifier: Apache-2.0
 *
 * An idle GPU, waited for without stopping anybody. See beside.h.
 *
 * Of the driver's calls that wait for all that is queued in a context, those that close and free memory hold a lock
 * which other threads' launches need; a context that is synchronized ends every capture. One that unloads a module
 * does neither (driver 580, asked on H200; while a stream was held). So a module of one empty kernel is kept for
 * that. If a driver does not wait there, or cannot load it, nothing is lost but that.
 */
#include "base/log.h"
#include "mem/cuda/beside.h"

#include <pthread.h>

static const char empty[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry kolo_cuda_idle()\n{ ret; }\n";

static struct {
    pthread_mutex_t lock; /* one is in `fn` at a time: who comes in between would find the GPU busy, anyway */
    kolo_cu_module_t spare;
} idles[KOLO_CUDA_DEVICES] = {[0 ... KOLO_CUDA_DEVICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static void load_locked(int ordinal)
{
    kolo_cu_result_t r = kolo_cuda_loaded()->module_load(&idles[ordinal].spare, empty);
    if (!r) return;
    idles[ordinal].spare = NULL;
    kolo_info("cuda", "GPU %d: no module to wait with for an idle GPU: CUDA error %d", ordinal, (int)r);
}

void kolo_cuda_idle_prepare(const kolo_cuda_device_t *device)
{
    pthread_mutex_lock(&idles[device->ordinal].lock);
    if (!idles[device->ordinal].spare) load_locked(device->ordinal);
    pthread_mutex_unlock(&idles[device->ordinal].lock);
}

void kolo_cuda_when_idle(const kolo_cuda_device_t *device, void (*fn)(void *arg), void *arg)
{
    int i = device->ordinal, mode = kolo_cuda_uncaptured();
    pthread_mutex_lock(&idles[i].lock);
    if (idles[i].spare) {
        kolo_cuda_loaded()->module_unload(idles[i].spare);
        load_locked(i); /* now: later it would stop others, too */
    }
    fn(arg);
    pthread_mutex_unlock(&idles[i].lock);
    kolo_cuda_captured(mode);
}
