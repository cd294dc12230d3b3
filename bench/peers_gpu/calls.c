/* SPDX-License-Identifier: Apache-2.0
 *
 * One call of either library, and whether both come to the same. See peers_gpu.h.
 */
#include "exec/host/reduce_types.h"
#include "peers_gpu.h"

#include <stdlib.h>
#include <string.h>

#define COMPARED ((size_t)4 << 20) /* bytes from the beginning of a buffer */

const char *const op_names[OPS] = {"all_reduce", "all_gather", "reduce_scatter",
                                   "all_to_all", "broadcast",  "sendrecv"};

/* NCCL's numbers of our types. */
static const int nccl_types[KOLO_TYPE_COUNT] = {
    [KOLO_INT8] = 0,    [KOLO_UINT8] = 1,    [KOLO_INT32] = 2,        [KOLO_UINT32] = 3,
    [KOLO_INT64] = 4,   [KOLO_UINT64] = 5,   [KOLO_FLOAT16] = 6,      [KOLO_FLOAT32] = 7,
    [KOLO_FLOAT64] = 8, [KOLO_BFLOAT16] = 9, [KOLO_FLOAT8_E4M3] = 10, [KOLO_FLOAT8_E5M2] = 11};
#define NCCL_SUM 0

/* Is the larger buffer made of one part per rank? */
static bool has_parts(op_t op)
{
    return op == ALL_GATHER || op == REDUCE_SCATTER || op == ALL_TO_ALL;
}

size_t count_of(const options_t *o, op_t op, uint64_t *bytes)
{
    size_t parts = has_parts(op) ? (size_t)o->gpus : 1, elem = kolo_type_size(o->type);
    size_t count = *bytes / elem / parts;
    if (!count) count = 1;
    *bytes = (uint64_t)count * elem * parts;
    return count;
}

size_t src_bytes_of(const options_t *o, op_t op, uint64_t bytes)
{
    return op == ALL_GATHER ? bytes / (uint64_t)o->gpus : bytes;
}

size_t dst_bytes_of(const options_t *o, op_t op, uint64_t bytes)
{
    return op == REDUCE_SCATTER ? bytes / (uint64_t)o->gpus : bytes;
}

static void nccl_exchange(const rank_t *r, op_t op, size_t count)
{
    int type = nccl_types[r->o->type], n = r->o->gpus;
    size_t bytes = count * kolo_type_size(r->o->type);
    NCCL_MUST(nccl.group_start());
    if (op == SENDRECV) {
        NCCL_MUST(nccl.send(r->src, count, type, (r->rank + 1) % n, r->nccl, r->stream));
        NCCL_MUST(nccl.recv(r->dst, count, type, (r->rank + n - 1) % n, r->nccl, r->stream));
    }
    for (int p = 0; p < n && op == ALL_TO_ALL; p++) {
        NCCL_MUST(nccl.send(r->src + (size_t)p * bytes, count, type, p, r->nccl, r->stream));
        NCCL_MUST(nccl.recv(r->dst + (size_t)p * bytes, count, type, p, r->nccl, r->stream));
    }
    NCCL_MUST(nccl.group_end());
}

static void call_nccl(const rank_t *r, op_t op, size_t count)
{
    int type = nccl_types[r->o->type];
    switch (op) {
    case ALL_REDUCE:
        NCCL_MUST(nccl.all_reduce(r->src, r->dst, count, type, NCCL_SUM, r->nccl, r->stream));
        return;
    case ALL_GATHER:
        NCCL_MUST(nccl.all_gather(r->src, r->dst, count, type, r->nccl, r->stream));
        return;
    case REDUCE_SCATTER:
        NCCL_MUST(nccl.reduce_scatter(r->src, r->dst, count, type, NCCL_SUM, r->nccl, r->stream));
        return;
    case BROADCAST:
        NCCL_MUST(nccl.broadcast(r->src, r->dst, count, type, 0, r->nccl, r->stream));
        return;
    case ALL_TO_ALL:
        if (nccl.all_to_all) {
            NCCL_MUST(nccl.all_to_all(r->src, r->dst, count, type, r->nccl, r->stream));
            return;
        }
        break;
    default:
        break;
    }
    nccl_exchange(r, op, count);
}

