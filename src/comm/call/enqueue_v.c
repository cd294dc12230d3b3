/* SPDX-License-Identifier: Apache-2.0
 *
 * The collectives whose parts have unequal lengths: all_gatherv, gatherv, scatterv, reduce_scatterv,
 * all_to_allv. They run the plans of their even forms over tables of parts.
 */
#include "comm/call/call.h"

#include <stdlib.h>

#define BYTES_MAX ((uint64_t)1 << 47)

static kolo_status_t check(kolo_call_t *call, const size_t *counts, const size_t *displs, uint64_t *end,
                           uint64_t *total, const char *what)
{
    *end = *total = 0;
    for (int r = 0; r < call->comm->nranks; r++) {
        uint64_t at = displs ? displs[r] : *total;
        if (counts[r] > BYTES_MAX / call->elem || at > BYTES_MAX / call->elem)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                             "%s: count %zu or displacement %llu of rank %d is too large", what, counts[r],
                             (unsigned long long)at, r);
        *total += counts[r];
        if (counts[r]) *end = KOLO_MAX(*end, at + counts[r]);
    }
    if (*total > BYTES_MAX / call->elem)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the counts sum up to %llu elements, which is too large",
                         what, (unsigned long long)*total);
    return KOLO_OK;
}

static int by_start(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (x[0] > y[0]) - (x[0] < y[0]);
}

/* Parts that are written must not overlap each other. */
static kolo_status_t check_apart(const kolo_call_t *call, const size_t *counts, const size_t *displs,
                                 const char *what)
{
    size_t n = (size_t)call->comm->nranks;
    uint64_t(*parts)[3] = malloc(n * sizeof *parts);
    if (!parts) return kolo_fail(KOLO_ERR_NO_MEMORY, "%s: out of memory", what);
    size_t used = 0;
    for (size_t r = 0; r < n; r++) {
        if (!counts[r]) continue;
        parts[used][0] = displs[r];
        parts[used][1] = displs[r] + counts[r];
        parts[used++][2] = r;
    }
    qsort(parts, used, sizeof *parts, by_start);
    kolo_status_t status = KOLO_OK;
    for (size_t i = 1; i < used && status == KOLO_OK; i++)
        if (parts[i][0] < parts[i - 1][1])
            status =
                kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the parts of ranks %d and %d overlap in the destination",
                          what, (int)parts[i - 1][2], (int)parts[i][2]);
    free(parts);
    return status;
}

/* Takes a number for the lengths, which all ranks have to give alike; never 0. */
static void take_table(kolo_call_t *call, const size_t *counts)
{
    uint64_t hash = 1;
    for (int r = 0; r < call->comm->nranks; r++) hash = kolo_board_mixed(hash) + counts[r];
    call->table = (uint32_t)kolo_board_mixed(hash) | UINT32_C(1) << 31;
}

/* Refuses NULL, but for a rank without elements of its own. */
static kolo_status_t check_null(const void *src, uint64_t src_count, const void *dst, uint64_t dst_count,
                                const char *what)
{
    if (!src && src_count) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the source is NULL", what);
    if (!dst && dst_count) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the destination is NULL", what);
    return KOLO_OK;
}

static bool overlap(const void *a, uint64_t na, const void *b, uint64_t nb)
{
    return na && nb && (uintptr_t)a < (uintptr_t)b + nb && (uintptr_t)b < (uintptr_t)a + na;
}

/* What ranks have in one buffer. */
typedef struct {
    const void *base;
    const size_t *counts, *displs; /* displs NULL: one behind the other */
    uint64_t end;                  /* in elements */
} parts_t;

/* Fails if these bytes overlap a part, unless the call is in place. Parts may lie far apart, in memory of their
 * own: what is between two of them is none of theirs. */
static kolo_status_t check_overlap(const kolo_call_t *call, const void *own, uint64_t bytes, const parts_t *parts,
                                   const char *what)
{
    if (call->in_place || !overlap(own, bytes, parts->base, parts->end * call->elem)) return KOLO_OK;
    bool one = !parts->displs;
    for (int r = 0; r < call->comm->nranks && !one; r++)
        one = overlap(own, bytes, (const char *)parts->base + parts->displs[r] * call->elem,
                      parts->counts[r] * call->elem);
    return one ? kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: source and destination overlap", what) : KOLO_OK;
}

