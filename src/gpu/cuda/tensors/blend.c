/* SPDX-License-Identifier: Apache-2.0
 *
 * Puts Adasum's kernels on a stream (blend.cuh), for the queues of mem/cuda, which are below this room.
 */
#include "base/clock.h"
#include "base/type.h"
#include "gpu/cuda/cuda.h"

_Static_assert((int)KOLO_CUDA_BLEND_SUMS == (int)KOLO_BLEND_SUMS && (int)KOLO_CUDA_BLEND_BB == (int)KOLO_BLEND_BB &&
                   (int)KOLO_CUDA_BLEND_AB == (int)KOLO_BLEND_AB,
               "kernels have the sums in the queue's order");

static const uint32_t types[KOLO_TYPE_COUNT] = {[KOLO_FLOAT16] = KOLO_CUDA_BLEND_FLOAT16,
                                                [KOLO_BFLOAT16] = KOLO_CUDA_BLEND_BFLOAT16,
                                                [KOLO_FLOAT32] = KOLO_CUDA_BLEND_FLOAT32,
                                                [KOLO_FLOAT64] = KOLO_CUDA_BLEND_FLOAT64};

/* What one call launches. */
typedef struct {
    const kolo_cuda_device_t *device;
    const kolo_cuda_kernels_t *kernels;
    kolo_cu_stream_t stream;
    kolo_cuda_blend_args_t args;
} blends_t;

static kolo_status_t launch(blends_t *b, kolo_cu_func_t function, unsigned pieces)
{
    void *params[] = {&b->args};
    unsigned most = 2u * (unsigned)b->device->multiprocessors;
    if (pieces == 0) return KOLO_OK;
    kolo_cu_result_t r = kolo_cuda_loaded()->launch(function, pieces < most ? pieces : most, 1, 1,
                                                    KOLO_CUDA_THREADS, 1, 1, 0, b->stream, params, NULL);
    return r ? kolo_cuda_fail(r, b->device->ordinal, "launch a kernel of Adasum") : KOLO_OK;
}

static kolo_status_t put(blends_t *b)
{
    if (b->args.room) {
        KOLO_TRY(launch(b, b->kernels->products, b->args.chunks));
        KOLO_TRY(launch(b, b->kernels->product_sums, b->args.n));
    } else {
        KOLO_TRY(launch(b, b->kernels->blend, b->args.chunks));
    }
    b->args.n = b->args.chunks = 0;
    return KOLO_OK;
}

kolo_status_t kolo_cuda_blend(const kolo_cuda_device_t *device, const kolo_blend_t *list, size_t n,
                              kolo_type_t type, double *room, kolo_cu_stream_t stream)
{
    blends_t b = {.device = device, .stream = stream};
    b.args.room = (uint64_t)(uintptr_t)room;
    b.args.type = types[type];
    b.args.chunk_bytes = KOLO_BLEND_CHUNK;
    KOLO_TRY(kolo_cuda_kernels(device, kolo_deadline_ms(KOLO_CUDA_COPY_MS), &b.kernels));
    for (const kolo_blend_t *l = list; l < list + n; l++) {
        uint64_t bytes = l->count * kolo_type_bytes(type);
        if (!bytes && !room) continue;
        if (b.args.n == KOLO_CUDA_BLENDS) KOLO_TRY(put(&b));
        b.args.items[b.args.n++] = (kolo_cuda_blend_item_t){.to = (uint64_t)(uintptr_t)l->to,
                                                            .a = (uint64_t)(uintptr_t)l->a,
                                                            .b = (uint64_t)(uintptr_t)l->b,
                                                            .sums = (uint64_t)(uintptr_t)l->sums,
                                                            .bytes = bytes,
                                                            .first = b.args.chunks};
        b.args.chunks += (uint32_t)KOLO_DIV_UP(bytes, KOLO_BLEND_CHUNK);
    }
    return put(&b);
}