static void call_kolo(const rank_t *r, op_t op, size_t count)
{
    kolo_type_t type = r->o->type;
    int n = r->o->gpus;
    switch (op) {
    case ALL_REDUCE:
        KOLO_MUST(kolo_all_reduce(r->src, r->dst, count, type, KOLO_SUM, r->kolo, r->stream));
        return;
    case ALL_GATHER:
        KOLO_MUST(kolo_all_gather(r->src, r->dst, count, type, r->kolo, r->stream));
        return;
    case REDUCE_SCATTER:
        KOLO_MUST(kolo_reduce_scatter(r->src, r->dst, count, type, KOLO_SUM, r->kolo, r->stream));
        return;
    case ALL_TO_ALL:
        KOLO_MUST(kolo_all_to_all(r->src, r->dst, count, type, r->kolo, r->stream));
        return;
    case BROADCAST:
        KOLO_MUST(kolo_broadcast(r->src, r->dst, count, type, 0, r->kolo, r->stream));
        return;
    default:
        KOLO_MUST(kolo_group_start());
        KOLO_MUST(kolo_send(r->src, count, type, (r->rank + 1) % n, r->kolo, r->stream));
        KOLO_MUST(kolo_recv(r->dst, count, type, (r->rank + n - 1) % n, r->kolo, r->stream));
        KOLO_MUST(kolo_group_end());
    }
}

void call(const rank_t *r, library_t library, op_t op, size_t count)
{
    if (library == NCCL)
        call_nccl(r, op, count);
    else
        call_kolo(r, op, count);
}

/* ---- values ---- */

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

void fill_source(const rank_t *r)
{
    size_t elem = kolo_type_size(r->o->type), bytes = r->src_bytes < COMPARED ? r->src_bytes : COMPARED;
    char *host = malloc(COMPARED);
    if (!host) die("out of memory");
    for (size_t i = 0; i < bytes / elem; i++) {
        uint64_t v = small_integer(r->o->type, (int)((i + (size_t)r->rank * 3) % 4)); /* exact in each type */
        memcpy(host + i * elem, &v, elem);
    }
    CUDA_MUST(cuda.memset8((uintptr_t)r->src, 0, r->src_bytes, r->stream));
    CUDA_MUST(cuda.memcpy((uintptr_t)r->src, (uintptr_t)host, bytes / elem * elem, r->stream));
    CUDA_MUST(cuda.stream_sync(r->stream));
    free(host);
}

void compare(rank_t *r, op_t op, size_t count, uint64_t bytes)
{
    size_t n = dst_bytes_of(r->o, op, bytes) < COMPARED ? dst_bytes_of(r->o, op, bytes) : COMPARED;
    char *host[LIBRARIES] = {malloc(COMPARED), malloc(COMPARED)};
    if (!host[NCCL] || !host[KOLO]) die("out of memory");
    for (int l = 0; l < LIBRARIES; l++) {
        CUDA_MUST(cuda.memset8((uintptr_t)r->dst, 0xa5, n, r->stream));
        call(r, (library_t)l, op, count);
        CUDA_MUST(cuda.memcpy((uintptr_t)host[l], (uintptr_t)r->dst, n, r->stream));
        CUDA_MUST(cuda.stream_sync(r->stream));
        meet(r);
    }
    size_t i = 0;
    while (i < n && host[NCCL][i] == host[KOLO][i]) i++;
    if (i < n)
        die("rank %d: %s of %llu bytes: NCCL and Kolo differ from byte %zu on", r->rank, op_names[op],
            (unsigned long long)bytes, i);
    free(host[NCCL]);
    free(host[KOLO]);
}
