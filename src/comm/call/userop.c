/* SPDX-License-Identifier: Apache-2.0
 *
 * User operators, and memory registration. An operator is a place in the communicator's table; its number is what
 * kolo_op_t holds. Creating and destroying are local.
 */
#include "comm/call/call.h"
#include "exec/host/reduce_types.h"
#include "mem/mem.h"
#include "mem/range.h"

#include <kolo/engine.h>

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct kolo_registration {
    kolo_mem_range_t *range; /* NULL: memory of a device */
    struct kolo_registration *next;
};

/* Tells whether no user gets this number: an engine has it. */
static bool is_an_engines(int number)
{
    return number == KOLO_SIGNATURE_AGREE || number == KOLO_SIGNATURE_AGREE + 1 || number == (int)KOLO_ADASUM;
}

/* Of all communicators: operators are seldom made. */
static pthread_mutex_t placing = PTHREAD_MUTEX_INITIALIZER;

kolo_user_op_t *kolo_call_user_op(kolo_body_t *body, int op)
{
    if (op < KOLO_OP_BUILTIN_COUNT) return NULL;
    int i = op - KOLO_OP_BUILTIN_COUNT;
    kolo_user_ops_t *block = &body->user.ops;
    for (; block && i >= KOLO_USER_OPS; i -= KOLO_USER_OPS) block = atomic_load(&block->more);
    return block ? &block->ops[i] : NULL;
}

/* Finds a place that is free, with this number or any (0). NULL: out of memory, or that one is taken. */
static kolo_user_op_t *place(kolo_body_t *body, int number, int *this)
{
    *this = KOLO_OP_BUILTIN_COUNT;
    for (kolo_user_ops_t *block = &body->user.ops; block && *this < INT_MAX - KOLO_USER_OPS;
         block = atomic_load(&block->more)) {
        for (int i = 0; i < KOLO_USER_OPS; i++, (*this)++)
            if (!block->ops[i].used && (number ? *this == number : !is_an_engines(*this))) return &block->ops[i];
        if (!atomic_load(&block->more)) atomic_store(&block->more, calloc(1, sizeof *block));
    }
    return NULL;
}

/* Adds a reducer under this number, or 0: any that is free. */
static kolo_status_t add(kolo_comm_t comm, const kolo_reducer_t *reducer, int number, kolo_op_t *op,
                         const char *what)
{
    kolo_body_t *body = kolo_handle_visit(comm, what);
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    if (reducer->pre_at && !(body->gpu.exec && body->gpu.exec->reads)) {
        kolo_handle_leave(comm);
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "%s: the scalar is memory of a GPU, which %s rank %d cannot read there: its operations do "
                         "not run by kernels of that GPU alone; pass it in memory of the host",
                         what, comm->name, comm->rank);
    }
    kolo_status_t status = KOLO_OK;
    int this;
    pthread_mutex_lock(&placing);
    kolo_user_op_t *at = place(body, number, &this);
    if (at) {
        *at = (kolo_user_op_t){true, reducer->type, *reducer};
        if (!number) at->reducer.noted = body->track.record.at; /* a function of the user's */
        *op = (kolo_op_t)this;
    } else {
        status = kolo_fail(KOLO_ERR_NO_MEMORY, "%s: out of memory for an operator of %s rank %d", what, comm->name,
                           comm->rank);
    }
    pthread_mutex_unlock(&placing);
    kolo_handle_leave(comm);
    return status;
}

static double read_float(const void *scalar, kolo_type_t type)
{
    uint64_t bits = 0;
    memcpy(&bits, scalar, kolo_type_size(type)); /* the low bytes: Kolo's hosts are little-endian */
    switch (type) {
    case KOLO_FLOAT16:
        return load_f16((uint16_t)bits);
    case KOLO_BFLOAT16:
        return load_bf16((uint16_t)bits);
    case KOLO_FLOAT8_E4M3:
        return load_e4m3((uint8_t)bits);
    case KOLO_FLOAT8_E5M2:
        return load_e5m2((uint8_t)bits);
    case KOLO_FLOAT32:
        return load_f32((uint32_t)bits);
    default:
        return load_f64(bits);
    }
}

static int64_t read_int(const void *scalar, kolo_type_t type)
{
    int64_t v = 0;
    int16_t h;
    uint16_t uh;
    int32_t i;
    uint32_t u;
    switch (type) {
    case KOLO_INT8:
        return *(const int8_t *)scalar;
    case KOLO_UINT8:
        return *(const uint8_t *)scalar;
    case KOLO_INT16:
        memcpy(&h, scalar, sizeof h);
        return h;
    case KOLO_UINT16:
        memcpy(&uh, scalar, sizeof uh);
        return uh;
    case KOLO_INT32:
        memcpy(&i, scalar, sizeof i);
        return i;
    case KOLO_UINT32:
        memcpy(&u, scalar, sizeof u);
        return u;
    default:
        memcpy(&v, scalar, sizeof v);
        return v;
    }
}

static bool on_device(const void *p)
{
    kolo_mem_place_t place;
    if (!kolo_mem_has_devices()) return false;
    kolo_mem_find(p, &place);
    return place.ops != &kolo_mem_host;
}