static kolo_status_t check_start(kolo_call_t *call, bool tables, const char *what)
{
    KOLO_CALL_TRY(kolo_handle_check(call->comm, what));
    call->elem = kolo_type_size(call->type);
    call->root = KOLO_SIGNATURE_V_ROOT;
    if (!call->elem) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: unknown type %d", what, (int)call->type);
    if (!tables)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: a table of counts or displacements is NULL", what);
    if (call->stream && !call->comm->on_device && !kolo_stream_valid(call->stream))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %p is not a stream, or one that was destroyed", what,
                         call->stream);
    return KOLO_OK;
}

kolo_status_t kolo_all_gatherv(const void *src, void *dst, const size_t *counts, const size_t *displs,
                               kolo_type_t type, kolo_comm_t comm, void *stream)
{
    kolo_call_t call = {.coll = KOLO_COLL_ALL_GATHER,
                        .type = type,
                        .src = src,
                        .dst = dst,
                        .recv_counts = counts,
                        .recv_displs = displs,
                        .comm = comm,
                        .stream = stream};
    uint64_t end;
    KOLO_CALL_TRY(check_start(&call, counts && displs, "all_gatherv"));
    KOLO_CALL_TRY(check(&call, counts, displs, &end, &call.count, "all_gatherv"));
    KOLO_CALL_TRY(check_apart(&call, counts, displs, "all_gatherv"));
    take_table(&call, counts);
    size_t mine = counts[comm->rank];
    KOLO_CALL_TRY(check_null(src, mine, dst, call.count, "all_gatherv"));
    call.in_place = (uintptr_t)src == (uintptr_t)dst + displs[comm->rank] * call.elem;
    const parts_t parts = {dst, counts, displs, end};
    KOLO_CALL_TRY(check_overlap(&call, src, mine * call.elem, &parts, "all_gatherv"));
    if (kolo_deep()) KOLO_CALL_TRY(kolo_deep_check(&call, mine * call.elem, 0, "all_gatherv"));
    return kolo_call_submit(&call);
}

kolo_status_t kolo_reduce_scatterv(const void *src, void *dst, const size_t *counts, const size_t *displs,
                                   kolo_type_t type, kolo_op_t op, kolo_comm_t comm, void *stream)
{
    kolo_call_t call = {.coll = KOLO_COLL_REDUCE_SCATTER,
                        .type = type,
                        .op = op,
                        .src = src,
                        .dst = dst,
                        .send_counts = counts,
                        .send_displs = displs,
                        .comm = comm,
                        .stream = stream};
    uint64_t end, before = 0;
    KOLO_CALL_TRY(check_start(&call, counts != NULL, "reduce_scatterv"));
    KOLO_CALL_TRY(kolo_check_op(&call, "reduce_scatterv"));
    KOLO_CALL_TRY(check(&call, counts, displs, &end, &call.count, "reduce_scatterv"));
    take_table(&call, counts);
    size_t mine = counts[comm->rank];
    for (int r = 0; r < comm->rank && !displs; r++) before += counts[r];
    if (displs) before = displs[comm->rank];
    KOLO_CALL_TRY(check_null(src, call.count, dst, mine, "reduce_scatterv"));
    call.in_place = (uintptr_t)dst == (uintptr_t)src + before * call.elem;
    const parts_t parts = {src, counts, displs, end};
    KOLO_CALL_TRY(check_overlap(&call, dst, mine * call.elem, &parts, "reduce_scatterv"));
    if (kolo_deep()) KOLO_CALL_TRY(kolo_deep_check(&call, 0, mine * call.elem, "reduce_scatterv"));
    return kolo_call_submit(&call);
}

