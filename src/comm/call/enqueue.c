/* SPDX-License-Identifier: Apache-2.0
 *
 * The public collectives: each checks its arguments and submits a call. Checks that cost nothing are always on;
 * KOLO_CHECK adds the touching of buffers.
 */
#include "comm/call/call.h"

#include <kolo/engine.h>

#include <inttypes.h>
#include <string.h>

#define BYTES_MAX ((uint64_t)1 << 47) /* a user address space; larger counts are negative numbers gone wrong */

kolo_status_t kolo_check_call(kolo_call_t *call, const char *what)
{
    KOLO_CALL_TRY(kolo_handle_check(call->comm, what));
    call->elem = kolo_type_bytes(call->type);
    if (KOLO_UNLIKELY(call->elem == 0))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: unknown type %d%s", what, (int)call->type,
                         call->count < KOLO_TYPE_COUNT ? " (the count comes before the type)" : "");
    uint64_t bytes,
        each = call->elem * (uint64_t)call->comm->nranks; /* a division would cost a tenth of a short call */
    if (KOLO_UNLIKELY(__builtin_mul_overflow(call->count, each, &bytes) || bytes > BYTES_MAX))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: count %llu is too large (a negative number?)", what,
                         (unsigned long long)call->count);
    if (KOLO_UNLIKELY(call->stream && !call->comm->on_device && !kolo_stream_valid(call->stream)))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %p is not a stream, or one that was destroyed", what,
                         call->stream);
    return KOLO_OK;
}

kolo_status_t kolo_check_op(const kolo_call_t *call, const char *what)
{
    int op = (int)call->op;
    if (KOLO_LIKELY(kolo_op_fits(call->op, call->type))) return KOLO_OK;
    if (call->op == KOLO_ADASUM)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s: KOLO_ADASUM is for the engine only: kolo_engine_all_reduce() takes it", what);
    if (op >= 0 && op < KOLO_OP_BUILTIN_COUNT)
        return kolo_fail(
            KOLO_ERR_INVALID_ARGUMENT,
            "%s: operator %s is not for %s: bitwise and logical ones are for integers and bool, and bool "
            "has no average",
            what, kolo_plan_op_name(op), kolo_plan_type_name((int)call->type));
    kolo_body_t *body = kolo_handle_visit(call->comm, what);
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    const kolo_user_op_t *at = kolo_call_user_op(body, op);
    bool known = at && at->used;
    kolo_type_t type = known ? at->type : call->type;
    kolo_handle_leave(call->comm);
    if (!known)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: operator %d is not known to this communicator", what, op);
    if (type != call->type)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: operator %d was made for %s, not for %s", what, op,
                         kolo_plan_type_name((int)type), kolo_plan_type_name((int)call->type));
    return KOLO_OK;
}

static kolo_status_t check_root(const kolo_call_t *call, int root, const char *what)
{
    if (KOLO_LIKELY(root >= 0 && root < call->comm->nranks)) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: root %d is out of range, the communicator has %d ranks", what,
                     root, call->comm->nranks);
}

kolo_status_t kolo_check_buffer(const void *buf, uint64_t bytes, bool on_device, const char *name, const char *what)
{
    if (KOLO_UNLIKELY(!buf && bytes)) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %s is NULL", what, name);
    if (KOLO_UNLIKELY(kolo_comm_options.check == KOLO_CHECK_BASIC && bytes && !on_device)) {
        const volatile char *p = buf;
        (void)p[0];
        (void)p[bytes - 1];
    }
    return KOLO_OK;
}

/* Says what the in-place form of a call is, in its own words. */
static const char *in_place_form(kolo_coll_t coll)
{
    switch (coll) {
    case KOLO_COLL_ALL_GATHER:
        return "src == dst + rank * count";
    case KOLO_COLL_REDUCE_SCATTER:
        return "dst == src + rank * count";
    case KOLO_COLL_GATHER:
        return "src == dst + root * count, on the root";
    case KOLO_COLL_SCATTER:
        return "dst == src + root * count, on the root";
    case KOLO_COLL_ALL_TO_ALL:
        return "src == dst, on GPUs only";
    default:
        return "src == dst";
    }
}

