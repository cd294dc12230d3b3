/* SPDX-License-Identifier: Apache-2.0
 *
 * Puts the kernel that packs tensors on a stream (lift.cuh), for the queues of mem/cuda, which are below this room.
 */
#include "base/clock.h"
#include "base/type.h"
#include "gpu/cuda/cuda.h"
#include "mem/identity.h"

#include <string.h>

/* In the order of kolo_type_t, behind what has no type. */
_Static_assert(KOLO_CUDA_LIFT_INT8 + KOLO_FLOAT8_E5M2 == KOLO_CUDA_LIFT_E5M2, "a way to scale for each type");

static uint64_t bits_of(double factor)
{
    uint64_t bits;
    memcpy(&bits, &factor, sizeof bits);
    return bits;
}

static uint32_t what_of(const kolo_lift_t *l)
{
    if (!l->from) return KOLO_CUDA_LIFT_FILL;
    return l->factor == 1.0 ? KOLO_CUDA_LIFT_COPY : KOLO_CUDA_LIFT_INT8 + (uint32_t)l->type;
}

static kolo_status_t put(const kolo_cuda_device_t *device, const kolo_cuda_kernels_t *kernels,
                         kolo_cuda_lift_args_t *args, kolo_cu_stream_t stream)
{
    void *params[] = {args};
    unsigned most = 2u * (unsigned)device->multiprocessors;
    unsigned blocks = args->chunks < most ? args->chunks : most;
    if (!args->chunks) return KOLO_OK;
    kolo_cu_result_t r =
        kolo_cuda_loaded()->launch(kernels->lift, blocks, 1, 1, KOLO_CUDA_THREADS, 1, 1, 0, stream, params, NULL);
    args->n = args->chunks = 0;
    return r ? kolo_cuda_fail(r, device->ordinal, "launch the kernel that packs") : KOLO_OK;
}

static kolo_status_t lift(const kolo_cuda_device_t *device, const kolo_lift_t *list, size_t n,
                          kolo_cu_stream_t stream)
{
    kolo_cuda_lift_args_t args = {0, 0, {{0}}};
    const kolo_cuda_kernels_t *kernels;
    KOLO_TRY(kolo_cuda_kernels(device, kolo_deadline_ms(KOLO_CUDA_COPY_MS), &kernels));
    for (const kolo_lift_t *l = list; l < list + n; l++) {
        uint64_t bytes = l->count * kolo_type_bytes(l->type);
        if (!bytes || l->to == l->from) {
            if (!bytes || l->factor == 1.0) continue;
        }
        if (args.n == KOLO_CUDA_LIFTS) KOLO_TRY(put(device, kernels, &args, stream));
        args.items[args.n++] =
            (kolo_cuda_lift_item_t){.to = (uint64_t)(uintptr_t)l->to,
                                    .from = (uint64_t)(uintptr_t)l->from,
                                    .bytes = bytes,
                                    .factor = l->from ? bits_of(l->factor) : kolo_mem_identity_word(l->type, l->op),
                                    .first = args.chunks,
                                    .what = what_of(l)};
        args.chunks += (uint32_t)(KOLO_DIV_UP(bytes, KOLO_CUDA_LIFT_CHUNK));
    }
    return put(device, kernels, &args, stream);
}

void kolo_gpu_init(void)
{
    static const kolo_cuda_tensor_fns_t fns = {lift, kolo_cuda_blend};
    kolo_cuda_set_tensor_fns(&fns);
}
