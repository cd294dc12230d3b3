/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that programs put together themselves: addresses are reserved, and pieces mapped there beside each other
 * as they are needed (torch's expandable segments). The driver knows the pieces only, so what belongs together is
 * found by asking at their ends.
 */
#include "mem/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

static bool is_piece(uintptr_t at, const kolo_mem_place_t *of, kolo_mem_place_t *place)
{
    kolo_mem_find((const void *)at, place); /* NOLINT: device memory */
    return place->ops == &kolo_mem_cuda && place->device == of->device && place->joins && place->bytes;
}

static bool is_shareable(uintptr_t at)
{
    int attribute = KOLO_CU_POINTER_HANDLE_TYPES;
    uint64_t types = 0;
    void *data = &types;
    return kolo_cuda_loaded()->pointer_attributes(1, &attribute, &data, at) == KOLO_CU_SUCCESS &&
           types & KOLO_CU_HANDLE_FD;
}

static bool add(kolo_cuda_run_t *run, const kolo_mem_place_t *place, uint32_t most, bool front)
{
    kolo_cuda_piece_t piece = {kolo_cuda_buffer_id((const void *)place->base), place->bytes}; /* NOLINT */
    if (!piece.id || run->n >= most) return false;
    if (front) memmove(run->pieces + 1, run->pieces, run->n * sizeof run->pieces[0]);
    run->pieces[front ? 0 : run->n] = piece;
    run->n++;
    run->bytes += piece.bytes;
    if (front) run->base = place->base;
    run->shareable = run->shareable && is_shareable(place->base);
    return true;
}

/* Fills a run: first what is asked for, then what lies behind it and before it, so that other tensors find the same
 * run; not more, since a driver takes half a millisecond to make a piece's descriptor. Pieces that cannot be shared
 * do not join those that can. */
static bool fill(kolo_cuda_run_t *run, const kolo_mem_place_t *place, uintptr_t at, size_t bytes)
{
    kolo_mem_place_t next = *place;
    while (run->base + run->bytes < at + bytes)
        if (!add(run, &next, KOLO_CUDA_PIECES, false) ||
            (run->base + run->bytes < at + bytes && !is_piece(run->base + run->bytes, place, &next)))
            return false;
    while (is_piece(run->base + run->bytes, place, &next) && next.base == run->base + run->bytes &&
           is_shareable(next.base) == run->shareable)
        if (!add(run, &next, KOLO_CUDA_BESIDE, false)) return true;
    while (is_piece(run->base - 1, place, &next) && next.base + next.bytes == run->base &&
           is_shareable(next.base) == run->shareable)
        if (!add(run, &next, KOLO_CUDA_BESIDE, true)) return true;
    return true;
}

kolo_cuda_run_t *kolo_cuda_run_find(const kolo_mem_place_t *place, uintptr_t at, size_t bytes)
{
    kolo_cuda_run_t *run = malloc(sizeof *run + KOLO_CUDA_PIECES * sizeof run->pieces[0]), *fitting;
    if (!run) return NULL;
    *run = (kolo_cuda_run_t){.base = place->base, .shareable = true};
    if (!fill(run, place, at, bytes)) {
        free(run);
        return NULL;
    }
    fitting = realloc(run, sizeof *run + run->n * sizeof run->pieces[0]);
    return fitting ? fitting : run;
}

kolo_cuda_run_t *kolo_cuda_run_copy(const kolo_cuda_run_t *run)
{
    size_t bytes = sizeof *run + run->n * sizeof run->pieces[0];
    kolo_cuda_run_t *copy = malloc(bytes);
    if (copy) memcpy(copy, run, bytes);
    return copy;
}

bool kolo_cuda_run_same(const kolo_cuda_run_t *run, uintptr_t at, size_t bytes)
{
    uintptr_t piece = run->base;
    for (uint32_t i = 0; i < run->n && piece < at + bytes; piece += run->pieces[i++].bytes)
        if (piece + run->pieces[i].bytes > at &&
            kolo_cuda_buffer_id((const void *)piece) != run->pieces[i].id) /* NOLINT: device memory */
            return false;
    return true;
}