kolo_status_t kolo_all_to_allv(const void *src, const size_t *send_counts, const size_t *send_displs, void *dst,
                               const size_t *recv_counts, const size_t *recv_displs, kolo_type_t type,
                               kolo_comm_t comm, void *stream)
{
    kolo_call_t call = {.coll = KOLO_COLL_ALL_TO_ALL,
                        .type = type,
                        .src = src,
                        .dst = dst,
                        .send_counts = send_counts,
                        .send_displs = send_displs,
                        .recv_counts = recv_counts,
                        .recv_displs = recv_displs,
                        .comm = comm,
                        .stream = stream};
    uint64_t send_end, recv_end, send_total, recv_total;
    KOLO_CALL_TRY(check_start(&call, send_counts && send_displs && recv_counts && recv_displs, "all_to_allv"));
    KOLO_CALL_TRY(check(&call, send_counts, send_displs, &send_end, &send_total, "all_to_allv"));
    KOLO_CALL_TRY(check(&call, recv_counts, recv_displs, &recv_end, &recv_total, "all_to_allv"));
    KOLO_CALL_TRY(check_apart(&call, recv_counts, recv_displs, "all_to_allv"));
    KOLO_CALL_TRY(check_null(src, send_total, dst, recv_total, "all_to_allv"));
    const parts_t parts = {dst, recv_counts, recv_displs, recv_end};
    for (int r = 0; r < comm->nranks; r++)
        KOLO_CALL_TRY(check_overlap(&call, (const char *)src + send_displs[r] * call.elem,
                                    send_counts[r] * call.elem, &parts, "all_to_allv"));
    if (send_counts[comm->rank] != recv_counts[comm->rank])
        return kolo_call_refused(kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                                           "all_to_allv: rank %d sends itself %zu elements but receives %zu",
                                           comm->rank, send_counts[comm->rank], recv_counts[comm->rank]));
    if (kolo_deep()) KOLO_CALL_TRY(kolo_deep_check(&call, 0, 0, "all_to_allv"));
    call.count = 0; /* ranks see different totals: only type and collective are in the signature */
    return kolo_call_submit(&call);
}

/* Parts at the root, of which each rank knows the lengths; where they lie only the root has to know. */
static kolo_status_t check_rooted(kolo_call_t *call, const size_t *counts, const size_t *displs, int root,
                                  uint64_t *end, const char *what)
{
    kolo_comm_t comm = call->comm;
    KOLO_CALL_TRY(check_start(call, counts != NULL, what));
    if (root < 0 || root >= comm->nranks)
        return kolo_call_refused(kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                                           "%s: root %d is out of range, the communicator has %d ranks", what, root,
                                           comm->nranks));
    if (comm->rank == root && !displs)
        return kolo_call_refused(
            kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the displacements are NULL on the root", what));
    call->root = (uint32_t)root;
    call->op = (kolo_op_t)KOLO_SIGNATURE_V;
    take_table(call, counts);
    return check(call, counts, comm->rank == root ? displs : NULL, end, &call->count, what);
}

kolo_status_t kolo_gatherv(const void *src, void *dst, const size_t *counts, const size_t *displs, kolo_type_t type,
                           int root, kolo_comm_t comm, void *stream)
{
    kolo_call_t call = {
        .coll = KOLO_COLL_GATHER, .type = type, .src = src, .recv_counts = counts, .comm = comm, .stream = stream};
    uint64_t end;
    KOLO_CALL_TRY(check_rooted(&call, counts, displs, root, &end, "gatherv"));
    size_t mine = counts[comm->rank];
    bool here = comm->rank == root;
    if (here) KOLO_CALL_TRY(check_apart(&call, counts, displs, "gatherv"));
    KOLO_CALL_TRY(check_null(src, mine, dst, here ? call.count : 0, "gatherv"));
    if (here) {
        call.dst = dst;
        call.recv_displs = displs;
        call.in_place = (uintptr_t)src == (uintptr_t)dst + displs[root] * call.elem;
        const parts_t parts = {dst, counts, displs, end};
        KOLO_CALL_TRY(check_overlap(&call, src, mine * call.elem, &parts, "gatherv"));
    }
    if (kolo_deep()) KOLO_CALL_TRY(kolo_deep_check(&call, mine * call.elem, 0, "gatherv"));
    return kolo_call_submit(&call);
}

kolo_status_t kolo_scatterv(const void *src, const size_t *counts, const size_t *displs, void *dst,
                            kolo_type_t type, int root, kolo_comm_t comm, void *stream)
{
    kolo_call_t call = {
        .coll = KOLO_COLL_SCATTER, .type = type, .dst = dst, .send_counts = counts, .comm = comm, .stream = stream};
    uint64_t end;
    KOLO_CALL_TRY(check_rooted(&call, counts, displs, root, &end, "scatterv"));
    size_t mine = counts[comm->rank];
    bool here = comm->rank == root;
    KOLO_CALL_TRY(check_null(src, here ? call.count : 0, dst, mine, "scatterv"));
    if (here) {
        call.src = src;
        call.send_displs = displs;
        call.in_place = (uintptr_t)dst == (uintptr_t)src + displs[root] * call.elem;
        const parts_t parts = {src, counts, displs, end};
        KOLO_CALL_TRY(check_overlap(&call, dst, mine * call.elem, &parts, "scatterv"));
    }
    if (kolo_deep()) KOLO_CALL_TRY(kolo_deep_check(&call, 0, mine * call.elem, "scatterv"));
    return kolo_call_submit(&call);
}
