/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives and messages: the client's arguments are checked here, by the name of its call, and become a record
 * that is run at once or at the end of the group (groups.c). A collective of 0 elements is none; a message of 0 is
 * one.
 */
#include "nccl/layer.h"

#define LIST(call) (1u << (call))
static const unsigned reduces =
    LIST(KOLO_NCCL_ALL_REDUCE) | LIST(KOLO_NCCL_REDUCE) | LIST(KOLO_NCCL_REDUCE_SCATTER);
static const unsigned has_peer = LIST(KOLO_NCCL_REDUCE) | LIST(KOLO_NCCL_BROADCAST) | LIST(KOLO_NCCL_GATHER) |
                                 LIST(KOLO_NCCL_SCATTER) | LIST(KOLO_NCCL_SEND) | LIST(KOLO_NCCL_RECV);
static const unsigned messages = LIST(KOLO_NCCL_SEND) | LIST(KOLO_NCCL_RECV);

/* As a client calls them: without and with a configuration. */
static const char *const names[][2] = {
    [KOLO_NCCL_ALL_REDUCE] = {"ncclAllReduce", "ncclAllReduceConfig"},
    [KOLO_NCCL_REDUCE] = {"ncclReduce", "ncclReduceConfig"},
    [KOLO_NCCL_BROADCAST] = {"ncclBroadcast", "ncclBroadcastConfig"},
    [KOLO_NCCL_ALL_GATHER] = {"ncclAllGather", "ncclAllGatherConfig"},
    [KOLO_NCCL_REDUCE_SCATTER] = {"ncclReduceScatter", "ncclReduceScatterConfig"},
    [KOLO_NCCL_ALL_TO_ALL] = {"ncclAlltoAll", "ncclAlltoAllConfig"},
    [KOLO_NCCL_GATHER] = {"ncclGather", "ncclGatherConfig"},
    [KOLO_NCCL_SCATTER] = {"ncclScatter", "ncclScatterConfig"},
    [KOLO_NCCL_SEND] = {"ncclSend"},
    [KOLO_NCCL_RECV] = {"ncclRecv"},
};

static ncclResult_t check(kolo_nccl_call_t *call, ncclDataType_t type, ncclRedOp_t op)
{
    ncclResult_t r = kolo_nccl_check_made(call->comm, call->name);
    if (r != ncclSuccess) return r;
    int t = kolo_nccl_type(type);
    if (t < 0)
        return kolo_nccl_fail(ncclInvalidArgument,
                              "%s: there is no type %d: expected 0 (ncclInt8) to %d (ncclFloat8e5m2)", call->name,
                              (int)type, ncclNumTypes - 1);
    call->type = (kolo_type_t)t;
    call->client_type = type;
    if (reduces & LIST(call->kind)) {
        int o = kolo_nccl_op(op);
        if (o < 0)
            return kolo_nccl_fail(ncclInvalidArgument,
                                  "%s: there is no operator %d: expected 0 (ncclSum) to %d (ncclAvg), or one that "
                                  "ncclRedOpCreatePreMulSum() gave",
                                  call->name, (int)op, ncclNumOps - 1);
        call->op = (kolo_op_t)o;
    }
    if (has_peer & LIST(call->kind)) {
        int rank, nranks;
        r = kolo_nccl_place(call->comm, &rank, &nranks);
        if (r != ncclSuccess) return r;
        if (call->root < 0 || call->root >= nranks)
            return kolo_nccl_fail(ncclInvalidArgument, "%s: %s %d: expected 0 to %d", call->name,
                                  messages & LIST(call->kind) ? "peer" : "root", call->root, nranks - 1);
    }
    if (KOLO_UNLIKELY(atomic_load(&call->comm->finalized)))
        return kolo_nccl_fail(ncclInvalidUsage, "%s: communicator %p was finalized or revoked", call->name,
                              (void *)call->comm);
    if (KOLO_UNLIKELY(atomic_load(&call->comm->suspended)))
        return kolo_nccl_fail(ncclInvalidUsage, "%s: communicator %p is suspended: call ncclCommResume() first",
                              call->name, (void *)call->comm);
    return ncclSuccess;
}

static ncclResult_t submit(kolo_nccl_call_t call, ncclDataType_t type, ncclRedOp_t op, cudaStream_t stream,
                           const ncclCollConfig_t *config)
{
    call.name = names[call.kind][config != NULL];
    ncclResult_t r = check(&call, type, op);
    if (KOLO_UNLIKELY(config != NULL) && r == ncclSuccess) r = kolo_nccl_call_config_read(config, &call);
    if (r != ncclSuccess) return kolo_nccl_noted(r);
    if (call.count == 0 && !(messages & LIST(call.kind))) return ncclSuccess;
    call.stream = call.comm->device < 0 ? NULL : (void *)stream;
    return kolo_nccl_noted(kolo_nccl_submit(&call));
}

ncclResult_t ncclAllReduceConfig(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit(
        (kolo_nccl_call_t){.kind = KOLO_NCCL_ALL_REDUCE, .comm = comm, .src = src, .dst = dst, .count = count},
        type, op, stream, config);
}
KOLO_NCCL_TWIN(ncclAllReduceConfig, pncclAllReduceConfig);

ncclResult_t ncclAllReduce(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return pncclAllReduceConfig(src, dst, count, type, op, comm, stream, NULL);
}
KOLO_NCCL_TWIN(ncclAllReduce, pncclAllReduce);