static kolo_status_t check_overlap(const kolo_call_t *call, uint64_t src_bytes, uint64_t dst_bytes, bool in_place,
                                   const char *what)
{
    uintptr_t a = (uintptr_t)call->src, b = (uintptr_t)call->dst;
    if (KOLO_LIKELY(in_place || !a || !b || !src_bytes || !dst_bytes || a + src_bytes <= b || b + dst_bytes <= a))
        return KOLO_OK;
    return kolo_fail(
        KOLO_ERR_INVALID_ARGUMENT,
        "%s: on %s rank %d the source, 0x%" PRIxPTR " to 0x%" PRIxPTR ", and the destination, 0x%" PRIxPTR
        " to 0x%" PRIxPTR
        ", overlap and are not the in-place form: %s (in elements, as all counts; this one is %llu %s)",
        what, call->comm->name, call->comm->rank, a, a + src_bytes, b, b + dst_bytes, in_place_form(call->coll),
        (unsigned long long)call->count, kolo_plan_type_name((int)call->type));
}

/* Notes a refused call of a communicator on the board: others may have made the same, and wait. */
static kolo_status_t refuse(kolo_call_t *call, kolo_status_t status)
{
    kolo_body_t *body = call->comm->on_device ? kolo_handle_visit(call->comm, "a call") : NULL;
    if (!body) return status;
    if (atomic_load(&call->comm->state) == KOLO_COMM_READY)
        kolo_device_refuse(&(kolo_device_work_t){.body = body, .calls = call, .count = 1});
    kolo_handle_leave(call->comm);
    return status;
}

/* Checks the buffers. src_parts, dst_parts: how many times `count` each holds; 0: not used on this rank. in_place:
 * that form. */
static kolo_status_t check_buffers(const kolo_call_t *call, unsigned src_parts, unsigned dst_parts, bool in_place,
                                   const char *what)
{
    uint64_t bytes = call->count * call->elem;
    bool on_device = call->comm->on_device;
    if (src_parts) KOLO_TRY(kolo_check_buffer(call->src, bytes, on_device, "the source", what));
    if (dst_parts) KOLO_TRY(kolo_check_buffer(call->dst, bytes, on_device, "the destination", what));
    if (!src_parts || !dst_parts) return KOLO_OK;
    return check_overlap(call, bytes * src_parts, bytes * dst_parts, in_place, what);
}

/* Checks a collective and submits it. */
static kolo_status_t submit(kolo_call_t *call, unsigned src_parts, unsigned dst_parts, bool in_place,
                            const char *what)
{
    uint64_t bytes = call->count * call->elem;
    bool on_device = call->comm->on_device;
    kolo_status_t status = check_buffers(call, src_parts, dst_parts, in_place, what);
    if (KOLO_UNLIKELY(status != KOLO_OK)) return kolo_call_refused(refuse(call, status));
    if (kolo_deep() && !on_device) KOLO_CALL_TRY(kolo_deep_check(call, bytes * src_parts, bytes * dst_parts, what));
    call->in_place = in_place && bytes;
    return kolo_call_submit(call);
}

/* The parameters of the functions below have these names; what else a call has is given. */
#define CALL(...)                                                                                                  \
    {                                                                                                              \
        .type = type, .src = src, .dst = dst, .count = count, .comm = comm, .stream = stream, __VA_ARGS__          \
    }

kolo_status_t kolo_all_reduce(const void *src, void *dst, size_t count, kolo_type_t type, kolo_op_t op,
                              kolo_comm_t comm, void *stream)
{
    kolo_call_t call = CALL(.coll = KOLO_COLL_ALL_REDUCE, .op = op);
    KOLO_CALL_TRY(kolo_check_call(&call, "all_reduce"));
    KOLO_CALL_TRY(kolo_check_op(&call, "all_reduce"));
    return submit(&call, 1, 1, src == dst, "all_reduce");
}

