/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of the driver that wait for all that a GPU, or all of the process, has to do: loading a module, closing a
 * mapping, synchronizing a context. A stream that the program holds stops them for as long
 * as it likes, and they have no time limit. A thread of their own makes them, and the caller waits for that one
 * only so long.
 */
#ifndef KOLO_MEM_CUDA_BESIDE_H
#define KOLO_MEM_CUDA_BESIDE_H

#include "mem/cuda/cuda.h"

/* Has fn(arg) run by a thread in the device's context, and waits for it. KOLO_ERR_TIMEOUT: it is not through by the
 * deadline and goes on alone, so it must own all that it uses. `what` completes "for it to". Without memory for a
 * thread the caller runs it. Any thread. */
kolo_status_t kolo_cuda_beside(const kolo_cuda_device_t *device, void (*fn)(void *arg), void *arg,
                               uint64_t deadline_ns, const char *what);
/* Waits, with the same words, for something that another thread has asked the driver for. */
kolo_status_t kolo_cuda_beside_wait(const kolo_cuda_device_t *device, bool (*through)(void *arg), void *arg,
                                    uint64_t deadline_ns, const char *what);
/* Calls fn(arg) (idle.c) when the GPU has done what is queued, however long that takes; other threads go on
 * meanwhile. Those that close and free memory are called so: each waits for the GPU, and stops other threads'
 * launches until then. The device's context is current. Returns false where the driver lets nobody wait so: then fn
 * was called at once. */
bool kolo_cuda_when_idle(const kolo_cuda_device_t *device, void (*fn)(void *arg), void *arg);
/* Waits until then; captures go on meanwhile, if the driver lets them. */
kolo_cu_result_t kolo_cuda_await_idle(const kolo_cuda_device_t *device);
/* Makes it ready, when the kernels are loaded. */
void kolo_cuda_idle_prepare(const kolo_cuda_device_t *device);
/* Closes a mapping of another process's memory (0: none). Waits a second at most: later it is closed, when the GPU
 * has done what is queued. */
void kolo_cuda_close_mapping(const kolo_cuda_device_t *device, kolo_cu_ptr_t at);

#endif
