/* SPDX-License-Identifier: Apache-2.0
 *
 * See gpu.h.
 */
#include "gpu.h"

#include "cuda.h"

#include <stdint.h>

static struct {
    cuda_address_t at;
    size_t bytes;
    void *event;
} slots[GPU_SLOTS];

bool gpu_open(int worker)
{
    if (!cuda_open(worker, false)) return false;
    for (int i = 0; i < GPU_SLOTS; i++)
        if (!CUDA_OK(event_new, &slots[i].event, 2)) return false;
    return true;
}

const char *gpu_error(void)
{
    return cuda_error();
}

int gpu_number(void)
{
    return cuda_number();
}

void *gpu_take(int slot, const void *data, size_t bytes, void **ready)
{
    if (bytes > slots[slot].bytes) {
        if (slots[slot].at && !CUDA_OK(free, slots[slot].at)) return NULL;
        slots[slot].bytes = 0;
        slots[slot].at = 0;
        if (!CUDA_OK(alloc, &slots[slot].at, bytes)) return NULL;
        slots[slot].bytes = bytes;
    }
    if (!CUDA_OK(copy, slots[slot].at, cuda_address(data), bytes, cuda_stream())) return NULL;
    if (!CUDA_OK(event_record, slots[slot].event, cuda_stream())) return NULL;
    *ready = slots[slot].event;
    return (void *)(uintptr_t)slots[slot].at; /* NOLINT: a driver's address */
}

bool gpu_give(int slot, void *data, size_t bytes)
{
    return cuda_copy(cuda_address(data), slots[slot].at, bytes);
}