kolo_status_t kolo_op_create_premul_sum(kolo_op_t *op, const void *scalar, kolo_type_t type, kolo_comm_t comm)
{
    kolo_reducer_t r;
    KOLO_TRY(kolo_handle_check(comm, "op_create_premul_sum"));
    if (!op || !scalar)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "op_create_premul_sum: the output or the scalar is NULL");
    if (!kolo_type_size(type))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "op_create_premul_sum: unknown type %d", (int)type);
    if (type == KOLO_BOOL)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "op_create_premul_sum: a bool cannot be multiplied");
    KOLO_TRY(kolo_reducer_init(&r, type, KOLO_SUM, (uint32_t)comm->nranks));
    r.pre = r.pre_own = true;
    if (on_device(scalar))
        r.pre_at = scalar;
    else if (kolo_type_is_float(type))
        r.pre_float = read_float(scalar, type);
    else
        r.pre_int = read_int(scalar, type);
    return add(comm, &r, 0, op, "op_create_premul_sum");
}

static kolo_status_t add_function(kolo_op_t *op, kolo_user_op_fn_t fn, void *arg, kolo_type_t type, int number,
                                  kolo_comm_t comm)
{
    kolo_reducer_t r;
    KOLO_TRY(kolo_reducer_init(&r, type, KOLO_SUM, (uint32_t)comm->nranks));
    r.user = fn;
    r.truth = false;
    r.user_arg = arg;
    return add(comm, &r, number, op, "op_create_callback");
}

kolo_status_t kolo_op_create_agreement(kolo_op_t *op, kolo_user_op_fn_t fn, int number, kolo_comm_t comm)
{
    KOLO_TRY(kolo_handle_check(comm, "op_create_callback"));
    return add_function(op, fn, NULL, KOLO_UINT64, number, comm);
}

kolo_status_t kolo_op_create_callback(kolo_op_t *op, kolo_user_op_fn_t fn, void *arg, kolo_type_t type,
                                      kolo_comm_t comm)
{
    KOLO_TRY(kolo_handle_check(comm, "op_create_callback"));
    if (!op || !fn)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "op_create_callback: the output or the function is NULL");
    if (!kolo_type_size(type))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "op_create_callback: unknown type %d", (int)type);
    return add_function(op, fn, arg, type, 0, comm);
}

kolo_status_t kolo_op_destroy(kolo_op_t op, kolo_comm_t comm)
{
    kolo_body_t *body = kolo_handle_visit(comm, "op_destroy");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    pthread_mutex_lock(&placing);
    kolo_user_op_t *at = kolo_call_user_op(body, (int)op);
    bool known = at && at->used;
    if (known) at->used = false; /* queued calls have copied the reducer */
    pthread_mutex_unlock(&placing);
    kolo_handle_leave(comm);
    if (known) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "op_destroy: operator %d was not made for this communicator",
                     (int)op);
}

static pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER; /* of the lists of all communicators */

/* Tells the executor, in the communicator's turn, as an operation. */
static kolo_status_t expect(kolo_comm_t comm, kolo_body_t *body, const void *buf, size_t bytes)
{
    uint64_t ticket;
    if (!body->gpu.exec || !body->gpu.exec->expect) return KOLO_OK;
    KOLO_TRY(kolo_ticket_draw(comm, &ticket));
    kolo_status_t status = kolo_ticket_wait(comm, ticket);
    if (status == KOLO_OK) status = body->gpu.exec->expect(atomic_load(&body->gpu.state), buf, bytes);
    kolo_ticket_end(comm, ticket);
    return status;
}

kolo_status_t kolo_comm_register(kolo_comm_t comm, void *buf, size_t bytes, kolo_registration_t *handle)
{
    KOLO_TRY(kolo_handle_check(comm, "comm_register"));
    if (!buf || !bytes || !handle)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "comm_register: %s",
                         !buf     ? "the buffer is NULL"
                         : !bytes ? "the size of the buffer is 0"
                                  : "the output is NULL");
    kolo_body_t *body = kolo_handle_visit(comm, "comm_register");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    kolo_status_t status = KOLO_OK;
    struct kolo_registration *r = calloc(1, sizeof *r);
    if (!r)
        status = kolo_fail(KOLO_ERR_NO_MEMORY, "comm_register: out of memory");
    else if (body->gpu.device < 0)
        status = kolo_mem_range_register(buf, bytes, &r->range);
    else
        status = expect(comm, body, buf, bytes);
    if (status == KOLO_OK) {
        pthread_mutex_lock(&registering);
        r->next = body->user.registrations;
        body->user.registrations = *handle = r;
        pthread_mutex_unlock(&registering);
    } else {
        free(r);
    }
    kolo_handle_leave(comm);
    return status == KOLO_OK ? KOLO_OK : kolo_fail_prefix(status, "comm_register: ");
}

kolo_status_t kolo_comm_deregister(kolo_comm_t comm, kolo_registration_t handle)
{
    kolo_body_t *body = kolo_handle_visit(comm, "comm_deregister");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    pthread_mutex_lock(&registering);
    struct kolo_registration **at = &body->user.registrations;
    while (*at && *at != handle) at = &(*at)->next; /* a handle that is stale must not be followed */
    bool known = handle && *at;
    if (known) *at = handle->next;
    pthread_mutex_unlock(&registering);
    kolo_handle_leave(comm);
    if (known) {
        kolo_mem_range_deregister(handle->range);
        free(handle);
    }
    if (known || !handle) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                     "comm_deregister: the handle is not one of %s rank %d, or was given back already", comm->name,
                     comm->rank);
}

void kolo_call_registrations_free(kolo_body_t *body)
{
    while (body->user.registrations) {
        struct kolo_registration *r = body->user.registrations;
        body->user.registrations = r->next;
        kolo_mem_range_deregister(r->range);
        free(r);
    }
}

void kolo_call_user_ops_free(kolo_body_t *body)
{
    for (kolo_user_ops_t *block = atomic_load(&body->user.ops.more), *next; block; block = next) {
        next = atomic_load(&block->more);
        free(block);
    }
}
