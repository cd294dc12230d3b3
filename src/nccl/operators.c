/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's types and operators in Kolo's numbers, and operators that multiply first.
 */
#include "base/clock.h"
#include "mem/cuda/beside.h"
#include "nccl/layer.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const kolo_type_t types[ncclNumTypes] = {
    [ncclInt8] = KOLO_INT8,
    [ncclUint8] = KOLO_UINT8,
    [ncclInt32] = KOLO_INT32,
    [ncclUint32] = KOLO_UINT32,
    [ncclInt64] = KOLO_INT64,
    [ncclUint64] = KOLO_UINT64,
    [ncclFloat16] = KOLO_FLOAT16,
    [ncclFloat32] = KOLO_FLOAT32,
    [ncclFloat64] = KOLO_FLOAT64,
    [ncclBfloat16] = KOLO_BFLOAT16,
    [ncclFloat8e4m3] = KOLO_FLOAT8_E4M3,
    [ncclFloat8e5m2] = KOLO_FLOAT8_E5M2,
};

static const kolo_op_t ops[ncclNumOps] = {
    [ncclSum] = KOLO_SUM, [ncclProd] = KOLO_PROD, [ncclMax] = KOLO_MAX, [ncclMin] = KOLO_MIN, [ncclAvg] = KOLO_AVG,
};

int kolo_nccl_type(ncclDataType_t type)
{
    return (unsigned)type < ncclNumTypes ? (int)types[type] : -1;
}

/* Translates an operator: created ones are counted on from the built-in ones, there and here. */
int kolo_nccl_op(ncclRedOp_t op)
{
    if ((int)op < 0 || (int)op >= INT_MAX - KOLO_OP_BUILTIN_COUNT) return -1;
    if (op < ncclNumOps) return (int)ops[op];
    return (int)op - ncclNumOps + KOLO_OP_BUILTIN_COUNT;
}

typedef struct {
    const kolo_cuda_device_t *device;
    const void *at;
    size_t bytes;
    kolo_cu_result_t result;
    _Atomic int users; /* who asks, and the thread that reads; the last one frees it */
    char value[16];
} scalar_t;

static void scalar_leave(scalar_t *s)
{
    if (atomic_fetch_sub(&s->users, 1) == 1) free(s);
}

static void scalar_read(void *arg)
{
    scalar_t *s = arg;
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_ptr_t to = (kolo_cu_ptr_t)(uintptr_t)s->value, from = (kolo_cu_ptr_t)(uintptr_t)s->at;
    s->result = kolo_cuda_await_idle(s->device);
    if (!s->result) s->result = api->memcpy_async(to, from, s->bytes, NULL);
    if (!s->result) s->result = api->stream_sync(NULL);
    scalar_leave(s);
}

/* Reads a factor where Kolo cannot when an operation runs, as NCCL does if it lies on the device. What the streams
 * have still to write is waited for, but not for longer than an operation may wait. */
static ncclResult_t read_scalar(ncclComm_t comm, const void *scalar, size_t bytes, void *value)
{
    const kolo_cuda_device_t *device;
    scalar_t *s = calloc(1, sizeof *s);
    if (!s) return kolo_nccl_fail(ncclSystemError, "ncclRedOpCreatePreMulSum: out of memory");
    s->at = scalar;
    s->bytes = bytes;
    atomic_init(&s->users, 2);
    kolo_status_t status = kolo_cuda_device(comm->device, &device);
    if (status != KOLO_OK) {
        free(s);
        return kolo_nccl_result(status);
    }
    s->device = device;
    const char *limit = kolo_environment("KOLO_NCCL_WAIT_MS");
    int ms = limit ? atoi(limit) : 0;
    status = kolo_cuda_beside(device, scalar_read, s, kolo_deadline_ms(ms > 0 ? ms : KOLO_CUDA_COPY_MS),
                              "have the scalar of ncclRedOpCreatePreMulSum() written and read it");
    kolo_cu_result_t r = status == KOLO_OK ? s->result : KOLO_CU_SUCCESS;
    if (status == KOLO_OK) memcpy(value, s->value, bytes);
    scalar_leave(s);
    if (status != KOLO_OK) return kolo_nccl_result(status);
    if (!r) return ncclSuccess;
    kolo_nccl_result(kolo_cuda_fail(r, comm->device, "read the scalar of ncclRedOpCreatePreMulSum"));
    return ncclUnhandledCudaError;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    KOLO_NCCL_WHOLE;
    static const char call[] = "ncclRedOpCreatePreMulSum";
    char value[16];
    kolo_op_t made;
    ncclResult_t r = kolo_nccl_check_made(comm, call);
    if (r != ncclSuccess) return r;
    int t = kolo_nccl_type(type);
    if (t < 0)
        return kolo_nccl_fail(ncclInvalidArgument,
                              "%s: there is no type %d: expected 0 (ncclInt8) to %d (ncclFloat8e5m2)", call,
                              (int)type, ncclNumTypes - 1);
    if (!op || !scalar) return kolo_nccl_fail(ncclInvalidArgument, "%s: the output or the scalar is NULL", call);
    if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
        return kolo_nccl_fail(
            ncclInvalidArgument,
            "%s: there is no residence %d: expected ncclScalarDevice (0) or ncclScalarHostImmediate (1)", call,
            (int)residence);
    r = kolo_nccl_settle(comm);
    if (r != ncclSuccess) return r;
    if (residence == ncclScalarDevice && comm->device >= 0) {
        kolo_mem_place_t place;
        kolo_mem_find(scalar, &place);
        kolo_status_t status = place.ops == &kolo_mem_host
                                   ? KOLO_ERR_UNSUPPORTED
                                   : kolo_op_create_premul_sum(&made, scalar, (kolo_type_t)t, comm->kolo);
        if (status == KOLO_ERR_UNSUPPORTED) {
            r = read_scalar(comm, scalar, kolo_type_size((kolo_type_t)t), value);
            if (r == ncclSuccess) status = kolo_op_create_premul_sum(&made, value, (kolo_type_t)t, comm->kolo);
        }
        if (r == ncclSuccess) r = kolo_nccl_result(status);
    } else {
        r = kolo_nccl_result(kolo_op_create_premul_sum(&made, scalar, (kolo_type_t)t, comm->kolo));
    }
    if (r == ncclSuccess) *op = (ncclRedOp_t)((int)made - KOLO_OP_BUILTIN_COUNT + ncclNumOps);
    return r;
}
KOLO_NCCL_TWIN(ncclRedOpCreatePreMulSum, pncclRedOpCreatePreMulSum);

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    KOLO_NCCL_WHOLE;
    ncclResult_t r = kolo_nccl_check_made(comm, "ncclRedOpDestroy");
    if (r != ncclSuccess) return r;
    int number = kolo_nccl_op(op);
    if (op < ncclNumOps || number < 0)
        return kolo_nccl_fail(ncclInvalidArgument,
                              "ncclRedOpDestroy: %d is no operator that ncclRedOpCreatePreMulSum() gave", (int)op);
    if (kolo_nccl_grouped())
        return kolo_nccl_group_destroys((kolo_op_t)number, comm); /* its calls run at the end */
    return kolo_nccl_result(kolo_op_destroy((kolo_op_t)number, comm->kolo));
}
KOLO_NCCL_TWIN(ncclRedOpDestroy, pncclRedOpDestroy);
