/* SPDX-License-Identifier: Apache-2.0
 *
 * What is in the buffers, and whether all libraries come to the same. See peers_gpu.h.
 */
#include "exec/host/reduce_types.h"
#include "peers_gpu.h"

#include <stdlib.h>
#include <string.h>

#define COMPARED ((size_t)4 << 20) /* bytes from the beginning and from the end of a result */

static uint64_t small_integer(kolo_type_t type, int value)
{
    float f = (float)value;
    double d = value;
    uint64_t bits = 0;
    switch (type) {
    case KOLO_FLOAT16:
        return store_f16(f);
    case KOLO_BFLOAT16:
        return store_bf16(f);
    case KOLO_FLOAT8_E4M3:
        return store_e4m3(f);
    case KOLO_FLOAT8_E5M2:
        return store_e5m2(f);
    case KOLO_FLOAT32:
        memcpy(&bits, &f, 4);
        return bits;
    case KOLO_FLOAT64:
        memcpy(&bits, &d, 8);
        return bits;
    default:
        return (uint64_t)value;
    }
}

/* One piece from the host, doubled on the device. */
void fill_source(const rank_t *r)
{
    size_t elem = kolo_type_size(r->o->type), all = r->bytes - (size_t)(r->src - r->memory[0]);
    size_t bytes = (all < COMPARED ? all : COMPARED) / elem * elem;
    char *host = malloc(COMPARED);
    if (!host) die("out of memory");
    for (size_t i = 0; i < bytes / elem; i++) {
        uint64_t v = small_integer(r->o->type, (int)((i + (size_t)r->rank * 3) % 4)); /* exact in each type */
        memcpy(host + i * elem, &v, elem);
    }
    CUDA_MUST(cuda.memcpy((uintptr_t)r->src, (uintptr_t)host, bytes, r->stream));
    for (size_t done = bytes, next; done < all; done += next) {
        next = done < all - done ? done : all - done;
        CUDA_MUST(cuda.memcpy((uintptr_t)r->src + done, (uintptr_t)r->src, next, r->stream));
    }
    CUDA_MUST(cuda.stream_sync(r->stream));
    free(host);
}

/* What a call in place has destroyed. An all_gather has its input in the other buffer then. */
static void fill_again(const rank_t *r, place_t place)
{
    if (place == OUT_OF_PLACE) return;
    fill_source(r);
    CUDA_MUST(cuda.memcpy((uintptr_t)r->memory[1], (uintptr_t)r->memory[0], r->bytes, r->stream));
}

/* What one leaves: the first `part` bytes of its result and, behind them, the last. */
static void result_by(rank_t *r, library_t library, op_t op, place_t place, size_t count, char *host)
{
    size_t n, part;
    char *result = result_of(r, op, place, count, &n);
    part = n < COMPARED ? n : COMPARED;
    fill_again(r, place);
    if (place == OUT_OF_PLACE && n) CUDA_MUST(cuda.memset8((uintptr_t)result, 0xa5, n, r->stream));
    call(r, library, op, place, count);
    if (n) {
        CUDA_MUST(cuda.memcpy((uintptr_t)host, (uintptr_t)result, part, r->stream));
        CUDA_MUST(cuda.memcpy((uintptr_t)host + part, (uintptr_t)result + n - part, part, r->stream));
    }
    CUDA_MUST(cuda.stream_sync(r->stream));
    meet(r);
}

void compare(rank_t *r, op_t op, place_t place, size_t count, uint64_t bytes)
{
    size_t n, part;
    library_t first = first_library(r->o);
    char *wanted = malloc(2 * COMPARED), *host = malloc(2 * COMPARED);
    if (!wanted || !host) die("out of memory");
    result_of(r, op, place, count, &n);
    part = n < COMPARED ? n : COMPARED;
    result_by(r, first, op, place, count, wanted);
    for (int l = first + 1; l < (int)end_of_libraries(r->o); l++) {
        size_t i = 0;
        result_by(r, (library_t)l, op, place, count, host);
        while (i < 2 * part && wanted[i] == host[i]) i++;
        if (i < 2 * part)
            die("rank %d: %s of %llu bytes, %s: columns 1 and %d (%s) differ from byte %zu on", r->rank,
                op_names[op], (unsigned long long)bytes, place_names[place], l - (int)first + 1,
                l < VARIANT ? "Kolo" : r->o->variants[l - VARIANT], i < part ? i : n - 2 * part + i);
    }
    free(wanted);
    free(host);
}