ncclResult_t ncclReduceConfig(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op,
                              int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit(
        (kolo_nccl_call_t){
            .kind = KOLO_NCCL_REDUCE, .comm = comm, .src = src, .dst = dst, .count = count, .root = root},
        type, op, stream, config);
}
KOLO_NCCL_TWIN(ncclReduceConfig, pncclReduceConfig);

ncclResult_t ncclReduce(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    return pncclReduceConfig(src, dst, count, type, op, root, comm, stream, NULL);
}
KOLO_NCCL_TWIN(ncclReduce, pncclReduce);

ncclResult_t ncclBroadcastConfig(const void *src, void *dst, size_t count, ncclDataType_t type, int root,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit(
        (kolo_nccl_call_t){
            .kind = KOLO_NCCL_BROADCAST, .comm = comm, .src = src, .dst = dst, .count = count, .root = root},
        type, ncclSum, stream, config);
}
KOLO_NCCL_TWIN(ncclBroadcastConfig, pncclBroadcastConfig);

ncclResult_t ncclBroadcast(const void *src, void *dst, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    return pncclBroadcastConfig(src, dst, count, type, root, comm, stream, NULL);
}
KOLO_NCCL_TWIN(ncclBroadcast, pncclBroadcast);

ncclResult_t ncclAllGatherConfig(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm,
                                 cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit(
        (kolo_nccl_call_t){.kind = KOLO_NCCL_ALL_GATHER, .comm = comm, .src = src, .dst = dst, .count = count},
        type, ncclSum, stream, config);
}
KOLO_NCCL_TWIN(ncclAllGatherConfig, pncclAllGatherConfig);

ncclResult_t ncclAllGather(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return pncclAllGatherConfig(src, dst, count, type, comm, stream, NULL);
}
KOLO_NCCL_TWIN(ncclAllGather, pncclAllGather);

ncclResult_t ncclReduceScatterConfig(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                     ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit(
        (kolo_nccl_call_t){.kind = KOLO_NCCL_REDUCE_SCATTER, .comm = comm, .src = src, .dst = dst, .count = count},
        type, op, stream, config);
}
KOLO_NCCL_TWIN(ncclReduceScatterConfig, pncclReduceScatterConfig);

ncclResult_t ncclReduceScatter(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return pncclReduceScatterConfig(src, dst, count, type, op, comm, stream, NULL);
}
KOLO_NCCL_TWIN(ncclReduceScatter, pncclReduceScatter);

ncclResult_t ncclAlltoAllConfig(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm,
                                cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit(
        (kolo_nccl_call_t){.kind = KOLO_NCCL_ALL_TO_ALL, .comm = comm, .src = src, .dst = dst, .count = count},
        type, ncclSum, stream, config);
}
KOLO_NCCL_TWIN(ncclAlltoAllConfig, pncclAlltoAllConfig);

ncclResult_t ncclAlltoAll(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream)
{
    return pncclAlltoAllConfig(src, dst, count, type, comm, stream, NULL);
}
KOLO_NCCL_TWIN(ncclAlltoAll, pncclAlltoAll);

ncclResult_t ncclGatherConfig(const void *src, void *dst, size_t count, ncclDataType_t type, int root,
                              ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit(
        (kolo_nccl_call_t){
            .kind = KOLO_NCCL_GATHER, .comm = comm, .src = src, .dst = dst, .count = count, .root = root},
        type, ncclSum, stream, config);
}
KOLO_NCCL_TWIN(ncclGatherConfig, pncclGatherConfig);

ncclResult_t ncclGather(const void *src, void *dst, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream)
{
    return pncclGatherConfig(src, dst, count, type, root, comm, stream, NULL);
}
KOLO_NCCL_TWIN(ncclGather, pncclGather);

ncclResult_t ncclScatterConfig(const void *src, void *dst, size_t count, ncclDataType_t type, int root,
                               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit(
        (kolo_nccl_call_t){
            .kind = KOLO_NCCL_SCATTER, .comm = comm, .src = src, .dst = dst, .count = count, .root = root},
        type, ncclSum, stream, config);
}
KOLO_NCCL_TWIN(ncclScatterConfig, pncclScatterConfig);

ncclResult_t ncclScatter(const void *src, void *dst, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream)
{
    return pncclScatterConfig(src, dst, count, type, root, comm, stream, NULL);
}
KOLO_NCCL_TWIN(ncclScatter, pncclScatter);

ncclResult_t ncclBcast(void *buf, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)
{
    return pncclBroadcast(buf, buf, count, type, root, comm, stream);
}
KOLO_NCCL_TWIN(ncclBcast, pncclBcast);

ncclResult_t ncclSend(const void *buf, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return submit(
        (kolo_nccl_call_t){.kind = KOLO_NCCL_SEND, .comm = comm, .src = buf, .count = count, .root = peer}, type,
        ncclSum, stream, NULL);
}
KOLO_NCCL_TWIN(ncclSend, pncclSend);

ncclResult_t ncclRecv(void *buf, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return submit(
        (kolo_nccl_call_t){.kind = KOLO_NCCL_RECV, .comm = comm, .dst = buf, .count = count, .root = peer}, type,
        ncclSum, stream, NULL);
}
KOLO_NCCL_TWIN(ncclRecv, pncclRecv);
