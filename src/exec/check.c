/* SPDX-License-Identifier: Apache-2.0
 *
 * Does what a call names fit its communicator? For executors that have no faster way to know it.
 */
#include "exec/exec.h"
#include "exec/place.h"
#include "mem/cuda/cuda.h"

static void reach_other(int ordinal, void *stream, const void *p, kolo_mem_place_t *place)
{
    const kolo_cuda_device_t *device;
    bool pushed;
    if (kolo_cuda_device(ordinal, &device) != KOLO_OK || kolo_cuda_enter(device, &pushed) != KOLO_OK) return;
    if (!kolo_cuda_find_other(device, p, place)) kolo_cuda_find_captured(device, stream, p, place);
    kolo_cuda_leave(pushed);
}

kolo_status_t kolo_exec_check_place(const kolo_mem_place_t *place, const void *p, uint64_t bytes, int rank,
                                    int device, const char *what)
{
    if (place->ops != &kolo_mem_cuda)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s %p is not memory of a GPU, nor other memory that it reaches: the communicator of rank "
                         "%d works on GPU %d",
                         what, p, rank, device);
    if (place->device != device)
        return kolo_fail(
            KOLO_ERR_INVALID_ARGUMENT,
            "%s %p lies on GPU %d, and the communicator of rank %d works on GPU %d, which does not reach it", what,
            p, place->device, rank, device);
    uint64_t left = (uintptr_t)p < place->base ? 0 : kolo_mem_length(place, (uintptr_t)p, bytes);
    if (left >= bytes) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                     "%s %p has %llu bytes to the end of its allocation, %llu are needed", what, p,
                     (unsigned long long)left, (unsigned long long)bytes);
}

static kolo_status_t check_memory(const kolo_exec_call_t *c, const void *p, uint64_t bytes, int rank, int device,
                                  const char *what)
{
    kolo_mem_place_t place;
    if (!p || !bytes) return KOLO_OK;
    kolo_mem_find(p, &place);
    if (place.ops != &kolo_mem_cuda || place.device != device) reach_other(device, c->stream, p, &place);
    return kolo_exec_check_place(&place, p, bytes, rank, device, what);
}

kolo_status_t kolo_exec_refuse_reducer(const kolo_reducer_t *r)
{
    return kolo_fail(
        KOLO_ERR_UNSUPPORTED,
        "an operator that is a function of the host cannot reduce %s on a GPU: copy the data to host memory "
        "and reduce it on a communicator of the CPU, or use a built-in operator",
        kolo_plan_type_name((int)r->type));
}

/* Returns the end of the last part that has elements. */
static uint64_t reach_of_parts(const size_t *counts, const size_t *displs, uint64_t alone, int nranks, size_t elem)
{
    uint64_t at = 0, end = 0;
    if (!counts) return alone * elem;
    for (int r = 0; r < nranks; r++) {
        uint64_t first = displs ? displs[r] : at;
        if (counts[r]) end = KOLO_MAX(end, first + counts[r]);
        at += counts[r];
    }
    return end * elem;
}

void kolo_exec_reach(const kolo_exec_call_t *c, int rank, int nranks, uint64_t *src, uint64_t *dst)
{
    const size_t *sends = c->send_counts, *recvs = c->recv_counts;
    if (sends || recvs) {
        *src = reach_of_parts(sends, c->send_displs, recvs ? recvs[rank] : 0, nranks, c->elem);
        *dst = reach_of_parts(recvs, c->recv_displs, sends ? sends[rank] : 0, nranks, c->elem);
        return;
    }
    uint64_t bytes = c->count * c->elem, others = (uint64_t)nranks - 1;
    *src = *dst = bytes;
    if (c->kind != KOLO_EXEC_COLL) return;
    if (c->coll == KOLO_COLL_REDUCE_SCATTER || c->coll == KOLO_COLL_ALL_TO_ALL || c->coll == KOLO_COLL_SCATTER)
        *src += others * (c->src_stride ? c->src_stride : bytes);
    if (c->coll == KOLO_COLL_ALL_GATHER || c->coll == KOLO_COLL_ALL_TO_ALL || c->coll == KOLO_COLL_GATHER)
        *dst += others * (c->dst_stride ? c->dst_stride : bytes);
    if (c->coll == KOLO_COLL_BARRIER || !bytes) *src = *dst = 0;
}

kolo_status_t kolo_exec_check(const kolo_exec_call_t *c, int rank, int nranks, int device)
{
    uint64_t src, dst;
    kolo_exec_reach(c, rank, nranks, &src, &dst);
    if (c->kind == KOLO_EXEC_COLL && kolo_coll_reduces(c->coll) && !kolo_exec_device_reduces(&c->reducer))
        return kolo_exec_refuse_reducer(&c->reducer);
    KOLO_TRY(check_memory(c, c->src, src, rank, device, "the source"));
    return check_memory(c, c->dst, dst, rank, device, "the destination");
}

static kolo_status_t check_own(const kolo_exec_call_t *calls, size_t n, int rank)
{
    size_t r = 0;
    for (size_t i = 0; i < n; i++) {
        if (calls[i].kind != KOLO_EXEC_SEND || calls[i].root != rank) continue;
        while (r < n && !(calls[r].kind == KOLO_EXEC_RECV && calls[r].root == rank)) r++;
        if (r == n)
            return kolo_fail(KOLO_ERR_INVALID_USAGE, "rank %d sends to itself in a group that does not receive it",
                             rank);
        uint64_t bytes = calls[i].count * calls[i].elem, room = calls[r].count * calls[r].elem;
        if (bytes != room)
            return kolo_fail(KOLO_ERR_MISMATCH, "rank %d sends %llu bytes to itself and receives %llu", rank,
                             (unsigned long long)bytes, (unsigned long long)room);
        r++;
    }
    while (r < n && !(calls[r].kind == KOLO_EXEC_RECV && calls[r].root == rank)) r++;
    if (r == n) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_USAGE, "rank %d receives from itself in a group that does not send it", rank);
}

kolo_status_t kolo_exec_check_own(const kolo_exec_call_t *calls, size_t n, int rank)
{
    for (size_t i = 0; i < n; i++) {
        size_t end = i;
        while (end < n && calls[end].kind != KOLO_EXEC_COLL) end++;
        if (end > i) KOLO_TRY(check_own(&calls[i], end - i, rank));
        i = end;
    }
    return KOLO_OK;
}