kolo_status_t kolo_call_all_reduce(kolo_call_word_t as, void *data, size_t count, kolo_type_t type, kolo_op_t op,
                                   kolo_comm_t comm)
{
    void *src = data, *dst = data, *stream = NULL;
    kolo_call_t call = CALL(.coll = KOLO_COLL_ALL_REDUCE, .op = op, .as = (uint32_t)as + 1);
    KOLO_CALL_TRY(kolo_check_call(&call, kolo_plan_call_name(as)));
    return submit(&call, 1, 1, true, kolo_plan_call_name(as));
}

kolo_status_t kolo_reduce(const void *src, void *dst, size_t count, kolo_type_t type, kolo_op_t op, int root,
                          kolo_comm_t comm, void *stream)
{
    kolo_call_t call = CALL(.coll = KOLO_COLL_REDUCE, .op = op, .root = (uint32_t)root);
    KOLO_CALL_TRY(kolo_check_call(&call, "reduce"));
    KOLO_CALL_TRY(kolo_check_op(&call, "reduce"));
    KOLO_CALL_TRY(check_root(&call, root, "reduce"));
    if (comm->rank != root) call.dst = NULL;
    return submit(&call, 1, comm->rank == root, src == dst, "reduce");
}

kolo_status_t kolo_broadcast(const void *src, void *dst, size_t count, kolo_type_t type, int root, kolo_comm_t comm,
                             void *stream)
{
    kolo_call_t call = CALL(.coll = KOLO_COLL_BROADCAST, .root = (uint32_t)root);
    KOLO_CALL_TRY(kolo_check_call(&call, "broadcast"));
    KOLO_CALL_TRY(check_root(&call, root, "broadcast"));
    if (comm->rank != root) call.src = NULL;
    return submit(&call, comm->rank == root, 1, src == dst, "broadcast");
}

static bool at_part(const void *part, const void *whole, const kolo_call_t *call, int rank)
{
    return (uintptr_t)part == (uintptr_t)whole + (uint64_t)rank * call->count * call->elem;
}

kolo_status_t kolo_all_gather(const void *src, void *dst, size_t count, kolo_type_t type, kolo_comm_t comm,
                              void *stream)
{
    kolo_call_t call = CALL(.coll = KOLO_COLL_ALL_GATHER);
    KOLO_CALL_TRY(kolo_check_call(&call, "all_gather"));
    return submit(&call, 1, (unsigned)comm->nranks, at_part(src, dst, &call, comm->rank), "all_gather");
}

kolo_status_t kolo_reduce_scatter(const void *src, void *dst, size_t count, kolo_type_t type, kolo_op_t op,
                                  kolo_comm_t comm, void *stream)
{
    kolo_call_t call = CALL(.coll = KOLO_COLL_REDUCE_SCATTER, .op = op);
    KOLO_CALL_TRY(kolo_check_call(&call, "reduce_scatter"));
    KOLO_CALL_TRY(kolo_check_op(&call, "reduce_scatter"));
    return submit(&call, (unsigned)comm->nranks, 1, at_part(dst, src, &call, comm->rank), "reduce_scatter");
}

kolo_status_t kolo_all_to_all(const void *src, void *dst, size_t count, kolo_type_t type, kolo_comm_t comm,
                              void *stream)
{
    kolo_call_t call = CALL(.coll = KOLO_COLL_ALL_TO_ALL);
    KOLO_CALL_TRY(kolo_check_call(&call, "all_to_all"));
    bool in_place = src == dst && comm->on_device;
    call.root = in_place; /* it goes another way: who mixes both on one call hears of it */
    return submit(&call, (unsigned)comm->nranks, (unsigned)comm->nranks, in_place, "all_to_all");
}

kolo_status_t kolo_gather(const void *src, void *dst, size_t count, kolo_type_t type, int root, kolo_comm_t comm,
                          void *stream)
{
    kolo_call_t call = CALL(.coll = KOLO_COLL_GATHER, .root = (uint32_t)root);
    KOLO_CALL_TRY(kolo_check_call(&call, "gather"));
    KOLO_CALL_TRY(check_root(&call, root, "gather"));
    if (comm->rank != root) call.dst = NULL;
    return submit(&call, 1, comm->rank == root ? (unsigned)comm->nranks : 0, at_part(src, dst, &call, root),
                  "gather");
}

kolo_status_t kolo_scatter(const void *src, void *dst, size_t count, kolo_type_t type, int root, kolo_comm_t comm,
                           void *stream)
{
    kolo_call_t call = CALL(.coll = KOLO_COLL_SCATTER, .root = (uint32_t)root);
    KOLO_CALL_TRY(kolo_check_call(&call, "scatter"));
    KOLO_CALL_TRY(check_root(&call, root, "scatter"));
    if (comm->rank != root) call.src = NULL;
    return submit(&call, comm->rank == root ? (unsigned)comm->nranks : 0, 1, at_part(dst, src, &call, root),
                  "scatter");
}

kolo_status_t kolo_barrier(kolo_comm_t comm, void *stream)
{
    kolo_call_t call = {.coll = KOLO_COLL_BARRIER, .type = KOLO_UINT8, .comm = comm, .stream = stream};
    KOLO_CALL_TRY(kolo_check_call(&call, "barrier"));
    return kolo_call_submit(&call);
}

/* Checks what a message has beyond other calls: its peer and its buffer. */
static kolo_status_t check_message(kolo_call_t *call, const void *buf, const char *what)
{
    int peer = (int)call->root;
    if (peer < 0 || peer >= call->comm->nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: peer %d is out of range, the communicator has %d ranks",
                         what, peer, call->comm->nranks);
    uint64_t bytes = call->count * call->elem;
    KOLO_TRY(kolo_check_buffer(buf, bytes, call->comm->on_device, "the buffer", what));
    if (kolo_deep() && !call->comm->on_device) return kolo_deep_check(call, bytes, bytes, what);
    return KOLO_OK;
}

kolo_status_t kolo_p2p_check_call(kolo_call_t *call, const void *buf, const char *what)
{
    KOLO_CALL_TRY(kolo_check_call(call, what));
    KOLO_CALL_TRY(check_message(call, buf, what));
    return KOLO_OK;
}

static kolo_status_t submit_p2p(kolo_call_t *call, const void *buf, const char *what)
{
    KOLO_CALL_TRY(kolo_check_call(call, what)); /* before: it may have no communicator */
    kolo_status_t status = check_message(call, buf, what);
    if (KOLO_UNLIKELY(status != KOLO_OK)) return kolo_call_refused(refuse(call, status));
    if ((int)call->root == call->comm->rank && !kolo_group_open() && !kolo_comm_has_aside(call->comm))
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "%s: rank %u to itself needs a group with both calls in it", what,
                         call->root);
    return kolo_call_submit(call);
}

kolo_status_t kolo_send(const void *buf, size_t count, kolo_type_t type, int peer, kolo_comm_t comm, void *stream)
{
    kolo_call_t call = KOLO_P2P_CALL(.kind = KOLO_CALL_SEND, .src = buf, .stream = stream);
    return submit_p2p(&call, buf, "send");
}

kolo_status_t kolo_recv(void *buf, size_t count, kolo_type_t type, int peer, kolo_comm_t comm, void *stream)
{
    kolo_call_t call = KOLO_P2P_CALL(.kind = KOLO_CALL_RECV, .dst = buf, .stream = stream);
    return submit_p2p(&call, buf, "recv");
}
